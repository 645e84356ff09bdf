"""tanh of a softplus, which `simplify` turns into a quotient: compiled, over float32 arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft as wf

#: docs/reference/error-bounds.md says so.
BOUND = 4.25
FORMS: dict[str, Callable[[Any], Any]] = {
    "log1p(exp(x))": lambda x: wf.tanh(wf.log1p(wf.exp(x))),
    "softplus": lambda x: wf.tanh(wf.nn.softplus(x)),
}


@cache
def compiled(form: str) -> Callable[[Any], Any]:
    return wf.compile(FORMS[form])


def worst_error(form: str, patterns: np.ndarray) -> tuple[float, float]:
    """(largest error in units of the last place of the f64 form, where)"""
    f = compiled(form)
    x = patterns.astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = x.astype(np.float64)
    got, exact = np.asarray(f(x)), np.asarray(f(wide))
    rounded = exact.astype(np.float32)
    wrong = np.flatnonzero((got != rounded) & ~(np.isnan(got) & np.isnan(rounded)))
    if not wrong.size:
        return 0.0, float(x[0])
    x, got, exact, rounded = x[wrong], got[wrong], exact[wrong], rounded[wrong]
    unit = np.spacing(np.abs(rounded)).astype(np.float64)
    # the last place of the exact number, not of a power of two that it rounds up to
    unit = np.where(exact < np.abs(rounded), np.spacing(np.nextafter(rounded, np.float32(0))), unit)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - exact) / unit
    error = np.where(np.isnan(error), np.inf, error)
    worst = int(np.argmax(error))
    return float(error[worst]), float(x[worst])


@pytest.mark.parametrize("form", FORMS)
def test_every_exponent(form: str) -> None:
    error, where = worst_error(form, np.arange(0, 1 << 32, 2039))
    assert error <= BOUND, where


@pytest.mark.slow
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_all_of_float32(form: str, sign: int) -> None:
    block = 1 << 18  # what a processor's cache holds: three times as fast as blocks of 2**24
    for start in range(sign << 31, (sign + 1) << 31, block):
        error, where = worst_error(form, np.arange(start, start + block))
        assert error <= BOUND, where


@pytest.mark.parametrize("form", FORMS)
def test_the_f64_form(form: str) -> None:
    """Against long double, and what it is at infinities, NaN and overflow of exp."""
    f = wf.compile(FORMS[form])
    x = np.random.default_rng(0).uniform(-60, 60, 100_000)
    e = np.exp(x.astype(np.longdouble))
    exact = e * (e + 2) / (e * (e + 2) + 2)
    unit = np.spacing(exact.astype(np.float64))
    assert (np.abs(np.asarray(f(x)) - exact) <= 4 * unit).all()
    special = np.array([np.nan, np.inf, -np.inf, 800.0, -800.0])
    np.testing.assert_array_equal(f(special), [np.nan, 1, 0, 1, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_are_those_of_the_formula(dtype: type) -> None:
    x = np.linspace(-8, 8, 101).astype(dtype)
    wide = x.astype(np.float64)
    slope = wf.compile(wf.grad(lambda x: wf.sum(FORMS["softplus"](x))))(x)
    share = np.tanh(np.log1p(np.exp(wide)))
    expected = (1 - share * share) / (1 + np.exp(-wide))
    np.testing.assert_allclose(slope, expected, rtol=0, atol=4 * np.finfo(dtype).eps)
