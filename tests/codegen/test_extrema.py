"""Maxima and minima of floats: NaN of either sign, zeros of either sign, every place and length."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.llvm.target import has_feature
from weft.codegen.nests.folds import is_in_bits

Array = np.ndarray[Any, Any]
DTYPES = {"f16": wf.float16, "bf16": wf.bfloat16, "f32": wf.float32, "f64": wf.float64}
LENGTHS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 1000, 4100)


def extremum(name: str, row: Array) -> float:
    """The extremum by comparisons of Python numbers; -0 is less than 0."""
    numbers = row.tolist()
    if any(n != n for n in numbers):
        return float("nan")
    key: Callable[[float], tuple[float, float]] = lambda n: (n, np.copysign(1.0, n))  # noqa: E731
    return max(numbers, key=key) if name == "max" else min(numbers, key=key)


def hard_rows(length: int, rng: np.random.Generator) -> Array:
    """Rows with few sorts of numbers each, so that zeros, infinities and NaN win often."""
    sets = (
        (0.0, -0.0), (-0.0,), (-0.0, -1.0, 0.0), (0.0, -0.0, 2.0), (1.0, 0.0, -0.0),
        (-np.inf, -3.0), (-np.inf,), (np.inf, -np.inf, 0.5), (np.inf,), (-1e-40, 1e-40, -0.0),
        (-5.0, -2.0, -3.0), (5.0, 2.0, 3.0), (-65504.0, 65504.0),
    )  # fmt: skip
    rows = [rng.choice(values, length) for values in sets]
    for nan in (np.nan, -np.nan):
        for values in sets[4:12:2]:
            row = rng.choice(values, length)
            row[rng.integers(length)] = nan
            rows.append(row)
    return np.array([*rows, rng.standard_normal(length), -np.abs(rng.standard_normal(length))])


def check(got: Any, wanted: list[float], what: str) -> None:
    found = np.asarray(wf.astype(got, wf.float64)).ravel().tolist()
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        same = (a != a and b != b) or (a == b and np.signbit(a) == np.signbit(b))
        assert same, f"{what}, row {k}: {a!r} for {b!r}"


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_along_all_axes(name: str, dtype: str) -> None:
    fold = getattr(wf, name)
    along = {axis: wf.compile(lambda x, axis=axis: fold(x, axis=axis)) for axis in (0, 1)}
    whole = wf.compile(lambda x: fold(x))
    rng = np.random.default_rng(len(name))
    for length in LENGTHS:
        x = wf.asarray(hard_rows(length, rng)).astype(DTYPES[dtype])
        plain = np.asarray(x.astype(wf.float64))
        rows = [extremum(name, row) for row in plain]
        check(along[1](x), rows, f"{length} in a row")
        check(along[0](wf.asarray(np.asarray(x).T.copy())), rows, f"{length} in a column")
        for k in range(0, len(plain), 3):
            check(whole(x[k]), rows[k : k + 1], f"{length} alone")


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_extrema_within_rows_of_a_kernel(dtype: str) -> None:
    """What a row kernel takes of them, beside a sum and with masked ends."""

    def spread(x: Any) -> Any:
        top, least = (f(x, axis=-1, keepdims=True) for f in (wf.max, wf.min))
        return wf.where(x == top, 1.0, 0.0) + 0 * wf.sum(x, axis=-1, keepdims=True), top, least

    compiled = wf.compile(spread)
    rng = np.random.default_rng(9)
    for length in LENGTHS:
        x = wf.asarray(hard_rows(length, rng)).astype(DTYPES[dtype])
        _, top, least = compiled(x)
        for name, got in (("max", top), ("min", least)):
            check(got, [extremum(name, row) for row in np.asarray(x)], f"{name} of {length}")


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_of_extrema(name: str, dtype: str) -> None:
    compiled = wf.compile(lambda x: getattr(wf, name)(x, axis=1))
    rng = np.random.default_rng(4)
    for length in LENGTHS:
        x = wf.asarray(hard_rows(length, rng)).astype(DTYPES[dtype])
        wanted = getattr(np, name)(np.asarray(x.astype(wf.float64)), axis=1)
        np.testing.assert_array_equal(compiled(x), wanted)


@pytest.mark.skipif(not has_feature("sse4_1"), reason="vectors of integers have no extrema")
def test_a_maximum_takes_three_instructions() -> None:
    """And no chain of comparisons and choices of floats."""
    assert is_in_bits("max", "f32")
    assert is_in_bits("min", "f64") == has_feature("avx512vl")
    f = wf.compile(lambda x: wf.max(x, axis=1))
    x = np.zeros((64, 1024), np.float32)
    f(x)
    text = f.asm(x)
    widest = {"zmm", "ymm", "xmm"} if not has_feature("avx") else {"zmm", "ymm"}
    loops = [line for line in text.splitlines() if any(w in line for w in widest)]
    for instruction in ("pmaxud", "pminud", "pmaxsd"):
        assert any(re.search(rf"\bv?{instruction}\b", line) for line in loops), instruction
    assert not re.search(r"\bv?(cmpunordps|maxps|blendvps|fpclassps)\b", text)
