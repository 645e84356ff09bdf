"""`InteractiveSession`: a session that is the default from the start, for notebooks and shells."""

from __future__ import annotations

import threading
from typing import Any

from weft.frontend.session.default import drop_default, push_default
from weft.frontend.session.graph import Graph
from weft.frontend.session.session import Session
from weft.frontend.tracing.trace import set_thread_default, thread_default


class _Open(threading.local):
    """The sessions of a thread that are open, the newest last."""

    def __init__(self) -> None:
        self.sessions: list[InteractiveSession] = []


_open = _Open()


class InteractiveSession(Session):
    """A `wf.Session` that makes its graph and itself the default of this thread until `close`, so
    that `tensor.eval()` and `effect.run()` need no `with`. Arguments as `wf.Session`."""

    def __init__(self, target: str = "", graph: Graph | None = None, **options: Any) -> None:
        super().__init__(target, graph, **options)
        self._before = thread_default()
        set_thread_default(self.graph._trace)
        push_default(self)
        _open.sessions.append(self)

    def close(self) -> None:
        """As `Session.close`; graph and session are the defaults no more. Sessions may be closed in
        any order, each in the thread that made it."""
        super().close()
        if self not in _open.sessions:
            return
        drop_default(self)
        place = _open.sessions.index(self)
        del _open.sessions[place]
        if place < len(_open.sessions):  # one that was made later is still open
            _open.sessions[place]._before = self._before
        elif thread_default() is self.graph._trace:
            set_thread_default(self._before)
