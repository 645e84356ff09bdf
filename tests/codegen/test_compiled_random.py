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
from stable_results import Overflow, stable_results

from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.fusion.fuse import fuse
from weft.passes.simplify.effects import expand_updates
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]

#: custom_gradient, identity and stop_gradient are for autodiff, `fused` and attention are what
#: fusion makes (test_attention: a gradient may be a difference of equal terms), stacks are in
#: test_while_gradients.
TRACED = [
    n
    for n, s in OPS.items()
    if n not in ("custom_gradient", "fused", "attention", "attention_grad")
    and not n.startswith(("stack_", "arena_"))
    and not s.traits & {"host", "handle"}
]
#: test_compiled has the others: near the zeros of digamma and lgamma no relative bound holds, and
#: which sign a computed NaN has is undefined.
FLOATS = [n for n in TRACED if n not in ("digamma", "lgamma", "copysign", "signbit")]
WHOLE = [d for d in dtypes.ALL if d.kind in ("bool", "int", "uint")]
SINGLE = [dtypes.float32, dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.bool_]
DOUBLE = [dtypes.float64, dtypes.complex128, dtypes.int64, dtypes.uint8, dtypes.bool_]
LOOPS = [n for n in FLOATS if OPS[n].traits & {"elementwise", "reduction"}]
LOOPS += ["broadcast_to", "permute_dims", "slice", "reshape", "iota", "constant", "matmul"]


def states(graph: Graph, values: dict[str, Array]) -> dict[str, VariableState]:
    """The variables of a graph, each holding a copy of its value."""
    out = {}
    for op in graph.ops:
        if op.name == "variable":
            name, held = str(op.attrs["name"]), op.result.type.tensor
            out[name] = VariableState(name, held.dtype, held.static_shape, values[name])
    return out


def check_exactly(case: Case, passes: Any) -> None:
    """Results and state of compiled code have the interpreter's bits."""
    oracle = DictState(case.state)
    wanted = interpret(case.graph, case.inputs, oracle)
    variables = states(case.graph, case.state)
    executable = compile_graph(case.graph, variables, passes=passes)
    inputs = [x.copy() for x in case.inputs]
    got = executable(inputs)
    for x, y in zip(inputs, case.inputs, strict=True):
        assert same(x, y), "an input changed"
    for x, y in zip(got, wanted, strict=True):
        assert (x is None) == (y is None)
        assert x is None or same(x, y), f"{x!r} != {y!r}"
    for name, variable in variables.items():
        assert same(variable.read(), oracle.values[name]), name
    check_own_memory(got, inputs, variables)


def check_own_memory(
    results: list[Any], inputs: list[Array], variables: dict[str, VariableState]
) -> None:
    """No result shares memory with another one, an input or a variable."""
    arrays = [x for x in results if x is not None]
    others = [*inputs, *(v.array for v in variables.values() if v.array is not None)]
    for i, x in enumerate(arrays):
        for y in [*arrays[i + 1 :], *others]:
            assert not np.shares_memory(x, y)


def check_roughly(case: Case, passes: Any) -> None:
    """Results and state are within what rounding may do."""
    try:
        results, after = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return
    variables = states(case.graph, case.state)
    got = compile_graph(case.graph, variables, passes=passes)(case.inputs)
    for x, wanted in zip(got, results, strict=True):
        assert (x is None) == (wanted is None)
        if x is not None:
            within(x, *wanted)
    for name, variable in variables.items():
        within(variable.read(), *after[name])


def within(x: Array, centre: Array, spread: Array) -> None:
    assert x.dtype == centre.dtype
    assert x.shape == centre.shape
    with np.errstate(all="ignore"):
        if x.dtype.kind in "biu":
            fine = (x == centre) | np.isinf(spread)
        else:
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            apart = np.abs(x.astype(wide) - centre.astype(wide))
            fine = (apart <= spread) | (x == centre) | np.isinf(spread)
            fine |= np.isnan(x) & np.isnan(centre)
    assert fine.all(), f"{x[~fine]} != {centre[~fine]} +- {spread[~fine]}"


class TestWholeNumbers:
    """Integers and bools: every op, bit for bit."""

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=WHOLE))
    @examples(60)
    def test_after_the_pipeline(self, case: Case) -> None:
        check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=WHOLE))
    @examples(40)
    def test_fusion_alone(self, case: Case) -> None:
        check_exactly(case, (expand_updates, fuse))


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
