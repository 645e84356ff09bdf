"""Scans whose rows do not depend on each other, run in parts: against the interpreter."""

# ruff: noqa: E731 - bodies of loops read best as lambdas
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given, settings
from loop_checks import OPS, Array, check, executable, floats
from plan_player import play
from random_graph_checks import WHOLE, states

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.codegen.loops import batch_parallel, in_registers
from weft.codegen.loops.batch_parallel import Parts, parts_of, runs_in_parts
from weft.codegen.loops.program import Loop
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import run_passes
from weft.passes.memory.plan_memory import plan_memory
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.kernel_times import pieces_of
from weft.runtime.trace.replay import Replay


@contextmanager
def small_parts() -> Iterator[None]:
    """However little work there is, and wherever the parts' bytes lie."""
    small = patch.object(in_registers, "SMALL", 1)
    with small, patch.multiple(batch_parallel, PART_NS=0.0, LOOP_NS=0.0, LINE=1):
        yield


def in_parts(compiled: Any, *args: Any) -> list[int]:
    """The numbers of parts of the loops of a compiled program."""
    found: list[int] = []

    def look(nodes: Any) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                found.append(0 if node.parts is None else node.parts.count)
                look(node.body)

    look(executable(compiled, *args).report.program)
    return found


def check_parts(f: Callable[..., Any], *args: Array, count: list[int], rtol: float = 2e-6) -> None:
    """`f` runs in so many parts, with the interpreter's values; on one thread, where a part is done
    before the next begins, with the same bits as on two."""
    assert in_parts(wf.compile(f), *args) == count
    wanted = check(f, *args, rtol=rtol)
    alone = wf.tree_leaves(wf.compile(f, threads=1)(*args))
    for x, y in zip(alone, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(x), y)


def why(f: Callable[..., Any], *args: Array) -> str:
    """Why the first loop of `f` runs as a whole."""
    graph, _ = run_passes(wf.compile(f).trace(*args), PIPELINE)
    found = parts_of(next(op for op in graph.ops if op.name in ("scan", "while")))
    assert isinstance(found, str)
    return found


def rnn(w: Any, u: Any, h: Any, xs: Any) -> Any:
    step = lambda h, x: ((new := wf.tanh(x @ w + h @ u)), (new, h * 2))
    return wf.scan(step, init=h, xs=xs)


class TestRandom:
    @given(graph_and_inputs(stage="traced", ops=OPS, dtypes=WHOLE, max_ops=20))
    @examples(100)
    def test_whole_numbers(self, case: Case) -> None:
        for passes in (PIPELINE, (fuse,)):
            with small_parts():
                made = compile_graph(case.graph, states(case.graph, case.state), passes=passes,
                                     threads=1)  # fmt: skip
                fused, _ = run_passes(case.graph, passes)
                play(fused, plan_memory(fused, in_parts=runs_in_parts))
            wanted = interpret(case.graph, case.inputs, DictState(case.state))
            for x, y in zip(made.run([a.copy() for a in case.inputs]), wanted, strict=True):
                assert x is None or same(x, y), f"{x!r} != {y!r}"

    @given(rows=graph_and_inputs(stage="traced", ops=("add", "multiply", "negative"), dtypes=WHOLE))
    @settings(max_examples=5)
    def test_the_patch_has_an_effect(self, rows: Case) -> None:
        f = wf.compile(lambda x: wf.scan(lambda c, _: (wf.cumulative_sum(c * 3, axis=1) * 0 + c, c),
                                         init=x, length=3))  # fmt: skip
        with small_parts():
            assert in_parts(f, np.arange(12).reshape(4, 3)) in ([4], [0])


