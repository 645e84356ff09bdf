"""Execution of the ops on stacks that loops keep (`ops/control_flow.py`), as linked cells.

A stack is a `Cell`, or None if it has no elements; a handle is the number of a cell that the
execution has seen, 0 for None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError
from weft.ir.spec import Attrs
from weft.ir.type_rules import int_attr
from weft.ir.types import StackType, TensorType, Type


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """The top of a stack and what is below it; nbytes: of all elements."""

    below: Cell | None
    value: Any
    nbytes: int


Stack = Cell | None


CHECKPOINT_HINT = (
    "with checkpoint_every=k wf.while_loop keeps one iteration in k and computes the others again"
)


def too_large(nbytes: int, limit: int) -> ResourceExhaustedError:
    """The error for a loop that keeps more for its gradient than its limit says."""
    return ResourceExhaustedError(
        f"what the loop keeps of its iterations for the gradient takes {nbytes:,} bytes, more than "
        f"gradient_memory={limit:,}",
        hint=f"{CHECKPOINT_HINT}, or give a larger gradient_memory",
    )


def _nbytes(value: Any) -> int:
    if value is None:
        return 0
    return value.nbytes if isinstance(value, Cell) else int(np.asarray(value).nbytes)


def push(stack: Stack, value: Any, limit: int) -> Cell:
    """The stack with `value` on top. ResourceExhaustedError beyond `limit` bytes (-1: none)."""
    nbytes = _nbytes(value) + (stack.nbytes if stack is not None else 0)
    if 0 <= limit < nbytes:
        raise too_large(nbytes, limit)
    return Cell(stack, value, nbytes)


def pop(stack: Stack, element: Type) -> tuple[Stack, Any]:
    """What is below the top, and the top; zeros of type `element` if there is none."""
    if stack is not None:
        return stack.below, stack.value
    if isinstance(element, TensorType):
        return None, np.zeros(element.static_shape, element.dtype.numpy)
    return None, None


def add(a: Stack, b: Stack, join: Callable[[Any, Any], Any]) -> Stack:
    """The sums of the elements, each by `join`, from the tops on; where one stack ends the other
    goes on."""
    sums: list[Any] = []
    while a is not None and b is not None:
        sums.append(join(a.value, b.value))
        a, b = a.below, b.below
    made = b if a is None else a
    for value in reversed(sums):
        made = push(made, value, -1)
    return made


def joined(depth: int) -> Callable[[Any, Any], Any]:
    """The sum of two elements of stacks of this depth."""
    if depth == 1:
        return np.add
    inner = joined(depth - 1)
    return lambda a, b: add(a, b, inner)


class Cells:
    """The cells of one execution by their handles."""

    def __init__(self) -> None:
        self._cells: list[Cell] = []

    def handle(self, stack: Stack) -> np.ndarray[Any, Any]:
        """A handle of the stack."""
        if stack is None:
            return np.zeros((), np.int64)
        self._cells.append(stack)
        return np.array(len(self._cells), np.int64)

    def stack(self, handle: Any) -> Stack:
        """The stack of a handle."""
        number = int(handle)
        return self._cells[number - 1] if number else None

    def add(self, a: Any, b: Any, depth: int) -> np.ndarray[Any, Any]:
        """The handle of the sum of two stacks of this depth."""

        def join(x: Any, y: Any) -> Any:
            return np.add(x, y) if depth == 1 else self.add(x, y, depth - 1)

        return self.handle(add(self.stack(a), self.stack(b), join))


def run_stack_op(
    cells: Cells, name: str, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The results, of these types, of an op of `ops.stack`."""
    match name:
        case "stack_new":
            return [None]
        case "stack_push":
            return [push(operands[0], operands[1], int_attr(attrs, "limit"))]
        case "stack_pop":
            return list(pop(operands[0], types[1]))
        case "stack_add":
            assert isinstance(types[0], StackType)
            return [add(operands[0], operands[1], joined(types[0].depth))]
        case "arena_push":
            made = push(cells.stack(operands[0]), operands[1], int_attr(attrs, "limit"))
            return [cells.handle(made)]
        case "arena_pop":
            below, value = pop(cells.stack(operands[0]), types[1])
            return [cells.handle(below), value]
    return [cells.add(operands[0], operands[1], int_attr(attrs, "depth"))]
