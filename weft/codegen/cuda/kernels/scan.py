"""Scans (cumulative ops): each element of a line combined with all before (`reverse`: after) it.

A block goes through its line turn by turn (`axes.py`): a thread combines some neighbouring
elements, shuffles go through the threads of a warp, shared memory through its warps. Of a line in
parts, first each part is combined to one element (by the same code, which then stores no others),
then those are scanned, which is the same again, then each part is scanned from what is before it
on. All in one order, which comes from the sizes: a part's elements are read twice for that, and no
block waits for another one (D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with
Decoupled Look-back", 2016, calls this reduce-then-scan)."""

from __future__ import annotations

from contextlib import nullcontext

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernels.axes import (
    Line,
    Lines,
    axis_sizes,
    computed_dtype,
    count_of,
    lines_of,
)
from weft.codegen.cuda.kernels.sort import Elements
from weft.codegen.cuda.nests.row_folds import MASK, carried, carrier, given
from weft.codegen.cuda.source.dtypes import (
    FLOATS,
    literal,
    load,
    loaded,
    nbytes,
    register_dtype,
    stored,
)
from weft.codegen.cuda.source.elementwise import expression, identity
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.language import LANES, LOADS, STORES, WARP, memory_dtype
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

_COMBINE = {
    "cumulative_sum": "add",
    "cumulative_prod": "multiply",
    "cumulative_max": "maximum",
    "cumulative_min": "minimum",
    "cumulative_logsumexp": "logaddexp",
}
#: The folds that begin with what changes nothing.
_IDENTITIES = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
_IDENTITIES["logaddexp"] = "max"


