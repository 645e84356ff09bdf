"""argmax and argmin: the first position of a line's largest (least) element, or of its first NaN.

A thread looks through its elements, some of them read ahead; the best of all threads of a line are
compared by shuffles and in shared memory. Long lines are cut into parts (`axes.py`), whose best
elements a second launch compares. There is one best element, whatever the order."""

from __future__ import annotations

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
from weft.codegen.cuda.nests.accumulators import WARP
from weft.codegen.cuda.nests.row_folds import MASK, carried, carrier, given
from weft.codegen.cuda.source.dtypes import FLOATS, load, nbytes, register_dtype, stored
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

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
