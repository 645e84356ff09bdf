"""Buffer planning: where every value of a fused graph lives, before anything runs.

Each value gets a `Slot`: an input, a variable's own buffer, a constant, a result (allocated per
call) or a range of the step's arena. Views (reshape) share their operand's slot. A kernel may write
in place over an operand that dies there, if it reads that operand only at the element that it is
writing; a variable is updated in its own buffer if nobody reads the old value afterwards. The arena
is packed over the values' live ranges, in the order of the graph's ops (`block.Arena`). Slots and
plans of one block are in `block`.

A bucket, the operand of a sum over processes, is one range in which its members are computed, where
nothing else needs them; so they are neighbours, and nothing is packed. What `done` takes out of it
is there, too.

The values of `cond`, `while` and `scan` (`place_control`):

* An invariant is read where it is; a row of a sequence too: its address moves with the iterations.
* What an iteration stacks is computed at its row of the result.
* A carry that the body computes in place (its last use is the op that makes the new one) keeps one
  buffer. Others have two, which swap roles in every iteration, so that nothing is copied.
* Of a loop that runs in parts every part has its bytes of each buffer, whatever the others do.
* Both branches of a `cond` write their results to the same slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir.analysis.effects import calls_python
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.collectives import is_exchange, member_starts, member_types
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.passes.in_place import UPDATES, checks, may_fail_midway
from weft.passes.memory.block import BlockPlanner, MemoryPlan, Moving, Shared, Slot


def place_control(planner: BlockPlanner, position: int, op: Operation) -> None:
    """Place the results and the regions of a `cond`, `while` or `scan` at `position`."""
    if op.name == "cond":
        _place_cond(planner, position, op)
    else:
        _LoopPlanner(planner, position, op).run()


def iterations(op: Operation) -> int:
    """The largest number of iterations of a `while` or `scan`; -1 if there is no bound."""
    return int_attr(op.attrs, "limit" if op.name == "while" else "length")


def _nbytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.nbytes


class _Region:
    """A region being planned, and the copies at its end."""

    def __init__(self, outside: BlockPlanner, block: Block) -> None:
        self.planner = BlockPlanner(outside.shared, block, block)
        self.slots = outside.plan.slots
        self.late: list[tuple[Value, Slot]] = []

    def deliver(self, value: Value, target: Slot) -> None:
        """`value` is to be in `target` at the end: computed there, or copied."""
        root = self.planner.root_of(value)
        if self.planner.is_free(root):
            self.planner.targets[root] = target
        else:
            self.late.append((value, target))

    def run(self, why: str) -> None:
        self.planner.run()
        end = len(self.planner.block.ops) - 1
        for value, target in self.late:
            self.planner.copy(end, self.slots[value], target, value, why)
        self.planner.release_all()


def _place_cond(planner: BlockPlanner, position: int, op: Operation) -> None:
    targets = [_branch_slot(planner, position, v) for v in op.results]
    for block in op.regions:
        region = _Region(planner, block)
        for arg, operand in zip(block.args, op.operands[1:], strict=True):
            planner.plan.slots[arg] = planner.plan.slots[operand]
        for value, target in zip(block.results, targets, strict=True):
            region.deliver(value, target)
        region.run("a branch's result that is not computed in the branch, or is there twice")


def _branch_slot(planner: BlockPlanner, position: int, value: Value) -> Slot:
    """Where both branches put a result: on an operand that dies here, if both only update it."""
    op = value.op
    assert op is not None
    if value not in planner.targets:
        for root in dict.fromkeys(planner.root_of(v) for v in op.operands[1:]):
            taken = [planner.plan.slots.get(r) for r in op.results]
            free = planner.plan.slots[root] not in taken
            if free and planner.is_dying(root, position) and planner.reads_in_place(value, root):
                return planner.take_over(value, root, position)
    return _result_slot(planner, position, value)


def _result_slot(planner: BlockPlanner, position: int, value: Value) -> Slot:
    if value in planner.targets:
        planner.plan.slots[value] = planner.targets[value]
    else:
        planner.allocate(value, position)
    return planner.plan.slots[value]


class _LoopPlanner:
    def __init__(self, planner: BlockPlanner, position: int, op: Operation) -> None:
        self.planner, self.position, self.op = planner, position, op
        self.plan = planner.plan
        self.carries = int_attr(op.attrs, "carries")
        self.body = op.regions[-1]
        self.region = _Region(planner, self.body)

    def run(self) -> None:
        """Place the results, then the regions' arguments, then the regions."""
        op, slots = self.op, self.plan.slots
        if self.planner.shared.in_parts(op):
            self.plan.in_parts.add(op)
            self.region.planner.keeps = True
        homes = [self._home(k) for k in range(self.carries)]
        stacks = [_result_slot(self.planner, self.position, v) for v in op.results[self.carries :]]
        if iterations(op) == 0:
            for k, home in enumerate(homes):
                self._start(k, home)
            return
        for k, home in enumerate(homes):
            self._place_carry(k, home)
        rows = int_attr(op.attrs, "sequences") if op.name == "scan" else 0
        for arg, operand in self._rest(self.carries, rows):
            slots[arg] = self._row(slots[operand], _nbytes(arg))
        for arg, operand in self._rest(self.carries + rows, None):
            slots[arg] = slots[operand]
        for value, stack in zip(self.body.results[self.carries :], stacks, strict=True):
            self.region.deliver(value, self._row(stack, _nbytes(value)))
        if op.name == "while":
            self._place_test()
        self.region.run("what an iteration hands on is not computed in it, or is there twice")

    def _rest(self, start: int, count: int | None) -> Sequence[tuple[Value, Value]]:
        stop = None if count is None else start + count
        pairs = zip(self.body.args[start:stop], self.op.operands[start:stop], strict=True)
        return list(pairs)

    def _home(self, k: int) -> Slot:
        """Where carry number `k` ends up, the buffer of its first value if that dies here."""
        value = self.op.results[k]
        if self.planner.take_over_carry(self.position, self.op, k):
            return self.plan.slots[value]
        return _result_slot(self.planner, self.position, value)

    def _start(self, k: int, slot: Slot) -> None:
        """Before the loop, the first value of carry `k` comes to `slot`."""
        value = self.op.operands[k]
        why = "the first value of a carry is needed elsewhere too"
        self.planner.copy(self.position - 1, self.plan.slots[value], slot, value, why)

    def _place_carry(self, k: int, home: Slot) -> None:
        arg, result = self.body.args[k], self.body.results[k]
        inside = self.region.planner
        root = inside.root_of(result)
        if root is arg:
            self.plan.slots[arg] = home
            self._start(k, home)
        elif inside.is_free(root) and inside.may_replace(root, arg):
            self.plan.slots[arg] = home
            self.plan.in_place += 1
            inside.targets[root] = home
            self._start(k, home)
        else:
            other = self.planner.scratch(_nbytes(arg), self.position)
            known = iterations(self.op) if self.op.name == "scan" else 0
            even, odd = (home, other) if known % 2 == 0 else (other, home)
            now, following = self._moving(even, odd), self._moving(odd, even)
            self.plan.slots[arg] = now
            self._start(k, even)
            self.region.deliver(result, following)
            if self.op.name == "while":  # it may end after any iteration
                self.planner.copy(self.position, now, home, arg, "a loop of unknown length")

    def _moving(self, even: Slot, odd: Slot, offset: int = 0, stride: int = 0) -> Slot:
        self.plan.moving.append(Moving(self.op, even, odd, offset, stride))
        return Slot("moving", len(self.plan.moving) - 1)

    def _row(self, whole: Slot, nbytes: int) -> Slot:
        """The row of the current iteration in `whole`."""
        if self.op.attrs["reverse"]:
            return self._moving(whole, whole, (iterations(self.op) - 1) * nbytes, -nbytes)
        return self._moving(whole, whole, 0, nbytes)

    def _place_test(self) -> None:
        test = _Region(self.planner, self.op.regions[0])
        for arg, same in zip(test.planner.block.args, self.body.args, strict=True):
            self.plan.slots[arg] = self.plan.slots[same]
        test.run("")


