"""ONNX nodes of ops that move, repeat, cut or join elements, and of gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.frontend.onnx.nodes.dtypes import working_dtype
from weft.frontend.onnx.nodes.elementwise import Expr
from weft.frontend.onnx.nodes.graph import (
    ALL,
    FROM_FIRST,
    GraphWriter,
    Held,
    RefusedError,
    dtype_of,
    inverted,
    tensor_of,
)
from weft.ir import dtypes
from weft.ir.dims import Dim, Shape, SymbolicDim, least, positive
from weft.ir.graph import Operation, Value
from weft.ir.ops.data_movement import COMBINES
from weft.ir.ops.dynamic import size_names
from weft.ir.spec import (
    ConstArray,
    dim_attr,
    dtype_attr,
    int_attr,
    ints_attr,
    shape_attr,
)

Builder = Callable[[GraphWriter, Operation], None]

#: So many offsets are tried to see that a bound of a slice is one from an end.
_MOST_TRIED = 65
#: The longest iota that is a constant.
_LONGEST_IOTA = 1024


def _constant(writer: GraphWriter, op: Operation) -> None:
    given = op.attrs["value"]
    assert isinstance(given, ConstArray)
    writer.bind(op.result, writer.constant(given.array))


def _pass_on(writer: GraphWriter, op: Operation) -> None:
    """The first operands are the results."""
    for value, result in zip(op.operands, op.results, strict=False):
        writer.held[result] = writer.held[value]


def _reshape(writer: GraphWriter, op: Operation) -> None:
    shape, given = shape_attr(op.attrs, "shape"), tensor_of(op.operands[0])
    held = writer.held[op.operands[0]]
    if all(d == 1 and isinstance(d, int) for d in held.shape) and not held.full:
        name = writer.node("Squeeze", held.name) if held.shape else held.name
        writer.held[op.result] = Held(name, (), (), not shape)
        return
    name = writer.use(op.operands[0])
    writer.bind(op.result, reshaped(writer, name, given.shape, shape))


def reshaped(writer: GraphWriter, name: str, given: Shape, shape: Shape) -> str:
    """A tensor of shape `given` in another one."""
    if given == shape and None not in shape:
        return name
    if name in writer.arrays and all(isinstance(d, int) for d in shape):
        sizes = [d for d in shape if isinstance(d, int)]
        return writer.constant(writer.arrays[name].reshape(sizes))
    if all(isinstance(d, int) for d in shape):
        zeros = 1 if 0 in shape else None
        return writer.node("Reshape", name, writer.shape(shape), allowzero=zeros)
    numbers = _reshape_numbers(given, shape)
    if numbers is not None:
        return writer.node("Reshape", name, writer.ints(*numbers))
    return writer.node("Reshape", name, writer.shape(shape), allowzero=1)


def _reshape_numbers(given: Shape, shape: Shape) -> list[int] | None:
    """A shape as `Reshape` takes it, with 0 for a size that stays and -1 for one that follows from
    the others; None where that would be ambiguous for some sizes."""
    numbers: list[int] = []
    for axis, d in enumerate(shape):
        if isinstance(d, int):
            numbers.append(d)
        elif d is not None and axis < len(given) and given[axis] == d:
            numbers.append(0)
        else:
            numbers.append(-1)
    sizes = [d for d in shape if isinstance(d, int)]
    if 0 in sizes:
        return None
    if numbers.count(-1) == 0:
        return numbers
    if numbers.count(-1) == 1 and (0 not in numbers or None in shape):
        return numbers
    return None


def _permute(writer: GraphWriter, op: Operation) -> None:
    held = writer.held[op.operands[0]]
    writer.held[op.result] = permuted(writer, held, ints_attr(op.attrs, "axes"))


def permuted(writer: GraphWriter, held: Held, axes: Sequence[int]) -> Held:
    """What is held with its axes permuted, which writes no Transpose yet."""
    rank = len(axes)
    if len(held.shape) != rank:
        if not held.shape:
            return held
        missing = rank - len(held.shape)
        name = writer.node("Unsqueeze", held.name, writer.ints(*range(missing)))
        held = Held(name, (1,) * missing + held.shape, (), held.full)
    own = held.perm or tuple(range(rank))
    perm = tuple(own[a] for a in axes)
    return Held(held.name, held.shape, () if perm == tuple(range(rank)) else perm, held.full)


def _broadcast(writer: GraphWriter, op: Operation) -> None:
    held, given = writer.held[op.operands[0]], tensor_of(op.operands[0])
    shape = shape_attr(op.attrs, "shape")
    same = given.shape == shape and None not in shape
    if held.perm and len(shape) != given.rank:
        held = Held(writer.transposed(held, ()), held.turned, (), held.full)
    writer.held[op.result] = Held(held.name, held.shape, held.perm, held.full and same)


def _concat(writer: GraphWriter, op: Operation) -> None:
    axis, perm = int_attr(op.attrs, "axis"), common_layout(writer, op.operands)
    order = inverted(perm)
    names = [writer.use(v, order) for v in op.operands]
    name = writer.node("Concat", *names, axis=perm[axis] if perm else axis)
    bind_turned(writer, op.result, name, perm)


def common_layout(writer: GraphWriter, values: Sequence[Value]) -> tuple[int, ...]:
    """How most of the tensors that stand for values of one rank are permuted."""
    found = [writer.held[v].perm for v in values if writer.held[v].full]
    perms = [p for p in found if p]
    return perms[0] if perms and 2 * len(perms) >= len(found) else ()


def bind_turned(writer: GraphWriter, value: Value, name: str, perm: tuple[int, ...]) -> None:
    """Note that a tensor, its axes permuted by `perm`, is a value."""
    kind = tensor_of(value)
    if not perm:
        writer.bind(value, name)
        return
    shape = tuple(kind.shape[a] for a in inverted(perm))
    writer.held[value] = Held(name, shape, perm)


def _pad(writer: GraphWriter, op: Operation) -> None:
    value, fill = op.operands
    perm = writer.held[value].perm if writer.held[value].full else ()
    order = inverted(perm)
    lo, hi = (list(ints_attr(op.attrs, n)) for n in ("lo", "hi"))
    if perm:
        lo, hi = [lo[a] for a in order], [hi[a] for a in order]
    name = padded(writer, writer.use(value, order), lo, hi, writer.use(fill), op)
    bind_turned(writer, op.result, name, perm)


def padded(
    writer: GraphWriter, name: str, lo: Sequence[int], hi: Sequence[int], fill: str, op: Operation
) -> str:
    """`Pad` of a tensor of the op's dtype."""
    if not any((*lo, *hi)):
        return name
    dtype = dtype_of(op.operands[0])
    working = working_dtype("Pad", dtype)
    name, fill = (writer.cast(n, dtype, working) for n in (name, fill))
    made = writer.node("Pad", name, writer.ints(*lo, *hi), fill)
    return writer.cast(made, working, dtype)


