"""All variables of a checkpoint at one point in time, while training steps run.

A step holds the locks of all variables that it uses from its first read to its last write
(`executable.py`), taken in one order. Here all locks of a set of variables are taken in the same
order: so every step is either wholly in a snapshot or not at all, and no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np

from weft.ir.errors import FailedPreconditionError
from weft.runtime.checkpoint.encoding import Array
from weft.runtime.variables import VariableState


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
