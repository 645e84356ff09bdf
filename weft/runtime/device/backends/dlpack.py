"""DLPack capsules and `__cuda_array_interface__` of memory on a device.

NumPy makes and takes the capsules: it looks at addresses, shapes, strides, never at what is there.
On the way out it is given an array "at" the address, then the capsule is told the device; on the
way in, the other way around. So lifetimes and layouts are NumPy's.

https://dmlc.github.io/dlpack/latest/python_spec.html
https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.dlpack import CPU, CUDA, Fields
from weft.ir.dtypes import as_dtype, bfloat16
from weft.ir.errors import TypeRuleError, WeftError

if TYPE_CHECKING:
    from weft.runtime.device.array import DeviceValue

#: Streams that need no name: of whoever says nothing.
DEFAULT_STREAM = 1


class _Shown:
    """Memory of a device for NumPy, which holds this, and so the value. stream: where others use it
    (-1: they did not say)."""

    def __init__(self, value: DeviceValue, stream: int) -> None:
        self._value, self._stream = value, stream
        if value.shared is None:
            value.shared = weakref.WeakSet()
        value.shared.add(self)
        dtype = np.dtype(np.int16) if value.dtype == bfloat16.numpy else value.dtype
        self.__array_interface__ = {
            "data": (value.address, False), "shape": value.shape, "typestr": dtype.str,
            "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        """Others' kernels may be using it yet."""
        self._value.device.forget(DEFAULT_STREAM if self._stream < 0 else self._stream)


def export(
    value: DeviceValue, stream: Any, version: tuple[int, int] | None, *, copied: bool
) -> Any:
    """A capsule of `value`, which `stream` may use; read-only unless it is `copied`, which
    capsules without a version cannot say. ValueError for a stream that is none."""
    device = value.device
    number = _consumer(stream, device.dlpack[0])
    array = np.asarray(_Shown(value, number))
    versioned = version is not None and version[0] >= 1
    if versioned and not copied:
        array.setflags(write=False)
    capsule = array.__dlpack__(max_version=version if versioned else None)
    fields = Fields(capsule)
    fields.device = device.dlpack
    if value.dtype == bfloat16.numpy:
        fields.declare(bfloat=True)
    if copied:
        fields.mark_copied()
    if device.dlpack[0] == CPU:
        value.wait()
    elif number > 0:
        device.precede(number, value.ready)
    return capsule


def _consumer(stream: Any, kind: int) -> int:
    """The consumer's stream: -1 if it takes care itself."""
    if kind == CPU:
        if stream is not None:
            raise ValueError(f"memory of the host has no stream, but __dlpack__ got {stream!r}")
        return -1
    if stream is None:
        return DEFAULT_STREAM
    if not isinstance(stream, int) or stream == 0 or stream < -1:
        raise ValueError(
            f"__dlpack__(stream={stream!r}): -1, 1 (the default stream), 2 (the thread's), or a "
            "stream's handle; 0 could mean two of them"
        )
    return stream


def interface(value: DeviceValue) -> dict[str, Any]:
    """`__cuda_array_interface__`, version 3: `stream` is where the value comes to be. When nobody
    holds the value, its memory is not used again before the default stream is done.

    AttributeError where the memory is no GPU's, and for bfloat16, which it cannot name.
    """
    if value.device.dlpack[0] != CUDA:
        raise AttributeError(f"__cuda_array_interface__: {value.device.name} is emulated")
    if value.dtype == bfloat16.numpy:
        raise AttributeError("__cuda_array_interface__ has no bfloat16: use DLPack")
    if not value.shown:  # others' kernels may be using it yet when they let go of it
        value.shown = True
        weakref.finalize(value, value.device.forget, DEFAULT_STREAM).atexit = False
    return {
        "shape": value.shape, "typestr": value.dtype.str, "data": (value.address, True),
        "strides": None, "stream": value.device.stream, "version": 3,
    }  # fmt: skip


class _Renamed:
    """A capsule for `np.from_dlpack`, which takes memory of the host alone."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


class _Interface:
    """Memory of a GPU as if NumPy could read it."""

    def __init__(self, owner: object, given: dict[str, Any]) -> None:
        self.owner = owner
        kept = ("shape", "typestr", "data", "strides")
        self.__array_interface__ = {k: given[k] for k in kept if k in given} | {"version": 3}


def borrowed(x: Any) -> DeviceValue:
    """The memory of `x`, which is on a GPU, not copied; its stream is waited for.

    Errors as `registry.gpu` where weft has no such GPU; TypeRuleError, without a place, for what is
    not C-contiguous, has a dtype that weft does not have, or cannot be exported.
    """
    # who has no GPU does not wait for these
    from weft.runtime.device.array import Borrowed, DeviceValue
    from weft.runtime.device.backends.registry import gpu

    if hasattr(x, "__dlpack_device__"):
        device, stream = gpu(int(x.__dlpack_device__()[1])), DEFAULT_STREAM
        _check_real(device.emulated, device.name)
        array = _taken(x, device.stream)
    else:
        given = x.__cuda_array_interface__
        if given.get("mask") is not None:
            raise TypeRuleError("it has a mask")
        device = gpu(0)
        _check_real(device.emulated, device.name)
        if given["data"][0]:
            device = gpu(device.number_at(given["data"][0]))
        try:
            array = np.asarray(_Interface(x, given))
        except (TypeError, ValueError) as error:
            raise TypeRuleError(f"its __cuda_array_interface__ cannot be taken: {error}") from None
        stream = given.get("stream")
        if stream is not None:
            device.wait_for(stream)
        stream = stream or DEFAULT_STREAM
    if not array.flags.c_contiguous:
        raise TypeRuleError(
            "it is not contiguous", hint="x.contiguous() or ascontiguousarray(x) makes a copy"
        )
    if not array.dtype.isnative:
        raise TypeRuleError(f"its elements, {array.dtype}, have their bytes in another order")
    try:
        dtype = as_dtype(array.dtype).numpy
    except WeftError as error:
        raise TypeRuleError(error.what, hint=error.hint) from None
    memory = Borrowed(int(array.ctypes.data), array.nbytes, array, stream)
    return DeviceValue(device, memory, dtype, array.shape)


def _check_real(emulated: bool, name: str) -> None:
    if emulated:
        raise TypeRuleError(
            f"it is in memory of a GPU, but {name} is emulated", hint="copy it to the host first"
        )


def _taken(x: Any, stream: int) -> Any:
    """An array "at" the memory of `x`, after its producer has made `stream` wait for it."""
    try:
        try:
            capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # of before DLPack 1.0
            capsule = x.__dlpack__(stream=stream)
        fields = Fields(capsule)
        fields.device = CPU, 0
        bfloat = fields.is_bfloat16
        if bfloat:
            fields.declare(bfloat=False)
        array = np.from_dlpack(_Renamed(capsule))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeRuleError(
            f"it cannot be taken through DLPack: {error}",
            hint="detach it if it is part of a gradient; convert other dtypes first",
        ) from None
    return array.view(bfloat16.numpy) if bfloat else array


__all__ = ["DEFAULT_STREAM", "borrowed", "export", "interface"]
