"""NumPy arrays as tensors hold them: contiguous, native, of a dtype that weft has, owned.

Arrays of other libraries become NumPy arrays, and tensors become theirs, without copies, by DLPack
and `__array_interface__`
(https://data-apis.org/array-api/latest/design_topics/data_interchange.html)."""

from __future__ import annotations

import array
import sys
from typing import Any

import numpy as np

from weft.ir.dlpack import CPU, Fields
from weft.ir.dtypes import DType, as_dtype, bfloat16, int64, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location

Array = np.ndarray[Any, Any]
#: Python's own arrays, which NumPy takes by their buffers; bytes are a string.
BUFFERS = (memoryview, bytearray, array.array)


def contiguous(array: Array) -> Array:
    """`array` itself, or a C-contiguous copy in native byte order: what a Tensor holds."""
    if array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def plain_array(x: Any) -> Array:
    """`x` as an array of class ndarray. TypeRuleError, at the user's line, for a masked array."""
    if hasattr(x, "mask") and isinstance(x, np.ma.MaskedArray):
        raise TypeRuleError(
            "a masked array is not a tensor: its mask would be lost",
            hint="use x.filled(value), or pass x.data and x.mask as two tensors",
            location=caller_location(),
        )
    return np.asarray(x)


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
    """An object array of bytes; str elements are encoded as UTF-8, names of files of other bytes
    (`os.fsdecode`) as those. TypeRuleError for other elements."""
    out = np.empty(array.shape, dtype=object)
    for index in np.ndindex(array.shape):
        item: Any = array[index]
        if isinstance(item, str):
            item = _encoded(item)
        if not isinstance(item, bytes):
            raise TypeRuleError(
                f"an array of Python objects that holds a {type(item).__name__} is not a tensor",
                hint="object arrays hold str or bytes",
                location=caller_location(),
            )
        out[index] = bytes(item)
    return out


def python_array(x: list[Any] | tuple[Any, ...], wanted: DType | None) -> Array:
    """A nested list of Python scalars as an array, of `wanted` if that is an integer dtype.

    InvalidArgumentError for a ragged list and for integers that do not fit (int64 by default).
    """
    if isinstance(first_leaf(x), (str, bytes)):  # NumPy would read bytes as ASCII beside a str
        return np.asarray(x, object)
    try:
        array = np.asarray(x) if x else np.zeros((0,))
        if _may_be_integers(array) and _all_integers(x):
            target = int64 if wanted is None else wanted
            return np.asarray(x, target.numpy if target.is_integer else np.float64)
    except OverflowError as error:
        fits = (wanted or int64).name
        raise InvalidArgumentError(
            f"this nested list is not an array of {fits}: {error}",
            hint=f"use a dtype that holds all of the integers; {fits} does not",
            location=caller_location(),
        ) from None
    except ValueError as error:
        raise InvalidArgumentError(
            f"this nested list is not an array: {error}",
            hint="all rows must have the same length",
            location=caller_location(),
        ) from None
    return array


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise TypeRuleError(
            f"{text!r:.60} is no text: {error.reason}",
            hint="give bytes, which may be anything",
            location=caller_location(),
        ) from None


def _may_be_integers(array: Array) -> bool:
    """NumPy reads integers beyond int64 as unsigned, as floats (mixed signs) or as objects."""
    kind = array.dtype.kind
    return kind in "iuO" or (kind == "f" and bool((np.abs(array) >= 2.0**63).any()))


def _all_integers(x: object) -> bool:
    if isinstance(x, (list, tuple)):
        return bool(x) and all(map(_all_integers, x))
    return isinstance(x, int)


def first_leaf(x: object) -> object:
    """The first element that is no list, of nested lists."""
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    return x


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
