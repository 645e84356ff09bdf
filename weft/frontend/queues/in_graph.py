"""Queue ops in a `wf.Graph`: they are added to the graph, and happen when a step runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from weft.frontend.queues.values import integer
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect, Trace, current_trace, suspend_trace, unique_name
from weft.ir.attributes import AttrValue
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.source import caller_location
from weft.runtime.resources.ordered import PriorityQueue, ShuffleQueue
from weft.runtime.resources.queue import PaddingQueue, Queue

P = ParamSpec("P")
R = TypeVar("R")
_KINDS: Mapping[type[Queue], str] = {
    Queue: "fifo", PaddingQueue: "padding", ShuffleQueue: "shuffle", PriorityQueue: "priority",
}  # fmt: skip


def graph_trace() -> Trace | None:
    """The trace of the `wf.Graph` that is being built, not in a region of it; else None."""
    trace = current_trace()
    return trace if trace is not None and trace.kind == "graph" else None


def or_in_graph(emit: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate an eager operation: in a graph `emit(trace, self, ...)` adds it instead."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def operation(*args: P.args, **kwargs: P.kwargs) -> R:
            trace = graph_trace()
            if trace is None:
                return function(*args, **kwargs)
            try:
                made: R = emit(trace, *args, **kwargs)
            except WeftError as error:
                raise error.at(caller_location()) from None
            return made

        return operation

    return decorate


def made_at_once(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the maker of a host object: in a graph it is made while the graph is built."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        if graph_trace() is None:
            return function(*args, **kwargs)
        with suspend_trace():
            return function(*args, **kwargs)

    return operation


# --------------------------------------------------------------------------------------- operations
def enqueue(
    trace: Trace, owner: Any, vals: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Effect:  # fmt: skip
    """An effect that appends one element."""
    return _enqueue(trace, owner, vals, "enqueue", name, timeout, cancel)


def enqueue_many(
    trace: Trace, owner: Any, vals: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Effect:  # fmt: skip
    """An effect that appends several elements."""
    return _enqueue(trace, owner, vals, "enqueue_many", name, timeout, cancel)


def _enqueue(
    trace: Trace, owner: Any, vals: Any, operation: str, name: str | None, timeout: object,
    cancel: object,
) -> Effect:  # fmt: skip
    _refuse(operation, timeout, cancel)
    queue: Queue = owner._queue
    given = owner._values(vals, operation)
    dtypes = queue.components.dtypes
    values = [
        trace.lift(_converted(x, dtype, f"{queue.describe()}: {operation}: component {i}"))
        for i, (x, dtype) in enumerate(zip(given, dtypes, strict=True))
    ]
    (token,) = trace.emit(operation, [handle(trace, queue), *values])
    return Effect(trace.name_scope + (name or operation), token, trace)


def dequeue(
    trace: Trace, owner: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Any:  # fmt: skip
    """The components of one element."""
    _refuse("dequeue", timeout, cancel)
    return _given(trace, owner, trace.emit("dequeue", [handle(trace, owner._queue)]))


def dequeue_many(
    trace: Trace, owner: Any, n: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Any:  # fmt: skip
    """The components of n elements, each stacked along a first axis; n is an int."""
    _refuse("dequeue_many", timeout, cancel)
    queue: Queue = owner._queue
    wanted = integer(n, f"{queue.describe()}: dequeue_many: n")
    queue.check_batches("dequeue_many")
    made = trace.emit("dequeue_many", [handle(trace, queue)], {"n": wanted})
    return _given(trace, owner, made)


def dequeue_up_to(trace: Trace, owner: Any, n: Any, *rest: Any, **options: Any) -> Any:
    """UnsupportedError: how many there are is not known when the graph is compiled."""
    raise UnsupportedError(
        f"{owner._queue.describe()}: dequeue_up_to in a graph is not supported: the size of what "
        "it gives depends on values",
        hint="use dequeue_many, or call it outside of the graph and feed what it gives",
    )


def size(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """The number of elements when a step asks."""
    (value,) = trace.emit("queue_size", [handle(trace, owner._queue)])
    return trace.tensor(value)


def close(
    trace: Trace, owner: Any, cancel_pending_enqueues: bool = False, name: str | None = None
) -> Effect:
    """An effect that closes the queue."""
    attrs = {"cancel_pending": bool(cancel_pending_enqueues)}
    (token,) = trace.emit("queue_close", [handle(trace, owner._queue)], attrs)
    return Effect(trace.name_scope + (name or "close"), token, trace)


def is_closed(trace: Trace, owner: Any, name: str | None = None) -> Tensor:
    """Whether it is closed when a step asks."""
    (value,) = trace.emit("queue_is_closed", [handle(trace, owner._queue)])
    return trace.tensor(value)


# ------------------------------------------------------------------------------------------- pieces
def handle(trace: Trace, queue: Queue) -> Value:
    """The graph's handle of a queue, made on first use. UnsupportedError if the shapes of its
    elements are not known."""
    resources: dict[str, Any] = trace.owner.resources
    for op in trace.builder.ops:
        if op.name == "queue" and resources[str(op.attrs["name"])] is queue:
            return op.result
    c = queue.components
    if any(s is None for s in c.shapes):
        raise UnsupportedError(
            f"{queue.describe()} holds elements of any shape ({c}); in a graph they must be known",
            hint="give shapes= when the queue is made",
        )
    name = unique_name(queue.name, resources)
    attrs: dict[str, AttrValue] = {
        "name": name,
        "kind": _KINDS[type(queue)],
        "capacity": -1 if queue.capacity is None else queue.capacity,
        "parts": tuple(c.type(i) for i in range(len(c))),
    }
    if isinstance(queue, ShuffleQueue):
        attrs["min_after_dequeue"] = queue.min_after_dequeue
    (found,) = trace.builder.emit("queue", (), attrs)
    resources[name] = queue
    return found


def _converted(x: Any, dtype: DType, what: str) -> Tensor:
    """`x` as the component's dtype: numbers and NumPy arrays convert, tensors must have it."""
    t = as_tensor(x)
    if t.dtype is dtype:
        return t
    if t._data is None and not t.weak:
        raise TypeRuleError(
            f"{what} takes {dtype.name}, got {t.describe()}",
            hint=f"convert it with wf.astype(x, wf.{dtype.name})",
        )
    return t.astype(dtype)


def _given(trace: Trace, owner: Any, values: Sequence[Value]) -> Any:
    made = [trace.tensor(v) for v in values]
    names = owner._queue.components.names
    if names is not None:
        return dict(zip(names, made, strict=True))
    return made[0] if len(made) == 1 else made


def _refuse(operation: str, timeout: object, cancel: object) -> None:
    if timeout is not None or cancel is not None:
        raise InvalidArgumentError(
            f"{operation}: timeout= and cancel= are for calls outside of graphs",
            hint="Session.run(options=wf.RunOptions(timeout_in_ms=...)) limits a step",
        )
