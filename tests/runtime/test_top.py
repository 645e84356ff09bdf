"""What tasks count, and what `weft top` makes of two looks at them."""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.cluster import (
    edges_of,
    links_of,
    rows_of,
    size_text,
    stragglers,
    tables,
)
from weft.ir.locations import Location
from weft.runtime.recorder import TraceEvent
from weft.runtime.resources.components import Components
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.variables import VariableState
from weft.runtime.trace import counters as counting
from weft.runtime.trace.counters import Counters, resident_bytes, task_stats

PS, W0 = "/job:ps/task:0", "/job:worker/task:0"


def look(
    done: int, seconds: float, pid: int = 1, sent: int = 0, failed: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "seconds": seconds, "steps": {"begun": done + failed + 2, "done": done, "failed": failed},
        "step_seconds": done * 0.01, "edges": [[PS, "weights", done, sent]], "waits": [],
        "waiting": 0, "queues": [], "variables": [1, 4_000_000], "memory": 80_000_000,
        "rejected": {}, "pid": pid, "host": "here", "timed": 0, "ops": [], "op_seconds": 0.0,
        "gpus": [], "wait_seconds": done * 0.004, "links": {}, "exchanges": {},
        "parts": [["graph", done, done * 0.01, done * 0.004]], **more,
    }  # fmt: skip


