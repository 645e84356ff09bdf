"""Row kernels: what a `fused` op whose reductions are used inside becomes before LLVM.

The loops of the iteration space are split into those that number the rows and those within a row.
A row is done in passes over its elements, between which there is one number per row to compute
with: softmax takes the maximum in pass 0, sums the exponentials in pass 1 and divides in pass 2.

`schedule` says what is done in which pass, and what is kept in between. A pass is one loop over the
elements of a row. A reduction over the row that needs the result of another one must wait for the
next pass. What several passes need is computed again in each of them if that costs a few
instructions (its operands are in the first-level cache by then), and is kept in a buffer of one row
if it costs more: in the row of an output that is written later, or in scratch memory of the thread.
`describe_rows` is the kernel as pseudo-code for people."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Literal

from weft.codegen.llvm.emitter import HALVES
from weft.codegen.nests.nest import (
    EMITTER_VERSION,
    Leaf,
    affine,
    check_native,
    describe_leaf,
    interleave,
    lanes_key,
    op_nanoseconds,
    pattern,
)
from weft.ir.analysis.index_maps import (
    Read,
    RowSpace,
    contiguous_strides,
    folded,
    indexed_axis,
    is_reduction,
    nest_read,
    static_shape,
    wide_axes,
)
from weft.ir.cost.thresholds import KEEP_NS
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
    """A store: output number `output` gets node `source`: at each element or row by `strides`.

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
    columns); `weft.codegen.nests.row_vectors` does a block of columns at once.
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
        return math.prod(self.extents[: self.outer])

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
        return math.prod(self.extents[self.outer :])

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


def build_rows(
    op: Operation, row_space: RowSpace, in_place: tuple[tuple[int, int], ...] = ()
) -> RowNest:
    """The row kernel of a `fused` op, its loops simplified. UnsupportedError as `build_nest`."""
    return _merge(_RowBuilder(op, row_space, in_place).build())


class _RowBuilder:
    def __init__(
        self, op: Operation, row_space: RowSpace, in_place: tuple[tuple[int, int], ...]
    ) -> None:
        self.op = op
        (self.region,) = op.regions
        self.row_space = row_space
        self.in_place = in_place
        self.nodes: list[Node] = []
        self.number: dict[Value, int] = {}
        self.known: dict[Node, int] = {}
        self.checks: dict[int, int] = {}  # index node -> its check
        self.argument = {value: i for i, value in enumerate(self.region.args)}
        # unit axes are no loops
        self.loops = [k for k in row_space.outer if row_space.space[k] != 1]
        self.outer = len(self.loops)
        self.loops += [k for k in row_space.inner if row_space.space[k] != 1]

    def build(self) -> RowNest:
        for op in self.region.ops:
            if "elementwise" in lookup(op.name).traits:
                over = static_shape(op.result)
                args = tuple(self._node(v, over) for v in op.operands)
                name, dtype, result = check_native(op)
                self.number[op.result] = self._add(Node("apply", dtype, result, name, args))
            elif indexed_axis(op) is not None:
                self.number[op.result] = self._indexed(op)
            elif is_reduction(op) and self._is_row_fold(op):
                over = static_shape(op.operands[0])
                source = self._node(op.operands[0], over)
                dtype = _dtype(op.result)
                self.number[op.result] = self._add(Node("fold", dtype, dtype, op.name, (source,)))
        outputs = tuple(self._output(i, v) for i, v in enumerate(self.region.results))
        extents = tuple(self.row_space.space[k] for k in self.loops)
        kind = str(self.op.attrs["kind"])
        nodes, by_columns = tuple(self.nodes), self.row_space.by_columns
        return RowNest(kind, extents, self.outer, nodes, outputs, self.in_place, by_columns)

    def _indexed(self, op: Operation) -> int:
        """One element of each row: read (take_along_axis), or added to (scatter_along_axis_add)."""
        space, dtype, index = self.row_space.space, _dtype(op.result), op.operands[1]
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
        over_space = static_shape(op.operands[0]) == self.row_space.space
        return over_space and folded(op) == frozenset(self.row_space.inner)

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
            if not self.row_space.reads_own_element(read, over):
                raise InternalError("a row kernel reads another row or element than its own")
            return self.number[read.source]
        strides = self._pick(self.row_space.over_axes(over, read.strides))
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
        strides = self._pick(self.row_space.over_axes(over, read.strides))
        dtype = _dtype(read.source)
        leaf = self.argument[read.source]
        return self._add(Node("load", dtype, dtype, leaf=leaf, offset=read.offset, strides=strides))

    def _output(self, output: int, value: Value) -> Output:
        op, dtype, shape = value.op, _dtype(value), static_shape(value)
        if op is not None and is_reduction(op) and not self._is_row_fold(op):
            return self._total(output, op)
        source = self._node(value, shape)
        strides = self._pick(self.row_space.over_axes(shape, contiguous_strides(shape)))
        return Output(output, dtype, source, strides)

    def _total(self, output: int, op: Operation) -> Output:
        given, over = op.operands[0], static_shape(op.operands[0])
        source, dtype = self._node(given, over), _dtype(op.result)
        still = (0,) * len(self.loops)
        if over != self.row_space.space:  # row values
            return Output(output, dtype, source, still, op.name)
        if folded(op) == wide_axes(over):
            row = self._add(Node("fold", dtype, dtype, op.name, (source,)))
            return Output(output, dtype, row, still, op.name)
        kept = tuple(d if k in self.row_space.inner else 1 for k, d in enumerate(over))
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


