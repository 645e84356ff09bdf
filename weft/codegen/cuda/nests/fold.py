"""What all kernels that fold have in common: the indices of their loops, accumulators, results."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Arg
from weft.codegen.cuda.nests.accumulate import Accumulator
from weft.codegen.cuda.nests.body import Body, Buffers, index_of
from weft.codegen.cuda.scalars.scalar import stored
from weft.codegen.cuda.writer import Source, product
from weft.codegen.nests.nest import Nest, Store
from weft.ir.dataclass import dataclass

#: So many elements, by vectors or one by one, a thread reads before it adds them up.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Where the results of a fold go: to their output, or, with `steps`, to scratch memory: part k
    of result p to `offset + p * steps[0] + k * steps[1]`."""

    store: Store
    dtype: str
    arg: Arg
    offset: int = 0
    steps: tuple[int, int] | None = None


def sizes_of(nest: Nest) -> tuple[int, int]:
    """The elements of each result, and how many are folded into one of them."""
    pairs = list(zip(nest.extents, nest.reduced, strict=True))
    return product([n for n, r in pairs if not r]), product([n for n, r in pairs if r])


class Fold:
    """A kernel that folds, with what all of them have: the indices, accumulators, results."""

    def __init__(
        self,
        kind: str,
        nest: Nest,
        buffers: Buffers,
        targets: list[Target],
        lanes: int,
        items: int | None = None,
    ) -> None:
        """items: the turns that a row takes, of `lanes` elements each; None: as many as it has."""
        self.nest, self.targets, self.lanes = nest, targets, lanes
        results, count = sizes_of(nest)
        self.s = Source(f"{nest.name}_{kind}", index_of(nest))
        self.body = Body(self.s, nest, buffers, lanes)
        self.results = self.s.number("results", results)
        self.items = self.s.number("items", count // lanes if items is None else items)
        self.pointers = [self.s.pointer(f"out{k}", t.dtype, t.arg) for k, t in enumerate(targets)]
        self.steps = [
            [self.s.number("offset", n) if n > 1 else self.s.const(n) for n in (t.offset, *t.steps)]
            if t.steps is not None
            else []
            for t in targets
        ]
        loops = range(len(nest.extents))
        #: the loops that are not reduced, and those that are
        self._loops = (
            [k for k in loops if not nest.reduced[k]],
            [k for k in loops if nest.reduced[k]],
        )
        self._extents = [
            ["", *(self._extent(k) for k in group[1:])] if group else [] for group in self._loops
        ]
        self.accumulators: list[Accumulator] = []

    def _extent(self, loop: int) -> str:
        last = loop == len(self.nest.extents) - 1
        return self.s.number(f"n{loop}", self.nest.extents[loop] // (self.lanes if last else 1))

    def open(self) -> None:
        """Accumulators of one result."""
        self.accumulators = [
            Accumulator(self.s, t.store.reduction or "", t.store.dtype) for t in self.targets
        ]

    def result_index(self, result: str) -> list[str]:
        """The indices of the loops that are not reduced."""
        return self.s.split(result, self._extents[0], "i") if self._loops[0] else []

    def add_all(self, kept: Sequence[str], bounds: tuple[str, str], step: int) -> None:
        """Iterations start, start + step, ... of the reduced loops, as long as they are less than
        stop; single elements several at once, so that as many bytes are on their way."""
        s, (start, stop) = self.s, bounds
        item = s.let(start, "r")
        ahead = AHEAD // self.lanes
        if ahead > 1:
            furthest = s.add(item, s.const((ahead - 1) * step))
            with s.block(f"while {furthest} < {stop}"):
                items = [item, *(s.add(item, s.const(k * step)) for k in range(1, ahead))]
                self._add(kept, items)
                s.line(f"{item} = {s.add(item, s.const(ahead * step))}")
        with s.block(f"while {item} < {stop}"):
            self._add(kept, [item])
            s.line(f"{item} = {s.add(item, s.const(step))}")

    def _add(self, kept: Sequence[str], items: Sequence[str]) -> None:
        """The elements of these iterations of the reduced loops."""
        s, places = self.s, []
        for item in items:
            folded = s.split(item if item.isidentifier() else s.let(item), self._extents[1], "r")
            if self.lanes > 1:
                folded[-1] = s.let(s.mul(folded[-1], s.const(self.lanes)), "j")
            places.append(folded)
        self.add_at(kept, places, self.lanes)

    def add_at(self, kept: Sequence[str], places: Sequence[Sequence[str]], lanes: int) -> None:
        """The elements at these indices of the reduced loops: all are read before any is used."""
        self.body.begin()
        read = []
        for folded in places:
            at = self._at(kept, folded)
            read.append((at, self.body.values(at, lanes)))
        for at, values in read:
            self.body.write(at, values)
        for target, accumulator in zip(self.targets, self.accumulators, strict=True):
            source = target.store.source
            accumulator.add([v.source(source, n) for _, v in read for n in range(lanes)])

    def _at(self, kept: Sequence[str], folded: Sequence[str]) -> list[str]:
        """The indices of all loops, in their order."""
        at = [""] * len(self.nest.extents)
        for loops, indices in zip(self._loops, (kept, folded), strict=True):
            for loop, index in zip(loops, indices, strict=False):
                at[loop] = index
        return at

    def close(self) -> tuple[list[str], list[tuple[str, str]]]:
        """The values of the accumulators, and (reduction, dtype in which it is kept) of each."""
        made = [a.close() for a in self.accumulators]
        return made, [(a.reduction, a.dtype) for a in self.accumulators]

    def store(self, result: str, part: str, values: Sequence[str]) -> None:
        """The values of a result, or of one part of it."""
        s = self.s
        self.body.begin()
        whole = any(not steps for steps in self.steps)
        at = self._at(self.result_index(result), []) if whole else []
        for target, pointer, steps, value in zip(
            self.targets, self.pointers, self.steps, values, strict=True
        ):
            place = self.body.place(0, target.store.strides, at) if not steps else ""
            if steps:
                pairs = zip((result, part), steps[1:], strict=True)
                place = s.total([steps[0], *(s.mul(n, step) for n, step in pairs)])
            s.line(f"{pointer}[{place}] = {stored(target.dtype, value)}")
