"""Ops whose results have sizes that depend on values: eagerly, in graphs, their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

Array = np.ndarray[Any, Any]
VALUES = ([1.0, -2.0, 3.0, 4.0, 0.0, 3.0], [-1.0] * 6, [0.5, 1, 1, 2, 3, 5], [7, 7, 7, -7, 7, 7])


def in_session(function: Callable[[wf.Tensor], Any], *values: Any, size: Any = None) -> list[Any]:
    """What `function` gives in one graph for each of the values."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [size], name="x")
        made = function(x)
        with wf.Session() as session:
            return [session.run(made, {x: np.asarray(v, np.float32)}) for v in values]


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "nonzero": (lambda x: wf.nonzero(x)[0], lambda x: np.nonzero(x)[0]),
    "argwhere": (wf.argwhere, np.argwhere),
    "argwhere of a matrix": (
        lambda x: wf.argwhere(wf.reshape(x, (2, 3)) > 0), lambda x: np.argwhere(x.reshape(2, 3) > 0)
    ),
    "boolean_mask": (lambda x: wf.boolean_mask(x, x > 0), lambda x: x[x > 0]),
    "boolean_mask, inner axis": (
        lambda x: wf.boolean_mask(wf.reshape(x, (2, 3)), x[:3] > 0, axis=1),
        lambda x: x.reshape(2, 3)[:, x[:3] > 0],
    ),
    "boolean_mask of a matrix": (
        lambda x: wf.boolean_mask(wf.reshape(x, (2, 3)), wf.reshape(x, (2, 3)) > 0),
        lambda x: x.reshape(2, 3)[x.reshape(2, 3) > 0],
    ),
    "a mask as a key": (lambda x: x[x > 1] + 1, lambda x: x[x > 1] + 1),
    "a mask next to a slice": (
        lambda x: wf.reshape(x, (2, 3))[:, x[3:] > 0], lambda x: x.reshape(2, 3)[:, x[3:] > 0]
    ),
    "unique_values": (wf.unique_values, np.unique),
    "unique_counts": (lambda x: wf.unique_counts(x).counts, lambda x: np.unique_counts(x).counts),
    "unique_inverse": (
        lambda x: wf.unique_inverse(x).inverse_indices, lambda x: np.unique_inverse(x)[1]
    ),
    "unique_all": (lambda x: wf.unique_all(x).indices, lambda x: np.unique_all(x).indices),
    "unique, as it occurs": (
        lambda x: wf.unique(x).y, lambda x: x[np.sort(np.unique(x, return_index=True)[1])]
    ),
    "its places": (lambda x: wf.gather(wf.unique(x).y, wf.unique(x).idx), lambda x: x),
    "its counts": (lambda x: wf.sum(wf.unique_with_counts(x).count), lambda x: np.int32(len(x))),
    "repeat": (
        lambda x: wf.repeat(x, wf.cast(wf.abs(x), wf.int32)),
        lambda x: np.repeat(x, np.abs(x).astype(int)),
    ),
    "partition": (
        lambda x: wf.dynamic_partition(x, wf.cast(x > 1, wf.int32), 2)[1], lambda x: x[x > 1]
    ),
    "stitch": (
        lambda x: wf.dynamic_stitch([wf.cast(wf.abs(x), wf.int32)], [x * 2]), lambda x: stitched(x)
    ),
    "then reductions": (
        lambda x: wf.sum(wf.exp(-wf.boolean_mask(x, x > 0))), lambda x: np.exp(-x[x > 0]).sum()
    ),
    "sizes as values": (
        lambda x: wf.boolean_mask(x, x > 0).shape[0] + wf.sum(x),
        lambda x: np.float32(len(x[x > 0]) + x.sum()),
    ),
    "shape and size": (
        lambda x: wf.shape(wf.concat([wf.boolean_mask(x, x > 0)] * 2)),
        lambda x: np.array([2 * len(x[x > 0])]),
    ),
    "a tensor of that size": (
        lambda x: wf.arange(6)[: 3] + wf.sum(wf.ones([wf.boolean_mask(x, x > 0).shape[0], 2])),
        lambda x: np.arange(3) + np.float32(2 * len(x[x > 0])),
    ),
    "masks of masks": (
        lambda x: wf.boolean_mask(m := x[x > 0], m > 1), lambda x: x[x > 1]
    ),
    "two of them": (
        lambda x: wf.concat([x[x > 0] * 2, x[x < 0]]),
        lambda x: np.concatenate([x[x > 0] * 2, x[x < 0]]),
    ),
    "two that are equal": (
        lambda x: x[x > 0] + wf.boolean_mask(x * 2, x > 0), lambda x: x[x > 0] * 3
    ),
}  # fmt: skip


