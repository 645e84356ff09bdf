"""Placement search: simulated annealing over the groups of ops that have a choice of devices.

It starts from a placement, changes where some groups are, and keeps the change if the simulated
step gets faster, or by chance if it gets not much slower (Kirkpatrick, Gelatt, Vecchi 1983); the
best placement that was seen is the result, so it is never worse than the first one. What is moved
is a *unit*: the groups whose ops fusion will make one kernel of, and what costs nothing beside it;
or a *cluster*: units joined pair by pair, those that give each other most bytes first, so that a
part of a model goes with its variables, its gradients and their updates; or units around another;
or a stretch of the step; or two devices change their places.

A placement that does not fit the memory of a device is as much slower as bytes are too many, and
worse than any that fits. The same step, seed and number of evaluations give the same placement."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.passes.placement.memory import overflow
from weft.passes.placement.step_model import StepModel
from weft.passes.placement.timeline import Simulation

#: Temperatures at the begin and the end, as parts of the first placement's time.
_HOT, _COLD = 0.02, 0.0003
#: The search begins anew at the best placement so many times.
_RETURNS = 4
#: How many times as long as the first step a placement takes that is a whole memory too large.
_OVER = 100.0


@dataclass(frozen=True, slots=True)
class Search:
    """How long to search: so many placements are simulated. seed: of what is tried."""

    evaluations: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise InvalidArgumentError(f"a search of {self.evaluations} evaluations finds nothing")


@dataclass(frozen=True, slots=True)
class Found:
    """The best placement. chosen: of each group its device. over: bytes over the memory of devices.
    evaluated: how many placements were simulated."""

    chosen: tuple[int, ...]
    seconds: float
    over: float
    evaluated: int


def evaluate(model: StepModel, chosen: Sequence[int]) -> tuple[float, float]:
    """Seconds of a placement, and bytes over the memory of the devices."""
    simulation = Simulation(model, chosen)
    seconds = simulation.run()
    return seconds, overflow(model, simulation.peaks()) if model.limited else 0.0


def search(
    model: StepModel, allowed: Sequence[Sequence[int]], first: Sequence[int], how: Search
) -> Found:
    """The best placement that the search sees; `first` is one of them."""
    return _Annealing(model, allowed, first, how).run()


class _Annealing:
    """One search. place: of each group its device."""

    def __init__(
        self,
        model: StepModel,
        allowed: Sequence[Sequence[int]],
        first: Sequence[int],
        how: Search,
    ) -> None:
        self.model, self.allowed, self.how = model, allowed, how
        self.random = random.Random(how.seed)
        self.place = list(first)
        self.units = _units(model, allowed)
        self.unit_of = {g: u for u, groups in enumerate(self.units) for g in groups}
        self.near = _neighbours(model, self.unit_of, len(self.units))
        self.choice = [self._allowed(groups) for groups in self.units]
        self.clusters = Clusters(self.near, self.unit_of, len(self.units))
        weights = [_weight(model, groups) for groups in self.units]
        self.total, self.sums = 0.0, [0.0] * len(weights)
        for u, weight in enumerate(weights):
            self.total += weight
            self.sums[u] = self.total
        limits = [d.memory for d in model.devices if d.memory is not None]
        self.memory = max([1, *limits])

    def _allowed(self, groups: Sequence[int]) -> tuple[int, ...]:
        common = set(self.allowed[groups[0]])
        for g in groups[1:]:
            common &= set(self.allowed[g])
        return tuple(sorted(common))

    def run(self) -> Found:
        """Search."""
        self.first_seconds = evaluate(self.model, self.place)[0]
        now, over = self._energy(self.place)
        best = over, now  # what fits is better than what does not
        kept, count = list(self.place), 1
        budget = self.how.evaluations if self.units else 1
        turn = max(1, budget // _RETURNS)
        while count < budget:
            part = (count % turn) / turn
            if count % turn == 0:
                self.place, now = list(kept), best[1]
            heat = self.first_seconds * _HOT * (_COLD / _HOT) ** part
            change = self._change()
            count += 1
            if not change:
                continue
            before = [(g, self.place[g]) for g in change]
            for g, k in change.items():
                self.place[g] = k
            energy, over = self._energy(self.place)
            worse = energy - now
            if worse <= 0 or (heat > 0 and self.random.random() < math.exp(-worse / heat)):
                now = energy
                if (over, now) < best:
                    best, kept = (over, now), list(self.place)
            else:
                for g, k in before:
                    self.place[g] = k
        seconds, excess = evaluate(self.model, kept)
        return Found(tuple(kept), seconds, excess, count)

    def _energy(self, place: Sequence[int]) -> tuple[float, bool]:
        """What the search lessens, and whether the placement does not fit. One that does not is no
        more than dear: the way to one that fits may lead over it."""
        seconds, over = evaluate(self.model, place)
        if not over:
            return seconds, False
        return seconds + self.first_seconds * _OVER * (1e-3 + over / self.memory), True

    # -- changes -----------------------------------------------------------------------------------

    def _change(self) -> dict[int, int]:
        """New devices for some groups; none if what was drawn changes nothing."""
        draw = self.random.random()
        unit = self._some_unit()
        device = self._some_device(unit)
        if draw < 0.25:
            return self._to([unit], device)
        if draw < 0.6:
            return self._to(self.clusters.around(unit, self.random), device)
        if draw < 0.8:
            return self._to(self._around(unit), device)
        if draw < 0.9:
            return self._to(self._stretch(unit), device)
        return self._exchange(unit)

    def _to(self, units: Sequence[int], device: int) -> dict[int, int]:
        out = {}
        for u in units:
            if device in self.choice[u]:
                out.update({g: device for g in self.units[u] if self.place[g] != device})
        return out

    def _some_unit(self) -> int:
        """A unit; one that takes longer, or whose values do, more often."""
        if self.random.random() < 0.3 or not self.total:
            return self.random.randrange(len(self.units))
        at, low, high = self.random.random() * self.total, 0, len(self.sums) - 1
        while low < high:
            middle = (low + high) // 2
            if self.sums[middle] < at:
                low = middle + 1
            else:
                high = middle
        return low

    def _some_device(self, unit: int) -> int:
        """A device for the unit: rather where what it hangs together with is."""
        choice, own = self.choice[unit], self.place[self.units[unit][0]]
        if self.random.random() < 0.5:
            near = {self.place[g] for g in self.near[unit]} - {own}
            around = sorted(near & set(choice))
            if around:
                return self.random.choice(around)
        return self.random.choice(choice)

    def _around(self, unit: int) -> list[int]:
        """Units on the same device that hang together with one."""
        most = 2 + int(self.random.random() ** 3 * max(2, len(self.units) // 3))
        device, found, todo = self.place[self.units[unit][0]], {unit}, [unit]
        while todo and len(found) < most:
            near = [self.unit_of[g] for g in self.near[todo.pop(0)] if g in self.unit_of]
            for other in dict.fromkeys(near):
                here = self.place[self.units[other][0]] == device
                if other not in found and here and len(found) < most:
                    found.add(other)
                    todo.append(other)
        return sorted(found)

    def _stretch(self, unit: int) -> list[int]:
        """The units of a device from one on, in the order of the step."""
        most = 2 + int(self.random.random() ** 2 * max(2, len(self.units) // 3))
        device = self.place[self.units[unit][0]]
        rest = range(unit, len(self.units))
        return [u for u in rest if self.place[self.units[u][0]] == device][:most]

    def _exchange(self, unit: int) -> dict[int, int]:
        """What is on two devices changes places, where it may."""
        a, b = self.place[self.units[unit][0]], self._some_device(unit)
        at = [self.place[groups[0]] for groups in self.units]
        there = [u for u, k in enumerate(at) if k == a]
        back = [u for u, k in enumerate(at) if k == b]
        return self._to(there, b) | self._to(back, a) if a != b else {}


def _units(model: StepModel, allowed: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups that are moved together, in the order of the step."""
    free = {g for g, ks in enumerate(allowed) if len(ks) > 1}
    up = {g: g for g in free}

    def root(g: int) -> int:
        while up[g] != g:
            up[g] = g = up[up[g]]
        return g

    def join(a: int, b: int) -> None:
        a, b = sorted((root(a), root(b)))
        if a != b and set(allowed[a]) == set(allowed[b]):
            up[b] = a

    nests: dict[object, int] = {}
    seconds = [sum(model.seconds[0][i] for i in members) for members in model.members]
    for g in sorted(free):  # what does nothing but a part of a nest
        parts = {model.costs.nest_of(model.ops[i]) for i in model.members[g]
                 if model.seconds[0][i]}  # fmt: skip
        if len(parts) == 1 and None not in parts:
            join(nests.setdefault(parts.pop(), g), g)
    for i in range(len(model.ops)):  # what costs nothing goes with the first that it reads
        group = model.group[i]
        if group in free and not seconds[group]:
            for v in model.needs[i]:
                maker = model.maker[v]
                if maker >= 0 and model.group[maker] in free:
                    join(model.group[maker], group)
                    break
    found: dict[int, list[int]] = {}
    for g in sorted(free):
        found.setdefault(root(g), []).append(g)
    return list(found.values())


