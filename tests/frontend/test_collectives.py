"""`wf.collectives` in what `wf.vmap(axis_name=)` is given, against NumPy over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.frontend import collectives as c
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError

N = 4
RING = [(k, (k + 1) % N) for k in range(N)]
ROWS = hnp.arrays(np.float64, (N, N, 2), elements=st.floats(-3, 3, width=16))


def _exchanged(x: Any) -> Any:
    return np.swapaxes(x, 0, 1)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "psum": (lambda x: c.psum(x, "i"), lambda x: np.broadcast_to(x.sum(0), x.shape)),
    "pmean": (lambda x: c.pmean(x, "i"), lambda x: np.broadcast_to(x.mean(0), x.shape)),
    "pmax": (lambda x: c.pmax(x, "i"), lambda x: np.broadcast_to(x.max(0), x.shape)),
    "pmin": (lambda x: c.pmin(x, "i"), lambda x: np.broadcast_to(x.min(0), x.shape)),
    "all_gather": (
        lambda x: c.all_gather(x, "i", axis=1),
        lambda x: np.broadcast_to(np.moveaxis(x, 0, 1), (N, N, N, 2)),
    ),
    "psum_scatter": (lambda x: c.psum_scatter(x, "i"), lambda x: x.sum(0)),
    "all_to_all": (lambda x: c.all_to_all(x, "i", 0, 0), _exchanged),
    "all_to_all, other axes": (
        lambda x: c.all_to_all(x, "i", 0, 1), lambda x: np.moveaxis(_exchanged(x), 1, 2),
    ),
    "ppermute": (lambda x: c.ppermute(x, "i", RING), lambda x: np.roll(x, 1, 0)),
    "ppermute, some": (
        lambda x: c.ppermute(x, "i", [(0, 2), (3, 0)]),
        lambda x: np.stack([x[3], 0 * x[0], x[0], 0 * x[0]]),
    ),
    "axis_index": (
        lambda x: x * c.axis_index("i"), lambda x: x * np.arange(N)[:, None, None],
    ),
    "axis_size": (lambda x: x * c.axis_size("i"), lambda x: x * N),
    "in a loop": (
        lambda x: wf.fori_loop(0, 3, lambda k, y: y - c.pmean(y, "i") * k, x),
        lambda x: (lambda y: y - y.mean(0) * 2)((lambda y: y - y.mean(0))(x)),
    ),
    "in a branch": (
        lambda x: wf.cond(c.psum(wf.sum(x), "i") > 0, lambda: c.psum(x, "i"), lambda: x * 2),
        lambda x: np.broadcast_to(x.sum(0), x.shape) if x.sum() > 0 else x * 2,
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CASES)
@given(x=ROWS)
@examples(20)
def test_values(name: str, x: np.ndarray[Any, Any]) -> None:
    per_row, whole = CASES[name]
    batched = wf.vmap(per_row, axis_name="i")
    for run in (batched, wf.compile(batched)):
        np.testing.assert_allclose(run(x).numpy(), whole(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in CASES if n != "axis_size"])
def test_derivatives(name: str) -> None:
    """Backward and forward, outside of vmap and inside."""
    per_row, _ = CASES[name]
    rng = np.random.default_rng(0)
    x, d = rng.normal(size=(2, N, N, 2))
    batched = wf.vmap(per_row, axis_name="i")
    weight = rng.normal(size=batched(x).shape)

    def loss(x: Any) -> Any:
        return wf.sum(batched(x) * weight)

    h = 1e-6
    slope = (float(loss(x + h * d)) - float(loss(x - h * d))) / (2 * h)
    assert float(wf.sum(wf.grad(loss)(wf.asarray(x)) * d)) == pytest.approx(slope, rel=1e-5)
    _, forward = wf.jvp(loss, (wf.asarray(x),), (wf.asarray(d),))
    assert float(forward) == pytest.approx(slope, rel=1e-5)
    # the gradient of a row's result by its x is that of the sum of all rows' (as in JAX)
    inside = wf.vmap(wf.grad(lambda x, w: wf.sum(per_row(x) * w)), axis_name="i")(x, weight)
    np.testing.assert_allclose(inside.numpy(), wf.grad(loss)(wf.asarray(x)).numpy(), rtol=1e-9)
    pushed = wf.vmap(lambda x, d: wf.jvp(per_row, (x,), (d,))[1], axis_name="i")(x, d)
    numeric = (batched(x + h * d).numpy() - batched(x - h * d).numpy()) / (2 * h)
    np.testing.assert_allclose(pushed.numpy(), numeric, rtol=1e-4, atol=1e-6)


def test_two_axes() -> None:
    x = np.random.default_rng(0).normal(size=(3, N, 2))

    def inner(x: Any) -> Any:
        gathered = c.all_gather(x, "o")  # of the outer axis: (3, 2)
        total = c.psum(x, ("i", "o")) + c.psum_scatter(gathered, "o") * 0
        return x - total + c.ppermute(x, "o", [(0, 1)]) + c.axis_index("o") * c.axis_index("i")

    both = wf.vmap(wf.vmap(inner, axis_name="i"), axis_name="o")
    moved = np.zeros_like(x)
    moved[1] = x[0]
    index = np.arange(3)[:, None, None] * np.arange(N)[None, :, None]
    np.testing.assert_allclose(both(x).numpy(), x - x.sum((0, 1)) + moved + index)

    def exchanged(x: Any) -> Any:
        return c.all_to_all(c.all_gather(x, "o"), "o", 0, 0)

    across = wf.vmap(wf.vmap(exchanged, axis_name="i"), axis_name="o")
    np.testing.assert_array_equal(across(x).numpy(), np.broadcast_to(x[:, :, None], (3, N, 3, 2)))


def test_trees_shared_operands_and_batch_normalisation() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))

    def normal(x: Any, shared: Any) -> Any:
        mean = c.pmean(x, "batch")
        variance = c.pmean((x - mean) ** 2, "batch")
        sums = c.psum({"a": shared, "b": (x,)}, "batch")
        return (x - mean) / wf.sqrt(variance + 1e-5), sums

    out, sums = wf.vmap(normal, in_axes=(0, None), axis_name="batch")(x, np.float64(2))
    wanted = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(out.numpy(), wanted)
    np.testing.assert_allclose(sums["a"].numpy(), np.full(5, 10.0))
    np.testing.assert_allclose(sums["b"][0].numpy(), np.broadcast_to(x.sum(0), x.shape))


def test_integers_and_open_sizes() -> None:
    f = wf.compile(
        wf.vmap(lambda x: (c.psum(x, "i"), c.axis_index("i"), x * c.axis_size("i")), axis_name="i"),
        input_signature=[wf.TensorType(wf.int32, (None,))],
    )
    for n in (3, 5):
        total, index, scaled = f(np.arange(n, dtype=np.int32))
        assert total.numpy().tolist() == [n * (n - 1) // 2] * n
        assert index.numpy().tolist() == list(range(n))
        assert scaled.numpy().tolist() == [k * n for k in range(n)]


def test_bad_input() -> None:
    x = np.ones((3, 2), np.float32)
    with pytest.raises(InvalidArgumentError, match="no axis of rows is called 'i'") as caught:
        c.psum(x, "i")
    assert caught.value.locations[0].file == __file__
    with pytest.raises(InvalidArgumentError, match=r"called 'rovs'.*'rows'"):
        wf.vmap(lambda x: c.psum(x, "rovs"), axis_name="rows")(x)
    with pytest.raises(InvalidArgumentError, match="axis_name is a str, got 3"):
        wf.vmap(lambda x: x, axis_name=3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="has no first axis of 3, the size of the axis 'i'"):
        wf.vmap(lambda x: c.psum_scatter(x, "i"), axis_name="i")(x)
    with pytest.raises(InvalidArgumentError, match="no pairs of 3 rows"):
        wf.vmap(lambda x: c.ppermute(x, "i", [(0, 1), (2, 1)]), axis_name="i")(x)
    for perm in ([(0.5, 1)], [(0, 1, 2)], [3], 3):
        with pytest.raises(InvalidArgumentError, match="perm has pairs of rows"):
            wf.vmap(lambda x, perm=perm: c.ppermute(x, "i", perm), axis_name="i")(x)
    with pytest.raises(InvalidArgumentError, match=r"psum_scatter: scatter_dimension 1 is out"):
        wf.vmap(lambda x: c.psum_scatter(x, "i", 1), axis_name="i")(x)
    with pytest.raises(InvalidArgumentError, match=r"all_gather: axis -3 is out of range"):
        wf.vmap(lambda x: c.all_gather(x, "i", axis=-3), axis_name="i")(x)
    with pytest.raises(InvalidArgumentError, match=r"all_to_all: split_axis 2 is out"):
        wf.vmap(lambda x: c.all_to_all(x, "i", 2, 0), axis_name="i")(x)
    with pytest.raises(TypeRuleError, match="psum' takes numbers"):
        wf.vmap(lambda x: c.psum(x > 0, "i"), axis_name="i")(x)
    with pytest.raises(UnsupportedError, match="collective over the axis 'i' in it needs all"):
        wf.vmap(
            lambda x: wf.cond(
                wf.sum(x) > 0, lambda: wf.fori_loop(0, 2, lambda k, y: c.psum(y, "i"), x),
                lambda: x,
            ),
            axis_name="i",
        )(x)  # fmt: skip
    with pytest.raises(AttributeError, match=r"wf\.collectives\.psum"):
        getattr(wf, "psum")  # noqa: B009 - a name that mypy does not know either
