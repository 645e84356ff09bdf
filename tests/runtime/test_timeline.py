"""Traces of several tasks as one timeline: made-up steps whose true times are known."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trace_format import read_trace

from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import Location
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.analysis import (
    busy_ns,
    critical_path,
    on_path,
    perfetto,
    report,
    straggler,
    waits_of,
)
from weft.runtime.trace.task_trace import MessageEvent, PartRun, StepTrace, TaskTrace, pack, unpack
from weft.runtime.trace.timeline import CLIENT, Timeline, merge

MS = 1_000_000
PS, W0, W1, W2 = "/job:ps/task:0", *(f"/job:worker/task:{i}" for i in range(3))
SKEW = {PS: 5 * 10**9, W0: -(3 * 10**12), W1: 77, W2: 10**15}
LATENCY = 50_000


class Script:
    """A step, written down by the true clock; each task records it by its own."""

    def __init__(self) -> None:
        self.events: dict[str, list[TraceEvent]] = {}
        self.messages: dict[str, list[MessageEvent]] = {}
        self.ends: dict[str, tuple[int, int]] = {}

    def part(self, task: str, begun: int, done: int) -> None:
        """Its RUN comes at `begun`, its answer leaves at `done`."""
        self.ends[task] = begun, done
        self.events.setdefault(task, [])
        self.messages.setdefault(task, [])

    def run(
        self, task: str, begin: int, end: int, name: str, kind: str = "plan", waits: bool = False
    ) -> None:
        skew = SKEW[task]
        where = (Location("model.py", len(self.events[task]) + 1, 3),)
        self.events[task].append(
            TraceEvent(name, kind, (name,), where, "", (), begin + skew, end + skew, 7, False,
                       waits, 0, 64)
        )  # fmt: skip

    def send(
        self, source: str, target: str, key: int, at: int, asked: int, size: int = 4_000_000,
        iteration: tuple[int, ...] = (), took: int = LATENCY,
    ) -> int:  # fmt: skip
        """Sent at `at`, waited for since `asked`: when it came."""
        came = max(at + took, asked + 1_000)
        name, where = f"tensor {key}", (Location("model.py", 100 + key, 0),)

        def end(sent: bool, task: str, peer: str, begin: int, until: int) -> None:
            skew = SKEW[task]
            self.messages[task].append(
                MessageEvent(sent, task, peer, key, iteration, name, begin + skew, until + skew,
                             size, False, 7, f"{task}/cpu:0", where)
            )  # fmt: skip
            kind = "send" if sent else "recv"
            self.run(task, begin, until, kind, "host", True)  # as the executor records it, too

        end(True, source, target, at, at + 10_000)
        end(False, target, source, asked, came)
        return came

    def runs(self) -> list[PartRun]:
        return [
            PartRun(
                begun - LATENCY,
                done + LATENCY,
                TaskTrace(task, k, begun + SKEW[task], begun + SKEW[task] + 1_000,
                          done + SKEW[task], tuple(self.events[task]), tuple(self.messages[task])),
            )
            for k, (task, (begun, done)) in enumerate(self.ends.items())
        ]  # fmt: skip

    def timeline(self) -> Timeline:
        begin = min(run.run_ns for run in self.runs()) - 100_000
        return merge(self.runs(), begin, max(run.answered_ns for run in self.runs()) + 20_000)


def two_workers(slow: int = 30 * MS) -> Script:
    """ps sends weights to each worker, which compute gradients (worker 1 for `slow`); ps waits for
    these, and updates for 2 ms."""
    s = Script()
    for task in (PS, W0, W1):
        s.part(task, 1 * MS, 1 * MS)
    s.run(PS, 1 * MS + 10_000, 2 * MS, "read")
    came = [s.send(PS, w, k, 2 * MS, 1 * MS + 5_000) for k, w in enumerate((W0, W1), 1)]
    ends = []
    for k, (w, begin, long) in enumerate(zip((W0, W1), came, (10 * MS, slow), strict=True), 3):
        s.run(w, begin + 2_000, begin + long, f"gradient of {w}")
        ends.append(s.send(w, PS, k, begin + long, 2 * MS + 20_000))
        s.ends[w] = 1 * MS, begin + long + 20_000
    s.run(PS, max(ends) + 3_000, max(ends) + 2 * MS, "update")
    s.ends[PS] = 1 * MS, max(ends) + 2 * MS + 4_000
    return s


def test_all_is_by_the_clock_of_the_session() -> None:
    script = two_workers()
    line = script.timeline()
    assert line.tasks == (PS, W0, W1)
    for task in line.tasks:
        clock = line.clocks[task]
        assert clock.uncertain_ns is not None
        assert clock.uncertain_ns <= LATENCY
        assert abs(clock.offset_ns - SKEW[task]) <= clock.uncertain_ns + 1
    update = next(s.event for s in line.spans if s.event.name == "update")
    true = next(e for e in script.events[PS] if e.name == "update").begin_ns - SKEW[PS]
    assert abs(update.begin_ns - true) <= LATENCY
    # host events of sends and waits are not there twice, and each tensor has both ends
    assert {s.event.name for s in line.spans} == {
        "read", "update", f"gradient of {W0}", f"gradient of {W1}"
    }  # fmt: skip
    assert len(line.transfers) == 4
    for t in line.transfers:
        assert t.sent is not None
        assert t.received is not None
        assert t.received.end_ns >= t.sent.begin_ns


def test_the_critical_path_goes_through_the_slow_worker() -> None:
    line = two_workers().timeline()
    path = critical_path(line)
    # without gaps, from begin to end
    assert path[0].begin_ns == line.begin_ns
    assert path[-1].end_ns == line.end_ns
    for one, other in itertools.pairwise(path):
        assert one.end_ns == other.begin_ns
    runs = [(s.task, s.name) for s in path if s.kind == "run"]
    assert runs == [(PS, "read"), (W1, f"gradient of {W1}"), (PS, "update")]
    moves = [(s.task, s.peer) for s in path if s.kind == "transfer"]
    assert moves == [(CLIENT, PS), (PS, W1), (W1, PS), (PS, CLIENT)]
    assert on_path(path)[W1] == 30 * MS - 2_000
    assert next(s for s in path if s.name.startswith("gradient")).locations[0].file == "model.py"
    idle = sum(s.ns for s in path if s.kind == "idle")
    assert idle < MS


def test_the_straggler_is_named() -> None:
    line = two_workers().timeline()
    found = straggler(line, critical_path(line))
    assert found is not None
    assert found.task == W1
    assert found.times == pytest.approx(3.0, rel=0.01)
    assert busy_ns(line, W0) == 10 * MS - 2_000
    even = two_workers(11 * MS).timeline()
    assert straggler(even, critical_path(even)) is None


def test_waits_are_those_of_the_receivers() -> None:
    line = two_workers().timeline()
    ns, late, count = waits_of(line)[PS, W1]
    assert count == 1
    assert ns == pytest.approx(30 * MS, rel=0.01)
    assert late == pytest.approx(ns - LATENCY, abs=2 * LATENCY)
    assert waits_of(line)[W0, PS][2] == 1


def test_a_tensor_that_came_before_it_was_asked_for_is_no_reason() -> None:
    """The receiver computed meanwhile: the path stays with it."""
    s = Script()
    for task in (PS, W0):
        s.part(task, 1 * MS, 1 * MS)
    s.run(PS, 1 * MS, 2 * MS, "read")
    s.run(W0, 1 * MS, 20 * MS, "prepare")
    came = s.send(PS, W0, 1, 2 * MS, 20 * MS + 1_000)
    s.run(W0, came + 1_000, 22 * MS, "use")
    s.ends = {PS: (1 * MS, 3 * MS), W0: (1 * MS, 22 * MS)}
    names = [x.name for x in critical_path(s.timeline()) if x.kind == "run"]
    assert names == ["prepare", "use"]


def test_loops_have_a_message_for_each_iteration() -> None:
    s = Script()
    for task in (PS, W0):
        s.part(task, 1 * MS, 1 * MS)
    at = 1 * MS
    for i in range(5):
        came = s.send(PS, W0, 1, at + MS, at, 8, (i,))
        s.run(W0, came, came + MS, f"body {i}")
        at = s.send(W0, PS, 2, came + MS, came - 10_000, 8, (i,))
        s.run(PS, at, at + MS, f"next {i}")
    s.ends = {PS: (1 * MS, at + MS), W0: (1 * MS, at)}
    line = s.timeline()
    assert len(line.transfers) == 10
    names = [x.name for x in critical_path(line) if x.kind == "run"]
    assert names == [f"{what} {i}" for i in range(5) for what in ("body", "next")]
    assert "in iteration [3]" in " ".join(x.name for x in critical_path(line))


def test_perfetto_json() -> None:
    line = two_workers().timeline()
    trace = read_trace(perfetto([line], {"graph": "g"}))
    assert trace.other["graph"] == "g"
    assert set(trace.other["clocks"]) == {PS, W0, W1}
    assert list(trace.processes.values()) == ["critical path", "session", PS, W0, W1]
    assert len(trace.arrows) == 4
    for sent, came in trace.arrows:
        assert (sent.name[:4], came.name[:4]) == ("send", "recv")
        assert came.end >= sent.begin
        assert {"tensor", "key", "from", "to", "bytes", "source"} <= set(came.args)
    waits = [s for task in (PS, W0, W1) for s in trace.track(task, "waits for tensors")]
    assert sorted(s.name for s in waits) == sorted(came.name for _, came in trace.arrows)


def test_several_steps_are_one_trace() -> None:
    """Two that follow each other, and one that overlaps them, with tasks of its own."""
    steps = [two_workers().timeline() for _ in range(3)]
    long = steps[0].end_ns - steps[0].begin_ns
    moved = [_later(step, by) for step, by in zip(steps, (0, long + MS, long // 2), strict=True)]
    trace = read_trace(perfetto(moved))
    rows = trace.track("session", "steps")
    assert sorted(s.name for s in rows) == ["step 1", "step 2", "step 3"]
    assert [round((s.end - s.begin) * 1e3) for s in rows] == [long] * 3
    assert len(trace.arrows) == 12
    assert len(trace.track("critical path")) == 3 * len(critical_path(steps[0]))
    with pytest.raises(InvalidArgumentError, match="no step"):
        perfetto([])


def _later(line: Timeline, by: int) -> Timeline:
    """The same step at another time, on threads of its own."""

    def shift(event: Any, *times: str) -> Any:
        changed = {t: getattr(event, t) + by for t in times}
        return replace(event, **changed, **({"thread": by} if hasattr(event, "thread") else {}))

    both, ends = ("begin_ns", "end_ns"), ("sent", "received")
    return replace(
        shift(line, *both),
        parts=tuple(
            shift(p, "run_ns", "begun_ns", "fed_ns", "done_ns", "answered_ns") for p in line.parts
        ),
        spans=tuple(replace(s, event=shift(s.event, *both)) for s in line.spans),
        transfers=tuple(
            replace(t, **{e: shift(getattr(t, e), *both) for e in ends if getattr(t, e)})
            for t in line.transfers
        ),
    )


def test_waits_at_once_are_on_tracks_of_their_own() -> None:
    s = Script()
    for task in (PS, W0):
        s.part(task, 1 * MS, 9 * MS)
    for key in range(6):
        s.send(PS, W0, key, 2 * MS + key * 1000, 1 * MS + key * 500)
    rows = json.loads(perfetto([s.timeline()]))["traceEvents"]
    tracks = [r["tid"] for r in rows if r["ph"] == "X" and r["name"].startswith("recv")]
    assert len(set(tracks)) == 6


def test_report() -> None:
    text = report(two_workers().timeline())
    assert f"straggler: {W1} is at work for" in text
    assert "3.0 times as long as its peers" in text
    assert f"{PS} for {W1}: 1 tensors" in text
    assert f"     4,000,000  {W1} -> {PS}: 'tensor 4', 1 times" in text
    assert f"gradient of {W1} at model.py:" in text
    assert "us (+-" in text
    first = text.splitlines()[0]
    assert first.startswith("step on 3 tasks, 3 parts:")


def test_a_step_that_failed_half_way() -> None:
    """A tensor that was sent and never received, one that was never sent, a task without events."""
    s = two_workers()
    s.messages[PS] = [m for m in s.messages[PS] if m.sent or m.peer != W1]
    s.messages[W0] = [m for m in s.messages[W0] if not m.sent]
    s.part(W2, 1 * MS, 1 * MS)
    line = s.timeline()
    assert sum(t.received is None for t in line.transfers) == 1
    assert sum(t.sent is None for t in line.transfers) == 1
    path = critical_path(line)
    assert path[0].begin_ns == line.begin_ns
    json.loads(perfetto([line]))
    assert "critical path" in report(line)
    with pytest.raises(InvalidArgumentError, match="no task recorded"):
        merge([], 0, 1)


# ------------------------------------------------------------------------------------ on the wire
def test_pack_and_unpack() -> None:
    for run in two_workers().runs():
        packed = pack(run.trace)
        assert packed.dtype == np.uint8
        assert unpack(packed) == run.trace


def test_what_is_no_trace() -> None:
    whole = pack(two_workers().runs()[0].trace)
    rng = random.Random(6)
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InvalidArgumentError, match="not well formed"):
            unpack(whole[:size])
    for _ in range(300):
        bad = whole.copy()
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(InvalidArgumentError):
            unpack(bad)
    for data in ([], {"task": 1}, {"task": "a", "events": [[1]]}, "text"):
        with pytest.raises(InvalidArgumentError):
            unpack(_packed(data))


def test_a_packed_trace_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.trace import task_trace

    monkeypatch.setattr(task_trace, "MOST_BYTES", 1 << 20)
    with pytest.raises(InvalidArgumentError, match="larger than"):
        unpack(_packed("x" * (1 << 21)))


def _packed(data: Any) -> np.ndarray[Any, Any]:
    import zlib

    return np.frombuffer(zlib.compress(json.dumps(data).encode()), np.uint8)


def test_the_session_collects_parts() -> None:
    times = iter(range(0, 1000, 10))
    step = StepTrace(lambda: next(times))
    run = two_workers().runs()[0]
    step.run_sent(PS, 0)
    step.answered(PS, 0)
    step.add(PS, 0, pack(run.trace))
    assert step.parts == [PartRun(10, 20, run.trace)]
    with pytest.raises(InvalidArgumentError, match="part 0"):
        step.add(W0, 0, pack(run.trace))
