"""Resources that several parts of a program find by a `shared_name`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from weft.ir.errors import InvalidArgumentError
from weft.ir.fork import ForkLock
from weft.runtime.resources.attempts import Resource

R = TypeVar("R", bound=Resource)

# as long as anybody holds them
_by_name: weakref.WeakValueDictionary[str, Resource] = weakref.WeakValueDictionary()
_lock = ForkLock()


def shared(name: str | None, kind: type[R], declared: str, make: Callable[[], R]) -> R:
    """The resource of that shared name, made if there is none; without a name a new one.

    InvalidArgumentError if it is of another kind or was declared otherwise.
    """
    if name is None:
        return make()
    with _lock:
        found = _by_name.get(name)
        if found is None:
            found = _by_name[name] = make()
            found.declared = declared
    if type(found) is not kind or found.declared != declared:
        raise InvalidArgumentError(
            f"shared_name={name!r} is that of the {found.describe()}: {found.declared}; this is a "
            f"{kind.kind}: {declared}",
            hint="what has one shared_name is made alike; use another name for another resource",
        )
    return found
