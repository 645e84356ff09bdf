"""Ops of the host for the interpreter: on the real objects, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from weft.ir.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Operation
from weft.ir.types import HandleType, TensorType
from weft.runtime.dataflow.host_ops import HOST_OPS
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.resources.cancel import CancelToken


class HostObjects:
    """What `interpret(..., host=)` takes: carries ops out on `resources`, by name, as the dataflow
    executor does.

    An op that waits longer than `timeout` seconds is a DeadlineExceededError: nothing else runs
    meanwhile, so nobody but another thread could end its waiting.
    """

    def __init__(self, resources: Resources, timeout: float = 10.0) -> None:
        self.resources = resources
        self.timeout = timeout

    def __call__(self, op: Operation, operands: Sequence[Any]) -> list[Any]:
        """The results of one op."""
        begin = HOST_OPS.get(op.name)
        if begin is None:
            raise UnsupportedError("no host carries out this op")
        pairs = list(zip(op.operands, operands, strict=True))
        objects = [self._object(x.name) for v, x in pairs if isinstance(v.type, HandleType)]
        arrays = [np.array(x) for v, x in pairs if isinstance(v.type, TensorType)]
        given = objects[0] if len(objects) == 1 else tuple(objects) or None
        done: SimpleQueue[Any] = SimpleQueue()
        cancel = CancelToken()
        begin(given, op, arrays, done.put, cancel)
        try:
            made = done.get(timeout=self.timeout)
        except Empty:
            cancel.cancel("it waited for too long")
            raise DeadlineExceededError("it waits for what only other threads can do") from None
        if isinstance(made, WeftError):
            raise made
        return list(made)

    def _object(self, name: str) -> Any:
        if name not in self.resources:
            raise FailedPreconditionError(f"there is no '{name}' to run the graph with")
        return self.resources[name]
