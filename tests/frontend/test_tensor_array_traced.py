"""TensorArray as a value: in compiled functions, graphs and the bodies of loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

X = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((4, 4)).astype(np.float32) / 2


def rnn(x: Any, w: Any) -> Any:
    """TensorFlow 1's dynamic RNN."""
    inputs = wf.TensorArray(wf.float32, x.shape[0]).unstack(x)
    outputs = wf.TensorArray(wf.float32, x.shape[0], element_shape=[4])

    def body(i: Any, h: Any, out: Any) -> Any:
        h = wf.tanh(w @ h + inputs.read(i))
        return i + 1, h, out.write(i, h)

    start = (0, wf.zeros([4]), outputs)
    _, _, outputs = wf.while_loop(lambda i, h, out: i < x.shape[0], body, start)
    return outputs.stack()


def rnn_by_scan(x: Any, w: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = wf.tanh(w @ h + row)
        return h, h

    return wf.scan(step, wf.zeros([4]), x)[1]


def test_a_dynamic_rnn_compiles_and_has_gradients_of_second_order() -> None:
    np.testing.assert_allclose(wf.compile(rnn)(X, W), wf.compile(rnn_by_scan)(X, W), rtol=1e-6)

    def loss(f: Any) -> Any:
        return lambda x, w: wf.sum(wf.square(f(x, w)))

    for order in range(2):

        def derived(f: Any, order: int = order) -> Any:
            g = wf.grad(loss(f), argnums=(0, 1))
            if not order:
                return g
            return wf.grad(
                lambda x, w: wf.sum(g(x, w)[0] * 0.5) + wf.sum(wf.sin(g(x, w)[1])), (0, 1)
            )

        got = wf.compile(derived(rnn))(X, W)
        want = wf.compile(derived(rnn_by_scan))(X, W)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_the_loop_writes_in_place() -> None:
    rows = np.ones((1000, 64), np.float32)

    @wf.compile
    def f(x: Any) -> Any:
        out = wf.TensorArray(wf.float32, 1000, element_shape=[64])
        step = lambda i, t: (i + 1, t.write(i, x[i] * 2.0))  # noqa: E731
        return wf.while_loop(lambda i, t: i < 1000, step, (0, out))[1].stack()

    assert np.array_equal(f(rows), 2 * rows)
    moved = [
        line for line in f.explain(rows).splitlines() if line.strip().startswith("copy 256000")
    ]
    assert len(moved) <= 1  # the zeros into the result, never once for each iteration


def test_in_a_graph_with_a_size_that_the_feed_decides() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, ["n", 4], name="x")
        size = x.shape[0]
        out = wf.TensorArray(wf.float32, size, element_shape=[4])
        body = lambda i, t: (i + 1, t.write(i, x[i] + 1.0))  # noqa: E731
        _, out = wf.while_loop(lambda i, t: i < size, body, (0, out))
        fetches = [out.stack(), out.size(), out.read(1), out.gather([2, 0])]
        with wf.Session() as session:
            for n in (6, 3):
                whole, count, one, some = session.run(fetches, {x: X[:n]})
                assert np.array_equal(whole, X[:n] + 1)
                assert count == n
                assert np.array_equal(one, X[1] + 1)
                assert np.array_equal(some, X[[2, 0]] + 1)
            got = session.run(out, {x: X})
            assert isinstance(got, wf.TensorArray)
            assert np.array_equal(got.stack(), X + 1)


def test_every_method() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        ta = wf.TensorArray(wf.float32, 3)
        assert ta.element_shape is None
        ta = ta.write(0, x[0])
        assert (ta.dtype, ta.element_shape, ta.dynamic_size) == (wf.float32, (4,), False)
        other = wf.TensorArray(wf.float32, 3).scatter([2, 0], x[:2])
        cut = wf.TensorArray(wf.float32, 3).split(x, [2, 2, 2])
        ta.close()
        return ta.identity().stack(), other.stack(), cut.read(1), cut.concat(), other.size()

    first, other, part, joined, size = f(X)
    zero = np.zeros(4, np.float32)
    assert np.array_equal(first, [X[0], zero, zero])
    assert np.array_equal(other, [X[1], zero, X[0]])
    assert np.array_equal(part, X[2:4])
    assert np.array_equal(joined, X)
    assert size == 3
    assert size.dtype == wf.int32