def sliced(
    writer: GraphWriter, name: str, shape: Shape, starts: Shape, stops: Shape, steps: Sequence[int]
) -> str:
    """The slice of a tensor of `shape`, bounds as the op `slice` has them."""
    axes = [
        axis for axis, (n, start, stop, step)
        in enumerate(zip(shape, starts, stops, steps, strict=True))
        if not (step == 1 and start == 0 and n is not None and stop == n)
    ]  # fmt: skip
    if not axes:
        return name
    lows: list[Dim] = []
    highs: list[Dim] = []
    for axis in axes:
        n, start, stop = shape[axis], starts[axis], stops[axis]
        back = steps[axis] < 0
        lows.append(_bound(n, start, back))
        if back and stop == -1:  # before the first one; in ONNX it counts from the end
            highs.append(FROM_FIRST)
        elif back and isinstance(stop, SymbolicDim) and n is not None:
            highs.append(stop - n)
        else:
            highs.append(ALL if not back and n is not None and stop == n else _bound(n, stop, back))
    strides = [steps[axis] for axis in axes]
    more = (writer.ints(*strides),) if any(s != 1 for s in strides) else ()
    low, high = writer.shape(lows), writer.shape(highs)
    return writer.node("Slice", name, low, high, writer.ints(*axes), *more)


