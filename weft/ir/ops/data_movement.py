"""Ops that move, repeat, cut or join elements, and ask for sizes; gathers and scatters by integer
indices.

Negative indices count from the end, as in NumPy. One that is out of bounds raises
BoundsError that names the index, the axis and its size; nothing is clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType

import numpy as np

from weft.ir.dims import Dim, Shape, divided, format_dim, format_shape, positive, product, same
from weft.ir.dtypes import float32, float64, int64
from weft.ir.errors import BoundsError, InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    ANY,
    NUMERIC,
    REAL,
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    InferRule,
    OpSpec,
    Reference,
    add_dims,
    check_same_dtype,
    check_shape,
    checked_axis,
    dtype_attr,
    int_attr,
    ints_attr,
    known_dim,
    require_dtype,
    shape_attr,
    static_attr,
    tensors,
)
from weft.ir.types import TensorType, Type


def _reshape_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("reshape", types)
    shape = shape_attr(attrs, "shape")
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise ShapeError(f"op 'reshape': shape {format_shape(shape)} has a negative dimension")
    if not same(x.size, product(shape)):
        raise ShapeError(
            f"op 'reshape': {x} has {format_dim(x.size)} elements, "
            f"shape {format_shape(shape)} has {format_dim(product(shape))}"
        )
    return [TensorType(x.dtype, shape)]


def _reshape(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape = shape_attr(attrs, "shape")
    if shape.count(None) == 1:  # the one unknown dim follows from the number of elements
        known = product(d for d in shape if d is not None)
        if isinstance(known, int) and known > 0:
            return arrays[0].reshape([-1 if d is None else int(d) for d in shape])
    return arrays[0].reshape(static_attr(attrs, "shape"))


def _permute_dims_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("permute_dims", types)
    axes = ints_attr(attrs, "axes")
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError(f"op 'permute_dims': axes {axes} are no permutation of the axes of {x}")
    return [TensorType(x.dtype, tuple(x.shape[a] for a in axes))]


def _broadcast_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("broadcast_to", types)
    shape = shape_attr(attrs, "shape")
    lead = len(shape) - x.rank
    negative = any(isinstance(d, int) and d < 0 for d in shape)
    if (
        negative
        or lead < 0
        or not all(d == 1 or same(d, t) for d, t in zip(x.shape, shape[lead:], strict=True))
    ):
        raise ShapeError(
            f"op 'broadcast_to': {x} does not broadcast to {format_shape(shape)}",
            hint="sizes must be equal or 1 in the operand, compared from the last dimension",
        )
    return [TensorType(x.dtype, shape)]


def _concat_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    xs = tensors("concat", types)
    if not xs:
        raise TypeRuleError("op 'concat' needs at least one operand")
    dtype = check_same_dtype("concat", xs)
    axis = checked_axis("concat", attrs, xs[0].rank)
    shape: list[Dim] = list(xs[0].shape)
    for x in xs[1:]:
        if x.rank != len(shape) or not all(
            i == axis or same(a, b) for i, (a, b) in enumerate(zip(shape, x.shape, strict=True))
        ):
            listed = ", ".join(map(str, xs))
            raise ShapeError(f"op 'concat': ({listed}) differ outside axis {axis}")
        shape = [known_dim(a, b) for a, b in zip(shape, x.shape, strict=True)]
    shape[axis] = add_dims(*(x.shape[axis] for x in xs))
    return [TensorType(dtype, tuple(shape))]


def _pad_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, fill = tensors("pad", types)
    check_same_dtype("pad", (x, fill))
    check_shape("pad", "the fill value", fill.shape, ())
    lo, hi = ints_attr(attrs, "lo"), ints_attr(attrs, "hi")
    if len(lo) != x.rank or len(hi) != x.rank or min((*lo, *hi), default=0) < 0:
        raise ShapeError(
            f"op 'pad': lo={lo}, hi={hi} need one number >= 0 for each axis of {x}",
            hint="to cut elements off use a slice",
        )
    dims = tuple(add_dims(d, a, b) for d, a, b in zip(x.shape, lo, hi, strict=True))
    return [TensorType(x.dtype, dims)]


def _pad(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, fill = arrays
    lo, hi = ints_attr(attrs, "lo"), ints_attr(attrs, "hi")
    shape = tuple(n + a + b for n, a, b in zip(x.shape, lo, hi, strict=True))
    out = np.full(shape, fill, x.dtype)
    kept = tuple(slice(a, a + n) for n, a in zip(x.shape, lo, strict=True))
    out[kept if kept else ...] = x  # by (), a 0-d array of strings would become another's element
    return out


def slice_length(dim: Dim, start: Dim, stop: Dim, step: int) -> Dim:
    """max(0, ceil((stop - start) / step)) for bounds inside an axis of size `dim`; None if one is
    unknown."""
    if start is None or stop is None:
        return None
    span = stop - start
    if isinstance(span, int):
        return max(0, -(-span // step))
    span, step = (span, step) if step > 0 else (-span, -step)
    if not (start == 0 or stop == dim or stop == -1):  # else it is not negative
        span = positive(span)
    try:
        return span // step
    except ShapeError:
        return divided(positive(span) + (step - 1), step)


def _check_bounds(axis: int, dim: Dim, start: Dim, stop: Dim, step: int) -> None:
    # the ranges that Python's slice.indices gives
    low, high = (0, dim) if step > 0 else (-1, None if dim is None else dim - 1)
    for what, bound in (("start", start), ("stop", stop)):
        if not isinstance(bound, int):
            continue
        if bound < low or (isinstance(high, int) and bound > high):
            raise InvalidArgumentError(
                f"op 'slice': {what} {bound} is out of bounds for axis {axis} of size "
                f"{format_dim(dim)} with step {step}",
                hint="an index, and a bound that is a size itself, must lie inside an axis whose "
                "size is known only when the graph runs",
            )


def slice_shape(op: str, shape: Shape, attrs: Attrs) -> Shape:
    """The shape of `x[starts:stops:steps]` for x of shape `shape`. InvalidArgumentError for bounds
    outside it."""
    starts, stops = shape_attr(attrs, "starts"), shape_attr(attrs, "stops")
    steps = ints_attr(attrs, "steps")
    if not len(starts) == len(stops) == len(steps) == len(shape) or 0 in steps:
        raise ShapeError(
            f"op '{op}': starts={format_shape(starts)}, stops={format_shape(stops)}, steps={steps} "
            f"need one entry for each axis of {format_shape(shape)}, and no step 0"
        )
    for axis, bounds in enumerate(zip(shape, starts, stops, steps, strict=True)):
        _check_bounds(axis, *bounds)
    return tuple(map(slice_length, shape, starts, stops, steps))


def numpy_slices(shape: tuple[int, ...], attrs: Attrs) -> tuple[slice | EllipsisType, ...]:
    """What indexes an array of `shape`; checks bounds that were symbolic until now."""
    static = {
        "starts": static_attr(attrs, "starts"),
        "stops": static_attr(attrs, "stops"),
        "steps": ints_attr(attrs, "steps"),
    }
    lengths = slice_shape("slice", shape, static)
    cut = (
        slice(0, 0) if n == 0 else slice(start, None if stop < 0 else stop, step)
        for n, start, stop, step in zip(lengths, *static.values(), strict=True)
    )
    return (*cut, ...)  # the ellipsis keeps what is indexed by nothing an array


def _slice_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("slice", types)
    return [TensorType(x.dtype, slice_shape("slice", x.shape, attrs))]


def _slice(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = arrays
    return x[numpy_slices(x.shape, attrs)]


def _slice_update_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, update = tensors("slice_update", types)
    check_same_dtype("slice_update", (x, update))
    wanted = slice_shape("slice_update", x.shape, attrs)
    check_shape("slice_update", "the update", update.shape, wanted)
    return [x]


def _slice_update(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, update = arrays
    out = x.copy()
    slices = numpy_slices(x.shape, attrs)
    check_shape("slice_update", "the update", update.shape, out[slices].shape)
    out[slices] = update
    return out


def _iota_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    made = TensorType(dtype_attr(attrs, "dtype"), shape_attr(attrs, "shape"))
    if not made.dtype.is_numeric:
        raise TypeRuleError(f"op 'iota' makes numbers, not {made.dtype.name}")
    if any(isinstance(d, int) and d < 0 for d in made.shape):
        raise ShapeError(f"op 'iota': {made} has a negative dimension")
    checked_axis("iota", attrs, made.rank)
    return [made]


def _iota(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape, axis = static_attr(attrs, "shape"), int_attr(attrs, "axis")
    # beyond the dtype integers wrap and float16 gives inf
    index = np.arange(shape[axis]).astype(dtype_attr(attrs, "dtype").numpy)
    column = index.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(column, shape).copy()


def _dim_size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("dim_size", types)
    checked_axis("dim_size", attrs, x.rank)
    return [TensorType(int64)]


_SHAPE = {"shape": AttrSpec("shape")}
_AXIS = {"axis": AttrSpec("int")}
_SLICE = {"starts": AttrSpec("shape"), "stops": AttrSpec("shape"), "steps": AttrSpec("ints")}

SHAPE_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "reshape",
        1,
        _reshape_type,
        _reshape,
        "The same elements, in row-major order, in another shape (complete: no -1).",
        _SHAPE,
        frozenset({"view"}),
    ),
    OpSpec(
        "permute_dims",
        1,
        _permute_dims_type,
        lambda arrays, attrs: np.transpose(arrays[0], ints_attr(attrs, "axes")),
        "Axis i of the result is axis axes[i] of the operand.",
        {"axes": AttrSpec("ints")},
    ),
    OpSpec(
        "broadcast_to",
        1,
        _broadcast_to_type,
        lambda arrays, attrs: np.broadcast_to(arrays[0], static_attr(attrs, "shape")),
        "Repeat along axes of size 1 and new leading axes (NumPy's rule).",
        _SHAPE,
    ),
    OpSpec(
        "concat",
        None,
        _concat_type,
        lambda arrays, attrs: np.concatenate(arrays, axis=int_attr(attrs, "axis")),
        "The operands one after the other along an axis.",
        _AXIS,
    ),
    OpSpec(
        "pad",
        2,
        _pad_type,
        _pad,
        "lo[i] copies of the scalar operand 1 before and hi[i] after the elements along axis i.",
        {"lo": AttrSpec("ints"), "hi": AttrSpec("ints")},
    ),
    OpSpec(
        "slice",
        1,
        _slice_type,
        _slice,
        "Elements starts[i], starts[i]+steps[i], ... before stops[i] along axis i (stop -1 with a "
        "negative step: through element 0).",
        _SLICE,
    ),
    OpSpec(
        "slice_update",
        2,
        _slice_update_type,
        _slice_update,
        "Operand 0 with the slice replaced by operand 1.",
        _SLICE,
    ),
    OpSpec(
        "iota",
        0,
        _iota_type,
        _iota,
        "Each element is its index along the axis.",
        {"dtype": AttrSpec("dtype"), **_SHAPE, **_AXIS},
    ),
    OpSpec(
        "dim_size",
        1,
        _dim_size_type,
        lambda arrays, attrs: np.asarray(arrays[0].shape[int_attr(attrs, "axis")], np.int64),
        "The size of an axis as a tensor.",
        _AXIS,
    ),
)


def wrap_indices(indices: Array, axis: int, size: int) -> Array:
    """`indices` (any integer dtype) as int64 in 0 .. size-1.

    Raises BoundsError for the first, in row-major order, that is out of bounds.
    """
    # uint64 is compared before the cast: 2**64-1 is no -1
    bad = indices >= size
    if indices.dtype.kind == "i":
        bad = bad | (indices.astype(np.int64) < -size)
    if bad.any():
        first = np.asarray(indices)[bad][0]
        raise BoundsError(f"index {int(first)} is out of bounds for axis {axis} of size {size}")
    out = indices.astype(np.int64)
    return np.asarray(np.where(out < 0, out + size, out))


def _check_integer(op: str, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise TypeRuleError(
            f"op '{op}': the indices must be integers, got {indices}",
            hint="convert them with wf.astype(x, wf.int64)",
        )


def _take_shape(op: str, x: TensorType, indices: TensorType, attrs: Attrs) -> Shape:
    _check_integer(op, indices)
    axis = checked_axis(op, attrs, x.rank)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _take_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices = tensors("take", types)
    return [TensorType(x.dtype, _take_shape("take", x, indices, attrs))]


def _take(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    axis = int_attr(attrs, "axis")
    index = wrap_indices(indices, axis, x.shape[axis])
    flat = np.take(x, index.ravel(), axis=axis)
    return flat.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _index_add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices, updates = tensors("index_add", types)
    check_same_dtype("index_add", (x, updates))
    require_dtype("index_add", x, NUMERIC)
    wanted = _take_shape("index_add", x, indices, attrs)
    check_shape("index_add", "the updates", updates.shape, wanted)
    return [x]


def _index_add(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    axis = int_attr(attrs, "axis")
    index = wrap_indices(indices, axis, x.shape[axis]).ravel()
    rows = np.moveaxis(x, axis, 0)
    lead, rest = x.shape[:axis], x.shape[axis + 1 :]
    given = np.moveaxis(updates.reshape(*lead, index.size, *rest), axis, 0)
    return np.moveaxis(_accumulate(np.add, rows, index, given), 0, axis)


def _accumulate(combine: np.ufunc, rows: Array, index: Array, updates: Array) -> Array:
    """`rows` with updates[i] combined into rows[index[i]], for i in order."""
    out = np.array(rows, order="C", copy=True)
    combine.at(out, index, updates)
    return out


def _along_axis_type(op: str, x: TensorType, index: TensorType, attrs: Attrs) -> Shape:
    _check_integer(op, index)
    axis = checked_axis(op, attrs, x.rank)
    wanted: list[Dim] = list(x.shape)
    if index.rank == x.rank:
        wanted[axis] = index.shape[axis]
    check_shape(op, "the index array", index.shape, tuple(wanted))
    return index.shape


def _take_along_axis_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    x, index = tensors("take_along_axis", types)
    return [TensorType(x.dtype, _along_axis_type("take_along_axis", x, index, attrs))]


def _take_along_axis(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    axis = int_attr(attrs, "axis")
    return np.take_along_axis(x, wrap_indices(indices, axis, x.shape[axis]), axis)


def _scatter_along_axis_add_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    op = "scatter_along_axis_add"
    x, index, updates = tensors(op, types)
    check_same_dtype(op, (x, updates))
    require_dtype(op, x, NUMERIC)
    check_shape(op, "the updates", updates.shape, _along_axis_type(op, x, index, attrs))
    return [x]


def _scatter_along_axis_add(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    axis = int_attr(attrs, "axis")
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = wrap_indices(indices, axis, x.shape[axis])
    flat = np.zeros(indices.shape, np.int64)
    for size, place in zip(x.shape, grid, strict=True):
        flat = flat * size + place
    return _accumulate(np.add, x.ravel(), flat.ravel(), updates.ravel()).reshape(x.shape)


def _nd_shape(op: str, x: TensorType, indices: TensorType) -> Shape:
    """The shape of gather_nd's result: one part of x for each row of `indices`."""
    _check_integer(op, indices)
    depth = indices.shape[-1] if indices.rank else None
    if not isinstance(depth, int) or depth > x.rank:
        raise ShapeError(
            f"op '{op}': the last dimension of the indices {indices} must be a known size, "
            f"at most the rank of {x}"
        )
    return (*indices.shape[:-1], *x.shape[depth:])


