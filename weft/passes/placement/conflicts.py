"""Constraint conflicts: the smallest set of constraints that cannot all hold, and soft placement.

The set is found by QuickXplain (Junker 2004, "QuickXPlain: Preferred explanations and relaxations
for over-constrained problems", AAAI): about k log(n / k) trials for k constraints of n. It is
minimal: without any one of its constraints the rest can hold."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError
from weft.passes.placement.constraints import Constraint, Problem, wish
from weft.passes.placement.devices import Device, listed


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
