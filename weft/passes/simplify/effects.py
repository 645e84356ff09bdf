"""Effects in canonical form: updates expanded, their order explicit and minimal, marks removed.

`expand_updates`: an update of a variable becomes a read, an op and an assignment, which other
passes know. Before::

    %1 = assign_add(%0, %x) after(%t) : f32[4]
    %2 = read(%0) after(%1) : f32[4]
    return %1

After::

    %1 = read(%0) after(%t) : f32[4]
    %2 = add(%1, %x) : f32[4]
    %3 = assign(%0, %2) after(%t) : token
    %4 = identity(%2) after(%3) : f32[4]
    %5 = read(%0) after(%3) : f32[4]
    return %4

It runs on what becomes one compiled step: the step holds the variable's lock from the first of
these ops to the last, so the update is still one access to everybody else.

`order_effects`: reads of unchanged state are merged or forwarded. Before::

    %1 = read(%0) : f32[4]
    %2 = add(%1, %x) : f32[4]
    %3 = assign(%0, %2) : token
    %4 = read(%0) after(%3) : f32[4]

After: `%3` is ``after(%1)``, which only its data said before, and `%4` is `%2`, the value just
stored.

Two ops conflict if they touch the same state and one of them writes; an op that must run and names
no state conflicts with every effect. Afterwards each effect has exactly the control operands that
order it after the conflicting effects before it, less those that follow from others, and pure ops
have none: they may be rewritten and moved by their data alone. A group waits for all effects that
it waited for. Calls of Python (prints, checks) and assignments keep the order in which they stand:
what has been printed or stored when a step fails is what the program says.

`strip_gradient_ops`: remove the ops that only tell autodiff or people something, when no more
gradients will be taken, and do both of the above. Before::

    %1 = stop_gradient(%0) : f32[4]
    %2 = custom_gradient(%1, %x) {outputs=1, inputs=1} : f32[4] { ... }
    return %2

After: ``return %0``, and the graph's stage is `optimized`.

Two passes do a part of this on a graph that will be cut, whose parts put their effects in order by
themselves. `merge_reads` makes one read of those of one variable that come after the same ops: what
is written comes before both, or after both. `strip_marks` removes the marks that order no effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.ir.analysis.effects import StateKey, accesses, calls_python
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import int64, uint64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops.builder import Builder
from weft.ir.ops.state import UPDATES
from weft.ir.spec import int_attr
from weft.passes.rewriting.rewrite import (
    bind,
    emit_at,
    extend,
    has_effect,
    rebuilt,
    relocate,
    rewrite,
    tensor,
    with_block,
    with_control,
    with_operands,
)


def order_effects(graph: Graph) -> Graph:
    """Make the order of effects explicit (see the module's text), inside regions too."""
    return with_block(graph, _order_block(graph.block))


@dataclass(slots=True)
class _Effects:
    """The effects seen so far, numbered; sets of them are the bits of ints."""

    ops: list[Operation] = field(default_factory=list)
    reads: dict[StateKey, int] = field(default_factory=dict)
    writes: dict[StateKey, int] = field(default_factory=dict)
    unknown: int = 0
    before: list[int] = field(default_factory=list)  # what the kept control operands already imply

    def conflicts(self, op: Operation) -> int:
        """All earlier effects that may not be reordered with `op`."""
        touched = list(accesses(op))
        if not touched:
            return (1 << len(self.ops)) - 1
        mask = self.unknown
        for access in touched:
            mask |= self.writes.get(access.key, 0)
            mask |= self.reads.get(access.key, 0) if access.writes else 0
        return mask

    def reduced(self, bits: int) -> list[int]:
        """The numbers in `bits` that do not follow from later ones, in order."""
        out: list[int] = []
        while bits:
            number = bits.bit_length() - 1
            out.append(number)
            bits &= ~(self.before[number] | (1 << number))
        return out[::-1]

    def add(self, op: Operation, control: list[int]) -> int:
        """Number a new effect, ordered after `control`; returns its bit."""
        bit = 1 << len(self.ops)
        self.ops.append(op)
        implied = 0
        for number in control:
            implied |= self.before[number] | (1 << number)
        self.before.append(implied)
        touched = list(accesses(op))
        if not touched:
            self.unknown |= bit
        for access in touched:
            table = self.writes if access.writes else self.reads
            table[access.key] = table.get(access.key, 0) | bit
        return bit


def _order_block(block: Block) -> Block:
    effects = _Effects()
    past: dict[Value, int] = {}  # the effects that come before each value
    called = assigned = 0  # the calls of Python, and assignments
    reads: dict[object, Operation] = {}
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    merged: dict[Operation, list[Locations]] = {}
    for op in block.ops:
        new = with_operands(op, mapping, op.regions and tuple(map(_order_block, op.regions)))
        bits = 0
        for value in (*new.operands, *new.control):
            if value in past:
                bits |= past[value]
        python = calls_python(op)
        if python or op.name == "assign":
            bits |= called  # in the order of the program, whatever they depend on
        if python:
            bits |= assigned
        if not (has_effect(op) or op.name == "group"):
            new = with_control(new, ()) if new.control else new
        else:
            effect = op.name != "group"
            control = effects.reduced(bits & effects.conflicts(op) if effect else bits)
            before = [effects.ops[i] for i in control]
            if op.name == "read":
                known = _stored_value(new, before) or _earlier_read(new, before, reads, merged)
                if known is not None:
                    past[known] = past.get(known, 0) | bits
                    bind(mapping, op, [known])
                    continue
            new = with_control(new, [e.results[0] for e in before])
            if op.name == "read":
                reads[_state_key(new, before)] = new
            if effect:
                bit = effects.add(new, control)
                bits |= bit
                called |= bit if python else 0
                assigned |= bit if op.name == "assign" else 0
        if bits:
            for value in new.results:
                past[value] = bits
        bind(mapping, op, new.results)
        ops.append(new)
    results = [mapping.get(v, v) for v in block.results]
    return relocate(rebuilt(block, ops, results), merged)


def _state_key(read: Operation, before: list[Operation]) -> object:
    (access,) = accesses(read)
    return (access.key, read.result.type, tuple(before))


def _stored_value(read: Operation, before: list[Operation]) -> Value | None:
    """The value that an assignment has just stored, if that is all that happened before."""
    if len(before) == 1 and before[0].name == "assign":
        stored = before[0].operands[1]
        return stored if stored.type == read.result.type else None
    return None


def _earlier_read(
    read: Operation,
    before: list[Operation],
    reads: dict[object, Operation],
    merged: dict[Operation, list[Locations]],
) -> Value | None:
    """The result of an earlier read after the same writes."""
    first = reads.get(_state_key(read, before))
    if first is None:
        return None
    merged.setdefault(first, []).append(read.locations)
    return first.result


def merge_reads(graph: Graph) -> Graph:
    """Merge reads that come after the same ops, inside regions too."""
    return with_block(graph, _one_read(graph.block))


def _one_read(block: Block) -> Block:
    mapping: dict[Value, Value] = {}
    reads: dict[object, Operation] = {}
    ops: list[Operation] = []
    merged: dict[Operation, list[Locations]] = {}
    for op in block.ops:
        new = with_operands(op, mapping, op.regions and tuple(map(_one_read, op.regions)))
        first = new
        if op.name == "read":
            first = reads.setdefault((*new.operands, frozenset(new.control)), new)
        if first is new:
            ops.append(new)
        else:
            merged.setdefault(first, []).append(op.locations)
        bind(mapping, op, first.results)
    return relocate(rebuilt(block, ops, [mapping.get(v, v) for v in block.results]), merged)


def expand_updates(graph: Graph) -> Graph:
    """Expand every update (see the module's text), inside regions too; same object if there is
    none."""
    if not any(op.name in UPDATES for op in graph.walk()):
        return graph
    return with_block(graph, _expanded(graph.block))


def _expanded(block: Block) -> Block:
    builder = extend(block)
    values: dict[Value, Value] = {}  # what stands for a value where it is read
    order: dict[Value, Value] = {}  # and where something comes after it
    read = {v for op in block.ops for v in op.operands} | set(block.results)
    for op in block.ops:
        operands = [values.get(v, v) for v in op.operands]
        control = list(dict.fromkeys(order.get(v, values.get(v, v)) for v in op.control))
        if op.name not in UPDATES:
            regions = tuple(_expanded(r) for r in op.regions)
            types = [r.type for r in op.results]
            same = (*operands, *control) == (*op.operands, *op.control) and regions == op.regions
            made = op if same else Operation(
                op.name, operands, op.attrs, types, regions, control, op.locations,
                device=op.device, group=op.group,
            )  # fmt: skip
            builder.ops.append(made)
            values.update(zip(op.results, made.results, strict=True))
            continue
        ref, *given = operands
        where = op.locations
        # one access: its operands, and the effects that they wait for, come before all of it
        before = dict.fromkeys([*control, *(v for v in given if v.op is not None)])
        (old,) = builder.emit("read", [ref], control=list(before), locations=where)
        new = _combined(builder, op, old, given)
        (token,) = builder.emit("assign", [ref, new], control=control, locations=where)
        order[op.result] = values[op.result] = token
        if op.result in read:
            (after,) = builder.emit("identity", [new], control=[token], locations=where)
            values[op.result] = after
    return rebuilt(block, builder.ops, [values.get(v, v) for v in block.results])


def _combined(builder: Builder, op: Operation, old: Value, given: list[Value]) -> Value:
    """The new value, from the old one and the operands after the handle."""
    if op.name in ("assign_add", "assign_sub"):
        name = "add" if op.name == "assign_add" else "subtract"
        return emit_at(builder, op, name, old, *given)
    indices, updates = given
    kind = tensor(indices)
    if kind.dtype not in (int64, uint64):
        indices = emit_at(builder, op, "astype", indices, dtype=int64)
    indices = emit_at(builder, op, "reshape", indices, shape=(*kind.shape, 1))
    if op.name == "scatter_sub":
        updates = emit_at(builder, op, "negative", updates)
    name = "scatter_nd_update" if op.name == "scatter_update" else "scatter_nd_add"
    return emit_at(builder, op, name, old, indices, updates)


def strip_gradient_ops(graph: Graph) -> Graph:
    """Replace `identity`, `stop_gradient`, `tap`, `row_guard` and the like by the operands
    they pass on.

    Orders effects first, or the order that such an op stands for would be lost, and expands
    updates, of which no later stage knows.
    """
    new = rewrite(order_effects(expand_updates(graph)), strip_mark)
    return new.at_stage("optimized") if new.stage == "traced" else new


def strip_marks(graph: Graph) -> Graph:
    """Replace what only tells autodiff something where it orders no effects."""
    return rewrite(graph, strip_mark)


def strip_barriers(graph: Graph) -> Graph:
    """Replace each `optimization_barrier` by its operand, when no pass follows that merges equal
    ops."""
    return rewrite(graph, lambda _, op: op.operands if op.name == "optimization_barrier" else None)


def strip_mark(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """The rule by which one mark goes; marks that take part in the order of effects stay."""
    if op.name in ("identity", "stop_gradient", "tap", "loop_mark", "row_guard"):
        return op.operands[:1]
    if op.name == "custom_gradient":
        return op.operands[: int_attr(op.attrs, "outputs")]
    return None
