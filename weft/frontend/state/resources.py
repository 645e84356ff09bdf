"""Resources of the host (queues, tables, barriers) as seen from Python: calls at once outside
graphs, ops of the `wf.Graph` that is being built inside, which happen when a step runs them.

Decorators for both ways, values with declared dtypes, the handle of a resource in a graph, and the
ops on queues. Ops on the other resources are in `queues/resource_ops.py`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from weft.frontend.core.arrays import contiguous
from weft.frontend.core.device_scope import device_scopes, place
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import (
    Effect,
    Trace,
    bring_in,
    current_trace,
    graph_around,
    suspend_trace,
    unique_name,
)
from weft.frontend.ops.dispatch import fresh_sizes
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.types import HandleType
from weft.runtime.resources.attempts import Resource, check_timeout
from weft.runtime.resources.components import Array, ComponentShape, describe_array
from weft.runtime.resources.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")

_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation on the host: UnsupportedError while a function is being compiled, and
    every error gets the user's line."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_trace() is not None:
            owner = type(args[0]).__name__
            name = function.__name__
            raise refusal(owner if name == "__init__" else f"{owner}.{name}")
        try:
            return function(*args, **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return operation


def refusal(what: str) -> UnsupportedError:
    """The error for `what` in a graph that is being built."""
    trace = current_trace()
    assert trace is not None
    root = trace.root()
    kind = "graph" if root.kind == "graph" else "function"
    return UnsupportedError(
        f"{what} was called while the {kind} {root.describe()} is built: objects of the host are "
        "for plain Python and for a wf.Graph, not for compiled functions",
        hint="call it outside, and pass what it gives as an argument or a feed",
        location=caller_location(),
    )


def value_of(x: Any, dtype: DType, label: Callable[[], str]) -> Array:
    """`x` as an array of `dtype` that nobody writes to.

    Tensors and variables must have the dtype; numbers, lists and NumPy arrays convert within their
    kind or to a higher one, if integers keep their value (as feeds do). TypeRuleError or
    InvalidArgumentError that begins with `label()`.
    """
    try:
        t = as_tensor(x)
    except WeftError as error:
        raise type(error)(f"{label()}: {error.what}", hint=error.hint) from None
    data = t._concrete(label(), "pass a tensor that has a value") if t._data is None else t._data
    given = as_dtype(data.dtype)
    if given is dtype:
        return data
    if not data.size and isinstance(x, (list, tuple)):  # an empty list has no dtype
        return np.empty(data.shape, dtype.numpy)
    typed = isinstance(x, Operators) and not t.weak
    if typed or string in (given, dtype) or _ORDER[given.kind] > _ORDER[dtype.kind]:
        raise TypeRuleError(
            f"{label()}, which takes {dtype.name}, got {describe_array(data)}",
            hint="strings and numbers do not convert"
            if string in (given, dtype)
            else f"convert it with wf.astype(x, wf.{dtype.name})",
        )
    with np.errstate(over="ignore"):
        out = data.astype(dtype.numpy)
    if dtype.is_integer and not np.array_equal(out, data):
        raise InvalidArgumentError(f"{label()}: an integer does not fit {dtype.name}")
    return out


def rows_of(
    x: Any, dtype: DType, label: Callable[[], str]
) -> tuple[Array, Callable[[], list[Array]]]:
    """Several values stacked along a first axis: the stack, to be checked, and a function that
    copies each of them."""
    # an array of the right dtype is copied once, row by row
    plain = type(x) is np.ndarray and x.dtype == dtype.numpy and dtype is not string
    data: Array = x if plain else value_of(x, dtype, label)
    return data, lambda: [contiguous(data[i, ...].copy()) for i in range(len(data))]


def integer(x: Any, what: str, smallest: int = 0) -> int:
    """`x` as an int of at least `smallest`. InvalidArgumentError, naming `what`, for others."""
    try:
        if isinstance(x, bool):
            raise TypeError
        number = x.__index__()
    except (AttributeError, TypeError, WeftError):
        raise InvalidArgumentError(
            f"{what}={x!r:.40} is not an integer"
            if not isinstance(x, Tensor)
            else f"{what} is {x.describe()}, no Python integer"
        ) from None
    if not smallest <= number < 2**63:
        least = f"at least {smallest}" if number < smallest else "less than 2**63"
        raise InvalidArgumentError(f"{what}={number} must be {least}")
    return int(number)


def dtype_list(dtypes: Any) -> list[DType]:
    """One dtype, or a list of them."""
    given = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    return [as_dtype(d) for d in given]


def one_shape(shape: Any, what: str) -> ComponentShape:
    """A shape with None for sizes that vary; None if nothing is known."""
    if shape is None:
        return None
    try:
        sizes = tuple(None if d is None else integer(d, f"{what}: a size", 0) for d in shape)
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: {shape!r} is not a shape", hint="a shape is a list of integers"
        ) from None
    return sizes


def shape_list(shapes: Any, what: str) -> list[ComponentShape] | None:
    """A list of shapes, or one shape (a list of integers), as TensorFlow 1 takes them."""
    if shapes is None:
        return None
    if not isinstance(shapes, (list, tuple)):
        raise InvalidArgumentError(
            f"{what}: shapes={shapes!r} is not a list of shapes", hint="such as [[28, 28], []]"
        )
    if all(d is None or not isinstance(d, (list, tuple)) for d in shapes):
        return [one_shape(shapes, what)]
    return [one_shape(s, what) for s in shapes]


def name_list(names: Any) -> list[str] | None:
    """One name, or a list of them."""
    if names is None or names == []:
        return None
    return [names] if isinstance(names, str) else [str(n) for n in names]


def seconds(timeout: Any) -> float | None:
    """A timeout, checked."""
    check_timeout(timeout)
    return None if timeout is None else float(timeout)


def tensors(arrays: Sequence[Array]) -> list[Tensor]:
    """Arrays that are the caller's from now on."""
    return [Tensor(contiguous(a)) for a in arrays]


def count(number: int) -> Tensor:
    """A number of elements as TensorFlow gives it: int32, no axes."""
    return Tensor(np.asarray(number, np.int32))


_numbers = itertools.count(1)


def label(name: str | None, default: str) -> str:
    """The name given, or one that no other resource has."""
    return name if name is not None else f"{default}_{next(_numbers)}"


#: Where the objects of the frontend keep the resource that they stand for.
RESOURCES = ("_queue", "_table", "_barrier", "_accumulator", "_stack", "_reader")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def graph_trace() -> Trace | None:
    """The trace of the `wf.Graph` that is being built, or of a body of a branch or loop in it; else
    None."""
    return graph_around(current_trace())


def or_in_graph(emit: Callable[..., Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate an eager operation: in a graph `emit(trace, self, ...)` adds it instead."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def operation(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            trace = graph_trace()
            if trace is None:
                return function(*args, **kwargs)
            try:
                made: _R = emit(trace, *args, **kwargs)
            except WeftError as error:
                raise error.at(caller_location()) from None
            return made

        return operation

    return decorate


def or_effect(emit: Callable[..., Effect]) -> Callable[[Callable[_P, None]], Callable[_P, Any]]:
    """As `or_in_graph`, of an operation that gives nothing: in a graph it is a `wf.Effect`."""
    return or_in_graph(emit)


def made_at_once(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate the maker of a host object: in a graph it is made while the graph is built."""

    @functools.wraps(function)
    def operation(*args: _P.args, **kwargs: _P.kwargs) -> _R:
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
            hint="Session.run(options=wf.RunOptions(timeout=...)) limits a step",
        )
