"""Vectorised functions over whole ranges: float32 exhaustively, vector body against scalar tail."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from exhaustive_ulp import all_arguments_error, every_exponent_error
from paths import ROOT
from scalar_kernels import BINARY, NUMPY, floats, loop_kernel, pairs, run, special_floats
from ulp_checks import ELEMENTARY, assert_within, errors_in_ulp

from weft.codegen.llvm.jit import compile_kernels, kernel_asm
from weft.codegen.llvm.target import has_feature
from weft.codegen.vector.functions import ULP_BOUND, VECTORISED, VECTORISED_BINARY

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# f32 and f64 forms differ: the others compute f32 by the f64 form, so comparing shows nothing.
UNARY = list(VECTORISED)
ALL_VECTORISED = (*VECTORISED, *VECTORISED_BINARY)
# The f64 form's own error, in places of f32.
F64_ERROR = 2.0**-20


@pytest.mark.share(8)
@pytest.mark.parametrize("op", UNARY)
def test_every_exponent_of_float32(op: str) -> None:
    """2**21 numbers, all exponents."""
    error, where = every_exponent_error(op)
    assert error <= ULP_BOUND[op, "f32"] + F64_ERROR, f"near {where!r}"


@pytest.mark.slow
@pytest.mark.parametrize("op", UNARY)
def test_all_of_float32(op: str) -> None:
    """2**32 bit patterns, in CI half of them; 1/16 of the huge angles, which the C library reduces
    in f64 in both."""
    error, where = all_arguments_error(op, os.cpu_count() or 1)
    assert error <= ULP_BOUND[op, "f32"] + F64_ERROR, f"in 65536 from {where!r} on"


def many_floats(seed: int) -> np.ndarray:
    """A million: all exponents, ordinary sizes, neighbours of multiples of pi/2 and of 1."""
    draw = np.random.default_rng(seed)
    n = 160_000
    sign = draw.choice([-1.0, 1.0], n)
    return np.concatenate(
        [
            floats("f64", seed),
            draw.integers(0, 2**64 - 1, n, dtype=np.uint64, endpoint=True).view(np.float64),
            sign * np.ldexp(draw.uniform(1, 2, n), draw.integers(-30, 30, n)),
            draw.uniform(-1.5, 1.5, n),
            draw.uniform(-25, 25, n),
            draw.uniform(-750, 750, n),
            np.round(np.ldexp(draw.uniform(1, 2, n), draw.integers(0, 90, n))) * (np.pi / 2),
            sign + draw.standard_normal(n) * np.ldexp(1.0, draw.integers(-40, 0, n)),
        ]
    )


@pytest.mark.slow
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="the truth is np.longdouble")
@pytest.mark.parametrize("op", [op for op in ALL_VECTORISED if op in ELEMENTARY])
def test_a_million_of_float64(op: str) -> None:
    x = many_floats(21)
    args: tuple[Any, ...] = (x, np.random.default_rng(22).permutation(x)) if op in BINARY else (x,)
    if op == "power":  # bases near 1 have powers that are neither 0 nor inf
        args = (np.concatenate([x, 1 + x % 1e-3]), np.concatenate([args[1], x]))
    exact = ELEMENTARY[op](*(a.astype(np.longdouble) for a in args))
    assert_within(ULP_BOUND[op, "f64"], run(op, "f64", *args), exact, args)


NUMPY_FUNCTION: dict[str, Callable[..., np.ndarray]] = {
    "sigmoid": scipy.special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erfinv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
}


@pytest.mark.share(12)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ALL_VECTORISED)
def test_special_values_are_numpys(op: str, dtype: str) -> None:
    """NaN, infinities, signed zeros and denormals, in and out."""
    kind = NUMPY[dtype]
    smallest = np.finfo(kind).smallest_subnormal
    denormals = (np.array([1, 2, 3, 100, 12345], kind) * smallest).astype(kind)
    x = np.concatenate([special_floats(kind), denormals, -denormals])
    args = pairs(x, 3) if op in BINARY else (x,)
    if op == "erfinv":
        args = (x[(x != 0) & (np.abs(x) > 1e-300)],)  # SciPy's are wrong there
    if op == "lgamma" and dtype == "f64":
        args = (x[(x == 0) | (np.abs(x) > 1e-300)],)  # SciPy has inf for denormals
    function = NUMPY_FUNCTION.get(op) or getattr(np, op)
    got, expected = run(op, dtype, *args), function(*args)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite])
    assert np.isfinite(got[np.isfinite(expected)]).all()
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))
    small = np.abs(expected) < np.finfo(kind).tiny  # zeros too: flushed denormals would show
    difference = np.abs(got[small].astype(np.longdouble) - expected[small])
    assert (difference <= (ULP_BOUND[op, dtype] + 4) * smallest).all()


@pytest.mark.share(12)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("op", sorted({op for op, _ in ULP_BOUND}))
def test_vector_body_and_scalar_tail_agree(op: str, dtype: str) -> None:
    """The bits of an element do not depend on where in the loop it is."""
    x = np.random.default_rng(5).permutation(floats(dtype, seed=4))[:517]
    args = pairs(x, 6) if op in BINARY else (x,)
    whole = run(op, dtype, *args)
    word = np.dtype(f"u{whole.itemsize}")
    for start in (0, 131):
        for n in range(1, 68):
            part = run(op, dtype, *(a[start : start + n] for a in args))
            expected = whole[start : start + n]
            same = (part.view(word) == expected.view(word)) | (np.isnan(part) & np.isnan(expected))
            assert same.all(), (n, [a[start : start + n][~same] for a in args])


def divisions(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every exponent, ordinary ones, neighbours of multiples, and all pairs of special values."""
    draw, kind, n = np.random.default_rng(13), NUMPY[dtype], 20_000
    every = floats(dtype, seed=14)
    divisor = draw.uniform(-5, 5, n).astype(kind)
    multiple = (draw.integers(-(2**22), 2**22, n) * divisor.astype(np.float64)).astype(kind)
    scaled = np.ldexp(draw.uniform(1, 2, n), draw.integers(-20, 60, n)).astype(kind)
    special = special_floats(kind)
    above, below = np.nextafter(multiple, kind.type(np.inf)), np.nextafter(multiple, kind.type(0))
    x = [every, draw.uniform(-100, 100, n).astype(kind), multiple, above, below, scaled, -scaled]
    y = [draw.permutation(every), divisor, divisor, divisor, divisor]
    y += [draw.permutation(scaled), draw.permutation(scaled)]
    return (
        np.concatenate([*x, np.repeat(special, special.size)]),
        np.concatenate([*y, np.tile(special, special.size)]),
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["remainder", "floor_divide"])
def test_divisions_are_numpys_bit_by_bit(op: str, dtype: str) -> None:
    x, y = divisions(dtype)
    got, expected = run(op, dtype, x, y), getattr(np, op)(x, y)
    same = (got == expected) & (np.signbit(got) == np.signbit(expected))
    same |= np.isnan(got) & np.isnan(expected)
    assert same.all(), (x[~same][:3], y[~same][:3], got[~same][:3], expected[~same][:3])


