"""Arrays of other libraries as NumPy arrays and back, without copies: DLPack and
`__array_interface__`.

https://data-apis.org/array-api/latest/design_topics/data_interchange.html
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.frontend.arrays import Array
from weft.ir.dlpack import CPU, Fields
from weft.ir.dtypes import bfloat16
from weft.ir.errors import TypeRuleError
from weft.ir.locations import caller_location


def is_foreign(x: object) -> bool:
    """Whether `x` is an array of another library that shows its memory."""
    return hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")


def foreign_array(x: Any) -> Array:
    """The memory of `x` as an array, not copied. TypeRuleError for what has no DLPack, is on
    another device or has a dtype that NumPy does not have."""
    kind = f"{type(x).__module__.split('.')[0]} {type(x).__name__}"
    if not hasattr(x, "__dlpack__"):
        return np.asarray(x)
    device = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (CPU, 0)
    if device[0] != CPU:
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
    """The capsule of a tensor's array.

    Consumers that know DLPack 1.0 (max_version) are told that it is read-only; for older ones there
    is no such flag, and they must not write to it.
    """
    version = options.get("max_version")
    if version is not None and version[0] >= 1:
        data = data.view()
        data.setflags(write=False)
    if data.dtype != bfloat16.numpy:
        return data.__dlpack__(**options)
    capsule = data.view(np.int16).__dlpack__(**options)
    # nobody else has the capsule yet; NumPy's DLPack has no bfloat16
    Fields(capsule).declare(bfloat=True)
    return capsule
