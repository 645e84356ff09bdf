"""Loop nests as Numba source: a `Nest`'s loops, loads, statements and stores, written out.

What does not depend on an inner loop stands before it. A reduction over the innermost loops is a
number that is stored after them; one over outer loops is an array of such numbers. Sums of floats
are accumulated in float64, of 16-bit floats also products."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Pool, Scratch
from weft.codegen.nests.nest import Access, Nest, Store
from weft.codegen.nests.writer import cut_nest, output_of, unit_nanoseconds
from weft.codegen.numba.scalars import (
    accumulator_dtype,
    fold_text,
    identity_text,
    narrowed,
    scalar_text,
)
from weft.codegen.numba.source import (
    KernelSource,
    Lines,
    Names,
    Number,
    Param,
    View,
    element,
    load_text,
    numpy_name,
    store_text,
)
from weft.ir.dtypes import as_dtype
from weft.ir.spec import ConstArray

#: Where a nest's operand or output is: an address, and bytes to add to it.
Place = tuple[Address | Scratch, int]


def nest_source(nest: Nest, outputs: Sequence[Place], operands: Sequence[Place]) -> KernelSource:
    """The nest on these buffers. UnsupportedError for an op without source."""
    return _NestPrinter(nest, outputs, operands).run()


def view_of(
    name: str, dtype: str, place: Place, walk: Sequence[tuple[int, int]], written: bool = False
) -> View:
    """The view of a buffer with an axis for each (extent, stride in elements)."""
    shape, strides = [n for n, _ in walk], [s for _, s in walk]
    return View(name, dtype, place[0], tuple(shape), tuple(strides), written, place[1])


class _NestPrinter:
    def __init__(self, nest: Nest, outputs: Sequence[Place], operands: Sequence[Place]) -> None:
        self.nest, self.rank = nest, len(nest.extents)
        self.operands = operands
        self.helpers: set[str] = set()
        self.params: list[Param] = []
        self.out = Lines()
        self.names = Names()
        self.parallel = bool(nest.extents) and not nest.reduced[0]
        outer = [k for k in range(self.rank) if nest.reduced[k]]
        #: the first of the innermost reduced loops
        self.tail = self.rank
        while self.tail and nest.reduced[self.tail - 1]:
            self.tail -= 1
        #: loops over outer reductions: accumulators are arrays
        self.in_arrays = any(k < self.tail for k in outer)
        if self.in_arrays:
            self.parallel = False
        self.stores = [self._store_view(k, s, outputs) for k, s in enumerate(nest.stores)]
        self.load_depth: list[int] = []
        self.load_text: list[str] = []
        for k, load in enumerate(nest.loads):
            self._load(k, load)
        self.statement_depth = [
            max((self._depth(a) for a in s.args), default=-1) for s in nest.statements
        ]

    # -- arguments --------------------------------------------------------------------------------
    def _store_view(self, k: int, s: Store, outputs: Sequence[Place]) -> tuple[str, list[str]]:
        loops = [j for j, stride in enumerate(s.strides) if stride]
        name = self.names(f"out{s.output}")
        walk = [(self.nest.extents[j], s.strides[j]) for j in loops]
        self.params.append(view_of(name, s.dtype, outputs[s.output], walk, written=True))
        return name, [f"i{j}" for j in loops]

    def _load(self, k: int, load: Access) -> None:
        """The text and depth of load k; its view, unless it is in place of a store."""
        loops = [j for j, stride in enumerate(load.strides) if stride]
        depth = max(loops, default=-1)
        index = [f"i{j}" for j in loops]
        held = output_of(self.nest, load)
        if held is not None:
            name, index = self.stores[held]
            text = load_text(element(name, index), load.dtype, self.helpers)
            if load.dtype != self.nest.stores[held].dtype:
                name = self.names.number("in")
                assert isinstance(load.leaf, int)
                walk = [(self.nest.extents[j], load.strides[j]) for j in loops]
                self.params.append(view_of(name, load.dtype, self.operands[load.leaf], walk))
                text = load_text(element(name, index), load.dtype, self.helpers)
        elif load.leaf == "index":
            text = self._position(k, load, loops)
        else:
            walk = [(self.nest.extents[j], load.strides[j]) for j in loops]
            for n, stride, size in load.picks:
                walk.append((size, stride))
                index.append(f"at{k}_{n}" if len(load.picks) > 1 else f"at{k}")
                depth = max(depth, self.load_depth[n])
            place: Place | None = None
            if isinstance(load.leaf, ConstArray):
                name = self.names("c")
                view = View(name, load.dtype, Pool(load.leaf), tuple(n for n, _ in walk),
                            tuple(s for _, s in walk))  # fmt: skip
                self.params.append(view)
            else:
                assert isinstance(load.leaf, int)
                at, more = self.operands[load.leaf]
                place = at, more + load.offset * as_dtype(load.dtype).itemsize
                if isinstance(at, Address):
                    place = Address(at.value, at.offset + place[1]), 0
                name = self.names.number("in")
                self.params.append(view_of(name, load.dtype, place, walk))
            text = load_text(element(name, index), load.dtype, self.helpers)
        self.load_depth.append(depth)
        self.load_text.append(text)

    def _position(self, k: int, load: Access, loops: Sequence[int]) -> str:
        start = f"start{k}"
        self.params.append(Number(start, load.offset))
        terms = [start]
        for j in loops:
            self.params.append(Number(f"step{k}_{j}", load.strides[j]))
            terms.append(f"i{j} * step{k}_{j}")
        return scalar_text("astype", "i64", [f"({' + '.join(terms)})"], load.dtype, self.helpers)

    # -- the loops --------------------------------------------------------------------------------
    def run(self) -> KernelSource:
        nest, out = self.nest, self.out
        for k in range(self.rank):
            self.params.append(Number(f"n{k}", nest.extents[k]))
        if self.in_arrays:
            self._open_arrays()
        for loop in range(-1, self.rank):
            if loop >= 0:
                if loop == self.tail and not self.in_arrays:
                    self._open_numbers()
                bounds = "lo, hi" if loop == 0 and self.parallel else f"n{loop}"
                out(f"for i{loop} in range({bounds}):")
                out.depth += 1
            self._level(loop)
        if self.tail == self.rank and not self.in_arrays and any(s.reduction for s in nest.stores):
            self._open_numbers()  # all reduced loops were of one element
        self._stores()
        if self.in_arrays:
            out.depth = 1
            self._close_arrays()
        else:
            out.depth = 1 + self.tail
            self._close_numbers()
        return KernelSource(
            nest.key, nest.name, tuple(self.params), tuple(out.lines), frozenset(self.helpers),
            units=nest.extents[0] if self.parallel else None, nanoseconds=self._nanoseconds(),
        )  # fmt: skip

    def _nanoseconds(self) -> float:
        if not self.parallel:
            return 0.0
        nest = self.nest
        cut = cut_nest(nest, [p.address for p in self.params if isinstance(p, View) and p.written])  # type: ignore[misc]
        return unit_nanoseconds(nest, cut) * cut.units / max(nest.extents[0], 1)

    def _level(self, loop: int) -> None:
        """Loads and statements that depend on this loop and no inner one."""
        for k, load in enumerate(self.nest.loads):
            if self.load_depth[k] != loop:
                continue
            for n, _, size in load.picks:
                at = f"at{k}_{n}" if len(load.picks) > 1 else f"at{k}"
                index = f"int64(x{n})"
                if self.nest.loads[n].dtype.startswith("i"):
                    self.params.append(Number(f"size_of_{at}", size))
                    index = f"int64(x{n}) + size_of_{at} if x{n} < 0 else int64(x{n})"
                self.out(f"{at} = {index}")
            self.out(f"x{k} = {self.load_text[k]}")
        for n, s in enumerate(self.nest.statements):
            if self.statement_depth[n] == loop:
                args = [self._name(a) for a in s.args]
                text = scalar_text(s.op, s.dtype, args, s.result_dtype, self.helpers)
                self.out(f"v{n} = {text}")

    def _depth(self, ref: tuple[str, int]) -> int:
        kind, n = ref
        if kind == "load":
            return self.load_depth[n]
        return max((self._depth(a) for a in self.nest.statements[n].args), default=-1)

    def _name(self, ref: tuple[str, int]) -> str:
        return ("x" if ref[0] == "load" else "v") + str(ref[1])

    def _stores(self) -> None:
        for k, s in enumerate(self.nest.stores):
            value = self._name(s.source)
            name, index = self.stores[k]
            if s.reduction is None:
                self.out(store_text(element(name, index), value, s.dtype, self.helpers))
                continue
            running = accumulator_dtype(s.reduction, s.dtype)
            held = element(f"acc{k}", index) if self.in_arrays else f"acc{k}"
            wide = value if numpy_name(s.dtype) == numpy_name(running) else (
                f"{numpy_name(running)}({value})")  # fmt: skip
            self.out(f"{held} = {fold_text(s.reduction, running, held, wide, self.helpers)}")

    # -- reductions -------------------------------------------------------------------------------
    def _folds(self) -> list[tuple[int, Store, str, str]]:
        return [
            (k, s, s.reduction, accumulator_dtype(s.reduction, s.dtype))
            for k, s in enumerate(self.nest.stores)
            if s.reduction is not None
        ]

    def _open_numbers(self) -> None:
        for k, _, reduction, running in self._folds():
            self.out(f"acc{k} = {identity_text(reduction, running)}")

    def _close_numbers(self) -> None:
        for k, s, _, running in self._folds():
            name, index = self.stores[k]
            value = narrowed(f"acc{k}", running, s.dtype, self.helpers)
            self.out(store_text(element(name, index), value, s.dtype, self.helpers))

    def _open_arrays(self) -> None:
        for k, _, reduction, running in self._folds():
            loops = self.stores[k][1]
            shape = ", ".join(f"n{i[1:]}" for i in loops) + "," * (len(loops) == 1)
            start = identity_text(reduction, running)
            self.out(f"acc{k} = np.full(({shape}), {start}, np.{numpy_name(running)})")

    def _close_arrays(self) -> None:
        for k, s, _, running in self._folds():
            name, index = self.stores[k]
            self.out.depth = 1
            for i in index:
                self.out(f"for {i} in range(n{i[1:]}):")
                self.out.depth += 1
            value = narrowed(element(f"acc{k}", index), running, s.dtype, self.helpers)
            self.out(store_text(element(name, index), value, s.dtype, self.helpers))
