"""A reader of the Trace Event Format (Google 2016, "JSON Object Format"), as strict as the
specification: what it returns is what a viewer would show."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

Track = tuple[int, int]
_EPS = 1e-6  # us: times are written as floats
#: What an event of each phase must have, and what it may have besides.
_NEEDS = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"}, "M": {"name", "pid", "args"},
    "b": {"name", "cat", "pid", "id", "ts"}, "e": {"name", "cat", "pid", "id", "ts"},
    "s": {"name", "cat", "pid", "tid", "id", "ts"}, "f": {"name", "cat", "pid", "tid", "id", "ts"},
}  # fmt: skip
_MAY = {"args", "tid", "ts", "ph", "bp"}
_METADATA = {
    "process_name": ("name", str), "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int), "thread_sort_index": ("sort_index", int),
}  # fmt: skip


@dataclass
class Slice:
    """A slice, and what is nested in it."""

    name: str
    begin: float
    end: float
    args: dict[str, Any]
    inside: list[Slice] = field(default_factory=list)


@dataclass
class Trace:
    """processes, threads: their names. slices: the outermost of each track. arrows: each from a
    slice to a slice. waits: asynchronous slices."""

    processes: dict[int, str]
    threads: dict[Track, str]
    slices: dict[Track, list[Slice]]
    arrows: list[tuple[Slice, Slice]]
    waits: list[Slice]
    other: dict[str, Any]

    def track(self, process: str, thread: str | None = None) -> list[Slice]:
        """The outermost slices of the tracks with these names."""
        return [
            s
            for (pid, tid), found in self.slices.items()
            if self.processes[pid] == process
            and (thread is None or self.threads[pid, tid] == thread)
            for s in found
        ]


def read_trace(text: str) -> Trace:
    """Read it; AssertionError for what is against the format."""

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    data = json.loads(text, parse_constant=no_constant)
    assert data["displayTimeUnit"] in ("ms", "ns")
    rows = data["traceEvents"]
    for row in rows:
        _check(row)
    names: dict[tuple[str, int, int], Any] = {}
    for row in rows:
        if row["ph"] == "M":
            key, kind = _METADATA[row["name"]]
            assert isinstance(row["args"][key], kind), row
            assert names.setdefault((row["name"], row["pid"], row["tid"]), row) is row, row
    processes = {p: r["args"]["name"] for (n, p, _), r in names.items() if n == "process_name"}
    threads = {(p, t): r["args"]["name"] for (n, p, t), r in names.items() if n == "thread_name"}
    slices = _slices(rows)
    for pid, tid in slices:
        assert pid in processes, pid
        assert (pid, tid) in threads, (pid, tid)
    arrows = _arrows(rows, slices)
    return Trace(processes, threads, slices, arrows, _waits(rows), data.get("otherData", {}))


def _check(row: dict[str, Any]) -> None:
    phase = row["ph"]
    assert phase in _NEEDS, row
    assert row.keys() >= _NEEDS[phase], row
    assert row.keys() <= _NEEDS[phase] | _MAY, row
    for key in ("ts", "dur"):
        value = row.get(key, 0)
        assert isinstance(value, (int, float)), row
        assert math.isfinite(value), row
        assert value >= 0, row
    assert all(type(row.get(key, 0)) is int for key in ("pid", "tid", "id")), row
    assert isinstance(row["name"], str)
    assert isinstance(row.get("cat", ""), str)
    assert isinstance(row.get("args", {}), dict)


def _slices(rows: list[dict[str, Any]]) -> dict[Track, list[Slice]]:
    found: dict[Track, list[Slice]] = {}
    stacks: dict[Track, list[Slice]] = {}
    complete = [r for r in rows if r["ph"] == "X"]
    for row in sorted(complete, key=lambda r: (r["ts"], -r["dur"])):
        track = row["pid"], row["tid"]
        made = Slice(row["name"], row["ts"], row["ts"] + row["dur"], row.get("args", {}))
        stack = stacks.setdefault(track, [])
        while stack and stack[-1].end <= made.begin + _EPS:
            stack.pop()
        if stack:
            assert made.end <= stack[-1].end + _EPS, f"slices cross on {track}: {made}, {stack[-1]}"
        (stack[-1].inside if stack else found.setdefault(track, [])).append(made)
        stack.append(made)
    return found


def _at(slices: list[Slice], time: float) -> Slice:
    """The innermost slice at a time."""
    around = [s for s in slices if s.begin <= time < s.end]
    assert len(around) == 1, f"an arrow ends at {time}, in {around}"
    inside = around[0].inside
    return _at(inside, time) if any(s.begin <= time < s.end for s in inside) else around[0]


def _arrows(
    rows: list[dict[str, Any]], slices: dict[Track, list[Slice]]
) -> list[tuple[Slice, Slice]]:
    ends: dict[str, dict[tuple[str, int], Any]] = {"s": {}, "f": {}}
    for row in rows:
        if row["ph"] in ends:
            assert ends[row["ph"]].setdefault((row["cat"], row["id"]), row) is row, row
            assert row["ph"] == "s" or row["bp"] == "e", row  # else it binds to the next slice
    assert ends["s"].keys() == ends["f"].keys()
    made = []
    for who, start in ends["s"].items():
        end = ends["f"][who]
        assert start["name"] == end["name"]
        assert start["ts"] <= end["ts"]
        made.append(tuple(_at(slices[r["pid"], r["tid"]], r["ts"]) for r in (start, end)))
    return made


def _waits(rows: list[dict[str, Any]]) -> list[Slice]:
    begun: dict[tuple[str, int, int], dict[str, Any]] = {}
    found = []
    for row in rows:
        who = row.get("cat", ""), row["pid"], row.get("id", 0)
        if row["ph"] == "b":
            assert begun.setdefault(who, row) is row, f"two begin as {who}"
        elif row["ph"] == "e":
            first = begun.pop(who)
            assert first["name"] == row["name"]
            found.append(Slice(row["name"], first["ts"], row["ts"], first.get("args", {})))
            assert first["ts"] <= row["ts"]
    assert not begun, "what begins does not end"
    return found
