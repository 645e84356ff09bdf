"""Colocation: ops put together though nothing demands it, as long as some device can have all.

State that nobody placed stays in the session's task, so that every step finds it there; state that
is placed in part goes to the first device that fits, for the same reason. A branch or loop is best
on one device, where it is native code; if constraints pull it apart, its ops are placed one by one.
Ops around a loop's frame and a switch follow what they pass on; constants follow their reader.

`add_defaults`: ops that name no device, in a step that is about one, go with it. This is weaker
than what the user says of an op or of one that it must be with, and as strong as that where there
is no kernel: what cannot go along is an error, or moves with soft placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from weft.ir.analysis.effects import HOST, host_keys
from weft.ir.analysis.frames import find_frames, is_dataflow
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import TensorType
from weft.passes.placement.conflicts import Groups
from weft.passes.placement.constraints import Constraint, Problem, inside, uses_handle
from weft.passes.placement.devices import Device
from weft.passes.rewriting.rewrite import must_run


@dataclass(slots=True)
class Colocation:
    """The groups of ops after colocation. bound: the ops that a constraint is about. why: for an
    op, what put it with others. rule: for the root of a group that a rule has given its device, the
    words that say so."""

    groups: Groups
    bound: frozenset[int]
    why: dict[int, str] = field(default_factory=dict)
    rule: dict[int, str] = field(default_factory=dict)

    def join(self, problem: Problem, ops: Sequence[Operation], why: str) -> bool:
        """Put ops into one group if a device is left for all; whether that is so."""
        numbers = [problem.number[op] for op in ops]
        if not self.groups.common(numbers):
            return False
        first = numbers[0]
        for number in numbers[1:]:
            if self.groups.root(number) != self.groups.root(first):
                self.why.setdefault(number, why)
                self._join(first, number)
        return True

    def follow(self, problem: Problem, leader: Operation, op: Operation, why: str) -> None:
        """Put an op that nothing else binds where another one is, if that can be."""
        first, number = problem.number[leader], problem.number[op]
        groups = self.groups
        if number in self.bound or not groups.is_alone(number):
            return
        if groups.root(first) != groups.root(number) and groups.common([first, number]):
            self.why.setdefault(number, why)
            self._join(first, number)

    def _join(self, a: int, b: int) -> None:
        rules = [
            self.rule.pop(r) for r in (self.groups.root(a), self.groups.root(b)) if r in self.rule
        ]
        self.groups.join(a, b)
        if rules:
            self.rule[self.groups.root(a)] = rules[0]


def colocate(
    graph: Graph, problem: Problem, groups: Groups, devices: Sequence[Device]
) -> Colocation:
    """Apply the rules (see the module's text) to the groups, in place."""
    bound = frozenset(c.op for c in problem.constraints if c.kind != "kernel")
    made = Colocation(groups, bound)
    _settle_state(made, problem, devices)
    _settle_effects(made, problem, devices)
    for op in problem.ops:
        if op.name in CONTROL:
            _whole(made, problem, op)
    if is_dataflow(graph.block):
        _frames(made, problem, graph)
        _switches(made, problem, graph)
    _sources(made, problem, graph.block)
    return made


def _home(devices: Sequence[Device]) -> int:
    """The devices of the session's task."""
    return sum(1 << k for k, d in enumerate(devices) if d.task == devices[0].task)


def _settle_state(made: Colocation, problem: Problem, devices: Sequence[Device]) -> None:
    """One device for each variable and object of the host, whatever the step does with it."""
    for anchor in sorted(problem.state):
        mask = made.groups.mask(anchor)
        if mask & (mask - 1) == 0:
            continue
        name = problem.anchors[anchor - len(problem.ops)]
        here = mask & _home(devices)
        lowest = (here or mask) & -(here or mask)
        made.groups.narrow(anchor, lowest)
        why = "it stays in the session's task" if here else "it is on the first that fits"
        text = f"nothing says which of {mask.bit_count()} devices {name} is on: {why}"
        made.rule[made.groups.root(anchor)] = text


def _settle_effects(made: Colocation, problem: Problem, devices: Sequence[Device]) -> None:
    """Effects on nothing that has a place (Python functions, prints): where the session is."""
    for number, op in enumerate(problem.ops):
        if op.name in CONTROL or not must_run(op) or HOST not in host_keys(op):
            continue
        mask = made.groups.mask(number)
        here = mask & _home(devices)
        if here and mask & (mask - 1):
            made.groups.narrow(number, here & -here)
            made.rule[made.groups.root(number)] = (
                "an effect that nobody placed is done where the session is"
            )


def _whole(made: Colocation, problem: Problem, op: Operation) -> None:
    """A structured op with all ops in it; or, if that cannot be, where it decides."""
    held = [op, *inside(op)]
    at = f" at {op.locations[0]}" if op.locations else ""
    if made.join(problem, held, f"in op '{op.name}'{at}, which is whole on one device"):
        return
    decides = op.operands[0] if op.name == "cond" else op.regions[0].results[0]
    if decides.op is not None and decides.op in problem.number:
        made.follow(problem, decides.op, op, "where its predicate is computed")


def _frames(made: Colocation, problem: Problem, graph: Graph) -> None:
    """Each loop of switches and merges whole, outer ones before inner ones."""
    found = find_frames(graph.block, graph.arg_names)
    for frame in sorted(found.inner, key=lambda f: sum(1 for _ in f.around())):
        held = [*frame.enters, *(op for op, f in found.of_op.items() if frame in f.around())]
        made.join(
            problem, held, f"in the loop of frame '{frame.name}', which is whole on one device"
        )


def _switches(made: Colocation, problem: Problem, graph: Graph) -> None:
    """Ops that only pass a value on: where the value is."""
    for op in graph.ops:
        if op.name in ("switch", "merge", "exit", "loop_cond"):
            source = next((v.op for v in op.operands if v.op in problem.number), None)
            if source is not None:
                made.follow(
                    problem, source, op, f"where op '{source.name}' makes what it passes on"
                )


def _sources(made: Colocation, problem: Problem, block: Block) -> None:
    """Constants, and what else needs nothing: where it is read first."""
    reader: dict[Operation, Operation] = {}
    for op in block.ops:
        for value in (*op.operands, *op.control):
            if value.op is not None:
                reader.setdefault(value.op, op)
        if op.name in CONTROL:
            for region in op.regions:
                _sources(made, problem, region)
    for op in block.ops:
        first = reader.get(op)
        free = not (op.operands or op.control or op.regions or must_run(op))
        if free and first is not None and all(isinstance(v.type, TensorType) for v in op.results):
            made.follow(problem, first, op, f"where op '{first.name}' reads it first")


def add_defaults(problem: Problem, devices: Sequence[Device], name: str) -> None:
    """Constrain the ops that nothing which the user said keeps from device `name` to it. Constants
    and the like are where they are read; what uses state is where that is."""
    groups = Groups(problem.size, (1 << len(devices)) - 1)
    said = (c for c in problem.constraints if c.kind != "kernel")
    if not all(map(groups.apply, said)):
        return  # a conflict without these
    (k,) = (k for k, d in enumerate(devices) if d.name == name)
    for number, op in enumerate(problem.ops):
        bound = op.device or uses_handle(op) or _is_source(op)
        if not bound and groups.mask(number) >> k & 1:
            what = f"op '{op.name}' names no device and goes with the step's, {name}"
            problem.constraints.append(
                Constraint("default", number, what, op.locations, 1 << k, spec=name)
            )


def _is_source(op: Operation) -> bool:
    """Whether the op needs nothing and only makes a tensor."""
    needs = op.operands or op.control or op.regions or must_run(op)
    return not needs and all(isinstance(v.type, TensorType) for v in op.results)