def _bound(size: Dim, bound: Dim, back: bool) -> Dim:
    """A bound of a slice that is open, as ONNX clips it to the axis: from the end, or an index."""
    if not isinstance(bound, SymbolicDim) or size is None:
        return bound
    before = bound - size
    if isinstance(before, int) and before < 0:
        return before
    if back or not isinstance(size, SymbolicDim):
        return bound
    for k in range(1, _MOST_TRIED):
        if bound == positive(size - k):
            return -k
        if bound == least(size, k):
            return k
    return bound


def _slice(writer: GraphWriter, op: Operation) -> None:
    (value,) = op.operands
    held = writer.held[value]
    perm = held.perm if held.full else ()
    order = inverted(perm) if perm else tuple(range(len(held.shape)))
    name = writer.use(value, order if perm else ())
    given = tensor_of(value).shape
    starts, stops = shape_attr(op.attrs, "starts"), shape_attr(op.attrs, "stops")
    steps = ints_attr(op.attrs, "steps")
    if perm:
        given, starts, stops = (tuple(s[a] for a in order) for s in (given, starts, stops))
        steps = tuple(steps[a] for a in order)
    bind_turned(writer, op.result, sliced(writer, name, given, starts, stops, steps), perm)


def _slice_update(writer: GraphWriter, op: Operation) -> None:
    x, update = op.operands
    given = tensor_of(x).shape
    bounds = shape_attr(op.attrs, "starts"), shape_attr(op.attrs, "stops")
    steps = ints_attr(op.attrs, "steps")
    axes = [
        axis for axis, n in enumerate(given)
        if not (steps[axis] == 1 and bounds[0][axis] == 0 and n is not None
                and bounds[1][axis] == n)
    ]  # fmt: skip
    name = _updated(writer, op, writer.use(x), given, axes, writer.use(update))
    writer.bind(op.result, name)


def _updated(
    writer: GraphWriter, op: Operation, name: str, shape: Shape, axes: Sequence[int], update: str
) -> str:
    """The tensor with the slice of `axes` replaced: along the first axis by the slice of it, in
    which that of the others is."""
    if not axes:
        return update
    axis, *others = axes
    starts, stops = shape_attr(op.attrs, "starts"), shape_attr(op.attrs, "stops")
    steps = ints_attr(op.attrs, "steps")
    inner = update
    if others:
        begins: list[Dim] = [0] * len(shape)
        ends = list(shape)
        begins[axis], ends[axis] = starts[axis], stops[axis]
        strides = [steps[a] if a == axis else 1 for a in range(len(shape))]
        cut = sliced(writer, name, shape, tuple(begins), tuple(ends), strides)
        kept = list(shape)
        kept[axis] = tensor_of(op.operands[1]).shape[axis]
        inner = _updated(writer, op, cut, tuple(kept), others, update)
    index = writer.node(
        "Range", writer.scalar(starts[axis]), writer.scalar(stops[axis]),
        writer.constant(np.asarray(steps[axis], np.int64)),
    )  # fmt: skip
    column = [-1 if a == axis else 1 for a in range(len(shape))]
    index = writer.node("Reshape", index, writer.ints(*column))
    index = writer.node("Expand", index, writer.node("Shape", inner))
    return writer.node("ScatterElements", name, index, inner, axis=axis)


