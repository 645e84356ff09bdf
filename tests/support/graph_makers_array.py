"""Makers of the ops that cut, join, reduce, sort and index arrays (see `graph_makers`)."""

from __future__ import annotations

import functools
import math
from typing import Any

from graphs import GraphMaker, Unfit

from weft.ir.analysis.verify import illegal
from weft.ir.dtypes import ALL, DType, float32, float64, int8, uint8, uint32
from weft.ir.errors import WeftError
from weft.ir.ops import OPS
from weft.ir.ops.linear_algebra import LAPACK
from weft.ir.spec import Attrs
from weft.ir.types import TensorType

INTEGERS = [d for d in ALL if d.is_integer]


@functools.cache
def legal_ops(stage: str, in_nest: bool = False) -> list[str]:
    """The ops that may be in a graph of this stage."""
    legal = [name for name in OPS if illegal(name, stage, in_nest) is None]
    return [name for name in legal if name != "custom_rule"]  # a Python function


@functools.cache
def allowed_dtypes(op: str) -> list[DType]:
    """The operand dtypes that the type rule of `op` takes, found by asking it."""
    spec = OPS[op]
    usual: dict[str, Any] = {"axes": (0,), "axis": 0, "keepdims": False, "n": 2}
    attrs: Attrs = {k: usual.get(k, s.default) for k, s in spec.attrs.items()}
    rank = 2 if op == "matmul" else 1
    fits = []
    for dtype in ALL:
        t = TensorType(dtype, (2,) * rank)
        operands = [t] * (spec.arity or 1)
        if op in ("index_add", "scatter_along_axis_add") or op.startswith("scatter_nd"):
            nd = op.startswith("scatter_nd")
            operands[1] = TensorType(uint32, (2, 1) if nd else (2,))
        try:
            spec.infer(operands, attrs, ())
        except WeftError:
            continue
        fits.append(dtype)
    return fits


def wanted_dtypes(m: GraphMaker, op: str) -> list[DType]:
    return [d for d in allowed_dtypes(op) if d in m.dtypes]


# ---------------------------------------------------------------------------- shapes


def reshape(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.is_static)
    shape = list(x.type.static_shape)
    for _ in range(m.int(1, 3)):  # split, merge or insert
        kind, i = m.int(0, 2), m.int(0, max(len(shape) - 1, 0))
        if kind == 0 and len(shape) < 5:
            shape.insert(i, 1)
        elif kind == 1 and len(shape) > 1 and i + 1 < len(shape):
            shape[i : i + 2] = [shape[i] * shape[i + 1]]
        elif kind == 2 and shape and shape[i] > 1:
            divisor = next(d for d in (2, 3, 5, 7, shape[i]) if shape[i] % d == 0)
            shape[i : i + 1] = [divisor, shape[i] // divisor]
    m.emit(op, [x], shape=tuple(shape))


def permute_dims(m: GraphMaker, op: str) -> None:
    x = m.some()
    axes = list(range(x.type.rank))
    for i in range(len(axes) - 1):
        j = m.int(i, len(axes) - 1)
        axes[i], axes[j] = axes[j], axes[i]
    m.emit(op, [x], axes=tuple(axes))


def broadcast_to(m: GraphMaker, op: str) -> None:
    x = m.some()
    shape = [m.pick(m.sizes) if d == 1 and m.flag() else d for d in x.type.shape]
    shape = [*m.shape(0, 1), *shape] if len(shape) < 4 else shape
    if math.prod(d for d in shape if isinstance(d, int)) > 1000:
        raise Unfit
    m.emit(op, [x], shape=tuple(shape))


def concat(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, low=1)
    axis = m.int(0, x.type.rank - 1)
    operands = [x]
    for _ in range(m.int(0, 2)):
        shape = list(x.type.shape)
        shape[axis] = m.pick([d for d in m.sizes if isinstance(d, int)])
        operands.insert(m.int(0, 1), m.like(x.type.dtype, tuple(shape)))
    m.emit(op, operands, axis=axis)


def pad(m: GraphMaker, op: str) -> None:
    x = m.some()
    lo, hi = (tuple(m.int(0, 2) for _ in range(x.type.rank)) for _ in range(2))
    m.emit(op, [x, m.like(x.type.dtype, ())], lo=lo, hi=hi)


def _slice_attrs(m: GraphMaker, x: TensorType) -> tuple[dict[str, Any], list[int]]:
    starts, stops, steps, lengths = [], [], [], []
    for size in x.static_shape:
        step = m.pick([1, 1, 2, -1, -2, 3])
        ends = [m.pick([None, *range(-size, size + 1)]) for _ in range(2)]
        start, stop, _ = slice(*ends, step).indices(size)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        lengths.append(len(range(start, stop, step)))
    return {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}, lengths


def slice_(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.is_static)
    attrs, _ = _slice_attrs(m, x.type)
    m.emit(op, [x], **attrs)


def slice_update(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.is_static)
    attrs, lengths = _slice_attrs(m, x.type)
    m.emit(op, [x, m.like(x.type.dtype, tuple(lengths))], **attrs)


def iota(m: GraphMaker, op: str) -> None:
    shape = m.shape(1)
    dtype = m.dtype([d for d in ALL if d.is_numeric])
    m.emit(op, dtype=dtype, shape=shape, axis=m.int(0, len(shape) - 1))


def dim_size(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, low=1)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1))


