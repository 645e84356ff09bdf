"""The gradient table: the gradient of every op, a row each. `GRADIENTS` holds a rule for each op,
those of control flow from `control_flow.py`, or it is listed in `NO_GRADIENT`.

Elementwise ops. DERIVATIVES: f'(x) of a holomorphic y = f(x). UNARY: the cotangent of x itself.
BINARY: those of a and b. Names: g the cotangent of the result y. At points without a derivative the
choices are JAX's: abs and sign give 0 at 0, maximum and minimum give half to each of two equal
operands, and a power is 0 for the exponent at base 0 and for the base at exponent 0.

A convolution is one of the three derivatives of a trilinear form (`weft.ir.ops.windows`), so its
gradients are the two others, with the same attributes but for the size of the result.

Of ops whose results have sizes that depend on values the cotangent of a part is a part of the
cotangent, so the rules name the same sizes as the op. Updates have gradients with respect to what
they add or store. With respect to the value before, which is no operand here, the adjoint is the
cotangent of the new value, without the rows that were replaced: `frontend/autodiff/gradients.py`
takes it for the variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weft.ir.dims import Dim, Shape, product
from weft.ir.dtypes import float32, int64
from weft.ir.errors import GradientError
from weft.ir.ops.control_flow import COMMUNICATION
from weft.ir.ops.io import FILE_TABLE, REPORT_TABLE
from weft.ir.ops.resources import QUEUE_TABLE, RESOURCE_TABLE
from weft.ir.ops.strings import TABLE as STRING_TABLE
from weft.ir.ops.text_processing import TABLE as TEXT_TABLE
from weft.ir.spec import AttrValue, add_dims, ints_attr, shape_attr
from weft.passes.autodiff import control_flow, linear_algebra
from weft.passes.autodiff.collectives import COLLECTIVE_GRADIENTS
from weft.passes.autodiff.custom import CUSTOM_GRADIENTS
from weft.passes.autodiff.rule import Rule, Site, expand, sum_to
from weft.passes.autodiff.switches import DATAFLOW_GRADIENTS
from weft.passes.rewriting.expression import Expr, cos, exp, log, sin, sqrt, square

DERIVATIVES: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "square": lambda x, y: 2 * x,
    "sqrt": lambda x, y: 0.5 / y,
    "cbrt": lambda x, y: 1 / (3 * (y * y)),
    "rsqrt": lambda x, y: -0.5 * (y * y * y),
    "reciprocal": lambda x, y: -(y * y),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: math.log(2) * y,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log1p": lambda x, y: 1 / (x + 1),
    "log2": lambda x, y: 1 / math.log(2) / x,
    "log10": lambda x, y: 1 / math.log(10) / x,
    "sin": lambda x, y: cos(x),
    "cos": lambda x, y: -sin(x),
    "tan": lambda x, y: 1 + y * y,
    "asin": lambda x, y: 1 / sqrt(1 - x * x),
    "acos": lambda x, y: -1 / sqrt(1 - x * x),
    "atan": lambda x, y: 1 / (1 + x * x),
    "sinh": lambda x, y: x.op("cosh"),
    "cosh": lambda x, y: x.op("sinh"),
    "tanh": lambda x, y: 1 - y * y,
    "asinh": lambda x, y: 1 / sqrt(x * x + 1),
    # two roots: their arguments add up to more than half a turn in the complex plane
    "acosh": lambda x, y: 1 / (sqrt(x - 1) * sqrt(x + 1)),
    "atanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: 2 / math.sqrt(math.pi) * exp(-(x * x)),
    "erfc": lambda x, y: -2 / math.sqrt(math.pi) * exp(-(x * x)),
    "erfinv": lambda x, y: math.sqrt(math.pi) / 2 * exp(y * y),
    "lgamma": lambda x, y: x.op("digamma"),
    "digamma": lambda x, y: trigamma(x),
    "sigmoid": lambda x, y: y * (1 - y),
}

UNARY: Mapping[str, Callable[[Expr, Expr, Expr], Expr | None]] = {
    "negative": lambda g, x, y: -g,
    "abs": lambda g, x, y: g.astype(x.dtype) * x.op("sign"),
    "sign": lambda g, x, y: _sign(g, x, y) if x.dtype.is_complex else None,
    "conj": lambda g, x, y: g.conj(),
    "real": lambda g, x, y: g.astype(x.dtype),
    "imag": lambda g, x, y: g.astype(x.dtype) * 1j if x.dtype.is_complex else None,
    "astype": lambda g, x, y: _astype(g, x),
}

Partial = Callable[[Expr, Expr, Expr, Expr], Expr]

BINARY: Mapping[str, tuple[Partial, Partial | None]] = {
    "add": (lambda g, a, b, y: g, lambda g, a, b, y: g),
    "subtract": (lambda g, a, b, y: g, lambda g, a, b, y: -g),
    "multiply": (lambda g, a, b, y: g * b.conj(), lambda g, a, b, y: g * a.conj()),
    "divide": (lambda g, a, b, y: g / b.conj(), lambda g, a, b, y: -(g * (y / b).conj())),
    # a % b = a - b * floor(a / b)
    "remainder": (lambda g, a, b, y: g, lambda g, a, b, y: -(g * a.op("floor_divide", b))),
    "power": (
        lambda g, a, b, y: g * _power_base(a, b).conj(),
        lambda g, a, b, y: g * (log(a.equals(0).where(a.lift(1), a)) * y).conj(),
    ),
    "maximum": (lambda g, a, b, y: _larger(g, a, b), lambda g, a, b, y: _larger(g, b, a)),
    "minimum": (lambda g, a, b, y: _larger(g, b, a), lambda g, a, b, y: _larger(g, a, b)),
    "atan2": (
        lambda g, a, b, y: g * (b / (a * a + b * b)),
        lambda g, a, b, y: -(g * (a / (a * a + b * b))),
    ),
    "hypot": (
        lambda g, a, b, y: g * (a / y.equals(0).where(y.lift(1), y)),
        lambda g, a, b, y: g * (b / y.equals(0).where(y.lift(1), y)),
    ),
    "logaddexp": (
        lambda g, a, b, y: g * _difference(a, b).op("sigmoid"),
        lambda g, a, b, y: g * _difference(b, a).op("sigmoid"),
    ),
    "copysign": (lambda g, a, b, y: g * (a.op("sign") * a.lift(1).op("copysign", b)), None),
}


def _sign(g: Expr, x: Expr, y: Expr) -> Expr:
    """y = x / |x|: only the part of g across x counts."""
    along = (g.conj() * y).op("real").astype(x.dtype)
    size = x.op("abs")
    across = (g - y * along) / size.equals(0).where(size.lift(1), size).astype(x.dtype)
    return x.equals(0).where(x.lift(0), across)


def _astype(g: Expr, x: Expr) -> Expr | None:
    if not (x.dtype.is_inexact and g.dtype.is_inexact):
        return None
    drop = g.dtype.is_complex and not x.dtype.is_complex
    return (g.op("real") if drop else g).astype(x.dtype)


def _power_base(a: Expr, b: Expr) -> Expr:
    """b * a**(b-1), which is 0 at a = b = 0; for other a its own derivative for b stays right."""
    corner = b.equals(0).op("logical_and", a.equals(0))
    return b * a.op("power", corner.where(b.lift(1), b - 1))


def _larger(g: Expr, a: Expr, b: Expr) -> Expr:
    """g where a > b, half of it where they are equal."""
    return (a > b).where(g, a.equals(b).where(g * 0.5, 0))


def _difference(a: Expr, b: Expr) -> Expr:
    """a - b, and 0 for two equal infinities."""
    infinite = a.equals(b).op("logical_and", a.op("isinf"))
    return infinite.where(a.lift(0), a - b)


def trigamma(x: Expr) -> Expr:
    """The second derivative of log Gamma, to about 1e-14 relative.

    Abramowitz and Stegun 6.4.7 (reflection, below 1/2), 6.4.6 (recurrence, ten steps), 6.4.12
    (asymptotic series).
    """
    if x.dtype.bits == 16:
        return trigamma(x.astype(float32)).astype(x.dtype)
    reflect = x < 0.5
    z = reflect.where(1 - x, x)
    total = 1 / square(z)
    for k in range(1, 10):
        total = total + 1 / square(z + k)
    w = 1 / (z + 10)
    v = w * w
    series = v * 0 + 7 / 6
    for bernoulli in (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = bernoulli + v * series
    value = total + w + v / 2 + w * v * series
    # where it is not used, a point at which its own derivatives are finite
    angle = reflect.where(x - x.op("round"), 0.5)
    return reflect.where(math.pi**2 / square(sin(math.pi * angle)) - value, value)


def _where(s: Site) -> Sequence[Expr | None]:
    condition, zero = s.x, s.g.lift(0)
    return [None, condition.where(s.g, zero), condition.where(zero, s.g)]


def _fma(s: Site) -> Sequence[Expr | None]:
    a, b, _ = s.operands
    return [s.g * b, s.g * a, s.g]


def _holomorphic(derivative: Callable[[Expr, Expr], Expr]) -> Rule:
    return lambda s: [s.g * derivative(s.x, s.y).conj()]


def _unary(function: Callable[[Expr, Expr, Expr], Expr | None]) -> Rule:
    return lambda s: [function(s.g, s.x, s.y)]


def _binary(partials: tuple[Partial, Partial | None]) -> Rule:
    def rule(s: Site) -> Sequence[Expr | None]:
        return [
            p(s.g, s.x, s.operands[1], s.y) if p is not None and needed else None
            for p, needed in zip(partials, s.needed, strict=True)
        ]

    return rule


ELEMENTWISE_GRADIENTS: Mapping[str, Rule] = {
    **{name: _holomorphic(f) for name, f in DERIVATIVES.items()},
    **{name: _unary(f) for name, f in UNARY.items()},
    **{name: _binary(f) for name, f in BINARY.items()},
    "where": _where,
    "fma": _fma,
}

#: Piecewise constant, or not numbers.
NO_ELEMENTWISE_GRADIENT = frozenset(
    (
        *("ceil", "floor", "round", "trunc", "floor_divide", "nextafter", "bitcast"),
        *("isnan", "isinf", "isfinite", "signbit"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_not", "logical_and", "logical_or", "logical_xor"),
        *("bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
)


def _matmul(s: Site) -> Sequence[Expr | None]:
    """C = A B: the cotangents are G B^H and A^H G, summed over batch axes that were broadcast.

    One B for a stack of A: its gradient is one product over the rows of all of them.
    """
    (a, b), g = s.operands, s.g
    transpose_a, transpose_b = bool(s.attrs["transpose_a"]), bool(s.attrs["transpose_b"])
    grads: list[Expr | None] = [None, None]
    if s.needed[0]:
        if transpose_a:  # the operand is A^T, its cotangent (G B^H)^T = conj(B) G^T
            grads[0] = _product(b.conj(), g, transpose_b, True)
        else:
            grads[0] = _product(g, b.conj(), False, not transpose_b)
    if s.needed[1]:
        rows = _as_rows(a, g) if not transpose_a and b.rank == 2 else None
        if rows is not None:  # one product over all rows instead of a sum of products
            left, right = rows[::-1] if transpose_b else rows
            factors = (left, right.conj()) if transpose_b else (left.conj(), right)
            grads[1] = _product(*factors, True, False)
        elif transpose_b:  # the operand is B^T, its cotangent (A^H G)^T = G^T conj(A)
            grads[1] = _product(g, a.conj(), True, transpose_a)
        else:
            grads[1] = _product(a.conj(), g, not transpose_a, False)
    return [None if d is None else sum_to(d, x.shape) for d, x in zip(grads, (a, b), strict=True)]


def _as_rows(a: Expr, g: Expr) -> tuple[Expr, Expr] | None:
    """Two stacks of matrices with the same rows as one matrix each; None for unknown sizes."""
    if a.rank == 2 or None in (*a.shape, *g.shape) or a.shape[:-1] != g.shape[:-1]:
        return None
    rows = math.prod(d for d in a.shape[:-1] if isinstance(d, int))
    return a.reshape((rows, a.shape[-1])), g.reshape((rows, g.shape[-1]))


def _product(a: Expr, b: Expr, transpose_a: bool, transpose_b: bool) -> Expr:
    return a.op("matmul", b, transpose_a=transpose_a, transpose_b=transpose_b)


MATMUL_GRADIENTS: Mapping[str, Rule] = {"matmul": _matmul}


def _other(s: Site, name: str, a: Expr, b: Expr, size: tuple[Dim, ...]) -> Expr:
    attrs: dict[str, AttrValue] = {**s.attrs, "size": size}
    return a.op(name, b, **attrs)


def _conv(s: Site) -> Sequence[Expr | None]:
    (x, w), g = s.operands, s.g
    return [
        _other(s, "conv_input", g, w.conj(), x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", x.conj(), g, w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_input(s: Site) -> Sequence[Expr | None]:
    (y, w), g = s.operands, s.g
    return [
        _other(s, "conv", g, w.conj(), y.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv_kernel", g, y.conj(), w.shape[:-2]) if s.needed[1] else None,
    ]


def _conv_kernel(s: Site) -> Sequence[Expr | None]:
    (x, y), g = s.operands, s.g
    return [
        _other(s, "conv_input", y.conj(), g, x.shape[1:-1]) if s.needed[0] else None,
        _other(s, "conv", x.conj(), g, y.shape[1:-1]) if s.needed[1] else None,
    ]


def _adjoint_sum(name: str) -> Rule:
    def rule(s: Site) -> Sequence[Expr | None]:
        attrs: dict[str, AttrValue] = {**s.attrs, "size": s.x.shape[1:-1]}
        return [s.g.op(name, **attrs)]

    return rule


def _place(s: Site, x: Expr, g: Expr) -> Expr:
    attrs = {k: v for k, v in s.attrs.items() if k != "size"}
    return x.op("window_place", g, **attrs)


def _window_place(s: Site) -> Sequence[Expr | None]:
    x, g = s.operands
    attrs: dict[str, AttrValue] = {**s.attrs, "size": g.shape[1:-1]}
    return [None, x.op("window_pick", s.g, **attrs)]


CONV_GRADIENTS: Mapping[str, Rule] = {
    "conv": _conv,
    "conv_input": _conv_input,
    "conv_kernel": _conv_kernel,
    "window_sum": _adjoint_sum("window_spread"),
    "window_spread": _adjoint_sum("window_sum"),
    "window_max": lambda s: [_place(s, s.x, s.g)],
    "window_pick": lambda s: [None, _place(s, s.x, s.g)],
    "window_place": _window_place,
}


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
    return last.spread(update.shape).where(g.op("gather_nd", index), 0)


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


ARRAY_GRADIENTS: Mapping[str, Rule] = {
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
NO_ARRAY_GRADIENT = frozenset(
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
        grads.append(last.spread(rows.shape).where(s.g.op("take", index, axis=0), 0))
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
NO_DYNAMIC_GRADIENT = frozenset({
    "nonzero", "repeat_index", "sparse_pairs", "sparse_pairs_padded", "dynamic_size",
})  # fmt: skip


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
    "update_open": lambda s: UPDATE_GRADIENTS[str(s.attrs["update"])](s),
}

NO_UPDATE_GRADIENT = frozenset(
    {
        *("variable", "read", "assign", "count_up_to", "read_open", "assign_open"),
        *("is_initialized", "assert_initialized", "report_uninitialized"),
    }
)


def _fused(s: Site) -> Sequence[Expr | None]:
    """Compute the region once more in the open and differentiate that."""
    builder, xs = s.x.builder, [x.value for x in s.operands]
    start = len(builder.ops)
    ys = builder.inline(s.op.regions[0], xs)
    given = [None if g is None else g.value for g in s.cotangents]
    grads = s.pull_back(builder, builder.ops[start:], ys, given, xs)
    return [None if g is None else s.x.wrap(g) for g in grads]


def _of_communication(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"op '{s.op.name}' has no gradient: gradients are taken before a graph is partitioned",
        hint="differentiate the whole graph",
        location=s.op.locations,
    )


def _of_py_function(s: Site) -> Sequence[Expr | None]:
    raise GradientError(
        f"the Python function '{s.attrs['function']}' has no gradient: weft does not see inside it",
        hint="wrap the call with wf.custom_gradient, or its result with wf.stop_gradient",
        location=s.op.locations,
    )


def _made_by(name: str) -> Rule:
    """Of an op that a pass makes after gradients."""

    def rule(s: Site) -> Sequence[Expr | None]:
        raise GradientError(
            f"op '{s.op.name}' has no gradient: gradients are taken before the pass {name}",
            hint=f"differentiate first, or run passes without {name}",
            location=s.op.locations,
        )

    return rule


def _of_scalar_function(s: Site) -> Sequence[Expr | None]:
    name = str(s.op.attrs["function"])
    raise GradientError(
        f"the scalar function '{name}' has no gradient: it branches or loops on its operands, so "
        "Numba compiles it",
        hint=f"give it one with @{name.rpartition('.')[2]}.def_gradient, write the branch with "
        "wf.where, or use wf.stop_gradient around it",
        location=s.op.locations,
    )


def _fourier(adjoint: str, *kept: str) -> Rule:
    """Transforms are linear: their adjoints are transforms of the same `scale`, which is real."""

    def rule(s: Site) -> Sequence[Expr | None]:
        attrs = {name: s.attrs[name] for name in ("axis", "scale", *kept)}
        if adjoint == "fft":
            attrs["inverse"] = not s.attrs["inverse"]
        if adjoint == "irfft":
            attrs["n"] = s.x.shape[s.axis]
        return [s.g.op(adjoint, **attrs)]

    return rule


#: `mirrored` weighs the elements, so that even and odd lengths are no cases here.
FOURIER_GRADIENTS: Mapping[str, Rule] = {
    "fft": _fourier("fft"),
    "rfft": _fourier("irfft", "mirrored"),
    "irfft": _fourier("rfft", "mirrored"),
}


GRADIENTS: dict[str, Rule] = {
    **ELEMENTWISE_GRADIENTS,
    **ARRAY_GRADIENTS,
    **MATMUL_GRADIENTS,
    **FOURIER_GRADIENTS,
    **COLLECTIVE_GRADIENTS,
    **linear_algebra.GRADIENTS,
    **control_flow.GRADIENTS,
    **CONV_GRADIENTS,
    **DYNAMIC_GRADIENTS,
    **UPDATE_GRADIENTS,
    **control_flow.STACK_GRADIENTS,
    **DATAFLOW_GRADIENTS,
    **dict.fromkeys(sorted(COMMUNICATION), _of_communication),
    **dict.fromkeys(("attention", "attention_grad"), _made_by("fuse_attention")),
    "sparse_matmul": _made_by("fuse_sparse_products"),
    "quantized_matmul": _made_by("fuse_quantized_products"),
    "scalar_function": _of_scalar_function,
    "identity": lambda s: [s.g],
    "tap": lambda s: [s.g],
    "optimization_barrier": lambda s: [s.g],
    "py_function": _of_py_function,
    **CUSTOM_GRADIENTS,
    **dict.fromkeys(("fused", "unrolled"), _fused),
}

NO_GRADIENT: frozenset[str] = frozenset(
    {
        *NO_ELEMENTWISE_GRADIENT,
        *(
            spec.name
            for spec in (*QUEUE_TABLE, *RESOURCE_TABLE, *STRING_TABLE, *FILE_TABLE, *REPORT_TABLE)
        ),
        "debug_callback",
        "axis_index",
        *(spec.name for spec in TEXT_TABLE),
        *NO_ARRAY_GRADIENT,
        *NO_DYNAMIC_GRADIENT,
        *control_flow.NO_STACK_GRADIENT,
        *NO_UPDATE_GRADIENT,
        *("constant", "group", "stop_gradient", "loop_mark"),
        *("random_bits", "random_fold_in"),
    }
)
