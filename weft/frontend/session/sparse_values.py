"""SparseTensors in sessions: their placeholder, and what feeds and fetches of them stand for.

What is fetched is a `SparseTensorValue` of arrays. An open size of a placeholder is that of an
empty array fed beside its entries, so it is as known as that of any other placeholder: a step that
needs it is compiled as one native plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Array, Tensor, as_tensor
from weft.frontend.core.trace import Trace
from weft.frontend.ops.strings import SparseTensorValue
from weft.frontend.session.graph import Graph, get_default_graph, placeholder
from weft.frontend.sparse.sparse_tensor import SparseTensor, as_sparse, check_range, made
from weft.ir.dims import Dim, SymbolicDim, format_shape
from weft.ir.dtypes import int8, int64
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.locations import caller_location

#: By graph, of each placeholder by the value of its indices: what says its open sizes, an empty
#: placeholder for each, by axis. Values, as tensors keep their graph.
_placeholders: WeakKeyDictionary[Trace, dict[Value, dict[int, Value]]] = WeakKeyDictionary()
#: By graph, open sizes as scalars, which fetches need.
_size_values: WeakKeyDictionary[Trace, dict[Dim, Value]] = WeakKeyDictionary()


def sparse_placeholder(dtype: object, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A SparseTensor that each `Session.run` feeds: with a SparseTensorValue, a SparseTensor, a
    tuple (indices, values, dense_shape), or a matrix of SciPy.

    shape: sizes as for `wf.placeholder`, None for any. UnsupportedError without a shape
    (TensorFlow 1's unknown rank) and inside a compiled function.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.tf1.sparse_placeholder(wf.float32, [None, 3])
    ...     total = wf.sparse.reduce_sum(x, axis=1)
    ...     print(session.run(total, {x: ([[0, 1], [2, 0]], [5.0, 7.0], [4, 3])}))
    [5. 0. 7. 0.]
    """
    if shape is None:
        raise UnsupportedError(
            "wf.tf1.sparse_placeholder needs a shape: a placeholder of unknown rank is not "
            "supported",
            hint="give one entry for each axis, None for any size: shape=(None, 784)",
            location=caller_location(),
        )
    label = name or "sparse_placeholder"
    values = placeholder(dtype, [None], f"{label}_values")
    indices = placeholder(int64, [values.shape[0], len(shape)], f"{label}_indices")
    graph, sizes, carriers = get_default_graph(), list[Dim](), dict[int, Value]()
    for axis, size in enumerate(shape):
        if isinstance(size, int):
            sizes.append(size)
            continue
        carrier = placeholder(int8, [0, size], f"{label}_size_{axis}")
        sizes.append(carrier.shape[1])
        carriers[axis] = graph._trace.lift(carrier)
        _size_tensor(graph, sizes[-1])  # made here, as a finalized graph may be fetched from
    _placeholders.setdefault(graph._trace, {})[graph._trace.lift(indices)] = carriers
    return made(indices, values, tuple(sizes))


# ------------------------------------------------------------------------------------------- feeds
def fed_tensors(graph: Graph, key: SparseTensor) -> list[Tensor]:
    """The tensors that are fed for a SparseTensor: indices, values, and what says open sizes."""
    known = _carriers(graph, key)
    if known is None and any(isinstance(d, SymbolicDim) for d in key.dense_shape):
        raise InvalidArgumentError(
            f"feed_dict: a SparseTensor of shape {format_shape(key.dense_shape)}, whose sizes are "
            "known when a step runs, cannot be fed",
            hint="feed a wf.tf1.sparse_placeholder, or its .indices and .values",
            location=caller_location(),
        )
    return [key.indices, key.values, *map(graph._trace.tensor, (known or {}).values())]


def _carriers(graph: Graph, key: SparseTensor) -> dict[int, Value] | None:
    """What says the open sizes of a placeholder; None for another SparseTensor."""
    value = key.indices._value
    return None if value is None else _placeholders.get(graph._trace, {}).get(value)


def fed_arrays(graph: Graph, key: SparseTensor, given: Any) -> list[Array]:
    """What is fed for each of `fed_tensors`. TypeRuleError and InvalidArgumentError for what is no
    value of this SparseTensor."""
    indices, values, shape = _parts(given, key)
    rank = len(key.dense_shape)
    if not indices.size and indices.ndim < 2:
        indices = np.zeros((0, rank), np.int64)
    fits = indices.ndim == 2 and indices.shape[1] == rank == len(shape) and values.ndim == 1
    sizes = zip(key.dense_shape, shape, strict=False)
    if not fits or any(isinstance(d, int) and d != n for d, n in sizes):
        raise InvalidArgumentError(
            f"a sparse value of shape {list(shape)} with indices {list(indices.shape)} and values "
            f"{list(values.shape)} was fed for a SparseTensor of shape "
            f"{format_shape(key.dense_shape)}",
            location=caller_location(),
        )
    check_range(indices, shape, key.padded)
    axes = _carriers(graph, key) or ()
    return [indices, values, *(np.empty((0, shape[axis]), np.int8) for axis in axes)]


