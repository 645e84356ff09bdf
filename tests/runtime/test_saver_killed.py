"""What is left when a process is killed, a disk is full, or a folder cannot be written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ends_of_saves import END_AT
from paths import ROOT

import weft as wf

#: Trains to `last` from the newest checkpoint on; each step appends a line with the loss's bits.
TRAINING = """
import os, sys
import numpy as np
import weft as wf

folder, log, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
wf.set_random_seed(1)
w = wf.Variable(wf.random_normal([64, 8]), name="w")
b = wf.Variable(np.zeros(8, np.float32), name="b")
step = wf.Variable(0, name="step")
optimizer = wf.train.Adam(0.01)
history = []

class History:
    def state_dict(self):
        return {"losses": list(history)}
    def load_state_dict(self, state):
        history[:] = state["losses"]

@wf.compile
def train():
    x = wf.random_normal([16, 64])
    loss = wf.mean((x @ w + b - wf.random_uniform([16, 8], seed=3)) ** 2)
    optimizer.minimize(loss, [w, b], global_step=step)
    return loss

saver = wf.train.Saver(
    {"w": w, "b": b, "step": step, "adam": optimizer, "history": History()},
    max_to_keep=2, include="random", every_n_steps=2,
)
named = wf.train.latest_checkpoint(folder)
report = saver.restore_or_initialize(None, folder)
assert (named is None) == (report is None), (named, report)
assert len(history) == int(step.numpy())
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while int(step.numpy()) < last:
    loss = float(train())
    history.append(loss)
    os.write(out, f"{int(step.numpy())} {loss.hex()} {history[0].hex()}\\n".encode())
    number = int(step.numpy())
    saver.save_if_due(None, folder + "/model", step, metric=loss, wait=number % 4 == 0)
