"""Static regions as nodes: of sizes known only at run time, sent without a copy, or on a device.

A region whose sizes only a run knows is a `SizedStep` (`runtime/sized_step.py`), planned when it
runs. The first set of sizes is planned for by itself, as a region whose sizes are known is: many
regions never see another one. With the second set a plan is made that other sizes fill in.

`LoanedRegion` computes large results that are sent to other tasks where those read them, if a task
is on this host, so that no copy is made on the way.

`RemoteRegion` runs on a device which is not this processor: its values stay there from one
region to the next, and the executor passes them on as it does others. A value on a device is
whatever has `shape`, `dtype`, `nbytes` and `numpy()`, which copies it to the host and waits for it.
Such a value is copied back where the executor itself, an op of the host or another device reads it;
feeds and messages that regions read are copied there once, when they come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from weft.ir.cost.thresholds import LENT_BYTES
from weft.ir.device import DeviceSpec
from weft.ir.graph import Graph, Operation, Value
from weft.ir.types import TensorType
from weft.passes.control.dataflow_regions import Region, passed_on, steering
from weft.passes.manager import PassOptions
from weft.runtime.dataflow.host_dispatch import Start, at_once
from weft.runtime.dataflow.host_ops.communication import Exchange
from weft.runtime.dataflow.host_ops.row import DEAD, Array, Done
from weft.runtime.native.activation import Activation
from weft.runtime.native.executable import Executable
from weft.runtime.recorder import AnyRecorder
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import PLAIN, RunContext, StepSummary


class RemoteRegion(Protocol):
    """A region compiled for a device. taken: inputs whose memory may hold results afterwards."""

    @property
    def taken(self) -> Collection[int]: ...

    def summary(self) -> StepSummary:
        """As of `Step`: the kernels that it starts, as far as planned."""
        ...

    def start(self, arrays: list[Any], done: Done, cancel: CancelToken) -> None:
        """Run it on arrays of the host and values of the device, as `hosts.Start`."""
        ...

    def recorded(self, recorder: AnyRecorder) -> Start:
        """As `start`, with a recorder of its kernels."""
        ...

    def describe(self) -> str:
        """What it consists of, for people."""
        ...


class RegionDevice(Protocol):
    """The device that the regions of a graph run on. results_stay: whether results of the graph
    that lie there are not copied to the host."""

    results_stay: bool

    def region(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        back: Sequence[int],
        options: PassOptions,
        donated: Sequence[int] = (),
    ) -> RemoteRegion:
        """A region; its results `back` are to be on the host. options: of the passes of the step.
        donated: inputs whose memory there results may take. Errors as compiling has."""
        ...

    def bring(self, array: Any, what: str) -> Any:
        """Copy an array of the host, or a value of another device, to this one. what: which, for
        errors."""
        ...

    def settle(self) -> None:
        """Wait until all that regions asked for is done: a fault of it is raised here."""
        ...


class Where:
    """The values of a lowered graph that are read on the host and on the device. on_host: the ops
    that the host carries out as the executor is steered by them."""

    def __init__(self, graph: Graph) -> None:
        self._steering, self.on_host = steering(graph)
        self._read: set[Value] = set()  # by regions

    def look_at(self, graph: Graph, regions: Sequence[Region]) -> None:
        """These are the regions."""
        far = [r for r in regions if r.ops[0] not in self.on_host]
        self._read = passed_on(graph, [v for r in far for v in r.inputs])

    def is_brought(self, value: Value) -> bool:
        """Whether what comes from the host goes to the device at once."""
        return value in self._read and value not in self._steering

    def read_on_host(self, results: Sequence[Value]) -> tuple[int, ...]:
        """Which results of a region the executor reads itself."""
        return tuple([i for i, v in enumerate(results) if v in self._steering])


def landing(start: Start, land: Callable[[Any], Any]) -> Start:
    """A host node, what `land` makes of each of its results."""

    def begin(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        def came(made: Any) -> None:
            if isinstance(made, list):
                try:
                    made = [a if a is DEAD else land(a) for a in made]
                except BaseException as error:  # Ctrl-C too: nobody else would end who waits
                    made = error
            done(made)

        start(arrays, came, cancel)

    return begin


def on_host(value: Any) -> Array:
    """A value as an array of the host."""
    made: Array = value if isinstance(value, np.ndarray) else value.numpy()
    return made


def stays_far(op: Operation) -> bool:
    """Whether what the op reads is not copied to the host: what goes to another device of the same
    task that is no processor."""
    if op.name != "send":
        return False
    source, target = (DeviceSpec.parse(str(op.attrs[end])) for end in ("src", "dst"))
    same = (source.job, source.task) == (target.job, target.task)
    return same and target.kind != "cpu"


_Array = np.ndarray[Any, Any]


def sent_values(graph: Graph) -> dict[Value, str]:
    """The values that a graph sends, and to which device; the first one of several."""
    sends = (op for op in graph.ops if op.name == "send")
    return {op.operands[0]: str(op.attrs["dst"]) for op in reversed([*sends])}


def large_results(region: Region, sent: Mapping[Value, str]) -> dict[int, str]:
    """The numbers of the results that are large and sent, and to which device."""
    return {
        i: sent[v]
        for i, v in enumerate(region.results)
        if v in sent
        and isinstance(v.type, TensorType)
        and v.type.is_static
        and v.type.nbytes >= LENT_BYTES
    }


class LoanedRegion:
    """A region as a host node. devices: see `large_results`. Any number of threads may begin it at
    once."""

    def __init__(self, made: Executable, region: Region, devices: Mapping[int, str]) -> None:
        self._made, self._devices = made, dict(devices)
        self._types = [v.type if isinstance(v.type, TensorType) else None for v in region.results]
        self._activations: list[Activation] = []

    def start(self, arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        """Run it, and say what it gives."""
        at_once(lambda given: self._run(given, cancel.exchange, None))(arrays, done, cancel)

    def recorded(self, recorder: AnyRecorder) -> Start:
        """As `start`, with a recorder of its kernels."""

        def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
            at_once(lambda given: self._run(given, cancel.exchange, recorder))(arrays, done, cancel)

        return start

    def _run(
        self, arrays: list[Array], exchange: Exchange | None, recorder: AnyRecorder | None
    ) -> list[Any]:
        results: list[Any] = [None] * len(self._types)
        if exchange is not None:
            for i, device in self._devices.items():
                kind = self._types[i]
                assert kind is not None
                results[i] = exchange.room(device, kind.static_shape, kind.dtype.numpy)
        if all(room is None for room in results):
            return self._made.run(
                arrays, PLAIN if recorder is None else RunContext(recorder=recorder)
            )
        for i, kind in enumerate(self._types):
            if kind is not None and results[i] is None:
                results[i] = np.empty(kind.static_shape, kind.dtype.numpy)
        try:
            activation = self._activations.pop()
        except IndexError:
            activation, _, _ = self._made.own_activation()
        if recorder is None:
            made = self._made.run_with(activation, arrays, results)
        else:
            # who takes no traces does not wait for this module
            from weft.runtime.native.kernel_times import run_traced_into

            made = run_traced_into(self._made, activation, arrays, results, recorder)
        self._activations[:] = [activation]  # one is enough: arenas are memory
        return made
