"""Dispatch of host ops: the row of an op and the object it works on, for each way to run it.

`host_start` serves the dataflow executor, `run_now` an eager call, `HostObjects` the interpreter,
which works on the real objects, one op after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from weft.ir.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Operation, Value
from weft.ir.interpreter.evaluate import carry_out, type_of
from weft.ir.ops import OPS
from weft.ir.ops.builder import make_op
from weft.ir.spec import Attrs
from weft.ir.types import HandleType, TensorType
from weft.passes.control.dataflow_regions import HANDLES, origin
from weft.runtime.dataflow.host_ops import HOST_OPS
from weft.runtime.dataflow.host_ops.row import Array, Done
from weft.runtime.dataflow.host_ops.rows import STRING_ROWS
from weft.runtime.dynamic.door import native_results
from weft.runtime.recorder import AnyRecorder
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext, Step

#: Begins a host node on arrays that it owns, and does not wait: `done` may be called at once or
#: later; if the token is cancelled it must be, with an error.
Start = Callable[[list[Array], Done, CancelToken], None]
#: The objects that a graph's handles stand for, by name.
Resources = Mapping[str, Any]


def host_start(
    op: Operation, resources: Resources, variables: Mapping[str, VariableState]
) -> tuple[Start, tuple[TensorType, ...]]:
    """What carries `op` out, and the types of the tensors that it is given.

    UnsupportedError for an op that has no row, FailedPreconditionError if its object is not there.
    """
    types = tuple(v.type for v in op.operands if isinstance(v.type, TensorType))
    row = HOST_OPS.get(op.name) or STRING_ROWS.get(op.name)
    if row is None:
        if not is_pure(op):
            raise UnsupportedError(
                f"the dataflow executor does not run op '{op.name}' yet", location=op.locations
            )
        return at_once(partial(_on_strings, op)), types
    handles = [v for v in op.operands if isinstance(v.type, HANDLES)]
    given = _given([_object(op, v, resources, variables) for v in handles])
    begin = row.begin

    def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        begin(given, op, arrays, done, cancel)

    return start, types


def _on_strings(op: Operation, arrays: list[Array]) -> list[Any]:
    """What a pure op on strings gives, which are never in compiled regions."""
    native = native_results(op.name, arrays, op.attrs)
    return carry_out(op, arrays) if native is None else native


def _given(objects: Sequence[Any]) -> Any:
    """The objects of an op's handles as its row takes them."""
    return objects[0] if len(objects) == 1 else tuple(objects) or None


def is_pure(op: Operation) -> bool:
    """Whether the interpreter alone can say what the op gives."""
    spec = OPS[op.name]
    stateful = spec.traits & {"host", "reads_state", "writes_state"}
    return spec.reference is not None and not stateful and not op.regions


def at_once(run: Callable[[list[Array]], list[Any]]) -> Start:
    """A host node that waits for nothing."""

    def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        try:
            made: Any = run(arrays)
        except WeftError as error:
            made = error
        done(made)

    return start


def step_start(step: Step, recorder: AnyRecorder | None = None, *, keeps: bool = False) -> Start:
    """As `at_once`, for a plan. recorder: of its kernels. keeps: its results are stacks, and its
    activation is kept as long as the step."""

    def start(arrays: list[Array], done: Done, cancel: CancelToken) -> None:
        context = RunContext(keep=cancel.keep if keeps else None, recorder=recorder)
        at_once(lambda given: step.run(given, context))(arrays, done, cancel)

    return start


def waited_for(start: Start) -> Callable[[list[Array]], list[Any]]:
    """What a host node gives that is done when `start` returns."""

    def run(arrays: list[Array]) -> list[Any]:
        found: list[Any] = []
        start(arrays, found.append, CancelToken())
        (made,) = found
        if isinstance(made, BaseException):
            raise made
        return list(made)

    return run


def _object(
    op: Operation, handle: Value, resources: Resources, variables: Mapping[str, VariableState]
) -> Any:
    """The resource or the state that a handle stands for."""
    name = str(origin(handle).attrs["name"])
    held: Mapping[str, Any] = resources if isinstance(handle.type, HandleType) else variables
    if name not in held:
        kind = handle.type.kind if isinstance(handle.type, HandleType) else "variable"
        raise FailedPreconditionError(
            f"there is no {kind} '{name}' to run the graph with", location=op.locations
        )
    return held[name]


def run_now(
    op_name: str, objects: Sequence[Any], arrays: list[Array], attrs: Attrs,
    timeout: float | None = None, cancel: CancelToken | None = None,
) -> list[Any]:  # fmt: skip
    """What a host op gives on objects and arrays (None: a token), waited for as `Resource.wait`
    does. Raises what the op raises.

    An op without an object is checked by its type rule; what an object is given, it checks itself:
    outside of graphs its elements may be of any shape, which is no type.
    """
    row = HOST_OPS[op_name]
    if row.now is None:
        raise InternalError(f"op '{op_name}' is one of a step, and was called alone")
    if not objects:
        attrs = make_op(op_name, [Value(type_of(a)) for a in arrays], attrs).attrs
    return row.now(_given(objects), arrays, attrs, timeout, cancel)


class HostObjects:
    """What `interpret(..., host=)` takes: carries ops out on `resources`, by name, as the dataflow
    executor does.

    An op that waits longer than `timeout` seconds (None: for ever) is a DeadlineExceededError:
    nothing else runs meanwhile, so nobody but another thread could end its waiting.
    """

    def __init__(self, resources: Resources, timeout: float | None = 10.0) -> None:
        self.resources = resources
        self.timeout = timeout

    def __call__(self, op: Operation, operands: Sequence[Any]) -> list[Any]:
        """The results of one op."""
        row = HOST_OPS.get(op.name)
        if row is None:
            raise UnsupportedError("no host carries out this op")
        pairs = list(zip(op.operands, operands, strict=True))
        objects = [self._object(x.name) for v, x in pairs if isinstance(v.type, HandleType)]
        arrays = [np.array(x) for v, x in pairs if isinstance(v.type, TensorType)]
        done: SimpleQueue[Any] = SimpleQueue()
        cancel = CancelToken()
        row.begin(_given(objects), op, arrays, done.put, cancel)
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
