"""Manipulation functions: reshape, transpose, broadcast, new and vanishing axes; joining, cutting,
repeating, shifting and padding.

Dtypes stay; where several tensors are joined they promote. Negative axes count from the end.
Errors, at the caller's line: InvalidArgumentError for an axis out of range or a wrong argument,
ShapeError for shapes that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.by_value import repeated
from weft.frontend.eager.numpy_moves import (
    quick_joined,
    quick_moved,
    quick_parts,
    reshaped,
    rolled,
    turned,
)
from weft.frontend.ops.dispatch import apply, apply_dynamic, in_order, known_sizes, open_sizes
from weft.frontend.ops.elementwise import (
    equal,
    floor_divide,
    logical_and,
    maximum,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    broadcast_tensors,
    cast,
    check_axes,
    check_axis,
    check_int,
    check_number,
    check_offset,
    check_shape,
    concrete_array,
    expand,
    infer_shape,
    is_concrete,
    numbers_of,
    promote_tensors,
    renamed,
    scalar_tensor,
    strong_tensor,
    traced_sizes,
    weaken,
)
from weft.ir.dims import (
    Dim,
    Shape,
    SymbolicDim,
    divided,
    format_shape,
    largest,
    least,
    positive,
    product,
    same,
)
from weft.ir.dims import broadcast_shapes as common_shape
from weft.ir.dtypes import int64
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
    UnsupportedError,
)
from weft.ir.locations import caller_location
from weft.ir.ops.dynamic import MOST_REPEATED, places_repeated
from weft.ir.spec import fits


def reshape(x: TensorLike, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape; one size may be -1 (worked out).

    Tensors are immutable: `copy` is accepted and changes nothing that can be seen. In a graph sizes
    may be tensors of integers, and so may the shape (of which then, too, one may be -1).

    >>> wf.reshape([1, 2, 3, 4, 5, 6], (2, -1))
    Tensor([[1, 2, 3],
            [4, 5, 6]], dtype=int64)
    """
    made = quick_moved(reshaped, x, shape)
    if made is not None:
        return made
    t = strong_tensor(x)
    if isinstance(shape, Tensor) and shape.ndim == 1 and None in known_sizes(shape):
        shape = _without_hole(shape, t) if open_sizes() else shape
    wanted = infer_shape("reshape", check_shape("reshape", shape, infer=True), t.shape)
    return in_order(t) if wanted == t.shape else apply("reshape", t, shape=wanted)


def _without_hole(shape: Tensor, t: Tensor) -> Tensor:
    """A traced vector of sizes with its -1, if it has one, worked out from the elements of t."""
    sizes = cast(shape, int64)
    hole = equal(sizes, -1)
    rest = apply("prod", where(hole, 1, sizes), axes=(0,), keepdims=False)
    found = floor_divide(size(t), maximum(rest, 1))
    holes = apply("sum", cast(hole, int64), axes=(0,), keepdims=False)
    return where(logical_and(hole, equal(holes, 1)), found, sizes)