@dataclass(slots=True)
class Pass:
    """One loop over a row. compute: the nodes that differ from element to element, in order;
    reload: those of them that an earlier pass kept. folds: reductions (nodes) that it completes.
    keep: nodes to keep for later passes. stores, totals: outputs that it writes.
    """

    compute: list[int] = field(default_factory=list)
    reload: set[int] = field(default_factory=set)
    folds: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    stores: list[Output] = field(default_factory=list)
    totals: list[Output] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """The passes of a row kernel, and what is kept between them. passes: in order. row_nodes: per
    pass, what is computed once per row before it (one list more than passes: what is left for the
    end). kept: node -> the output whose row holds it, or None for scratch. row_stores, row_totals:
    outputs with one number per row, written at its end. in_row: per node, whether it differs from
    element to element of a row.
    """

    passes: list[Pass]
    row_nodes: list[list[int]]
    kept: dict[int, Output | None]
    row_stores: list[Output]
    row_totals: list[Output]
    in_row: tuple[bool, ...]


def schedule(nest: RowNest) -> Schedule:
    """The passes of a row kernel."""
    return _Scheduler(nest).run()


class _Scheduler:
    def __init__(self, nest: RowNest) -> None:
        self.nest = nest
        self.in_row: list[bool] = []  # differs from element to element
        self.stage: list[int] = []  # the first pass in (row values: before) which it is known
        for node in nest.nodes:
            self._classify(node)
        self.computed: dict[int, int] = {}  # node -> first pass that computes it
        self.last_use: dict[int, int] = {}  # kept nodes -> last pass that reloads them
        self.kept: dict[int, Output | None] = {}

    def _classify(self, node: Node) -> None:
        stages = [self.stage[a] for a in node.args]
        if node.kind == "load":
            self.in_row.append(self.nest.differs_in_row(node))
            self.stage.append(0)
        elif node.kind == "fold":
            self.in_row.append(False)
            self.stage.append(stages[0] + 1)
        elif node.kind in ("check", "pick"):
            self.in_row.append(False)
            self.stage.append(max(stages))
        else:
            self.in_row.append(any(self.in_row[a] for a in node.args))
            self.stage.append(max(stages, default=0))

    def run(self) -> Schedule:
        nest = self.nest
        whole = [o for o in nest.outputs if nest.moves_in_row(o.strides)]
        per_row = [o for o in nest.outputs if not nest.moves_in_row(o.strides)]
        folds = [n for n, node in enumerate(nest.nodes) if node.kind == "fold"]
        last = max(
            [self.stage[n] - 1 for n in folds] + [self.stage[o.source] for o in whole], default=0
        )
        if nest.in_place:  # operands are whole until their last element has been picked
            picks = [self.stage[n] for n, node in enumerate(nest.nodes) if node.kind == "pick"]
            last = max([last, *picks])
        passes = [Pass() for _ in range(last + 1)]
        for n in folds:
            passes[self.stage[n] - 1].folds.append(n)
        over_operands = {output for _, output in nest.in_place}
        for o in whole:
            # an output in place of an operand is written when nobody reads that any more
            late = last if o.output in over_operands else self.stage[o.source]
            (passes[late].totals if o.total else passes[late].stores).append(o)
        for p in range(last + 1):
            self._fill(p, passes)
        self._choose_places(passes, over_operands)
        row_nodes: list[list[int]] = [[] for _ in range(last + 2)]
        for n, node in enumerate(nest.nodes):
            if not self.in_row[n] and node.kind != "fold":
                row_nodes[self.stage[n]].append(n)
        stores = [o for o in per_row if o.total is None]
        totals = [o for o in per_row if o.total is not None]
        return Schedule(passes, row_nodes, self.kept, stores, totals, tuple(self.in_row))

    def _fill(self, p: int, passes: list[Pass]) -> None:
        """The nodes that pass p needs: computed anew or kept by the pass that had them first."""
        this, nodes = passes[p], self.nest.nodes
        seen: set[int] = set()

        def need(n: int) -> None:
            if not self.in_row[n] or n in seen:
                return
            seen.add(n)
            first = self.computed.setdefault(n, p)
            if first < p and self._price(n, set()) > KEEP_NS:
                if n not in passes[first].keep:
                    passes[first].keep.append(n)
                self.last_use[n] = p
                this.reload.add(n)
            else:
                for a in nodes[n].args:
                    need(a)
            this.compute.append(n)

        for fold in this.folds:
            need(nodes[fold].args[0])
        for o in (*this.stores, *this.totals):
            need(o.source)

    def _price(self, n: int, seen: set[int]) -> float:
        """Nanoseconds to compute node n again from loads and row values."""
        node = self.nest.nodes[n]
        if n in seen or not self.in_row[n] or node.kind == "load":
            return 0.0
        seen.add(n)
        own = op_nanoseconds(node.name, node.dtype)
        return own + sum(self._price(a, seen) for a in node.args)

    def _choose_places(self, passes: list[Pass], over_operands: set[int]) -> None:
        """For each kept node an output row that is free until after its last use, else scratch."""
        free: dict[Output, int] = {}  # until (and with) this pass
        for p, this in enumerate(passes):
            free.update({o: p for o in this.stores if o.output not in over_operands})
        lies_close = not self.nest.by_columns  # in scratch memory a block of columns does
        for p, this in enumerate(passes):
            for n in this.keep:
                dtype = self.nest.nodes[n].result_dtype
                fits = [
                    o
                    for o, end in free.items()
                    if o.dtype == dtype
                    and dtype not in HALVES
                    and (o.source == n or (end >= self.last_use[n] and lies_close))
                    and end >= p
                ]
                fits.sort(key=lambda o: o.source != n)
                self.kept[n] = fits[0] if fits else None
                if fits:
                    del free[fits[0]]


