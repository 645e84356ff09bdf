"""Makers of convolutions and windowed reductions (see `graph_makers`)."""

from __future__ import annotations

import math
from typing import Any

from graphs import MAX_ELEMENTS, GraphMaker, Unfit

from weft.ir.dtypes import bool_, float32, float64
from weft.ir.graph import Value
from weft.ir.spec import NUMERIC, REAL


def _ints(m: GraphMaker, count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(m.int(low, high) for _ in range(count))


def _sliding(m: GraphMaker, axes: int) -> dict[str, Any]:
    strides, lo, dilation = (_ints(m, axes, *r) for r in ((1, 3), (-1, 3), (1, 2)))
    return {"strides": strides, "lo": lo, "dilation": dilation}


def _size(m: GraphMaker, axes: int, others: int) -> tuple[int, ...]:
    size = _ints(m, axes, 0, 5)
    return size if math.prod(size) * others <= MAX_ELEMENTS else (1,) * axes


def _others(x: Value) -> int:
    shape = x.type.shape  # type: ignore[union-attr]
    return math.prod(d if isinstance(d, int) else 3 for d in (shape[0], shape[-1]))


def conv(m: GraphMaker, op: str) -> None:
    """conv(x, w), conv_input(y, w), conv_kernel(x, y)."""
    known = lambda t: isinstance(t.shape[-1], int)  # noqa: E731
    dtypes = [d for d in NUMERIC.members if d in m.dtypes]
    first = m.some(lambda t: 3 <= t.rank <= 5 and known(t), sorted(dtypes, key=str))
    t = first.type
    axes, channels = t.rank - 2, t.shape[-1]
    groups = m.pick([g for g in (1, 2, 3) if channels % g == 0])
    if op == "conv_kernel":
        outside = groups * m.int(0, 3)
        shape = (t.shape[0], *_size(m, axes, outside * _others(first)), outside)
        size = _size(m, axes, max(1, channels * outside))
    elif op == "conv":
        shape = (*_ints(m, axes, 0, 3), channels // groups, groups * m.int(0, 3))
        size = _size(m, axes, _others(first) * max(1, shape[-1]))
    else:
        shape = (*_ints(m, axes, 0, 3), m.int(0, 3), channels)
        size = _size(m, axes, _others(first) * max(1, shape[-2] * groups))
    if math.prod(d if isinstance(d, int) else 3 for d in shape) > MAX_ELEMENTS:
        raise Unfit
    second = m.like(t.dtype, shape)
    m.emit(op, [first, second], **_sliding(m, axes), groups=groups, size=size)


def window(m: GraphMaker, op: str) -> None:
    """window_sum, window_spread, window_max, window_pick, window_place."""
    allowed = NUMERIC if op in ("window_sum", "window_spread") else REAL
    dtypes = [d for d in allowed.members if d in m.dtypes]
    x = m.some(lambda t: 3 <= t.rank <= 5, sorted(dtypes, key=str))
    t = x.type
    axes = t.rank - 2
    attrs = {"window": _ints(m, axes, 0, 3), **_sliding(m, axes)}
    size = _size(m, axes, _others(x))
    if op == "window_place":
        m.emit(op, [x, m.like(t.dtype, (t.shape[0], *size, t.shape[-1]))], **attrs)
        return
    operands = [x, m.like(t.dtype, t.shape)] if op == "window_pick" else [x]
    m.emit(op, operands, **attrs, size=size)


def attention(m: GraphMaker, op: str) -> None:
    """attention(q, k, v), with a mask or without; attention_grad of what it makes."""
    dtype = m.dtype([float32, float64])
    batch, inner = _ints(m, m.int(0, 2), 1, 2), m.flag()
    batch = (*batch, 1) if inner and not batch else batch
    rows, columns, depth, width = _ints(m, 4, 1, 3)

    def like(n: int, last: int) -> Value:
        return m.like(dtype, (*batch[:-1], n, batch[-1], last) if inner else (*batch, n, last))

    query = like(rows, depth)
    operands = [query, like(columns, depth), like(columns, width)]
    if m.flag():
        operands.append(m.like(m.pick([bool_, dtype]), (rows, columns)))
    attrs = {"scale": 0.5, "causal": m.flag(), "fill": float("-inf"), "heads_inner": inner}
    out, sums = m.emit("attention", operands, **attrs)
    if op == "attention_grad":
        m.emit(op, [*operands, out, sums, m.like(dtype, out.type.shape)], **attrs)
