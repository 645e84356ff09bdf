"""Arithmetic on IR values that reads like maths: what gradient rules and rewrites are written in.

An `Expr` is a value with the builder to append to and the source locations to note. Python numbers
take the dtype and shape of the other operand: ``1 - y * y`` appends a scalar constant, a
`broadcast_to`, a multiply and a subtract.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape
from weft.ir.dtypes import DType, string
from weft.ir.errors import InternalError
from weft.ir.graph import Value
from weft.ir.locations import Locations
from weft.ir.ops.builder import Builder
from weft.ir.spec import Array, AttrValue, ConstArray
from weft.ir.types import TensorType

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A tensor value under construction; the operators append the ops of the same name."""

    builder: Builder
    value: Value
    locations: Locations

    # -- what it is -------------------------------------------------------------------------------

    @property
    def type(self) -> TensorType:
        """Its dtype and shape."""
        if not isinstance(self.value.type, TensorType):
            raise InternalError(f"{self.value!r} is not a tensor", location=self.locations)
        return self.value.type

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    # -- append ops -------------------------------------------------------------------------------

    def op(self, name: str, *others: Expr | Number, **attrs: AttrValue) -> Expr:
        """Append the op `name` on this and further operands, which may be numbers."""
        values = [self.value, *(self.lift(x).value for x in others)]
        return self.wrap(self.builder.emit1(name, *values, locations=self.locations, **attrs))

    def wrap(self, value: Value) -> Expr:
        """Another value in the same place."""
        return Expr(self.builder, value, self.locations)

    def lift(self, x: Expr | Number) -> Expr:
        """`x` itself, or the number `x` in the dtype and shape of this value."""
        return x if isinstance(x, Expr) else self.full(x)

    def scalar(self, number: Number, dtype: DType | None = None) -> Expr:
        """A constant of rank 0, in this dtype unless another is given; of strings the empty one."""
        held = dtype or self.dtype
        array = np.array(b"", object) if held is string else np.asarray(number).astype(held.numpy)
        return self.constant(array)

    def constant(self, array: Array) -> Expr:
        """The array, as a constant."""
        value = ConstArray(array)
        return self.wrap(self.builder.emit1("constant", value=value, locations=self.locations))

    def full(self, number: Number, shape: Shape | None = None, dtype: DType | None = None) -> Expr:
        """The number repeated, in this dtype and shape unless others are given."""
        return self.scalar(number, dtype).broadcast_to(self.shape if shape is None else shape)

    def iota(self, shape: Shape, axis: int, dtype: DType) -> Expr:
        """The index along `axis`."""
        attrs: dict[str, AttrValue] = {"dtype": dtype, "shape": shape, "axis": axis}
        return self.wrap(self.builder.emit("iota", (), attrs, locations=self.locations)[0])

    # -- operators --------------------------------------------------------------------------------

    def __neg__(self) -> Expr:
        return self.op("negative")

    def __add__(self, other: Expr | Number) -> Expr:
        return self.op("add", other)

    def __sub__(self, other: Expr | Number) -> Expr:
        return self.op("subtract", other)

    def __mul__(self, other: Expr | Number) -> Expr:
        return self.op("multiply", other)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return self.op("divide", other)

    def __radd__(self, other: Number) -> Expr:
        return self + other

    def __rsub__(self, other: Number) -> Expr:
        return self.lift(other) - self

    def __rmul__(self, other: Number) -> Expr:
        return self * other

    def __rtruediv__(self, other: Number) -> Expr:
        return self.lift(other) / self

    def __gt__(self, other: Expr | Number) -> Expr:
        return self.op("greater", other)

    def __lt__(self, other: Expr | Number) -> Expr:
        return self.op("less", other)

    def equals(self, other: Expr | Number) -> Expr:
        """Elementwise equality, as bools."""
        return self.op("equal", other)

    def where(self, yes: Expr, no: Expr | Number) -> Expr:
        """`yes` where this (bools) is true, `no` elsewhere."""
        return self.op("where", yes, yes.lift(no))

    # -- shapes; each is this value itself where nothing would change -----------------------------

    def astype(self, dtype: DType) -> Expr:
        """Converted to `dtype`."""
        return self if dtype is self.dtype else self.op("astype", dtype=dtype)

    def broadcast_to(self, shape: Shape) -> Expr:
        """Repeated to `shape`."""
        return self if shape == self.shape else self.op("broadcast_to", shape=shape)

    def spread(self, shape: Shape) -> Expr:
        """Repeated to `shape`, whose first axes are those of this value."""
        ones = (1,) * (len(shape) - self.rank)
        return self.reshape((*self.shape, *ones)).broadcast_to(shape)

    def reshape(self, shape: Shape) -> Expr:
        """The same elements in another shape."""
        return self if shape == self.shape else self.op("reshape", shape=shape)

    def permute(self, axes: Sequence[int]) -> Expr:
        """Axis i becomes axis `axes[i]`."""
        if list(axes) == list(range(self.rank)):
            return self
        return self.op("permute_dims", axes=tuple(axes))

    def sum(self, axes: Sequence[int], keepdims: bool = False) -> Expr:
        """The sum over `axes`."""
        return self.op("sum", axes=tuple(axes), keepdims=keepdims) if axes else self

    def conj(self) -> Expr:
        """The complex conjugate; itself if real."""
        return self.op("conj") if self.dtype.is_complex else self

    def slice_axis(self, axis: int, start: Dim, stop: Dim) -> Expr:
        """Elements start .. stop-1 along one axis."""
        starts: list[Dim] = [0] * self.rank
        stops = list(self.shape)
        starts[axis], stops[axis] = start, stop
        steps = (1,) * self.rank
        return self.op("slice", starts=tuple(starts), stops=tuple(stops), steps=steps)


def guarded(value: Value, flags: Expr) -> Value:
    """The value, with no cotangent where the flags for its first axes are false."""
    if not (isinstance(value.type, TensorType) and value.type.dtype.is_inexact):
        return value
    return flags.builder.emit1("row_guard", value, flags.value, locations=flags.locations)


def sqrt(x: Expr) -> Expr:
    """The square root."""
    return x.op("sqrt")


def exp(x: Expr) -> Expr:
    """e to the x."""
    return x.op("exp")


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    return x.op("log")


def sin(x: Expr) -> Expr:
    """The sine."""
    return x.op("sin")


def cos(x: Expr) -> Expr:
    """The cosine."""
    return x.op("cos")


def square(x: Expr) -> Expr:
    """x times x."""
    return x.op("square")
