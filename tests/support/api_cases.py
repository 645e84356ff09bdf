"""The table behind test_ops_api: each public function on some inputs, and what NumPy makes of
them.

A case is named `function` or `function:detail`. Its inputs are arrays; everything else is fixed in
the two lambdas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special as sp

import weft as wf

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call. tolerance: relative, in units of the result dtype's epsilon; 0 means equal bits."""

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Array, ...]
    tolerance: float = 16.0

    @property
    def function(self) -> str:
        return self.name.partition(":")[0]


RNG = np.random.default_rng(7)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 3.5, -2.0])
X = RNG.normal(size=(3, 4))
Y = RNG.normal(size=(3, 4)) + 3
POS = np.abs(X) + 0.1
UNIT = RNG.uniform(-0.99, 0.99, (3, 4))
F32 = X.astype(np.float32)
BIG = RNG.normal(size=(2, 3, 4)).astype(np.float32)
INT = np.array([[3, -4, 0, 7], [5, 2, -1, 9]], np.int32)
INT2 = np.array([[2, 3, -2, 7], [1, 3, 3, -4]], np.int32)
SMALL = np.array([100, 100, -3], np.int8)
BOOL = np.array([[True, False, True], [False, False, True]])
BOOL2 = np.array([[True, True, False], [False, True, True]])
CPLX = (X + 1j * Y).astype(np.complex128)
VEC = np.array([3.0, -1.0, 2.0, 2.0, 7.0])
SORTED = np.array([-1.0, 0.5, 0.5, 2.0, 4.0])
SQUARE = RNG.normal(size=(3, 3))
ROWS = np.array([2, 0, -1, 0])
UINT = np.array([1, 2, 5], np.uint8)