__all__ = ["MemoryPlan", "Moving", "Slot", "iterations", "plan_memory"]


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
        #: By the position of the first member: a bucket, and where in it each member is.
        self.buckets: dict[int, list[tuple[Value, dict[Value, int]]]] = {}
        self.calls = [i for i, op in enumerate(graph.ops) if calls_python(op)]
        for position, op in enumerate(graph.ops):
            if op.name in ("assign", "read"):
                held = self.assigns if op.name == "assign" else self.reads
                held.setdefault(variable_name(op.operands[0]), []).append(position)

    def plan_step(self, donated: Sequence[int], by_bytes: bool) -> MemoryPlan:
        """The plan of the whole step."""
        for i, arg in enumerate(self.graph.args):
            self.plan.slots[arg] = Slot("input", i)
        self._choose_targets(donated, by_bytes)
        self._choose_buckets()
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

    def _choose_buckets(self) -> None:
        """Find the values that are computed straight into a bucket: a target of their own none has,
        and nobody reads them once the sum may stand there."""
        for position, op in enumerate(self.graph.ops):
            if not is_exchange(op, "start"):
                continue
            held: dict[Value, int] = {}
            types = member_types(op)
            for value, start, kind in zip(op.operands, member_starts(types)[0], types, strict=True):
                root = self.root_of(value)
                alone = root in self.made_at and self.last_use[root] == position
                if alone and self.is_free(root) and _bytes(root) == _bytes(value) > 0:
                    held.setdefault(root, start * kind.dtype.itemsize)
            if held:
                first = min(self.made_at[root] for root in held)
                self.buckets.setdefault(first, []).append((op.result, held))

    def _place(self, position: int, op: Operation) -> None:
        """Buckets are taken when their first member is made."""
        for bucket, held in self.buckets.pop(position, ()):
            slot = self.scratch(_bytes(bucket), self.last_use[bucket])
            self.targets[bucket] = slot
            for value, offset in held.items():
                self.targets[value] = replace(slot, offset=offset)
        super()._place(position, op)

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
        then? Python, called before the assignment, may end the step or look at the variable.
        """
        if any(position <= p < self.assigns[name][0] for p in self.calls):
            return False
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
        name, value = variable_name(op.operands[0]), op.operands[1]
        target, made = Slot("variable", name), self.made_at.get(self.root_of(value), -1)
        why = "its value is needed elsewhere too"
        if any(made <= p < position for p in self.calls):
            why = "Python is called before the variable changes"
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
