"""Blocks of space, response normalisation, pooling with places and in three axes, grouped and
transposed convolutions: against loops over elements; gradients against differences."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from shares import every
from slope_checks import check, check_gradient

import weft as wf
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError

Array = np.ndarray[Any, Any]
N = wf.nn


# --------------------------------------------------------------------------------------- blocks
@examples(36, deadline=None)
@given(st.integers(0, 2), *[st.integers(1, 3)] * 4, st.booleans(), st.sampled_from("fibu"))
def test_depth(
    batch: int, rows: int, columns: int, block: int, channels: int, first: bool, kind: str
) -> None:
    shape = (batch, rows * block, columns * block, channels)
    dtype = {"f": "f4", "i": "i8", "b": "?", "u": "u1"}[kind]
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    made = np.zeros((batch, rows, columns, block * block * channels), dtype)
    for n, r, c, i, j, k in itertools.product(
        *map(range, (batch, rows, columns, block, block, channels))
    ):
        made[n, r, c, (i * block + j) * channels + k] = x[n, r * block + i, c * block + j, k]
    how = {"data_format": "NCHW"} if first else {}
    x, made = (np.moveaxis(v, -1, 1) if first else v for v in (x, made))
    check(lambda x: N.space_to_depth(x, block, **how), (x,), made)
    check(lambda x: N.depth_to_space(x, block, **how), (made,), x)


@st.composite
def blocked(draw: st.DrawFn) -> tuple[Array, list[int], list[list[int]]]:
    """An array, blocks and paddings that fit it."""
    axes = draw(st.integers(0, 3))
    block = [draw(st.integers(1, 3)) for _ in range(axes)]
    pairs, sizes = [], []
    for b in block:
        many, before = draw(st.integers(1, 3)) * b, draw(st.integers(0, 2))
        after = draw(st.integers(0, 2))
        while many - before - after < 0:
            many += b
        pairs.append([before, after])
        sizes.append(many - before - after)
    shape = (draw(st.integers(0, 2)), *sizes, *draw(st.lists(st.integers(1, 2), max_size=2)))
    return np.random.default_rng(0).integers(1, 99, shape), block, pairs


@examples(36, deadline=None)
@given(blocked())
def test_batch(case: tuple[Array, list[int], list[list[int]]]) -> None:
    x, block, pairs = case
    m, batch = len(block), x.shape[0]
    wide = np.pad(x, [(0, 0), *pairs, *[(0, 0)] * (x.ndim - 1 - m)]) if m else x
    cells = [n // b for n, b in zip(wide.shape[1:], block, strict=False)]
    made = np.zeros((int(np.prod(block)) * batch, *cells, *x.shape[m + 1 :]), x.dtype)
    places = list(itertools.product(*map(range, block)))
    for number, place in enumerate(places):
        part = wide[(slice(None), *(slice(p, None, b) for p, b in zip(place, block, strict=True)))]
        made[number * batch : (number + 1) * batch] = part
    check(lambda x: N.space_to_batch_nd(x, block, np.reshape(pairs, (m, 2)).astype(int)),
          (x,), made)  # fmt: skip
    check(lambda x: N.batch_to_space_nd(x, block, np.reshape(pairs, (m, 2)).astype(int)),
          (made,), x)  # fmt: skip


def test_a_convolution_with_holes_goes_by_the_batch() -> None:
    """What space_to_batch_nd is for: a dilated convolution by one that is not."""
    rng = np.random.default_rng(1)
    x, kernel = rng.random((2, 8, 6, 3)), rng.random((3, 3, 3, 4))
    wide = N.space_to_batch_nd(x, [2, 2], [[2, 2], [2, 2]])
    made = N.batch_to_space_nd(N.conv2d(wide, kernel), [2, 2], [[0, 0], [0, 0]])
    np.testing.assert_allclose(made, N.conv2d(x, kernel, padding="SAME", dilations=2), rtol=1e-12)


def test_blocks_of_a_batch_that_a_feed_decides() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, 4, 4, 1])
        made = [
            N.space_to_depth(x, 2),
            N.batch_to_space_nd(N.space_to_batch_nd(x, [2, 2], [[0, 0]] * 2), [2, 2], [[0, 0]] * 2),
        ]
        for batch in (1, 3):
            held = np.random.default_rng(batch).random((batch, 4, 4, 1)).astype(np.float32)
            deep, same = session.run(made, {x: held})
            np.testing.assert_array_equal(same, held)
            np.testing.assert_array_equal(deep[..., 1], held[:, ::2, 1::2, 0])


def test_gradients_of_blocks() -> None:
    x = np.random.default_rng(0).random((2, 4, 6, 4))
    check_gradient(lambda x: N.space_to_depth(x, 2) ** 2, x)
    check_gradient(lambda x: N.depth_to_space(x, 2, data_format="NHWC") ** 2, x)
    check_gradient(lambda x: N.space_to_batch_nd(x, [2, 3], [[1, 1], [0, 0]]) ** 2, x)
    check_gradient(lambda x: N.batch_to_space_nd(x, [2], [[1, 2]]) ** 2, x)


def test_what_blocks_refuse() -> None:
    x = np.ones((1, 3, 4, 2))
    with pytest.raises(ShapeError, match=r"wf\.nn\.space_to_depth: f64\[1,3,4,2\] is not cut"):
        N.space_to_depth(x, 2)
    with pytest.raises(ShapeError, match=r"the channels of f64.* are not 2 x 2 equal parts"):
        N.depth_to_space(x, 2)
    with pytest.raises(InvalidArgumentError, match="block_size must be at least 1"):
        N.depth_to_space(x, 0)
    with pytest.raises(ShapeError, match=r"padded sizes \[3\] are not cut into blocks of \[2\]"):
        N.space_to_batch_nd(x, [2], [[0, 0]])
    with pytest.raises(InvalidArgumentError, match="paddings must be 1 pairs of integers"):
        N.space_to_batch_nd(x, [2], [0, 0])
    with pytest.raises(ShapeError, match="is not a multiple of 2"):
        N.batch_to_space_nd(x, [2], [[0, 0]])
    for call in (N.space_to_batch_nd, N.batch_to_space_nd):
        with pytest.raises(ShapeError, match=r"f64\[2\] must have 1 spatial axes of known sizes"):
            call(np.ones(2), [2], [[0, 0]])
    with pytest.raises(ShapeError, match="cut more than 6 off"):
        N.batch_to_space_nd(np.ones((2, 3)), [2], [[5, 2]])


# --------------------------------------------------------------------------------- normalisation
@pytest.mark.parametrize("radius", every(2, [1, 0, 9, 2]))
def test_response_normalization(radius: int) -> None:
    """TensorFlow's formula by element."""
    x = np.random.default_rng(0).normal(size=(2, 3, 7))
    bias, alpha, beta = 1.5, 0.3, 0.75
    expected = np.empty_like(x)
    for n, w, c in np.ndindex(*x.shape):
        total = sum(x[n, w, k] ** 2 for k in range(7) if abs(k - c) <= radius)
        expected[n, w, c] = x[n, w, c] / (bias + alpha * total) ** beta
    f = lambda x: N.local_response_normalization(x, radius, bias, alpha, beta)  # noqa: E731
    check(f, (x,), expected, 1e-12)
    check_gradient(f, x)
    hessian = wf.hessian(lambda x: wf.sum(f(x)))(x[0, 0])
    np.testing.assert_allclose(hessian, np.asarray(hessian).T, atol=1e-12)
    first = lambda x: N.lrn(x, radius, bias, alpha, beta, axis=1)  # noqa: E731
    check(first, (np.moveaxis(x, -1, 1),), np.moveaxis(expected, -1, 1), 1e-12)
    np.testing.assert_allclose(wf.vmap(f)(x), expected, rtol=1e-12)


