"""Ops on resources: queues, tables, barriers, accumulators and stacks.

A row says what an op does with its object, its operands and its attributes; which these are says
`ir.ops.resources`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.ir.errors import InvalidArgumentError
from weft.ir.spec import Attrs, int_attr
from weft.runtime.dataflow.host_ops.row import Array, HostRow, at_once, waits
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.attempts import Attempt, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.queue_kinds import Barrier
from weft.runtime.resources.table import HashTable
from weft.runtime.resources.tensor_array import Stack


def _dequeues(operation: str, *, up_to: bool = False) -> HostRow:
    return waits(
        Queue,
        lambda q, _, attrs, done, cancel: q.start_dequeue(
            int_attr(attrs, "n"), done, cancel, up_to=up_to, operation=operation
        ),
        lambda q, elements: q.stacked(elements, operation),
        brief=True,
    )


QUEUE_ROWS: Mapping[str, HostRow] = {
    "enqueue": waits(
        Queue,
        lambda q, given, _, done, cancel: q.start_enqueue([tuple(given)], done, cancel),
        brief=True,
    ),
    "enqueue_many": waits(
        Queue,
        lambda q, given, _, done, cancel: q.start_enqueue(
            q.elements(given), done, cancel, "enqueue_many"
        ),
        brief=True,
    ),
    "dequeue": waits(
        Queue,
        lambda q, _, attrs, done, cancel: q.start_dequeue(1, done, cancel),
        lambda q, elements: elements[0],
        brief=True,
    ),
    "dequeue_many": _dequeues("dequeue_many"),
    "dequeue_up_to": _dequeues("dequeue_up_to", up_to=True),
    "queue_size": at_once(Queue, lambda q, *_: np.array(q.size(), np.int32), brief=True),
    "queue_close": at_once(
        Queue, lambda q, _, attrs: q.close(bool(attrs["cancel_pending"])), brief=True
    ),
    "queue_is_closed": at_once(Queue, lambda q, *_: np.array(q.is_closed), brief=True),
}

TABLE_ROWS: Mapping[str, HostRow] = {
    "table_lookup": at_once(HashTable, lambda table, given, _: table.lookup(*given)),
    "table_insert": at_once(HashTable, lambda table, given, _: table.insert(*given)),
    "table_remove": at_once(HashTable, lambda table, given, _: table.remove(*given)),
    "table_export": at_once(HashTable, lambda table, *_: table.export()),
    "table_import": at_once(HashTable, lambda table, given, _: table.import_values(*given)),
    "table_size": at_once(HashTable, lambda table, *_: np.array(table.size(), np.int64)),
}


def _takes_elements(*, up_to: bool) -> HostRow:
    return waits(
        Barrier,
        lambda b, _, attrs, done, cancel: b.start_dequeue(
            int_attr(attrs, "n"), done, cancel, up_to=up_to, operation="take_many"
        ),
        lambda b, elements: b.stacked(elements, "take_many"),
    )


BARRIER_ROWS: Mapping[str, HostRow] = {
    "barrier_insert_many": waits(
        Barrier,
        lambda b, given, attrs, done, cancel: b.start_insert(
            int_attr(attrs, "component"), given[0], given[1], done, cancel
        ),
    ),
    "barrier_take_many": _takes_elements(up_to=False),
    "barrier_take_up_to": _takes_elements(up_to=True),
    "barrier_close": at_once(Barrier, lambda b, _, attrs: b.close(bool(attrs["cancel_pending"]))),
    "barrier_ready_size": at_once(Barrier, lambda b, *_: np.array(b.size(), np.int32)),
    "barrier_incomplete_size": at_once(
        Barrier, lambda b, *_: np.array(b.incomplete_size(), np.int32)
    ),
}


def _take(
    a: Accumulator, given: list[Array], attrs: Attrs, done: Done, cancel: CancelToken | None
) -> Attempt:
    required = int(given[0])
    if required < 1:
        raise InvalidArgumentError(f"{a.describe()}: num_required={required} must be at least 1")
    return a.start_take(required, done, cancel)


ACCUMULATOR_ROWS: Mapping[str, HostRow] = {
    "accumulator_apply_gradient": at_once(
        DenseAccumulator, lambda a, given, _: a.apply_grad(given[1], int(given[0]))
    ),
    "sparse_accumulator_apply_gradient": at_once(
        SparseAccumulator, lambda a, given, _: a.apply_grad(given[1], given[2], int(given[0]))
    ),
    "accumulator_take_gradient": waits(Accumulator, _take),
    "sparse_accumulator_take_gradient": waits(Accumulator, _take),
    "accumulator_set_global_step": at_once(
        Accumulator, lambda a, given, _: a.set_global_step(int(given[0]))
    ),
    "accumulator_num_accumulated": at_once(
        Accumulator, lambda a, *_: np.array(a.num_accumulated(), np.int32)
    ),
}


def _push(stack: Stack, given: list[Array], attrs: Attrs) -> Array:
    stack.push(given[0])
    return given[0]


STACK_ROWS: Mapping[str, HostRow] = {
    "host_stack_push": at_once(Stack, _push),
    "host_stack_pop": at_once(Stack, lambda stack, *_: stack.pop()),
    "host_stack_size": at_once(Stack, lambda stack, *_: np.array(stack.size(), np.int32)),
    "host_stack_close": at_once(Stack, lambda stack, *_: stack.close()),
}
