"""Placement constraints: the user's device specs, kernels, and ops that must be together; the
smallest set of constraints that cannot all hold, and soft placement.

Ops are numbered as `Graph.walk` visits them, those in the bodies of `cond`, `while` and `scan`
included. Behind them come the numbers of *anchors*, which stand for what ops must be together with:
a colocation group, a variable or an object of the host, a stack, a variable of a loop. Sets of
devices are the bits of ints.

`constrain` gives a graph that is there already, as one saved as text, other constraints. A rule is
`PATTERN=DEVICE`. The pattern, with `*` and `?`, is a name of variables and objects of the host
(`w*`), after `op:` a name of ops (`op:matmul`), or after `at:` a place (`at:*model.py:12*`). The
device may be a partial spec; an empty one takes the op's constraint away.

The smallest set of constraints is found by QuickXplain (Junker 2004, "QuickXPlain: Preferred
explanations and relaxations for over-constrained problems", AAAI): about k log(n / k) trials for k
constraints of n. It is minimal: without any one of its constraints the rest can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase

from weft.ir.analysis.effects import StateKey, region_keys, state_key
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec, canonical_device
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import int_attr
from weft.ir.types import HandleType, RefType, StackType
from weft.passes.placement.devices import Device, listed

_HANDLES = (RefType, HandleType)


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """One reason why ops are not free.

    op: the number of the op (or anchor) that it is about. mask: the devices it allows (kinds
    "device", "kernel" and "held": state that is there already). spec: what the user asked for (kind
    "device"), or where it is. anchor: what the op must be together with (the other kinds).
    """

    kind: str
    op: int
    what: str
    locations: Locations
    mask: int = -1
    anchor: int = -1
    spec: str = ""

    def __str__(self) -> str:
        at = f" at {self.locations[0].describe()}" if self.locations else ""
        return f"{self.what}{at}"


@dataclass(slots=True)
class Problem:
    """The ops of a graph, numbered, and all that restricts them.

    anchors: what each anchor stands for, in words. state: the anchors of variables and objects of
    the host, and their keys. unused: specs of ops on handles, which go where the handle is.
    """

    ops: list[Operation]
    number: dict[Operation, int]
    parent: list[int]
    constraints: list[Constraint] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    state: dict[int, StateKey] = field(default_factory=dict)
    unused: dict[int, str] = field(default_factory=dict)

    def anchor(self, what: str) -> int:
        """A new anchor."""
        self.anchors.append(what)
        return len(self.ops) + len(self.anchors) - 1

    @property
    def size(self) -> int:
        """How many numbers there are, of ops and anchors."""
        return len(self.ops) + len(self.anchors)

    def of_op(self, kinds: Sequence[str]) -> dict[int, Constraint]:
        """The first constraint of these kinds for each op that has one."""
        out: dict[int, Constraint] = {}
        for c in self.constraints:
            if c.kind in kinds:
                out.setdefault(c.op, c)
        return out


def inside(op: Operation) -> Iterator[Operation]:
    """The ops in the regions of a structured op, outer before inner; none of an opaque one."""
    if op.name in CONTROL:
        for region in op.regions:
            for inner in region.ops:
                yield inner
                yield from inside(inner)


def find_constraints(
    graph: Graph, devices: Sequence[Device], held: Mapping[str, str] | None = None
) -> Problem:
    """All that restricts the placement of `graph` on `devices`. held: the devices of state that is
    there already, by its key (`ir.analysis.effects.state_key`).

    UnsupportedError for a graph whose stacks are memory already, if there are several tasks.
    """
    problem = Problem([], {}, [])
    _number(problem, graph.block, -1)
    _of_devices(problem, devices)
    groups: dict[str, int] = {}
    for i, op in enumerate(problem.ops):
        if op.group:
            if op.group not in groups:
                groups[op.group] = problem.anchor(f"colocation group '{op.group}'")
            what = f"op '{op.name}' is in the colocation group '{op.group}'"
            problem.constraints.append(
                Constraint("group", i, what, op.locations, anchor=groups[op.group])
            )
        if op.name.startswith("arena_") and len({d.task for d in devices}) > 1:
            raise UnsupportedError(
                f"op '{op.name}': the graph's stacks are memory of one task already",
                hint="place before the pass lower_stacks",
                location=op.locations,
            )
    _Together(problem).block(graph.block, {})
    for anchor, key in problem.state.items():
        if held and isinstance(key, str) and key in held:
            mask = sum(1 << k for k, d in enumerate(devices) if d.name == held[key])
            what = f"{problem.anchors[anchor - len(problem.ops)]} is on {held[key]} already"
            problem.constraints.append(Constraint("held", anchor, what, (), mask, spec=held[key]))
    return problem


def _number(problem: Problem, block: Block, parent: int) -> None:
    for op in block.ops:
        number = problem.number[op] = len(problem.ops)
        problem.ops.append(op)
        problem.parent.append(parent)
        if op.name in CONTROL:
            for region in op.regions:
                _number(problem, region, number)


def _of_devices(problem: Problem, devices: Sequence[Device]) -> None:
    """What the user asked for, and what there are kernels for."""
    everywhere = (1 << len(devices)) - 1
    found: dict[str, int] = {}
    specs = [d.spec for d in devices]
    of_task: dict[object, list[int]] = {}
    for k, own in enumerate(specs):
        of_task.setdefault((own.job, own.task), []).append(k)
    alike: dict[object, tuple[int, Device]] = {}  # devices with the same kernels: bits, and one
    for k, d in enumerate(devices):
        key = d.kind, d.kernels, d.dtypes
        alike[key] = alike.get(key, (0, d))[0] | 1 << k, d
    for i, op in enumerate(problem.ops):
        if op.device and uses_handle(op):
            problem.unused[i] = op.device
        elif op.device:
            if op.device not in found:
                spec = DeviceSpec.parse(op.device)
                known = spec.job is not None and spec.task is not None
                near = of_task.get((spec.job, spec.task), []) if known else range(len(devices))
                found[op.device] = sum(1 << k for k in near if spec.matches(specs[k]))
            problem.constraints.append(wish(i, op, op.device, found[op.device]))
        lacks = [(bits, why) for bits, d in alike.values() if (why := d.lacks(op))]
        if lacks:
            mask = everywhere & ~sum(bits for bits, _ in lacks)
            why = ", ".join(dict.fromkeys(why for _, why in lacks))
            what = f"op '{op.name}' {why}"
            problem.constraints.append(Constraint("kernel", i, what, op.locations, mask))


def wish(number: int, op: Operation, spec: str, mask: int) -> Constraint:
    """That the user wants op `number` on a device that `spec` names, one of those in `mask`."""
    what = f"op '{op.name}' is to run on {spec}"
    return Constraint("device", number, what, op.locations, mask, spec=spec)


def uses_handle(op: Operation) -> bool:
    """Whether the op reads, writes or passes on state that another op made."""
    return op.name not in CONTROL and any(isinstance(v.type, _HANDLES) for v in op.operands)


class _Together:
    """Finds what must be together: users of one handle, of one stack, and each loop's variables."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.handles: dict[StateKey, int] = {}
        self.stacks: dict[Value, int] = {}
        self.loops: dict[Value, int] = {}

    def block(self, block: Block, known: Mapping[Value, StateKey]) -> None:
        """Every op of a block. known: what its arguments that are handles stand for."""
        for op in block.ops:
            if op.name in CONTROL:
                for region in op.regions:
                    self._flow_in(op, region)
                    self.block(region, region_keys(op, region, known))
                self._flow_out(op)
                continue
            for value in (*op.operands, *op.results):
                if isinstance(value.type, _HANDLES):
                    self._use(op, value, known)
                elif isinstance(value.type, StackType):
                    what = f"op '{op.name}' works on a stack"
                    self._tie(op, "stack", what, self._stack(value))
            if op.name in ("merge", "next_iteration"):
                self._loop_variable(op)

    def _tie(self, op: Operation, kind: str, what: str, anchor: int) -> None:
        number = self.problem.number[op]
        self.problem.constraints.append(Constraint(kind, number, what, op.locations, anchor=anchor))

    def _use(self, op: Operation, value: Value, known: Mapping[Value, StateKey]) -> None:
        key = state_key(value, known)
        name = _state_name(key, value)
        if key not in self.handles:
            self.handles[key] = self.problem.anchor(name)
            self.problem.state[self.handles[key]] = key
        verb = "uses" if op.operands else "makes"
        self._tie(op, "state", f"op '{op.name}' {verb} {name}", self.handles[key])

    def _stack(self, value: Value) -> int:
        if value not in self.stacks:
            self.stacks[value] = self.problem.anchor("a stack")
        return self.stacks[value]

    def _flow_in(self, op: Operation, region: Block) -> None:
        """Stacks that a region is given are those of the operands."""
        given = op.operands[1:] if op.name == "cond" else op.operands
        for arg, operand in zip(region.args, given, strict=True):
            if isinstance(arg.type, StackType):
                self.stacks[arg] = self._stack(operand)

    def _flow_out(self, op: Operation) -> None:
        """Stacks that regions return are those of the results; of loops also those carried."""
        region = op.regions[-1]
        carries = len(op.results) if op.name == "cond" else int_attr(op.attrs, "carries")
        for i, result in enumerate(op.results[:carries]):
            if not isinstance(result.type, StackType):
                continue
            ends = [r.results[i] for r in op.regions] if op.name == "cond" else [region.results[i]]
            starts = [] if op.name == "cond" else [op.operands[i]]
            for value in (*ends, *starts):
                what = f"op '{op.name}' hands on a stack"
                self._join(op, what, self._stack(result), self._stack(value))

    def _join(self, op: Operation, what: str, first: int, second: int) -> None:
        # an edge of its own between two anchors, written as a constraint on the first
        self.problem.constraints.append(
            Constraint("stack", first, what, op.locations, anchor=second)
        )

    def _loop_variable(self, op: Operation) -> None:
        """A loop's merge, the enter that starts it and the next_iteration that feeds it."""
        merge = op.operands[1].op if op.name == "next_iteration" else op
        if merge is None or not merge.attrs["loop"]:
            return
        result = merge.results[0]
        if result not in self.loops:
            self.loops[result] = self.problem.anchor("a variable of a loop")
        what = f"op '{op.name}' carries a variable of a loop"
        self._tie(op, "loop", what, self.loops[result])
        enter = op.operands[0].op if op is merge else None
        if enter is not None and enter in self.problem.number:
            what = f"op '{enter.name}' starts a variable of a loop"
            self._tie(enter, "loop", what, self.loops[result])


