"""The mean of several replicas' gradients, added in one order."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.indexed_slices import IndexedSlices, added
from weft.frontend.ops.arithmetic import add, divide
from weft.frontend.tensor import Tensor
from weft.frontend.train.optimizer import GradientAndVariable
from weft.ir.errors import InvalidArgumentError
from weft.ir.source import caller_location


def mean_gradients(
    grads_and_vars: Sequence[Sequence[GradientAndVariable]],
) -> list[GradientAndVariable]:
    """The mean of the gradients that several replicas have for the same variables, in the order
    given: ((g0 + g1) + g2) / 3. Of `IndexedSlices` it has the rows of all.

    What a variable has no gradient for in any replica is None. InvalidArgumentError if the replicas
    do not name the same variables in the same order, or only some have a gradient.
    """
    rows = [list(pairs) for pairs in grads_and_vars]
    if not rows or any(_ids(row) != _ids(rows[0]) for row in rows):
        raise InvalidArgumentError(
            "mean_gradients: the replicas have gradients of different variables",
            hint="give each replica's compute_gradients the same var_list",
            location=caller_location(),
        )
    found: list[GradientAndVariable] = []
    for column in zip(*rows, strict=True):
        variable = column[0][1]
        parts = [g for g, _ in column if g is not None]
        if parts and len(parts) < len(column):
            raise InvalidArgumentError(
                f"mean_gradients: only some replicas have a gradient of '{variable.name}'",
                location=caller_location(),
            )
        found.append((mean_of(parts) if parts else None, variable))
    return found


def _ids(pairs: Sequence[GradientAndVariable]) -> list[int]:
    return [id(v) for _, v in pairs]


def mean_of(parts: Sequence[Tensor | IndexedSlices]) -> Tensor | IndexedSlices:
    slices = [p for p in parts if isinstance(p, IndexedSlices)]
    if len(slices) == len(parts):
        return added(slices) / len(parts)
    dense = [p.to_dense() if isinstance(p, IndexedSlices) else p for p in parts]
    total = dense[0]
    for part in dense[1:]:
        total = add(total, part)
    return divide(total, len(dense))