# name: NumPy's function; array-API names on the left
UNARY: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "abs": (np.abs, (X, INT, CPLX, SPECIAL)),
    "acos": (np.arccos, (UNIT, SPECIAL)),
    "acosh": (np.arccosh, (POS + 1,)),
    "asin": (np.arcsin, (UNIT,)),
    "asinh": (np.arcsinh, (X,)),
    "atan": (np.arctan, (X, SPECIAL)),
    "atanh": (np.arctanh, (UNIT,)),
    "bitwise_invert": (np.invert, (INT, BOOL)),
    "ceil": (np.ceil, (X, SPECIAL)),
    "conj": (np.conj, (X, CPLX)),
    "cos": (np.cos, (X, SPECIAL)),
    "cbrt": (np.cbrt, (X, SPECIAL)),
    "cosh": (np.cosh, (X,)),
    "deg2rad": (np.deg2rad, (X,)),
    "digamma": (sp.psi, (POS,)),
    "erf": (sp.erf, (X, SPECIAL)),
    "erfc": (sp.erfc, (X, SPECIAL)),
    "erfinv": (sp.erfinv, (UNIT,)),
    "exp": (np.exp, (X, F32, CPLX, SPECIAL)),
    "exp2": (np.exp2, (X,)),
    "expm1": (np.expm1, (X * 1e-5,)),
    "floor": (np.floor, (X, SPECIAL)),
    "imag": (np.imag, (X, CPLX)),
    "isfinite": (np.isfinite, (SPECIAL, INT, BOOL)),
    "isinf": (np.isinf, (SPECIAL, INT)),
    "isnan": (np.isnan, (SPECIAL, INT, CPLX)),
    "lgamma": (sp.gammaln, (POS,)),
    "log": (np.log, (POS, SPECIAL)),
    "log10": (np.log10, (POS,)),
    "log1p": (np.log1p, (POS,)),
    "log2": (np.log2, (POS,)),
    "logical_not": (np.logical_not, (BOOL, INT, SPECIAL)),
    "negative": (np.negative, (X, INT, SPECIAL)),
    "positive": (np.positive, (X, INT)),
    "rad2deg": (np.rad2deg, (X,)),
    "real": (np.real, (X, CPLX)),
    "reciprocal": (np.reciprocal, (X, SPECIAL)),
    "round": (np.round, (X, SPECIAL, CPLX)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (POS,)),
    "sigmoid": (sp.expit, (X, SPECIAL)),
    "sign": (np.sign, (X, INT, SPECIAL)),
    "signbit": (np.signbit, (SPECIAL,)),
    "sin": (np.sin, (X, SPECIAL)),
    "sinc": (np.sinc, (X, np.array([0.0, 1e-3]))),
    "sinh": (np.sinh, (X,)),
    "sqrt": (np.sqrt, (POS, SPECIAL)),
    "square": (np.square, (X, INT, CPLX)),
    "tan": (np.tan, (X,)),
    "tanh": (np.tanh, (X, SPECIAL)),
    "trunc": (np.trunc, (X, SPECIAL)),
    "nan_to_num": (np.nan_to_num, (SPECIAL, INT)),
}
_INTS = (np.array([[6, 1, 12, 3]], np.int32), INT)
_BOOLS = (BOOL, BOOL2)
_FLOATS = (X, Y)
_EDGES = (SPECIAL, SPECIAL[::-1].copy())
_BROADCAST = (X[:, :1].copy(), Y[0])
BINARY: dict[str, tuple[Callable[..., Any], tuple[tuple[Array, Array], ...]]] = {
    "add": (np.add, (_FLOATS, _INTS, _EDGES, _BROADCAST, (UINT, INT[0, :3].copy()))),
    "atan2": (np.arctan2, (_FLOATS, _EDGES)),
    "bitwise_and": (np.bitwise_and, (_INTS, _BOOLS)),
    "bitwise_left_shift": (np.left_shift, ((INT, np.array([0, 1, 3, 5], np.int32)),)),
    "bitwise_or": (np.bitwise_or, (_INTS, _BOOLS)),
    "bitwise_right_shift": (np.right_shift, ((INT, np.array([0, 1, 3, 5], np.int32)),)),
    "bitwise_xor": (np.bitwise_xor, (_INTS, _BOOLS)),
    "copysign": (np.copysign, (_FLOATS, _EDGES)),
    "divide": (np.divide, (_FLOATS, _EDGES, _BROADCAST)),
    "equal": (np.equal, (_FLOATS, _EDGES, (INT, INT2), _BOOLS)),
    "floor_divide": (np.floor_divide, (_FLOATS, (INT, INT2))),
    "greater": (np.greater, (_FLOATS, _EDGES)),
    "greater_equal": (np.greater_equal, (_FLOATS, _EDGES)),
    "hypot": (np.hypot, (_FLOATS, _EDGES)),
    "isclose": (np.isclose, (_FLOATS, _EDGES, (X, X + 1e-9))),
    "less": (np.less, (_FLOATS, _EDGES, (INT, INT2))),
    "less_equal": (np.less_equal, (_FLOATS, _EDGES)),
    "logaddexp": (np.logaddexp, (_FLOATS, _EDGES)),
    "logical_and": (np.logical_and, (_BOOLS, (INT, INT2))),
    "logical_or": (np.logical_or, (_BOOLS, (INT, INT2))),
    "logical_xor": (np.logical_xor, (_BOOLS, (INT, INT2))),
    "maximum": (np.maximum, (_FLOATS, _EDGES, (INT, INT2))),
    "minimum": (np.minimum, (_FLOATS, _EDGES)),
    "multiply": (np.multiply, (_FLOATS, _INTS, _EDGES, _BROADCAST)),
    "nextafter": (np.nextafter, (_FLOATS,)),
    "not_equal": (np.not_equal, (_FLOATS, _EDGES)),
    "pow": (np.power, ((POS, Y), _EDGES, (INT, np.array([0, 1, 2, 3], np.int32)))),
    "remainder": (np.remainder, (_FLOATS, (INT, INT2))),
    "squared_difference": (lambda a, b: (a - b) ** 2, (_FLOATS,)),
    "subtract": (np.subtract, (_FLOATS, _INTS, _EDGES)),
    "xlogy": (sp.xlogy, ((POS, Y), (np.array([0.0, 0.0, 2.0]), np.array([0.0, np.nan, 3.0])))),
    "xlog1py": (sp.xlog1py, ((POS, Y), (np.array([0.0, 2.0]), np.array([-1.0, 3.0])))),
}


def _from_name(name: str, *args: Any, **options: Any) -> Callable[..., Any]:
    return lambda *xs: getattr(wf, name)(*xs, *args, **options)


ELEMENTWISE = [
    Case(f"{name}:{i}", _from_name(name), function, (x,), 32)
    for name, (function, inputs) in UNARY.items()
    for i, x in enumerate(inputs)
] + [
    Case(f"{name}:{i}", _from_name(name), function, pair, 32)
    for name, (function, pairs) in BINARY.items()
    for i, pair in enumerate(pairs)
]


