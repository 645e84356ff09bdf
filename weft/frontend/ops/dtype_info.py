"""What dtypes are and how they promote: the array API's data type functions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from weft.frontend.ops.promotion import TensorLike, check_dtype, common_dtype, is_scalar
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, promote, real_of
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location

_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The range and precision of a floating dtype (of the parts, for a complex one)."""

    dtype: DType
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """The range of an integer dtype."""

    dtype: DType
    bits: int
    max: int
    min: int


def result_type(*arrays_and_dtypes: TensorLike) -> DType:
    """The dtype to which these arrays, dtypes and Python scalars promote. TypeRuleError if there
    is none.
    """
    stand_ins = [_stand_in(x) if _is_dtype(x) else x for x in arrays_and_dtypes]
    return common_dtype("result_type", stand_ins)


def _is_dtype(x: object) -> bool:
    return isinstance(x, (DType, np.dtype, type))


def _stand_in(x: object) -> Tensor:
    return as_tensor(np.zeros((), check_dtype(x).numpy))


def can_cast(from_: TensorLike, to: object, /) -> bool:
    """Whether a dtype, or that of a tensor, promotes to `to` without changing it."""
    given = (
        check_dtype(from_) if _is_dtype(from_) or isinstance(from_, str) else as_tensor(from_).dtype
    )
    target = check_dtype(to)
    try:
        return promote(given, target) is target
    except TypeRuleError:
        return False


def isdtype(dtype: object, kind: object) -> bool:
    """Whether `dtype` is `kind`: a dtype, a kind's name in the array API, or a tuple of these."""
    given = check_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(given, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS and kind != "bool":
        return given.kind in _KINDS[kind]
    try:
        return given is check_dtype(kind)
    except WeftError:
        raise InvalidArgumentError(
            f"wf.isdtype: {kind!r} is neither a dtype nor a kind",
            hint="the kinds are " + ", ".join(_KINDS),
            location=caller_location(),
        ) from None


def finfo(type: object, /) -> FloatInfo:
    """Range and precision of a floating or complex dtype, or of that of a tensor."""
    dtype = _dtype_of(type)
    if not dtype.is_inexact:
        raise TypeRuleError(f"wf.finfo: {dtype.name} is not floating", location=caller_location())
    part = real_of(dtype)
    info: Any = ml_dtypes.finfo(part.numpy)  # type: ignore[no-untyped-call]
    eps, top, bottom, normal = (
        float(v) for v in (info.eps, info.max, info.min, info.smallest_normal)
    )
    return FloatInfo(dtype, part.bits, eps, top, bottom, normal)


def iinfo(type: object, /) -> IntegerInfo:
    """Range of an integer dtype, or of that of a tensor."""
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise TypeRuleError(f"wf.iinfo: {dtype.name} is not integer", location=caller_location())
    info: Any = np.iinfo(dtype.name)
    return IntegerInfo(dtype, dtype.bits, int(info.max), int(info.min))


def _dtype_of(x: Any) -> DType:
    if _is_dtype(x) or isinstance(x, str):
        return check_dtype(x)
    return as_tensor(x).dtype if not is_scalar(x) else common_dtype("finfo", [x])
