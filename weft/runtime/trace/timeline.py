"""`Timeline`: one step on many tasks, what each task recorded merged by one clock; and the clocks
of the tasks, aligned by the messages between them.

A message never arrives before it was sent. With offset o = (b's clock) - (a's clock) a message from
a to b, sent at s and received at r, each by the clock of its task, says o <= r - s; one from b to a
says o >= s - r. Two such bounds hold the offset between them: half their distance is what it may be
wrong by (NTP, RFC 5905, takes the pair with the shortest round trip). All bounds between all tasks
together are a system of difference constraints: shortest paths make each as tight as it can be
(Cormen et al., Introduction to Algorithms, 4th ed., 22.4). A drift is a line that has all bounds of
one direction above it and those of the other below (Duda et al., Estimating Global Time in
Distributed Systems, 1987)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.task_trace import MessageEvent, PartRun

Array = np.ndarray[Any, Any]

#: No clock of a computer runs faster or slower by more (RFC 5905: 500 parts per million; each).
MOST_DRIFT = 1e-3
#: Bounds are joined up to this many for each pair of tasks: the tightest of each stretch of time.
_MOST_BOUNDS = 512


@dataclass(frozen=True, slots=True)
class Sighting:
    """A message that one task sent and another received: times in ns by the clock of each."""

    sender: str
    receiver: str
    sent_ns: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class Clock:
    """The difference of a task's clock from the reference's.

    Its time t is the reference's (t - offset_ns) - drift * (t - origin_ns). uncertain_ns: by how
    much that may be wrong; None: no messages bound it, and nothing is known. violated_ns: by how
    much the times contradict each other, if a clock did not run evenly.
    """

    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0
    uncertain_ns: int | None = 0
    violated_ns: int = 0

    def reference(self, ns: int) -> int:
        """A time of this clock by the reference's."""
        if not self.drift:
            return ns - self.offset_ns
        return ns - self.offset_ns - round(self.drift * (ns - self.origin_ns))

    def describe(self) -> str:
        """`+12.3 us (+- 4.0), 15 ppm`."""
        if self.uncertain_ns is None:
            return "unknown: no messages in both directions"
        text = f"{self.offset_ns / 1e3:+,.1f} us (+- {self.uncertain_ns / 1e3:,.1f})"
        if self.drift:
            text += f", {self.drift * 1e6:+.1f} ppm"
        if self.violated_ns:
            text += f", uneven by {self.violated_ns / 1e3:,.1f} us"
        return text


def align(sightings: Iterable[Sighting], tasks: Sequence[str], reference: str) -> dict[str, Clock]:
    """A clock for each of `tasks`, `reference` among them.

    A drift is assumed only where without one some message would arrive before it was sent. Where
    messages went one way only, the fastest of them is taken to have needed no time.
    """
    pairs = _pairs(sightings)
    drifts: dict[str, tuple[float, int]] = {}
    for task in tasks:
        ahead, back = pairs.get((reference, task)), pairs.get((task, reference))
        if task != reference and ahead is not None and back is not None:
            drifts[task] = _drift(ahead, back)
    bounds = _bounds(pairs, tasks, drifts)
    violated = _relax(bounds)
    return _clocks(bounds, tasks, reference, drifts, violated)


