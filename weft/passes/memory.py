"""Buffer planning: where every value of a fused graph lives, before anything runs.

Each value gets a `Slot`: an input, a variable's own buffer, a constant, a result (allocated per
call) or a range of the step's arena. Views (reshape) share their operand's slot. A kernel may
write in place over an operand that dies there, if it reads that operand only at the element that
it is writing; a variable is updated in its own buffer if nobody reads the old value afterwards.
The arena is packed by first fit over the values' live ranges, in the order of the graph's ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.types import TensorType

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SlotKind = Literal["input", "variable", "constant", "result", "arena"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`kind` and which one: input/result/constant number, variable name, or byte offset in the
    arena.
    """

    kind: SlotKind
    which: int | str

    def __str__(self) -> str:
        return f"arena+{self.which}" if self.kind == "arena" else f"{self.kind} {self.which}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the step makes after the op at `position` (-1: before all ops)."""

    position: int
    source: Slot
    target: Slot
    nbytes: int
    why: str


@dataclass(slots=True)
class MemoryPlan:
    """slots: where each tensor value is. arena_bytes: the step's scratch. copies: those that
    remain.
    """

    slots: dict[Value, Slot] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    arena_bytes: int = 0
    result_bytes: int = 0
    unshared_bytes: int = 0
    in_place: int = 0

    @property
    def peak_bytes(self) -> int:
        """Bytes that a step adds to what its inputs and variables hold: arena and results."""
        return self.arena_bytes + self.result_bytes

    def describe(self) -> str:
        """One paragraph for people."""
        return (
            f"peak {self.peak_bytes} bytes: arena {self.arena_bytes} (without reuse "
            f"{self.unshared_bytes}), results {self.result_bytes}; {self.in_place} values in "
            f"place, {len(self.copies)} copies"
            + "".join(
                f"\n  copy {c.nbytes} bytes {c.source} -> {c.target}: {c.why}" for c in self.copies
            )
        )


def plan_memory(graph: Graph) -> MemoryPlan:
    """Plan the buffers of a fused graph of static shapes."""
    return _Planner(graph).run()


def in_place_operands(op: Operation) -> list[int]:
    """Operands of a nest that it reads only at the element being written: safe to overwrite."""
    if op.name != "fused":
        return []
    (region,) = op.regions
    space = _nest_shape(op)
    safe: list[int] = []
    for i, arg in enumerate(region.args):
        readers = [o for o in region.ops if arg in o.operands]
        direct = all(
            "elementwise" in lookup(o.name).traits or "reduction" in lookup(o.name).traits
            for o in readers
        )
        if direct and isinstance(arg.type, TensorType) and arg.type.shape == space:
            safe.append(i)
    return safe


def writes_elementwise(value: Value) -> bool:
    """Is `value` a nest's result that is written element by element (not a reduction's)?"""
    if value.op is None or value.op.name != "fused":
        return False
    inner = value.op.regions[0].results[value.index].op
    return inner is not None and "reduction" not in lookup(inner.name).traits


def _nest_shape(op: Operation) -> object:
    for inner in op.regions[0].ops:
        if "reduction" in lookup(inner.name).traits:
            source = inner.operands[0].type
            return source.shape if isinstance(source, TensorType) else None
    last = op.regions[0].results[0].type
    return last.shape if isinstance(last, TensorType) else None


class _Arena:
    """First-fit allocation of byte ranges."""

    def __init__(self) -> None:
        self.used: list[tuple[int, int]] = []  # (offset, size), sorted
        self.peak = 0

    def take(self, size: int) -> int:
        size, offset = _aligned(size), 0
        for start, length in self.used:
            if start - offset >= size:
                break
            offset = start + length
        self.used.append((offset, size))
        self.used.sort()
        self.peak = max(self.peak, offset + size)
        return offset

    def release(self, offset: int) -> None:
        self.used = [u for u in self.used if u[0] != offset]


