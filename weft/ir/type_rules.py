"""Helpers of the ops' type rules: typed access to attributes, checks of shapes, classes of dtypes.

A `DTypeClass` is a set of dtypes that an op accepts, with the words of its type errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir import dtypes
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.spec import Array, Attrs, tensors
from weft.ir.types import TensorType, Type


def int_attr(attrs: Attrs, name: str) -> int:
    """The attribute `name`, of kind "int"."""
    value = attrs[name]
    assert isinstance(value, int)
    return value


def ints_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The attribute `name`, of kind "ints"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def strs_attr(attrs: Attrs, name: str) -> tuple[str, ...]:
    """The attribute `name`, of kind "strs"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def shape_attr(attrs: Attrs, name: str) -> Shape:
    """The attribute `name`, of kind "shape"."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return value


def dtype_attr(attrs: Attrs, name: str) -> DType:
    """The attribute `name`, of kind "dtype"."""
    value = attrs[name]
    assert isinstance(value, DType)
    return value


def static_attr(attrs: Attrs, name: str) -> tuple[int, ...]:
    """The attribute `name`, of kind "shape", as ints. ShapeError where a size is not known."""
    shape = shape_attr(attrs, name)
    out = tuple(d for d in shape if isinstance(d, int))
    if len(out) != len(shape):
        raise ShapeError(
            f"the attribute {name}={format_shape(shape)} has a dimension without a value",
            hint="run the graph with inputs whose shapes decide every dimension",
        )
    return out


def checked_axis(op: str, attrs: Attrs, rank: int) -> int:
    """The attribute `axis`, which must be in 0 .. rank-1: in the IR axes are normalised."""
    axis = int_attr(attrs, "axis")
    if not 0 <= axis < rank:
        raise ShapeError(
            f"op '{op}': axis {axis} is not an axis of an operand of rank {rank}",
            hint="axes are 0 to rank-1 in the IR; negative ones are for the frontend",
        )
    return axis


def known_dim(a: Dim, b: Dim) -> Dim:
    """Of two equal dimensions the one that says more: an int, else a symbol, else None."""
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def fits(a: Shape, b: Shape) -> bool:
    """False only if the shapes are known to differ."""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def check_shape(op: str, what: str, got: Shape, wanted: Shape) -> None:
    """Raise ShapeError unless `got` fits `wanted`."""
    if not fits(got, wanted):
        raise ShapeError(
            f"op '{op}': {what} has shape {format_shape(got)}, needs {format_shape(wanted)}"
        )


def check_same_dtype(op: str, types: Sequence[TensorType]) -> DType:
    """The dtype that all `types` have. Raises TypeRuleError if they differ."""
    for other in types[1:]:
        if other.dtype is not types[0].dtype:
            listed = ", ".join(map(str, types))
            raise TypeRuleError(
                f"op '{op}' needs operands of one dtype, got ({listed})",
                hint="convert one of them with wf.astype",
            )
    return types[0].dtype


def add_dims(*dims: Dim) -> Dim:
    """The sum of dimensions; None if one is unknown."""
    total: int | SymbolicDim = 0
    for dim in dims:
        if dim is None:
            return None
        total = total + dim
    return total


@dataclass(frozen=True, slots=True)
class DTypeClass:
    """A set of dtypes with the words that an error message uses for it; `|` joins two."""

    words: str
    members: frozenset[DType]

    def __or__(self, other: DTypeClass) -> DTypeClass:
        return DTypeClass(f"{self.words} or {other.words}", self.members | other.members)

    def __contains__(self, dtype: DType) -> bool:
        return dtype in self.members


def _class(words: str, *kinds: str) -> DTypeClass:
    return DTypeClass(words, frozenset(d for d in dtypes.ALL if d.kind in kinds))


BOOL = _class("bool", "bool")
INTEGER = _class("integer", "int", "uint")
FLOATING = _class("real floating", "float")
COMPLEX = _class("complex", "complex")
INEXACT = FLOATING | COMPLEX
REAL = _class("real (integer or floating)", "int", "uint", "float")
NUMERIC = _class("numeric", "int", "uint", "float", "complex")
ORDERED = BOOL | REAL
ANY = DTypeClass("any", frozenset(dtypes.ALL))

# what a NumPy user means by arithmetic on bools
_BOOL_ADVICE = {
    "add": "wf.logical_or",
    "maximum": "wf.logical_or",
    "multiply": "wf.logical_and",
    "minimum": "wf.logical_and",
    "subtract": "wf.logical_xor",
    "negative": "wf.logical_not",
    "max": "wf.any",
    "prod": "wf.all",
    "min": "wf.all",
}


def require_dtype(op: str, given: TensorType, allowed: DTypeClass) -> None:
    """Raises TypeRuleError naming the op, the type and what to do, unless the dtype is allowed."""
    if given.dtype not in allowed:
        raise TypeRuleError(
            f"op '{op}' takes {allowed.words} operands, got {given}",
            hint=_dtype_hint(op, given.dtype, allowed),
        )


def _dtype_hint(op: str, dtype: DType, allowed: DTypeClass) -> str:
    if dtype.kind == "string":
        return "strings can be compared with == and != and chosen by wf.where, not computed with"
    if dtype.kind == "bool":
        advice = f"use {_BOOL_ADVICE[op]}, or " if op in _BOOL_ADVICE else ""
        target = "int64" if dtypes.int64 in allowed else "float32"
        return f"{advice}convert with wf.astype(x, wf.{target})"
    if dtypes.float32 in allowed:
        if dtype.is_complex:
            return "use wf.real, wf.imag or wf.abs to get a real number first"
        return "convert with wf.astype(x, wf.float32)"
    if dtypes.int64 in allowed:
        return "convert to an integer with wf.astype(x, wf.int64)"
    return "make bools by a comparison, such as x != 0"


def elementwise_shape(op: str, types: Sequence[TensorType]) -> Shape:
    """The common shape of operands that must all have the same one. Raises ShapeError."""
    shape = types[0].shape
    for t in types[1:]:
        if not fits(shape, t.shape):
            raise ShapeError(
                f"op '{op}' takes operands of one shape, got ({', '.join(map(str, types))})",
                hint="expand the smaller one with wf.broadcast_to",
            )
        shape = tuple(map(known_dim, shape, t.shape))
    return shape


def one_tensor(op: str, types: Sequence[Type], allowed: DTypeClass) -> TensorType:
    """The only operand type of a unary op, checked to be a tensor of an allowed dtype."""
    (given,) = tensors(op, types)
    require_dtype(op, given, allowed)
    return given


def widen(array: Array) -> Array:
    """float16 and bfloat16 as float32, in which weft computes them; other arrays as they are."""
    if array.dtype in (dtypes.float16.numpy, dtypes.bfloat16.numpy):
        return array.astype(np.float32)
    return array