def _neighbours(
    model: StepModel, unit_of: dict[int, int], count: int
) -> list[dict[int, float]]:  # fmt: skip
    """Of each unit, the groups that give it values or take them, and the bytes, the most first."""
    bytes_to: list[dict[int, float]] = [{} for _ in range(count)]
    for i in range(len(model.ops)):
        reader = model.group[i]
        for v in model.needs[i]:
            if model.maker[v] < 0:
                continue
            maker, nbytes = model.group[model.maker[v]], model.nbytes[v]
            for a, b in ((maker, reader), (reader, maker)):
                if a in unit_of and unit_of.get(b) != unit_of[a]:
                    row = bytes_to[unit_of[a]]
                    row[b] = row.get(b, 0.0) + nbytes
    return [dict(sorted(row.items(), key=lambda item: (-item[1], item[0]))) for row in bytes_to]


class Clusters:
    """Units joined pair by pair, those that give each other the most bytes first: a tree."""

    def __init__(
        self, near: Sequence[dict[int, float]], unit_of: dict[int, int], count: int
    ) -> None:
        pairs: dict[tuple[int, int], float] = {}
        for unit, row in enumerate(near):
            for g, nbytes in row.items():
                if g in unit_of and unit_of[g] != unit:
                    a, b = sorted((unit, unit_of[g]))
                    pairs[a, b] = pairs.get((a, b), 0.0) + nbytes
        self._up = [-1] * count  # the cluster around a unit or cluster
        self._units: list[tuple[int, ...]] = [(u,) for u in range(count)]
        top = list(range(count))  # of each unit the largest cluster so far
        for a, b in sorted(pairs, key=lambda pair: (-pairs[pair], pair)):
            first, second = top[a], top[b]
            both = self._units[first] + self._units[second]
            if first != second and 2 * len(both) <= max(4, count):
                new = len(self._units)
                self._up += [-1]
                self._up[first] = self._up[second] = new
                self._units.append(both)
                for u in both:
                    top[u] = new

    def around(self, unit: int, chance: random.Random) -> tuple[int, ...]:
        """A cluster with the unit: small ones rather than large ones."""
        way = [unit]
        while self._up[way[-1]] >= 0:
            way.append(self._up[way[-1]])
        return self._units[way[min(len(way) - 1, 1 + int(chance.random() ** 2 * len(way)))]]


def _weight(model: StepModel, groups: Sequence[int]) -> float:
    """How much there is to gain by moving groups: the time of their ops and of their values."""
    rate = model.costs.links.bytes_per_s
    total = 0.0
    for g in groups:
        for i in model.members[g]:
            total += model.seconds[0][i] + sum(model.nbytes[v] for v in model.results[i]) / rate
    return total
