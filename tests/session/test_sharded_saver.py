"""ShardedSaver: which checkpoints stay, what is restored, what a kill leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ends_of_saves import END_AT
from fault_tasks import Supervisor
from paths import ROOT
from sharded_model import Model, steps_in

import weft as wf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_the_last_ones_stay(folder: Path) -> None:
    model = Model(max_to_keep=2)
    for _ in range(4):
        model.train()
        path = model.saver.save(model.session, folder / "m", model.step)
        assert path == wf.train.latest_checkpoint(folder)
    assert path == str(folder / "m-4")
    assert steps_in(folder) == [3, 4]
    assert model.saver.last_checkpoints == [str(folder / "m-3"), str(folder / "m-4")]
    state = wf.train.get_checkpoint_state(folder)
    assert state is not None
    assert state.all_model_checkpoint_paths == model.saver.last_checkpoints


def test_the_best_stay_besides(folder: Path) -> None:
    model = Model(max_to_keep=1, keep_best=1, best_mode="max")
    for step, metric in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.1)):
        model.saver.save(model.session, folder / "m", step, metric=metric)
    assert steps_in(folder) == [2, 4]
    assert wf.train.best_checkpoint(folder, "max") == str(folder / "m-2")


def test_one_every_so_often_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(max_to_keep=1, keep_checkpoint_every_n_hours=1)
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    for step in range(1, 7):
        model.saver.save(model.session, folder / "m", step)
        now += 1500
    assert steps_in(folder) == [4, 6]


def test_when_one_is_due(folder: Path) -> None:
    model = Model(every_n_steps=3)
    saved = []
    for _ in range(7):
        model.train()
        saved.append(model.saver.save_if_due(model.session, folder / "m", model.step))
    assert [s is not None for s in saved] == [False, False, True, False, False, True, False]
    with pytest.raises(wf.errors.InvalidArgumentError, match="ShardedSaver"):
        Model().saver.save_if_due(model.session, folder / "m", 1)


def test_the_latest_is_restored(folder: Path) -> None:
    model = Model()
    ran = model.saver.restore_or_initialize(model.session, folder, model.init)
    assert ran is None
    model.train(5)
    model.saver.save(model.session, folder / "m", model.step)
    model.train()
    other = Model()
    report = other.saver.restore_or_initialize(other.session, folder, other.init)
    assert report is not None
    assert (report.step, report.verified) == (5, True)
    assert sorted(report.restored) == ["a", "b", "global_step"]
    assert other.values() == [5] * 6


def test_it_looks_like_one_file(folder: Path) -> None:
    model = Model()
    model.train(2)
    path = model.saver.save(model.session, folder / "m", model.step, metric=0.25)
    for name in (folder, path, path + ".manifest.json"):
        assert wf.train.list_variables(name) == [("a", [3]), ("b", [2]), ("global_step", [])]
        assert wf.train.load_variable(name, "a").tolist() == [2, 2, 2]
    assert wf.train.checkpoint_exists(path)
    with pytest.raises(wf.errors.NotFoundError, match="no variable 'c'"):
        wf.train.load_variable(path, "c")


def test_a_saver_reads_it_and_it_reads_a_savers(folder: Path) -> None:
    model = Model()
    model.train(2)
    path = model.saver.save(model.session, folder / "m", model.step, metric=0.25)
    a, b = wf.Variable(np.ones(3, np.float32), name="a"), wf.Variable(np.ones(2), name="b")
    report = wf.train.Saver([a, b]).restore(None, path)
    assert (report.step, report.metric, report.unexpected) == (2, 0.25, ("global_step",))
    assert a.numpy().tolist() == [2] * 3
    assert b.numpy().tolist() == [2] * 2
    with model.graph.as_default():
        one = wf.train.Saver([model.a, model.b, model.step])
    model.train()
    single = one.save(model.session, folder / "m", model.step)
    assert wf.train.latest_checkpoint(folder) == single
    model.train(4)
    model.saver.restore(model.session, single)
    assert model.values() == [3] * 6


def test_two_checkpoints_of_one_name(folder: Path) -> None:
    model = Model()
    many = model.saver.save(model.session, folder / "m", 1)
    a = wf.Variable(np.ones(3, np.float32), name="a")
    one = wf.train.Saver([a]).save(None, folder / "m", 1)
    with pytest.raises(wf.errors.InvalidArgumentError, match="two checkpoints"):
        wf.train.load_variable(many, "a")
    assert wf.train.load_variable(one, "a").tolist() == [1] * 3
    model.saver.save(model.session, folder / "m", 1)
    latest = wf.train.latest_checkpoint(folder)
    assert latest == many + ".manifest.json"
    assert wf.train.load_variable(latest, "a").tolist() == [0] * 3


def test_damage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    for _ in range(2):
        model.train()
        model.saver.save(model.session, folder / "m", model.step)
    (shard,) = folder.glob("m-2-*-00000-of-*")
    shard.write_bytes(shard.read_bytes()[:-1])
    model.train()
    with pytest.raises(wf.errors.DataLossError, match="m-2"):
        model.saver.restore_or_initialize(model.session, folder)
    assert model.values() == [3] * 6
    model.saver.restore_or_initialize(model.session, folder, or_previous=True)
    assert model.values() == [1] * 6
    (folder / "checkpoint").write_text("{")  # the folder is searched: shards are no checkpoints
    model.train()
    model.saver.restore_or_initialize(model.session, folder, or_previous=True)
    assert model.values() == [1] * 6
    path = wf.train.Saver([wf.Variable(0.0, name="x")]).save(None, folder / "x")
    assert wf.train.get_checkpoint_state(folder).all_model_checkpoint_paths == [  # type: ignore[union-attr]
        str(folder / "m-1"), path,
    ]  # fmt: skip


def test_files_of_saves_that_failed_are_removed(folder: Path) -> None:
    model = Model()
    model.saver.save(model.session, folder / "m", 1)
    left = folder / "m-2-0123456789abcdef-00000-of-00002.safetensors"
    other = folder / "mm-2-0123456789abcdef-00000-of-00002.safetensors"
    for path in (left, other):
        path.write_bytes(b"half")
    model.saver.save(model.session, folder / "m", 1)  # replaces the first one
    assert not left.exists()
    assert other.exists()
    other.unlink()
    assert steps_in(folder) == [1]
    (folder / "m-9.manifest.json").write_text("{}")  # may name any file
    left = folder / "m-2-1123456789abcdef-00000-of-00002.safetensors"
    left.write_bytes(b"half")
    model.saver.save(model.session, folder / "m", 3)
    assert left.exists()


#: Ends as a kill does at the n-th call that changes the folder, for every n.
EVERY_MOMENT = (
    END_AT
    + """
