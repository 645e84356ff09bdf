"""`x[key]` and `x.at[key]` against NumPy on random keys, eagerly and traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st

import weft as wf
from weft.ir.interpreter.evaluate import interpret

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


def slices(size: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...], distinct: bool = False) -> Any:
    """A key that fits `shape`: integers, slices, None, an ellipsis, index arrays, masks.

    distinct: no element is named twice (several writes to one place have no order in NumPy).
    """
    index_shape = draw(st.sampled_from([(), (2,), (3, 1), (1, 2), (0,)]))
    items: list[Any] = []
    axis, ellipsis, arrays = 0, False, 0
    while axis < len(shape):
        size = shape[axis]
        kind = draw(
            st.sampled_from(["slice", "slice", "int", "none", "ellipsis", "array", "mask", "end"])
        )
        if kind == "end" and not ellipsis:  # else the ellipsis takes the rest
            break
        if kind == "none":
            items.append(None)
        elif kind == "ellipsis" and not ellipsis:
            ellipsis = True
            items.append(...)
            axis += draw(st.integers(0, len(shape) - axis))
        elif kind == "int" and size:
            items.append(draw(st.integers(-size, size - 1)))
            axis += 1
        elif kind == "array" and size and not (distinct and arrays):
            arrays += 1
            if distinct:
                count = draw(st.integers(0, size))
                items.append(np.array(draw(st.permutations(range(size)))[:count], np.int64))
            else:
                shape_here = draw(st.sampled_from([index_shape, index_shape[1:]]))
                flat = draw(st.lists(st.integers(-size, size - 1), min_size=6, max_size=6))
                items.append(np.resize(np.array(flat, np.int32), shape_here))
            axis += 1
        elif kind == "mask" and not arrays:
            arrays += 1
            depth = draw(st.integers(1, len(shape) - axis))
            part = shape[axis : axis + depth]
            flat = draw(
                st.lists(st.booleans(), min_size=int(np.prod(part)), max_size=int(np.prod(part)))
            )
            items.append(np.array(flat, bool).reshape(part))
            axis += depth
        else:
            items.append(draw(slices(size)))
            axis += 1
    return tuple(items)


def array(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(float(np.prod(shape))).reshape(shape)


def traced(fn: Any, *inputs: Any) -> Any:
    graph = wf.compile(fn).trace(*inputs)
    return interpret(graph, [np.asarray(x) for x in inputs])[0]


@st.composite
def shape_and_key(draw: st.DrawFn, distinct: bool = False) -> Any:
    shape = draw(SHAPES)
    return shape, draw(keys(shape, distinct))


@examples(400)
@given(shape_and_key())
@example(((2, 3, 4), (slice(None), np.array([0, 1]), ..., np.array([1, 2]))))
@example(((2, 3, 4), (0, slice(None), np.array([0, 1]))))
@example(((2, 3, 4, 5), (slice(None), np.array([0, 1]), None, np.array([[1], [2]]))))
@example(((3, 4), (np.zeros((3, 4), bool),)))
@example(((3, 4), (slice(None, None, -1), slice(-1, None, -2))))
def test_getitem(given_: Any) -> None:
    shape, key = given_
    x = array(shape)
    try:
        expected = x[key]
    except IndexError:  # index arrays that do not broadcast with a mask
        with pytest.raises(wf.errors.InvalidArgumentError):
            wf.asarray(x)[key]
        return
    for got in (wf.asarray(x)[key].numpy(), traced(lambda t: t[key], x)):
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)


@examples(200)
@given(
    shape_and_key(distinct=True),
    st.sampled_from(["set", "add", "subtract", "multiply", "divide", "min", "max"]),
    st.booleans(),
)
def test_at(given_: Any, method: str, scalar: bool) -> None:
    shape, key = given_
    x = array(shape)
    part = x[key]
    value = np.float64(3.5) if scalar else np.random.default_rng(0).normal(size=part.shape) * 9
    expected = x.copy()
    combine = {
        "set": lambda a, b: b, "add": np.add, "subtract": np.subtract, "min": np.minimum,
        "max": np.maximum, "multiply": np.multiply, "divide": np.divide,
    }[method]  # fmt: skip
    expected[key] = combine(part, value)
    np.testing.assert_array_equal(getattr(wf.asarray(x).at[key], method)(value), expected)
    run = traced(lambda t, v: getattr(t.at[key], method)(v), x, value)
    np.testing.assert_array_equal(run, expected)


def test_duplicates() -> None:
    x = wf.zeros(4, dtype=wf.int64)
    np.testing.assert_array_equal(x.at[[1, 1, 3]].add([1, 2, 5]), [0, 3, 0, 5])
    np.testing.assert_array_equal(x.at[[1, 1, 3]].set([1, 2, 5]), [0, 2, 0, 5])
    np.testing.assert_array_equal(x.at[[1, 1]].max([7, 2]), [0, 7, 0, 0])
    np.testing.assert_array_equal(x.at[1:3].get(), [0, 0])


def test_traced_index_arrays() -> None:
    """Indices that are inputs of the graph: scalars, arrays, several of them."""
    x, i, j = array((3, 4, 5)), np.int64(-1), np.array([[0, 2], [1, -3]], np.int8)
    pairs = [
        (lambda t, a, b: t[a], x[i]),
        (lambda t, a, b: t[:, a, 1:], x[:, i, 1:]),
        (lambda t, a, b: t[b, :, a], x[j, :, i]),
        (lambda t, a, b: t[:, b, a], x[:, j, i]),
        (lambda t, a, b: t[b, None, b][..., ::-1], x[j, None, j][..., ::-1]),
    ]
    for function, expected in pairs:
        np.testing.assert_array_equal(traced(function, x, i, j), expected)


@pytest.mark.parametrize("key", ["1", "-2", "slice(1, n)"])
def test_places_in_an_axis_of_unknown_size(key: str) -> None:
    """An index, and a bound that is a size itself, must lie inside; the message is for the user,
    not about the IR. (Slices with integers: test_open_sizes.py.)"""
    with wf.Graph().as_default() as graph:
        x, n = wf.placeholder(wf.float32, [None, 2]), wf.placeholder(wf.int32, [None]).shape[0]
        y, rows = x[eval(key)], n * wf.ones([2])
    places = graph.get_tensor_by_name("placeholder_1")
    with wf.Session(graph=graph) as session:
        values = np.arange(6, dtype=np.float32).reshape(3, 2)
        feed = {places: np.zeros(3, np.int32)}
        got, _ = session.run([y, rows], {x: values, **feed})
        np.testing.assert_array_equal(got, values[eval(key, {"n": 3})])
        with pytest.raises(
            wf.errors.InvalidArgumentError, match=r"^op 'slice': .*axis 0"
        ) as caught:
            session.run([y, rows], {x: np.ones((1, 2), np.float32), **feed})
    assert "must lie inside an axis whose size is known only when" in str(caught.value.hint)
    assert "IR" not in str(caught.value)
    assert caught.value.locations[0].file == __file__


def test_traced_mask() -> None:
    """It indexes and writes."""
    x, mask = array((3, 4)), np.array([True, False, True])
    np.testing.assert_array_equal(wf.compile(lambda t, m: t[m])(x, mask), x[mask])
    expected = x.copy()
    expected[mask] = [1, 2, 3, 4]
    got = traced(lambda t, m: t.at[m].set(np.array([1.0, 2, 3, 4])), x, mask)
    np.testing.assert_array_equal(got, expected)
    got = traced(lambda t, m: t.at[m].add(1), x, mask)
    np.testing.assert_array_equal(got, x + mask[:, None])
    with pytest.raises(wf.errors.InvalidArgumentError, match="at most 1 axes"):
        wf.compile(lambda t, m: t.at[m].set(np.ones((2, 4)))).trace(x, mask)


def test_eager_mask() -> None:
    x = wf.asarray(array((3, 4)))
    np.testing.assert_array_equal(x[x > 5], np.arange(6.0, 12.0))
    np.testing.assert_array_equal(x.at[x > 5].set(0), np.where(array((3, 4)) > 5, 0, array((3, 4))))


FLAGS = [
    True, False, np.bool_(True), np.array(False), (True, 0), (0, True), (False, 0), (True, False),
    (True, [0, 1]), ([0, 1], True), (slice(1, 3), True), (..., True), (True, ...), (..., False, 0),
    (True, None, 0), (slice(None), True, [1, 2]), (np.ones(3, bool), True), (0, 1, True),
    (slice(None), False, 0),
]  # fmt: skip


@pytest.mark.parametrize("key", FLAGS, ids=str)
def test_masks_of_no_axes(key: Any) -> None:
    """A bool adds an axis, which it keeps or empties."""
    x = array((3, 4))
    np.testing.assert_array_equal(wf.asarray(x)[key], x[key], strict=True)
    np.testing.assert_array_equal(traced(lambda t: t[key], x), x[key], strict=True)
    expected = x.copy()
    expected[key] += 3.5
    np.testing.assert_array_equal(wf.asarray(x).at[key].add(3.5), expected)
    np.testing.assert_array_equal(traced(lambda t: t.at[key].add(3.5), x), expected)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("x", [np.float64(2), array((3, 4))], ids=["0-d", "matrix"])
def test_values_as_masks_of_no_axes(flag: bool, x: Any) -> None:
    """Those of a compiled function; on a GPU they can write."""
    x, mask, expected = np.asarray(x), np.array(flag), np.array(x)
    expected[mask] = 7
    np.testing.assert_array_equal(wf.compile(lambda t, m: t[m])(x, mask), x[mask], strict=True)
    for run in (
        wf.compile(lambda t, m: t.at[m].set(7.0)),
        lambda t, m: wf.asarray(t).at[m].set(7.0),
    ):
        np.testing.assert_array_equal(run(x, wf.asarray(mask)), expected, strict=True)
    wf.compile(lambda t, m: t.at[m].set(7.0), device="gpu:0").trace(x, mask)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (0, 0)], ids=str)
def test_masks_of_no_elements(shape: tuple[int, ...]) -> None:
    """They fit any axis."""
    x, mask = array((3, 4)), np.zeros(shape, bool)
    for read in (lambda t, m: t[m], wf.compile(lambda t, m: t[m])):
        got = read(wf.asarray(x), wf.asarray(mask))
        np.testing.assert_array_equal(got, x[mask], strict=True)
    for write in (lambda t, m: t.at[m].set(7), wf.compile(lambda t, m: t.at[m].set(7))):
        np.testing.assert_array_equal(write(wf.asarray(x), wf.asarray(mask)), x)


def test_masks_that_do_not_fit() -> None:
    x, mask = wf.asarray(array((3, 4))), wf.asarray(np.ones(4, bool))
    for fn in (lambda t, m: t[m], lambda t, m: t.at[m].set(0.0)):
        for run in (fn, wf.compile(fn)):
            with pytest.raises(IndexError, match=r"a mask of shape \[4\] does not fit"):
                run(x, mask)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((0, 0, 0), r"too many indices: 3 for a tensor of shape \[3,4\]"),
        (3, "index 3 is out of bounds for axis 0 of size 3"),
        ((0, -5), "index -5 is out of bounds for axis 1 of size 4"),
        ((..., ...), "only one ellipsis"),
        (0.5, "0.5 is not a valid index"),
        ("a", "'a' is not a valid index"),
        (slice(0, 1, 0), "slice step cannot be zero"),
        (slice("a"), "not a valid slice"),
        ([0, 7], "index 7 is out of bounds for axis 0 of size 3"),
        (([0, 1], [0, 1, 2]), "index arrays do not fit together"),
        (np.ones(4, bool), r"a mask of shape \[4\] does not fit axis 0"),
        ((True, 0, 0, 0), "too many indices: 4"),
    ],
)
def test_bad_keys(key: Any, message: str) -> None:
    x = wf.asarray(array((3, 4)))
    with pytest.raises(IndexError, match=message) as error:
        x[key]
    assert isinstance(error.value, wf.errors.InvalidArgumentError)
    assert error.value.locations[0].file == __file__
    with pytest.raises(IndexError, match=message):
        x.at[key].set(0)


def test_bad_updates() -> None:
    x = wf.asarray(array((3, 4)))
    with pytest.raises(
        wf.errors.TypeRuleError, match=r"complex64 cannot be written into .* float64"
    ):
        x.at[0].set(np.complex64(1j))
    with pytest.raises(wf.errors.TypeRuleError, match=r"float cannot be written into .* int64"):
        wf.zeros(3, dtype=wf.int64).at[0].add(0.5)
    with pytest.raises(wf.errors.ShapeError, match=r"\[3\] does not broadcast to .* \[4\]"):
        x.at[0].set([1.0, 2.0, 3.0])


def test_indices_of_every_integer_dtype() -> None:
    x = array((5,))
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        i = np.array([4, 0, 2], dtype)
        np.testing.assert_array_equal(wf.asarray(x)[i], x[i])
        np.testing.assert_array_equal(wf.take(x, i), x[i])
        np.testing.assert_array_equal(wf.asarray(x)[i, None][:, 0], x[i])


def test_gradient_flows_through_indexing() -> None:
    x = array((3, 4))
    key = (slice(None, None, -1), np.array([1, 1, 3]))
    got = wf.grad(lambda t: wf.sum(t[key] * wf.asarray([1.0, 2.0, 3.0])))(x)
    np.testing.assert_array_equal(got, np.broadcast_to([0.0, 3.0, 0.0, 3.0], (3, 4)))
    got = wf.grad(lambda t: wf.sum(t.at[1, ::2].set(0.0) ** 2))(x)
    expected = 2 * x
    expected[1, ::2] = 0
    np.testing.assert_array_equal(got, expected)


def test_multiply_and_divide() -> None:
    x = wf.asarray([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(x.at[0].multiply([2.0, 3.0]), [[2, 6], [3, 4]])
    np.testing.assert_array_equal(x.at[[0, 1], [-1, 0]].multiply([2.0, 3.0]), [[1, 4], [9, 4]])
    np.testing.assert_array_equal(x.at[x > 2].divide(2.0), [[1, 2], [1.5, 2]])
    masked = wf.compile(lambda t: t.at[t > 2].multiply(2.0))
    np.testing.assert_array_equal(masked(x), [[1, 2], [6, 8]])
    assert wf.asarray([1, 2]).at[-1].multiply(3).tolist() == [1, 6]
    slope = wf.grad(lambda t: wf.sum(t.at[np.array([1])].multiply(t[:1])))(x)
    np.testing.assert_array_equal(slope, [[4, 5], [1, 2]])
    for again in ([0, 0], [1, -1]):
        with pytest.raises(wf.errors.UnsupportedError, match=r"x\.at\[i\]\.set\(wf\.multiply"):
            x.at[again].multiply(2.0)
    with pytest.raises(wf.errors.UnsupportedError, match="may name an element twice"):
        wf.compile(lambda t, i: t.at[i].divide(2.0))(x, np.array([0, 1]))
    with pytest.raises(wf.errors.TypeRuleError, match="needs a floating or complex tensor"):
        wf.asarray([1, 2]).at[0].divide(2)


# ---------------------------------------------------------------------------------------- segments
@pytest.mark.parametrize("wrong", [[0, -1], [0, 2]])
def test_segment_ids_do_not_count_from_the_end(wrong: list[int]) -> None:
    x, ids = np.ones((2, 3), np.float32), np.array(wrong)
    functions = (wf.segment_sum, wf.segment_mean, wf.segment_max, wf.segment_min)
    for function in functions:
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of range for 2 segments"):
            function(x, ids, 2)
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
            wf.compile(lambda i, f=function: f(x, i, 2))(ids)
    assert np.isnan(wf.segment_max(np.array([1.0, np.nan]), [0, 0], 1).numpy()[0])


def test_segments_of_other_dtypes() -> None:
    assert wf.segment_max(np.array([3, 1]), [0, 0], 2).numpy().tolist() == [3, -(2**63)]
    assert wf.segment_min(np.array([3, 1], np.uint8), [1, 1], 2).numpy().tolist() == [255, 1]
    # more ones than bfloat16 can count
    many = wf.segment_mean(wf.ones(1000, dtype=wf.bfloat16), np.zeros(1000, np.int64), 1)
    assert many.dtype is wf.bfloat16
    assert float(many[0]) == 1.0
    with pytest.raises(wf.errors.ShapeError, match="segment_ids of shape"):
        wf.segment_sum(np.ones((3, 2)), [0, 1], 2)
    with pytest.raises(wf.errors.InvalidArgumentError, match="num_segments"):
        wf.segment_sum(np.ones(2), [0, 1], -1)
