"""The table of composed_truth.py, second part: `wf.nn`, `wf.random`, `wf.train`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special as sp
import scipy.stats
from composed_draws import Drawn, Row, Trial, as_float, named, row, wide
from composed_truth import _magnitude

import weft as wf

Array = np.ndarray[Any, Any]
TABLE: dict[str, Row] = {}


def truth(*names: str) -> Callable[[Any], Any]:
    """As in composed_truth.py."""

    def put(make: Any) -> Any:
        for name in names:
            if make.__code__.co_argcount == 2:
                TABLE[name] = row(named(make, name.rpartition(".")[2]))
            else:
                TABLE[name] = row(make)
        return make

    return put


# --------------------------------------------------------------------------------- activations
def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


def _gelu(x: Array) -> Array:
    return x * sp.ndtr(x)


_SCALE, _ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "elu": _elu,
    "selu": lambda x: _SCALE * np.where(x > 0, x, _ALPHA * _elu(x)),
    "gelu": _gelu,
    "silu": lambda x: x * sp.expit(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softplus": _softplus,
    "log_sigmoid": lambda x: -_softplus(-x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "sigmoid": sp.expit,
    "tanh": np.tanh,
}


@truth(*(f"nn.{name}" for name in ACTIVATIONS))
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "f2", "i4"))
    x = x * x.dtype.type(d.one([1, 10]))
    dtype = x.dtype if name in ("relu", "relu6") else as_float(x.dtype)
    expected = ACTIVATIONS[name](wide(x) * 1.0)
    # gelu's formula, 1 + erf, is as exact as its terms are
    scale = 10.0 if name == "gelu" else None
    return Trial(getattr(wf.nn, name), [x], expected, dtype, 32, scale)


@truth("nn.softmax", "nn.log_softmax", "nn.logsumexp")
def _(d: Drawn, name: str) -> Trial:
    x = d.numbers(d.shape(1), ("f8", "f4", "f2", "i4"))
    x = x * x.dtype.type(d.one([1, 30]))
    axis, w = d.axis(x.ndim), wide(x) * 1.0
    if x.size:
        total = sp.logsumexp(w, axis, keepdims=True)
    else:
        total = np.log(np.exp(w).sum(axis, keepdims=True))
    expected = {"softmax": np.exp(w - total), "log_softmax": w - total,
                "logsumexp": np.squeeze(total, axis)}[name]  # fmt: skip
    call = lambda x: getattr(wf.nn, name)(x, axis=axis)  # noqa: E731
    return Trial(call, [x], expected, as_float(x.dtype), 64, 1.0 if name != "softmax" else None)


# -------------------------------------------------------------------------------------- losses
def _scores(d: Drawn, low: int = 0) -> tuple[Array, Array]:
    shape = d.shape(low)
    x = d.numbers(shape, ("f8", "f4", "f2"))
    return x * x.dtype.type(d.one([1, 20])), np.abs(d.floats(shape, x.dtype))


@truth("nn.softmax_cross_entropy_with_logits")
def _(d: Drawn) -> Trial:
    x, z = _scores(d, 1)
    axis = d.axis(x.ndim)
    w = wide(x)
    logs = w - sp.logsumexp(w, axis, keepdims=True) if x.size else w
    call = lambda x, z: wf.nn.softmax_cross_entropy_with_logits(  # noqa: E731
        labels=z, logits=x, axis=axis
    )
    return Trial(call, [x, z], -(wide(z) * logs).sum(axis), x.dtype, 64, _magnitude(wide(z) * logs))


@truth("nn.sparse_softmax_cross_entropy_with_logits")
def _(d: Drawn) -> Trial:
    lead, n = d.shape(0, 2), d.int(1, 5)
    x = d.numbers((*lead, n), ("f8", "f4", "f2"))
    z = d.ints(lead, d.one(["i8", "i4", "u1"]), 0, n - 1)
    w = wide(x)
    logs = w - sp.logsumexp(w, -1, keepdims=True) if x.size else w
    expected = -np.take_along_axis(logs, z[..., None].astype("i8"), -1)[..., 0]
    call = lambda x, z: wf.nn.sparse_softmax_cross_entropy_with_logits(  # noqa: E731
        labels=z, logits=x
    )
    return Trial(call, [x, z], expected, x.dtype, 64, float(np.abs(w).max(initial=1)))


@truth("nn.sigmoid_cross_entropy_with_logits", "nn.weighted_cross_entropy_with_logits")
def _(d: Drawn, name: str) -> Trial:
    x, z = _scores(d)
    q = d.one([0.5, 1.0, 4.0]) if name.startswith("weighted") else 1.0
    w, t = wide(x), wide(z)
    expected = (1 - t) * _softplus(w) + q * t * _softplus(-w)
    more = {"pos_weight": q} if name.startswith("weighted") else {}
    call = lambda x, z: getattr(wf.nn, name)(labels=z, logits=x, **more)  # noqa: E731
    scale = float((np.abs(w) * (1 + 4 * t)).max(initial=1))
    return Trial(call, [x, z], expected, x.dtype, 32, scale)


@truth("nn.mean_squared_error", "nn.l2_loss")
def _(d: Drawn, name: str) -> Trial:
    x, z = _scores(d)
    x, z = x / x.dtype.type(8), z / z.dtype.type(8)  # a sum of squares stays in range
    if name == "l2_loss":
        return Trial(wf.nn.l2_loss, [x], (wide(x) ** 2).sum() / 2, x.dtype, 32)
    expected = np.mean((wide(x) - wide(z)) ** 2)
    scale = float(np.abs(wide(x)).max(initial=0) + np.abs(wide(z)).max(initial=0)) ** 2
    return Trial(wf.nn.mean_squared_error, [z, x], expected, x.dtype, 16, scale)


# ------------------------------------------------------------------------------- normalisation
@truth("nn.moments")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "f2", "c16"))
    axes, keepdims = d.axes(x.ndim), d.bool()
    w = wide(x)
    expected = [np.mean(w, axes, keepdims=keepdims), np.var(w, axes, keepdims=keepdims)]
    call = lambda x: wf.nn.moments(x, axes, keepdims)  # noqa: E731
    dtypes = [x.dtype, np.zeros((), x.dtype).real.dtype]
    return Trial(call, [x], expected, dtypes, 32, float(np.abs(w).max(initial=0)) ** 2)


@truth("nn.layer_norm")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "f2"))
    axes = d.one([d.axes(x.ndim), -1 if x.ndim else None])
    scale, offset = (d.one([None, d.floats(d.broadcast(x.shape), x.dtype)]) for _ in range(2))
    w = wide(x)
    expected = (w - w.mean(axes, keepdims=True)) / np.sqrt(w.var(axes, keepdims=True) + 1e-5)
    expected = expected * (1 if scale is None else wide(scale))
    expected = expected + (0 if offset is None else wide(offset))
    call = lambda x: wf.nn.layer_norm(x, scale, offset, axis=axes)  # noqa: E731
    # what is left of a variance of 0 is divided by the root of epsilon
    return Trial(call, [x], expected, x.dtype, 64, 300.0 * float(np.abs(w).max(initial=1)))


@truth("nn.batch_norm", "nn.batch_normalization")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "f2"))
    mean, variance, scale, offset = (d.floats(d.broadcast(x.shape), x.dtype) for _ in range(4))
    variance = np.abs(variance)
    more = [d.one([None, v]) for v in (offset, scale)]
    expected = (wide(x) - wide(mean)) / np.sqrt(wide(variance) + 1e-3)
    expected = expected * (1 if more[1] is None else wide(scale))
    expected = expected + (0 if more[0] is None else wide(offset))
    call = lambda *a: wf.nn.batch_norm(*a, *more)  # noqa: E731
    return Trial(call, [x, mean, variance], expected, x.dtype, 32, 300.0)


@truth("nn.l2_normalize")
def _(d: Drawn) -> Trial:
    x = d.numbers(d.shape(), ("f8", "f4", "f2"))
    axes = d.axes(x.ndim)
    total = np.maximum((wide(x) ** 2).sum(axes, keepdims=True), 1e-12)
    return Trial(lambda x: wf.nn.l2_normalize(x, axes), [x], wide(x) / np.sqrt(total), x.dtype, 16)


@truth("nn.dropout")
def _(d: Drawn) -> Trial:
    """Each element is 0 or the element over 1 - rate; which ones: those of `bernoulli`."""
    x, rate = d.floats(d.shape(), d.one(["f8", "f4"])) + 5, d.one([0, 0.25, 0.5, 1])
    key = wf.random.key(d.int(0, 999))
    noise = d.one([None, d.broadcast(x.shape)])
    noise = None if noise is not None and len(noise) != x.ndim else noise
    kept = np.asarray(wf.random.bernoulli(key, 1 - rate, x.shape if noise is None else noise))
    kept = np.broadcast_to(kept, x.shape) if rate else np.ones(x.shape, bool)
    expected = np.where(kept, wide(x) / (1 - rate) if rate < 1 else 0.0, 0.0)
    call = lambda x: wf.nn.dropout(x, rate, key=key, noise_shape=noise)  # noqa: E731
    return Trial(call, [x], expected, x.dtype, 4)


# ---------------------------------------------------------------------------- windows, by loops
def _geometry(d: Drawn, axes: int) -> tuple[list[int], list[int], list[int], Any, Any, list[int]]:
    """Sizes, strides, dilations, the argument `padding`, (before, after) pairs, window."""
    window = [d.int(1, 3) for _ in range(axes)]
    strides = [d.int(1, 2) for _ in range(axes)]
    dilations = [d.int(1, 2) for _ in range(axes)]
    reach = [(k - 1) * s + 1 for k, s in zip(window, dilations, strict=True)]
    sizes = [k + d.int(0, 4) for k in reach]
    padding = d.one(["SAME", "VALID", [(d.int(0, 1), d.int(0, 2)) for _ in range(axes)]])
    pairs: Any = [(0, 0)] * axes if padding == "VALID" else padding
    if padding == "SAME":
        least = [max((-(-n // s) - 1) * s + r - n, 0)
                 for n, s, r in zip(sizes, strides, reach, strict=True)]  # fmt: skip
        pairs = [(v // 2, v - v // 2) for v in least]
    return sizes, strides, dilations, padding, pairs, window


def _places(
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Any,
    window: Sequence[int],
) -> tuple[list[int], list[tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]]]:
    """The spatial shape of the result; for each of its places the (tap, place of x) that exist."""
    made = [(n + lo + hi - (k - 1) * t - 1) // s + 1 for n, s, t, (lo, hi), k in
            zip(sizes, strides, dilations, pairs, window, strict=True)]  # fmt: skip
    rows = []
    for out in np.ndindex(*made):
        seen = []
        for tap in np.ndindex(*window):
            at = tuple(o * s + k * t - lo for o, s, k, t, (lo, _) in
                       zip(out, strides, tap, dilations, pairs, strict=True))  # fmt: skip
            if all(0 <= a < n for a, n in zip(at, sizes, strict=True)):
                seen.append((tap, at))
        rows.append((out, seen))
    return made, rows


def _formatted(d: Drawn, x: Array) -> tuple[Array, str | None, bool]:
    """x with channels first or last, and its data_format."""
    first = d.int(0, 3) == 0
    name = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[x.ndim - 2] if first else None
    return (np.ascontiguousarray(np.moveaxis(x, -1, 1)) if first else x), name, first


@truth("nn.conv", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.depthwise_conv2d",
       "nn.separable_conv2d", "nn.conv1d_transpose", "nn.conv2d_transpose",
       "nn.conv3d_transpose", "nn.depthwise_conv1d", "nn.separable_conv1d")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    axes = next((n for n in (1, 2, 3) if f"{n}d" in name), d.int(1, 2))
    sizes, strides, dilations, padding, pairs, window = _geometry(d, axes)
    deep = name.startswith(("depthwise", "separable"))
    batch, inside, outside = d.int(0, 2), d.int(1, 2), d.int(1, 3)
    groups = 1 if deep else d.int(1, 2)
    channels = inside if deep else inside * groups
    made, rows = _places(sizes, strides, dilations, pairs, window)
    kernel = d.ints((*window, inside, outside if deep else outside * groups), "f8")
    x = d.ints((batch, *sizes, channels), d.one(["f8", "f4"]))
    w = wide(x)
    result = inside * outside if deep else outside * groups
    y = d.ints((batch, *made, result), x.dtype) if "transpose" in name else None
    total = np.zeros((batch, *made, result))
    back = np.zeros_like(w)
    for out, seen in rows:
        for tap, at in seen:
            own = kernel[tap]
            for o in range(result):
                part = o // outside
                for c in range(1 if deep else inside):
                    place = part if deep else part * inside + c
                    weight = own[part, o % outside] if deep else own[c, o]
                    here, there = (slice(None), *out, o), (slice(None), *at, place)
                    total[here] += w[there] * weight
                    if y is not None:
                        back[there] += wide(y)[here] * weight
    how = {"strides": strides, "padding": padding, "dilations": dilations}
    if not deep:
        how["groups"] = groups
    given, how["data_format"], first = _formatted(d, x if y is None else y)
    kernel = kernel.astype(x.dtype)
    more = []
    if name.startswith("separable"):
        more = [d.ints((1,) * axes + (result, 2), x.dtype)]
        total = total @ wide(more[0])[(0,) * axes]
    if y is not None:
        total, how["output_shape"] = back, sizes
    total = np.moveaxis(total, -1, 1) if first else total
    call = lambda *a: getattr(wf.nn, name)(*a, **how)  # noqa: E731
    return Trial(call, [given, kernel, *more], total, x.dtype, 64)


@truth("nn.pool", "nn.max_pool", "nn.max_pool1d", "nn.max_pool2d", "nn.avg_pool", "nn.avg_pool1d",
       "nn.avg_pool2d", "nn.max_pool3d", "nn.avg_pool3d")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    axes = next((n for n in (1, 2, 3) if f"{n}d" in name), d.int(1, 2))
    sizes, strides, dilations, padding, pairs, window = _geometry(d, axes)
    kind = {"max": "MAX", "avg": "AVG"}.get(name[:3]) or d.one(["MAX", "MIN", "SUM", "AVG"])
    shape = (d.int(0, 2), *sizes, d.int(1, 2))
    dtypes = ("f8", "f4") if kind in ("AVG", "SUM") else ("f8", "i4", "u1")
    x = d.numbers(shape, dtypes)
    whole = kind == "AVG" and name != "pool" and d.bool()
    made, rows = _places(sizes, strides, dilations, pairs, window)
    fold = {"MAX": np.max, "MIN": np.min}.get(kind, np.sum)
    total = np.zeros((shape[0], *made, shape[-1]))
    for out, seen in rows:
        here = (slice(None), *out)
        if seen:
            parts = [wide(x)[(slice(None), *at)] for _, at in seen]
            total[here] = fold(np.stack(parts), 0)
        elif kind in ("MAX", "MIN"):
            ends = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
            low, high = (ends.min, ends.max) if ends else (-np.inf, np.inf)
            total[here] = low if kind == "MAX" else high
        if kind == "AVG":
            total[here] /= np.prod(window) if whole else max(len(seen), 1)
    how: dict[str, Any] = {"strides": strides, "padding": padding, "dilations": dilations}
    if whole:
        how["count_include_pad"] = True
    given, how["data_format"], first = _formatted(d, x)
    total = np.moveaxis(total, -1, 1) if first else total
    first_ = [window, kind] if name == "pool" else [window]
    call = lambda x: getattr(wf.nn, name)(x, *first_, **how)  # noqa: E731
    return Trial(call, [given], total, x.dtype, 32, 10.0)


# --------------------------------------------------------------------------- tables and samples
def _parts(table: Array, count: int, strategy: str) -> list[Array]:
    if strategy == "mod":
        return [table[i::count] for i in range(count)]
    return [p.copy() for p in np.array_split(table, count)]


@truth("nn.embedding_lookup")
def _(d: Drawn) -> Trial:
    rows, count, strategy = d.int(3, 7), d.int(1, 3), d.one(["mod", "div"])
    table = d.numbers((rows, *d.shape(0, 2)), ("f8", "f4"))
    ids = d.ints(d.shape(0, 2), d.one(["i8", "i4"]), -rows, rows - 1)
    parts = _parts(table, count, strategy)
    given: Any = parts if count > 1 else parts[0]
    call = lambda i: wf.nn.embedding_lookup(given, i, strategy)  # noqa: E731
    return Trial(call, [ids], table[ids], table.dtype, 0)


@truth("nn.sharded_softmax_cross_entropy")
def _(d: Drawn) -> Trial:
    rows, count, strategy = d.int(3, 7), d.int(1, 3), d.one(["mod", "div"])
    batch, dim, with_bias = d.int(0, 3), d.int(1, 3), d.bool()
    w, b, x = d.floats((rows, dim)), d.floats((rows,)), d.floats((batch, dim))
    labels = d.ints((batch,), "i8", 0, rows - 1)
    logits = x @ w.T + (b if with_bias else 0)
    logs = sp.logsumexp(logits, 1) if batch else np.zeros(0)
    expected = logs - logits[np.arange(batch), labels]
    parts, offsets = _parts(w, count, strategy), _parts(b, count, strategy)
    call = lambda z, x: wf.nn.sharded_softmax_cross_entropy(  # noqa: E731
        parts, offsets if with_bias else None, z, x, strategy
    )
    return Trial(call, [labels, x], expected, "f8", 64, 10.0)


@truth("nn.nce_loss", "nn.sampled_softmax_loss")
def _(d: Drawn, name: str) -> Trial:
    rows, batch, dim, true, drawn = (
        d.int(3, 7),
        d.int(1, 3),
        d.int(1, 3),
        d.int(1, 2),
        d.int(1, 4),
    )
    w, b, x = d.floats((rows, dim)), d.floats((rows,)), d.floats((batch, dim))
    labels, found = d.ints((batch, true), "i8", 0, rows - 1), d.ints((drawn,), "i8", 0, rows - 1)
    counts = [np.abs(d.floats((batch, true), "f4")) + 0.5, np.abs(d.floats((drawn,), "f4")) + 0.5]
    hits = d.bool()
    own = np.einsum("bd,btd->bt", x, w[labels]) + b[labels] - np.log(wide(counts[0]))
    others = x @ w[found].T + b[found] - np.log(wide(counts[1]))
    if hits:
        others = np.where((labels[:, :, None] == found).any(1), -1e300, others)
    logits = np.concatenate([own, others], 1)
    target = np.concatenate([np.full(own.shape, 1 / true), np.zeros(others.shape)], 1)
    if name == "nce_loss":
        expected = ((1 - target) * _softplus(logits) + target * _softplus(-logits)).sum(1)
    else:
        logs = logits - sp.logsumexp(logits, 1, keepdims=True)
        expected = -(target * logs).sum(1)
    call = lambda w, b, z, x, *s: getattr(wf.nn, name)(  # noqa: E731
        w, b, z, x, drawn, rows, true, s, hits
    )
    # the expected counts are float32
    return Trial(call, [w, b, labels, x, found, *counts], expected, "f8", 1e9, 10.0)


@truth("nn.log_uniform_candidate_sampler", "nn.uniform_candidate_sampler")
def _(d: Drawn, name: str) -> Trial:
    """What is drawn is a class; the expected counts are those of its probability."""
    most, drawn, true = d.int(1, 20), d.int(1, 6), d.int(1, 2)
    unique = d.bool() and drawn <= most
    labels = d.ints((d.int(1, 3), true), "i8", 0, most - 1)
    key = wf.random.key(d.int(0, 9999))
    one = getattr(wf.nn, name)(labels, true, drawn, unique, most, key=key)
    found = np.asarray(one.sampled_candidates)
    assert found.shape == (drawn,)
    assert ((found >= 0) & (found < most)).all()
    assert not unique or len(set(found.tolist())) == drawn

    def probability(k: Array) -> Array:
        if name.startswith("uniform"):
            return np.full(k.shape, 1 / most)
        return np.log((k + 2) / (k + 1)) / np.log(most + 1)

    def expected(k: Array) -> Array:
        if not unique:
            return probability(k) * drawn
        # the counts are those of as many tries as it took, which is a number that fits all
        p = probability(found[:1])
        tries = 1.0 * drawn
        if (p < 1).all():
            count = wide(np.asarray(one.sampled_expected_count))[0]
            tries = float(np.round(np.log1p(-count) / np.log1p(-p[0])))
        return -np.expm1(np.log1p(-probability(k)) * max(tries, drawn))

    call = lambda z: getattr(wf.nn, name)(z, true, drawn, unique, most, key=key)  # noqa: E731
    wanted = [found, expected(labels), expected(found)]
    return Trial(call, [labels], wanted, ["i8", "f4", "f4"], 32)


# ------------------------------------------------------------------------------- random numbers
def _unlikely(p: float) -> None:
    """A p-value that a right sampler has in one of 10^8 examples."""
    assert p > 1e-8, f"p = {p}"


def _sampled(call: Any, cdf: Callable[[Array], Array] | None = None, dtype: Any = None) -> Trial:
    """The numbers are those of an eager call, compiled or not, and have this distribution."""
    drawn = np.asarray(call())
    if cdf is not None and drawn.size:
        assert np.isfinite(wide(drawn)).all()
        _unlikely(scipy.stats.kstest(wide(drawn).ravel(), cdf).pvalue)
    return Trial(call, [], drawn, dtype, 4)


@truth("random.uniform", "random.normal", "random.truncated_normal", "random_uniform",
       "random_normal", "truncated_normal")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    shape, dtype = d.one([(), (0, 3), (40, 1, 10)]), d.one(["f4", "f8"])
    a, b = d.float(-3, 3), d.float(0.1, 3)
    if "." not in name and name not in ("uniform", "normal", "truncated_normal"):
        return _of_generator(d, name, shape, dtype, a, b)
    key, dt = wf.random.key(d.int(0, 10**6)), np.dtype(dtype)
    if name == "uniform":
        call = lambda: wf.random.uniform(key, shape, dt, a, a + b)  # noqa: E731
        return _sampled(call, scipy.stats.uniform(a, b).cdf, dtype)
    if name == "normal":
        call = lambda: wf.random.normal(key, shape, dt, a, b)  # noqa: E731
        return _sampled(call, scipy.stats.norm(a, b).cdf, dtype)
    low = d.float(-3, 6)
    high = low + d.float(0.1, 3)
    call = lambda: wf.random.truncated_normal(key, shape, dt, a, b, low, high)  # noqa: E731
    return _sampled(call, scipy.stats.truncnorm(low, high, a, b).cdf, dtype)


def _of_generator(d: Drawn, name: str, shape: Any, dtype: str, a: float, b: float) -> Trial:
    """TensorFlow 1's functions with a seed: the distribution, of whatever numbers come."""
    ends = (a, a + b) if name == "random_uniform" else (a, b)
    call = lambda: getattr(wf, name)(shape, *ends, np.dtype(dtype), d.int(0, 9))  # noqa: E731
    drawn = np.asarray(call())
    of = {"random_uniform": scipy.stats.uniform(a, b), "random_normal": scipy.stats.norm(a, b)}
    law = of.get(name) or scipy.stats.truncnorm(-2, 2, a, b)
    if drawn.size:
        _unlikely(scipy.stats.kstest(wide(drawn).ravel(), law.cdf).pvalue)
    return Trial(lambda: drawn, [], np.zeros(shape) + drawn, dtype, 1, compiled=False)