saver.wait()
"""


def start(tmp_path: Path, name: str, last: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", TRAINING, tmp_path / name, tmp_path / f"{name}.log", str(last)]
    kernels = {"WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path / "kernels")}  # compiled once
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | kernels)


def lines(path: Path) -> list[str]:
    """Whole lines: a kill may cut the last one."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def kill_and_restart(tmp_path: Path, kills: int, seed: int) -> None:
    """The losses of a training that is killed again and again are those of one that is not."""
    choose = random.Random(seed)
    log = tmp_path / "killed.log"
    starts = []
    for _ in range(kills):
        before = len(lines(log))
        process = start(tmp_path, "killed", 1 << 40)
        if choose.random() < 0.15:  # at whatever moment of its start
            time.sleep(choose.uniform(0, 0.5))
        else:
            steps, deadline = choose.randint(1, 9), time.monotonic() + 60
            while len(lines(log)) < before + steps and time.monotonic() < deadline:
                assert process.poll() is None, process.stderr and process.stderr.read().decode()
                time.sleep(0.002)
            time.sleep(choose.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        if len(lines(log)) > before:
            starts.append(int(lines(log)[before].split()[0]))
    last = max(int(line.split()[0]) for line in lines(log)) + 4
    for name in ("killed", "whole"):
        process = start(tmp_path, name, last)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    whole = lines(tmp_path / "whole.log")
    assert len(whole) == last
    assert set(lines(log)) == set(whole)
    assert starts == sorted(starts)  # no restart begins before an earlier one
    assert starts[-1] > starts[0]
    left = sorted(p.name for p in (tmp_path / "killed").iterdir())
    assert "checkpoint" in left
    assert not [n for n in left if n.endswith("tmp")], left


@pytest.mark.slow
def test_four_kills(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, 4, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_hundred_kills(tmp_path: Path, seed: int) -> None:
    kill_and_restart(tmp_path, 50, seed)


#: At every call, with each way to save.
EVERY_MOMENT = (
    END_AT
    + """
import sys
from pathlib import Path
import numpy as np
import weft as wf

root = sys.argv[1]

def save(saver, v, folder, step):
    v.assign(np.full(1000, float(step)))
    saver.save(None, folder + "/m", step if name == "steps" else None)

for name in ("steps", "overwritten"):
    n, done = 0, False
    while not done:
        n += 1
        folder = f"{root}/{name}-{n}"
        v = wf.Variable(np.zeros(1000), name="v")
        saver = wf.train.Saver([v], max_to_keep=1)
        save(saver, v, folder, 1)
        child = os.fork()
        if not child:
            end_at(n)
            save(saver, v, folder, 2)
            save(saver, v, folder, 3)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9), status
        done = status == 0
        report = saver.restore_or_initialize(None, folder)
        value = v.numpy()
        assert np.all(value == value[0]) and value[0] in (1, 2, 3), (n, value[0])
        assert value[0] == report.step or name == "overwritten"
        assert not done or value[0] == 3
        for path in Path(folder).glob("*.safetensors"):
            saver.restore(None, path)  # also one that no state file names yet is complete
        save(saver, v, folder, 4)
        assert saver.restore_or_initialize(None, folder) is not None
        assert np.all(v.numpy() == 4)
        left_over = [p.name for p in Path(folder).iterdir() if p.name.endswith("tmp")]
        assert not left_over, left_over
    print(name, n)
    assert n > 15, n
"""
)


@pytest.mark.slow
def test_an_end_at_every_moment_of_a_save(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_MOMENT, tmp_path], cwd=ROOT, timeout=120,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


#: A disk that takes no more: the system's limit on the size of a file, then none.
FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
import weft as wf

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
v = wf.Variable(np.zeros(100_000), name="v")
saver = wf.train.Saver([v])
saver.save(None, folder / "m", 1)
before = {p.name: p.read_bytes() for p in folder.iterdir()}
v.assign(np.ones(100_000))
for limit in (0, 100, 5000, 500_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for wait in (True, False):
        try:
            saver.save(None, folder / "m", 2, wait=wait)
            saver.wait()
        except wf.errors.ResourceExhaustedError as error:
            assert "m-2.safetensors" in str(error) and isinstance(error.__cause__, OSError), error
        else:
            raise AssertionError(limit)
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
assert saver.save(None, folder / "m", 3) == wf.train.latest_checkpoint(folder)
v.assign(np.zeros(100_000))
saver.restore_or_initialize(None, folder)
assert np.all(v.numpy() == 1)
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], cwd=ROOT, timeout=120,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    saver = wf.train.Saver([wf.Variable(np.zeros(3), name="v")])
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "m-1.safetensors").mkdir()
    for path, step, why in (
        (tmp_path / "file/m", None, "Not a directory|File exists"),
        (Path("/proc/none/m"), None, "No such file"),
        (tmp_path / "m", 1, "Is a directory"),
        (tmp_path / ("x" * 300), None, "File name too long"),
    ):
        with pytest.raises(wf.errors.FailedPreconditionError, match=f"cannot write.*({why})"):
            saver.save(None, path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "m-1.safetensors"]
    saver.save(None, tmp_path / "m")


#: Root may write everywhere, so it becomes nobody once all is loaded.
READ_ONLY = """
import os, shutil, tempfile
from pathlib import Path
import numpy as np
import weft as wf

folder = Path(tempfile.mkdtemp())
try:
    v = wf.Variable(np.zeros(3), name="v")
    saver = wf.train.Saver([v])
    path = saver.save(None, folder / "m", 1)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        saver.save(None, folder / "m", 2)
    except wf.errors.FailedPreconditionError as error:
        assert "Permission denied" in str(error), error
    else:
        raise AssertionError("it was written")
    v.assign(np.ones(3))
    assert saver.restore_or_initialize(None, folder).path == path
    assert np.all(v.numpy() == 0)
finally:
    os.seteuid(os.getuid())
    folder.chmod(0o755)
    shutil.rmtree(folder)
"""


def test_a_folder_without_permission() -> None:
    done = subprocess.run([sys.executable, "-c", READ_ONLY], cwd=ROOT, timeout=120,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
