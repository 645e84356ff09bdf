"""From what a user feeds to the array that a step takes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from weft.frontend.arrays import Array, contiguous
from weft.frontend.device_array import DeviceArray
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dims import SymbolicDim, format_shape
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType


def feed_array(given: Any, t: Tensor) -> Array:
    """`given` as a value for `t`; a `wf.DeviceArray` of its dtype stays one, as it has the `shape`
    that is looked at. TypeRuleError or InvalidArgumentError if it does not fit."""
    assert t._value is not None
    kind = t._value.type
    assert isinstance(kind, TensorType)
    stays = type(given) is DeviceArray and given.dtype is kind.dtype
    if type(given) is np.ndarray and given.dtype == kind.dtype.numpy and given.dtype.kind != "O":
        data: Array = given
    elif stays:
        data = cast(Array, given)  # `session.transfers.placed` decides what becomes of it
    else:
        data = _converted(given, t)
    fits = data.shape == kind.shape or (
        len(data.shape) == t.ndim
        and all(
            d is None or isinstance(d, SymbolicDim) or d == n
            for d, n in zip(kind.shape, data.shape, strict=True)
        )
    )
    if not fits:
        raise InvalidArgumentError(
            f"a value of shape {list(data.shape)} was fed for {t.describe()}",
            hint=f"its shape must fit {format_shape(t.shape)}",
            location=caller_location(),
        )
    return data if stays else contiguous(data)


def _converted(given: Any, t: Tensor) -> Array:
    try:
        value = given if isinstance(given, Tensor) else as_tensor(given)
    except WeftError as error:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is no tensor: {error.what}",
            location=caller_location(),
        ) from None
    if value._data is None:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is symbolic itself",
            hint="feed NumPy arrays or concrete tensors; in a graph, connect the tensors instead",
            location=caller_location(),
        )
    if isinstance(given, (list, tuple)) and not value._data.size:  # [] is of any dtype
        return value._data.astype(t.dtype.numpy)
    return _cast(value._data, value.dtype, t.dtype, t)


_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def _cast(data: Array, given: DType, wanted: DType, t: Tensor) -> Array:
    """Feeds convert within a kind (float64 to float32) or to a higher one, if integers keep their
    value."""
    if given is wanted:
        return data
    if string in (given, wanted) or _ORDER[given.kind] > _ORDER[wanted.kind]:
        raise TypeRuleError(
            f"a {given.name} value was fed for {t.describe()}",
            hint=f"convert it first: value.astype('{wanted.name}')",
            location=caller_location(),
        )
    with np.errstate(over="ignore"):
        out = data.astype(wanted.numpy)
    if wanted.is_integer and not np.array_equal(out, data):
        raise InvalidArgumentError(
            f"an integer fed for {t.describe()} does not fit {as_dtype(wanted).name}",
            location=caller_location(),
        )
    return out