TABLE["truncated_normal"] = row(
    lambda d: _of_generator(d, "truncated_normal", (50, 8), "f8", d.float(-3, 3), d.float(0.1, 3))
)
LAWS: dict[str, Any] = {
    "exponential": scipy.stats.expon,
    "gumbel": scipy.stats.gumbel_r,
    "laplace": scipy.stats.laplace,
    "logistic": scipy.stats.logistic,
    "cauchy": scipy.stats.cauchy,
}


@truth(*(f"random.{name}" for name in LAWS))
def _(d: Drawn, name: str) -> Trial:
    shape, dtype = d.one([(), (0, 3), (40, 1, 10)]), d.one(["f4", "f8"])
    key = wf.random.key(d.int(0, 10**6))
    call = lambda: getattr(wf.random, name)(key, shape, np.dtype(dtype))  # noqa: E731
    return _sampled(call, LAWS[name].cdf, dtype)


@truth("random.gamma", "random.beta", "random.dirichlet")
def _(d: Drawn, name: str) -> Trial:
    """Parameters from 0.001, where numbers are smaller than any float."""
    key, dtype = wf.random.key(d.int(0, 10**6)), d.one(["f4", "f8"])
    a, b = (d.one([0.001, 0.02, 0.3, 1.0, 4.5, 60.0]) for _ in range(2))
    n = 400
    if name == "dirichlet":
        alpha = np.array([a, b, 1.0], dtype)
        drawn = np.asarray(wf.random.dirichlet(key, alpha, (n,)))
        assert np.isfinite(drawn).all()
        np.testing.assert_allclose(drawn.sum(-1), 1, rtol=1e-5)
        law = scipy.stats.beta(a, b + 1)
        _law(drawn[:, 0], law, dtype)
        return Trial(lambda: wf.random.dirichlet(key, alpha, (n,)), [], drawn, dtype, 64)
    if name == "beta":
        call = lambda: wf.random.beta(key, np.asarray(a, dtype), np.asarray(b, dtype), (n,))  # noqa: E731
        drawn, law = np.asarray(call()), scipy.stats.beta(a, b)
    else:
        call = lambda: wf.random.gamma(key, np.full((n, 1), a, dtype), (n, 1))  # noqa: E731
        drawn, law = np.asarray(call()), scipy.stats.gamma(a)
    assert np.isfinite(drawn).all()
    _law(drawn, law, dtype)
    return Trial(call, [], drawn, dtype, 64)


