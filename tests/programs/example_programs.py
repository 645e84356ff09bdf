"""The programs in examples/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

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
