"""Row kernels: what a `fused` op whose reductions are used inside becomes before LLVM.

The loops of the iteration space are split into those that number the rows and those within a row.
A row is done in passes over its elements, between which there is one number per row to compute
with: softmax takes the maximum in pass 0, sums the exponentials in pass 1 and divides in pass 2.
`weft.codegen.nests.row_passes` says what is done in which pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from weft.codegen.nests.cost import interleave
from weft.codegen.nests.fold_lanes import lanes_key
from weft.codegen.nests.nest import EMITTER_VERSION, Leaf, check_native, describe_leaf, pattern
from weft.ir.analysis.index_maps import (
    Frame,
    Read,
    contiguous_strides,
    folded,
    indexed_axis,
    is_reduction,
    nest_read,
    static_shape,
    wide_axes,
)
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError
from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a row kernel. kind "load": `leaf` at offset and strides (per loop, outer first);
    "apply": elementwise `name` of the nodes `args`; "fold": the reduction `name` of one node over
    the row; "check": an index into the row, from 0 on, or -1 and a fault (`name` is its number);
    "pick": element args[1] (a "check") of node args[0]. dtype: the operands', of loads the
    element's. picks: of loads, as in `nest.Access`.
    """

    kind: Literal["load", "apply", "fold", "check", "pick"]
    dtype: str
    result_dtype: str
    name: str = ""
    args: tuple[int, ...] = ()
    leaf: Leaf = 0
    offset: int = 0
    strides: tuple[int, ...] = ()
    picks: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """Output number `output` gets node `source`: at each element or row by `strides`.

    total: the reduction over all rows (element by element of the row where strides move, else of
    everything); its strides are those of one row's accumulators.
    """

    output: int
    dtype: str
    source: int
    strides: tuple[int, ...]
    total: str | None = None


#: Rows that lie side by side are done in blocks of so many: whole cache lines of every dtype, and
#: one iteration of a vector loop that is interleaved.
COLUMNS = 64


@dataclass(frozen=True, slots=True)
class RowNest:
    """A row kernel: `extents` of the `outer` loops over rows, then of those within a row.

    by_columns: neighbouring elements are of different rows (the last of the outer loops numbers
    columns); `weft.codegen.nests.column_writer` does a block of columns at once.
    """

    name: str
    extents: tuple[int, ...]
    outer: int
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    by_columns: bool = False

    @property
    def structure(self) -> str:
        """The part that the machine code depends on, as readable text."""
        shared = dict(self.in_place)
        rows = [f"v{EMITTER_VERSION} rows {self.outer} {len(self.extents)}"]
        if self.by_columns:
            rows.append("columns 1")
        else:  # which passes are interleaved depends on the extents only by this
            rows.append(lanes_key(self.extents))
        for node in self.nodes:
            if node.kind == "load":
                what = "index" if node.leaf == "index" else "buffer"
                alias = shared.get(node.leaf) if isinstance(node.leaf, int) else None
                picks = "".join(f" pick {k}" for k, _, _ in node.picks)
                rows.append(f"load {what} {node.dtype} {pattern(node.strides)} {alias}{picks}")
            else:
                rows.append(f"{node.kind} {node.name} {node.dtype} {node.args} {node.result_dtype}")
        rows += [
            f"out {o.output} {o.dtype} {o.source} {o.total} {pattern(o.strides)}"
            for o in self.outputs
        ]
        return "\n".join(rows)

    def interleave(self, ops: Iterable[tuple[str, str]]) -> int:
        """Vectors in one iteration of a pass over a row that computes these (op, dtype) pairs; 0:
        as many as LLVM likes.
        """
        return interleave(ops, self.extents)

    @property
    def key(self) -> str:
        """Content key of the kernel."""
        return "rows-" + hashlib.sha256(self.structure.encode()).hexdigest()[:32]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return _product(self.extents[: self.outer])

    @property
    def at_once(self) -> int:
        """How many rows are done at once."""
        return COLUMNS if self.by_columns else 1

    @property
    def blocks(self) -> int:
        """How many rows there are, or blocks of columns."""
        columns = self.extents[self.outer - 1] if self.by_columns else 1
        return self.rows // columns * -(-columns // self.at_once)

    @property
    def row_elements(self) -> int:
        """How many elements a row has."""
        return _product(self.extents[self.outer :])

    @property
    def totals(self) -> list[Output]:
        """The outputs that fold all rows."""
        return [o for o in self.outputs if o.total is not None]

    def moves_in_row(self, strides: tuple[int, ...]) -> bool:
        """Whether an access is another one for each element of a row."""
        return any(strides[self.outer :])

    def differs_in_row(self, load: Node) -> bool:
        """Whether a load reads another element for each element of a row."""
        walks = [load.strides, *(self.nodes[k].strides for k, _, _ in load.picks)]
        return any(self.moves_in_row(w) for w in walks)

    def describe_node(self, n: int) -> str:
        """`v3: f32 = exp(v2)`."""
        node = self.nodes[n]
        if node.kind == "load":
            where = describe_leaf(node.leaf, node.offset, node.strides, node.picks, "v")
            return f"v{n}: {node.dtype} = {where}"
        args = ", ".join(f"v{a}" for a in node.args)
        return f"v{n}: {node.result_dtype} = {node.name}({args})"


