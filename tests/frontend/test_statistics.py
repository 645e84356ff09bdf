"""Order statistics, counts and arithmetic on indices against NumPy: eager, compiled and in
sessions; gradients against differences; what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special as sp
from example_counts import examples
from hypothesis import given
from slope_checks import check_gradient

import weft as wf
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError

Array = np.ndarray[Any, Any]
T = wf.tf1
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def ways(f: Callable[..., Any], *xs: Any) -> list[Any]:
    """What f gives eagerly and compiled, which have one dtype and shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.RecompileWarning)
        got = [f(*xs), wf.compile(lambda *xs: f(*xs))(*xs)]
    assert got[0].dtype is got[1].dtype
    assert got[0].shape == got[1].shape
    return [g.numpy() for g in got]


def check(f: Callable[..., Any], xs: tuple[Any, ...], expected: Any, rtol: float = 1e-6) -> None:
    for got in ways(f, *xs):
        assert got.shape == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Array, Any]:
    """An array with ties, in some order, and axes of it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(-9, 9, shape).astype(draw(st.sampled_from(["f8", "f4", "i4"])))
    if x.dtype.kind == "f":
        x = x + rng.choice([0, 0.25], shape).astype(x.dtype)
        if draw(st.integers(0, 3)) == 0:
            x[rng.random(shape) < 0.2] = np.nan
    axes = draw(st.sampled_from([None, 0, -1, tuple(range(len(shape)))]))
    return x, axes


# ----------------------------------------------------------------------------------- quantiles
@examples(36, deadline=None)
@given(arrays(), st.booleans(), st.sampled_from(METHODS), st.integers(0, 2), st.data())
def test_quantiles(
    given: tuple[Array, Any], keepdims: bool, method: str, rank: int, data: st.DataObject
) -> None:
    x, axis = given
    fixed = np.array([0, 0.5, 1, 0.25, 1 / 3, 0.1])
    q = fixed[0 if rank == 0 else [1, 2] if rank == 1 else [[3], [4]]]
    q = q if rank else data.draw(st.sampled_from(list(fixed)))
    with np.errstate(all="ignore"):
        expected: Any = np.quantile(x, q, axis, method=method, keepdims=keepdims)  # type: ignore[call-overload]
    rtol = 1e-12 if x.dtype == np.float64 else 1e-6
    how = {"axis": axis, "method": method, "keepdims": keepdims}
    check(lambda x: T.quantile(x, q, **how), (x,), expected, rtol)
    check(lambda x, q: T.quantile(x, q, **how), (x, np.asarray(q)), expected, rtol)
    hundred: Any = np.asarray(q) * 100
    with np.errstate(all="ignore"):
        expected = np.percentile(x, hundred, axis, method=method, keepdims=keepdims)  # type: ignore[call-overload]
    got = T.percentile(x, hundred, **how)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)
    kind = T.quantile(x, q, **how).dtype
    keeps = method in ("lower", "higher", "nearest")
    assert kind == (x.dtype if keeps or x.dtype.kind == "f" else wf.float32)
    middle = np.median(x, axis, keepdims=keepdims)
    check(lambda x: T.median(x, axis, keepdims=keepdims), (x,), middle, rtol)


def test_quantiles_at_a_place_of_many_elements() -> None:
    """The place is computed in float64: in float32 it would be wrong in the second digit."""
    x = np.random.default_rng(0).permutation(np.arange(1_000_001, dtype=np.float32))
    assert float(T.quantile(x, 0.1)) == 100_000
    assert float(wf.compile(lambda x, q: T.quantile(x, q))(x, np.float64(0.1))) == 100_000


def test_quantiles_of_what_has_no_end() -> None:
    """What lies at a place is the quantile there, how far away its neighbour may be."""
    shares = np.array([0.0, 0.5, 1.0])
    most = np.finfo(np.float64).max
    for x in ([np.inf, -np.inf, 1.0], [np.inf] * 3, [most, -most, 0.0]):
        for method in ("linear", "midpoint"):
            f = lambda x, method=method: wf.quantile(x, shares, method=method)  # noqa: E731
            check(f, (np.array(x),), np.sort(x))
            of_q = lambda q, x=x, method=method: wf.quantile(x, q, method=method)  # noqa: E731
            check(of_q, (shares,), np.sort(x))


def test_quantiles_of_open_sizes_of_nothing_and_of_16_bits() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, None])
        made = [T.quantile(x, [0.3, 0.9], axis=0), T.median(x, axis=1), T.median(x)]
        for shape in ((3, 4), (6, 1), (2, 2)):
            held = np.random.default_rng(1).random(shape).astype(np.float32)
            got = session.run(made, {x: held})
            np.testing.assert_allclose(got[0], np.quantile(held, [0.3, 0.9], 0), rtol=1e-6)
            np.testing.assert_allclose(got[1], np.median(held, 1), rtol=1e-6)
            np.testing.assert_allclose(got[2], np.median(held), rtol=1e-6)
    none = wf.zeros((2, 0))
    assert np.isnan(T.median(none, axis=1).numpy()).tolist() == [True, True]
    assert T.quantile(none, [0.1, 0.2], axis=1, keepdims=True).shape == (2, 2, 1)
    large = np.array([60000, 65000], np.float16)  # their sum is beyond float16
    assert float(T.median(large)) == float(np.float16(62500))
    assert np.isnan(float(wf.compile(lambda q: T.quantile([1.0, 2.0], q))(np.float32(1.5))))


def test_gradients_of_quantiles() -> None:
    x = np.random.default_rng(2).permutation(np.arange(12.0)).reshape(3, 4)
    for method in METHODS:
        check_gradient(lambda x, m=method: T.quantile(x, [0.2, 0.55], axis=1, method=m), x)
    check_gradient(lambda x: T.median(x, axis=0), x)
    check_gradient(lambda q: T.quantile(x, q, axis=0), np.array([0.3, 0.71]))


def test_quantiles_in_batches() -> None:
    x = np.random.default_rng(3).random((5, 7))
    got = wf.vmap(lambda row: T.quantile(row, 0.4))(x)
    np.testing.assert_allclose(got, np.quantile(x, 0.4, axis=1))
    tangent = wf.jvp(lambda x: T.median(x), (x,), (np.ones_like(x),))[1]
    assert float(tangent) == pytest.approx(1.0)


def test_what_quantiles_refuse() -> None:
    with pytest.raises(InvalidArgumentError, match=r"wf\.quantile: q must be in 0 to 1"):
        T.quantile([1.0], 1.5)
    with pytest.raises(InvalidArgumentError, match=r"wf\.percentile: q must be in 0 to 100"):
        T.percentile([1.0], [-1, 5])
    with pytest.raises(InvalidArgumentError, match="method 'cubic' is unknown"):
        T.quantile([1.0], 0.5, method="cubic")
    with pytest.raises(TypeRuleError, match=r"wf\.median takes real numbers, got complex64"):
        T.median(wf.asarray([1j]))
    with pytest.raises(InvalidArgumentError, match="no elements of int64"):
        T.quantile(np.zeros(0, np.int64), 0.5, method="lower")


# --------------------------------------------------------------------------------- NaN left out
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@examples(36, deadline=None)
@given(arrays(), st.booleans(), st.sampled_from(["nansum", "nanmean", "nanmax", "nanmin"]))
def test_nan_left_out(given: tuple[Array, Any], keepdims: bool, name: str) -> None:
    x, axis = given
    expected = getattr(np, name)(x, axis, keepdims=keepdims)
    check(lambda x: getattr(T, name)(x, axis, keepdims=keepdims), (x,), expected)
    kind = getattr(T, name)(x, axis).dtype
    floating = x.dtype.kind == "f" or name == "nanmean"
    assert (kind.kind == "float") == floating
    if x.dtype.kind == "f":
        check(lambda x: getattr(T, name)(x), (x * np.nan,), 0 if name == "nansum" else np.nan)


def test_gradients_leave_nan_out() -> None:
    x = np.array([[1.0, np.nan, 3.0], [2.0, 5.0, np.nan]])
    for name, wanted in (("nansum", [[1, 0, 1], [1, 1, 0]]), ("nanmax", [[0, 0, 1], [0, 1, 0]]),
                         ("nanmean", [[0.5, 0, 0.5], [0.5, 0.5, 0]])):  # fmt: skip
        got = wf.grad(lambda x, n=name: wf.sum(getattr(T, n)(x, axis=1)))(x)
        np.testing.assert_array_equal(got, wanted)


# --------------------------------------------------------------------------------------- counts
@examples(36, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.booleans())
def test_bincount(seed: int, length: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, rng.integers(0, 20)).astype(rng.choice(["i8", "i4", "u1"]))
    w = rng.random(x.shape) if weighted else None
    expected = np.bincount(x, w, length)
    call = lambda x, *w: T.bincount(x, *w, length=length)  # noqa: E731
    xs = (x,) if w is None else (x, w)
    check(call, xs, expected[:length])
    assert call(*xs).dtype is (wf.int64 if w is None else wf.float64)
    eager = T.bincount(x, w, minlength=length)
    np.testing.assert_allclose(eager, expected)


def test_bincount_gradient_and_errors() -> None:
    x = np.array([[1, 0], [3, 1]])
    check_gradient(lambda w: T.bincount(x, w, length=3), np.random.default_rng(0).random((2, 2)))
    counted = wf.compile(lambda x: T.bincount(x))
    for some in (x, x[:1], x[:0]):
        np.testing.assert_array_equal(counted(some), np.bincount(some.ravel()))
    with pytest.raises(InvalidArgumentError, match="-1"):
        wf.compile(lambda x: T.bincount(x, length=4))(np.array([0, -1]))
    with pytest.raises(InvalidArgumentError, match="-1"):
        T.bincount([0, -1])
    with pytest.raises(TypeRuleError, match=r"counts integers, got float32(.|\n)*histogram"):
        T.bincount([0.5])
    with pytest.raises(ShapeError, match=r"weights of shape \[2\] for x of shape \[3\]"):
        T.bincount([0, 1, 2], [1.0, 2.0])


@examples(120, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 2), st.booleans(), st.booleans())
def test_histogram(seed: int, bins: int, kind: int, density: bool, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rng.integers(1, 40))
    if kind:  # many on the edges; those that come from x are rounded otherwise in compiled code
        x = np.round(x * 4) / 4
    w = rng.random(x.shape) if weighted else None
    how: Any = {"range": (-1.5, 2.0)} if kind == 1 else {}
    edges: Any = np.sort(rng.integers(-8, 8, bins + 1)) / 4 if kind == 2 else bins
    if density and (kind == 2 or not ((x >= -1.5) & (x <= 2)).any()):
        density = False  # bins of width 0, or nothing at all: NaN
    expected, at = np.histogram(x, edges, weights=w, density=density, **how)

    def call(x: Any, *w: Any) -> Any:
        given = w[0] if w else None
        return T.histogram(x, edges, weights=given, density=density, **how)

    xs = (x,) if w is None else (x, w)
    rtol = 1e-12
    check(lambda *xs: call(*xs).counts, xs, expected, rtol)
    check(lambda *xs: call(*xs).edges, xs, at, rtol)
    if not density:
        assert call(*xs).counts.dtype is (wf.float64 if weighted else wf.int64)


def test_histogram_of_nan_of_one_value_and_of_nothing() -> None:
    x = np.array([0.0, np.nan, 2.0, 5.0], np.float32)
    assert T.histogram(x, 2, (0, 2)).counts.numpy().tolist() == [1, 1]
    for held in ([3.0, 3.0], [], [7]):
        expected, edges = np.histogram(held, 4)
        check(lambda x: T.histogram(x, 4).counts, (np.asarray(held, np.float32),), expected)
        check(lambda x: T.histogram(x, 4).edges, (np.asarray(held, np.float32),), edges)
    traced = wf.compile(lambda x, low, high: T.histogram(x, 4, (low, high)).counts)
    got = traced(np.array([1.0, 2.0, 3.0]), 0.0, 4.0)
    assert got.numpy().tolist() == [0, 1, 1, 1]
    with pytest.raises(InvalidArgumentError, match="edges of bins must ascend"):
        T.histogram([1.0], [2.0, 1.0])
    with pytest.raises(InvalidArgumentError, match="must be finite, its low end first"):
        T.histogram([1.0], 3, (2, 1))
    with pytest.raises(InvalidArgumentError, match="bins must be at least 1, got 0"):
        T.histogram([1.0], 0)


def test_histogram_fixed_width() -> None:
    """TensorFlow's formula, element by element."""
    x = np.random.default_rng(0).normal(size=(50,)).astype(np.float32) * 3
    x[:2] = np.inf, -np.inf
    low, high, bins = -2.0, 3.0, 7
    counts = [0] * bins
    for v in x:
        place = (v - low) / (high - low) * bins
        counts[int(np.floor(np.clip(place, 0, bins - 1)))] += 1
    check(lambda x: T.histogram_fixed_width(x, (low, high), bins), (x,), counts)
    assert T.histogram_fixed_width(x, (low, high)).shape == (100,)
    assert T.histogram_fixed_width([np.nan, 0.0], (0.0, 1.0), 2).numpy().tolist() == [1, 0]
    with pytest.raises(InvalidArgumentError, match="must ascend"):
        T.histogram_fixed_width(x, (1.0, 1.0))