def _flat_rows(x: Array, indices: Array) -> tuple[Array, Array]:
    """`x` with the indexed leading axes merged into one, and the row number for each index."""
    depth = indices.shape[-1]
    number = np.zeros(indices.shape[:-1], np.int64)
    for axis in range(depth):
        number = number * x.shape[axis] + wrap_indices(indices[..., axis], axis, x.shape[axis])
    count = int(np.prod(x.shape[:depth], dtype=np.int64))
    return x.reshape(count, *x.shape[depth:]), number.ravel()


def _gather_nd_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices = tensors("gather_nd", types)
    return [TensorType(x.dtype, _nd_shape("gather_nd", x, indices))]


def _gather_nd(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    rows, number = _flat_rows(x, indices)
    return np.take(rows, number, axis=0).reshape(indices.shape[:-1] + rows.shape[1:])


def _scatter_nd_type(op: str, allowed: DTypeClass) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        x, indices, updates = tensors(op, types)
        check_same_dtype(op, (x, updates))
        require_dtype(op, x, allowed)
        check_shape(op, "the updates", updates.shape, _nd_shape(op, x, indices))
        return [x]

    return rule


def _scatter_nd(combine: np.ufunc | None) -> Reference:
    """combine None: the update replaces the element; the last one in row-major order stays."""

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        x, indices, updates = arrays
        rows, number = _flat_rows(x, indices)
        given = updates.reshape(number.size, *rows.shape[1:])
        if combine is not None:
            return _accumulate(combine, rows, number, given).reshape(x.shape)
        out = rows.copy()
        # NumPy promises no order for duplicates: keep the last of each
        rows_hit, from_end = np.unique(number[::-1], return_index=True)
        out[rows_hit] = given[number.size - 1 - from_end]
        return out.reshape(x.shape)

    return reference


def _first_occurrence_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    (indices,) = tensors("first_occurrence", types)
    _check_integer("first_occurrence", indices)
    if indices.rank != 1:
        raise ShapeError(f"op 'first_occurrence' takes indices of rank 1, got {indices}")
    return [TensorType(int64, indices.shape)]


def _first_occurrence(arrays: Sequence[Array], attrs: Attrs) -> Array:
    index = wrap_indices(arrays[0], 0, int_attr(attrs, "size"))
    _, first, which = np.unique(index, return_index=True, return_inverse=True)
    return np.asarray(first[which], np.int64)


def _sparse_matmul_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    dense, entries, values = tensors("sparse_matmul", types)
    _check_integer("sparse_matmul", entries)
    check_same_dtype("sparse_matmul", (dense, values))
    if dense.dtype not in (float32, float64):
        raise TypeRuleError(f"op 'sparse_matmul' takes float32 and float64, got {dense}")
    rows = shape_attr(attrs, "rows")
    if entries.rank != 2 or entries.shape[1] != 2 or len(rows) != 1 or dense.rank not in (1, 2):
        raise ShapeError(
            "op 'sparse_matmul' takes a dense [k] or [k,c], entries [n,2], values [n], rows=[m], "
            f"got {dense}, {entries}, {values} and rows={format_shape(rows)}"
        )
    check_shape("sparse_matmul", "the values", values.shape, entries.shape[:1])
    if int_attr(attrs, "row") not in (0, 1):
        raise ShapeError("op 'sparse_matmul': row says which of two columns of the entries it is")
    return [TensorType(dense.dtype, (*rows, *dense.shape[1:]))]


def _sparse_matmul(arrays: Sequence[Array], attrs: Attrs) -> Array:
    dense, entries, values = arrays
    row = int_attr(attrs, "row")
    (rows,) = static_attr(attrs, "rows")
    sizes = (rows, dense.shape[0]) if row == 0 else (dense.shape[0], rows)
    at = [wrap_indices(entries[:, i], i, sizes[i]) for i in (0, 1)]
    weights = values.reshape(-1, *(1,) * (dense.ndim - 1))
    out = np.zeros((rows, *dense.shape[1:]), dense.dtype)
    np.add.at(out, at[row], weights * dense[at[1 - row]])
    return out


_ALONG_AXIS_ADD = "Operand 0 with updates[.., i, ..] added at idx[.., i, ..] along the axis."

#: Updates of elements at indices, and the op by which one meets what is there; None: replaces it.
COMBINES: Mapping[str, str | None] = {
    "index_add": "add",
    "scatter_along_axis_add": "add",
    "scatter_nd_add": "add",
    "scatter_nd_min": "minimum",
    "scatter_nd_max": "maximum",
    "scatter_nd_update": None,
}

INDEX_TABLE: tuple[OpSpec, ...] = (
    OpSpec("take", 2, _take_type, _take, "The parts of operand 0 at the indices.", _AXIS),
    OpSpec(
        "index_add",
        3,
        _index_add_type,
        _index_add,
        "Operand 0 plus the updates at the indices of an axis; duplicates add (adjoint of take).",
        _AXIS,
    ),
    OpSpec(
        "first_occurrence",
        1,
        _first_occurrence_type,
        _first_occurrence,
        "For each index into an axis of that size, where the same index occurs first.",
        {"size": AttrSpec("int")},
    ),
    OpSpec(
        "take_along_axis",
        2,
        _take_along_axis_type,
        _take_along_axis,
        "Elements at the indices of an axis, all other coordinates being those of the index.",
        _AXIS,
    ),
    OpSpec(
        "scatter_along_axis_add",
        3,
        _scatter_along_axis_add_type,
        _scatter_along_axis_add,
        _ALONG_AXIS_ADD + " Duplicates add (adjoint of take_along_axis).",
        _AXIS,
    ),
    OpSpec(
        "gather_nd",
        2,
        _gather_nd_type,
        _gather_nd,
        "For each row of indices[..., k] the part x[i0, ..., ik-1].",
    ),
    OpSpec(
        "scatter_nd_add",
        3,
        _scatter_nd_type("scatter_nd_add", NUMERIC),
        _scatter_nd(np.add),
        "Operand 0 plus the updates at x[i0, ..., ik-1]; duplicates add.",
    ),
    OpSpec(
        "scatter_nd_update",
        3,
        _scatter_nd_type("scatter_nd_update", ANY),
        _scatter_nd(None),
        "Operand 0 with x[i0, ..., ik-1] replaced; of duplicates the last (row-major) stays.",
    ),
    OpSpec(
        "scatter_nd_min",
        3,
        _scatter_nd_type("scatter_nd_min", REAL),
        _scatter_nd(np.minimum),
        "Operand 0 with x[i0, ..., ik-1] lowered to the updates; NaN wins.",
    ),
    OpSpec(
        "scatter_nd_max",
        3,
        _scatter_nd_type("scatter_nd_max", REAL),
        _scatter_nd(np.maximum),
        "Operand 0 with x[i0, ..., ik-1] raised to the updates; NaN wins.",
    ),
    OpSpec(
        "sparse_matmul",
        3,
        _sparse_matmul_type,
        _sparse_matmul,
        "A product of a sparse matrix with operand 0: for each entry (i, j) of operand 1 (j, i if "
        "row is 1), in order, its value in operand 2 times row j of operand 0 is added to row i.",
        {"rows": AttrSpec("shape"), "row": AttrSpec("int", 0)},
    ),
)

#: All of them look at their indices, and end the step where one is out of bounds.
CHECKED = frozenset(spec.name for spec in INDEX_TABLE)