def all_halves(dtype: str) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bit_floats_convert_exactly(dtype: str) -> None:
    """All 65536 to f32, and f32 on, beside and between them back: as NumPy and ml_dtypes."""
    halves = all_halves(dtype)
    wide = run("astype", dtype, halves, target="f32")
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    bits = wide.view(np.uint32)
    half_unit = np.uint32(1 << (12 if dtype == "f16" else 15))
    offsets = (0, 1, -1, half_unit - 1, half_unit, half_unit + 1)
    x = np.concatenate([(bits + np.uint32(o % 2**32)).astype(np.uint32) for o in map(int, offsets)])
    x = np.concatenate([x.view(np.float32), floats("f32", seed=2)])
    got, expected = run("astype", "f32", x, target=dtype), x.astype(NUMPY[dtype])
    both_nan = np.isnan(got) & np.isnan(expected)
    assert ((got.view(np.uint16) == expected.view(np.uint16)) | both_nan).all()


@pytest.mark.share(3)
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "erf", "sin", "sqrt"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_all_16_bit_arguments(op: str, dtype: str) -> None:
    """Computed in f32 and rounded once: within that double rounding of exact."""
    x = all_halves(dtype)
    function = NUMPY_FUNCTION.get(op) or getattr(np, op)
    exact = function(x.astype(np.float64))
    got = run(op, dtype, x)
    errors = errors_in_ulp(got, exact)
    # Where f64 rounds exact beyond the range, so does the result; the rest is half a place.
    assert float(errors.max()) <= 0.5 + ULP_BOUND[op, "f32"] * 2.0 ** -(
        23 - ml_dtypes.finfo(got.dtype).nmant
    )


def test_f16_converts_by_vector_instructions() -> None:
    kernel = loop_kernel("exp", "f16")
    compile_kernels([kernel])
    asm = kernel_asm(kernel.key)
    if not has_feature("f16c"):
        pytest.skip("no F16C in this instruction set")
    assert re.search(r"vcvtph2ps.*[yz]mm", asm)
    assert re.search(r"vcvtps2ph.*[yz]mm", asm)


def test_the_page_has_the_bounds() -> None:
    """docs/reference/error-bounds.md states ULP_BOUND, row by row."""
    page = ROOT / "docs" / "reference" / "error-bounds.md"
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", page.read_text(), re.MULTILINE)
    stated = {
        (op, d): float(v) for op, *pair in rows for d, v in zip(("f32", "f64"), pair, strict=True)
    }
    assert stated == ULP_BOUND
