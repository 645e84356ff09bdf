"""Integers that a graph computes, as sizes: of new tensors, of reshapes, bounds of slices, and how
often something is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf
from weft.ir.interpreter.evaluate import interpret
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

Array = np.ndarray[Any, Any]
X = np.array([3, 1, 4, 1, 5, 9], np.float32)


def run(build: Callable[..., Any], n: int, v: Array = X, mode: str = "auto") -> Any:
    """What a session gives for `build(n, x, sizes)`: a scalar, a vector, and the vector [n, 2]."""
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        number = wf.placeholder(wf.int32, [], name="n")
        x = wf.placeholder(wf.float32, [None], name="x")
        sizes = wf.placeholder(wf.int64, [2], name="sizes")
        made = build(number, x, sizes)
        return session.run(made, {number: n, x: v, sizes: [n, 2]})


#: In a graph with tensors, and with NumPy's numbers.
Case = tuple[Callable[..., Any], Callable[..., Any]]
FUNCTIONS: dict[str, Case] = {
    "zeros": (lambda n, x, s: wf.zeros([n, 2]), lambda n, x: np.zeros((n, 2))),
    "ones": (lambda n, x, s: wf.ones(s), lambda n, x: np.ones((n, 2))),
    "fill": (lambda n, x, s: wf.tf1.fill(s, x[0]), lambda n, x: np.full((n, 2), x[0])),
    "iota": (lambda n, x, s: wf.iota((2, n), 1), lambda n, x: np.indices((2, n))[1]),
    "eye": (lambda n, x, s: wf.eye(n, 3), lambda n, x: np.eye(n, 3)),
    "arange": (lambda n, x, s: wf.arange(n), lambda n, x: np.arange(n)),
    "arange, down": (lambda n, x, s: wf.arange(n, -2, -2), lambda n, x: np.arange(n, -2, -2)),
    "arange, floats": (
        lambda n, x, s: wf.arange(-1.0, n, 0.25), lambda n, x: np.arange(-1, n, 0.25)
    ),
    "arange, step": (
        lambda n, x, s: wf.arange(0, x.shape[0], n + 1), lambda n, x: np.arange(0, len(x), n + 1)
    ),
    "linspace": (
        lambda n, x, s: wf.linspace(-1.0, 2.0, n), lambda n, x: np.linspace(-1, 2, n)
    ),
    "linspace, open": (
        lambda n, x, s: wf.linspace(x[0], 2.0, n, endpoint=False),
        lambda n, x: np.linspace(x[0], 2, n, endpoint=False),
    ),
    "one_hot": (
        lambda n, x, s: wf.one_hot([0, 2, 1], n), lambda n, x: np.eye(max(n, 3))[[0, 2, 1], :n]
    ),
    "tile": (lambda n, x, s: wf.tile(x, [n]), lambda n, x: np.tile(x, n)),
    "tile, all": (lambda n, x, s: wf.tile(x, s), lambda n, x: np.tile(x, (n, 2))),
    "broadcast_to": (
        lambda n, x, s: wf.broadcast_to(x[0], s), lambda n, x: np.full((n, 2), x[0])
    ),
    "slice": (lambda n, x, s: x[:n], lambda n, x: x[:n]),
    "slice, after": (lambda n, x, s: x[n:], lambda n, x: x[n:]),
    "slice, from the end": (lambda n, x, s: x[-n - 1 :], lambda n, x: x[-n - 1 :]),
    "slice, in steps": (lambda n, x, s: x[1 : n + 2 : 2], lambda n, x: x[1 : n + 2 : 2]),
    "slice, backwards": (lambda n, x, s: x[n::-2], lambda n, x: x[n::-2]),
    "slice, both": (lambda n, x, s: x[n - 3 : n], lambda n, x: x[n - 3 : n]),
    "slice of an axis": (
        lambda n, x, s: wf.reshape(x, (2, -1))[..., None, n:],
        lambda n, x: x.reshape(2, -1)[..., None, n:],
    ),
    "slice beside an array": (
        lambda n, x, s: wf.reshape(x, (2, -1))[[1, 0, 1], n:],
        lambda n, x: x.reshape(2, -1)[[1, 0, 1], n:],
    ),
    "pad": (
        lambda n, x, s: wf.pad(x, [[n, 1]], constant_values=7.0),
        lambda n, x: np.pad(x, (n, 1), constant_values=7),
    ),
    "pad, edge": (
        lambda n, x, s: wf.pad(x, [[1, n]], "edge"), lambda n, x: np.pad(x, (1, n), "edge")
    ),
    "segment_sum": (
        lambda n, x, s: wf.segment_sum(x, wf.asarray([0, 0, 1, 0, 1, 1]), n + 2),
        lambda n, x: np.concatenate([[x[[0, 1, 3]].sum(), x[[2, 4, 5]].sum()], np.zeros(n)]),
    ),
    "sequence_mask": (
        lambda n, x, s: wf.nn.sequence_mask([1, 3], n), lambda n, x: np.arange(n) < [[1], [3]]
    ),
    "scatter_nd": (
        lambda n, x, s: wf.tf1.scatter_nd([[0]], wf.stack([x[0]]), wf.stack([n + 1])),
        lambda n, x: np.concatenate([x[:1], np.zeros(n)]),
    ),
    "eye, its diagonal": (
        lambda n, x, s: wf.eye(3, n, k=n - 1), lambda n, x: np.eye(3, n, k=n - 1)
    ),
    "eye, both sizes": (lambda n, x, s: wf.eye(n + 1), lambda n, x: np.eye(n + 1)),
    "tril": (
        lambda n, x, s: wf.tril(wf.reshape(x, (2, 3)), k=n - 1),
        lambda n, x: np.tril(x.reshape(2, 3), n - 1),
    ),
    "triu of an open size": (
        lambda n, x, s: wf.triu(wf.ones((n, 4)), k=n - 1),
        lambda n, x: np.triu(np.ones((n, 4)), n - 1),
    ),
    "diag": (lambda n, x, s: wf.diag(wf.arange(n), -1), lambda n, x: np.diag(np.arange(n), -1)),
    "diagonal": (
        lambda n, x, s: wf.diagonal(x[:n] * x[:, None], offset=-2),
        lambda n, x: np.diagonal(x[:n] * x[:, None], -2),
    ),
    "roll": (lambda n, x, s: wf.roll(x, n), lambda n, x: np.roll(x, n)),
    "roll, two axes": (
        lambda n, x, s: wf.roll(wf.reshape(x, (2, 3)), [-2 * n, n], axis=[1, 0]),
        lambda n, x: np.roll(x.reshape(2, 3), [-2 * n, n], axis=[1, 0]),
    ),
    "roll of an open size": (
        lambda n, x, s: wf.roll(wf.arange(n), 4 - n), lambda n, x: np.roll(np.arange(n), 4 - n)
    ),
    "repeat": (lambda n, x, s: wf.repeat(x, n), lambda n, x: np.repeat(x, n)),
    "repeat, rows": (
        lambda n, x, s: wf.repeat(wf.reshape(x, (3, 2)), n, axis=1),
        lambda n, x: np.repeat(x.reshape(3, 2), n, axis=1),
    ),
    "repeat, each": (
        lambda n, x, s: wf.repeat(x[:2], s), lambda n, x: np.repeat(x[:2], [n, 2])
    ),
    "split": (
        lambda n, x, s: wf.split(x, wf.stack([n, 6 - n]))[1], lambda n, x: x[n:]
    ),
    "bincount": (
        lambda n, x, s: wf.tf1.bincount(wf.astype(x, wf.int32), x, length=n),
        lambda n, x: np.bincount(x.astype(int), x, minlength=n)[:n],
    ),
    "bincount, of as many as there are": (
        lambda n, x, s: wf.tf1.bincount(wf.astype(x[:n], wf.int32), minlength=n),
        lambda n, x: np.bincount(x[:n].astype(int), minlength=n),
    ),
    "causal_mask": (
        lambda n, x, s: wf.nn.causal_mask(n, n + 1, offset=1), lambda n, x: np.tri(n, n + 1, 1) > 0
    ),
    "padding_mask": (
        lambda n, x, s: wf.nn.padding_mask([1, 3], n)[:, 0, 0],
        lambda n, x: np.arange(n) < [[1], [3]],
    ),
    "rfft": (
        lambda n, x, s: wf.abs(wf.fft.rfft(x, n=n + 1)), lambda n, x: np.abs(np.fft.rfft(x, n + 1))
    ),
    "fft, longer": (
        lambda n, x, s: wf.abs(wf.fft.fft(x, n=n + 7)), lambda n, x: np.abs(np.fft.fft(x, n + 7))
    ),
    "scatter_nd, whose rows meet a size": (
        lambda n, x, s: wf.tf1.scatter_nd([[1]], x[None, :2], wf.stack([n + 2, 2 + 0 * n])),
        lambda n, x: np.concatenate([np.zeros((1, 2)), [x[:2]], np.zeros((n, 2))]),
    ),
    "choice": (
        lambda n, x, s: wf.sort(wf.random.choice(wf.random.key(2), n, [n], replace=False)),
        lambda n, x: np.arange(n),
    ),
    "choice of parts": (
        lambda n, x, s: wf.random.choice(wf.random.key(2), wf.full((n + 1,), 4), s),
        lambda n, x: np.full((n, 2), 4),
    ),
    "permutation": (
        lambda n, x, s: wf.sort(wf.random.permutation(wf.random.key(2), n)),
        lambda n, x: np.arange(n),
    ),
    "random": (
        lambda n, x, s: wf.random.uniform(wf.random.key(3), s) * 0 + 1, lambda n, x: np.ones((n, 2))
    ),
}  # fmt: skip


@pytest.mark.share(18)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_sizes_that_a_graph_computes(name: str) -> None:
    made, wanted = FUNCTIONS[name]
    for n in (3, 0, 1):
        got, truth = run(made, n), np.asarray(wanted(n, X))
        assert got.shape == truth.shape
        assert_allclose(got, truth, rtol=1e-6, atol=1e-5)


@pytest.mark.share(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions_take_them(name: str) -> None:
    made, wanted = FUNCTIONS[name]
    compiled = wf.compile(made)
    for n in (3, 0, 1):
        got = np.asarray(compiled(np.int32(n), X, np.array([n, 2])))
        truth = np.asarray(wanted(n, X))
        assert got.shape == truth.shape
        assert_allclose(got, truth, rtol=1e-6, atol=1e-5)


#: Of what depends on x, the gradient with respect to it of a weighted sum.
_DIFFERENTIATED = (
    "fill", "tile", "tile, all", "broadcast_to", "slice", "pad", "tril", "diagonal", "roll",
    "roll, two axes", "repeat", "repeat, rows", "repeat, each", "split", "segment_sum",
)  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", _DIFFERENTIATED)
def test_gradients_are_those_of_known_sizes(name: str) -> None:
    made, _ = FUNCTIONS[name]

    def weighted(x: Any, n: Any, sizes: Any) -> Any:
        got = made(n, x, sizes)
        return wf.sum(got * wf.reshape(wf.sin(wf.arange(wf.size(got)) + 1.0), got.shape))

    compiled = wf.compile(wf.grad(weighted))
    for n in (3, 0, 1):
        sizes = np.array([n, 2])
        truth = wf.grad(partial(weighted, n=n, sizes=sizes))(X)
        assert_allclose(compiled(X, np.int32(n), sizes), truth, rtol=1e-5)


@examples(60)
@given(
    bounds=st.tuples(*[st.one_of(st.none(), st.integers(-8, 8))] * 2),
    traced=st.tuples(st.booleans(), st.booleans()),
    step=st.sampled_from([1, 1, 2, 3, -1, -2]),
    count=st.integers(0, 6),
)
def test_slices_are_pythons(
    bounds: tuple[int | None, int | None], traced: tuple[bool, bool], step: int, count: int
) -> None:
    v = np.arange(count, dtype=np.float32)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        ends, feeds = [], {x: v}
        for value, is_traced in zip(bounds, traced, strict=True):
            if value is None or not is_traced:
                ends.append(value)
                continue
            ends.append(wf.placeholder(wf.int32, []))
            feeds[ends[-1]] = value
        got = session.run(x[slice(*ends, step)], feeds)
    assert_array_equal(got, v[slice(*bounds, step)])


def test_reshapes() -> None:
    for build, wanted in (
        (lambda n, x, s: wf.reshape(x, s), (3, 2)),
        (lambda n, x, s: wf.reshape(x, [n, 2]), (3, 2)),
        (lambda n, x, s: wf.reshape(x, [n, -1]), (3, 2)),
        (lambda n, x, s: wf.reshape(x, [-1, n]), (2, 3)),
        (lambda n, x, s: wf.reshape(x, wf.stack([n, -1])), (3, 2)),
        (lambda n, x, s: wf.reshape(x, wf.where(s == 2, -1, s)), (3, 2)),
        (lambda n, x, s: wf.reshape(x, [2, -1]), (2, 3)),
        (lambda n, x, s: wf.reshape(x[x > 0], [1, -1, n]), (1, 2, 3)),
    ):
        assert_array_equal(run(build, 3), X.reshape(wanted))
    for build in (
        lambda n, x, s: wf.reshape(x, [n, 4]),
        lambda n, x, s: wf.reshape(x, [4, -1]),
        lambda n, x, s: wf.reshape(x, s - 4),  # -1 twice
    ):
        with pytest.raises((wf.errors.ShapeError, wf.errors.InvalidArgumentError)):
            run(build, 3)


def test_sizes_of_tensors_stay_sizes_and_steps_native() -> None:
    """What wf.shape gave is no value to wait for, through arithmetic, too."""
    with wf.Graph().as_default(), wf.Session(control_flow="native") as session:
        x, y = wf.placeholder(wf.float32, [None, 4]), wf.placeholder(wf.float32, [None])
        shape, rows = wf.shape(x), wf.shape(x)[0]
        made = [
            wf.zeros(shape), wf.ones([rows]), wf.arange(rows), wf.arange(0, rows, 2),
            wf.reshape(x, wf.stack([rows * 2, 2])), wf.reshape(x, wf.concat([[-1], shape[:1]])),
            wf.tile(y, wf.shape(y)), wf.zeros([wf.astype(rows, wf.int32) + 1, shape[1] // 2]),
        ]  # fmt: skip
        assert made[0].shape == x.shape
        assert str(made[-1].shape[0]) == f"{x.shape[0]}+1"
        for n in (3, 5):
            got = session.run(made, {x: np.ones((n, 4)), y: np.ones(n)})
            shapes = [a.shape for a in got]
            assert shapes == [
                (n, 4), (n,), (n,), (-(-n // 2),), (2 * n, 2), (4, n), (n * n,), (n + 1, 2)
            ]  # fmt: skip


def test_sizes_of_tensors_in_compiled_functions() -> None:
    """Of arguments whose sizes a signature leaves open."""
    rows = wf.TensorType(wf.float32, (None, 2))

    def function(x: wf.Tensor) -> Any:
        n = wf.shape(x)[0]
        return wf.zeros(wf.shape(x)) + x, wf.arange(0, n, 2), x[: n // 2], x[n - 1 :, :1]

    compiled = wf.compile(function, input_signature=[rows])
    for n in (3, 1, 6):
        v = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)
        for a, b in zip(
            compiled(v), (v, np.arange(0, n, 2), v[: n // 2], v[n - 1 :, :1]), strict=True
        ):
            assert_array_equal(a, b)


def test_one_value_is_one_size() -> None:
    with wf.Graph().as_default():
        n = wf.placeholder(wf.int32, [])
        a, b = wf.zeros([n]), wf.ones([2, n])
        assert a.shape[0] == b.shape[1]
        inner: list[wf.Tensor] = []

        def step(i: wf.Tensor, h: wf.Tensor) -> Any:
            inner.append(wf.ones([n]))
            return i + 1, inner[-1] + h

        out = wf.while_loop(lambda i, h: i < 3, step, (0, a))[1]
        assert inner[-1].shape == a.shape == out.shape
        with wf.Session() as session:
            for size in (2, 0, 5):
                assert_array_equal(session.run(out, {n: size}), np.full(size, 3))


def test_a_branch_that_is_not_taken_checks_nothing() -> None:
    build = lambda n, x, s: wf.cond(n > 0, lambda: wf.sum(wf.ones([n])), lambda: -1.0)  # noqa: E731
    assert run(build, 4) == 4
    assert run(build, -3) == -1


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_gradients_through_such_sizes(mode: str) -> None:
    def slope(n: wf.Tensor, x: wf.Tensor, s: wf.Tensor) -> wf.Tensor:
        part = x[1 : n + 1] ** 2 * wf.arange(n) + wf.tile(x[:1], [n])
        return wf.gradients(wf.sum(part), [x])[0]

    assert_allclose(run(slope, 3, mode=mode), [3, 0, 2 * 4, 2 * 1 * 2, 0, 0])
    eager = wf.grad(lambda x: wf.sum(x[: wf.astype(x[0], wf.int32)] ** 2))(wf.asarray(X))
    assert_array_equal(eager, [6, 2, 8, 0, 0, 0])


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_what_a_region_gives_for_its_size_alone(mode: str) -> None:
    """The rows of a scan are read in one region, and tell a size in another one."""

    def build(n: wf.Tensor, x: wf.Tensor, s: wf.Tensor) -> wf.Tensor:
        rows = wf.scan(lambda a, _: (a, a), wf.asarray(1.0), length=n)[1]
        both = wf.concat([x, rows])
        return wf.tile(both[:8], [wf.astype(wf.sum(both), wf.int32) - 22])

    assert_array_equal(run(build, 3, mode=mode), np.tile(np.concatenate([X, [1, 1]]), 4))
    assert_array_equal(run(build, 1, mode=mode), np.tile(np.concatenate([X, [1]]), 2))


def test_errors_name_function_and_line() -> None:
    for build, what in (
        (lambda n, x, s: wf.zeros([n]), "wf.zeros: a size in the shape is -1"),
        (lambda n, x, s: wf.linspace(0.0, 1.0, n), "wf.linspace: num is -1"),
        (lambda n, x, s: wf.tile(x, [n]), "wf.tile: a repetition is -1"),
        (lambda n, x, s: wf.arange(0, 5, n + 1), "wf.arange: the length, -1 where the step is 0"),
        (lambda n, x, s: wf.scan(lambda c, _: (c, c), 0, length=n)[1], "wf.scan: length is -1"),
    ):
        with pytest.raises(wf.errors.InvalidArgumentError) as error:
            run(build, -1)
        assert what in error.value.what
        assert error.value.locations[0].file == __file__
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf.zeros: .* not an integer"):
        run(lambda n, x, s: wf.zeros([x[0]]), 1)
    for build, what in (
        (lambda n, x, s: wf.split(x, [s, 2]), "wf.split: a size"),
        (lambda n, x, s: wf.tile(x, [s]), "wf.tile: a repetition"),
        (lambda n, x, s: wf.top_k(x, s), "wf.top_k: k"),
        (lambda n, x, s: wf.linspace(0.0, 1.0, s), "wf.linspace: num"),
    ):
        with pytest.raises(wf.errors.InvalidArgumentError, match=rf"{what} must be a number"):
            run(build, 1)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf.one_hot: .* got \[3, 4\]"):
        wf.one_hot([0], [3, 4])
    with pytest.raises(wf.errors.ShapeError):
        run(lambda n, x, s: wf.ensure_shape(x, [n]), 1)
    assert_array_equal(run(lambda n, x, s: wf.ensure_shape(x, [n]), 6), X)


FAR = 2**62


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (0.0, float("nan"), 1.0), (0.0, 1.0, float("nan")), (-2 * FAR, 2 * FAR - 1, FAR),
        (2 * FAR - 1, -2 * FAR, -FAR), (0, -2 * FAR, -1), (-2 * FAR, 0, 1),
    ],
)  # fmt: skip
def test_a_range_without_a_length(start: Any, stop: Any, step: Any) -> None:
    """It is an error, not an empty range."""
    values = [np.asarray(x) for x in (start, stop, step)]
    with pytest.raises(wf.errors.InvalidArgumentError, match="too far apart, is -1"):
        wf.compile(wf.arange)(*values)
    with wf.Graph().as_default(), wf.Session() as session:
        ends = [wf.placeholder(x.dtype, []) for x in values]
        with pytest.raises(wf.errors.InvalidArgumentError, match="too far apart, is -1"):
            session.run(wf.arange(*ends), dict(zip(ends, values, strict=True)))


def test_ranges_at_the_limits_of_int64() -> None:
    f = wf.compile(wf.arange)
    low, high = -2 * FAR, 2 * FAR - 1
    for ends in ((low, 0, -1), (low, low + 3, 2), (high, high - 3, -2), (0, low + 1, low)):
        assert_array_equal(f(*map(np.int64, ends)), np.arange(*ends))


@pytest.mark.parametrize("stop", [float("nan"), float("inf")])
def test_a_known_range_without_a_length(stop: float) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf\.arange: there are") as error:
        wf.arange(0.0, stop)
    assert error.value.locations[0].file == __file__


@pytest.mark.parametrize("size", [2, 5, 6, 8, 9])
def test_a_range_up_to_a_difference_of_sizes(size: int) -> None:
    """Its size may come out negative: then the range is empty."""
    x = np.zeros(size, np.float32)
    wanted = np.arange(0, size - 5, 2)
    assert_array_equal(wf.compile(lambda x: wf.arange(0, wf.shape(x)[0] - 5, 2))(x), wanted)
    with wf.Graph().as_default(), wf.Session() as session:
        p = wf.placeholder(wf.float32, [None])
        assert_array_equal(session.run(wf.arange(0, wf.shape(p)[0] - 5, 2), {p: x}), wanted)
        assert session.run(wf.arange(p.shape[0] - 9), {p: x}).shape == (0,)
    assert wf.compile(lambda x: wf.arange(wf.shape(x)[0] - 9))(x).shape == (0,)


def test_sizes_of_narrow_integers_wrap_round_as_values_do() -> None:
    def build(x: wf.Tensor) -> wf.Tensor:
        return wf.zeros([wf.astype(wf.shape(x)[0], wf.uint8) + wf.asarray(250, dtype=wf.uint8)])

    x = np.zeros(300, np.float32)
    assert wf.compile(build)(x).shape == ((300 + 250) % 256,)
    with wf.Graph().as_default(), wf.Session() as session:
        p = wf.placeholder(wf.float32, [None])
        assert session.run(build(p), {p: x}).shape == ((300 + 250) % 256,)


@pytest.mark.parametrize("part", [0, 1])
def test_each_part_of_a_split_needs_sizes_that_add_up(part: int) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, y = wf.placeholder(wf.float32, [None]), wf.placeholder(wf.float32, [7])
        n = wf.placeholder(wf.int64, [])
        parts = [wf.split(x, [3, 4]), wf.split(x, [n, n + 1]), wf.split(y, [n, 4])]
        whole = np.arange(7, dtype=np.float32)
        for given in parts:
            found = session.run(given[part], {x: whole, y: whole, n: 3})
            assert_array_equal(found, (whole[:3], whole[3:])[part])
        for given, fed in zip(
            parts, ({x: whole[1:]}, {x: whole, n: 2}, {y: whole, n: 2}), strict=True
        ):
            with pytest.raises(wf.errors.ShapeError, match=r"has [67] elements, shape"):
                session.run(given[part], fed)


def test_a_size_beyond_int64() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="is 9223372036854775808") as error:
        wf.compile(lambda n: wf.zeros([n]))(np.uint64(2**63))
    assert error.value.locations[0].file == __file__


#: Functions of x, whose sizes are those of x: one native plan serves them all.
NATIVE: dict[str, Case] = {
    "zeros": (lambda n, x: wf.zeros((n, 3)), lambda n, x: np.zeros((n, 3))),
    "arange, down": (lambda n, x: wf.arange(n, -1, -2), lambda n, x: np.arange(n, -1, -2)),
    "slice": (lambda n, x: x[n // 3 : n // 2], lambda n, x: x[n // 3 : n // 2]),
    "slice, to beyond": (lambda n, x: x[2 : n + 5], lambda n, x: x[2 : n + 5]),
    "repeat": (lambda n, x: wf.repeat(x, n), lambda n, x: np.repeat(x, n)),
    "roll": (lambda n, x: wf.roll(x, n - 2), lambda n, x: np.roll(x, n - 2)),
    "slice, backwards": (lambda n, x: x[n // 2 :: -1], lambda n, x: x[n // 2 :: -1]),
    "slice, back from beyond": (lambda n, x: x[n * n : 1 : -2], lambda n, x: x[n * n : 1 : -2]),
    "tril": (
        lambda n, x: wf.tril(x[:, None] * x, k=n - 3), lambda n, x: np.tril(np.outer(x, x), n - 3)
    ),
    "diag": (lambda n, x: wf.diag(x, 1), lambda n, x: np.diag(x, 1)),
    "diagonal": (lambda n, x: wf.diagonal(x[:, None] * x), lambda n, x: x * x),
    "bincount": (
        lambda n, x: wf.tf1.bincount(wf.astype(x, wf.int32), length=n),
        lambda n, x: np.bincount(x.astype(int), minlength=n)[:n],
    ),
    "causal_mask": (lambda n, x: wf.nn.causal_mask(n), lambda n, x: np.tri(n) > 0),
    "permutation": (
        lambda n, x: wf.sort(wf.random.permutation(wf.random.key(0), n)), lambda n, x: np.arange(n)
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", NATIVE)
def test_sizes_of_an_argument_leave_a_function_native(name: str) -> None:
    build, truth = NATIVE[name]
    signature = [wf.TensorType(wf.float32, (None,))]
    compiled = wf.compile(lambda x: build(wf.shape(x)[0], x), input_signature=signature)
    for size in (6, 5, 1, 2, 4):
        assert_allclose(compiled(X[:size]), truth(size, X[:size]), rtol=1e-6)
    assert "dataflow executor" not in compiled.explain(X)


def test_a_shift_is_an_integer() -> None:
    x = np.ones((2, 2), np.float32)
    for call in (
        lambda x, n: wf.roll(x, n), lambda x, n: wf.tril(x, k=n), lambda x, n: wf.eye(2, k=n)
    ):  # fmt: skip
        for wrong in (np.float32(1), np.array([1, 1])):
            with pytest.raises(wf.errors.InvalidArgumentError, match="must be an integer") as error:
                wf.compile(call)(x, wrong)
            assert error.value.locations[0].file == __file__


def test_more_than_there_are_cannot_be_drawn() -> None:
    draw = wf.compile(lambda n: wf.random.choice(wf.random.key(0), 3, [n], replace=False))
    assert draw(np.int32(3)).shape == (3,)
    with pytest.raises(wf.errors.WeftError):
        draw(np.int32(4))


def test_compiled_functions() -> None:
    f = wf.compile(lambda n: (wf.zeros([n]), wf.arange(n) * 2, wf.tile(wf.ones(2), [n])))
    for n in (3, 0, 3):
        zeros, even, ones = f(n)
        assert_array_equal(zeros, np.zeros(n))
        assert_array_equal(even, np.arange(n) * 2)
        assert_array_equal(ones, np.ones(2 * n))


def test_the_op_in_text_and_interpreter() -> None:
    text = """graph @step(%n: i32[]) -> (i8[n,0], f32[n]) stage=traced {
  %0 = dynamic_size(%n) {what="rows", sizes=["n"]} : i8[n,0]
  %1 = constant() {value=f32[] 1.0} : f32[]
  %2 = broadcast_to(%1) {shape=[n]} : f32[n]
  return %0, %2
}
"""
    graph = parse_graph(text)
    assert print_graph(graph) == text
    holder, ones = interpret(graph, [np.int32(3)])
    assert holder.shape == (3, 0)
    assert_array_equal(ones, np.ones(3))
    with pytest.raises(wf.errors.InvalidArgumentError, match="rows is -2"):
        interpret(graph, [np.int32(-2)])
    with pytest.raises(wf.errors.ParseError, match="an integer without axes"):
        parse_graph(text.replace("%n: i32[]", "%n: f32[]"))
