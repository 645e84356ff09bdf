"""Effects: the state that each op reads or writes, and accesses that nothing in the graph orders.

The order of ops in a block means nothing by itself: two ops on the same variable, one of which
writes, must be joined by a path of operands and control operands. Objects of the host (queues ...)
are shared with other steps, so ops on one need not be ordered; the frontend orders those in the
body of a loop or branch. Ops that Python carries out when a step runs are those of the host, and
all that touch strings (`runs_on_host`).

Iterations of a frame overlap. Two accesses to one variable, one of them a write, are in order over
the iterations of a dataflow graph if all that starts an iteration, its next_iterations, comes after
the first of them in the one before, or if one that does feeds a merge that the second comes after
(`overlapping`)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from weft.ir.analysis.frames import Frame, Frames
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_JOB, DeviceSpec
from weft.ir.dtypes import string
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import OPS
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.types import HandleType, RefType, TensorType, Type

#: What identifies state or an object of the host: a name, or a block argument that is a ref or a
#: handle.
StateKey = str | Value
#: What ops of the host that name no object have in common: Python functions, files.
HOST = "<host>"

#: Ops whose regions are not executed where they stand, only transformed by autodiff.
INERT = frozenset({"custom_gradient"})


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
    if op.name not in INERT:
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
    if op.name not in INERT:
        for region in op.regions:
            inside = region_keys(op, region, known)
            found += (key for inner in region.ops for key in host_keys(inner, inside))
    return list(dict.fromkeys(found))


def calls_python(op: Operation) -> bool:
    """Whether `op`, or one in the regions that it runs, is a call of Python that keeps the order of
    the program (`io.PYTHON_CALLS`)."""
    if op.name in PYTHON_CALLS:
        return bool(op.attrs.get("ordered", True))
    inside = () if op.name in INERT else op.regions
    return any(calls_python(inner) for region in inside for inner in region.ops)


def effect_keys(op: Operation, known: Mapping[Value, StateKey] | None = None) -> list[StateKey]:
    """All that `op` reads, writes or acts on: state and objects of the host, each once."""
    found = [access.key for access in accesses(op, known)]
    return list(dict.fromkeys([*found, *host_keys(op, known)]))


#: The ops on variables whose shape may change.
_OPEN_OPS = frozenset({"read_open", "assign_open", "update_open"})


def open_keys(
    name: str, operands: Sequence[Value], regions: Sequence[Block], known: Container[StateKey]
) -> list[StateKey]:
    """The variables whose shape may change that an op is to touch, itself or in the regions that it
    runs: the names in `known`, and arguments of a region that stand for some."""
    if not (regions or name in _OPEN_OPS):
        return []
    found = dict.fromkeys(a.key for a in accesses(Operation(name, operands, {}, (), regions)))
    return [key for key in found if key in known or _is_open(key)]


def _is_open(key: StateKey) -> bool:
    kind = key.type if isinstance(key, Value) else None
    return isinstance(kind, RefType) and not kind.tensor.is_static


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


def overlapping(frames: Frames) -> Iterator[tuple[Frame, Access, Access]]:
    """A frame, and two accesses in it, the second of which may come first in the next iteration."""
    found = [access for op in frames.order for access in dict.fromkeys(accesses(op))]
    if not any(access.writes for access in found):
        return
    starts = {access.op for access in found}
    starts.update(merge for frame in frames.inner for merge in frame.merges)
    past = _past(frames, {op: i for i, op in enumerate(starts)})
    bit = {op: 1 << i for i, op in enumerate(starts)}
    for frame in frames.inner:
        if frame.parallel_iterations == 1 or not frame.nexts:
            continue
        inside = [a for a in found if frame in frames.of_op[a.op].around()]
        nexts = [(merge, past[following]) for merge, following in frame.nexts.items()]
        for first in inside:
            own = bit[first.op]
            if all(before & own for _, before in nexts):
                continue
            chained = sum(bit[merge] for merge, before in nexts if before & own)
            for second in inside:
                if first.key == second.key and (first.writes or second.writes):
                    if not past[second.op] & chained:
                        yield frame, first, second


def _past(frames: Frames, number: dict[Operation, int]) -> dict[Operation, int]:
    """For each op the bits of the numbered ops that come before it in its iteration, or it is."""
    after_loops = frames.after_loops()
    out: dict[Operation, int] = {}
    for op in frames.order:
        bits = 1 << number[op] if op in number else 0
        values: list[Value] = [*op.operands, *op.control, *after_loops.get(op, ())]
        for value in values:
            if value.op is not None:
                bits |= out[value.op]
        out[op] = bits
    return out


def is_string(t: Type) -> bool:
    """Whether values of the type are strings, which native code cannot look into."""
    return isinstance(t, TensorType) and t.dtype is string


def runs_on_host(op: Operation) -> bool:
    """Whether no compiled step holds the op: it has the trait "host", or an operand or result of
    strings, the elements of which are Python's objects."""
    return _has_strings(op) or "host" in OPS[op.name].traits


def _has_strings(op: Operation) -> bool:
    return any(is_string(v.type) for v in (*op.operands, *op.results))


def is_open_call(op: Operation) -> bool:
    """Whether a call of Python (`io.PYTHON_CALLS`) is none of a native plan: it takes or gives
    strings, or its function says the size of a result."""
    made = [v.type for v in op.results]
    is_open = any(isinstance(t, TensorType) and not t.is_static for t in made)
    return is_open or _has_strings(op)


def host_op_of(graph: Graph, gpu: int | None = None) -> Operation | None:
    """The first op, regions included, that one native plan does not hold, or that names a device;
    None if there is none. gpu: of a plan for the GPU of this number, whose name ops may have."""
    there = None if gpu is None else DeviceSpec(LOCAL_JOB, 0, "gpu", gpu)
    return next((op for op in graph.walk() if _is_of_host(op, there)), None)


def _is_of_host(op: Operation, there: DeviceSpec | None) -> bool:
    if op.name in PYTHON_CALLS:
        return is_open_call(op)
    if op.device and (there is None or not DeviceSpec.parse(op.device).matches(there)):
        return True
    return op.name in DATAFLOW or runs_on_host(op)


def needs_host(graph: Graph, gpu: int | None = None) -> bool:
    """Whether a graph may need more than one native plan of the CPU, or one for the GPU of this
    number."""
    types = [v.type for v in (*graph.args, *graph.results)]
    return any(map(is_string, types)) or host_op_of(graph, gpu) is not None


def written_in(graph: Graph) -> frozenset[str]:
    """The variables that a graph writes, by their names in it."""
    found = (access for op in graph.ops for access in accesses(op) if access.writes)
    return frozenset(str(access.key) for access in found)