def _pairs(sightings: Iterable[Sighting]) -> Mapping[tuple[str, str], Array]:
    """Rows (sent, received) of the messages from one task to another, the tightest of each time."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for s in sightings:
        if s.sender != s.receiver:
            found.setdefault((s.sender, s.receiver), []).append((s.sent_ns, s.received_ns))
    return {key: _tightest(np.array(rows, np.int64)) for key, rows in found.items()}


def _tightest(rows: Array) -> Array:
    if len(rows) <= _MOST_BOUNDS:
        return rows
    rows = rows[np.argsort(rows[:, 0])]
    parts = np.array_split(rows, _MOST_BOUNDS)
    return np.array([p[np.argmin(p[:, 1] - p[:, 0])] for p in parts])


def _drift(ahead: Array, back: Array) -> tuple[float, int]:
    """How fast a task's clock goes ahead of the reference's, and from what time of its own on it is
    counted. ahead: messages from the reference to the task; back: the other way.

    For a drift d the bounds hold if the least of (r - s) - d r over `ahead` is not below the
    greatest of (s - r) - d s over `back`; what is between them is concave in d.
    """
    origin = int(ahead[0, 1])
    above_at, above = (ahead[:, 1] - origin).astype(float), (ahead[:, 1] - ahead[:, 0])
    below_at, below = (back[:, 0] - origin).astype(float), (back[:, 0] - back[:, 1])
    base = int(above.min())  # offsets may be of centuries: floats only for what is beyond
    high, low = (above - base).astype(float), (below - base).astype(float)

    def room(drift: float) -> float:
        return float((high - drift * above_at).min() - (low - drift * below_at).max())

    if room(0.0) >= 0:
        return 0.0, origin
    best = _highest(room)
    if room(best) <= 0:
        return best, origin
    ends = [_edge(room, best, limit) for limit in (-MOST_DRIFT, MOST_DRIFT)]
    return sum(ends) / 2, origin


def _highest(room: Any) -> float:
    """Where a concave function is highest between -MOST_DRIFT and MOST_DRIFT."""
    low, high = -MOST_DRIFT, MOST_DRIFT
    for _ in range(100):
        third = (high - low) / 3
        if room(low + third) < room(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _edge(room: Any, inside: float, limit: float) -> float:
    """How far from `inside` towards `limit` there is room."""
    if room(limit) >= 0:
        return limit
    for _ in range(100):
        middle = (inside + limit) / 2
        if room(middle) >= 0:
            inside = middle
        else:
            limit = middle
    return inside


def _bounds(
    pairs: Mapping[tuple[str, str], Array],
    tasks: Sequence[str],
    drifts: Mapping[str, tuple[float, int]],
) -> Array:
    """bounds[i, j]: offset of task j less that of task i is at most so much, in ns (float)."""
    number = {task: i for i, task in enumerate(tasks)}
    bounds = np.full((len(tasks), len(tasks)), np.inf)
    np.fill_diagonal(bounds, 0.0)

    def even(task: str, times: Array) -> Array:
        drift, origin = drifts.get(task, (0.0, 0))
        return times - np.rint(drift * (times - origin)).astype(np.int64)

    for (sender, receiver), rows in pairs.items():
        if sender in number and receiver in number:
            least = int((even(receiver, rows[:, 1]) - even(sender, rows[:, 0])).min())
            bounds[number[sender], number[receiver]] = least
    return bounds


def _relax(bounds: Array) -> float:
    """Make every bound as tight as the others say. Where they contradict each other all are
    loosened by as little as will do: by how much."""
    loosened = max(0.0, -_least_mean(bounds))
    if loosened:
        loosened += 1.0
        bounds += loosened
        np.fill_diagonal(bounds, 0.0)
    for k in range(len(bounds)):
        np.minimum(bounds, bounds[:, k : k + 1] + bounds[k : k + 1, :], out=bounds)
    return loosened


def _least_mean(bounds: Array) -> float:
    """The least mean of the bounds along a cycle, 0 at most: below 0 they contradict each other
    (Karp, A Characterization of the Minimum Cycle Mean in a Digraph, 1978)."""
    count = len(bounds)
    walks = np.zeros((count + 1, count))  # the shortest of k steps that end here
    for k in range(count):
        walks[k + 1] = (walks[k][:, None] + bounds).min(axis=0)
    steps = np.arange(count, 0, -1)[:, None]
    return float(((walks[count] - walks[:count]) / steps).max(axis=0).min())


def _clocks(
    bounds: Array,
    tasks: Sequence[str],
    reference: str,
    drifts: Mapping[str, tuple[float, int]],
    violated: float,
) -> dict[str, Clock]:
    """Offsets that hold all bounds at once: each in the middle of what those before it leave."""
    made: dict[str, Clock] = {}
    here = tasks.index(reference)
    fixed: list[tuple[int, float]] = [(here, 0.0)]
    first = [i for i in range(len(tasks)) if i != here]
    # the best known first: what is little known fits itself to them
    first.sort(key=lambda i: float(bounds[here, i] + bounds[i, here]))
    for i in first:
        high = min(at + bounds[k, i] for k, at in fixed)
        low = max(at - bounds[i, k] for k, at in fixed)
        wrong: int | None = None
        if np.isfinite(high) and np.isfinite(low):
            at = (high + low) / 2
            # it may be anywhere within its own bounds; `at` is their middle only if no other
            # task, which may be wrong itself, has moved it
            wrong = math.ceil(max(bounds[here, i] - at, at + bounds[i, here]))
        elif np.isfinite(high) or np.isfinite(low):
            at = high if np.isfinite(high) else low
        else:
            at = 0.0
        fixed.append((i, at))
        drift, origin = drifts.get(tasks[i], (0.0, 0))
        made[tasks[i]] = Clock(round(at), drift, origin, wrong, round(violated))
    made[reference] = Clock()
    return made


#: Before the numbers of iterations in the name of a tensor's way.
IN_ITERATION = " in iteration "
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
        inside = f"{IN_ITERATION}{list(self.event.iteration)}" if self.event.iteration else ""
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
    were not kept. kernels: those that ran in compiled regions, each of which is one of `spans`. The
    session's own name is `CLIENT`."""

    tasks: tuple[str, ...]
    clocks: dict[str, Clock]
    parts: tuple[PartSpan, ...]
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    begin_ns: int
    end_ns: int
    dropped: int = 0
    kernels: tuple[TraceEvent, ...] = ()


def merge(runs: Sequence[PartRun], begin_ns: int, end_ns: int) -> Timeline:
    """The timeline of a step that lasted from `begin_ns` to `end_ns` by the session's clock.

    The clocks are aligned by the step's messages: those that had its parts run, the answers, and
    the tensors (`align`). InvalidArgumentError if there is no part.
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
    timed = [
        Span(run.trace.task, _by(clocks[run.trace.task], event))
        for run in runs
        for event in run.trace.events
        if not is_communication(event)
    ]
    spans = [s for s in timed if not s.event.region]
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
        tuple(s.event for s in timed if s.event.region),
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
        sum(step.dropped for step in steps), tuple(e for step in steps for e in step.kernels),
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


def is_communication(event: TraceEvent) -> bool:
    """Whether a message's own events say what this one does."""
    return event.kind == "host" and event.ops in (("send",), ("recv",))


def _by(clock: Clock, e: TraceEvent) -> TraceEvent:
    begin, end = clock.reference(e.begin_ns), clock.reference(e.end_ns)
    return TraceEvent(  # a third of the time of `replace`, and there are many
        e.name, e.kind, e.ops, e.locations, e.frame, e.iteration, begin, max(begin, end), e.thread,
        e.dead, e.waits, e.step, e.nbytes, e.outputs, e.device, e.region, e.kernels,
    )  # fmt: skip


def _message_by(clock: Clock, event: MessageEvent) -> MessageEvent:
    begin, end = clock.reference(event.begin_ns), clock.reference(event.end_ns)
    return replace(event, begin_ns=begin, end_ns=max(begin, end))
