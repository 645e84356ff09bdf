"""`weft bench --compare`: two commits or two machines of a history, workload by workload.

On one machine times are compared, and a change counts only if it is seen against a peer too, where
one was timed in the same rounds; runs without it, or with another version of it, do not take that
control away from the others. Times of two machines say more of the machines than of weft: there the
times by the peer's are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from weft.frontend.compile.cost import number
from weft.frontend.tools.bench_history import Machine, Side
from weft.frontend.tools.bench_workloads import PEERS, suites
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.runtime.trace.noise import (
    CONFIDENCE,
    THRESHOLD,
    Interval,
    Verdict,
    interval_of_runs,
    judge,
)
from weft.runtime.trace.replay import Timing

#: Of several runs of a commit the newest so many are compared: each with each.
MOST_RUNS = 5


@dataclass(frozen=True)
class Change:
    """A workload on both sides. time: new by old; across machines of the times by the peer's, and
    `control` is None. old, new: seconds; across machines how many times as long the peer takes.
    Each is None where there is nothing."""

    workload: str
    old: float | None
    new: float | None
    time: Interval | None
    peer: str
    control: Interval | None
    verdict: Verdict
    note: str


@dataclass(frozen=True)
class Comparison:
    """Two sides. across: they are of two machines. left_out: workloads of one of them alone.
    notes: what else differs, and what the verdicts lack. notes_back: the same of the new side
    compared with the old one."""

    old: Side
    new: Side
    across: bool
    threshold: float
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    notes_back: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        """Workloads with it."""
        return sum(change.verdict is verdict for change in self.changes)

    @property
    def summary(self) -> str:
        """`1 slower, 0 faster, 20 the same, 3 cannot tell`, and by what measure."""
        told = ", ".join(f"{self.count(v)} {v}" for v in Verdict)
        return f"{told} ({100 * CONFIDENCE:g} % intervals; a change counts from {self.percent} %)"

    @property
    def percent(self) -> str:
        """The threshold, for people."""
        return f"{100 * self.threshold:g}"

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has; an end of an interval that is not known is None."""

        def ends(found: Interval | None) -> dict[str, float | None] | None:
            if found is None:
                return None
            low, high = (found.low, found.high) if found.is_known else (None, None)
            return {"ratio": found.ratio, "low": low, "high": high}

        rows = [
            {
                "workload": c.workload, "old": c.old, "new": c.new, "new_by_old": ends(c.time),
                "peer": c.peer or None, "against_peer": ends(c.control),
                "verdict": str(c.verdict), "note": c.note,
            }
            for c in self.changes
        ]  # fmt: skip
        sides = {
            name: {
                "label": side.label, "commit": side.last.commit or None, "dirty": side.last.dirty,
                "machine": str(side.machine), "runs": [run.path for run in side.runs],
            }
            for name, side in (("old", self.old), ("new", self.new))
        }  # fmt: skip
        return {
            **sides, "across_machines": self.across, "confidence": CONFIDENCE,
            "threshold": self.threshold, "changes": rows, "left_out": list(self.left_out),
            "notes": list(self.notes),
        }  # fmt: skip


# --------------------------------------------------------------------------------------- compare


def compare(old: Side, new: Side, threshold: float = THRESHOLD, wanted: str = "all") -> Comparison:
    """Two sides workload by workload: those of the suite `wanted`, or with that in their names.
    InvalidArgumentError if they have none in common."""
    old, new = (Side(side.runs[-MOST_RUNS:]) for side in (old, new))
    across = old.machine.host != new.machine.host
    names = [[n for n in side.workloads if _is_wanted(n, wanted)] for side in (old, new)]
    both = [n for n in names[0] if n in names[1]]
    if not both:
        told = "" if wanted == "all" else f" with '{wanted}' in its name"
        have = "; ".join(dict.fromkeys(old.workloads + new.workloads))
        raise InvalidArgumentError(
            f"{old.label} and {new.label} have no workload{told} in common",
            hint=f"they have: {have:.400}" if have else "their files have none",
        )
    left_out = [n for side in names for n in side if n not in both]
    judged = _across if across else _change
    changes = tuple(judged(name, old, new, threshold) for name in both)
    without = [] if across else _without_control(old, new, changes)
    notes, back = ((*_notes(a, b, across), *without) for a, b in ((old, new), (new, old)))
    return Comparison(old, new, across, threshold, changes, tuple(left_out), notes, back)


