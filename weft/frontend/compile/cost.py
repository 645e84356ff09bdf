"""`f.cost`: the cost of a compiled function, one row per kernel, with times, work and assembly;
measured kernel by kernel, and shown as tables for a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from weft.codegen.call import Code
from weft.codegen.llvm.asm_facts import AsmFacts, kernel_facts
from weft.codegen.llvm.cache import kernel_cache
from weft.codegen.loops.program import Branch, Loop, Node, PlannedCall
from weft.ir.analysis.known_values import trip_count
from weft.ir.cost.work import Work
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.io import muted
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.passes.differential import random_array
from weft.runtime.native.executable import Executable
from weft.runtime.native.kernel_times import Piece, pieces_of
from weft.runtime.progress import progress
from weft.runtime.resources.variables import VariableState
from weft.runtime.trace.kernel_facts import work_of
from weft.runtime.trace.peaks import MEMORY, Peaks, machine_peaks
from weft.runtime.trace.replay import PieceTime, Replay, Timing

if TYPE_CHECKING:
    from weft.ir.drawing.notebook import Frame


@dataclass(frozen=True)
class Rates:
    """Rates of a kernel at its least time: seconds, bytes and operations per second.

    level: where its bytes come from when it runs again and again ("L1", "L2", "L3", "memory").
    bound: which roof it is under, "memory" or "compute" - the one that needs more time.
    percent_of_peak: the time that it would take at that roof, of the time that it took; None for
    what neither moves bytes nor computes. Peaks and times are with equally many threads.
    """

    threads: int
    seconds: float
    bytes_per_second: float
    flops_per_second: float | None
    level: str
    bound: str
    percent_of_peak: float | None


@dataclass(frozen=True)
class KernelCost:
    """One kernel of a step: the native calls that carry out one op of the final graph.

    number: from 1, in the order of the step. runs: how often one call of the function runs it, None
    if that depends on values. one, all: seconds of one run with one thread and with all (None: it
    is never cut over threads); both None: this call did not reach it. work: exact counts of one run
    (`weft.ir.cost.work`). dtype: the floating type that it computes in. lines: "file:line"
    of the user's code. keys: content keys of its kernels.
    """

    number: int
    name: str
    ops: tuple[str, ...]
    calls: int
    runs: int | None
    one: Timing | None
    all: Timing | None
    work: Work
    dtype: str
    asm: AsmFacts
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes read and written in one run."""
        return self.work.bytes_read + self.work.bytes_written

    @property
    def seconds(self) -> float:
        """Least seconds of all its runs in one call, with all threads if it is cut; of one run if
        their number depends on values, 0 if it was not reached."""
        timing = self.all or self.one
        return 0.0 if timing is None else timing.minimum * (1 if self.runs is None else self.runs)

    def rates(self, peaks: Peaks) -> Rates | None:
        """With all threads if the kernel is cut, else with one; None if it was not reached."""
        timing = self.all or self.one
        if timing is None:
            return None
        threads = peaks.threads if self.all is not None else 1
        seconds, flops = timing.minimum, self.work.flops
        level = peaks.level(self.bytes, threads)
        by_bytes = self.bytes / peaks.bytes_per_second(level, threads)
        by_flops = (flops or 0) / peaks.flops_per_second(self.dtype, threads)
        least = max(by_bytes, by_flops)
        return Rates(
            threads, seconds, self.bytes / seconds, None if flops is None else flops / seconds,
            level, "memory" if by_bytes >= by_flops else "compute",
            100 * least / seconds if least else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What one call of a compiled function costs.

    ops: of the final graph. kernels: native kernel calls in the step's program. bytes: what they
    move, by the graph (None: a shape is not static). peak_bytes: alive at most, inputs and
    variables not counted. threads: how many the function may use. step: seconds of whole calls
    without the Python around them; None if it was not asked for. rows: the kernels. peaks: of this
    machine, measured (`weft.runtime.trace.peaks`). shown: how many rows the table has; None: all
    that take a hundredth of the time, or few.

    `str(cost)` is a table, the kernels that take most first.
    """

    name: str
    ops: int
    kernels: int
    bytes: int | None
    peak_bytes: int
    threads: int
    step: Timing | None
    rows: tuple[KernelCost, ...]
    peaks: Peaks
    shown: int | None = None

    def top(self, n: int = 10) -> Cost:
        """The same with a table of the `n` kernels that take most."""
        if n < 0:
            raise InvalidArgumentError(
                f"Cost.top: n must not be negative, got {n}", location=caller_location()
            )
        return replace(self, shown=n)

    def ranked(self) -> tuple[list[KernelCost], list[KernelCost]]:
        """The rows that the table shows, those that take most first, and the others."""
        rows = sorted(self.rows, key=lambda row: -row.seconds)
        if self.shown is not None:
            return rows[: self.shown], rows[self.shown :]
        least = sum(row.seconds for row in rows) * LEAST_SHARE
        count = max(FEW_ROWS, sum(row.seconds >= least for row in rows))
        return (rows, []) if count >= len(rows) - 1 else (rows[:count], rows[count:])

    def to_dict(self) -> dict[str, Any]:
        """Everything, with the rates of each row, as values that JSON has."""
        rows = []
        for row in self.rows:
            rates = row.rates(self.peaks)
            rows.append({**asdict(row), "bytes": row.bytes, "rates": rates and asdict(rates)})
        return {
            **{k: getattr(self, k) for k in ("name", "ops", "kernels", "bytes", "peak_bytes")},
            "threads": self.threads,
            "step": self.step and asdict(self.step),
            "rows": rows,
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` and the machine's peaks as JSON; times in seconds, sizes in bytes."""
        return json.dumps({"peaks": asdict(self.peaks), **self.to_dict()}, indent=indent)

    def __repr__(self) -> str:
        calls = "1 kernel call" if self.kernels == 1 else f"{self.kernels} kernel calls"
        time = "" if self.step is None else f", {self.step.minimum * 1e6:,.1f} us a call"
        moved = "" if self.bytes is None else f", {self.bytes:,} bytes moved"
        threads = "1 thread" if self.threads == 1 else f"at most {self.threads} threads"
        return f"<Cost of '{self.name}': {calls}{time}{moved}, {threads}>"

    def _repr_html_(self) -> str:
        """Bars of the kernels that take most, and the table, for a notebook; no script."""
        from weft.ir.drawing.notebook import folded

        rows, others = self.ranked()
        bars = [(f"{row.number} {row.name}", row.seconds) for row in rows]
        if others:
            bars.append((f"{len(others)} others", sum(row.seconds for row in others)))
        most = max((seconds for _, seconds in bars), default=0.0) or 1.0
        drawn = "".join(
            f'<rect x="280" y="{20 * i + 3}" width="{360 * seconds / most:.1f}" height="13" '
            f'fill="#388bfd"/><text x="272" y="{20 * i + 14}" text-anchor="end">'
            f'{escape(name_text(name))}</text><text x="{286 + 360 * seconds / most:.1f}" '
            f'y="{20 * i + 14}">{number(seconds * 1e6)} us</text>'
            for i, (name, seconds) in enumerate(bars)
        )
        return (
            f'<b>{escape(_title(self))}</b><br><svg width="760" height="{20 * len(bars) + 6}" '
            f'font-family="monospace" font-size="11" fill="currentColor">{drawn}</svg>'
            + folded("table", str(self), 60_000)
        )

    def show(self, height: int = 500) -> Frame:
        """The bars and the table in a frame of a notebook's cell, `height` pixels high."""
        from weft.ir.drawing.notebook import Frame

        return Frame(self._repr_html_(), height)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
        for line in peaks_lines(self.peaks):
            console.print(line, highlight=False)
        console.print(cost_table(self))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


_NAME, _SOURCE = 28, 24
#: Columns that no table needs more of; in fewer, numbers would be cut.
WIDTH = 185
#: Rows of which each takes less of the time of all are summed up, but for so many.
LEAST_SHARE, FEW_ROWS = 0.01, 20


def peaks_lines(peaks: Peaks) -> list[str]:
    """What the percentages are percentages of, measured just now."""
    guessed = " (guessed: the system does not tell)" if peaks.caches_assumed else ""
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in sorted(peaks.caches.items()))
    used = f"1 / {peaks.threads} threads" if peaks.threads > 1 else "1 thread"
    lines = [
        f"{peaks.cpu}, {peaks.threads} thread{'s' * (peaks.threads != 1)}; {sizes}{guessed}",
        f"peak GFLOP/s, multiply-add of {peaks.vector_bits}-bit vectors, {used}: "
        + ", ".join(f"{d} {_pair(p)}" for d, p in peaks.flops.items()),
    ]
    for level, rates in peaks.bandwidth.items():
        where = "memory" if level == MEMORY else f"in {level}"
        cells = (f"{n.replace('_', ' ')} {_pair(p)}" for n, p in rates.items())
        lines.append(f"peak GB/s {where}, {used}: " + ", ".join(cells))
    return lines


