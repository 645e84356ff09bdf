"""`wf.random`: published test vectors, reproducibility, distributions, state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

import weft as wf
from weft.ir.interpreter.evaluate import interpret

N = 50_000
KEY = wf.random.key(42)


def flat(t: Any) -> np.ndarray[Any, Any]:
    return np.asarray(t, np.float64).ravel()


def truncated(x: Any) -> Any:
    return scipy.stats.truncnorm(-2, 2).cdf(x)


DISTRIBUTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "uniform": (wf.random.uniform, scipy.stats.uniform.cdf),
    "normal": (wf.random.normal, scipy.stats.norm.cdf),
    "truncated_normal": (wf.random.truncated_normal, truncated),
    "exponential": (wf.random.exponential, scipy.stats.expon.cdf),
    "gumbel": (wf.random.gumbel, scipy.stats.gumbel_r.cdf),
    "laplace": (wf.random.laplace, scipy.stats.laplace.cdf),
    "logistic": (wf.random.logistic, scipy.stats.logistic.cdf),
    "cauchy": (wf.random.cauchy, scipy.stats.cauchy.cdf),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str, dtype: str) -> None:
    """Kolmogorov-Smirnov on 50,000 numbers; the key is fixed, so the verdict is too."""
    function, cdf = DISTRIBUTIONS[name]
    sample = function(KEY, (N,), dtype)
    assert sample.dtype.name == dtype
    assert scipy.stats.kstest(flat(sample), cdf).pvalue > 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [n for n in DISTRIBUTIONS if n != "cauchy"])  # has no mean
def test_short_floats(name: str, dtype: str) -> None:
    """Too coarse for a fine test: mean and deviation, and nothing infinite."""
    sample = DISTRIBUTIONS[name][0](KEY, (N,), dtype)
    exact = flat(DISTRIBUTIONS[name][0](KEY, (N,), "float64"))
    assert sample.dtype.name == dtype
    assert np.isfinite(flat(sample)).all()
    assert abs(flat(sample).mean() - exact.mean()) < 0.03
    assert abs(flat(sample).std() - exact.std()) < 0.03


def test_threefry_vectors() -> None:
    """The known answers of Random123 1.14 (kat_vectors) for threefry2x32, 20 rounds."""
    vectors = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    key, counter, expected = vectors[0]
    got = wf.random.bits(np.array(key, np.uint32), (2,))
    np.testing.assert_array_equal(got, np.array(expected, np.uint32))
    from weft.ir.ops.random import threefry2x32

    for key, counter, expected in vectors:
        low, high = (np.array([c], np.uint32) for c in counter)
        words = threefry2x32(np.array(key, np.uint32), low, high)
        assert tuple(int(w[0]) for w in words) == expected


def test_same_key_same_numbers_eager_and_traced() -> None:
    def draw(key: Any) -> Any:
        return wf.random.normal(wf.random.fold_in(key, 3), (5, 3))

    first = draw(KEY)
    np.testing.assert_array_equal(first, draw(KEY))
    graph = wf.compile(draw).trace(KEY)
    np.testing.assert_array_equal(interpret(graph, [KEY.numpy()])[0], first)
    longer = wf.random.bits(KEY, (10,)).numpy()
    np.testing.assert_array_equal(longer[:7], wf.random.bits(KEY, (7,)))


def test_keys_differ() -> None:
    keys = [wf.random.key(0), wf.random.key(1), wf.random.key(1 << 40), wf.random.key(-1)]
    keys += wf.random.split(keys[0], 3)
    keys += [wf.random.fold_in(keys[0], 7), wf.random.fold_in(keys[1], 7)]
    assert len({tuple(k.tolist()) for k in keys}) == len(keys)
    a, b = (flat(wf.random.uniform(k, (N,))) for k in wf.random.split(KEY))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


def test_uniform_range() -> None:
    u = wf.random.uniform(KEY, (N,), minval=-2.0, maxval=3.0).numpy()
    assert u.min() >= -2
    assert u.max() < 3
    assert abs(u.mean() - 0.5) < 0.02
    narrow = wf.random.uniform(
        KEY, (N,), minval=1.0, maxval=np.nextafter(np.float32(1), np.float32(2))
    )
    assert (narrow.numpy() == 1).all()
    bounds = np.array([[0.0], [10.0]], np.float32)
    both = wf.random.uniform(KEY, (2, 1000), minval=bounds, maxval=bounds + 1).numpy()
    assert both[0].max() < 1 < 10 <= both[1].min()
    full = wf.random.uniform(KEY, (1 << 20,)).numpy()
    assert full.max() < 1
    assert full.min() >= 0
    # all 24 bits are in use
    assert ((full * 2**24).astype(np.int64) & 1).mean() == pytest.approx(0.5, abs=0.01)


def test_normal_parameters_and_tails() -> None:
    x = wf.random.normal(KEY, (N,), mean=3.0, stddev=np.float32(0.5)).numpy()
    assert abs(x.mean() - 3) < 0.01
    assert abs(x.std() - 0.5) < 0.01
    tails = wf.random.normal(KEY, (1 << 20,)).numpy()
    assert np.isfinite(tails).all()
    assert 4.3 < np.abs(tails).max() < 5.5
    cut = wf.random.truncated_normal(KEY, (N,), lower=-0.5, upper=1.0, mean=10.0, stddev=2.0)
    assert 9 <= cut.numpy().min() <= cut.numpy().max() <= 12


def test_bernoulli() -> None:
    p = np.array([0.0, 0.1, 0.9, 1.0], np.float32)
    hits = wf.random.bernoulli(KEY, p, (N, 4)).numpy()
    assert hits.dtype == np.bool_
    np.testing.assert_allclose(hits.mean(0), p, atol=0.01)
    assert not hits[:, 0].any()
    assert hits[:, 3].all()
    assert wf.random.bernoulli(KEY, p).shape == (4,)


def test_categorical() -> None:
    logits = np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.0001, 0.4999]]))
    drawn = wf.random.categorical(KEY, logits, shape=(N, 2)).numpy()
    assert drawn.shape == (N, 2)
    for column, row in zip(drawn.T, logits, strict=True):
        share = np.bincount(column, minlength=3) / N
        np.testing.assert_allclose(share, np.exp(row), atol=0.01)
    assert wf.random.categorical(KEY, logits).shape == (2,)
    assert wf.random.categorical(KEY, logits.T, axis=0).shape == (2,)
    never = wf.random.categorical(KEY, [0.0, -np.inf], shape=(1000,)).numpy()
    assert (never == 0).all()


def test_randint() -> None:
    drawn = wf.random.randint(KEY, (N,), -3, 5).numpy()
    assert drawn.dtype == np.int64
    np.testing.assert_allclose(np.bincount(drawn + 3) / N, np.full(8, 1 / 8), atol=0.01)
    byte = wf.random.randint(KEY, (N,), -128, 128, "int8").numpy()
    assert (byte.min(), byte.max()) == (-128, 127)
    wide = wf.random.randint(KEY, (N,), -(2**63), 2**63 - 1).numpy()
    assert wide.min() < -(2**62)
    assert wide.max() > 2**62
    edges = wf.random.randint(KEY, (2, 100), np.array([[0], [50]]), np.array([[1], [52]])).numpy()
    assert (edges[0] == 0).all()
    assert set(edges[1]) == {50, 51}
    with pytest.raises(wf.errors.InvalidArgumentError, match="minval must be less"):
        wf.random.randint(KEY, (2,), 3, 3)


def test_permutation() -> None:
    order = wf.random.permutation(KEY, 1000).numpy()
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))
    assert (order != np.arange(1000)).sum() > 980
    x = np.arange(12).reshape(3, 4)
    columns = wf.random.permutation(KEY, x, axis=1).numpy()
    np.testing.assert_array_equal(np.sort(columns, 1), x)
    np.testing.assert_array_equal(columns - columns[:1], x - x[:1])
    firsts = [int(wf.random.permutation(k, 4).numpy()[0]) for k in wf.random.split(KEY, 400)]
    np.testing.assert_allclose(np.bincount(firsts) / 400, np.full(4, 0.25), atol=0.07)
    rows = wf.random.shuffle(KEY, x).numpy()
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], x)


def test_bits() -> None:
    words = wf.random.bits(KEY, (N,), wf.uint64).numpy()
    assert words.dtype == np.uint64
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.001
    with pytest.raises(wf.errors.InvalidArgumentError, match="uint32 or uint64"):
        wf.random.bits(KEY, (), wf.int32)


def test_generator_state() -> None:
    a, b = wf.random.Generator(9), wf.random.Generator(9)
    first, second = a.normal((4,)).numpy(), a.normal((4,)).numpy()
    assert (first != second).any()
    np.testing.assert_array_equal(b.normal((4,)), first)
    saved = a.state.numpy()
    third = a.uniform((3,)).numpy()
    a.state.assign(saved)
    np.testing.assert_array_equal(a.uniform((3,)), third)
    a.reset(9)
    np.testing.assert_array_equal(a.normal((4,)), first)
    assert a.randint((5,), 0, 3).shape == a.categorical(np.zeros((5, 2))).shape == (5,)
    assert a.bernoulli(0.5, (3,)).shape == a.permutation(3).shape == a.shuffle(first[:3]).shape
    assert a.truncated_normal((2,)).dtype is wf.float32


def test_generator_in_a_compiled_function() -> None:
    """Each call goes on where the last stopped, as eager calls do."""
    eager, inside = wf.random.Generator(4), wf.random.Generator(4)

    @wf.compile
    def draw() -> Any:
        return inside.normal((3,)), inside.uniform((2,))

    for _ in range(3):
        normal, uniform = draw()
        np.testing.assert_allclose(normal, eager.normal((3,)), rtol=1e-5)
        np.testing.assert_allclose(uniform, eager.uniform((2,)), rtol=1e-6)


def test_process_wide_generator() -> None:
    wf.set_random_seed(123)
    first = [wf.random_normal((3,)).numpy(), wf.random_uniform((3,)).numpy()]
    seeded = [wf.random_uniform((2,), seed=5).numpy() for _ in range(2)]
    assert (seeded[0] != seeded[1]).any()
    other = wf.random_uniform((2,), seed=6).numpy()
    assert (other != seeded[0]).any()
    wf.set_random_seed(123)
    np.testing.assert_array_equal(wf.random_uniform((2,), seed=5), seeded[0])
    np.testing.assert_array_equal(wf.random_normal((3,)), first[0])
    np.testing.assert_array_equal(wf.random_uniform((3,)), first[1])
    wf.set_random_seed(124)
    assert (wf.random_normal((3,)).numpy() != first[0]).any()
    whole = wf.random_uniform((100,), 0, 10, wf.int32)
    assert whole.dtype is wf.int32
    assert set(whole.tolist()) <= set(range(10))
    assert np.abs(wf.truncated_normal((1000,), stddev=0.1).numpy()).max() <= 0.2
    np.testing.assert_array_equal(np.sort(wf.random_shuffle(np.arange(9))), np.arange(9))


def test_random_ops_in_a_graph() -> None:
    """Two ops in one step differ, and each step gives new numbers."""
    with wf.Graph().as_default():
        a, b = wf.random_uniform((4,)), wf.random_uniform((4,))
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        steps = [session.run([a, b]) for _ in range(2)]
    drawn = np.stack([x for step in steps for x in step])
    assert len(np.unique(drawn)) == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wf.random.normal(np.zeros(2), (3,)), "a key is a uint32"),
        (lambda: wf.set_random_seed("a"), "seed must be an integer, got 'a'"),  # type: ignore[arg-type]
        (lambda: wf.random_uniform((3,), seed=1.5), "seed must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: wf.random.split(np.zeros(3, np.uint32)), "a key is a uint32"),
        (lambda: wf.random.normal(KEY, (3,), wf.int32), "floating numbers, not int32"),
        (lambda: wf.random.uniform(KEY, (-1,)), "negative size"),
        (lambda: wf.random.fold_in(KEY, 0.5), "must be one integer"),
        (lambda: wf.random.randint(KEY, (), 0, 2.5), "bounds must be integers"),
        (lambda: wf.random.randint(KEY, (), 0, 2, wf.float32), "gives integers"),
        (lambda: wf.random.truncated_normal(KEY, (), lower=1, upper=1), "less than upper"),
        (lambda: wf.random.key(0.5), "seed must be an integer"),
        (lambda: wf.random.categorical(KEY, np.zeros((2, 3)), shape=()), "do not broadcast"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(wf.errors.WeftError, match=message) as error:
        call()
    assert error.value.locations[0].file == __file__


# ------------------------------------------------------------------------------------------ choice
def test_rademacher() -> None:
    signs = wf.random.rademacher(KEY, (N,))
    assert signs.dtype is wf.int64
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(np.asarray(signs).mean()) < 0.02
    assert wf.random.rademacher(KEY, (3,), "float32").dtype is wf.float32


def test_choice_takes_values_with_their_probabilities() -> None:
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0], np.float32)  # of any sum
    drawn = wf.compile(lambda k: wf.random.choice(k, np.arange(5) * 10, (N,), p=weights))(KEY)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [10, 30]
    assert abs(counts[0] / N - 0.25) < 0.01
    even = np.bincount(wf.random.choice(KEY, 4, (N,)), minlength=4)
    assert scipy.stats.chisquare(even).pvalue > 0.01
    assert wf.random.choice(KEY, np.ones((4, 7)), (2, 3), axis=1).shape == (4, 2, 3)
    assert wf.random.choice(KEY, 5).shape == ()
    whole = np.int64(5)  # a NumPy integer is a number, not an array without axes
    np.testing.assert_array_equal(
        wf.random.choice(KEY, whole, (9,)), wf.random.choice(KEY, 5, (9,))
    )
    assert sorted(wf.random.permutation(KEY, whole).tolist()) == [0, 1, 2, 3, 4]
    for draw in (wf.random.choice, wf.random.permutation):
        for fraction in (2.5, wf.asarray(2.5)):  # is no number of values
            with pytest.raises(wf.errors.BoundsError, match="axis 0 is out of range"):
                draw(KEY, fraction)


def test_choice_without_replacement() -> None:
    keys = wf.random.split(KEY, 2000)
    draw = wf.compile(lambda k: wf.random.choice(k, 4, (3,), replace=False, p=[0.7, 0.1, 0.1, 0.1]))
    drawn = np.array([draw(k) for k in keys])
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert abs((drawn[:, 0] == 0).mean() - 0.7) < 0.03
    order = wf.random.choice(KEY, 100, (10, 10), replace=False)
    assert sorted(np.ravel(order)) == list(range(100))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": 3, "shape": (4,), "replace": False}, "4 of 3 values"),
        ({"a": 0, "shape": (1,)}, "nothing to choose from"),
        ({"a": 3, "shape": (4,), "p": [0.5, 0.5]}, "for 3 values"),
        ({"a": np.ones((2, 2)), "axis": 2}, "axis 2"),
    ],
)
def test_choice_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(wf.errors.WeftError, match=message) as error:
        wf.random.choice(KEY, **arguments)
    assert error.value.locations[0].file == __file__


def test_a_generator_chooses() -> None:
    one, two = wf.random.Generator(3), wf.random.Generator(3)
    np.testing.assert_array_equal(one.choice(9, (5,)), two.choice(9, (5,)))
    assert one.choice(9, (50,)).shape == (50,)


# --------------------------------------------------------------------------------------- rejection
@pytest.mark.share(2)
@pytest.mark.parametrize("a", [0.1, 1.0, 2.5, 40.0])
def test_gamma(a: float) -> None:
    draw = wf.compile(lambda k: wf.random.gamma(k, a, (N,)))
    sample = draw(KEY)
    assert sample.dtype is wf.float32
    assert scipy.stats.kstest(flat(sample), scipy.stats.gamma(a).cdf).pvalue > 0.01
    np.testing.assert_allclose(sample, wf.random.gamma(KEY, a, (N,)), rtol=1e-4)


def test_beta_and_dirichlet() -> None:
    sample = wf.random.beta(KEY, 2.0, [[0.7], [3.0]], (2, N), "float64")
    for row, b in zip(np.asarray(sample), (0.7, 3.0), strict=True):
        assert scipy.stats.kstest(row, scipy.stats.beta(2.0, b).cdf).pvalue > 0.01
    parts = np.asarray(wf.random.dirichlet(KEY, [1.0, 2.0, 3.0], (N,)))
    assert parts.shape == (N, 3)
    np.testing.assert_allclose(parts.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(parts.mean(0), [1 / 6, 2 / 6, 3 / 6], atol=0.01)
    assert scipy.stats.kstest(parts[:, 0], scipy.stats.beta(1, 5).cdf).pvalue > 0.01
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least a vector"):
        wf.random.dirichlet(KEY, 2.0)


@pytest.mark.share(2)
@pytest.mark.parametrize("rate", [0.3, 9.9, 10.0, 1000.0])
def test_poisson(rate: float) -> None:
    sample = np.asarray(wf.compile(lambda k: wf.random.poisson(k, rate, (N,)))(KEY))
    assert sample.dtype == np.int64
    exact = scipy.stats.poisson(rate)
    ends = np.unique(exact.ppf(np.linspace(0.05, 0.95, 15)))
    seen = np.bincount(np.searchsorted(ends, sample), minlength=len(ends) + 1)
    expected = N * np.diff([0, *exact.cdf(ends), 1])
    assert scipy.stats.chisquare(seen, expected).pvalue > 0.01


def test_parameters_that_no_distribution_has() -> None:
    drawn = np.asarray(wf.random.gamma(KEY, [1.0, -1.0, np.nan, 2.0]))
    assert np.isnan(drawn).tolist() == [False, True, True, False]
    counts = np.asarray(wf.random.poisson(KEY, [0.0, -1.0, np.nan, 100.0]))
    assert counts[:3].tolist() == [0, -1, -1]
    assert counts[3] > 0


def test_rejection_has_no_gradient() -> None:
    f = wf.compile(wf.grad(lambda a: wf.sum(wf.random.gamma(KEY, a, (5,)) * a)))
    np.testing.assert_allclose(f(2.0), flat(wf.random.gamma(KEY, 2.0, (5,))).sum(), rtol=1e-6)
