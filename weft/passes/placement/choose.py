"""Which device each group gets, of those left for it: candidates are simulated, one is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph, Operation
from weft.passes.placement.constraints import Problem
from weft.passes.placement.costs import Costs
from weft.passes.placement.devices import CPU, Device
from weft.passes.placement.timing import Pick, Simulation, Span
from weft.passes.placement.together import Together

#: A placement that leaves the session's device must be so much faster.
MARGIN = 0.1
#: So many single devices are tried, of those that differ.
MOST_SINGLE = 8
HOME = "where the session is"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen placement. device: of each op, by its number. why: the name of the candidate.
    compared: seconds of all candidates, by name. free: the roots of groups that had a choice."""

    device: tuple[int, ...]
    why: str
    seconds: float
    spans: tuple[Span, ...]
    compared: Mapping[str, float]
    free: frozenset[int]


def choose(
    graph: Graph,
    problem: Problem,
    together: Together,
    devices: Sequence[Device],
    costs: Costs,
    spread: bool,
) -> Choice:
    """Simulate the candidates and take the fastest; staying where the session is wins unless
    another is faster by `MARGIN`."""
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

    def simulate(prefer: int | None, pick: Pick) -> tuple[float, Simulation]:
        chosen = {r: ks[0] for r, ks in allowed.items() if len(ks) == 1}
        if prefer is not None:
            chosen |= {r: prefer for r, ks in allowed.items() if prefer in ks}
        simulation = Simulation(graph, devices, costs, group, allowed.__getitem__, chosen, pick)
        return simulation.run(), simulation

    fresh = _fresh_like(devices, allowed)
    candidates: dict[str, tuple[int | None, Pick]] = {HOME: (0, _earliest(fresh))}
    if free:
        candidates["earliest finish"] = None, _earliest(fresh)
        candidates["with most of its operands"] = None, _with_operands
        for k in _singles(devices, allowed, free):
            candidates[f"all that may on {devices[k].name}"] = k, _earliest(fresh)
    done = {name: simulate(*how) for name, how in candidates.items()}
    best = min(done, key=lambda name: done[name][0])
    if done[HOME][0] <= done[best][0] * (1 + MARGIN):
        best = HOME
    seconds, simulation = done[best]
    device = tuple(simulation.chosen[r] for r in roots)
    compared = {name: found[0] for name, found in done.items()}
    return Choice(device, best, seconds, tuple(simulation.spans), compared, free)


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