class TestRecurrent:
    def test_forward_and_gradient(self) -> None:
        w, u, h, xs = floats(32, 64) / 9, floats(64, 64) / 9, floats(16, 64), floats(90, 16, 32)
        check_parts(rnn, w, u, h, xs, count=[2], rtol=1e-4)
        loss = lambda *a: wf.mean(rnn(*a)[1][0] ** 2)
        grad = lambda *a: wf.grad(loss, argnums=(0, 1, 2, 3))(*a)
        check_parts(grad, w, u, h, xs, count=[2, 2], rtol=1e-3)

    def test_a_weight_as_long_as_the_batch(self) -> None:
        check_parts(rnn, floats(64, 64) / 9, floats(64, 64) / 9, floats(64, 64), floats(99, 64, 64),
                    count=[8], rtol=2e-2)  # fmt: skip

    def test_reverse_and_odd_lengths(self) -> None:
        f = lambda u, h, xs: wf.scan(lambda h, x: ((n := wf.cumsum(h @ u, axis=1) * 0.1 + x), n),
                                     init=h, xs=xs, reverse=True)  # fmt: skip
        with small_parts():
            for length in (1, 2, 7):
                check(f, floats(64, 64) / 8, floats(16, 64), floats(length, 16, 64), rtol=1e-4)

    def test_inside_another_loop(self) -> None:
        def epochs(u: Any, h: Any, xs: Any) -> Any:
            once = lambda h, row: wf.scan(lambda h, x: (wf.tanh(h @ u + x + row), h), init=h, xs=xs)
            return wf.scan(lambda h, row: (once(h, row)[0], once(h * 2, row)[1][-1]), init=h,
                           xs=wf.stack([xs[0], xs[1] * 2, xs[2]]))  # fmt: skip

        u, h, xs = floats(64, 64) / 8, floats(16, 64), floats(90, 16, 64)
        f = wf.compile(epochs)
        assert max(in_parts(f, u, h, xs)) == 2
        check(epochs, u, h, xs, rtol=1e-3)

    def test_swapped_carries_and_a_row_that_all_share(self) -> None:
        def f(a: Any, b: Any, xs: Any) -> Any:
            step = lambda c, x: ((c[1], wf.sin(c[0]) + x), c[0] * x)
            return wf.scan(step, init=(a, b), xs=xs)

        check_parts(f, floats(64, 256), floats(64, 256), floats(100, 256), count=[16], rtol=1e-4)

    def test_products_of_each_row(self) -> None:
        f = lambda m, x: wf.scan(lambda c, _: (m @ c * 0.1 + x, None), init=x, length=60)[0]
        check_parts(f, floats(16, 64, 64), floats(16, 64, 4), count=[2], rtol=1e-3)

    @pytest.mark.parametrize(("n", "count"), [(2, 0), (4, 2), (9, 3), (16, 8)])
    def test_folds_of_each_row_of_a_small_batch(self, n: int, count: int) -> None:
        """A part has several rows: of one row the fold would be of all that there is."""
        step = lambda c, x: (wf.maximum(c - wf.max(c, axis=1, keepdims=True), x), c * 2)
        f = lambda c, xs: wf.scan(step, init=c, xs=xs)
        with small_parts():
            check_parts(f, floats(n, 32), floats(5, n, 32), count=[count])

    def test_another_batch_compiles_nothing(self) -> None:
        f = wf.compile(rnn)
        w, u = floats(32, 64), floats(64, 64) / 8
        f(w, u, floats(16, 64), floats(90, 16, 32))
        f(w, u, floats(32, 64), floats(90, 32, 32))
        before = compile_count()
        f(w, u, floats(48, 64), floats(99, 48, 32))
        assert compile_count() == before


class TestRefused:
    @pytest.mark.parametrize(
        ("step", "reason"),
        [
            (lambda c, u, x: c - wf.sum(c, axis=0) + x, "keep rows apart"),
            (lambda c, u, x: wf.cumsum(c, axis=0) * 0.1, "keep rows apart"),
            (lambda c, u, x: c[::-1] + x, "moves the rows"),
            (lambda c, u, x: (c.T @ c) * 0.01 + c, "rows"),
            (lambda c, u, x: u @ c * 0.01, "rows by rows"),
            (lambda c, u, x: wf.take(c, wf.asarray([1, 2] * 32), axis=0), "'take'"),
        ],
    )
    def test_rows_that_meet(self, step: Callable[..., Any], reason: str) -> None:
        f = lambda c, u, xs: wf.scan(lambda c, x: (wf.tanh(step(c, u, x)), None), init=c, xs=xs)[0]
        args = floats(64, 64), floats(64, 64), floats(200, 64, 64)
        with small_parts():
            assert reason in why(f, *args)
            check(f, *args, rtol=1e-2)

    def test_a_carry_of_one_number(self) -> None:
        f = lambda c: wf.scan(lambda c, _: ((c[0] + 1, wf.sin(c[1]) * c[0]), None),
                              init=(wf.asarray(0.0), c), length=9)[0]  # fmt: skip
        assert "first axis" in why(f, floats(64, 64))

    def test_little_work(self) -> None:
        f = lambda c: wf.scan(lambda c, _: (wf.sin(c), None), init=c, length=9)[0]
        assert "too small" in why(f, floats(16, 16))


def test_explain_and_replay() -> None:
    w, u, h, xs = floats(32, 64) / 9, floats(64, 64) / 9, floats(16, 64), floats(90, 16, 32)
    f = wf.compile(rnn)
    made = executable(f, w, u, h, xs)
    assert "in 2 parts of 8 rows each" in made.describe()
    times = list(Replay(made, [w, u, h, xs], {}).times(1, 1e-6, lambda piece: True))
    assert len(times) == len(pieces_of(made))
    assert all(t.one is not None for t in times)


def test_parts_are_what_their_rows_are() -> None:
    f = lambda u, h: wf.scan(lambda h, _: (wf.tanh(h @ u), None), init=h, length=200)[0]
    graph, _ = run_passes(wf.compile(f).trace(floats(64, 64), floats(32, 64)), PIPELINE)
    found = parts_of(next(op for op in graph.ops if op.name == "scan"))
    assert isinstance(found, Parts)
    assert (found.count, found.rows) == (4, 8)
    (shared,) = (a for a in found.body.args if a not in found.split)
    assert shared.type.shape == (64, 64)
    assert {v.type.shape[0] for v in found.split} == {8}
