"""Arrays of other libraries as NumPy arrays and back, without copies: DLPack and
`__array_interface__`.

https://data-apis.org/array-api/latest/design_topics/data_interchange.html
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.frontend.arrays import Array
from weft.ir.dtypes import bfloat16
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.source import caller_location

_CPU = 1  # kDLCPU


def is_foreign(x: object) -> bool:
    """Whether `x` is an array of another library that shows its memory."""
    return hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")


def foreign_array(x: Any) -> Array:
    """The memory of `x` as an array, not copied. TypeRuleError for what has no DLPack, is on
    another device or has a dtype that NumPy does not have."""
    kind = f"{type(x).__module__.split('.')[0]} {type(x).__name__}"
    if not hasattr(x, "__dlpack__"):
        return np.asarray(x)
    device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (_CPU, 0)
    if device[0] != _CPU:
        raise TypeRuleError(
            f"this {kind} is on another device (DLPack device {tuple(map(int, device))})",
            hint="copy it to the CPU first",
            location=caller_location(),
        )
    try:
        if str(getattr(x, "dtype", "")).endswith("bfloat16"):
            return _bfloat16_array(x)
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeRuleError(
            f"this {kind} cannot be taken through DLPack: {error}",
            hint="detach it if it is part of a gradient; convert other dtypes first",
            location=caller_location(),
        ) from None


def _bfloat16_array(x: Any) -> Array:
    """NumPy's DLPack has no bfloat16: PyTorch shows the bits as int16, JAX gives ml_dtypes'."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return np.from_dlpack(x.view(torch.int16)).view(bfloat16.numpy)
    return np.asarray(x)


def export(data: Array, options: dict[str, Any]) -> Any:
    """The capsule of a tensor's array. UnsupportedError for dtypes that NumPy does not export.

    Consumers that know DLPack 1.0 (max_version) are told that it is read-only; for older ones there
    is no such flag, and they must not write to it.
    """
    if data.dtype == bfloat16.numpy:
        raise UnsupportedError(
            "NumPy exports no bfloat16 through DLPack",
            hint="convert it with wf.astype(x, wf.float32), or view np.asarray(x) as np.int16",
            location=caller_location(),
        )
    version = options.get("max_version")
    if version is not None and version[0] >= 1:
        data = data.view()
        data.setflags(write=False)
    return data.__dlpack__(**options)
