"""How the interpreter runs the regions of `cond`, `while`, `scan` and `fused`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs
from weft.ir.graph import Block, Operation
from weft.ir.rules import int_attr
from weft.ir.types import TensorType, Type

#: Runs a block on concrete arguments.
RunBlock = Callable[[Block, Sequence[Any]], list[Any]]


def run_fused(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The region once."""
    return run(op.regions[0], operands)


def run_cond(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The region that the predicate chooses."""
    pred, *rest = operands
    return run(op.regions[0] if pred else op.regions[1], rest)


def run_while(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The body while the test is true, at most `limit` times."""
    test, body = op.regions
    count, limit = int_attr(attrs, "carries"), int_attr(attrs, "limit")
    carries, rest = list(operands[:count]), operands[count:]
    done = 0
    while done != limit and run(test, [*carries, *rest])[0]:
        carries = run(body, [*carries, *rest])
        done += 1
    return carries


def run_scan(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The body for each row. `types` are those of the results; a size that they leave open (`?`) is
    that of the rows, and 0 if there are none.
    """
    count, sequences = int_attr(attrs, "carries"), int_attr(attrs, "sequences")
    length = int_attr(attrs, "length")
    carries = list(operands[:count])
    rows, rest = operands[count : count + sequences], operands[count + sequences :]
    stacked = [t for t in types[count:] if isinstance(t, TensorType)]
    stacks: list[Any] = []
    if length == 0:
        sizes = [tuple(d if isinstance(d, int) else 0 for d in t.shape) for t in stacked]
        stacks = [np.zeros(s, t.dtype.numpy) for s, t in zip(sizes, stacked, strict=True)]
    for i in reversed(range(length)) if attrs["reverse"] else range(length):
        found = run(op.regions[0], [*carries, *(row[i, ...] for row in rows), *rest])
        carries = found[:count]
        if not stacks:
            stacks = [
                np.zeros((length, *np.shape(v)), t.dtype.numpy)
                for v, t in zip(found[count:], stacked, strict=True)
            ]
        for stack, value in zip(stacks, found[count:], strict=True):
            stack[i, ...] = value
    return [*carries, *stacks]


#: Ops that run their regions where they stand.
RUN_REGIONS: Mapping[
    str, Callable[[RunBlock, Operation, Sequence[Any], Attrs, Sequence[Type]], list[Any]]
] = {
    **dict.fromkeys(("fused", "unrolled"), run_fused),
    "cond": run_cond,
    "while": run_while,
    "scan": run_scan,
}