def cost_table(cost: Cost) -> Table:
    """A row for each kernel that `Cost.ranked` shows, by `KernelCost` and `Rates`, and one for the
    others."""
    n = cost.peaks.threads
    table = Table(title=_title(cost), title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("kernel", no_wrap=True)
    many = (f"us, {n} threads",) if n > 1 else ()
    headings = (
        "of all", "runs", "us, 1 thread", *many, "bytes", "flops", "calls*", "GB/s", "GFLOP/s",
        "in", "of peak", "vector", "spills",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    rows, others = cost.ranked()
    total = sum(row.seconds for row in cost.rows) or 1.0
    notes = RowNotes()
    for row in rows:
        first, *cells = _cells(row, cost.peaks)
        share = _percent(100 * row.seconds / total)
        table.add_row(first + notes.marks(row), cells[0], share, *cells[1:])
    if others:
        rest = sum(row.seconds for row in others)
        told = ["", f"{len(others)} others", _percent(100 * rest / total), ""]
        times = [""] * len(many[:1])
        table.add_row(*told, *times, f"{number(rest * 1e6)} in all", *[""] * 9)
    legend = notes.legend()
    if any(r.work.transcendentals for r in rows):
        legend.append("* calls of exp, log, tanh, ..., which are not among the flops")
    table.caption = "\n".join(legend) or None
    table.caption_justify = "left"
    return table


class RowNotes:
    """Letters for the notes on rows: one for notes that differ in numbers alone."""

    def __init__(self) -> None:
        self._notes: dict[str, list[str]] = {}

    def marks(self, row: KernelCost) -> str:
        """The letters of a row's notes, from a on."""
        unknown = [f"no flops: {row.work.unknown}"] if row.work.unknown else []
        found = []
        for note in [*row.notes, *unknown]:
            alike = re.sub(r"\d+", "0", note)
            self._notes.setdefault(alike, []).append(note)
            found.append(list(self._notes).index(alike))
        return "".join(string.ascii_lowercase[i % 26] for i in sorted(set(found)))

    def legend(self) -> list[str]:
        """A line for each letter, with the least and the greatest of numbers that differ."""
        lines = []
        for letter, notes in zip(string.ascii_lowercase, self._notes.values(), strict=False):
            columns = zip(*(map(int, re.findall(r"\d+", note)) for note in notes), strict=True)
            spans = [f"{min(c)}" if min(c) == max(c) else f"{min(c)} to {max(c)}" for c in columns]
            words = re.split(r"\d+", notes[0])
            text = "".join(f"{word}{span}" for word, span in zip(words, [*spans, ""], strict=True))
            lines.append(f"{letter} {text}")
        return lines


def _title(cost: Cost) -> str:
    text = f"{cost.name}: {cost.kernels} kernel call{'s' * (cost.kernels != 1)}"
    if cost.step is not None:
        text += f", a step takes {timing_text(cost.step)} us (min / median)"
    return text


def _cells(row: KernelCost, peaks: Peaks) -> Sequence[str]:
    work, rates = row.work, row.rates(peaks)
    many = [timing_text(row.all) if row.all or row.one is None else "not cut"]
    many = many if peaks.threads > 1 else []
    cells = [
        str(row.number), name_text(row.name), "?" if row.runs is None else str(row.runs),
        timing_text(row.one), *many,
        si(row.bytes), "?" if work.flops is None else si(work.flops),
        "?" if work.transcendentals is None else si(work.transcendentals),
    ]  # fmt: skip
    if rates is None:
        cells += ["-"] * 4
    else:
        flops = rates.flops_per_second
        percent = rates.percent_of_peak
        cells += [
            number(rates.bytes_per_second / 1e9),
            "?" if flops is None else number(flops / 1e9),
            rates.level,
            "-" if percent is None else f"{_percent(percent)} {rates.bound}",
        ]
    return [*cells, *_assembly(row), source_text(row.lines)]


def _assembly(row: KernelCost) -> tuple[str, str]:
    asm = row.asm
    if not asm.vector_bits:
        outside = [c for c in asm.calls if c in ("memcpy", "memset", "memmove")]
        return (outside[0] if outside and not asm.instructions else "scalar"), str(asm.spills)
    return str(asm.vector_bits), str(asm.spills)


def name_text(name: str) -> str:
    """A kernel's name, so short that the numbers beside it are whole."""
    return name if len(name) <= _NAME else name[: _NAME - 2] + ".."


def source_text(lines: Sequence[str]) -> str:
    """`model.py:3,4 other.py:7`."""
    by_file: dict[str, list[str]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        by_file.setdefault(os.path.basename(file), []).append(number)
    text = " ".join(f"{file}:{','.join(numbers)}" for file, numbers in by_file.items())
    return text if len(text) <= _SOURCE else text[: _SOURCE - 2] + ".."


def _percent(value: float) -> str:
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def timing_text(timing: Timing | None) -> str:
    if timing is None:
        return "-"
    return f"{number(timing.minimum * 1e6)} / {number(timing.median * 1e6)}"


def _pair(pair: tuple[float, float]) -> str:
    if pair[0] == pair[1]:
        return f"{pair[0] / 1e9:.0f}"
    return f"{pair[0] / 1e9:.0f} / {pair[1] / 1e9:.0f}"


def number(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def si(value: float) -> str:
    """`1.57 M`: three digits and k, M, G or T (powers of 1000)."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}".rstrip()
        value /= 1000
    raise AssertionError("unreachable")


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effort:
    """Time to spend on measuring. rounds: how many times each thing is timed. seconds: what all
    kernels of one function may take together, roughly; a round lasts between 0.1 and 4 ms, or one
    run if that is longer."""

    rounds: int = 9
    seconds: float = 2.0

    def per_round(self, kernels: int) -> float:
        """Seconds of one round of one kernel, with one thread or with all."""
        return min(4e-3, max(1e-4, self.seconds / max(1, 2 * kernels * self.rounds)))


QUICK = Effort(3, 0.05)


def peaks_now(*, quick: bool = False) -> Peaks:
    """This machine's peaks; kept in weft's cache folder for some minutes."""
    cache = kernel_cache()
    return machine_peaks(quick=quick, folder=None if cache is None else cache.folder)


def measure(
    executable: Executable,
    inputs: Sequence[Array],
    variables: Mapping[str, VariableState],
    name: str,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    wanted: Callable[[int, Piece], bool] = lambda number, piece: True,
    peaks: Peaks | None = None,
    assembly: bool = True,
) -> Cost:
    """Run the step on copies of `variables` and time the kernels that are `wanted` (by number,
    from 1). assembly: look into it, too, for which a kernel from disk is compiled again. Prints,
    checks and callbacks are silent. Errors as those of a call."""
    peaks = peaks or peaks_now()
    replay = Replay(executable, inputs, variables)
    pieces = pieces_of(executable)
    numbers = {piece.first: number for number, piece in enumerate(pieces, 1)}
    chosen = [p for p in pieces if wanted(numbers[p.first], p)]
    runs = dict(_runs(executable.report.program, 1))
    each = effort.per_round(len(chosen))
    firsts = {p.first for p in chosen}
    rows: list[KernelCost] = []

    def state() -> str:
        return f"{len(rows)} of {len(chosen)} kernels"

    with muted(), progress(f"measuring '{name}'", f"measured '{name}'", state):
        for t in replay.times(effort.rounds, each, lambda p: p.first in firsts):
            often = runs.get(id(t.piece.calls[0]))
            rows.append(_row(numbers[t.piece.first], t, often, assembly))
        step = replay.step_time(effort.rounds, max(each, 1e-3))
    last, memory = executable.report.passes[-1], executable.report.memory
    return Cost(
        name, last.ops_after, len(executable.report.calls), last.bytes, memory.peak_bytes,
        min(executable.threads, peaks.threads), step, tuple(rows), peaks,
    )  # fmt: skip


def _row(number: int, timed: PieceTime, runs: int | None, assembly: bool) -> KernelCost:
    calls = timed.piece.calls
    op = calls[0].op
    kernels = [c.call.kernel for c in calls]
    kernels += [a.kernel for c in calls for a in c.call.args if isinstance(a, Code)]
    keys = tuple(dict.fromkeys(k.key for k in kernels))
    return KernelCost(
        number,
        " + ".join(dict.fromkeys(c.call.kernel.name for c in calls if "partial" not in c.why)),
        _ops(op),
        len(calls),
        runs,
        timed.one,
        timed.all,
        work_of(calls),
        "f32" if op is None else _dtype(op),
        kernel_facts(keys if assembly else ()),
        () if op is None else tuple(dict.fromkeys(_line(loc) for loc in op.locations)),
        tuple(_notes(timed)),
        keys,
    )


def _line(location: Any) -> str:
    return f"{location.file}:{location.line}"


def _ops(op: Operation | None) -> tuple[str, ...]:
    if op is None:
        return ("copy",)
    if op.name != "fused":
        return (op.name,)
    moves = ("constant", "broadcast_to", "reshape")
    return tuple(inner.name for inner in op.regions[0].ops if inner.name not in moves)


def _dtype(op: Operation) -> str:
    """f64 if anything in the op computes in 64 bits, else f32."""
    regions = [inner for region in op.regions for inner in region.walk()]
    for each in (op, *regions):
        for value in (*each.operands, *each.results):
            held = value.type
            if isinstance(held, TensorType) and held.dtype.is_inexact:
                width = held.dtype.itemsize // (2 if held.dtype.is_complex else 1)
                if width == 8:
                    return "f64"
    return "f32"


def _notes(timed: PieceTime) -> Iterator[str]:
    if timed.one is None:
        yield "not reached by this call"
        return
    if timed.restored:
        runs = "each run" if timed.batch == 1 else f"every {timed.batch} runs"
        yield f"changes its operand: put back before {runs}, which leaves it in the caches"
        if timed.batch == 1:
            yield "timed one run at a time: about 0.5 us of each is the call from Python"
    faults = [c for c in timed.piece.calls if "partial" in c.why]
    if faults:
        yield "with the call that adds up partial results"


def _runs(nodes: Sequence[Node], times: int | None) -> Iterator[tuple[int, int | None]]:
    """(id of a planned call, how often one step runs it)."""
    for node in nodes:
        match node:
            case PlannedCall():
                yield id(node), times
            case Loop(op=op):
                trips = int_attr(op.attrs, "length") if op.name == "scan" else trip_count(op)
                parts = 1 if node.parts is None else node.parts.count
                inside = None if trips is None or times is None else times * trips * parts
                tests = None if inside is None or times is None else inside + times
                yield from _runs(node.test, tests)
                yield from _runs(node.body, inside)
            case Branch():
                yield from _runs(node.then, None)
                yield from _runs(node.orelse, None)


def inputs_of(key: tuple[Any, list[Any], list[Any]], args: Sequence[Value]) -> list[Array]:
    """The arrays of a call by its key (`CompiledFunction._key`): C-contiguous, and random ones in
    place of types."""
    (_, leaf_keys, _, _), arrays, _ = key
    given = [a for a, k in zip(arrays, leaf_keys, strict=True) if isinstance(k, tuple)]
    generator = np.random.default_rng(0)
    out = []
    for array, arg in zip(given, args, strict=True):
        if array is None:
            assert isinstance(arg.type, TensorType)
            array = random_array(arg.type, generator, 0)
        elif not isinstance(array, np.ndarray):  # it is on a device
            array = array.numpy()
        out.append(np.ascontiguousarray(array).reshape(np.shape(array)))
    return out
