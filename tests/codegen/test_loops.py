"""Native control flow: `cond`, `while` and `scan` compiled, against the interpreter."""

# ruff: noqa: E731 - bodies of loops read best as lambdas
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compiled_checks import PIPELINE
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given
from loop_checks import OPS, check, control_ops, executable, floats, program
from plan_player import play
from random_graph_checks import WHOLE, check_exactly

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.codegen.loops import in_registers as scalar_check
from weft.codegen.loops.in_registers import in_registers, why_not_in_registers
from weft.codegen.loops.program import Loop
from weft.ir.errors import InvalidArgumentError
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import run_passes
from weft.passes.memory.plan_memory import plan_memory

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, scope="module")
def small_arrays_in_memory() -> Iterator[None]:
    """Loops on small arrays are in test_loop_small.py."""
    with patch.object(scalar_check, "SMALL", 1):
        yield


class TestRandom:
    @given(graph_and_inputs(stage="traced", ops=OPS, dtypes=WHOLE))
    @examples(60)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=OPS, dtypes=WHOLE))
    @examples(60)
    def test_whole_numbers_without_cleaning(self, case: Case) -> None:
        check_exactly(case, (fuse,))

    @given(graph_and_inputs(stage="traced", ops=OPS, dtypes=WHOLE, max_ops=20))
    @examples(150)
    def test_plans_are_sound(self, case: Case) -> None:
        fused, _ = run_passes(case.graph, PIPELINE)
        for seed in range(3):
            play(fused, plan_memory(fused), seed)
        play(fused, plan_memory(fused, in_registers))

    @given(graph_and_inputs(stage="optimized", ops=OPS, dtypes=WHOLE, max_ops=20))
    @examples(100)
    def test_plans_without_cleaning_are_sound(self, case: Case) -> None:
        fused = fuse(case.graph)
        for seed in range(3):
            play(fused, plan_memory(fused), seed)
        play(fused, plan_memory(fused, in_registers))


class TestScan:
    def test_carry_in_two_buffers_and_stacked_rows(self) -> None:
        for n in (0, 1, 2, 3, 8):
            check(lambda x: wf.scan(lambda c, r: (c @ wf.ones((3, 3)) + r, c), init=wf.zeros((3,)),
                                    xs=x), floats(n, 3))  # fmt: skip

    def test_reverse(self) -> None:
        f = lambda x: wf.scan(lambda c, r: (c * 0.5 + r, (c, r + 1)), init=wf.zeros((3,)), xs=x,
                              reverse=True)  # fmt: skip
        for n in (0, 1, 4):
            check(f, floats(n, 3))

    def test_nested_three_deep(self) -> None:
        def inner(c: Any, x: Any) -> Any:
            return wf.scan(lambda d, y: (d * 0.5 + y + c[0], d), init=c, xs=x)

        def middle(c: Any, x: Any) -> Any:
            return wf.scan(inner, init=c, xs=x)

        f = lambda x: wf.scan(middle, init=wf.zeros((3,)), xs=x)
        for shape in ((2, 3, 4, 3), (3, 1, 2, 3), (2, 0, 2, 3)):
            check(f, floats(*shape))

    def test_carry_in_place(self) -> None:
        f = wf.compile(lambda x: wf.scan(lambda c, r: (c * 0.5 + r, None), init=x[0], xs=x)[0])
        x = floats(5, 7)
        memory = executable(f, x).report.memory
        assert not [m for m in memory.moving if m.even != m.odd]
        check(lambda x: wf.scan(lambda c, r: (c * 0.5 + r, None), init=x[0], xs=x)[0], x)

    def test_a_row_of_a_large_carry_is_updated_in_place(self) -> None:
        def fill(x: Any) -> Any:
            step = lambda i, a: wf.scatter_nd_update(a, wf.reshape(i, (1,)), x * wf.sum(a[i - 1]))
            return wf.fori_loop(1, 6, step, wf.ones((6, 3)))

        x = floats(3)
        check(fill, x, rtol=1e-5)
        calls = executable(wf.compile(fill), x).report.calls
        assert not [c for c in calls if c.call.kernel.name == "strided_copy"]

    @pytest.mark.parametrize("shape", [(4,), (4, 3)])
    def test_a_stack_is_not_written_over_what_the_loop_reads(self, shape: tuple[int, ...]) -> None:
        def reverse(x: Any) -> Any:
            step = lambda i, _: (i + 1, wf.cumulative_sum(x[3 - i], axis=-1) if x.ndim > 1
                                 else x[3 - i] * 2)  # fmt: skip
            return wf.scan(step, init=wf.asarray(0), length=4)[1]

        check(lambda x: wf.scan(lambda c, _: (reverse(c), None), init=x, length=3)[0],
              floats(*shape))  # fmt: skip
        v = wf.Variable(x := floats(*shape))
        wanted = wf.compile(reverse)(x)
        wf.compile(lambda: v.assign(reverse(v.read())))()
        np.testing.assert_array_equal(np.asarray(v.read()), np.asarray(wanted))

    def test_a_scan_of_rows_only_is_sound_as_a_carry(self) -> None:
        same = lambda c: wf.scan(lambda _, r: ((), r), init=(), xs=c)[1]
        x = np.array([True, False])
        f = wf.compile(lambda x: wf.scan(lambda c, _: (same(c), None), init=x, length=2)[0])
        for passes in (PIPELINE, (fuse,)):
            fused, _ = run_passes(f.trace(x), passes)
            play(fused, plan_memory(fused, in_registers))
        np.testing.assert_array_equal(np.asarray(f(x)), x)

    def test_rows_are_not_copied(self) -> None:
        f = wf.compile(lambda x: wf.scan(lambda c, r: (c @ r, wf.exp(r)), init=x[0, :1], xs=x))
        x = floats(4, 3, 3)
        loop = next(n for n in program(f, x) if isinstance(n, Loop))
        assert not [c for c in loop.body if c.op is None]


