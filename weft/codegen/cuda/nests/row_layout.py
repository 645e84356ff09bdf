"""Layout of a row kernel: how rows are dealt out to threads, from sizes alone on any device.

A row is done by a *group* of threads: some lanes of a warp, a warp, or a whole block; where rows
lie side by side, by the threads of one column of a block. A thread has every `group`-th *vector* of
its row, of so many elements as 128 bits hold. What a thread has of its row stays in registers
between the passes if that is little (`rounds` > 0), else it is read again.

Rows of odd length begin anywhere. Vectors are counted from the last address before the row that is
a multiple of 128 bits, so that only the first and the last one of a row are not whole ("odd")."""

from __future__ import annotations

from weft.codegen.cuda.source import dtypes
from weft.codegen.cuda.source.dtypes import nbytes
from weft.codegen.cuda.source.language import LANES, WARP, memory_dtype
from weft.codegen.nests.rows import Node, Output, RowNest
from weft.ir.dataclass import dataclass
from weft.ir.sizes import next_power

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
