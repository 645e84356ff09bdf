"""`PartRun`: one run of a part of a step in a task."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.comm.errors import CommError
from weft.comm.rendezvous import Key, Rendezvous
from weft.ir.cost.thresholds import SMALL_MESSAGE_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.errors import CancelledError, DeadlineExceededError, UnavailableError, WeftError
from weft.runtime.cluster import messages as m
from weft.runtime.cluster.exchange import (
    Array,
    LostLinkError,
    PartFailedError,
    StepExchange,
    sendable,
    waits_of,
)
from weft.runtime.cluster.messages import Deliver, Derived, Direct, Received, Wire, to_wire
from weft.runtime.cluster.part import Registered
from weft.runtime.cluster.small_step import SmallRun
from weft.runtime.dataflow.executor import Stepping
from weft.runtime.recorder import AnyRecorder, TraceRecorder
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.run_log import RunLog, values_of
from weft.runtime.step import RunContext
from weft.runtime.trace.counters import Counters
from weft.runtime.trace.task_trace import RunTrace

_Array = np.ndarray[Any, Any]


def all_of(
    table: Rendezvous, step: int, keys: Sequence[Key], timeout: float | None, source: str
) -> list[_Array]:
    """The tensors of all keys, which `source` sends. What ends the step is raised;
    DeadlineExceededError after `timeout` seconds."""
    found: dict[Key, _Array] = {}
    failed: list[BaseException] = []
    lock, ready = threading.Lock(), threading.Event()

    def came(key: Key, made: Any) -> None:
        with lock:
            if isinstance(made, BaseException):
                failed.append(made)
            else:
                found[key] = made
            if failed or len(found) == len(keys):
                ready.set()

    for key in keys:
        table.get(step, key, partial(came, key), source)
    if not ready.wait(timeout):
        missing = len(keys) - len(found)
        raise DeadlineExceededError(f"{missing} of {len(keys)} tensors did not come in time")
    if failed:
        error = failed[0]
        raise error if isinstance(error, WeftError) else UnavailableError(str(error))
    return [found[key] for key in keys]


_LOG = logging.getLogger("weft.cluster")
#: A step, and the handle of a part.
Who = tuple[int, int]
#: A task keeps logs of so many bytes for a session, which asks for each when its run is over.
MOST_LOG_BYTES = 1 << 30
#: Held while the exchange of a run is made: reports ask for it, too.
_MAKING = threading.Lock()
#: Ends the link to a session, for a reason.
Cut = Callable[[str, object], None]


class Client:
    """A session that uses the task. deliver: takes messages, if it is in this process. cut: called
    with its name and the reason if it cannot be answered. runs: by part, how often Python ran it;
    low: one number, the step up to which all are forgotten: for native code."""

    def __init__(self, name: str, wire: Wire, task: str, deliver: Deliver | None, cut: Cut) -> None:
        self.name, self.deliver, self.cut = name, deliver, cut
        self.parts: dict[int, Registered] = {}
        self.last = 0  # its last step
        self.runs: dict[int, int] = {}
        self.low = array("Q", [0])
        self.logs: dict[Who, RunLog] = {}  # of runs that are over, by step and handle
        self._wire, self._task = wire, task

    def send(self, kind: int, step: int, meta: dict[str, Any], arrays: Sequence[Any] = ()) -> None:
        """Answer it. Raises CommError."""
        if self.deliver is not None:
            incarnation = self._wire.incarnation
            self.deliver(Direct(self._task, incarnation, kind, step, meta, tuple(arrays)))
        else:
            self._wire.send(self.name, kind, step, meta, arrays)

    def answer(
        self, kind: int, step: int, handle: int, meta: dict[str, Any], arrays: Sequence[Array]
    ) -> None:
        """Answer it for one of its parts, with large arrays by themselves. Raises CommError."""
        if self.deliver is not None:
            self.send(kind, step, meta, arrays)
            return
        small, large = m.split(arrays)
        if large:
            meta["g"] = list(large)
        self.send(kind, step, meta, small)
        for place, made in large.items():
            key = m.keys_of(m.FETCH, handle) + place
            self._wire.send_tensor(self.name, step, key, (), made)

    def keep_log(self, who: Who, log: RunLog) -> None:
        """Keep the log of a run until the session asks for it; of many the oldest go."""
        self.logs[who] = log
        held = log.nbytes
        for older in list(self.logs)[-2::-1]:
            held += self.logs[older].nbytes
            if held > MOST_LOG_BYTES:
                self.logs.pop(older, None)

    def signal(self, kind: int, step: int, key: int) -> None:
        """Answer it with a number. Raises CommError."""
        if self.deliver is not None:
            incarnation = self._wire.incarnation
            self.deliver(Direct(self._task, incarnation, kind, step, None, (), key))
        else:
            self._wire.signal(self.name, kind, step, key)


@dataclass(frozen=True, slots=True)
class Home:
    """What all runs of a task share. over: called with a run, its seconds, those of them in which
    it only waited, and whether it failed when it has ended, before the answer is
    sent."""

    name: str
    wire: Wire
    counters: Counters
    over: Callable[[PartRun, float, float, bool], None]


class PartRun:
    """A part of a step, from its RUN to its DONE. meta: of the RUN."""

    __slots__ = (
        "_begun", "_brief", "_cancel", "_derived", "_error", "_exchange", "_home", "_meta",
        "_sampled", "buffers", "client", "handle", "log", "part", "step", "trace",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        home: Home,
        part: Registered,
        step: int,
        handle: int,
        meta: Mapping[str, Any],
        buffers: Sequence[Array],
    ) -> None:
        self.client, self.part, self.step, self.handle = client, part, step, handle
        self._home, self._meta, self.buffers = home, meta, buffers
        self.trace: RunTrace | None = None
        self.log: RunLog | None = None
        if meta:
            self._take_orders()
        self._exchange: StepExchange | None = None
        self._cancel: CancelToken | None = None
        self._brief: SmallRun | None = None
        self._error: WeftError | None = None  # which another one's error is the cause of
        self._derived = Derived.ABORTED
        self._begun = time.monotonic()
        #: Whether the ops of this run are timed for `weft top`.
        counters = home.counters
        self._sampled = counters.is_watched and "trace" not in meta and counters.samples()

    def _take_orders(self) -> None:
        """What the RUN asks for."""
        meta = self._meta
        if "trace" in meta:
            kernels = bool(meta["trace"]["kernels"])
            self.trace = RunTrace(self._home.name, self.handle, kernels=kernels)
        if "log" in meta:
            self.log = RunLog(self.part.device)
            if meta["log"]:
                self.log.keep_operands()

    @property
    def exchange(self) -> StepExchange:
        """What its ops `send` and `recv` use; a brief one sends and receives by itself. Made by
        whichever thread asks first: the run's, or one that ends it or reports of it."""
        found = self._exchange
        return self._new_exchange() if found is None else found

    def _new_exchange(self) -> StepExchange:
        home, limit = self._home, self._meta.get("r")
        with _MAKING:
            if self._exchange is None:
                self._exchange = StepExchange(
                    home.wire, home.name, self.step, self.part.receivers, limit, home.counters,
                    self.trace,
                )  # fmt: skip
                if self._brief is not None:
                    self._exchange.runs(self._brief.waits)
            return self._exchange

    def waits(self) -> list[list[Any]]:
        """What it waits for (`waits_of`)."""
        return waits_of(self._home.wire, self.step, self.part.receivers)

    def end(self, error: WeftError, derived: int) -> None:
        """End what it waits for; the first call counts."""
        if self._error is None:
            self._derived = derived
            self._error = error  # before the look: what begins later sees it
            if self._brief is not None:
                self._brief.stop(error.what)
            elif self._cancel is not None:
                self._cancel.cancel(error.what)

    def _token(self) -> CancelToken:
        """Ends the step when `end` is called, or was."""
        self._cancel = token = CancelToken(self.exchange)
        if self._error is not None:
            token.cancel(self._error.what)
        return token

    def was_ended(self) -> bool:
        """Whether `end` was called."""
        return self._error is not None

    @property
    def is_small(self) -> bool:
        """Whether `begin` may run it on a thread that others need."""
        recorded = self.trace is not None or self.log is not None or self._sampled
        return self.part.small and not recorded and "g" not in self._meta

    def begin(self) -> None:
        """Run it on this thread, and give that back where it would wait; whoever brings what it
        waits for goes on."""
        part, home = self.part, self._home
        ready: Sequence[Array] = ()
        if part.kinds or self.buffers:
            try:
                ready = part.inputs(self.buffers)
            except WeftError as error:
                self._finish(error)
                return
        if part.brief is None:
            if part.step.kind != "dataflow":
                self.carry_out()
            else:
                Stepping(part.step, self._finish).begin(list(ready), self._token())
            return
        run = SmallRun(part.brief, home.wire, home.name, self.step, home.counters, self._finish)
        self._brief = run  # before the look: what makes the exchange later sees it
        if self._exchange is not None:
            self._exchange.runs(run.waits)
        if self._error is not None:
            run.stop(self._error.what)
        run.begin(ready)

    def take_over(self, begun: float, *state: Any) -> None:
        """Go on with a run that native code has begun, at that time (`SmallRun.resume`)."""
        part, home = self.part, self._home
        assert part.brief is not None
        self._begun = begun
        self._brief = run = SmallRun(
            part.brief, home.wire, home.name, self.step, home.counters, self._finish
        )
        if self._error is not None:
            run.stop(self._error.what)
        run.resume(*state)

    def carry_out(self) -> None:
        """Run it on this thread, which may wait."""
        timeout = self._meta.get("t")
        try:
            first = m.keys_of(m.FEED, self.handle)
            wire = self._home.wire
            who = self.client.name
            asked = time.monotonic()
            feeds = arrays_of(self._meta, self.buffers, wire, who, self.step, first, timeout)
            if "g" in self._meta:
                self.exchange.waited(time.monotonic() - asked)
            sample = TraceRecorder() if self._sampled else None
            recorder: AnyRecorder | None = sample
            if self.trace is not None:
                self.trace.fed()
                recorder = self.trace.recorder.within(self.part.device)
            if self.log is not None:
                self.log.take_variables(self.part.variables)
            context = RunContext(timeout, self._token(), recorder, log=self.log)
            made: Any = self.part.run(feeds, context)
            if sample is not None:
                self._home.counters.timed(sample.events())
        except Exception as error:  # whatever it is, the session waits for an answer
            made = error
        self._finish(made)

    def _finish(self, made: list[Array] | BaseException) -> None:
        """Answer."""
        if made == [] and self.trace is None:
            self._end(failed=False)
            try:
                self.client.signal(m.DONE, self.step, self.handle)
            except Exception as error:  # the session waits for an answer, whatever it is
                self._answer_failed(error)
            return
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
            arrays = [] if self.trace is None else [self.trace.packed(SMALL_MESSAGE_BYTES)]
            meta["e"] = self._failed(made)
            why = PartFailedError("its step has failed on this task")
            self._home.wire.abort(self.step, why)
            made.__traceback__ = None  # its frames hold arrays, and one of them the error itself
        self._end("e" in meta)
        try:
            self._answer(meta, arrays)
        except Exception as error:
            self._answer_failed(error)

    def _end(self, failed: bool) -> None:
        if self.log is not None:
            written = {n: s for n, s in self.part.variables.items() if n in self.part.written}
            self.log.after = values_of(written)
            self.client.keep_log((self.step, self.handle), self.log)
        seconds = time.monotonic() - self._begun
        if self._brief is not None:
            waited = max(0.0, seconds - self._brief.worked)
        else:
            waited = 0.0 if self._exchange is None else self._exchange.waited_seconds
        self._home.over(self, seconds, waited, failed)

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
        self.client.answer(m.DONE, self.step, self.handle, meta, arrays)

    def _failed(self, error: BaseException) -> dict[str, Any]:
        """The error as the session is to see it."""
        if self._error is not None:
            return to_wire(self._error, self._derived)
        if isinstance(error, KeyboardInterrupt):
            error = CancelledError("interrupted")
        if not isinstance(error, WeftError):
            _LOG.error("step %s failed", self.step, exc_info=error)
        derived = Derived.ROOT
        if isinstance(error, (LostLinkError, PartFailedError)):
            lost = isinstance(error, LostLinkError)
            derived = Derived.LOST_LINK if lost else Derived.ABORTED
        return to_wire(error, derived)


def arrays_of(
    meta: Mapping[str, Any],
    buffers: Sequence[Array],
    wire: Wire,
    source: str,
    step: int,
    base: int,
    timeout: float | None,
) -> list[Array]:
    """The arrays of a message of `source`; the large ones, which "g" places, came by themselves."""
    small = iter(buffers)
    large: dict[int, Array] = {}
    places = [int(place) for place in meta.get("g", ())]
    if places:
        keys = [(base + place, ()) for place in places]
        found = all_of(wire.rendezvous, step, keys, timeout, source)
        large = dict(zip(places, found, strict=True))
    count = len(buffers) + len(large)
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
