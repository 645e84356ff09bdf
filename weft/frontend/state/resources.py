"""Resources of the host (queues, tables, barriers) as seen from Python: calls at once outside
graphs, ops of the `wf.Graph` that is being built inside, which happen when a step runs them; and
shared names, by which several parts of a program find them, and variables, in the current
`wf.tf1.container` (TensorFlow 1's resource containers).

Decorators for both ways, values with declared dtypes, and the handle of a resource in a graph. What
does an op, either way, is `queues/host_ops.host_op`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from weft.frontend.core.device_scope import device_scopes, place
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import (
    Trace,
    bring_in,
    current_trace,
    graph_around,
    host_trace,
    suspend_trace,
)
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype, int64, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value, unique_name
from weft.ir.locations import caller_location
from weft.runtime.resources.attempts import Resource, check_timeout
from weft.runtime.resources.components import Array, ComponentShape, describe_array
from weft.runtime.resources.shared_names import BY_NAME, NAMES_LOCK

_current: ContextVar[str] = ContextVar("weft_container", default="")


def current_container() -> str:
    """The container of what is made now; "" is the default one."""
    return _current.get()


def container(name: str) -> AbstractContextManager[str]:
    """Variables and resources made in the block belong to this container.

    One `shared_name` means one object within a container, different ones in different containers;
    `wf.Session.reset` clears whole containers. "" is the default container. TypeRuleError for a
    name that is no str.
    """
    if not isinstance(name, str):
        raise TypeRuleError(
            f"wf.tf1.container: the name is a {type(name).__name__}, not a str",
            location=caller_location(),
        )
    return _opened(name)


@contextmanager
def _opened(name: str) -> Iterator[str]:
    token = _current.set(name)
    try:
        yield name
    finally:
        _current.reset(token)


class Shareable(Protocol):
    """An object that can be shared. kind: what it is, for people. declared: how it was made."""

    kind: str
    declared: str

    def describe(self) -> str:
        """Kind and name, for errors."""
        ...


S = TypeVar("S", bound=Shareable)


def shared(
    name: str | None,
    kind: type[S],
    declared: str,
    make: Callable[[], S],
    container: str | None = None,
) -> S:
    """The object of that shared name in a container, made if there is none; without a name, or with
    "", a new one. container: that of the scope `wf.tf1.container` if None.

    InvalidArgumentError if it is of another kind or was declared otherwise.
    """
    if not name:
        return make()
    place = current_container() if container is None else container
    with NAMES_LOCK:
        found = BY_NAME.get((place, name))
        if found is None:
            found = BY_NAME[place, name] = make()
            found.declared = declared
    if type(found) is not kind or found.declared != declared:
        where = f" in container {place!r}" if place else ""
        raise InvalidArgumentError(
            f"shared_name={name!r}{where} is that of the {found.describe()}: {found.declared}; "
            f"this is a {kind.kind}: {declared}",
            hint="what has one shared_name is made alike; use another name for another one",
        )
    return found


def forget(containers: Iterable[str]) -> list[Any]:
    """Forget the names of these containers; what is made under them later is new. What they
    named."""
    wanted = set(containers)
    with NAMES_LOCK:
        gone = [(key, x) for key, x in BY_NAME.items() if key[0] in wanted]
        for key, _ in gone:
            del BY_NAME[key]
    return [x for _, x in gone]


P = ParamSpec("P")
R = TypeVar("R")

_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation on the host: UnsupportedError while a function or a graph is being
    built, and every error gets the user's line."""
    return _on_host(function, lambda trace: None)


def eager_or_graph(function: Callable[P, R]) -> Callable[P, R]:
    """As `eager`, of an operation that is an op of a `wf.Graph`, or of a compiled function, while
    that is being built. Objects are made in graphs alone: a function would make one each time that
    it is traced."""
    return _on_host(function, graph_around if function.__name__ == "__init__" else host_trace)


