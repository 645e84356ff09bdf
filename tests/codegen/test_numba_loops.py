"""Loops of the Numba engine: those whose values are in registers, printed as one kernel, and those
that keep stacks for their gradients, against the interpreter."""

# ruff: noqa: E731 - bodies of loops read best as lambdas
from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from graphs import Case, graph_and_inputs
from hypothesis import HealthCheck, given, settings
from loop_checks import OPS, check, control_ops, executable, floats
from random_graph_checks import WHOLE, check_exactly
from stack_sums import SUMS

import weft as wf
from weft.codegen.engines import using_engine
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError
from weft.ir.text.parser import parse_graph
from weft.passes.pipelines import STANDARD

DTYPES = ("float32", "float64", "int64", "int8", "uint32", "complex64")
few = settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.fixture(autouse=True)
def by_numba() -> Iterator[None]:
    with using_engine("numba"):
        yield


def one_kernel(f: Callable[..., Any], *args: Any, rtol: float = 2e-6) -> list[str]:
    """The text of the loops of `f`, which are printed kernels that give what the interpreter
    gives; with the other engine they print the same."""
    check(f, *args, rtol=rtol)
    texts = []
    for engine in ("llvm", "numba"):
        compiled = wf.compile(f, engine=engine)
        assert not control_ops(compiled, *args)
        kernels = [k for k in compiled.kernels(*args) if k.key.startswith("loop-")]
        texts.append([k.source().partition("import")[2] for k in kernels])
    assert texts[0]
    assert texts[0] == texts[1]
    return texts[0]


