"""The memory plan: played op by op, and what compiled code does to variables and results."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, variable
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given
from plan_player import Memory, Place, part, play, whole
from random_graph_checks import LOOPS, TRACED, WHOLE, check_exactly, states

from weft.codegen.llvm.jit import compile_count
from weft.ir import dtypes
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, ShapeError
from weft.ir.graph import Graph, Value
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType, tensor_type
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import run_passes
from weft.passes.memory.block import MemoryPlan, Slot
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.memory.start_early import start_early
from weft.passes.rewriting.rewrite import extend, with_block
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]
F32 = tensor_type(dtypes.float32, 4)


def planned(graph: Graph) -> tuple[Graph, MemoryPlan]:
    fused, _ = run_passes(graph, PIPELINE)
    return fused, plan_memory(fused)


NO_STRINGS = [d for d in dtypes.ALL if d is not dtypes.string]


def with_sums(graph: Graph, chance: random.Random) -> Graph:
    """The graph, and sums over processes of values in it, which are waited for at the end."""
    builder = extend(graph.block)
    builder.ops = list(graph.ops)
    values = [*builder.args, *(v for op in graph.ops for v in op.results)]
    numbers = [v for v in values if isinstance(v.type, TensorType) and v.type.dtype.is_numeric]
    common: dict[str, Any] = {"mesh": "mesh0", "axis_name": "i", "size": 2}
    started = []
    for number in range(3):
        dtype = chance.choice(numbers).type.dtype if numbers else None  # type: ignore[union-attr]
        alike = [v for v in numbers if v.type.dtype is dtype]  # type: ignore[union-attr]
        members = [chance.choice(alike) for _ in range(chance.randrange(1, 5))] if alike else []
        if members:
            attrs = {**common, "kind": "start", "number": number, "axes": ("i",), "sizes": (2,)}
            started.append((builder.emit("exchange", members, attrs)[0], members))
    results = list(graph.results)
    for number, (bucket, members) in enumerate(started):
        parts = tuple(str(v.type) for v in members)
        attrs = {**common, "kind": "done", "number": number, "axes": ("i",), "parts": parts}
        found = builder.emit("exchange", [bucket], attrs)
        results += chance.sample(found, chance.randrange(len(found) + 1))
    return with_block(graph, builder.block(results))


class TestPlayed:
    @given(graph_and_inputs(stage="optimized", ops=LOOPS, dtypes=[dtypes.float32], max_ops=25))
    @examples(100)
    def test_sums_of_what_is_in_a_graph(self, case: Case) -> None:
        for seed in range(8):
            fused = start_early(fuse(with_sums(case.graph, random.Random(seed))))
            play(fused, plan_memory(fused))

    def test_members_of_a_bucket_are_neighbours(self) -> None:
        """But for one that is read when the sum may stand there, and one that is an input."""
        b = Builder([tensor_type(dtypes.float32, 3, 3)])
        (x,) = b.args
        first, second, third = (b.emit1("matmul", x, x) for _ in range(3))
        common: dict[str, Any] = {"mesh": "mesh0", "axis_name": "i", "size": 2}
        members = [first, second, x, third]
        attrs = {**common, "kind": "start", "axes": ("i",), "sizes": (2,)}
        (bucket,) = b.emit("exchange", members, attrs)
        later = b.emit1("matmul", second, x)
        parts = tuple(str(m.type) for m in members)
        sums = b.emit(
            "exchange", [bucket], {**common, "kind": "done", "axes": ("i",), "parts": parts}
        )
        graph = b.graph("step", ("x",), [*(b.emit1("matmul", s, later) for s in sums)])
        plan = plan_memory(graph)
        play(graph, plan)
        base = int(plan.slots[bucket].which)
        assert [plan.slots[s] for s in sums] == [Slot("arena", base + 64 * k) for k in range(4)]
        assert (plan.slots[first], plan.slots[third]) == (plan.slots[sums[0]], plan.slots[sums[3]])
        assert plan.slots[second] != plan.slots[sums[1]]

    @given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=NO_STRINGS, max_ops=25))
    @examples(300)
    def test_random_graphs(self, case: Case) -> None:
        play(*planned(case.graph))

    @given(graph_and_inputs(stage="optimized", dtypes=[dtypes.float32, dtypes.int32], max_ops=30))
    @examples(200)
    def test_without_cleaning(self, case: Case) -> None:
        fused = fuse(case.graph)
        play(fused, plan_memory(fused))

    @given(
        graph_and_inputs(
            stage="traced",
            ops=["variable", "read", "assign", "add", "negative", "reshape", "concat", "slice"],
            dtypes=[dtypes.int32],
            max_ops=25,
        )
    )
    @examples(200)
    def test_state(self, case: Case) -> None:
        play(*planned(case.graph))
        fused = fuse(case.graph)
        play(fused, plan_memory(fused))

    @given(graph_and_inputs(
        stage="traced",
        ops=["variable", "read", "assign", "add", "negative", "reshape", "sum", "permute_dims"],
        dtypes=[dtypes.int64],
        max_ops=25,
    ))  # fmt: skip
    @examples(60)
    def test_state_compiled(self, case: Case) -> None:
        check_exactly(case, PIPELINE)
        check_exactly(case, (fuse,))

    def test_a_broken_plan_is_noticed(self) -> None:
        b = Builder([F32])
        x = b.emit1("exp", b.args[0])
        y = b.emit1("cumulative_sum", x, axis=0, reverse=False)
        z = b.emit1("cumulative_sum", y, axis=0, reverse=False)
        fused, plan = planned(b.graph("g", ["x"], [b.emit1("add", z, x)]))
        play(fused, plan)
        arena = [v for v, s in plan.slots.items() if s.kind == "arena"]
        for v in arena:
            plan.slots[v] = Slot("arena", 0)
        with pytest.raises(AssertionError, match=r"gone|overwrites"):
            play(fused, plan)


class Program:
    """Variables v and w of four floats, and a graph on them."""

    def __init__(self) -> None:
        self.builder = Builder([F32])
        self.x = self.builder.args[0]
        self.refs = {n: variable(self.builder, n, dtypes.float32, (4,)) for n in "vw"}
        self.order: list[Value] = []
        self.states = {
            n: VariableState(n, dtypes.float32, (4,), np.arange(4, dtype=np.float32) + 10 * k)
            for k, n in enumerate("vw", 1)
        }

    def read(self, name: str) -> Value:
        (value,) = self.builder.emit("read", [self.refs[name]], control=self.order[-1:])
        self.order.append(value)
        return value

    def assign(self, name: str, value: Value) -> None:
        self.order += self.builder.emit("assign", [self.refs[name], value], control=self.order)

    def graph(self, *results: Value) -> Graph:
        return self.builder.graph("step", ["x"], results)

    def run(self, *results: Value, passes: Any = PIPELINE) -> list[Array]:
        x = np.array([1, 2, 3, 4], np.float32)
        graph = self.graph(*results)
        case = Case(graph, [x], {n: s.read() for n, s in self.states.items()})
        check_exactly(case, passes)
        return compile_graph(graph, self.states, passes=passes).run([x])


by_pipeline = pytest.mark.parametrize("passes", [PIPELINE, (fuse,)], ids=["pipeline", "fuse"])
V, W = np.arange(4, dtype=np.float32) + 10, np.arange(4, dtype=np.float32) + 20
X = np.array([1, 2, 3, 4], np.float32)


@by_pipeline
class TestState:
    def test_swap(self, passes: Any) -> None:
        p = Program()
        v, w = p.read("v"), p.read("w")
        p.assign("v", w)
        p.assign("w", v)
        p.run(passes=passes)
        assert p.states["v"].read().tolist() == W.tolist()
        assert p.states["w"].read().tolist() == V.tolist()

    def test_swap_in_one_nest(self, passes: Any) -> None:
        p = Program()
        v, w = p.read("v"), p.read("w")
        total = p.builder.emit1("add", v, w)
        p.assign("v", p.builder.emit1("subtract", total, v))
        p.assign("w", p.builder.emit1("subtract", total, w))
        p.run(passes=passes)
        assert p.states["v"].read().tolist() == W.tolist()
        assert p.states["w"].read().tolist() == V.tolist()

    def test_reversed_in_place_is_not_done(self, passes: Any) -> None:
        p = Program()
        v = p.read("v")
        turned = p.builder.emit1("slice", v, starts=(3,), stops=(-1,), steps=(-1,))
        p.assign("v", p.builder.emit1("add", turned, p.x))
        p.run(passes=passes)
        assert p.states["v"].read().tolist() == (V[::-1] + X).tolist()

    def test_read_between_value_and_assignment(self, passes: Any) -> None:
        p = Program()
        value = p.builder.emit1("cumulative_sum", p.x, axis=0)
        old = p.read("v")
        p.assign("v", value)
        (got,) = p.run(p.builder.emit1("add", old, p.x), passes=passes)
        assert got.tolist() == (V + X).tolist()
        assert p.states["v"].read().tolist() == np.cumsum(X).tolist()

    def test_old_and_new_value(self, passes: Any) -> None:
        p = Program()
        old = p.read("v")
        p.assign("v", p.builder.emit1("add", old, p.x))
        new = p.read("v")
        got = p.run(old, new, passes=passes)
        assert [g.tolist() for g in got] == [V.tolist(), (V + X).tolist()]

    def test_several_assignments(self, passes: Any) -> None:
        p = Program()
        seen = []
        for _ in range(3):
            value = p.read("v")
            seen.append(value)
            p.assign("v", p.builder.emit1("add", value, p.x))
        got = p.run(*seen, passes=passes)
        assert [g.tolist() for g in got] == [(V + k * X).tolist() for k in range(3)]
        assert p.states["v"].read().tolist() == (V + 3 * X).tolist()

    def test_one_value_for_two_variables(self, passes: Any) -> None:
        p = Program()
        value = p.builder.emit1("add", p.read("v"), p.x)
        p.assign("v", value)
        p.assign("w", value)
        (got,) = p.run(value, passes=passes)
        got[:] = 0
        assert p.states["v"].read().tolist() == p.states["w"].read().tolist() == (V + X).tolist()

    def test_input_and_constant(self, passes: Any) -> None:
        p = Program()
        p.assign("v", p.x)
        p.assign("w", p.builder.emit1("constant", value=ConstArray(X * 2)))
        p.run(passes=passes)
        assert p.states["v"].read().tolist() == X.tolist()
        assert p.states["w"].read().tolist() == (X * 2).tolist()

    def test_scatter_update(self, passes: Any) -> None:
        p = Program()
        i = p.builder.emit1("constant", value=ConstArray(np.array([1, 1, 3])))
        u = p.builder.emit1("constant", value=ConstArray(np.ones(3, np.float32)))
        p.assign("v", p.builder.emit1("index_add", p.read("v"), i, u, axis=0))
        p.run(passes=passes)
        assert p.states["v"].read().tolist() == (V + np.array([0, 2, 0, 1])).tolist()

    def test_first_assignment_initialises(self, passes: Any) -> None:
        p = Program()
        p.states["v"] = VariableState("v", dtypes.float32, (4,))
        p.assign("v", p.x)
        step = compile_graph(p.graph(p.read("v")), p.states, passes=passes)
        assert step.run([X])[0].tolist() == p.states["v"].read().tolist() == X.tolist()

    def test_uninitialised(self, passes: Any) -> None:
        p = Program()
        p.states = {n: VariableState(n, dtypes.float32, (4,)) for n in "vw"}
        p.assign("v", p.x)
        p.assign("w", p.builder.emit1("add", p.read("w"), p.x))
        step = compile_graph(p.graph(), p.states, passes=passes)
        for _ in range(2):
            with pytest.raises(FailedPreconditionError, match="'w'"):
                step.run([X])
            assert not p.states["v"].initialized
        p.states["w"].write(W)
        step.run([X])
        assert p.states["w"].read().tolist() == (W + X).tolist()

    def test_a_variable_that_is_only_named_stays_uninitialised(self, passes: Any) -> None:
        p = Program()
        p.states["v"] = VariableState("v", dtypes.float32, (4,))
        compile_graph(p.graph(p.x), p.states, passes=passes).run([X])
        assert not p.states["v"].initialized

    def test_wrong_variables_are_refused(self, passes: Any) -> None:
        p = Program()
        graph = p.graph(p.read("v"))
        with pytest.raises(FailedPreconditionError, match="'v'"):
            compile_graph(graph, {}, passes=passes)
        p.states["v"] = VariableState("v", dtypes.float32, (3,), X[:3])
        with pytest.raises(ShapeError, match=r"f32\[3\]"):
            compile_graph(graph, p.states, passes=passes)


@by_pipeline
class TestResults:
    def test_inputs_constants_views_duplicates(self, passes: Any) -> None:
        b = Builder([F32])
        (x,) = b.args
        c = b.emit1("constant", value=ConstArray(X * 3))
        y = b.emit1("add", x, c)
        z = b.emit1("reshape", y, shape=(2, 2))
        s = b.emit1("constant", value=ConstArray(np.float32(7)))
        view = b.emit1("reshape", x, shape=(4, 1))
        graph = b.graph("g", ["x"], [x, x, c, y, y, z, view, s])
        check_exactly(Case(graph, [X], {}), passes)

    def test_no_calls_at_all(self, passes: Any) -> None:
        b = Builder([F32])
        step = compile_graph(b.graph("g", ["x"], []), passes=passes)
        assert [step.run([X]) for _ in range(3)] == [[], [], []]
        step = compile_graph(Builder().graph("g", [], []), passes=passes)
        assert [step.run([]) for _ in range(3)] == [[], [], []]

    def test_nothing_in_it(self, passes: Any) -> None:
        b = Builder([tensor_type(dtypes.float32, 0, 3)])
        y = b.emit1("exp", b.args[0])
        total = b.emit1("sum", y, axes=(0,), keepdims=False)
        step = compile_graph(b.graph("g", ["x"], [y, total, b.args[0]]), passes=passes)
        for _ in range(3):
            y_, total_, x_ = step.run([np.zeros((0, 3), np.float32)])
            assert y_.shape == x_.shape == (0, 3)
            assert total_.tolist() == [0, 0, 0]

    def test_a_failing_call_between_good_ones(self, passes: Any) -> None:
        b = Builder([F32, tensor_type(dtypes.int64, 2)])
        x, i = b.args
        y = b.emit1("take", b.emit1("exp", x), i, axis=0)
        step = compile_graph(b.graph("g", ["x", "i"], [b.emit1("negative", y)]), passes=passes)
        for _ in range(3):
            (got,) = step.run([X, np.array([0, -4])])
            np.testing.assert_allclose(got, -np.exp(X[[0, 0]]), rtol=1e-6)
            for bad in ([0, 4], [-5, 0]):
                with pytest.raises(InvalidArgumentError, match="out of bounds") as caught:
                    step.run([X, np.array(bad)])
                assert caught.value.locations

    def test_a_failing_call_does_not_initialise(self, passes: Any) -> None:
        p = Program()
        p.states["v"] = VariableState("v", dtypes.float32, (4,))
        i = p.builder.add_arg(tensor_type(dtypes.int64, 4))
        p.assign("v", p.builder.emit1("take", p.x, i, axis=0))
        graph = p.builder.graph("g", ["x", "i"], [])
        step = compile_graph(graph, p.states, passes=passes)
        with pytest.raises(InvalidArgumentError):
            step.run([X, np.array([0, 1, 2, 9])])
        assert not p.states["v"].initialized
        step.run([X, np.array([3, 2, 1, 0])])
        assert p.states["v"].read().tolist() == X[::-1].tolist()


class TestInPlace:
    @pytest.mark.parametrize("cast", ["bitcast", "astype"])
    def test_between_dtypes_of_one_width(self, cast: str) -> None:
        b = Builder([tensor_type(dtypes.float32, 40)])
        x = b.emit1("cumulative_sum", b.args[0], axis=0, reverse=False)
        whole = b.emit1(cast, x, dtype=dtypes.int32)
        y = b.emit1("cumulative_max", whole, axis=0, reverse=False)
        graph = b.graph("g", ["x"], [y])
        fused, plan = planned(graph)
        assert plan.in_place == 1
        play(fused, plan)
        check_exactly(Case(graph, [np.arange(40, dtype=np.float32)], {}), PIPELINE)

    def test_counter_is_updated_in_its_buffer(self) -> None:
        p = Program()
        p.assign("v", p.builder.emit1("add", p.read("v"), p.x))
        _, plan = planned(p.graph())
        assert not plan.copies
        assert plan.arena_bytes == 0

    def test_a_chain_reuses_its_arena(self) -> None:
        b = Builder([tensor_type(dtypes.float32, 1000)])
        v = b.args[0]
        for _ in range(10):
            v = b.emit1("cumulative_sum", v, axis=0, reverse=False)
        fused, plan = planned(b.graph("g", ["x"], [v]))
        play(fused, plan)
        assert plan.arena_bytes <= 2 * 4032


def test_states_helper_copies() -> None:
    p = Program()
    p.assign("v", p.x)
    before = {n: s.read() for n, s in p.states.items()}
    held = states(p.graph(), before)
    assert not any(np.shares_memory(held[n].buffer(), before[n]) for n in held)


def test_executable_reports_its_plan() -> None:
    b = Builder([F32])
    step: Executable = compile_graph(
        b.graph("g", ["x"], [b.emit1("exp", b.args[0])]), passes=(fuse,)
    )
    assert step.report.memory.result_bytes == 16
    assert len(step.report.calls) == 1
    assert compile_count() > 0
    assert WHOLE


def test_the_player_sees_what_is_left_of_a_range() -> None:
    memory, place = Memory(), Place(("arena", 0), 0)
    memory.write(place, whole("old", 8))
    memory.write(Place(place.buffer, 2), whole("new", 4))
    assert memory.read(place, 8) == (("old", 0, 2), ("new", 0, 4), ("old", 6, 2))
    memory.write(Place(place.buffer, 2), part(whole("old", 8), 2, 4))
    assert memory.read(place, 8) == whole("old", 8)
    assert memory.read(place, 9) is None
