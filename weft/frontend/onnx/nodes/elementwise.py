"""ONNX nodes of elementwise ops: one operator where there is one, else a formula of several.

A formula is written with `Expr`, a tensor of the graph with Python's operators, as the op's meaning
in `ir/ops/elementwise.py` is. 16-bit floats go through float32 in formulas, as weft computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.onnx.nodes.dtypes import working_dtype
from weft.frontend.onnx.nodes.graph import (
    GraphWriter,
    Held,
    RefusedError,
    dtype_of,
    inverted,
    joined,
    tensor_of,
)
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.graph import Operation, Value
from weft.ir.spec import dtype_attr


class Expr:
    """A tensor of the graph that is written, with its dtype; operators write nodes."""

    __slots__ = ("dtype", "name", "writer")

    def __init__(self, writer: GraphWriter, name: str, dtype: DType) -> None:
        self.writer, self.name, self.dtype = writer, name, dtype

    def call(self, kind: str, *others: Any, result: DType | None = None, **attrs: Any) -> Expr:
        """The operator of this and others, of which numbers are constants of the dtype."""
        names = [self.name, *(self._other(o) for o in others)]
        made = self.writer.call(kind, names, self.dtype, result=result, **attrs)
        return Expr(self.writer, made, result or self.dtype)

    def _other(self, other: Any) -> str:
        return other.name if isinstance(other, Expr) else self.number(other).name

    def number(self, value: Any) -> Expr:
        """A scalar of this dtype."""
        array = np.asarray(value).astype(self.dtype.numpy)
        return Expr(self.writer, self.writer.constant(array), self.dtype)

    def cast(self, dtype: DType) -> Expr:
        return Expr(self.writer, self.writer.cast(self.name, self.dtype, dtype), dtype)

    def truth(self, kind: str, *others: Any) -> Expr:
        """The operator, which gives bools."""
        return self.call(kind, *others, result=dtypes.bool_)

    def __add__(self, other: Any) -> Expr:
        return self.call("Add", other)

    def __sub__(self, other: Any) -> Expr:
        return self.call("Sub", other)

    def __rsub__(self, other: Any) -> Expr:
        return self.number(other).call("Sub", self)

    def __mul__(self, other: Any) -> Expr:
        return self.call("Mul", other)

    def __truediv__(self, other: Any) -> Expr:
        return self.call("Div", other)

    def __neg__(self) -> Expr:
        if self.dtype.kind == "uint":
            return self.number(0) - self
        return self.call("Neg")

    def __abs__(self) -> Expr:
        return self.call("Abs")

    def __lt__(self, other: Any) -> Expr:
        return self.truth("Less", other)

    def __le__(self, other: Any) -> Expr:
        return self.truth("LessOrEqual", other)

    def __gt__(self, other: Any) -> Expr:
        return self.truth("Greater", other)

    def __ge__(self, other: Any) -> Expr:
        return self.truth("GreaterOrEqual", other)

    def same(self, other: Any) -> Expr:
        """Whether elements are equal."""
        return self.truth("Equal", other)

    def __and__(self, other: Expr) -> Expr:
        return self.call("And", other)

    def __or__(self, other: Expr) -> Expr:
        return self.call("Or", other)

    def __xor__(self, other: Expr) -> Expr:
        return self.call("Xor", other)

    def __invert__(self) -> Expr:
        return self.call("Not")

    def where(self, a: Any, b: Any) -> Expr:
        """Of bools: a where they are true, else b; one of which is a tensor."""
        like = a if isinstance(a, Expr) else b
        assert isinstance(like, Expr)
        one, two = (v if isinstance(v, Expr) else like.number(v) for v in (a, b))
        return where(self, one, two)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """`Where`, in a dtype that onnxruntime has it for."""
    working = working_dtype("Where", a.dtype)
    writer = condition.writer
    made = writer.node("Where", condition.name, a.cast(working).name, b.cast(working).name)
    return Expr(writer, made, working).cast(a.dtype)


Formula = Callable[..., Expr]


# ----------------------------------------------------------------------------------------- formulas
def _exactly(x: Expr) -> Expr:
    return x


def _sign_bit(x: Expr) -> Expr:
    """Whether the sign is minus, also of -0. A NaN has none."""
    return (x < 0) | (x.same(0) & (x.call("Reciprocal") < 0))


def _with_sign(size: Expr, sign: Expr) -> Expr:
    bits, positive = _sign_bit(sign), abs(size)
    return bits.where(-positive, positive)


def _expm1(x: Expr) -> Expr:
    """W. Kahan's: exp(x) - 1 without cancellation (N. Higham, "Accuracy and Stability of Numerical
    Algorithms", 2002, section 1.14.1)."""
    u = x.call("Exp")
    less = u - 1
    simple = u.same(1) | less.same(-1) | u.truth("IsInf") | (abs(x) > 40)
    safe = simple.where(2.0, u)
    plain = u.same(1).where(x, less)
    return simple.where(plain, (safe - 1) * x / safe.call("Log"))