def _state_name(key: StateKey, value: Value) -> str:
    if isinstance(key, Value):
        return f"a {value.type} that comes from outside"
    if key.startswith("<"):
        kind, _, name = key[1:].partition("> ")
        return f"{kind} '{name}'"
    return f"variable '{key}'"


#: The device of an op, given that of the op around it.
DeviceOf = Callable[[Operation, str], str]


def with_devices(
    block: Block, device_of: DeviceOf, copies: dict[Operation, Operation], around: str = ""
) -> Block:
    """A copy of a block, and of all in it, whose ops have the devices that `device_of` says.

    copies: filled with the new op for each old one.
    """
    args = tuple(Value(a.type, None, a.index) for a in block.args)
    mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
    ops: list[Operation] = []
    for op in block.ops:
        device = device_of(op, around)
        made = copies[op] = Operation(
            op.name,
            [mapping[v] for v in op.operands],
            op.attrs,
            [r.type for r in op.results],
            [with_devices(region, device_of, copies, device) for region in op.regions],
            [mapping[v] for v in op.control],
            op.locations,
            device=device,
            group=op.group,
        )
        mapping.update(zip(op.results, made.results, strict=True))
        ops.append(made)
    return Block(args, tuple(ops), tuple(mapping[v] for v in block.results))


