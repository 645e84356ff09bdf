"""The choice of devices for the groups of ops that have one: greedy candidates, simulated, and a
search from the best of them.

The candidates: all in the session's place; each op where it finishes first, longest ways first (as
in HEFT: Topcuoglu, Hariri, Wu 2002; the simulation of the TensorFlow white paper, section 3.2.1);
each where most of its operands are; all on a single device. Where the memory of devices is known,
also those that keep some of it free for what comes later; one that does not fit is not taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property

from weft.ir.cost.thresholds import MARGIN, MOST_SINGLE, REPAIRS
from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import Locations
from weft.passes.placement.bounds import Bound, lower_bound
from weft.passes.placement.costs import CostModel
from weft.passes.placement.devices import CPU, Device
from weft.passes.placement.memory import Life, Peak, overflow
from weft.passes.placement.replicas import done_at_once
from weft.passes.placement.search import Search, evaluate, search
from weft.passes.placement.step_model import StepModel
from weft.passes.placement.timeline import Pick, Simulation, Span

HOME = "where the session is"
SEARCHED = "search"

#: Parts of the memory that picks keep free for what comes later, where its size is known.
_RESERVES = (0.0, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of a step: seconds, messages included, and the simulation that says so.
    compared: seconds of all candidates, by name; if there are `replicas`, of that many tasks that
    do such a step at once, phase by phase (`done_at_once`). measured: how many ops have costs from
    a trace.
    peaks: the memory of each device that takes part. path: what the step's end waited for, from its
    begin on. unfit: of the candidates, those that do not fit the memory."""

    seconds: float
    timeline: tuple[Span, ...]
    compared: Mapping[str, float]
    measured: int
    peaks: tuple[Peak, ...] = ()
    path: tuple[Span, ...] = ()
    unfit: frozenset[str] = frozenset()
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What it would be to have a group elsewhere. op: its largest op; count: of how many; own: the
    seconds of its ops where it is. device, seconds: the next best device, and the step then."""

    op: Operation
    count: int
    own: float
    device: str
    seconds: float


class Choice:
    """A choice of devices for the groups of a graph, priced once somebody asks.

    group: of each op, in order, the root of its group. allowed: the devices of a root. how: a
    search that follows the greedy candidates, if there is one. replicas: how many tasks do such a
    step at once; the candidate is taken that is fastest then, phase by phase; 0: that which is by
    itself. free: the roots that had a choice.
    """

    def __init__(
        self,
        graph: Graph,
        group: Mapping[Operation, int],
        allowed: Mapping[int, Sequence[int]],
        devices: Sequence[Device],
        costs: CostModel,
        how: Search | None = None,
        replicas: int = 0,
    ) -> None:
        self._graph, self._group, self._costs = graph, group, costs
        self._devices, self._how, self._replicas = devices, how, replicas
        self._by_root = allowed
        self.free = frozenset(r for r, ks in allowed.items() if len(ks) > 1)

    @cached_property
    def model(self) -> StepModel:
        """The graph in numbers."""
        return StepModel(self._graph, self._devices, self._costs.costs_of(self._graph), self._group)

    @cached_property
    def allowed(self) -> list[Sequence[int]]:
        """The devices of each group of the model."""
        return [self._by_root[root] for root in self.model.groups]

    @property
    def device(self) -> tuple[int, ...]:
        """The device of each op, by its number."""
        if not self.free:
            return tuple(self._by_root[root][0] for root in self._group.values())
        return tuple(self._best[1][g] for g in self.model.group)

    @property
    def chosen(self) -> Sequence[int]:
        """The device of each group of the model."""
        return self._best[1]

    @property
    def why(self) -> str:
        """The name of the candidate that was taken."""
        return self._best[0] if self.free else HOME

    @cached_property
    def prediction(self) -> Prediction:
        """What the step will take."""
        _, chosen, compared, unfit = self._best
        simulation = Simulation(self.model, chosen, keep=True)
        seconds = simulation.run()
        spans = tuple(simulation.spans or ())
        return Prediction(
            seconds, spans, compared, self.model.costs.measured, tuple(simulation.peaks()),
            simulation.critical_path(), unfit, self._replicas,
        )  # fmt: skip

    @cached_property
    def bound(self) -> Bound:
        """What no placement is faster than."""
        return lower_bound(self.model, self.allowed)

    # -- the candidates ----------------------------------------------------------------------------

    @cached_property
    def _best(self) -> tuple[str, Sequence[int], Mapping[str, float], frozenset[str]]:
        """The candidate that is taken: its name, the device of each group; the seconds of all, and
        those that do not fit. Staying where the session is wins unless another is faster by
        `MARGIN`."""
        done = self._greedy()
        fits = [name for name, (_, over, _) in done.items() if not over]
        first = min(fits or done, key=lambda name: (done[name][1], done[name][0]))
        how = self._how
        if how is None and not fits and self.free:
            how = Search(REPAIRS)
        if how is not None and self.free:
            found = search(self.model, self.allowed, done[first][2], how)
            done[SEARCHED] = self._at_once(found.chosen, found.seconds), found.over, found.chosen
        best = min(done, key=lambda name: (done[name][1], done[name][0]))
        seconds, over, _ = done[HOME]
        if not over and seconds <= done[best][0] * (1 + MARGIN):
            best = HOME
        compared = {name: row[0] for name, row in done.items()}
        return best, done[best][2], compared, frozenset(n for n, row in done.items() if row[1])

    def _greedy(self) -> dict[str, tuple[float, float, Sequence[int]]]:
        """Seconds, bytes over the memory, and the devices of the greedy candidates."""
        model, allowed = self.model, self.allowed
        fresh = _fresh_like(self._devices, allowed)
        picks: dict[str, tuple[int | None, Pick, float]] = {HOME: (0, _earliest(fresh), 0.0)}
        if self.free:
            picks["earliest finish"] = None, _earliest(fresh), 0.0
            picks["with most of its operands"] = None, _with_operands, 0.0
            for k in _singles(fresh, allowed):
                name = f"all that may on {self._devices[k].name}"
                picks[name] = k, _earliest(fresh), 0.0
            if model.limited:
                for part in _RESERVES:
                    name = f"earliest finish, {part:.0%} of the memory kept free"
                    picks[name] = None, _fitting(_earliest(fresh)), part
        done: dict[str, tuple[float, float, Sequence[int]]] = {}
        for name, (prefer, pick, reserve) in picks.items():
            chosen = [
                ks[0] if len(ks) == 1 else prefer if prefer in ks and prefer is not None else -1
                for ks in allowed
            ]
            made = Simulation(model, chosen, allowed, pick, reserve=reserve)
            seconds = made.run()
            over = overflow(model, made.peaks()) if model.limited else 0.0
            done[name] = self._at_once(made.chosen, seconds), over, made.chosen
        return done

    def _at_once(self, chosen: Sequence[int], seconds: float) -> float:
        """The seconds of a placement if all replicas do such a step at once; seconds: of one."""
        if not self._replicas:
            return seconds
        simulation = Simulation(self.model, chosen, keep=True)
        simulation.run()
        links = self._costs.links
        return done_at_once(simulation.spans or (), self.model.tasks[0], self._replicas, links)

    # -- questions ---------------------------------------------------------------------------------

    def check_memory(self) -> None:
        """Raise ResourceExhaustedError if the placement does not fit the memory of a device."""
        if not any(d.memory is not None for d in self._devices):
            return
        model, worst, most = self.model, None, 0.0
        for peak in self.prediction.peaks:
            limit = model.devices[peak.device].memory
            if limit is not None and peak.nbytes - limit > most:
                worst, most = peak, peak.nbytes - limit
        if worst is not None:
            raise self._too_large(worst)

    def _too_large(self, peak: Peak) -> ResourceExhaustedError:
        model = self.model
        tried = "no placement that was tried fits" if self.free else "constraints leave no choice"
        total, limits = sum(model.lasting), [d.memory for d in self._devices]
        if None not in limits and total > sum(n or 0 for n in limits):
            tried = f"variables and constants alone have {total:,.0f} bytes, more than all devices"
        ops = [owner(model, life) for life in peak.largest]
        return too_large(
            self._devices[peak.device], peak.nbytes, peak.lasting, tried,
            [describe(model, life) for life in peak.largest],
            next((op.locations for op in ops if op is not None and op.locations), ()),
        )  # fmt: skip

    def elsewhere(self, most: int) -> list[Elsewhere]:
        """For the free groups that take longest, what the next best device would be."""
        model, chosen = self.model, list(self._best[1])
        fresh = _fresh_like(self._devices, self.allowed)
        own = {}
        for g, ks in enumerate(self.allowed):
            took = sum(model.seconds[chosen[g]][i] for i in model.members[g])
            if len(ks) > 1 and took > 0:
                own[g] = took
        out = []
        for g in sorted(own, key=lambda g: (-own[g], g))[:most]:
            here, found = chosen[g], []
            used = set(chosen)
            tried = [k for k in _different(self.allowed[g], used, fresh) if k != here]
            for k in tried[:MOST_SINGLE]:
                chosen[g] = k
                found.append((evaluate(model, chosen)[0], k))
            chosen[g] = here
            if not found:
                continue
            seconds, k = min(found)
            op = max(model.members[g], key=lambda i: model.seconds[here][i])
            count = len(model.members[g])
            out.append(Elsewhere(model.ops[op], count, own[g], self._devices[k].name, seconds))
        return out


def too_large(
    device: Device,
    wanted: float,
    lasting: float,
    why: str,
    largest: Sequence[str],
    locations: Locations,
) -> ResourceExhaustedError:
    """The error that so many bytes do not fit the memory of a device. lasting: of variables and
    constants among them. why: nothing else is possible. largest: what takes them."""
    rows = "".join(f"\n  - {row}" for row in largest)
    return ResourceExhaustedError(
        f"the step does not fit the memory of {device.name}: it has {device.memory:,} bytes, and "
        f"{wanted:,.0f} are wanted at once, {lasting:,.0f} of them for variables and constants "
        f"({why}); the largest:{rows}",
        hint="put variables on other devices, as wf.train.replica_device_setter does, or take "
        "smaller batches, more devices or more memory",
        location=locations,
    )


def owner(model: StepModel, life: Life) -> Operation | None:
    """The op that something in memory is of."""
    if life.kind in ("lasting", "scratch"):
        return model.ops[life.number]
    maker = model.maker[life.number]
    return model.ops[maker] if maker >= 0 else None


def describe(model: StepModel, life: Life) -> str:
    """One thing in memory, in words."""
    op = owner(model, life)
    at = f" at {op.locations[0]}" if op is not None and op.locations else ""
    size = f"{life.nbytes:,.0f} bytes"
    if life.kind == "lasting":
        assert op is not None
        name = f" '{op.attrs['name']}'" if "name" in op.attrs else ""
        return f"{op.name}{name}{at}: {size}"
    if life.kind == "scratch":
        assert op is not None
        return f"inside op '{op.name}'{at}: {size}"
    received = ", received" if life.kind == "received" else ""
    made = f"of op '{op.name}'{at}" if op is not None else "that is fed"
    return f"{model.values[life.number].type} {made}{received}: {size}"


# ------------------------------------------------------------------------------------------- picks


def _fresh_like(
    devices: Sequence[Device], allowed: Sequence[Sequence[int]]
) -> Callable[[int], object]:
    """What tells devices apart on which nothing runs yet: of equal ones only the first is tried."""
    fixed = {ks[0] for ks in allowed if len(ks) == 1} | {0}
    tasks = {devices[k].task for k in fixed}

    @cache
    def key(k: int) -> object:
        d = devices[k]
        return k if d.task in tasks else (d.spec.job, d.spec.task if k in fixed else None, d.kind,
                                          d.spec.index, d.scale, d.memory, d.kernels,
                                          d.rates)  # fmt: skip

    return key


def _different(
    choice: Sequence[int], used: set[int] | Mapping[int, float], fresh: Callable[[int], object]
) -> list[int]:
    """Those of the devices that differ from each other at this moment. used: on these runs
    something."""
    seen: set[object] = set()
    out: list[int] = []
    for k in choice:
        key = k if k in used else fresh(k)
        if key not in seen:
            seen.add(key)
            out.append(k)
    return out


def _earliest(fresh: Callable[[int], object]) -> Pick:
    """The device on which the op finishes first, the earlier in the list of equal ones."""

    def pick(simulation: Simulation, op: int, choice: Sequence[int]) -> int:
        tried = _different(choice, simulation.free, fresh)
        return min(tried, key=lambda k: (simulation.finish(op, k), k))

    return pick


def _fitting(pick: Pick) -> Pick:
    """As another pick, of the devices that have room for the op; if none has, the one that lacks
    least."""

    def fitting(simulation: Simulation, op: int, choice: Sequence[int]) -> int:
        over = {k: simulation.over(op, k) for k in choice}
        room = [k for k in choice if not over[k]]
        if room:
            return pick(simulation, op, room)
        return min(choice, key=lambda k: (over[k], k))

    return fitting


def _with_operands(simulation: Simulation, op: int, choice: Sequence[int]) -> int:
    """The device that made the most bytes of the op's operands."""
    found = simulation.incoming(op)
    return max(choice, key=lambda k: (found.get(k, 0.0), -k))


