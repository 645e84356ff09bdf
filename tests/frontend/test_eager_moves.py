"""Small eager calls that make, move or choose elements: NumPy's one call gives the bits, and the
errors, that the interpreter gives, in memory of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from eager_calls import interpreted, outcome

import weft as wf
from weft.frontend.eager import numpy_moves
from weft.frontend.eager.numpy_calls import SWITCH

DTYPES = ["bool", "int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]
RNG = np.random.default_rng(4)

Call = Callable[[wf.Tensor], Any]


def tensor(name: str, *shape: int) -> wf.Tensor:
    drawn = RNG.integers(0, 2 if name == "bool" else 99, shape)
    return wf.asarray(drawn.astype(getattr(wf, name).numpy))


I = wf.asarray([2, -1, 0])  # noqa: E741
MASK = wf.asarray([True, False, True])
OUTSIDE = wf.asarray([0, 7])

MOVES: dict[str, Call] = {
    "item": lambda x: x[1],
    "items": lambda x: x[-1, 2],
    "slice": lambda x: x[1:, ::-2],
    "new axis": lambda x: x[None, ..., 0],
    "nothing": lambda x: x[3:],
    "whole": lambda x: x[...],
    "array": lambda x: x[I],
    "arrays": lambda x: x[I, I],
    "apart": lambda x: x[I, :, None, MASK],
    "mask": lambda x: x[MASK],
    "array, slice": lambda x: x[:, I],
    "array, item": lambda x: x[0, I],
    "mask of all": lambda x: x[wf.astype(x, wf.bool)],
    "scalar array": lambda x: x[wf.asarray(1)],
    "unsigned": lambda x: x[wf.asarray([1, 0], dtype=wf.uint8)],
    "outside": lambda x: x[3],
    "array outside": lambda x: x[OUTSIDE],
    "float": lambda x: x[0.5],
    "too many": lambda x: x[0, 0, 0],
    "long mask": lambda x: x[wf.asarray([True] * 4)],
    "bool": lambda x: x[True],
    "numpy": lambda x: x[np.int64(1), np.array([0, 1])],
    "list": lambda x: x[[0, 1]],
    "two ellipses": lambda x: x[..., ...],
    "reshape": lambda x: wf.reshape(x, (-1, 2)),
    "reshape, same": lambda x: wf.reshape(x, (3, 4)),
    "reshape, list": lambda x: wf.reshape(x, [2, 6]),
    "reshape, int": lambda x: wf.reshape(x, 12),
    "reshape, wrong": lambda x: wf.reshape(x, (5, -1)),
    "reshape, two": lambda x: wf.reshape(x, (-1, -1)),
    "reshape, nothing": lambda x: wf.reshape(x[:0], (0, -1)),
    "reshape, below": lambda x: wf.reshape(x, (-3, -4)),
    "permute": lambda x: wf.permute_dims(x, (1, 0)),
    "permute, -": lambda x: wf.permute_dims(x, [-1, 0]),
    "permute, same": lambda x: wf.permute_dims(x, (0, 1)),
    "permute, few": lambda x: wf.permute_dims(x, (1,)),
    "permute, twice": lambda x: wf.permute_dims(x, (0, 0)),
    "permute, int": lambda x: wf.permute_dims(x, 0),  # type: ignore[arg-type]
    "T": lambda x: x.T,
    "mT": lambda x: x[None].mT,
    "moveaxis": lambda x: wf.moveaxis(x, 0, -1),
    "expand": lambda x: wf.expand_dims(x, (0, -1)),
    "expand, none": lambda x: wf.expand_dims(x, ()),
    "squeeze": lambda x: wf.squeeze(x[:1]),
    "squeeze, wrong": lambda x: wf.squeeze(x, 0),
    "flip": lambda x: wf.flip(x),
    "flip 1": lambda x: wf.flip(x, axis=-1),
    "flip, no axes": lambda x: wf.flip(x, axis=()),
    "flip twice": lambda x: wf.flip(x, axis=(0, 0)),
    "roll": lambda x: wf.roll(x, -5),
    "roll 1": lambda x: wf.roll(x, 2, axis=1),
    "rolls": lambda x: wf.roll(x, (1, 2), axis=(0, 1)),
    "rolls, wrong": lambda x: wf.roll(x, (1, 2), axis=0),
    "roll, axes": lambda x: wf.roll(x, 1, axis=(0, 1)),
    "roll far": lambda x: wf.roll(x, 1, axis=2),
    "repeat": lambda x: wf.repeat(x, 2),
    "repeat 1": lambda x: wf.repeat(x, 0, axis=1),
    "repeat, below": lambda x: wf.repeat(x, -1),
    "repeats": lambda x: wf.repeat(x, [1, 0, 2], axis=0),
    "repeat, bool": lambda x: wf.repeat(x, True),
    "tile": lambda x: wf.tile(x, 2),
    "tiles": lambda x: wf.tile(x, (2, 1, 0)),
    "tile, below": lambda x: wf.tile(x, -1),
    "tile, none": lambda x: wf.tile(x, ()),
    "tile, floats": lambda x: wf.tile(x, (1.0,)),  # type: ignore[arg-type]
    "concat": lambda x: wf.concat([x, x], axis=1),
    "concat, one": lambda x: wf.concat([x]),
    "concat, promotes": lambda x: (
        wf.concat([x, MASK[None, :, None][0, :, :1] + x[:, :0]], axis=1)
        if x.dtype.is_numeric
        else x
    ),
    "concat, all": lambda x: wf.concat([x, x[0]], axis=None),
    "concat, wrong": lambda x: wf.concat([x, x[:, :2]]),
    "concat far": lambda x: wf.concat([x, x], axis=2),
    "concat, scalars": lambda x: wf.concat([x[0, 0], x[0, 1]]),
    "stack": lambda x: wf.stack([x, x], axis=-1),
    "stack, wrong": lambda x: wf.stack([x, x[0]]),
    "take": lambda x: wf.take(x, I, axis=0),
    "take, vector": lambda x: wf.take(x[0], I),
    "take, many": lambda x: wf.take(x, I[:, None], axis=-1),
    "take, no axis": lambda x: wf.take(x, I),
    "take outside": lambda x: wf.take(x, OUTSIDE, axis=0),
    "take far": lambda x: wf.take(x, I, axis=2),
    "tril": lambda x: wf.tril(x, k=1),
    "triu": lambda x: wf.triu(x),
    "tril, vector": lambda x: wf.tril(x[0]),
    "eye": lambda x: wf.eye(3, 4, k=-1, dtype=x.dtype),
    "eye, far": lambda x: wf.eye(2, k=9, dtype=x.dtype),
    "zeros": lambda x: wf.zeros((2, 0, 1), dtype=x.dtype),
    "ones": lambda x: wf.ones_like(x),
    "full": lambda x: wf.full(3, x[0, 0]),
    "full, as": lambda x: wf.full_like(x, 1),
    "full, of a number": lambda x: wf.full((2, 1), 1.5, dtype=x.dtype),
    "full, of a bool": lambda x: wf.full((2, 1), True, dtype=x.dtype),
    "full, default": lambda x: wf.full(2, 7),
    "full, complex": lambda x: wf.full(2, 7j, dtype=wf.complex64),
    "full, wide": lambda x: wf.full((2,), 300, dtype=x.dtype),
    "isnan": wf.isnan,
    "isfinite": wf.isfinite,
    "arange": lambda x: wf.arange(5, -4, -3, dtype=x.dtype),
    "arange, floats": lambda x: wf.arange(0.0, 2.0, 0.3, dtype=x.dtype),
    "arange, down": lambda x: wf.arange(0, -1.0, -0.25),
    "all": wf.all,
    "any": lambda x: wf.any(x, axis=1),
    "any, kept": lambda x: wf.any(x, axis=(0, 1), keepdims=True),
    "all, none": lambda x: wf.all(x[:0], axis=0),
    "all far": lambda x: wf.all(x, axis=2),
    "argmax": wf.argmax,
    "argmin, kept": lambda x: wf.argmin(x, keepdims=True),
    "real": wf.real,
    "imag": wf.imag,
    "abs": wf.abs,
    "conj": wf.conj,
    "product": lambda x: x * x,
    "signs": wf.sign,
    "expm1": wf.expm1,
}


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SWITCH, "on", True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MOVES)
def test_as_the_interpreter(name: str, dtype: str) -> None:
    x = tensor(dtype, 3, 4)
    kept = np.array(x)
    call = lambda: MOVES[name](x)  # noqa: E731
    assert outcome(call) == interpreted(lambda: outcome(call))
    np.testing.assert_array_equal(np.asarray(x), kept)
    if isinstance(outcome(call)[0], wf.DType) and call() is not x:
        assert not np.shares_memory(np.asarray(call()), np.asarray(x))


@pytest.mark.parametrize("name", ["sign", "expm1", "sqrt", "exp", "abs", "real", "imag", "conj"])
def test_complex_numbers_at_borders(name: str) -> None:
    borders = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]
    z = wf.asarray(np.array([complex(a, b) for a in borders for b in borders], np.complex64))
    function = getattr(wf, name)
    got, wanted = function(z), interpreted(lambda: function(z))
    np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_unstack(axis: int) -> None:
    for dtype in DTYPES:
        x = tensor(dtype, 3, 4)
        parts, wanted = wf.unstack(x, axis=axis), interpreted(partial(wf.unstack, x, axis=axis))
        for part, other in zip(parts, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(other), strict=True)
        assert not any(np.shares_memory(p, x) for p in parts)
    assert [int(p) for p in wf.unstack(wf.asarray([5, 6]))] == [5, 6]
    with pytest.raises(wf.errors.InvalidArgumentError, match="axis 2 is out of range"):
        wf.unstack(x, axis=2)


def test_nonzero() -> None:
    for dtype in DTYPES:
        x = tensor(dtype, 3, 4)
        for found, wanted in zip(wf.nonzero(x), interpreted(partial(wf.nonzero, x)), strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted), strict=True)
    assert wf.nonzero(x[:0])[1].shape == (0,)
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least one axis"):
        wf.nonzero(wf.asarray(1))


def test_weak_and_traced_tensors_and_strings_go_the_long_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part of a weak tensor is weak; of a traced one an op."""
    weak = wf.where(wf.asarray([True, False]), 1.0, 2.0)
    assert weak.weak
    assert weak[0].weak
    assert wf.asarray(["a", "b"])[1].item() == b"b"
    assert [s.item() for s in wf.unstack(wf.asarray(["a", "b"]))] == [b"a", b"b"]
    ops = [op.name for op in wf.compile(lambda x: wf.stack([x[0], x[1]])).trace(np.ones(2)).ops]
    assert "slice" in ops
    monkeypatch.setattr(numpy_moves, "tensor_of", None)  # whoever calls it falls
    with wf.device("/cpu:0"):
        assert wf.zeros(2)[0] == 0
    graph = wf.Graph()
    with graph.as_default():
        assert wf.flip(wf.ones(3)).ndim == 1