def _iota(writer: GraphWriter, op: Operation) -> None:
    kind, axis = tensor_of(op.result), int_attr(op.attrs, "axis")
    dtype, size = dtype_attr(op.attrs, "dtype"), kind.shape[axis]
    if dtype.is_complex:
        raise RefusedError("it makes complex numbers", "export the part with real numbers")
    column = tuple(size if a == axis else 1 for a in range(axis, kind.rank))
    if isinstance(size, int) and size <= _LONGEST_IOTA:
        numbers = np.arange(size).astype(dtype.numpy)
        name = writer.constant(numbers.reshape([int(d) for d in column if d is not None]))
    else:
        zero, one = (writer.constant(np.asarray(n, np.int64)) for n in (0, 1))
        name = writer.node("Range", zero, writer.scalar(size), one)
        name = writer.cast(name, dtypes.int64, dtype)
        if len(column) > 1:
            name = writer.node("Reshape", name, writer.ints(-1, *(1,) * (len(column) - 1)))
    writer.held[op.result] = Held(name, column, (), kind.rank == 1)


def _dim_size(writer: GraphWriter, op: Operation) -> None:
    axis = int_attr(op.attrs, "axis")
    dim = tensor_of(op.operands[0]).shape[axis]
    if dim is not None:
        writer.bind(op.result, writer.scalar(dim))
        return
    made = writer.node("Shape", writer.use(op.operands[0]), start=axis, end=axis + 1)
    writer.bind(op.result, writer.node("Squeeze", made, writer.ints(0)))


# ------------------------------------------------------------------------------------------ indices
def indices(writer: GraphWriter, value: Value) -> str:
    """Integers as ONNX takes indices: int64, negative ones from the end."""
    dtype = dtype_of(value)
    name = writer.use(value)
    return name if dtype is dtypes.int64 else writer.cast(name, dtype, dtypes.int64)


def _take(writer: GraphWriter, op: Operation) -> None:
    x, index = op.operands
    axis = int_attr(op.attrs, "axis")
    writer.bind(op.result, writer.node("Gather", writer.use(x), indices(writer, index), axis=axis))


def _take_along(writer: GraphWriter, op: Operation) -> None:
    x, index = op.operands
    axis = int_attr(op.attrs, "axis")
    name, at = writer.use(x), indices(writer, index)
    sort = writer.made_by.get(at)
    if sort is not None and sort.kind == "TopK" and sort.inputs[0] == name:
        if sort.attrs["axis"] == axis and sort.outputs[1] == at:  # it gives the elements as well
            writer.bind(op.result, sort.outputs[0])
            return
    writer.bind(op.result, writer.node("GatherElements", name, at, axis=axis))


def _gather_nd(writer: GraphWriter, op: Operation) -> None:
    x, index = op.operands
    if tensor_of(index).shape[-1] == 0:  # each index is that of all
        writer.held[op.result] = Held(writer.use(x), tensor_of(x).shape, (), False)
        return
    writer.bind(op.result, writer.node("GatherND", writer.use(x), indices(writer, index)))


_REDUCTIONS = {None: "none", "add": "add", "minimum": "min", "maximum": "max"}


def _scatter(
    writer: GraphWriter, op: Operation, kind: str, x: str, index: str, updates: str,
    axis: int | None,
) -> str:  # fmt: skip
    """A scatter that combines as the op does, in a dtype that is reduced exactly."""
    combine = _REDUCTIONS[COMBINES[op.name]]
    dtype = dtype_of(op.result)
    working = dtype
    if combine != "none" and dtype in (dtypes.float16, dtypes.bfloat16):
        working = dtypes.float32
    x, updates = (writer.cast(n, dtype, working) for n in (x, updates))
    made = writer.node(kind, x, index, updates, axis=axis, reduction=combine)
    return writer.cast(made, working, dtype)


def _scatter_nd(writer: GraphWriter, op: Operation) -> None:
    x, index, updates = op.operands
    if tensor_of(index).shape[-1] == 0:
        raise RefusedError("its indices have no columns", "leave it out: all of x is replaced")
    names = writer.use(x), indices(writer, index), writer.use(updates)
    writer.bind(op.result, _scatter(writer, op, "ScatterND", *names, None))


def _scatter_along(writer: GraphWriter, op: Operation) -> None:
    x, index, updates = op.operands
    axis = int_attr(op.attrs, "axis")
    names = writer.use(x), indices(writer, index), writer.use(updates)
    writer.bind(op.result, _scatter(writer, op, "ScatterElements", *names, axis))


