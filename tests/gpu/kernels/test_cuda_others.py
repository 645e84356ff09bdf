"""Ops that are no loop nests as CUDA launches, in the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_op_checks import RNG, check, graph_of, of
from cuda_ops import run_graph

from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.source import writer
from weft.ir.dtypes import as_dtype

Array = np.ndarray[Any, Any]


class TestGathers:
    @pytest.mark.parametrize("dtype", ["f32", "bool", "f16", "i64", "c64", "c128"])
    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_take(self, dtype: str, axis: int) -> None:
        index = RNG.integers(-3, 3, (5, 2))
        check("take", [of((3, 4, 3) if axis != 1 else (3, 3, 8), dtype), index], axis=axis)

    @pytest.mark.parametrize("index_dtype", ["i8", "u8", "i32", "u64"])
    def test_wide_rows(self, index_dtype: str) -> None:
        check("take", [of((6, 20)), of((33,), index_dtype) % 6], axis=0)

    @pytest.mark.parametrize("axis", [0, 1])
    def test_along_axis(self, axis: int) -> None:
        shape = [5, 7]
        shape[axis] = 3
        check("take_along_axis", [of((5, 7)), RNG.integers(-5, 5, shape)], axis=axis)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_nd(self, depth: int) -> None:
        check("gather_nd", [of((3, 4, 8)), RNG.integers(-3, 3, (6, 2, depth))])

    @pytest.mark.parametrize("bad", [4, -5, 1 << 40])
    def test_an_index_out_of_bounds_is_told_of(self, bad: int) -> None:
        index = np.array([[0, 1, 2], [bad, 3, bad]])
        graph = graph_of("take", [of((4, 8)), index], axis=0)
        with pytest.raises(IndexError) as raised:
            run_graph(graph, [of((4, 8)), index])
        assert raised.value.args == (0, 3, min(bad, (1 << 31) - 1))

    def test_indices_into_nothing(self) -> None:
        check("take", [of((0, 4)), np.zeros(0, np.int64)], axis=0)
        inputs = [of((0, 4)), np.zeros(3, np.int64)]
        graph = graph_of("take", inputs, axis=0)
        with pytest.raises(IndexError):
            run_graph(graph, inputs)


class TestScatters:
    @pytest.mark.parametrize("n", [2, 50, 300])
    @pytest.mark.parametrize("axis", [0, 1])
    def test_index_add(self, n: int, axis: int) -> None:
        x = of((6, 5))
        shape = list(x.shape)
        shape[axis] = n
        check("index_add", [x, RNG.integers(-5, 5, n), of(tuple(shape))], axis=axis)

    @pytest.mark.parametrize("dtype", ["f16", "i8", "f64"])
    def test_few_updates_of_many_parts(self, dtype: str) -> None:
        index = np.array([3, 40, 3, -1, 40, 3])
        check("index_add", [of((50, 3), dtype), index, of((6, 3), dtype)], axis=0)

    def test_many_updates_of_one_part_come_after_each_other(self) -> None:
        updates = (10.0 ** RNG.integers(-6, 6, (80, 3))).astype(np.float32)
        check("index_add", [of((100, 3)), np.zeros(80, np.int64), updates], axis=0)
        check("index_add", [of((2, 3)), np.zeros(80, np.int64), updates], axis=0)

    @pytest.mark.parametrize("axis", [0, 1])
    def test_along_axis(self, axis: int) -> None:
        shape = [5, 7]
        shape[axis] = 9
        index = RNG.integers(-5, 5, shape)
        check("scatter_along_axis_add", [of((5, 7)), index, of(tuple(shape))], axis=axis)

    @pytest.mark.parametrize("op", ["add", "update", "min", "max"])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_nd(self, op: str, depth: int) -> None:
        x, index = of((3, 4, 5)), RNG.integers(-3, 3, (20, depth))
        updates = RNG.standard_normal((20, *x.shape[depth:])).astype(np.float32)
        check(f"scatter_nd_{op}", [x, index, updates])

    def test_nothing_is_written_for_an_index_out_of_bounds(self) -> None:
        x, index = of((4, 3)), np.array([1, 4, 2])
        with pytest.raises(IndexError) as raised:
            run_graph(graph_of("index_add", [x, index, x[:3]], axis=0), [x, index, x[:3]])
        assert raised.value.args == (0, 1, 4)


class TestCopies:
    @pytest.mark.parametrize("dtype", ["f32", "bool", "f16", "c128"])
    def test_concat(self, dtype: str) -> None:
        parts = [of((2, n, 3), dtype) for n in (1, 0, 4)]
        check("concat", parts, axis=1)

    def test_pad(self) -> None:
        check("pad", [of((2, 3)), np.array(7, np.float32)], lo=(1, 0), hi=(2, 4))

    @pytest.mark.parametrize("steps", [(1, 1), (2, 3), (-1, 2)])
    def test_slice_update(self, steps: tuple[int, int]) -> None:
        starts = tuple(0 if s > 0 else 5 for s in steps)
        stops = tuple(6 if s > 0 else -1 for s in steps)
        shape = tuple(len(range(a, b, s)) for a, b, s in zip(starts, stops, steps, strict=True))
        x = of((6, 6))
        check("slice_update", [x, of(shape)], starts=starts, stops=stops, steps=steps)

    def test_dim_size(self) -> None:
        check("dim_size", [of((2, 5))], axis=1)


class TestRandom:
    @pytest.mark.parametrize("shape", [(1,), (2, 3), (5,), (1000,)])
    def test_bits(self, shape: tuple[int, ...]) -> None:
        check("random_bits", [np.array([7, 9], np.uint32)], shape=shape)

    def test_fold_in(self) -> None:
        check("random_fold_in", [np.array([7, 9], np.uint32), np.array(5, np.uint32)])


class TestScans:
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
    @pytest.mark.parametrize(("shape", "axis"), [((3, 70), 1), ((2, 600), 1), ((5, 6, 4), 1)])
    def test_whole_numbers(self, op: str, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
        check(f"cumulative_{op}", [of(shape, "i32")], axis=axis, reverse=reverse)

    @pytest.mark.parametrize("dtype", ["f32", "f64"])
    def test_floats(self, dtype: str) -> None:
        x = RNG.standard_normal((2, 300)).astype(as_dtype(dtype).numpy)
        check("cumulative_sum", [x + 1], exact=False, axis=1, reverse=False)
        check("cumulative_logsumexp", [x], exact=False, axis=1, reverse=True)

    def test_nan_stays(self) -> None:
        x = RNG.standard_normal((1, 100)).astype(np.float32)
        x[0, 40] = np.nan
        check("cumulative_max", [x], axis=1, reverse=False)

    @pytest.mark.parametrize("op", ["argmax", "argmin"])
    @pytest.mark.parametrize("dtype", ["f32", "i8", "bool", "f16"])
    @pytest.mark.parametrize(("shape", "axis"), [((3, 20), 1), ((2, 700), 1), ((5, 6, 4), 1)])
    def test_positions(self, op: str, dtype: str, shape: tuple[int, ...], axis: int) -> None:
        check(op, [of(shape, dtype)], axis=axis)

    @pytest.mark.parametrize("op", ["argmax", "argmin"])
    def test_position_of_nan(self, op: str) -> None:
        x = RNG.standard_normal((4, 90)).astype(np.float32)
        x[1, 50:60], x[2, 3], x[3, :] = np.nan, np.nan, np.nan
        check(op, [x], axis=1)
        check(op, [x], axis=0)


def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for buffers of 2**31 elements."""
    monkeypatch.setattr(writer, "MANY", 0)
    index = RNG.integers(-6, 6, 40)
    check("take", [of((6, 8)), index], axis=0)
    check("index_add", [of((6, 8)), index, of((40, 8))], axis=0)
    check("cumulative_sum", [of((3, 600), "i32")], axis=1, reverse=True)
    check("argmax", [of((3, 20))], axis=1)
    check("random_bits", [np.array([7, 9], np.uint32)], shape=(33,))
    check("concat", [of((2, 3)), of((2, 5))], axis=1)
    check("matmul", [of((40, 9)), of((9, 35))], transpose_a=False, transpose_b=False)
    check("sort", [of((2, 600))], axis=1, descending=False)
    (op,) = graph_of("take", [of((6, 8)), index], axis=0).ops
    assert launches_of(op)[0].kernel.name.endswith("_i64")
