"""Trace events in Chrome's format (Trace Event Format, Google 2016), which Perfetto reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft.runtime.dataflow.trace import TraceEvent

_PID = 1
Json = dict[str, Any]


def chrome_events(events: Sequence[TraceEvent], process: str) -> list[Json]:
    """The list `traceEvents`: names of process and threads, then the events. Times are us from the
    first event on; what waits is an asynchronous event, since others overlap it."""
    if not events:
        return []
    start = min(e.begin_ns for e in events)
    threads = {ident: k for k, ident in enumerate(dict.fromkeys(e.thread for e in events), 1)}
    named = [_name("process_name", 0, f"weft: {process}")]
    named += [_name("thread_name", k, f"thread {ident}") for ident, k in threads.items()]
    made = [j for i, e in enumerate(events) for j in _event(e, i, start, threads[e.thread])]
    return named + sorted(made, key=lambda j: float(j["ts"]))


def _name(what: str, tid: int, name: str) -> Json:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {"name": name}}


def _event(event: TraceEvent, number: int, start: int, tid: int) -> Iterator[Json]:
    args: Json = {"ops": list(event.ops), "kind": event.kind}
    if event.locations:
        args["source"] = [str(where) for where in event.locations]
    if event.nbytes:
        args["bytes"] = event.nbytes
    if event.frame:
        args["frame"], args["iteration"] = event.frame, list(event.iteration)
    if event.dead:
        args["dead"] = True
    cat = "dead" if event.dead else event.kind
    both = {"name": event.name, "cat": cat, "pid": _PID, "tid": tid}
    begin = (event.begin_ns - start) / 1e3
    end = (max(event.end_ns, event.begin_ns) - start) / 1e3
    if event.waits:
        yield {**both, "ph": "b", "id": number, "ts": begin, "args": args}
        yield {**both, "ph": "e", "id": number, "ts": end}
    else:
        yield {**both, "ph": "X", "ts": begin, "dur": end - begin, "args": args}
