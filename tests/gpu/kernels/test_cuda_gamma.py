"""digamma and lgamma of GPU kernels, in the emulator, against SciPy and numbers of 30 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from cuda_budget_checks import faults
from cuda_graphs import lanes, run
from cuda_op_checks import graph_of
from cuda_toolchain import TARGETS, needs_toolchain
from special_function_truth import TRUTH
from ulp_checks import SLACK, assert_within, errors_in_ulp

from weft.codegen.cuda.source.dtypes import load, stored
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.writer import Source
from weft.codegen.vector.functions import ULP_BOUND
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]
EPS = float(np.finfo(np.float32).eps)
#: Units in the last place, for digamma of f32 at positive numbers.
DIGAMMA_F32 = 5.0


def on_gpu(op: str, x: Array) -> Array:
    return run(fuse(graph_of(op, [x])), [x], lanes)[0]


@pytest.mark.parametrize("op", ["lgamma", "digamma"])
def test_f64_is_as_good_as_on_the_cpu(op: str) -> None:
    rows = [[float.fromhex(number) for number in row] for row in TRUTH[op]]
    x, high, low = np.array(rows).T
    exact, bound = high.astype(np.longdouble) + low, ULP_BOUND[op, "f64"]
    got = on_gpu(op, x)
    if op == "lgamma":  # between the negative integers it has zeros: there the error is absolute
        negative = x < 0
        unit = np.spacing(np.maximum(np.abs(exact[negative]), 1).astype(np.float64))
        assert (np.abs(got[negative] - exact[negative]) <= bound * unit).all()
        x, got, exact = x[~negative], got[~negative], exact[~negative]
    assert_within(bound, got, exact, (x,))


def test_digamma_of_positive_f32() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            rng.uniform(0, 12, 20000),
            rng.uniform(1.45, 1.475, 20000),  # its zero
            10.0 ** rng.uniform(-37, 38, 5000),
            [1e-45, 3.4e38, 1, 2, 8, np.nextafter(np.float32(8), np.float32(0))],
        ]
    ).astype(np.float32)
    exact = scipy.special.digamma(x.astype(np.float64))
    errors = errors_in_ulp(on_gpu("digamma", x), exact)
    worst = int(np.argmax(errors))
    assert errors[worst] <= DIGAMMA_F32 + SLACK, (x[worst], errors[worst])


def test_digamma_of_negative_f32() -> None:
    """In units of the larger of the two terms that cancel."""
    x = -np.random.default_rng(2).uniform(0, 40, 20000).astype(np.float32)
    x = x[np.abs(x - np.round(x)) > 1e-4]
    wide = x.astype(np.float64)
    exact = scipy.special.digamma(wide)
    terms = np.abs(scipy.special.digamma(1 - wide)), np.abs(np.pi / np.tan(np.pi * wide))
    bound = DIGAMMA_F32 * EPS * np.maximum(np.maximum(*terms), np.abs(exact))
    assert (np.abs(on_gpu("digamma", x).astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", ["lgamma", "digamma"])
def test_at_the_poles_and_infinities(op: str, dtype: type) -> None:
    x: Array = np.array([0.0, -0.0, -1.0, -7.0, np.inf, -np.inf, np.nan], dtype)
    wanted = {
        "lgamma": [np.inf, np.inf, np.inf, np.inf, np.inf, -np.inf, np.nan],
        "digamma": [-np.inf, np.inf, np.nan, np.nan, np.inf, np.nan, np.nan],
    }[op]
    np.testing.assert_array_equal(on_gpu(op, x), np.array(wanted, dtype))


@needs_toolchain
@pytest.mark.parametrize(("op", "dtype"), [("lgamma", "f64"), ("digamma", "f32")])
def test_nothing_spills_and_f32_stays_f32(op: str, dtype: str) -> None:
    s = Source(f"one_{op}_{dtype}")
    given, out = s.pointer("given", dtype, 0), s.pointer("out", dtype, 0)
    x = s.let(load(dtype, given, s.thread), "x")
    s.line(f"{out}[{s.thread}] = {stored(dtype, expression(op, dtype, dtype, [x]))}")
    for cc in TARGETS:
        assert faults(s.kernel(), cc) == []