def test_counting_from_many_threads() -> None:
    counters = Counters()

    def work() -> None:
        for i in range(500):
            counters.begun += 1
            counters.sent(PS, f"t{i % 3}", 10)
            counters.ended(0.001, i % 10 == 0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = counters.snapshot()
    assert found["steps"] == {"begun": 4000, "done": 3600, "failed": 400}
    assert found["step_seconds"] == pytest.approx(4.0)
    assert sum(row[2] for row in found["edges"]) == 4000
    assert sum(row[3] for row in found["edges"]) == 40_000
    assert {tuple(row[:2]) for row in found["edges"]} == {(PS, f"t{i}") for i in range(3)}


def test_edges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_EDGES", 3)
    counters = Counters()
    for i in range(10):
        counters.sent(PS, f"t{i}", 1)
    counters.sent(PS, "t1", 1)
    edges = counters.snapshot()["edges"]
    assert len(edges) == 4
    assert edges[1] == [PS, "t1", 2, 2]
    assert edges[3] == [counting.OTHERS, counting.OTHERS, 7, 7]


def event(
    ops: tuple[str, ...], seconds: float, line: int = 3, kind: str = "kernel", **more: Any
) -> TraceEvent:
    where = (Location("model.py", line),) if line else ()
    facts = {"dead": False, "waits": False} | more
    ended = round(seconds * 1e9)
    return TraceEvent("k", kind, ops, where, "", (), 0, ended, 1, step=0, **facts)


def test_times_of_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    assert not counters.samples()  # nobody looks
    monkeypatch.setattr(counting, "SAMPLE_SECONDS", 0.0)
    counters.watch(60)
    assert counters.samples()
    monkeypatch.setattr(counting, "SAMPLE_SECONDS", 60.0)
    assert counters.samples()
    assert not counters.samples()  # one a minute
    counters.watch(-1)
    assert not counters.samples()
    counters.timed([event(("exp",), 0.5), event(("exp",), 0.25), event(("sin",), 1, line=0)])
    counters.timed(
        [
            event(("add", "add", "constant", "mul", "exp", "sin", "cos"), 2),
            event(("dequeue",), 9, waits=True),
            event(("recv",), 9, kind="host"),
        ]
    )
    counters.timed([event(("exp",), 9, dead=True), event((), 9)])
    found = counters.snapshot()
    assert (found["timed"], found["op_seconds"]) == (3, 3.75)
    assert found["ops"] == [
        ["add+mul+exp+sin+...", "model.py:3", 1, 2.0], ["sin", "", 1, 1.0],
        ["exp", "model.py:3", 2, 0.75],
    ]  # fmt: skip
    more = {key: found[key] for key in ("timed", "ops", "op_seconds")}
    text = shown(rows_of({W0: look(5, 1.0, **more)}, {}))
    assert "add+mul+exp+sin+... model.py:3" in " ".join(text.split())
    assert " 53%" in text
    assert " 20%" in text


def test_gpus() -> None:
    rows = [["/job:localhost/task:0/gpu:1", "emulated", 1_500_000, "variables (1,500,000 bytes)"]]
    text = shown(rows_of({W0: look(5, 1.0, gpus=rows)}, {}))
    assert f"gpu:1 of {W0}, emulated: 1.5 MB, variables (1,500,000 bytes)" in text


def test_what_a_task_says() -> None:
    queue = Queue(Components((wf.float32,), ((),)), 5, "q")
    queue.enqueue([np.float32(1)])
    states = [
        VariableState("a", wf.float32, (3,), np.zeros(3, np.float32)),
        VariableState("b", wf.float32, (9,), None),
    ]
    waits = [["'x'", [i], W0, float(i), "model.py:3"] for i in range(20)]
    gpus = [("/gpu:0", "emulated", 4, "a variable")]
    held = {"q": queue, "other": object()}
    found = task_stats(Counters(), states, held, waits, {"too old": 2}, gpus)
    assert found["gpus"] == [list(gpus[0])]
    assert found["queues"] == [["q", 1, 5]]
    assert found["variables"] == [1, 12]
    assert found["waiting"] == 20
    assert [row[3] for row in found["waits"]] == [float(i) for i in range(19, 11, -1)]
    assert found["rejected"] == {"too old": 2}
    assert found["memory"] == pytest.approx(resident_bytes(), rel=0.5)
    assert resident_bytes() > 10 << 20


def test_rates_are_of_the_interval() -> None:
    (row,) = rows_of({W0: look(300, 12.0, sent=3_000)}, {W0: look(100, 10.0, sent=1_000)})
    assert (row.done, row.in_flight) == (300, 2)
    assert row.per_second == pytest.approx(100)
    assert row.step_seconds == pytest.approx(0.01)
    (edge,) = row.edges
    assert edge.bytes_per_second == pytest.approx(1_000)
    assert edge.per_second == pytest.approx(100)
    assert (edge.source, edge.target, edge.nbytes) == (W0, PS, 3_000)


@pytest.mark.parametrize("before", [{}, {W0: "lost"}, {W0: look(900, 50.0, pid=2)},
                                    {W0: look(900, 50.0)}])  # fmt: skip
def test_a_task_that_was_started_since(before: dict[str, Any]) -> None:
    """Rates of all its time, not negative ones."""
    (row,) = rows_of({W0: look(40, 4.0, sent=400)}, before)
    assert row.per_second == pytest.approx(10)
    assert row.edges[0].bytes_per_second == pytest.approx(100)


def test_no_step_in_the_interval() -> None:
    (row,) = rows_of({W0: look(5, 11.0)}, {W0: look(5, 10.0)})
    assert row.step_seconds is None
    assert row.per_second == 0


def at_work(ms: float, runs: int = 10, name: str = "graph") -> dict[str, Any]:
    """Of a task that was so long at work in each of its parts, and waited ten times as long."""
    return look(runs, 1.0, parts=[[name, runs, runs * ms * 11e-3, runs * ms * 10e-3]])


@pytest.mark.parametrize(
    ("ms", "slow"),
    [
        ([4, 4, 9], [2]),
        ([4, 4, 5.9], []),  # less than 1.5 times as long
        ([4, 4, 6.1], [2]),
        ([0.01, 0.01, 0.1], []),  # too short to tell
        ([4, 8], [1]),  # a job of two: the other one is what is usual
        ([4], []),
        ([1, 10, 10], []),  # a fast one makes none of the others slow
        ([1, 1, 9, 20], [3, 2]),
    ],
)
def test_stragglers(ms: list[float], slow: list[int]) -> None:
    now = {f"/job:worker/task:{i}": at_work(x) for i, x in enumerate(ms)}
    rows = rows_of({PS: at_work(900.0), **now}, {})  # another job's tasks are no peers
    found = stragglers(rows)
    assert [s.task for s in found] == [f"/job:worker/task:{i}" for i in slow]
    assert shown(rows).count("straggler: ") == len(slow)


def test_stragglers_are_of_the_interval_and_the_same_step() -> None:
    before = {W0: at_work(1.0), "/job:worker/task:1": at_work(90.0)}
    now = {W0: at_work(1.0, 20), "/job:worker/task:1": look(
        20, 2.0, parts=[["graph", 20, 9.9 + 0.11, 9.0 + 0.10]]
    )}  # fmt: skip
    for task in now:
        now[task]["seconds"] = 2.0
    assert stragglers(rows_of(now, before)) == []
    assert stragglers(rows_of(now, {}))[0].task == "/job:worker/task:1"
    other = {W0: at_work(1.0), "/job:worker/task:1": at_work(90.0, name="evaluation")}
    assert stragglers(rows_of(other, {})) == []


def test_how_busy_a_task_is() -> None:
    (row,) = rows_of({W0: look(300, 12.0)}, {W0: look(100, 10.0)})
    assert row.busy == pytest.approx(200 * 0.006 / 2)


def test_links() -> None:
    def link(sent: int, came: int) -> dict[str, Any]:
        return {
            "sent": sent, "sent_bytes": sent * 100, "sent_shared": sent * 50, "came": came,
            "came_bytes": came * 10, "came_shared": 0, "trips": 3, "trip_seconds": 0.003,
            "trip_buckets": [], "trip_p50": 0.001, "trip_p99": None,
        }  # fmt: skip

    before = {PS: look(0, 1.0, links={W0: link(10, 0)}, exchanges={"mesh0/x:1": link(1, 1)})}
    links = {W0: link(30, 0), "(sessions)": link(4, 8)}
    now = {PS: look(0, 3.0, links=links, exchanges={"mesh0/x:1": link(3, 2)})}
    rows = rows_of(now, before)
    out, up, mesh, down = links_of(rows, 4)
    assert (mesh.source, mesh.target, mesh.messages, mesh.per_second) == (PS, "mesh0/x:1", 3, 1)
    assert (out.source, out.target, out.messages, out.nbytes, out.shared) == (
        PS,
        W0,
        30,
        3000,
        1500,
    )
    assert (out.per_second, out.bytes_per_second) == (10, 1000)
    assert (up.source, up.target, up.per_second) == (PS, "(sessions)", 2)  # since the first look
    assert (down.source, down.target, down.nbytes) == ("(sessions)", PS, 80)
    assert "1.00 ms" in shown(rows)


def shown(rows: Any, width: int = 160, **options: Any) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(tables(rows, "tcp://h:1", **options))
    return out.getvalue()


def test_tables() -> None:
    waits = [["'loss' (f32[], key 3)", [4], PS, 12.3, "model.py:7"]]
    now = {
        PS: look(20, 2.0, queues=[["tokens", 3, 8], ["q", 1, -1]], rejected={"bad magic": 4}),
        W0: look(20, 2.0, sent=5_000_000, waits=waits, waiting=1),
        "/job:worker/task:1": "the connection was closed",
    }
    text = shown(rows_of(now, {}))
    assert "cluster of tcp://h:1: 3 tasks" in text
    assert "lost: the connection was closed" in text
    assert "queue 'tokens' on /job:ps/task:0: 3 of 8 elements" in text
    assert "queue 'q' on /job:ps/task:0: 1 elements" in text
    assert "/job:ps/task:0 refused 4 frames" in text
    assert (
        "/job:worker/task:0 has waited 12.3 s for 'loss' (f32[], key 3) in iteration [4] from "
        "/job:ps/task:0 (model.py:7)" in text
    )
    assert "2.5 MB" in text  # per second
    assert "10.00" in text  # ms a step


def test_the_busiest_edges() -> None:
    edges = [[PS, f"t{i}", 1, i * 1000] for i in range(30)]
    now = {W0: look(1, 1.0) | {"edges": edges}}
    assert [e.tensor for e in edges_of(rows_of(now, {}), 3)] == ["t29", "t28", "t27"]
    assert shown(rows_of(now, {}), most=5).count("ps:0") == 5


def test_it_fits_into_80_columns() -> None:
    rows = rows_of(
        {
            f"/job:worker/task:{i}": look(
                12_345_678, 100.0, sent=10**13, failed=12, wait_seconds=123_000.0
            )
            for i in range(12)
        },
        {f"/job:worker/task:{i}": look(0, 1.0) for i in range(12)},
    )
    text = shown(rows, width=80)
    for word in ("worker:11", "12345678", " 124704 ", "vars", "101.0 GB"):
        assert word in text, text
    assert "\u2026" not in text


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 1.5e6, 2e9, 3e12, 4e15)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB", "3.0 TB", "4,000.0 TB",
    ]  # fmt: skip
