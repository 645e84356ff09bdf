"""Gradients of linear algebra, of convolutions and of windowed reductions.

A convolution is one of the three derivatives of a trilinear form (`weft.ir.ops.windows`), so its
gradients are the two others, with the same attributes but for the size of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.ir.dims import Dim
from weft.ir.spec import AttrValue
from weft.passes.autodiff.rule import Rule, Site, sum_to
from weft.passes.rewriting.expression import Expr


def _matmul(s: Site) -> Sequence[Expr | None]:
    """C = A B: the cotangents are G B^H and A^H G, summed over batch axes that were broadcast.

    One B for a stack of A: its gradient is one product over the rows of all of them.
    """
    (a, b), g = s.operands, s.g
    transpose_a, transpose_b = bool(s.attrs["transpose_a"]), bool(s.attrs["transpose_b"])
    grads: list[Expr | None] = [None, None]
    if s.needed[0]:
        if transpose_a:  # the operand is A^T, its cotangent (G B^H)^T = conj(B) G^T
            grads[0] = _product(b.conj(), g, transpose_b, True)
        else:
            grads[0] = _product(g, b.conj(), False, not transpose_b)
    if s.needed[1]:
        rows = _as_rows(a, g) if not transpose_a and b.rank == 2 else None
        if rows is not None:  # one product over all rows instead of a sum of products
            left, right = rows[::-1] if transpose_b else rows
            factors = (left, right.conj()) if transpose_b else (left.conj(), right)
            grads[1] = _product(*factors, True, False)
        elif transpose_b:  # the operand is B^T, its cotangent (A^H G)^T = G^T conj(A)
            grads[1] = _product(g, a.conj(), True, transpose_a)
        else:
            grads[1] = _product(a.conj(), g, not transpose_a, False)
    return [None if d is None else sum_to(d, x.shape) for d, x in zip(grads, (a, b), strict=True)]


def _as_rows(a: Expr, g: Expr) -> tuple[Expr, Expr] | None:
    """Two stacks of matrices with the same rows as one matrix each; None for unknown sizes."""
    if a.rank == 2 or None in (*a.shape, *g.shape) or a.shape[:-1] != g.shape[:-1]:
        return None
    rows = math.prod(d for d in a.shape[:-1] if isinstance(d, int))
    return a.reshape((rows, a.shape[-1])), g.reshape((rows, g.shape[-1]))


def _product(a: Expr, b: Expr, transpose_a: bool, transpose_b: bool) -> Expr:
    return a.op("matmul", b, transpose_a=transpose_a, transpose_b=transpose_b)


GRADIENTS: Mapping[str, Rule] = {"matmul": _matmul}
NO_GRADIENT: frozenset[str] = frozenset()


def _other(s: Site, name: str, a: Expr, b: Expr, size: tuple[Dim, ...]) -> Expr:
    attrs: dict[str, AttrValue] = {**s.attrs, "size": size}
    return a.op(name, b, **attrs)


def _conv(s: Site) -> Sequence[Expr | None]:
    (x, w), g = s.operands, s.g
    return [
        _other(s, "conv_input", g, w.conj(), x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", x.conj(), g, w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_input(s: Site) -> Sequence[Expr | None]:
    (y, w), g = s.operands, s.g
    return [
        _other(s, "conv", g, w.conj(), y.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", g, y.conj(), w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_kernel(s: Site) -> Sequence[Expr | None]:
    (x, y), g = s.operands, s.g
    return [
        _other(s, "conv_input", y.conj(), g, x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv", x.conj(), g, y.shape[1:-1]) if s.needed[1] else None,
    ]


def _adjoint_sum(name: str) -> Rule:
    def rule(s: Site) -> Sequence[Expr | None]:
        attrs: dict[str, AttrValue] = {**s.attrs, "size": s.x.shape[1:-1]}
        return [s.g.op(name, **attrs)]

    return rule


def _place(s: Site, x: Expr, g: Expr) -> Expr:
    attrs = {k: v for k, v in s.attrs.items() if k != "size"}
    return x.op("window_place", g, **attrs)


def _window_place(s: Site) -> Sequence[Expr | None]:
    x, g = s.operands
    attrs: dict[str, AttrValue] = {**s.attrs, "size": g.shape[1:-1]}
    return [None, x.op("window_pick", s.g, **attrs)]


CONV_GRADIENTS: Mapping[str, Rule] = {
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_kernel": _conv_kernel,
    "window_sum": _adjoint_sum("window_spread"),
    "window_spread": _adjoint_sum("window_sum"),
    "window_max": lambda s: [_place(s, s.x, s.g)],
    "window_pick": lambda s: [None, _place(s, s.x, s.g)],
    "window_place": _window_place,
}
