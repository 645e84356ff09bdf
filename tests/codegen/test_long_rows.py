"""Scans, positions and sorts of few long rows, whose blocks are units: values, and the same bits
however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cut_calls import cut_everything, same_in_cuts

import weft as wf
from weft.codegen.kernels import scan, sort
from weft.codegen.kernels.scan import LEAST_BLOCKS

Array = np.ndarray[Any, Any]
DTYPES = ["f4", "f8", "f2", ml_dtypes.bfloat16, "i1", "u1", "i4", "u4", "i8", "u8"]
#: Blocks in these tests: they are arguments of the kernels.
SCANNED, SEARCHED, BLOCK = 96, 600, 400
SCAN_SIZES = [LEAST_BLOCKS * SCANNED, LEAST_BLOCKS * SCANNED + 1, 9 * SCANNED - 1]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_everything(monkeypatch)
    monkeypatch.setattr(scan, "SCANNED", SCANNED)
    monkeypatch.setattr(scan, "SEARCHED", SEARCHED)
    monkeypatch.setattr(sort, "BLOCK", BLOCK)
    monkeypatch.setattr(sort, "SORTED_BYTES", 0)


def given(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape) * 50
    return (np.abs(x) if np.dtype(dtype).kind == "u" else x).astype(dtype)


def compiled_calls(f: Callable[..., Any], *args: Any) -> list[str]:
    made = wf.compile(f)._specialized(args, {})
    return [planned.call.kernel.name for planned in made.on_cpu("a test").report.calls]


def same_in_random_cuts(f: Callable[..., Any], *args: Array) -> Any:
    """The result, after a check that it has the same bits in random cuts."""
    made = wf.compile(f)._specialized(args, {})
    step = made.on_cpu("a test")
    whole = step.run(list(args))
    same_in_cuts(step, args, whole)
    return whole[0]


class TestCumulative:
    @pytest.mark.parametrize("n", SCAN_SIZES)
    @pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4", "u1"])
    def test_sum(self, n: int, dtype: str) -> None:
        x = given((2, n), dtype)
        got = same_in_random_cuts(lambda x: wf.cumulative_sum(x, axis=1), x)
        if np.dtype(dtype).kind in "iu":
            np.testing.assert_array_equal(got, np.cumsum(x, axis=1, dtype=got.dtype))
        else:
            wide = np.cumsum(x.astype("c16" if dtype == "c8" else "f8"), axis=1)
            bound = np.finfo(dtype).eps * np.cumsum(np.abs(x), axis=1) * 60
            assert np.all(np.abs(got - wide) <= bound)

    @pytest.mark.share(4)
    @pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16, "i1", "i8", "u8"])
    @pytest.mark.parametrize("name", ["cumulative_max", "cumulative_min"])
    def test_extremes(self, name: str, dtype: Any) -> None:
        x = given((1, SCAN_SIZES[1]), dtype)
        if x.dtype.kind not in "iu":
            x[0, -200] = np.nan
        got = same_in_random_cuts(lambda x: getattr(wf, name)(x, axis=1), x)
        combine = np.maximum if name == "cumulative_max" else np.minimum
        with np.errstate(invalid="ignore"):
            wanted = combine.accumulate(x.astype("f8"), axis=1)
        np.testing.assert_array_equal(got.astype("f8"), wanted)

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_logsumexp(self, dtype: str) -> None:
        """Also where exp of an element, or of all of a block, is inf or 0."""
        x = given((SCAN_SIZES[1],), dtype)
        x[: SCAN_SIZES[1] // 2] -= np.asarray(1000, dtype)
        x[:5], x[-100] = -np.inf, 2000
        got = same_in_random_cuts(lambda x: wf.cumulative_logsumexp(x, axis=0), x)
        wanted = np.logaddexp.accumulate(x.astype("f8"))
        np.testing.assert_allclose(got.astype("f8"), wanted, rtol=30 * np.finfo(dtype).eps)

    def test_backward(self) -> None:
        """The gradient of a cumulative sum runs from the end."""
        x, w = given((SCAN_SIZES[2],), "f8"), given((SCAN_SIZES[2],), "f8", 1)
        f = wf.compile(wf.grad(lambda x, w: wf.sum(wf.cumulative_sum(x, axis=0) * w)))
        np.testing.assert_allclose(f(x, w), np.cumsum(w[::-1])[::-1], rtol=1e-9, atol=1e-9)

    def test_sums_of_numbers_that_are_not_negative_never_fall(self) -> None:
        x = np.random.default_rng(0).random(100_000, np.float32)
        sums = np.asarray(wf.compile(lambda x: wf.cumulative_sum(x, axis=0))(x))
        assert np.all(np.diff(sums) >= 0)

    def test_products_of_floats_are_not_in_blocks(self) -> None:
        """Zero times what would overflow within a block is 0."""
        x = np.full(SCAN_SIZES[2], 2.0, np.float32)
        x[0] = 0
        f = wf.compile(lambda x: wf.cumulative_prod(x, axis=0))
        assert not np.asarray(f(x)).any()

    def test_integer_products(self) -> None:
        x = given((SCAN_SIZES[1],), "i4") | 1
        got = same_in_random_cuts(lambda x: wf.cumulative_prod(x, axis=0), x)
        np.testing.assert_array_equal(got, np.cumprod(x, dtype=got.dtype))

    def test_many_rows_are_units_themselves(self) -> None:
        def f(x: Any) -> Any:
            return wf.cumulative_sum(x, axis=1)

        assert len(compiled_calls(f, np.ones((15, SCAN_SIZES[0]), np.float32))) == 3
        assert len(compiled_calls(f, np.ones((16, SCAN_SIZES[0]), np.float32))) == 1
        assert len(compiled_calls(f, np.ones((2, SCAN_SIZES[0] - 1), np.float32))) == 1


class TestPositions:
    @pytest.mark.share(6)
    @pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
    @pytest.mark.parametrize("name", ["argmax", "argmin"])
    def test_as_numpy(self, name: str, dtype: Any) -> None:
        n = LEAST_BLOCKS * SEARCHED + 5
        x = given((2, n), dtype) if dtype != "bool" else given((2, n), "f4") > 0
        wanted = getattr(np, name)(x.astype("f8"), axis=1)
        got = same_in_random_cuts(lambda x: getattr(wf, name)(x, axis=1), x)
        np.testing.assert_array_equal(got, wanted)

    @pytest.mark.parametrize("places", [(0,), (SEARCHED - 1, SEARCHED), (1_300, 2_399), ()])
    def test_the_first_of_equals_and_of_nans(self, places: tuple[int, ...]) -> None:
        x = np.zeros(LEAST_BLOCKS * SEARCHED, np.float32)
        f = wf.compile(wf.argmax)
        for value in (1.0, np.inf, np.nan):
            x[list(places)] = value
            assert int(f(x)) == (places[0] if places else 0)


class TestSort:
    @pytest.mark.share(12)
    @pytest.mark.parametrize("n", [1, 2, BLOCK, 2 * BLOCK + 77])
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("dtype", ["f4", "f8", ml_dtypes.bfloat16, "i1", "u4", "i8", "bool"])
    def test_stable_and_the_same_in_cuts(self, dtype: Any, descending: bool, n: int) -> None:
        x = given((n,), dtype) if dtype != "bool" else given((n,), "f4") > 0
        if x.dtype.kind not in "iub":
            x[::7], x[3::7], x[5::101], x[6::301], x[1::301] = 0, -0.0, np.nan, np.inf, -np.inf
        key: Any = x.astype("f8") if x.dtype.itemsize < 8 else x
        nan = np.isnan(key)
        key = np.where(nan, 0, key)
        by = (~key if key.dtype.kind in "iu" else -key) if descending else key
        order = np.lexsort((by, ~nan if descending else nan))
        for f, wanted in (
            (lambda x: wf.argsort(x, descending=descending), order),
            (lambda x: wf.sort(x, descending=descending), x[order]),
        ):
            got = same_in_random_cuts(f, x) if n > BLOCK else np.asarray(wf.compile(f)(x))
            assert got.tobytes() == wanted.astype(got.dtype).tobytes()

    def test_rows(self) -> None:
        x = given((3, BLOCK + 9), "i4")
        got = same_in_random_cuts(lambda x: wf.sort(x, axis=1), x)
        np.testing.assert_array_equal(got, np.sort(x, axis=1))

    def test_shorter_rows_are_units_themselves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sort, "SORTED_BYTES", 16 * 4096)
        assert len(compiled_calls(wf.sort, np.ones(4095, np.float32))) == 1
        assert len(compiled_calls(wf.sort, np.ones(4096, np.float32))) == 4 * 3 + 1
