"""Algebraic simplification: replace an op by a cheaper one that means exactly the same; and
contraction: a multiply and an add, rounded together, become one `fma` (fused multiply-add).

`simplify`. Before::

    %0 = negative(%y) : f32[4]
    %1 = add(%x, %0) : f32[4]
    %2 = permute_dims(%w) {axes=[1,0]} : f32[4,8]
    %3 = reshape(%1) {shape=[1,4]} : f32[1,4]
    %4 = matmul(%3, %2) : f32[1,8]

After: ``%1 = subtract(%x, %y)``, and the matmul takes `%w` with ``transpose_b=true``.

The rules hold for NaN, infinities and the sign of zero: x + 0 stays (it turns -0 into 0), x - 0
goes, x * 0 goes for integers only. Two rules round in other places: `x ** 3` becomes two products,
and tanh of a softplus a quotient, which is nearer to the truth than what it replaces. Rules of ops
that move elements, reduce or multiply matrices come first, the elementwise ones after them; nothing
here looks at how often a value is used.

`contract`. Before::

    %2 = multiply(%x, %w) : f32[4]
    %3 = add(%2, %b) : f32[4]

After::

    %3 = fma(%x, %w, %b) : f32[4]

One instruction, and one rounding, in place of two: the decision is made here, in the graph, and
never by the code generator. So the bits of a program depend neither on what is fused with what nor
on whether a native plan or the dataflow executor runs it, and the interpreter has the same.
Products that something else reads as well are rounded anyway: they stay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from weft.ir.analysis.index_maps import is_constant
from weft.ir.analysis.known_values import uniform
from weft.ir.dims import Dim, Shape
from weft.ir.dtypes import DType, float32, float64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops.builder import Builder
from weft.ir.spec import int_attr, ints_attr, shape_attr
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import (
    bind,
    emit_at,
    extend,
    fixed_point,
    has_effect,
    rebuilt,
    rewrite,
    shape_of,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.cse_dce import dce

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


_MOST_PARTS = 64  # of a concat that is made of others, if most of its parts are the same


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
    if len(parts) > max(_MOST_PARTS, 4 * len({part.value for part in parts})):
        return None  # a value joined to itself, again and again
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
    target = shape_of(op.result)
    vector = 0 if target[-2:-1] == (1,) else 1 if target[-1:] == (1,) else None
    static = tensor(op.result).is_static and all(v.type.is_static for v in x)
    if vector is None or not static or x[0].dtype.bits < 32 or not x[0].dtype.is_floating:
        return None
    if any(n != 1 for v in x for n in v.shape[:-2]):
        return None
    a, b = (v.reshape(v.shape[-2:]) for v in x)  # of one matrix
    matrix = (a, b)[1 - vector]
    # the axis that is summed: rows of b or columns of a, unless transposed
    axis = (
        (1 if op.attrs["transpose_b"] else 0)
        if vector == 0
        else (0 if op.attrs["transpose_a"] else 1)
    )
    size = matrix.shape[axis]
    thin = (a, b)[vector].reshape((size, 1) if axis == 0 else (1, size))
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


def simplify(graph: Graph) -> Graph:
    """Apply the rules to a fixed point, inside regions too."""
    return fixed_point(graph, lambda g: rewrite(g, partial(_simplify_op, rules=RULES)))


def simplify_exactly(graph: Graph) -> Graph:
    """`simplify` with the rules alone that change no bit of a result."""
    return fixed_point(graph, lambda g: rewrite(g, partial(_simplify_op, rules=EXACT_RULES)))


def _simplify_op(
    builder: Builder, op: Operation, *, rules: Mapping[str, tuple[LocalRule, ...]]
) -> Sequence[Value] | None:
    if len(op.results) != 1:
        return None
    for rule in rules.get(op.name, ()):
        start = len(builder.ops)
        operands = [Expr(builder, v, op.locations) for v in op.operands]
        found = rule(op, operands)
        if found is not None and found.value.type == op.result.type:
            return [found.value]
        del builder.ops[start:]  # nothing refers to what a rule began and gave up
    return None


# ---------------------------------------------------------------------------------------- operands


def _number(x: Expr) -> complex | float | int | None:
    """The Python number that all elements of `x` are, or None."""
    scalar = uniform(x.value)
    return None if scalar is None or x.dtype.kind == "string" else scalar.item()


def _is(x: Expr, number: float) -> bool:
    """Whether all elements of the real (or bool) `x` are `number`, the sign of zero included."""
    found = _number(x)
    if found is None or isinstance(found, complex):
        return False
    return found == number and (
        not x.dtype.is_floating or math.copysign(1, found) == math.copysign(1, number)
    )


def _is_zero(x: Expr, negative: bool) -> bool:
    """Whether adding `x` (negative=True: a -0) or subtracting it changes no value at all."""
    found = _number(x)
    if found is None or x.dtype.kind == "bool":
        return False
    sign = -1.0 if negative else 1.0
    parts = [found.real, found.imag] if isinstance(found, complex) else [found]
    signed = x.dtype.is_inexact
    return all(p == 0 and (not signed or math.copysign(1, p) == sign) for p in parts)


def _made_by(x: Expr, *names: str) -> list[Expr] | None:
    """The operands of the op that made `x`, if it has one of these names."""
    op = x.value.op
    return [inside(x, op, i) for i in range(len(op.operands))] if op and op.name in names else None


def _same(a: Expr, b: Expr) -> bool:
    return a.value is b.value


# ------------------------------------------------------------------------------------- arithmetic


def _add(op: Operation, x: Sequence[Expr]) -> Expr | None:
    for a, b in (x, x[::-1]):
        if _is_zero(b, negative=True):
            return a
        if inner := _made_by(b, "negative"):
            return a - inner[0]
    return None


def _subtract(op: Operation, x: Sequence[Expr]) -> Expr | None:
    a, b = x
    if _is_zero(b, negative=False):
        return a
    if inner := _made_by(b, "negative"):
        return a + inner[0]
    if _is_zero(a, negative=True):
        return -b
    return a.full(0) if a.dtype.is_integer and _same(a, b) else None


def _multiply(op: Operation, x: Sequence[Expr]) -> Expr | None:
    for a, b in (x, x[::-1]):
        if a.dtype.is_complex:
            return None  # a product with 1+0i is NaN where a part is infinite
        if _is(b, 1):
            return a
        if a.dtype.kind != "uint" and _is(b, -1):
            return -a
        if a.dtype.is_integer and _is(b, 0):
            return b
    left, right = _made_by(x[0], "negative"), _made_by(x[1], "negative")
    return left[0] * right[0] if left and right else None


def _divide(op: Operation, x: Sequence[Expr]) -> Expr | None:
    a, b = x
    if a.dtype.is_complex:
        return None
    if _is(b, 1):
        return a
    # A power of two is not turned into a product: the divisor of a mean is the batch size, and
    # a kernel must not depend on which batch sizes are powers of two.
    return -a if _is(b, -1) else None


def _integer_divide(op: Operation, x: Sequence[Expr]) -> Expr | None:
    a, b = x
    if not a.dtype.is_integer or not _is(b, 1):
        return None
    return a if op.name == "floor_divide" else a.full(0)


def _power(op: Operation, x: Sequence[Expr]) -> Expr | None:
    a, b = x
    if a.dtype.is_complex:
        return None
    if _is(b, 1):
        return a
    if _is(b, 2):
        return a.op("square")
    if _is(b, 3):
        return a.op("square") * a
    if _number(b) == 0:
        return a.full(1)
    return a.op("reciprocal") if a.dtype.is_floating and _is(b, -1) else None


def _square(op: Operation, x: Sequence[Expr]) -> Expr | None:
    names = ("negative",) if x[0].dtype.is_complex else ("negative", "abs")
    inner = _made_by(x[0], *names)
    return inner[0].op("square") if inner and inner[0].dtype is x[0].dtype else None


def _involution(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """f(f(x)) = x."""
    inner = _made_by(x[0], op.name)
    return inner[0] if inner else None


def _idempotent(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """f(f(x)) = f(x)."""
    return x[0] if _made_by(x[0], op.name) and x[0].dtype is tensor(op.result).dtype else None


def _nothing_to_round(op: Operation, x: Sequence[Expr]) -> Expr | None:
    return x[0] if x[0].dtype.is_integer else _idempotent(op, x)


def _abs(op: Operation, x: Sequence[Expr]) -> Expr | None:
    return x[0] if x[0].dtype.kind == "uint" else _idempotent(op, x)


def _real_part(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """conj and real of what is real."""
    return None if x[0].dtype.is_complex else x[0]


def _same_operands(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """f(x, x) = x."""
    return x[0] if _same(x[0], x[1]) else None


# Above it e(e + 2) / (e(e + 2) + 2) rounds to 1, and its square is finite in f32.
_SATURATED = 2.0**40


def _tanh(op: Operation, x: Sequence[Expr]) -> Expr | None:
    """tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2) for e = exp(v), as mish has it; the same for
    `wf.nn.softplus`, which takes e = exp(-|v|) and adds max(v, 0).
    """
    if x[0].dtype.name not in ("float32", "float64"):
        return None
    added = _made_by(x[0], "add")
    positive = None
    tail = x[0]
    if added is not None:
        positive, tail = _softplus_parts(*added) or _softplus_parts(*added[::-1]) or (None, tail)
    logarithm = _made_by(tail, "log1p")
    if logarithm is None or not _made_by(logarithm[0], "exp"):
        return None
    e = logarithm[0]
    if positive is None:
        e = e.op("minimum", _SATURATED)
    top = e * (e + 2)
    if positive is None:
        return top / (top + 2)
    # with 1 / e for e, times e**2
    top = positive.where(e + e + 1, top)
    return top / (top + positive.where(2 * (e * e), e.full(2)))


def _softplus_parts(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """(v > 0, b) if a is where(v > 0, v, 0) and b is log1p(exp(where(v > 0, -v, v)))."""
    chosen, logarithm = _made_by(a, "where"), _made_by(b, "log1p")
    exponential = _made_by(logarithm[0], "exp") if logarithm else None
    argument = _made_by(exponential[0], "where") if exponential else None
    if chosen is None or argument is None or not _is_zero(chosen[2], negative=False):
        return None
    compared, negated = _made_by(chosen[0], "greater"), _made_by(argument[1], "negative")
    if compared is None or negated is None or not _is(compared[1], 0):
        return None
    v = chosen[1]
    same = all(_same(v, other) for other in (compared[0], negated[0], argument[2]))
    return (chosen[0], b) if same and _same(chosen[0], argument[0]) else None


# --------------------------------------------------------------------------------- bits and choices


def _with_neutral(neutral: int, absorbing: int | None) -> LocalRule:
    """f(x, neutral) = x, and f(x, absorbing) = absorbing."""

    def rule(op: Operation, x: Sequence[Expr]) -> Expr | None:
        for a, b in (x, x[::-1]):
            if _is(b, neutral):
                return a
            if absorbing is not None and _is(b, absorbing):
                return b
        return None

    return rule


def _bits(neutral: int, absorbing: int | None) -> LocalRule:
    """The same for bitwise ops, where -1 stands for all bits set."""

    def rule(op: Operation, x: Sequence[Expr]) -> Expr | None:
        ones = _all_ones(x[0].dtype)
        values = [ones if n == -1 else n for n in (neutral, absorbing)]
        assert values[0] is not None
        return _with_neutral(values[0], values[1])(op, x)

    return rule


def _all_ones(dtype: DType) -> int:
    return 1 if dtype.kind == "bool" else 2**dtype.bits - 1 if dtype.kind == "uint" else -1


def _shift(op: Operation, x: Sequence[Expr]) -> Expr | None:
    return x[0] if _is(x[1], 0) else None


def _where(op: Operation, x: Sequence[Expr]) -> Expr | None:
    condition, yes, no = x
    if _is(condition, 1) or _same(yes, no):
        return yes
    if _is(condition, 0):
        return no
    inner = _made_by(condition, "logical_not")
    return inner[0].where(no, yes) if inner else None


def _astype(op: Operation, x: Sequence[Expr]) -> Expr | None:
    target = tensor(op.result).dtype
    if x[0].dtype is target:
        return x[0]
    inner = _made_by(x[0], "astype")
    return inner[0].astype(target) if inner and is_lossless(inner[0].dtype, x[0].dtype) else None


def is_lossless(a: DType, b: DType) -> bool:
    """Whether every value of `a` is one of `b`, so that the way over `b` changes nothing."""
    if a is b or a.kind == "bool":
        return b.kind != "string"
    if "string" in (a.kind, b.kind) or b.kind == "bool":
        return False
    if a.is_integer:
        signed = a.kind == "int"
        if b.is_integer:
            return a.bits <= b.bits if a.kind == b.kind else not signed and a.bits < b.bits
        return a.bits - signed <= _precision(b) and (a.bits < 16 or b.name != "float16")
    if b.is_integer or (a.is_complex and not b.is_complex):
        return False
    narrow = {a.name, b.name} == {"float16", "bfloat16"}
    return not narrow and _precision(a) <= _precision(b)


def _precision(dtype: DType) -> int:
    """Bits of the significand, the implicit one included."""
    digits = {"bfloat16": 8, "float16": 11, "float32": 24, "complex64": 24}
    return digits.get(dtype.name, 53)


def _identity(op: Operation, x: Sequence[Expr]) -> Expr | None:
    return x[0]


RULES: Mapping[str, tuple[LocalRule, ...]] = {
    "add": (_add,),
    "subtract": (_subtract,),
    "multiply": (_multiply,),
    "divide": (_divide,),
    "floor_divide": (_integer_divide,),
    "remainder": (_integer_divide,),
    "power": (_power,),
    "square": (_square,),
    "tanh": (_tanh,),
    "abs": (_abs,),
    **dict.fromkeys(("negative", "logical_not", "bitwise_invert"), (_involution,)),
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), (_nothing_to_round,)),
    "conj": (_real_part, _involution),
    "real": (_real_part,),
    "maximum": (_same_operands,),
    "minimum": (_same_operands,),
    "logical_and": (_same_operands, _with_neutral(1, 0)),
    "logical_or": (_same_operands, _with_neutral(0, 1)),
    "logical_xor": (_with_neutral(0, None),),
    "bitwise_and": (_same_operands, _bits(-1, 0)),
    "bitwise_or": (_same_operands, _bits(0, -1)),
    "bitwise_xor": (_bits(0, None),),
    "bitwise_left_shift": (_shift,),
    "bitwise_right_shift": (_shift,),
    "where": (_where,),
    "astype": (_astype,),
    "identity": (_identity,),
    **SHAPE_RULES,
}

#: Without the rules by which something is computed in another way: `x ** 3`, tanh of a softplus,
#: products of matrices as loop nests.
EXACT_RULES: Mapping[str, tuple[LocalRule, ...]] = {
    name: tuple(rule for rule in rules if rule not in (_power, _tanh, *AS_NESTS))
    for name, rules in RULES.items()
}


_PRODUCTS = {"multiply": (0, 1), "square": (0, 0)}


def contract(graph: Graph) -> Graph:
    """`graph` with `fma` for every sum or difference of f32 or f64 with a product that only it
    reads; same object if there is none."""
    block = _contracted(graph.block)
    return graph if block is graph.block else dce(with_block(graph, block))


def _contracted(block: Block) -> Block:
    uses = Counter(v for op in block.ops for v in (*op.operands, *op.control))
    uses.update(block.results)
    builder = extend(block)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        new = with_operands(op, mapping, tuple(map(_contracted, op.regions)))
        made = None if has_effect(op) or op.control else _fused(builder, op, new, uses)
        if made is None:
            builder.ops.append(new)
        bind(mapping, op, new.results if made is None else [made])
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _fused(builder: Builder, op: Operation, new: Operation, uses: Counter[Value]) -> Value | None:
    """The `fma` for a sum or difference; `op`: it before operands were mapped, as `uses` has it."""
    if op.name not in ("add", "subtract") or tensor(op.result).dtype not in (float32, float64):
        return None
    for place in (0, 1):
        product, other = new.operands[place], new.operands[1 - place]
        if product.op is None or uses[op.operands[place]] != 1 or product.op.control:
            continue
        if product.op.name not in _PRODUCTS:
            continue
        a, b = (product.op.operands[k] for k in _PRODUCTS[product.op.name])
        if op.name == "subtract" and place == 0:
            other = emit_at(builder, op, "negative", other)
        elif op.name == "subtract":
            a, b = (b, a) if is_constant(b) else (a, b)
            a = emit_at(builder, product.op, "negative", a)
        where = merge_locations(op.locations, product.op.locations)
        return builder.emit1("fma", a, b, other, locations=where)
    return None