def _log1p(x: Expr) -> Expr:
    """W. Kahan's: log(u) x / (u - 1), u = 1 + x (Higham, as above, problem 1.5)."""
    u = x + 1
    simple = u.same(1) | u.same(math.inf)
    safe = simple.where(2.0, u)
    plain = u.same(1).where(x, u)
    return simple.where(plain, safe.call("Log") * (x / (safe - 1)))


def _trunc(x: Expr) -> Expr:
    return (x < 0).where(x.call("Ceil"), x.call("Floor"))


def _cbrt(x: Expr) -> Expr:
    return _with_sign(abs(x).call("Pow", 1.0 / 3.0), x)


def _hypot(a: Expr, b: Expr) -> Expr:
    a, b = abs(a), abs(b)
    large, small = a.call("Max", b), a.call("Min", b)
    simple = large.same(0) | large.truth("IsInf")
    ratio = small / simple.where(1.0, large)
    root = (ratio * ratio + 1).call("Sqrt")
    infinite = a.truth("IsInf") | b.truth("IsInf")
    return infinite.where(math.inf, simple.where(large, large * root))


def logaddexp(a: Expr, b: Expr) -> Expr:
    """log(exp(a) + exp(b))."""
    large = a.call("Max", b)
    equal = a.same(b)
    apart = equal.where(0.0, -abs(a - b))
    return large + _log1p(apart.call("Exp"))


def _atan2(y: Expr, x: Expr) -> Expr:
    both = x.truth("IsInf") & y.truth("IsInf")
    x1, y1 = both.where(x.call("Sign"), x), both.where(y.call("Sign"), y)
    upright = x1.same(0)
    angle = (y1 / upright.where(1.0, x1)).call("Atan")
    turned = angle + _with_sign(y.number(math.pi), y)
    left = _sign_bit(x)
    flat = left.where(_with_sign(y.number(math.pi), y), y)
    undefined = x.truth("IsNaN") | y.truth("IsNaN")
    found = (x1 < 0).where(turned, upright.where(_with_sign(y.number(math.pi / 2), y), angle))
    found = y1.same(0).where(flat, found)
    return undefined.where(math.nan, found)


def _not_zero(b: Expr) -> bool:
    """Whether all elements of a divisor are known not to be 0, nor -1."""
    array = b.writer.arrays.get(b.name)
    return array is not None and bool(np.all((array != 0) & (array != -1)))


def _int_remainder(a: Expr, b: Expr) -> Expr:
    if _not_zero(b):
        return a.call("Mod", b)
    none = b.same(0)
    if b.dtype.kind == "int":  # the least number % -1 is no number for a processor
        none = none | b.same(-1)
    return none.where(0, a.call("Mod", none.where(1, b)))


def _int_floor_divide(a: Expr, b: Expr) -> Expr:
    if _not_zero(b):
        return _floored(a, b)
    none = b.same(0)
    simple = none | b.same(-1) if b.dtype.kind == "int" else none
    found = _floored(a, simple.where(1, b))
    if b.dtype.kind == "int":
        found = b.same(-1).where(-a, found)
    return none.where(0, found)


def _floored(a: Expr, b: Expr) -> Expr:
    quotient = a / b
    if b.dtype.kind == "uint":
        return quotient
    below = ~a.call("Mod", b).same(0) & ((a < 0) ^ (b < 0))
    return below.where(quotient - 1, quotient)


