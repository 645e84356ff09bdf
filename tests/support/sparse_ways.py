"""Random entries for tests of `wf.sparse`, their dense form, and all ways to run a function of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from example_counts import WHOLE
from hypothesis import strategies as st

import weft as wf
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]
SEEDS = st.integers(0, 2**32 - 1)


def entries(
    seed: int, rank: int, *, repeated: bool = True, dtype: Any = np.float32, least: int = 1
) -> tuple[Array, Array, tuple[int, ...]]:
    """Indices in any order, values in eighths (sums are exact) and a shape, some sizes 0."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(least, 5, rank))
    count = int(rng.integers(0, 9)) if 0 not in shape else 0
    indices = np.stack([rng.integers(0, max(n, 1), count) for n in shape], axis=1)
    if not repeated:
        indices = rng.permutation(np.unique(indices, axis=0))
    values = rng.integers(-40, 40, len(indices)) / 8
    return indices.astype(np.int64), values.astype(dtype), shape


def dense(indices: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """The truth: a loop over the entries."""
    out = np.zeros(shape, values.dtype)
    for index, value in zip(indices.tolist(), values, strict=True):
        out[tuple(index)] += value
    return out


def padded(x: wf.SparseTensor, more: int = 3) -> wf.SparseTensor:
    """With entries that are none, of values that would be seen."""
    ends = np.tile(np.asarray(x.dense_shape, np.int64), (more, 1))
    indices = np.concatenate([ends[:1], x.indices.numpy(), ends[1:]])
    values = np.concatenate([[99], x.values.numpy(), [99] * (more - 1)]).astype(x.dtype.numpy)
    return wf.SparseTensor(indices, values, x.dense_shape, padded=True)


def plain(x: Any) -> Any:
    """NumPy's array of a result."""
    if isinstance(x, (wf.SparseTensor, wf.sparse.CSRMatrix)):
        return x.to_dense().numpy()
    if isinstance(x, wf.SparseTensorValue):
        shape = tuple(int(n) for n in np.asarray(x.dense_shape))
        return dense(np.asarray(x.indices), np.asarray(x.values), shape)
    return np.asarray(x)


def in_session(f: Callable[..., Any], x: wf.SparseTensor, *more: Array) -> Any:
    """In a graph, all sizes of the placeholder open."""
    with wf.Graph().as_default(), wf.Session() as session:
        p = wf.tf1.sparse_placeholder(x.dtype, [None] * x.ndim)
        others = [wf.placeholder(wf.asarray(a).dtype, a.shape) for a in more]
        return session.run(f(p, *others), {p: x, **dict(zip(others, more, strict=True))})


def as_dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, wf.SparseTensor) else x


def interpreted(f: Callable[..., Any], *operands: Any) -> Array:
    """As a compiled function, by the interpreter."""
    graph = wf.compile(lambda *xs: as_dense(f(*xs))).trace(*operands)
    (out,) = interpret(graph, [np.asarray(leaf) for leaf in wf.tree_leaves(operands)])
    return np.asarray(out)


def ways(
    f: Callable[..., Any], x: wf.SparseTensor, *more: Array, whole: bool = True
) -> Iterator[Any]:
    """The result of f in all ways to run it; whole: as native code, too, which takes longer."""
    yield plain(f(x, *more))
    yield plain(f(padded(x), *more))
    yield interpreted(f, x, *more)
    yield interpreted(f, padded(x), *more)
    if whole:
        yield plain(wf.compile(f)(x, *more))
        yield plain(wf.compile(f)(padded(x), *more))
        yield plain(in_session(f, x, *more))


def check(f: Callable[..., Any], wanted: Array, x: wf.SparseTensor, *more: Array) -> None:
    """In all ways; as native code for one of eight sets of entries, and for all in CI."""
    whole = WHOLE or int(x.values.numpy().sum().real * 8) % 8 == 0
    for got in ways(f, x, *more, whole=whole):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        assert got.shape == wanted.shape
