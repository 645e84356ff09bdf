"""Plays a memory plan: every op finds in its operands' slots what it needs.

`play` knows nothing of how the planner works. It keeps, for each byte range, whose contents it
holds, walks the ops and copies in order, and demands that each read finds the contents that the
graph's meaning says are there, and that an op overwrites its own operand only element by element.
"""

from __future__ import annotations

from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.types import TensorType
from weft.passes.memory import MemoryPlan, Slot


class Memory:
    """Whose contents each buffer, and each range of the arena, holds."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, int | str], object] = {}
        self.arena: list[tuple[int, int, object]] = []

    def write(self, slot: Slot, nbytes: int, contents: object) -> None:
        assert slot.kind not in ("input", "constant"), f"{slot} is overwritten"
        if slot.kind != "arena":
            self.buffers[slot.kind, slot.which] = contents
            return
        assert isinstance(slot.which, int)
        start, stop = slot.which, slot.which + nbytes
        # an empty range overlaps nothing, but what is written there anew replaces it too
        apart = [r for r in self.arena if r[1] <= start or stop <= r[0]]
        self.arena = [r for r in apart if r[:2] != (start, stop)]
        self.arena.append((start, stop, contents))

    def holds(self, slot: Slot, nbytes: int, contents: object) -> bool:
        if slot.kind != "arena":
            return self.buffers.get((slot.kind, slot.which)) == contents
        assert isinstance(slot.which, int)
        return nbytes == 0 or (slot.which, slot.which + nbytes, contents) in self.arena


def nbytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.nbytes


def overlap(a: Slot, b: Slot, a_bytes: int, b_bytes: int) -> bool:
    if a.kind != b.kind:
        return False
    if a.kind != "arena":
        return a.which == b.which
    assert isinstance(a.which, int)
    assert isinstance(b.which, int)
    return a.which < b.which + b_bytes and b.which < a.which + a_bytes


def play(graph: Graph, plan: MemoryPlan) -> None:
    """Carry the plan out on `Memory`; AssertionError where an op would read the wrong contents."""
    memory, meaning, state = Memory(), dict[Value, object](), dict[str, object]()
    for i, arg in enumerate(graph.args):
        meaning[arg] = memory.buffers["input", i] = ("input", i)
    for k, op in enumerate(plan.constants):
        memory.buffers["constant", k] = ("constant", op.result)
    for op in graph.ops:
        if op.name == "variable":
            name = str(op.attrs["name"])
            state[name] = memory.buffers["variable", name] = ("before", name)
    run_copies(plan, memory, -1)
    for position, op in enumerate(graph.ops):
        step(op, plan, memory, meaning, state)
        run_copies(plan, memory, position)
        assert_state(op, memory, state)
    for i, value in enumerate(graph.results):
        if isinstance(value.type, TensorType):
            assert memory.holds(Slot("result", i), nbytes(value), meaning[value]), f"result {i}"
    for name, contents in state.items():
        assert memory.holds(Slot("variable", name), 0, contents), f"variable {name}"


def step(
    op: Operation,
    plan: MemoryPlan,
    memory: Memory,
    meaning: dict[Value, object],
    state: dict[str, object],
) -> None:
    if op.name in ("variable", "group"):
        return
    if op.name == "assign":
        state[str(op.operands[0].op.attrs["name"])] = meaning[op.operands[1]]
        return
    if op.name == "read":
        meaning[op.result] = state[str(op.operands[0].op.attrs["name"])]
        return
    if op.name == "constant":
        meaning[op.result] = ("constant", op.result)
        return
    if "view" in lookup(op.name).traits:
        meaning[op.result] = meaning[op.operands[0]]
        assert plan.slots[op.result] == plan.slots[op.operands[0]]
        return
    for v in op.operands:
        assert memory.holds(plan.slots[v], nbytes(v), meaning[v]), f"{op}: {v} is gone"
    for j, r in enumerate(op.results):
        for i, v in enumerate(op.operands):
            if overlap(plan.slots[r], plan.slots[v], nbytes(r), nbytes(v)):
                assert may_overwrite(op, i, j), f"{op}: result {j} overwrites operand {i}"
        for other in op.results[:j]:
            assert not overlap(plan.slots[r], plan.slots[other], nbytes(r), nbytes(other))
    for r in op.results:
        meaning[r] = ("value", r)
        memory.write(plan.slots[r], nbytes(r), meaning[r])


def may_overwrite(op: Operation, operand: int, result: int) -> bool:
    """Is element k of the operand read for nothing but element k of the nest?"""
    if op.name != "fused":
        return False
    (region,) = op.regions
    arg, out = region.args[operand], region.results[result]
    element_by_element = out.op is None or "reduction" not in lookup(out.op.name).traits
    direct = all(
        lookup(o.name).traits & {"elementwise", "reduction"}
        for o in region.ops
        if arg in o.operands
    )
    assert isinstance(arg.type, TensorType)
    assert isinstance(out.type, TensorType)
    same = (arg.type.shape, arg.type.dtype.bits) == (out.type.shape, out.type.dtype.bits)
    return element_by_element and direct and same


def run_copies(plan: MemoryPlan, memory: Memory, position: int) -> None:
    for copy in plan.copies:
        if copy.position != position:
            continue
        if copy.source.kind == "arena":
            assert isinstance(copy.source.which, int)
            wanted = (copy.source.which, copy.source.which + copy.nbytes)
            found = [r[2] for r in memory.arena if r[:2] == wanted]
            assert found or copy.nbytes == 0, f"nothing at {copy.source} to copy"
            contents = found[0] if found else None
        else:
            contents = memory.buffers[copy.source.kind, copy.source.which]
        memory.write(copy.target, copy.nbytes, contents)


def assert_state(op: Operation, memory: Memory, state: dict[str, object]) -> None:
    if op.name == "assign":
        name = str(op.operands[0].op.attrs["name"])
        assert memory.holds(Slot("variable", name), 0, state[name]), f"{name} was not assigned"
