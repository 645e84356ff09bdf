"""Shared names: variables and resources of the host that several parts of a program find by a
`shared_name`, looked up in the current `wf.tf1.container` (TensorFlow 1's resource containers)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock

_current: ContextVar[str] = ContextVar("weft_container", default="")


def current_container() -> str:
    """The container of what is made now; "" is the default one."""
    return _current.get()


def container(name: str) -> AbstractContextManager[str]:
    """Variables and resources made in the block belong to this container.

    One `shared_name` means one object within a container, different ones in different containers;
    `wf.Session.reset` clears whole containers. "" is the default container. TypeRuleError for a
    name that is no str.
    """
    if not isinstance(name, str):
        raise TypeRuleError(
            f"wf.tf1.container: the name is a {type(name).__name__}, not a str",
            location=caller_location(),
        )
    return _opened(name)


@contextmanager
def _opened(name: str) -> Iterator[str]:
    token = _current.set(name)
    try:
        yield name
    finally:
        _current.reset(token)


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
    "", a new one. container: that of the scope `wf.tf1.container` if None.

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