def checking_ops(op: Operation) -> tuple[Operation, ...]:
    """The ops of a `fused` op that check an index, by the numbers of their faults."""
    return tuple(o for o in op.regions[0].ops if indexed_axis(o) is not None)


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def build_rows(op: Operation, frame: Frame, in_place: tuple[tuple[int, int], ...] = ()) -> RowNest:
    """The row kernel of a `fused` op, its loops simplified. UnsupportedError as `build_nest`."""
    return _merge(_RowBuilder(op, frame, in_place).build())


class _RowBuilder:
    def __init__(self, op: Operation, frame: Frame, in_place: tuple[tuple[int, int], ...]) -> None:
        self.op = op
        (self.region,) = op.regions
        self.frame = frame
        self.in_place = in_place
        self.nodes: list[Node] = []
        self.number: dict[Value, int] = {}
        self.known: dict[Node, int] = {}
        self.checks: dict[int, int] = {}  # index node -> its check
        self.argument = {value: i for i, value in enumerate(self.region.args)}
        # unit axes are no loops
        self.loops = [k for k in frame.outer if frame.space[k] != 1]
        self.outer = len(self.loops)
        self.loops += [k for k in frame.inner if frame.space[k] != 1]

    def build(self) -> RowNest:
        for op in self.region.ops:
            if "elementwise" in lookup(op.name).traits:
                over = static_shape(op.result)
                args = tuple(self._node(v, over) for v in op.operands)
                dtype, result = check_native(op)
                self.number[op.result] = self._add(Node("apply", dtype, result, op.name, args))
            elif indexed_axis(op) is not None:
                self.number[op.result] = self._indexed(op)
            elif is_reduction(op) and self._is_row_fold(op):
                over = static_shape(op.operands[0])
                source = self._node(op.operands[0], over)
                dtype = _dtype(op.result)
                self.number[op.result] = self._add(Node("fold", dtype, dtype, op.name, (source,)))
        outputs = tuple(self._output(i, v) for i, v in enumerate(self.region.results))
        extents = tuple(self.frame.space[k] for k in self.loops)
        kind = str(self.op.attrs["kind"])
        nodes, by_columns = tuple(self.nodes), self.frame.by_columns
        return RowNest(kind, extents, self.outer, nodes, outputs, self.in_place, by_columns)

    def _indexed(self, op: Operation) -> int:
        """One element of each row: read (take_along_axis), or added to (scatter_along_axis_add)."""
        space, dtype, index = self.frame.space, _dtype(op.result), op.operands[1]
        whole = self._node(op.operands[0], space)
        raw = self._node(index, static_shape(index))
        if raw not in self.checks:
            fault = sum(indexed_axis(o) is not None for o in self._ops_before(op))
            node = Node("check", _dtype(index), "i64", str(fault), (raw,))
            self.checks[raw] = self._add(node)
        check = self.checks[raw]
        if op.name == "take_along_axis":
            return self._add(Node("pick", dtype, dtype, "take", (whole, check)))
        along = tuple(int(k == indexed_axis(op)) for k in self.loops)
        here = self._add(Node("load", "i64", "i64", leaf="index", strides=along))
        chosen = self._add(Node("apply", "i64", "bool", "equal", (here, check)))
        update = self._node(op.operands[2], static_shape(op.operands[2]))
        added = self._add(Node("apply", dtype, dtype, "add", (whole, update)))
        return self._add(Node("apply", dtype, dtype, "where", (chosen, added, whole)))

    def _ops_before(self, op: Operation) -> Sequence[Operation]:
        return self.region.ops[: self.region.ops.index(op)]

    def _is_row_fold(self, op: Operation) -> bool:
        over_space = static_shape(op.operands[0]) == self.frame.space
        return over_space and folded(op) == frozenset(self.frame.inner)

    def _add(self, node: Node) -> int:
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
        return self.known[node]

    def _pick(self, by_axis: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(by_axis[k] for k in self.loops)

    def _node(self, value: Value, over: tuple[int, ...]) -> int:
        """The node for an operand of an op over the shape `over`."""
        read = nest_read(value)
        if read.source in self.number:
            if not self.frame.reads_own_element(read, over):
                raise InternalError("a row kernel reads another row or element than its own")
            return self.number[read.source]
        strides = self._pick(self.frame.over_axes(over, read.strides))
        made = read.source.op
        dtype = _dtype(value)
        if made is None:
            leaf: Leaf = self.argument[read.source]
        elif made.name == "iota":
            leaf = "index"
        else:
            held = made.attrs["value"]
            assert isinstance(held, ConstArray)
            leaf, strides = held, (0,) * len(self.loops)
        load = Node("load", dtype, dtype, leaf=leaf, offset=read.offset, strides=strides)
        picks = tuple((self._index(p.index, over), p.stride, p.size) for p in read.picks)
        return self._add(replace(load, picks=picks))

    def _index(self, read: Read, over: tuple[int, ...]) -> int:
        """The node for the index operand of a gather that an op over `over` reads through."""
        strides, dtype = self._pick(self.frame.over_axes(over, read.strides)), _dtype(read.source)
        leaf = self.argument[read.source]
        return self._add(Node("load", dtype, dtype, leaf=leaf, offset=read.offset, strides=strides))

    def _output(self, output: int, value: Value) -> Output:
        op, dtype, shape = value.op, _dtype(value), static_shape(value)
        if op is not None and is_reduction(op) and not self._is_row_fold(op):
            return self._total(output, op)
        source = self._node(value, shape)
        strides = self._pick(self.frame.over_axes(shape, contiguous_strides(shape)))
        return Output(output, dtype, source, strides)

    def _total(self, output: int, op: Operation) -> Output:
        given, over = op.operands[0], static_shape(op.operands[0])
        source, dtype = self._node(given, over), _dtype(op.result)
        still = (0,) * len(self.loops)
        if over != self.frame.space:  # row values
            return Output(output, dtype, source, still, op.name)
        if folded(op) == wide_axes(over):
            row = self._add(Node("fold", dtype, dtype, op.name, (source,)))
            return Output(output, dtype, row, still, op.name)
        kept = tuple(d if k in self.frame.inner else 1 for k, d in enumerate(over))
        return Output(output, dtype, source, self._pick(contiguous_strides(kept)), op.name)


def _dtype(value: Value) -> str:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.short


def _merge(nest: RowNest) -> RowNest:
    """Merge neighbouring loops, both over rows or both within one, that are walked as one."""
    k = len(nest.extents) - 2
    while k >= 0:
        inner = nest.extents[k + 1]
        walks = [n.strides for n in nest.nodes if n.kind == "load"]
        walks += [o.strides for o in nest.outputs]
        apart = k + 1 == nest.outer
        if not apart and all(w[k] == w[k + 1] * inner for w in walks):
            nest = _without(nest, k)
        k -= 1
    return nest


def _without(nest: RowNest, k: int) -> RowNest:
    """Loop k merged into the next one."""

    def cut(strides: tuple[int, ...]) -> tuple[int, ...]:
        return strides[:k] + strides[k + 1 :]

    extents = list(cut(nest.extents))
    extents[k] = nest.extents[k] * nest.extents[k + 1]
    return replace(
        nest,
        extents=tuple(extents),
        outer=nest.outer - (k < nest.outer),
        nodes=tuple(
            replace(n, strides=cut(n.strides)) if n.kind == "load" else n for n in nest.nodes
        ),
        outputs=tuple(replace(o, strides=cut(o.strides)) for o in nest.outputs),
    )