def test_through_branches_and_scans_and_arguments() -> None:
    ta = wf.TensorArray(wf.float32, 2, element_shape=[], clear_after_read=False).write(0, 5.0)

    @wf.compile
    def f(ta: Any, up: Any) -> Any:
        ta = wf.cond(up, lambda t: t.write(1, 1.0), lambda t: t, ta)
        return wf.scan(lambda t, x: (t.write(1, t.read(1) + x), t.read(1)), ta, wf.ones([3]))

    ended, seen = f(ta, np.array(True))
    assert ended.stack().tolist() == [5, 4]
    assert seen.tolist() == [1, 2, 3]
    assert f(ta, np.array(False))[0].stack().tolist() == [5, 3]
    assert ta.read(0) == 5  # the host's array is as it was


def test_eager_loops_take_the_arrays_of_the_host() -> None:
    ta = wf.TensorArray(wf.int64, 3, element_shape=[])
    _, ta = wf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.write(i, i * i)), (0, ta))
    assert ta.stack().tolist() == [0, 1, 4]
    with pytest.raises(wf.errors.InvalidArgumentError, match="element_shape"):
        wf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t), (0, wf.TensorArray(wf.int64, 3)))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: wf.TensorArray(wf.float32, -1), "InvalidArgument", "size"),
        (lambda: array().write(0, 1.0).write(0, 2.0), "InvalidArgument", "written already"),
        (lambda: array().write(2, 1.0), "InvalidArgument", "out of range"),
        (lambda: array().write(-1, 1.0), "InvalidArgument", "out of range"),
        (lambda: array().read(7), "InvalidArgument", "out of range"),
        (lambda: array().write([0], 1.0), "InvalidArgument", "index has shape"),
        (lambda: array().read([0]), "InvalidArgument", "index has shape"),
        (lambda: array().write(0, [1.0, 2.0]), "Shape", "its elements have shape"),
        (lambda: array().write(0, wf.ones([], dtype=wf.int64)), "TypeRule", "astype"),
        (lambda: wf.TensorArray(wf.float32, 2).stack(), "InvalidArgument", "nothing has been"),
        (lambda: array().unstack([1.0, 2.0, 3.0]), "InvalidArgument", "no 2 rows"),
        (lambda: array().write(0, 1.0).unstack([1.0, 2.0]), "InvalidArgument", "written already"),
        (lambda: array().scatter([0, 0], [1.0, 2.0]), "InvalidArgument", "twice"),
        (lambda: array().scatter([0], [1.0, 2.0]), "InvalidArgument", "indices for rows"),
        (lambda: array().split([1.0, 2.0, 3.0], [1, 2]), "Unsupported", "lengths must be equal"),
        (lambda: array().split([1.0, 2.0, 3.0], [1, 1]), "InvalidArgument", "into"),
        (lambda: array().concat(), "InvalidArgument", "no axes"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_users_line(
    make: Any, error: str, message: str
) -> None:
    @wf.compile
    def f() -> Any:
        made = make()
        return made if isinstance(made, wf.Tensor) else made.stack()

    with pytest.raises(getattr(wf.errors, f"{error}Error"), match=message) as info:
        f()
    assert "test_tensor_array_traced.py" in str(info.value)


def array() -> wf.TensorArray:
    return wf.TensorArray(wf.float32, 2, element_shape=[])


def test_an_index_out_of_range_at_run_time() -> None:
    @wf.compile
    def f(i: Any) -> Any:
        return array().write(i, 1.0).stack()

    assert f(np.array(1)).tolist() == [0, 1]
    with pytest.raises(wf.errors.WeftError, match="2"):
        f(np.array(2))


@pytest.mark.parametrize("index", [-1, -300, 300])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_a_negative_index_does_not_count_from_the_end(index: int, dtype: Any) -> None:
    rows = np.arange(300, dtype=np.float32)

    def there() -> wf.TensorArray:
        return wf.TensorArray(wf.float32, 300, element_shape=[])

    uses = (
        lambda i: there().write(i, 1.0).stack(),
        lambda i: there().unstack(rows).read(i),
        lambda i: there().unstack(rows).gather(wf.reshape(i, [1])),
        lambda i: there().scatter(wf.reshape(i, [1]), np.ones(1, np.float32)).stack(),
    )
    for use in uses:
        compiled = wf.compile(use)
        assert np.asarray(compiled(dtype(299))).size
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"TensorArray|out of bounds"):
            compiled(dtype(index))


def test_a_shape_known_in_part() -> None:
    def f(x: Any) -> Any:
        return wf.TensorArray(wf.float32, 2, element_shape=[None, 2]).write(1, x).stack()

    assert wf.compile(f)(np.ones((3, 2), np.float32)).shape == (2, 3, 2)
    with pytest.raises(wf.errors.ShapeError, match=r"\[2,3\].*\[\?,2\]"):
        wf.compile(f)(np.ones((2, 3), np.float32))
