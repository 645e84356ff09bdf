"""Launches on a device, for tests that have their memory in NumPy arrays (`cuda_graphs.Runner`)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeCompiler, FakeDriver

from weft.codegen.cuda.source.kernel import Launch
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.driver import Driver
from weft.runtime.device.libraries import choice
from weft.runtime.device.protocol import Device

Array = np.ndarray[Any, Any]


def use_driver(api: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's GPUs are those of a fake driver."""
    monkeypatch.delenv("WEFT_EMULATE_GPU", raising=False)
    monkeypatch.setattr(registry, "_devices", {})
    monkeypatch.setattr(registry, "Driver", partial(Driver, api))
    monkeypatch.setattr(registry, "compile_for_gpu", api.compiler)


def use_fake(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeDriver:
    """As `use_driver`, over a new fake driver of these options."""
    api = FakeDriver(FakeCompiler(), **options)
    use_driver(api, monkeypatch)
    return api


def use_no_library(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nothing of the environment says which libraries there are; the cache is `folder`."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(folder))
    for name in ("WEFT_EMULATE_GPU", "WEFT_GPU_LIBRARIES", "WEFT_CACHE"):
        monkeypatch.delenv(name, raising=False)


def use_library(
    api: FakeDriver, provider: ModuleType, library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `use_driver`, with a fake library behind its provider; its trials are timed once, as the
    fake's clock does not waver."""
    use_driver(api, monkeypatch)
    monkeypatch.setattr(provider, "installed", lambda: True)
    monkeypatch.setattr(provider, "load", lambda: library)
    monkeypatch.setattr(choice, "TRIALS", 1)


def use_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/gpu:0 is the machine's ("real"), or a CUDA device over a fake driver. The real one must be
    there; weft's own kernels do all, whichever libraries are installed, and of the tests before
    nothing is left in its memory.

    What `registry.gpu` raises where there is none: who asks for it is not to pass without it.
    """
    gc.collect()
    monkeypatch.delenv("WEFT_EMULATE_GPU", raising=False)
    if kind != "real":
        use_fake(monkeypatch)
        return
    monkeypatch.setenv("WEFT_GPU_LIBRARIES", "0")
    device = registry.gpu(0)
    assert not device.emulated
    device.resident.drop_idle()
    device.reclaim()


def on_device(launch: Launch, args: Sequence[Any]) -> None:
    """Carry one launch out on /gpu:0; arrays that share memory share it there."""
    device = registry.gpu(0)
    ranges = _ranges([a for a in args if isinstance(a, np.ndarray)])
    held = [(start, raw, device.allocate(raw.nbytes + 256, "a test")) for start, raw in ranges]
    for start, raw, memory in held:
        device.upload(memory.address + start % 256, raw)
    spans = [a.nbytes if isinstance(a, np.ndarray) else 0 for a in args]
    prepared = device.prepare(launch, spans)
    for k, arg in enumerate(args):
        prepared.words[k] = _there(arg, held) if isinstance(arg, np.ndarray) else arg
    device.begin()
    device.launch(prepared)
    _fetch(device, held)


def _ranges(arrays: Sequence[Array]) -> list[tuple[int, Array]]:
    """The memory under the arrays, what overlaps as one: address and bytes."""
    found: list[tuple[int, Array]] = []
    for array in sorted(arrays, key=lambda a: a.ctypes.data):
        start, end = array.ctypes.data, array.ctypes.data + array.nbytes
        if found and start < found[-1][0] + found[-1][1].nbytes:
            first, raw = found.pop()
            start, end = first, max(end, first + raw.nbytes)
        found.append((start, _bytes(array, start, end - start)))
    return found


def _bytes(array: Array, start: int, nbytes: int) -> Array:
    """`nbytes` of the memory that `array` is a view of, from an address on."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    whole = base.reshape(-1).view(np.uint8)
    first = start - whole.ctypes.data
    return whole[first : first + nbytes]


def _there(array: Array, held: Sequence[tuple[int, Array, Any]]) -> int:
    address = array.ctypes.data
    start, _, memory = next(
        row for row in held if row[0] <= address and address + array.nbytes <= row[0] + len(row[1])
    )
    return int(memory.address + start % 256 + address - start)


def _fetch(device: Device, held: Sequence[tuple[int, Array, Any]]) -> None:
    for start, raw, memory in held:
        device.download(raw, memory.address + start % 256)