def _divmod(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Python's remainder, without its sign of 0, and the quotient that is almost whole."""
    left = a.call("Mod", b, fmod=1)
    moved = ~left.same(0) & ((b < 0) ^ (left < 0))
    ratio = (a - left) / b
    return moved.where(left + b, left), moved.where(ratio - 1, ratio)


def _remainder(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        return _int_remainder(a, b)
    rest, _ = _divmod(a, b)
    return rest.same(0).where(_with_sign(rest, b), rest)


def _floor_divide(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        return _int_floor_divide(a, b)
    _, ratio = _divmod(a, b)
    down = ratio.call("Floor")
    near = (ratio - down > 0.5).where(down + 1, down)
    quotient = a / b
    zero = ratio.same(0)
    return b.same(0).where(quotient, zero.where(_with_sign(ratio, quotient), near))


def _power(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_integer:
        return a.call("Pow", b)
    array = b.writer.arrays.get(b.name)
    if array is not None and array.size and array.min() == array.max() and 0 <= array.min() <= 64:
        return _whole_power(a, int(array.min()))
    raise RefusedError(
        "it raises integers to powers that are not known, which runtimes compute as floats",
        "compute it in floats: wf.astype(x, wf.float64) ** n",
    )


def _whole_power(a: Expr, n: int) -> Expr:
    """a ** n by squares, which wraps as integers do."""
    made: Expr | None = None
    square = a
    while n:
        if n & 1:
            made = square if made is None else made * square
        n >>= 1
        square = square * square if n else square
    return a * 0 + 1 if made is None else made


_UNSIGNED = {
    dtypes.int8: dtypes.uint8, dtypes.int16: dtypes.uint16, dtypes.int32: dtypes.uint32,
    dtypes.int64: dtypes.uint64,
}  # fmt: skip


def _shift(a: Expr, b: Expr, direction: str) -> Expr:
    """A shift of unsigned numbers; 0 unless the count is that of a bit."""
    bits = a.dtype.bits
    known = b.writer.arrays.get(b.name)
    unsigned = _UNSIGNED.get(a.dtype, a.dtype)
    count = b.cast(unsigned)
    if known is not None and bool(np.all((known >= 0) & (known < bits))):
        return a.cast(unsigned).call("BitShift", count, direction=direction)
    outside = count >= bits  # a negative count is a large one
    shifted = a.cast(unsigned).call("BitShift", outside.where(0, count), direction=direction)
    return outside.where(0, shifted)


def _left_shift(a: Expr, b: Expr) -> Expr:
    return _shift(a, b, "LEFT").cast(a.dtype)


def _right_shift(a: Expr, b: Expr) -> Expr:
    if a.dtype.kind == "uint":
        return _shift(a, b, "RIGHT")
    turned = (a < 0).where(a.call("BitwiseNot"), a)  # not negative: zeros come in
    moved = _shift(turned, b, "RIGHT").cast(a.dtype)
    return (a < 0).where(moved.call("BitwiseNot"), moved)


def _bits(logical: str, bitwise: str) -> Formula:
    def formula(*operands: Expr) -> Expr:
        kind = logical if operands[0].dtype is dtypes.bool_ else bitwise
        return operands[0].call(kind, *operands[1:])

    return formula


def _whole(kind: str) -> Formula:
    """A rounding, which leaves integers as they are."""
    return lambda x: x if x.dtype.is_integer else x.call(kind)


def _not_for_ints(kind: str, found: bool) -> Formula:
    """A predicate of floats; what it is of all integers."""

    def formula(x: Expr) -> Expr:
        if x.dtype.is_floating:
            return x.truth(kind)
        return x.same(x) if found else ~x.same(x)

    return formula


def _finite(x: Expr) -> Expr:
    if not x.dtype.is_floating:
        return x.same(x)
    return ~(x.truth("IsNaN") | x.truth("IsInf"))


def _abs(x: Expr) -> Expr:
    return x if x.dtype.kind == "uint" else abs(x)


def _maximum(kind: str) -> Formula:
    return lambda a, b: a.call(kind, b)


def _comparison(kind: str) -> Formula:
    def formula(a: Expr, b: Expr) -> Expr:
        if a.dtype is dtypes.bool_ and kind != "Equal":
            a, b = a.cast(dtypes.uint8), b.cast(dtypes.uint8)
        return a.truth(kind, b)

    return formula


def _one(kind: str) -> Formula:
    return lambda *operands: operands[0].call(kind, *operands[1:])


#: Ops that are one operator of ONNX.
_SINGLE = {
    "sqrt": "Sqrt", "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
    "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
    "erf": "Erf", "sigmoid": "Sigmoid", "logical_not": "Not", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "add": "Add", "subtract": "Sub", "multiply": "Mul",
    "divide": "Div", "maximum": "Max", "minimum": "Min",
}  # fmt: skip

#: Ops that are formulas, or one operator for some dtypes.
_FORMULAS: dict[str, Formula] = {
    "abs": _abs,
    "sign": lambda x: x.call("Sign"),
    "negative": lambda x: -x,
    "square": lambda x: x * x,
    "cbrt": _cbrt,
    "rsqrt": lambda x: x.call("Sqrt").call("Reciprocal"),
    "exp2": lambda x: x.number(2).call("Pow", x),
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": lambda x: x.call("Log") * (1 / math.log(2)),
    "log10": lambda x: x.call("Log") * (1 / math.log(10)),
    "ceil": _whole("Ceil"),
    "floor": _whole("Floor"),
    "round": _whole("Round"),
    "trunc": lambda x: x if x.dtype.is_integer else _trunc(x),
    "isnan": _not_for_ints("IsNaN", False),
    "isinf": _not_for_ints("IsInf", False),
    "isfinite": _finite,
    "signbit": _sign_bit,
    "bitwise_invert": _bits("Not", "BitwiseNot"),
    "conj": _exactly,
    "real": _exactly,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "atan2": _atan2,
    "hypot": _hypot,
    "logaddexp": logaddexp,
    "copysign": _with_sign,
    "equal": _comparison("Equal"),
    "not_equal": lambda a, b: ~a.truth("Equal", b),
    "less": _comparison("Less"),
    "less_equal": _comparison("LessOrEqual"),
    "greater": _comparison("Greater"),
    "greater_equal": _comparison("GreaterOrEqual"),
    "bitwise_and": _bits("And", "BitwiseAnd"),
    "bitwise_or": _bits("Or", "BitwiseOr"),
    "bitwise_xor": _bits("Xor", "BitwiseXor"),
    "bitwise_left_shift": _left_shift,
    "bitwise_right_shift": _right_shift,
    "where": where,
    "fma": lambda a, b, c: a * b + c,
}

FORMULAS: dict[str, Formula] = {**{op: _one(kind) for op, kind in _SINGLE.items()}, **_FORMULAS}
#: Formulas that are one node, at least for floats: 16-bit floats need no detour. (The sign of NaN
#: in float16 is 0 in onnxruntime.)
_ONE_NODE = frozenset(_SINGLE) | {
    "abs", "negative", "square", "ceil", "floor", "round", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "where", "conj", "real", "isnan", "isinf", "isfinite",
    "power",
}  # fmt: skip


def elementwise(writer: GraphWriter, op: Operation) -> None:
    """Write an elementwise op, in the layout of its operands."""
    formula = FORMULAS[op.name]
    held_in = layout(writer, op.operands)
    operands = [Expr(writer, n, dtype_of(v)) for v, n in zip(op.operands, held_in[0], strict=True)]
    wide = dtypes.float32 if op.name not in _ONE_NODE else None
    if wide is not None:
        operands = [
            o.cast(wide) if o.dtype in (dtypes.float16, dtypes.bfloat16) else o for o in operands
        ]
    made = formula(*operands)
    wanted = dtype_of(op.result)
    finish(writer, op.result, made.cast(wanted).name, held_in)


Layout = tuple[list[str], "tuple[int, ...]", "tuple[Any, ...]", bool]


def layout(writer: GraphWriter, values: Sequence[Value]) -> Layout:
    """Operands that broadcast to each other: their names, how the axes of all are permuted, the
    shape that results, in that order, and whether it is all of the values' shape."""
    held = [writer.held[v] for v in values]
    rank = tensor_of(values[0]).rank
    perm: tuple[int, ...] = ()
    for one in held:
        if one.perm and one.name not in writer.arrays:
            perm = one.perm
            break
    if perm:  # a tensor's axis i is the value's axis order[i]
        order = inverted(perm)
        names = [writer.in_layout(one, rank, order) for one in held]
        shapes = [_ordered(one.turned, rank, order) for one in held]
    else:
        order = ()
        names = [writer.transposed(one, ()) if one.perm else one.name for one in held]
        shapes = [one.turned for one in held]
    shape = joined(shapes)
    kind = tensor_of(values[0]).shape
    whole = _ordered(kind, rank, order) if order else kind
    full = any(one.full for one in held) or (shape == whole and None not in shape)
    return names, perm, shape if not full else whole, full


def _ordered(shape: Sequence[Any], rank: int, order: Sequence[int]) -> tuple[Any, ...]:
    if all(isinstance(d, int) and d == 1 for d in shape) and len(shape) != rank:
        return tuple(shape)
    whole = (1,) * (rank - len(shape)) + tuple(shape)
    return tuple(whole[a] for a in order)


def finish(writer: GraphWriter, value: Value, name: str, held_in: Layout) -> None:
    """Note that a tensor, of operands that `layout` has named, is the value."""
    _, perm, shape, full = held_in
    if len(shape) != tensor_of(value).rank:
        perm = ()
    writer.held[value] = Held(name, shape, perm, full)


def astype(writer: GraphWriter, op: Operation) -> None:
    """`Cast`. Floats that are out of range give what the runtime gives, as weft says."""
    held = writer.held[op.operands[0]]
    name = writer.cast(held.name, dtype_of(op.operands[0]), dtype_attr(op.attrs, "dtype"))
    writer.held[op.result] = Held(name, held.shape, held.perm, held.full)


def imag(writer: GraphWriter, op: Operation) -> None:
    """The imaginary part of a real number: 0."""
    zero = writer.constant(np.zeros((), dtype_of(op.result).numpy))
    writer.held[op.result] = Held(zero, (), (), False)


BUILDERS: dict[str, Callable[[GraphWriter, Operation], None]] = {
    "imag": imag,
    **dict.fromkeys(FORMULAS, elementwise),
    "astype": astype,
}
