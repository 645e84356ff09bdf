"""Optimizers that touch only the rows looked up (`lazy=True`), against TensorFlow 1's sparse
kernels (training_ops.cc: SparseApplyMomentum, ...RMSProp, ...Adadelta, ...Ftrl;
contrib's LazyAdamOptimizer) written as loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

ROWS, WIDTH = 6, 3
Array = np.ndarray[Any, Any]
State = dict[str, Array]


def momentum(s: State, i: int, g: Array, t: int, nesterov: bool = False) -> None:
    s["m"][i] = s["m"][i] * 0.9 + g
    s["w"][i] -= 0.1 * (g + 0.9 * s["m"][i]) if nesterov else 0.1 * s["m"][i]


def rmsprop(s: State, i: int, g: Array, t: int, centered: bool = False) -> None:
    s["ms"][i] = 0.8 * s["ms"][i] + 0.2 * g * g
    spread = s["ms"][i]
    if centered:
        s["mg"][i] = 0.8 * s["mg"][i] + 0.2 * g
        spread = spread - s["mg"][i] ** 2
    s["mom"][i] = 0.5 * s["mom"][i] + 0.1 * g / np.sqrt(spread + 1e-3)
    s["w"][i] -= s["mom"][i]


def adadelta(s: State, i: int, g: Array, t: int) -> None:
    s["a"][i] = 0.95 * s["a"][i] + 0.05 * g * g
    step = np.sqrt(s["u"][i] + 1e-3) / np.sqrt(s["a"][i] + 1e-3) * g
    s["u"][i] = 0.95 * s["u"][i] + 0.05 * step * step
    s["w"][i] -= 0.1 * step


def lazy_adam(s: State, i: int, g: Array, t: int) -> None:
    s["m"][i] = 0.9 * s["m"][i] + 0.1 * g
    s["v"][i] = 0.99 * s["v"][i] + 0.01 * g * g
    rate = 0.1 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    s["w"][i] -= rate * s["m"][i] / (np.sqrt(s["v"][i]) + 1e-3)


def ftrl(s: State, i: int, g: Array, t: int) -> None:
    new = s["n"][i] + g * g
    s["z"][i] += g - (np.sqrt(new) - np.sqrt(s["n"][i])) / 0.1 * s["w"][i]
    quadratic = np.sqrt(new) / 0.1 + 2 * 0.01
    shrunk = np.sign(s["z"][i]) * 0.05 - s["z"][i]
    s["w"][i] = np.where(np.abs(s["z"][i]) > 0.05, shrunk / quadratic, 0.0)
    s["n"][i] = new


def adagrad(s: State, i: int, g: Array, t: int) -> None:
    s["n"][i] += g * g
    s["w"][i] -= 0.1 * g / np.sqrt(s["n"][i])


Rule = tuple[Callable[[], Any], Callable[..., None], dict[str, float]]
RULES: dict[str, Rule] = {
    "momentum": (lambda: wf.train.Momentum(0.1, 0.9, lazy=True), momentum, {"m": 0.0}),
    "nesterov": (
        lambda: wf.train.Momentum(0.1, 0.9, use_nesterov=True, lazy=True),
        partial(momentum, nesterov=True),
        {"m": 0.0},
    ),
    "rmsprop": (
        lambda: wf.train.RMSProp(0.1, 0.8, 0.5, 1e-3, lazy=True), rmsprop, {"ms": 1.0, "mom": 0.0},
    ),
    "centered": (
        lambda: wf.train.RMSProp(0.1, 0.8, 0.5, 1e-3, centered=True, lazy=True),
        partial(rmsprop, centered=True),
        {"ms": 1.0, "mom": 0.0, "mg": 0.0},
    ),
    "adadelta": (
        lambda: wf.train.Adadelta(0.1, 0.95, 1e-3, lazy=True), adadelta, {"a": 0.0, "u": 0.0},
    ),
    "adam": (
        lambda: wf.train.Adam(0.1, 0.9, 0.99, 1e-3, lazy=True), lazy_adam, {"m": 0.0, "v": 0.0},
    ),
    "ftrl": (
        lambda: wf.train.Ftrl(0.1, -0.5, 0.1, 0.05, 0.01, lazy=True), ftrl, {"n": 0.1, "z": 0.0},
    ),
    "adagrad": (lambda: wf.train.Adagrad(0.1, 0.1), adagrad, {"n": 0.1}),
}  # fmt: skip


def start() -> Array:
    return np.linspace(-1.0, 1.0, ROWS * WIDTH).reshape(ROWS, WIDTH)


def by_loops(rule: str, steps: list[tuple[Array, Array]]) -> Array:
    """The table after the steps; equal ids add up first, as TensorFlow does before its kernels."""
    _, kernel, slots = RULES[rule]
    s = {"w": start(), **{n: np.full((ROWS, WIDTH), v) for n, v in slots.items()}}
    for t, (ids, rows) in enumerate(steps, 1):
        total: dict[int, Array] = {}
        for i, g in zip(ids % ROWS, rows, strict=True):
            total[int(i)] = total.get(int(i), np.zeros(WIDTH)) + g
        for i, g in total.items():
            kernel(s, i, g, t)
    return s["w"]


def slices(ids: Any, rows: Any) -> wf.IndexedSlices:
    return wf.IndexedSlices(rows, ids, (ROWS, WIDTH))


def in_graph(optimizer: Any, steps: list[tuple[Array, Array]], mode: str) -> Array:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        w = wf.Variable(start())
        ids, rows = wf.placeholder(wf.int64, ["n"]), wf.placeholder(wf.float64, ["n", WIDTH])
        train = optimizer.apply_gradients([(slices(ids, rows), w)])
        session.run(wf.global_variables_initializer())
        for i, g in steps:
            session.run(train, {ids: i, rows: g})
        return session.run(w)  # type: ignore[no-any-return]


def compiled(optimizer: Any, steps: list[tuple[Array, Array]]) -> Array:
    w = wf.Variable(start())

    @wf.compile
    def step(ids: Any, rows: Any) -> None:
        optimizer.apply_gradients([(slices(ids, rows), w)])

    for i, g in steps:
        step(i, g)
    return w.numpy()


def eager(optimizer: Any, steps: list[tuple[Array, Array]]) -> Array:
    w = wf.Variable(start())
    for i, g in steps:
        optimizer.apply_gradients([(slices(i, g), w)])
    return w.numpy()


def drawn(seed: int, count: int = 4) -> list[tuple[Array, Array]]:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 6, count)
    return [(random.integers(-ROWS, ROWS, n), random.normal(size=(n, WIDTH))) for n in sizes]


@pytest.mark.share(4)
@pytest.mark.parametrize("rule", RULES)
def test_as_the_kernels(rule: str) -> None:
    """With equal and negative ids, and rows that no step or only one looks up."""
    steps = [
        (np.array([1, 3, 1]), np.arange(9.0).reshape(3, 3) / 5 - 1),
        (np.array([0, -3]), np.ones((2, 3))),
        (np.array([1]), np.array([[0.5, 0.0, -0.5]])),
    ]
    wanted = by_loops(rule, steps)
    make = RULES[rule][0]
    for found in (
        eager(make(), steps), compiled(make(), steps), in_graph(make(), steps, "auto"),
        in_graph(make(), steps, "dataflow"),
    ):  # fmt: skip
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(found[[2, 4, 5]], start()[[2, 4, 5]])


@given(st.sampled_from(sorted(RULES)), st.integers(0, 10**6))
@examples(60)
def test_any_ids(rule: str, seed: int) -> None:
    steps = drawn(seed)
    np.testing.assert_allclose(
        eager(RULES[rule][0](), steps), by_loops(rule, steps), rtol=1e-11, atol=1e-12
    )


def test_through_minimize_and_on_dense_gradients() -> None:
    """Only gradients that are rows are lazy: a dense one moves all of its variable."""
    table, dense = wf.Variable(np.ones((5, 2))), wf.Variable(np.ones(3))
    optimizer = wf.train.Momentum(0.5, 0.5, lazy=True)

    @wf.compile
    def step(ids: Any) -> None:
        loss = wf.sum(wf.nn.embedding_lookup(table, ids)) + wf.sum(dense)
        optimizer.minimize(loss)

    step([0, 0])
    step([1])
    slot = optimizer.get_slot(table, "momentum")
    assert slot is not None
    assert slot.numpy()[:, 0].tolist() == [2.0, 1.0, 0.0, 0.0, 0.0]
    assert table.numpy()[:, 0].tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert dense.numpy().tolist() == [1 - 0.5 - 0.75] * 3


def test_not_lazy_is_the_dense_formula() -> None:
    """As before, and as TensorFlow's AdamOptimizer: rows that were not looked up move, too."""
    steps = [(np.array([1]), np.ones((1, WIDTH))), (np.array([2]), np.ones((1, WIDTH)))]
    kept = eager(wf.train.Adam(0.1, lazy=True), steps)
    moved = eager(wf.train.Adam(0.1), steps)
    w = wf.Variable(start())
    optimizer = wf.train.Adam(0.1)
    for ids, rows in steps:
        optimizer.apply_gradients([(slices(ids, rows).to_dense(), w)])
    np.testing.assert_array_equal(moved, w.numpy())
    assert not np.allclose(moved[1], kept[1])