class TestWhile:
    @pytest.mark.parametrize("bound", [-1, 0, 1, 2, 5])
    def test_trip_counts(self, bound: int) -> None:
        def f(n: Any, x: Any) -> Any:
            going = lambda i, a, b: i < n
            return wf.while_loop(going, lambda i, a, b: (i + 1, wf.cumsum(b, axis=0), a + 1),
                                 (wf.asarray(0), x, x * 2))  # fmt: skip

        check(f, np.array(bound), floats(3, 2))

    @pytest.mark.parametrize("count", range(4))
    def test_swap_and_twice_and_invariant(self, count: int) -> None:
        for f in (
            lambda n, x, y: (n, lambda i, a, b: (i + 1, b, a), (x, y)),
            lambda n, x, y: (n, lambda i, a, b: (i + 1, a + b, a + b), (x, y)),
            lambda n, x, y: (n, lambda i, a, b: (i + 1, y, b), (x, y)),
            lambda n, x, y: (n, lambda i, a, b: (i + 1, a, a), (x, x)),
            lambda n, x, y: (n, lambda i, a, b: (i + 1, wf.cumsum(b, axis=0), a + x), (x, x)),
        ):

            def run(n: Any, x: Any, y: Any, f: Any = f) -> Any:
                n, step, start = f(n, x, y)
                going = lambda i, a, b: i < n
                return wf.while_loop(going, step, (wf.asarray(0), *start)), x

            check(run, np.array(count), floats(4), floats(4))

    def test_limit(self) -> None:
        for most in (0, 1, 2, 3, 9):
            f = lambda x, m=most: wf.while_loop(
                lambda a, b: wf.sum(a) < 10, lambda a, b: (b + 1, wf.cumsum(a, axis=0)),
                (x, x), maximum_iterations=m,
            )  # fmt: skip
            check(f, np.abs(floats(5)))

    def test_row_that_equals_a_carry(self) -> None:
        f = lambda x: wf.scan(lambda c, r: ((s := wf.cumsum(c, axis=0) + r), s), init=x[0], xs=x)
        check(f, floats(4, 3))


