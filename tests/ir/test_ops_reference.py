"""Elementwise rows of the op table: their NumPy references against Python's own arithmetic.

Each `scalar` expression is evaluated with `math`, `cmath` and unbounded integers, once per element,
and must agree with the row's reference on every dtype that its type rule lets in.
"""

import cmath
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.special
from elementwise_names import NAMES

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.errors import TypeRuleError
from weft.ir.interpreter.evaluate import evaluate_op
from weft.ir.ops import OPS
from weft.ir.ops.elementwise import BINARY, UNARY
from weft.ir.spec import OpSpec
from weft.ir.types import TensorType

pytestmark = pytest.mark.filterwarnings("error")

HALVES = (dtypes.float16, dtypes.bfloat16)
INTEGERS = tuple(d for d in dtypes.ALL if d.is_integer)

REAL_NAMES = {name: getattr(math, name) for name in dir(math) if not name.startswith("_")} | {
    "conj": lambda a: a,
    "real": lambda a: a,
    "imag": lambda a: 0,
    "digamma": lambda a: (math.lgamma(a + 1e-4) - math.lgamma(a - 1e-4)) / 2e-4,
    "erfinv": lambda a: _solve(math.erf, a),
    "fma": lambda a, b, c: float(Fraction(a) * Fraction(b) + Fraction(c)),
    "logaddexp": lambda a, b: math.log(math.exp(a) + math.exp(b)),
}
COMPLEX_NAMES = {name: getattr(cmath, name) for name in dir(cmath) if not name.startswith("_")} | {
    "conj": lambda a: a.conjugate(),
    "real": lambda a: a.real,
    "imag": lambda a: a.imag,
    "exp2": lambda a: 2**a,
    "expm1": lambda a: cmath.exp(a) - 1,
    "log1p": lambda a: cmath.log(1 + a),
    "log2": lambda a: cmath.log(a) / math.log(2),
    "round": lambda a: complex(round(a.real), round(a.imag)),
}
DOMAINS = {
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-0.9, 0.9)),
    **dict.fromkeys(
        ("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma", "power"), (0.2, 5)
    ),
    "log1p": (-0.7, 3),
    "acosh": (1.1, 5),
}


def _solve(function: Callable[[float], float], value: float) -> float:
    low, high = -6.0, 6.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return low


def allowed(name: str, dtype: DType) -> bool:
    """Whether the type rule takes operands of this dtype."""
    types = [TensorType(dtype, (3,))] * OPS[name].arity
    try:
        OPS[name].infer(types, {}, ())
    except TypeRuleError:
        return False
    return True