def _on_host(
    function: Callable[P, R], may_add: Callable[[Trace | None], Trace | None]
) -> Callable[P, R]:
    """may_add: gives the trace if the operation may be added to it."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        trace = current_trace()
        if trace is not None and may_add(trace) is None:
            owner = type(args[0]).__name__
            name = function.__name__
            raise refusal(owner if name == "__init__" else f"{owner}.{name}", name == "__init__")
        try:
            return function(*args, **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return operation


def refusal(what: str, makes: bool = False) -> UnsupportedError:
    """The error for `what` in a graph that is being built. makes: an object of the host."""
    trace = current_trace()
    assert trace is not None
    root = trace.root()
    where = f"{what} was called while the {root.kind} {root.describe()} is built"
    if makes and root.takes_host_ops:
        why = "a function would make a new object each time that it is traced"
        hint = "make it outside; the function may use it"
    elif root.kind == "graph":
        why = "it is for plain Python"
        hint = "call it outside, and feed what it gives"
    else:
        why = "ops of the host are for plain Python, a wf.Graph and functions of wf.compile"
        hint = "call it outside, and pass what it gives as an argument"
    return UnsupportedError(f"{where}: {why}", hint=hint, location=caller_location())


def value_of(x: Any, dtype: DType, label: Callable[[], str]) -> Array:
    """`x` as an array of `dtype` that nobody writes to.

    Tensors and variables must have the dtype; numbers, lists and NumPy arrays convert within their
    kind or to a higher one, if integers keep their value (as feeds do). TypeRuleError or
    InvalidArgumentError that begins with `label()`.
    """
    t = _tensor_of(x, label)
    return _value(t, x, dtype, label)


def operand(x: Any, dtype: DType, label: Callable[[], str], *, by_rows: bool = False) -> Tensor:
    """`x` as an operand of `dtype`: what has a value as `value_of` has it, in a graph also a
    symbolic tensor of that dtype.

    by_rows: the op copies each row, so that an array is taken as it is where it is done at once.
    """
    plain = by_rows and type(x) is np.ndarray and x.dtype == dtype.numpy and dtype is not string
    if plain and current_trace() is None:
        return Tensor(x)
    t = _tensor_of(x, label)
    if t._data is not None and t._data.dtype == dtype.numpy:
        return t
    if t._data is not None or trace_of_host_ops() is None:
        data = _value(t, x, dtype, label)
        return t if data is t._data else Tensor(data)
    if t.dtype is not dtype and not t.weak:
        raise TypeRuleError(
            f"{label()} takes {dtype.name}, got {t.describe()}",
            hint=f"convert it with wf.astype(x, wf.{dtype.name})",
        )
    return t if t.dtype is dtype else t.astype(dtype)


def whole_number(x: Any, what: Callable[[], str], smallest: int = -(2**63)) -> Tensor:
    """`x` as an int64 operand without axes: as `integer` has it, and in a graph a tensor as
    `whole_numbers`."""
    if type(x) is not int or not smallest <= x < 2**63:
        if isinstance(x, (Operators, SymbolicDim)) and trace_of_host_ops() is not None:
            return whole_numbers(x, what())
        x = integer(x, what(), smallest)
    return Tensor(np.array(x, np.int64))


def whole_numbers(x: Any, what: str) -> Tensor:
    """`x` as an int64 operand; other integers are widened."""
    if isinstance(x, Operators):
        t = as_tensor(x)
        if t.dtype.is_integer and t._data is None and trace_of_host_ops() is not None:
            return t if t.dtype is int64 else t.astype(int64)
        if t.dtype.is_integer and t._data is not None:
            x = np.asarray(t._data)
    return operand(x, int64, lambda: what)


def _tensor_of(x: Any, label: Callable[[], str]) -> Tensor:
    try:
        return as_tensor(x)
    except WeftError as error:
        raise type(error)(f"{label()}: {error.what}", hint=error.hint) from None


def _value(t: Tensor, x: Any, dtype: DType, label: Callable[[], str]) -> Array:
    """The array of `t`, which is the tensor of `x`, as `value_of` has it."""
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


_numbers = itertools.count(1)


def label(name: str | None, default: str) -> str:
    """The name given, or one that no other resource has."""
    return name if name is not None else f"{default}_{next(_numbers)}"


#: Where the objects of the frontend keep the resource that they stand for.
RESOURCES = ("_queue", "_table", "_barrier", "_accumulator", "_stack", "_reader")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def trace_of_host_ops() -> Trace | None:
    """The trace that an op of the host is added to, of a `wf.Graph`, of a compiled function or of a
    body in one; None where it is done at once."""
    return host_trace(current_trace())


def made_at_once(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate the maker of a host object: in a graph it is made while the graph is built."""

    @functools.wraps(function)
    def operation(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if graph_around(current_trace()) is None:
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


# ------------------------------------------------------------------------------------------- pieces
def element_shapes(resource: Resource, given: Sequence[int] = ()) -> Sequence[ComponentShape]:
    """The shapes of a resource's elements, outside of graphs as declared.

    In a graph, and in each trace of a function, they have one number of axes: where they may have
    any shape, those of what is put in first (`given`, for each component), or of what is in it
    while the graph is built, or was last. UnsupportedError where nothing says it.
    """
    trace, shapes = trace_of_host_ops(), resource.shapes
    if trace is None or None not in shapes:
        return shapes
    known = trace.root().element_ranks
    ranks = known.get(resource) or tuple(given or resource.ranks())
    if not ranks:
        raise UnsupportedError(
            f"{resource.describe()} holds elements of any shape; a graph must know how many axes "
            "they have",
            hint="what is put in first says it: add that op before this one, or give their shape "
            "when it is made, with None for sizes that vary",
        )
    if given:
        resource.last_ranks = tuple(given)
    known[resource] = ranks
    pairs = zip(shapes, ranks, strict=True)
    return [(None,) * (rank or 0) if shape is None else shape for shape, rank in pairs]


def handle(trace: Trace, resource: Resource) -> Value:
    """The graph's handle of a queue or another resource, made on first use. UnsupportedError if it
    is none for graphs (the shapes of its elements are not known)."""
    root = trace.root()
    element_shapes(resource)
    resources = root.resources
    maker, attrs = resource.maker(root.element_ranks.get(resource, ()))
    name = None
    for op in root.builder.ops:
        if op.name == maker and resources[str(op.attrs["name"])] is resource:
            if op.attrs.get("parts") == attrs.get("parts"):
                return bring_in(trace, op.result)
            name = str(op.attrs["name"])  # more is known of a barrier's elements by now
    if name is None:
        name = unique_name(resource.name, resources)
    (found,) = root.builder.emit(maker, (), {"name": name, **attrs})
    if resource.scopes:
        place(root.builder.ops[-1], root, resource.scopes)
    resources[name] = resource
    return bring_in(trace, found)