def test_response_normalization_of_other_numbers() -> None:
    large = np.array([200.0, 0, 0, 1], np.float16)  # its square is beyond float16
    got = N.lrn(large, 1, bias=1.0)
    assert got.dtype is wf.float16
    np.testing.assert_allclose(got, [1, 0, 0, 2**-0.5], rtol=1e-3)
    held = N.lrn([np.inf, 0.0, 0.0, 1.0], 1).numpy()
    assert np.isnan(held[0])
    assert held[3] == np.float32(2**-0.5)  # an infinity stays with its neighbours
    assert N.lrn([1, 2]).dtype is wf.float32
    with pytest.raises(InvalidArgumentError, match="depth_radius must not be negative"):
        N.lrn(large, -1)
    with pytest.raises(TypeRuleError, match="takes real numbers, got complex64"):
        N.lrn(wf.asarray([1j]))


# --------------------------------------------------------------------------------------- pooling
@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("dtype", "first"), every(3, itertools.product(["f4", "i8", "f2", "u8", "u1"], [False, True]))
)
def test_places_of_maxima(dtype: str, first: bool) -> None:
    x = np.random.default_rng(0).integers(0, 9, (2, 5, 6, 3)).astype(dtype)
    if dtype in ("i8", "u8"):
        x += np.array(2**60, dtype)  # float64 would not tell them apart
    strides, window, before = (2, 1), (3, 2), (1, 0)  # SAME
    out = (3, 6)
    best, at = np.zeros((2, *out, 3), dtype), np.zeros((2, *out, 3), "i8")
    for n, r, c, k in np.ndindex(*best.shape):
        seen = []
        for i, j in itertools.product(*map(range, window)):
            row, column = r * strides[0] + i - before[0], c * strides[1] + j - before[1]
            if 0 <= row < 5 and 0 <= column < 6:
                seen.append((x[n, row, column, k], (row * 6 + column) * 3 + k))
        top = max(v for v, _ in seen)
        best[n, r, c, k], at[n, r, c, k] = next((v, p) for v, p in seen if v == top)
    given = np.moveaxis(x, -1, 1) if first else x
    how: Any = {"data_format": "NCHW"} if first else {}
    for batch in (False, True):
        found = at + (np.arange(2).reshape(2, 1, 1, 1) * 90 if batch else 0)
        both = [np.moveaxis(v, -1, 1) if first else v for v in (best, found)]
        for part, expected in enumerate(both):
            check(lambda x, p=part, b=batch: N.max_pool_with_argmax(
                x, window, strides, "SAME", include_batch_in_index=b, **how
            )[p], (given,), expected)  # fmt: skip


