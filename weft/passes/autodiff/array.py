"""Gradients of ops that move, select, reduce, scan, sort and update elements.

Those whose results have sizes that depend on values: the cotangent of a part is a part of the
cotangent, so the rules name the same sizes as the op. Updates, with respect to what they add or
store: with respect to the value before, the adjoint is the cotangent of the new value, without the
rows that were replaced; it has no operand here: `frontend.autodiff.gradients` takes it for the
variable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.ir.dims import Dim, Shape, product
from weft.ir.dtypes import int64
from weft.ir.errors import GradientError
from weft.ir.spec import AttrValue
from weft.ir.type_rules import add_dims, ints_attr, shape_attr
from weft.passes.autodiff.rule import Rule, Site, expand, sum_to
from weft.passes.rewriting.expression import Expr, exp

# ----------------------------------------------------------------------------------------- shapes


def _permute(s: Site) -> Sequence[Expr | None]:
    axes = s.axes
    return [s.g.permute(sorted(range(len(axes)), key=axes.__getitem__))]


def _concat(s: Site) -> Sequence[Expr | None]:
    out: list[Expr | None] = []
    start: Dim = 0
    for x, needed in zip(s.operands, s.needed, strict=True):
        stop = add_dims(start, x.shape[s.axis])
        out.append(s.g.slice_axis(s.axis, start, stop) if needed else None)
        start = stop
    return out


def _pad(s: Site) -> Sequence[Expr | None]:
    lo = ints_attr(s.attrs, "lo")
    stops = tuple(add_dims(a, n) for a, n in zip(lo, s.x.shape, strict=True))
    window = {"starts": lo, "stops": stops, "steps": (1,) * s.x.rank}
    grads: list[Expr | None] = [None, None]
    if s.needed[0]:
        grads[0] = s.g.op("slice", **window)
    if s.needed[1]:
        border = s.g.op("slice_update", s.x.full(0), **window)
        grads[1] = border.sum(range(border.rank))
    return grads


def _slice(s: Site) -> Sequence[Expr | None]:
    starts = shape_attr(s.attrs, "starts")
    if set(ints_attr(s.attrs, "steps")) <= {1}:
        lo = tuple(a for a in starts if isinstance(a, int))
        ends = (add_dims(a, n) for a, n in zip(starts, s.y.shape, strict=True))
        rest = (_minus(n, end) for n, end in zip(s.x.shape, ends, strict=True))
        hi = tuple(n for n in rest if isinstance(n, int))
        if len(lo) == len(hi) == s.x.rank:  # a pad joins other loops, a slice_update does not
            return [s.g.op("pad", s.g.scalar(0), lo=lo, hi=hi)]
    return [s.x.full(0).op("slice_update", s.g, **s.attrs)]


def _minus(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else a - b


def _slice_update(s: Site) -> Sequence[Expr | None]:
    update = s.operands[1]
    rest = s.g.op("slice_update", update.full(0), **s.attrs) if s.needed[0] else None
    return [rest, s.g.op("slice", **s.attrs) if s.needed[1] else None]


# ------------------------------------------------------------------------------------- reductions


def _prod(s: Site) -> Sequence[Expr | None]:
    """Each element's cotangent is g times the product of the others, also where some are 0."""
    x = s.x
    kept = [i for i in range(x.rank) if i not in s.axes]
    moved = x.permute([*kept, *s.axes])
    flat = moved.reshape((*(x.shape[i] for i in kept), product(x.shape[i] for i in s.axes)))
    others = _product_before(flat, False) * _product_before(flat, True)
    back = sorted(range(x.rank), key=[*kept, *s.axes].__getitem__)
    return [expand(s.g, x.shape, s.axes) * others.reshape(moved.shape).permute(back).conj()]


def _product_before(x: Expr, reverse: bool) -> Expr:
    """The product of all earlier (later) elements along the last axis."""
    axis = x.rank - 1
    return _shift(x, axis, 1, reverse, 1).op("cumulative_prod", axis=axis, reverse=reverse)