@dataclass(frozen=True, slots=True)
class Rule:
    """The constraint `device` for the ops that `pattern` names. kind: "name", "op" or "at"."""

    kind: str
    pattern: str
    device: str

    @staticmethod
    def parse(text: str) -> Rule:
        """A rule as it is written. Raises InvalidArgumentError."""
        pattern, equals, device = text.rpartition("=")
        kind, colon, rest = pattern.partition(":")
        if colon and kind in ("op", "at"):
            pattern = rest
        else:
            kind = "name"
        if not equals or not pattern:
            raise InvalidArgumentError(
                f"{text!r} is no rule for devices",
                hint="write 'w*=/job:ps/task:1', 'op:matmul=/job:worker' or 'at:m.py:12*=/cpu:0'",
            )
        return Rule(kind, pattern, canonical_device(device) if device else "")

    def fits(self, op: Operation) -> bool:
        """Whether the rule is about the op."""
        if self.kind == "op":
            return fnmatchcase(op.name, self.pattern)
        if self.kind == "at":
            return any(fnmatchcase(str(at), self.pattern) for at in op.locations)
        name = op.attrs.get("name")
        return not op.operands and isinstance(name, str) and fnmatchcase(name, self.pattern)


def constrain(graph: Graph, rules: Sequence[Rule], *, clear: bool = False) -> Graph:
    """`graph` with other constraints; of several rules for an op the last one holds.

    clear: all devices that it has are forgotten first, which a graph that is placed already needs.
    NotFoundError for a rule that is about no op.
    """
    for rule in rules:
        if not any(map(rule.fits, graph.walk())):
            what = {"op": "no op called", "at": "no op at", "name": "nothing called"}[rule.kind]
            raise NotFoundError(
                f"graph '{graph.name}' has {what} {rule.pattern!r}",
                hint="op:NAME is about ops, at:FILE:LINE:COLUMN about places, a name alone about "
                "variables and objects of the host; * stands for anything",
            )

    def device_of(op: Operation, around: str) -> str:
        device = "" if clear else op.device
        for rule in rules:
            if rule.fits(op):
                device = rule.device
        return device

    return replace(graph, block=with_devices(graph.block, device_of, {}))


