"""The trace of one process as the list `traceEvents` of Chrome's format."""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime.dataflow.trace import TraceEvent
from weft.runtime.trace.perfetto import Json, event_rows, name_row

_PID = 1


def chrome_events(events: Sequence[TraceEvent], process: str) -> list[Json]:
    """Names of process and threads, then the events. Times are us from the first event on."""
    if not events:
        return []
    start = min(e.begin_ns for e in events)
    threads = {ident: k for k, ident in enumerate(dict.fromkeys(e.thread for e in events), 1)}
    named = [name_row("process_name", _PID, 0, f"weft: {process}")]
    named += [name_row("thread_name", _PID, k, f"thread {ident}") for ident, k in threads.items()]
    made = [
        row
        for i, e in enumerate(events)
        for row in event_rows(e, i, start, _PID, threads[e.thread])
    ]
    return named + sorted(made, key=lambda row: float(row["ts"]))
