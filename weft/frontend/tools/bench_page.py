"""The page of a history of benchmarks: charts over its commits, and the comparison of each two of
the last, with what each says (`bench_compare`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from weft.frontend.tools.bench_compare import Comparison, cells, compare, lines_below
from weft.frontend.tools.bench_history import History, Machine, Side, sides_of
from weft.frontend.tools.bench_workloads import PEERS
from weft.frontend.viewer.chart import Chart, Point, Series
from weft.frontend.viewer.history import HistoryPage, PairFacts, RowFacts, SideFacts
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.runtime.trace.noise import CONFIDENCE, THRESHOLD, Verdict

#: Commits that a page has in its charts; and how many, each on each machine, can be chosen: all
#: pairs of them are on it.
MOST_SHOWN, MOST_CHOSEN = 100, 24


def history_page(
    history: History, threshold: float = THRESHOLD, chosen: tuple[Side, Side] | None = None
) -> HistoryPage:
    """The page of a history: charts over its runs, and the comparisons of each two of the last.
    chosen: those that it shows first, by themselves the last two on the last one's machine."""
    known = {Path(run.path).resolve() for run in history.runs}
    more = [run for side in chosen or () for run in side.runs]
    beside = {Path(run.path).resolve(): run for run in more}
    added = [run for path, run in beside.items() if path not in known]
    sides = sides_of([*history.runs, *added])
    if not sides:
        raise NotFoundError(f"the history {history.place} has no runs")
    labels = list(dict.fromkeys(side.label for side in sides))
    shown = [side for side in sides if side.label in labels[-MOST_SHOWN:]]
    last, own = _choices(sides, chosen or ())
    first = _last_two(last)
    if chosen is not None:
        files = [side.files for side in last]
        first = (files.index(chosen[0].files), files.index(chosen[1].files))
    pairs = {}
    for (i, a), (j, b) in combinations(enumerate(last), 2):
        try:
            pairs[i, j] = _pair(compare(a, b, threshold))
        except InvalidArgumentError:
            continue  # nothing in common
    count = len(history.runs) or len(added)
    days = [f"{side.last.date:%Y-%m-%d}" for side in sides]
    told = f"{count} run{'s' * (count != 1)}, {min(days)} to {max(days)}"
    if len(labels) > MOST_SHOWN:
        told += f"; the charts show the last {MOST_SHOWN} of {len(labels)} commits"
    if history.note:
        told += f"; {history.note}"
    return HistoryPage(
        f"benchmarks of {Path(history.place).name}", told,
        [_side_facts(side, side in own) for side in last], _charts(shown, threshold), pairs, first,
    )  # fmt: skip


def _choices(sides: Sequence[Side], chosen: Sequence[Side]) -> tuple[list[Side], list[Side]]:
    """What can be chosen, the oldest first: the last sides, and `chosen`; and those of the latter
    that are a part of a side, such as one file of a commit that has several."""
    whole = {side.files for side in sides}
    wanted = {side.files for side in chosen}
    own = [side for side in chosen if side.files not in whole]
    parts = {file for side in own for file in side.files}
    last = [side for side in sides[-MOST_CHOSEN:] if not set(side.files) <= parts]
    last += [side for side in sides[:-MOST_CHOSEN] if side.files in wanted]
    return sorted([*last, *own], key=lambda side: side.runs[0].date), own


def _last_two(sides: Sequence[Side]) -> tuple[int, int]:
    end = len(sides) - 1
    same = [i for i in range(end) if sides[i].machine == sides[end].machine]
    return (same[-1] if same else max(0, end - 1)), end


def _side_facts(side: Side, is_part: bool) -> SideFacts:
    """is_part: not all runs of a commit, so the file is told, too."""
    run = side.last
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    label = f"{side.label}, {Path(run.path).name}" if is_part else side.label
    return SideFacts(
        label, f"{run.date:%Y-%m-%d %H:%M}", str(side.machine), len(side.runs),
        len(side.workloads), versions,
    )  # fmt: skip


def _pair(found: Comparison) -> PairFacts:
    rows = []
    for change in found.changes:
        old, new, time, control = cells(change, found.across)
        back = "-" if change.time is None else change.time.inverse.text()
        peer = "" if change.control is None else f"{change.peer} {change.control.inverse.text()}"
        note = change.note
        rows.append(
            RowFacts(
                change.workload, old, new, (time, back), (control, peer), str(change.verdict), note
            )
        )
    below = [lines_below(found), lines_below(replace(found, notes=found.notes_back))]
    notes = [(a[2:], b[2:]) for a, b in zip(*(lines[:-1] for lines in below), strict=True)]
    return PairFacts(rows, notes, found.across, f"{100 * CONFIDENCE:g} %", found.percent)


def _charts(sides: Sequence[Side], threshold: float) -> list[tuple[str, list[Chart]]]:
    """Of each workload its times, and where a peer was timed how many times as long that takes."""
    labels = list(dict.fromkeys(side.label for side in sides))
    machines = list(dict.fromkeys(side.machine for side in sides))
    marks = _marks(sides, machines, threshold)
    made = []
    for name in dict.fromkeys(n for side in sides for n in side.workloads):
        peer = next(
            (p for p in PEERS if any(r.relative(p) for s in sides for r in s.rows(name))), ""
        )
        times, relative = list[Series](), list[Series]()
        for machine in machines:
            here = [side for side in sides if side.machine == machine and side.rows(name)]
            found = [(side, _samples(side, name)) for side in here]
            times.append(Series(str(machine), [
                _point(labels.index(s.label), s, seconds, marks.get((s.last.path, name), ""))
                for s, seconds in found if seconds
            ]))  # fmt: skip
            by = [(s, [1 / q for r in s.rows(name) for q in r.relative(peer)]) for s in here]
            relative.append(
                Series(str(machine), [_point(labels.index(s.label), s, q) for s, q in by if q])
            )
        charts = [Chart("us, lower is better", labels, times)]
        if peer:
            charts.append(
                Chart(f"{peer}, times as long as weft; higher is better", labels, relative)
            )
        made.append((name, charts))
    return made


def _samples(side: Side, name: str) -> list[float]:
    """Microseconds; the median alone of what has no samples."""
    timings = [row.timing for row in side.rows(name)]
    return [s * 1e6 for t in timings if t is not None for s in t.samples or (t.median,)]


def _point(at: int, side: Side, samples: Sequence[float], mark: str = "") -> Point:
    low, middle, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    told = f"{side.label}, {side.last.date:%Y-%m-%d %H:%M}, {side.machine}"
    return Point(at, low, middle, high, mark, told)


def _marks(
    sides: Sequence[Side], machines: Sequence[Machine], threshold: float
) -> dict[tuple[str, str], str]:
    """By a run's file and a workload "slower" or "faster" than what was measured before it."""
    marks = {}
    for machine in machines:
        for a, b in pairwise([side for side in sides if side.machine == machine]):
            try:
                found = compare(a, b, threshold)
            except InvalidArgumentError:
                continue
            for change in found.changes:
                if change.verdict in (Verdict.SLOWER, Verdict.FASTER):
                    marks[b.last.path, change.workload] = str(change.verdict)
    return marks