class TestInRegisters:
    def test_the_text(self) -> None:
        def collatz(n: Any) -> Any:
            halve = lambda i, v: (i + 1, wf.where(v % 2 == 0, v // 2, v * 3 + 1))
            return wf.while_loop(lambda i, v: v != 1, halve, (0, n))[0]

        (text,) = one_kernel(collatz, np.array(27))
        loop = """
    while s1 != int64(1):
"""
        assert loop in text
        assert (
            """
        left -= 1
        if left == 0:
            left = 4096
            if stopped(faults, worker):
                return
    out0[0] = s0
"""
            in text
        )

    @pytest.mark.share(6)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtypes(self, dtype: str) -> None:
        def f(n: Any, x: Any) -> Any:
            step = lambda i, a, b: (i + 1, b * 3 - a, a + b)
            return wf.while_loop(lambda i, a, b: i < n, step, (0, x, x + 1))

        for n in (0, 1, 9):
            one_kernel(f, np.array(n), np.array(5).astype(dtype))

    def test_bools(self) -> None:
        def f(n: Any, p: Any, q: Any) -> Any:
            step = lambda i, p, q: (i + 1, wf.logical_or(q, i == 3), wf.logical_not(p))
            return wf.while_loop(lambda i, p, q: i < n, step, (0, p, q))

        for n in range(5):
            one_kernel(f, np.array(n), np.array(True), np.array(False))

    @pytest.mark.slow
    def test_halves_are_the_walkers(self) -> None:
        f = lambda n, x: wf.while_loop(
            lambda i, x: i < n, lambda i, x: (i + 1, x * 0.7 + 1), (0, x)
        )
        args = np.array(5), np.float16(0.3)
        check(f, *args)
        assert control_ops(wf.compile(f), *args)

    @pytest.mark.slow
    def test_nested_branches_and_reads(self) -> None:
        def body(i: Any, a: Any, x: Any) -> Any:
            inner = lambda: a * wf.cond(i > 3, lambda: 2.0, lambda: 0.5)
            a = wf.cond(a > 0, lambda: a - x[i], inner)
            return i + 1, a + x[-1]

        f = lambda n, x: wf.while_loop(
            lambda i, a: i < n, lambda i, a: body(i, a, x), (wf.asarray(0), wf.asarray(1.0))
        )
        for n in (-1, 0, 1, 6):
            one_kernel(f, np.array(n), floats(6))
        with pytest.raises(InvalidArgumentError, match=r"index 6 .*axis 0 of size 6"):
            wf.compile(f)(np.array(7), -np.ones(6, np.float32))  # a > 0

    def test_loops_in_loops_and_values_that_change_places(self) -> None:
        def step(i: Any, a: Any, b: Any) -> Any:
            inner = lambda k, c: (k + 1, c * 0.5 + a)
            c = wf.while_loop(lambda k, c: k < i, inner, (wf.asarray(0), b))[1]
            return i + 1, b, a + c

        f = lambda n, x: wf.while_loop(lambda i, a, b: i < n, step, (wf.asarray(0), x, x + 1))
        for n in (0, 1, 2, 7):
            one_kernel(f, np.array(n), floats())

    def test_limits(self) -> None:
        step = lambda a, b: (b + 1, a * 1.5)
        for most in (0, 1, 5):
            f = lambda x, m=most: wf.while_loop(
                lambda a, b: a < 9, step, (x, x), maximum_iterations=m
            )  # fmt: skip
            if most:
                one_kernel(f, np.float32(0.5))
            else:
                check(f, np.float32(0.5))

    @pytest.mark.slow
    @pytest.mark.share(2)
    @pytest.mark.parametrize("reverse", [False, True])
    def test_scans(self, reverse: bool) -> None:
        f = lambda x: wf.scan(lambda c, r: (wf.sin(c) * 0.5 + r, (c * 3, r > 0)), xs=x,
                              init=wf.asarray(0.25), reverse=reverse)  # fmt: skip
        for n in (2, 7):
            one_kernel(f, floats(n))
        rows = lambda x: wf.scan(lambda c, r: (c * 0.9 + r[1], r[0]), init=x[0, 0], xs=x,
                                 reverse=reverse)  # fmt: skip
        one_kernel(rows, floats(5, 100))

    @pytest.mark.slow
    def test_arrays_that_change_in_place(self) -> None:
        def fill(x: Any) -> Any:
            step = lambda i, a: wf.scatter_nd_update(
                a, wf.reshape(i, (1,)), a[i - 1] + a[i - 2] * x[i]
            )
            return wf.fori_loop(2, 90, step, wf.ones((90,))), x

        one_kernel(fill, floats(90), rtol=1e-5)
        added = lambda x, k: wf.scan(
            lambda c, i: (wf.scatter_nd_add(c, wf.reshape(i, (1,)), 2.0), None), init=x, xs=k
        )[0]
        one_kernel(added, floats(70), np.array([3, -1, 3, 69]))

    @pytest.mark.slow
    def test_small_arrays(self) -> None:
        def lorenz(s: Any) -> Any:
            x, y, z = s[0], s[1], s[2]
            return wf.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

        step = lambda s, _: ((new := s + 0.01 * lorenz(s)), wf.max(new))
        one_kernel(lambda s: wf.scan(step, init=s, length=20), floats(3), rtol=1e-4)
        turned = lambda m, v: wf.while_loop(
            lambda i, v: (i < 9) & (wf.sum(v * v) < 1e6), lambda i, v: (i + 1, m @ v), (0, v)
        )
        one_kernel(turned, np.array([[0.0, -1.5], [1.0, 0.25]], np.float32), floats(2), rtol=1e-5)

    @pytest.mark.slow
    @pytest.mark.share(3)
    @pytest.mark.parametrize("op", ["while", "scan", "cond"])
    def test_random(self, op: str) -> None:
        @few
        @given(graph_and_inputs(stage="traced", ops=[op, *OPS], dtypes=WHOLE))
        def run(case: Case) -> None:
            check_exactly(case, STANDARD)

        run()


class TestStopping:
    F = staticmethod(
        lambda n, x: wf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.5 + 1.0), (0, x))
    )

    def test_ctrl_c(self) -> None:
        f, x = wf.compile(self.F), np.float32(1)
        one_kernel(self.F, np.array(3), x)
        f(np.array(3), x)  # Numba takes its time
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            for _ in range(2):
                begun = time.monotonic()
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    f(np.array(1 << 60), x)
                assert time.monotonic() - begun < 3
        finally:
            signal.signal(signal.SIGINT, before)

    def test_a_deadline(self) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            n = wf.placeholder(wf.int64, [])
            y = self.F(n, 0.0)[1]
            assert session.run(y, {n: 100_000}) == 2.0
            with pytest.raises(wf.errors.DeadlineExceededError):
                session.run(y, {n: 1 << 60}, options=wf.RunOptions(timeout=0.2))
            assert session.run(y, {n: 100_000}) == 2.0


def grown(x: Any, **options: Any) -> Any:
    """A loop whose gradient keeps stacks: of numbers in registers, or of arrays."""
    going, step = lambda v: wf.sum(v) < 2000, lambda v: v + wf.tanh(v) * 0.5
    return wf.sum(wf.while_loop(going, step, x, **options))


X = np.linspace(1, 2, 300).astype(np.float32)


