"""Sparse updates: a table whose gradient comes from looked-up rows is changed in those rows only.

Before (a step of gradient descent on an embedding)::

    %0 = read(%w) : f32[100000,64]
    %1 = broadcast_to(%zero) {shape=[100000,64]} : f32[100000,64]
    %2 = index_add(%1, %ids, %g) {axis=0} : f32[100000,64]
    %3 = multiply(%2, %rate) : f32[100000,64]
    %4 = subtract(%0, %3) : f32[100000,64]
    %5 = assign(%w, %4) after(%0) : token

After: the gradient is summed in one row for each id (`first_occurrence` says which ids are equal),
`%3` and `%4` are computed on the rows at `%ids`, and `%4` is a ``scatter_nd_update`` of them into
`%0`, which needs no copy. All rows of equal ids are computed alike, so it does not matter which of
them is written last; the sums add the same numbers in the same order.

Rows that were not looked up are what the same ops make of a gradient of 0. Where that is the table
itself, they are left alone: gradient descent, Adagrad's accumulator. 0 times a scalar counts as 0
and x + 0 as x: a learning rate that is not finite reaches the looked-up rows only. 0 times an
element of a table may be NaN and does not count. Otherwise (a momentum decays everywhere) all rows
are computed without a gradient, which is then not made as a whole, and those looked up are written
over them.

The body of a loop is done likewise: a carry is to it what a variable is to a step. An update that
is one op yet (`assign_sub`: on a step that is not placed) of what is 0 without a gradient becomes
one of rows (`scatter_sub`); of equal ids the first one has the sum, the others 0.

Updates that would not get faster (`worth_it`), and gradients that are needed as a whole, stay.

`Rewriter` appends the same ops on the looked-up rows only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np

from weft.ir.analysis.index_maps import is_index_map
from weft.ir.analysis.known_values import uniform
from weft.ir.cost.thresholds import LEAST_TABLE, ROWS_PER_ID
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import int64, uint64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.sizes import roughly
from weft.ir.spec import AttrValue, ConstArray, int_attr
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    bind,
    emit_at,
    extend,
    fixed_point,
    rebuilt,
    shape_of,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.fold import Array


class Rewriter:
    """Replaces `ops`, which compute `kept` from `leaves`, by ops on rows.

    leaves: `index_add`s of rows into zeros. ops: elementwise ops, in order. kept: which of their
    results are needed, and the table that each of them is where all `leaves` are 0; None: compute
    it. added: results that are only added to variables or subtracted from them, and 0 there.
    """

    def __init__(
        self,
        graph: Graph,
        leaves: Sequence[Operation],
        ops: Sequence[Operation],
        kept: Mapping[Value, Value | None],
        added: frozenset[Value],
    ) -> None:
        self.graph = graph
        self.leaves, self.inner, self.kept, self.added = leaves, ops, kept, added
        self.builder = extend(graph.block)
        self.mapping: dict[Value, Value] = {}  # old values -> new ones, of whole shape
        self.rows: dict[Value, Value] = {}  # old values -> their rows
        self.without: dict[Value, Value] = {}  # old values -> what they are where all leaves are 0
        self.last = ops[-1]
        self.table = tensor(leaves[0].result).static_shape
        self.ids: Value
        self.flat: Value
        self.first: Value  # for each id, the number of the first one that is equal

    def run(self) -> Graph:
        """The graph with the update on rows, where the last of its ops was."""
        gone = {*self.leaves, *self.inner}
        late: list[Operation] = []  # what needs the new tables, and what needs that
        waiting: set[Value] = {*self.kept, *self.added}
        for op in self.graph.ops:
            if op is self.last:
                read = {v for o in gone for v in o.operands} - self.kept.keys() - self.added
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
        if op.name in _OF_ROWS and op.operands[1] in self.added:
            bind(self.mapping, op, [self._update_of_rows(op)])
            return
        new = with_operands(op, self.mapping)
        self.builder.ops.append(new)
        bind(self.mapping, op, new.results)

    def _at(self, op: Operation, name: str, *operands: Value, **attrs: AttrValue) -> Value:
        return emit_at(self.builder, op, name, *operands, **attrs)

    def _reshape(self, op: Operation, value: Value, shape: tuple[int, ...]) -> Value:
        same = tensor(value).static_shape == shape
        return value if same else self._at(op, "reshape", value, shape=shape)

    def _update_of_rows(self, op: Operation) -> Value:
        """An update of a whole variable, in the looked-up rows only."""
        value, leaf = op.operands[1], self.leaves[0]
        assert value.op is not None
        rows, shape = self.rows[value], (self.count, *self.table[1:])
        numbers = self._at(leaf, "iota", dtype=int64, shape=(self.count,), axis=0)
        is_first = self._at(leaf, "equal", self.first, numbers)
        column = self._at(
            value.op, "reshape", is_first, shape=(self.count, *(1 for _ in shape[1:]))
        )
        # what changes nothing, not even the sign of a zero
        nothing = np.array(0.0 if op.name == "assign_sub" else -0.0, tensor(rows).dtype.numpy)
        zero = self._at(value.op, "constant", value=ConstArray(nothing))
        found = [self._at(value.op, "broadcast_to", v, shape=shape) for v in (column, zero)]
        rows = self._at(value.op, "where", found[0], rows, found[1])
        given = [self._new(op.operands[0]), self.flat, rows]
        control = [self._new(v) for v in op.control]
        (made,) = self.builder.emit(
            _OF_ROWS[op.name], given, control=control, locations=op.locations, device=op.device,
            group=op.group,
        )  # fmt: skip
        return made

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
        self.first = place = self._at(first, "first_occurrence", self.flat, size=self.table[0])
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


#: Updates of whole variables, and the same of rows.
_OF_ROWS = {"assign_add": "scatter_add", "assign_sub": "scatter_sub"}


def sparse_updates(graph: Graph) -> Graph:
    """Rewrite the updates that allow it (see the module's text), in the bodies of loops too."""
    return _updated(graph, 0)


def _updated(graph: Graph, carries: int) -> Graph:
    """carries: how many results of the graph, a loop's body, are those of its first arguments in
    the next iteration."""
    if any(op.name in CONTROL for op in graph.ops):
        graph = _in_bodies(graph)
    return fixed_point(graph, lambda g: _rewrite_first(g, carries))


def _in_bodies(graph: Graph) -> Graph:
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        made = op
        if op.name in CONTROL:
            regions = [_updated(body, n).block for body, n in _bodies(op, graph.stage)]
            types = [r.type for r in op.results]
            made = Operation(
                op.name, op.operands, op.attrs, types, regions, op.control, op.locations
            )
            made.device, made.group = op.device, op.group
        mapping.update(zip(op.results, builder.clone(made, mapping), strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _bodies(op: Operation, stage: str) -> Iterator[tuple[Graph, int]]:
    """The regions of control flow as graphs, and how many carries each hands on."""
    for block in op.regions:
        names = tuple(f"a{k}" for k in range(len(block.args)))
        loops = op.name != "cond" and block is op.regions[-1]
        yield (
            Graph(f"{op.name} body", block, names, stage),
            (int_attr(op.attrs, "carries") if loops else 0),
        )


def _rewrite_first(graph: Graph, carries: int) -> Graph:
    for update in _updates(graph, carries):
        new = update.rewritten(graph)
        if new is not graph:
            return new
    return graph


def sparse_reasons(graph: Graph, carries: int = 0) -> list[tuple[Operation, str]]:
    """For people: each gradient of looked-up rows that is added into a whole table, and what is
    updated because of it.
    """
    out: list[tuple[Operation, str]] = []
    for op in graph.ops:
        for body, count in _bodies(op, graph.stage) if op.name in CONTROL else ():
            out += sparse_reasons(body, count)
    for update in _updates(graph, carries):
        dense = update.rewritten(graph) is graph
        why = update.why_dense or ("a gradient comes from a changed table" if dense else "")
        how = "only its looked-up rows are updated"
        if why:
            how = f"all of it is updated, by a gradient as large: {why}"
        elif update.why_whole:
            how = f"all rows are updated, the gradient stays in rows: {update.why_whole}"
        out += [(leaf, how) for leaf in update.leaves]
    return out


@dataclass(slots=True)
class Update:
    """An update of a table: all that is computed, element by element, from gradients of its rows.

    leaves: the gradients. ops: all that depends on them, in order. kept: the values that variables
    are set to, and the table that each of them is where all gradients are 0; None: something else.
    added: the values that variables are changed by, if they are 0 there.
    why_whole: what. why_dense: what stands in the way of the rewrite.
    """

    leaves: list[Operation]
    ops: list[Operation] = field(default_factory=list)
    kept: dict[Value, Value | None] = field(default_factory=dict)
    added: set[Value] = field(default_factory=set)
    why_dense: str = ""
    why_whole: str = ""

    def rewritten(self, graph: Graph) -> Graph:
        """The graph with the update on rows; the same object if that cannot be."""
        if self.why_dense:
            return graph
        added = frozenset(self.added)
        return Rewriter(graph, self.leaves, self.ops, self.kept, added).run()


def _updates(graph: Graph, carries: int) -> Iterator[Update]:
    leaves = [op for op in graph.ops if is_leaf(op)]
    if not leaves:
        return
    users: dict[Value, list[Operation | None]] = {}
    for op in graph.ops:
        for value in dict.fromkeys((*op.operands, *op.control)):
            users.setdefault(value, []).append(op)
    pairs = list(zip(graph.results[:carries], graph.args[:carries], strict=True))
    carried = {v: arg for v, arg in pairs if graph.results.count(v) == 1}
    for value in graph.results:
        if value not in carried:
            users.setdefault(value, []).append(None)
    seen: set[Operation] = set()
    for op in leaves:
        if op not in seen:
            update = _grown(graph, op, users, carried)
            seen.update(update.leaves)
            yield update


def is_leaf(op: Operation) -> bool:
    """Does `op` add rows into a table of zeros (the gradient of looked-up rows)?"""
    if op.name != "index_add" or int_attr(op.attrs, "axis") != 0:
        return False
    zero = uniform(op.operands[0])
    static = all(isinstance(v.type, TensorType) and v.type.is_static for v in op.operands)
    floating = tensor(op.result).dtype.is_floating
    return static and floating and zero is not None and not zero and not np.signbit(zero)


def _grown(
    graph: Graph,
    leaf: Operation,
    users: dict[Value, list[Operation | None]],
    carried: dict[Value, Value],
) -> Update:
    """All that depends on `leaf` element by element, and the other leaves that meet it there."""
    table = shape_of(leaf.result)
    members, leaves, outside = {leaf}, {leaf}, dict[Value, list[Operation | None]]()
    todo = [leaf]
    while todo:
        value = todo.pop().result
        if value in carried:
            outside.setdefault(value, [])
        for user in users.get(value, ()):
            if user is None or not _is_elementwise(user, table):
                outside.setdefault(value, []).append(user)
                continue
            met = [v.op for v in user.operands if v.op is not None and is_leaf(v.op)]
            for op in (user, *met):
                if op not in members:
                    members.add(op)
                    todo.append(op)
            leaves.update(met)
    ordered = [op for op in graph.ops if op in members]
    update = Update([op for op in ordered if op in leaves])
    update.ops = [op for op in ordered if op not in leaves]
    update.why_dense = worth_it(update.leaves) or _tables(update, outside, carried)
    update.why_dense = update.why_dense or _foreign(update)
    return update


def _is_elementwise(op: Operation, table: object) -> bool:
    return "elementwise" in lookup(op.name).traits and all(
        isinstance(v.type, TensorType) and v.type.shape == table for v in (*op.operands, op.result)
    )


def worth_it(leaves: list[Operation]) -> str:
    """Why sparse updates would not pay; "" if they do.

    A dense step writes zeros and the gradient, reads it and reads and writes k tables: 2k + 3 times
    the table. A sparse one moves about 6k + 6 rows for each id.
    """
    rows, *rest = tensor(leaves[0].result).static_shape
    # the bits are the same in either case
    rows, rest = roughly(rows), [roughly(n) for n in rest]
    ids = roughly(sum(prod(tensor(op.operands[1]).static_shape) for op in leaves))
    if not ids:
        return "there are no ids"
    kinds = {tensor(op.operands[1]).dtype for op in leaves}
    if len(kinds) > 1 and uint64 in kinds:
        return "the ids are of dtypes that have none in common"
    if rows * prod(rest) < LEAST_TABLE:
        return f"the table has only {rows * prod(rest)} elements"
    return "" if ids * ROWS_PER_ID <= rows else f"{ids} ids are too many for {rows} rows"


def _tables(
    update: Update, outside: dict[Value, list[Operation | None]], carried: dict[Value, Value]
) -> str:
    """Find which table each value that is needed outside changes; or why that is not known."""
    without = _Without(update)
    for value, readers in outside.items():
        if value.op not in update.leaves and value not in carried and _is_added(value, readers):
            if _is_zero(without.gradient(value)):
                update.added.add(value)
                continue
        assigned = [r for r in readers if r is not None and r.name == "assign"]
        if not (assigned or value in carried) or value.op in update.leaves:
            where = next((f"'{r.name}'" for r in readers if r is not None), "the caller")
            return f"{where} needs all of what '{_name(value)}' makes"
        table = without.gradient(value)
        update.kept[value] = None
        if isinstance(table, Value) and (
            carried.get(value) is table or any(_reads(table, r.operands[0]) for r in assigned)
        ):
            update.kept[value] = table
        elif isinstance(table, Value):
            update.why_whole = f"without a gradient they are what '{_name(table)}' makes"
        else:
            update.why_whole = without.why or "without a gradient they are 0"
    return "" if update.kept or update.added else "nothing is assigned"


def _is_added(value: Value, readers: Sequence[Operation | None]) -> bool:
    """Whether a value is for nothing but to be added to variables, or subtracted from them."""
    return all(
        r is not None and r.name in _OF_ROWS and r.operands[1] is value and value not in r.control
        for r in readers
    )


def _reads(table: Value, ref: Value) -> bool:
    op = table.op
    return (
        op is not None
        and op.name == "read"
        and op.operands[0].op is not None
        and ref.op is not None
        and op.operands[0].op.attrs.get("name") == ref.op.attrs.get("name")
    )


def _foreign(update: Update) -> str:
    """Why the rows of another operand cannot be had without all of it; "" if they can."""
    seen = {op.result for op in (*update.leaves, *update.ops)}
    todo = [v for op in update.ops for v in op.operands]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        op = value.op
        if op is not None and "elementwise" in lookup(op.name).traits:
            todo += op.operands
        elif op is not None and is_index_map(op) and op.name not in ("broadcast_to", "constant"):
            return f"'{op.name}' has no rows in memory"
    return ""


def _name(value: Value) -> str:
    return value.op.name if value.op is not None else "the argument"


@dataclass(slots=True)
class _Without:
    """Values as they are where all gradients are 0: a number (an array of rank 0), a value, or None
    if that is not known (`why` says where it ended).
    """

    update: Update
    known: dict[Value, Array | Value | None] = field(default_factory=dict)
    why: str = ""

    def gradient(self, value: Value) -> Array | Value | None:
        if not self.known:
            self._compute()
        return self.known.get(value)

    def _compute(self) -> None:
        for leaf in self.update.leaves:
            self.known[leaf.result] = np.zeros((), tensor(leaf.result).dtype.numpy)
        for op in self.update.ops:
            self.known[op.result] = found = self._op(op, [self._operand(v) for v in op.operands])
            if found is None and not self.why:
                self.why = f"'{op.name}' may change every row"

    def _operand(self, value: Value) -> Array | Value | None:
        if value in self.known:
            return self.known[value]
        number = uniform(value)
        return value if number is None else number

    def _op(self, op: Operation, given: list[Array | Value | None]) -> Array | Value | None:
        numbers = [x for x in given if isinstance(x, np.ndarray)]
        if len(numbers) == len(given):
            (array,) = evaluate_op(op.name, numbers, op.attrs)
            return array
        if op.name == "where" and isinstance(given[0], np.ndarray):
            return given[1] if given[0] else given[2]
        if op.name in ("add", "subtract") and _is_zero(given[1]):
            return given[0]
        if op.name == "add" and _is_zero(given[0]):
            return given[1]
        for k in (0, 1) if op.name == "multiply" else (0,) if op.name == "divide" else ():
            other = op.operands[1 - k]
            if _is_zero(given[k]) and _is_scalar(other):
                return given[k]
        return None


def _is_zero(x: Array | Value | None) -> bool:
    return isinstance(x, np.ndarray) and not x


def _is_scalar(value: Value) -> bool:
    """Is `value` one number, repeated?"""
    if value.op is None or value.op.name != "broadcast_to":
        return False
    return prod(tensor(value.op.operands[0]).static_shape) == 1
