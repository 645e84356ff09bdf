"""Operators that reduce axes, cumulate along one, sort and find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.dtypes import limits
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import Call, op


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    return (
        tuple(range(ndim)) if axes is None else tuple(int(a) % max(ndim, 1) for a in np.ravel(axes))
    )


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return wf.sum(x, axes, dtype=x.dtype, keepdims=keep)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.dtype.is_floating:
        return wf.mean(x, axes, keepdims=keep)
    return wf.astype(wf.mean(wf.astype(x, wf.float64), axes, keepdims=keep), x.dtype)


def _extreme(name: str) -> Callable[[Tensor, tuple[int, ...], bool], Tensor]:
    compute = wf.max if name == "max" else wf.min

    def run(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if x.dtype.kind == "bool":
            return (wf.any if name == "max" else wf.all)(x, axes, keepdims=keep)
        if any(x.shape[a] == 0 for a in axes):
            return _of_none(x, axes, keep, name)
        return compute(x, axes, keepdims=keep)

    return run


def _of_none(x: Tensor, axes: tuple[int, ...], keep: bool, name: str) -> Tensor:
    """The extremum of no elements: the least, or largest, that the dtype has."""
    if x.dtype.is_floating:
        value: Any = -math.inf if name == "max" else math.inf
    else:
        value = limits(x.dtype)[0 if name == "max" else 1]
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    return wf.full(tuple(shape), value, dtype=x.dtype)


def _as_float(x: Tensor) -> Tensor:
    return x if x.dtype.is_floating else wf.astype(x, wf.float64)


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return wf.astype(wf.log(_sum(_as_float(x), axes, keep)), x.dtype)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        return _of_none(x, axes, keep, "max")
    return wf.astype(wf.logsumexp(_as_float(x), axes, keepdims=keep), x.dtype)


def _norm(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return wf.astype(wf.sqrt(_sum(wf.square(_as_float(x)), axes, keep)), x.dtype)


_REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme("max"),
    "ReduceMin": _extreme("min"),
    "ReduceProd": lambda x, axes, keep: wf.prod(x, axes, dtype=x.dtype, keepdims=keep),
    "ReduceL1": lambda x, axes, keep: _sum(wf.abs(x), axes, keep),
    "ReduceL2": _norm,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, axes, keep: _sum(wf.square(x), axes, keep),
}

#: What a reduction of no axes does to each element, where it is not nothing.
_EACH: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": wf.abs, "ReduceL2": wf.abs, "ReduceLogSum": wf.log, "ReduceSumSquare": wf.square,
}  # fmt: skip


def _enter(name: str, compute: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> None:
    def run(
        data: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        if axes is None or not np.size(axes):
            if noop_with_empty_axes:
                return _EACH[name](data) if name in _EACH else data
            axes = None
        return compute(data, _axes(axes, data.ndim), bool(keepdims))

    def old(data: Tensor, *, axes: Any = None, keepdims: int = 1) -> Tensor:
        return compute(data, _axes(axes, data.ndim), bool(keepdims))

    op(name, since=13 if name == "ReduceSum" else 18, known=["axes"])(run)
    op(name)(old)


for _name, _compute in _REDUCTIONS.items():
    _enter(_name, _compute)


def _arg(find: Any, data: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    if not last:
        return find(data, axis=axis, keepdims=bool(keepdims))  # type: ignore[no-any-return]
    found = find(wf.flip(data, axis=axis), axis=axis, keepdims=bool(keepdims))
    return known_size(data, axis) - 1 - found  # type: ignore[no-any-return]


@op("ArgMax")
def _argmax(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(wf.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin")
def _argmin(
    data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    return _arg(wf.argmin, data, axis, keepdims, select_last_index)


def _cumulated(
    compute: Any, one: int, x: Tensor, axis: int, exclusive: int, reverse: int
) -> Tensor:
    if reverse:
        x = wf.flip(x, axis=axis)
    made = compute(x, axis=axis, dtype=x.dtype)
    if exclusive:
        pairs = [(0, 0)] * x.ndim
        pairs[axis] = (1, 0)
        key = [slice(None)] * x.ndim
        key[axis] = slice(0, x.shape[axis])
        made = wf.pad(made, pairs, constant_values=one)[tuple(key)]
    return wf.flip(made, axis=axis) if reverse else made


@op("CumSum", since=11, known=["axis"])
def _cumsum(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulated(
        wf.cumulative_sum, 0, x, int(np.reshape(axis, ())) % x.ndim, exclusive, reverse
    )


@op("CumProd", since=26, known=["axis"])
def _cumprod(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulated(
        wf.cumulative_prod, 1, x, int(np.reshape(axis, ())) % x.ndim, exclusive, reverse
    )


@op("TopK", since=10, known=["K"])
def _top_k(X: Tensor, K: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    found = wf.top_k(X, int(np.reshape(K, ())), axis=axis, largest=bool(largest))
    return found[0], wf.astype(found[1], wf.int64)


@op("TopK")
def _top_k_attribute(X: Tensor, *, k: int, axis: int = -1) -> Any:
    return _top_k(X, k, axis=axis)


@op("Unique", since=11)
def _unique(X: Tensor, *, axis: int | None = None, sorted: int = 1, node: Call) -> Any:
    rows = wf.reshape(X, (-1, 1)) if axis is None else _rows(X, axis)
    order, starts, group = _groups(rows)
    first = wf.segment_min(order, group, wf.sum(wf.astype(starts, wf.int64)))
    count = first.shape[0]
    inverse = wf.take(group, wf.argsort(order))
    places = wf.arange(count, dtype=wf.int64)
    if not sorted:
        places = wf.argsort(first)
        inverse = wf.take(wf.argsort(places), inverse)
        first = wf.take(first, places)
    counts = wf.segment_sum(wf.ones_like(inverse), inverse, count)
    if axis is None:
        values = wf.take(wf.reshape(X, (-1,)), first)
    else:
        values = wf.take(X, first, axis=axis)
    return (values, first, inverse, counts)[: max(node.outputs, 1)]


def _rows(x: Tensor, axis: int) -> Tensor:
    moved = wf.moveaxis(x, axis, 0)
    return wf.reshape(moved, (moved.shape[0], -1))


def _groups(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The order that sorts rows, where another row begins in it, and the number of each."""
    columns = known_size(rows, 1)
    order = wf.arange(rows.shape[0], dtype=wf.int64)
    for i in reversed(range(columns)):
        order = wf.take(order, wf.argsort(wf.take(rows[:, i], order)))
    held = wf.take(rows, order, axis=0)
    first = wf.ones((held[:1].shape[0],), dtype=wf.bool)  # where there is one
    starts = wf.concat([first, wf.any(held[1:] != held[:-1], axis=1)])
    return order, starts, wf.cumulative_sum(wf.astype(starts, wf.int64), axis=0) - 1