def _singles(fresh: Callable[[int], object], allowed: Sequence[Sequence[int]]) -> list[int]:
    """Single devices to try, one of each sort; 0 is tried anyway."""
    possible = sorted({k for ks in allowed if len(ks) > 1 for k in ks} - {0})
    first: dict[object, int] = {}
    for k in possible:
        first.setdefault(fresh(k), k)
    return sorted(first.values())[:MOST_SINGLE]


def choices(
    masks: Sequence[int], devices: Sequence[Device], spread: bool | Collection[str]
) -> list[Sequence[int]]:
    """The devices that each of some sets (bits) leaves. spread: what may be in the session's task
    may leave it; or the tasks for whose processors it may."""

    @cache
    def left(mask: int) -> tuple[int, ...]:
        ks = tuple(k for k, bit in enumerate(reversed(bin(mask)[2:])) if bit == "1")
        if spread is not True:
            # what cannot be at home is bound; nothing is on a GPU that nothing puts there
            for some in (near, cpus) if home.intersection(ks) else (cpus,):
                ks = tuple(k for k in ks if k in some) or ks
        return ks

    home = {k for k, d in enumerate(devices) if d.task == devices[0].task}
    tasks = {devices[0].task, *(() if isinstance(spread, bool) else spread)}
    near = {k for k, d in enumerate(devices) if d.task in tasks}
    cpus = {k for k, d in enumerate(devices) if d.kind == CPU}
    return [left(mask) for mask in masks]
