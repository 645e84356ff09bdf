"""Gradients of linear algebra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.passes.expression import Expr
from weft.passes.gradients_rule import Rule, Site, sum_to


def _matmul(s: Site) -> Sequence[Expr | None]:
    """C = A B: the cotangents are G B^H and A^H G, summed over batch axes that were broadcast."""
    (a, b), g = s.operands, s.g
    transpose_a, transpose_b = bool(s.attrs["transpose_a"]), bool(s.attrs["transpose_b"])
    grads: list[Expr | None] = [None, None]
    if s.needed[0]:
        if transpose_a:  # the operand is A^T, its cotangent (G B^H)^T = conj(B) G^T
            grads[0] = _product(b.conj(), g, transpose_b, True)
        else:
            grads[0] = _product(g, b.conj(), False, not transpose_b)
    if s.needed[1]:
        if transpose_b:  # the operand is B^T, its cotangent (A^H G)^T = G^T conj(A)
            grads[1] = _product(g, a.conj(), True, transpose_a)
        else:
            grads[1] = _product(a.conj(), g, not transpose_a, False)
    return [None if d is None else sum_to(d, x.shape) for d, x in zip(grads, (a, b), strict=True)]


def _product(a: Expr, b: Expr, transpose_a: bool, transpose_b: bool) -> Expr:
    return a.op("matmul", b, transpose_a=transpose_a, transpose_b=transpose_b)


GRADIENTS: Mapping[str, Rule] = {"matmul": _matmul}
NO_GRADIENT: frozenset[str] = frozenset()
