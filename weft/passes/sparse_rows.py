"""The rewrite behind `weft.passes.sparse_updates`: the same ops on the looked-up rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from weft.ir.attributes import AttrValue
from weft.ir.dtypes import int64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import lookup
from weft.passes.rewrite import bind, emit_at, extend, rebuilt, tensor, with_block, with_operands


class Rewriter:
    """Replaces `ops`, which compute `kept` from `leaves`, by ops on rows.

    leaves: `index_add`s of rows into zeros. ops: elementwise ops, in order. kept: which of their
    results are needed, and the table that each of them is where all `leaves` are 0; None: compute
    it.
    """

    def __init__(
        self,
        graph: Graph,
        leaves: Sequence[Operation],
        ops: Sequence[Operation],
        kept: Mapping[Value, Value | None],
    ) -> None:
        self.graph = graph
        self.leaves, self.inner, self.kept = leaves, ops, kept
        self.builder = extend(graph.block)
        self.mapping: dict[Value, Value] = {}  # old values -> new ones, of whole shape
        self.rows: dict[Value, Value] = {}  # old values -> their rows
        self.without: dict[Value, Value] = {}  # old values -> what they are where all leaves are 0
        self.last = ops[-1]
        self.table = tensor(leaves[0].result).static_shape
        self.ids: Value
        self.flat: Value

    def run(self) -> Graph:
        """The graph with the update on rows, where the last of its ops was."""
        gone = {*self.leaves, *self.inner}
        late: list[Operation] = []  # what needs the new tables, and what needs that
        waiting: set[Value] = set(self.kept)
        for op in self.graph.ops:
            if op is self.last:
                read = {v for o in gone for v in o.operands} - self.kept.keys()
                if read & waiting:
                    return self.graph  # a gradient is computed from a new table
                self._emit()
                for waited in late:
                    self._copy(waited)
                waiting = set()
            elif op in gone:
                continue
            elif any(v in waiting for v in (*op.operands, *op.control)):
                late.append(op)
                waiting.update(op.results)
            else:
                self._copy(op)
        results = [self.mapping.get(v, v) for v in self.graph.results]
        return with_block(self.graph, rebuilt(self.graph.block, self.builder.ops, results))

    def _copy(self, op: Operation) -> None:
        new = with_operands(op, self.mapping)
        self.builder.ops.append(new)
        bind(self.mapping, op, new.results)

    def _at(self, op: Operation, name: str, *operands: Value, **attrs: AttrValue) -> Value:
        return emit_at(self.builder, op, name, *operands, **attrs)

    def _reshape(self, op: Operation, value: Value, shape: tuple[int, ...]) -> Value:
        same = tensor(value).static_shape == shape
        return value if same else self._at(op, "reshape", value, shape=shape)

    # -- the update -------------------------------------------------------------------------------

    def _emit(self) -> None:
        self._number_ids()
        for op in self._on_rows():
            rows = [self._rows(op, v) for v in op.operands]
            self.rows[op.result] = self._at(op, op.name, *rows, **op.attrs)
        # after all rows of the old tables have been taken: then these can be changed in place
        self._compute_without()
        for value, known in self.kept.items():
            assert value.op is not None
            table = self.without[value] if known is None else self._new(known)
            index = self._reshape(value.op, self.flat, (self.count, 1))
            new = self._at(value.op, "scatter_nd_update", table, index, self.rows[value])
            bind(self.mapping, value.op, [new])

    def _on_rows(self) -> list[Operation]:
        """The ops that are done on rows, in order: with `inner` what they need of elementwise ops
        that no gradient reaches. In the same order, they become the same code as on whole tables.
        """
        needed, todo = set(self.inner), list(self.inner)
        while todo:
            for value in todo.pop().operands:
                op = value.op
                if op is None or op in needed or op in self.leaves:
                    continue
                if "elementwise" in lookup(op.name).traits:
                    needed.add(op)
                    todo.append(op)
        return [op for op in self.graph.ops if op in needed]

    def _compute_without(self) -> None:
        """In whole, for a gradient of 0, what is not a table then."""
        needed = {v for v, table in self.kept.items() if table is None}
        for op in reversed(self.inner):
            if op.result in needed:
                needed.update(op.operands)
        zeros = {op.result: self._new(op.operands[0]) for op in self.leaves}
        self.without = zeros
        for op in self.inner:
            if op.result in needed:
                given = [self.without.get(v, self._new(v)) for v in op.operands]
                self.without[op.result] = self._at(op, op.name, *given, **op.attrs)

    def _number_ids(self) -> None:
        """One row for each id; those of equal ids hold the same: the sum for that id."""
        first, *others = self.leaves
        sizes = [prod(tensor(op.operands[1]).static_shape) for op in self.leaves]
        self.count = sum(sizes)
        flat = [
            self._reshape(op, self._new(op.operands[1]), (n,))
            for op, n in zip(self.leaves, sizes, strict=True)
        ]
        self.flat = flat[0]
        if others:
            one = len({tensor(v).dtype for v in flat}) == 1
            wide = [
                v if one or tensor(v).dtype is int64 else self._at(first, "astype", v, dtype=int64)
                for v in flat
            ]
            self.flat = self._at(first, "concat", *wide, axis=0)
        place = self._at(first, "first_occurrence", self.flat, size=self.table[0])
        start = 0
        for op, n in zip(self.leaves, sizes, strict=True):
            mine = place
            if others:
                bounds = {"starts": (start,), "stops": (start + n,), "steps": (1,)}
                mine = self._at(op, "slice", place, **bounds)
            start += n
            given = self._reshape(op, self._new(op.operands[2]), (n, *self.table[1:]))
            zero = self._new(op.operands[0])
            assert zero.op is not None
            scalar = zero.op.operands[0] if zero.op.name == "broadcast_to" else zero
            zeros = self._at(op, "broadcast_to", scalar, shape=(self.count, *self.table[1:]))
            total = self._at(op, "index_add", zeros, mine, given, axis=0)
            self.rows[op.result] = self._at(op, "take", total, place, axis=0)

    def _rows(self, op: Operation, value: Value) -> Value:
        """The rows of a value of the table's shape."""
        if value not in self.rows:
            self.rows[value] = self._taken(op, value)
        return self.rows[value]

    def _taken(self, op: Operation, value: Value) -> Value:
        shape = (self.count, *self.table[1:])
        made = value.op
        if made is not None and made.name == "broadcast_to":
            source = made.operands[0]
            lead = tensor(source).rank == len(self.table) and tensor(source).static_shape[0] != 1
            if not lead:
                return self._at(made, "broadcast_to", self._new(source), shape=shape)
        ids = self.flat if len(self.leaves) > 1 else self._new(self.leaves[0].operands[1])
        table = self._new(value)
        for earlier in self.builder.ops:  # the rows that the forward pass has looked up
            same = earlier.operands == (table, ids) and earlier.attrs.get("axis") == 0
            if same and earlier.name == "take":
                return self._reshape(op, earlier.result, shape)
        return self._reshape(op, self._at(op, "take", table, ids, axis=0), shape)

    def _new(self, value: Value) -> Value:
        return self.mapping.get(value, value)
