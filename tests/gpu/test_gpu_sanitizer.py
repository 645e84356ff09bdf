"""Training programs under NVIDIA's compute-sanitizer: `pytest -m gpu`.

racecheck finds races in shared memory, memcheck accesses out of bounds, initcheck reads of memory
that nobody wrote, synccheck barriers that not all threads meet. The tool is of the CUDA toolkit,
and a wheel: `pip install nvidia-cuda-sanitizer-api`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loop_programs import PROGRAMS as LOOPS
from paths import PROGRAM_FOLDER
from training_programs import PROGRAMS

TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")
FOUND = 86  # the exit status for errors of the tool
FIRST = next(iter(PROGRAMS))
PROGRAM = PROGRAM_FOLDER / "gpu_sanitized.py"


def sanitizer() -> str | None:
    """The tool: on the path, in this environment, in the system's toolkit."""
    places = [Path(p) / "nvidia" for p in sys.path if p.endswith("site-packages")]
    wheels = [str(f) for p in places for f in p.glob("cu*/bin/compute-sanitizer")]
    systems = [str(f) for f in Path("/usr/local").glob("cuda*/bin/compute-sanitizer")]
    return next(iter([*filter(None, [shutil.which("compute-sanitizer")]), *wheels, *systems]), None)


def run(command: str, tool: str, program: str, **environment: str) -> None:
    """Fails with what the tool says unless the program ran and nothing was found."""
    found = subprocess.run(
        [command, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all",
         sys.executable, str(PROGRAM), program],
        env=os.environ | environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    said = f"{found.stdout[-4000:]}\n{found.stderr[-4000:]}"
    if found.returncode == FOUND:
        pytest.fail(f"{tool} found errors in {program}:\n{said}")
    if found.returncode:
        pytest.fail(f"{program} did not run under {tool} ({found.returncode}):\n{said}")


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("program", [*PROGRAMS, *LOOPS])
def test_nothing_is_found(tool: str, program: str) -> None:
    command = sanitizer()
    if command is None:
        pytest.skip("no compute-sanitizer: pip install nvidia-cuda-sanitizer-api")
    run(command, tool, program)


def fake(folder: Path, script: str) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_program_runs(tmp_path: Path) -> None:
    """On the emulated device, under a tool that finds nothing."""
    run(fake(tmp_path, 'shift 6; exec "$@"'), "racecheck", FIRST, WEFT_EMULATE_GPU="1")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"echo a hazard; exit {FOUND}", f"racecheck found errors in {FIRST}:\na hazard"),
        ("exit 255", "did not run under racecheck (255)"),
    ],
)
def test_what_is_found_fails(script: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        run(fake(tmp_path, script), "racecheck", FIRST, WEFT_EMULATE_GPU="0")
    assert told in str(failed.value)


def test_the_tool_refuses_programs_without_cuda() -> None:
    """The real one, where it is installed: a program that met no GPU counts as failed."""
    command = sanitizer()
    if command is None:
        pytest.skip("no compute-sanitizer: pip install nvidia-cuda-sanitizer-api")
    with pytest.raises(pytest.fail.Exception, match="did not run under memcheck"):
        run(command, "memcheck", FIRST, WEFT_EMULATE_GPU="1")
