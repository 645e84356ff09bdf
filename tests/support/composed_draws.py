"""What the rows of composed_truth.py and composed_nn_truth.py are made of: a call, its inputs, what
it must give; random shapes, axes and numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np

import weft as wf

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Trial:
    """One call. inputs: arrays, which are arguments of the compiled function. expected: in float64
    where it is floating, as a list for several results. dtype: that of the result; None: not
    looked at. tolerance: in its epsilons, of `scale`: what the largest number on the way is."""

    call: Callable[..., Any]
    inputs: Sequence[Any]
    expected: Any
    dtype: Any = None
    tolerance: float = 8.0
    scale: float | None = None
    compiled: bool = True


Row = Callable[[Draw], Trial]
FLOATS = ("f8", "f4", "f2")
INTS = ("i8", "i4", "i1", "u1")


class Drawn:
    """Random arguments, from hypothesis."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def one(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def int(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def bool(self) -> bool:
        return bool(self.draw(st.booleans()))

    def float(self, low: float, high: float) -> float:
        return float(np.round(self.rng.uniform(low, high), 3))

    def shape(self, low: int = 0, high: int = 3, empty: bool = True) -> tuple[int, ...]:
        sizes = st.sampled_from([1, 2, 3, 4, 5, 0] if empty else [1, 2, 3, 4, 5])
        return tuple(self.draw(st.lists(sizes, min_size=low, max_size=high)))

    def floats(self, shape: Sequence[int], dtype: Any = "f8", ties: bool = False) -> Array:
        """Numbers around 1; ties: with equal ones, zeros of both signs among them."""
        x = self.rng.normal(size=shape) * self.one([0.5, 1, 3])
        x = np.round(x * 2) / 2 if ties else x
        return np.asarray(x).astype(dtype)

    def special(self, shape: Sequence[int], dtype: Any = "f8") -> Array:
        """With infinities and NaN among them."""
        x = np.asarray(self.floats(shape, dtype, ties=True))
        some = self.rng.random(shape) < 0.3
        values = self.rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0], shape).astype(dtype)
        return np.where(some, values, x).astype(dtype)

    def ints(self, shape: Sequence[int], dtype: Any = "i8", low: int = -9, high: int = 9) -> Array:
        low = max(low, 0) if np.dtype(dtype).kind == "u" else low
        return np.asarray(self.rng.integers(low, high + 1, shape)).astype(dtype)

    def bools(self, shape: Sequence[int]) -> Array:
        return np.asarray(self.rng.random(shape) < 0.5)

    def numbers(self, shape: Sequence[int], dtypes: Sequence[str] = ("f8", "f4", "i8")) -> Array:
        dtype = self.one(dtypes)
        if dtype == "?":
            return self.bools(shape)
        if dtype[0] == "c":
            return (self.floats(shape) + 1j * self.floats(shape)).astype(dtype)
        return self.ints(shape, dtype) if dtype[0] in "iu" else self.floats(shape, dtype)

    def axis(self, rank: int) -> int:
        return self.int(-rank, rank - 1)

    def axes(self, rank: int) -> Any:
        """As the argument of a reduction: None, one, several."""
        if not rank or self.int(0, 3) == 0:
            return self.one([None, ()]) if rank else None
        chosen = tuple(self.draw(st.permutations(range(rank)))[: self.int(1, rank)])
        chosen = tuple(a - rank * self.int(0, 1) for a in chosen)
        return chosen[0] if len(chosen) == 1 and self.bool() else chosen

    def order(self, rank: int) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(rank))))

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        kept = [1 if self.int(0, 3) == 0 else d for d in shape]
        return tuple(kept[self.int(0, len(kept)) :] if self.int(0, 2) == 0 else kept)


def row(make: Callable[[Drawn], Trial]) -> Row:
    """A row of the table from a function of random arguments."""

    @functools.wraps(make)
    def drawn(draw: Draw) -> Trial:
        return make(Drawn(draw))

    return drawn


def named(make: Callable[[Drawn, str], Trial], name: str) -> Callable[[Drawn], Trial]:
    """The function of a row that is the same for several names, for one of them."""

    def of(d: Drawn) -> Trial:
        return make(d, name)

    return of


def wide(x: Array) -> Array:
    """In float64 (complex128), if it is floating."""
    x = np.asarray(x)
    return x.astype("c16" if x.dtype.kind == "c" else "f8") if x.dtype.kind in "fcV" else x


def as_float(dtype: Any) -> Any:
    """The dtype of a floating result: integers and bools give float32."""
    return np.dtype(dtype) if np.dtype(dtype).kind in "fc" else np.dtype("f4")


def check(got: Any, trial: Trial, how: str) -> None:
    """`got` is what the trial expects."""
    several = isinstance(trial.expected, (list, tuple))
    left = list(got) if several else [got]
    right = list(trial.expected) if several else [trial.expected]
    assert len(left) == len(right), how
    dtypes = trial.dtype if isinstance(trial.dtype, (list, tuple)) else [trial.dtype] * len(right)
    for a, b, dtype in zip(left, right, dtypes, strict=True):
        y, truth = np.asarray(a), np.asarray(b)
        assert y.shape == truth.shape, f"{how}: shape {y.shape}, not {truth.shape}"
        if dtype is not None:
            assert y.dtype == np.dtype(dtype), f"{how}: {y.dtype}, not {np.dtype(dtype)}"
        if y.dtype.kind not in "fcV" or truth.dtype.kind not in "fc":
            np.testing.assert_array_equal(y, truth, err_msg=how)
            continue
        eps = float(np.finfo(y.dtype).eps)
        finite = np.abs(truth[np.isfinite(truth)])
        scale = max(float(finite.max(initial=0.0)), trial.scale or 0.0)
        with np.errstate(over="ignore"):
            rounded = truth.astype(y.dtype)
        np.testing.assert_allclose(
            wide(y), wide(rounded), rtol=trial.tolerance * eps,
            atol=trial.tolerance * eps * scale + float(np.finfo(y.dtype).tiny) * trial.tolerance,
            err_msg=how,
        )  # fmt: skip


def run(trial: Trial, compiled: bool) -> None:
    """The call eagerly, and compiled."""
    with np.errstate(all="ignore"):
        check(trial.call(*trial.inputs), trial, "eagerly")
        if compiled and trial.compiled:
            made = wf.compile(lambda *xs: trial.call(*xs))
            check(made(*trial.inputs), trial, "compiled")
