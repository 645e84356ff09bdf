"""What a run of a session copies between the host and GPUs: which feeds stay where they are, and
what `wf.transfer_guard` may disallow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.frontend.device_array import DeviceArray
from weft.frontend.session.compiling import Step
from weft.frontend.session.fetching import is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.transfers import guarded, transfer
from weft.ir.device import DeviceSpec, short
from weft.ir.graph import Value
from weft.ir.locations import Locations
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices


def placed(step: Step, arrays: list[Any]) -> list[Any]:
    """The feeds as the step takes them: `wf.DeviceArray`s as they are where it reads them on a GPU,
    else as arrays of the host. FailedPreconditionError, before anything has run, for a copy that
    `wf.transfer_guard` disallows."""
    executable = step.executable
    where: list[list[str]] = [[] for _ in arrays]  # of each feed the GPUs that read it
    if isinstance(executable, DeviceStep):
        where = [[executable.device().name] for _ in arrays]
    elif isinstance(executable, StepOnDevices):
        where = _readers(executable, len(arrays))
    if guarded():
        _check_feeds(step, arrays, where)
        _check_fetches(step)
        if isinstance(executable, StepOnDevices):
            _check_edges(step, executable)
    return [
        (a._held if there else a._data) if isinstance(a, DeviceArray) else a
        for a, there in zip(arrays, where, strict=True)
    ]


def _readers(step: StepOnDevices, count: int) -> list[list[str]]:
    """Of each feed of a step in parts the GPUs that read it; none if the host does, too."""
    found: list[list[str]] = [[] for _ in range(count)]
    on_host: set[int] = set()
    for part in step.parts:
        brought: Sequence[bool] = ()
        if isinstance(part.step, DataflowStep):
            brought = part.step.built.brought
        for k, number in enumerate(part.feeds):
            if k < len(brought) and brought[k]:
                found[number].append(part.name)
            else:
                on_host.add(number)
    return [[] if i in on_host else names for i, names in enumerate(found)]


# ------------------------------------------------------------------------------------ the guard


def _check_feeds(step: Step, arrays: Sequence[Any], where: Sequence[Sequence[str]]) -> None:
    for i, (a, there) in enumerate(zip(arrays, where, strict=True)):
        for gpu in there:
            if isinstance(a, np.ndarray):
                what = "a host array or number"
            elif a._held.device.name != gpu:
                what = f"an array of {a.device}"
            else:
                continue
            name = gpu.lstrip("/")
            transfer(
                f"feed {_name(step, i)}, is {what} that is copied to {name}",
                f'feed wf.to_device(x, "{name}"), which may be called where transfers are '
                "disallowed",
            )


def _check_fetches(step: Step) -> None:
    for value, gpu in _fetched_from(step):
        transfer(
            f"fetch {_described(step.graph, value)}, is copied from {gpu.lstrip('/')} to the host",
            'run it in `with wf.transfer_guard("allow"):`; a run that fetches effects alone copies '
            "nothing back",
        )


def _fetched_from(step: Step) -> Iterator[tuple[Value, str]]:
    """What is fetched from a GPU, and from which."""
    results = [v for v in step.values if v is not None and is_tensor(v)]
    if isinstance(step.executable, DeviceStep):
        gpu = step.executable.device().name
        yield from ((value, gpu) for value in results)
    elif isinstance(step.executable, StepOnDevices):
        for part in step.executable.parts:
            if DeviceSpec.parse(part.device).kind == "gpu":
                numbers = [i for i in part.fetches if i < len(results)]  # others are effects
                yield from ((results[i], part.name) for i in numbers)


def _check_edges(step: Step, executable: StepOnDevices) -> None:
    for edge in executable.edges:
        ends = [short(device).lstrip("/") for device in (edge.src, edge.dst)]
        if any(end.startswith("gpu") for end in ends):
            made = _made_at(edge.locations)
            transfer(
                f"a step of '{executable.name}' copies '{edge.tensor}', {edge.type}{made}, from "
                f"{ends[0]} to {ends[1]}",
                "put the ops on one device (session.explain shows all copies), or run it in "
                '`with wf.transfer_guard("allow"):`',
            )


def _name(step: Step, i: int) -> str:
    """Feed i, with its type."""
    return _described(step.graph, step.feeds[i])


def _described(graph: Graph | None, value: Value) -> str:
    """The name of a value, if it has one, and its type: "x of 'graph', f32[3]"."""
    if graph is None:
        return str(value.type)
    name = next((n for n, t in graph._named.copy().items() if t._value is value), None)
    if name is not None:
        return f"{name} of '{graph.name}', {value.type}"
    op = f"op '{value.op.name}'" if value.op is not None else "a value"
    made = _made_at(value.op.locations if value.op is not None else ())
    return f"{op} of '{graph.name}', {value.type}{made}"


def _made_at(locations: Locations) -> str:
    return f" (made at {locations[0].file}:{locations[0].line})" if locations else ""
