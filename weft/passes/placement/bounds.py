"""A lower bound on the time of a simulated step, whatever the placement.

No placement is faster than
* the critical path: each op on the fastest device that it may be on, values that may stay where
  they are made there for nothing, messages that no placement avoids at their least;
* the work of the devices: what a linear program over the groups of ops that are on one device says
  (an op may be cut in parts there), by prices of the devices' time (`_work`): the dual of "all work
  over all speeds" where devices differ and groups may not be everywhere;
* the largest group: it runs on one device, one op after the other;
* the links: what goes into or out of one task in any placement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.dataclass import dataclass
from weft.passes.placement.step_model import Lines, StepModel

#: Rounds in which the prices of the devices' time are improved, and by how much at first.
_ROUNDS, _STEP = 120, 1.0
#: With more devices those are not told apart that differ in what is fixed to them.
_FEW = 64


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that no placement is faster than, by reason: the critical path, the work of the
    devices, the largest group, the links."""

    path: float
    work: float
    group: float
    links: float

    @property
    def seconds(self) -> float:
        """The largest of them."""
        return max(self.path, self.work, self.group, self.links)

    @property
    def reason(self) -> str:
        """What the largest of them is, in words."""
        names = {"critical path": self.path, "work of the devices": self.work,
                 "largest group": self.group, "links": self.links}  # fmt: skip
        return max(names, key=lambda name: names[name])


def lower_bound(model: StepModel, allowed: Sequence[Sequence[int]]) -> Bound:
    """The bound for placements in which each group is on one of its `allowed` devices."""
    made = _Bounds(model, allowed)
    work = made.work()
    return Bound(made.path(), max(work, made.busiest), made.largest, made.links())


