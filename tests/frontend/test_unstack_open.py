"""`wf.unstack` and `wf.image.random_crop` of tensors whose sizes only a run knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

E = wf.errors
F32 = np.float32


def test_num_is_checked_at_once_where_the_size_is_known() -> None:
    x = np.arange(6, dtype=F32).reshape(2, 3)
    parts = wf.unstack(x, axis=1, num=3)
    np.testing.assert_array_equal([p.numpy() for p in parts], x.T)
    assert wf.unstack(np.ones((0, 2), F32), num=0) == ()
    for num in (2, 4, 0, -1):
        with pytest.raises(E.ShapeError, match=rf"num={num}, but axis 1 of shape \[2,3\]"):
            wf.unstack(x, axis=1, num=num)
    with pytest.raises(E.WeftError, match="num"):
        wf.unstack(x, num="2")  # type: ignore[arg-type]
    with pytest.raises(E.ShapeError, match="num=5"):
        wf.compile(lambda x: wf.unstack(x, num=5))(x)
    assert len(wf.compile(lambda x: wf.unstack(x, num=2))(x)) == 2


@pytest.mark.parametrize("axis", [0, -1])
def test_num_where_a_run_knows_the_size(axis: int) -> None:
    kind = wf.TensorType(wf.float32, (None, None))
    plain = wf.compile(lambda x: wf.unstack(x, axis=axis), input_signature=[kind])
    with pytest.raises(E.UnsupportedError, match=r"(?s)cannot infer num.*give num=") as caught:
        plain(np.ones((2, 2), F32))
    assert __file__ in str(caught.value)
    three = wf.compile(
        lambda x: [2.0 * row for row in wf.unstack(x, axis=axis, num=3)], input_signature=[kind]
    )
    for other in (1, 4, 0, 7):
        shape = (3, other) if axis == 0 else (other, 3)
        x = np.random.default_rng(0).standard_normal(shape).astype(F32)
        for row, wanted in zip(three(x), np.moveaxis(x, axis, 0), strict=True):
            np.testing.assert_array_equal(row.numpy(), 2 * wanted)
        with pytest.raises(E.ShapeError):
            three(np.ones((4, 4), F32))


def test_num_in_a_graph() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, 2])
        chosen = x[x[:, 0] > 0]  # how many rows, values say
        with pytest.raises(E.UnsupportedError, match="cannot infer num"):
            wf.unstack(chosen)
        first, second = wf.unstack(chosen, num=2)
        for t in (x, chosen):
            assert [r.shape for r in wf.unstack(t, num=2)] == [(2,), (2,)]
        made = session.run([first, second], {x: [[-1, 0], [1, 2], [3, 4]]})
        np.testing.assert_array_equal(made, [[1, 2], [3, 4]])
        with pytest.raises(E.ShapeError):
            session.run(first, {x: [[1, 0], [1, 2], [3, 4]]})


def test_gradients() -> None:
    def loss(x: wf.Tensor) -> wf.Tensor:
        first, second = wf.unstack(x, num=2)
        return wf.sum(first * second)

    x = np.array([[1, 2, 3], [4, 5, 6]], F32)
    kind = wf.TensorType(wf.float32, (None, None))
    found = wf.compile(wf.grad(loss), input_signature=[kind])(x)
    np.testing.assert_array_equal(found.numpy(), x[::-1])


# ------------------------------------------------------------------------------------ random_crop
_SIZED: Any = wf.compile(
    lambda key, x: wf.image.random_crop(key, x, [3, 2]),
    input_signature=[
        wf.TensorType(wf.uint32, (2,)),
        wf.TensorType(wf.float32, ("batch", None, None, 1)),
    ],
)


@examples(30)
@given(st.integers(0, 3), st.integers(3, 9), st.integers(2, 9), st.integers(0, 2**31))
def test_crops_are_those_of_known_sizes(batch: int, rows: int, columns: int, seed: int) -> None:
    x = np.arange(batch * rows * columns, dtype=F32).reshape(batch, rows, columns, 1)
    wanted = wf.image.random_crop(wf.random.key(seed), x, [3, 2])
    made = _SIZED(wf.random.key(seed), x)
    assert made.shape == (batch, 3, 2, 1)
    np.testing.assert_array_equal(made.numpy(), wanted.numpy())


def test_images_that_are_too_small() -> None:
    for shape in ((1, 2, 5, 1), (1, 3, 1, 1), (1, 0, 4, 1)):
        with pytest.raises(E.InvalidArgumentError, match="out of bounds"):
            _SIZED(wf.random.key(0), np.ones(shape, F32))
    with pytest.raises(E.InvalidArgumentError, match=r"size \[3, 2\] is not within"):
        wf.image.random_crop(wf.random.key(0), np.ones((2, 5, 1), F32), [3, 2])
    with pytest.raises(E.InvalidArgumentError, match=r"size \[-1, 2\] is not within"):
        wf.image.random_crop(wf.random.key(0), np.ones((2, 5, 1), F32), [-1, 2])


def test_crops_in_a_graph_reach_every_place() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, None, 3])
        keys = [wf.random.key(n) for n in range(40)]
        crops = [wf.image.random_crop(k, x, [2, 2, 3])[0, 0, 0] for k in keys]
        found = session.run(crops, {x: np.arange(4 * 3 * 3).reshape(4, 3, 3)})
        assert {int(v) for v in found} == {3 * (3 * i + j) for i in range(3) for j in range(2)}
