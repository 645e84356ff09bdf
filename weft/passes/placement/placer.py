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
3. For what is left, several placements are simulated (`costs.py`) and the fastest is taken: all of
   it in the session's place, each op where it finishes first, each where most of its operands are,
   all on one of the devices (`choose`). Where nothing is left, nothing is priced, but for people.

Nothing depends on chance, nor on what else runs: the same graph, devices and costs give the same
placement.

`explain_placement` prints a placement for `Session.explain` and `weft place --explain`.

`add_defaults`: ops that name no device, in a step that is about one, go with it. This is weaker
than what the user says of an op or of one that it must be with, and as strong as that where there
is no kernel: what cannot go along is an error, or moves with soft placement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache

from weft.ir.analysis.effects import HOST, host_keys
from weft.ir.analysis.frames import find_frames, is_dataflow
from weft.ir.analysis.known_values import constant_of
from weft.ir.cost.thresholds import MARGIN, MOST_SINGLE
from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError
from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import RefType, TensorType
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
from weft.passes.placement.costs import CostModel, Costs, Pick, Simulation, Span, bytes_of
from weft.passes.placement.devices import CPU, Device, check_devices
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


HOME = "where the session is"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of a step: seconds, messages included, and the simulation that says so.
    compared: seconds of all candidates, by name. measured: how many ops have costs from a trace."""

    seconds: float
    timeline: tuple[Span, ...]
    compared: Mapping[str, float]
    measured: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen placement. device: of each op, by its number. why: the name of the candidate.
    free: the roots of groups that had a choice. predict: what it will take, worked out once."""

    device: tuple[int, ...]
    why: str
    free: frozenset[int]
    predict: Callable[[], Prediction]


def choose(
    graph: Graph,
    problem: Problem,
    together: Colocation,
    devices: Sequence[Device],
    model: CostModel,
    spread: bool,
) -> Choice:
    """Simulate the candidates and take the fastest; staying where the session is wins unless
    another is faster by `MARGIN`. With one candidate that waits until somebody asks."""
    groups = together.groups
    roots = [groups.root(i) for i in range(len(problem.ops))]
    group = dict(zip(problem.ops, roots, strict=True))
    allowed = {r: _bits(groups.mask(r)) for r in dict.fromkeys(roots)}
    if not spread:
        home = {k for k, d in enumerate(devices) if d.task == devices[0].task}
        cpus = {k for k, d in enumerate(devices) if d.kind == CPU}
        for some in (home, cpus):  # nothing is on a GPU that nothing puts there
            allowed = {r: [k for k in ks if k in some] or ks for r, ks in allowed.items()}
    free = frozenset(r for r, ks in allowed.items() if len(ks) > 1)
    fresh = _fresh_like(devices, allowed)
    candidates: dict[str, tuple[int | None, Pick]] = {HOME: (0, _earliest(fresh))}
    if free:
        candidates["earliest finish"] = None, _earliest(fresh)
        candidates["with most of its operands"] = None, _with_operands
        for k in _singles(devices, allowed, free):
            candidates[f"all that may on {devices[k].name}"] = k, _earliest(fresh)

    def simulate(costs: Costs, prefer: int | None, pick: Pick) -> tuple[float, Simulation]:
        chosen = {r: ks[0] for r, ks in allowed.items() if len(ks) == 1}
        if prefer is not None:
            chosen |= {r: prefer for r, ks in allowed.items() if prefer in ks}
        simulation = Simulation(graph, devices, costs, group, allowed.__getitem__, chosen, pick)
        return simulation.run(), simulation

    @cache
    def fastest() -> tuple[str, Mapping[int, int], Prediction]:
        costs = model.costs_of(graph)
        done = {name: simulate(costs, *how) for name, how in candidates.items()}
        best = min(done, key=lambda name: done[name][0])
        if done[HOME][0] <= done[best][0] * (1 + MARGIN):
            best = HOME
        seconds, simulation = done[best]
        compared = {name: found[0] for name, found in done.items()}
        spans = tuple(simulation.spans)
        return best, simulation.chosen, Prediction(seconds, spans, compared, costs.measured)

    why, chosen = fastest()[:2] if free else (HOME, {r: ks[0] for r, ks in allowed.items()})
    return Choice(tuple(chosen[r] for r in roots), why, free, lambda: fastest()[2])


