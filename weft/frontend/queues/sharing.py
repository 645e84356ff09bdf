"""What several parts of a program find by a `shared_name`: variables, and resources of the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from weft.frontend.containers import current_container
from weft.ir.errors import InvalidArgumentError
from weft.ir.process import ForkLock


class Shareable(Protocol):
    """An object that can be shared. kind: what it is, for people. declared: how it was made."""

    kind: str
    declared: str

    def describe(self) -> str:
        """Kind and name, for errors."""
        ...


S = TypeVar("S", bound=Shareable)

# by container and name, as long as anybody holds them
_by_name: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()
_lock = ForkLock()


def shared(
    name: str | None,
    kind: type[S],
    declared: str,
    make: Callable[[], S],
    container: str | None = None,
) -> S:
    """The object of that shared name in a container, made if there is none; without a name, or with
    "", a new one. container: that of the scope `wf.container` if None.

    InvalidArgumentError if it is of another kind or was declared otherwise.
    """
    if not name:
        return make()
    place = current_container() if container is None else container
    with _lock:
        found = _by_name.get((place, name))
        if found is None:
            found = _by_name[place, name] = make()
            found.declared = declared
    if type(found) is not kind or found.declared != declared:
        where = f" in container {place!r}" if place else ""
        raise InvalidArgumentError(
            f"shared_name={name!r}{where} is that of the {found.describe()}: {found.declared}; "
            f"this is a {kind.kind}: {declared}",
            hint="what has one shared_name is made alike; use another name for another one",
        )
    return found


def forget(containers: Iterable[str]) -> list[Any]:
    """Forget the names of these containers; what is made under them later is new. What they
    named."""
    wanted = set(containers)
    with _lock:
        gone = [(key, x) for key, x in _by_name.items() if key[0] in wanted]
        for key, _ in gone:
            del _by_name[key]
    return [x for _, x in gone]


def shared_as(thing: object) -> tuple[str, str] | None:
    """The container and shared name of an object; None if it has none."""
    with _lock:
        return next((key for key, x in _by_name.items() if x is thing), None)
