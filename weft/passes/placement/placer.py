"""The placer: each op of a graph gets the one device that it runs on, and the reason in words.

1. What the user asked for, what there are kernels for and what must be together leave a set of
   devices for each group of ops (`constraints.py`); if one is empty, the smallest set of
   constraints that says why is the error.
2. Ops are put together though nothing demands it, as long as some device can have all. State that
   nobody placed stays in the session's task, so that every step finds it there; state that is
   placed in part goes to the first device that fits, for the same reason. A branch or loop is best
   on one device, where it is native code; if constraints pull it apart, its ops are placed one by
   one. Ops around a loop's frame and a switch follow what they pass on; constants follow their
   reader.
3. For what is left, several placements are simulated and the fastest that fits the devices' memory
   is taken, or what a search finds from there (`choose.py`). Where nothing is left, nothing is
   priced, but for people.

Nothing depends on chance, nor on what else runs: the same graph, devices, costs and seed of a
search give the same placement.

`add_defaults`: ops that name no device, in a step that is about one, go with it. This is weaker
than what the user says of an op or of one that it must be with, and as strong as that where there
is no kernel: what cannot go along is an error, or moves with soft placement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from weft.ir.analysis.effects import HOST, StateKey, host_keys
from weft.ir.analysis.frames import find_frames, is_dataflow
from weft.ir.analysis.known_values import constant_of
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import RefType, TensorType
from weft.passes.placement.choose import HOME, Choice, Prediction, choices, too_large
from weft.passes.placement.constraints import (
    Constraint,
    Groups,
    Problem,
    find_constraints,
    group_up,
    inside,
    uses_handle,
    with_devices,
)
from weft.passes.placement.costs import CostModel, bytes_of
from weft.passes.placement.devices import Device, check_devices
from weft.passes.placement.memory import MOST_NAMED
from weft.passes.placement.search import Search
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
    graph: Graph,
    problem: Problem,
    groups: Groups,
    devices: Sequence[Device],
    *,
    free_state: bool = False,
) -> Colocation:
    """Apply the rules (see the module's text) to the groups, in place. free_state: variables that
    nobody placed have a choice."""
    bound = frozenset(c.op for c in problem.constraints if c.kind != "kernel")
    made = Colocation(groups, bound)
    _settle_state(made, problem, devices, free_state)
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


def _settle_state(
    made: Colocation, problem: Problem, devices: Sequence[Device], free: bool
) -> None:
    """One device for each variable and object of the host, whatever the step does with it. free:
    for objects of the host alone."""
    for anchor in sorted(problem.state):
        if free and not _is_of_host(problem.state[anchor]):
            continue
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


def _is_of_host(key: StateKey) -> bool:
    return isinstance(key, str) and key.startswith("<")


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
    """Constants, repeated or not, and what else needs nothing: where it is read first."""
    reader: dict[Operation, Operation] = {}
    for op in block.ops:
        for value in (*op.operands, *op.control):
            if value.op is not None:
                reader.setdefault(value.op, op)
        if op.name in CONTROL:
            for region in op.regions:
                _sources(made, problem, region)
    for op in reversed(block.ops):  # a constant follows what repeats it, which follows its reader
        first = reader.get(op)
        if first is not None and _is_source(op):
            made.follow(problem, first, op, f"where op '{first.name}' reads it first")


def add_defaults(problem: Problem, devices: Sequence[Device], name: str) -> None:
    """Constrain the ops that nothing which the user said keeps from device `name` to it. Constants
    and the like are where they are read; what uses state is where that is, and ops of the host are
    on a processor."""
    (k,) = (k for k, d in enumerate(devices) if d.name == name)
    ops, leaves = problem.ops, devices[k].leaves_to_host
    groups = Groups(problem.size, (1 << len(devices)) - 1)
    said = (c for c in problem.constraints if c.kind != "kernel" or leaves(ops[c.op]))
    if not all(map(groups.apply, said)):
        return  # a conflict without these
    for number, op in enumerate(ops):
        bound = op.device or uses_handle(op) or _is_source(op)
        if not bound and groups.mask(number) >> k & 1:
            what = f"op '{op.name}' names no device and goes with the step's, {name}"
            problem.constraints.append(
                Constraint("default", number, what, op.locations, 1 << k, spec=name)
            )


def _is_source(op: Operation) -> bool:
    """Whether the op needs nothing and only makes a tensor. One that repeats a constant is as good
    as that constant: partitioning makes it where it is needed."""
    repeats = op.name == "broadcast_to" and constant_of(op.operands[0]) is not None
    needs = (op.operands and not repeats) or op.control or op.regions or must_run(op)
    return not needs and all(isinstance(v.type, TensorType) for v in op.results)


def reasons_of(
    problem: Problem,
    together: Colocation,
    devices: Sequence[Device],
    choice: Choice,
    wishes: Mapping[int, str],
) -> list[str]:
    """One text for each op. wishes: what soft placement has given up, by op."""
    causes = _causes(problem, together, devices, choice)
    links: dict[int, Constraint] = {}
    asked: dict[int, Constraint] = {}
    for c in problem.constraints:
        if c.anchor >= 0:
            links.setdefault(c.op, c)
        elif c.kind == "device":
            asked[c.op] = c
    texts = []
    for number, op in enumerate(problem.ops):
        cause, owner = causes[together.groups.root(number)]
        if number in asked:
            text = f"asked for: {_wanted(op.device, asked[number])}"
            if owner < 0:  # that was not all
                text += f"; {cause}"
        elif number == owner:
            text = cause
        else:
            link = together.why.get(number)
            if number in links:
                link = _linked(problem, links[number])
            text = f"{link}: {cause}" if link else cause
        if number in problem.unused:
            text += f"; {problem.unused[number]} is not used: it goes where its state is"
        if number in wishes:
            told = "asked for" if op.device else "it was to go with the step's,"
            text += f"; {told} {wishes[number]}, which cannot be (soft placement)"
        texts.append(text)
    return texts


def _wanted(device: str, constraint: Constraint) -> str:
    at = f" at {constraint.locations[0]}" if constraint.locations else ""
    return device + at


def _linked(problem: Problem, link: Constraint) -> str:
    return f"with {problem.anchors[link.anchor - len(problem.ops)]}"


def _causes(
    problem: Problem, together: Colocation, devices: Sequence[Device], choice: Choice
) -> dict[int, tuple[str, int]]:
    """For each group, what decided, and the op whose constraint that was (-1: none)."""
    groups = together.groups
    found: dict[int, tuple[str, int]] = {}
    for kind in ("held", "device", "default", "kernel"):
        for c in problem.constraints:
            root = groups.root(c.op)
            if c.kind != kind or root in found or root in choice.free:
                continue
            if kind != "kernel" or c.mask & (c.mask - 1) == 0:
                at = f" at {c.locations[0]}" if c.locations else ""
                found[root] = f"{c.what}{at}", c.op
    for root, text in together.rule.items():
        found[groups.root(root)] = text, -1
    one = f"{devices[0].name} is the only device"
    for number in range(len(problem.ops)):
        root = groups.root(number)
        if root not in found:
            free = root in choice.free
            found[root] = (_chosen(choice) if free else one if len(devices) == 1 else _LEFT), -1
    return found


_LEFT = "the only device that all constraints leave"
#: Predictions that differ by less are the same to people.
_NEAR = 0.01


def _chosen(choice: Choice) -> str:
    """Why a group that had a choice is where it is."""
    found = choice.prediction
    seconds = found.seconds if not found.replicas else found.compared[choice.why]
    took = f"{seconds * 1e3:.3g} ms predicted"
    others = {k: v for k, v in found.compared.items() if abs(v - seconds) > seconds * _NEAR}
    if not others:
        return f"{choice.why} ({took})"
    name = min(others, key=lambda k: others[k])
    if choice.why != HOME and HOME in others:
        name = HOME
    unfit = ", which does not fit the memory" if name in found.unfit else ""
    return f"{choice.why} ({took}; {name}: {others[name] * 1e3:.3g} ms{unfit})"


_LOG = logging.getLogger("weft.place")


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed graph: each op, nested ones too, has a full device.

    reasons: for each op of `graph` that runs by itself, why it is where it is. predict: what a step
    will take, worked out once. choice: the model that says so, its bound and its alternatives.
    fallbacks: what soft placement has given up, as text. spanning: the
    branches and loops (of `graph`) whose ops are on several devices. state: the devices of
    variables ("w") and objects of the host ("<queue> q"). note: why what nothing binds may, or may
    not, leave the session's task, where nobody has said so.
    """

    graph: Graph
    devices: tuple[Device, ...]
    reasons: Mapping[Operation, str]
    predict: Callable[[], Prediction]
    fallbacks: tuple[str, ...]
    spanning: tuple[Operation, ...]
    state: Mapping[str, str]
    choice: Choice
    note: str = ""


def place(
    graph: Graph,
    devices: Sequence[Device],
    *,
    costs: CostModel | None = None,
    soft: bool = False,
    spread: bool | Collection[str] = True,
    replicas: int = 0,
    held: Mapping[str, str] | None = None,
    default: str | None = None,
    search: Search | None = None,
    free_state: bool = False,
    fit: bool = False,
) -> Placement:
    """Say for each op of `graph` where it runs.

    devices: those that there are, the session's own first: feeds start there and fetches end there.
    costs: measured ones, or the links; by default static prices. soft: constraints that cannot hold
    are given up, and `fallbacks` says which. spread: ops that nothing binds may leave the session's
    task if that makes the step faster; or the tasks for which they may. replicas: how many tasks do
    such a step at once, each in its own and all with the same other tasks: what is fastest then,
    phase by phase, is taken (`replicas.done_at_once`); 0: what is fastest by itself. held: where
    variables and objects of the host are since earlier steps (`Placement.state`); they stay there.
    default: the device of the ops that name none, and that nothing which names one is together
    with. search: for a faster placement than the greedy ones. free_state: variables that nobody
    placed have a choice as ops do. fit: where no choice is left, all memory must fit, too.

    PlacementError with the minimal set of constraints that cannot hold together;
    ResourceExhaustedError if what was found does not fit the memory of a device.
    """
    check_devices(devices)
    problem = find_constraints(graph := _own_regions(graph), devices, held)
    if default is not None:
        add_defaults(problem, devices, default)
    groups, fallbacks, wishes = group_up(problem, devices, soft=soft)
    together = colocate(graph, problem, groups, devices, free_state=free_state)
    model = costs or CostModel()
    allowed = _allowed(problem, groups, devices, spread)
    root = {op: groups.root(i) for i, op in enumerate(problem.ops)}
    choice = Choice(graph, root, allowed, devices, model, search, replicas)
    if choice.free or fit:
        choice.check_memory()
    else:
        _check_variables(problem, choice, devices, model.sizes)
    copies: dict[Operation, Operation] = {}
    _log(graph, choice, fallbacks)
    names = {op: devices[k].name for op, k in zip(problem.ops, choice.device, strict=True)}
    block = with_devices(graph.block, names.get, copies)
    texts = reasons_of(problem, together, devices, choice, wishes)
    return Placement(
        replace(graph, block=block),
        tuple(devices),
        dict(zip((copies[op] for op in problem.ops), texts, strict=True)),
        lambda: choice.prediction,
        tuple(fallbacks),
        tuple(copies[op] for op in problem.ops if _spans(op, names)),
        _state(problem, names),
        choice,
    )


def _log(graph: Graph, choice: Choice, fallbacks: Sequence[str]) -> None:
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info(
            "%s: %d ops, %s, %.3g ms predicted%s",
            graph.name, len(choice.device), choice.why, choice.prediction.seconds * 1e3,
            "".join(f"; {text}" for text in fallbacks),
        )  # fmt: skip


def _allowed(
    problem: Problem,
    groups: Groups,
    devices: Sequence[Device],
    spread: bool | Collection[str],
) -> dict[int, Sequence[int]]:
    """The devices that are left for each group, by its root."""
    left = list(dict.fromkeys(map(groups.root, range(len(problem.ops)))))
    return dict(zip(left, choices([groups.mask(r) for r in left], devices, spread), strict=True))


def _own_regions(graph: Graph) -> Graph:
    """The graph with each op in one place: the clone of a branch or loop shares its regions."""
    ops = list(graph.walk())
    if len(set(ops)) == len(ops):
        return graph
    return replace(graph, block=with_devices(graph.block, lambda op, _: op.device, {}))


class PlacePass:
    """The pass `place`: writes a device on each op. how: `place` with its settings; `placement` is
    what it said of the last graph, and why."""

    name = "place"

    def __init__(self, how: Callable[[Graph], Placement]) -> None:
        self._how = how
        self.placement: Placement | None = None

    def __call__(self, graph: Graph) -> Graph:
        self.placement = self._how(graph)
        return self.placement.graph


def _state(problem: Problem, names: Mapping[Operation, str]) -> dict[str, str]:
    """The device of each variable and object of the host, by its key."""
    users = {c.anchor: c.op for c in problem.constraints if c.kind == "state"}
    keys = problem.state.items()
    return {key: names[problem.ops[users[a]]] for a, key in keys if isinstance(key, str)}


def _spans(op: Operation, names: Mapping[Operation, str]) -> bool:
    return op.name in CONTROL and any(names[o] != names[op] for o in inside(op))


def _check_variables(
    problem: Problem, choice: Choice, devices: Sequence[Device], sizes: Mapping[str, int]
) -> None:
    """Refuse variables that do not fit the memory of their device. ResourceExhaustedError."""
    held: dict[int, dict[str, tuple[float, Operation]]] = {}
    for op, k in zip(problem.ops, choice.device, strict=True):
        if op.name == "variable" and isinstance(op.result.type, RefType):
            size = bytes_of(op.result.type.tensor, sizes)
            held.setdefault(k, {}).setdefault(str(op.attrs["name"]), (size, op))
    for k, variables in held.items():
        total, limit = sum(size for size, _ in variables.values()), devices[k].memory
        if limit is not None and total > limit:
            names = sorted(variables, key=lambda n: -variables[n][0])[:MOST_NAMED]
            rows = [f"variable '{name}': {variables[name][0]:,.0f} bytes" for name in names]
            why = "constraints leave no choice"
            where = variables[names[0]][1].locations
            raise too_large(devices[k], total, total, why, rows, where)