def test_gradients_of_pooling() -> None:
    """In three axes, with strides, padding, dilation and both layouts."""
    rng = np.random.default_rng(0)
    x = rng.permutation(np.arange(2 * 5 * 4 * 6 * 2.0)).reshape(2, 5, 4, 6, 2)
    check_gradient(lambda x: N.max_pool3d(x, 2), x)
    check_gradient(lambda x: N.max_pool3d(x, (2, 3, 2), 1, "SAME", dilations=2), x)
    check_gradient(lambda x: N.avg_pool3d(x, 3, 2, "SAME"), x)
    check_gradient(
        lambda x: N.avg_pool3d(x, 2, 1, 1, data_format="NCDHW", count_include_pad=True),
        np.moveaxis(x, -1, 1),
    )
    check_gradient(lambda x: N.max_pool1d(x, 2, 1, "SAME", dilations=2), x[0, 0])
    check_gradient(lambda x: N.avg_pool2d(x, 2, dilations=2), x[0])
    check_gradient(lambda x: N.max_pool_with_argmax(x, 2).values, x[0])


# ---------------------------------------------------------------------------------- convolutions
@pytest.mark.parametrize(
    ("axes", "first"),
    every(2, [(1, True), (2, True), (2, False), (1, False), (3, True), (3, False)]),
)
def test_gradients_of_grouped_and_transposed_convolutions(axes: int, first: bool) -> None:
    """Values are those of test_composed_truth.py; here that each layout has its gradients."""
    rng = np.random.default_rng(axes)
    x, kernel = rng.random((2, *(5, 4, 6)[:axes], 4)), rng.random((*(3, 2, 2)[:axes], 2, 6))
    how: Any = {"groups": 2, "dilations": 2, "padding": "SAME"}
    if first:
        how["data_format"] = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[axes]
        x = np.moveaxis(x, -1, 1)
    conv, back = getattr(N, f"conv{axes}d"), getattr(N, f"conv{axes}d_transpose")
    check_gradient(lambda x, w: conv(x, w, **how), x, kernel)
    y = rng.random(conv(x, kernel, **how).shape)
    sizes = x.shape[2:] if first else x.shape[1:-1]
    check_gradient(lambda y, w: back(y, w, sizes, **how), y, kernel)
    # the adjoint: <conv(x), y> = <x, back(y)>
    left = float(np.sum(conv(x, kernel, **how).numpy() * y))
    right = float(np.sum(back(y, kernel, sizes, **how).numpy() * x))
    assert left == pytest.approx(right)
