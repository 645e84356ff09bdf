"""The order of effects, made explicit and minimal; reads of unchanged state merged or forwarded.

Before::

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
it waited for.
"""

from __future__ import annotations

from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.effects import StateKey, accesses
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.source import Locations
from weft.passes.rewrite import (
    bind,
    has_effect,
    rebuilt,
    relocate,
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
                bits |= effects.add(new, control)
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
