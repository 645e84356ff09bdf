"""Fetches and feeds: the values of the session's graph that they stand for, and the array that a
step takes for a feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.device_array import DeviceArray
from weft.frontend.core.tensor import Array, Tensor, as_tensor, contiguous
from weft.frontend.core.trace import Effect, Trace
from weft.frontend.session.graph import Graph
from weft.frontend.session.operations import GraphOperation
from weft.frontend.session.sparse_values import fed_arrays, fed_tensors, has_sparse, with_sizes
from weft.frontend.sparse.sparse_tensor import SparseTensor
from weft.frontend.state.variable import Variable
from weft.ir.dims import SymbolicDim, format_shape
from weft.ir.dtypes import DType, bool_, int64, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.types import TensorType


def feed_array(given: Any, t: Tensor) -> Array:
    """`given` as a value for `t`; a `wf.DeviceArray` of its dtype stays one, as it has the `shape`
    that is looked at. TypeRuleError or InvalidArgumentError if it does not fit."""
    assert t._value is not None
    kind = t._value.type
    assert isinstance(kind, TensorType)
    stays = type(given) is DeviceArray and given.dtype is kind.dtype
    if type(given) is np.ndarray and given.dtype == kind.dtype.numpy and given.dtype.kind != "O":
        data: Array = given
    elif stays:
        data = cast(Array, given)  # `session.transfers.placed` decides what becomes of it
    else:
        data = _converted(given, t)
    fits = data.shape == kind.shape or (
        len(data.shape) == t.ndim
        and all(
            d is None or isinstance(d, SymbolicDim) or d == n
            for d, n in zip(kind.shape, data.shape, strict=True)
        )
    )
    if not fits:
        raise InvalidArgumentError(
            f"a value of shape {list(data.shape)} was fed for {t.describe()}",
            hint=f"its shape must fit {format_shape(t.shape)}",
            location=caller_location(),
        )
    return data if stays else contiguous(data)


def _converted(given: Any, t: Tensor) -> Array:
    if type(given) is int and not -(2**63) <= given < 2**63 and t.dtype is not string:
        return _large(given, t)
    try:
        value = given if isinstance(given, Tensor) else as_tensor(given)
    except WeftError as error:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is no tensor: {error.what}",
            location=caller_location(),
        ) from None
    if value._data is None:
        raise TypeRuleError(
            f"the value fed for {t.describe()} is symbolic itself",
            hint="feed NumPy arrays or concrete tensors; in a graph, connect the tensors instead",
            location=caller_location(),
        )
    if isinstance(given, (list, tuple)) and not value._data.size:  # [] is of any dtype
        return value._data.astype(t.dtype.numpy)
    made = _cast(value._data, value.dtype, t.dtype, t)
    if type(given) is int and t.dtype.is_inexact and float(made.real) != given:  # as TensorFlow
        raise _lost(value._data, made, value.dtype, t.dtype, t)
    return made


def _large(given: int, t: Tensor) -> Array:
    """A Python int that int64 does not have. InvalidArgumentError if the dtype of `t` has it not,
    either."""
    whole = np.array(given, object)
    with np.errstate(over="ignore"), suppress(OverflowError):
        # bfloat16 takes no objects; what it has, float64 has, too
        near = whole.astype(np.float64) if t.dtype.is_floating else whole
        made: Array = near.astype(t.dtype.numpy)
        if made.real.item() == given:
            return made
    raise _lost(whole, np.array(None, object), int64, t.dtype, t)


_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def _cast(data: Array, given: DType, wanted: DType, t: Tensor) -> Array:
    """Feeds convert within a kind (float64 to float32) and to a higher one; to a lower one, and to
    integers, if each element keeps its value. Complex numbers become nothing else."""
    if given is wanted:
        return data
    lower = _ORDER[given.kind] > _ORDER[wanted.kind] if string not in (given, wanted) else False
    if string in (given, wanted) or (lower and given.is_complex):
        raise TypeRuleError(
            f"a {given.name} value was fed for {t.describe()}",
            hint=f"convert it first: value.astype('{wanted.name}')",
            location=caller_location(),
        )
    with np.errstate(over="ignore", invalid="ignore"):
        out = data.astype(wanted.numpy)
    if (lower or wanted.is_integer) and not _same_values(out, data):
        raise _lost(data, out, given, wanted, t)
    return out


def _same_values(out: Array, data: Array) -> bool:
    """Whether they are equal; what a conversion out of range gives is no value."""
    with np.errstate(invalid="ignore"):
        return np.array_equal(out.astype(data.dtype), data) and np.array_equal(out, data)


def _lost(data: Array, out: Array, given: DType, wanted: DType, t: Tensor) -> WeftError:
    """The error for an element that `wanted` does not have."""
    with np.errstate(invalid="ignore"):
        wrong = data[(out != data) | (out.real.astype(data.dtype) != data)]
    bad = wrong if wrong.size else data.reshape(-1)
    what = "an integer" if given.is_integer else f"a {given.name} value"
    hint = "an index, size or condition that was computed as a float: round it first"
    if given.is_integer:
        hint = f"make the placeholder of a dtype that holds {bad[0]}, or feed a float"
        if wanted is bool_:
            hint = "true and false are 1 and 0; feed value != 0 for any other number"
    return InvalidArgumentError(
        f"{what} fed for {t.describe()} does not fit {wanted.name}: {bad[0]}",
        hint=hint,
        location=caller_location(),
    )


#: None for an effect that is done already.
Fetches = tuple[Value | None, ...]


def is_tensor(value: Value | None) -> bool:
    """Whether fetching `value` gives an array, not None."""
    return value is not None and isinstance(value.type, TensorType)


def fetched(array: Array) -> Any:
    """Without axes a NumPy scalar, as indexing gives it."""
    return array if array.ndim else array[()]


def fetch_values(graph: Graph, fetches: Any) -> tuple[Fetches, Any]:
    """What the fetches stand for, and how they are nested."""
    leaves, structure = pytree.flatten(fetches)
    trace = graph._trace
    if structure is not None and has_sparse(structure):
        leaves, structure = with_sizes(graph, structure, leaves)
    if all(type(t) is Tensor and t._trace is trace for t in leaves):
        return tuple([t._value for t in leaves]), structure
    paths = pytree.paths(structure, "fetches")
    found = [_fetch(graph, leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
    return tuple(found), structure


def fed_value(graph: Graph, key: Any) -> tuple[Value, Tensor]:
    """The value and tensor that a key of feed_dict names."""
    t = key
    if isinstance(key, str):
        t = graph.element(key)
        if not isinstance(t, (Tensor, Variable)):
            t = graph.tensor(key)  # says what it is
    if not isinstance(t, Tensor):
        raise TypeRuleError(
            f"feed_dict: a {type(t).__name__} cannot be fed: {t!r:.60}",
            hint="feed tensors of the graph (or their names); assign to variables",
            location=caller_location(),
        )
    return _own(graph, t, "feed_dict"), t


def fed_parts(graph: Graph, key: Any) -> list[tuple[Value, Tensor]]:
    """What a key of feed_dict names: several values if it is a SparseTensor."""
    keys = fed_tensors(graph, key) if type(key) is SparseTensor else [key]
    return [fed_value(graph, k) for k in keys]


def feed_values(graph: Graph, feed_dict: Mapping[Any, Any]) -> dict[Value, Array]:
    """The array for each value that is fed."""
    if type(feed_dict) is not dict and not isinstance(feed_dict, Mapping):
        raise TypeRuleError(
            f"feed_dict is a {type(feed_dict).__name__}, not a dict of values by tensor or name",
            location=caller_location(),
        )
    out: dict[Value, Array] = {}
    for key, given in feed_dict.items():
        if type(key) is SparseTensor:
            parts = fed_parts(graph, key)
            for (value, t), array in zip(parts, fed_arrays(graph, key, given), strict=True):
                out[value] = feed_array(array, t)
            continue
        if isinstance(key, tuple):
            for each, one in _matched(key, given):
                value, t = fed_value(graph, each)
                out[value] = feed_array(one, t)
            continue
        value, t = fed_value(graph, key)
        out[value] = feed_array(given, t)
    return out


def _matched(key: Any, given: Any) -> Iterator[tuple[Any, Any]]:
    """A nested tuple of tensors with the values of as many, nested alike (TensorFlow's rule)."""
    if not isinstance(key, tuple):
        yield key, given
        return
    if not isinstance(given, (tuple, list)) or len(given) != len(key):
        raise InvalidArgumentError(
            f"feed_dict: a tuple of {len(key)} tensors was given {given!r:.60}",
            hint="feed a tuple of as many values",
            location=caller_location(),
        )
    for inner, value in zip(key, given, strict=True):
        yield from _matched(inner, value)


def _fetch(graph: Graph, leaf: Any, path: str) -> Value | None:
    trace = graph._trace
    if isinstance(leaf, str):
        leaf = graph.element(leaf)
    if isinstance(leaf, GraphOperation):  # by name: one that gives no tensor
        leaf = next(iter(pytree.flatten(leaf)[0]), None)
    if leaf is None:
        return None
    if isinstance(leaf, Variable):
        with graph._lock, trace.active():
            control, trace.control = trace.control, ()
            inside, trace.running.step = trace.running.step, False  # host functions may fetch, too
            try:
                return trace.effects.read(leaf)
            finally:
                trace.control, trace.running.step = control, inside
    if isinstance(leaf, Effect):
        if leaf.trace not in (None, trace):
            _refuse_body(leaf.trace, trace, f"{path}: the effect '{leaf.name}'")
            raise InvalidArgumentError(
                f"{path}: the effect '{leaf.name}' is not in this session's graph "
                f"{trace.describe()}",
                hint="make the session with the graph that it was built in",
                location=caller_location(),
            )
        return leaf.value
    if not isinstance(leaf, Tensor):
        raise TypeRuleError(
            f"{path} is a {type(leaf).__name__}, which cannot be fetched: {leaf!r:.60}",
            hint="fetch tensors, variables, effects, or names of tensors",
            location=caller_location(),
        )
    return _own(graph, leaf, path)


def _refuse_body(owner: Trace | None, trace: Trace, what: str) -> None:
    """InvalidArgumentError for what is made in a branch or loop of the graph."""
    if owner is not None and owner is not trace and owner.root() is trace:
        raise InvalidArgumentError(
            f"{what} is made in the {owner.name}, which may run any number of times in a step",
            hint="fetch what the branch or loop returns; feed what it takes from outside",
            location=caller_location(),
        )


def _own(graph: Graph, t: Tensor, what: str) -> Value:
    """The value of a tensor of this session's graph."""
    if t._data is not None and what != "feed_dict":
        with graph._lock:
            return graph._trace.lift(t)
    if t._trace is not graph._trace:
        _refuse_body(t._trace, graph._trace, f"{what}: a {t._type}")
        described = (
            "a concrete tensor" if t._trace is None else f"a tensor of {t._trace.root().describe()}"
        )
        raise InvalidArgumentError(
            f"{what}: {described} is not in this session's graph "
            f"{graph._trace.describe()}: {t.describe()}",
            hint="build it inside `with graph.as_default():`",
            location=caller_location(),
        )
    assert t._value is not None
    return t._value
