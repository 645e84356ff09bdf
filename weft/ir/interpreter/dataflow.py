"""Execution of blocks with `switch`, `merge` and frames, by tokens.

Each op waits for its inputs in each iteration of its frame and then runs once; in which order the
ops that are ready run makes no difference. Rules, as TensorFlow's executor has them:

* An op with a dead operand or control operand does not run; its results are dead.
* A merge waits for all its inputs and gives the one that is live (two are an error); only if all
  are dead is it dead, whatever its control operands are.
* A loop's merge gets its enter in iteration 0 and its next_iteration in the others.
* A dead next_iteration starts no iteration; a live one does unless the frame has as many under way
  as `parallel_iterations` says, then it waits for the oldest to end.
* An exit gives its value as soon as it is live; when the frame is over, exits that never were give
  a dead one. A second live value is an error: an op gives one value in an iteration."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from weft.ir.analysis.deadness import dead_result
from weft.ir.analysis.frames import Frame, Frames, find_frames, inputs_of, unended_frame
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, InvalidArgumentError
from weft.ir.graph import Block, Operation, Value

#: Runs one live op that is not of this module's on its operands; with its control operands, which
#: may be all that tells it a size.
RunOp = Callable[[Operation, Sequence[Any], Sequence[Any]], Sequence[Any]]


class _Dead:
    """The dead value."""

    def __repr__(self) -> str:
        return "dead"


DEAD: Final = _Dead()


@dataclass(slots=True)
class Waiting:
    """The inputs of an op that have come in one iteration."""

    missing: int
    operands: list[Any]  # and after them the control operands
    dead: bool = False  # one of them, or a control operand; a merge runs all the same


@dataclass(slots=True, eq=False)
class Iteration:
    """One iteration: the ops that wait, how many are ready, and the frames inside that run."""

    number: int
    waiting: dict[Operation, Waiting] = field(default_factory=dict)
    ready: int = 0
    children: dict[Frame, Instance] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Instance:
    """One run of a frame, in iteration `outer` of `parent`."""

    frame: Frame
    parent: Instance | None
    outer: Iteration | None
    iterations: dict[int, Iteration]
    missing_enters: int
    newest: int = 0
    invariants: list[tuple[Value, Any]] = field(default_factory=list)
    deferred: list[tuple[Operation, Any]] = field(default_factory=list)
    exited: dict[Operation, int] = field(default_factory=dict)
    entered: set[Operation] = field(default_factory=set)


Ready = tuple[Operation, Waiting, Instance, Iteration]


def run_dataflow(
    run_op: RunOp, block: Block, args: Sequence[Any], schedule: int | None = None
) -> list[Any]:
    """The results of `block`; `schedule` seeds a random order of the ops that are ready.

    Raises InvalidArgumentError, with the user's line, where a result is dead, a merge or an exit
    gets two values, or an enter of a frame that began gets none.
    """
    found = find_frames(block)
    if found.faults:
        op, what = found.faults[0]
        raise InternalError(
            f"op '{op.name}': {what}",
            hint="weft.ir.analysis.verify shows the graph with the fault",
            location=op.locations,
        )
    machine = Machine(run_op, block, found, schedule)
    machine.begin(args)
    while machine.ready:
        machine.step()
    return machine.end()


class Machine:
    """One block under way: `begin`, `step` as long as something is `ready`, `end`."""

    def __init__(
        self,
        run_op: RunOp,
        block: Block,
        frames: Frames,
        schedule: int | None,
    ) -> None:
        self.run_op = run_op
        self.block = block
        self.frames = frames
        self.random = None if schedule is None else random.Random(schedule)
        self.ready: list[Ready] = []
        self.wanted = set(block.results)
        self.fetched: dict[Value, Any] = {}
        self.top = Instance(frames.root, None, None, {0: Iteration(0)}, 0)
        self.users: dict[Value, list[tuple[Operation, int]]] = {}  # with the operand's number
        for op in block.ops:
            for i, value in enumerate(inputs_of(op)):
                self.users.setdefault(value, []).append((op, i))
            for i, value in enumerate(op.control, len(inputs_of(op))):
                self.users.setdefault(value, []).append((op, i))

    def begin(self, args: Sequence[Any]) -> None:
        """Give the block its arguments."""
        start = self.top.iterations[0]
        start.ready += 1  # or the top would end before it begins
        for value, given in zip(self.block.args, args, strict=True):
            self._deliver(value, given, self.top, start)
        for op in self.block.ops:
            if not inputs_of(op) and not op.control:
                self._arrive(op, None, None, self.top, start)

    def step(self) -> None:
        """Run one op that is ready."""
        at = self.random.randrange(len(self.ready)) if self.random else 0
        op, waiting, instance, iteration = self.ready.pop(at)
        self._run(op, waiting, instance, iteration)
        iteration.ready -= 1
        self._end_iterations(instance, iteration)

    def end(self) -> list[Any]:
        """The results, when nothing is ready."""
        start = self.top.iterations[0]
        results = [self._result(i, value) for i, value in enumerate(self.block.results)]
        self._check_ended(self.top, start)
        return results

    def _check_ended(self, at: Instance, iteration: Iteration) -> None:
        """InvalidArgumentError for a frame that began in `iteration`, or further inside, and waits
        for one of its enters."""
        for frame, child in iteration.children.items():
            if child.missing_enters:
                enter = next(op for op in frame.enters if op not in child.entered)
                number = None if at.parent is None else iteration.number
                label = self.frames.label(enter.result)
                raise unended_frame(frame.name, enter, label, at.frame.name, number)
            for inside in child.iterations.values():
                self._check_ended(child, inside)

    def _result(self, i: int, value: Value) -> Any:
        found = self.fetched.get(value, DEAD)
        if found is not DEAD or value.op is None or str(value.type) == "token":
            return None if found is DEAD else found
        raise dead_result(self.block, i)

    # -- tokens -----------------------------------------------------------------------------------

    def _deliver(self, value: Value, token: Any, at: Instance, iteration: Iteration) -> None:
        if value in self.wanted and at is self.top:
            self.fetched[value] = token
        for op, number in self.users.get(value, ()):
            self._arrive(op, number, token, at, iteration)

    def _arrive(
        self, op: Operation, number: int | None, token: Any, at: Instance, iteration: Iteration
    ) -> None:
        """A token for input `number` of an op (None: it needs none)."""
        waiting = iteration.waiting.get(op)
        if waiting is None:
            count = len(inputs_of(op)) + len(op.control)
            waiting = iteration.waiting[op] = Waiting(count, [DEAD] * count)
        if number is not None:
            waiting.missing -= 1
            waiting.operands[number] = token
            waiting.dead |= token is DEAD
        if not waiting.missing:
            del iteration.waiting[op]
            iteration.ready += 1
            self._make_ready((op, waiting, at, iteration))

    def _make_ready(self, entry: Ready) -> None:
        """All inputs of an op have come."""
        self.ready.append(entry)

    # -- ops --------------------------------------------------------------------------------------

    def _run(self, op: Operation, waiting: Waiting, at: Instance, now: Iteration) -> None:
        results: Sequence[Any] = [DEAD] * len(op.results)
        count = len(inputs_of(op))
        operands, control = waiting.operands[:count], waiting.operands[count:]
        match op.name:
            case "enter":
                return self._enter(op, DEAD if waiting.dead else operands[0], at, now)
            case "exit":
                return None if waiting.dead else self._exit(op, operands[0], at, now)
            case "merge":
                results = self._merge(op, operands, now)
            case _ if waiting.dead:
                pass
            case "switch":
                data, pred = operands
                results = [DEAD, data] if pred else [data, DEAD]
            case "loop_cond":
                results = operands
            case "next_iteration":
                self._next(op, operands[0], at, now)
                results = [None]
            case _:
                results = self.run_op(op, operands, control)
        for value, token in zip(op.results, results, strict=True):
            self._deliver(value, token, at, now)
        return None

    def _merge(self, op: Operation, operands: Sequence[Any], now: Iteration) -> Sequence[Any]:
        live = [i for i, token in enumerate(operands) if token is not DEAD]
        if not live:
            return [DEAD, DEAD]
        if len(live) > 1:
            first, second = (self.frames.label(op.operands[i]) for i in live[:2])
            raise InvalidArgumentError(
                f"op 'merge' has two live operands: {live[0]}, {first}, and {live[1]}, {second}",
                hint="merge the two sides of one switch, or of switches with one predicate",
                location=op.locations,
            )
        number = np.array(1 if op.attrs["loop"] and now.number else live[0], np.int32)
        number.setflags(write=False)
        return [operands[live[0]], number]

    # -- frames -----------------------------------------------------------------------------------

    def _enter(self, op: Operation, token: Any, at: Instance, now: Iteration) -> None:
        frame = self.frames.of_value[op.result]
        child = now.children.get(frame)
        if child is None:
            first = {0: Iteration(0)}
            child = now.children[frame] = Instance(frame, at, now, first, len(frame.enters))
        child.missing_enters -= 1
        child.entered.add(op)
        if op.attrs["constant"]:
            child.invariants.append((op.result, token))
        for iteration in list(child.iterations.values()):
            if op.attrs["constant"] or iteration.number == 0:
                self._deliver(op.result, token, child, iteration)
        self._end_iterations(child, child.iterations[0])

    def _exit(self, op: Operation, token: Any, at: Instance, now: Iteration) -> None:
        if op in at.exited:
            raise InvalidArgumentError(
                f"op 'exit' gives a second value in iteration {now.number}, after that of "
                f"iteration {at.exited[op]}: an exit gives one",
                hint="let its operand be live in the last iteration only: switch it by loop_cond",
                location=op.locations,
            )
        at.exited[op] = now.number
        self._leave(op, token, at)

    def _leave(self, op: Operation, token: Any, at: Instance) -> None:
        """The value of an exit, in the iteration around the frame."""
        assert at.parent is not None
        assert at.outer is not None
        self._deliver(op.result, token, at.parent, at.outer)

    def _next(self, op: Operation, token: Any, at: Instance, now: Iteration) -> None:
        following = at.iterations.get(now.number + 1)
        if following is None:
            at.deferred.append((op, token))
            self._start(at)
        else:
            self._feed(op, token, at, following)

    def _feed(self, op: Operation, token: Any, at: Instance, iteration: Iteration) -> None:
        """The value of a next_iteration, for the merge that it names."""
        merge = op.operands[1].op
        assert merge is not None
        self._arrive(merge, 0, token, at, iteration)

    def _start(self, at: Instance) -> None:
        """The next iteration, if something asks for it and there is room."""
        if not at.deferred or len(at.iterations) >= at.frame.parallel_iterations:
            return
        at.newest += 1
        iteration = at.iterations[at.newest] = Iteration(at.newest)
        for value, token in at.invariants:
            self._deliver(value, token, at, iteration)
        deferred, at.deferred = at.deferred, []
        for op, token in deferred:
            self._feed(op, token, at, iteration)

    def _end_iterations(self, at: Instance, iteration: Iteration | None) -> None:
        """End this iteration, those after it, and the frame, as far as they have nothing left."""
        while iteration is not None:
            before = (
                at.missing_enters
                if not iteration.number
                else (iteration.number - 1 in at.iterations)
            )
            if iteration.ready or iteration.children or before:
                return
            del at.iterations[iteration.number]
            self._start(at)
            iteration = at.iterations.get(iteration.number + 1)
        if at.iterations or at.parent is None or at.outer is None:
            return
        for op in at.frame.exits:
            if op not in at.exited:
                self._leave(op, DEAD, at)
        del at.outer.children[at.frame]
        self._end_iterations(at.parent, at.outer)
