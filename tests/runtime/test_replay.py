"""Timing a step kernel by kernel: what it computes, what it leaves alone, what it reports."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import given
from random_graph_checks import TRACED

import weft as wf
from weft.codegen.llvm.asm_facts import AsmFacts, asm_facts
from weft.frontend.tools.run import variable_types
from weft.ir.cost.work import work
from weft.ir.dtypes import as_dtype, bool_, float16, float32, float64, int32, int64, uint8
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.variables import VariableState
from weft.runtime.trace import peaks as module
from weft.runtime.trace.peaks import MEMORY, Peaks, machine_peaks
from weft.runtime.trace.replay import PieceTime, Replay, Timing

Array = np.ndarray[Any, Any]
DTYPES = [float32, float64, int32, int64, uint8, bool_, float16]


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def nbytes(value: Value) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


def replay_of(f: Callable[..., Any], *args: Array) -> Replay:
    compiled = f if isinstance(f, wf.CompiledFunction) else wf.compile(f)
    made = compiled._specialized(args, {})
    return Replay(made.executable(), args, made.traced.variables)


def times(replay: Replay) -> list[PieceTime]:
    return list(replay.times(2, 1e-4, lambda piece: True))


def results(replay: Replay) -> list[Array]:
    """The result arrays that the replayed step wrote."""
    slots = replay.step._result_slots
    return [replay._arrays[slot] for slot in slots if slot >= 0]


def several(x: Array, i: Array) -> Any:
    e = wf.nn.softmax(wf.sort(x, axis=1) * 2.0)
    return wf.sum(wf.take(e, i, axis=0)), wf.cumulative_sum(e, axis=1), wf.sort(e, axis=0)


def test_results_are_those_of_a_call() -> None:
    x, i = normal(64, 40), np.array([3, 60, 3])
    replay = replay_of(several, x, i)
    found = times(replay)
    assert len(found) >= 4
    assert all(t.one is not None and t.one.minimum > 0 for t in found)
    for a, b in zip(results(replay), wf.compile(several)(x, i), strict=True):
        assert a.tobytes() == b.numpy().tobytes()


def test_an_update_in_place_is_put_back() -> None:
    v = wf.Variable(normal(100, 10))

    @wf.compile
    def update(x: Array) -> Any:
        v.assign(v * 1.5 + x)
        return wf.sum(v)

    x = normal(100, 10)
    update(x)
    before = v.numpy().copy()
    replay = replay_of(update, x)
    found = times(replay)
    assert any(t.restored for t in found)
    assert v.numpy().tobytes() == before.tobytes()
    update(x)
    held = replay.step._variables[0][0].array
    assert held is not None
    assert held.tobytes() == v.numpy().tobytes()  # the copy took one step


def test_repeated_updates_do_not_run_into_infinities() -> None:
    v = wf.Variable(np.full((4096,), 2.0, np.float32))

    @wf.compile
    def update() -> Any:
        v.assign(v * v)
        return v + 0.0

    (found, *_) = times(replay_of(update))
    assert found.restored
    assert found.batch <= 7  # 2 ** 2 ** 7 is infinite


def test_donated_inputs_are_left_alone() -> None:
    @wf.compile(donate="x")
    def f(x: Array) -> Any:
        return x * 3.0

    x = normal(1000)
    before = x.copy()
    times(replay_of(f, x))
    assert x.tobytes() == before.tobytes()


def test_loops_and_branches() -> None:
    def f(x: Array, n: Array) -> Any:
        y = wf.while_loop(lambda i, c: i < n, lambda i, c: (i + 1, wf.tanh(c @ x)), (0, x))[1]
        return wf.cond(wf.sum(x) > 1e9, lambda: wf.sort(y, axis=0), lambda: y + 1.0)

    replay = replay_of(f, normal(16, 16), np.array(3))
    found = {t.piece.calls[0].call.kernel.name: t for t in times(replay)}
    products = [t for name, t in found.items() if "gemm" in name]
    assert all(t.one is not None for t in products)
    assert len(products) == 1
    assert found["sort_f32"].one is None  # this step does not come there


def test_errors_are_those_of_a_call() -> None:
    replay = replay_of(lambda x, i: wf.take(wf.sort(x), i), normal(5), np.array([9]))
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        times(replay)


def test_an_uninitialised_variable_is_an_error() -> None:
    with wf.Graph().as_default():
        v = wf.Variable(np.ones(3, np.float32))
        made = wf.compile(lambda: v + 1.0)
        specialised = made._specialized((), {})
    with pytest.raises(FailedPreconditionError):
        Replay(specialised.executable(), [], specialised.traced.variables)


def test_the_whole_step_is_timed() -> None:
    found = replay_of(lambda x: wf.exp(x), normal(1000)).step_time(3, 1e-3)
    assert isinstance(found, Timing)
    assert 0 < found.minimum <= found.median


@examples(60, deadline=None)
@given(graph_and_inputs(stage="traced", ops=TRACED, dtypes=DTYPES, max_ops=8))
def test_random_graphs(case: Case) -> None:
    """Replayed op by op a step computes what a call does; its work is within operands, results."""
    held = {n: VariableState(n, as_dtype(a.dtype), a.shape, a) for n, a in case.state.items()}
    given_types = variable_types(case.graph).items()
    state = {n: held.get(n) or VariableState(n, t.dtype, t.static_shape) for n, t in given_types}
    step = compile_graph(case.graph, state, passes=PIPELINE)
    inputs = [np.ascontiguousarray(a).reshape(a.shape) for a in case.inputs]
    replay = Replay(step, inputs, state)
    list(replay.times(1, 1e-6, lambda piece: True))
    wanted = [r for r in step.run(inputs) if r is not None]
    if replay._straight:  # else it ended in the first iteration of a loop
        for a, b in zip(results(replay), wanted, strict=True):
            assert a.tobytes() == b.tobytes()
    for op in step.graph.ops:
        done = work(op)
        assert 0 <= done.bytes_read <= sum(nbytes(v) for v in op.operands)
        assert 0 <= done.bytes_written <= sum(nbytes(v) for v in op.results)
        assert done.unknown or min(done.flops or 0, done.transcendentals or 0) >= 0


# ------------------------------------------------------------------------------------------ peaks


@pytest.fixture(scope="module")
def peaks() -> Peaks:
    return machine_peaks(quick=True)


def test_peaks_are_plausible(peaks: Peaks) -> None:
    assert MEMORY in peaks.bandwidth
    assert "copy_streaming" in peaks.bandwidth[MEMORY]
    for level in peaks.bandwidth:
        alone, together = (peaks.bytes_per_second(level, n) for n in (1, 2))
        assert 1e8 < alone <= together < 1e14
    assert 1e8 < peaks.flops_per_second("f64") <= 1.5 * peaks.flops_per_second("f32") < 1e14
    assert peaks.bytes_per_second("L1") > 0.5 * peaks.bytes_per_second(MEMORY)


def test_levels(peaks: Peaks) -> None:
    assert peaks.level(1000) == "L1"
    assert peaks.level(1 << 40) == MEMORY
    largest = int(1.5 * peaks.caches["L1"])
    assert peaks.level(largest) == "L1"
    assert peaks.level(largest + 1) != "L1"
    assert peaks.level(largest + 1, threads=2) == "L1"


def test_peaks_are_kept_for_a_while(
    peaks: Peaks, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:

    measured: list[bool] = []

    def measure(*, quick: bool) -> Peaks:
        measured.append(quick)
        return peaks

    monkeypatch.setattr(module, "measure_peaks", measure)
    monkeypatch.setattr(module, "_held", None)
    assert machine_peaks(folder=tmp_path, quick=True) is peaks
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(module, "_held", None)
    measured.clear()
    assert machine_peaks(folder=tmp_path) is peaks
    monkeypatch.setattr(module, "_held", None)
    again = machine_peaks(folder=tmp_path)
    assert again == peaks
    assert len(measured) == 1
    monkeypatch.setattr(module, "_held", None)
    (file,) = tmp_path.iterdir()
    file.write_text("{damaged")
    machine_peaks(folder=tmp_path)
    assert len(measured) == 2
    monkeypatch.setattr(module.time, "time", lambda: peaks.when + 1e6)
    machine_peaks(folder=tmp_path)
    assert len(measured) == 3


# --------------------------------------------------------------------------------------- assembly

LOOP = """
kernel:
\tsubq\t$56, %rsp
\tcallq\tmemset@PLT
.LBB0_1:
.LBB0_2:
\tvmovups\t(%rdi,%rax,4), %zmm0
\tvfmadd213ps\t64(%rsp), %zmm1, %zmm0
\tvmovups\t%zmm0, 128(%rsp)
\tvmovaps\t%ymm3, %ymm4
\tjb\t.LBB0_2
\tjne\t.LBB0_1
.LBB0_3:
\tvmulss\t%xmm0, %xmm1, %xmm1
\tjne\t.LBB0_3
\tretq
"""


def test_facts_of_the_hot_loop() -> None:
    assert asm_facts(LOOP) == AsmFacts(512, 3, 1, 1, 5, ("memset",))


def test_scalar_loops_have_no_vectors() -> None:
    scalar = LOOP.replace("zmm", "xmm").replace("ymm", "xmm").replace("ups", "ss")
    scalar = scalar.replace("213ps", "213ss").replace("vmovaps", "vmovss")
    assert asm_facts(scalar).vector_bits == 0
    assert asm_facts("kernel:\n\tretq\n") == AsmFacts(0, 0, 0, 0, 0, ())


def test_packed_integers_of_128_bits_are_vectors() -> None:
    assert asm_facts("a:\n.L1:\n\tvpabsd\t%xmm0, %xmm0\n\tjne\t.L1\n").vector_bits == 128
