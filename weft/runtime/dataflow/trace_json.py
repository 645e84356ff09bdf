"""Trace events in Chrome's format (Trace Event Format, Google 2016), which Perfetto reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.runtime.dataflow.trace import TraceEvent

Json = dict[str, Any]


def name_row(what: str, pid: int, tid: int, name: str) -> Json:
    """The name of a process (what="process_name") or of a thread ("thread_name")."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def event_rows(event: TraceEvent, number: int, start_ns: int, pid: int, tid: int) -> Iterator[Json]:
    """One event; times in us from `start_ns` on. What waits is an asynchronous event with the
    identity `number`, since others overlap it."""
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
    both = {"name": event.name, "cat": cat, "pid": pid, "tid": tid}
    begin = (event.begin_ns - start_ns) / 1e3
    end = (max(event.end_ns, event.begin_ns) - start_ns) / 1e3
    if event.waits:
        yield {**both, "ph": "b", "id": number, "ts": begin, "args": args}
        yield {**both, "ph": "e", "id": number, "ts": end}
    else:
        yield {**both, "ph": "X", "ts": begin, "dur": end - begin, "args": args}
