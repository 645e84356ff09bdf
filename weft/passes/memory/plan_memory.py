"""Buffer planning: where every value of a fused graph lives, before anything runs.

Each value gets a `Slot`: an input, a variable's own buffer, a constant, a result (allocated per
call) or a range of the step's arena. Views (reshape) share their operand's slot. A kernel may
write in place over an operand that dies there, if it reads that operand only at the element that
it is writing; a variable is updated in its own buffer if nobody reads the old value afterwards.
The arena is packed over the values' live ranges, in the order of the graph's ops (`plan.Arena`).
Control flow is in `memory/loops.py`, what holds for every block in `memory/block.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.graph import Graph, Operation, Value
from weft.ir.types import TensorType
from weft.passes.failures import checks, may_fail_midway
from weft.passes.memory.block import BlockPlanner, Shared
from weft.passes.memory.in_place import UPDATES, in_place_operands
from weft.passes.memory.loops import iterations, place_control
from weft.passes.memory.plan import Copy, MemoryPlan, Moving, Slot

__all__ = [
    "Copy", "MemoryPlan", "Moving", "Slot", "in_place_operands", "iterations", "plan_memory",
]  # fmt: skip


def _never(op: Operation) -> bool:
    return False


def plan_memory(
    graph: Graph,
    in_registers: Callable[[Operation], int] = _never,
    donated: Sequence[int] = (),
    in_parts: Callable[[Operation], bool] = _never,
    scratch_of: Callable[[Operation], int] = _never,
    by_bytes: bool = False,
) -> MemoryPlan:
    """Plan the buffers of a fused graph of static shapes.

    donated: inputs that may be overwritten, each by one result (`MemoryPlan.donated`) of its type;
    by_bytes: or else of as many bytes, or that is the input itself.

    in_registers: which `cond`, `while` and `scan` ops are one kernel, so that nothing of their
    regions lives in memory but what has more elements than it says. in_parts: which loops run in
    parts: some bytes of each buffer belong to one part, which may be iterations ahead of another,
    so that only values of the same shape may share a buffer in the body. scratch_of: bytes that an
    op needs for itself and that shall be in the arena (`MemoryPlan.scratch`). No block may be the
    region of two ops.
    """
    return _StepPlanner(graph, in_registers, in_parts, scratch_of).plan_step(donated, by_bytes)


class _StepPlanner(BlockPlanner):
    """The graph's own block: inputs, variables, results."""

    def __init__(
        self,
        graph: Graph,
        in_registers: Callable[[Operation], int],
        in_parts: Callable[[Operation], bool],
        scratch_of: Callable[[Operation], int],
    ) -> None:
        super().__init__(
            Shared(place_control, in_registers, in_parts, scratch_of), graph.block, None
        )
        self.graph = graph
        self.assigns: dict[str, list[int]] = {}
        self.reads: dict[str, list[int]] = {}
        for position, op in enumerate(graph.ops):
            if op.name in ("assign", "read"):
                held = self.assigns if op.name == "assign" else self.reads
                held.setdefault(variable_name(op.operands[0]), []).append(position)

    def plan_step(self, donated: Sequence[int], by_bytes: bool) -> MemoryPlan:
        """The plan of the whole step."""
        for i, arg in enumerate(self.graph.args):
            self.plan.slots[arg] = Slot("input", i)
        self._choose_targets(donated, by_bytes)
        self.run()
        self._finish_results()
        self.plan.place_arena(self.arena)
        return self.plan

    # -- analysis ---------------------------------------------------------------------------------

    def _choose_targets(self, donated: Sequence[int], by_bytes: bool) -> None:
        """Find the values that are computed straight into a variable's buffer or a result."""
        for name, positions in self.assigns.items():
            value = self.root_of(self.graph.ops[positions[0]].operands[1])
            free = len(positions) == 1 and self.is_free(value) and not may_fail_midway(value)
            if free and self._old_value_dead(name, self.made_at[value], value):
                self._compute_in(name, value)
        for number in donated:
            if not self._give(number) and by_bytes:
                self._give_bytes(number)
        for i, result in enumerate(self.graph.results):
            value = self.root_of(result)
            if self.is_free(value) and isinstance(value.type, TensorType):
                self.targets[value] = Slot("result", i)

    def _compute_in(self, name: str, value: Value) -> None:
        """Compute `value` in the buffer of a variable; and if it is an update of another value, of
        which nothing else is needed, that one, too.
        """
        self.targets[value] = Slot("variable", name)
        op = value.op
        if op is None or op.name not in UPDATES:
            return
        base = self.root_of(op.operands[0])
        made = base.op is not None and base.op.name == "fused" and base.type == value.type
        if not made or not self.is_free(base) or not self.may_replace(value, base):
            return
        if not self._are_checked(op, self.made_at[base]):
            return
        if self._old_value_dead(name, self.made_at[base], base):
            self._compute_in(name, base)

    def _are_checked(self, update: Operation, position: int) -> bool:
        """Are an update's indices known to be in bounds before `position`?"""
        before = {
            (self.root_of(index), sizes)
            for op in self.graph.ops[:position]
            for index, sizes in checks(op)
        }
        return all((self.root_of(index), sizes) in before for index, sizes in checks(update))

    def _give(self, number: int) -> bool:
        """Compute the first result that fits in the buffer of a donated input; whether one does."""
        given = self.graph.args[number]
        return any(
            result.type == given.type == self.root_of(result).type and self._give_to(i, number)
            for i, result in enumerate(self.graph.results)
        )

    def _give_bytes(self, number: int) -> None:
        """As `_give`, for a result of any type of as many bytes, or that is the input itself."""
        given = self.graph.args[number]
        for i, result in enumerate(self.graph.results):
            value = self.root_of(result)
            if value is given and i not in self.plan.donated:
                self.plan.donated[i] = number
                return
            if _bytes(value) == _bytes(given) > 0 and self._give_to(i, number):
                return

    def _give_to(self, i: int, number: int) -> bool:
        """Compute result `i` in the buffer of a donated input, if that can be."""
        value, given = self.root_of(self.graph.results[i]), self.graph.args[number]
        plain = value.op is not None and (value.op.name == "fused" or not value.op.regions)
        if not (self.is_free(value) and plain and self.may_replace(value, given)):
            return False
        self.targets[value] = Slot("input", number)
        self.plan.donated[i] = number
        self.plan.in_place += 1
        return True

    def _old_value_dead(self, name: str, position: int, value: Value) -> bool:
        """May `value`, made at `position`, overwrite variable `name`: is the old value not needed
        then?
        """
        for i in self.reads.get(name, ()):
            if i > self.assigns[name][0]:
                continue  # reads the new value
            if i > position or not self.may_replace(value, self.graph.ops[i].result):
                return False
        return True

    # -- placement --------------------------------------------------------------------------------

    def place_state(self, position: int, op: Operation) -> bool:
        """Place the results of an op on variables; False for other ops."""
        if op.name == "assign":
            self._place_assign(position, op)
        elif op.name == "read":
            self._place_read(position, op)
        return op.name in ("variable", "assign", "group", "read")

    def _place_assign(self, position: int, op: Operation) -> None:
        value, target = op.operands[1], Slot("variable", variable_name(op.operands[0]))
        why = "its value is needed elsewhere too"
        if may_fail_midway(value):
            why = "what fails must not leave the variable changed in part"
        self.copy(position, self.plan.slots[value], target, value, why)

    def _place_read(self, position: int, op: Operation) -> None:
        name = variable_name(op.operands[0])
        target = Slot("variable", name)
        last = self.last_use.get(op.result, position)
        writes = [p for p in self.assigns.get(name, ()) if p > position]
        early = [self._write_position(name, p) for p in writes]
        if all(last <= p for p in early):
            self.plan.slots[op.result] = target
        else:
            self.allocate(op.result, position)
            why = "the variable changes while its old value is in use"
            self.copy(position, target, self.plan.slots[op.result], op.result, why)

    def _write_position(self, name: str, assign: int) -> int:
        """When the buffer really changes: at the op that computes in place, or at the assign."""
        value = self.root_of(self.graph.ops[assign].operands[1])
        in_place = self.targets.get(value) == Slot("variable", name)
        return self.made_at[value] if in_place else assign

    def _finish_results(self) -> None:
        end = len(self.graph.ops) - 1
        for i, value in enumerate(self.graph.results):
            if isinstance(value.type, TensorType) and i not in self.plan.donated:
                self.plan.result_bytes += value.type.nbytes
                why = "a result never shares a buffer with anything else"
                self.copy(end, self.plan.slots[value], Slot("result", i), value, why)


def _bytes(value: Value) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


def variable_name(ref: Value) -> str:
    """The name of the variable that a ref stands for."""
    assert ref.op is not None
    name = ref.op.attrs["name"]
    assert isinstance(name, str)
    return name