def test_rows_of_a_large_table_only_are_written() -> None:
    """The step has no op of the table's size but those that hand it on in place."""
    table = wf.Variable(np.zeros((50_000, 8), np.float32))
    optimizer = wf.train.Adam(0.1, lazy=True)

    @wf.compile
    def step(ids: Any, rows: Any) -> None:
        optimizer.apply_gradients([(wf.IndexedSlices(rows, ids, (50_000, 8)), table)])

    ids, rows = np.array([3, 7, 3]), np.ones((3, 8), np.float32)
    step(ids, rows)
    lines = [line for line in step.ir(ids, rows).splitlines() if "f32[50000,8]" in line]
    known = ("variable", "read", "scatter_nd_update", "assign")
    assert lines
    assert all(any(f"{name}(" in line for name in known) for line in lines), "\n".join(lines)


def test_errors_and_reprs() -> None:
    w = wf.Variable(np.zeros((4, 2), np.float32), name="w")
    optimizer = wf.train.Momentum(0.1, lazy=True)
    assert repr(optimizer).endswith("lazy=True)")
    assert "lazy" not in repr(wf.train.Momentum(0.1))
    wrong = wf.IndexedSlices(np.ones((1, 3), np.float32), [0], (4, 3))
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"\[4, 3\] do not fit variable 'w'"):
        optimizer.apply_gradients([(wrong, w)])
    ids = wf.IndexedSlices(np.ones((1, 2)), [0], (4, 2))
    with pytest.raises(wf.errors.InvalidArgumentError, match="gradient f64"):
        optimizer.apply_gradients([(ids, w)])