def permute_dims(x: TensorLike, /, axes: Sequence[int]) -> Tensor:
    """Axis i of the result is axis axes[i] of x.

    >>> wf.permute_dims(wf.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    made = quick_moved(turned, x, axes)
    if made is not None:
        return made
    t = strong_tensor(x)
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    order = tuple(check_axis("permute_dims", a, t.ndim, "axes") for a in given)
    if sorted(order) != list(range(t.ndim)):
        raise InvalidArgumentError(
            f"wf.permute_dims: axes {tuple(given)} are no permutation of the axes of a tensor of "
            f"rank {t.ndim}",
            location=caller_location(),
        )
    same_order = order == tuple(range(t.ndim))
    return in_order(t) if same_order else apply("permute_dims", t, axes=order)


def transpose(x: TensorLike, /, axes: Sequence[int] | None = None) -> Tensor:
    """`permute_dims`; without `axes`, the axes in reverse order (NumPy's and TF1's name).

    >>> wf.transpose(wf.zeros((2, 3, 4))).shape
    (4, 3, 2)
    >>> wf.transpose(wf.zeros((2, 3, 4)), (0, 2, 1)).shape
    (2, 4, 3)
    """
    t = strong_tensor(x)
    return permute_dims(t, tuple(range(t.ndim))[::-1] if axes is None else axes)


def matrix_transpose(x: TensorLike, /) -> Tensor:
    """The matrices x with their last two axes exchanged.

    >>> wf.matrix_transpose(wf.zeros((7, 2, 3))).shape
    (7, 3, 2)
    >>> wf.asarray([[1, 2], [3, 4]]).mT
    Tensor([[1, 3],
            [2, 4]], dtype=int64)
    """
    t = strong_tensor(x)
    if t.ndim < 2:
        raise InvalidArgumentError(
            f"wf.matrix_transpose needs a matrix or a stack of them, got shape {list(t.shape)}",
            location=caller_location(),
        )
    return swapaxes(t, -1, -2)


def swapaxes(x: TensorLike, axis1: int, axis2: int, /) -> Tensor:
    """x with two axes exchanged.

    >>> wf.swapaxes(wf.zeros((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    t = strong_tensor(x)
    a, b = (check_axis("swapaxes", v, t.ndim) for v in (axis1, axis2))
    order = list(range(t.ndim))
    order[a], order[b] = b, a
    return permute_dims(t, order)


def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Tensor:
    """x with the axes `source` moved to the places `destination`; the others keep their order.

    >>> wf.moveaxis(wf.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    >>> wf.moveaxis(wf.zeros((2, 3, 4)), (0, 1), (1, 0)).shape
    (3, 2, 4)
    """
    t = strong_tensor(x)
    sources, places = (
        [
            check_axis("moveaxis", a, t.ndim, name)
            for a in (v if isinstance(v, (tuple, list)) else (v,))
        ]
        for v, name in ((source, "source"), (destination, "destination"))
    )
    if (
        len(sources) != len(places)
        or len(set(sources)) != len(sources)
        or len(set(places)) != len(places)
    ):
        raise InvalidArgumentError(
            f"wf.moveaxis: source {source} and destination {destination} must be distinct "
            "axes, as many of each",
            location=caller_location(),
        )
    order = [a for a in range(t.ndim) if a not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute_dims(t, order)


def expand_dims(x: TensorLike, /, axis: int | Sequence[int] = 0) -> Tensor:
    """x with new axes of size 1 at the places `axis` of the result.

    >>> wf.expand_dims([1, 2], -1)
    Tensor([[1],
            [2]], dtype=int64)
    >>> wf.expand_dims([1, 2], (0, 2)).shape
    (1, 2, 1)
    """
    t = strong_tensor(x)
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    axes = check_axes("expand_dims", axis, t.ndim + count)
    shape = list(t.shape)
    for a in axes:
        shape.insert(a, 1)
    return reshape(t, tuple(shape)) if axes else in_order(t)


def squeeze(x: TensorLike, /, axis: Axes = None) -> Tensor:
    """x without the axes `axis`, which must have size 1; None: without all that have.

    >>> x = wf.zeros((1, 3, 1))
    >>> wf.squeeze(x).shape, wf.squeeze(x, 0).shape
    ((3,), (3, 1))
    """
    t = strong_tensor(x)
    if axis is None:
        axes = tuple(i for i, d in enumerate(t.shape) if d == 1)
    else:
        axes = check_axes("squeeze", axis, t.ndim)
    for a in axes:
        if t.shape[a] != 1:
            raise ShapeError(
                f"wf.squeeze: axis {a} of shape {format_shape(t.shape)} does not have size 1",
                location=caller_location(),
            )
    return reshape(t, tuple(d for i, d in enumerate(t.shape) if i not in axes))


def flatten(x: TensorLike, /) -> Tensor:
    """The elements of x in row-major order as a vector.

    >>> wf.flatten([[1, 2], [3, 4]])
    Tensor([1, 2, 3, 4], dtype=int64)
    """
    t = strong_tensor(x)
    return reshape(t, (product(t.shape),))


def broadcast_to(x: TensorLike, /, shape: Any) -> Tensor:
    """x repeated along axes of size 1 and new leading axes up to `shape`; ShapeError if it does not
    fit.

    >>> wf.broadcast_to([[1], [2]], (2, 3))
    Tensor([[1, 1, 1],
            [2, 2, 2]], dtype=int64)
    """
    t = strong_tensor(x)
    made = expand(t, check_shape("broadcast_to", shape))
    return in_order(made) if made is t else made


def broadcast_arrays(*arrays: TensorLike) -> tuple[Tensor, ...]:
    """The arrays broadcast against each other; dtypes stay.

    >>> wf.broadcast_arrays([1, 2], [[0.5]])
    (Tensor([[1, 2]], dtype=int64), Tensor([[0.5, 0.5]], dtype=float32))
    """
    return tuple(broadcast_tensors(*(strong_tensor(a) for a in arrays)))


def broadcast_shapes(*shapes: Sequence[Dim]) -> Shape:
    """The shape to which arrays of these shapes broadcast; symbolic sizes of graphs may be among
    them. ShapeError where there is none.

    >>> wf.broadcast_shapes((3, 1), (4,), ())
    (3, 4)
    """
    given = [check_shape("broadcast_shapes", s) for s in shapes]
    try:
        return common_shape(*given)
    except ShapeError as error:
        raise renamed(error, "broadcast_shapes") from None


def shape(x: TensorLike, /) -> Tensor:
    """The sizes of x -> int64 vector; those that a graph does not know are asked for at run
    time.

    >>> wf.shape([[1, 2, 3], [4, 5, 6]])
    Tensor([2, 3], dtype=int64)
    >>> rows = wf.TensorType(wf.float32, (None, 2))
    >>> wf.compile(wf.shape, input_signature=[rows])(np.zeros((5, 2), np.float32))
    Tensor([5, 2], dtype=int64)
    """
    t = strong_tensor(x)
    known = [d for d in t.shape if isinstance(d, int)]
    if len(known) == t.ndim:
        return in_order(as_tensor(np.asarray(known, np.int64)))
    sizes = [
        as_tensor(np.asarray([d], np.int64))
        if isinstance(d, int)
        else apply("reshape", apply("dim_size", t, axis=i), shape=(1,))
        for i, d in enumerate(t.shape)
    ]
    return apply("concat", *sizes, axis=0)


def size(x: TensorLike, /) -> Tensor:
    """The number of elements of x -> int64 scalar.

    >>> wf.size([[1, 2, 3], [4, 5, 6]])
    Tensor(6, dtype=int64)
    """
    t = strong_tensor(x)
    total: Tensor = scalar_tensor(1, int64)
    known = product(t.shape)
    if isinstance(known, int):
        return in_order(scalar_tensor(known, int64))
    for i in range(t.ndim):
        total = apply("multiply", total, apply("dim_size", t, axis=i))
    return total


def _joined(op: str, arrays: Sequence[TensorLike] | Tensor) -> list[Tensor]:
    items = list(unstack(arrays)) if isinstance(arrays, Tensor) else list(arrays)
    if not items:
        raise InvalidArgumentError(f"wf.{op} needs at least one array", location=caller_location())
    return promote_tensors(*items, op=op)


def concat(arrays: Sequence[TensorLike], /, axis: int | None = 0) -> Tensor:
    """The arrays one after the other along an existing axis (None: all flattened first).

    >>> wf.concat([[1, 2], [0.5]])
    Tensor([1. , 2. , 0.5], dtype=float32)
    >>> wf.concat([[[1], [2]], [[3], [4]]], axis=1)
    Tensor([[1, 3],
            [2, 4]], dtype=int64)
    """
    made = quick_joined(np.concatenate, arrays, axis)
    if made is not None:
        return made
    parts = _joined("concat", arrays)
    if axis is None:
        parts, axis = [flatten(p) for p in parts], 0
    along = check_axis("concat", axis, parts[0].ndim)
    return parts[0] if len(parts) == 1 else apply("concat", *parts, axis=along)


def stack(arrays: Sequence[TensorLike], /, axis: int = 0) -> Tensor:
    """The arrays, all of one shape, side by side along a new axis.

    >>> wf.stack([[1, 2], [3, 4]], axis=1)
    Tensor([[1, 3],
            [2, 4]], dtype=int64)
    """
    made = quick_joined(np.stack, arrays, axis)
    if made is not None:
        return made
    parts = _joined("stack", arrays)
    along = check_axis("stack", axis, parts[0].ndim + 1)
    for p in parts[1:]:
        if not fits(p.shape, parts[0].shape):
            raise ShapeError(
                f"wf.stack: shapes {format_shape(parts[0].shape)} and "
                f"{format_shape(p.shape)} differ",
                location=caller_location(),
            )
    return concat([expand_dims(p, along) for p in parts], axis=along)


def cut(t: Tensor, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tensor:
    """t[start:stop:step] along one axis; bounds as the IR's `slice` wants them."""
    starts: list[Dim] = [0] * t.ndim
    stops = list(t.shape)
    steps = [1] * t.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return apply("slice", t, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def split(x: TensorLike, num_or_sizes: Any, /, axis: int = 0) -> list[Tensor]:
    """x cut along `axis` into a number of equal parts, or into parts of the given sizes (as in
    TF1).

    ShapeError if the axis does not divide evenly, or the sizes do not add up to it. In a graph
    sizes may be scalar tensors of integers, and so may the whole of them.

    >>> wf.split([1, 2, 3, 4], 2)
    [Tensor([1, 2], dtype=int64), Tensor([3, 4], dtype=int64)]
    >>> wf.split([1, 2, 3, 4], [1, 3])  # sizes; NumPy's are places to cut at
    [Tensor([1], dtype=int64), Tensor([2, 3, 4], dtype=int64)]
    """
    t = strong_tensor(x)
    along = check_axis("split", axis, t.ndim)
    size = t.shape[along]
    num_or_sizes = numbers_of("split", num_or_sizes, "sizes")
    if isinstance(num_or_sizes, (tuple, list)):
        sizes: list[Any] = [check_number("split", s, "a size") for s in num_or_sizes]
        known = isinstance(size, int) and all(isinstance(s, int) for s in sizes)
        fits = not known or sum(sizes) == size
    else:
        count = check_int("split", num_or_sizes, "the number of parts")
        fits = isinstance(size, int) and count > 0 and size % count == 0
        sizes = [size // count] * count if fits and isinstance(size, int) else []
    if not fits or any(isinstance(s, int) and s < 0 for s in sizes):
        raise ShapeError(
            f"wf.split: axis {along} of shape {format_shape(t.shape)} does not split into "
            f"{num_or_sizes}",
            hint="a number must divide the axis, sizes must add up to it",
            location=caller_location(),
        )
    ends = [*accumulate(sizes, initial=0)]
    if ends[-1] != size and sizes:  # for each part: that they add up is checked when all are known
        t = apply("reshape", t, shape=(*t.shape[:along], ends[-1], *t.shape[along + 1 :]))
    return [cut(t, along, a, b) for a, b in pairwise(ends)]


def unstack(x: TensorLike, /, *, axis: int = 0, num: int | None = None) -> tuple[Tensor, ...]:
    """The slices of x along `axis`, that axis removed. num: how many (TensorFlow's), needed where
    only a run knows it; there another number is a ShapeError.

    >>> wf.unstack([[1, 2], [3, 4]], axis=1)
    (Tensor([1, 3], dtype=int64), Tensor([2, 4], dtype=int64))
    """
    parts = quick_parts(x, axis) if num is None else None
    if parts is not None:
        return parts
    t = strong_tensor(x)
    along = check_axis("unstack", axis, t.ndim)
    size = t.shape[along] if num is None else check_int("unstack", num, "num")
    if not isinstance(size, int):
        raise UnsupportedError(
            "wf.unstack: cannot infer num: the size of "
            f"axis {along} of shape {format_shape(t.shape)} is not known",
            hint="give num=, or go over the rows with wf.scan or wf.map_fn",
            location=caller_location(),
        )
    if size < 0 or (size != t.shape[along] and isinstance(t.shape[along], int)):
        what = f"num={num}, but axis {along} of shape {format_shape(t.shape)} is another number"
        raise ShapeError(f"wf.unstack: {what}", location=caller_location())
    if size != t.shape[along]:
        t = apply("ensure_shape", t, shape=(*t.shape[:along], size, *t.shape[along + 1 :]))
    return tuple([squeeze(cut(t, along, i, i + 1), along) for i in range(size)])


def tile(x: TensorLike, repetitions: Any, /) -> Tensor:
    """x repeated as a whole repetitions[i] times along axis i; missing axes are added in front.

    In a graph repetitions may be tensors of integers, and so may the whole of them.

    >>> wf.tile([1, 2], 2)
    Tensor([1, 2, 1, 2], dtype=int64)
    >>> wf.tile([1, 2], (2, 1))
    Tensor([[1, 2],
            [1, 2]], dtype=int64)
    """
    made = quick_moved(np.tile, x, repetitions)
    if made is not None:
        return made
    t = strong_tensor(x)
    given = numbers_of("tile", repetitions, "repetitions")
    listed = given if isinstance(given, (tuple, list)) else (given,)
    reps: list[Any] = [check_number("tile", r, "a repetition") for r in listed]
    if any(isinstance(r, int) and r < 0 for r in reps):
        raise InvalidArgumentError(
            f"wf.tile: repetitions {tuple(reps)} must not be negative", location=caller_location()
        )
    rank = max(len(reps), t.ndim)
    reps = [1] * (rank - len(reps)) + reps
    shape: Shape = (1,) * (rank - t.ndim) + t.shape
    if all(r == 1 for r in reps):
        return reshape(t, shape)
    apart = tuple(v for d in shape for v in (1, d))
    repeated = tuple(v for r, d in zip(reps, shape, strict=True) for v in (r, d))
    whole = tuple(product((r, d)) for r, d in zip(reps, shape, strict=True))
    return reshape(expand(reshape(t, apart), repeated), whole)


def repeat(
    x: TensorLike, repeats: int | Sequence[int] | Tensor, /, *, axis: int | None = None
) -> Tensor:
    """Each element (or part along `axis`) `repeats` times in a row; None: of the flattened x.

    repeats: one number, or one for each part; in a graph and in a compiled function it may be a
    tensor of integers.

    >>> wf.repeat([1, 2], 2)
    Tensor([1, 1, 2, 2], dtype=int64)
    >>> wf.repeat([[1, 2], [3, 4]], [1, 2], axis=0)
    Tensor([[1, 2],
            [3, 4],
            [3, 4]], dtype=int64)
    """
    if type(repeats) is int and repeats <= MOST_REPEATED:
        made = quick_moved(np.ndarray.repeat, x, repeats, axis)
    else:
        made = repeated(x, repeats, axis)
    if made is not None:
        return made
    t = strong_tensor(x)
    if axis is None:
        t, axis = flatten(t), 0
    along = check_axis("repeat", axis, t.ndim)
    if isinstance(repeats, Tensor) and not is_concrete(repeats):
        if repeats.ndim == 0 and (times := traced_sizes("repeat", repeats, "repeats")) is not None:
            return _repeated_each(t, times[0], along)
        if open_sizes():
            return _repeated(t, repeats, along)
    counts = concrete_array("repeat", repeats, "repeats")
    if not counts.size and counts.ndim == 1:
        counts = counts.astype(np.int64)  # what `[]` holds
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise InvalidArgumentError(
            f"wf.repeat: repeats must be integers >= 0, got {repeats!r}", location=caller_location()
        )
    size = t.shape[along]
    if counts.size == 1:
        return _repeated_each(t, int(counts.reshape(())), along)
    if not same(size, counts.size):
        raise ShapeError(
            f"wf.repeat: {counts.size} repeats do not fit axis {along} of shape "
            f"{format_shape(t.shape)}",
            location=caller_location(),
        )
    try:
        index = places_repeated(counts)
    except MemoryError as error:
        raise ResourceExhaustedError(f"wf.repeat: {error}", location=caller_location()) from None
    if not isinstance(size, int):  # that it is this size is checked when it is known
        t = apply("reshape", t, shape=(*t.shape[:along], counts.size, *t.shape[along + 1 :]))
    return apply("take", t, as_tensor(index), axis=along)


def _repeated_each(t: Tensor, times: Dim, axis: int) -> Tensor:
    """Each part repeated as often."""
    wide = (*t.shape[: axis + 1], times, *t.shape[axis + 1 :])
    out = (*t.shape[:axis], product((t.shape[axis], times)), *t.shape[axis + 1 :])
    return reshape(expand(expand_dims(t, axis + 1), wide), out)


def _repeated(t: Tensor, repeats: Tensor, axis: int) -> Tensor:
    """Parts repeated as often as a tensor says, in a graph."""
    size = t.shape[axis]
    counts = expand(repeats, (size,)) if repeats.size == 1 else repeats
    if not counts.dtype.is_integer or counts.ndim != 1 or not same(counts.shape[0], size):
        raise InvalidArgumentError(
            f"wf.repeat: repeats of {repeats.describe()} do not fit axis {axis} of shape "
            f"{format_shape(t.shape)}: they must be integers, one or one for each part",
            location=caller_location(),
        )
    (index,) = apply_dynamic("repeat_index", [counts], what="repeat")
    return apply("take", t, index, axis=axis)


def roll(x: TensorLike, /, shift: Any, *, axis: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved on by `shift` places along `axis`, coming back in at the other end.

    Without `axis`, x is flattened for it. Several shifts and axes go together in pairs. A shift
    that is computed is a scalar tensor of integers.

    >>> wf.roll([1, 2, 3, 4], 1)
    Tensor([4, 1, 2, 3], dtype=int64)
    >>> wf.roll([[1, 2], [3, 4], [5, 6]], (1, 1), axis=(0, 1))
    Tensor([[6, 5],
            [2, 1],
            [4, 3]], dtype=int64)
    """
    made = quick_moved(rolled, x, shift, axis)
    if made is not None:
        return made
    t = strong_tensor(x)
    if axis is None:
        return reshape(roll(flatten(t), shift, axis=0), t.shape)
    axes = [
        check_axis("roll", a, t.ndim)
        for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
    ]
    given = shift if isinstance(shift, (tuple, list)) else [shift] * len(axes)
    shifts = [check_offset("roll", s, "shift") for s in given]
    if len(shifts) != len(axes):
        raise InvalidArgumentError(
            f"wf.roll: {len(shifts)} shifts for {len(axes)} axes", location=caller_location()
        )
    for s, a in zip(shifts, axes, strict=True):
        size = known_size("roll", t, a)
        if isinstance(s, Tensor):
            places = subtract(apply("iota", dtype=int64, shape=(size,), axis=0), s)
            t = apply("take", t, remainder(places, largest(size, 1)), axis=a)
        elif s and size != 0 and size != 1:
            whole = largest(size, 1)
            by = abs(s) - divided(abs(s), whole) * whole  # the places beyond whole turns
            middle = size - by if s > 0 else by
            t = concat([cut(t, a, middle, size), cut(t, a, 0, middle)], axis=a)
    return t


def known_size(op: str, t: Tensor, axis: int) -> int | SymbolicDim:
    """The size of an axis, a number or a symbol. UnsupportedError for one that nothing decides."""
    size = t.shape[axis]
    if size is None:
        raise UnsupportedError(
            f"wf.{op}: the size of axis {axis} of shape {format_shape(t.shape)} is not known",
            hint="wf.ensure_shape says what it is",
            location=caller_location(),
        )
    return size


def flip(x: TensorLike, /, *, axis: Axes = None) -> Tensor:
    """The elements in reverse order along `axis` (None: all axes).

    >>> wf.flip([[1, 2], [3, 4]])
    Tensor([[4, 3],
            [2, 1]], dtype=int64)
    >>> wf.flip([[1, 2], [3, 4]], axis=1)
    Tensor([[2, 1],
            [4, 3]], dtype=int64)
    """
    made = quick_moved(np.flip, x, axis)
    if made is not None:
        return made
    t = strong_tensor(x)
    axes = check_axes("flip", axis, t.ndim)
    if not axes:
        return in_order(t)
    starts = tuple(d - 1 if i in axes and d is not None else 0 for i, d in enumerate(t.shape))
    stops = tuple(-1 if i in axes else d for i, d in enumerate(t.shape))
    steps = tuple(-1 if i in axes else 1 for i in range(t.ndim))
    return apply("slice", t, starts=starts, stops=stops, steps=steps)


def pad(
    x: TensorLike,
    paddings: Any,
    mode: str = "constant",
    constant_values: TensorLike = 0,
) -> Tensor:
    """x with elements added around it; `paddings` is one pair (before, after) for each axis, or one
    number; in a graph they may be tensors of integers.

    mode: "constant" (`constant_values`, a scalar), "edge" (the last element again), "reflect"
    (mirrored, the edge once), "symmetric" (mirrored, the edge twice); in any case of letters.
    InvalidArgumentError where an axis is too short to mirror.

    >>> wf.pad([1, 2, 3], (1, 2), constant_values=9)
    Tensor([9, 1, 2, 3, 9, 9], dtype=int64)
    >>> wf.pad([1, 2, 3], 2, "reflect")
    Tensor([3, 2, 1, 2, 3, 2, 1], dtype=int64)
    >>> wf.pad([1, 2, 3], 2, "symmetric")
    Tensor([2, 1, 1, 2, 3, 3, 2], dtype=int64)
    >>> wf.pad([[1, 2]], [(0, 1), (1, 0)])
    Tensor([[0, 1, 2],
            [0, 0, 0]], dtype=int64)
    """
    t = strong_tensor(x)
    pairs = _pad_pairs(t, paddings)
    kind = mode.lower()
    if kind == "constant":
        lo, hi = (tuple(side) for side in zip(*pairs, strict=True)) if pairs else ((), ())
        (_, fill) = promote_tensors(t, constant_values, op="pad")
        if fill.dtype is not t.dtype or fill.ndim:
            raise InvalidArgumentError(
                f"wf.pad: constant_values must be a scalar that fits {t.dtype.name}",
                location=caller_location(),
            )
        if not all(isinstance(n, int) for n in (*lo, *hi)):
            for axis, (before, after) in enumerate(pairs):
                lead, tail = t.shape[:axis], t.shape[axis + 1 :]
                sides = [expand(fill, (*lead, n, *tail)) for n in (before, after)]
                t = concat([sides[0], t, sides[1]], axis=axis)
            return t
        return apply("pad", t, fill, lo=lo, hi=hi) if any((*lo, *hi)) else in_order(t)
    if kind not in ("edge", "reflect", "symmetric"):
        raise InvalidArgumentError(
            f"wf.pad: mode {mode!r} is unknown",
            hint="the modes are constant, edge, reflect, symmetric",
            location=caller_location(),
        )
    for axis, (before, after) in enumerate(pairs):
        t = _pad_axis(t, axis, before, after, kind)
    return t


def _pad_pairs(t: Tensor, paddings: Any) -> list[tuple[Any, Any]]:
    given = paddings if isinstance(paddings, int) else as_tensor(paddings)
    if isinstance(given, Tensor) and not is_concrete(given) and open_sizes():
        known = traced_sizes("pad", flatten(broadcast_to(given, (t.ndim, 2))), "paddings") or []
        return list(zip(known[::2], known[1::2], strict=True))
    table = concrete_array("pad", paddings, "paddings")
    if not t.ndim and not table.size:
        return []
    try:
        wide = np.broadcast_to(table, (t.ndim, 2)).tolist()
    except ValueError:
        wide = None
    if wide is None or (table.size and (table.dtype.kind not in "iu" or table.min() < 0)):
        raise InvalidArgumentError(
            f"wf.pad: paddings must be {t.ndim} pairs of integers >= 0, got {paddings!r}",
            location=caller_location(),
        )
    return [(int(a), int(b)) for a, b in wide]


def _pad_axis(t: Tensor, axis: int, before: Any, after: Any, kind: str) -> Tensor:
    size = t.shape[axis]
    if before == 0 and after == 0:
        return t
    skip = 1 if kind == "reflect" else 0
    room = largest(before, after) + skip if kind != "edge" else 1
    if size is None or (isinstance(size, int) and isinstance(room, int) and size < room):
        raise InvalidArgumentError(
            f"wf.pad: axis {axis} of shape {format_shape(t.shape)} is too short for "
            f"{(before, after)} in mode '{kind}'",
            location=caller_location(),
        )
    if kind == "edge":
        lead, tail = t.shape[:axis], t.shape[axis + 1 :]
        front = expand(cut(t, axis, 0, 1), (*lead, before, *tail))
        back = expand(cut(t, axis, size - 1, size), (*lead, after, *tail))
    else:
        front = flip(cut(t, axis, skip, before + skip), axis=axis)
        back = flip(cut(t, axis, size - after - skip, size - skip), axis=axis)
    parts = [p for p, n in ((front, before), (t, 1), (back, after)) if n != 0]
    return concat(parts, axis=axis)


def rot90(x: TensorLike, /, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """x turned by 90 degrees k times, from the first of `axes` towards the second (NumPy's
    rot90).

    >>> wf.rot90([[1, 2], [3, 4]])
    Tensor([[2, 4],
            [1, 3]], dtype=int64)
    """
    t = strong_tensor(x)
    a, b = (check_axis("rot90", v, t.ndim, "axes") for v in axes)
    turns = check_int("rot90", k, "k") % 4
    if turns == 2:
        return flip(t, axis=(a, b))
    if turns == 1:
        return swapaxes(flip(t, axis=b), a, b)
    return flip(swapaxes(t, a, b), axis=b) if turns else t


def diff(
    x: TensorLike,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """x[i+1] - x[i] along `axis`, n times over; `prepend` and `append` (of which a scalar counts as
    one element) are joined to x first, unless n is 0: that gives x.

    >>> wf.diff([1, 4, 9, 16])
    Tensor([3, 5, 7], dtype=int64)
    >>> wf.diff([1, 4, 9, 16], n=2)
    Tensor([2, 2], dtype=int64)
    >>> wf.diff([1, 4, 9], prepend=0)
    Tensor([1, 3, 5], dtype=int64)
    """
    t = strong_tensor(x)
    along, times = check_axis("diff", axis, t.ndim), check_int("diff", n, "n")
    if times < 0:
        raise InvalidArgumentError(
            f"wf.diff: n must not be negative, got {times}", location=caller_location()
        )
    if not times:
        return in_order(t)
    one = (*t.shape[:along], 1, *t.shape[along + 1 :])
    held = [None if p is None else as_tensor(p) for p in (prepend, append)]
    ends = [p if p is None or p.ndim else _spread(p, one) for p in held]
    t = concat([p for p in (ends[0], t, ends[1]) if p is not None], axis=along)
    for _ in range(times):
        size = known_size("diff", t, along)
        if size != 0:
            t = subtract(cut(t, along, least(size, 1), size), cut(t, along, 0, positive(size - 1)))
    return t


def _spread(scalar: Tensor, shape: Shape) -> Tensor:
    """A scalar repeated; weak if it is."""
    return weaken(apply("broadcast_to", scalar, shape=shape), [scalar])
