"""Which ops touch which state, and whether the graph itself orders them.

The order of ops in a block means nothing by itself: two ops on the same variable, one of which
writes, must be joined by a path of operands and control operands (design, section 2). Objects of
the host (queues ...) are shared with other steps, so ops on one need not be ordered; the frontend
orders those in the body of a loop or branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import OPS
from weft.ir.types import HandleType, RefType

#: What identifies state or an object of the host: a name, or a block argument that is a ref or a
#: handle.
StateKey = str | Value
#: What ops of the host that name no object have in common: Python functions, files.
HOST = "<host>"

# regions that are not executed where they stand, only transformed by autodiff
_INERT = frozenset({"custom_gradient"})


@dataclass(frozen=True, slots=True)
class Access:
    """`op` reads, or writes, the state `key`."""

    op: Operation
    key: StateKey
    writes: bool


def state_key(ref: Value, known: Mapping[Value, StateKey] | None = None) -> StateKey:
    """The variable behind a value of ref type; for a block argument `known` may say it."""
    while ref.op is not None and ref.op.name in ("enter", "switch", "identity"):
        ref = ref.op.operands[0]
    if ref.op is not None and not ref.op.operands:
        name = str(ref.op.attrs["name"])
        return f"<{ref.type.kind}> {name}" if isinstance(ref.type, HandleType) else name
    return (known or {}).get(ref, ref)


def region_keys(
    op: Operation, region: Block, known: Mapping[Value, StateKey]
) -> dict[Value, StateKey]:
    """What the arguments of `region` that are refs or handles stand for: operands of `op`."""
    operands = op.operands[1:] if op.name == "cond" else op.operands
    if len(region.args) != len(operands):
        return {}
    return {
        arg: state_key(operand, known)
        for arg, operand in zip(region.args, operands, strict=True)
        if isinstance(arg.type, (RefType, HandleType))
    }


def accesses(op: Operation, known: Mapping[Value, StateKey] | None = None) -> Iterator[Access]:
    """The state that `op` touches, itself or in the regions that it runs."""
    known = known or {}
    traits = OPS[op.name].traits if op.name in OPS else frozenset()
    if traits & {"reads_state", "writes_state"}:
        for value in op.operands:
            if isinstance(value.type, RefType):
                yield Access(op, state_key(value, known), "writes_state" in traits)
    if op.name not in _INERT:
        for region in op.regions:
            inside = region_keys(op, region, known)
            for inner in region.ops:
                for found in accesses(inner, inside):
                    yield Access(op, found.key, found.writes)


def host_keys(op: Operation, known: Mapping[Value, StateKey] | None = None) -> list[StateKey]:
    """The objects of the host that `op` acts on, itself or in the regions that it runs, each once.

    HOST for an op that acts and names none. Ops of the host that only compute act on nothing.
    """
    known = known or {}
    found: list[StateKey] = []
    if op.name in OPS and {"host", "no_dce"} <= OPS[op.name].traits:
        handles = [v for v in op.operands if isinstance(v.type, (HandleType, RefType))]
        found = [state_key(v, known) for v in handles] or [HOST]
    if op.name not in _INERT:
        for region in op.regions:
            inside = region_keys(op, region, known)
            found += (key for inner in region.ops for key in host_keys(inner, inside))
    return list(dict.fromkeys(found))


def effect_keys(op: Operation, known: Mapping[Value, StateKey] | None = None) -> list[StateKey]:
    """All that `op` reads, writes or acts on: state and objects of the host, each once."""
    found = [access.key for access in accesses(op, known)]
    return list(dict.fromkeys([*found, *host_keys(op, known)]))


def unordered(
    block: Block,
    known: Mapping[Value, StateKey] | None = None,
    order: Sequence[Operation] | None = None,
    also_after: Mapping[Operation, Sequence[Value]] | None = None,
) -> list[tuple[Access, Access]]:
    """Pairs of accesses to the same state, one of them a write, that no path orders.

    The block must be in SSA form. order, also_after: another order of its ops, and values after
    which an op comes besides its operands. Costs one bit per access for each value of the block.
    """
    found: dict[StateKey, list[tuple[int, Access]]] = {}  # with the bit of the accessing op
    before: dict[Value, int] = {}  # bits of the accessing ops that come before or make the value
    pairs: list[tuple[Access, Access]] = []
    count = 0
    for op in order or block.ops:
        past = 0
        for value in (*op.operands, *op.control, *(also_after or {}).get(op, ())):
            past |= before.get(value, 0)
        own = 0
        touched = list(dict.fromkeys(accesses(op, known)))
        if touched:
            own, count = 1 << count, count + 1
        for access in touched:
            earlier = found.setdefault(access.key, [])
            for bit, other in earlier:
                if (access.writes or other.writes) and not past & bit and other.op is not op:
                    pairs.append((other, access))
            earlier.append((own, access))
        for result in op.results:
            before[result] = past | own
    return pairs
