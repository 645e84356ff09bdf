"""Rows of the host ops that are done in one place: on variables and resources (queues, tables,
barriers, accumulators, stacks), on files, and Python calls.

A row says what an op does with its object, its operands and its attributes; which these are says
`ir.ops.resources`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.evaluate import type_of
from weft.ir.interpreter.state import check_initialized, missing_names, updated
from weft.ir.ops import OPS
from weft.ir.ops.dynamic import TABLE, size_names
from weft.ir.ops.io import REPORT_TABLE, call_function
from weft.ir.ops.resources import part_type
from weft.ir.spec import Attrs, OpSpec, int_attr, ints_attr, strs_attr
from weft.runtime.checkpoint.folder import restore_arrays, save_arrays
from weft.runtime.dataflow.host_ops.row import (
    Array,
    HostRow,
    at_once,
    result_ranks,
    waits,
    without_object,
)
from weft.runtime.dynamic.door import native_csv, native_examples, native_results
from weft.runtime.files.decoding import decode_csv, decode_sized, matching_files, parse_examples
from weft.runtime.files.paths import is_url, open_path
from weft.runtime.files.permissions import confined
from weft.runtime.files.records import read_whole
from weft.runtime.files.streams import unreadable
from weft.runtime.files.summaries import encode
from weft.runtime.resources.accumulators import Accumulator, DenseAccumulator, SparseAccumulator
from weft.runtime.resources.attempts import Attempt, CancelToken, Done
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.queue_kinds import Barrier
from weft.runtime.resources.reader import Reader, as_arrays
from weft.runtime.resources.table import HashTable
from weft.runtime.resources.tensor_array import Stack
from weft.runtime.resources.variables import VariableState


# ---------------------------------------------------------------------------------------- variables
def _states(given: Any) -> tuple[VariableState, ...]:
    """The variables of the op's handles, of which there may be any number."""
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _assert_initialized(given: object, arrays: list[Array], attrs: Attrs) -> None:
    check_initialized([state.name for state in _states(given) if not state.initialized])


def _report(given: object, arrays: list[Array], attrs: Attrs) -> Array:
    return missing_names(attrs["names"], [state.initialized for state in _states(given)])


def _updated(v: VariableState, update: str, arrays: list[Array]) -> Array:
    with v.lock:
        new = updated(update, v.read(), arrays)
        v.write_held(new)
    return new


VARIABLE_ROWS: Mapping[str, HostRow] = {
    "is_initialized": at_once(VariableState, lambda v, *_: np.array(v.initialized), brief=True),
    "assert_initialized": at_once(object, _assert_initialized, brief=True),
    "report_uninitialized": at_once(object, _report),
    "read_open": at_once(VariableState, lambda v, *_: v.read()),
    "assign_open": at_once(VariableState, lambda v, given, _: v.write(given[0])),
    "update_open": at_once(
        VariableState, lambda v, given, attrs: _updated(v, str(attrs["update"]), given)
    ),
    "count_up_to": at_once(
        VariableState, lambda v, _, attrs: v.count_up_to(int_attr(attrs, "limit")), brief=True
    ),
}


#: What ops do that have no trait "host", on variables of strings.
STRING_ROWS: Mapping[str, HostRow] = {
    "read": at_once(VariableState, lambda v, *_: v.read()),
    "assign": at_once(VariableState, lambda v, given, _: v.write(given[0])),
    "scatter_update": at_once(
        VariableState, lambda v, given, _: _updated(v, "scatter_update", given)
    ),
}


