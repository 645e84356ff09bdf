"""Gradients of while loops whose length depends on the data: stacks, any order, little memory.

The truth is finite differences, the same computation unrolled in Python, or a scan with a mask.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shares
from example_counts import examples
from graphs import Case
from hypothesis import given, settings
from stack_sums import SUMS
from structured_programs import programs

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Block, Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.locations import Location
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.pipelines import STANDARD
from weft.passes.rewriting.expression import Expr
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.host_dispatch import step_start
from weft.runtime.native import activation as stacks
from weft.runtime.native.activation import StackArena
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.step import RunContext

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def root(a: Any) -> Any:
    """Newton's method: a captured value matters in every iteration."""
    (x,) = wf.while_loop(lambda x: wf.abs(x * x - a) > 1e-9, lambda x: [0.5 * (x + a / x)], [a])
    return x


def damped(a: Any) -> Any:
    """About 20 iterations, an integer carry, residuals of ops that are not cheap."""
    x, n = wf.while_loop(
        lambda x, n: wf.abs(x * x - a) > 1e-7,
        lambda x, n: (0.6 * x + 0.4 * wf.sqrt(x * wf.exp(0.01 * wf.sin(x))) * a / (x * wf.sqrt(x))
                      * wf.exp(-0.005 * wf.sin(x)), n + 1),
        (a, 0),
    )  # fmt: skip
    return x * n


def while_in_while(a: Any) -> Any:
    def body(s: Any) -> Any:
        i, y = s
        z = wf.while_loop(lambda z: z > 0.1, lambda z: wf.sin(z) * 0.9 * a, y)
        return i + 1, y * 0.7 + z * y

    _, y = wf.while_loop(lambda s: s[1] > 0.3, body, (0, a))
    return y


