"""Shapes, and operators that move elements: reshape, slices, gathers, scatters, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.budget import check_table
from weft.frontend.onnx.dtypes import dtype_of
from weft.frontend.onnx.sizes import known_size, sizes_value
from weft.frontend.onnx.table import Call, op
from weft.frontend.ops.dynamic import boolean_mask
from weft.frontend.ops.indexing import (
    gather_nd,
    scatter_nd_add,
    scatter_nd_max,
    scatter_nd_min,
    scatter_nd_update,
)
from weft.ir.dims import SymbolicDim, product
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError, UnsupportedError


# ------------------------------------------------------------------------------ constants, shapes
@op("Constant")
def _constant(
    *, value: Tensor | None = None, sparse_value: Tensor | None = None, value_float: float = 0.0,
    value_floats: Any = None, value_int: int | None = None, value_ints: Any = None,
    value_string: str | None = None, value_strings: Any = None,
) -> Tensor:  # fmt: skip
    for tensor in (value, sparse_value):
        if tensor is not None:
            return tensor
    for number, dtype in ((value_int, np.int64), (value_ints, np.int64), (value_floats, np.float32),
                          (value_string, object), (value_strings, object)):  # fmt: skip
        if number is not None:
            return wf.asarray(np.asarray(number, dtype))
    return wf.asarray(np.float32(value_float))


@op("ConstantOfShape", since=9, sizes=["input"])
def _constant_of_shape(input: Any, *, value: Tensor | None = None) -> Tensor:
    filled = wf.asarray(np.float32(0)) if value is None else wf.reshape(value, ())
    return wf.broadcast_to(filled, tuple(input))


@op("Shape", folds=False)
def _shape(data: Any, *, start: int = 0, end: int | None = None) -> Any:
    return sizes_value(data.shape[slice(start, end)])


@op("Size", folds=False)
def _size(data: Tensor) -> Any:
    if all(isinstance(d, (int, SymbolicDim)) for d in data.shape):
        total = product(data.shape)
        if isinstance(total, int):
            return wf.asarray(np.int64(total))
    return wf.size(data)


@op("Reshape", since=5, sizes=["shape"])
def _reshape(data: Tensor, shape: Any, *, allowzero: int = 0) -> Tensor:
    given = list(shape)
    if not allowzero:
        given = [data.shape[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(given)]
    return wf.reshape(data, tuple(given))


@op("Reshape")
def _reshape_attribute(data: Tensor, *, shape: Any, consumed_inputs: Any = None) -> Tensor:
    return _reshape(data, shape)


@op("Flatten")
def _flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + input.ndim if axis < 0 else axis
    first, rest = input.shape[:axis], input.shape[axis:]
    return wf.reshape(input, (product(first), product(rest)))


@op("Expand", since=8, sizes=["shape"])
def _expand(input: Tensor, shape: Any) -> Tensor:
    own = [1] * (len(shape) - input.ndim) + list(input.shape)
    wanted = [1] * (input.ndim - len(shape)) + list(shape)
    both = [w if isinstance(o, int) and o == 1 else o for o, w in zip(own, wanted, strict=True)]
    for o, w in zip(own, wanted, strict=True):
        if isinstance(o, int) and isinstance(w, int) and o != w and 1 not in (o, w):
            raise InvalidArgumentError(f"a tensor of shape {own} does not expand to {wanted}")
    return wf.broadcast_to(input, tuple(both))


@op("Transpose")
def _transpose(data: Tensor, *, perm: Any = None) -> Tensor:
    return wf.permute_dims(data, tuple(range(data.ndim))[::-1] if perm is None else tuple(perm))


@op("Squeeze", since=13, known=["axes"])
def _squeeze(data: Tensor, axes: Any = None) -> Tensor:
    if axes is None:
        axes = [i for i, d in enumerate(data.shape) if isinstance(d, int) and d == 1]
    return wf.squeeze(data, tuple(int(a) for a in np.ravel(axes)))


@op("Squeeze")
def _squeeze_attribute(data: Tensor, *, axes: Any = None) -> Tensor:
    return _squeeze(data, axes)


@op("Unsqueeze", since=13, known=["axes"])
def _unsqueeze(data: Tensor, axes: Any) -> Tensor:
    return wf.expand_dims(data, tuple(int(a) for a in np.ravel(axes)))


@op("Unsqueeze")
def _unsqueeze_attribute(data: Tensor, *, axes: Any) -> Tensor:
    return _unsqueeze(data, axes)


def _scalar(value: Any) -> Any:
    """What may be a vector of one element, as ONNX's own functions give."""
    if not isinstance(value, list):
        return value
    return np.int64(value[0]) if isinstance(value[0], int) else value[0]


