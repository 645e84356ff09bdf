"""Where tests of GPUs run: emulated, over a fake driver, or on the machine's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cuda_device import on_device, use_device

#: The machine's own GPUs, for those who ask: `pytest -m gpu`.
REAL = pytest.param("real", marks=pytest.mark.gpu)
#: A test that has the fixture `place` runs there, too.
on_a_real_one_too = pytest.mark.parametrize("place", ["emulated", REAL], indirect=True)

#: Launches by the emulator, and on the machine's own GPU.
EMULATED_OR_REAL = ["emulated", REAL]


def runner_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any] | None:
    """What carries launches out: None is the emulator; "faked", "real": a CUDA device."""
    if kind == "emulated":
        return None
    use_device(kind, monkeypatch)
    return on_device


def need_gpus(count: int) -> None:
    """Skips the test where the driver shows fewer GPUs."""
    from weft.runtime.device.backends import registry

    found = len(registry.gpus())
    if found < count:
        pytest.skip(f"needs {count} GPUs: the driver shows {found}")
