"""`wf.random`: published test vectors, reproducibility, distributions, state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

import weft as wf
from weft.ir.interpreter import interpret

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
@pytest.mark.parametrize("name", DISTRIBUTIONS)
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
