"""Scans (cumulative ops): each element of a line combined with all before (`reverse`: after) it;
argmax and argmin: the first position of a line's largest (least) element, or of its first NaN.

A block goes through its line turn by turn (`axes.py`): a thread combines some neighbouring
elements, shuffles go through the threads of a warp, shared memory through its warps. Of a line in
parts, first each part is combined to one element (by the same code, which then stores no others),
then those are scanned, which is the same again, then each part is scanned from what is before it
on. All in one order, which comes from the sizes: a part's elements are read twice for that, and no
block waits for another one (D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with
Decoupled Look-back", 2016, calls this reduce-then-scan).

For argmax and argmin a thread looks through its elements, some of them read ahead; the best of all
threads of a line are compared by shuffles and in shared memory. Long lines are cut into parts
(`axes.py`), whose best elements a second launch compares. There is one best element, whatever the
order."""

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
from weft.codegen.cuda.nests.accumulators import MASK, carried, carrier, given
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
from weft.codegen.cuda.source.kernel import LANES, LOADS, STORES, WARP, Launch, memory_dtype
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


#: Elements that a thread reads before it compares them.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class _Best:
    """The best elements of parts, and their positions (i64) along the axis."""

    values: Elements
    places: Elements


def position_launches(op: Operation) -> list[Launch]:
    """One launch; two if lines are cut into parts, or more."""
    if not count_of(op.result):
        return []
    x, out = op.operands[0], Elements(Address(op.result), "i64")
    dtype = computed_dtype(op, x)
    kept = register_dtype(dtype)
    levels = [lines_of(axis_sizes(op), AHEAD)]
    while levels[-1].cut.parts > 1:
        above = levels[-1]
        levels.append(lines_of((above.outer, above.cut.parts, above.inner), AHEAD))
    counts = [above.outer * above.cut.parts * above.inner for above in levels[:-1]]
    memory = Scratch(sum(-(-n * (8 + nbytes(kept)) // 64) * 64 for n in counts))
    launches: list[Launch] = []
    source: Elements | _Best = Elements(Address(x), dtype)
    first = 0  # byte of the scratch memory
    for lines, count in zip(levels, [*counts, 0], strict=True):
        target: Elements | _Best = out
        if count:
            values = Elements(memory, kept, (first + 8 * count) // nbytes(kept))
            target = _Best(values, Elements(memory, "i64", first // 8))
            first += -(-count * (8 + nbytes(kept)) // 64) * 64
        launches.append(_Search(op.name, lines, source).launch(target))
        source = target
    return launches


class _Search:
    """One kernel, which looks through the lines of `source`."""

    def __init__(self, op: str, lines: Lines, source: Elements | _Best) -> None:
        self.op, self.lines, self.source = op, lines, source
        self.elements = source.values if isinstance(source, _Best) else source
        self.dtype = self.elements.dtype
        self.kept = register_dtype(self.dtype)

    def launch(self, target: Elements | _Best) -> Launch:
        """target: positions, or the best of each part."""
        lines, given_places = self.lines, isinstance(self.source, _Best)
        index = index_dtype(lines.outer * lines.n * lines.inner + self.elements.first)
        name = f"{self.op}_{self.dtype}{'_of_parts' * given_places}"
        name += f"{'_parts' * isinstance(target, _Best)}_{lines.name}_{index}"
        s = self.s = Source(name, index, lines.threads)
        self.given, self.first = self.elements.parameter(s, "given")
        line = self.line = Line(s, lines, lines.cut.parts)
        best, where = self._own()
        if isinstance(self.source, _Best):
            places, start = self.source.places.parameter(s, "places")
            where = s.let(f"{places}[{s.add(start, line.place(where))}]", "where")
        self.place_dtype = "i64" if given_places else s.index
        self._fold_warp(best, where)
        if lines.deep * lines.width > WARP and lines.deep > 1:
            self._fold_warps(best, where)
        with s.block(line.when(f"{line.lane} == {s.const(0)}")):
            self._store(target, best, where)
        return s.launch(lines.tiles * lines.cut.parts)

    def _own(self) -> tuple[str, str]:
        """The best of a thread's elements and its number in the line. A thread without any has the
        first one of its part."""
        s, line = self.s, self.line
        step = s.const(self.lines.deep)
        j = s.let(s.add(line.start, line.lane), "j")
        where = s.let(f"{j} if {j} < {line.stop} else {line.start}", "where")
        best = s.let(self._element(where), "best")
        s.line(f"{j} = {s.add(j, step)}")
        furthest = s.add(j, s.const((AHEAD - 1) * self.lines.deep))
        with s.block(f"while {furthest} < {line.stop}"):
            ahead = [s.let(s.add(j, s.const(k * self.lines.deep)), "at") for k in range(AHEAD)]
            values = [s.let(self._element(at), "value") for at in ahead]
            for at, value in zip(ahead, values, strict=True):
                self._take(f"{_wins(self.op, self.dtype, value, best)}", best, where, value, at)
            s.line(f"{j} = {s.add(j, s.const(AHEAD * self.lines.deep))}")
        with s.block(f"while {j} < {line.stop}"):
            value = s.let(self._element(j), "value")
            self._take(_wins(self.op, self.dtype, value, best), best, where, value, j)
            s.line(f"{j} = {s.add(j, step)}")
        return best, where

    def _element(self, j: str) -> str:
        return load(self.dtype, self.given, self.s.add(self.first, self.line.place(j)))

    def _take(self, test: str, best: str, where: str, value: str, place: str) -> None:
        s = self.s
        with s.block(f"if {test}"):
            s.line(f"{best} = {value}")
            s.line(f"{where} = {place}")

    def _meet(self, best: str, where: str, value: str, place: str) -> None:
        """Another thread's best: of equal ones the first counts."""
        s = self.s
        better = s.let(_wins(self.op, self.kept, value, best), "better")
        worse = s.let(_wins(self.op, self.kept, best, value), "worse")
        test = f"{better} or ((not {worse}) and {place} < {where})"
        self._take(test, best, where, value, place)

    def _fold_warp(self, best: str, where: str) -> None:
        s, distance = self.s, WARP // 2
        while distance >= self.lines.width:
            held = s.let(carried(self.kept, best), "w")
            got = s.let(f"cuda.shfl_xor_sync({MASK}, {held}, {distance})", "w")
            place = s.let(f"cuda.shfl_xor_sync({MASK}, {where}, {distance})", "place")
            self._meet(best, where, s.let(given(self.kept, got), "value"), place)
            distance //= 2

    def _fold_warps(self, best: str, where: str) -> None:
        """The best of all warps, in the threads of lane 0."""
        s, line, width = self.s, self.line, self.lines.width
        size = self.lines.warps * width
        values = s.let(f"cuda.shared.array({size}, {carrier(self.kept)})", "values")
        places = s.let(f"cuda.shared.array({size}, {self.place_dtype})", "found")
        warp = s.let(s.div(line.thread, s.const(WARP)), "warp")
        with s.block(f"if {s.mod(line.thread, s.const(WARP))} < {s.const(width)}"):
            at = s.let(s.add(s.mul(warp, s.const(width)), line.column), "at")
            s.line(f"{values}[{at}] = {carried(self.kept, best)}")
            s.line(f"{places}[{at}] = {where}")
        s.line("cuda.syncthreads()")
        with s.block(f"if {line.lane} == {s.const(0)}"):
            start = s.let(s.add(line.column, s.const(width)), "q")
            with s.loop(start, s.const(size), s.const(width), "q") as q:
                value = s.let(given(self.kept, f"{values}[{q}]"), "value")
                self._meet(best, where, value, s.let(f"{places}[{q}]", "place"))

    def _store(self, target: Elements | _Best, best: str, where: str) -> None:
        s, line = self.s, self.line
        parts = s.number("parts", self.lines.cut.parts) if isinstance(target, _Best) else s.const(1)
        at = s.let(line.place_in(parts, line.part), "at")
        if isinstance(target, _Best):
            values, first = target.values.parameter(s, "values")
            s.line(f"{values}[{s.add(first, at)}] = {stored(self.kept, best)}")
        places = target.places if isinstance(target, _Best) else target
        pointer, start = places.parameter(s, "out")
        s.line(f"{pointer}[{s.add(start, at)}] = i64({where})")


def _wins(op: str, dtype: str, value: str, best: str) -> str:
    """Whether an element comes before the best so far, though that was earlier."""
    if dtype == "bool":
        return f"{value} and not {best}" if op == "argmax" else f"{best} and not {value}"
    better = f"{value} {'>' if op == 'argmax' else '<'} {best}"
    if dtype in FLOATS:
        return f"{better} or ({value} != {value} and {best} == {best})"
    return better