@examples(36, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_digitize(seed: int, right: bool, down: bool) -> None:
    rng = np.random.default_rng(seed)
    bins = np.sort(rng.integers(-5, 5, rng.integers(0, 6))) / 2
    bins = bins[::-1].copy() if down else bins
    x = rng.integers(-12, 12, (3, 4)) / 4
    expected = np.digitize(x, bins, right)
    check(lambda x: T.digitize(x, bins, right), (x,), expected)
    if bins.size and bins[0] != bins[-1]:
        check(lambda x, bins: T.digitize(x, bins, right), (x, bins), expected)
    with pytest.raises(InvalidArgumentError, match="ascend or descend"):
        T.digitize(x, [0.0, 2.0, 1.0])


# -------------------------------------------------------------------------------------- indices
@examples(36, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**32))
def test_flat_indices(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, int(np.prod(sizes)), (2, 3))
    expected = np.unravel_index(flat, sizes)
    check(lambda i: wf.stack(list(T.unravel_index(i, sizes))), (flat,), np.stack(expected))
    for order in ("C", "F"):
        parts = [p.astype(np.int32) for p in np.unravel_index(flat, sizes, order)]
        check(lambda *i, o=order: T.ravel_multi_index(i, sizes, order=o), tuple(parts), flat)
    far = [rng.integers(-9, 9, (2, 3)) for _ in sizes]
    for mode in ("wrap", "clip"):
        check(
            lambda *i, m=mode: T.ravel_multi_index(i, sizes, m),
            tuple(far),
            np.ravel_multi_index(far, sizes, mode),
        )


