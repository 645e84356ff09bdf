"""Queue ops on the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.type_rules import int_attr
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done, no_value
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue


def _enqueue(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.start_enqueue([tuple(arrays)], lambda made: done(no_value(made)), c)


def _enqueue_many(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    count = len(arrays[0])
    elements = [tuple(np.array(a[i, ...]) for a in arrays) for i in range(count)]
    q.start_enqueue(elements, lambda made: done(no_value(made)), c, "enqueue_many")


def _dequeue(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.start_dequeue(1, lambda made: done(_first(made)), c)


def _dequeue_many(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    def listed(made: Any) -> None:
        done(made if isinstance(made, WeftError) else list(made))

    up_to = op.name == "dequeue_up_to"
    q.start_dequeue_batch(int_attr(op.attrs, "n"), listed, c, up_to=up_to, operation=op.name)


def _size(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(q.size(), np.int32)])


def _close(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    q.close(cancel_pending_enqueues=bool(op.attrs["cancel_pending"]))
    done([None])


def _is_closed(q: Queue, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(q.is_closed)])


def _first(made: Any) -> Any:
    return made if isinstance(made, WeftError) else list(made[0])


ROWS: Mapping[str, Begin] = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "dequeue_up_to": _dequeue_many,
    "queue_size": _size,
    "queue_close": _close,
    "queue_is_closed": _is_closed,
}