# ---------------------------------------------------------------------------- reductions, sorting


def reduction(m: GraphMaker, op: str) -> None:
    empty_ok = op not in ("max", "min")
    x = m.some(lambda t: empty_ok or 0 not in t.shape, wanted_dtypes(m, op), nonempty=not empty_ok)
    axes = tuple(i for i in range(x.type.rank) if m.flag())
    m.emit(op, [x], axes=axes, keepdims=m.flag())


def position(m: GraphMaker, op: str) -> None:
    x = m.some(
        lambda t: t.rank > 0 and 0 not in t.shape, wanted_dtypes(m, op), low=1, nonempty=True
    )
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), keepdims=m.flag())


def cumulative(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, wanted_dtypes(m, op), low=1)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), reverse=m.flag())


def sort(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, wanted_dtypes(m, op), low=1)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), descending=m.flag())


def fourier(m: GraphMaker, op: str) -> None:
    x = m.some(
        lambda t: t.rank > 0 and 0 not in t.shape, wanted_dtypes(m, op), low=1, nonempty=True
    )
    axis, scale = m.int(0, x.type.rank - 1), m.pick(["1", "1/sqrt(n)", "1/n"])
    how: dict[str, Any] = {"inverse" if op == "fft" else "mirrored": m.flag()}
    size = x.type.shape[axis]
    if op == "irfft":
        if not isinstance(size, int):
            raise Unfit
        how["n"] = max(1, 2 * (size - 1) + m.int(0, 1))
        if how["n"] // 2 + 1 != size:
            raise Unfit
    m.emit(op, [x], axis=axis, scale=scale, **how)


def searchsorted(m: GraphMaker, op: str) -> None:
    values = m.some(dtypes=wanted_dtypes(m, op))
    data = m.like(values.type.dtype, m.shape(1, 1))
    data = m.emit1("sort", data, axis=0)
    m.emit(op, [data, values], side=m.pick(["left", "right"]))


# ---------------------------------------------------------------------------- indices


def _indexable(t: TensorType) -> bool:
    return 0 < t.rank <= 4


