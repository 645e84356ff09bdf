"""Ops on resources: queues, tables, barriers, accumulators and stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.spec import int_attr
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done, after, no_value
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.queue_kinds import Barrier
from weft.runtime.resources.table import HashTable
from weft.runtime.resources.tensor_array import Stack


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


QUEUE_ROWS: Mapping[str, Begin] = {
    "enqueue": _enqueue,
    "enqueue_many": _enqueue_many,
    "dequeue": _dequeue,
    "dequeue_many": _dequeue_many,
    "dequeue_up_to": _dequeue_many,
    "queue_size": _size,
    "queue_close": _close,
    "queue_is_closed": _is_closed,
}


def _at_once(run: Callable[[Any, Operation, list[Array]], list[Any]]) -> Begin:
    """The row of an op that waits for nothing but a lock."""

    def begin(
        resource: Any, op: Operation, arrays: list[Array], done: Done, c: CancelToken
    ) -> None:
        try:
            made: Any = run(resource, op, arrays)
        except WeftError as error:
            made = error
        done(made)

    return begin


def _token(made: Any) -> list[Any]:
    return [None]


# ------------------------------------------------------------------------------------------ tables
def _lookup(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    return [table.lookup(*arrays)]


def _insert(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    table.insert(*arrays)
    return [None]


def _remove(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    table.remove(*arrays)
    return [None]


def _export(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    return list(table.export())


def _import(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    table.import_values(*arrays)
    return [None]


def _table_size(table: HashTable, op: Operation, arrays: list[Array]) -> list[Any]:
    return [np.array(table.size(), np.int64)]


# ---------------------------------------------------------------------------------------- barriers
def _insert_many(
    b: Barrier, op: Operation, arrays: list[Array], done: Done, c: CancelToken
) -> None:
    keys, values = arrays
    rows = [np.array(values[i, ...]) for i in range(len(values))]
    number = int_attr(op.attrs, "component")
    b.start_insert(number, keys.tolist(), rows, after(done, _token), c)


def _take_many(b: Barrier, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    up_to = op.name == "barrier_take_up_to"
    b.start_dequeue_batch(
        int_attr(op.attrs, "n"), after(done, list), c,
        up_to=up_to, operation="take_many",
    )  # fmt: skip


def _close_barrier(b: Barrier, op: Operation, arrays: list[Array]) -> list[Any]:
    b.close(cancel_pending_enqueues=bool(op.attrs["cancel_pending"]))
    return [None]


def _ready_size(b: Barrier, op: Operation, arrays: list[Array]) -> list[Any]:
    return [np.array(b.size(), np.int32)]


def _incomplete_size(b: Barrier, op: Operation, arrays: list[Array]) -> list[Any]:
    return [np.array(b.incomplete_size(), np.int32)]


# ------------------------------------------------------------------------------------ accumulators
def _apply(a: DenseAccumulator, op: Operation, arrays: list[Array]) -> list[Any]:
    step, gradient = arrays
    a.apply_grad(gradient, int(step))
    return [None]


def _apply_rows(a: SparseAccumulator, op: Operation, arrays: list[Array]) -> list[Any]:
    step, indices, values = arrays
    a.apply_grad(indices, values, int(step))
    return [None]


def _take(a: Accumulator, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    required = int(arrays[0])
    if required < 1:
        done(InvalidArgumentError(f"{a.describe()}: num_required={required} must be at least 1"))
        return
    a.start_take(required, after(done, _one_or_several), c)


def _one_or_several(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


def _set_step(a: Accumulator, op: Operation, arrays: list[Array]) -> list[Any]:
    a.set_global_step(int(arrays[0]))
    return [None]


def _number(a: Accumulator, op: Operation, arrays: list[Array]) -> list[Any]:
    return [np.array(a.num_accumulated(), np.int32)]


# ------------------------------------------------------------------------------------------ stacks
def _push(s: Stack, op: Operation, arrays: list[Array]) -> list[Any]:
    s.push(arrays[0])
    return [arrays[0]]


def _pop(s: Stack, op: Operation, arrays: list[Array]) -> list[Any]:
    return [s.pop()]


def _stack_size(s: Stack, op: Operation, arrays: list[Array]) -> list[Any]:
    return [np.array(s.size(), np.int32)]


def _close_stack(s: Stack, op: Operation, arrays: list[Array]) -> list[Any]:
    s.close()
    return [None]


RESOURCE_ROWS: Mapping[str, Begin] = {
    "table_lookup": _at_once(_lookup),
    "table_insert": _at_once(_insert),
    "table_remove": _at_once(_remove),
    "table_export": _at_once(_export),
    "table_import": _at_once(_import),
    "table_size": _at_once(_table_size),
    "barrier_insert_many": _insert_many,
    "barrier_take_many": _take_many,
    "barrier_take_up_to": _take_many,
    "barrier_close": _at_once(_close_barrier),
    "barrier_ready_size": _at_once(_ready_size),
    "barrier_incomplete_size": _at_once(_incomplete_size),
    "accumulator_apply_gradient": _at_once(_apply),
    "sparse_accumulator_apply_gradient": _at_once(_apply_rows),
    "accumulator_take_gradient": _take,
    "sparse_accumulator_take_gradient": _take,
    "accumulator_set_global_step": _at_once(_set_step),
    "accumulator_num_accumulated": _at_once(_number),
    "host_stack_push": _at_once(_push),
    "host_stack_pop": _at_once(_pop),
    "host_stack_size": _at_once(_stack_size),
    "host_stack_close": _at_once(_close_stack),
}