import sys
from pathlib import Path
sys.path.insert(0, "tests/support")
from sharded_model import Model, steps_in

def save(model, folder):
    model.train()
    model.saver.save(model.session, folder / "m", model.step if name == "steps" else None)

model = Model(max_to_keep=1)  # what is compiled here need not be in each child
name = "steps"
save(model, Path(sys.argv[1]) / "first")
for name in ("steps", "overwritten"):
    moments, done = [], False
    while not done:
        n = (moments[-1] if moments else 0) + int(sys.argv[2])
        moments.append(n)
        folder = Path(f"{sys.argv[1]}/{name}-{n}")
        child = os.fork()
        if not child:
            model.session.run(model.init)
            save(model, folder)
            end_at(n)
            save(model, folder)
            save(model, folder)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9), status
        done = status == 0
    print(name, n)
    assert n > 30, n
    for k in moments:
        folder = Path(f"{sys.argv[1]}/{name}-{k}")
        report = model.saver.restore_or_initialize(model.session, folder)
        assert report is not None, k
        value = model.values()
        assert value in ([1] * 6, [2] * 6, [3] * 6), (k, value)
        assert name == "overwritten" or report.step == value[0]
        assert k < n or value[0] == 3
        for path in folder.glob("*.manifest.json"):  # also one that no state file names yet
            model.saver.restore(model.session, path)
        model.saver.restore_or_initialize(model.session, folder)
        save(model, folder)
        save(model, folder)
        left = sorted(p.name for p in folder.iterdir() if not p.name.endswith(".safetensors"))
        manifests = [p for p in left if p.endswith(".manifest.json")]
        assert left == ["checkpoint", *manifests], left
        if name == "overwritten":
            assert len(manifests) == 1 and len(list(folder.glob("*.safetensors"))) == 2, k
        else:
            steps_in(folder)