def take(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "take" else wanted_dtypes(m, op)
    x = m.some(_indexable, dtypes, low=1)
    axis = m.int(0, x.type.rank - 1)
    shape = m.shape(0, 2 if x.type.rank < 3 else 1)
    if x.type.is_static and math.prod(x.type.static_shape) > 200:
        raise Unfit
    index = m.indices(m.dtype(INTEGERS), shape, x.type.shape[axis])
    operands = [x, index]
    if op == "index_add":
        parts = (*x.type.shape[:axis], *shape, *x.type.shape[axis + 1 :])
        operands.append(m.like(x.type.dtype, parts))
    m.emit(op, operands, axis=axis)


def first_occurrence(m: GraphMaker, op: str) -> None:
    size = m.int(1, 5)
    m.emit(op, [m.indices(m.dtype(INTEGERS), m.shape(1, 1), size)], size=size)


def along_axis(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "take_along_axis" else wanted_dtypes(m, op)
    x = m.some(_indexable, dtypes, low=1)
    axis = m.int(0, x.type.rank - 1)
    shape = list(x.type.shape)
    shape[axis] = m.pick([0, 1, 2, 3])
    operands = [x, m.indices(m.dtype(INTEGERS), shape, x.type.shape[axis])]
    if op == "scatter_along_axis_add":
        operands.append(m.like(x.type.dtype, tuple(shape)))
    m.emit(op, operands, axis=axis)


def gather_nd(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "gather_nd" else wanted_dtypes(m, op)
    x = m.some(lambda t: _indexable(t) and t.is_static, dtypes, low=1, static=True)
    depth = m.int(0, x.type.rank)
    lead = m.shape(0, 1, static=True)
    # one bound for all columns: the smallest axis that is indexed
    bound = min(x.type.static_shape[:depth], default=1)
    operands = [x, m.indices(m.dtype(INTEGERS), (*lead, depth), bound)]
    if op != "gather_nd":
        operands.append(m.like(x.type.dtype, (*lead, *x.type.shape[depth:])))
    m.emit(op, operands)


def sparse_matmul(m: GraphMaker, op: str) -> None:
    rows, inner, n = m.int(1, 4), m.int(1, 4), m.int(0, 4)
    dtype = m.dtype([float32, float64])
    entries = m.indices(m.dtype(INTEGERS), (n, 2), min(rows, inner))
    dense = m.like(dtype, (inner, m.int(1, 3)) if m.flag() else (inner,))
    m.emit(op, [dense, entries, m.like(dtype, (n,))], rows=(rows,), row=m.int(0, 1))


def quantized_matmul(m: GraphMaker, op: str) -> None:
    if float32 not in m.dtypes:
        raise Unfit
    rows, n, groups, bits = m.int(0, 10), m.int(1, 6), m.int(1, 3), m.pick([4, 8])
    run = (32 if bits == 4 else 16) * (m.int(1, 2) if groups > 1 else m.int(1, 3))
    kind = uint8 if bits == 4 else m.dtype([int8, uint8])
    operands = [m.like(float32, (rows, groups * run)), m.like(kind, (n, groups * run * bits // 8))]
    attrs = {"bits": bits, "zero": m.int(-1, 9), "signed": m.flag()}
    m.emit(op, [*operands, m.like(float32, (n, groups))], **attrs)


def matmul(m: GraphMaker, op: str) -> None:
    a = m.some(lambda t: 2 <= t.rank <= 4, wanted_dtypes(m, op), low=2)
    transpose_a, transpose_b = m.flag(), m.flag()
    k = a.type.shape[-2 if transpose_a else -1]
    n = m.pick(m.sizes)
    batch = [m.pick([d, 1]) for d in a.type.shape[:-2]][m.int(0, a.type.rank - 2) :]
    b = m.like(a.type.dtype, (*batch, n, k) if transpose_b else (*batch, k, n))
    m.emit(op, [a, b], transpose_a=transpose_a, transpose_b=transpose_b)


def linear_algebra(m: GraphMaker, op: str) -> None:
    """Decompositions and solves, of matrices that may be singular."""
    attrs = {name: m.flag() for name in OPS[op].attrs}
    square = op not in ("lu", "qr", "svd")
    dtypes = [d for d in LAPACK.members if d in m.dtypes]
    if not dtypes:
        raise Unfit
    *batch, rows, columns = (m.pick(m.sizes) for _ in range(m.int(2, 3)))
    columns = rows if square else columns
    a = m.like(m.pick(sorted(dtypes, key=str)), (*batch, rows, columns))
    operands = [a]
    if op == "lu_solve":
        operands += m.emit("lu", [a])[:2]
    if op.endswith("_solve"):
        operands.append(m.like(a.type.dtype, (*batch, rows, m.pick(m.sizes))))
    m.emit(op, operands, **attrs)


def random_bits(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.like(uint32, (2,))], shape=m.shape())


def random_fold_in(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.like(uint32, (2,)), m.like(uint32, ())])