def cumulative_launches(op: Operation) -> list[Launch]:
    """One launch, or, for each time that lines are cut into parts, two more."""
    if not count_of(op.result):
        return []
    dtype = computed_dtype(op, op.result)
    kept = register_dtype(dtype)
    levels = [lines_of(axis_sizes(op), _each(dtype))]
    while levels[-1].cut.parts > 1:
        above = levels[-1]
        levels.append(lines_of((above.outer, above.cut.parts - 1, above.inner), _each(kept)))
    sizes = [-(-above.partials * nbytes(kept) // 64) * 64 for above in levels[:-1]]
    memory = Scratch(sum(sizes))
    data = [_Ends(Elements(Address(op.operands[0]), dtype), Elements(Address(op.result), dtype))]
    for k in range(len(sizes)):
        held = Elements(memory, kept, sum(sizes[:k]) // nbytes(kept))
        data.append(_Ends(held, held))
    launches = []
    for k in range(len(sizes)):
        launches.append(_Scan(op, k, levels[k], data[k]).launch(None, data[k + 1].target))
    launches.append(_Scan(op, len(sizes), levels[-1], data[-1]).launch())
    for k in range(len(sizes) - 1, -1, -1):
        launches.append(_Scan(op, k, levels[k], data[k]).launch(data[k + 1].source))
    return launches


@dataclass(frozen=True, slots=True)
class _Ends:
    """The source of a scan, and where its results go."""

    source: Elements
    target: Elements


def _each(dtype: str) -> int:
    """Elements that a thread has a turn."""
    return 8 if LANES[memory_dtype(dtype)] >= 8 else 4


def _identity(combine: str, dtype: str) -> str:
    """What changes no element that is combined with it; of sums that is -0."""
    if combine == "add" and dtype in FLOATS:
        return literal(dtype, -0.0)
    return identity(_IDENTITIES[combine], dtype)


class _Scan:
    """One kernel. level: how many times lines have been cut; those of level 0 are in the order
    that the op asks for, the others lie in the order of the scan."""

    def __init__(self, op: Operation, level: int, lines: Lines, data: _Ends) -> None:
        self.op, self.lines, self.data = op, lines, data
        self.dtype = data.source.dtype
        self.kept, self.combine = register_dtype(self.dtype), _COMBINE[op.name]
        self.reverse = bool(op.attrs["reverse"]) and level == 0
        each, memory = lines.each, memory_dtype(self.dtype)
        whole = lines.width == 1 and LANES[memory] <= each
        self.wide = whole and lines.n % each == 0
        self.index = index_dtype(lines.outer * lines.n * lines.inner + data.source.first)

    def launch(self, before: Elements | None = None, totals: Elements | None = None) -> Launch:
        """before: what is to go before the parts but the first; totals: where the combined parts
        go, and nothing else is written then, nor is the last part looked at."""
        lines = self.lines
        parts = lines.cut.parts - (totals is not None)
        way = "totals" if totals else "parts" if before else "lines"
        name = f"{self.op.name}_{self.dtype}_{way}{'_reverse' * self.reverse}"
        name += f"_{lines.name}{'_wide' * self.wide}_{self.index}"
        s = self.s = Source(name, self.index, lines.threads)
        self.given, self.given_first = self.data.source.parameter(s, "given")
        if totals is None:
            self.out, self.out_first = self.data.target.parameter(s, "out")
        line = self.line = Line(s, lines, parts)
        self.zero = _identity(self.combine, self.kept)
        # a thread whose line is another one's reads nothing, which that one may write in place
        self.stop = line.stop
        if line.live:
            self.stop = s.let(f"{line.stop} if {line.live} else {s.const(0)}", "mine_stop")
        carry = s.let(self.zero, "carry")  # of all that is before this turn
        if before is not None:
            held, first = before.parameter(s, "before")
            count = s.number("partials", lines.cut.parts - 1)
            with s.block(f"if {line.part} > {s.const(0)}"):
                at = line.place_in(count, s.sub(line.part, s.const(1)))
                s.line(f"{carry} = {load(self.kept, held, s.add(first, at))}")
        if self._meets:
            size = 2 * lines.warps * lines.width
            self.shared = s.let(f"cuda.shared.array({size}, {carrier(self.kept)})", "shared")
            self.slot = s.let(s.const(0), "slot")
        turn = s.const(lines.deep * lines.each)
        with s.loop(line.start, line.stop, turn, "first") as first:
            self._turn(first, carry, totals is None)
        if totals is not None:
            held, first = totals.parameter(s, "totals")
            count = s.number("partials", lines.cut.parts - 1)
            with s.block(line.when(f"{line.lane} == {s.const(0)}")):
                at = s.add(first, line.place_in(count, line.part))
                s.line(f"{held}[{at}] = {stored(self.kept, carry)}")
        return s.launch(lines.tiles * parts)

    @property
    def _meets(self) -> bool:
        """Whether several warps share a line."""
        return self.lines.deep * self.lines.width > WARP and self.lines.deep > 1

    def _met(self, a: str, b: str) -> str:
        text = expression(self.combine, self.kept, self.kept, [a, b])
        return self.s.let(text, "met")

    def _turn(self, first: str, carry: str, stores: bool) -> None:
        """Some elements of every thread, which `carry` is then after."""
        s, line = self.s, self.line
        j = s.let(s.add(first, s.mul(line.lane, s.const(self.lines.each))), "j")
        values = self._loaded(j)
        for k in range(1, len(values)):
            values[k] = self._met(values[k - 1], values[k])
        whole, mine = self._warp_scan(values[-1])
        if self._meets:
            mine = self._across_warps(whole, mine, carry)
        else:
            mine = self._met(carry, mine) if mine else s.let(carry, "mine")
            if self.lines.deep > 1:
                held = s.let(carried(self.kept, whole), "w")
                last = WARP - self.lines.width
                source = s.let(f"u32(u32({last}) + u32({line.column}))", "source")
                got = s.let(f"cuda.shfl_sync({MASK}, {held}, {source})", "w")
                whole = s.let(given(self.kept, got), "whole")
            after = self._met(carry, whole)
            s.line(f"{carry} = {after}")
        if stores:
            self._store(j, [self._met(mine, value) for value in values])

    def _loaded(self, j: str) -> list[str]:
        """A thread's elements from number j on; beyond the last one, what changes nothing."""
        s = self.s
        if not self.wide:
            out = []
            for k in range(self.lines.each):
                at = s.let(s.add(j, s.const(k)), "at")
                text = load(self.dtype, self.given, s.add(self.given_first, self._place(at)))
                out.append(s.let(f"{text} if {at} < {self.stop} else {self.zero}", "value"))
            return out
        out = [s.let(self.zero, "value") for _ in range(self.lines.each)]
        memory = memory_dtype(self.dtype)
        with s.block(f"if {j} < {self.stop}"):
            for start, names in self._vectors(out):
                raw = [s.fresh("raw") for _ in names]
                place = s.add(self.given_first, self._place(s.add(j, s.const(start))))
                s.line(f"{', '.join(raw)} = {LOADS[memory]}({self.given}, {place})")
                for name, one in zip(names, raw, strict=True):
                    s.line(f"{name} = {loaded(self.dtype, one)}")
        return out

    def _vectors(self, names: list[str]) -> list[tuple[int, list[str]]]:
        """The names in groups of 128 bits, in the order of memory, each with the number among them
        of the one that is first in memory."""
        lanes = LANES[memory_dtype(self.dtype)]
        groups = [(k, names[k : k + lanes]) for k in range(0, len(names), lanes)]
        return [(k + lanes - 1, g[::-1]) for k, g in groups] if self.reverse else groups

    def _place(self, j: str) -> str:
        """Of element j in the order of the scan."""
        s = self.s
        if self.reverse:
            j = s.sub(s.sub(self.line.n, s.const(1)), j)
        return self.line.place(j)

    def _store(self, j: str, values: list[str]) -> None:
        s = self.s
        if not self.wide:
            for k, value in enumerate(values):
                at = s.let(s.add(j, s.const(k)), "at")
                with s.block(f"if {at} < {self.stop}"):
                    place = s.add(self.out_first, self._place(at))
                    s.line(f"{self.out}[{place}] = {stored(self.dtype, value)}")
            return
        with s.block(f"if {j} < {self.stop}"):
            for start, names in self._vectors(values):
                texts = ", ".join(stored(self.dtype, name) for name in names)
                place = s.add(self.out_first, self._place(s.add(j, s.const(start))))
                s.line(f"{STORES[memory_dtype(self.dtype)]}({self.out}, {place}, {texts})")

    def _warp_scan(self, value: str) -> tuple[str, str]:
        """(the scan over the threads of a line in a warp, what is before each of them; "": nothing,
        as they are not in one warp)."""
        s, width = self.s, self.lines.width
        distance = width
        if width >= WARP:
            return value, ""
        lane = s.let(s.mod(self.line.thread, s.const(WARP)), "warp_lane")
        while distance < WARP:
            other, next_value = self._from_before(value, distance), s.let(value, "value")
            with s.block(f"if {lane} >= {s.const(distance)}"):
                s.line(f"{next_value} = {self._met(other, value)}")
            value, distance = next_value, 2 * distance
        other = self._from_before(value, width)
        return value, s.let(f"{other} if {lane} >= {s.const(width)} else {self.zero}", "mine")

    def _from_before(self, value: str, distance: int) -> str:
        s = self.s
        held = s.let(carried(self.kept, value), "w")
        got = s.let(f"cuda.shfl_up_sync({MASK}, {held}, {distance})", "w")
        return s.let(given(self.kept, got), "w")

    def _across_warps(self, whole: str, mine: str, carry: str) -> str:
        """What is before each thread in all; `carry` then has this turn too. Turns take two slots
        of shared memory by turns, so that one barrier is enough."""
        s, line, lines = self.s, self.line, self.lines
        width = min(lines.width, WARP)
        warp = s.let(s.div(line.thread, s.const(WARP)), "warp")
        column = line.column
        at = s.let(s.add(s.add(self.slot, s.mul(warp, s.const(width))), column), "at")
        last = f"{s.mod(line.thread, s.const(WARP))} >= {s.const(WARP - width)}"
        with s.block(f"if {last}") if width < WARP else nullcontext():
            s.line(f"{self.shared}[{at}] = {carried(self.kept, whole)}")
        s.line("cuda.syncthreads()")
        before = s.let(carry, "before")
        for q in range(lines.warps):
            with s.block(f"if {warp} == {s.const(q)}"):
                s.line(f"{before} = {carry}")
            place = s.add(s.add(self.slot, s.const(q * width)), column)
            part = s.let(given(self.kept, f"{self.shared}[{place}]"), "part")
            s.line(f"{carry} = {self._met(carry, part)}")
        s.line(f"{self.slot} = {s.sub(s.const(lines.warps * width), self.slot)}")
        return self._met(before, mine) if mine else before
