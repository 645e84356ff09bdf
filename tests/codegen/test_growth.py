"""What a compilation does grows with the size of the program, not faster: counted, not timed."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from graphs import graphs
from hypothesis import given
from paths import ROOT

import weft as wf
from weft.codegen.llvm import engine
from weft.codegen.nests.calls import nest_calls
from weft.ir.cost.rates import instructions
from weft.ir.cost.thresholds import MOST_INSTRUCTIONS
from weft.ir.dtypes import as_dtype
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.ir.types import tensor_type
from weft.passes.fusion.fuse import Group, Grouping
from weft.passes.fusion.horizontal import MOST_TRIED, _Joiner

X = np.ones(8, np.float32)


def benchmark() -> Any:
    """`benchmarks/growth.py`, whose programs these are."""
    found = importlib.util.spec_from_file_location("growth", ROOT / "benchmarks" / "growth.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


GROWTH = benchmark()


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of weft's Python run in this thread."""
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def begin(frame: FrameType, event: str, arg: object) -> Any:
        return local if "weft" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWTH.PROGRAMS)
def test_the_lines_that_a_compilation_runs_are_linear_in_the_ops(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From n to 2n ops as many are added as from 2n to 4n for each op, give or take a third.
    (What C loops over is not counted: comparing tuples, say.)"""
    monkeypatch.setenv("WEFT_CACHE", "0")
    n = 32

    def lines(size: int) -> int:
        step = wf.compile(GROWTH.PROGRAMS[name](size))
        return lines_run(lambda: step(X))

    sizes = (n, 2 * n, 4 * n)
    for size in sizes:
        wf.compile(GROWTH.PROGRAMS[name](size))(X)  # the kernels are there
    one, two, four = map(lines, sizes)
    assert four - two < 1.3 * 2 * (two - one), (one, two, four)


def nests(graph: Graph) -> list[Operation]:
    return [op for op in graph.ops if op.name == "fused"]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["chain", "products"])
def test_nests_are_cut_by_the_size_of_their_code(name: str) -> None:
    """And cut alike where the program repeats itself: few kernels for many nests."""
    step = wf.compile(GROWTH.PROGRAMS[name](2000))
    graph = parse_graph(str(step.ir(X)))
    sizes = []
    for op in nests(graph):
        ops = [o for o in op.regions[0].ops if "elementwise" in OPS[o.name].traits]
        sizes.append(sum(instructions(o.name, "f32") for o in ops))
    assert len(sizes) > 3
    assert max(sizes) <= MOST_INSTRUCTIONS
    assert sum(sizes) > len(sizes) * MOST_INSTRUCTIONS / 8  # nor are they cut for nothing
    keys = {nest_calls(op)[0][0].kernel.key for op in nests(graph)}
    assert len(keys) <= 6


def test_a_chain_that_is_cut_computes_the_same() -> None:
    program = GROWTH.PROGRAMS["chain"](400)
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    np.testing.assert_allclose(wf.compile(program)(x), program(x), rtol=0, atol=2e-6)


def emitted(name: str, dtype: str) -> int | None:
    """LLVM instructions that an op adds to the code of a nest that has one of its kind."""
    counts = []
    for times in (1, 2):
        inner = Builder([tensor_type(as_dtype(dtype), 1000)] * 3)
        values = inner.args[: OPS[name].arity]
        try:
            for _ in range(times):
                values = [*inner.emit(name, values, {}, locations=()), *inner.args[1:]]
                values = values[: OPS[name].arity]
            outer = Builder([a.type for a in inner.args])
            region = inner.block(values[:1])
            made = outer.emit("fused", outer.args, {"kind": "k"}, regions=[region], locations=())
            assert made[0].op is not None
            (call, *_), _ = nest_calls(made[0].op)
        except WeftError:  # not for this dtype, or its result is of another
            return None
        text = engine.emit_text(call.kernel, "kernel")
        counts.append(len(re.findall(r"^ +(?:%|store|br|call|ret|switch)", text, re.MULTILINE)))
    return counts[1] - counts[0]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_the_sizes_of_ops_are_those_of_the_code(dtype: str) -> None:
    """To a factor of two, of ops that are more than a few instructions."""
    rows = {
        name: (emitted(name, dtype), instructions(name, dtype))
        for name, spec in OPS.items()
        if "elementwise" in spec.traits and spec.arity in (1, 2, 3)
    }
    wrong = {
        name: (found, said)
        for name, (found, said) in rows.items()
        if found is not None and not max(found, 5) / 2 <= max(said, 5) <= max(found, 5) * 2
    }
    assert not wrong


def above_by_search(grouping: Grouping) -> dict[Group, set[Group]]:
    """The groups that must run before each, from what their ops read and wait for."""
    before: dict[Group, set[Group]] = {}
    for group in grouping.live:
        todo, seen = [group], set[Group]()
        while todo:
            one = todo.pop()
            for op in (*one.reads, *one.waits):
                made = grouping.group.get(op)
                if made is not None and made is not one and made not in seen:
                    seen.add(made)
                    todo.append(made)
        before[group] = seen
    return before


@examples(300)
@given(graphs(stage="traced", max_ops=20))
def test_groups_know_all_that_runs_before_them(graph: Graph) -> None:
    grouping = Grouping(graph)
    inside = {grouping.group.get(op) for op in graph.ops}
    for group, before in above_by_search(grouping).items():
        if group not in inside:
            continue
        assert group not in before, "a cycle"
        found = {other for other in grouping.live if group.above & other.bit}
        assert found >= {g for g in before if g in grouping.live}
        assert not group.above & group.bit


def test_a_value_that_many_nests_read_is_not_tried_with_all_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = [0]
    before = _Joiner._decide

    def deciding(self: _Joiner, *given: Any) -> None:
        tried[0] += 1
        before(self, *given)

    monkeypatch.setattr(_Joiner, "_decide", deciding)
    monkeypatch.setenv("WEFT_CACHE", "0")
    wf.compile(GROWTH.PROGRAMS["fan"](400)).ir(X)
    assert 0 < tried[0] <= 200 * (MOST_TRIED + 1)