def test_flat_indices_out_of_range() -> None:
    for bad in (6, -1):
        with pytest.raises(InvalidArgumentError, match=rf"the index {bad} is out of range for 6"):
            T.unravel_index([0, bad], (2, 3))
        with pytest.raises(InvalidArgumentError, match="out of"):
            wf.compile(lambda i: T.unravel_index(i, (2, 3)))(np.array([0, bad]))
    for bad in (3, -1):
        with pytest.raises(InvalidArgumentError, match=f"the index {bad} is out of range for 3"):
            T.ravel_multi_index(([0], [bad]), (2, 3))
        with pytest.raises(InvalidArgumentError, match="out of"):
            wf.compile(lambda i: T.ravel_multi_index((0 * i, i), (2, 3)))(np.array([bad]))
    with pytest.raises(ShapeError, match="1 indices for 2 axes"):
        T.ravel_multi_index(([0],), (2, 3))
    with pytest.raises(InvalidArgumentError, match="mode 'no'"):
        T.ravel_multi_index(([0],), (2,), "no")


def test_invert_permutation() -> None:
    x = np.random.default_rng(0).permutation(20).astype(np.int32)
    check(T.invert_permutation, (x,), np.argsort(x))
    for bad in ([0, 0, 1], [0, 1, 3], [-1, 0, 1]):
        with pytest.raises(InvalidArgumentError, match="is no permutation of 0 to 2"):
            T.invert_permutation(bad)
        with pytest.raises(InvalidArgumentError, match="out of"):
            wf.compile(T.invert_permutation)(np.array(bad))
    with pytest.raises(ShapeError, match="a permutation is a vector"):
        T.invert_permutation([[0]])