class _Bounds:
    """What the bounds of one step share. sets: of each group, the number of its set of devices."""

    def __init__(self, model: StepModel, allowed: Sequence[Sequence[int]]) -> None:
        self.model = model
        known: dict[tuple[int, ...], int] = {}
        self.sets = [known.setdefault(tuple(ks), len(known)) for ks in allowed]
        self.devices = list(known)
        self.tasks = [frozenset(model.tasks[k] for k in ks) for ks in self.devices]
        self._fastest = [self._least(ks) for ks in self.devices]
        self._moves: dict[tuple[int, int], str] = {}
        self.home = frozenset((model.tasks[0],))
        links = model.costs.links
        self.hop = links.latency_s + links.message_s
        self.largest = self.busiest = 0.0

    def _least(self, devices: tuple[int, ...]) -> list[float]:
        """Of each op, one run on the fastest of some devices."""
        tables = {id(self.model.seconds[k]): self.model.seconds[k] for k in devices}
        rows = list(tables.values())
        return rows[0] if len(rows) == 1 else [min(column) for column in zip(*rows, strict=True)]

    # -- the critical path -------------------------------------------------------------------------

    def path(self) -> float:
        """Seconds of the longest way through the step."""
        model = self.model
        feeds = dict.fromkeys(model.block.args, (0.0, self.home))
        end, done = self._through(model.block, feeds, top=True)
        for v in model.block.results:
            if model.nbytes[v] and v in done:
                time, tasks = done[v]
                end = max(end, time + self._message(v, tasks, self.home))
        return end

    def _through(
        self, lines: Lines, there: dict[int, tuple[float, frozenset[str]]], *, top: bool
    ) -> tuple[float, dict[int, tuple[float, frozenset[str]]]]:
        """When a block is done, and its values: at the earliest. there: what goes into it, when,
        and the tasks that it may be on."""
        model, done, end = self.model, dict(there), 0.0
        for i in lines.ops:
            at = self.sets[model.group[i]]
            tasks = self.tasks[at]
            away = top and self.home.isdisjoint(tasks)
            begin = self.hop if away else 0.0
            for v in model.needs[i]:
                if v in done:
                    time, source = done[v]
                    begin = max(begin, time + self._message(v, source, tasks))
            begin += self._inside(i) if model.spans[i] else self._fastest[at][i]
            for v in model.results[i]:
                done[v] = begin, tasks
            end = max(end, begin + (self.hop if away else 0.0))
        return end, done

    def _inside(self, op: int) -> float:
        """Of a branch or loop that may span devices: the least that it takes."""
        model = self.model
        took = [self._through(region, {}, top=False)[0] for region in model.regions[op]]
        if model.ops[op].name == "cond":
            return max(took)
        return sum(took) * model.costs.trips(model.ops[op])

    def _message(self, v: int, source: frozenset[str], target: frozenset[str]) -> float:
        """Seconds from a value's end until it is elsewhere, at the least."""
        model = self.model
        if model.handle[v] or not source.isdisjoint(target):
            return 0.0
        links = model.costs.links
        return links.latency_s + links.message_s + model.nbytes[v] / links.bytes_per_s

    # -- the work of the devices -------------------------------------------------------------------

    def work(self) -> float:
        """Seconds that the devices are busy for, the fairest share; `largest` is found, too.

        For any prices of the devices' time that are 1 in all, each group at its cheapest place
        costs no more than all devices' time at those prices: the length of the step. The prices of
        those that would be busy longest are raised (multiplicative weights: Plotkin, Shmoys, Tardos
        1995); each round is a bound.
        """
        cost, fixed, count = self._columns()
        best, rows = 0.0, np.arange(len(cost))
        price = np.ones(len(count)) / count.sum()
        for round in range(_ROUNDS):
            place = (cost * price).argmin(axis=1)
            paid = cost[rows, place]
            best = max(best, float((paid * price[place]).sum() + (fixed * price).sum()))
            load = (fixed + np.bincount(place, paid, len(count))) / count
            if not load.max() > 0:
                break
            price = price * np.exp(_STEP / (1 + round / 10) * load / load.max())
            price /= (price * count).sum()
        return best

    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds of each group that has a choice on each kind of device (infinite where it may not
        be); what else these do; how many there are of a kind: those that are equally fast for the
        same groups. With few devices, what is fixed tells them apart, too."""
        model, times = self.model, self._times()
        groups = np.array(model.group, int)
        per_table = {
            id(table): np.bincount(groups, np.array(table) * times, len(model.groups))
            for table in model.seconds
        }
        sets, loads = np.array(self.sets, int), np.zeros(len(model.devices))
        alone = np.array([len(devices) == 1 for devices in self.devices], bool)
        for g in np.flatnonzero(alone[sets]):
            k = self.devices[sets[g]][0]
            took = float(per_table[id(model.seconds[k])][g])
            loads[k] += took
            self.largest = max(self.largest, took)
        free = np.flatnonzero(~alone[sets])
        may = np.zeros((len(self.devices), len(model.devices)), bool)
        for at in np.flatnonzero(~alone):
            may[at, list(self.devices[at])] = True
        kinds: dict[object, list[int]] = {}
        for k, table in enumerate(model.seconds):
            own = k if len(model.devices) <= _FEW and loads[k] else None
            kinds.setdefault((id(table), may[:, k].tobytes(), own), []).append(k)
        cost = np.full((len(free), len(kinds)), np.inf)
        for column, devices in enumerate(kinds.values()):
            seconds = per_table[id(model.seconds[devices[0]])][free]
            here = may[sets[free], devices[0]]
            cost[here, column] = seconds[here]
        if len(free):
            self.largest = max(self.largest, float(cost.min(axis=1).max()))
        fixed = np.array([loads[devices].sum() for devices in kinds.values()])
        self.busiest = float(loads.max())
        return cost, fixed, np.array([float(len(devices)) for devices in kinds.values()])

    def _times(self) -> np.ndarray:
        """How often each op counts: as often as loops that may span devices run it; not at all in
        a branch, of which only one side counts."""
        model, times = self.model, np.zeros(len(self.model.ops))

        def count(lines: Lines, often: float) -> None:
            for i in lines.ops:
                times[i] = 0.0 if model.spans[i] else often
                if model.spans[i]:
                    op = model.ops[i]
                    inner = 0.0 if op.name == "cond" else often * model.costs.trips(op)
                    for region in model.regions[i]:
                        count(region, inner)

        count(model.block, 1.0)
        return times

    # -- links -------------------------------------------------------------------------------------

    def links(self) -> float:
        """Seconds that the busiest task sends, or receives, in any placement. Of the step's own
        block: what is in branches and loops is left out."""
        model, links = self.model, self.model.costs.links
        maker = dict.fromkeys(model.block.args, self.home)
        needed: dict[int, set[tuple[frozenset[str], object]]] = {}
        for i in model.block.ops:
            at = self.sets[model.group[i]]
            maker.update(dict.fromkeys(model.results[i], self.tasks[at]))
            devices = self.devices[at]
            who: object = devices[0] if len(devices) == 1 else None
            for v in model.needs[i]:
                if v in maker and not model.handle[v] and maker[v].isdisjoint(self.tasks[at]):
                    needed.setdefault(v, set()).add((self.tasks[at], who))
        for v in model.block.results:
            if model.nbytes[v] and maker[v].isdisjoint(self.home):
                needed.setdefault(v, set()).add((self.home, 0))
        out: dict[str, float] = {}
        into: dict[str, float] = {}
        for v, readers in needed.items():
            hold = links.message_s + model.nbytes[v] / links.bytes_per_s
            fixed = {(tasks, who) for tasks, who in readers if who is not None}
            if len(maker[v]) == 1:
                (task,) = maker[v]
                out[task] = out.get(task, 0.0) + hold * max(1, len(fixed))
            for tasks, _ in fixed:
                (task,) = tasks
                into[task] = into.get(task, 0.0) + hold
        most = max([*out.values(), *into.values()], default=0.0)
        return most + links.latency_s if most else 0.0
