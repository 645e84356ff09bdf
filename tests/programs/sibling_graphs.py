"""Random graphs of nests that read the same values but little of each other (a hypothesis
strategy), and the fusion of siblings without its bounds of size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from graphs import Case
from hypothesis import strategies as st

from weft.ir.dtypes import DType
from weft.ir.graph import Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion import horizontal

Array = np.ndarray[Any, Any]
Draw = Any

SIZES = (2, 3, 1, 5, 17, 40)
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
UNARY_FLOAT = ("exp", "tanh", "square", "negative", "sigmoid", "abs")
UNARY_INT = ("negative", "square", "abs", "sign")


@contextmanager
def of_any_size() -> Iterator[None]:
    """Siblings join however small they are, whatever they compute: for tests on small arrays."""
    bounds = {
        "LEAST_SHARED": 0, "MOST_STREAMS": 99, "MOST_EXPENSIVE": 99, "LEAST_EXPENSIVE": 0,
        "JOINED_RUN": 1, "JOINED_FOLD": 1, "JOINED_ROWS": 1, "SPARED": 1 << 60,
    }  # fmt: skip
    with mock.patch.multiple(horizontal, **bounds):
        yield


class SiblingMaker:
    """A graph under construction: values of the whole space, and folds of them."""

    def __init__(self, draw: Draw, dtype: DType, sizes: Sequence[int]) -> None:
        self.draw, self.dtype = draw, dtype
        rank = draw(st.integers(0, 3))
        self.shape = tuple(draw(st.sampled_from(sizes)) for _ in range(rank))
        axes = [draw(st.sets(st.integers(0, max(rank - 1, 0)))) for _ in range(2)]
        self.axes = [tuple(sorted(a)) if rank else () for a in axes]
        self.folds = ("sum",) if 0 in self.shape else ("sum", "max", "min")
        self.unary = UNARY_INT if dtype.is_integer else UNARY_FLOAT
        self.builder = Builder()
        self.inputs: list[Array] = []
        self.full: list[Value] = []
        self.results: list[Value] = []

    def input(self, shape: tuple[int, ...]) -> Value:
        rng = np.random.default_rng(self.draw(st.integers(0, 2**20)))
        held = rng.integers(-9, 9, shape) if self.dtype.is_integer else rng.standard_normal(shape)
        self.inputs.append(np.asarray(held).astype(self.dtype.numpy))
        return self.builder.add_arg(TensorType(self.dtype, shape))

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        (value,) = self.builder.emit(name, operands, attrs, locations=())
        return value

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.draw(st.integers(0, len(values) - 1))]

    def begin(self) -> None:
        """Inputs: of the space, transposed, broadcast."""
        self.full += [self.input(self.shape) for _ in range(self.draw(st.integers(1, 2)))]
        if self.draw(st.booleans()):
            turned = self.input(self.shape[::-1])
            back = tuple(reversed(range(len(self.shape))))
            self.full.append(self.emit("permute_dims", turned, axes=back))
        if self.draw(st.booleans()):
            kept = tuple(self.pick((1, d)) for d in self.shape)
            self.full.append(self.emit("broadcast_to", self.input(kept), shape=self.shape))

    def step(self) -> None:
        """One more op of a random kind on values that others read too."""
        kind, early = self.draw(st.integers(0, 6)), self.full[:4]
        if kind == 0:
            self.full.append(self.emit(self.pick(self.unary), self.pick(early)))
        elif kind == 1:
            self.full.append(self.emit(self.pick(BINARY), self.pick(self.full), self.pick(early)))
        elif kind == 2:
            self.full.append(self.emit(self.pick(self.unary), self.pick(self.full)))
            self.results.append(self.full[-1])
        elif kind == 3:  # a path between siblings
            folded = self.emit(
                self.pick(self.folds), self.full[-1], axes=self.axes[0], keepdims=True
            )
            wide = self.emit("broadcast_to", folded, shape=self.shape)
            self.full.append(self.emit(self.pick(BINARY), self.pick(early), wide))
        else:
            value, name = self.pick([*early, self.full[-1]]), self.pick(self.folds)
            keep = self.draw(st.booleans())
            self.results.append(self.emit(name, value, axes=self.pick(self.axes), keepdims=keep))

    def case(self) -> Case:
        names = [f"a{i}" for i in range(len(self.inputs))]
        results = self.results or [self.emit("negative", self.full[-1])]
        return Case(self.builder.graph("siblings", names, results), self.inputs, {})


@st.composite
def sibling_cases(
    draw: Draw, dtypes: Sequence[DType], sizes: Sequence[int] = SIZES, steps: int = 10
) -> Case:
    """A random graph with inputs for its arguments."""
    maker = SiblingMaker(draw, draw(st.sampled_from(list(dtypes))), sizes)
    maker.begin()
    for _ in range(draw(st.integers(2, steps))):
        maker.step()
    return maker.case()
