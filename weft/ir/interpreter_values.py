"""Arrays as the interpreter takes them: of which types they are, which sizes they decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph, Value
from weft.ir.solve_dims import solve_dims
from weft.ir.spec import Array
from weft.ir.types import TensorType, substitute_type

_PLAIN = frozenset("?bBhHiIlLefdFD")  # dtype.char


def as_array(x: object) -> Array:
    """`x` as an array of a weft dtype: native byte order, strings as objects that are bytes."""
    array = x if type(x) is np.ndarray else np.asarray(x)
    if array.dtype.isbuiltin == 1 and array.dtype.char in _PLAIN:
        return array
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    dtype = as_dtype(array.dtype).numpy
    return array if array.dtype == dtype and array.dtype.isnative else array.astype(dtype)


def type_of(array: Array) -> TensorType:
    """The type of a concrete array."""
    return TensorType(as_dtype(array.dtype), array.shape)


def bind_symbols(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """The sizes of the symbols in the types of the graph's inputs, from the shapes of `arrays`.

    Raises InvalidArgumentError, naming the input, where an array does not fit its type.
    """
    if len(arrays) != len(graph.args):
        raise InvalidArgumentError(
            f"graph '{graph.name}' takes {len(graph.args)} inputs, got {len(arrays)}"
        )
    sizes = solve_dims(size_pairs(graph.args, arrays))
    for name, arg, array in zip(graph.arg_names, graph.args, arrays, strict=True):
        wanted = substitute_type(arg.type, sizes)
        if (
            not isinstance(wanted, TensorType)
            or not has_type(array, wanted)
            or any(isinstance(d, SymbolicDim) for d in wanted.shape)
        ):
            at = ", ".join(f"{k}={v}" for k, v in sizes.items())
            raise InvalidArgumentError(
                f"input '{name}' of graph '{graph.name}' must be {arg.type}, got {type_of(array)}"
                + (f" (with {at})" if at and str(wanted) != str(arg.type) else "")
            )
    return sizes


def size_pairs(values: Sequence[Value], given: Sequence[Any]) -> list[tuple[Dim, int]]:
    """The dimensions of the types of values, with the sizes that they have."""
    return [
        pair
        for value, array in zip(values, given, strict=True)
        if isinstance(value.type, TensorType) and value.type.rank == np.ndim(array)
        for pair in zip(value.type.shape, np.shape(array), strict=True)
    ]


def has_type(array: Array, t: TensorType) -> bool:
    """Whether an array is of a type; a dimension that is no number fits any."""
    return (
        array.dtype == t.dtype.numpy
        and array.ndim == t.rank
        and all(n == d or not isinstance(d, int) for n, d in zip(array.shape, t.shape, strict=True))
    )
