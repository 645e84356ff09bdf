"""Real engines start examples/cluster_digits.py: SLURM, Open MPI and torchrun, on this machine.

`python -m pytest -m engines tests/cluster` runs those that are installed (Debian: `apt-get install
slurm-wlm munge openmpi-bin`; `pip install torch`, or TORCHRUN=/path/to/torchrun)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import slurm_here
from example_programs import FOLDER
from paths import ROOT
from slurm_here import Slurm

pytestmark = pytest.mark.engines
STEPS, TASKS, SECONDS = 30, 5, 600
PROGRAM = str(FOLDER / "cluster_digits.py")
TORCHRUN = os.environ.get("TORCHRUN") or shutil.which("torchrun")


#: Processes that an engine has numbered as a mesh.
MESH = """
import numpy as np
import weft as wf
from weft import PartitionSpec as P
from weft import collectives as c

here = wf.train.cluster_from_environment()
size = len(here.cluster.job_tasks(here.job))
with wf.Mesh({"data": size}, task=here) as mesh:
    total = wf.shard_map(lambda x: c.psum(x, "data"), mesh, (P("data"),), P())
    print("sum", here.task, total(np.arange(size) + 1.0).numpy().tolist(), flush=True)
"""


def arguments(folder: Path, steps: int = STEPS) -> list[str]:
    return [PROGRAM, "--scheme", "sync", "--steps", str(steps), "--here", str(folder)]


def run(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    environ = {**(environ or os.environ), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result(text: str) -> tuple[int, int, str]:
    """Steps, restarts, and the digits of the parameters' bits; said once."""
    ((steps, restarts, bits),) = re.findall(
        r"^sync +(\d+) steps in .*, (\d+) restarts, .*, parameters (\w+)$", text, re.MULTILINE
    )
    return int(steps), int(restarts), bits


def launchers() -> dict[str, list[str]]:
    """What starts as many processes as there are tasks, before their command."""
    return {
        "mpirun": ["mpirun", "--oversubscribe", "-np", str(TASKS)],
        "torchrun": [str(TORCHRUN), "--standalone", f"--nproc-per-node={TASKS}", "--no-python"],
        "srun": ["srun", f"--ntasks={TASKS}", "--kill-on-bad-exit=1"],
    }


def mesh_works(engine: str, folder: Path, environ: dict[str, str] | None = None) -> None:
    """All processes have the sum of their numbers."""
    program = folder / "mesh.py"
    program.write_text(MESH)
    found = re.findall(
        r"^sum (\d) (.*)$", run([*launchers()[engine], sys.executable, str(program)], environ), re.M
    )
    assert sorted(found) == [(str(k), "[15.0]") for k in range(TASKS)]


@pytest.fixture(scope="module")
def bits() -> str:
    """Of the parameters where the program starts its own processes."""
    command = [sys.executable, PROGRAM, "--scheme", "sync", "--steps", str(STEPS)]
    steps, restarts, found = result(run(command))
    assert (steps, restarts) == (STEPS, 0)
    return found


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: apt-get install openmpi-bin")
def test_mpirun(bits: str, tmp_path: Path) -> None:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ = os.environ | as_root
    command = [*launchers()["mpirun"], sys.executable, *arguments(tmp_path / "saved")]
    assert result(run(command, environ)) == (STEPS, 0, bits)
    mesh_works("mpirun", tmp_path, environ)


@pytest.mark.skipif(TORCHRUN is None, reason="no torchrun: pip install torch, or set TORCHRUN")
def test_torchrun(bits: str, tmp_path: Path) -> None:
    text = run([*launchers()["torchrun"], sys.executable, *arguments(tmp_path / "saved")])
    assert result(text) == (STEPS, 0, bits)
    mesh_works("torchrun", tmp_path)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    why = slurm_here.missing()
    if why:
        pytest.skip(why)
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The cluster's secret, as addresses of hosts need it."""
    file = tmp_path_factory.mktemp("key") / "key"
    run([sys.executable, "-m", "weft", "keygen", str(file)])
    return {"WEFT_KEY_FILE": str(file)}


@pytest.mark.parametrize("ports", [[], [f"--resv-ports={TASKS}"]], ids=["", "resv-ports"])
def test_srun(
    slurm: Slurm, key: dict[str, str], bits: str, tmp_path: Path, ports: list[str]
) -> None:
    command = [*launchers()["srun"], *ports, sys.executable, *arguments(tmp_path / "saved")]
    assert result(run(command, slurm.environ | key)) == (STEPS, 0, bits)
    if not ports:
        mesh_works("srun", tmp_path, slurm.environ)


def test_slurm_requeues_a_step_that_was_killed(
    slurm: Slurm, key: dict[str, str], bits: str, tmp_path: Path
) -> None:
    """SIGKILL of a worker ends the step, the job is put into the queue again, and goes on from the
    last checkpoint: to the same bits. SLURM lets it rest for two minutes before."""
    saved, out = tmp_path / "checkpoints", tmp_path / "out"
    step = ["srun", "--kill-on-bad-exit=1", sys.executable, *arguments(saved)]
    # A script that ends by itself while it is put into the queue may be taken for a failed job.
    again = '[ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] && scontrol requeue "$SLURM_JOB_ID" && sleep 60'
    script = slurm_here.batch(
        tmp_path / "job",
        [f"#SBATCH --requeue --ntasks={TASKS} --output={out} --open-mode=append",
         f"export PYTHONPATH={ROOT} {' '.join(f'{k}={v}' for k, v in key.items())}",
         f"{' '.join(step)} || {{ {again}; }}"],
    )  # fmt: skip
    job = slurm.run("sbatch", "--parsable", str(script)).strip()
    until, killed = time.monotonic() + SECONDS, False
    while (state := slurm.state(job)) != "COMPLETED":
        assert time.monotonic() < until, (state, out.read_text())
        assert state not in ("FAILED", "CANCELLED", "TIMEOUT"), out.read_text()
        if not killed and [*saved.glob("model-[1-9]*")]:
            os.kill(slurm.pids(job)[3], signal.SIGKILL)  # the second worker
            killed = True
        time.sleep(0.05)
    assert killed
    assert result(out.read_text()) == (STEPS, 1, bits)
