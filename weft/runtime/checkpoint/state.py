"""State of a program: snapshots of all variables at one point in time, and other state.

A step holds the locks of all variables that it uses from its first read to its last write
(`native/executable.py`), taken in one order. Here all locks of a set of variables are taken in the
same order: so every step is either wholly in a snapshot or not at all, and no two wait for each
other, while training steps run.

`Stateful` is the protocol by which a checkpoint takes other state. Queues, readers and the like
register themselves by name; `wf.train.Saver(include=...)` names those wanted."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from weft.ir.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    TypeRuleError,
    suggest,
)
from weft.ir.process import ForkLock
from weft.runtime.checkpoint.format import Array
from weft.runtime.resources.variables import VariableState


@contextmanager
def all_locked(states: Iterable[VariableState]) -> Iterator[None]:
    """Hold the locks of all `states`, taken in the order in which steps take them."""
    with ExitStack() as stack:
        for state in sorted(set(states), key=id):
            stack.enter_context(state.lock)
        yield


def copies(states: Mapping[str, VariableState]) -> dict[str, Array]:
    """A copy of each value; their locks are held. FailedPreconditionError, naming all that have
    none, if one is not initialised."""
    missing = [name for name, state in states.items() if not state.initialized]
    if missing:
        raise FailedPreconditionError(
            f"cannot save: {', '.join(map(repr, missing))} not initialised",
            hint="run wf.global_variables_initializer() in the session first, or leave them out "
            "of var_list",
        )
    return {name: state.read() for name, state in states.items()}


def assign_all(values: Iterable[tuple[VariableState, Array]]) -> None:
    """Assign every value, or none: their locks are held, and what can fail comes first.

    Each value has the dtype and shape of its variable.
    """
    pairs = list(values)
    fresh = {
        id(state): np.array(value, order="C", copy=True)
        for state, value in pairs
        if state.array is None
    }
    for state, value in pairs:
        if state.array is None:
            state.array = fresh[id(state)]
        else:
            state.array[...] = value


@runtime_checkable
class Stateful(Protocol):
    """An object whose state a checkpoint can hold.

    state_dict: dicts, lists and tuples of NumPy arrays, numbers, str, bytes, bool and None. It is
    called while the locks of all saved variables are held, so that the state is of the same moment:
    it must not wait for a step. load_state_dict: takes over such a state, or raises and changes
    nothing.
    """

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


#: The process-wide random generators, which are variables and so not in the registry.
RANDOM = "random"
_lock = ForkLock()
_registered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def register_state(name: str, stateful: Stateful) -> None:
    """Have `Saver(include=[name])` save and restore `stateful`, for as long as it lives.

    TypeRuleError for an object without state_dict and load_state_dict, AlreadyExistsError for a
    name that another living object has.
    """
    if not isinstance(stateful, Stateful):
        raise TypeRuleError(
            f"register_state('{name}', ...): a {type(stateful).__name__} has no state_dict() and "
            "load_state_dict(state)"
        )
    with _lock:
        if name == RANDOM or _registered.get(name, stateful) is not stateful:
            raise AlreadyExistsError(f"there is state registered as '{name}' already")
        try:
            _registered[name] = stateful
        except TypeError:
            raise TypeRuleError(
                f"register_state('{name}', ...): a {type(stateful).__name__} cannot be referred to "
                "weakly",
                hint="add '__weakref__' to its __slots__",
            ) from None


def registered_state(name: str) -> Stateful:
    """What is registered as `name`. NotFoundError with the closest names."""
    found: Stateful | None = _registered.get(name)
    if found is None:
        raise NotFoundError(
            f"there is no state registered as '{name}'{suggest(name, sorted(_registered))}",
            hint="register_state(name, object) does; the object must still be alive",
        )
    return found
