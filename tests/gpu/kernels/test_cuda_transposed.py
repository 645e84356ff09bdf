"""Nests that read across their loops: tiles that turn in shared memory."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case, check, plain
from cuda_loads import counted_sectors
from cuda_nests import NestRun, fused_op
from cuda_toolchain import TARGETS, needs_toolchain
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.codegen.cuda.cubins.compile import compile_kernel
from weft.codegen.cuda.nests.plain_nests import MOST_BYTES, TILE
from weft.codegen.cuda.source.dtypes import DTYPES, nbytes
from weft.ir import dtypes
from weft.ir.dtypes import DType, as_dtype
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]
by_name = pytest.mark.parametrize


def turned_case(dtype: DType, shape: tuple[int, ...], order: tuple[int, ...]) -> Case:
    """x with its axes in another order, and something done to it that no other way could do."""
    case = Case()
    x = plain(dtype, shape)
    turned = case.hidden("permute_dims", case.input(x), axes=order)
    other = case.input(plain(dtype, [shape[k] for k in order], 1))
    case.op("logical_xor" if dtype.kind == "bool" else "add", turned, other)
    return case


def run_of(case: Case) -> NestRun:
    return NestRun(fused_op(case.graph()), case.inputs)


def check_case(case: Case, kind: str | None = None) -> NestRun:
    run = run_of(case)
    assert kind is None or run.names[0].endswith(kind), run.names
    (got,) = run.run()
    check("turned", got, interpret(case.graph(), case.inputs)[0])
    return run


class TestTiles:
    @by_name("shape", [(300, 70), (64, 64), (33, 5), (5, 33), (1, 8, 40), (7, 40, 33)])
    def test_last_two_axes(self, shape: tuple[int, ...]) -> None:
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        run = check_case(turned_case(dtypes.float32, shape, order), "_transposed")
        blocks = [-(-n // TILE) for n in shape[-2:]]
        assert run.launches[0].blocks == np.prod(shape[:-2], dtype=int) * np.prod(blocks)

    @by_name("order", [(2, 1, 0), (2, 0, 1), (1, 2, 0)])
    def test_any_axis_that_lies_along_memory(self, order: tuple[int, int, int]) -> None:
        """What is contiguous in a loop far outside is read along it all the same, each sector of
        memory once; a warp without tiles touches 32 of them for 32 elements."""
        shape = (64, 8, 32)
        run = check_case(turned_case(dtypes.float32, shape, order), "_transposed")
        with counted_sectors() as found:
            run.run()
        sectors = sum(traffic.sectors for name, traffic in found.items() if name.startswith("in"))
        assert sectors * 8 == 2 * 64 * 8 * 32  # two operands

    @by_name("dtype", DTYPES)
    def test_dtypes(self, dtype: str) -> None:
        check_case(turned_case(as_dtype(dtype), (40, 70), (1, 0)), "_transposed")

    def test_orders_of_four_axes(self) -> None:
        for order in itertools.permutations(range(4)):
            check_case(turned_case(dtypes.int32, (2, 5, 33, 7), order))

    @by_name("shape", [(1, 70), (70, 1), (3, 70), (70, 3), (2, 2)])
    def test_few_rows_need_no_tiles(self, shape: tuple[int, int]) -> None:
        check_case(turned_case(dtypes.float32, shape, (1, 0)), "_each")

    def test_several_operands_as_far_as_shared_memory_goes(self) -> None:
        case = Case()
        total = case.input(plain(dtypes.float64, (40, 50)))
        for k in range(7):
            x = case.input(plain(dtypes.float64, (50, 40), k))
            part = case.hidden("permute_dims", x, axes=(1, 0))
            if k < 6:
                total = case.hidden("add", total, part)
        case.op("subtract", total, part)
        run = run_of(case)
        sizes = [int(n) for n in re.findall(r"cuda\.shared\.array\((\d+), f64\)", run.source)]
        assert len(sizes) == 4
        assert sum(sizes) * nbytes("f64") <= MOST_BYTES
        (got,) = run.run()
        check("sum", got, interpret(case.graph(), case.inputs)[0])

    def test_no_bank_is_met_twice(self) -> None:
        """The 32 threads of a warp touch 32 banks of 4 bytes, along a tile's rows and columns."""
        for rows, columns in ((1, 0), (0, 1)):
            places = [(k * rows) * (TILE + 1) + k * columns for k in range(32)]
            assert len({p % 32 for p in places}) == 32

    @given(
        st.lists(st.sampled_from([1, 4, 5, 33]), min_size=2, max_size=4),
        st.randoms(use_true_random=False),
        st.sampled_from([dtypes.int32, dtypes.uint8, dtypes.float64]),
        st.integers(0, 3),
    )
    @settings(max_examples=40)
    def test_any_axes(self, shape: list[int], random: Any, dtype: DType, seed: int) -> None:
        shape = shape if np.prod(shape) < 30000 else [min(n, 5) for n in shape]
        order = list(range(len(shape)))
        random.shuffle(order)
        case = turned_case(dtype, tuple(shape), tuple(order))
        run = check_case(case)
        if seed == 0:
            assert run.run(seed)[0].tobytes() == run.run()[0].tobytes()


@needs_toolchain
@by_name("dtype", ["f32", "u8", "f16", "f64"])
def test_compiled(dtype: str) -> None:
    (launch,) = run_of(turned_case(as_dtype(dtype), (40, 70), (1, 0))).launches
    for cc in TARGETS[::3]:
        report = compile_kernel(launch.kernel, cc).report
        assert report.spills == 0
        assert report.registers <= 40
        assert report.shared == TILE * (TILE + 1) * nbytes(dtype)
