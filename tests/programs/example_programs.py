"""The programs in examples/, as modules and as processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest
from paths import ROOT

FOLDER = ROOT / "examples"


def load_example(name: str) -> ModuleType:
    """examples/NAME.py, under a module name that nothing else has."""
    spec = importlib.util.spec_from_file_location(f"{name}_example", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, *options: str, timeout: float = 120) -> str:
    """What a program prints; the processes that it started have ended with it."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    env = dict(os.environ, PYTHONPATH=str(FOLDER.parent))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
            with pytest.raises(ProcessLookupError):  # its process group is empty
                os.killpg(process.pid, 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    assert "Float64Warning" not in said
    return said
