"""Small checks and attribute getters that the type rules of several op tables share."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.types import TensorType


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
