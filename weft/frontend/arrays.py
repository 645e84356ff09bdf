"""NumPy arrays as tensors hold them: contiguous, native, of a dtype that weft has, owned."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import TypeRuleError, WeftError
from weft.ir.source import caller_location

Array = np.ndarray[Any, Any]


def contiguous(array: Array) -> Array:
    """`array` itself, or a C-contiguous copy in native byte order: what a Tensor holds."""
    if array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def owned_array(array: Array) -> Array:
    """A copy of `array` that a tensor may hold. TypeRuleError for a dtype that weft does not
    have."""
    try:
        dtype = as_dtype(array.dtype)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if dtype is string:
        return string_array(array)
    return np.array(array, dtype=dtype.numpy, order="C", copy=True)


def string_array(array: Array) -> Array:
    """An object array of bytes; str elements are encoded as UTF-8. TypeRuleError for other
    elements."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        item: Any = array[index]
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise TypeRuleError(
                f"an array of Python objects that holds a {type(item).__name__} is not a tensor",
                hint="object arrays hold str or bytes",
                location=caller_location(),
            )
        out[index] = bytes(item)
    return out
