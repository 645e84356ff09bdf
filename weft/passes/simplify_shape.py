"""Simplification rules of ops that move elements, reduce or multiply matrices (see `simplify`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir.dims import Dim, Shape
from weft.ir.graph import Operation
from weft.ir.rules import int_attr, ints_attr, shape_attr
from weft.ir.source import merge_locations
from weft.passes.expression import Expr
from weft.passes.fold import uniform
from weft.passes.rewrite import shape_of, tensor

#: Given the op and its operands: what to use in its place, or None.
LocalRule = Callable[[Operation, Sequence[Expr]], Expr | None]


def same_op(x: Expr, name: str) -> Operation | None:
    """The op that made `x`, if it is called `name`."""
    op = x.value.op
    return op if op is not None and op.name == name else None


def inside(x: Expr, op: Operation, index: int = 0) -> Expr:
    """An operand of the op that made `x`; what is built on it has the locations of both ops."""
    return Expr(x.builder, op.operands[index], merge_locations(x.locations, op.locations))


def _reshape(op: Operation, x: Sequence[Expr]) -> Expr | None:
    shape = shape_of(op.result)
    if shape == x[0].shape and None not in shape:
        return x[0]
    inner = same_op(x[0], "reshape")
    return inside(x[0], inner).reshape(shape) if inner else None


def _permute(op: Operation, x: Sequence[Expr]) -> Expr | None:
    axes, (given,) = ints_attr(op.attrs, "axes"), x
    if axes == tuple(range(given.rank)):
        return given
    inner = same_op(given, "permute_dims")
    if inner:
        first = ints_attr(inner.attrs, "axes")
        return inside(given, inner).permute([first[a] for a in axes])
    moved = [a for a in axes if given.shape[a] != 1]
    if moved == sorted(moved) and None not in given.shape:  # only axes of size 1 change places
        return given.reshape(shape_of(op.result))
    return None


def _broadcast(op: Operation, x: Sequence[Expr]) -> Expr | None:
    shape, (given,) = shape_of(op.result), x
    if shape == given.shape and None not in shape:
        return given
    inner = same_op(given, "broadcast_to")
    if inner:
        return inside(given, inner).broadcast_to(shape)
    inner = same_op(given, "reshape")
    if inner:  # one that only adds leading axes of size 1
        source = inside(given, inner)
        lead = given.rank - source.rank
        if lead > 0 and given.shape == (1,) * lead + source.shape:
            return source.broadcast_to(shape)
    return None


def _concat(op: Operation, x: Sequence[Expr]) -> Expr | None:
    axis = int_attr(op.attrs, "axis")
    parts: list[Expr] = []
    for part in x:
        inner = same_op(part, "concat")
        if inner and int_attr(inner.attrs, "axis") == axis:
            parts += [inside(part, inner, i) for i in range(len(inner.operands))]
        elif part.shape[axis] != 0 or len(x) == 1:
            parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return parts[0].op("concat", *parts[1:], axis=axis) if 1 < len(parts) != len(x) else None


def _pad(op: Operation, x: Sequence[Expr]) -> Expr | None:
    (given, fill), lo, hi = x, ints_attr(op.attrs, "lo"), ints_attr(op.attrs, "hi")
    if not any(lo + hi):
        return given
    inner = same_op(given, "pad")
    if inner is None or not _same_scalar(fill, inside(given, inner, 1)):
        return None
    lo = tuple(a + b for a, b in zip(lo, ints_attr(inner.attrs, "lo"), strict=True))
    hi = tuple(a + b for a, b in zip(hi, ints_attr(inner.attrs, "hi"), strict=True))
    return inside(given, inner).op("pad", fill, lo=lo, hi=hi)


def _same_scalar(a: Expr, b: Expr) -> bool:
    if a.value is b.value:
        return True
    left, right = uniform(a.value), uniform(b.value)
    return left is not None and right is not None and left.tobytes() == right.tobytes()


Window = tuple[Shape, Shape, tuple[int, ...]]


def _window(op: Operation) -> Window:
    starts, stops = shape_attr(op.attrs, "starts"), shape_attr(op.attrs, "stops")
    return starts, stops, ints_attr(op.attrs, "steps")


def _is_whole(op: Operation, shape: Shape) -> bool:
    """Whether a slice takes every element of `shape` in order."""
    starts, stops, steps = _window(op)
    return not any(starts) and stops == shape and set(steps) <= {1} and None not in shape


def _slice(op: Operation, x: Sequence[Expr]) -> Expr | None:
    if _is_whole(op, x[0].shape):
        return x[0]
    inner = same_op(x[0], "slice")
    if inner is None:
        return None
    first, second = zip(*_window(inner), strict=True), zip(*_window(op), strict=True)
    rows = [_composed(*row) for row in zip(first, second, shape_of(op.result), strict=True)]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    starts, stops, steps = (tuple(row[i] for row in known) for i in range(3))
    return inside(x[0], inner).op("slice", starts=starts, stops=stops, steps=steps)


def _composed(
    first: tuple[Dim, Dim, int], second: tuple[Dim, Dim, int], size: Dim
) -> tuple[int, int, int] | None:
    """One axis of the second slice of the first, for known positive steps."""
    (start1, _, step1), (start2, _, step2) = first, second
    if step1 < 0 or step2 < 0 or not size:
        return None
    if not (isinstance(start1, int) and isinstance(start2, int) and isinstance(size, int)):
        return None
    start, step = start1 + start2 * step1, step1 * step2
    return start, start + (size - 1) * step + 1, step


def _slice_update(op: Operation, x: Sequence[Expr]) -> Expr | None:
    if _is_whole(op, x[0].shape):
        return x[1]
    return x[0] if 0 in x[1].shape else None


# ----------------------------------------------------------------------------- reductions, products


def _reduction(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """No axes, or axes of size 1, need no reduction: only a reshape."""
    (given,), axes, shape = x, ints_attr(op.attrs, "axes"), shape_of(op.result)
    rest = tuple(a for a in axes if given.shape[a] != 1)
    if (axes and len(rest) == len(axes)) or None in shape:
        return None
    if rest:
        return given.op(op.name, axes=rest, keepdims=True).reshape(shape)
    if op.name == "prod" and given.dtype.is_complex:
        return None  # it starts with 1+0i, and that times an infinity is NaN
    kept = given.reshape(shape)
    # a sum starts with 0, and 0 + -0 is 0
    return kept + 0 if op.name == "sum" and given.dtype.is_inexact else kept


def _along_one(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """Scanning or sorting along an axis of at most one element."""
    size = x[0].shape[int_attr(op.attrs, "axis")]
    return x[0] if isinstance(size, int) and size <= 1 else None


def _matmul(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """A transposed operand is a flag."""
    operands = list(x)
    flags = {
        "transpose_a": bool(op.attrs["transpose_a"]),
        "transpose_b": bool(op.attrs["transpose_b"]),
    }
    changed = False
    for i, flag in enumerate(flags):
        inner = same_op(operands[i], "permute_dims")
        axes = ints_attr(inner.attrs, "axes") if inner else ()
        if inner and axes[-2:-1] == (len(axes) - 1,):
            # the innermost axis stays innermost: what is left of the permutation moves whole rows
            given = inside(operands[i], inner)
            operands[i] = given.permute([*axes[:-2], axes[-1], axes[-2]])
            flags[flag], changed = not flags[flag], True
    return operands[0].op("matmul", operands[1], **flags) if changed else None


def _outer_product(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """A product over one element is elementwise: it joins the loop nest of what uses it."""
    a, b = x
    if a.shape[-2 if op.attrs["transpose_a"] else -1] != 1 or not tensor(op.result).is_static:
        return None
    target = shape_of(op.result)
    column = a.reshape((*a.shape[:-2], target[-2], 1))
    row = b.reshape((*b.shape[:-2], 1, target[-1]))
    return column.broadcast_to(target) * row.broadcast_to(target)


def _matrix_vector(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """A product with one row or column moves its matrix once, whoever does it: as a loop nest it
    joins what comes before it, and it needs no other threads.
    """
    a, b = x
    target = shape_of(op.result)
    vector = 0 if target[-2:-1] == (1,) else 1 if target[-1:] == (1,) else None
    static = tensor(op.result).is_static and a.type.is_static and b.type.is_static
    if vector is None or a.rank != 2 or b.rank != 2 or not static or a.dtype.bits < 32:
        return None
    if not a.dtype.is_floating:
        return None
    matrix = x[1 - vector]
    # the axis that is summed: rows of b or columns of a, unless transposed
    axis = (
        (1 if op.attrs["transpose_b"] else 0)
        if vector == 0
        else (0 if op.attrs["transpose_a"] else 1)
    )
    size = matrix.shape[axis]
    thin = x[vector].reshape((size, 1) if axis == 0 else (1, size))
    products = thin.broadcast_to(matrix.shape) * matrix
    return products.op("sum", axes=(axis,), keepdims=False).reshape(target)


#: Products as loop nests: their sums add up in another order.
AS_NESTS: tuple[LocalRule, ...] = (_outer_product, _matrix_vector)
SHAPE_RULES: Mapping[str, tuple[LocalRule, ...]] = {
    "reshape": (_reshape,),
    "permute_dims": (_permute,),
    "broadcast_to": (_broadcast,),
    "concat": (_concat,),
    "pad": (_pad,),
    "slice": (_slice,),
    "slice_update": (_slice_update,),
    **dict.fromkeys(("sum", "prod", "max", "min", "all", "any"), (_reduction,)),
    **dict.fromkeys(
        (
            "cumulative_sum",
            "cumulative_prod",
            "cumulative_max",
            "cumulative_min",
            "sort",
            "cumulative_logsumexp",
        ),
        (_along_one,),
    ),
    "matmul": (_matmul, *AS_NESTS),
}