def _law(drawn: Array, law: Any, dtype: str) -> None:
    """How many are below some quantiles (0 and 1 stand for what rounds to them)."""
    tiny = float(np.finfo(dtype).tiny)
    for q in (0.1, 0.3, 0.5, 0.7, 0.9):
        at = float(law.ppf(q))
        at = max(at, 4 * tiny)
        if 1 - at < 1e-6:
            continue
        p = float(law.cdf(at))
        _unlikely(
            scipy.stats.binomtest(int((wide(drawn) <= at).sum()), drawn.size, min(p, 1)).pvalue
        )


@truth("random.randint", "random.bernoulli", "random.rademacher", "random.poisson",
       "random.categorical", "random.bits")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    key, n = wf.random.key(d.int(0, 10**6)), 400
    low = d.int(-20, 20)
    high = low + d.int(1, 9)
    p = d.one([0.0, 1e-4, 0.3, 0.9, 1.0])
    rate = d.one([0.0, 0.5, 3.0, 9.9, 10.0, 300.0])
    weights = np.abs(d.floats((d.int(1, 4),))) + 0.01
    calls: dict[str, tuple[Any, dict[int, float]]] = {
        "randint": (lambda: wf.random.randint(key, (n,), low, high),
                    dict.fromkeys(range(low, high), 1 / (high - low))),
        "bernoulli": (lambda: wf.random.bernoulli(key, p, (n,)), {0: 1 - p, 1: p}),
        "rademacher": (lambda: wf.random.rademacher(key, (n,)), {-1: 0.5, 1: 0.5}),
        "poisson": (lambda: wf.random.poisson(key, np.full(n, rate)),
                    {k: float(scipy.stats.poisson(rate).pmf(k)) for k in range(600)}),
        "categorical": (lambda: wf.random.categorical(key, np.log(weights), shape=(n,)),
                        dict(enumerate(weights / weights.sum()))),
        "bits": (lambda: wf.random.bits(key, (n,)) & 255, dict.fromkeys(range(256), 1 / 256)),
    }  # fmt: skip
    call, law = calls[name]
    drawn = np.asarray(call()).astype("i8")
    assert set(drawn.tolist()) <= law.keys()
    for value, chance in law.items():
        found = int((drawn == value).sum())
        if chance < 1e-11:
            assert not found
        else:
            _unlikely(scipy.stats.binomtest(found, n, min(chance, 1)).pvalue)
    return Trial(call, [], drawn, None, 0)