def describe_rows(nest: RowNest) -> str:
    """The whole kernel; its first line counts the passes and says what is kept where."""
    plan = schedule(nest)
    lines = [f"kernel {nest.name}  # {nest.key}", f"  # {summary(nest, plan)}"]
    for k in range(nest.outer):
        lines.append("  " * (k + 1) + f"for i{k} in range({nest.extents[k]}):  # rows")
    pad = "  " * (nest.outer + 1)
    for p, nodes in enumerate(plan.row_nodes):
        lines += [pad + nest.describe_node(n) for n in nodes]
        if p < len(plan.passes):
            lines += _describe_pass(nest, plan, plan.passes[p], pad)
    lines += [pad + _describe_output(nest, o) for o in (*plan.row_stores, *plan.row_totals)]
    return "\n".join(lines)


def summary(nest: RowNest, plan: Schedule) -> str:
    """`row kernel: 3 passes over each row; v7 (exp) kept in out0's row`."""
    count = len(plan.passes)
    what = f"each block of {COLUMNS} columns" if nest.by_columns else "each row"
    text = f"row kernel: {count} pass{'es' if count != 1 else ''} over {what}"
    one = "one block" if nest.by_columns else "one row"
    for n, held in plan.kept.items():
        where = f"scratch of {one}" if held is None else f"out{held.output}'s row"
        node = nest.nodes[n]
        text += f"; v{n} ({node.name or 'load'}) kept in {where}"
    return text


def _describe_pass(nest: RowNest, plan: Schedule, step: Pass, pad: str) -> list[str]:
    lines = []
    for k in range(nest.outer, len(nest.extents)):
        lines.append(pad + f"for i{k} in range({nest.extents[k]}):")
        pad += "  "
    for n in step.compute:
        note = "  # kept by an earlier pass" if n in step.reload else ""
        lines.append(pad + nest.describe_node(n) + note)
    for n in step.folds:
        node = nest.nodes[n]
        lines.append(pad + f"v{n} = {node.name}(v{n}, v{node.args[0]})")
    return lines + [pad + _describe_output(nest, o) for o in (*step.stores, *step.totals)]


def _describe_output(nest: RowNest, o: Output) -> str:
    where = f"out{o.output}[{affine(0, o.strides)}]"
    return (
        f"{where} = v{o.source}"
        if o.total is None
        else f"{where} = {o.total}({where}, v{o.source})"
    )