class TestCond:
    def test_branches(self) -> None:
        f = lambda p, x, y: wf.cond(p, lambda: (x + y, x, y, x), lambda: (y, y, wf.exp(x), x * 2))
        for p in (True, False):
            check(f, np.array(p), floats(3, 4), floats(3, 4))

    def test_only_one_branch_runs(self) -> None:
        f = wf.compile(lambda p, x, i: wf.cond(p, lambda: wf.take(x, i, axis=0), lambda: x[:2]))
        x, bad = floats(3, 4), np.array([0, 7])
        np.testing.assert_array_equal(np.asarray(f(np.array(False), x, bad)), x[:2])
        with pytest.raises(InvalidArgumentError, match="index 7 "):
            f(np.array(True), x, bad)

    def test_nested_in_loops(self) -> None:
        def step(c: Any, r: Any) -> Any:
            new = wf.cond(wf.sum(r) > 0, lambda: c + r, lambda: wf.cond(
                r[0] > 0, lambda: c * 2, lambda: wf.cumsum(c, axis=0)))  # fmt: skip
            return new, wf.cond(r[1] > 0, lambda: r, lambda: c)

        check(lambda x: wf.scan(step, init=x[0], xs=x), floats(9, 4))

    def test_a_large_carry_is_updated_in_place_in_a_branch(self) -> None:
        def fill(x: Any) -> Any:
            def step(i: Any, a: Any) -> Any:
                put = lambda: wf.scatter_nd_update(a, wf.reshape(i, (1,)), x * 2)
                return wf.cond(wf.sum(x) > i, put, lambda: a)

            return wf.fori_loop(0, 6, step, wf.ones((6, 3)))

        for x in (floats(3), floats(3) + 9):
            check(fill, x)
        report = executable(wf.compile(fill), x).report
        slots = {s for v, s in report.memory.slots.items() if v.type.shape == (6, 3)}
        assert not [s for s in slots if s.kind == "moving"]
        assert not [c for c in report.calls if c.call.kernel.name == "strided_copy"]


class TestRegisters:
    """Loops on single values are one kernel."""

    def one_kernel(self, f: Callable[..., Any], *args: Array, rtol: float = 2e-6) -> None:
        check(f, *args, rtol=rtol)
        assert not control_ops(wf.compile(f), *args)

    def test_scan(self) -> None:
        f = lambda x: wf.scan(lambda c, r: (wf.sin(c) * 0.5 + r, c * 3), init=wf.asarray(0.25),
                              xs=x)  # fmt: skip
        for n in (0, 1, 7):
            self.one_kernel(f, floats(n))
            self.one_kernel(lambda x: wf.grad(lambda x: wf.sum(f(x)[1]))(x), floats(n), rtol=1e-5)

    def test_while_with_reads_and_branches(self) -> None:
        def body(i: Any, a: Any, n: Any, x: Any) -> Any:
            a = wf.cond(a > 0, lambda: a - x[i], lambda: a * wf.cond(i > 3, lambda: 2.0,
                                                                     lambda: 0.5))  # fmt: skip
            return i + 1, a + x[-1]

        f = lambda n, x: wf.while_loop(
            lambda i, a: i < n, lambda i, a: body(i, a, n, x), (wf.asarray(0), wf.asarray(1.0))
        )
        for n in (-1, 0, 1, 6):
            self.one_kernel(f, np.array(n), floats(6))

    def test_nested_loops(self) -> None:
        def row(total: Any, r: Any) -> Any:
            return wf.scan(lambda t, y: (t * 0.9 + y, None), init=total, xs=r)[0], total

        self.one_kernel(lambda x: wf.scan(row, init=wf.asarray(0.0), xs=x), floats(5, 4))

    def test_an_array_updated_element_by_element(self) -> None:
        def fill(x: Any) -> Any:
            def step(i: Any, a: Any) -> Any:
                place = wf.reshape(i, (1,))
                return wf.scatter_nd_update(a, place, a[i - 1] + a[i - 2] * x[i])

            return wf.fori_loop(2, 9, step, wf.ones((9,))), x

        self.one_kernel(fill, floats(9))

    def test_an_old_version_of_an_array_is_not_read(self) -> None:
        def f(x: Any) -> Any:
            def step(i: Any, a: Any) -> Any:
                new = wf.scatter_nd_update(a, wf.reshape(i, (1,)), a[0] + 1)
                return wf.scatter_nd_update(new, wf.reshape(i + 1, (1,)), a[i] * 2)

            return wf.fori_loop(0, 4, step, x)

        check(f, floats(6))

    def test_gradient_with_stacks(self) -> None:
        def f(x: Any) -> Any:
            return wf.while_loop(lambda i, a: a < 10, lambda i, a: (i + 1, a * 1.1 + x[i] ** 2),
                                 (0, wf.asarray(1.0)), maximum_iterations=16)[1]  # fmt: skip

        self.one_kernel(lambda x: wf.value_and_grad(f)(x), floats(17), rtol=1e-5)

    def test_index_out_of_bounds_names_its_op(self) -> None:
        def f(n: Any, x: Any, y: Any) -> Any:
            step = lambda i, a: (i + 1, a + y[0] + x[i])
            return wf.while_loop(lambda i, a: i < n, step, (wf.asarray(0), wf.asarray(0.0)))

        compiled = wf.compile(f)
        compiled(np.array(3), floats(3), floats(1))
        with pytest.raises(InvalidArgumentError, match=r"f32\[3\]") as error:
            compiled(np.array(4), floats(3), floats(1))
        assert "test_loops.py" in str(error.value)

    def test_other_lengths_and_constants_compile_nothing(self) -> None:
        f = wf.compile(lambda x, k=0.3: wf.scan(lambda c, r: (c * k + r, c), init=0.0, xs=x),
                       static_argnames=("k",))  # fmt: skip
        f(floats(5))
        before = compile_count()
        f(floats(9))
        f(floats(9), k=0.7)
        assert compile_count() == before

    def test_why_not(self) -> None:
        f = lambda x: wf.scan(lambda c, r: (wf.cumsum(c, axis=0) + r, None), init=x[0], xs=x)[0]
        graph, _ = run_passes(wf.compile(f).trace(floats(3, 4)), PIPELINE)
        (op,) = [op for op in graph.ops if op.name == "scan"]
        assert "f32[4]" in str(why_not_in_registers(op))