@truth("random.permutation", "random.shuffle", "random.choice", "random_shuffle")
def _(d: Drawn, name: str) -> Trial:
    x = np.arange(np.prod(shape := d.shape(1, 2, empty=False))).reshape(shape)
    axis = d.axis(x.ndim) if name in ("permutation", "choice") else 0
    key, n = wf.random.key(d.int(0, 10**6)), x.shape[axis]
    call: Any
    if name == "random_shuffle":
        held = np.asarray(wf.random_shuffle(x, seed=3))
        call = lambda: held  # noqa: E731
    elif name == "shuffle":
        call = lambda: wf.random.shuffle(key, x)  # noqa: E731
    elif name == "permutation":
        call = lambda: wf.random.permutation(key, x, axis)  # noqa: E731
    else:
        replace, weights = d.bool(), d.one([None, np.arange(n) + 0.0])
        weights = None if weights is not None and not weights.sum() else weights
        usable = n if weights is None else n - 1
        shape = (d.int(0, 9),) if replace else (d.int(0, usable),)
        call = lambda: wf.random.choice(key, x, shape, replace, weights, axis)  # noqa: E731
        drawn = np.moveaxis(np.asarray(call()), axis, 0)
        parts: Any = np.moveaxis(x, axis, 0).tolist()
        found = [parts.index(r) for r in drawn.tolist()]  # each is a part of x
        assert replace or len(set(found)) == len(found)
        assert weights is None or 0 not in found
        return Trial(call, [], np.moveaxis(drawn, 0, axis), x.dtype, 0)
    drawn = np.asarray(call())
    ordered = sorted(np.moveaxis(drawn, axis, 0).tolist())
    assert ordered == sorted(np.moveaxis(x, axis, 0).tolist())
    return Trial(call, [], drawn, x.dtype, 0, compiled=name != "random_shuffle")