def _index_add(writer: GraphWriter, op: Operation) -> None:
    """`ScatterND` along the first axis, to which the op's is moved."""
    x, index, updates = op.operands
    axis, rank, many = int_attr(op.attrs, "axis"), tensor_of(x).rank, tensor_of(index).rank
    first = (axis, *(a for a in range(rank) if a != axis))
    given = tuple(range(axis, axis + many))
    rest = (a for a in range(rank - 1 + many) if a not in given)
    x_name = writer.use(x, first if axis else ())
    updated = writer.use(updates, (*given, *rest) if axis else ())
    rows = writer.node("Unsqueeze", indices(writer, index), writer.ints(-1))
    made = _scatter(writer, op, "ScatterND", x_name, rows, updated, None)
    perm = inverted(first) if axis else ()
    bind_turned(writer, op.result, made, perm)


def _first_occurrence(writer: GraphWriter, op: Operation) -> None:
    index = Expr(writer, indices(writer, op.operands[0]), dtypes.int64)
    size = int_attr(op.attrs, "size")
    index = (index < 0).where(index + size, index)
    _, first, which, _ = writer.nodes_of("Unique", [index.name], 4, sorted=1)
    writer.bind(op.result, writer.node("Gather", first, which))


# ------------------------------------------------------------------- sizes that depend on values
def _note_sizes(writer: GraphWriter, op: Operation, names: Sequence[str]) -> None:
    """Bind the results, and note the sizes that they give names to."""
    new = set(size_names(op.attrs))
    for value, name in zip(op.results, names, strict=True):
        writer.bind(value, name)
        for axis, d in enumerate(tensor_of(value).shape):
            if isinstance(d, SymbolicDim) and str(d) in new:
                new.discard(str(d))
                writer.note_symbol(d, writer.node("Shape", name, start=axis, end=axis + 1))


def _nonzero(writer: GraphWriter, op: Operation) -> None:
    (x,) = op.operands
    if not tensor_of(x).rank:
        raise RefusedError("of a scalar", "give it an axis: wf.reshape(x, (1,))")
    flags = writer.cast(writer.use(x), dtype_of(x), dtypes.bool_)
    found = writer.node("Transpose", writer.node("NonZero", flags), perm=[1, 0])
    _note_sizes(writer, op, [found])


def _unique(writer: GraphWriter, op: Operation) -> None:
    (x,) = op.operands
    dtype = dtype_of(x)
    working = dtypes.int64 if dtype.is_integer or dtype is dtypes.bool_ else dtype
    if dtype in (dtypes.float16, dtypes.bfloat16):
        working = dtypes.float32
    if dtype is dtypes.uint64:
        raise RefusedError("of uint64, which no runtime has", "wf.astype(x, wf.int64) first")
    name = writer.cast(writer.use(x), dtype, working)
    values, first, which, counts = writer.nodes_of("Unique", [name], 4, sorted=1)
    which = reshaped(writer, which, (None,), tensor_of(op.results[2]).shape)
    _note_sizes(writer, op, [writer.cast(values, working, dtype), first, which, counts])


def _partition(writer: GraphWriter, op: Operation) -> None:
    data, parts = op.operands
    rank = tensor_of(parts).rank
    name, given = writer.use(data), tensor_of(data).shape
    kind = Expr(writer, indices(writer, parts), dtypes.int64)
    if rank != 1:
        name = reshaped(writer, name, given, (None, *given[rank:]))
        flat = writer.node("Reshape", kind.name, writer.ints(-1))
        kind = Expr(writer, flat, dtypes.int64)
    made = [
        writer.node("Compress", name, kind.same(i).name, axis=0) for i in range(len(op.results))
    ]
    _note_sizes(writer, op, made)


