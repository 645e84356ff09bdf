"""What a gradient rule gets and gives.

A rule is called with a `Site`, the op at hand and the cotangents of its results, and returns one
cotangent for each operand, or None where none flows. The cotangent of a value z of a real loss L is
dL/dz; for complex z it is dL/d(Re z) + i dL/d(Im z), as in PyTorch (JAX has its conjugate). So an
op y = f(x) with the complex derivative f' gives the cotangent g * conj(f'(x)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.ir.attributes import Attrs
from weft.ir.dims import Shape
from weft.ir.graph import Operation, Value
from weft.ir.rules import ints_attr
from weft.passes.expression import Expr

#: (ops, ys, cotangents of ys, xs) -> cotangents of xs, through those ops only.
PullBack = Callable[
    [Sequence[Operation], Sequence[Value], Sequence[Value | None], Sequence[Value]],
    list[Value | None],
]


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
