"""What a compiled function costs: one row per kernel, with times, work and assembly."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

from weft.codegen.llvm.asm_facts import AsmFacts
from weft.ir.dataclass import dataclass
from weft.passes.analysis.cost import Work
from weft.runtime.trace.peaks import Peaks
from weft.runtime.trace.replay import Timing


@dataclass(frozen=True)
class Rates:
    """How fast a kernel was, at its least time: seconds, bytes and operations per second.

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
    (`weft.passes.analysis.cost`). dtype: the floating type that it computes in. lines: "file:line"
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
    machine, measured (`weft.runtime.trace.peaks`).

    `str(cost)` is a table.
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

    def __str__(self) -> str:
        from rich.console import Console

        from weft.frontend.bench.table import WIDTH, cost_table, peaks_lines

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
        for line in peaks_lines(self.peaks):
            console.print(line, highlight=False)
        console.print(cost_table(self))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()
