"""Execution of the ops on variables, over any holder of their values (`State`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from weft.ir.graph import Operation
from weft.ir.ops import lookup
from weft.ir.spec import Array, Attrs
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType


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
    if given != held:
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
    new = updated(op.name, _value(state, ref, held[0]), given)
    state.set(ref.name, new)
    return [new]


def updated(update: str, old: Array, given: Sequence[Array]) -> Array:
    """What an update of a variable makes of the old value: what a pure op does, for some of the
    negative operand."""
    name, negated = _MEANING[update]
    *indices, value = given
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
        raise OutOfRangeError(f"variable '{name}' has reached its limit of {limit}: {int(value)}")
    return np.asarray(value + np.ones((), value.dtype), value.dtype)


EXECUTE_STATE: Mapping[str, Execute] = {
    "read": _read,
    "assign": _assign,
    **dict.fromkeys(_MEANING, _update),
    "is_initialized": _is_initialized,
    "assert_initialized": _assert_initialized,
    "report_uninitialized": _report,
    "count_up_to": _count_up_to,
}
