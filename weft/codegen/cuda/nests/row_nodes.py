"""Layout of a row kernel, how rows are dealt out to threads, and its nodes: loads, stores and
computed values, of a row or a vector of its elements.

The layout follows from sizes alone, on any device. A row is done by a *group* of threads: some
lanes of a warp, a warp, or a whole block; where rows lie side by side, by the threads of one column
of a block. A thread has every `group`-th *vector* of its row, of so many elements as 128 bits hold.

Between passes a thread keeps in registers what it has loaded, and what is expensive
(`Schedule.kept`); all else is computed again. Where its part of a row is too long for that
(`rounds` is 0) nothing is kept, and the row is read again. `Place` is where a load or an output is:
a parameter, and an index in terms of loops.

Rows of odd length begin anywhere. Vectors are counted from the last address before the row that is
a multiple of 128 bits, so that only the first and the last one of a row are not whole ("odd")."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Status
from weft.codegen.cuda.source import dtypes
from weft.codegen.cuda.source.dtypes import (
    SIGNED,
    literal,
    load,
    loaded,
    nbytes,
    register_dtype,
    stored,
)
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import FAULT_FUNCTION, LANES, LOADS, STORES, WARP, memory_dtype
from weft.codegen.cuda.source.writer import Source
from weft.codegen.nests.rows import Node, Output, Pass, RowNest, Schedule
from weft.ir.dataclass import dataclass
from weft.ir.sizes import next_power
from weft.ir.spec import ConstArray

#: Columns that a block does side by side: a warp reads whole lines.
COLUMNS = 32
#: Threads of a block of several groups.
BLOCK = 256
#: Values of a row that a thread keeps in registers, at most: with so many threads in a block, two
#: of which fit on a multiprocessor.
MOST_HELD = {128: 64, 256: 64, 512: 32}
#: Vectors that a thread has of a row in registers, at most.
MOST_ROUNDS = 4
#: Statements of a pass that are written out for all of them, at most: compiling takes that long.
MOST_STATEMENTS = 1024
#: A group that adds up rows element by element does at least so many, in so many groups at most.
LEAST_ROWS, MOST_UNITS = 4, 512
#: Partial results of single numbers, at most.
MOST_NUMBERS = 16384


@dataclass(frozen=True, slots=True)
class Layout:
    """The share of threads in rows. group: threads of a row; groups: rows that a block does at
    once; vector: elements that are read at once; rounds: vectors of a thread, all in registers (0:
    a loop over them); whole: whether every thread has as many; rows: of a unit, one after another;
    units: in all. wide: the nodes and outputs whose accesses are of 128 bits; odd: whether their
    rows begin anywhere, all of them alike.
    """

    group: int
    groups: int
    vector: int
    rounds: int
    whole: bool
    rows: int
    units: int
    by_columns: bool
    wide: frozenset[Node | Output]
    odd: bool = False

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.group * self.groups

    def blocks(self, nest: RowNest) -> int:
        """Of the grid."""
        if not self.by_columns:
            return -(-self.units // self.groups)
        columns = nest.extents[nest.outer - 1]
        return nest.rows // columns * -(-columns // COLUMNS)

    @property
    def name(self) -> str:
        """What differs between kernels of one nest, for people."""
        kind = "columns" if self.by_columns else f"by{self.group}"
        held = f"_x{self.rounds}" if self.rounds else ""
        return f"{kind}{held}_v{self.vector}" + "_whole" * self.whole + "_odd" * self.odd


def layout_of(nest: RowNest, held: int, offsets: dict[int, int]) -> Layout:
    """The layout of a nest. held: values of an element that go from one pass to later ones;
    offsets: of each load from a buffer, the bytes that its address is from the beginning of a
    value."""
    if nest.by_columns:
        group = min(next_power(-(-nest.row_elements // 4)), 32)
        return Layout(group, COLUMNS, 1, 0, False, 1, nest.rows, True, frozenset())
    wide = _wide(nest, offsets)
    in_odd = frozenset() if wide else _odd(nest, offsets)
    wide, odd = wide or in_odd, bool(in_odd)
    vector = max([LANES[memory_dtype(w.dtype)] for w in wide], default=1)
    before = vector - 1 if odd else 0  # elements before the row in its first vector
    vectors = max(-(-(nest.row_elements + before) // vector), 1)
    held = max(1, held) + sum(nest.moves_in_row(o.strides) for o in nest.totals)
    statements = vector * sum(n.kind == "apply" for n in nest.nodes) * (1 + odd)
    if odd and any(nbytes(w.dtype) > 4 for w in wide):
        held *= 2  # the ends of rows take registers too: these are two each
    group, rounds = _group(vectors, vector * held, MOST_STATEMENTS // max(statements, 1))
    groups = max(BLOCK // group, 1) if group <= WARP else 1
    rows, units = _units(nest, groups)
    whole = vectors == group * max(rounds, 1) and bool(rounds) and units * rows == nest.rows
    whole = whole and units % groups == 0 and nest.row_elements == vectors * vector
    return Layout(group, groups, vector, rounds, whole, rows, units, False, wide, odd)


def _group(vectors: int, held: int, most: int) -> tuple[int, int]:
    """(threads of a row, vectors of each in registers). held: registers that a vector takes; most:
    vectors that may be written out."""
    if vectors <= WARP:
        return next_power(vectors), 1
    most = max(min(most, MOST_ROUNDS), 1)
    for threads, registers in ((WARP, MOST_HELD[BLOCK]), *MOST_HELD.items()):
        rounds = -(-vectors // threads)
        if rounds <= most and rounds * held <= registers:
            return threads, rounds
    return (256 if vectors <= 4096 else 512), 0


def _units(nest: RowNest, groups: int) -> tuple[int, int]:
    """(rows of a unit, units)."""
    if not nest.totals:
        return 1, nest.rows
    rows = -(-nest.rows // MOST_NUMBERS)
    if any(nest.moves_in_row(o.strides) for o in nest.totals):
        rows = max(-(-nest.rows // (MOST_UNITS * groups)), min(LEAST_ROWS, nest.rows))
    return rows, -(-nest.rows // rows)


_Walk = tuple[Node | Output, tuple[int, ...]]


def _walks(nest: RowNest, offsets: dict[int, int]) -> list[_Walk]:
    """The contiguous accesses; of each, what its address moves by apart from its last loop: its
    strides, those of its picks, 0 and its offset if it is a load; all in elements."""
    walks: list[_Walk] = []
    for n, node in enumerate(nest.nodes):
        if node.kind == "load" and node.leaf != "index":
            moves = (*node.strides[:-1], *(s for _, s, _ in node.picks), 0)
            still = all(not nest.nodes[k].strides[-1] for k, _, _ in node.picks)
            if still and node.strides[-1] == 1 and n in offsets:
                walks.append((node, (*moves, offsets[n] // nbytes(node.dtype))))
    for output in nest.outputs:
        if output.strides[-1] == 1 and output.total is None:
            walks.append((output, output.strides[:-1]))
    return walks


def _odd(nest: RowNest, offsets: dict[int, int]) -> frozenset[Node | Output]:
    """The accesses of 128 bits if vectors are counted from before the row: those that move from row
    to row as most of them do."""
    outer = nest.outer
    if len(nest.extents) != outer + 1 or nest.row_elements < dtypes.LEAST_ODD:
        return frozenset()
    if any(nest.moves_in_row(o.strides) for o in nest.totals):
        return frozenset()  # a thread has the same elements of all rows
    walks = [(w, moves) for w, moves in _walks(nest, offsets) if nbytes(w.dtype) > 1]
    ways = [moves[:outer] for _, moves in walks if not outer or any(moves[:outer])]
    ways = [way for way in ways if min(way, default=0) >= 0]
    way = max(ways, key=ways.count, default=None)
    return frozenset(
        w
        for w, moves in walks
        if moves[:outer] == way and all(m * nbytes(w.dtype) % 16 == 0 for m in moves[outer:])
    )


def _wide(nest: RowNest, offsets: dict[int, int]) -> frozenset[Node | Output]:
    """The accesses of 128 bits: contiguous ones that begin at multiples of 16 bytes in each row."""
    if len(nest.extents) == nest.outer:
        return frozenset()
    walks = _walks(nest, offsets)
    lanes = [LANES[memory_dtype(w.dtype)] for w, _ in walks if nbytes(w.dtype) > 1]
    most = max(lanes, default=1)
    if nest.extents[-1] % most:
        return frozenset()
    return frozenset(
        w
        for w, moves in walks
        if nbytes(w.dtype) > 1 and all(m * nbytes(w.dtype) % 16 == 0 for m in moves)
    )


@dataclass(slots=True)
class Place:
    """Where a node is in memory: a pointer (None: the position itself is meant) and its strides
    over the loops, as texts; None does not move. offset: a text."""

    pointer: str | None
    dtype: str
    offset: str
    strides: list[str | None]

    def at(self, s: Source, first: int, indices: Sequence[str]) -> str:
        """What these loops from loop `first` on add to the place."""
        steps = self.strides[first : first + len(indices)]
        pairs = zip(indices, steps, strict=True)
        return s.total([s.mul(i, step) for i, step in pairs if step is not None])


def place_of(
    s: Source,
    hint: str,
    dtype: str,
    held: Address | None,
    offset: int,
    strides: Sequence[int],
) -> Place:
    """The parameters of a load or an output. held: the buffer; None: its number is the value."""
    pointer, start = None, s.const(0)
    if held is not None and min(strides, default=0) >= 0:
        held, offset = Address(held.value, held.offset + offset * nbytes(dtype)), 0
    if held is not None:
        pointer = s.pointer(hint, dtype, held)
    if offset:
        start = s.number(f"{hint}_first", offset)
    return Place(pointer, dtype, start, stride_texts(s, hint, strides))


def stride_texts(s: Source, hint: str, strides: Sequence[int]) -> list[str | None]:
    """Strides as parameters where they are neither 0 nor 1."""
    return [
        None if n == 0 else s.const(1) if n == 1 else s.number(f"{hint}_step{k}", n)
        for k, n in enumerate(strides)
    ]


def index_offset(s: Source, dtype: str, value: str, size: str, stride: str) -> str:
    """What an index adds to a place: it counts from the end if negative. One out of bounds, which a
    check before this kernel tells of, touches the first or last element: nothing stops the kernel,
    and memory that is not there would end the use of the device."""
    index = s.let(f"i64({value})", "index")
    if dtype in SIGNED:
        index = s.let(f"i64({index} + i64({size})) if {index} < i64(0) else {index}", "index")
    last = s.let(f"i64(i64({size}) - i64(1))", "last")
    index = s.let(f"{last} if {index} > {last} else {index}", "index")
    if dtype in SIGNED or dtype == "u64":  # of u64 numbers from 2**63 on are negative
        index = s.let(f"i64(0) if {index} < i64(0) else {index}", "index")
    return s.mul(s.cast(index), stride)


def read_vector(
    s: Source, place: Place, at: str, lanes: int, wide: bool, step: str | None
) -> list[str]:
    """The register values of `lanes` elements from index `at` on, `step` apart; None: of one."""
    dtype, pointer = place.dtype, place.pointer
    assert pointer is not None
    if step is None:
        return [s.let(load(dtype, pointer, at))] * lanes
    if not wide:
        return [s.let(load(dtype, pointer, _moved(s, at, k, step))) for k in range(lanes)]
    memory = memory_dtype(dtype)
    count, raw = LANES[memory], []
    for k in range(0, lanes, count):
        names = [s.fresh("v") for _ in range(count)]
        s.line(f"{', '.join(names)} = {LOADS[memory]}({pointer}, {s.add(at, s.const(k))})")
        raw += names
    return raw if memory == dtype else [s.let(loaded(dtype, name)) for name in raw]


def write_vector(
    s: Source, place: Place, at: str, values: Sequence[str], wide: bool, step: str | None
) -> None:
    """Store register values at index `at` and on, `step` apart."""
    dtype, pointer = place.dtype, place.pointer
    if not wide:
        for k, value in enumerate(values):
            s.line(f"{pointer}[{_moved(s, at, k, step or s.const(0))}] = {stored(dtype, value)}")
        return
    memory = memory_dtype(dtype)
    count = LANES[memory]
    for k in range(0, len(values), count):
        given = [stored(dtype, value) for value in values[k : k + count]]
        where = s.add(at, s.const(k))
        s.line(f"{STORES[memory]}({pointer}, {where}, {', '.join(given)})")


def _moved(s: Source, at: str, k: int, step: str) -> str:
    return s.add(at, s.mul(s.const(k), step)) if k else at


class Nodes:
    """The nodes of a row kernel as names in its source. `row`: the names of a row's numbers."""

    def __init__(
        self,
        s: Source,
        nest: RowNest,
        plan: Schedule,
        layout: Layout,
        operands: Sequence[Address],
        extents: Sequence[str],
    ) -> None:
        self.s, self.nest, self.plan, self.layout = s, nest, plan, layout
        self.extents = extents
        self.row: dict[int, str] = {}
        self.places: dict[int, Place] = {}
        self.sizes: dict[tuple[int, int], tuple[str, str]] = {}  # of picks: size and stride
        for n, node in enumerate(nest.nodes):
            if node.kind != "load" or isinstance(node.leaf, ConstArray):
                continue
            hint, held = f"x{n}", None if node.leaf == "index" else operands[node.leaf]
            self.places[n] = place_of(s, hint, node.dtype, held, node.offset, node.strides)
            for i, (_, stride, size) in enumerate(node.picks):
                numbers = s.number(f"{hint}_size{i}", size), s.number(f"{hint}_pick{i}", stride)
                self.sizes[n, i] = numbers
        self.status = ""
        if any(n.kind == "check" for n in nest.nodes):
            self.status = s.pointer("status", "i64", Status())
            s.function(FAULT_FUNCTION)
        self.first, self.held = held_nodes(nest, plan) if layout.rounds else ({}, set())
        self.env: dict[int, list[str]] = {}
        self.at_pass, self.at_vector, self.inner = 0, 0, list[str]()
        self.edge: list[str] | None = None

    # -- of a row ---------------------------------------------------------------------------------

    def open_row(self, row: str, indices: Sequence[str], tells: str, guard: str) -> None:
        """Another row; `tells`: which of its threads tell of faults ("": all); `guard`: which pick
        elements of it ("": all)."""
        s = self.s
        self.at_row, self.tells, self.guard = row, tells, guard
        self.bases = {
            n: s.let(s.add(p.offset, p.at(s, 0, indices)), f"b{n}") for n, p in self.places.items()
        }

    def row_values(self, p: int) -> None:
        """What is computed once for each row, before pass p."""
        for n in self.plan.row_nodes[p]:
            self.row[n] = self._row_value(n)

    def _row_value(self, n: int) -> str:
        node = self.nest.nodes[n]
        if node.kind == "check":
            return self._check(node)
        if node.kind == "pick":
            return self._pick(node)
        if node.kind == "apply":
            return self._applied(node, [self.row[a] for a in node.args])
        return self._element(n, self.bases.get(n, ""), {k: self.row[k] for k, _, _ in node.picks})

    def _applied(self, node: Node, args: Sequence[str]) -> str:
        return self.s.let(expression(node.name, node.dtype, node.result_dtype, args))

    def _element(self, n: int, at: str, picks: dict[int, str], guard: str = "") -> str:
        """Load n of one element, given the values of the indices that it picks by; 0 unless
        `guard` holds."""
        s, node = self.s, self.nest.nodes[n]
        if isinstance(node.leaf, ConstArray):
            return literal(node.dtype, node.leaf.array.item())
        if node.leaf == "index":
            return self._position(node, at)
        terms = [at, *(self._picked(n, i, picks[k]) for i, (k, _, _) in enumerate(node.picks))]
        pointer = self.places[n].pointer
        assert pointer is not None
        value = load(node.dtype, pointer, s.total(terms))
        zero = literal(node.dtype, False if node.dtype == "bool" else 0)
        return s.let(f"{value} if {guard} else {zero}" if guard else value)

    def _position(self, node: Node, at: str) -> str:
        """The position itself as a number."""
        narrow = self.s.index == "u32"
        number = self.s.let(f"i32({at})" if narrow else f"i64({at})", "position")
        return self.s.let(expression("astype", "i32" if narrow else "i64", node.dtype, [number]))

    def _picked(self, n: int, i: int, value: str) -> str:
        dtype = self.nest.nodes[self.nest.nodes[n].picks[i][0]].dtype
        return index_offset(self.s, dtype, value, *self.sizes[n, i])

    def _check(self, node: Node) -> str:
        """An index of the row as i64; -1 if it is out of bounds, which is told of."""
        s, value = self.s, self.row[node.args[0]]
        size = s.let(f"i64({self.extents[self.nest.outer]})", "size")
        given = s.let(f"i64({value})", "given")
        index = given
        if node.dtype in SIGNED:
            index = s.let(f"i64({given} + {size}) if {given} < i64(0) else {given}", "index")
        good = s.let(f"{index} >= i64(0) and {index} < {size}", "good")
        with s.block(f"if not {good}" + f" and {self.tells}" * bool(self.tells)):
            number, row = f"i64({int(node.name)})", f"i64({self.at_row})"
            s.line(f"report_fault({self.status}, {number}, {row}, {given})")
        return s.let(f"{index} if {good} else i64(-1)", "index")

    def _pick(self, node: Node) -> str:
        """One element of a value of the row, computed by itself."""
        s, index = self.s, self.row[node.args[1]]
        place = s.let(s.cast(f"{index} if {index} > i64(0) else i64(0)"), "place")
        env: dict[int, str] = {}

        def get(n: int) -> str:
            if not self.plan.in_row[n]:
                return self.row[n]
            if n not in env:
                held = self.nest.nodes[n]
                if held.kind == "load":
                    at = s.add(self.bases[n], self.places[n].at(s, self.nest.outer, [place]))
                    picks = {k: get(k) for k, _, _ in held.picks}
                    env[n] = self._element(n, at, picks, self.guard)
                else:
                    env[n] = self._applied(held, [get(a) for a in held.args])
            return env[n]

        return get(node.args[0])

    # -- of a vector of a row ---------------------------------------------------------------------

    def open_pass(self, p: int, guarded: Sequence[bool]) -> None:
        """Another pass; guarded: of each vector in registers, whether some threads lack it."""
        self.at_pass = p
        for n in sorted(self.held):
            for r, guard in enumerate(guarded):
                if self.first[n] == p and guard:
                    zero = literal(register_dtype(self.nest.nodes[n].result_dtype), 0)
                    for name in self._kept(n, r):
                        self.s.line(f"{name} = {zero}")

    def open_vector(self, r: int, inner: list[str], edge: list[str] | None = None) -> None:
        """Another vector, of these indices in the loops within a row. edge: of a vector that is not
        whole the index of each element."""
        self.at_vector, self.inner, self.env, self.edge = r, inner, {}, edge

    def vector(self, n: int) -> list[str]:
        """The values of node n in the vector."""
        if not self.plan.in_row[n]:
            return [self.row[n]] * self.layout.vector
        if n in self.held and self.first[n] < self.at_pass:
            return self._kept(n, self.at_vector)
        if n not in self.env:
            node = self.nest.nodes[n]
            values = self._loaded(n, node) if node.kind == "load" else self._computed(node)
            if n in self.held:
                for name, value in zip(self._kept(n, self.at_vector), values, strict=True):
                    self.s.line(f"{name} = {value}")
                values = self._kept(n, self.at_vector)
            self.env[n] = values
        return self.env[n]

    def _kept(self, n: int, r: int) -> list[str]:
        return [f"h{n}_{r}_{k}" for k in range(self.layout.vector)]

    def _computed(self, node: Node) -> list[str]:
        args = [self.vector(a) for a in node.args]
        return [self._applied(node, lane) for lane in zip(*args, strict=True)]

    def _loaded(self, n: int, node: Node) -> list[str]:
        s, place, lanes = self.s, self.places[n], self.layout.vector
        if self.edge is not None:
            return self._loaded_apart(n, node, self.edge)
        at = s.let(s.add(self.bases[n], place.at(s, self.nest.outer, self.inner)), "at")
        step = place.strides[-1]
        picks = {k: self.vector(k) for k, _, _ in node.picks}
        moving = any(len(set(values)) > 1 for values in picks.values())
        if not moving and node.leaf != "index":
            terms = [self._picked(n, i, picks[k][0]) for i, (k, _, _) in enumerate(node.picks)]
            at = s.total([at, *terms])
            return read_vector(s, place, at, lanes, node in self.layout.wide, step)
        return [
            self._element(
                n,
                s.add(at, s.mul(s.const(k), step)) if step and k else at,
                {i: values[k] for i, values in picks.items()},
            )
            for k in range(lanes)
        ]

    def _loaded_apart(self, n: int, node: Node, indices: list[str]) -> list[str]:
        """Elements at these indices, one by one."""
        s, place = self.s, self.places[n]
        picks = {k: self.vector(k) for k, _, _ in node.picks}
        return [
            self._element(
                n,
                s.let(s.add(self.bases[n], place.at(s, self.nest.outer, [j])), "at"),
                {i: values[k] for i, values in picks.items()},
            )
            for k, j in enumerate(indices)
        ]


def held_nodes(nest: RowNest, plan: Schedule) -> tuple[dict[int, int], set[int]]:
    """(the first pass that computes a node, those that later passes take from registers)."""
    first: dict[int, int] = {}
    held: set[int] = set()
    for p, step in enumerate(plan.passes):
        for n in _roots(nest, step):
            _need(nest, plan, n, p, first, held)
    return first, held


def _roots(nest: RowNest, step: Pass) -> list[int]:
    folds = [nest.nodes[n].args[0] for n in step.folds]
    return [*folds, *(o.source for o in (*step.stores, *step.totals))]


def _need(
    nest: RowNest, plan: Schedule, n: int, p: int, first: dict[int, int], held: set[int]
) -> None:
    if not plan.in_row[n]:
        return
    node = nest.nodes[n]
    if first.setdefault(n, p) < p and (_is_read(node) or n in plan.kept):
        held.add(n)
        return
    for a in (*node.args, *(k for k, _, _ in node.picks)):
        _need(nest, plan, a, p, first, held)


def _is_read(node: Node) -> bool:
    return node.kind == "load" and node.leaf != "index"