def _bits(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _fresh_like(
    devices: Sequence[Device], allowed: Mapping[int, Sequence[int]]
) -> Callable[[int], object]:
    """What tells devices apart on which nothing runs yet: of equal ones only the first is tried."""
    fixed = {ks[0] for ks in allowed.values() if len(ks) == 1} | {0}
    tasks = {devices[k].task for k in fixed}

    def key(k: int) -> object:
        d = devices[k]
        return k if d.task in tasks else (d.spec.job, d.spec.task if k in fixed else None, d.kind,
                                          d.spec.index, d.scale, d.memory, d.kernels)  # fmt: skip

    return key


def _tried(
    simulation: Simulation, choice: Sequence[int], fresh: Callable[[int], object]
) -> list[int]:
    """Those of the devices that differ from each other at this moment."""
    seen: set[object] = set()
    out: list[int] = []
    for k in choice:
        key = k if k in simulation.free else fresh(k)
        if key not in seen:
            seen.add(key)
            out.append(k)
    return out


def _earliest(fresh: Callable[[int], object]) -> Pick:
    """The device on which the op finishes first, the earlier in the list of equal ones."""

    def pick(simulation: Simulation, op: Operation, choice: Sequence[int]) -> int:
        tried = _tried(simulation, choice, fresh)
        return min(tried, key=lambda k: (simulation.finish(op, k), k))

    return pick


def _with_operands(simulation: Simulation, op: Operation, choice: Sequence[int]) -> int:
    """The device that made the most bytes of the op's operands."""
    found = simulation.incoming(op)
    return max(choice, key=lambda k: (found.get(k, 0.0), -k))


def _singles(
    devices: Sequence[Device], allowed: Mapping[int, Sequence[int]], free: frozenset[int]
) -> list[int]:
    """Single devices to try, one of each sort; 0 is tried anyway."""
    key = _fresh_like(devices, allowed)
    possible = sorted({k for r in free for k in allowed[r]} - {0})
    first: dict[object, int] = {}
    for k in possible:
        first.setdefault(key(k), k)
    return sorted(first.values())[:MOST_SINGLE]


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


#: Predictions that differ by less are the same to people.
_NEAR = 0.01
_LEFT = "the only device that all constraints leave"


def _chosen(choice: Choice) -> str:
    """Why a group that had a choice is where it is."""
    found = choice.predict()
    took = f"{found.seconds * 1e3:.3g} ms predicted"
    least = found.seconds * _NEAR
    others = {k: v for k, v in found.compared.items() if abs(v - found.seconds) > least}
    if not others:
        return f"{choice.why} ({took})"
    name = min(others, key=lambda k: others[k])
    if choice.why != HOME and HOME in others:
        name = HOME
    return f"{choice.why} ({took}; {name}: {others[name] * 1e3:.3g} ms)"


_LOG = logging.getLogger("weft.place")


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed graph: each op, nested ones too, has a full device.

    reasons: for each op of `graph` that runs by itself, why it is where it is. predict: what a step
    will take, worked out once. fallbacks: what soft placement has given up, as text. spanning: the
    branches and loops (of `graph`) whose ops are on several devices. state: the devices of
    variables ("w") and objects of the host ("<queue> q").
    """

    graph: Graph
    devices: tuple[Device, ...]
    reasons: Mapping[Operation, str]
    predict: Callable[[], Prediction]
    fallbacks: tuple[str, ...]
    spanning: tuple[Operation, ...]
    state: Mapping[str, str]


def place(
    graph: Graph,
    devices: Sequence[Device],
    *,
    costs: CostModel | None = None,
    soft: bool = False,
    spread: bool = True,
    held: Mapping[str, str] | None = None,
    default: str | None = None,
) -> Placement:
    """Say for each op of `graph` where it runs.

    devices: those that there are, the session's own first: feeds start there and fetches end there.
    costs: measured ones, or the links; by default static prices. soft: constraints that cannot hold
    are given up, and `fallbacks` says which. spread: ops that nothing binds may leave the session's
    task if that makes the step faster. held: where variables and objects of the host are since
    earlier steps, as `Placement.state` of theirs says; they stay there. default: the device of the
    ops that name none, and that nothing which names one is together with.

    PlacementError with the minimal set of constraints that cannot hold together;
    ResourceExhaustedError if the variables do not fit the memory of a device.
    """
    check_devices(devices)
    graph = _own_regions(graph)
    problem = find_constraints(graph, devices, held)
    if default is not None:
        add_defaults(problem, devices, default)
    groups, fallbacks, wishes = group_up(problem, devices, soft=soft)
    together = colocate(graph, problem, groups, devices)
    model = costs or CostModel()
    choice = choose(graph, problem, together, devices, model, spread)
    _check_memory(problem, choice, devices, model.sizes)
    copies: dict[Operation, Operation] = {}
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info(
            "%s: %d ops, %s, %.3g ms predicted%s",
            graph.name, len(problem.ops), choice.why, choice.predict().seconds * 1e3,
            "".join(f"; {text}" for text in fallbacks),
        )  # fmt: skip
    names = {op: devices[k].name for op, k in zip(problem.ops, choice.device, strict=True)}
    block = with_devices(graph.block, names.get, copies)
    texts = reasons_of(problem, together, devices, choice, wishes)
    return Placement(
        replace(graph, block=block),
        tuple(devices),
        {copies[op]: text for op, text in zip(problem.ops, texts, strict=True)},
        choice.predict,
        tuple(fallbacks),
        tuple(copies[op] for op in problem.ops if _spans(op, names)),
        _state(problem, names),
    )


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


def _check_memory(
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
            name = max(variables, key=lambda n: variables[n][0])
            size, op = variables[name]
            raise ResourceExhaustedError(
                f"the {len(variables)} variables on {devices[k].name} have {total:,.0f} bytes, "
                f"but there is memory for {limit:,}; the largest, '{name}', has {size:,.0f}",
                hint="put some on other devices, as wf.train.replica_device_setter does",
                location=op.locations,
            )


_MOST_OPS, _MOST_MESSAGES = 40, 20


def explain_placement(
    placement: Placement, *, measured_seconds: float | None = None, limit: int = _MOST_OPS
) -> str:
    """What is where and why, which messages there are, and what the step takes.

    measured_seconds: what a step took, to be held against the prediction. limit: so many ops of
    each device are shown.
    """
    return "\n".join(_lines(placement, measured_seconds, limit))


def _lines(placement: Placement, measured: float | None, limit: int) -> Iterator[str]:
    ops = list(placement.reasons)
    rows: dict[str, list[Operation]] = {d.name: [] for d in placement.devices}
    for op in ops:
        rows[op.device].append(op)
    used = [name for name, held in rows.items() if held]
    found = placement.predict()
    costs = f"{found.measured} of {len(ops)} ops measured" if found.measured else "static"
    yield (
        f"placement of '{placement.graph.name}': {len(ops)} ops on {len(used)} of "
        f"{len(rows)} devices"
    )
    seconds = found.seconds
    yield f"  a step is predicted to take {_time(seconds)} (costs: {costs})"
    if measured is not None:
        ratio = f"{seconds / measured:.2f} of it" if measured > 0 else "no time at all"
        yield f"  a step took {_time(measured)}: predicted was {ratio}"
    for name, time in found.compared.items():
        yield f"    {name}: {_time(time)}"
    for text in placement.fallbacks:
        yield f"  {text}"
    for op in placement.spanning:
        yield f"  op '{op.name}'{_at(op)} is on several devices: it becomes Switch and Merge"
    messages = [s for s in found.timeline if " -> " in s.where]
    busy: dict[str, float] = {}
    for span in found.timeline:
        if " -> " not in span.where:
            busy[span.where] = busy.get(span.where, 0.0) + span.end - span.begin
    for name in used:
        yield ""
        yield f"{name}: {len(rows[name])} ops, busy for {_time(busy.get(name, 0.0))}"
        for op in rows[name][:limit]:
            yield f"  {op.name}{_at(op)}: {placement.reasons[op]}"
        if len(rows[name]) > limit:
            yield f"  and {len(rows[name]) - limit} more"
    if messages:
        yield ""
        yield from _messages(messages)


def _messages(messages: Sequence[Span]) -> Iterator[str]:
    total = sum(m.nbytes for m in messages)
    yield f"{len(messages)} messages, {total:,.0f} bytes"
    for m in sorted(messages, key=lambda m: (-m.nbytes, m.begin))[:_MOST_MESSAGES]:
        yield f"  {m.what}  {m.where}: {m.nbytes:,.0f} bytes, {_time(m.begin)} to {_time(m.end)}"
    if len(messages) > _MOST_MESSAGES:
        yield f"  and {len(messages) - _MOST_MESSAGES} more"


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""


def _time(seconds: float) -> str:
    """Three digits: 12.3 us, 4.56 ms, 1.2 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
