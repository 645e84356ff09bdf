"""Attention in heads against loops in NumPy, head by head and row by row; a decoder with a cache
against the whole sequence at once; masks and encodings of positions against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]
N = wf.nn
RNG = np.random.default_rng(5)


def attended(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """One head, row by row: [rows, depth], [columns, depth], [columns, width], [rows, columns]."""
    out = np.zeros((len(q), v.shape[1]))
    for i, row in enumerate(q):
        scores = np.array([row @ k[j] / math.sqrt(len(row)) for j in np.flatnonzero(seen[i])])
        weights = np.exp(scores - scores.max())
        out[i] = weights / weights.sum() @ v[seen[i]]
    return out


def in_heads(q: Array, k: Array, v: Array, heads: int, kept: int, seen: Array) -> Array:
    """Heads as slices of columns; seen: [batch, heads, rows, columns]."""
    qs, ks, vs = np.split(q, heads, -1), np.split(k, kept, -1), np.split(v, kept, -1)
    out = []
    for h in range(heads):
        near = h * kept // heads
        each = [attended(qs[h][b], ks[near][b], vs[near][b], seen[b, h]) for b in range(len(q))]
        out.append(np.stack(each))
    return np.concatenate(out, -1)


@pytest.mark.share(2)
@pytest.mark.parametrize(("heads", "kept"), [(1, 1), (4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("mask", ["all", "causal", "lengths"])
def test_multi_head_attention(heads: int, kept: int, mask: str) -> None:
    rows = columns = 5
    q = RNG.normal(size=(2, rows, heads * 4))
    k, v = RNG.normal(size=(2, columns, kept * 4)), RNG.normal(size=(2, columns, kept * 3))
    seen = np.ones((2, heads, rows, columns), bool)
    settings: dict[str, Any] = {}
    if mask == "causal":
        seen &= np.tril(seen)
        settings["is_causal"] = True
    elif mask == "lengths":
        seen[1, :, :, 2:] = False
        settings["attn_mask"] = N.padding_mask([5, 2], columns)
    call = lambda q, k, v: N.multi_head_attention(  # noqa: E731
        q, k, v, heads, num_kv_heads=kept, **settings
    )
    expected = in_heads(q, k, v, heads, kept, seen)
    np.testing.assert_allclose(call(q, k, v), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(wf.compile(call)(q, k, v), expected, rtol=1e-10, atol=1e-12)


def by_hand(layer: Any, x: Array, memory: Array, seen: Array) -> Array:
    """A layer without rotary positions, from its variables."""
    w = {name: v.numpy() for name, v in layer.named_variables().items()}
    q, k, v = (
        a @ w[f"{name}_kernel"] + w.get(f"{name}_bias", 0.0)
        for name, a in (("query", x), ("key", memory), ("value", memory))
    )
    found = in_heads(q, k, v, layer.num_heads, layer.num_kv_heads, seen)
    made: Array = found @ w["output_kernel"] + w.get("output_bias", 0.0)
    return made


@pytest.mark.parametrize("kept", [4, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer(kept: int, bias: bool) -> None:
    layer = N.MultiHeadAttention(4, 12, num_kv_heads=kept, use_bias=bias, dtype="float64")
    x, memory = RNG.normal(size=(2, 3, 5)), RNG.normal(size=(2, 6, 7))
    lengths = np.array([6, 4])
    layer.build(5, 7)
    for v in layer.variables():
        v.assign(RNG.normal(size=v.shape))  # biases, too
    call = lambda x, m: layer(x, m, attn_mask=N.padding_mask(lengths, 6))  # noqa: E731
    seen = np.broadcast_to((np.arange(6) < lengths[:, None])[:, None, None], (2, 4, 3, 6))
    expected = by_hand(layer, x, memory, seen)
    np.testing.assert_allclose(call(x, memory), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(wf.compile(call)(x, memory), expected, rtol=1e-10, atol=1e-12)
    assert len(layer.variables()) == (8 if bias else 4)


@pytest.mark.share(3)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("kept", [4, 1])
def test_a_cache_gives_what_the_whole_sequence_gives(rotary: bool, kept: int) -> None:
    """A prompt of three at once, then one by one, in a loop in native code."""
    layer = N.MultiHeadAttention(4, 8, num_kv_heads=kept, rotary=rotary, dtype="float64")
    x = RNG.normal(size=(2, 8, 6))
    whole = layer(x, is_causal=True)

    @wf.compile
    def decode(x: Any) -> Any:
        first, cache = layer(x[:, :3], cache=layer.empty_cache(2, 9))

        def step(cache: Any, row: Any) -> Any:
            made, cache = layer(row[:, None], cache=cache)
            return cache, made[:, 0]

        cache, rest = wf.scan(step, cache, wf.moveaxis(x[:, 3:], 1, 0))
        return wf.concat([first, wf.moveaxis(rest, 0, 1)], axis=1), cache.length

    got, length = decode(x)
    np.testing.assert_allclose(got, whole, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(length, [8, 8])
    cache = layer.empty_cache(2, 9)
    eager = []
    for i in range(8):
        made, cache = layer(x[:, i : i + 1], cache=cache)
        eager.append(made)
    np.testing.assert_allclose(wf.concat(eager, axis=1), whole, rtol=1e-9, atol=1e-12)


def test_rows_of_a_cache_may_have_several_lengths() -> None:
    """Two rows that have seen 3 and 1 positions: each goes on as if it were alone."""
    layer = N.MultiHeadAttention(2, 4, rotary=True, dtype="float64")
    x = RNG.normal(size=(2, 4, 4))
    _, cache = layer(x[:, :3], cache=layer.empty_cache(2, 5))
    cache = N.KVCache(cache.key, cache.value, wf.asarray([3, 1]))
    made, _ = layer(x[:, 3:], cache=cache)
    for b, seen in enumerate((3, 1)):
        alone = np.concatenate([x[b : b + 1, :seen], x[b : b + 1, 3:]], 1)
        truth = layer(alone, is_causal=True)[:, -1:]
        np.testing.assert_allclose(made[b], truth[0], rtol=1e-9, atol=1e-12)


def test_further_masks_and_a_cache() -> None:
    layer = N.MultiHeadAttention(2, 4, dtype="float64")
    x = RNG.normal(size=(1, 3, 4))
    hidden = wf.asarray([[[[True, False, True, True, True]]]])  # not the second position
    made, _ = layer(x, cache=layer.empty_cache(1, 5), attn_mask=hidden)
    others = layer(x[:, 2:], x[:, ::2])
    np.testing.assert_allclose(made[:, 2:], others, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_learns_to_look_back() -> None:
    """The output is the first row of the sequence: attention has to find it. Module and optimizer,
    compiled; and the layer comes back from a checkpoint."""
    layer = N.MultiHeadAttention(2, 8, input_size=8)
    optimizer = wf.train.Adam(0.02)

    @wf.compile
    def step(x: Any) -> Any:
        loss = wf.mean((layer(x) - x[:, :1]) ** 2)
        optimizer.minimize(loss)
        return loss

    rng = np.random.default_rng(0)

    def batch() -> Array:
        x = rng.normal(size=(16, 4, 8)).astype(np.float32)
        x[:, :, 0] = np.arange(4) == 0  # which says that it is the first
        return x * np.float32(2.0)

    losses = [float(step(batch())) for _ in range(300)]
    assert np.mean(losses[-10:]) < 0.25 * losses[0]


def test_checkpoints(tmp_path: Path) -> None:
    one, other = (N.MultiHeadAttention(2, 8, input_size=8) for _ in range(2))
    path = wf.train.Saver({"layer": one}).save(None, tmp_path / "layer")
    wf.train.Saver({"layer": other}).restore(None, path)
    x = RNG.normal(size=(1, 3, 8)).astype(np.float32)
    np.testing.assert_array_equal(one(x), other(x))


# --------------------------------------------------------------------------- masks and positions
def test_masks() -> None:
    for rows, columns, offset in [(3, 3, 0), (2, 5, 3), (4, 2, 0), (0, 2, 0)]:
        expected = [[j <= i + offset for j in range(columns)] for i in range(rows)]
        got = N.causal_mask(rows, columns, offset)
        np.testing.assert_array_equal(got, np.array(expected, bool).reshape(rows, columns))
    several = wf.compile(lambda n: N.causal_mask(2, 4, n))(np.array([0, 2]))
    for row, offset in zip(several, (0, 2), strict=True):
        np.testing.assert_array_equal(row, N.causal_mask(2, 4, offset))
    np.testing.assert_array_equal(
        N.padding_mask([0, 2, 9], 3)[:, 0, 0], [[False] * 3, [True, True, False], [True] * 3]
    )


def test_sinusoidal_positions() -> None:
    expected = np.zeros((7, 6))
    for p in range(7):
        for i in range(3):
            expected[p, 2 * i] = math.sin(p / 10000 ** (2 * i / 6))
            expected[p, 2 * i + 1] = math.cos(p / 10000 ** (2 * i / 6))
    np.testing.assert_allclose(N.sinusoidal_positions(7, 6, dtype="float64"), expected, rtol=1e-9)
    single = N.sinusoidal_positions(7, 6)
    assert single.dtype is wf.float32
    np.testing.assert_allclose(single, expected, atol=1e-6)
    some = wf.compile(lambda p: N.sinusoidal_positions(p, 6))(np.array([[4, 0], [6, 2]]))
    np.testing.assert_allclose(some, expected[[[4, 0], [6, 2]]], atol=1e-6)


@pytest.mark.share(2)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("given", [None, "time", "batch"])
def test_rotary_embedding(interleaved: bool, given: str | None) -> None:
    """As complex numbers times e^(i angle)."""
    x = RNG.normal(size=(2, 3, 4, 6))
    places = {None: np.arange(4), "time": np.array([7, 0, 3, 3]),
              "batch": np.array([[0, 1, 2, 3], [5, 6, 7, 8]])}[given]  # fmt: skip
    turns = np.exp(1j * places[..., None] * 100.0 ** (-np.arange(0, 6, 2) / 6))
    if given == "batch":
        turns = turns[:, None]
    pairs = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :3] + 1j * x[..., 3:]
    turned = pairs * turns
    parts = turned.real, turned.imag
    expected = np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)
    call = lambda x: N.rotary_embedding(  # noqa: E731
        x, None if given is None else places.astype(np.float64), base=100.0, interleaved=interleaved
    )
    np.testing.assert_allclose(call(x), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(wf.compile(call)(x), expected, rtol=1e-10, atol=1e-12)


def test_rotary_products_know_the_distance() -> None:
    """Of a query and a key moved by the same number of positions the product stays."""
    q, k = RNG.normal(size=(2, 1, 8))
    turned = lambda t, p: N.rotary_embedding(t, np.array([p])).numpy()[0]  # noqa: E731
    first = turned(q, 3) @ turned(k, 1)
    np.testing.assert_allclose(turned(q, 12) @ turned(k, 10), first, rtol=1e-9)
    assert abs(turned(q, 3) @ turned(k, 2) - first) > 1e-3


X = np.zeros((2, 3, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.multi_head_attention(X, X, X, 3), "ShapeError", "a size that 3 heads divide"),
        (lambda: N.multi_head_attention(X, X, X, 4, num_kv_heads=3), "InvalidArgumentError",
         "num_kv_heads 3 does not divide num_heads 4"),
        (lambda: N.multi_head_attention(X, X, X, 0), "InvalidArgumentError", "at least 1, got 0"),
        (lambda: N.MultiHeadAttention(3, 8), "InvalidArgumentError", "3 heads do not divide size"),
        (lambda: N.MultiHeadAttention(2, 8)(X[0]), "ShapeError", r"takes \[batch, time, size\]"),
        (lambda: N.MultiHeadAttention(2, 8, input_size=4)(X), "ShapeError", r"sizes \(4, 4\), got"),
        (lambda: N.MultiHeadAttention(2, 8)(
            X, cache=N.MultiHeadAttention(2, 8).empty_cache(2, 4), attn_mask=np.zeros((3, 4))),
         "TypeRuleError", "attn_mask is bool"),
        (lambda: N.MultiHeadAttention(2, 8)(
            X, cache=N.MultiHeadAttention(2, 8).empty_cache(1, 4)), "ShapeError", "for a cache of"),
        (lambda: N.MultiHeadAttention(2, 8)(
            X, cache=N.MultiHeadAttention(2, 8).empty_cache(2, 2)), "InvalidArgumentError",
         "out of"),
        (lambda: N.causal_mask(-1), "InvalidArgumentError", "must not be negative"),
        (lambda: N.causal_mask(2, offset=0.5), "TypeRuleError", "offset is of integers, got float"),
        (lambda: N.padding_mask([[1]], 2), "ShapeError", r"lengths are \[batch\]"),
        (lambda: N.sinusoidal_positions(3, 5), "InvalidArgumentError", "depth must be even"),
        (lambda: N.rotary_embedding(X[..., :5]), "InvalidArgumentError", "depth must be even"),
        (lambda: N.rotary_embedding([1.0]), "ShapeError", r"takes \[..., time, depth\]"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