def while_in_scan(a: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        z = wf.while_loop(lambda z: z > 0.1, lambda z: wf.sin(z) * 0.9 * a, c + x)
        return z * c + x * a, z

    c, zs = wf.scan(step, a, wf.asarray(np.array([0.5, 0.9, 0.3])))
    return c + wf.sum(zs * zs)


def while_in_limited_while(a: Any) -> Any:
    def body(y: Any) -> Any:
        z = wf.while_loop(lambda z: z > 0.2, lambda z: wf.tanh(z) * 0.8 * a, y)
        return y * 0.6 + 0.5 * z * y

    return wf.while_loop(lambda y: y > 0.1, body, a, maximum_iterations=20)


def while_in_cond_in_while(a: Any) -> Any:
    def body(y: Any) -> Any:
        def long() -> Any:
            return y * wf.while_loop(lambda z: z > 0.3, lambda z: z * wf.cos(z) * a, y)

        return wf.cond(y > 0.6, long, lambda: y * 0.8 * a)

    return wf.while_loop(lambda y: y > 0.05, body, a)


def vectors(a: Any) -> Any:
    """Arrays as carries and as what is used from outside."""
    w = wf.asarray(np.array([[0.3, -0.4], [0.5, 0.2]])) * a
    v = wf.while_loop(
        lambda v: wf.sum(v * v) > 1e-4, lambda v: wf.tanh(w @ v) + 0.1 * v, wf.stack([a, a * a])
    )
    return wf.sum(v) * 100


CASES = {
    root: 2.0, damped: 3.7, while_in_while: 0.95, while_in_scan: 0.9, while_in_limited_while: 0.97,
    while_in_cond_in_while: 0.93, vectors: 0.9,
}  # fmt: skip


def difference(f: Function, x: float, step: float = 1e-6) -> float:
    low, high = (f(wf.asarray(np.float64(x + d))).item() for d in (-step, step))
    return float((high - low) / (2 * step))


def derivative(f: Function, order: int) -> Function:
    for _ in range(order):
        f = wf.grad(f)
    return f


# ------------------------------------------------------------------------------------------ values


@pytest.mark.share(4)
@pytest.mark.parametrize("order", shares.every(3, [1, 2, 3]))
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_gradients_are_differences(f: Function, order: int) -> None:
    x = CASES[f]
    below = wf.compile(derivative(f, order - 1))
    g = wf.compile(derivative(f, order))
    found = g(np.float64(x)).item()
    wanted = (below(np.float64(x + 1e-6)).item() - below(np.float64(x - 1e-6)).item()) / 2e-6
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.share(8)
@pytest.mark.parametrize("order", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_every_pass_keeps_the_meaning(f: Function, order: int) -> None:
    x = [np.float64(CASES[f])]
    graph = wf.compile(derivative(f, order)).trace(*x)
    verify(graph)
    (wanted,) = interpret(graph, x)
    for step in STANDARD:
        before, graph = graph, step(graph)
        if graph is before:
            continue
        verify(graph)
        np.testing.assert_allclose(interpret(graph, x)[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(wf.compile(derivative(f, order))(*x), wanted, rtol=1e-10)


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_forward_mode(f: Function) -> None:
    x = wf.asarray(np.float64(CASES[f]))
    value, tangent = wf.jvp(f, (x,), (wf.ones_like(x),))
    assert value.item() == f(x).item()
    assert tangent.item() == pytest.approx(wf.grad(f)(x).item(), rel=1e-9)


def test_the_gradient_is_that_of_the_loop_unrolled() -> None:
    w0, x0 = np.random.default_rng(0).normal(size=(2, 3, 3)) * 0.4

    def loop(w: Any, x: Any) -> Any:
        return wf.sum(
            wf.while_loop(lambda x: wf.max(wf.abs(x)) > 1e-3, lambda x: wf.tanh(w @ x), x)
        )

    def unrolled(w: Any, x: Any) -> Any:
        for _ in range(iterations):
            x = wf.tanh(w @ x)
        return wf.sum(x)

    iterations, x = 0, x0
    while np.abs(x).max() > 1e-3:
        x, iterations = np.tanh(w0 @ x), iterations + 1
    assert iterations > 3
    for run in (lambda f: f, wf.compile):
        found = run(wf.grad(loop, argnums=(0, 1)))(w0, x0)
        wanted = run(wf.grad(unrolled, argnums=(0, 1)))(w0, x0)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.share(2)
@pytest.mark.parametrize("f", [root, vectors], ids=lambda f: f.__name__)
def test_third_order_adds_stacks(f: Function) -> None:
    x = np.float64(CASES[f])
    third, second = (wf.compile(derivative(f, order)) for order in (3, 2))
    assert any(op.name == "stack_add" for op in third.trace(x).walk())
    wanted = (second(x + 1e-6).item() - second(x - 1e-6).item()) / 2e-6
    assert third(x).item() == pytest.approx(wanted, rel=1e-5)


def test_sums_of_stacks_of_stacks() -> None:
    """From the tops on; where one ends the other goes on, and at last there are zeros."""
    graph = parse_graph(SUMS)
    verify(graph)
    x, y = np.float32([1, 2, 3]), np.float32([10, 20, 30])
    wanted = [y + y, x, y, 0 * x]
    lowered = lower_control_flow(graph)
    for found in (
        interpret(graph, [x, y]),
        interpret(lowered, [x, y]),
        compile_graph(graph).run([x, y]),
    ):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_loop_that_does_not_run() -> None:
    def f(x: Any) -> Any:
        return wf.while_loop(lambda x: x > 10.0, lambda x: wf.sin(x), x) ** 2

    for g in (wf.grad(f), wf.compile(wf.grad(f)), wf.compile(wf.grad(wf.grad(f)))):
        assert g(np.float64(3.0)).item() in (6.0, 2.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128"])
def test_dtypes(dtype: str) -> None:
    def f(a: Any) -> Any:
        x = wf.while_loop(lambda x: wf.abs(x) > 0.1, lambda x: x * x * a, a)
        return wf.real(x * x)

    a = np.array(0.9 + 0.1j if dtype.startswith("complex") else 0.9).astype(dtype)
    eager, compiled = (run(wf.grad(f))(a) for run in (lambda f: f, wf.compile))
    assert compiled.numpy().dtype == a.dtype
    np.testing.assert_allclose(np.asarray(eager), np.asarray(compiled), rtol=1e-2)


def test_with_respect_to_variables() -> None:
    v = wf.Variable(np.float64(0.8))
    one = np.float64(1.0)

    def of(value: Any, x: Any) -> Any:
        return wf.while_loop(lambda x: x > 0.1, lambda x: wf.sin(x) * value, x)

    found = wf.compile(lambda x: wf.gradients(of(v, x), [v])[0])(one).item()
    wanted = difference(lambda value: of(value, wf.asarray(one)), 0.8)
    assert found == pytest.approx(wanted, rel=1e-6)


def test_variables_that_the_body_assigns() -> None:
    count = wf.Variable(0)

    def f(a: Any) -> Any:
        def body(x: Any) -> Any:
            count.assign(count + 1)
            return wf.sin(x) * a

        return wf.while_loop(lambda x: x > 0.2, body, a)

    wf.compile(wf.grad(f))(np.float64(0.9))
    once = count.numpy().item()
    x, n = 0.9, 0
    while x > 0.2:
        x, n = np.sin(x) * 0.9, n + 1
    assert once == n


# ----------------------------------------------------------------------------------------- options


def segmented(**options: Any) -> Function:
    def f(a: Any) -> Any:
        x, n = wf.while_loop(
            lambda x, n: wf.abs(x * x - a) > 1e-12,
            lambda x, n: (0.9 * x + 0.1 * (a / x), n + 1),
            (a, 0),
            **options,
        )
        return x * n

    return f


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "every"), shares.every(2, itertools.product([None, 40, 42], [1, 7, 64]))
)
def test_checkpoints_change_no_bits(every: int, most: Any) -> None:
    """Values and first gradients; the others by rounding."""
    x = np.float64(3.7)
    plain = segmented(maximum_iterations=most)
    saved = segmented(maximum_iterations=most, checkpoint_every=every)
    whole = most is None or most % every == 0
    for order in (0, 1, 2):
        a, b = (wf.compile(derivative(f, order))(x).item() for f in (plain, saved))
        assert a == (b if order == 0 or (order == 1 and whole) else pytest.approx(b, rel=1e-11))
    a, b = (wf.grad(f)(x).item() for f in (plain, saved))
    assert a == (b if whole else pytest.approx(b, rel=1e-11))


@pytest.mark.slow
def test_checkpoints_of_arrays_and_of_loops_in_loops() -> None:
    w0, x0 = np.random.default_rng(1).normal(size=(2, 4, 4)) * 0.4

    def f(w: Any, x: Any, every: int | None) -> Any:
        def body(x: Any) -> Any:
            y = wf.while_loop(lambda y: wf.sum(y * y) > 0.5, lambda y: 0.7 * wf.sin(w @ y), x)
            return wf.tanh(w @ x) + 0.01 * y

        many = lambda x: wf.max(wf.abs(x)) > 1e-3  # noqa: E731
        return wf.sum(wf.while_loop(many, body, x, checkpoint_every=every))

    for run in (lambda g: g, wf.compile):
        plain = run(wf.grad(lambda w, x: f(w, x, None), argnums=(0, 1)))(w0, x0)
        for every in (1, 3, 5):
            saved = run(wf.grad(lambda w, x, k=every: f(w, x, k), argnums=(0, 1)))(w0, x0)
            for a, b in zip(plain, saved, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10)


def test_checkpoints_save_memory() -> None:
    a = np.linspace(1.0, 2.0, 1000)

    def loss(checkpoint_every: int | None, gradient_memory: int | None) -> Function:
        def f(a: Any) -> Any:
            x = wf.while_loop(
                lambda x: wf.max(wf.abs(x * x - a)) > 1e-12,
                lambda x: 0.9 * x + 0.1 * (a / x),
                a,
                checkpoint_every=checkpoint_every,
                gradient_memory=gradient_memory,
            )
            return wf.sum(x)

        return f

    wanted = wf.compile(wf.grad(loss(None, None)))(a)
    with pytest.raises(wf.errors.ResourceExhaustedError) as e:
        wf.compile(wf.grad(loss(None, 300_000)))(a)
    for part in ("gradient_memory=300,000", "checkpoint_every", "bytes", "test_while_gradients.py"):
        assert part in str(e.value)
    with pytest.raises(wf.errors.ResourceExhaustedError, match="gradient_memory=300,000"):
        wf.grad(loss(None, 300_000))(a)
    saved = wf.compile(wf.grad(loss(15, 300_000)))
    found = saved(a)
    assert "its start alone: the rest is computed again" in saved.explain(a)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_step_goes_on_after_one_that_kept_too_much() -> None:
    g = wf.compile(wf.grad(segmented(gradient_memory=2000)))
    wanted = g(np.float64(1.0)).item()
    for _ in range(3):
        with pytest.raises(wf.errors.ResourceExhaustedError):
            g(np.float64(9.0))
        assert g(np.float64(1.0)).item() == wanted


@pytest.mark.parametrize(
    "options",
    [{"checkpoint_every": 0}, {"checkpoint_every": 2.0}, {"gradient_memory": -1},
     {"checkpoint_every": True}],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=next(iter(options))):
        segmented(**options)(wf.asarray(2.0))


def test_the_bound_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STACK_BYTES", "200000")
    g = wf.compile(wf.grad(lambda x: wf.while_loop(lambda x: x < 1e9, lambda x: x + wf.sin(x) ** 2
                                                   + 1e-3, x)))  # fmt: skip
    with pytest.raises(wf.errors.ResourceExhaustedError, match="WEFT_STACK_BYTES"):
        g(np.float64(1.0))
    monkeypatch.setenv("WEFT_STACK_BYTES", "many")
    with pytest.raises(wf.errors.InvalidArgumentError, match="many"):
        wf.compile(wf.grad(root))(np.float64(2.5))


# ------------------------------------------------------------------------------------------ memory


def arena_bytes() -> int:
    """Memory that all arenas of stacks hold now."""
    gc.collect()
    return sum(o.total for o in gc.get_objects() if isinstance(o, StackArena))


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step that kept 160 MB, and with the step itself."""
    monkeypatch.setattr(stacks, "KEPT", 8 << 20)
    before = arena_bytes()

    def f(a: Any) -> Any:
        x, _ = wf.while_loop(
            lambda x, n: n < wf.astype(a[0], "int64"),
            lambda x, n: (wf.sin(x) + a[1], n + 1),
            (a, 0),
        )
        return wf.sum(x)

    g = wf.compile(wf.grad(f))
    a = np.full(10_000, 1000.0)
    for _ in range(2):
        g(a)
    assert before < arena_bytes() <= before + (8 << 20)
    a[0] = 3.0
    wanted = wf.grad(f)(a)
    np.testing.assert_allclose(g(a), wanted, rtol=1e-9)
    del g
    assert arena_bytes() == before


def test_memory_is_given_back_whatever_prototypes_others_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As numba.cuda sets them when it is imported: they are one for the process."""
    for name in ("Py_IncRef", "Py_DecRef"):
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "argtypes", [ctypes.py_object])
    test_memory_is_given_back(monkeypatch)


def test_a_failed_step_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its activation is dropped, as `end` has not run; the error does not keep it either."""
    monkeypatch.setattr(stacks, "KEPT", 1 << 20)
    before = arena_bytes()

    def f(x: Any, places: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return i + 1, wf.sin(x) * wf.gather(x, wf.gather(places, i))

        return wf.sum(wf.while_loop(lambda i, x: i < wf.max(places) * 0 + 900, body, (0, x))[1])

    g = wf.compile(wf.grad(f))
    x, places = np.linspace(0.1, 1.0, 1000), np.zeros(1000, np.int64)
    wanted = g(x, places).numpy()
    wrong = places.copy()
    wrong[800] = 10**6
    for _ in range(2):
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds") as e:
            g(x, wrong)
        assert arena_bytes() - before <= 1 << 20
        assert e.value.__traceback__ is not None
        np.testing.assert_array_equal(g(x, places), wanted)


@pytest.mark.parametrize(("given", "most"), [("4000000", 3_000_000), ("max", None), (None, None)])
def test_the_bound_of_a_container(
    given: str | None, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    if given is not None:
        limit.write_text(given + "\n")
    monkeypatch.delenv("WEFT_STACK_BYTES", raising=False)
    monkeypatch.setattr(stacks, "_CONTAINER_LIMIT", limit)
    stacks._machine_bytes.cache_clear()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert stacks.most_bytes() == (most or machine // 4 * 3)
    stacks._machine_bytes.cache_clear()


def test_threads_leave_the_memory_of_two_steps() -> None:
    def f(x: Any) -> Any:
        many = lambda x, n: n < wf.astype(x[1], "int64") * 0 + 500  # noqa: E731
        return wf.sum(wf.while_loop(many, lambda x, n: (wf.sin(x) + x, n + 1), (x, 0))[0])

    g, x, before = wf.compile(wf.grad(f)), np.linspace(0.1, 1.0, 5000), arena_bytes()
    g(x)
    one = arena_bytes() - before
    threads = [threading.Thread(target=lambda: [g(x) for _ in range(5)]) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert 0 < one <= arena_bytes() - before <= 2 * one


def test_a_loop_around_gradients_keeps_nothing_of_them() -> None:
    """A thousand gradients of 80 KB each, taken in a loop, fit into little memory."""

    def inner(a: Any) -> Any:
        x, _ = wf.while_loop(
            lambda x, n: n < wf.astype(a[0], "int64"), lambda x, n: (wf.sin(x) * a, n + 1), (a, 0)
        )
        return wf.sum(x)

    def descend(a: Any) -> Any:
        a, _ = wf.while_loop(
            lambda a, n: n < 1000, lambda a, n: (a - 1e-9 * wf.grad(inner)(a), n + 1), (a, 0)
        )
        return wf.scan(lambda c, _: (c - 1e-9 * wf.grad(inner)(c), None), a, length=1000)[0]

    before = arena_bytes()
    step = wf.compile(descend)
    a = np.full(1000, 10.5)
    found = step(a)
    assert np.all(np.isfinite(found))
    assert arena_bytes() - before < 2 << 20
    del step


def test_a_loop_of_numbers_around_gradients_keeps_nothing_of_them() -> None:
    """The inner loops are one kernel each, the one around them is not, and gives memory back."""

    def descend(a: Any) -> Any:
        return wf.scan(lambda c, _: (c - 1e-6 * wf.grad(damped)(c), None), a, length=20_000)[0]

    before = arena_bytes()
    step = wf.compile(descend)
    assert np.isfinite(step(np.float64(3.7)).item())
    assert 0 < arena_bytes() - before < 1 << 20
    explained = step.explain(np.float64(3.7))
    assert "gives memory of stacks back" in explained
    assert "one kernel: all values are single elements" in explained
    del step


def test_a_push_may_end_a_loop_that_is_one_kernel() -> None:
    g = wf.compile(wf.grad(segmented(gradient_memory=64_000)))
    explained = g.explain(np.float64(3.0))
    assert "one kernel" in explained
    assert "bytes of each iteration for gradients, at most 64,000 in all" in explained
    assert np.isfinite(g(np.float64(3.0)).item())
    slow = wf.compile(
        wf.grad(
            lambda x: wf.while_loop(
                lambda x: x < 1e6, lambda x: x + wf.sin(x) ** 2, x, gradient_memory=64_000
            )
        )
    )
    with pytest.raises(wf.errors.ResourceExhaustedError) as e:
        slow(np.float64(1.0))
    for part in ("gradient_memory=64,000", "an iteration keeps", "test_while_gradients.py"):
        assert part in str(e.value)


def test_many_threads() -> None:
    """Each running step has stacks of its own."""
    g = wf.compile(wf.grad(damped))
    xs = np.linspace(2.0, 5.0, 8)
    wanted = [g(x).item() for x in xs]
    wrong: list[object] = []

    def work(k: int) -> None:
        for _ in range(200):
            found = g(xs[k]).item()
            if found != wanted[k]:
                wrong.append((k, found))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---------------------------------------------------------------------------------------- executor


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
@pytest.mark.parametrize("f", [root, while_in_scan, vectors], ids=lambda f: f.__name__)
def test_sessions(f: Function, mode: str) -> None:
    """Loops with stacks stay native, or become Switch and Merge with handles in the cells."""
    graph = wf.Graph()
    with graph.as_default():
        a = wf.placeholder("float64", [], "a")
        y = f(a)
        (d,) = wf.gradients(y, [a])
        (dd,) = wf.gradients(d, [a])
    session = wf.Session(graph=graph, control_flow=mode)
    x = CASES[f]
    for _ in range(3):
        found = session.run([y, d, dd], {a: x})
        wanted = [wf.compile(derivative(f, k))(np.float64(x)).item() for k in range(3)]
        np.testing.assert_allclose(found, wanted, rtol=1e-11)


@pytest.mark.parametrize("with_variable", [False, True])
def test_stacks_wait_for_a_host_op(with_variable: bool) -> None:
    """What the forward loop kept is used by another region of the step, after Python has run."""
    before = arena_bytes()
    graph = wf.Graph()
    with graph.as_default():
        a = wf.placeholder("float64", [100], "a")
        v = wf.Variable(np.float64(0.5)) if with_variable else wf.asarray(np.float64(0.5))
        x, _ = wf.while_loop(lambda x, n: n < 500, lambda x, n: (wf.sin(x + v), n + 1 + 0 *
                             wf.astype(x[0], "int64")), (a, 0))  # fmt: skip
        scale = wf.py_function(lambda x: x * 0 + 2.0, [x], wf.float64, shapes=[100])
        (d,) = wf.gradients(x, [a], [scale])
        start = v.initializer if with_variable else wf.no_op()
    session = wf.Session(graph=graph)
    session.run(start)

    def plain(a: Any) -> Any:
        for _ in range(500):
            a = wf.sin(a + 0.5)
        return wf.sum(a) * 2.0

    x0 = np.linspace(0.1, 1.0, 100)
    wanted = wf.grad(plain)(x0)
    for _ in range(3):
        np.testing.assert_allclose(session.run(d, {a: x0}), wanted, rtol=1e-9, atol=1e-300)
    assert arena_bytes() - before < 1 << 20
    del session


def test_cancelling_a_step_leaves_its_stacks_alone() -> None:
    """Another thread may still pop what a region has kept: it goes with the step, not before."""
    token, made, kept = CancelToken(), [np.zeros(())], []

    class Activation:
        pass

    class Step:
        def run(self, inputs: list[Array], context: RunContext) -> list[Array]:
            activation = Activation()
            kept.append(weakref.ref(activation))
            assert context.keep is not None
            context.keep(activation)
            return made

    found: list[Any] = []
    step_start(Step(), keeps=True)([], found.append, token)
    token.cancel("too late")
    assert found == [made]
    assert kept[0]() is not None
    token.let_go()
    assert kept[0]() is None


@pytest.mark.parametrize("fails", [True, False])
def test_a_step_ends_while_loops_count_back(fails: bool) -> None:
    """By an error or a deadline: threads that pop stacks go on until they see it."""
    graph, pause = wf.Graph(), [0.0]

    def stop(x: Any) -> Any:
        time.sleep(pause[0])
        if fails and pause[0]:
            raise ValueError("no more")
        return x

    with graph.as_default():
        a = wf.placeholder("float64", [500], "a")
        found = []
        for start in (0.5, 0.25):
            v = wf.Variable(np.float64(start))
            x, _ = wf.while_loop(lambda x, n: n < 4000, lambda x, n, v=v: (wf.sin(x + v), n + 1 + 0
                                 * wf.astype(x[0], "int64")), (a, 0))  # fmt: skip
            scale = wf.py_function(lambda x: x * 0 + 2.0, [x], wf.float64, shapes=[500])
            found += wf.gradients(x, [a], [scale])
        found.append(wf.py_function(stop, [scale], wf.float64, shapes=[500]))
        start = wf.global_variables_initializer()
    session, given = wf.Session(graph=graph), {a: np.linspace(0.1, 1.0, 500)}
    session.run(start)
    wanted = session.run(found, given)
    before = arena_bytes()
    ended = 0
    for k in range(1, 7):
        pause[0] = 0.01 * k
        try:
            session.run(found, given, options=wf.RunOptions(timeout=10 if fails else k / 1e3))
        except wf.errors.WeftError:
            ended += 1
    assert ended == 6 if fails else ended  # a step that is done when its deadline is seen is done
    pause[0] = 0.0
    for p, q in zip(session.run(found, given), wanted, strict=True):
        np.testing.assert_array_equal(p, q)
    assert arena_bytes() <= before


# ---------------------------------------------------------------------------------------- programs


def masked(block: Block, most: int) -> Block:
    """The block with a scan of `most` iterations for every while: each runs if the test says so."""
    builder = Builder([a.type for a in block.args])
    mapping = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        regions = [masked(r, most) for r in op.regions]
        operands = [mapping[v] for v in op.operands]
        name, attrs = op.name, dict(op.attrs)
        if op.name == "while":
            limit, carries = int(attrs["limit"]), int(attrs["carries"])
            name, length = "scan", most if limit < 0 else min(limit, most)
            attrs = {"carries": carries, "sequences": 0, "length": length, "reverse": False}
            test, body = regions
            regions = [_tested(test, body, carries, op.locations)]
        made = builder.emit(name, operands, attrs, regions=regions, locations=op.locations)
        mapping.update(zip(op.results, made, strict=True))
    return builder.block([mapping[v] for v in block.results])


def _tested(test: Block, body: Block, carries: int, where: Any) -> Block:
    builder = Builder([a.type for a in body.args])
    (going,) = builder.inline(test, builder.args)
    still = Builder([a.type for a in body.args])
    regions = (body, still.block(still.args[:carries]))
    given = [going, *builder.args]
    return builder.block(builder.emit("cond", given, regions=regions, locations=where))


def with_loss(program: Case) -> Graph:
    """The program with one more result, the first: a loss of all that depends on the data."""
    graph = program.graph
    builder = Builder([a.type for a in graph.args])
    results = builder.inline(graph.block, builder.args)
    total = Expr(builder, builder.args[2], (Location("loss.py", 1, 1),)).op("tanh")
    for value in results:
        if value.type == total.type:
            total = total + total.wrap(value).op("tanh")
    return builder.graph("loss", graph.arg_names, [total.sum([0]).value])


def check_program(program: Case, *, on_executor: bool) -> None:
    """Values and gradients are those of scans that mask what a while would not run; other ways to
    run the graph give what the interpreter gives of the structured form."""
    loss = with_loss(program)
    scans = Graph("scans", masked(loss.block, 16), loss.arg_names)
    graph, truth = (differentiate(g, [2]) for g in (loss, scans))
    verify(graph)
    wanted = interpret(truth, program.inputs)
    found = interpret(graph, program.inputs)
    arrays = [np.ascontiguousarray(x) for x in program.inputs]
    lowered = lower_control_flow(graph)
    others = [interpret(lowered, program.inputs), compile_graph(graph).run(arrays)]
    if on_executor:
        others.append(DataflowStep(lowered).run(arrays))
    for a, b, *more in zip(wanted, found, *others, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
        for c in more:
            np.testing.assert_allclose(c, b, rtol=2e-4, atol=1e-5)


@given(programs())
@examples(25)
def test_random_programs(program: Case) -> None:
    check_program(program, on_executor=False)


@pytest.mark.slow
@given(programs())
@settings(max_examples=40, deadline=None)
def test_random_programs_on_the_executor(program: Case) -> None:
    check_program(program, on_executor=True)
