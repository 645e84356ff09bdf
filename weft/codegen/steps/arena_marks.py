"""Where a step gives memory of stacks back: after each iteration out of which no stack leads."""

from __future__ import annotations

from weft.codegen.kernels.arena import mark_call
from weft.codegen.kernels.arena_words import MOST_MARKS
from weft.codegen.steps.arena_flow import keeps_no_stacks
from weft.codegen.steps.program import PlannedCall
from weft.ir.graph import Operation

_WHY = {
    "begin": "memory of stacks that an earlier step has left",
    "end": "gives memory of stacks back",
    "mark": "where the memory of stacks ends before a loop",
    "release": "gives back what stacks took in this iteration",
}


def stack_call(name: str, mark: int = 0) -> PlannedCall:
    """The call `begin`, `end`, `mark` or `release`."""
    return PlannedCall(mark_call(name, mark), None, why=_WHY[name])


def releases(op: Operation, level: int) -> bool:
    """Whether a loop, `level` such loops deep, gives back what stacks took in each iteration."""
    return level < MOST_MARKS and keeps_no_stacks(op)
