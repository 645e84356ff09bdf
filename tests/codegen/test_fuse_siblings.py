"""Nests that read the same, as one: what joins, what does not and why; and the right bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given
from hypothesis import strategies as st
from random_graph_checks import LOOPS, TRACED, check_exactly, check_roughly
from row_graphs import row_cases
from row_kernel_checks import FLOATS, HALVES, WHOLE, check_cuts, nests
from sibling_graphs import of_any_size, sibling_cases

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion import fuse as groups
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import bytes_moved
from weft.passes.memory.block import ALIGNMENT
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.simplify.cse_dce import dce
from weft.passes.simplify.effects import order_effects
from weft.runtime.native.explain import fusion_reasons, shared_reads

Array = np.ndarray[Any, Any]
STATE = [
    "variable", "read", "assign", "add", "negative", "reshape", "sum", "max", "permute_dims",
    "slice_update",
]  # fmt: skip
INTS = [d for d in dtypes.ALL if d.kind in ("bool", "int", "uint")]


class TestRandomGraphs:
    @given(sibling_cases(WHOLE))
    @examples(80)
    def test_whole_numbers_exactly(self, case: Case) -> None:
        with of_any_size():
            check_exactly(case, (fuse,))
            check_exactly(case, PIPELINE)

    @given(sibling_cases((*FLOATS, dtypes.float16)))
    @examples(60)
    def test_floats(self, case: Case) -> None:
        with of_any_size():
            check_roughly(case, (fuse,))

    @given(sibling_cases(WHOLE, sizes=(0, 1, 3)))
    @examples(40)
    def test_empty_and_single(self, case: Case) -> None:
        with of_any_size():
            check_exactly(case, (fuse,))

    @given(sibling_cases((*WHOLE, *FLOATS, *HALVES), sizes=(3, 17, 70)), st.integers(0, 2**20))
    @examples(60)
    def test_bits_do_not_depend_on_cuts(self, case: Case, seed: int) -> None:
        with of_any_size():
            check_cuts(fuse(case.graph), case.inputs, seed)

    @given(row_cases(WHOLE, steps=20))
    @examples(60)
    def test_beside_row_kernels(self, case: Case) -> None:
        with of_any_size():
            check_exactly(case, (fuse,))

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=INTS))
    @examples(60)
    def test_every_op_and_state(self, case: Case) -> None:
        with of_any_size():
            check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=LOOPS, dtypes=[dtypes.float32], max_ops=20))
    @examples(30)
    def test_loops(self, case: Case) -> None:
        with of_any_size():
            check_roughly(case, PIPELINE)

    @given(sibling_cases((dtypes.int32,), steps=25))
    @examples(400)
    def test_the_fused_graph_means_the_same_and_moves_no_more(self, case: Case) -> None:
        graph = dce(case.graph)
        apart = fuse_apart(graph)
        with of_any_size():
            fused = fuse(graph)
        verify(fused)
        wanted = interpret(case.graph, case.inputs, DictState({}))
        for x, y in zip(interpret(fused, case.inputs, DictState({})), wanted, strict=True):
            assert same(np.asarray(x), np.asarray(y))
        assert (bytes_moved(fused) or 0) <= (bytes_moved(apart) or 0)
        ours, theirs = plan_memory(fused), plan_memory(apart)
        assert len(ours.copies) <= len(theirs.copies)
        assert ours.peak_bytes <= theirs.peak_bytes

    @given(graph_and_inputs(stage="traced", ops=STATE, dtypes=[dtypes.float32], max_ops=30))
    @examples(100)
    def test_state_needs_no_more_copies_nor_memory(self, case: Case) -> None:
        graph = dce(order_effects(case.graph))
        with of_any_size():
            joined = fuse(graph)
        apart = fuse_apart(graph)
        ours, theirs = plan_memory(joined), plan_memory(apart)
        assert len(ours.copies) <= len(theirs.copies)
        # a value of some bytes takes a whole unit, and may live until the nests' later one
        joins = len(apart.ops) - len(joined.ops)
        assert ours.peak_bytes <= theirs.peak_bytes + ALIGNMENT * joins


def fuse_apart(graph: Graph) -> Graph:
    """The graph with nests, of which none have joined for what they read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "join_horizontally", lambda grouping: False)
        return fuse(graph)


