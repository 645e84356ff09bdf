"""From a host op to what the executor calls: its row of `host_ops` and its object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.ir.errors import FailedPreconditionError, UnsupportedError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import HandleType, TensorType
from weft.passes.control.plan_regions import origin
from weft.runtime.dataflow.host_ops import HOST_OPS
from weft.runtime.dataflow.host_ops.row import Array, Done
from weft.runtime.resources.cancel import CancelToken

#: Begins a host node on arrays that it owns, and does not wait: `done` may be called at once or
#: later; if the token is cancelled it must be, with an error.
Start = Callable[[list[Array], Done, CancelToken], None]
#: The objects that a graph's handles stand for, by name.
Resources = Mapping[str, Any]


def host_start(op: Operation, resources: Resources) -> tuple[Start, tuple[TensorType, ...]]:
    """What carries `op` out, and the types of the tensors that it is given.

    UnsupportedError for an op that has no row, FailedPreconditionError if its object is not there.
    """
    begin = HOST_OPS.get(op.name)
    if begin is None:
        raise UnsupportedError(
            f"the dataflow executor does not run op '{op.name}' yet", location=op.locations
        )
    handle = op.operands[0].type if op.operands else None
    queue = _resource(op, resources) if isinstance(handle, HandleType) else None
    types = tuple(v.type for v in op.operands if isinstance(v.type, TensorType))

    def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        begin(queue, op, arrays, done, cancel)

    return start, types


def at_once(run: Callable[[list[Array]], list[Any]]) -> Start:
    """A host node that waits for nothing."""

    def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        try:
            made: Any = run(arrays)
        except WeftError as error:
            made = error
        done(made)

    return start


def _resource(op: Operation, resources: Resources) -> Any:
    handle = op.operands[0]
    assert isinstance(handle.type, HandleType)
    name = str(origin(handle).attrs["name"])
    if name not in resources:
        raise FailedPreconditionError(
            f"there is no {handle.type.kind} '{name}' to run the graph with", location=op.locations
        )
    return resources[name]
