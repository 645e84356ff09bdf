"""DLPack capsules: their fields, read and set by ctypes where NumPy has no way (dlpack.h, 64 bits).

https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from typing import Any

from weft.ir.process import cpython

CPU, CUDA, MANAGED = 1, 2, 13  # kDLCPU, kDLCUDA, kDLCUDAManaged
_BFLOAT = 4  # kDLBfloat
_COPIED = 2  # a flag of versioned capsules
#: Where dl_tensor.device is in the struct of a capsule of this name (dlpack.h, 64 bits); ndim, then
#: the dtype follow it.
_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}
_FLAGS_AT = {b"dltensor_versioned": 24}

_name_of = cpython.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer_of = cpython.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class Fields:
    """Fields of the struct in a capsule that nobody has taken yet. ValueError for one that somebody
    has, or for what is none."""

    def __init__(self, capsule: Any) -> None:
        name = _name_of(capsule) if type(capsule).__name__ == "PyCapsule" else None
        if name not in _DEVICE_AT:
            raise ValueError(f"no DLPack capsule that is to be taken: {capsule!r:.60} ({name!r})")
        start = _pointer_of(capsule, name)
        assert start is not None
        where = start + _DEVICE_AT[name]
        self._device = (ctypes.c_int32 * 2).from_address(where)
        self._dtype = (ctypes.c_uint8 * 2).from_address(where + 12)  # code, bits
        at = _FLAGS_AT.get(name)
        self._flags = None if at is None else ctypes.c_uint64.from_address(start + at)

    @property
    def device(self) -> tuple[int, int]:
        """(type, number)."""
        return self._device[0], self._device[1]

    @device.setter
    def device(self, device: tuple[int, int]) -> None:
        self._device[:] = list(device)

    @property
    def is_bfloat16(self) -> bool:
        """The dtype that NumPy has not."""
        return (self._dtype[0], self._dtype[1]) == (_BFLOAT, 16)

    def declare(self, *, bfloat: bool) -> None:
        """16 bits that are a bf16, or (for NumPy) an integer."""
        self._dtype[0] = _BFLOAT if bfloat else 0

    def mark_copied(self) -> None:
        """It is the consumer's own. Capsules without a version cannot say so."""
        if self._flags is not None:
            self._flags.value |= _COPIED


def is_on_gpu(x: object) -> bool:
    """Whether `x`, an array of another library, says that it is in memory of a GPU."""
    if hasattr(x, "__dlpack_device__"):
        return x.__dlpack_device__()[0] in (CUDA, MANAGED)
    return hasattr(x, "__cuda_array_interface__")
