"""The default session of a thread: what `tensor.eval` and `effect.run` use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.effect import Effect
from weft.ir.errors import FailedPreconditionError, TypeRuleError
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.frontend.session.session import Session


class _Default(threading.local):
    """Not a ContextVar: notebooks run each cell in a context of its own."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []


_default = _Default()


def get_default_session() -> Session | None:
    """The session of the innermost `with session:` or `with session.as_default():` in this thread,
    else the `wf.InteractiveSession` made last; None if there is none."""
    return _default.sessions[-1] if _default.sessions else None


@contextmanager
def default_session(session: Session) -> Iterator[Session]:
    """Make it the default in the block."""
    push_default(session)
    try:
        yield session
    finally:
        drop_default(session)


def push_default(session: Session) -> None:
    """Make it the default of this thread."""
    _default.sessions.append(session)


def drop_default(session: Session) -> None:
    """Undo the last `push_default` of it in this thread, if there is one."""
    for i in reversed(range(len(_default.sessions))):
        if _default.sessions[i] is session:
            del _default.sessions[i]
            return


def _in_session(what: Any, feed_dict: Any, session: Any) -> Any:
    if isinstance(what, Tensor) and what._data is not None:  # it has its value already
        return what.numpy()[()]
    found = get_default_session() if session is None else session
    if found is not None and not hasattr(found, "run"):
        raise TypeRuleError(
            f"session= is a {type(found).__name__}, not a wf.Session", location=caller_location()
        )
    if found is None:
        raise FailedPreconditionError(
            "there is no default session to run this in",
            hint="use it inside `with wf.Session(...):`, after wf.InteractiveSession(), or pass "
            "session=",
            location=caller_location(),
        )
    return found.run(what, feed_dict)


Operators.in_session = staticmethod(_in_session)
Effect.in_session = staticmethod(_in_session)
