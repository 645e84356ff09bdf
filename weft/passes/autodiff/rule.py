"""Gradient rules: the interface of a rule, and helpers for writing one.

A rule is called with a `Site`, the op at hand and the cotangents of its results, and returns one
cotangent for each operand, or None where none flows. The cotangent of a value z of a real loss L is
dL/dz; for complex z it is dL/d(Re z) + i dL/d(Im z), as in PyTorch (JAX has its conjugate). So an
op y = f(x) with the complex derivative f' gives the cotangent g * conj(f'(x))."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.ir.analysis.known_values import uniform
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.spec import Attrs, ints_attr
from weft.ir.types import StackType, TensorType
from weft.passes.rewriting.expression import Expr

#: (builder, ops, ys, cotangents of ys, xs) -> cotangents of xs, through those ops only.
PullBack = Callable[
    [Builder, Sequence[Operation], Sequence[Value], Sequence[Value | None], Sequence[Value]],
    list[Value | None],
]
#: (xs, ops) -> the xs and what depends on them by way of differentiable ops.
Active = Callable[[Iterable[Value], Sequence[Operation]], set[Value]]
#: Called with an op and the ops that carry cotangents through it.
Placed = Callable[[Operation, Sequence[Operation]], None]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """The op whose gradient is wanted.

    operands, results: its values. cotangents: one for each result, None where none arrived (never
    all None). needed: for each operand, whether its cotangent will be used.
    """

    op: Operation
    operands: tuple[Expr, ...]
    results: tuple[Expr, ...]
    cotangents: tuple[Expr | None, ...]
    needed: tuple[bool, ...]
    pull_back: PullBack
    active: Active

    @property
    def attrs(self) -> Attrs:
        """The op's attributes."""
        return self.op.attrs

    @property
    def x(self) -> Expr:
        """The first operand."""
        return self.operands[0]

    @property
    def y(self) -> Expr:
        """The first result."""
        return self.results[0]

    @property
    def g(self) -> Expr:
        """The cotangent of the only result."""
        (g,) = self.cotangents
        assert g is not None
        return g

    @property
    def axes(self) -> tuple[int, ...]:
        """The attribute `axes`."""
        return ints_attr(self.op.attrs, "axes")

    @property
    def axis(self) -> int:
        """The attribute `axis`."""
        axis = self.op.attrs["axis"]
        assert isinstance(axis, int)
        return axis


Rule = Callable[[Site], Sequence[Expr | None]]


def is_inexact(value: Value) -> bool:
    """Whether it can have a cotangent or a tangent."""
    held = value.type.tensor if isinstance(value.type, StackType) else value.type
    return isinstance(held, TensorType) and held.dtype.is_inexact


def sum_to(g: Expr, shape: Shape) -> Expr:
    """The adjoint of broadcasting from `shape`: sum over the axes that were added or grew from 1.

    A symbolic dimension of `shape` counts as one that did not grow.
    """
    lead = g.rank - len(shape)
    grown = [i for i, d in enumerate(shape, lead) if d == 1 and g.shape[i] != 1]
    return g.sum([*range(lead), *grown]).reshape(shape)


def expand(g: Expr, shape: Shape, axes: Sequence[int]) -> Expr:
    """The adjoint of a sum over `axes`, with or without keepdims: `g` repeated to `shape`."""
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape))
    return g.reshape(kept).broadcast_to(shape)


def accumulate(a: Expr, b: Expr) -> Expr:
    """The sum of two cotangents of one value.

    Those of neighbouring slices are zero-padded parts that do not overlap: they are joined.
    """
    if isinstance(a.value.type, StackType):
        return a.op("stack_add", b)
    joined = _joined(a, b)
    joined = _joined(b, a) if joined is None else joined
    return a + b if joined is None else joined


def _joined(a: Expr, b: Expr) -> Expr | None:
    """`a` followed by `b` along one axis, if both are padded with zeros and they are neighbours."""
    first, second = _zero_padded(a), _zero_padded(b)
    if first is None or second is None:
        return None
    (x, lo, hi), (y, lo2, hi2) = first, second
    axes = [i for i in range(a.rank) if (lo[i], hi[i]) != (lo2[i], hi2[i])]
    if len(axes) != 1:
        return None
    (axis,) = axes
    size = x.shape[axis]
    if not isinstance(size, int) or lo[axis] + size != lo2[axis]:
        return None
    core = x.op("concat", y, axis=axis)
    hi = (*hi[:axis], hi2[axis], *hi[axis + 1 :])
    return core.op("pad", core.scalar(0), lo=lo, hi=hi) if any(lo + hi) else core


def _zero_padded(x: Expr) -> tuple[Expr, tuple[int, ...], tuple[int, ...]] | None:
    """What `x` pads with zeros, and lo and hi."""
    op = x.value.op
    if op is None or op.name != "pad":
        return None
    fill = uniform(op.operands[1])
    if fill is None or fill.item() != 0:
        return None
    return x.wrap(op.operands[0]), ints_attr(op.attrs, "lo"), ints_attr(op.attrs, "hi")
