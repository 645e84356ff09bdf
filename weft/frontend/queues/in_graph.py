"""Queue ops in a `wf.Graph`: they are added to the graph, and happen when a step runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from weft.frontend.ops.dynamic_sizes import fresh_sizes
from weft.frontend.queues.values import integer
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.device_scope import device_scopes, place
from weft.frontend.tracing.region_trace import bring_in, graph_around
from weft.frontend.tracing.trace import Effect, Trace, current_trace, suspend_trace, unique_name
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.types import HandleType
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.queue import Queue

#: Where the objects of the frontend keep the resource that they stand for.
RESOURCES = ("_queue", "_table", "_barrier", "_accumulator", "_stack", "_reader")

P = ParamSpec("P")
R = TypeVar("R")


def graph_trace() -> Trace | None:
    """The trace of the `wf.Graph` that is being built, or of a body of a branch or loop in it; else
    None."""
    return graph_around(current_trace())


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


def or_effect(emit: Callable[..., Effect]) -> Callable[[Callable[P, None]], Callable[P, Any]]:
    """As `or_in_graph`, of an operation that gives nothing: in a graph it is a `wf.Effect`."""
    return or_in_graph(emit)


def made_at_once(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the maker of a host object: in a graph it is made while the graph is built."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        if graph_trace() is None:
            return function(*args, **kwargs)
        with suspend_trace():
            made = function(*args, **kwargs)
        if device_scopes() and function.__name__ == "__init__":
            for name in RESOURCES:
                held = getattr(args[0], name, None)
                if isinstance(held, Resource) and not held.scopes:
                    held.scopes = device_scopes()
        return made

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
    refuse_waiting(operation, timeout, cancel)
    queue: Queue = owner._queue
    given = owner._values(vals, operation)
    dtypes = queue.components.dtypes
    values = [
        trace.lift(converted(x, dtype, f"{queue.describe()}: {operation}: component {i}"))
        for i, (x, dtype) in enumerate(zip(given, dtypes, strict=True))
    ]
    (token,) = trace.emit(operation, [handle(trace, queue), *values])
    return Effect(trace.name_scope + (name or operation), token, trace)


def dequeue(
    trace: Trace, owner: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Any:  # fmt: skip
    """The components of one element."""
    refuse_waiting("dequeue", timeout, cancel)
    queue: Queue = owner._queue
    attrs = {"sizes": fresh_sizes(trace, "dequeue", len(_open_sizes(trace, queue)))}
    return _given(trace, owner, trace.emit("dequeue", [handle(trace, queue)], attrs))


def dequeue_many(
    trace: Trace, owner: Any, n: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Any:  # fmt: skip
    """The components of n elements, each stacked along a first axis; n is an int."""
    refuse_waiting("dequeue_many", timeout, cancel)
    queue: Queue = owner._queue
    wanted = integer(n, f"{queue.describe()}: dequeue_many: n")
    queue.check_batches("dequeue_many")
    sizes = fresh_sizes(trace, "dequeue_many", len(_open_sizes(trace, queue)))
    made = trace.emit("dequeue_many", [handle(trace, queue)], {"n": wanted, "sizes": sizes})
    return _given(trace, owner, made)


def dequeue_up_to(
    trace: Trace, owner: Any, n: Any, name: str | None = None, *, timeout: float | None = None,
    cancel: object = None,
) -> Any:  # fmt: skip
    """The components of n elements, or of those that are left in a closed queue, each stacked along
    a first axis, whose size a step knows when it has them; n is an int."""
    refuse_waiting("dequeue_up_to", timeout, cancel)
    queue: Queue = owner._queue
    wanted = integer(n, f"{queue.describe()}: dequeue_up_to: n")
    queue.check_batches("dequeue_up_to")
    count = 1 + len(_open_sizes(trace, queue))
    sizes = fresh_sizes(trace, "dequeue_up_to", count)
    made = trace.emit("dequeue_up_to", [handle(trace, queue)], {"n": wanted, "sizes": sizes})
    return _given(trace, owner, made)


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
def handle(trace: Trace, resource: Resource) -> Value:
    """The graph's handle of a queue or another resource, made on first use. UnsupportedError if it
    is none for graphs (the shapes of its elements are not known)."""
    root = trace.root()
    resources: dict[str, Any] = root.owner.resources
    maker, attrs = resource.maker()
    for op in root.builder.ops:
        if op.name == maker and resources[str(op.attrs["name"])] is resource:
            return bring_in(trace, op.result)
    name = unique_name(resource.name, resources)
    (found,) = root.builder.emit(maker, (), {"name": name, **attrs})
    if resource.scopes:
        place(root.builder.ops[-1], root, resource.scopes)
    resources[name] = resource
    return bring_in(trace, found)


def _open_sizes(trace: Trace, queue: Queue) -> list[int]:
    """The axes of the components whose sizes differ from element to element."""
    kind = handle(trace, queue).type
    assert isinstance(kind, HandleType)
    return [axis for part in kind.parts for axis, d in enumerate(part.shape) if d is None]


def converted(x: Any, dtype: DType, what: str) -> Tensor:
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


def refuse_waiting(operation: str, timeout: object, cancel: object) -> None:
    """InvalidArgumentError for what only calls outside of graphs take."""
    if timeout is not None or cancel is not None:
        raise InvalidArgumentError(
            f"{operation}: timeout= and cancel= are for calls outside of graphs",
            hint="Session.run(options=wf.RunOptions(timeout_in_ms=...)) limits a step",
        )
