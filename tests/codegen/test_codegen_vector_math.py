"""Errors of compiled float functions in ULP against longer arithmetic; which of them vectorise."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.special
from scalar_kernels import BINARY, NUMPY, floats, loop_kernel, pairs, run, special_floats
from special_function_truth import TRUTH
from ulp_checks import ELEMENTARY, Function, assert_within, errors_in_ulp

from weft.codegen.llvm.jit import compile_kernels, kernel_asm, kernel_llvm
from weft.codegen.scalar.elementwise import supported
from weft.codegen.vector.functions import ULP_BOUND, VECTORISED, VECTORISED_BINARY

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# Only in f64: truth for f32 and shorter; for f64 there is a table.
SPECIAL: dict[str, Function] = {
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erfinv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
}


def arguments(op: str, dtype: str) -> tuple[np.ndarray, ...]:
    values = floats(dtype, seed=7)
    if op == "digamma":
        values = values[~(values <= 0)]  # no relative bound near the negative zeros
    if op == "erfinv":
        values = values[values != 0]  # SciPy gives 0 for -0
    if op in BINARY:
        return pairs(values, seed=8)
    return (values,)


BOUNDED = [(op, dtype) for op, dtype in ULP_BOUND if op in ELEMENTARY or dtype == "f32"]


@pytest.mark.share(12)
@pytest.mark.parametrize(("op", "dtype"), BOUNDED)
def test_error_is_within_the_bound(op: str, dtype: str) -> None:
    args = arguments(op, dtype)
    if op in ELEMENTARY:
        exact = ELEMENTARY[op](*(a.astype(np.longdouble) for a in args))
    else:
        exact = SPECIAL[op](*(a.astype(np.float64) for a in args))
    assert_within(ULP_BOUND[op, dtype], run(op, dtype, *args), exact, args)


@pytest.mark.parametrize("op", TRUTH)
def test_special_functions_in_f64(op: str) -> None:
    rows = [[float.fromhex(number) for number in row] for row in TRUTH[op]]
    x, high, low = np.array(rows).T
    exact = high.astype(np.longdouble) + low
    got = run(op, "f64", x)
    if op == "lgamma":  # between the negative integers it has zeros: there the error is absolute
        negative = x < 0
        unit = np.spacing(np.maximum(np.abs(exact[negative]), 1).astype(np.float64))
        assert (np.abs(got[negative] - exact[negative]) <= ULP_BOUND[op, "f64"] * unit).all()
        x, got, exact = x[~negative], got[~negative], exact[~negative]
    assert_within(ULP_BOUND[op, "f64"], got, exact, (x,))


@pytest.mark.parametrize("op", TRUTH)
def test_special_functions_at_special_values(op: str) -> None:
    x = special_floats(NUMPY["f64"])
    if op in ("lgamma", "erfinv"):
        x = x[np.abs(x) > 1e-300]  # SciPy has inf for lgamma(denormal), 0 for erfinv(-0)
    got, expected = run(op, "f64", x), SPECIAL[op](x)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_digamma_of_negative_numbers() -> None:
    x = -np.random.default_rng(0).uniform(0, 30, 2000)
    x = x[np.abs(x - np.round(x)) > 1e-3]  # SciPy reduces pi x with less care near the poles
    got, expected = run("digamma", "f64", x), scipy.special.digamma(x)
    # Its zeros lie here: the error is absolute, in units of the terms that cancel.
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.share(27)
@pytest.mark.parametrize(("op", "dtype"), [(op, d) for op, _ in BOUNDED for d in ("f16", "bf16")])
def test_halves_round_the_f32_result(op: str, dtype: str) -> None:
    args = arguments(op, dtype)
    if op in ELEMENTARY:
        exact = ELEMENTARY[op](*(a.astype(np.longdouble) for a in args))
    else:
        exact = SPECIAL[op](*(a.astype(np.float64) for a in args))
    assert_within(0.501, run(op, dtype, *args), exact, args)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_logaddexp(dtype: str) -> None:
    """Absolutely accurate: log(e**x + e**y) has zeros."""
    x, y = pairs(floats(dtype, seed=9), seed=10)
    got = run("logaddexp", dtype, x, y)
    exact = np.logaddexp(x.astype(np.longdouble), y.astype(np.longdouble))
    kind = np.float32 if dtype in ("f16", "bf16") else NUMPY[dtype]
    absolute = 2 * np.finfo(kind).eps * np.maximum(np.maximum(abs(x), abs(y)).astype(float), 1)
    error = np.abs(got.astype(np.longdouble) - exact)
    fine = (errors_in_ulp(got, exact) <= 1) | (error <= absolute)
    assert fine.all(), (x[~fine][:4], y[~fine][:4], got[~fine][:4], exact[~fine][:4])


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_huge_angles(op: str) -> None:
    """Every exponent, and multiples of pi/2, which leave little after reduction."""
    draw = np.random.default_rng(11)
    scales = np.ldexp(1.0, draw.integers(0, 127, 4000))
    multiples = np.round(np.ldexp(1.0, draw.integers(0, 90, 4000))) * np.pi / 2
    for dtype in ("f32", "f64"):
        x = np.concatenate([draw.uniform(1, 2, 4000) * scales, multiples]).astype(NUMPY[dtype])
        exact = getattr(np, op)(x.astype(np.longdouble if dtype == "f64" else np.float64))
        assert_within(ULP_BOUND[op, dtype], run(op, dtype, x), exact, (x,))


VECTOR_LOOP = re.compile(r"vector\.body:.*?<(?:2|4|8|16|32) x (?:float|double|half)>", re.DOTALL)
INLINE = [(op, dtype) for op in (*VECTORISED, *VECTORISED_BINARY) for dtype in ("f32", "f64")]
INLINE += [(op, dtype) for op in ("remainder", "floor_divide") for dtype in ("f32", "f64")]
INLINE += [(op, "f32") for op in ("maximum", "round")]
INLINE += [(op, "f16") for op in ("add", "exp")] + [("add", "bf16")]


@pytest.mark.share(6)
@pytest.mark.parametrize(("op", "dtype"), INLINE)
def test_loops_vectorise(op: str, dtype: str) -> None:
    kernel = loop_kernel(op, dtype)
    compile_kernels([kernel])
    text = kernel_llvm(kernel.key)
    assert VECTOR_LOOP.search(text), text
    # Functions "weft.*" are for rare arguments, and vector code calls their vector forms.
    loops = [part for part in text.split("\ndefine ") if "@weft." not in part.split("(")[0]]
    called = set(re.findall(r"call [^@\n]*@([\w.]+)\(", "\n".join(loops)))
    outside = {name for name in called if not name.startswith(("llvm.", "weft"))}
    assert not outside, f"calls {outside}"
    assert re.search(r"[xyz]mm\d+|\bv\d+\.\d[sd]\b", kernel_asm(kernel.key))


def test_every_bounded_op_is_supported() -> None:
    assert all(supported(op, dtype) for op, dtype in ULP_BOUND)
    assert set(ELEMENTARY) | set(SPECIAL) == {op for op, _ in ULP_BOUND}