def _lse(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return sp.logsumexp(x, axis=axis, keepdims=keepdims)


def _both(name: str, np_name: str, x: Array, **options: Any) -> Case:
    """A function of one array that takes the same keywords in weft and NumPy."""
    detail = ",".join(f"{k}={v}" for k, v in options.items())
    function = getattr(np, np_name)
    return Case(
        f"{name}:{x.dtype}:{detail}",
        _from_name(name, **options),
        lambda a: function(a, **options),
        (x,),
    )


REDUCTIONS = [
    _both(name, name, x, **options)
    for name in ("sum", "prod", "max", "min", "mean", "var", "std")
    for x in (BIG, X)
    for options in ({}, {"axis": 0}, {"axis": (0, -1), "keepdims": True})
    if x.ndim == 3 or options.get("axis") != (0, -1) or x is X
] + [
    _both("sum", "sum", SMALL),
    _both("sum", "sum", BOOL, axis=1),
    _both("sum", "sum", UINT),
    _both("prod", "prod", SMALL),
    _both("sum", "sum", CPLX, axis=0),
    _both("var", "var", CPLX),
    _both("max", "max", SPECIAL),
    _both("all", "all", BOOL, axis=0),
    _both("any", "any", INT, axis=1, keepdims=True),
    _both("count_nonzero", "count_nonzero", INT, axis=1),
    _both("argmax", "argmax", BIG, axis=1),
    _both("argmax", "argmax", BIG, keepdims=True),
    _both("argmax", "argmax", SPECIAL),
    _both("argmin", "argmin", BIG, axis=-1, keepdims=True),
    _both("cumulative_sum", "cumulative_sum", BIG, axis=1, include_initial=True),
    _both("cumulative_sum", "cumulative_sum", SMALL),
    _both("cumulative_prod", "cumulative_prod", BIG, axis=-1, include_initial=True),
    Case(
        "var:correction", lambda x: wf.var(x, 1, correction=1), lambda x: np.var(x, 1, ddof=1), (X,)
    ),
    Case(
        "std:none", lambda x: wf.std(x, correction=5), lambda x: np.std(x, ddof=5), (SMALL * 1.0,)
    ),
    Case(
        "cumulative_max",
        lambda x: wf.cumulative_max(x, axis=1),
        lambda x: np.maximum.accumulate(x, 1),
        (X,),
    ),
    Case(
        "cumulative_min",
        lambda x: wf.cumulative_min(x, axis=0),
        lambda x: np.minimum.accumulate(x, 0),
        (X,),
    ),
    Case(
        "cumulative_logsumexp",
        lambda x: wf.cumulative_logsumexp(x, axis=1, include_initial=True),
        lambda x: np.pad(np.logaddexp.accumulate(x, 1), ((0, 0), (1, 0)), constant_values=-np.inf),
        (X * 500,),
    ),
    Case("logsumexp", lambda x: wf.logsumexp(x, axis=1), lambda x: _lse(x, 1), (X * 500,)),
    Case("logsumexp:all", wf.logsumexp, _lse, (X,)),
    Case(
        "logsumexp:inf",
        lambda x: wf.logsumexp(x, -1, keepdims=True),
        lambda x: _lse(x, -1, True),
        (np.array([[-np.inf, -np.inf], [np.inf, 1], [np.nan, 1], [-np.inf, 2]]),),
    ),
    Case(
        "reduce_sum",
        lambda x: wf.reduce_sum(x, 1, True),
        lambda x: x.sum(1, keepdims=True, dtype=np.int8),
        (SMALL[None],),
    ),
    Case("reduce_prod", lambda x: wf.reduce_prod(x, 0), lambda x: x.prod(0), (X,)),
    Case("reduce_mean", wf.reduce_mean, np.mean, (X,)),
    Case("reduce_max", lambda x: wf.reduce_max(x, [0, 1]), np.max, (X,)),
    Case("reduce_min", lambda x: wf.reduce_min(x, -1), lambda x: x.min(-1), (X,)),
    Case("reduce_all", wf.reduce_all, np.all, (BOOL,)),
    Case("reduce_any", lambda x: wf.reduce_any(x, 0), lambda x: x.any(0), (BOOL,)),
    Case("reduce_logsumexp", wf.reduce_logsumexp, _lse, (X,)),
    Case(
        "cumsum",
        lambda x: wf.cumsum(x, 1, exclusive=True),
        lambda x: np.cumsum(x, 1) - x,
        (INT.astype(np.int64),),
    ),
    Case(
        "cumsum:reverse",
        lambda x: wf.cumsum(x, 1, True, True),
        lambda x: np.cumsum(x[:, ::-1], 1)[:, ::-1] - x,
        (INT.astype(np.int64),),
    ),
    Case(
        "cumprod",
        lambda x: wf.cumprod(x, 1, reverse=True),
        lambda x: np.cumprod(x[:, ::-1], 1)[:, ::-1],
        (X,),
    ),
]
