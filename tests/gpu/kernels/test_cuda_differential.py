"""Random graphs through the GPU pipeline, their kernels emulated, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import same
from cuda_graphs import lanes, on_gpu, run, unchecked
from cuda_random_graphs import FLOATS, KERNELS, NUMBERS, SINGLE, WHOLE, pipeline
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import assume, given, settings
from random_graph_checks import within
from row_graphs import row_cases
from stable_results import Overflow, stable_results

from weft.ir import dtypes
from weft.ir.errors import UnsupportedError
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]

HALF = [dtypes.float16, dtypes.float32, dtypes.int32, dtypes.bool_]
FLOATING = [dtypes.float16, dtypes.float32, dtypes.float64, dtypes.int32]
DOUBLE = [dtypes.float64, dtypes.int64, dtypes.uint8, dtypes.bool_]


def emulated(case: Case) -> list[list[Array]]:
    """The results by lanes with all checks, which no other way may change by a bit."""
    graph = pipeline(case.graph)
    assume(any(on_gpu(op) for op in graph.ops))
    try:
        results = run(graph, case.inputs, lanes)
    except UnsupportedError:
        assume(False)
    again = run(graph, case.inputs, unchecked)
    for x, y in zip(results, again, strict=True):
        assert same(x, y)
    return results


def check_exactly(case: Case) -> None:
    wanted = interpret(case.graph, case.inputs)
    for x, y in zip(emulated(case), wanted, strict=True):
        assert same(x, y), f"{x!r} != {y!r}"


def check_roughly(case: Case) -> None:
    try:
        wanted, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    for x, (centre, spread) in zip(emulated(case), wanted, strict=True):
        within(x, centre, spread)


class TestGraphs:
    """Any graph of ops that have GPU kernels."""

    @given(graph_and_inputs(stage="traced", ops=KERNELS, dtypes=WHOLE))
    @examples(25)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE))
    @examples(25)
    def test_single(self, case: Case) -> None:
        check_roughly(case)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=DOUBLE))
    @examples(20)
    def test_double(self, case: Case) -> None:
        check_roughly(case)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=HALF))
    @examples(20)
    def test_halves(self, case: Case) -> None:
        check_roughly(case)


class TestRows:
    """Graphs that reduce over rows and go on with the results."""

    @given(row_cases(NUMBERS))
    @examples(20)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases((dtypes.float32, dtypes.float64, dtypes.float16)))
    @examples(25)
    def test_floats(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases((dtypes.float32, dtypes.int32), gathers=True))
    @examples(25)
    def test_gathers(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases((dtypes.float32, dtypes.int64), sizes=(3, 70, 257, 1030, 4100)))
    @examples(10)
    def test_several_blocks(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases((dtypes.float32,), sizes=(3, 70, 257), columns=(3, 40, 300)))
    @settings(max_examples=3)
    def test_columns(self, case: Case) -> None:
        check_roughly(case)


@pytest.mark.slow
class TestMany:
    """The same at length."""

    @given(graph_and_inputs(stage="traced", ops=KERNELS, dtypes=WHOLE, max_ops=25))
    @examples(300)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=FLOATING, max_ops=25))
    @examples(300)
    def test_floats(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases(FLOATING, sizes=(1, 5, 33, 64, 300, 1500)))
    @examples(120)
    def test_rows(self, case: Case) -> None:
        check_roughly(case)