def test_batch_gather() -> None:
    rng = np.random.default_rng(0)
    for lead, more in (((), ()), ((3,), ()), ((2, 3), (2,))):
        x = rng.random((*lead, 5, *more))
        i = rng.integers(-5, 5, (*lead, 4))
        expected = np.stack([x[at][i[at]] for at in np.ndindex(*lead)]).reshape(
            (*lead, 4, *more)
        )  # fmt: skip
        check(T.batch_gather, (x, i), expected)
    check_gradient(lambda x: T.batch_gather(x, [[0, 1, 0], [-1, 2, 2]]), rng.random((2, 3)))
    with pytest.raises(InvalidArgumentError, match="out of"):
        wf.compile(T.batch_gather)(np.ones((2, 3)), np.array([[0], [3]]))
    with pytest.raises(ShapeError, match=r"indices of shape \[3,1\] do not fit params"):
        T.batch_gather(np.ones((2, 3)), [[0], [1], [2]])


# ----------------------------------------------------------------------- sums, running reductions
def test_add_n() -> None:
    xs = tuple(np.random.default_rng(k).random((2, 3)) for k in range(5))
    check(lambda *xs: T.add_n(xs), xs, sum(xs))
    check(lambda x: T.add_n([x]), xs[:1], xs[0])
    check_gradient(lambda x: T.add_n([x, x * x, x]), xs[0])
    assert T.add_n([np.int32(1), 2]).dtype is wf.int32
    with pytest.raises(ShapeError, match=r"wf\.tf1\.add_n: shapes \[2\] and \[1\] differ"):
        T.add_n([[1.0, 2.0], [1.0]])
    with pytest.raises(InvalidArgumentError, match=r"wf\.add_n needs at least one operand"):
        T.add_n([])


def test_running_reductions() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)) * 5
    both = [np.maximum.accumulate(x), np.minimum.accumulate(x[::-1])[::-1]]
    check(T.cummax, (x,), both[0])
    check(lambda x: T.cummin(x, reverse=True), (x,), both[1])
    rows = [sp.logsumexp(x[:k], axis=0) for k in range(1, 5)]
    check(T.logcumsumexp, (x,), np.stack(rows))
    none = np.full(3, -np.inf)
    check(lambda x: T.logcumsumexp(x, exclusive=True), (x,), np.stack([none, *rows[:-1]]))
    back = np.stack([*(sp.logsumexp(x[k:], axis=0) for k in range(1, 4)), none])
    check(lambda x: T.logcumsumexp(x, exclusive=True, reverse=True), (x,), back)
    assert T.logcumsumexp([0, 0]).dtype is wf.float32


def test_confusion_matrix_has_its_name_of_tensorflow() -> None:
    assert T.confusion_matrix is wf.metrics.confusion_matrix
    assert wf.confusion_matrix is T.confusion_matrix
