"""One maker per op: draws operands and attributes that fit the op, and emits it (see `graphs`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from graphs import Effects, GraphMaker, Unfit, random_array

from weft.ir.attributes import Attrs
from weft.ir.builder import Builder
from weft.ir.dtypes import ALL, DType, bool_, uint32
from weft.ir.errors import WeftError
from weft.ir.graph import Value
from weft.ir.legality import illegal
from weft.ir.ops import OPS
from weft.ir.types import TensorType

Maker = Callable[[GraphMaker, str], Any]

INTEGERS = [d for d in ALL if d.is_integer]
ELEMENTWISE = [s.name for s in OPS.values() if "elementwise" in s.traits]


@functools.cache
def legal_ops(stage: str, in_nest: bool = False) -> list[str]:
    """The ops that may be in a graph of this stage."""
    return [name for name in OPS if illegal(name, stage, in_nest) is None]


@functools.cache
def allowed_dtypes(op: str) -> list[DType]:
    """The operand dtypes that the type rule of `op` takes, found by asking it."""
    spec = OPS[op]
    usual: dict[str, Any] = {"axes": (0,), "axis": 0, "keepdims": False}
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


def elementwise(m: GraphMaker, op: str) -> None:
    first = m.some(dtypes=_wanted(m, op))
    t = first.type
    rest = [m.like(t.dtype, t.shape) for _ in range((OPS[op].arity or 1) - 1)]
    m.emit(op, m.pick([[first, *rest], [*rest, first]]))


def _wanted(m: GraphMaker, op: str) -> list[DType]:
    return [d for d in allowed_dtypes(op) if d in m.dtypes]


def where(m: GraphMaker, op: str) -> None:
    x = m.some()
    t = x.type
    m.emit(op, [m.like(bool_, t.shape), x, m.like(t.dtype, t.shape)])


def astype(m: GraphMaker, op: str) -> None:
    x = m.some()
    target = m.dtype([d for d in ALL if _accepted(op, x.type, {"dtype": d})])
    if target.is_integer and x.type.dtype.is_floating:
        if m.region or not x.type.is_static:
            raise Unfit
        x = _small(m, x, signed=target.kind == "int")
    m.emit(op, [x], dtype=target)


def _small(m: GraphMaker, x: Value, signed: bool) -> Value:
    """`x` where |x| < 100, else 0: its cast to any integer type is defined."""
    limit = m.constant(_full(x.type, 100))
    zero = m.constant(_full(x.type, 0))
    size = m.emit1("abs", x)
    kept = m.emit1("where", m.emit1("less", size, limit), x, zero)
    return kept if signed else m.emit1("abs", kept)


def _full(t: TensorType, value: int) -> Any:
    out = random_array(t.dtype, t.static_shape, 0)
    out[...] = value
    return out


def _accepted(op: str, t: TensorType, attrs: Attrs) -> bool:
    try:
        OPS[op].infer([t], attrs, ())
    except WeftError:
        return False
    return True


def bitcast(m: GraphMaker, op: str) -> None:
    x = m.some()
    # which NaN a computation gives is undefined, so its bits are too
    if x.type.dtype.is_floating and x not in m.fresh:
        raise Unfit
    m.emit(op, [x], dtype=m.dtype([d for d in ALL if _accepted(op, x.type, {"dtype": d})]))


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
    x = m.some(lambda t: empty_ok or 0 not in t.shape, _wanted(m, op), nonempty=not empty_ok)
    axes = tuple(i for i in range(x.type.rank) if m.flag())
    m.emit(op, [x], axes=axes, keepdims=m.flag())


def position(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0 and 0 not in t.shape, _wanted(m, op), low=1, nonempty=True)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), keepdims=m.flag())


def cumulative(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, _wanted(m, op), low=1)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), reverse=m.flag())


def sort(m: GraphMaker, op: str) -> None:
    x = m.some(lambda t: t.rank > 0, _wanted(m, op), low=1)
    m.emit(op, [x], axis=m.int(0, x.type.rank - 1), descending=m.flag())


def searchsorted(m: GraphMaker, op: str) -> None:
    values = m.some(dtypes=_wanted(m, op))
    data = m.like(values.type.dtype, m.shape(1, 1))
    data = m.emit1("sort", data, axis=0)
    m.emit(op, [data, values], side=m.pick(["left", "right"]))


# ---------------------------------------------------------------------------- indices


def _indexable(t: TensorType) -> bool:
    return 0 < t.rank <= 4


def take(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "take" else _wanted(m, op)
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


def along_axis(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "take_along_axis" else _wanted(m, op)
    x = m.some(_indexable, dtypes, low=1)
    axis = m.int(0, x.type.rank - 1)
    shape = list(x.type.shape)
    shape[axis] = m.pick([0, 1, 2, 3])
    operands = [x, m.indices(m.dtype(INTEGERS), shape, x.type.shape[axis])]
    if op == "scatter_along_axis_add":
        operands.append(m.like(x.type.dtype, tuple(shape)))
    m.emit(op, operands, axis=axis)


def gather_nd(m: GraphMaker, op: str) -> None:
    dtypes = ALL if op == "gather_nd" else _wanted(m, op)
    x = m.some(lambda t: _indexable(t) and t.is_static, dtypes, low=1, static=True)
    depth = m.int(0, x.type.rank)
    lead = m.shape(0, 1, static=True)
    # one bound for all columns: the smallest axis that is indexed
    bound = min(x.type.static_shape[:depth], default=1)
    operands = [x, m.indices(m.dtype(INTEGERS), (*lead, depth), bound)]
    if op != "gather_nd":
        operands.append(m.like(x.type.dtype, (*lead, *x.type.shape[depth:])))
    m.emit(op, operands)


def matmul(m: GraphMaker, op: str) -> None:
    a = m.some(lambda t: 2 <= t.rank <= 4, _wanted(m, op), low=2)
    transpose_a, transpose_b = m.flag(), m.flag()
    k = a.type.shape[-2 if transpose_a else -1]
    n = m.pick(m.sizes)
    batch = [m.pick([d, 1]) for d in a.type.shape[:-2]][m.int(0, a.type.rank - 2) :]
    b = m.like(a.type.dtype, (*batch, n, k) if transpose_b else (*batch, k, n))
    m.emit(op, [a, b], transpose_a=transpose_a, transpose_b=transpose_b)


def random_bits(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.like(uint32, (2,))], shape=m.shape())


def random_fold_in(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.like(uint32, (2,)), m.like(uint32, ())])


# ---------------------------------------------------------------------------- core


def constant(m: GraphMaker, op: str) -> None:
    shape = m.pick([m.shape(static=True), m.shape(static=True), (3, 11), (7, 19)])
    array = random_array(m.dtype(ALL), shape, m.seed())
    if array.size and m.int(0, 3) == 0:
        array[...] = array.reshape(-1)[0]
    m.fresh.add(m.constant(array))


def variable(m: GraphMaker, op: str) -> Effects:
    name = m.pick(["w", "layer/kernel:0", "ü"])
    if name not in m.effects:
        t = TensorType(m.dtype(ALL), m.shape(static=True))
        (ref,) = m.emit(op, name=name, dtype=t.dtype, shape=t.shape)
        m.effects[name] = Effects(ref, t)
    return m.effects[name]


def read(m: GraphMaker, op: str) -> None:
    e = variable(m, "variable")
    e.reads += m.emit(op, [e.ref], control=e.last)


def assign(m: GraphMaker, op: str) -> None:
    e = variable(m, "variable")
    value = m.like(e.type.dtype, e.type.shape)
    e.last = list(m.emit(op, [e.ref, value], control=[*e.last, *e.reads]))
    e.reads = []


def group(m: GraphMaker, op: str) -> None:
    after = [v for o in m.builder.ops if o.name != "variable" for v in o.results]
    m.emit(op, control=[m.pick(after) for _ in range(m.int(0, 2))] if after else ())


def same(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.some()])


def fused(m: GraphMaker, op: str) -> None:
    first = m.some()
    operands = [first]
    for _ in range(m.int(0, 2)):
        operands.append(m.some(lambda t: t.shape == first.type.shape))
    inner = GraphMaker(m.draw, m.dtypes, m.sizes, region=True, located=m.located)
    inner.builder = Builder([v.type for v in operands])
    inner.pool = list(inner.builder.args)
    names = [n for n in ELEMENTWISE if n != "bitcast"]
    names += ["sum", "max", "broadcast_to", "reshape", "permute_dims"]
    for _ in range(m.int(1, 8)):
        name = m.pick(names)
        try:
            MAKERS[name](inner, name)
        except Unfit:
            continue
    results = [v for o in inner.builder.ops for v in o.results][-2:] or inner.pool[:1]
    m.emit(op, operands, regions=[inner.builder.block(results)], kind=m.pick(["loop", "input"]))


def custom_gradient(m: GraphMaker, op: str) -> None:
    y, x, capture = m.some(), m.some(), m.some()
    inner = GraphMaker(m.draw, m.dtypes, m.sizes, region=True, located=m.located)
    inner.builder = Builder([y.type, x.type])
    inner.pool = list(inner.builder.args)
    for _ in range(m.int(0, 2)):
        name = m.pick(["negative", "square", "identity"])
        try:
            MAKERS[name](inner, name)
        except Unfit:
            continue
    (x_like,) = [v for v in inner.pool if v.type == x.type][-1:]
    block = inner.builder.block([x_like])
    captured = x if capture.type != x.type else capture
    m.emit(op, [y, x, captured], regions=[block], outputs=1, inputs=1)


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys([s.name for s in OPS.values() if "reduction" in s.traits], reduction),
    **{n: cumulative for n in OPS if n.startswith("cumulative_")},
    **{n: gather_nd for n in OPS if n.startswith(("gather_nd", "scatter_nd_"))},
    "where": where,
    "astype": astype,
    "bitcast": bitcast,
    "reshape": reshape,
    "permute_dims": permute_dims,
    "broadcast_to": broadcast_to,
    "concat": concat,
    "pad": pad,
    "slice": slice_,
    "slice_update": slice_update,
    "iota": iota,
    "dim_size": dim_size,
    "argmax": position,
    "argmin": position,
    "sort": sort,
    "argsort": sort,
    "searchsorted": searchsorted,
    "take": take,
    "index_add": take,
    "take_along_axis": along_axis,
    "scatter_along_axis_add": along_axis,
    "matmul": matmul,
    "random_bits": random_bits,
    "random_fold_in": random_fold_in,
    "constant": constant,
    "variable": variable,
    "read": read,
    "assign": assign,
    "identity": same,
    "stop_gradient": same,
    "group": group,
    "custom_gradient": custom_gradient,
    "fused": fused,
}