def _stitch(writer: GraphWriter, op: Operation) -> None:
    """Rows are put into zeros; of several for one index the runtime keeps which it likes."""
    count = len(op.operands) // 2
    kind = tensor_of(op.result)
    if kind.dtype is dtypes.string:
        raise RefusedError("of strings", "stitch numbers")
    places: list[str] = []
    rows: list[str] = []
    rest = tensor_of(op.operands[count]).shape[tensor_of(op.operands[0]).rank :]
    for index, data in zip(op.operands[:count], op.operands[count:], strict=True):
        places.append(writer.node("Reshape", indices(writer, index), writer.ints(-1)))
        many = tensor_of(index).rank
        flat = writer.use(data)
        if many != 1:
            length = writer.node("Shape", places[-1])
            shape = [length, writer.shape(rest)] if rest else [length]
            flat = writer.node("Reshape", flat, writer.node("Concat", *shape, axis=0), allowzero=1)
        rows.append(flat)
    place = writer.node("Concat", *places, axis=0) if count > 1 else places[0]
    row = writer.node("Concat", *rows, axis=0) if count > 1 else rows[0]
    size = dim_attr(op.attrs, "rows")
    if size is None:  # one more than the largest
        at_least = writer.node("Concat", place, writer.ints(-1), axis=0)
        most = writer.node("ReduceMax", at_least, writer.ints(0), keepdims=1)
        length = writer.node("Add", most, writer.ints(1))
    else:
        length = writer.size(size)
    shape = [length, writer.shape(rest)] if rest else [length]
    whole = writer.node("Concat", *shape, axis=0)
    zeros = writer.node("ConstantOfShape", whole, value=np.zeros(1, kind.dtype.numpy))
    at = writer.node("Unsqueeze", place, writer.ints(-1))
    _note_sizes(writer, op, [writer.node("ScatterND", zeros, at, row)])


def _repeat_index(writer: GraphWriter, op: Operation) -> None:
    """How many of the sums of counts are no larger than a place: the index that is there."""
    counts = indices(writer, op.operands[0])
    ends = writer.node("CumSum", counts, writer.constant(np.int64(0)))
    total = writer.node("ReduceSum", counts, writer.ints(0), keepdims=1)
    zeros = writer.node(
        "ConstantOfShape", writer.node("Add", total, writer.ints(1)), value=np.zeros(1, np.int64)
    )
    ones = writer.node("Expand", writer.ints(1), writer.node("Shape", counts))
    steps = writer.node("ScatterElements", zeros, ends, ones, axis=0, reduction="add")
    found = writer.node("CumSum", steps, writer.constant(np.int64(0)))
    _note_sizes(writer, op, [writer.node("Slice", found, writer.ints(0), total, writer.ints(0))])


def _ensure_shape(writer: GraphWriter, op: Operation) -> None:
    _note_sizes(writer, op, [writer.use(op.operands[0])])


def _dynamic_size(writer: GraphWriter, op: Operation) -> None:
    (size,) = op.operands
    count = writer.node("Reshape", indices(writer, size), writer.ints(1))
    shape = writer.node("Concat", count, writer.ints(0), axis=0)
    made = writer.node("ConstantOfShape", shape, value=np.zeros(1, np.int8))
    _note_sizes(writer, op, [made])


BUILDERS: dict[str, Builder] = {
    "constant": _constant,
    **dict.fromkeys(
        ("identity", "stop_gradient", "tap", "optimization_barrier", "row_guard", "loop_mark",
         "custom_gradient"),
        _pass_on,
    ),
    "reshape": _reshape,
    "permute_dims": _permute,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "slice_update": _slice_update,
    "iota": _iota,
    "dim_size": _dim_size,
    "take": _take,
    "take_along_axis": _take_along,
    "gather_nd": _gather_nd,
    "index_add": _index_add,
    "scatter_along_axis_add": _scatter_along,
    **dict.fromkeys(
        ("scatter_nd_add", "scatter_nd_update", "scatter_nd_min", "scatter_nd_max"), _scatter_nd
    ),
    "first_occurrence": _first_occurrence,
    "nonzero": _nonzero,
    "unique": _unique,
    "dynamic_partition": _partition,
    "dynamic_stitch": _stitch,
    "repeat_index": _repeat_index,
    "ensure_shape": _ensure_shape,
    "dynamic_size": _dynamic_size,
}  # fmt: skip
