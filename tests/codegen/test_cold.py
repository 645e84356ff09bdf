"""What keeps the first call short: no collections meanwhile, cheap kernels, nothing compiled early.

The native call path, which the first calls do not wait for, is in test_native_call.py.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.llvm import engine as llvm_engine
from weft.codegen.llvm.cache import CachedObject
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.engine import LlvmCode, LlvmEngine
from weft.codegen.llvm.jit import CodegenError, Kernel, compile_kernels, is_done, start_compiling
from weft.codegen.nests import folds as nest_folds
from weft.ir.graph import Graph, canonical
from weft.ir.process import collector_paused
from weft.ir.text.parser import parse_graph
from weft.passes.manager import STANDARD
from weft.passes.pipelines import PIPELINES
from weft.passes.simplify.effects import expand_updates
from weft.runtime.native import ahead
from weft.runtime.native.ahead import compile_products_ahead
from weft.runtime.native.executable import compile_graph

NUMBERS = itertools.count()


# --------------------------------------------------------------------------------- the collector
def test_the_collector_is_paused_while_a_graph_is_compiled() -> None:
    seen: list[bool] = []

    def look(graph: Graph) -> Graph:
        seen.append(gc.isenabled())
        return graph

    f = wf.compile(passes=[look, "fuse"])(lambda x: x + 1)
    assert gc.isenabled()
    assert float(f(np.float32(2))) == 3
    assert seen == [False]
    assert gc.isenabled()


def test_the_collector_comes_back_with_the_last_of_several() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            inside.set()
            go_on.wait(30)

    def fails() -> None:
        with collector_paused():
            thread.start()
            assert inside.wait(30)
            raise ZeroDivisionError

    thread = threading.Thread(target=other)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert not gc.isenabled()
    go_on.set()
    thread.join(30)
    assert gc.isenabled()


def test_modules_count_as_old_and_what_the_user_froze_stays_frozen() -> None:
    code = """
import gc, sys, numpy
def where(thing):
    return [k for k in range(3) if any(thing is o for o in gc.get_objects(k))]
def young():
    return [[]]
mine = young()
if sys.argv[1:]:
    gc.freeze()
import weft
from weft.ir.process import load
if sys.argv[1:]:
    assert where(mine) == []  # frozen as before
else:
    assert where(mine) == where(vars(weft)) == [2]
    made = young()
    assert where(made) == [0]
    weft.Session
    assert where(made) == [2]
    made = young()
    load("weft.frontend.session.session")  # is there already
    assert where(made) == [0]