def _shift(x: Expr, axis: int, by: int, back: bool, fill: float) -> Expr:
    """`x` moved by `by` places along `axis` (towards the start if `back`), `fill` moved in."""
    ends = tuple(by if i == axis else 0 for i in range(x.rank))
    none = (0,) * x.rank
    padded = x.op("pad", x.scalar(fill), lo=none if back else ends, hi=ends if back else none)
    start = by if back else 0
    return padded.slice_axis(axis, start, add_dims(start, x.shape[axis]))


def _extremum(s: Site) -> Sequence[Expr | None]:
    """The elements that are the extremum share its cotangent equally."""
    hit = s.x.equals(expand(s.y, s.x.shape, s.axes))
    count = hit.astype(s.x.dtype).sum(s.axes, keepdims=bool(s.attrs["keepdims"]))
    return [hit.where(expand(s.g / count, s.x.shape, s.axes), 0)]


# ------------------------------------------------------------------------------ running reductions


def _cumulative_sum(s: Site) -> Sequence[Expr | None]:
    return [s.g.op("cumulative_sum", axis=s.axis, reverse=not s.attrs["reverse"])]


def _cumulative_prod(s: Site) -> Sequence[Expr | None]:
    """Through the products of 1, 2, 4, ... elements: log2(n) steps without any division, so that
    zeros are right in derivatives of every order."""
    n, back = s.x.shape[s.axis], bool(s.attrs["reverse"])
    if not isinstance(n, int):
        raise GradientError(
            f"the gradient of 'cumulative_prod' along the symbolic dimension {n} is not built",
            hint="give that axis a known size",
            location=s.op.locations,
        )
    levels, by = [s.x], 1
    while by < n:
        levels.append(levels[-1] * _shift(levels[-1], s.axis, by, back, 1))
        by *= 2
    g = s.g
    for x in reversed(levels[:-1]):
        by //= 2
        from_later = _shift(g * x.conj(), s.axis, by, not back, 0)
        g = g * _shift(x, s.axis, by, back, 1).conj() + from_later
    return [g]


def _cumulative_extremum(s: Site) -> Sequence[Expr | None]:
    """Each cotangent goes to the nearest element that had become the extremum."""
    reverse = bool(s.attrs["reverse"])
    place = s.x.iota(s.x.shape, s.axis, int64)
    hit = s.x.equals(s.y).op("logical_or", s.x.op("isnan"))
    nearest = "cumulative_min" if reverse else "cumulative_max"
    never = 2**63 - 1 if reverse else 0  # the first element reached is a hit
    index = hit.where(place, never).op(nearest, axis=s.axis, reverse=reverse)
    return [s.x.full(0).op("scatter_along_axis_add", index, s.g, axis=s.axis)]


def _cumulative_logsumexp(s: Site) -> Sequence[Expr | None]:
    """Of element i: the sum of g_j exp(x_i - y_j) over all j that it is part of, collected from 1,
    2, 4, ... of them with factors exp(y_i - y_j), none of which exceeds 1; 0 where x_i is -inf."""
    n, back = s.x.shape[s.axis], not s.attrs["reverse"]
    if not isinstance(n, int):
        raise GradientError(
            f"the gradient of 'cumulative_logsumexp' along the symbolic dimension {n} is not built",
            hint="give that axis a known size",
            location=s.op.locations,
        )
    y = s.y.equals(-math.inf).where(s.y.full(0), s.y)  # there is no sum yet: x is -inf too
    total, by = s.g, 1
    while by < n:
        factor = exp(s.y - _shift(y, s.axis, by, back, math.inf))
        total = total + factor * _shift(total, s.axis, by, back, 0)
        by *= 2
    return [exp(s.x - y) * total]


def _sort(s: Site) -> Sequence[Expr | None]:
    index = s.x.op("argsort", **s.attrs)
    return [s.x.full(0).op("scatter_along_axis_add", index, s.g, axis=s.axis)]


