"""Loops on small arrays as one kernel, an element a register: against the interpreter."""

# ruff: noqa: E731 - bodies of loops read best as lambdas
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compiled_checks import PIPELINE
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given
from loop_checks import OPS, Array, check, control_ops, executable, floats
from plan_player import play
from random_graph_checks import WHOLE, check_exactly

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.codegen.loops import in_registers as scalar_check
from weft.codegen.loops.in_registers import in_registers, why_not_in_registers
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import run_passes
from weft.passes.memory.plan_memory import plan_memory

MORE = (*OPS, "concat", "pad", "permute_dims", "max", "min", "where", "matmul", "prod", "any")


@contextmanager
def at_any_price() -> Iterator[None]:
    """Also where vectors would be faster."""
    with patch.object(scalar_check, "KERNEL_IN_LOOP_NS", 1e9):
        yield


def one_kernel(f: Callable[..., Any], *args: Array, rtol: float = 2e-6) -> None:
    """`f` has no loop but those in kernels, and the interpreter's values."""
    with at_any_price():
        check(f, *args, rtol=rtol)
        assert not control_ops(wf.compile(f), *args)


def why(f: Callable[..., Any], *args: Array) -> str:
    graph, _ = run_passes(wf.compile(f).trace(*args), PIPELINE)
    return str(why_not_in_registers(next(op for op in graph.ops if op.name in ("scan", "while"))))


def lorenz(s: Any) -> Any:
    x, y, z = s[0], s[1], s[2]
    return wf.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def midpoint(s: Any, _: Any = None) -> Any:
    s = s + 0.01 * lorenz(s + 0.005 * lorenz(s))
    return s, s


class TestRandom:
    @given(graph_and_inputs(stage="traced", ops=MORE, dtypes=WHOLE))
    @examples(60)
    def test_whole_numbers(self, case: Case) -> None:
        with at_any_price():
            check_exactly(case, PIPELINE)

    @given(graph_and_inputs(stage="traced", ops=MORE, dtypes=WHOLE, max_ops=20))
    @examples(60)
    def test_without_cleaning(self, case: Case) -> None:
        with at_any_price():
            check_exactly(case, (fuse,))
            fused, _ = run_passes(case.graph, (fuse,))
            play(fused, plan_memory(fused, in_registers))


class TestScan:
    @pytest.mark.parametrize("length", [0, 1, 2, 50])
    def test_lorenz(self, length: int) -> None:
        run = lambda s: wf.scan(midpoint, init=s, length=length)
        one_kernel(run, floats(3), rtol=1e-4)

    def test_gradient(self) -> None:
        loss = lambda s, w: wf.sum(wf.scan(lambda c, _: midpoint(c * w), init=s, length=9)[1])
        one_kernel(lambda s, w: wf.value_and_grad(loss, argnums=(0, 1))(s, w), floats(3),
                   np.float32([1, 0.9, 1.1]), rtol=1e-4)  # fmt: skip

    def test_rows_of_sequences_and_reverse(self) -> None:
        f = lambda x, y: wf.scan(lambda c, r: (c * r[0] + wf.max(r[1]), (c[::-1], c.T)),
                                 init=wf.ones((2, 3)), xs=(x, y), reverse=True)  # fmt: skip
        for n in (1, 2, 40):
            one_kernel(f, floats(n, 2, 3), floats(n, 4))

    def test_kalman(self) -> None:
        """x = F x, P = F P F' + Q; then the update by a measurement of x[0]."""

        def step(c: Any, z: Any) -> Any:
            x, p = c
            f = wf.asarray(np.array([[1, 0.1], [0, 1]], np.float32))
            x, p = f @ x, f @ p @ f.T + 0.01 * wf.eye(2)
            gain = p[:, :1] / (p[0, 0] + 0.5)
            return (x + gain * (z - x[0]), p - gain @ p[:1]), x[:, 0]

        start = floats(2, 1), np.eye(2, dtype=np.float32)
        one_kernel(lambda x, p, z: wf.scan(step, init=(x, p), xs=z), *start, floats(30), rtol=1e-4)

    def test_a_large_array_is_read_at_an_index(self) -> None:
        f = lambda t, i: wf.scan(lambda c, k: (c * 0.5 + t[k], c), init=wf.ones((3,)), xs=i)
        one_kernel(f, floats(100), RNG.integers(0, 100, 20))

    def test_nested_and_branches(self) -> None:
        def inner(c: Any, x: Any) -> Any:
            return wf.cond(x > 0, lambda: c + x, lambda: wf.concat((c[1:], c[:1]))), None

        f = lambda x: wf.scan(lambda c, r: (wf.scan(inner, init=c, xs=r)[0], wf.sum(c)),
                              init=wf.asarray(np.float32([1, 2, 3])), xs=x)  # fmt: skip
        one_kernel(f, floats(5, 80))

    def test_swapped_and_equal_carries(self) -> None:
        step = lambda c, _: ((c[1] + 1, c[0] * 2), c[1])
        one_kernel(lambda x: wf.scan(step, init=(x, x), length=7), floats(4))

    def test_constants_of_several_elements(self) -> None:
        w = np.arange(6, dtype=np.float32).reshape(2, 3)
        step = lambda c, _: (wf.sin(c * w) + wf.arange(3.0), None)
        one_kernel(lambda x: wf.scan(step, init=x, length=5)[0], floats(2, 3))