# ---------------------------------------------------------------------------- what must be one nest


RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 256), dtype=np.float32)
G = RNG.standard_normal((128, 256), dtype=np.float32)
SCALE = RNG.standard_normal(256, dtype=np.float32)
IMAGES = RNG.standard_normal((4, 8, 8, 64), dtype=np.float32)


def both(x: Array, g: Array, scale: Array) -> Any:
    """The gradients of both operands of x * scale."""
    return wf.grad(lambda x, s: wf.sum(x * s * g), (0, 1))(x, scale)


ONE_NEST: list[tuple[str, Callable[..., Any], list[Array]]] = [
    ("sum and sum of squares", lambda x: (wf.sum(x), wf.sum(x * x)), [X]),
    ("of rows", lambda x: (wf.max(x, axis=1), wf.min(x, axis=1)), [X]),
    ("of columns", lambda x: (wf.sum(x, axis=0), wf.max(x, axis=0)), [X]),
    ("moments", lambda x: (wf.mean(x, (0, 1, 2)), wf.mean(x * x, (0, 1, 2))), [IMAGES]),
    ("means", lambda x: (wf.mean(x, axis=0) + 1, wf.sum(x, axis=0) / wf.max(x, axis=0)), [X]),
    ("several", lambda x: (wf.sum(x), wf.max(x), wf.min(x), wf.prod(x)), [X]),
    ("one is elementwise", lambda x: (wf.sum(x), x * 2), [X]),
    ("rows and columns", lambda x: (wf.sum(x, axis=0), wf.sum(x, axis=1)), [X]),
    ("rows, columns, all", lambda x: (wf.max(x), wf.sum(x, 1), wf.sum(x * x, 0)), [X]),
    ("two outputs", lambda x: (x + 1, wf.tanh(x)), [X]),
    ("both operands", lambda x, g: (x * g, wf.sum(x + g, axis=0)), [X, G]),
    ("gradients", both, [X, G, SCALE]),
    ("beside rows", lambda x: (wf.nn.softmax(x), wf.abs(x)), [X]),
    ("beside a total of rows", lambda x: (wf.nn.softmax(x), wf.sum(x, axis=0)), [X]),
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("f", "args"), [c[1:] for c in ONE_NEST], ids=[c[0] for c in ONE_NEST])
def test_one_nest_of_several(f: Callable[..., Any], args: list[Array]) -> None:
    large = [op for op in nests(f, *args) if any(v.type.nbytes >= 1 << 15 for v in op.operands)]
    assert len(large) == 1
    for got, wanted in zip(wf.compile(f)(*args), f(*args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-4)


def test_a_sum_of_squares_of_many_numbers_is_exact() -> None:
    x = RNG.standard_normal(1 << 20, dtype=np.float32)
    total, squares = wf.compile(lambda x: (wf.sum(x), wf.sum(x * x)))(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(total, wide.sum(), rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(squares, (wide * wide).sum(), rtol=1e-6)


def test_the_second_call_of_another_size_compiles_nothing() -> None:
    f = wf.compile(lambda x: (wf.sum(x, axis=1), wf.max(x, axis=1), x + 3))
    f(X)
    before = compile_count()
    f(np.concatenate([X, G]))
    assert compile_count() == before


def test_donated_memory_is_still_used() -> None:
    plan = wf.compile(lambda x: (wf.sum(x), x * 2), donate=("x",))
    held = wf.asarray(X.copy())
    text = plan.explain(held)
    assert "beside" in text
    total, double = plan(held)
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)
    np.testing.assert_array_equal(double, X * 2)


# ------------------------------------------------------------------------------------ what must not


def apart(graph: Graph) -> list[str]:
    return [a.why for a in fusion_reasons(graph) if a.siblings]


def traced(f: Callable[..., Any], *args: Any) -> Graph:
    """The graph as `fuse` gets it."""
    graph = wf.compile(f).trace(*args)
    for each in PIPELINE[: PIPELINE.index(fuse)]:
        graph = each(graph)
    return graph


def test_functions_that_take_longer_than_the_reads() -> None:
    (why,) = apart(traced(lambda x: (wf.sin(x), wf.log(x)), X))
    assert why == "both compute longer than the 393216 bytes take that they move"
    wide = TensorType(dtypes.float32, (1 << 23,))
    graph = traced(lambda x: (wf.sin(x), wf.log(x)), wide)
    assert [n for _, _, n in shared_reads(graph)] == [1 << 25]
    graph = traced(lambda x: tuple(f(x) for f in (wf.sin, wf.cos, wf.log, wf.exp, wf.tanh)), wide)
    assert apart(graph) == ["together they have 5 functions: too few registers"]


def test_many_arrays() -> None:
    others = [X + k for k in range(5)]
    graph = traced(lambda x, *others: tuple(x + y for y in others), X, *others)
    assert "together they read and write 9 arrays: more than caches hold in step" in apart(graph)
    assert len(nests(lambda x, *others: tuple(x + y for y in others), X, *others)) == 2


def test_loops_that_do_not_suit_both() -> None:
    narrow = RNG.standard_normal((4096, 8), dtype=np.float32)
    why = "together their innermost loop is of 8 elements only"
    assert apart(traced(lambda x: (wf.tanh(x), wf.sum(x, axis=1)), narrow)) == [why]
    long = RNG.standard_normal((2, 1 << 14), dtype=np.float32)
    assert apart(traced(lambda x: (wf.tanh(x), wf.sum(x, axis=1)), long)) == [
        "one is cut into 2 rows only"
    ]
    (why,) = apart(traced(lambda x: (wf.sum(x, axis=0), wf.sum(x)), X))
    assert why == "the reductions of the two fold different axes"
    square = RNG.standard_normal((128, 128), dtype=np.float32)
    (why,) = apart(traced(lambda x, y: (wf.tanh(x), x + y.T), square, square))
    assert why == "one reads an array across its rows, in tiles"


def test_what_a_product_takes_over_stays_with_it() -> None:
    w = RNG.standard_normal((64, 256), dtype=np.float32)
    a = RNG.standard_normal((128, 64), dtype=np.float32)

    def f(a: Any, w: Any, x: Any) -> Any:
        return a @ w + x, wf.tanh(x)

    assert apart(traced(f, a, w, X)) == ["one is applied to the blocks of 'matmul' in the cache"]


def test_what_depends_on_the_other_is_no_sibling() -> None:
    graph = traced(lambda x: (wf.sum(x), wf.sum((x - wf.mean(x)) ** 2)), X)
    assert (apart(graph), shared_reads(graph)) == ([], [])


class TestOrder:
    """What waits for its sibling must not keep memory, nor come after what writes in place."""

    KIND = TensorType(dtypes.float32, (1 << 14,))

    def builder(self, count: int) -> tuple[Builder, list[Value]]:
        b = Builder([self.KIND] * count)
        return b, list(b.args)

    def test_memory_does_not_grow(self) -> None:
        b, (x, y) = self.builder(2)
        # sum(x * sort(y)) would keep the sorted array until the second one has been sorted
        first = b.emit1("sort", y, axis=0, descending=False)
        a = b.emit1("sum", b.emit1("multiply", x, first), axes=(0,), keepdims=False)
        second = b.emit1("sort", b.emit1("negative", y), axis=0, descending=False)
        c = b.emit1("max", b.emit1("add", x, second), axes=(0,), keepdims=False)
        graph = b.graph("g", ["x", "y"], [a, c])
        assert apart(graph) == [f"together they need {self.KIND.nbytes} bytes more at a time"]
        assert plan_memory(fuse(graph)).arena_bytes == plan_memory(fuse_apart(graph)).arena_bytes

    def test_readers_before_what_writes_in_place(self) -> None:
        b, (x, y, z) = self.builder(3)
        held = b.emit1("sort", y, axis=0, descending=False)
        a = b.emit1("max", b.emit1("add", x, held), axes=(0,), keepdims=False)
        part = b.emit1("slice", z, starts=(0,), stops=(5,), steps=(1,))
        changed = b.emit1("slice_update", held, part, starts=(0,), stops=(5,), steps=(1,))
        back = b.emit1("cumulative_sum", changed, axis=0, reverse=False)
        last = b.emit1("sort", back, axis=0, descending=False)
        c = b.emit1("max", b.emit1("multiply", x, last), axes=(0,), keepdims=False)
        graph = b.graph("g", ["x", "y", "z"], [a, c])
        why = "what is written in place would be read later, and must be copied"
        assert apart(graph) == [why]
        assert not plan_memory(fuse(graph)).copies
