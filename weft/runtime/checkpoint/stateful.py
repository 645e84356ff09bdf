"""State that is no variable: the protocol by which a checkpoint takes it, and a registry of names.

Queues, readers and the like put themselves here; `wf.train.Saver(include=...)` names those wanted.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol, runtime_checkable

from weft.ir.errors import AlreadyExistsError, NotFoundError, TypeRuleError, suggest
from weft.ir.process import ForkLock


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