@truth("random.key", "random.split", "random.fold_in")
def _(d: Drawn, name: str) -> Trial:
    """The keys are those of Threefry-2x32, as in test_random.py: here, that they differ."""
    seed, n = d.int(0, 2**64 - 1), d.int(2, 5)
    if name == "key":
        expected = np.array([seed >> 32, seed & 0xFFFFFFFF], "u4")
        return Trial(lambda: wf.random.key(seed), [], expected, "u4", 0)
    key = wf.random.key(seed)
    made = [np.asarray(k) for k in (wf.random.split(key, n) if name == "split" else
                                    (wf.random.fold_in(key, i) for i in range(n)))]  # fmt: skip
    for a, b in itertools.combinations([np.asarray(key), *made], 2):
        assert (a != b).any()

    def call(k: Any) -> Any:
        keys = (wf.random.fold_in(k, i) for i in range(n))
        return wf.random.split(k, n) if name == "split" else list(keys)

    return Trial(call, [np.asarray(key)], made, None, 0)


# ------------------------------------------------------------------------------------- training
SCHEDULES: dict[str, Callable[..., Any]] = {
    "exponential_decay": lambda r, s, n, q, stairs: r * q ** (s // n if stairs else s / n),
    "natural_exp_decay": lambda r, s, n, q, stairs: r * np.exp(-q * (s // n if stairs else s / n)),
    "inverse_time_decay": lambda r, s, n, q, stairs: r / (1 + q * (s // n if stairs else s / n)),
}


@truth(*(f"train.{name}" for name in SCHEDULES))
def _(d: Drawn, name: str) -> Trial:
    r, s, n, q, stairs = d.float(0.01, 1), d.int(0, 60), d.int(1, 20), d.float(0.1, 1), d.bool()
    expected = SCHEDULES[name](r, s, n, q, stairs)
    call = lambda r, s: getattr(wf.train, name)(r, s, n, q, stairs)  # noqa: E731
    return Trial(call, [np.float64(r), np.int64(s)], expected, "f8", 32)


@truth("train.polynomial_decay", "train.cosine_decay", "train.linear_warmup",
       "train.piecewise_constant")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    r, s, n, end = d.float(0.1, 1), d.int(0, 60), d.int(1, 20), d.float(0, 0.1)
    given = [np.float64(r), np.int64(s)]
    if name == "polynomial_decay":
        power, cycle = d.one([1.0, 2.0, 0.5]), d.bool()
        span = n * max(1, -(-s // n)) if cycle else n
        expected = (r - end) * (1 - min(s, span) / span) ** power + end
        call: Any = lambda r, s: wf.train.polynomial_decay(r, s, n, end, power, cycle)  # noqa: E731
    elif name == "cosine_decay":
        expected = r * ((1 - end) * (1 + np.cos(np.pi * min(s, n) / n)) / 2 + end)
        call = lambda r, s: wf.train.cosine_decay(r, s, n, end)  # noqa: E731
    elif name == "linear_warmup":
        expected = r * min(1, (s + 1) / n)
        call = lambda r, s: wf.train.linear_warmup(r, s, n)  # noqa: E731
    else:
        ends = sorted({d.int(0, 60) for _ in range(3)})
        values = [d.float(0, 1) for _ in range(len(ends) + 1)]
        expected = values[int(np.searchsorted(ends, s))]
        call = lambda s: wf.train.piecewise_constant(s, ends, np.array(values))  # noqa: E731
        given = given[1:]
    return Trial(call, given, expected, "f8", 256)


def _steps(name: str, w: Array, g: Array, rate: float, how: dict[str, Any]) -> Array:
    """Three steps with the gradient g, from the formulas in TensorFlow 1's documentation."""
    w, a, u, m = w.copy(), np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    if name == "Adagrad":
        a += 0.1
    for t in range(1, 4):
        if name == "SGD":
            w -= rate * g
        elif name == "Momentum":
            a = how["momentum"] * a + g
            w -= rate * (g + how["momentum"] * a if how["use_nesterov"] else a)
        elif name == "Adagrad":
            a += g * g
            w -= rate * g / np.sqrt(a)
        elif name == "Adadelta":
            a = 0.95 * a + 0.05 * g * g
            step = np.sqrt(u + 1e-8) / np.sqrt(a + 1e-8) * g
            u = 0.95 * u + 0.05 * step * step
            w -= rate * step
        else:
            m, u = 0.9 * m + 0.1 * g, 0.999 * u + 0.001 * g * g
            scaled = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            decay = rate * how.get("weight_decay", 0.0) * w
            w = w - scaled * m / (np.sqrt(u) + 1e-8) - decay
    return w


@truth("train.SGD", "train.Momentum", "train.Adagrad", "train.Adadelta", "train.Adam",
       "train.AdamW")  # fmt: skip
def _(d: Drawn, name: str) -> Trial:
    shape, rate = d.shape(), d.float(0.01, 0.5)
    w, g = d.floats(shape), d.floats(shape)
    how: dict[str, Any] = {}
    if name == "Momentum":
        how = {"momentum": d.float(0, 0.9), "use_nesterov": d.bool()}
    if name == "AdamW":
        how = {"weight_decay": d.float(0, 0.5)}

    def steps() -> Any:
        v = wf.Variable(w)
        optimizer = getattr(wf.train, name)(rate, **how)
        for _ in range(3):
            optimizer.apply_gradients([(wf.asarray(g), v)])
        return v.read()

    return Trial(steps, [], _steps(name, w, g, rate, how), "f8", 1e4, 1.0, compiled=False)
