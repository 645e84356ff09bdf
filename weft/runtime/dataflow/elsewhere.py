"""Regions that run on a device which is not this processor: their values stay there from one region
to the next, and the executor passes them on as it does others.

A value on a device is whatever has `shape`, `dtype`, `nbytes` and `numpy()`, which copies it to the
host and waits for it. Such a value is copied back where the executor itself, an op of the host or
another device reads it; feeds and messages that regions read are copied there once, when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from weft.ir.device import DeviceSpec
from weft.ir.graph import Graph, Operation, Value
from weft.passes.control.dataflow_regions import Region, passed_on, steering
from weft.runtime.dataflow.host_ops.row import DEAD, Array, Done
from weft.runtime.dataflow.hosts import Start
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.variables import VariableState


@runtime_checkable
class RegionElsewhere(Protocol):
    """A region compiled for a device. launches: how many kernels it starts, as far as planned."""

    @property
    def launches(self) -> int: ...

    def start(self, arrays: list[Any], done: Done, cancel: CancelToken) -> None:
        """Run it on arrays of the host and values of the device, as `hosts.Start`."""
        ...

    def describe(self) -> str:
        """What it consists of, for people."""
        ...


class Elsewhere(Protocol):
    """The device that the regions of a graph run on."""

    def region(
        self, graph: Graph, variables: Mapping[str, VariableState], back: Sequence[int]
    ) -> RegionElsewhere:
        """A region; its results `back` are to be on the host. Errors as compiling has."""
        ...

    def bring(self, array: Any, what: str) -> Any:
        """Copy an array of the host, or a value of another device, to this one. what: which, for
        errors."""
        ...

    def settle(self) -> None:
        """Wait until all that regions asked for is done: a fault of it is raised here."""
        ...


class Where:
    """Which values of a lowered graph are read on the host, which on the device. on_host: the ops
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