@op("Range", since=11, sizes=["start", "limit", "delta"])
def _range(start: Any, limit: Any, delta: Any) -> Tensor:
    start, limit, delta = (_scalar(v) for v in (start, limit, delta))
    given = [v for v in (start, limit, delta) if not isinstance(v, SymbolicDim)]
    dtype = as_dtype(given[0].dtype) if given else wf.int64
    if any(isinstance(v, Tensor) for v in given):
        return wf.arange(start, limit, delta)
    if dtype.is_floating:
        count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
        steps = wf.astype(wf.arange(count), dtype)
        return steps * wf.asarray(delta) + wf.asarray(start)
    numbers = [v if isinstance(v, SymbolicDim) else int(v) for v in (start, limit, delta)]
    return wf.arange(*numbers, dtype=dtype)


@op("EyeLike", since=9, like=["input"])
def _eye_like(input: Tensor, *, dtype: int = 0, k: int = 0) -> Tensor:
    rows, columns = known_size(input, 0), known_size(input, 1)
    return wf.eye(rows, columns, k=k, dtype=dtype_of(dtype) if dtype else input.dtype)


@op("Trilu", since=14, known=["k"])
def _trilu(input: Tensor, k: Any = 0, *, upper: int = 1) -> Tensor:
    return (wf.triu if upper else wf.tril)(input, k=int(np.reshape(k, ())))


def _from_start(index: Tensor, size: Any) -> Tensor:
    """Indices of which negative ones are from the end, from the start."""
    return wf.where(index < 0, index + size, index)


@op("OneHot", since=9, known=["depth"])
def _one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    size = int(np.reshape(depth, ()))
    index = wf.expand_dims(_from_start(wf.astype(indices, wf.int64), size), axis)
    places = [1] * index.ndim
    places[axis] = size
    return wf.where(index == wf.reshape(wf.arange(size), places), values[1], values[0])


# ----------------------------------------------------------------------------------------- slices
def _bound(value: Any) -> Any:
    """A bound of a slice: those that stand for an end are none."""
    if isinstance(value, (int, np.integer)):
        return None if abs(int(value)) >= 10**9 else int(value)
    return value


