"""Place a graph: each op gets the one device that it runs on.

1. What the user asked for, what there are kernels for and what must be together leave a set of
   devices for each group of ops (`constraints.py`); if one is empty, the smallest set of
   constraints that says why is the error (`conflicts.py`).
2. State that is not placed stays with the session, branches and loops stay whole, constants follow
   their readers (`together.py`).
3. For what is left, several placements are simulated (`timing.py`) and the fastest is taken: all of
   it in the session's place, each op where it finishes first, each where most of its operands are,
   all on one of the devices (`choose.py`).

Nothing depends on chance, nor on what else runs: the same graph, devices and costs give the same
placement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.errors import ResourceExhaustedError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.control import CONTROL
from weft.ir.types import RefType
from weft.passes.placement.choose import Choice, choose
from weft.passes.placement.conflicts import group_up
from weft.passes.placement.constraints import Problem, find_constraints, inside
from weft.passes.placement.copying import with_devices
from weft.passes.placement.costs import CostModel
from weft.passes.placement.defaults import add_defaults
from weft.passes.placement.devices import Device, check_devices
from weft.passes.placement.reasons import reasons_of
from weft.passes.placement.timing import Span
from weft.passes.placement.together import put_together

_LOG = logging.getLogger("weft.place")


@dataclass(frozen=True, slots=True)
class Placement:
    """A placed graph: each op, nested ones too, has a full device.

    reasons: for each op of `graph` that runs by itself, why it is where it is. predicted_seconds:
    of one step, messages included; timeline: the simulation that says so; compared: what other
    placements would have taken, by name. fallbacks: what soft placement has given up, as text.
    spanning: the branches and loops (of `graph`) whose ops are on several devices. state: the
    devices of variables ("w") and objects of the host ("<queue> q"). measured: how many ops have
    costs from a trace; the others have static ones.
    """

    graph: Graph
    devices: tuple[Device, ...]
    reasons: Mapping[Operation, str]
    predicted_seconds: float
    timeline: tuple[Span, ...]
    compared: Mapping[str, float]
    fallbacks: tuple[str, ...]
    spanning: tuple[Operation, ...]
    state: Mapping[str, str]
    measured: int


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
    problem = find_constraints(graph, devices, held)
    if default is not None:
        add_defaults(problem, devices, default)
    groups, fallbacks, wishes = group_up(problem, devices, soft=soft)
    together = put_together(graph, problem, groups, devices)
    prices = (costs or CostModel()).costs_of(graph)
    choice = choose(graph, problem, together, devices, prices, spread)
    _check_memory(problem, choice, devices, prices.nbytes)
    copies: dict[Operation, Operation] = {}
    _LOG.info(
        "%s: %d ops, %s, %.3g ms predicted%s",
        graph.name, len(problem.ops), choice.why, choice.seconds * 1e3,
        "".join(f"; {text}" for text in fallbacks),
    )  # fmt: skip
    names = {op: devices[k].name for op, k in zip(problem.ops, choice.device, strict=True)}
    block = with_devices(graph.block, names.get, copies)
    texts = reasons_of(problem, together, devices, choice, wishes)
    return Placement(
        replace(graph, block=block),
        tuple(devices),
        {copies[op]: text for op, text in zip(problem.ops, texts, strict=True)},
        choice.seconds,
        choice.spans,
        choice.compared,
        tuple(fallbacks),
        tuple(copies[op] for op in problem.ops if _spans(op, names)),
        _state(problem, names),
        prices.measured,
    )


def _state(problem: Problem, names: Mapping[Operation, str]) -> dict[str, str]:
    """The device of each variable and object of the host, by its key."""
    users = {c.anchor: c.op for c in problem.constraints if c.kind == "state"}
    keys = problem.state.items()
    return {key: names[problem.ops[users[a]]] for a, key in keys if isinstance(key, str)}


def _spans(op: Operation, names: Mapping[Operation, str]) -> bool:
    return op.name in CONTROL and any(names[o] != names[op] for o in inside(op))


def _check_memory(
    problem: Problem, choice: Choice, devices: Sequence[Device], nbytes: Callable[[Value], float]
) -> None:
    """Refuse variables that do not fit the memory of their device. ResourceExhaustedError."""
    held: dict[int, dict[str, tuple[float, Operation]]] = {}
    for op, k in zip(problem.ops, choice.device, strict=True):
        if op.name == "variable" and isinstance(op.result.type, RefType):
            size = nbytes(Value(op.result.type.tensor))
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