def test_a_while_stops_by_what_its_array_holds() -> None:
    f = lambda x: wf.while_loop(lambda i, a: wf.all(a < 9), lambda i, a: (i + 1, a * 1.5 + i),
                                (wf.asarray(0), x))  # fmt: skip
    for scale in (1, 20):
        one_kernel(f, np.abs(floats(5)) * scale)


def test_a_variable() -> None:
    v = wf.Variable(np.float32([1, 2, 3]))
    wanted = wf.compile(lambda s: wf.scan(midpoint, init=s, length=20)[0])(v.read())
    wf.compile(lambda: v.assign(wf.scan(midpoint, init=v.read(), length=20)[0]))()
    np.testing.assert_array_equal(np.asarray(v.read()), np.asarray(wanted))


def test_other_lengths_compile_nothing() -> None:
    f = wf.compile(lambda s, x, k=0.3: wf.scan(lambda c, r: (c * k + r, c), init=s, xs=x),
                   static_argnames=("k",))  # fmt: skip
    f(floats(3), floats(9, 3))
    before = compile_count()
    f(floats(3), floats(7, 3), k=0.7)
    assert compile_count() == before
    f(floats(4), floats(7, 4))  # the sizes are in the code
    assert compile_count() == before + 1


class TestRefused:
    def test_reasons(self) -> None:
        scan = lambda step: lambda x: wf.scan(lambda c, _: (step(c), None), init=x, length=9)[0]
        assert "1 to 64 elements" in why(scan(lambda c: c + 1), floats(65))
        assert "'cumulative_sum'" in why(scan(lambda c: wf.cumsum(c, axis=0)), floats(4))
        assert "use vectors" in why(scan(wf.tanh), floats(64))
        with patch.object(scalar_check, "MOST_UNROLLED", 3):
            assert "more than 3 ops" in why(scan(lambda c: c + 1), floats(4))

    def test_rows_of_a_small_array_inside(self) -> None:
        total = lambda c: wf.scan(lambda d, r: (d + r, None), init=c[0], xs=c)[0]
        step = lambda c, _: (total(c) * wf.ones((4, 1)), None)
        f = lambda x: wf.scan(step, init=x, length=3)[0]
        assert "rows of a small array" in why(f, floats(4, 3))
        check(f, floats(4, 3), rtol=1e-5)


def test_explain_says_so() -> None:
    f = wf.compile(lambda s: wf.scan(midpoint, init=s, length=20))
    assert "small arrays, element by element" in executable(f, floats(3)).describe()


RNG = np.random.default_rng(4)