def sparse_parts(graph: Graph, keys: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """What is given for `keys`, the values for SparseTensors in parts."""
    out: list[Any] = []
    for key, value in zip(keys, given, strict=True):
        out += fed_arrays(graph, key, value) if type(key) is SparseTensor else [value]
    return tuple(out)


def _parts(given: Any, key: SparseTensor) -> tuple[Array, Array, tuple[int, ...]]:
    if hasattr(given, "tocoo"):  # SciPy's
        coo = given.tocoo()
        given = (np.stack([coo.row, coo.col], axis=1), coo.data, coo.shape)
    elif isinstance(given, (SparseTensor, SparseTensorValue)) or hasattr(type(given), "to_coo"):
        x = as_sparse("SparseTensor", given)
        if x.padded and not key.padded:
            raise InvalidArgumentError(
                "a SparseTensor with padding was fed for one without",
                hint="feed wf.sparse.coalesce(x)",
                location=caller_location(),
            )
        given = (x.indices, x.values, x.dense_shape)
    if not isinstance(given, tuple) or len(given) != 3:
        raise TypeRuleError(
            f"a {type(given).__name__} was fed for a SparseTensor",
            hint="feed a wf.tf1.SparseTensorValue(indices, values, dense_shape)",
            location=caller_location(),
        )
    try:
        indices, values, shape = (np.asarray(as_tensor(part).numpy()) for part in given)
    except WeftError as error:
        raise TypeRuleError(
            f"the value fed for a SparseTensor is none: {error.what}", location=caller_location()
        ) from None
    return indices, values, tuple(int(n) for n in shape)


# ----------------------------------------------------------------------------------------- fetches
class _Fetched:
    """What is fetched in place of a SparseTensor: its parts, and a scalar for each open size."""


def _unflatten(dense_shape: Any, leaves: list[Any]) -> SparseTensorValue:
    indices, values, *sizes = leaves
    numbers = iter(sizes)
    shape = [next(numbers) if isinstance(d, SymbolicDim) else d for d in dense_shape]
    return SparseTensorValue(indices, values, np.asarray(shape, np.int64))  # type: ignore[arg-type]


def _flatten(x: _Fetched) -> Any:
    raise AssertionError("only made as a structure")


pytree.register_pytree(_Fetched, _flatten, _unflatten)


def has_sparse(structure: pytree.Structure) -> bool:
    """Whether there is a SparseTensor among the fetches."""
    if structure is None:
        return False
    if structure.cls is SparseTensor:
        return True
    return any(child is not None and has_sparse(child) for child in structure.children)


def with_sizes(
    graph: Graph, structure: pytree.Structure, leaves: Sequence[Any]
) -> tuple[list[Any], pytree.Structure]:
    """The fetches with each SparseTensor as one that becomes a SparseTensorValue."""
    out: list[Any] = []
    return out, _expanded(graph, structure, iter(leaves), out)


def _expanded(
    graph: Graph, structure: pytree.Structure, leaves: Iterator[Any], out: list[Any]
) -> pytree.Structure:
    if structure is None:
        out.append(next(leaves))
        return None
    if structure.cls is not SparseTensor:
        children = tuple(_expanded(graph, child, leaves, out) for child in structure.children)
        return pytree.Node(structure.cls, structure.meta, children)
    assert isinstance(structure.meta, tuple)
    dense_shape: tuple[Dim, ...] = structure.meta[0]
    sizes = [_size_tensor(graph, d) for d in dense_shape if isinstance(d, SymbolicDim)]
    out += [next(leaves), next(leaves), *sizes]
    return pytree.Node(_Fetched, dense_shape, (None,) * (2 + len(sizes)))


def _size_tensor(graph: Graph, size: Dim) -> Tensor:
    """An open size as a scalar of the graph, made once."""
    trace = graph._trace
    known = _size_values.setdefault(trace, {})
    if size not in known:
        with graph._lock, trace.active():
            control, trace.control = trace.control, ()
            try:
                known[size] = trace.lift(as_tensor(size))
            finally:
                trace.control = control
    return trace.tensor(known[size])