class Groups:
    """Groups of numbers (ops and anchors) that are on one device, and the devices left for them: a
    union-find."""

    def __init__(self, size: int, everywhere: int) -> None:
        self._up = list(range(size))
        self._mask = [everywhere] * size
        self._count = [1] * size

    def root(self, number: int) -> int:
        """The number that stands for the group of `number`."""
        up = self._up
        while up[number] != number:
            up[number] = number = up[up[number]]
        return number

    def mask(self, number: int) -> int:
        """The devices left for the group of `number`."""
        return self._mask[self.root(number)]

    def is_alone(self, number: int) -> bool:
        """Whether nothing must be where `number` is."""
        return self._count[self.root(number)] == 1

    def narrow(self, number: int, mask: int) -> bool:
        """Allow only the devices in `mask`; whether any is left."""
        root = self.root(number)
        self._mask[root] &= mask
        return self._mask[root] != 0

    def join(self, a: int, b: int) -> bool:
        """One group for both; whether any device is left for it."""
        a, b = self.root(a), self.root(b)
        if a != b:
            low, high = min(a, b), max(a, b)  # so that a group's root is its first op
            self._up[high] = low
            self._mask[low] &= self._mask[high]
            self._count[low] += self._count[high]
            return self._mask[low] != 0
        return self._mask[a] != 0

    def common(self, numbers: Sequence[int]) -> int:
        """The devices left for all of them together."""
        mask = -1
        for number in numbers:
            mask &= self.mask(number)
        return mask

    def apply(self, constraint: Constraint) -> bool:
        """Take a constraint into account; whether any device is left."""
        if constraint.anchor >= 0:
            return self.join(constraint.op, constraint.anchor)
        return self.narrow(constraint.op, constraint.mask)


def group_up(
    problem: Problem, devices: Sequence[Device], *, soft: bool
) -> tuple[Groups, list[str], dict[int, str]]:
    """The groups of `problem` with the devices left for each, never none.

    Of constraints that cannot hold, soft=True gives some up: then the list has one text for each
    conflict, and the dict what was asked for in vain, by op; and `problem.constraints` lacks them.
    PlacementError, with the minimal set, if not soft or if no user's wish is in the conflict.
    """
    everywhere = (1 << len(devices)) - 1
    given_up: list[str] = []
    wishes: dict[int, str] = {}
    while True:
        core = _alone(problem)
        if core is None:
            groups = Groups(problem.size, everywhere)
            broken = next((c for c in problem.constraints if not groups.apply(c)), None)
            if broken is None:
                return groups, given_up, wishes
            core = _minimal(problem, _component(problem, broken), everywhere)
        relaxed = _relax(problem, core, devices) if soft else None
        if relaxed is None:
            raise PlacementError(core, devices, soft)
        old, new, text = relaxed
        given_up.append(text)
        if old.kind in ("device", "default"):
            wishes.setdefault(old.op, old.spec)
        place = problem.constraints.index(old)
        problem.constraints[place : place + 1] = [new] if new is not None else []