class TestStacks:
    @pytest.mark.slow
    def test_a_gradient_in_registers(self) -> None:
        texts = one_kernel(lambda x: wf.grad(grown)(x), np.float32(3), rtol=1e-5)
        assert any("arena_push(arena, " in t for t in texts)
        assert any("top_of(" in t and "arena_push" not in t for t in texts)

    @pytest.mark.slow
    def test_gradients_of_arrays(self) -> None:
        f = lambda x: wf.grad(grown)(x)
        check(f, X, rtol=1e-5)
        names = {k.name: k.source() for k in wf.compile(f).kernels(X)}
        assert "arena_push(arena, stack[0], nbytes)" in names["push"]
        assert "rest[0] = below(place)" in names["pop"]
        report = executable(wf.compile(f), X).report
        keys = {c.call.kernel.key for c in report.calls}
        assert all(k.startswith("numba-") for k in keys)
        assert {"begin", "end"} <= {c.call.kernel.name for c in report.calls}

    @pytest.mark.share(3)
    @pytest.mark.parametrize("dtype", ["float16", "float64", "complex128"])
    def test_dtypes(self, dtype: str) -> None:
        def f(a: Any) -> Any:
            x = wf.while_loop(lambda x: wf.abs(x) > 0.1, lambda x: x * x * a, a)
            return wf.real(x * x)

        a = np.array(0.9 + 0.1j if dtype.startswith("complex") else 0.9).astype(dtype)
        check(lambda a: wf.grad(f)(a), a, rtol=1e-2 if dtype == "float16" else 1e-9)

    @pytest.mark.slow
    def test_a_loop_in_a_scan(self) -> None:
        """Stacks on a stack, and memory that goes back after each iteration."""

        def f(x: Any) -> Any:
            def step(c: Any, r: Any) -> Any:
                z = wf.while_loop(lambda z: wf.sum(z) > 30, lambda z: wf.sin(z) * 0.9 * x, c + r)
                return z * c * 0.5 + r * x, z

            c, zs = wf.scan(step, init=x, xs=wf.stack([x, x * 0.5, x * 2]))
            return wf.sum(c) + wf.sum(zs * zs)

        x = np.linspace(0.5, 0.9, 100)
        check(f, x)
        check(lambda x: wf.grad(f)(x), x, rtol=1e-8)

    @pytest.mark.slow
    def test_sums(self) -> None:
        """Of stacks of stacks: from the tops on; where one ends the other goes on."""
        x, y = np.float32([1, 2, 3]), np.float32([10, 20, 30])
        check_exactly(Case(parse_graph(SUMS), [x, y], {}), STANDARD)

    @pytest.mark.slow
    def test_many_chunks(self) -> None:
        """What an element takes does not fit the first chunk; the second call has its memory."""
        f = lambda x: wf.grad(lambda x: grown(x) + 1)(x)
        x = np.full(20_000, 0.001)
        check(f, x, rtol=1e-9)

    @pytest.mark.share(2)
    @pytest.mark.parametrize("x", [np.float32(1), X], ids=["in registers", "arrays"])
    def test_what_is_too_much(self, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        f = wf.compile(wf.grad(lambda x: grown(x, gradient_memory=256)))
        with pytest.raises(ResourceExhaustedError, match="more than gradient_memory=256"):
            f(x)
        monkeypatch.setenv("WEFT_STACK_BYTES", "1000")
        with pytest.raises(ResourceExhaustedError, match="than WEFT_STACK_BYTES allows"):
            wf.compile(wf.grad(grown))(x)


class TestParts:
    """Scans of independent rows run in parts, on several threads."""

    def test_rows_in_parts(self) -> None:
        step = lambda h, x: ((new := wf.tanh(h * 0.5 + x) + wf.sin(x)), new * 2)
        f = lambda h, xs: wf.scan(step, init=h, xs=xs)
        args = floats(64, 256), floats(40, 64, 256)
        check(f, *args, rtol=1e-5)
        assert "parts of" in wf.compile(f).explain(*args)
        alone = wf.compile(f, threads=1)(*args)
        for a, b in zip(alone, wf.compile(f)(*args), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    @pytest.mark.slow
    def test_scratch_is_not_shared(self) -> None:
        f = lambda h, w, xs: wf.scan(lambda h, x: (wf.tanh(h @ w + x), None), init=h, xs=xs)[0]
        args = floats(64, 64), floats(64, 64) / 8, floats(20, 64, 64)
        check(f, *args, rtol=1e-4)
        assert "not in parts: a printed kernel" in wf.compile(f).explain(*args)
