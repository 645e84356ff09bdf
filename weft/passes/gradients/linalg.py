"""Gradients of linear algebra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.passes.expression import Expr
from weft.passes.gradients.rule import Rule, Site, sum_to


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
