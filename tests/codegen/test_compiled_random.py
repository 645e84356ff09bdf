"""Random graphs: compiled code means what the interpreter means, state included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case, graph_and_inputs, graphs, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graph_checks import FLOATS, LOOPS, TRACED, WHOLE, check_exactly, check_roughly

from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.fusion.fuse import fuse
from weft.passes.simplify.effects import expand_updates, strip_gradient_ops

Array = np.ndarray[Any, Any]

SINGLE = [dtypes.float32, dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.bool_]
DOUBLE = [dtypes.float64, dtypes.complex128, dtypes.int64, dtypes.uint8, dtypes.bool_]


class TestWholeNumbers:
    """Integers and bools: every op, bit for bit."""

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=WHOLE))
    @examples(60)
    def test_after_the_pipeline(self, case: Case) -> None:
        check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=WHOLE))
    @examples(40)
    def test_fusion_alone(self, case: Case) -> None:
        check_exactly(case, (expand_updates, strip_gradient_ops, fuse))


class TestFloats:
    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE))
    @examples(40)
    def test_single(self, case: Case) -> None:
        check_roughly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=LOOPS, dtypes=[dtypes.float32], max_ops=20))
    @examples(30)
    def test_loops(self, case: Case) -> None:
        check_roughly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=DOUBLE))
    @examples(30)
    def test_double_and_complex(self, case: Case) -> None:
        check_roughly(case, PIPELINE)


class TestFusion:
    """Fusion keeps the meaning: the interpreter's bits do not change."""

    @given(graph_and_inputs(stage="optimized", max_ops=25))
    @examples(150)
    def test_any_graph(self, case: Case) -> None:
        check_same_meaning(case)

    @given(graph_and_inputs(stage="optimized", ops=LOOPS, dtypes=[dtypes.int32], max_ops=40))
    @examples(150)
    def test_many_loops(self, case: Case) -> None:
        check_same_meaning(case)

    @given(graphs(stage="optimized", ops=LOOPS, dtypes=[dtypes.int32], max_ops=30), st.integers(0))
    @examples(50)
    def test_twice_is_once(self, graph: Graph, seed: int) -> None:
        once = fuse(graph)
        inputs = random_inputs(once, seed % 2**31)
        for x, y in zip(interpret(graph, inputs), interpret(once, inputs), strict=True):
            assert same(x, y)
        reductions = [o for o in once.ops if "reduction" in OPS[o.name].traits]
        assert not reductions
        assert not [o for o in once.ops if "elementwise" in OPS[o.name].traits]


def check_same_meaning(case: Case) -> None:
    fused = fuse(case.graph)
    verify(fused)
    before, after = DictState(case.state), DictState(case.state)
    wanted = interpret(case.graph, case.inputs, before)
    got = interpret(fused, case.inputs, after)
    for x, y in zip(got, wanted, strict=True):
        assert (x is None and y is None) or _equal(x, y)
    for name in before.values:
        assert _equal(before.values[name], after.values[name])


def _equal(x: Array, y: Array) -> bool:
    return x.tolist() == y.tolist() if x.dtype == object else same(x, y)


@pytest.mark.slow
class TestMany:
    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=WHOLE, max_ops=30))
    @settings(max_examples=1500)
    def test_whole(self, case: Case) -> None:
        check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE + DOUBLE, max_ops=20))
    @settings(max_examples=800)
    def test_floats(self, case: Case) -> None:
        check_roughly(case, PIPELINE)


class TestCycles:
    """Joins that would make two nests wait for each other, in either order of the operands."""

    @pytest.mark.parametrize("swapped", [False, True])
    def test_a_transpose_between_two_nests(self, swapped: bool) -> None:
        b = Builder([tensor_type(dtypes.int32, 3, 3)] * 2)
        x, y = b.args
        first, second = b.emit1("square", x), b.emit1("negative", y)
        total = b.emit1("add", first, b.emit1("permute_dims", second, axes=(1, 0)))
        pair = (second, first) if swapped else (first, second)
        graph = b.graph("g", ["x", "y"], [total, b.emit1("multiply", *pair)], "optimized")
        inputs = [np.arange(9, dtype=np.int32).reshape(3, 3) + k for k in (1, 5)]
        check_same_meaning(Case(graph, inputs, {}))
        check_exactly(Case(graph, inputs, {}), (fuse,))

    @pytest.mark.parametrize("swapped", [False, True])
    def test_a_nest_that_is_entered_late_and_left_early(self, swapped: bool) -> None:
        b = Builder([tensor_type(dtypes.int32, 3, 3)] * 2)
        x, y = b.args
        early = b.emit1("square", x)
        outside = b.emit1("cumulative_sum", early, axis=0)
        middle = b.emit1("negative", y)
        late = b.emit1("add", early, b.emit1("permute_dims", middle, axes=(1, 0)))
        pair = (middle, outside) if swapped else (outside, middle)
        graph = b.graph("g", ["x", "y"], [late, b.emit1("multiply", *pair)], "optimized")
        inputs = [np.arange(9, dtype=np.int32).reshape(3, 3) + k for k in (1, 5)]
        check_same_meaning(Case(graph, inputs, {}))
        check_exactly(Case(graph, inputs, {}), (fuse,))
