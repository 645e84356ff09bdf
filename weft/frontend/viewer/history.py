"""The page of a history of benchmarks: two of its commits or machines side by side, charts over all
of them, and what they are.

Everything that it shows first is in its text, charts as static SVG, so it can be read and printed
without a script. The script only puts another comparison into the table: those of every two are on
the page as data, each once; backwards a quotient has its other text, and slower is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from weft.frontend.viewer.chart import STYLES, Chart, draw
from weft.frontend.viewer.page import page_text, save_page
from weft.ir.dataclass import dataclass


@dataclass(frozen=True)
class SideFacts:
    """What can be chosen. label: a commit. runs: of it on that machine."""

    label: str
    date: str
    machine: str
    runs: int
    workloads: int
    versions: str


@dataclass(frozen=True)
class RowFacts:
    """A workload in a comparison, as text. time: new by old, and old by new. control: the same
    against a peer; empty where there is none. verdict: "slower", "faster" or another word. note:
    why."""

    workload: str
    old: str
    new: str
    time: tuple[str, str]
    control: tuple[str, str]
    verdict: str
    note: str


@dataclass(frozen=True)
class PairFacts:
    """A comparison. notes: on all of it, each for old and new and for new and old. across: of two
    machines. confidence, percent: of the intervals, and from which on a change counts, as text."""

    rows: Sequence[RowFacts]
    notes: Sequence[tuple[str, str]]
    across: bool
    confidence: str
    percent: str


@dataclass(frozen=True)
class HistoryPage:
    """A page. sides: what can be chosen, the oldest first. charts: of each workload by its name.
    pairs: by two numbers of sides, the smaller first. chosen: the two that are shown first."""

    title: str
    subtitle: str
    sides: Sequence[SideFacts]
    charts: Sequence[tuple[str, Sequence[Chart]]]
    pairs: Mapping[tuple[int, int], PairFacts]
    chosen: tuple[int, int]

    @property
    def html(self) -> str:
        """The whole page, one file."""
        body = (
            f'<header><h1>{escape(self.title)}</h1><span class="sub">{escape(self.subtitle)}'
            '</span></header>\n<main class="sheet">'
            f"{self._comparison()}{self._charts()}{self._runs()}</main>\n"
        )
        return page_text(self.title, self._data(), "history.js", body)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; its path. NotFoundError if its folder is not there."""
        return save_page(path, self.html)

    # ---------------------------------------------------------------------------------- comparison
    def _comparison(self) -> str:
        """The two that are shown first."""
        old, new = self.chosen
        found = self.pairs.get((min(old, new), max(old, new)))
        names = [self.name(n) for n in self.chosen]
        heading = "<h2>Comparison</h2>"
        if old == new:
            told = "There is one commit on one machine: nothing to compare yet."
            return f'<section id="comparison">{heading}<p>{told}</p></section>'
        chosen = f'<p id="chosen">{escape(names[0])} → {escape(names[1])}</p>'
        return (
            f'<section id="comparison">{heading}{chosen}<div id="compared">'
            f"{comparison_html(found, backwards=old > new)}</div></section>"
        )

    def name(self, number: int) -> str:
        """What people choose."""
        side = self.sides[number]
        times = f", {side.runs} runs" if side.runs > 1 else ""
        return f"{side.label} ({side.date}{times}; {side.machine})"

    def _data(self) -> dict[str, Any]:
        """What the script needs: texts once, rows as their numbers."""
        texts: dict[str, int] = {}

        def text(of: str) -> int:
            return texts.setdefault(of, len(texts))

        pairs = []
        for (old, new), pair in self.pairs.items():
            rows = [
                [*map(text, (r.workload, r.old, r.new, *r.time, *r.control, r.verdict, r.note))]
                for r in pair.rows
            ]
            notes = [[*map(text, note)] for note in pair.notes]
            told = [text(pair.confidence), text(pair.percent)]
            pairs.append([old, new, rows, notes, pair.across, *told])
        return {
            "sides": [self.name(n) for n in range(len(self.sides))],
            "chosen": list(self.chosen), "pairs": pairs, "texts": list(texts),
        }  # fmt: skip

    # -------------------------------------------------------------------------------------- charts
    def _charts(self) -> str:
        machines = [s.name for _, charts in self.charts for c in charts for s in c.series]
        legend = "".join(
            f'<span class="s{i % STYLES}"><svg width="26" height="10"><g class="s{i % STYLES}">'
            f'<path class="line" d="M0 5H26"/><circle cx="13" cy="5" r="3"/></g></svg>'
            f"{escape(name)}</span>"
            for i, name in enumerate(dict.fromkeys(machines))
        )
        figures = "".join(
            f"<figure><figcaption>{escape(name)}</figcaption>"
            f"<div>{''.join(draw(chart, name) for chart in charts)}</div></figure>"
            for name, charts in self.charts
        )
        told = (
            "Medians and quartiles over commits, in the order in which they were first measured. ▲ "
            "marks what became slower than the commit measured before it on that machine, ▼ what "
            "became faster, beyond noise."
        )
        return (
            f'<section id="charts"><h2>Over time</h2><p class="legend">{legend}</p><p>{told}</p>'
            f'<div class="charts">{figures}</div></section>'
        )

    def _runs(self) -> str:
        rows = "".join(
            "<tr>"
            + "".join(
                f"<td>{escape(str(cell))}</td>"
                for cell in (s.date, s.label, s.machine, s.runs, s.workloads, s.versions)
            )
            + "</tr>"
            for s in reversed(self.sides)
        )
        heads = ("last run (UTC)", "commit", "machine", "runs", "workloads", "versions")
        head = "".join(f"<th>{name}</th>" for name in heads)
        return (
            f'<section id="runs"><h2>Runs</h2><table class="words"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></section>"
        )


_MARKS = {"slower": "▲ ", "faster": "▼ "}
_BACKWARDS = {"slower": "faster", "faster": "slower"}
_WORDS = ("slower", "faster", "same", "cannot tell")


def comparison_html(pair: PairFacts | None, *, backwards: bool = False) -> str:
    """The summary, the table and the notes of a comparison; assets/history.js makes the same."""
    if pair is None:
        return "<p>They have no workload in common.</p>"
    rows, counts = [], dict.fromkeys(_WORDS, 0)
    with_peer = any(r.control[0] for r in pair.rows)
    for r in pair.rows:
        verdict = _BACKWARDS.get(r.verdict, r.verdict) if backwards else r.verdict
        counts[verdict] = counts.get(verdict, 0) + 1
        shown = [r.workload, *((r.new, r.old) if backwards else (r.old, r.new)), r.time[backwards]]
        if with_peer:
            shown.append(r.control[backwards])
        told = _MARKS.get(verdict, "") + verdict + (f" ({r.note})" if r.note else "")
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (*shown, told))
        rows.append(f'<tr class="{verdict.replace(" ", "-")}">{cells}</tr>')
    heads = ["workload", *(("old", "new") if pair.across else ("old, us", "new, us")), "new / old"]
    heads += [*(["against a peer"] if with_peer else []), "verdict"]
    head = "".join(f"<th>{name}</th>" for name in heads)
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    notes = "".join(f"<li>{escape(note[backwards])}</li>" for note in pair.notes)
    return (
        f"<p><b>{summary}</b> ({pair.confidence} intervals; a change counts from {pair.percent} %)"
        f'</p><table class="compared"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table><ul>{notes}</ul>"
    )
