"""`Sizes`: the sizes of tensors as values, while a model is traced.

Models compute shapes from shapes: Shape, Gather, Concat, Reshape. Where sizes are open these values
are no constants; kept as what they are, dimensions, such a chain leaves no op in the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Array, Tensor, as_tensor
from weft.frontend.core.trace import suspend_trace
from weft.frontend.ops.manipulation import stack
from weft.frontend.ops.promotion import is_concrete
from weft.ir.dims import SymbolicDim, divided, format_shape
from weft.ir.errors import ShapeError

_MOST_TERMS, _MOST_FACTORS = 64, 16  # of a polynomial


class Sizes:
    """A scalar or vector of sizes, at least one of which is a symbol: an int64 tensor to be."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor that it stands for."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    def tensor(self) -> Tensor:
        """The values as a tensor of the graph."""
        parts = [
            SymbolicDim.as_operand(d) if isinstance(d, SymbolicDim) else as_tensor(np.int64(d))
            for d in self.array.ravel().tolist()
        ]
        parts = [as_tensor(p) for p in parts]
        return parts[0] if not self.array.ndim else stack(parts)


def sizes_value(dims: Sequence[Any]) -> Sizes | Tensor:
    """A vector of sizes: a constant where all are known."""
    array = np.empty(len(dims), object)
    array[:] = dims
    return _kept(array)


def _kept(array: np.ndarray[Any, Any]) -> Sizes | Tensor:
    if any(isinstance(d, SymbolicDim) for d in array.ravel().tolist()):
        return Sizes(array)
    with suspend_trace():
        return as_tensor(np.asarray(array, np.int64))


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Sizes or a small known tensor of integers as an array of objects."""
    if isinstance(value, Sizes):
        return value.array
    if isinstance(value, Tensor) and is_concrete(value) and value.dtype.kind in ("int", "bool"):
        found: Array = value.numpy()
        if found.size <= 64:
            made = np.empty(found.shape, object)
            made[...] = found
            return made
    return None


def fold(name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The result of an operator on sizes and known integers as sizes; None where it is none."""
    compute = _RULES.get(name)
    if compute is None or not any(isinstance(v, Sizes) for v in inputs):
        return None
    arrays = [None if v is None else _array(v) for v in inputs]
    if any(a is None and v is not None for a, v in zip(arrays, inputs, strict=True)):
        return None
    try:
        found = compute(arrays, attrs)
    except (ShapeError, TypeError, ValueError, IndexError, KeyError):
        return None
    if found is None:
        return None
    if name == "Equal":
        with suspend_trace():
            return as_tensor(np.asarray(found, bool))
    made = np.empty(np.shape(found), object)
    made[...] = found
    return _kept(made) if all(map(_is_short, made.ravel().tolist())) else None


def _is_short(dim: Any) -> bool:
    """Whether a number fits int64, and a polynomial is one that sizes of a model are: those of a
    chain of products would have as many terms as memory holds."""
    if not isinstance(dim, SymbolicDim):
        return -(2**63) <= int(dim) < 2**63
    short = all(len(factors) <= _MOST_FACTORS and abs(c) < 2**63 for factors, c in dim.terms)
    return short and len(dim.terms) <= _MOST_TERMS


def _gather(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    data, index = a
    return None if attrs.get("axis", 0) not in (0, -1) else data[index.astype(np.int64)]


def _slice(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    if len(a) < 3:  # before opset 10 they were attributes
        return a[0][slice(attrs["starts"][0], attrs["ends"][0])]
    step = int(a[4][0]) if len(a) > 4 and a[4] is not None else 1
    return a[0][slice(int(a[1][0]), int(a[2][0]), step)]


def _axes(a: list[Any], attrs: Mapping[str, Any]) -> tuple[int, ...] | None:
    if len(a) > 1 and a[1] is not None:
        return tuple(int(v) for v in np.ravel(a[1]))
    return tuple(attrs["axes"]) if "axes" in attrs else None


def _unsqueeze(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    return np.expand_dims(a[0], _axes(a, attrs) or ())


def _reshape(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    shape = [int(v) for v in a[1]]
    return None if len(shape) > 1 or 0 in shape else np.reshape(a[0], shape)


def _divide(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    one, other = np.broadcast_arrays(a[0], a[1])
    found = [divided(x, y) for x, y in zip(one.ravel(), other.ravel(), strict=True)]
    made = np.empty(len(found), object)
    made[:] = found
    return made.reshape(one.shape)


def _cast(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    return a[0] if attrs["to"] == 7 else None


def _product(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    keep = attrs.get("keepdims", 1)
    total = np.prod(a[0])
    return np.reshape(np.asarray(total, object), [1] * a[0].ndim) if keep else total


def _equal(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    """Of a size that is open only where the answer is the same in each run."""
    one, other = np.broadcast_arrays(a[0], a[1])
    found = [_alike(x, y) for x, y in zip(one.ravel(), other.ravel(), strict=True)]
    return None if None in found else np.reshape(np.asarray(found, bool), one.shape)


def _alike(x: Any, y: Any) -> bool | None:
    if x == y:
        return True
    opened = [d for d in (x, y) if isinstance(d, SymbolicDim)]
    numbers = [d for d in (x, y) if not isinstance(d, SymbolicDim)]
    return False if not opened or (numbers and numbers[0] < 0) else None


def _where(a: list[Any], attrs: Mapping[str, Any]) -> Any:
    if any(isinstance(v, SymbolicDim) for v in a[0].ravel()):
        return None
    return np.where(a[0].astype(bool), a[1], a[2])


_RULES: dict[str, Callable[[list[Any], Mapping[str, Any]], Any]] = {
    "Add": lambda a, attrs: a[0] + a[1],
    "Sub": lambda a, attrs: a[0] - a[1],
    "Mul": lambda a, attrs: a[0] * a[1],
    "Div": _divide,
    "Neg": lambda a, attrs: -a[0],
    "Identity": lambda a, attrs: a[0],
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda a, attrs: np.concatenate(a),
    "Squeeze": lambda a, attrs: np.squeeze(a[0], _axes(a, attrs)),
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "ReduceProd": _product,
    "Equal": _equal,
    "Where": _where,
}


def known_size(x: Tensor, axis: int) -> int:
    """The size of an axis, where it must be known. ShapeError."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise ShapeError(
            f"the size of axis {axis} of its input {format_shape(x.shape)} must be known",
            hint="call the model with arrays, or name sizes in an example only for the batch",
        )
    return size
