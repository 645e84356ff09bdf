"""The CUDA device through the real cuda.bindings: their types, their numbers of arguments, over a
libcuda.so.1 in C that is on host memory (fake_libcuda.c)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import GPU_SUPPORT, ROOT, SUPPORT


@pytest.mark.slow
def test_a_training_step_through_cuda_bindings(tmp_path: Path) -> None:
    gcc = shutil.which("gcc") or shutil.which("cc")
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    if gcc is None or not found:
        assert not os.environ.get("CI"), "CI has a C compiler and weft[cuda13]"
        pytest.skip("needs a C compiler and cuda-bindings")
    library = tmp_path / "libcuda.so.1"
    source = str(GPU_SUPPORT / "fake_libcuda.c")
    built = [gcc, "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"]
    subprocess.run([*built, "-Wl,-soname,libcuda.so.1"], check=True, timeout=60)
    held = {k: v for k, v in os.environ.items() if k not in ("WEFT_EMULATE_GPU",)}
    path = os.pathsep.join(map(str, (GPU_SUPPORT, SUPPORT, ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", str(GPU_SUPPORT / "real_bindings.py")],
        env=held | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