def _aligned(size: int) -> int:
    return max(size + ALIGNMENT - 1, ALIGNMENT) // ALIGNMENT * ALIGNMENT


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.plan = MemoryPlan()
        self.arena = _Arena()
        self.root: dict[Value, Value] = {}  # value -> the value whose buffer it shares
        self.last_use: dict[Value, int] = {}  # of root values, as op positions
        self.assigns: dict[str, list[int]] = {}
        self.made_at = {r: i for i, op in enumerate(graph.ops) for r in op.results}
        self.targets: dict[Value, Slot] = {}
        self.live: dict[int, int] = {}  # arena offset -> last position at which it is needed

    def run(self) -> MemoryPlan:
        self._find_views_and_uses()
        for i, arg in enumerate(self.graph.args):
            self.plan.slots[arg] = Slot("input", i)
        self._choose_targets()
        for position, op in enumerate(self.graph.ops):
            self._place(position, op)
        self._finish_results()
        self.plan.arena_bytes = self.arena.peak
        return self.plan

    # -- analysis ---------------------------------------------------------------------------------

    def _find_views_and_uses(self) -> None:
        for position, op in enumerate(self.graph.ops):
            for value in op.operands:
                self.last_use[self._root(value)] = position
            if "view" in lookup(op.name).traits:
                self.root[op.result] = self._root(op.operands[0])
            if op.name == "assign":
                self.assigns.setdefault(_variable_name(op.operands[0]), []).append(position)
        for value in self.graph.results:
            self.last_use[self._root(value)] = len(self.graph.ops)

    def _root(self, value: Value) -> Value:
        return self.root.get(value, value)

    def _choose_targets(self) -> None:
        """Find the values that are computed straight into a variable's buffer or a result."""
        for name, positions in self.assigns.items():
            value = self._root(self.graph.ops[positions[0]].operands[1])
            free = len(positions) == 1 and self._is_computed(value)
            if free and self._old_value_dead(name, self.made_at[value], value):
                self.targets[value] = Slot("variable", name)
        for i, result in enumerate(self.graph.results):
            value = self._root(result)
            if self._is_computed(value) and isinstance(value.type, TensorType):
                self.targets[value] = Slot("result", i)

    def _is_computed(self, value: Value) -> bool:
        """Is `value` made by a kernel that no target claims yet, so that it may go anywhere?"""
        held = ("read", "constant", "variable")
        return value.op is not None and value.op.name not in held and value not in self.targets

    def _old_value_dead(self, name: str, position: int, value: Value) -> bool:
        """May `value`, made at `position`, overwrite variable `name`: is the old value not needed
        then?
        """
        for i, op in enumerate(self.graph.ops):
            if op.name != "read" or _variable_name(op.operands[0]) != name:
                continue
            if i > self.assigns[name][0]:
                continue  # reads the new value
            last = self.last_use.get(op.result, -1)
            if last > position or i > position:
                return False
            if last == position and not self._reads_in_place(value, op.result):
                return False
        return True

    def _reads_in_place(self, written: Value, read: Value) -> bool:
        op = written.op
        if op is None or not writes_elementwise(written):
            return False
        safe = in_place_operands(op)
        return all(i in safe for i, v in enumerate(op.operands) if self._root(v) is read)

    # -- placement --------------------------------------------------------------------------------

    def _place(self, position: int, op: Operation) -> None:
        if op.name in ("variable", "assign", "group"):
            if op.name == "assign":
                self._place_assign(position, op)
        elif op.name == "read":
            self._place_read(position, op)
        elif op.name == "constant":
            self.plan.slots[op.result] = Slot("constant", len(self.plan.constants))
            self.plan.constants.append(op)
        elif "view" in lookup(op.name).traits:
            self.plan.slots[op.result] = self.plan.slots[op.operands[0]]
        else:
            reusable = self._dying_operands(position, op)
            for value in op.results:
                if value in self.targets:
                    self.plan.slots[value] = self.targets[value]
                    if self.targets[value].kind == "variable":
                        self.plan.in_place += 1
                elif not (writes_elementwise(value) and self._reuse(value, reusable, position)):
                    self._allocate(value, position)
        for offset in [o for o, last in self.live.items() if last <= position]:
            del self.live[offset]
            self.arena.release(offset)

    def _place_assign(self, position: int, op: Operation) -> None:
        name, value = _variable_name(op.operands[0]), op.operands[1]
        target = Slot("variable", name)
        source = self.plan.slots[value]
        if source != target:
            self._copy(position, source, target, value, "its value is needed elsewhere too")

    def _place_read(self, position: int, op: Operation) -> None:
        name = _variable_name(op.operands[0])
        target = Slot("variable", name)
        last = self.last_use.get(op.result, position)
        writes = [p for p in self.assigns.get(name, ()) if p > position]
        early = [self._write_position(name, p) for p in writes]
        if all(last <= p for p in early):
            self.plan.slots[op.result] = target
        else:
            self._allocate(op.result, position)
            self._copy(
                position,
                target,
                self.plan.slots[op.result],
                op.result,
                "the variable changes while its old value is in use",
            )

    def _write_position(self, name: str, assign: int) -> int:
        """When the buffer really changes: at the op that computes in place, or at the assign."""
        value = self._root(self.graph.ops[assign].operands[1])
        in_place = self.targets.get(value) == Slot("variable", name)
        return self.made_at[value] if in_place else assign

    def _dying_operands(self, position: int, op: Operation) -> list[Value]:
        safe = in_place_operands(op)
        out = []
        for i in safe:
            value = self._root(op.operands[i])
            slot = self.plan.slots[value]
            unsafe = any(self._root(v) is value for j, v in enumerate(op.operands) if j not in safe)
            if (
                slot.kind == "arena"
                and self.last_use[value] == position
                and not unsafe
                and value not in out
            ):
                out.append(value)
        return out

    def _reuse(self, value: Value, candidates: list[Value], position: int) -> bool:
        assert isinstance(value.type, TensorType)
        for candidate in candidates:
            held = candidate.type
            same = isinstance(held, TensorType) and held.dtype.itemsize == value.type.dtype.itemsize
            if same and isinstance(held, TensorType) and held.shape == value.type.shape:
                slot = self.plan.slots[candidate]
                candidates.remove(candidate)
                self.plan.slots[value] = slot
                self.plan.in_place += 1
                self.plan.unshared_bytes += _aligned(value.type.nbytes)
                assert isinstance(slot.which, int)
                self.live[slot.which] = self.last_use.get(value, position)
                return True
        return False

    def _allocate(self, value: Value, position: int) -> None:
        if not isinstance(value.type, TensorType):
            return
        offset = self.arena.take(value.type.nbytes)
        self.plan.unshared_bytes += _aligned(value.type.nbytes)
        self.plan.slots[value] = Slot("arena", offset)
        self.live[offset] = self.last_use.get(value, position)

    def _finish_results(self) -> None:
        end = len(self.graph.ops) - 1
        for i, value in enumerate(self.graph.results):
            if not isinstance(value.type, TensorType):
                continue
            self.plan.result_bytes += value.type.nbytes
            slot, target = self.plan.slots[value], Slot("result", i)
            if slot != target:
                self._copy(
                    end, slot, target, value, "a result never shares a buffer with anything else"
                )

    def _copy(self, position: int, source: Slot, target: Slot, value: Value, why: str) -> None:
        assert isinstance(value.type, TensorType)
        self.plan.copies.append(Copy(position, source, target, value.type.nbytes, why))


def _variable_name(ref: Value) -> str:
    assert ref.op is not None
    name = ref.op.attrs["name"]
    assert isinstance(name, str)
    return name
