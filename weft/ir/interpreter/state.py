"""Execution of the ops on state: on variables, over any holder of their values (`State`), and on
the stacks that loops keep (`ops/control_flow.py`).

Stacks are linked cells: one is a `Cell`, or None if it has no elements; a handle is the number of a
cell that the execution has seen, 0 for None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
    ShapeError,
)
from weft.ir.graph import Operation
from weft.ir.ops import lookup
from weft.ir.spec import Array, Attrs, int_attr
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
        zeros = np.zeros(element.static_shape, element.dtype.numpy)
        if element.dtype is string:
            zeros.fill(b"")
        return None, zeros
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


class State(Protocol):
    """The holder of variables' values. `get` raises FailedPreconditionError for one that was never
    set."""

    def get(self, name: str) -> Array:
        """The value of variable `name`."""
        ...

    def set(self, name: str, value: Array) -> None:
        """Store the value of variable `name`."""
        ...


class DictState:
    """Variables in a dict, `values`; keeps and hands out copies."""

    def __init__(self, values: Mapping[str, Array] | None = None) -> None:
        self.values: dict[str, Array] = {}
        for name, value in (values or {}).items():
            self.set(name, value)

    def get(self, name: str) -> Array:
        """A copy of the value. Raises FailedPreconditionError if `name` was never set."""
        if name not in self.values:
            raise FailedPreconditionError(
                f"variable '{name}' is not initialised",
                hint="run wf.global_variables_initializer() or assign to it first",
            )
        return self.values[name].copy()

    def set(self, name: str, value: Array) -> None:
        """Store a copy of `value`."""
        self.values[name] = np.array(value, order="C", copy=True)


@dataclass(frozen=True, slots=True)
class Ref:
    """The run-time value of ref type: the variable's name."""

    name: str


#: (the state, the op, its operands, the types of what the variables hold) -> its results.
Execute = Callable[[State, Operation, Sequence[Any], Sequence[TensorType]], list[Any]]


def _value(state: State, ref: Ref, held: TensorType) -> Array:
    value = np.array(state.get(ref.name), copy=True)  # later writes must not show
    given = TensorType(as_dtype(value.dtype), value.shape)
    if given.dtype is not held.dtype or not held.allows(value.shape):
        raise InvalidArgumentError(f"variable '{ref.name}' holds {given}, the graph wants {held}")
    return value


def _read(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    return [_value(state, operands[0], held[0])]


def _assign(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    ref, value = operands
    state.set(ref.name, np.array(value, order="C", copy=True))
    return [None]


def _update(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    ref, *given = operands
    new = updated(str(op.attrs.get("update", op.name)), _value(state, ref, held[0]), given)
    state.set(ref.name, new)
    return [new]


def updated(update: str, old: Array, given: Sequence[Array]) -> Array:
    """What an update of a variable makes of the old value: what a pure op does, for some of the
    negative operand."""
    name, negated = _MEANING[update]
    *indices, value = given
    wanted = (*indices[0].shape, *old.shape[1:]) if indices else old.shape
    if value.shape != wanted:
        raise ShapeError(
            f"{update}: a value of shape {list(value.shape)} for "
            + (f"rows of shape {list(wanted)} of " if indices else "")
            + f"a variable of shape {list(old.shape)}",
            hint="only assign gives a variable another shape",
        )
    rows = [i[..., np.newaxis] for i in indices]  # of one axis each
    return _pure(name, [old, *rows, _pure("negative", [value]) if negated else value])


#: By update: the pure op that it means, and whether with the negative of the last operand.
_MEANING: Mapping[str, tuple[str, bool]] = {
    "assign_add": ("add", False),
    "assign_sub": ("subtract", False),
    "scatter_add": ("scatter_nd_add", False),
    "scatter_sub": ("scatter_nd_add", True),
    "scatter_update": ("scatter_nd_update", False),
}


def _pure(name: str, arrays: list[Array], attrs: Attrs | None = None) -> Array:
    reference = lookup(name).reference
    assert reference is not None
    return np.asarray(reference(arrays, attrs or {}))


def _has_value(state: State, ref: Ref) -> bool:
    try:
        state.get(ref.name)
    except FailedPreconditionError:
        return False
    return True


def _is_initialized(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    return [np.array(_has_value(state, operands[0]))]


def _assert_initialized(
    state: State, op: Operation, operands: Sequence[Any], held: Any
) -> list[Any]:
    check_initialized([ref.name for ref in operands if not _has_value(state, ref)])
    return [None]


def check_initialized(missing: Sequence[str]) -> None:
    """FailedPreconditionError that names the variables, if there are any."""
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        raise FailedPreconditionError(
            f"{'these variables are' if len(missing) > 1 else 'variable'} {names} "
            f"{'' if len(missing) > 1 else 'is '}not initialised",
            hint="run wf.global_variables_initializer() in the session first",
        )


def _report(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    return [missing_names(op.attrs["names"], [_has_value(state, ref) for ref in operands])]


def missing_names(names: object, has_value: Sequence[bool]) -> Array:
    """The names of the variables that have no value, as a vector of strings."""
    assert isinstance(names, tuple)
    found = [str(n).encode() for n, has in zip(names, has_value, strict=True) if not has]
    out = np.empty(len(found), object)
    out[:] = found
    return out


def _count_up_to(state: State, op: Operation, operands: Sequence[Any], held: Any) -> list[Any]:
    (ref,) = operands
    value = _value(state, ref, held[0])
    state.set(ref.name, counted(value, int_attr(op.attrs, "limit"), ref.name))
    return [value]


def counted(value: Array, limit: int, name: str) -> Array:
    """`value` and 1. OutOfRangeError if it has reached `limit`, or the greatest of its dtype."""
    limit = min(limit, int(np.iinfo(value.dtype).max))
    if int(value) >= limit:
        raise OutOfRangeError(f"variable '{name}' has reached its limit of {limit}")
    return np.asarray(value + np.ones((), value.dtype), value.dtype)


EXECUTE_STATE: Mapping[str, Execute] = {
    **dict.fromkeys(("read", "read_open"), _read),
    **dict.fromkeys(("assign", "assign_open"), _assign),
    **dict.fromkeys((*_MEANING, "update_open"), _update),
    "is_initialized": _is_initialized,
    "assert_initialized": _assert_initialized,
    "report_uninitialized": _report,
    "count_up_to": _count_up_to,
}