def _is_wanted(name: str, wanted: str) -> bool:
    if wanted in suites():
        return name.startswith(f"{wanted}:")
    return wanted == "all" or wanted in name


def _notes(old: Side, new: Side, across: bool) -> list[str]:
    """What differs but the commit."""
    notes = []
    if across:
        notes.append(
            "two machines: not the times are compared but how many times as long a peer takes, "
            "measured in the same rounds"
        )
    else:
        for what in ("isa", "threads"):
            a, b = getattr(old.machine, what), getattr(new.machine, what)
            if a != b:
                notes.append(f"{what}: {a} and {b}")
    packages = dict.fromkeys(n for side in (old, new) for run in side.runs for n in run.versions)
    for name in packages:
        a, b = (_versions(side, name) for side in (old, new))
        if a != b or len(a) > 1:
            notes.append(f"{name} {', '.join(a)} and {', '.join(b)}")
    for side in (old, new):
        if side.last.dirty:
            notes.append(f"{side.label} is of a changed tree")
    return notes


def _versions(side: Side, package: str) -> list[str]:
    """Those that its runs had, in order."""
    return sorted({run.versions.get(package) or "none" for run in side.runs})


def _without_control(old: Side, new: Side, changes: Sequence[Change]) -> list[str]:
    """What the verdicts lack: a peer, or whole calls of some runs."""
    notes = []
    alone = [c.workload for c in changes if c.control is None and c.time is not None]
    if alone:
        of = "" if len(alone) == len(changes) else f" of {'; '.join(alone)}"
        notes.append(
            f"no peer was timed on both sides in one version{of}: a busier machine looks like "
            "slower code"
        )
    stepped = {
        run.path
        for side in (old, new)
        for run in side.runs
        for c in changes
        if c.workload in run.rows
        and _is_whole(c.workload, old, new)
        and "weft" not in run.rows[c.workload].calls
    }
    if stepped:
        told = "1 run" if len(stepped) == 1 else f"{len(stepped)} runs"
        notes.append(f"{told} without whole calls (--against none) left out")
    return notes


def _is_whole(name: str, old: Side, new: Side) -> bool:
    """Whether both sides have a run that timed whole calls."""
    return all(any("weft" in row.calls for row in side.rows(name)) for side in (old, new))


def _change(name: str, old: Side, new: Side, threshold: float) -> Change:
    """On one machine: times, and the peer as the control. Whole calls, if both sides have some:
    runs that timed the step alone are then left out."""
    whole = _is_whole(name, old, new)
    timings = [
        [row.calls.get("weft") if whole else row.step for row in side.rows(name)]
        for side in (old, new)
    ]
    before, after = ([t for t in side if t is not None] for side in timings)
    if not before or not after:
        return Change(name, None, None, None, "", None, Verdict.CANNOT_TELL, "not timed")
    time = _of_timings(before, after)
    peer, control = "", None
    if whole:
        peer, mine, theirs = _against(name, old, new, same_version=True)
        control = interval_of_runs(mine, theirs) if peer else None
    verdict, note = judge(time, control, threshold, peer)
    a, b = old.machine.threads, new.machine.threads
    if a is not None and b is not None and a != b and time.is_known:
        verdict, note = Verdict.CANNOT_TELL, f"{a} and {b} threads"
    return Change(name, _middle(before), _middle(after), time, peer, control, verdict, note)


def _across(name: str, old: Side, new: Side, threshold: float) -> Change:
    """On two machines: the times by those of a peer."""
    peer, before, after = _against(name, old, new, same_version=True)
    if not peer:
        peer, before, after = _against(name, old, new, same_version=False)
    if not peer:
        return Change(name, None, None, None, "", None, Verdict.CANNOT_TELL, "no peer on both")
    time = interval_of_runs(before, after)
    verdict, note = judge(time, None, threshold)
    a, b = (1 / float(np.median([np.median(r) for r in side])) for side in (before, after))
    return Change(name, a, b, time, peer, None, verdict, note)


def _of_timings(old: Sequence[Timing], new: Sequence[Timing]) -> Interval:
    """A timing without its samples is one sample, which says nothing of noise."""
    before, after = ([t.samples or (t.median,) for t in side] for side in (old, new))
    return interval_of_runs(before, after)


