"""Random graphs that reduce over rows and go on computing with the results (a hypothesis strategy).

The patterns of softmax, layer norm and their gradients: values of the whole space, of rows, of
columns; totals over all rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import BOOLEANS, Case, integers
from hypothesis import strategies as st

from weft.ir.dtypes import DType, int32, int64, uint8
from weft.ir.errors import ShapeError
from weft.ir.graph import Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
Draw = Any

SIZES = (2, 3, 1, 5, 17, 40)
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
UNARY_FLOAT = ("exp", "tanh", "square", "negative", "rsqrt", "abs")
UNARY_INT = ("negative", "square", "abs", "sign")
FOLDS = ("sum", "max", "min", "prod")


def _bounded(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape`, of an array that fits into memory: few rows of more than three axes of large
    sizes."""
    if math.prod(shape) <= 1 << 18:
        return tuple(shape)
    return (*(min(n, 3) for n in shape[:-1]), shape[-1])


class RowMaker:
    """A graph under construction: values of the whole space and values of rows (kept axes)."""

    def __init__(
        self,
        draw: Draw,
        dtype: DType,
        sizes: Sequence[int],
        gathers: bool = False,
        columns: Sequence[int] = (),
    ) -> None:
        self.draw = draw
        self.gathers = gathers
        self.dtype = dtype
        rank = draw(st.integers(1, 4))
        self.shape = _bounded([draw(st.sampled_from(sizes)) for _ in range(rank)])
        picked = draw(st.sets(st.integers(0, rank - 1)))
        self.inner = tuple(sorted(picked | ({rank - 1} if draw(st.booleans()) else set()))) or (0,)
        if columns:  # rows are columns, so many side by side
            rank = draw(st.integers(1, 2))
            self.inner = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))
            self.shape = _bounded([draw(st.sampled_from(sizes)) for _ in range(rank)])
            self.shape += (draw(st.sampled_from(columns)),)
        self.rows = tuple(1 if k in self.inner else d for k, d in enumerate(self.shape))
        self.columns = tuple(d if k in self.inner else 1 for k, d in enumerate(self.shape))
        # NumPy has no maximum of an empty array, even where there is no result to give
        self.folds = ("sum",) if 0 in self.shape else FOLDS[: 4 if dtype.is_integer else 3]
        self.builder = Builder()
        self.inputs: list[Array] = []
        self.full: list[Value] = []
        self.row: list[Value] = []
        self.totals: list[Value] = []

    def input(self, shape: tuple[int, ...]) -> Value:
        seed = self.draw(integers(0, 2**20))
        rng = np.random.default_rng(seed)
        if self.dtype.is_integer:
            array = rng.integers(-9, 9, shape).astype(self.dtype.numpy)
        else:
            array = np.asarray(rng.standard_normal(shape)).astype(self.dtype.numpy)
            if array.size and self.draw(integers(0, 5)) == 0:
                awkward = self.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
                array.reshape(-1)[rng.integers(array.size)] = awkward
        self.inputs.append(array)
        return self.builder.add_arg(TensorType(self.dtype, shape))

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        (value,) = self.builder.emit(name, operands, attrs, locations=())
        return value

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.draw(integers(0, len(values) - 1))]

    def begin(self) -> None:
        """Inputs: some of the whole space, one transposed, a column, a row."""
        self.full.append(self.input(self.shape))
        if self.draw(BOOLEANS):
            axes = tuple(self.draw(st.permutations(range(len(self.shape)))))
            back = tuple(np.argsort(axes).tolist())
            turned = self.input(tuple(self.shape[a] for a in axes))
            self.full.append(self.emit("permute_dims", turned, axes=back))
        column = self.input(self.columns)
        self.full.append(self.emit("broadcast_to", column, shape=self.shape))
        self.row.append(self.input(self.rows))

    def step(self) -> None:
        """One more op of a random kind."""
        kind = self.draw(integers(0, 12 if self.gathers else 8))
        unary = UNARY_INT if self.dtype.is_integer else UNARY_FLOAT
        if kind <= 1:
            self.row.append(self.fold(self.pick(self.full)))
        elif kind == 2:
            self.row.append(self.emit(self.pick(BINARY), self.pick(self.row), self.pick(self.row)))
        elif kind == 3:
            self.full.append(self.emit(self.pick(unary), self.pick(self.full)))
        elif kind == 4:
            wide = self.emit("broadcast_to", self.pick(self.row), shape=self.shape)
            self.full.append(self.emit(self.pick(BINARY), self.pick(self.full), wide))
        elif kind == 5:
            a, b = self.pick(self.full), self.pick(self.full)
            self.full.append(self.emit("where", self.emit("less", a, b), b, a))
        elif kind == 6:
            self.total()
        elif kind <= 8:
            self.at_index(kind == 7)
        elif kind <= 10:
            self.look_up()
        else:
            self.normalise()

    def fold(self, value: Value) -> Value:
        name, keep = self.pick(self.folds), self.draw(BOOLEANS)
        made = self.emit(name, value, axes=self.inner, keepdims=keep)
        return made if keep else self.emit("reshape", made, shape=self.rows)

    def at_index(self, read: bool) -> None:
        """Read or change one element of each row, where a row is one axis."""
        if len(self.inner) != 1 or 0 in self.shape:
            return
        (axis,) = self.inner
        size, seed = self.shape[axis], self.draw(integers(0, 2**20))
        dtype = self.draw(st.sampled_from([int64, int32, uint8]))
        low = 0 if dtype is uint8 else -size
        picks = np.random.default_rng(seed).integers(low, size, self.rows).astype(dtype.numpy)
        self.inputs.append(picks)
        index = self.builder.add_arg(TensorType(dtype, self.rows))
        full, row = self.pick(self.full), self.pick(self.row)
        if read:
            self.row.append(self.emit("take_along_axis", full, index, axis=axis))
        else:
            made = self.emit("scatter_along_axis_add", full, index, row, axis=axis)
            self.full.append(made)

    def normalise(self) -> None:
        """The newest value of the whole space meets its own fold."""
        wide = self.emit("broadcast_to", self.fold(self.full[-1]), shape=self.shape)
        self.full.append(self.emit(self.pick(BINARY), self.full[-1], wide))

    def look_up(self) -> None:
        """A value of the whole space, or of columns, that comes from a table by indices."""
        shape = self.shape if self.draw(integers(0, 3)) else self.columns
        axes = tuple(self.draw(st.permutations(range(len(shape)))))
        turned = axes if self.draw(BOOLEANS) else tuple(range(len(shape)))
        looked = self.looked_up(tuple(shape[a] for a in turned))
        if turned != tuple(range(len(shape))):
            looked = self.emit("permute_dims", looked, axes=tuple(np.argsort(turned).tolist()))
        if shape != self.shape:
            looked = self.emit("broadcast_to", looked, shape=self.shape)
        other = self.pick(self.full)
        self.full.append(self.emit(self.pick(BINARY), other, looked))

    def looked_up(self, shape: tuple[int, ...]) -> Value:
        """A value of this shape from a gather."""
        size = self.draw(integers(1, 6))
        axis = self.draw(integers(0, len(shape) - 1))
        if self.draw(BOOLEANS):
            table = self.input((*shape[:axis], size, *shape[axis + 1 :]))
            return self.emit("take", table, self.indices((shape[axis],), (size,)), axis=axis)
        depth = self.draw(integers(1, 3))
        sizes = tuple(self.draw(integers(1, 4)) for _ in range(depth))
        table = self.input((*sizes, *shape[axis:]))
        return self.emit("gather_nd", table, self.indices((*shape[:axis], depth), sizes))

    def indices(self, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Value:
        """An input of indices into axes of these sizes (by the last axis, if there are several)."""
        dtype = self.draw(st.sampled_from([int64, int32, uint8]))
        rng = np.random.default_rng(self.draw(integers(0, 2**20)))
        low = np.zeros(len(sizes), int) if dtype is uint8 else -np.array(sizes)
        self.inputs.append(rng.integers(low, sizes, shape).astype(dtype.numpy))
        return self.builder.add_arg(TensorType(dtype, shape))

    def total(self) -> None:
        """A fold over all rows: of columns, of everything, or of row values."""
        outer = tuple(k for k in range(len(self.shape)) if k not in self.inner)
        every = tuple(range(len(self.shape)))
        value, axes = self.pick(
            [
                (self.pick(self.full), outer),
                (self.pick(self.full), every),
                (self.pick(self.row), every),
            ]
        )
        name = self.pick(self.folds)
        self.totals.append(self.emit(name, value, axes=axes, keepdims=self.draw(BOOLEANS)))

    def case(self) -> Case:
        results = [self.full[-1], self.row[-1], *self.totals]
        results += [v for v in (*self.full[:-1], *self.row[:-1]) if self.draw(integers(0, 4)) == 0]
        names = [f"x{i}" for i in range(len(self.builder.args))]
        return Case(self.builder.graph("rows", names, results), self.inputs, {})


@st.composite
def row_cases(
    draw: Draw,
    dtypes: Sequence[DType],
    sizes: Sequence[int] = SIZES,
    steps: int = 10,
    gathers: bool = False,
    columns: Sequence[int] = (),
) -> Case:
    """A graph over rows with inputs, NaN and infinities among them; gathers: tables, too; columns:
    sizes of an innermost axis that is not in the rows.
    """
    maker = RowMaker(draw, draw(st.sampled_from(list(dtypes))), sizes, gathers, columns)
    maker.begin()
    if columns:
        maker.normalise()
    for _ in range(draw(st.integers(2, steps))):
        with contextlib.suppress(ShapeError):  # max over nothing
            maker.step()
    return maker.case()
