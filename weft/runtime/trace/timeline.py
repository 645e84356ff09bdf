"""`Timeline`: one step on many tasks, what each task recorded merged by one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.clocks import Clock, Sighting, align
from weft.runtime.trace.task_trace import MessageEvent, PartRun

#: The session, whose clock is the timeline's.
CLIENT = "/client"


@dataclass(frozen=True, slots=True)
class Span:
    """An event of a task; its times are by the session's clock."""

    task: str
    event: TraceEvent


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor's way. An end is None if its task did not record it, as the step failed. Times are
    by the session's clock."""

    source: str
    target: str
    sent: MessageEvent | None
    received: MessageEvent | None

    @property
    def event(self) -> MessageEvent:
        """The end that there is, the sending one first."""
        found = self.sent or self.received
        assert found is not None
        return found

    @property
    def late_ns(self) -> int:
        """How much of the time for which somebody waited had passed before it was sent."""
        if self.received is None or self.sent is None:
            return 0
        until = min(self.sent.begin_ns, self.received.end_ns)
        return max(0, until - self.received.begin_ns)

    def __str__(self) -> str:
        inside = f" in iteration {list(self.event.iteration)}" if self.event.iteration else ""
        return f"{self.event.tensor!r} (key {self.event.key}){inside}"


@dataclass(frozen=True, slots=True)
class PartSpan:
    """One part of the step, by the session's clock: when the session sent RUN, when that came, when
    all that it is fed was there, when the part was done, and when the session knew."""

    task: str
    handle: int
    run_ns: int
    begun_ns: int
    fed_ns: int
    done_ns: int
    answered_ns: int


@dataclass(frozen=True)
class Timeline:
    """A step. clocks: of each task, how its clock differs from the session's. dropped: events that
    were not kept. The session's own name is `CLIENT`."""

    tasks: tuple[str, ...]
    clocks: dict[str, Clock]
    parts: tuple[PartSpan, ...]
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    begin_ns: int
    end_ns: int
    dropped: int = 0


def merge(runs: Sequence[PartRun], begin_ns: int, end_ns: int) -> Timeline:
    """The timeline of a step that lasted from `begin_ns` to `end_ns` by the session's clock.

    The clocks are aligned by the step's messages: those that had its parts run, the answers, and
    the tensors (`clocks.align`). InvalidArgumentError if there is no part.
    """
    if not runs:
        raise InvalidArgumentError("no task recorded anything of this step")
    tasks = tuple(sorted({run.trace.task for run in runs}))
    ends = [m for run in runs for m in run.trace.messages]
    paired = _paired(ends)
    clocks = align(_sightings(runs, paired), (CLIENT, *tasks), CLIENT)
    parts = [
        PartSpan(
            run.trace.task, run.trace.handle, run.run_ns,
            clocks[run.trace.task].reference(run.trace.begun_ns),
            clocks[run.trace.task].reference(run.trace.fed_ns),
            clocks[run.trace.task].reference(run.trace.done_ns), run.answered_ns,
        )
        for run in runs
    ]  # fmt: skip
    spans = [
        Span(run.trace.task, _by(clocks[run.trace.task], event))
        for run in runs
        for event in run.trace.events
        if not _is_communication(event)
    ]
    transfers = [
        Transfer(
            source, target,
            None if sent is None else _message_by(clocks[source], sent),
            None if received is None else _message_by(clocks[target], received),
        )
        for source, target, sent, received in paired
    ]  # fmt: skip
    return Timeline(
        tasks, clocks, tuple(parts),
        tuple(sorted(spans, key=lambda s: s.event.begin_ns)),
        tuple(sorted(transfers, key=lambda t: t.event.begin_ns)),
        begin_ns, end_ns, sum(run.trace.dropped for run in runs),
    )  # fmt: skip


def joined(steps: Sequence[Timeline]) -> Timeline:
    """Several steps of one session as one timeline. InvalidArgumentError for none."""
    if not steps:
        raise InvalidArgumentError("there is no step to show")
    return Timeline(
        tuple(sorted({task for step in steps for task in step.tasks})),
        {task: clock for step in steps for task, clock in step.clocks.items()},
        tuple(part for step in steps for part in step.parts),
        tuple(sorted((s for t in steps for s in t.spans), key=lambda s: s.event.begin_ns)),
        tuple(sorted((s for t in steps for s in t.transfers), key=lambda s: s.event.begin_ns)),
        min(step.begin_ns for step in steps), max(step.end_ns for step in steps),
        sum(step.dropped for step in steps),
    )  # fmt: skip


_Pair = tuple[str, str, MessageEvent | None, MessageEvent | None]


def _paired(ends: Sequence[MessageEvent]) -> list[_Pair]:
    """(source, target, sent, received) of each message; one whose other end's task recorded nothing
    is left out if that is no task of the step."""
    sent = {(m.task, m.peer, m.key, m.iteration): m for m in ends if m.sent}
    came = {(m.peer, m.task, m.key, m.iteration): m for m in ends if not m.sent}
    known = {m.task for m in ends}
    return [
        (who[0], who[1], sent.get(who), came.get(who))
        for who in dict.fromkeys([*sent, *came])
        if who[0] in known and who[1] in known
    ]


def _sightings(runs: Sequence[PartRun], paired: Sequence[_Pair]) -> list[Sighting]:
    found = []
    for run in runs:
        trace = run.trace
        found.append(Sighting(CLIENT, trace.task, run.run_ns, trace.begun_ns))
        found.append(Sighting(trace.task, CLIENT, trace.done_ns, run.answered_ns))
    for source, target, sent, received in paired:
        if sent is not None and received is not None:
            found.append(Sighting(source, target, sent.begin_ns, received.end_ns))
    return found


def _is_communication(event: TraceEvent) -> bool:
    """Whether a message's own events say what this one does."""
    return event.kind == "host" and event.ops in (("send",), ("recv",))


def _by(clock: Clock, e: TraceEvent) -> TraceEvent:
    begin, end = clock.reference(e.begin_ns), clock.reference(e.end_ns)
    return TraceEvent(  # a third of the time of `replace`, and there are many
        e.name, e.kind, e.ops, e.locations, e.frame, e.iteration, begin, max(begin, end), e.thread,
        e.dead, e.waits, e.step, e.nbytes,
    )  # fmt: skip


def _message_by(clock: Clock, event: MessageEvent) -> MessageEvent:
    begin, end = clock.reference(event.begin_ns), clock.reference(event.end_ns)
    return replace(event, begin_ns=begin, end_ns=max(begin, end))