"""
)


def end_at_moments(folder: Path, stride: int) -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_MOMENT, folder, str(stride)], cwd=ROOT,
                          timeout=120, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


def test_ends_at_some_moments_of_a_save(tmp_path: Path) -> None:
    end_at_moments(tmp_path, 37)


@pytest.mark.slow
def test_an_end_at_every_moment_of_a_save(tmp_path: Path) -> None:
    end_at_moments(tmp_path, 1)


#: A chief that saves after each step; each variable counts the steps.
CHIEF = """
import sys
import numpy as np
import weft as wf

target, folder = sys.argv[1:]
with wf.Graph().as_default():
    made = []
    for task in range(2):
        with wf.device(f"/job:ps/task:{task}"):
            made.append(wf.Variable(np.zeros(20_000), name=f"v{task}"))
    step = wf.train.get_or_create_global_step()
    up = wf.group(*(v.assign_add(np.ones(20_000)) for v in made), step.assign_add(1))
    with wf.train.MonitoredTrainingSession(
        target, True, folder, save_checkpoint_steps=1, recovery_wait_secs=30
    ) as session:
        while True:
            session.run(up)
"""


@pytest.mark.slow
def test_kills_of_tasks_and_the_chief(tmp_path: Path) -> None:
    """After each kill, the latest checkpoint is there, is of one step, and is no earlier one."""
    folder, chooses = tmp_path / "checkpoints", np.random.default_rng(0)
    address = {"ps": [f"ipc://{tmp_path}/ps{i}" for i in range(2)]}
    tasks = Supervisor(wf.train.ClusterSpec(address), tmp_path)
    command = [sys.executable, "-c", CHIEF, address["ps"][0], str(folder)]
    chief = subprocess.Popen(command, cwd=ROOT)
    try:
        before = -1
        for kill in range(12):
            until = time.monotonic() + 60
            while latest_step(folder) < before + 3:
                assert time.monotonic() < until, f"no further than {before} since kill {kill}"
                time.sleep(0.02)
            time.sleep(chooses.uniform(0, 0.1))
            if kill % 3 == 2:
                chief.kill()
                chief.wait(30)
                chief = subprocess.Popen(command, cwd=ROOT)
            else:
                tasks.fault("kill", tasks.tasks[kill % 3])
            found = latest_step(folder)
            assert found >= before
            before = found
        assert len(list(folder.glob("*.safetensors"))) <= 6 * 3 + 3  # kept, of one save, replaced
    finally:
        chief.kill()
        chief.wait(30)
        tasks.close()


def latest_step(folder: Path) -> int:
    """The step of the latest checkpoint; all that is in it is of that step. -1 if there is none."""
    for _ in range(20):  # it may be removed while it is read
        latest = wf.train.latest_checkpoint(folder)
        if latest is None:
            return -1
        step = int(latest.rpartition("-")[2])
        try:
            values = [wf.train.load_variable(latest, name) for name in ("v0", "v1", "global_step")]
        except (wf.errors.NotFoundError, wf.errors.DataLossError):
            if latest == wf.train.latest_checkpoint(folder):
                raise
            continue
        assert all((v == step).all() for v in values)
        return step
    raise AssertionError("no checkpoint stays as long as it is read")