@op("Slice", since=10, sizes=["starts", "ends"], known=["axes", "steps"])
def _slice(data: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    number = len(starts)
    axes = list(range(number)) if axes is None else [int(a) for a in axes]
    steps = [1] * number if steps is None else [int(s) for s in steps]
    key: list[Any] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        key[axis] = slice(_bound(start), _bound(end), step)
    return data[tuple(key)]


@op("Slice")
def _slice_attributes(data: Tensor, *, starts: Any, ends: Any, axes: Any = None) -> Tensor:
    return _slice(data, starts, ends, axes)


@op("Concat")
def _concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    return inputs[0] if len(inputs) == 1 else wf.concat(inputs, axis=axis)


def _split_sizes(size: Any, count: int) -> Any:
    if not isinstance(size, int):
        return count
    each = -(-size // count)
    return [max(0, min(each, size - i * each)) for i in range(count)]


@op("Split", since=13, known=["split"])
def _split(
    input: Tensor, split: Any = None, *, axis: int = 0, num_outputs: int = 0, node: Call
) -> Any:
    count = num_outputs or node.outputs
    if split is None and count != node.outputs:
        raise InvalidArgumentError(f"it has {node.outputs} outputs, num_outputs is {count}")
    sizes = _split_sizes(input.shape[axis], count) if split is None else split
    parts = sizes if isinstance(sizes, int) else [int(s) for s in sizes]
    return tuple(wf.split(input, parts, axis=axis))


@op("Split")
def _split_attribute(input: Tensor, *, split: Any = None, axis: int = 0, node: Call) -> Any:
    return _split(input, split, axis=axis, node=node)


@op("Tile", since=6, sizes=["repeats"])
def _tile(input: Tensor, repeats: Any) -> Tensor:
    return wf.tile(input, repeats)


@op("Tile")
def _tile_axis(input: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    times = [1] * input.ndim
    times[int(axis.numpy())] = int(tiles.numpy())
    return wf.tile(input, times)


@op("DepthToSpace")
def _depth_to_space(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    b, c, h, w = input.shape[0], *(known_size(input, i) for i in (1, 2, 3))
    n = blocksize
    if mode == "DCR":
        parts = wf.reshape(input, (b, n, n, c // n**2, h, w))
        moved = wf.permute_dims(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = wf.reshape(input, (b, c // n**2, n, n, h, w))
        moved = wf.permute_dims(parts, (0, 1, 4, 2, 5, 3))
    return wf.reshape(moved, (b, c // n**2, h * n, w * n))


@op("SpaceToDepth")
def _space_to_depth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    b, c, h, w = input.shape[0], *(known_size(input, i) for i in (1, 2, 3))
    n = blocksize
    parts = wf.reshape(input, (b, c, h // n, n, w // n, n))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return wf.reshape(wf.permute_dims(parts, order), (b, c * n**2, h // n, w // n))


@op("ReverseSequence", since=10)
def _reverse_sequence(
    input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    return wf.nn.reverse_sequence(input, sequence_lens, time_axis, batch_axis)


# ---------------------------------------------------------------------------------------- padding
def cropped(x: Tensor, pairs: list[tuple[int, int]]) -> tuple[Tensor, list[tuple[int, int]]]:
    """x without what negative padding of its last axes takes away, and the padding that is left."""
    if all(p >= 0 for pair in pairs for p in pair):
        return x, pairs
    key = [slice(max(0, -lo), min(hi, 0) or None) for lo, hi in pairs]
    return x[(..., *key)], [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]


@op("Pad", since=11, sizes=["pads"], known=["axes"])
def _pad(
    data: Tensor, pads: Any, constant_value: Tensor | None = None, axes: Any = None, *,
    mode: str = "constant",
) -> Tensor:  # fmt: skip
    chosen = list(range(data.ndim)) if axes is None else [int(a) % data.ndim for a in axes]
    pairs: list[Any] = [(0, 0)] * data.ndim
    for i, axis in enumerate(chosen):
        pairs[axis] = (pads[i], pads[len(chosen) + i])
    numbers = [p for pair in pairs for p in pair]
    if not all(isinstance(p, int) for p in numbers):
        return _pad_open(data, pairs, constant_value, mode)
    data, pairs = cropped(data, pairs)
    if mode == "wrap":
        return _wrapped(data, pairs)
    if mode != "constant":
        return wf.pad(data, pairs, mode)
    fill: Any = 0 if constant_value is None else wf.reshape(constant_value, ())
    if data.dtype.kind == "bool" and constant_value is None:
        fill = False
    return wf.pad(data, pairs, constant_values=fill)


def _pad_open(data: Tensor, pairs: Any, fill: Tensor | None, mode: str) -> Tensor:
    """By sizes that are symbols or tensors: what is added is joined to what there is."""
    if mode != "constant":
        raise UnsupportedError(f"its pads must be known for the mode '{mode}'")
    value = wf.zeros((), dtype=data.dtype) if fill is None else wf.reshape(fill, ())
    for axis, (lo, hi) in enumerate(pairs):
        for n, before in ((lo, True), (hi, False)):
            if isinstance(n, int) and n == 0:
                continue
            shape = (*data.shape[:axis], n, *data.shape[axis + 1 :])
            side = wf.broadcast_to(value, shape)
            data = wf.concat([side, data] if before else [data, side], axis=axis)
    return data


def _wrapped(data: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    for axis, (lo, hi) in enumerate(pairs):
        if lo or hi:
            size = known_size(data, axis)
            check_table("the places of its results along an axis", lo + size + hi)
            places = np.arange(-lo, size + hi) % size
            data = wf.take(data, wf.asarray(places), axis=axis)
    return data


@op("Pad", since=2)
def _pad_attributes(
    data: Tensor, *, pads: Any, mode: str = "constant", value: float = 0.0
) -> Tensor:
    return _pad(data, pads, wf.asarray(np.asarray(value, data.dtype.numpy)), mode=mode)


@op("Pad")
def _pad_first(
    data: Tensor, *, paddings: Any, mode: str = "constant", value: float = 0.0
) -> Tensor:
    return _pad_attributes(data, pads=paddings, mode=mode, value=value)


# ----------------------------------------------------------------------------- gather and scatter
@op("Gather")
def _gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return wf.take(data, indices, axis=axis)


@op("GatherElements", since=11)
def _gather_elements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    if data.shape[:axis] + data.shape[axis:][1:] == indices.shape[:axis] + indices.shape[axis:][1:]:
        return wf.take_along_axis(data, indices, axis=axis)
    return gather_nd(data, _places(data, indices, axis))


def _places(data: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Where the elements of `indices` point to along an axis: an index for each axis of data."""
    axis %= data.ndim
    index = _from_start(wf.astype(indices, wf.int64), data.shape[axis])
    grids = [
        index if i == axis else wf.iota(indices.shape, i, dtype=wf.int64) for i in range(data.ndim)
    ]
    return wf.stack(grids, axis=-1)


@op("GatherND", since=11)
def _gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    index = wf.astype(indices, wf.int64)
    deep = known_size(index, -1)
    parts = [_from_start(index[..., i], data.shape[batch_dims + i]) for i in range(deep)]
    batches = [wf.iota(index.shape[:-1], i, dtype=wf.int64) for i in range(batch_dims)]
    return gather_nd(data, wf.stack([*batches, *parts], axis=-1))


_SCATTERS = {
    "none": scatter_nd_update, "add": scatter_nd_add, "min": scatter_nd_min, "max": scatter_nd_max,
}  # fmt: skip


def _scattered(data: Tensor, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction != "mul":
        return _SCATTERS[reduction](data, index, updates)
    return _scatter_products(data, index, updates)


def _scatter_products(data: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """data with elements multiplied by the updates, one after the other."""
    deep = known_size(index, -1)
    rows = wf.reshape(index, (-1, deep))
    parts = wf.reshape(updates, (rows.shape[0], *data.shape[deep:]))

    def step(held: Tensor, one: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        place, factor = one
        place, factor = place[None], factor[None]
        return scatter_nd_update(held, place, gather_nd(held, place) * factor), None

    return wf.scan(step, data, (rows, parts))[0]  # type: ignore[no-any-return]


@op("ScatterElements", since=11)
def _scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    return _scattered(data, _places(data, indices, axis), updates, reduction)


@op("Scatter", since=9)
def _scatter(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return _scatter_elements(data, indices, updates, axis=axis)


@op("ScatterND", since=11)
def _scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    index = wf.astype(indices, wf.int64)
    deep = known_size(index, -1)
    parts = [_from_start(index[..., i], data.shape[i]) for i in range(deep)]
    return _scattered(data, wf.stack(parts, axis=-1), updates, reduction)


@op("TensorScatter", since=24)
def _tensor_scatter(
    past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2,
    mode: str = "linear",
) -> Tensor:  # fmt: skip
    axis %= past_cache.ndim
    size = past_cache.shape[axis]
    steps = wf.iota(update.shape, axis, dtype=wf.int64)
    if write_indices is not None:
        first = wf.astype(write_indices, wf.int64)
        steps = steps + wf.reshape(first, (-1, *[1] * (update.ndim - 1)))
    if mode == "circular":
        steps = wf.remainder(steps, size)
    return scatter_nd_update(past_cache, _places(past_cache, steps, axis), update)


@op("Compress", since=9)
def _compress(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    if axis is None:
        input, axis = wf.reshape(input, (-1,)), 0
    axis %= input.ndim
    size = condition.shape[0]
    if size != input.shape[axis]:
        input = input[(*[slice(None)] * axis, slice(0, size))]
    return boolean_mask(input, condition, axis)


@op("NonZero", since=9)
def _non_zero(X: Tensor) -> Tensor:
    return wf.stack(wf.nonzero(X if X.ndim else wf.reshape(X, (1,))))


@op("CenterCropPad", since=18, known=["shape"])
def _center_crop_pad(input_data: Tensor, shape: Any, *, axes: Any = None) -> Tensor:
    chosen = list(range(input_data.ndim)) if axes is None else [a % input_data.ndim for a in axes]
    pairs = [(0, 0)] * input_data.ndim
    for axis, size in zip(chosen, shape.tolist(), strict=True):
        have = known_size(input_data, axis)
        if size < have:
            first = (have - size) // 2
            key = [slice(None)] * input_data.ndim
            key[axis] = slice(first, first + size)
            input_data = input_data[tuple(key)]
        elif size > have:
            before = (size - have) // 2
            pairs[axis] = (before, size - have - before)
    return wf.pad(input_data, pairs)
