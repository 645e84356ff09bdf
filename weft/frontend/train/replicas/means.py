"""The mean of several replicas' gradients, added in one order: neighbours in pairs, then pairs of
pairs, ((g0 + g1) + (g2 + g3)) + g4. Of what two, four, eight ... neighbours have added up among
themselves the same sum is made, so who adds what does not change its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.frontend.indexed_slices import IndexedSlices, added
from weft.frontend.ops.arithmetic import add, divide
from weft.frontend.tensor import Tensor
from weft.frontend.train.optimizer import GradientAndVariable
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location

T = TypeVar("T")


def in_pairs(parts: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """`combine` over neighbours, then over what that gives, until one is left; the last of an odd
    number waits."""
    level = list(parts)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def mean_gradients(
    grads_and_vars: Sequence[Sequence[GradientAndVariable]],
) -> list[GradientAndVariable]:
    """The mean of the gradients that several replicas have for the same variables, added in pairs
    of neighbours: ((g0 + g1) + (g2 + g3)) / 4. Of `IndexedSlices` it has the rows of all.

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
    """Their mean, as `mean_gradients` adds; `IndexedSlices` only if all are."""
    slices = [p for p in parts if isinstance(p, IndexedSlices)]
    if len(slices) == len(parts):
        return added(slices) / len(parts)
    return mean_tensor([p.to_dense() if isinstance(p, IndexedSlices) else p for p in parts])


def mean_tensor(parts: Sequence[Tensor]) -> Tensor:
    """The mean of tensors."""
    return divide(in_pairs(parts, add), len(parts))