# ---------------------------------------------------------------------------------------- indices


def _into_zeros(scatter: str) -> Rule:
    """The adjoint of a gather: add the cotangents into zeros at the same indices."""
    return lambda s: [s.x.full(0).op(scatter, s.operands[1], s.g, **s.attrs), None]


def _added_at(gather: str) -> Rule:
    """The adjoint of a scatter that adds: gather the updates' cotangents."""
    return lambda s: [s.g, None, s.g.op(gather, s.operands[1], **s.attrs)]


def _scatter_nd_update(s: Site) -> Sequence[Expr | None]:
    x, index, update = s.operands
    kept = s.g.op("scatter_nd_update", index, update.full(0)) if s.needed[0] else None
    return [kept, None, last_updates(x, s.g, index, update) if s.needed[2] else None]


def last_updates(x: Expr, g: Expr, index: Expr, update: Expr) -> Expr:
    """The cotangents of updates that replace parts of x, from that of the result.

    Of several updates of one place only the last counts: number them to find it.
    """
    rows = index.shape[:-1]
    if not rows:  # one row
        return g.op("gather_nd", index)
    number = x.iota((product(rows),), 0, int64).reshape(rows)
    written = number.full(0, _indexed_shape(x, index)).op("scatter_nd_update", index, number)
    last = written.op("gather_nd", index).equals(number)
    ones: Shape = (1,) * (update.rank - len(rows))
    last = last.reshape((*rows, *ones)).broadcast_to(update.shape)
    return last.where(g.op("gather_nd", index), 0)


def _indexed_shape(x: Expr, index: Expr) -> Shape:
    depth = index.shape[-1]
    assert isinstance(depth, int)
    return x.shape[:depth]


def _scatter_nd_extremum(s: Site) -> Sequence[Expr | None]:
    """The old element and the updates that are the extremum share its cotangent equally."""
    x, index, update = s.operands
    old, new = x.equals(s.y), update.equals(s.y.op("gather_nd", index))
    count = old.astype(x.dtype).op("scatter_nd_add", index, new.astype(x.dtype))
    share = s.g / count
    return [old.where(share, 0), None, new.where(share.op("gather_nd", index), 0)]


GRADIENTS: Mapping[str, Rule] = {
    "reshape": lambda s: [s.g.reshape(s.x.shape)],
    "permute_dims": _permute,
    "broadcast_to": lambda s: [sum_to(s.g, s.x.shape)],
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "slice_update": _slice_update,
    "sum": lambda s: [expand(s.g, s.x.shape, s.axes)],
    "prod": _prod,
    "max": _extremum,
    "min": _extremum,
    "cumulative_sum": _cumulative_sum,
    "cumulative_prod": _cumulative_prod,
    "cumulative_max": _cumulative_extremum,
    "cumulative_min": _cumulative_extremum,
    "cumulative_logsumexp": _cumulative_logsumexp,
    "sort": _sort,
    "take": _into_zeros("index_add"),
    "index_add": _added_at("take"),
    "take_along_axis": _into_zeros("scatter_along_axis_add"),
    "scatter_along_axis_add": _added_at("take_along_axis"),
    "gather_nd": _into_zeros("scatter_nd_add"),
    "scatter_nd_add": _added_at("gather_nd"),
    "scatter_nd_update": _scatter_nd_update,
    "scatter_nd_max": _scatter_nd_extremum,
    "scatter_nd_min": _scatter_nd_extremum,
}

#: Sizes, positions, truth values, or without operands.
NO_GRADIENT = frozenset(
    {
        "iota", "dim_size", "all", "any", "argmax", "argmin", "argsort", "searchsorted",
        "first_occurrence",
    }
)  # fmt: skip