"""
    for arguments in ([], ["frozen"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


# ------------------------------------------------------------------------------ equality of graphs
TEXT = """graph @g(%x: f32[4], %y: f32[4]) -> (f32[4], f32[]) stage=traced {
  %a = multiply(%x, %y) : f32[4] loc("m.py":1:1)
  %b = subtract(%a, %y) : f32[4] loc("m.py":2:1)
  %c = sum(%b) {axes=[0], keepdims=false} : f32[]
  return %a, %c
}
"""
CHANGES = [
    ("@g", "@h"),
    ("traced", "optimized"),
    ("%x: f32", "%z: f32"),
    ("(%a, %y)", "(%y, %a)"),
    ("(%a, %y)", "(%x, %y)"),
    ("subtract", "add"),
    ("2:1", "2:2"),
    ("return %a", "return %b"),
    ("return %a", "return %x"),
    ("  return", "  %d = exp(%a) : f32[4]\n  return"),
    ("f32", "f64"),
]


def test_graphs_are_equal_if_their_canonical_tuples_are() -> None:
    changed = [TEXT.replace("%x: f32[4], %y", "%y: f32[4], %x")]
    for old, new in CHANGES:
        text = TEXT.replace(old, new)
        assert text != TEXT
        changed.append(text if old != "%x: f32" else text.replace("%x", "%z"))
    graphs = [parse_graph(text) for text in (TEXT, TEXT, TEXT.replace("%b", "%other"), *changed)]
    equal = 0
    for a, b in itertools.product(graphs, repeat=2):
        assert (a == b) == (canonical(a) == canonical(b))
        equal += a == b
    assert equal == len(changed) + 9, "the first three are the same, all others differ"


def test_equality_looks_into_regions_and_at_the_sign_of_zero() -> None:
    def graph(value: float, deep: bool) -> Graph:
        def body(i: Any, a: Any) -> Any:
            return i + 1, (wf.tanh(a) if deep else a) + value

        f = wf.compile(lambda x: wf.while_loop(lambda i, a: i < 3, body, (wf.asarray(0), x)))
        return f.trace(np.float32(1))

    made = [graph(v, deep) for v in (0.0, -0.0) for deep in (False, True)]
    for a, b in itertools.product(made, repeat=2):
        assert (a == b) == (a is b) == (canonical(a) == canonical(b))


# --------------------------------------------------------------------------------- partial results
@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("columns", [1, 10, 16, 17, 64, 79, 81, 300])
def test_partial_sums_have_the_bits_of_the_plain_loop(
    dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors written out (f32, f64) against LLVM's own."""
    rows = 4096 if columns > 1 else 1 << 17
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(dtype)

    def total(x: Any) -> Any:
        return wf.sum(x, axis=0)

    f = wf.compile(total)
    vectors = f(x).numpy()
    calls = f._specialized((x,), {}).on_cpu("a test").report.calls
    combine = [c.call.kernel for c in calls if c.call.kernel.name.startswith("combine_")]
    assert [k.loops for k in combine] == [dtype == "f2"]
    monkeypatch.setattr(nest_folds, "_has_vectors", lambda partials: False)
    monkeypatch.setattr(nest_folds, "Kernel", _renamed)
    plain = wf.compile(total)(x).numpy()
    np.testing.assert_array_equal(vectors.view(np.uint8), plain.view(np.uint8))
    tolerance = {"f4": 1e-3, "f8": 1e-11, "f2": 0.3}[dtype]
    np.testing.assert_allclose(vectors.astype("f8"), x.astype("f8").sum(0), atol=tolerance)


def _renamed(key: str, name: str, emit: Callable[[Emitter], None], loops: bool = True) -> Kernel:
    return Kernel(f"{key}-plain", name, emit, loops)


# ------------------------------------------------------------------------------------ what is early
def test_is_done() -> None:
    def emit(e: Emitter) -> None:
        e.builder.store(e.index(7), e.arguments)

    kernel = Kernel(f"test.cold.done.{next(NUMBERS)}", "done", emit, loops=False)
    assert not is_done(kernel)
    start_compiling([kernel])
    compile_kernels([kernel])
    assert is_done(kernel)


def test_what_nobody_waits_for_leaves_the_processors_to_others() -> None:
    def emit(e: Emitter) -> None:
        e.builder.store(e.index(7), e.arguments)

    engine = LlvmEngine()
    keys = [f"test.cold.later.{next(NUMBERS)}" for _ in range(3)]
    early, late, waited_for = (Kernel(key, "later", emit, loops=False) for key in keys)
    engine._idle.clear()  # as while a step's kernels are compiled
    engine.start([early, late])
    engine._started[early.key].result(60)
    assert not engine.is_done(late.key)
    assert all(isinstance(code, LlvmCode) for code in engine.compile([waited_for]))
    engine.wait()
    assert engine.is_done(late.key)
    # asking for it ends the waiting
    engine._idle.clear()
    engine.start([early, late])
    assert all(isinstance(code, LlvmCode) for code in engine.compile([early, late]))


