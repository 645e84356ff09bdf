"""Regions whose large results are sent to other tasks: computed where those read them, if a task is
on this host, so that no copy is made on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType
from weft.passes.control.dataflow_regions import Region
from weft.runtime.dataflow.host_ops.communication import Exchange
from weft.runtime.dataflow.host_ops.row import Array, Done
from weft.runtime.executable import Executable
from weft.runtime.frame import Frame
from weft.runtime.resources.cancel import CancelToken

#: Smaller results are not worth it: a message carries them.
LEAST_BYTES = 1 << 18


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
        and v.type.nbytes >= LEAST_BYTES
    }


class LentRegion:
    """A region as a host node. devices: see `large_results`. Any number of threads may begin it at
    once."""

    def __init__(self, made: Executable, region: Region, devices: Mapping[int, str]) -> None:
        self._made, self._devices = made, dict(devices)
        self._types = [v.type if isinstance(v.type, TensorType) else None for v in region.results]
        self._frames: list[Frame] = []

    def start(self, arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        """Run it, and say what it gives."""
        try:
            made: Any = self._run(arrays, cancel.exchange)
        except WeftError as error:
            made = error
        done(made)

    def _run(self, arrays: list[Array], exchange: Exchange | None) -> list[Any]:
        results: list[Any] = [None] * len(self._types)
        if exchange is not None:
            for i, device in self._devices.items():
                kind = self._types[i]
                assert kind is not None
                results[i] = exchange.room(device, kind.static_shape, kind.dtype.numpy)
        if all(room is None for room in results):
            return self._made(arrays)
        for i, kind in enumerate(self._types):
            if kind is not None and results[i] is None:
                results[i] = np.empty(kind.static_shape, kind.dtype.numpy)
        try:
            frame = self._frames.pop()
        except IndexError:
            frame, _, _ = self._made.own_frame()
        made = self._made.run_with(frame, arrays, results)
        self._frames[:] = [frame]  # one is enough: arenas are memory
        return made
