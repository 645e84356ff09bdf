"""One Executable on many threads, many compilations at once, new sizes, the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from compiled_checks import variable

from weft.codegen.llvm.jit import compile_count
from weft.ir import dtypes
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.resources.variables import VariableState

Array = np.ndarray[Any, Any]
THREADS = 32


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """work(0) .. work(threads - 1), all started together; their results, or the first error."""
    start = threading.Barrier(threads)

    def run(k: int) -> Any:
        start.wait(30)
        return work(k)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads), timeout=60))


def layer(batch: int, width: int = 24) -> Graph:
    """tanh(x @ w + b), its row sums, their order and a gather by it: most kinds of kernel."""
    b = Builder([tensor_type(dtypes.float32, *s) for s in ((batch, 16), (16, width), (width,))])
    x, w, bias = b.args
    rows = b.emit1("broadcast_to", bias, shape=(batch, width))
    y = b.emit1("tanh", b.emit1("add", b.emit1("matmul", x, w), rows))
    total = b.emit1("sum", y, axes=(1,), keepdims=False)
    order = b.emit1("argsort", total, axis=0)
    top = b.emit1("take", y, order, axis=0)
    z = b.emit1("divide", top, b.emit1("cumulative_sum", b.emit1("exp", top), axis=1))
    return b.graph("layer", ["x", "w", "b"], [y, total, order, z])


def inputs(batch: int, seed: int, width: int = 24) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = ((batch, 16), (16, width), (width,))
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def bits(results: list[Array]) -> list[bytes]:
    return [r.tobytes() for r in results]


def compiled(graph: Graph, variables: Any = None) -> Executable:
    return compile_graph(graph, variables, passes=(fuse,))


def test_one_executable_on_many_threads() -> None:
    step = compiled(layer(33))
    given = [inputs(33, k) for k in range(THREADS)]
    wanted = [bits(step.run(g)) for g in given]

    def work(k: int) -> bool:
        return all(
            bits(step.run(given[(k + i) % THREADS])) == wanted[(k + i) % THREADS] for i in range(20)
        )

    assert all(at_once(work))


def test_activations_are_reused() -> None:
    step = compiled(layer(5))
    for k in range(50):
        step.run(inputs(5, k))
    assert step.idle_activations() == 1


@pytest.mark.parametrize("shape", [(), (1000,)], ids=str)
def test_state_updates_are_atomic(shape: tuple[int, ...]) -> None:
    b = Builder()
    ref = variable(b, "n", dtypes.int64, shape)
    (old,) = b.emit("read", [ref])
    one = b.emit1("iota", dtype=dtypes.int64, shape=(2,), axis=0)
    one = b.emit1("slice", one, starts=(1,), stops=(2,), steps=(1,))
    one = b.emit1("broadcast_to", b.emit1("reshape", one, shape=()), shape=shape)
    new = b.emit1("add", old, one)
    (done,) = b.emit("assign", [ref, new], control=[old])
    state = VariableState("n", dtypes.int64, shape, np.zeros(shape, np.int64))
    step = compiled(b.graph("count", [], [new, done]), {"n": state})

    def work(k: int) -> list[int]:
        seen = []
        for _ in range(50):
            value, token = step.run([])
            assert token is None
            assert (value == value.ravel()[0]).all()
            seen.append(int(value.ravel()[0]))
        return seen

    seen = [v for part in at_once(work) for v in part]
    assert sorted(seen) == list(range(1, 50 * THREADS + 1))
    assert (state.read() == 50 * THREADS).all()


def test_two_variables_in_two_orders_do_not_deadlock() -> None:
    states = {n: VariableState(n, dtypes.int64, (), np.zeros((), np.int64)) for n in "ab"}

    def mover(source: str, target: str) -> Executable:
        b = Builder()
        refs = [variable(b, n, dtypes.int64, ()) for n in (source, target)]
        old = [b.emit("read", [r])[0] for r in refs]
        one = b.emit1("dim_size", b.emit1("iota", dtype=dtypes.int64, shape=(1,), axis=0), axis=0)
        b.emit("assign", [refs[0], b.emit1("subtract", old[0], one)], control=[old[0]])
        b.emit("assign", [refs[1], b.emit1("add", old[1], one)], control=[old[1]])
        return compiled(b.graph("move", [], []), states)

    steps = [mover("a", "b"), mover("b", "a")]

    def work(k: int) -> None:
        for _ in range(100):
            steps[k % 2].run([])

    at_once(work)
    assert [int(s.read()) for s in states.values()] == [0, 0]


def test_eager_reads_see_whole_steps() -> None:
    b = Builder()
    ref = variable(b, "n", dtypes.float64, (50_000,))
    (old,) = b.emit("read", [ref])
    b.emit("assign", [ref, b.emit1("negative", old)], control=[old])
    state = VariableState("n", dtypes.float64, (50_000,), np.ones(50_000))
    step = compiled(b.graph("flip", [], []), {"n": state})

    def work(k: int) -> None:
        for _ in range(20):
            if k % 2:
                step.run([])
            else:
                value = state.read()
                assert (value == value[0]).all()

    at_once(work, 8)


def test_failing_calls_among_good_ones() -> None:
    b = Builder([tensor_type(dtypes.float32, 100), tensor_type(dtypes.int32, 3)])
    x, i = b.args
    y = b.emit1("take", b.emit1("negative", x), i, axis=0)
    step = compiled(b.graph("pick", ["x", "i"], [y]))
    data = np.arange(100, dtype=np.float32)

    def work(k: int) -> None:
        for n in range(30):
            index = np.array([n, k, -1], np.int32)
            if (n + k) % 3 == 0:
                with pytest.raises(InvalidArgumentError):
                    step.run([data, np.array([0, 100 + k, 1], np.int32)])
            assert step.run([data, index])[0].tolist() == (-data[index]).tolist()

    at_once(work)


def test_many_compilations_at_once() -> None:
    """New kernels and known ones, of equal and different structure, on all threads together."""

    def work(k: int) -> list[bytes]:
        b = Builder([tensor_type(dtypes.float64, 3 + k, 7)])
        y = b.args[0]
        for op in ("sinh", "cosh", "asinh", "atan")[: k % 4 + 1]:
            y = b.emit1(op, b.emit1("add", y, y))
        graph = b.graph("g", ["x"], [y, b.emit1("sum", y, axes=(k % 2,), keepdims=False)])
        x = np.random.default_rng(k).standard_normal((3 + k, 7))
        return bits(compiled(graph).run([x]))

    together = at_once(work)
    assert together == [work(k) for k in range(THREADS)]


def test_a_new_batch_size_compiles_nothing() -> None:
    first = compiled(layer(32))
    assert first.run(inputs(32, 0))[0].shape == (32, 24)
    before = compile_count()
    for batch in (2, 7, 33, 128, 1000):
        step = compiled(layer(batch))
        assert step.run(inputs(batch, 0))[0].shape == (batch, 24)
        assert step.report.kernels_compiled == 0
    assert compile_count() == before


def test_same_bits_every_time() -> None:
    given = inputs(257, 3, 65)
    step = compiled(layer(257, 65))
    wanted = bits(step.run(given))
    for _ in range(20):
        assert bits(step.run(given)) == wanted
    again = compiled(layer(257, 65))
    assert bits(again.run([g.copy() for g in given])) == wanted


def test_sums_do_not_depend_on_where_the_data_lies() -> None:
    """An array at any address that its dtype allows gives the same bits."""
    b = Builder([tensor_type(dtypes.float32, 10_007)])
    step = compiled(b.graph("g", ["x"], [b.emit1("sum", b.args[0], axes=(0,), keepdims=False)]))
    values = np.random.default_rng(0).standard_normal(10_007).astype(np.float32)
    room = np.empty(10_100, np.float32)
    seen = set()
    for shift in range(40):
        room[shift : shift + 10_007] = values
        seen.add(step.run([room[shift : shift + 10_007]])[0].tobytes())
    assert len(seen) == 1
