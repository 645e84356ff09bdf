"""How Python carries out host ops: one row for each, over the objects that steps share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.errors import FailedPreconditionError, UnsupportedError, WeftError
from weft.ir.graph import Operation
from weft.ir.ops.host_function import call_function
from weft.ir.rules import int_attr
from weft.ir.types import HandleType, TensorType
from weft.passes.control.plan_regions import origin
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue

Array = np.ndarray[Any, Any]
#: Given once, from any thread: the results of a host node (None for a token), or a WeftError.
Done = Callable[[Any], None]
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


# ------------------------------------------------------------------------------------------ queues
_Begin = Callable[[Any, Operation, list[Array], Done, CancelToken], None]


def _enqueue(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.start_enqueue([tuple(arrays)], lambda made: done(_no_value(made)), c)


def _enqueue_many(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    count = len(arrays[0])
    elements = [tuple(np.array(a[i, ...]) for a in arrays) for i in range(count)]
    q.start_enqueue(elements, lambda made: done(_no_value(made)), c, "enqueue_many")


def _dequeue(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.start_dequeue(1, lambda made: done(_first(made)), c)


def _dequeue_many(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    def listed(made: Any) -> None:
        done(made if isinstance(made, WeftError) else list(made))

    q.start_dequeue_batch(int_attr(op.attrs, "n"), listed, c)


def _size(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(q.size(), np.int32)])


def _close(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.close(cancel_pending_enqueues=bool(op.attrs["cancel_pending"]))
    done([None])


def _is_closed(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(q.is_closed)])


def _no_value(made: Any) -> Any:
    return made if isinstance(made, WeftError) else [None]


def _first(made: Any) -> Any:
    return made if isinstance(made, WeftError) else list(made[0])


# -------------------------------------------------------------------------------- Python functions
def _py_function(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    try:
        made: Any = call_function(arrays, op.attrs)
    except WeftError as error:
        made = error
    done(made)


#: How each op begins.
HOST_OPS: Mapping[str, _Begin] = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "queue_size": _size,
    "queue_close": _close,
    "queue_is_closed": _is_closed,
    "py_function": _py_function,
}