def _unique(s: Site) -> Sequence[Expr | None]:
    """Each value is that of the element where it is first."""
    (g, *_), (_, first, *_) = s.cotangents, s.results
    if g is None:
        return [None]
    flat = s.x.full(0, (product(s.x.shape),))
    return [flat.op("index_add", first, g, axis=0).reshape(s.x.shape)]


def _partition(s: Site) -> Sequence[Expr | None]:
    """Put together again by `dynamic_stitch`, as TensorFlow does."""
    if not s.needed[0]:
        return [None, None]
    data, partitions = s.operands
    rows = product(partitions.shape)
    number = data.iota((rows,), 0, int64).reshape(partitions.shape)
    places = _emit(s.x, "dynamic_partition", [number, partitions], dict(s.attrs))
    pairs = zip(s.cotangents, s.results, strict=True)
    given = [y.full(0) if g is None else g for g, y in pairs]
    attrs: dict[str, AttrValue] = {"rows": rows, "sizes": ()}
    (whole,) = _emit(s.x, "dynamic_stitch", [*places, *given], attrs)
    return [whole.reshape(data.shape), None]


def _stitch(s: Site) -> Sequence[Expr | None]:
    """The row of the cotangent at each index; 0 for a row that a later one with its index has
    replaced. (TensorFlow's rule gives those the cotangent of the row that replaced them.)"""
    count = len(s.operands) // 2
    indices, data = s.operands[:count], s.operands[count:]
    sources = [i.full(k, dtype=int64) for k, i in enumerate(indices)]
    numbers = [i.iota((product(i.shape),), 0, int64).reshape(i.shape) for i in indices]
    (source,) = _emit(s.x, "dynamic_stitch", [*indices, *sources], dict(s.attrs))
    (number,) = _emit(s.x, "dynamic_stitch", [*indices, *numbers], dict(s.attrs))
    grads: list[Expr | None] = []
    for k, (index, rows) in enumerate(zip(indices, data, strict=True)):
        if not s.needed[count + k]:
            grads.append(None)
            continue
        last = source.op("take", index, axis=0).equals(sources[k])
        last = last.op("logical_and", number.op("take", index, axis=0).equals(numbers[k]))
        ones = (1,) * (rows.rank - index.rank)
        last = last.reshape((*index.shape, *ones)).broadcast_to(rows.shape)
        grads.append(last.where(s.g.op("take", index, axis=0), 0))
    return [*[None] * count, *grads]


def _emit(x: Expr, op: str, operands: Sequence[Expr], attrs: Mapping[str, AttrValue]) -> list[Expr]:
    made = x.builder.emit(op, [o.value for o in operands], attrs, locations=x.locations)
    return [x.wrap(v) for v in made]


DYNAMIC_GRADIENTS: Mapping[str, Rule] = {
    "unique": _unique,
    "dynamic_partition": _partition,
    "dynamic_stitch": _stitch,
    "ensure_shape": lambda s: _emit(s.g, "ensure_shape", [s.g], {"shape": s.x.shape, "sizes": ()}),
}
#: Positions.
NO_DYNAMIC_GRADIENT = frozenset({"nonzero", "repeat_index"})


def _rows(s: Site) -> Expr:
    """The cotangents of the rows at the indices."""
    return s.g.op("take", s.operands[1], axis=0)


def _scatter_update(s: Site) -> Sequence[Expr | None]:
    index = s.operands[1]
    columns = index.reshape((*index.shape, 1))
    return [None, None, last_updates(s.y, s.g, columns, s.operands[2])]


UPDATE_GRADIENTS: Mapping[str, Rule] = {
    "assign_add": lambda s: [None, s.g],
    "assign_sub": lambda s: [None, -s.g],
    "scatter_add": lambda s: [None, None, _rows(s)],
    "scatter_sub": lambda s: [None, None, -_rows(s)],
    "scatter_update": _scatter_update,
}

NO_UPDATE_GRADIENT = frozenset(
    {
        *("variable", "read", "assign", "count_up_to"),
        *("is_initialized", "assert_initialized", "report_uninitialized"),
    }
)
