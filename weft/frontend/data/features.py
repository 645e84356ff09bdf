"""What a tf.train.Example must hold: `FixedLenFeature`, `VarLenFeature`, `parse_single_example`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, float32, int64, string
from weft.ir.errors import InvalidArgumentError, suggest
from weft.runtime.files.example import bytes_array, decode_example

Array = np.ndarray[Any, Any]


class FixedLenFeature(NamedTuple):
    """A feature of one shape. default_value: for examples that do not have it."""

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature of any length: an array with one axis, of length 0 where it is not there."""

    dtype: Any


def parse_single_example(
    serialized: bytes, features: Mapping[str, FixedLenFeature | VarLenFeature]
) -> dict[str, Array]:
    """The features of a serialized tf.train.Example as arrays of float32, int64 or string (bytes).

    InvalidArgumentError, naming the feature, if one is missing without a default, or has another
    type or number of values; DataLossError if `serialized` is no Example.
    """
    found = decode_example(serialized)
    return {name: _parsed(name, wanted, found) for name, wanted in features.items()}


def _parsed(
    name: str, wanted: FixedLenFeature | VarLenFeature, found: Mapping[str, Array]
) -> Array:
    dtype = _dtype(name, wanted.dtype)
    values = found.get(name)
    if isinstance(wanted, VarLenFeature):
        return np.empty(0, dtype.numpy) if values is None else _typed(name, values, dtype)
    shape = tuple(wanted.shape)
    if values is None:
        if wanted.default_value is None:
            raise InvalidArgumentError(
                f"the example has no feature {name!r}{suggest(name, list(found))}",
                hint=f"it has {', '.join(map(repr, sorted(found))) or 'none'}; or give a "
                "default_value",
            )
        return _default(name, wanted.default_value, dtype, shape)
    values = _typed(name, values, dtype)
    if values.size != math.prod(shape):
        raise InvalidArgumentError(
            f"feature {name!r} has {values.size} values, its shape is {format_shape(shape)}",
            hint="a VarLenFeature takes any number",
        )
    return values.reshape(shape)


def _dtype(name: str, given: Any) -> DType:
    dtype = as_dtype(given)
    if dtype not in (float32, int64, string):
        raise InvalidArgumentError(
            f"feature {name!r}: an Example holds float32, int64 and string, not {dtype.name}"
        )
    return dtype


def _typed(name: str, values: Array, dtype: DType) -> Array:
    there = as_dtype(values.dtype)
    if there is not dtype:
        raise InvalidArgumentError(f"feature {name!r} holds {there.name}, {dtype.name} is wanted")
    return values


def _default(name: str, value: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype is string:
        given = [value] if isinstance(value, (bytes, str)) else list(value)
        flat = bytes_array([v.encode() if isinstance(v, str) else v for v in given])
        array = flat.reshape(()) if isinstance(value, (bytes, str)) else flat
    else:
        array = np.asarray(value, dtype.numpy)
    try:
        return np.broadcast_to(array if array.size != math.prod(shape) else array.reshape(shape),
                               shape).copy()  # fmt: skip
    except ValueError:
        raise InvalidArgumentError(
            f"feature {name!r}: default_value={value!r:.60} does not fit {format_shape(shape)}"
        ) from None