def _alone(problem: Problem) -> list[Constraint] | None:
    """The constraints of the first op that no device is left for, whatever it is together with."""
    masks: dict[int, list[Constraint]] = {}
    for c in problem.constraints:
        if c.anchor < 0 and c.op < len(problem.ops):
            known = masks.setdefault(c.op, [])
            if not c.mask:
                return [c]
            if known and not known[0].mask & c.mask:
                return [*known, c]
            known.append(c)
    return None


def _component(problem: Problem, broken: Constraint) -> list[Constraint]:
    """The constraints up to `broken` on what hangs together with it."""
    import networkx as nx  # 100 ms that only a conflict pays

    constraints = problem.constraints[: problem.constraints.index(broken) + 1]
    ties = nx.Graph((c.op, c.anchor if c.anchor >= 0 else c.op) for c in constraints)
    held = nx.node_connected_component(ties, broken.op)
    return [c for c in constraints if c.op in held]


def _minimal(
    problem: Problem, constraints: Sequence[Constraint], everywhere: int
) -> list[Constraint]:
    """A minimal subset of `constraints`, which cannot all hold, that cannot all hold."""

    def fails(chosen: Sequence[Constraint]) -> bool:
        groups = Groups(problem.size, everywhere)
        return not all(groups.apply(c) for c in chosen)

    def explain(held: list[Constraint], grew: bool, rest: list[Constraint]) -> list[Constraint]:
        if grew and fails(held):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        late = explain([*held, *first], True, second)
        early = explain([*held, *late], bool(late), first)
        return [*early, *late]

    found = explain([], False, list(constraints))
    return sorted(found, key=lambda c: (c.anchor >= 0, c.op))


def _relax(
    problem: Problem, core: Sequence[Constraint], devices: Sequence[Device]
) -> tuple[Constraint, Constraint | None, str] | None:
    """The user's wish to give up, what is left of it, and the text that says so; None: there is
    none."""
    kinds = ("default", "device", "group")  # the weakest first
    given = next((c for kind in kinds for c in reversed(core) if c.kind == kind), None)
    if given is None:
        return None
    others = "; ".join(c.what for c in core if c is not given) or "there is no such device"
    left: Constraint | None = None
    if given.kind == "device":
        asked = DeviceSpec.parse(given.spec)
        task = DeviceSpec(asked.job, asked.task)
        mask = sum(1 << k for k, d in enumerate(devices) if task.matches(d.spec))
        if task != asked and str(task) and mask:
            left = wish(given.op, problem.ops[given.op], str(task), mask)
    kept = f", only that {left.what}" if left is not None else ""
    return given, left, f"not held (soft placement): {given}{kept}; since {others}"


class PlacementError(InvalidArgumentError):
    """Constraints that cannot all hold: `constraints`, of which none is superfluous."""

    def __init__(
        self, constraints: Sequence[Constraint], devices: Sequence[Device], soft: bool
    ) -> None:
        self.constraints = tuple(constraints)
        alone = len(constraints) == 1
        what = "no device can run this op" if alone else "no device can satisfy these together"
        if alone and constraints[0].kind == "device":
            what = "there is no such device"
        hint = f"the devices are {listed(devices)}"
        kinds = {c.kind for c in constraints}
        if kinds & {"device", "group", "default"}:
            start = "change it; " if alone else "take any one of them away; "
            if "default" in kinds:
                start = "say with wf.device where it is to run; "
            hint = start + hint
            if not soft:
                hint += "; soft placement gives up what cannot be held"
        super().__init__(
            "\n".join([f"the graph cannot be placed: {what}", *(f"  - {c}" for c in constraints)]),
            hint=hint,
            location=next((c.locations for c in constraints if c.locations), ()),
        )
