"""`Effect`: something done for what it does, with no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from weft.ir.graph import Value

if TYPE_CHECKING:
    from weft.frontend.tracing.trace import Trace


class Effect:
    """Something done for its effect, with no value: fetch it in a Session (gives None), or depend
    on it.

    `value` is the token in the graph; None if it was done at once, outside any trace. In a
    `wf.Graph` each has a name of its own, by which `Session.run` and `get_operation_by_name` find
    it: the one wanted, or that with _1, _2, ... if it is taken.
    """

    __slots__ = ("name", "trace", "value")

    #: Runs one in a session; the session's module sets it.
    in_session: ClassVar[Callable[[Any, Any, Any], Any]]

    def __init__(self, name: str, value: Value | None = None, trace: Trace | None = None) -> None:
        self.name = name
        self.value = value
        self.trace = trace
        if value is not None and trace is not None and trace.owner is not None:
            self.name = trace.owner.add_effect(self)

    def __repr__(self) -> str:
        return f"<Effect {self.name}{'' if self.value is not None else ' (done)'}>"

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Do it in `session`, or in the default one (`with session:`, `wf.InteractiveSession`).

        FailedPreconditionError if there is none; else as `Session.run`.
        """
        if self.value is not None:
            Effect.in_session(self, feed_dict, session)
