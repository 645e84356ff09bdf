"""`TaskTrace`: the events of a traced step on one task, and their form on the wire to the session.

On the wire it is compressed JSON in an array of bytes. Times are `CLOCK_MONOTONIC` of the task's
own machine, in ns."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Operation
from weft.ir.locations import Location, Locations
from weft.ir.spec import int_attr
from weft.runtime.recorder import Output, Recorded, TraceEvent, TraceRecorder, clock

Array = np.ndarray[Any, Any]
#: A task keeps about so many events of one step: the first ones go.
MOST_EVENTS = 200_000
#: What a packed trace may be unpacked to, in bytes.
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """One end of a tensor's way from one task to another (or within one).

    sent: whether it is the sending end: then it took from `begin_ns` to `end_ns` to hand it over;
    else somebody waited for it from `begin_ns` to `end_ns`. key, iteration: which message it is.
    tensor: what the sender calls it. device: where it was sent from or received on.
    """

    sent: bool
    task: str
    peer: str
    key: int
    iteration: tuple[int, ...]
    tensor: str
    begin_ns: int
    end_ns: int
    nbytes: int
    dead: bool
    thread: int
    device: str
    locations: Locations


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """One part of a step, as it ran. begun_ns: when the message came that had it run; fed_ns: when
    all that it was fed was there; done_ns: when the answer was about to be sent. dropped: events
    that were not kept."""

    task: str
    handle: int
    begun_ns: int
    fed_ns: int
    done_ns: int
    events: tuple[TraceEvent, ...]
    messages: tuple[MessageEvent, ...]
    dropped: int = 0


class RunTrace:
    """Records one part of a step in the task that runs it. Any thread may call it. kernels: as of
    `TraceRecorder`."""

    def __init__(
        self, task: str, handle: int, begun_ns: int | None = None, *, kernels: bool = False
    ) -> None:
        self.task, self.handle = task, handle
        self.begun_ns = self.fed_ns = clock() if begun_ns is None else begun_ns
        self.recorder = TraceRecorder(MOST_EVENTS, kernels=kernels)
        self._messages: list[MessageEvent] = []
        self._lock = threading.Lock()

    def fed(self) -> None:
        """All that it was fed is there."""
        self.fed_ns = clock()

    def message(
        self,
        op: Operation,
        peer: str,
        iteration: tuple[int, ...],
        begin_ns: int,
        nbytes: int,
        dead: bool,
    ) -> None:
        """A `send` that was begun at `begin_ns` is over, or what a `recv` that was begun then waits
        for is here."""
        sent = op.name == "send"
        made = MessageEvent(
            sent, self.task, peer, int_attr(op.attrs, "key"), iteration,
            str(op.attrs.get("tensor", "")), begin_ns, clock(), nbytes, dead,
            threading.get_ident(), str(op.attrs["src" if sent else "dst"]), op.locations,
        )  # fmt: skip
        with self._lock:
            if len(self._messages) < MOST_EVENTS:
                self._messages.append(made)

    def packed(self, most_bytes: int | None = None) -> Array:
        """All of it, as an array of bytes; the part is done. most_bytes: of what is more than that
        only the last events."""
        events, dropped, done = self.recorder.events(), self.recorder.dropped, clock()
        with self._lock:
            messages = list(self._messages)
        while True:
            made = pack(
                TaskTrace(
                    self.task, self.handle, self.begun_ns, self.fed_ns, done, tuple(events),
                    tuple(messages), dropped,
                )
            )  # fmt: skip
            if most_bytes is None or made.nbytes <= most_bytes or (not events and not messages):
                return made
            less, fewer = (len(events) + 1) // 2, (len(messages) + 1) // 2
            dropped += less
            events, messages = events[less:], messages[fewer:]


# ------------------------------------------------------------------------------------ on the wire
def pack(trace: TaskTrace) -> Array:
    """The trace as an array of bytes: `unpack` is its inverse."""
    strings: dict[str, int] = {}
    places: dict[Locations, int] = {}
    outputs: dict[tuple[Output, ...], int] = {}

    def text(given: str) -> int:
        return strings.setdefault(given, len(strings))

    def where(given: Locations) -> int:
        return places.setdefault(given, len(places))

    events = [
        [
            text(e.name), text(e.kind), [text(o) for o in e.ops], where(e.locations), text(e.frame),
            e.iteration, e.begin_ns, e.end_ns, e.thread, int(e.dead), int(e.waits), e.step,
            e.nbytes, outputs.setdefault(e.outputs, len(outputs)), text(e.device), e.region,
            e.kernels,
        ]
        for e in trace.events
    ]  # fmt: skip
    messages = [
        [
            int(m.sent), text(m.peer), m.key, m.iteration, text(m.tensor), m.begin_ns, m.end_ns,
            m.nbytes, int(m.dead), m.thread, text(m.device), where(m.locations),
        ]
        for m in trace.messages
    ]  # fmt: skip
    gave = [
        [[text(o.op), where(o.locations), text(o.dtype), o.shape, o.nbytes] for o in group]
        for group in outputs
    ]
    data = {
        "task": trace.task, "handle": trace.handle, "dropped": trace.dropped,
        "times": [trace.begun_ns, trace.fed_ns, trace.done_ns], "events": events,
        "messages": messages, "outputs": gave,
        "strings": list(strings), "places": [[_plain(p) for p in group] for group in places],
    }  # fmt: skip
    text_bytes = json.dumps(data, separators=(",", ":")).encode()
    return np.frombuffer(zlib.compress(text_bytes, 1), np.uint8)


def unpack(packed: Array) -> TaskTrace:
    """What was packed. InvalidArgumentError for what is no trace, or is larger than MOST_BYTES."""
    try:
        data = _unpacked(np.ascontiguousarray(packed, np.uint8).tobytes())
        strings: list[str] = [str(s) for s in data["strings"]]
        places = [tuple(_location(p) for p in group) for group in data["places"]]
        task = str(data["task"])
        begun, fed, done = (int(t) for t in data["times"])
        gave = [tuple(_output(row, strings, places) for row in rows) for rows in data["outputs"]]
        events = tuple(_event(row, strings, places, gave) for row in data["events"])
        messages = tuple(_message(task, row, strings, places) for row in data["messages"])
        return TaskTrace(
            task, int(data["handle"]), begun, fed, done, events, messages, int(data["dropped"])
        )
    except (ValueError, TypeError, KeyError, IndexError, zlib.error) as error:
        raise InvalidArgumentError(
            f"a task sent a trace that is not well formed: {error}"
        ) from None


def _unpacked(packed: bytes) -> Any:
    stream = zlib.decompressobj()
    found = stream.decompress(packed, MOST_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut off, or larger than {MOST_BYTES} bytes")
    return json.loads(found)


def _plain(place: Location) -> list[Any]:
    return [place.file, place.line, place.column]


def _location(row: Sequence[Any]) -> Location:
    file, line, column = row
    return Location(str(file), int(line), int(column))


def _event(
    row: Sequence[Any],
    strings: list[str],
    places: list[Locations],
    gave: list[tuple[Output, ...]],
) -> TraceEvent:
    name, kind, ops, where, frame, iteration, begin, end, thread, dead, waits, step, size, *more = (
        row
    )
    outputs, device, region, kernels = more
    return TraceEvent(
        strings[name], strings[kind], tuple(strings[o] for o in ops), places[where],
        strings[frame], tuple(map(int, iteration)), int(begin), int(end), int(thread), bool(dead),
        bool(waits), int(step), int(size), gave[outputs], strings[device], int(region),
        tuple(map(int, kernels)),
    )  # fmt: skip


def _output(row: Sequence[Any], strings: list[str], places: list[Locations]) -> Output:
    op, where, dtype, shape, nbytes = row
    return Output(strings[op], places[where], strings[dtype], tuple(map(int, shape)), int(nbytes))


def _message(
    task: str, row: Sequence[Any], strings: list[str], places: list[Locations]
) -> MessageEvent:
    sent, peer, key, iteration, tensor, begin, end, size, dead, thread, device, where = row
    return MessageEvent(
        bool(sent), task, strings[peer], int(key), tuple(map(int, iteration)), strings[tensor],
        int(begin), int(end), int(size), bool(dead), int(thread), strings[device], places[where],
    )  # fmt: skip


# ------------------------------------------------------------------------------- in the session
@dataclass(frozen=True, slots=True)
class PartRun:
    """One part of a step as the session saw it and as its task recorded it. run_ns: when the
    session sent the message that had it run; answered_ns: when the answer was there."""

    run_ns: int
    answered_ns: int
    trace: TaskTrace


class StepTrace:
    """Collects the parts of one step in the session. now: the session's clock. kernels: as of
    `TraceRecorder`."""

    def __init__(self, now: Callable[[], int] = clock, *, kernels: bool = False) -> None:
        self._now, self.kernels = now, kernels
        self.begin_ns = self.end_ns = now()
        self._sent: dict[tuple[str, int], int] = {}
        self._answered: dict[tuple[str, int], int] = {}
        self.parts: list[PartRun] = []

    def recorded(self) -> Recorded:
        """All that was recorded, by one clock; nothing if the run failed."""
        from weft.runtime.trace.timeline import merge  # which reads this file's classes

        if not self.parts:
            return Recorded((), 0)
        timeline = merge(self.parts, self.begin_ns, self.end_ns)
        events = tuple(span.event for span in timeline.spans)
        return Recorded(events, timeline.dropped, timeline, timeline.kernels)

    def run_sent(self, task: str, handle: int) -> None:
        """The message that has a part run is about to be sent."""
        self._sent[task, handle] = self._now()

    def answered(self, task: str, handle: int) -> None:
        """The answer of a part is there."""
        self._answered[task, handle] = self._now()

    def add(self, task: str, handle: int, packed: Array) -> None:
        """The trace of a part, which was run and answered. Errors as `unpack`."""
        trace, who = unpack(packed), (task, handle)
        if (trace.task, trace.handle) != who:
            raise InvalidArgumentError(f"{task} sent the trace of part {trace.handle}")
        self.end_ns = self._now()
        self.parts.append(PartRun(self._sent[who], self._answered.get(who, self._now()), trace))