def test_what_every_step_needs_is_begun_when_a_function_is_decorated() -> None:
    code = """
import weft as wf
from weft.codegen.llvm.jit import compile_count, is_done, wait_for_background
from weft.codegen.pool import CONTROL, WORKER
from weft.codegen.steps.walker import WALKER
kernels = [WALKER, WORKER, CONTROL]
assert not any(map(is_done, kernels))
wf.compile(lambda x: x + 1)
wait_for_background()
assert all(map(is_done, kernels))
assert compile_count() == 0  # nobody has asked for them
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_what_takes_longest_is_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    held = threading.Event()

    def compile_one(kernel: Kernel, symbol: str, text: str) -> CachedObject:
        if kernel.name == "first":
            assert held.wait(60)
        begun.append(kernel.name)
        if kernel.name == "wrong":
            raise CodegenError("of the compiler")
        return CachedObject(kernel.name, symbol, b"", b"")

    monkeypatch.setattr(llvm_engine, "_compile", compile_one)
    sizes = {"first": 1, "short": 2, "long": 40, "wrong": 30, "loops": 11}
    with ThreadPoolExecutor(1) as pool:
        compilers = llvm_engine._Compilers(pool)
        futures = {
            name: compilers.submit(
                Kernel(name, name, lambda _: None, loops=name == "loops"), name, "x" * size
            )
            for name, size in sizes.items()
        }
        held.set()
        wait(futures.values(), 60)
    assert begun == ["first", "loops", "long", "wrong", "short"]
    assert isinstance(futures["wrong"].exception(), CodegenError)
    assert futures["short"].result().name == "short"
    with pytest.raises(RuntimeError, match="after shutdown"):
        compilers.submit(Kernel("late", "late", lambda _: None), "late", "")


@pytest.mark.parametrize(
    ("shapes", "dtype", "begun"),
    [
        (((4, 3), (3, 5)), "float32", ["gemm_f32"]),
        (((2, 4, 3), (3, 5)), "float64", ["gemm_f64"]),
        (((1, 3), (3, 5)), "float32", []),
        (((4, 3), (3, 1)), "float32", []),
        (((4, 1), (1, 5)), "float32", []),
        (((4, 3), (3, 5)), "complex64", []),
        (((4, 3), (3, 5)), "int32", []),
    ],
)
def test_products_are_begun_before_the_passes(
    shapes: tuple[tuple[int, ...], ...], dtype: str, begun: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What is begun is what the step calls, or half a processor works for nothing."""
    names: list[str] = []
    monkeypatch.setattr(ahead, "start_compiling", lambda made: names.extend(k.name for k in made))
    f = wf.compile(lambda a, b: wf.matmul(a, b))
    a, b = (np.ones(shape, dtype) for shape in shapes)
    graph = f.trace(a, b)
    names.clear()  # what every step needs
    compile_products_ahead(graph)
    assert names == begun
    step = compile_graph(graph, {}, kept=False)
    assert {c.call.kernel.name for c in step.report.calls} >= set(begun)
    assert bool(begun) == any("gemm_f" in c.call.kernel.name for c in step.report.calls)


def test_a_pipeline_by_name_is_that_of_the_page() -> None:
    assert tuple(STANDARD) == PIPELINES["standard"]
    assert (len(STANDARD), STANDARD[0]) == (len(PIPELINES["standard"]), expand_updates)
    again = copy.copy(STANDARD)
    assert (again.name, tuple(again)) == ("standard", tuple(STANDARD))


def test_eager_ops_compile_nothing() -> None:
    """They do not even load LLVM."""
    code = """
import numpy as np
import weft as wf
x = wf.asarray(np.ones((4, 4), np.float32))
for y in (wf.exp(x), x @ x + 1, wf.nn.softmax(x), wf.sum(x), x[1:], wf.sort(x), wf.tanh(x) > 0):
    y.numpy()
from weft.codegen.llvm import jit
assert jit.compile_count() == jit.load_count() == 0
from weft.codegen.llvm.target import is_loaded
assert not is_loaded()
"""
    environment = {k: v for k, v in os.environ.items() if k != "WEFT_LOG"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.returncode == 0, done.stderr
