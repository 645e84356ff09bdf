"""Gradients of updates with respect to what they add or store.

With respect to the value before, the adjoint is the cotangent of the new value, without the rows
that were replaced; it has no operand here: `frontend.tracing.autodiff` takes it for the variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.passes.expression import Expr
from weft.passes.gradients.array import last_updates
from weft.passes.gradients.rule import Rule, Site


def _rows(s: Site) -> Expr:
    """The cotangents of the rows at the indices."""
    return s.g.op("take", s.operands[1], axis=0)


def _scatter_update(s: Site) -> Sequence[Expr | None]:
    index = s.operands[1]
    columns = index.reshape((*index.shape, 1))
    return [None, None, last_updates(s.y, s.g, columns, s.operands[2])]


GRADIENTS: Mapping[str, Rule] = {
    "assign_add": lambda s: [None, s.g],
    "assign_sub": lambda s: [None, -s.g],
    "scatter_add": lambda s: [None, None, _rows(s)],
    "scatter_sub": lambda s: [None, None, -_rows(s)],
    "scatter_update": _scatter_update,
}

NO_GRADIENT = frozenset(
    {
        *("variable", "read", "assign", "count_up_to"),
        *("is_initialized", "assert_initialized", "report_uninitialized"),
    }
)
