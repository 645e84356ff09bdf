"""One part of a step that runs in a task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.comm.errors import CommError
from weft.ir.errors import AbortedError, CancelledError, UnavailableError, WeftError
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.stepping import Stepping
from weft.runtime.distributed import messages as m
from weft.runtime.distributed.counters import Counters
from weft.runtime.distributed.exchange import Array, LostLinkError, StepExchange, sendable
from weft.runtime.distributed.here import Deliver, Direct
from weft.runtime.distributed.messages import Received, Wire
from weft.runtime.distributed.recorded import RunTrace
from weft.runtime.distributed.registered import Registered
from weft.runtime.distributed.waiting import all_of
from weft.runtime.distributed.wire_errors import Derived, to_wire
from weft.runtime.resources.cancel import CancelToken

_LOG = logging.getLogger("weft.cluster")
#: Ends the link to a session, for a reason.
Cut = Callable[[str, object], None]


class Client:
    """A session that uses the task. deliver: takes messages, if it is in this process. cut: called
    with its name and the reason if it cannot be answered."""

    def __init__(self, name: str, wire: Wire, task: str, deliver: Deliver | None, cut: Cut) -> None:
        self.name, self.deliver, self.cut = name, deliver, cut
        self.parts: dict[int, Registered] = {}
        self.last = 0  # its last step
        self._wire, self._task = wire, task

    def send(self, kind: int, step: int, meta: dict[str, Any], arrays: Sequence[Any] = ()) -> None:
        """Answer it. Raises CommError."""
        if self.deliver is not None:
            incarnation = self._wire.incarnation
            self.deliver(Direct(self._task, incarnation, kind, step, meta, tuple(arrays)))
        else:
            self._wire.send(self.name, kind, step, meta, arrays)


class PartRun:
    """A part of a step, from its RUN to its DONE. over: called with it when it has ended, before
    the answer is sent."""

    def __init__(
        self,
        client: Client,
        message: Received,
        part: Registered,
        exchange: StepExchange,
        trace: RunTrace | None,
        counters: Counters,
        over: Callable[[PartRun], None],
    ) -> None:
        self.client, self.part, self.exchange, self.trace = client, part, exchange, trace
        self.step, self.handle = message.step, int(message.meta["h"])
        self.cancel = CancelToken(exchange)
        self._message, self._counters, self._over = message, counters, over
        self._error: WeftError | None = None  # which another one's error is the cause of
        self._derived = Derived.ABORTED
        self._begun = time.monotonic()
        counters.begun()

    def end(self, error: WeftError, derived: int) -> None:
        """End what it waits for; the first call counts."""
        if self._error is None:
            self._error, self._derived = error, derived
            self.cancel.cancel(error.what)

    @property
    def is_brief(self) -> bool:
        """Whether `begin` may run it on a thread that others need."""
        return self.part.small and self.trace is None and not self._message.meta.get("g")

    def begin(self) -> None:
        """Run it on this thread, and give that back where it would wait; whoever brings what it
        waits for goes on."""
        step = self.part.step
        if not isinstance(step, DataflowStep):
            self.carry_out()
            return
        try:
            ready = self.part.inputs(self._message.buffers)
        except WeftError as error:
            self._finish(error)
            return
        Stepping(step, self._finish).begin(ready, self.cancel)

    def carry_out(self) -> None:
        """Run it on this thread, which may wait."""
        timeout = self._message.meta.get("t")
        try:
            first = m.keys_of(m.FEED, self.handle)
            feeds = arrays_of(self._message, self.exchange.wire, first, timeout)
            recorder = None
            if self.trace is not None:
                self.trace.fed()
                recorder = self.trace.recorder
            made: Any = self.part(feeds, timeout, self.cancel, recorder)
        except Exception as error:  # whatever it is, the session waits for an answer
            made = error
        self._finish(made)

    def _finish(self, made: list[Array] | BaseException) -> None:
        """Answer."""
        meta: dict[str, Any] = {"h": self.handle}
        arrays: list[Array] = []
        try:
            if not isinstance(made, BaseException):
                arrays = [sendable(array) for array in made]
                if self.trace is not None:
                    arrays.append(self.trace.packed())
        except Exception as error:  # strings that have no bytes
            made = error
        if isinstance(made, BaseException):
            meta["e"] = self._failed(made)
            self.exchange.wire.abort(self.step, AbortedError("its step has failed on this task"))
        self._counters.ended(time.monotonic() - self._begun, "e" in meta)
        self._over(self)
        try:
            self._answer(meta, arrays)
        except Exception as error:  # the session waits for an answer, whatever it is
            self._answer_failed(error)

    def _answer_failed(self, error: Exception) -> None:
        """The answer cannot be sent: say that, or end the link, so that the session hears of it."""
        _LOG.warning("%s cannot be answered: %s", self.client.name, error)
        try:
            what = UnavailableError(f"the results of a part cannot be sent: {error}")
            meta = {"h": self.handle, "e": to_wire(what)}
            self.client.send(m.DONE, self.step, meta)
        except Exception:
            self.client.cut(self.client.name, error)

    def _answer(self, meta: dict[str, Any], arrays: list[Array]) -> None:
        if self.client.deliver is not None:
            self.client.send(m.DONE, self.step, meta, arrays)
            return
        small, large = m.split(arrays)
        if large:
            meta["g"] = list(large)
        self.client.send(m.DONE, self.step, meta, small)
        for place, array in large.items():
            key = m.keys_of(m.FETCH, self.handle) + place
            self.exchange.wire.send_tensor(self.client.name, self.step, key, (), array)

    def _failed(self, error: BaseException) -> dict[str, Any]:
        """The error as the session is to see it."""
        if self._error is not None:
            return to_wire(self._error, self._derived)
        if isinstance(error, KeyboardInterrupt):
            error = CancelledError("interrupted")
        if not isinstance(error, WeftError):
            _LOG.error("step %s failed", self.step, exc_info=error)
        lost = isinstance(error, LostLinkError)
        return to_wire(error, Derived.LOST_LINK if lost else Derived.ROOT)


def arrays_of(message: Received, wire: Wire, base: int, timeout: float | None) -> list[Array]:
    """The arrays of a message; the large ones, which "g" places, came by themselves."""
    small = iter(message.buffers)
    large: dict[int, Array] = {}
    places = [int(place) for place in message.meta.get("g", ())]
    if places:
        keys = [(base + place, ()) for place in places]
        found = all_of(wire.rendezvous, message.step, keys, timeout)
        large = dict(zip(places, found, strict=True))
    count = len(message.buffers) + len(large)
    return [large[i] if i in large else next(small) for i in range(count)]


def guarded(act: Callable[[Received], None], cut: Cut, task: str, message: Received) -> None:
    """`act`; a session that cannot be answered loses its link, and so hears of it."""
    try:
        act(message)
    except CommError as error:
        _LOG.warning("%s cannot answer %s: %s", task, message.peer, error)
        cut(message.peer, error)
    except Exception as error:
        _LOG.warning("%s: what %s says is not well formed: %r", task, message.peer, error)


def later(
    submit: Callable[[Callable[[], None]], None],
    cut: Cut,
    task: str,
    act: Callable[[Received], None],
) -> Callable[[Received], None]:
    """`act` on a thread of its own: what takes long, or connects."""
    return lambda message: submit(lambda: guarded(act, cut, task, message))