def test_other_lengths_compile_nothing() -> None:
    f = wf.compile(lambda x: wf.scan(lambda c, r: (c @ wf.ones((3, 3)) + r, c), init=x[0], xs=x))
    f(floats(5, 2, 3))
    before = compile_count()
    f(floats(8, 2, 3))
    f(floats(8, 4, 3))
    assert compile_count() == before


def test_an_index_out_of_bounds_in_a_loop_names_op_and_line() -> None:
    def f(n: Any, x: Any) -> Any:
        step = lambda i, a: (i + 1, a + wf.take(x, wf.reshape(i, (1,)), axis=0))
        return wf.while_loop(lambda i, a: i < n, step, (wf.asarray(0), wf.zeros((1, 2))))

    compiled = wf.compile(f)
    compiled(np.array(3), floats(3, 2))
    with pytest.raises(InvalidArgumentError, match="op 'take'") as error:
        compiled(np.array(5), floats(3, 2))
    assert "test_loops.py" in str(error.value)


def test_two_threads_run_one_loop_at_once() -> None:
    f = wf.compile(lambda x: wf.scan(lambda c, r: (wf.cumsum(c, axis=0) * 0.5 + r, c), init=x[0],
                                     xs=x))  # fmt: skip
    inputs = [floats(200, 16) for _ in range(2)]
    wanted = [[np.asarray(t) for t in f(x)] for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            got = [np.asarray(t) for t in f(inputs[k])]
            if not all(np.array_equal(a, b) for a, b in zip(got, wanted[k], strict=True)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_loops_of_variables() -> None:
    v = wf.Variable(np.arange(3, dtype=np.float32))

    @wf.compile
    def f(x: Any) -> Any:
        v.assign(wf.scan(lambda c, r: (c + r, None), init=v.read(), xs=x)[0])
        return v.read() * 2

    x = floats(4, 3)
    got = np.asarray(f(x))
    np.testing.assert_allclose(got, 2 * (np.arange(3) + x.sum(0)), rtol=1e-5)


def test_the_plan_is_readable() -> None:
    f = wf.compile(lambda x: wf.while_loop(lambda a: wf.sum(a) < 9, lambda a: wf.cumsum(a, axis=0),
                                           x))  # fmt: skip
    x = np.ones(3, np.float32)
    text = executable(f, x).describe()
    assert "while: loop" in text
    assert "\n  leave unless the test holds" in text
    listing = executable(f, x).llvm()
    assert "cumulative_sum" in listing