def stitched(x: Array) -> Array:
    out = np.zeros(int(np.abs(x).max()) + 1, np.float32)
    for v in x:
        out[int(abs(v))] = 2 * v
    return out


@pytest.mark.share(9)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_eagerly_and_in_a_session(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    for size in (6, None):
        for value, got in zip(VALUES, in_session(ours, *VALUES, size=size), strict=True):
            wanted = theirs(np.asarray(value, np.float32))
            assert_allclose(got, wanted, rtol=1e-6)
            assert np.shape(got) == np.shape(wanted)
            assert_allclose(
                np.asarray(ours(wf.asarray(np.asarray(value, np.float32)))), wanted, rtol=1e-6
            )


def test_empty_in_and_out() -> None:
    empty, nothing = np.zeros(0, np.float32), [-1.0, -2.0]
    mask, unique, parts, whole = (
        lambda x: wf.boolean_mask(x, x > 0) * 2,
        lambda x: wf.unique_values(x[x > 0]),
        lambda x: wf.dynamic_partition(x, wf.cast(x > 0, wf.int32), 3)[2],
        lambda x: wf.dynamic_stitch([wf.cast(x[x > 0], wf.int32)], [x[x > 0]]),
    )
    for function in (mask, unique, parts, whole):
        for got in in_session(function, empty, nothing):
            assert got.shape == (0,)
            assert got.dtype == np.float32
    assert in_session(lambda x: wf.sum(mask(x)), nothing) == [0]


# ---------------------------------------------------------------------------------------- gradients
GRADIENTS: dict[str, Callable[[wf.Tensor], wf.Tensor]] = {
    "boolean_mask": lambda x: wf.sum(wf.boolean_mask(x, x > 0) ** 2),
    "mask of computed sizes": lambda x: wf.sum(wf.boolean_mask(x[x > 0], x[x > 0] > 1) ** 3),
    "unique": lambda x: wf.sum(wf.unique_values(x) ** 2),
    "partition": lambda x: sum(
        wf.sum((i + 2) * part**2)
        for i, part in enumerate(wf.dynamic_partition(x, wf.cast(x > 1, wf.int32), 3))
    ),
    "partition, one part only": lambda x: wf.sum(
        wf.dynamic_partition(wf.reshape(x, (3, 2)), wf.asarray([1, 0, 1]), 2)[1] ** 2
    ),
    "stitch": lambda x: wf.sum(
        wf.dynamic_stitch([[0, 5], [2]], [wf.reshape(x[:4], (2, 2)), wf.reshape(x[4:], (1, 2))])
        ** 2
    ),
    "stitch, some replaced": lambda x: wf.sum(
        wf.dynamic_stitch([[0, 1, 1], [0], [4, 4]], [x[:3], x[3:4], x[4:]])
        * wf.cast(wf.arange(5) + 1, wf.float32)
    ),
    "there and back": lambda x: wf.sum(
        wf.dynamic_stitch(
            wf.dynamic_partition(wf.arange(6), wf.cast(x > 1, wf.int32), 2),
            [part**2 for part in wf.dynamic_partition(x, wf.cast(x > 1, wf.int32), 2)],
        )
        * wf.cast(wf.arange(6), wf.float32)
    ),
    "repeat": lambda x: wf.sum(wf.repeat(x, wf.cast(wf.abs(x), wf.int32)) ** 2),
    "size only": lambda x: (
        wf.sum(x) * wf.cast(wf.boolean_mask(x, x > 0).shape[0] * 1.0, wf.float32)
    ),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_differences(name: str) -> None:
    function = GRADIENTS[name]
    # no value is where the choice changes
    x = np.array([1.5, -2.25, 3.5, 4.25, 0.75, -3.5], np.float64)
    wanted = np.zeros(6)
    for i in range(6):
        step = np.eye(6)[i] * 1e-6
        high, low = function(wf.asarray(x + step)), function(wf.asarray(x - step))
        wanted[i] = (float(high) - float(low)) / 2e-6
    assert_allclose(np.asarray(wf.grad(function)(wf.asarray(x))), wanted, rtol=1e-5, atol=1e-6)
    got = in_session(lambda t: wf.gradients(function(t), [t])[0], x, x[::-1])
    assert_allclose(got[0], wanted, rtol=1e-4, atol=1e-4)
    eager = wf.grad(function)(wf.asarray(x[::-1].astype(np.float32)))
    assert_allclose(got[1], np.asarray(eager), rtol=1e-5, atol=1e-5)


def test_unique_passes_gradients_to_where_a_value_is_first() -> None:
    x = np.array([2.0, 3.0, 2.0, 1.0], np.float32)
    loss = lambda t: wf.sum(wf.unique_values(t) ** 2)  # noqa: E731
    assert_array_equal(np.asarray(wf.grad(loss)(wf.asarray(x))), [4, 6, 0, 2])
    assert_array_equal(in_session(lambda t: wf.gradients(loss(t), [t])[0], x)[0], [4, 6, 0, 2])


def test_second_order() -> None:
    cube = lambda t: wf.sum(wf.boolean_mask(t, t > 0) ** 3)  # noqa: E731
    x = np.array([1.0, -1.0, 2.0], np.float32)
    twice = wf.grad(lambda t: wf.sum(wf.grad(cube)(t) ** 2))(wf.asarray(x))
    assert_allclose(np.asarray(twice), np.where(x > 0, 36 * x**3, 0))

    def in_graph(t: wf.Tensor) -> Any:
        (first,) = wf.gradients(cube(t), [t])
        return wf.gradients(wf.sum(first**2), [t])[0]

    assert_allclose(in_session(in_graph, x)[0], np.where(x > 0, 36 * x**3, 0))


def test_a_pullback_runs_later_and_in_other_traces() -> None:
    x = wf.asarray([1.0, -1.0, 2.0])
    y, pull = wf.vjp(lambda t: wf.boolean_mask(t, t > 0) ** 2 * wf.ones([2]), x)
    assert_array_equal(np.asarray(y), [1, 4])
    assert_array_equal(np.asarray(pull(wf.asarray([1.0, 10.0]))[0]), [2, 0, 40])
    inside = wf.compile(lambda g: pull(g)[0])
    assert_array_equal(np.asarray(inside(wf.asarray([1.0, 10.0]))), [2, 0, 40])


# ------------------------------------------------------------------------------------------- errors
def test_native_sessions_name_the_op_and_the_line() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        y = wf.boolean_mask(x, x > 0)
        session = wf.Session(control_flow="native")
        with pytest.raises(wf.errors.UnsupportedError, match=r"'nonzero'.*executor") as error:
            session.run(y, {x: np.ones(3)})
    assert error.value.locations[0].file == __file__


def test_wrong_values_are_errors_of_the_step() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.int32, [None])
        parts = wf.dynamic_partition(wf.ones([4]), x, 2)
        whole = wf.dynamic_stitch([x], [wf.ones([4])])
        repeated = wf.repeat(wf.ones([4]), x)
        apart = wf.boolean_mask(wf.ones([4]), x > 0) + wf.boolean_mask(wf.ones([4]), x > 1)
        with wf.Session() as session:
            for fetch, value, message in (
                (parts, [0, 1, 2, 0], r"partitions\[2\] is 2"),
                (parts, [0, 1, 0], "must begin with that of partitions"),
                (whole, [0, -1, 2, 0], r"indices 0: \[1\] is -1"),
                (repeated, [0, -1, 2, 0], "repeats at 1 is -1"),
                (apart, [1, 2, 2, 0], r"f32\[2\] does not broadcast to \[3\]"),
            ):
                with pytest.raises(wf.errors.WeftError, match=message) as error:
                    session.run(fetch, {x: np.asarray(value, np.int32)})
                assert error.value.locations[0].file == __file__
            assert_array_equal(session.run(apart, {x: np.array([2, 0, 2, 2], np.int32)}), [2, 2, 2])
    for wrong in (
        lambda: wf.dynamic_partition(wf.ones(3), wf.ones(3), 2),
        lambda: wf.dynamic_partition(wf.ones(3), [0, 1], 2),
        lambda: wf.dynamic_partition(wf.ones(3), [0, 1, 0], 0),
        lambda: wf.dynamic_partition(wf.ones(3), [0, 5, 0], 2),
        lambda: wf.dynamic_stitch([[0]], []),
        lambda: wf.dynamic_stitch([], []),
        lambda: wf.dynamic_stitch([[0]], [wf.ones((2, 2))]),
        lambda: wf.dynamic_stitch([[0], [1]], [wf.ones((1, 2)), wf.ones((1, 3))]),
        lambda: wf.dynamic_stitch(wf.ones(2), wf.ones(2)),
        lambda: wf.boolean_mask(wf.ones(3), [True, False]),
        lambda: wf.boolean_mask(wf.ones(3), True),
        lambda: wf.nonzero(1.0),
        lambda: wf.unique(wf.ones((2, 2))),
        lambda: wf.unique(wf.ones(2), wf.float32),
    ):
        with pytest.raises(wf.errors.WeftError) as error:
            wrong()
        assert error.value.locations[0].file == __file__


def test_dynamic_stitch_as_tensorflows_documentation() -> None:
    indices = [6, [4, 1], [[5, 2], [0, 3]]]
    data = [
        [61.0, 62.0],
        [[41.0, 42.0], [11.0, 12.0]],
        [[[51.0, 52.0], [21, 22]], [[1, 2], [31, 32]]],
    ]
    merged = wf.dynamic_stitch(indices, data)
    assert_array_equal(merged, [[10 * i + 1, 10 * i + 2] for i in range(7)])
    assert_array_equal(wf.dynamic_stitch([[0, 0], [0]], [[1, 2], [3]]), [3])
    assert_array_equal(wf.dynamic_stitch([[1], [3, 1]], [[5], [6, 7]]), [0, 7, 0, 6])


def test_ensure_shape() -> None:
    x = wf.ones((2, 3))
    assert wf.ensure_shape(x, [2, None]) is x
    with pytest.raises(wf.errors.ShapeError, match="ensure_shape"):
        wf.ensure_shape(x, [2, 4])
    with pytest.raises(wf.errors.ShapeError, match="ensure_shape"):
        wf.ensure_shape(x, [2])
    with wf.Graph().as_default():
        p = wf.placeholder(wf.float32, [4])
        known = wf.ensure_shape(wf.boolean_mask(p, p > 0), [2])
        assert known.shape == (2,)
        with wf.Session() as session:
            assert_array_equal(session.run(known * 2, {p: np.array([1, 0, 2, 0])}), [2, 4])
            with pytest.raises(
                wf.errors.ShapeError, match=r"the shape is \[3\], not \[2\]"
            ) as error:
                session.run(known, {p: np.array([1, 0, 2, 3])})
    assert error.value.locations[0].file == __file__


def test_as_text() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, ["n"], name="x")
        y = wf.boolean_mask(x, x > 0) * 2
        text = print_graph(graph.ir([y]))
    assert 'nonzero(%2) {sizes=["boolean_mask"]} : i64[boolean_mask,1]' in text
    assert parse_graph(text) == parse_graph(print_graph(parse_graph(text)))