# ---------------------------------------------------------------------------------------- resources
def _dequeues(operation: str, *, up_to: bool = False) -> HostRow:
    return waits(
        Queue,
        lambda q, _, attrs, done, cancel: q.start_dequeue(
            int_attr(attrs, "n"), done, cancel, up_to=up_to, operation=operation
        ),
        lambda q, elements, _: q.stacked(elements, operation),
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
        lambda q, elements, op: (
            q.one(elements, result_ranks(op)) if op is not None and q.any_rank else elements[0]
        ),
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
        lambda b, elements, op: b.taken(elements, None if op is None else result_ranks(op)),
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
    # of gradients of any shape a graph has as many open sizes as axes
    axes = len(size_names(attrs)) if a.shape is None and "sizes" in attrs else None
    return a.start_take(required, done, cancel, axes)


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


def _pop(given: Any, op: Operation, arrays: list[Array], done: Done, cancel: CancelToken) -> None:
    stack: Stack = given
    try:
        made: Any = [stack.pop(*result_ranks(op))]
    except WeftError as error:
        made = error
    done(made)


def _push(stack: Stack, given: list[Array], attrs: Attrs) -> Array:
    stack.push(given[0])
    return given[0]


STACK_ROWS: Mapping[str, HostRow] = {
    "host_stack_push": at_once(Stack, _push),
    "host_stack_pop": HostRow(_pop, lambda stack, *_: [stack.pop()]),
    "host_stack_size": at_once(Stack, lambda stack, *_: np.array(stack.size(), np.int32)),
    "host_stack_close": at_once(Stack, lambda stack, *_: stack.close()),
}


def text(value: bytes) -> Array:
    """One string as an array."""
    out = np.empty((), object)
    out[()] = value
    return out


def _one(array: Array) -> bytes:
    value: Any = array[()]
    assert isinstance(value, bytes)
    return value


# ------------------------------------------------------------------------------------------ readers
def _reader_and_queue(given: Any) -> tuple[Reader, Queue]:
    reader, queue = given
    return reader, queue


def _read(
    given: Any, arrays: list[Array], attrs: Attrs, done: Done, cancel: CancelToken | None
) -> Attempt:
    reader, queue = _reader_and_queue(given)
    return reader.start_read(queue, 1, done, cancel)


def _read_up_to(
    given: Any, arrays: list[Array], attrs: Attrs, done: Done, cancel: CancelToken | None
) -> Attempt:
    reader, queue = _reader_and_queue(given)
    return reader.start_read(queue, int_attr(attrs, "n"), done, cancel, "read_up_to")


READER_ROWS: Mapping[str, HostRow] = {
    "reader_read": waits(Reader, _read, lambda _, found, op: [text(part) for part in found[0]]),
    "reader_read_up_to": waits(Reader, _read_up_to, lambda _, found, op: as_arrays(found)),
    "reader_num_records_produced": at_once(
        Reader, lambda reader, *_: np.array(reader.records_produced(), np.int64)
    ),
    "reader_num_work_units_completed": at_once(
        Reader, lambda reader, *_: np.array(reader.files_finished(), np.int64)
    ),
    "reader_reset": at_once(Reader, lambda reader, *_: reader.reset()),
}


# -------------------------------------------------------------------------------------------- files
def write_bytes(name: bytes, contents: bytes) -> None:
    """Write a file. FailedPreconditionError with what the system says, InvalidArgumentError for
    what is no name."""
    path = os.fsdecode(name)
    try:
        if is_url(path):
            with open_path(path, "wb") as file:
                file.write(contents)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(contents)
    except OSError as error:
        raise FailedPreconditionError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise unreadable(path, error) from error


def _read_file(arrays: list[Array], attrs: Attrs) -> Array:
    return text(read_whole(confined(os.fsdecode(_one(arrays[0])), strs_attr(attrs, "within"))))


def _write_file(arrays: list[Array], attrs: Attrs) -> None:
    name = _one(arrays[0])
    confined(os.fsdecode(name), strs_attr(attrs, "within"))
    write_bytes(name, _one(arrays[1]))


def _matching(arrays: list[Array], attrs: Attrs) -> Array:
    return matching_files(arrays[0], strs_attr(attrs, "within"))


def _csv(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    delimiter, quote, na_value = (str(attrs[k]) for k in ("delimiter", "quote", "na_value"))
    columns = ints_attr(attrs, "columns")
    given = (arrays[0], arrays[1:], delimiter, quote, na_value, columns)
    made = native_csv(*given)
    return decode_csv(*given) if made is None else made


def _example(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    types = [part_type(p) for p in strs_attr(attrs, "parts")]
    defaults = dict(zip(ints_attr(attrs, "defaults"), arrays[1:], strict=True))
    given = (arrays[0], strs_attr(attrs, "names"), types, defaults)
    made = native_examples(*given)
    return parse_examples(*given) if made is None else made


def _image(arrays: list[Array], attrs: Attrs) -> Array:
    sizes = [int_attr(attrs, k) for k in ("height", "width", "channels")]
    return decode_sized(_one(arrays[0]), *sizes)


def _save(arrays: list[Array], attrs: Attrs) -> None:
    named = dict(zip(strs_attr(attrs, "names"), arrays[1:], strict=True))
    save_arrays(_one(arrays[0]), named, int_attr(attrs, "keep"), strs_attr(attrs, "within"))


def _restore(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    types = [part_type(p) for p in strs_attr(attrs, "parts")]
    within = strs_attr(attrs, "within")
    return restore_arrays(_one(arrays[0]), strs_attr(attrs, "names"), types, within)


def _summary(arrays: list[Array], attrs: Attrs) -> Array:
    limit = int_attr(attrs, "limit")
    return text(encode(str(attrs["kind"]), str(attrs["tag"]), arrays[0], limit))


FILE_ROWS: Mapping[str, HostRow] = {
    "read_file": without_object(_read_file),
    "write_file": without_object(_write_file),
    "matching_files": without_object(_matching),
    "decode_csv": without_object(_csv),
    "parse_example": without_object(_example),
    "decode_image": without_object(_image),
    "summary": without_object(_summary),
    "save": without_object(_save),
    "restore": without_object(_restore),
}


# ------------------------------------------------------------------------------------- Python calls
def _py_function(arrays: list[Array], attrs: Attrs) -> list[Array]:
    # copies: the function may go on to write to what it gave
    return [np.array(a) for a in call_function(arrays, attrs)]


def _effect(spec: OpSpec, arrays: list[Array], attrs: Attrs) -> None:
    """What an op does that has no result but its token."""
    assert spec.reference is not None
    spec.reference(arrays, attrs)


def _exchange(arrays: list[Array], attrs: Attrs) -> list[Array]:
    reference = OPS["exchange"].reference
    assert reference is not None
    return [np.array(r) if r.base is not None else r for r in reference(arrays, attrs)]


def _by_value(spec: OpSpec, arrays: list[Array], attrs: Attrs) -> list[Array]:
    """What a native kernel gives, or the op's meaning in NumPy: as arrays that share nothing with
    the operands."""
    native = native_results(spec.name, arrays, attrs)
    if native is not None:
        return native
    assert spec.reference is not None
    try:
        made = spec.reference(arrays, attrs)
    except WeftError as error:
        given = ", ".join(str(type_of(a)) for a in arrays)
        raise type(error)(f"op '{spec.name}' on ({given}): {error.what}", hint=error.hint) from None
    results: Sequence[Array] = [made] if isinstance(made, np.ndarray) else made
    return [r if r.base is None and r is not arrays[0] else np.array(r) for r in results]


#: They read their operands, and neither write to them nor keep them.
READ_ONLY = frozenset(spec.name for spec in TABLE)
CALL_ROWS: Mapping[str, HostRow] = {
    "py_function": without_object(_py_function),
    **{spec.name: without_object(partial(_effect, spec)) for spec in REPORT_TABLE},
    "debug_callback": without_object(partial(_effect, OPS["debug_callback"])),
    "exchange": without_object(_exchange),
    **{spec.name: without_object(partial(_by_value, spec)) for spec in TABLE},
}
