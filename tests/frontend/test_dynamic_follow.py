"""Ops of all kinds on values whose sizes depend on values: as on any other, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf

ROWS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32)

#: On the rows chosen, their labels, and all rows.
OPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda r, k, x: wf.matmul(r, wf.ones((4, 3))),
    "gram": lambda r, k, x: wf.matmul(r, r.T) + wf.matmul(wf.ones([r.shape[0], 4]), r.T),
    "softmax": lambda r, k, x: wf.nn.softmax(r),
    "cross entropy": lambda r, k, x: wf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=k, logits=r
    ),
    "sort": lambda r, k, x: wf.sort(r, axis=0),
    "argsort": lambda r, k, x: wf.argsort(r[:, 1]),
    "cumulative_sum": lambda r, k, x: wf.cumulative_sum(r, axis=0),
    "one_hot": lambda r, k, x: wf.one_hot(k, 3),
    "segment_sum": lambda r, k, x: wf.segment_sum(r, k, 3),
    "std": lambda r, k, x: wf.std(r, axis=0),
    "max": lambda r, k, x: wf.max(r, axis=1),
    "stack": lambda r, k, x: wf.stack([r, r * 2]),
    "concat": lambda r, k, x: wf.concat([r, x]),
    "flip": lambda r, k, x: wf.flip(r, axis=0),
    "roll": lambda r, k, x: wf.roll(r, 1, axis=0),
    "pad": lambda r, k, x: wf.pad(r, [(1, 2), (0, 0)]),
    "tile": lambda r, k, x: wf.tile(r, (2, 1)),
    "slices": lambda r, k, x: wf.concat([r[1:], r[:-1], r[:1]]),
    "last row": lambda r, k, x: r[-1],
    "reshape": lambda r, k, x: wf.reshape(r, (-1, 2)),
    "outer": lambda r, k, x: r[:, None, :] * r[None, :, :],
    "take": lambda r, k, x: wf.take(r, [0, 0], axis=0),
    "at": lambda r, k, x: r.at[0].set(0),
    "where": lambda r, k, x: wf.where(r > 0, r, 0),
    "einsum": lambda r, k, x: wf.einsum("ij,kj->ik", r, r),
    "random": lambda r, k, x: wf.random_uniform([r.shape[0]], seed=1) * 0 + 1,
    "arange": lambda r, k, x: wf.arange(r.shape[0]),
    "eye": lambda r, k, x: wf.eye(r.shape[0]),
    "top_k": lambda r, k, x: wf.nn.top_k(r[:, 0], 1)[0],
    "cond": lambda r, k, x: wf.cond(wf.any(x > 0), lambda: r * 2, lambda: r),
    "map_fn": lambda r, k, x: wf.map_fn(lambda row: wf.sum(row * row), r),
    "scan": lambda r, k, x: wf.scan(lambda c, row: (c + wf.sum(row), c), 0.0, r)[1],
    "less the mean": lambda r, k, x: r - wf.mean(r, axis=0),
    "layer norm": lambda r, k, x: r / wf.sqrt(wf.var(r, axis=1, keepdims=True) + 1e-5),
}


def _chosen(x: Any, labels: Any) -> tuple[Any, Any]:
    mask = x[:, 0] > 0
    return x[mask], labels[mask]


@pytest.mark.share(10)
@pytest.mark.parametrize("name", OPS)
def test_as_eagerly(name: str) -> None:
    function = OPS[name]

    def loss(x: Any, labels: Any) -> Any:
        made = function(*_chosen(x, labels), x)
        return wf.sum(x) + (wf.sum(made * made) if made.dtype is wf.float32 else 0)

    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 4])
        labels = wf.placeholder(wf.int32, [None])
        rows, chosen = _chosen(x, labels)
        assert rows.shape[0] == chosen.shape[0]  # one mask, one size
        fetches = [function(rows, chosen, x), *wf.gradients(loss(x, labels), [x])]
        with wf.Session() as session:
            got = [
                session.run(fetches, {x: ROWS[first:], labels: LABELS[first:]}) for first in (0, 2)
            ]
    for first, (made, slope) in zip((0, 2), got, strict=True):
        x, labels = wf.asarray(ROWS[first:]), wf.asarray(LABELS[first:])
        assert_allclose(made, np.asarray(function(*_chosen(x, labels), x)), rtol=1e-5, atol=1e-6)
        wanted = np.asarray(wf.grad(lambda t, la=labels: loss(t, la))(x))
        assert_allclose(slope, wanted, rtol=1e-4, atol=1e-5)


def test_equal_masks_are_one_op_in_one_place() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [4])
        mask = x > 0
        one, two = x[mask], (x * 2)[mask]
        with wf.control_dependencies([wf.no_op()]):
            three = x[mask]
        assert one.shape == two.shape != three.shape
        assert str(graph).count("nonzero") == 2


def test_equal_partitions_give_parts_of_equal_sizes() -> None:
    """Also where sizes must be known to be equal; and a part needs nothing but its own data."""
    rows, labels = ROWS[:, 0].copy(), LABELS

    def summed(x: Any, k: Any) -> Any:
        parts, kinds = wf.dynamic_partition(x, k, 3), wf.dynamic_partition(k, k, 3)
        return wf.segment_sum(parts[2], kinds[2], 3)

    slope = wf.grad(lambda x: wf.sum(summed(x, labels) ** 2))(rows)
    wanted = np.where(labels == 2, 2 * rows[labels == 2].sum(), 0)
    assert_allclose(slope, wanted, rtol=1e-6)
    total = np.asarray(summed(rows, labels))
    with wf.Graph().as_default():
        x, y = wf.placeholder(wf.float32, [None]), wf.placeholder(wf.float32, [None])
        k = wf.placeholder(wf.int32, [None])
        both = summed(x, k)
        part = wf.dynamic_partition(y, k, 3)[2]
        assert part.shape == wf.dynamic_partition(x, k, 3)[2].shape
        session = wf.Session()
        assert_allclose(session.run(both, {x: rows, k: labels}), total)
        fed = {y: rows * 2, k: labels}
        assert_array_equal(session.run(part, fed), 2 * rows[labels == 2])
        assert_array_equal(session.run(wf.ones([part.shape[0]]), fed), np.ones(2))


# ----------------------------------------------------------------------------- sizes that are given
@pytest.mark.share(2)
@pytest.mark.parametrize("size", [0, 2, 3, 6, 8])
def test_nonzero_of_a_given_size(size: int) -> None:
    """JAX's size= and fill_value=, which compiled functions can have."""
    x = np.array([[0.0, 2, 0], [3, 0, 4]], np.float32)
    rows = np.argwhere(x)
    for fill in (0, -1):
        wanted = np.full((size, 2), fill)
        wanted[: len(rows)] = rows[:size]
        for call in (lambda f: f, wf.compile):
            found = call(lambda t, f=fill: wf.argwhere(t, size=size, fill_value=f))(wf.asarray(x))
            assert_array_equal(np.asarray(found), wanted)
            axes = call(lambda t, f=fill: wf.nonzero(t, size=size, fill_value=f))(wf.asarray(x))
            assert_array_equal(np.stack([np.asarray(a) for a in axes], 1), wanted)
    assert_array_equal(wf.argwhere(np.zeros(0), size=2), [[0], [0]])
    assert_array_equal(wf.argwhere(np.float32(3), size=1), np.zeros((1, 0)))


def test_the_condition_alone_is_refused() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"(?s)argwhere.*nonzero") as error:
        wf.where(wf.ones(3) > 0)
    assert error.value.locations[0].file == __file__
    with pytest.raises(wf.errors.InvalidArgumentError, match="both"):
        wf.where(wf.ones(3) > 0, 1.0)
