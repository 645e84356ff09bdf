"""TensorArrays in graphs: elements whose shapes, or whose number, a step decides, by
infer_shape=False, element_shape=None, dynamic_size=True, or a size that is a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf

Array = np.ndarray[Any, Any]
X = np.arange(1, 7, dtype=np.float32)


def run(build: Callable[..., Any], n: int = 3, mode: str = "auto") -> Any:
    """What a session gives for `build(n, x)`: a scalar and a vector of six numbers."""
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        number, x = wf.placeholder(wf.int32, []), wf.placeholder(wf.float32, [None])
        return session.run(build(number, x), {number: n, x: X})


def filled(ta: wf.TensorArray, n: Any, element: Callable[[Any], Any]) -> wf.TensorArray:
    """With `element(i)` at each i below n, written by a loop."""
    body = lambda i, ta: (i + 1, ta.write(i, element(i)))  # noqa: E731
    made: wf.TensorArray = wf.while_loop(lambda i, ta: i < n, body, (0, ta))[1]
    return made


def array(size: Any = 3, **options: Any) -> wf.TensorArray:
    return wf.TensorArray(wf.float32, size, **options)


def ragged(size: Any = 3, **options: Any) -> wf.TensorArray:
    return array(size, infer_shape=False, **options)


#: What a graph makes of n = 3 and X, and what comes out.
CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "a size of the step": (
        lambda n, x: filled(array(n, element_shape=[]), n, lambda i: x[i]).stack(), X[:3]
    ),
    "a shape that the body decides": (
        lambda n, x: filled(array(n), n, lambda i: x[:2] + x[i]).stack(),
        [X[:2] + 1, X[:2] + 2, X[:2] + 3],
    ),
    "a shape that a size decides": (
        lambda n, x: filled(array(n), n, lambda i: x + x[i]).stack(), [X + 1, X + 2, X + 3]
    ),
    "the same in a scan": (
        lambda n, x: wf.fori_loop(0, 3, lambda i, t: t.write(i, x[:2] * 2), array(3)).stack(),
        [X[:2] * 2] * 3,
    ),
    "parts, joined": (lambda n, x: filled(ragged(n), n, lambda i: x[:i]).concat(), [1, 1, 2]),
    "parts of rows": (
        lambda n, x: filled(
            ragged(n, element_shape=[None, 2]), n, lambda i: wf.tile(x[:2], [i, 1])
        ).concat(),
        [X[:2]] * 3,
    ),
    "one of them": (lambda n, x: filled(ragged(n), n, lambda i: x[:i]).read(2), [1, 2]),
    "in another order": (
        lambda n, x: ragged().write(2, x[:1]).write(0, x[:3]).write(1, x[3:5]).concat(),
        [1, 2, 3, 4, 5, 1],
    ),
    "stacked": (
        lambda n, x: filled(ragged(n), n, lambda i: x[:n]).stack(), [X[:3]] * 3
    ),
    "gathered": (
        lambda n, x: ragged().scatter([2, 0, 1], wf.reshape(x, (3, 2))).gather([2, 1]),
        [[1, 2], [5, 6]],
    ),
    "split": (
        lambda n, x: ragged().split(x, wf.stack([n, 2, 1])).read(1), [4, 5]
    ),
    "split and joined": (lambda n, x: ragged().split(x, [3, 1, 2]).concat(), X),
    "unstacked": (lambda n, x: ragged(n).unstack(wf.reshape(x, (n, -1))).read(1), [3, 4]),
    "not written, of a known shape": (
        lambda n, x: ragged(element_shape=[2]).write(1, x[:2]).stack(), [[0, 0], [1, 2], [0, 0]]
    ),
    "dynamic": (
        lambda n, x: filled(array(0, dynamic_size=True), n, lambda i: x[i]).stack(), X[:3]
    ),
    "dynamic, of rows": (
        lambda n, x: filled(array(0, dynamic_size=True), n, lambda i: x[:2] + x[i]).stack(),
        [X[:2] + 1, X[:2] + 2, X[:2] + 3],
    ),
    "dynamic, with gaps": (
        lambda n, x: array(2, dynamic_size=True, element_shape=[]).write(4, 5.0).write(n, 7.0)
        .stack(),
        [0, 0, 0, 7, 5],
    ),
    "dynamic, of different shapes": (
        lambda n, x: filled(ragged(0, dynamic_size=True), n, lambda i: x[i : i * 2 + 1]).concat(),
        [1, 2, 3, 3, 4, 5],
    ),
    "how many": (lambda n, x: filled(array(0, dynamic_size=True), n, lambda i: x[i]).size(), 3),
    "how many, fixed": (lambda n, x: ragged(n).size(), 3),
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "ir")
    build, wanted = CASES[name]
    got = run(build)
    assert_allclose(got, np.asarray(wanted))
    assert got.shape == np.shape(wanted)


@pytest.mark.slow
def test_steps_are_the_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "run")
    for name in ("parts, joined", "dynamic, of rows", "a shape that the body decides"):
        build, wanted = CASES[name]
        assert_allclose(run(build, mode="dataflow"), wanted)


@examples(24)
@given(
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_random_elements(sizes: list[int], order: Any) -> None:
    """Written in any order, one by one; against a list."""
    numbers = list(range(len(sizes)))
    order.shuffle(numbers)
    wanted = [np.full((k, 2), i, np.float32) for i, k in enumerate(sizes)]
    with wf.Graph().as_default(), wf.Session() as session:
        counts = wf.placeholder(wf.int64, [None])
        ta = ragged(len(sizes))
        for i in numbers:
            ta = ta.write(i, wf.ones([counts[i], 2]) * float(i))
        got = session.run([ta.concat(), *(ta.read(i) for i in numbers)], {counts: sizes})
    assert_array_equal(got[0], np.concatenate(wanted))
    for i, one in zip(numbers, got[1:], strict=True):
        assert_array_equal(one, wanted[i])


def test_gradients() -> None:
    """They go through such arrays, and through loops that write one whose room is known."""

    def by_split(n: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        ta = ragged().split(x * x, wf.stack([n, 2, 1]))
        return wf.gradients(wf.sum(ta.read(1) * 3) + wf.sum(ta.concat()), [x])[0]

    assert_array_equal(run(by_split), 2 * X * (1 + 3 * np.array([0, 0, 0, 1, 1, 0])))

    def by_loop(n: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        made = filled(array(n), n, lambda i: x[:2] * x[i])
        return wf.gradients(wf.sum(made.stack()), [x])[0]

    slope = np.zeros(6)
    for i in range(3):
        slope[:2] += X[i]
        slope[i] += X[:2].sum()
    for mode in ("auto", "dataflow"):
        assert_allclose(run(by_loop, mode=mode), slope)
    with pytest.raises(wf.errors.GradientError, match="depends on values"):
        run(lambda n, x: wf.gradients(filled(ragged(n), n, lambda i: x[:i]).concat(), [x]))


def test_no_elements() -> None:
    for build, shape in (
        (lambda n, x: filled(ragged(n), n, lambda i: x[:i]).concat(), (0,)),
        (lambda n, x: filled(ragged(n), n, lambda i: x[:i]).stack(), (0, 0)),
        (lambda n, x: filled(ragged(n, element_shape=[None, 2]), n, lambda i: wf.ones([i, 2]))
         .concat(), (0, 2)),
        (lambda n, x: filled(array(n), n, lambda i: x[:2] * 1).stack(), (0, 2)),
        (lambda n, x: filled(array(0, dynamic_size=True, element_shape=[]), n, lambda i: x[i])
         .stack(), (0,)),
    ):  # fmt: skip
        assert run(build, 0).shape == shape


def test_what_is_fetched_is_an_array() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        got = session.run(filled(ragged(), 3, lambda i: x[:i]), {x: X})
    assert isinstance(got, wf.TensorArray)
    assert_array_equal(got.concat(), [1, 1, 2])
    assert_array_equal(got.read(2), [1, 2])
    assert got.size() == 3


def test_loops_at_once_take_arrays_of_the_host() -> None:
    ta = ragged()
    made = filled(ta, 3, lambda i: wf.arange(i) * 1.0)
    assert_array_equal(made.concat(), [0, 0, 1])
    given = ragged(clear_after_read=False).write(0, [1.0]).write(1, [2.0, 3.0]).write(2, [])
    joined = wf.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, s[1]), (0, given))[1]
    assert_array_equal(joined.concat(), [1, 2, 3])
    shape = filled(array(), 3, lambda i: wf.ones(2) * i).stack()
    assert_array_equal(shape, [[0, 0], [1, 1], [2, 2]])


def test_compiled_functions_find_the_shape_in_the_body() -> None:
    call = wf.compile(lambda x: filled(array(), 3, lambda i: x * x).stack())
    assert_array_equal(call(X), [X * X] * 3)
    slope = wf.compile(wf.grad(lambda x: wf.sum(filled(array(), 3, lambda i: x * x).stack())))
    assert_array_equal(slope(X), 6 * X)
    for options in ({"infer_shape": False}, {"dynamic_size": True}):
        one = lambda x, options=options: array(**options).write(0, x).read(0)  # noqa: E731
        for _ in range(2):
            assert_array_equal(wf.compile(one)(X), X)
    given = ragged(2, clear_after_read=False).write(0, X[:1]).write(1, X)
    for call, wanted in (
        (lambda ta: ta.read(1), X),
        (lambda ta: ta.write(1, X).read(0), X[:1]),
        (lambda ta: ta.concat(), np.concatenate([X[:1], X])),
    ):
        assert_array_equal(wf.compile(call)(given), wanted)


def test_errors() -> None:
    errors = wf.errors
    wrong: list[tuple[Callable[..., Any], type[wf.errors.WeftError], str]] = [
        (lambda n, x: ragged().write(0, x).read(1), errors.InvalidArgumentError, "never written"),
        (
            lambda n, x: filled(ragged(n), n, lambda i: x[:i]).stack(),
            errors.InvalidArgumentError, "stack: its elements have different shapes",
        ),
        (
            lambda n, x: ragged(2).write(0, wf.ones((2, n))).write(1, wf.ones((2, 2))).concat(),
            errors.InvalidArgumentError, "concat: sizes of its elements but the first differ",
        ),
        (lambda n, x: ragged(3).write(0, x).concat(), errors.InvalidArgumentError,
         "concat: an element (-1) was never written"),
        (lambda n, x: ragged(3).write(0, x).stack(), errors.InvalidArgumentError,
         "different shapes (-1: never written)"),
        (
            lambda n, x: ragged().split(x, wf.stack([n, n, n])).concat(),
            errors.InvalidArgumentError, "split: the lengths do not add up",
        ),
        (lambda n, x: ragged().write(0, x).write(0, x).read(0), errors.InvalidArgumentError,
         "written already"),
        (lambda n, x: ragged().write(n, x).read(0), errors.InvalidArgumentError, "out of bounds"),
        (lambda n, x: ragged().write(-n, x).read(0), errors.InvalidArgumentError, "out of bounds"),
        (lambda n, x: ragged().write(3, x).read(0), errors.InvalidArgumentError, "out of range"),
        (lambda n, x: ragged().write(0, x).write(1, 2.0).read(0), errors.ShapeError,
         "an element of shape"),
        (lambda n, x: ragged(element_shape=[None, 2]).write(0, wf.ones((2, 3))).read(0),
         errors.ShapeError, "its elements have shape"),
        (lambda n, x: ragged().write(0, wf.arange(3)).read(0), errors.TypeRuleError, "astype"),
        (lambda n, x: ragged().stack(), errors.InvalidArgumentError, "nothing has been written"),
        (lambda n, x: array(n - 4, element_shape=[]).stack(), errors.InvalidArgumentError,
         "size is -1"),
        (lambda n, x: filled(array(n), n, lambda i: x[:i]).stack(), errors.InvalidArgumentError,
         "not known before it runs"),
    ]  # fmt: skip
    for build, kind, what in wrong:
        with pytest.raises(kind) as error:
            run(build)
        assert what in error.value.what, error.value.what
        assert __file__ in str(error.value)
