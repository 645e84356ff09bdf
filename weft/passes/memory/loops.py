"""Where the values of `cond`, `while` and `scan` live.

* An invariant is read where it is; a row of a sequence too: its address moves with the iterations.
* What an iteration stacks is computed at its row of the result.
* A carry that the body computes in place (its last use is the op that makes the new one) keeps one
  buffer. Others have two, which swap roles in every iteration, so that nothing is copied.
* Of a loop that runs in parts every part has its bytes of each buffer, whatever the others do.
* Both branches of a `cond` write their results to the same slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Block, Operation, Value
from weft.ir.rules import int_attr
from weft.ir.types import TensorType
from weft.passes.memory.block import BlockPlanner
from weft.passes.memory.plan import Moving, Slot


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
