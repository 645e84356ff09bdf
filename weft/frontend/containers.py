"""`wf.container`: where shared names are looked up, TensorFlow 1's resource containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from weft.ir.errors import TypeRuleError
from weft.ir.locations import caller_location

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
            f"wf.container: the name is a {type(name).__name__}, not a str",
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
