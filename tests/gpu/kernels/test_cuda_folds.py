"""Reductions as CUDA launches: every kind of kernel, every dtype, accuracy, awkward values."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from compiled_checks import Case, check, check_sum, plain, same
from cuda_graphs import lanes, run
from cuda_nests import NestRun, fused_op
from cuda_toolchain import TARGETS, needs_toolchain
from example_counts import examples
from graphs import Case as GraphCase
from hypothesis import given
from hypothesis import strategies as st
from sibling_graphs import of_any_size, sibling_cases

from weft.codegen.cuda.cubins.compile import compile_kernel
from weft.codegen.cuda.nests import plain_nests
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.ir import dtypes
from weft.ir.dtypes import DType, as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]
by_name = pytest.mark.parametrize


def fold_graph(x: Array, axes: tuple[int, ...], reduction: str = "sum", before: str = "") -> Graph:
    """The reduction of x over the axes, of `before` of it if there is one."""
    case = Case()
    value = case.input(x)
    if before:
        value = case.hidden(before, value)
    case.op(reduction, value, axes=axes, keepdims=False)
    return case.graph()


def fold_run(x: Array, axes: tuple[int, ...], *args: str) -> NestRun:
    return NestRun(fused_op(fold_graph(x, axes, *args)), [x])


def against_the_interpreter(x: Array, axes: tuple[int, ...], reduction: str) -> tuple[Array, Array]:
    """(emulated, interpreted)"""
    graph = fold_graph(x, axes, reduction)
    return NestRun(fused_op(graph), [x]).run()[0], interpret(graph, [x])[0]


def folds_of(dtype: DType) -> tuple[str, ...]:
    return ("all", "any") if dtype.kind == "bool" else ("sum", "prod", "max", "min")


#: Shapes and axes, and the kernels that they become.
KERNELS = {
    ((5, 40), (1,)): ["warp_rows"],
    ((3, 3000), (1,)): ["block_rows"],
    ((70001,), (0,)): ["block_rows", "combine_block_rows"],
    ((2, 40000), (1,)): ["block_rows", "combine_warp_rows"],
    ((300, 70), (0,)): ["columns", "combine_columns"],
    ((30, 70), (0,)): ["columns"],
    ((7, 70), (0,)): ["columns"],
    ((100, 3), (1,)): ["columns"],
    ((9, 5, 33), (0, 2)): ["warp_rows"],
    ((9, 5, 33), (1,)): ["columns"],
    ((3, 50, 4, 33), (1, 3)): ["block_rows"],
    ((40, 3, 20, 5), (0, 2)): ["columns", "combine_columns"],
    ((1,), (0,)): ["each"],
}


class TestKernels:
    @by_name(("shape", "axes"), KERNELS)
    def test_shapes(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        for dtype in (dtypes.float32, dtypes.int16, dtypes.float64):
            x = plain(dtype, shape)
            run = fold_run(x, axes, "sum", "abs")
            found = [n.removeprefix(f"{run.nest.name}_") for n in run.names]
            assert dtype is not dtypes.float32 or found == KERNELS[shape, axes]
            (total,) = run.run()
            (largest,) = fold_run(x, axes, "max", "abs").run()
            check("max", largest, np.asarray(np.max(np.abs(x), axis=axes)))
            wide = np.abs(x.astype(np.float64)).sum(axis=axes)
            wanted = np.asarray(wide.astype(x.dtype))
            if dtype.is_floating:
                check_sum("sum", total, wanted, wide, 1 if dtype is dtypes.float32 else x.size)
            else:
                check("sum", total, np.asarray(np.abs(x).sum(axis=axes).astype(x.dtype)))

    @by_name("axis", [0, 1])
    def test_threads_stand_side_by_side_where_memory_does(self, axis: int) -> None:
        """A transposed operand: its rows are the columns of what is added up."""
        case = Case()
        x = case.input(plain(dtypes.int32, (40, 70)))
        turned = case.hidden("permute_dims", x, axes=(1, 0))
        case.op("sum", turned, axes=(axis,), keepdims=False)
        made = NestRun(fused_op(case.graph()), case.inputs)
        assert made.names[0].endswith("_warp_rows" if axis == 0 else "_columns")
        check("sum", made.run()[0], interpret(case.graph(), case.inputs)[0])

    @by_name("dtype", [as_dtype(d) for d in DTYPES], ids=str)
    @by_name(("shape", "axes"), [((3, 50), (1,)), ((50, 3), (0,)), ((1030,), (0,))])
    def test_dtypes(self, dtype: DType, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        x = plain(dtype, shape)
        for name in folds_of(dtype):
            a, b = against_the_interpreter(x, axes, name)
            if dtype.is_floating and name in ("sum", "prod"):
                many = np.abs(x.astype(np.float64))
                size = many.sum(axis=axes) if name == "sum" else np.abs(b.astype(np.float64))
                terms = 1 if name == "sum" else x.size
                check_sum(name, a, b, size, terms)
            else:
                check(name, a, b)

    @by_name("parts", [2, 5])
    def test_bools_and_bytes_through_partial_results(self, parts: int) -> None:
        for dtype in (dtypes.bool_, dtypes.uint8, dtypes.bfloat16):
            for seed in range(3):
                x = plain(dtype, (parts * 256 * 16 + 3,), seed)
                x = x > np.asarray(parts) if dtype.kind != "bool" and seed == 2 else x
                for name in ("all", "any") if x.dtype.kind == "b" else ("max", "min"):
                    with small_parts():
                        assert len(fold_run(x, (0,), name).launches) == 2
                        check(name, *against_the_interpreter(x, (0,), name))

    @by_name("shape", [(0, 5), (5, 0), (0,), (0, 0)])
    def test_nothing_to_add_up(self, shape: tuple[int, ...]) -> None:
        for axes in [(k,) for k in range(len(shape))]:
            x = np.zeros(shape, np.float32)
            for name in ("sum", "prod"):
                check(name, *against_the_interpreter(x, axes, name))

    @given(
        st.lists(st.sampled_from([1, 2, 3, 5, 17, 70]), min_size=1, max_size=4),
        st.data(),
        st.sampled_from([dtypes.int32, dtypes.uint8, dtypes.bool_]),
    )
    @examples(40)
    def test_any_loops(self, shape: list[int], data: Any, dtype: DType) -> None:
        """Any axes, of an operand whose axes lie in memory in any order."""
        shape = shape if np.prod(shape) < 20000 else [min(n, 5) for n in shape]
        axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
        order = tuple(data.draw(st.permutations(range(len(shape)))))
        x = plain(dtype, [shape[k] for k in np.argsort(order)])
        for name in folds_of(dtype):
            case = Case()
            turned = case.hidden("permute_dims", case.input(x), axes=order)
            case.op(name, turned, axes=axes, keepdims=False)
            graph = case.graph()
            (got,) = NestRun(fused_op(graph), [x]).run()
            check(name, got, interpret(graph, [x])[0])


class TestSeveralStores:
    """Several folds, and stores of each element beside them, in one nest."""

    @given(sibling_cases((dtypes.int32, dtypes.uint8)), st.booleans())
    @examples(30)
    def test_random(self, case: GraphCase, small: bool) -> None:
        """Also cut into many parts, as only large sizes are."""
        with of_any_size():
            fused = fuse(case.graph)
        with small_parts() if small else contextlib.nullcontext():
            got = run(fused, case.inputs, lanes)
        for a, b in zip(got, interpret(case.graph, case.inputs), strict=True):
            assert same(a, np.asarray(b))

    @by_name("columns", [True, False])
    def test_partial_results_of_several_dtypes(self, columns: bool) -> None:
        case = Case()
        x = case.input(plain(dtypes.float32, (300, 40)))
        near = case.hidden("less", x, case.hidden("square", x))
        axes = (0,) if columns else (0, 1)
        case.op("any", near, axes=axes, keepdims=False)
        case.op("max", x, axes=axes, keepdims=False)
        case.op("sum", case.hidden("astype", near, dtype=dtypes.int64), axes=axes, keepdims=False)
        case.op("negative", x)
        with of_any_size(), small_parts():
            made = NestRun(fused_op(case.graph()), case.inputs)
        assert len(made.nest.stores) == 4
        assert len(made.launches) == 2
        for a, b in zip(made.run(), interpret(case.graph(), case.inputs), strict=True):
            check("fold", a, b)


@contextlib.contextmanager
def small_parts() -> Iterator[None]:
    """Folds are split over blocks at small sizes too."""
    with (
        mock.patch.object(plain_nests, "LEAST_ITEMS", 256),
        mock.patch.object(plain_nests, "LEAST_ROWS", 8),
    ):
        yield


class TestAccuracy:
    @by_name(("shape", "axes"), [((1 << 20,), (0,)), ((1 << 16, 5), (0,)), ((3, 1 << 16), (1,))])
    def test_sums_of_singles(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        """Within a unit or two of the exact sum, whatever the count: what f32 rounds off on the
        way is carried along."""
        rng = np.random.default_rng(3)
        x = rng.random(shape).astype(np.float32)
        (got,) = fold_run(x, axes).run()
        exact = x.astype(np.float64).sum(axis=axes)
        assert (np.abs(got - exact) <= 4 * 2.0**-24 * exact).all()

    def test_a_large_number_does_not_swallow_small_ones(self) -> None:
        x = np.ones(1 << 14, np.float32)
        x[0] = 2.0**30
        (got,) = fold_run(x, (0,)).run()
        assert abs(float(got) - (2.0**30 + (1 << 14) - 1)) <= 128  # a unit in the last place

    @by_name("value", [np.inf, -np.inf, np.nan])
    @by_name(("shape", "axes"), [((4, 40), (1,)), ((40, 4), (0,)), ((5000,), (0,))])
    def test_infinities_and_nan(
        self, value: float, shape: tuple[int, ...], axes: tuple[int, ...]
    ) -> None:
        for dtype in (np.float32, np.float16):
            x = plain(as_dtype(dtype), shape)
            x.reshape(-1)[x.size // 2] = value
            for name in ("sum", "max", "min"):
                a, b = against_the_interpreter(x, axes, name)
                special = ~np.isfinite(b)
                np.testing.assert_array_equal(a[special], b[special])
                assert np.isfinite(a[~special]).all()

    def test_opposite_infinities_and_overflow(self) -> None:
        x = np.zeros((3, 64), np.float32)
        x[0, 3], x[0, 40] = np.inf, -np.inf
        x[1, :] = 3e38
        x[2, 5] = -np.inf
        (got,) = fold_run(x, (1,)).run()
        np.testing.assert_array_equal(got, np.array([np.nan, np.inf, -np.inf], np.float32))


class TestBits:
    def test_other_sizes_use_the_same_kernels(self) -> None:
        keys = []
        for shape in ((5, 40), (7, 44), (9, 128)):
            run = fold_run(np.zeros(shape, np.float32), (1,), "sum", "exp")
            keys.append([launch.kernel.key for launch in run.launches])
        assert keys[0] == keys[1] == keys[2]

    def test_splits_are_whole_and_depend_on_sizes(self) -> None:
        for count in (1, 100, 4096, 5000, 1 << 20, (1 << 28) + 17):
            for blocks in (1, 7, 2000):
                cut = plain_nests.split(count, blocks, 2048, 256)
                assert (cut.parts - 1) * cut.size < count <= cut.parts * cut.size
                assert cut.parts == 1 or (cut.size % 256 == 0 and cut.size >= 2048)
                assert cut.parts == 1 or cut.parts * blocks <= plain_nests.ENOUGH_BLOCKS + blocks

    @by_name(("shape", "axes"), [((5, 40), (1,)), ((3, 3000), (1,)), ((300, 70), (0,))])
    def test_any_order_of_threads(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        run = fold_run(plain(dtypes.float32, shape), axes)
        first = run.run()
        for seed in range(2):
            for a, b in zip(run.run(seed), first, strict=True):
                assert a.tobytes() == b.tobytes()


@needs_toolchain
@pytest.mark.slow
@by_name("cc", TARGETS[::3])
def test_compiled(cc: tuple[int, int]) -> None:
    """No spills, and registers for a multiprocessor's 2048 threads, or nearly."""
    for (shape, axes), dtype in itertools.product(KERNELS, (dtypes.float32, dtypes.bfloat16)):
        for launch in fold_run(np.zeros(shape, dtype.numpy), axes, "sum", "tanh").launches:
            report = compile_kernel(launch.kernel, cc).report
            assert report.spills == 0, launch.kernel.name
            assert report.registers <= 48, launch.kernel.name
            assert report.shared <= 1024, launch.kernel.name