def _middle(timings: Sequence[Timing]) -> float:
    return float(np.median([t.median for t in timings]))


Shares = list[list[float]]


def _against(name: str, old: Side, new: Side, *, same_version: bool) -> tuple[str, Shares, Shares]:
    """A peer that was timed on both sides, of one version, and the times divided by its, of the
    runs that have it: the peer with which most runs are left, or else the first. "" if there is
    none."""
    found: tuple[str, Shares, Shares] = ("", [], [])
    most = (0, 0)
    for peer, package in PEERS.items():
        sides = [_shares(name, side, peer, package if same_version else "") for side in (old, new)]
        for version in reversed(sides[0]):
            before, after = sides[0][version], sides[1].get(version, [])
            count = (min(len(before), len(after)), len(before) + len(after))
            if count[0] and count > most:
                found, most = (peer, before, after), count
    return found


def _shares(name: str, side: Side, peer: str, package: str) -> dict[str, Shares]:
    """By the version of a package the times divided by those of a peer, of each run that has it.
    package: "" for all together."""
    found: dict[str, Shares] = {}
    for run in side.runs:
        times = run.rows[name].relative(peer) if name in run.rows else []
        if times:
            version = run.versions.get(package, "") if package else ""
            found.setdefault(version, []).append(times)
    return found


def pair_up(old: tuple[list[Side], bool], new: tuple[list[Side], bool]) -> list[tuple[Side, Side]]:
    """Which sides to compare of two names (`History.find`): of two commits those on one machine,
    for each machine that has both, or else the newest of each; of two machines those of the newest
    commit that both have, or else the newest of each."""
    (before, of_machine), (after, also) = old, new
    if of_machine and also:
        for b in reversed(after):
            for a in reversed(before):
                if a.last.commit and a.label == b.label and a.machine != b.machine:
                    return [(a, b)]
        return [(before[-1], after[-1])]
    machines = [b.machine for b in after if any(a.machine == b.machine for a in before)]
    if not machines:
        return [(before[-1], after[-1])]

    def newest(sides: list[Side], machine: Machine) -> Side:
        return [side for side in sides if side.machine == machine][-1]

    return [(newest(before, m), newest(after, m)) for m in dict.fromkeys(machines)]


# ----------------------------------------------------------------------------------------- table


def cells(change: Change, across: bool) -> tuple[str, str, str, str]:
    """Old, new, the change, and that against the peer."""
    if change.old is None or change.new is None or change.time is None:
        return "-", "-", "-", "-"
    if across:
        old, new = (f"{n:.3g}x {change.peer}" for n in (change.old, change.new))
    else:
        old, new = (number(n * 1e6) for n in (change.old, change.new))
    control = "" if change.control is None else f"{change.peer} {change.control.text()}"
    return old, new, change.time.text(), control


def lines_above(found: Comparison) -> list[str]:
    """What is compared."""
    return [
        "",
        *(f"{n}: {s.label}, {_where(s)}" for n, s in (("old", found.old), ("new", found.new))),
    ]


def comparison_table(found: Comparison) -> Table:
    """A row for each workload."""
    table = Table(box=None, pad_edge=False)
    unit = "" if found.across else ", us"
    with_peer = any(change.control is not None for change in found.changes)
    table.add_column("workload", no_wrap=True)
    for heading in (f"old{unit}", f"new{unit}", "new / old", *(("against",) if with_peer else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for change in found.changes:
        *shown, control = cells(change, found.across)
        style = {Verdict.SLOWER: "bold red", Verdict.FASTER: "green"}.get(change.verdict, "")
        verdict = Text(f"{change.verdict}{f' ({change.note})' if change.note else ''}", style)
        against = (control,) if with_peer else ()
        table.add_row(Text(change.workload), *map(Text, (*shown, *against)), verdict)
    return table


def _where(side: Side) -> str:
    count = len(side.runs)
    return f"{side.machine}{f'; {count} runs' if count > 1 else ''}"


def lines_below(found: Comparison) -> list[str]:
    """What a table says below it."""
    lines = [f"- {note}" for note in found.notes]
    if found.left_out:
        lines.append(f"- on one side only: {'; '.join(dict.fromkeys(found.left_out))}")
    return [*lines, found.summary]