def samples(name: str, dtype: DType, count: int, seed: int) -> np.ndarray:
    """Numbers on which the scalar expression is defined; for integers the limits are among them."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        values = rng.integers(-5, 8, count, dtype=np.int64).astype(dtype.numpy)
        values[:2] = (info.min, info.max)
        if seed and ("shift" in name or name in ("floor_divide", "remainder", "power")):
            values = np.abs(values % 7) + 1
        return values.astype(dtype.numpy)
    low, high = DOMAINS.get(name, (-3, 3))
    values = rng.uniform(low, high, count)
    if dtype.is_complex:
        values = values + 1j * rng.uniform(-2, 2, count)
    return values.astype(dtype.numpy)


def wrap(value: Any, dtype: DType) -> Any:
    """An exact integer in the dtype's two's complement; other values as they are."""
    if dtype.kind == "bool":
        return bool(value & 1)
    if dtype.is_integer and isinstance(value, int):
        value %= 2**dtype.bits
        return value - 2**dtype.bits if dtype.kind == "int" and value >> (dtype.bits - 1) else value
    return value


def by_expression(name: str, arrays: list[np.ndarray], dtype: DType) -> list[Any]:
    names = COMPLEX_NAMES if dtype.is_complex else REAL_NAMES
    code = compile(OPS[name].scalar, name, "eval")
    python = [[x.item() if dtype not in HALVES else float(x) for x in a] for a in arrays]
    rows = zip(*python, strict=True)
    return [eval(code, dict(names), dict(zip("abc", row, strict=False))) for row in rows]


def tolerance(name: str, dtype: DType) -> float:
    eps = float(np.finfo(dtypes.real_of(dtype).numpy).eps) if dtype not in HALVES else 0.0
    eps = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}.get(dtype, eps)
    # the derivative of lgamma is a difference quotient here
    return max(eps * (0.51 if dtype in HALVES else 16), 1e-7 if name == "digamma" else 0.0)


def test_the_table_has_every_op() -> None:
    elementwise = {n for n, s in OPS.items() if "elementwise" in s.traits}
    assert set(NAMES.split()) == elementwise - {"scalar_function"}  # tests/ir/test_scalar_function
    for name in NAMES.split():
        assert OPS[name].scalar
        assert OPS[name].doc.endswith(".")


@pytest.mark.parametrize("spec", [*UNARY, *BINARY], ids=lambda s: s.name)
def test_reference_is_the_scalar_expression(spec: OpSpec) -> None:
    checked = [d for d in dtypes.ALL if d.kind != "string" and allowed(spec.name, d)]
    assert checked
    if spec.name == "nextafter":  # math's is of float64 only; the others are tested below
        checked = [dtypes.float64]
    for dtype in checked:
        arrays = [samples(spec.name, dtype, 40, seed) for seed in range(spec.arity)]
        (got,) = evaluate_op(spec.name, arrays)
        wanted = [wrap(v, dtype) for v in by_expression(spec.name, arrays, dtype)]
        result = dtypes.as_dtype(got.dtype)
        if result.is_inexact:
            wide = got.astype(np.complex128 if result.is_complex else np.float64)
            limit = tolerance(spec.name, dtype)
            np.testing.assert_allclose(wide, wanted, rtol=limit, atol=limit, err_msg=dtype.name)
        else:
            assert got.tolist() == wanted, dtype.name


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8], ids=lambda d: d.name)
@pytest.mark.parametrize(
    "name", ["floor_divide", "remainder", "power", "left", "right", "multiply"]
)
def test_integer_pairs_exhaustively(name: str, dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    values = np.arange(info.min, info.max + 1).astype(dtype.numpy)
    a, b = (x.ravel() for x in np.meshgrid(values, values, indexing="ij"))

    def exact(x: int, y: int) -> int:
        match name:
            case "floor_divide":
                return x // y if y else 0
            case "remainder":
                return x % y if y else 0
            case "power" if y < 0:
                return int(1 / x**-y) if x else 0
            case "power":
                return pow(x, y, 2**8)
            case "left":
                return x << y if 0 <= y < 8 else 0
            case "right":
                return x >> y if 0 <= y < 8 else -(x < 0)
        return x * y

    (got,) = evaluate_op(f"bitwise_{name}_shift" if name in ("left", "right") else name, [a, b])
    wanted = [wrap(exact(x, y), dtype) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert got.tolist() == wanted


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integers_wrap_at_their_limits(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    low, high, one = (np.array(v, dtype.numpy) for v in (info.min, info.max, 1))
    assert evaluate_op("add", [high, one])[0] == low
    assert evaluate_op("subtract", [low, one])[0] == high
    assert evaluate_op("square", [high])[0] == 1
    assert evaluate_op("abs", [low])[0] == low
    assert evaluate_op("negative", [low])[0] == low
    if dtype.kind == "int":
        assert evaluate_op("floor_divide", [low, np.array(-1, dtype.numpy)])[0] == low


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_halves_are_rounded_once(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.1, 100, 20000).astype(dtype.numpy) for _ in "ab")
    function = getattr(
        operator, {"subtract": "sub", "multiply": "mul", "divide": "truediv"}.get(name, name)
    )
    # float64 has more than twice the digits: rounding its result is rounding the exact one
    wanted = function(a.astype(np.float64), b.astype(np.float64)).astype(dtype.numpy)
    np.testing.assert_array_equal(evaluate_op(name, [a, b])[0], wanted)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_a_reference_of_two_steps_is_rounded_once(dtype: DType) -> None:
    x = np.linspace(0.1, 4, 20000).astype(dtype.numpy)
    got = evaluate_op("rsqrt", [x])[0].astype(np.float64)
    limit = tolerance("rsqrt", dtype)  # half a unit in the last place, and a little
    np.testing.assert_allclose(got, 1 / np.sqrt(x.astype(np.float64)), rtol=limit)


@pytest.mark.parametrize("dtype", [*HALVES, dtypes.float32], ids=lambda d: d.name)
def test_nextafter_is_the_neighbour_in_bits(dtype: DType) -> None:
    ints = np.dtype(f"u{dtype.itemsize}")
    x = np.array([0.0, 1.0, 3.5, 1e-3, 60000.0], dtype.numpy)
    (up,) = evaluate_op("nextafter", [x, np.full_like(x, np.inf)])
    assert (up.view(ints) - x.view(ints) == 1).all()
    (same,) = evaluate_op("nextafter", [x, x])
    np.testing.assert_array_equal(same, x)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -0.5, 2.5, -3.0]


@pytest.mark.parametrize("spec", [*UNARY, *BINARY], ids=lambda s: s.name)
def test_special_values_are_those_of_float64_and_silent(spec: OpSpec) -> None:
    if not allowed(spec.name, dtypes.float64) or spec.name == "nextafter":
        return
    assert spec.reference is not None
    grids = [g.ravel() for g in np.meshgrid(*[SPECIAL] * spec.arity)]
    with np.errstate(all="raise"):  # the reference silences NumPy itself
        wanted = spec.reference(grids, {}).astype(np.float64)
        for dtype in (*HALVES, dtypes.float32):
            got = spec.reference([g.astype(dtype.numpy) for g in grids], {}).astype(np.float64)
            np.testing.assert_allclose(got, wanted, rtol=0.01, atol=1e-6, err_msg=dtype.name)


def one(name: str, *values: float) -> float:
    return evaluate_op(name, [np.array(v, np.float32) for v in values])[0].item()


def test_special_values_by_hand() -> None:
    nan, inf = math.nan, math.inf
    for name in ("maximum", "minimum"):
        assert math.isnan(one(name, nan, 1))
        assert math.isnan(one(name, 1, nan))
    assert [one("round", v) for v in (0.5, 1.5, 2.5, -0.5, -1.5)] == [0, 2, 2, 0, -2]
    assert (one("floor_divide", 1, 0), one("remainder", -5, inf)) == (inf, inf)
    assert math.isnan(one("floor_divide", 0, 0))
    assert (one("power", 0, 0), one("power", nan, 0), one("power", 1, nan)) == (1, 1, 1)
    assert (one("erfinv", 1), one("erfinv", -1), one("rsqrt", 0), one("log", 0)) == (
        inf,
        -inf,
        inf,
        -inf,
    )
    assert math.isnan(one("erfinv", 1.5))
    assert (one("lgamma", 0), one("sigmoid", -1000), one("sigmoid", 1000)) == (inf, 0, 1)
    assert one("hypot", 3e38, 0) == np.float32(3e38)
    assert (one("logaddexp", -inf, -inf), one("logaddexp", 1000, 1000)) == (
        -inf,
        1000 + np.float32(math.log(2)),
    )
    assert (one("less", nan, nan), one("equal", nan, nan), one("not_equal", nan, nan)) == (
        False,
        False,
        True,
    )
    assert (one("signbit", -0.0), one("signbit", 0.0), one("signbit", -nan)) == (True, False, True)
    assert math.copysign(1, one("copysign", 0, -1)) == -1
    (sign,) = evaluate_op("sign", [np.array([3 + 4j, 0], np.complex64)])
    np.testing.assert_allclose(sign, [0.6 + 0.8j, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("erf", "erf"),
        ("erfc", "erfc"),
        ("lgamma", "gammaln"),
        ("digamma", "psi"),
        ("erfinv", "erfinv"),
        ("cbrt", "cbrt"),
    ],
)
def test_special_functions_in_all_floating_dtypes(name: str, function: str) -> None:
    x = np.linspace(-0.95, 0.95, 40) if name == "erfinv" else np.linspace(0.3, 8, 40)
    for dtype in (*HALVES, dtypes.float32, dtypes.float64):
        given = x.astype(dtype.numpy)
        wanted = getattr(scipy.special, function)(given.astype(np.float64))
        limit = tolerance("", dtype)
        got = evaluate_op(name, [given])[0].astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=limit, atol=1e-6 * (dtype.bits < 64))


def test_erfc_has_the_subnormal_numbers_that_scipy_has_not() -> None:
    x = np.array([26.0, 26.6, 27.0, 27.2, 28.0, np.inf, np.nan])
    wanted = [math.erfc(v) for v in x]
    assert 0 < wanted[2] < np.finfo(np.float64).tiny
    np.testing.assert_allclose(evaluate_op("erfc", [x])[0], wanted, rtol=1e-13)


@pytest.mark.parametrize("spec", BINARY, ids=lambda s: s.name)
def test_commutative_ops_and_no_others_commute(spec: OpSpec) -> None:
    dtype = next(d for d in (dtypes.float64, dtypes.int64, dtypes.bool_) if allowed(spec.name, d))
    values = [0, 1, 2, 5, 3, 7] if dtype is not dtypes.bool_ else [False, True]
    a, b = (x.ravel() for x in np.meshgrid(np.array(values, dtype.numpy), values))
    b = b.astype(dtype.numpy)
    one, other = (evaluate_op(spec.name, pair)[0] for pair in ([a, b], [b, a]))
    same = np.array_equal(one, other, equal_nan=True)
    assert same == ("commutative" in spec.traits)
