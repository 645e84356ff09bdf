"""Kernels for GPUs as numba-cuda's text: run on Numba's simulator against the interpreter, and
compiled by numba-cuda where it is installed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_checks import Case, operands, plain, same
from cuda_graphs import on_gpu, run
from cuda_models import graph_kernels
from cuda_ops import run_graph
from cuda_product_graphs import product_graph
from cuda_random_graphs import FLOATS, KERNELS, NUMBERS, SINGLE, WHOLE, pipeline
from cuda_toolchain import must_be_there
from elementwise_checks import check_elementwise, domain, ops_at
from example_counts import examples
from graphs import Case as GraphCase
from graphs import graph_and_inputs
from hypothesis import HealthCheck, Phase, assume, given, settings
from random_graph_checks import within
from row_graphs import row_cases
from stable_results import Overflow, stable_results

import weft as wf
from weft.codegen.cuda.cubins.compile import assemble, compile_kernel, emit_ptx
from weft.codegen.cuda.lowerings import GPU_LOWERINGS, fused_launches
from weft.codegen.cuda.numba_cuda import language, simulated
from weft.codegen.cuda.numba_cuda.compile import numba_cuda_version
from weft.codegen.cuda.numba_cuda.simulator import simulate
from weft.codegen.cuda.numba_cuda.text import NAMES, numba_text
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.codegen.cuda.source.kernel import CudaKernel, Launch, Parameter
from weft.ir import dtypes
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import ToolchainError, UnsupportedError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import OPS
from weft.runtime.device.backends import emulated as emulated_device

Array = np.ndarray[Any, Any]
KINDS = [as_dtype(d) for d in DTYPES]
REDUCTIONS = [name for name, spec in OPS.items() if "reduction" in spec.traits]
#: Elementwise ops are in `test_every_elementwise_op`.
OPS_HERE = sorted({*GPU_LOWERINGS, *REDUCTIONS, "broadcast_to", "slice"} - {"dim_size"})
SOME = [
    dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32, dtypes.int64, dtypes.uint8,
    dtypes.bool_,
]  # fmt: skip
#: In the default suite; the others, which take the simulator seconds, are slow tests.
QUICK = {"matmul", "take", "sort", "cumulative_sum", "scatter", "sum", "float32", "uint8"}


def share(names: Sequence[Any]) -> list[Any]:
    return [
        n if str(n).removeprefix("weft.") in QUICK else pytest.param(n, marks=pytest.mark.slow)
        for n in names
    ]


#: The same graphs in every run, and no search for a smaller one.
SAME = settings(
    max_examples=300,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def why_missing() -> str:
    """Why numba-cuda compiles nothing here; empty where it does."""
    kernel = CudaKernel("k", "def k(p):\n    p[0] = f32(1)\n", (P,), engine="numba")
    try:
        numba_cuda_version()
        assemble(kernel, emit_ptx(kernel, (9, 0)), (9, 0))
    except ToolchainError as error:
        return str(error)
    return ""


P = Parameter("p", "pointer", "f32")
MISSING = why_missing()
needs_numba_cuda = pytest.mark.skipif(
    bool(MISSING) and not must_be_there(), reason=f"no numba-cuda: {MISSING}"
)


@contextmanager
def by_numba() -> Iterator[None]:
    """Kernels that are planned within are numba-cuda's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_ENGINE", "numba")
        yield


def on_simulator(launch: Launch, args: Sequence[Any]) -> None:
    """Carry out a launch on Numba's simulator."""
    simulate(launch.kernel, launch.blocks, launch.block_threads, args)


def results(case: GraphCase) -> list[Array]:
    graph = pipeline(case.graph)
    assume(any(on_gpu(op) for op in graph.ops))
    try:
        return run(graph, case.inputs, on_simulator)
    except UnsupportedError:
        assume(False)
        raise


def check_exactly(case: GraphCase) -> None:
    wanted = interpret(case.graph, case.inputs)
    for x, y in zip(results(case), wanted, strict=True):
        assert same(x, y), f"{x!r} != {y!r}"


def check_roughly(case: GraphCase) -> bool:
    try:
        wanted, _ = stable_results(case.graph, case.inputs, case.state, 1)
    except Overflow:
        return False
    for x, (centre, spread) in zip(results(case), wanted, strict=True):
        within(x, centre, spread)
    return True


class TestSimulated:
    """What Python makes of the text, thread by thread, is what the interpreter has."""

    @pytest.mark.slow
    @pytest.mark.share(2)
    @pytest.mark.parametrize("dtype", share(KINDS), ids=str)
    def test_every_elementwise_op(self, dtype: DType) -> None:
        case = Case()
        for k, op in enumerate(ops_at(dtype)):
            arity = OPS[op].arity or 1
            arrays = domain(op, operands(dtype, arity, 60, seed=k))
            if op == "fma" and dtype is dtypes.float64:
                arrays = [plain(dtype, (60,), seed) for seed in range(3)]
            case.op(op, *(case.input(x) for x in arrays))
        graph = case.graph()
        wanted = interpret(graph, case.inputs)
        made = run(pipeline(graph), case.inputs, on_simulator)
        for op, got, want in zip(case.labels, made, wanted, strict=True):
            check_elementwise(op, dtype, got, want)

    @pytest.mark.share(5)
    @pytest.mark.parametrize("op", share(OPS_HERE))
    def test_every_op(self, op: str) -> None:
        met: list[bool] = []

        @SAME
        @given(graph_and_inputs(stage="traced", ops=[op], dtypes=SOME, max_ops=2))
        def look(case: GraphCase) -> None:
            if len(met) < 2 and check_roughly(case):
                met.append(True)

        look()
        assert met

    @given(row_cases((dtypes.float32, dtypes.int32), gathers=True))
    @examples(6)
    def test_rows(self, case: GraphCase) -> None:
        check_roughly(case)

    @pytest.mark.parametrize("dtype", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
    def test_tensor_cores(self, dtype: str) -> None:
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal(s).astype(as_dtype(dtype).numpy) for s in ((17, 24), (24, 9)))
        graph = product_graph(a.shape, b.shape, dtype)
        (wanted,) = interpret(graph, [a, b])
        (made,) = run_graph(graph, [a, b], runner=on_simulator)
        np.testing.assert_allclose(
            made.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2
        )

    @pytest.mark.parametrize("dtype", ["i8", pytest.param("u8", marks=pytest.mark.slow)])
    def test_products_of_bytes(self, dtype: str) -> None:
        rng, held = np.random.default_rng(0), as_dtype(dtype).numpy
        info = np.iinfo(held)
        a, b = (rng.integers(info.min, info.max + 1, s).astype(held) for s in ((17, 39), (39, 18)))
        graph = product_graph(a.shape, b.shape, dtype)
        (made,) = run_graph(graph, [a, b], runner=on_simulator)
        np.testing.assert_array_equal(made, a @ b)

    def test_a_lane_that_does_not_come(self) -> None:
        source = (
            "def k(p):\n    lane = u32(cuda.threadIdx.x)\n    if lane > u32(0):\n"
            "        p[lane] = cuda.shfl_xor_sync(0xFFFFFFFF, p[lane], i32(1))\n"
        )
        with pytest.raises(RuntimeError, match=r"tid=\[1\] ctaid=\[0\]: it waits for threads"):
            simulate(CudaKernel("k", source, (P,), 32), 1, 32, [np.zeros(32, np.float32)])


@pytest.mark.slow
class TestMany:
    """The same at length."""

    @given(graph_and_inputs(stage="traced", ops=KERNELS, dtypes=WHOLE))
    @examples(60)
    def test_whole_numbers(self, case: GraphCase) -> None:
        check_exactly(case)

    @given(graph_and_inputs(stage="traced", ops=FLOATS, dtypes=SINGLE))
    @examples(60)
    def test_single(self, case: GraphCase) -> None:
        check_roughly(case)

    @given(row_cases(NUMBERS))
    @examples(40)
    def test_rows_of_whole_numbers(self, case: GraphCase) -> None:
        check_exactly(case)

    @given(row_cases((dtypes.float32,), sizes=(3, 70), columns=(3, 40)))
    @examples(20)
    def test_columns(self, case: GraphCase) -> None:
        check_roughly(case)


def two_layers(x: Any, w: Any) -> Any:
    h = wf.tanh(x @ w)
    return wf.nn.softmax(h), wf.sum(h, axis=0), wf.cumsum(h, axis=1), wf.sort(h, axis=1)


def some() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.random((5, 16), np.float32), rng.random((16, 20), np.float32)


class TestSteps:
    """engine="numba" for a GPU, which is emulated."""

    @pytest.fixture(autouse=True)
    def emulated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    def test_a_function(self, monkeypatch: pytest.MonkeyPatch) -> None:
        simulated_kernels: list[str] = []

        def noted(kernel: CudaKernel, *args: Any) -> None:
            simulated_kernels.append(kernel.name)
            simulate(kernel, *args)

        monkeypatch.setattr(emulated_device, "simulate", noted)
        x, w = some()
        f = wf.compile(two_layers, device="gpu:0", engine="numba")
        for got, want in zip(f(x, w), wf.compile(two_layers)(x, w), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)
        assert [k.name for k in f.kernels(x, w)] == simulated_kernels

    @pytest.mark.slow
    def test_a_gradient_with_a_loop(self) -> None:
        def loss(x: Any) -> Any:
            y = wf.while_loop(lambda v: wf.sum(v) < 5, lambda v: wf.exp(-v) + v, x)
            return wf.sum(y * y)

        x = np.linspace(0.5, 1.5, 3, dtype=np.float32)
        made = wf.compile(wf.grad(loss), device="gpu:0", engine="numba")(x)
        np.testing.assert_allclose(
            np.asarray(made), np.asarray(wf.compile(wf.grad(loss))(x)), rtol=1e-5
        )

    def test_a_session(self) -> None:
        with wf.Graph().as_default():
            with wf.device("/gpu:0"):
                w = wf.Variable(np.ones((3, 2), np.float32), name="w")
                x = wf.placeholder(wf.float32, (4, 3))
                y = wf.nn.relu(x @ w)
                step = w.assign_add(wf.ones((3, 2)))
            with by_numba(), wf.Session() as session:
                session.run(wf.global_variables_initializer())
                session.run(step)
                given_x = np.arange(12, dtype=np.float32).reshape(4, 3)
                made = session.run(y, {x: given_x})
        np.testing.assert_allclose(made, given_x @ np.full((3, 2), 2, np.float32))

    def test_kernels_print(self) -> None:
        x, _ = some()
        (kernel,) = wf.compile(lambda x: wf.exp(x) + 2, device="gpu:0").kernels(x)
        text = kernel.source()
        assert "from numba import cuda\n" in text
        assert "@cuda.jit\ndef exp_add_each(" in text
        assert "# ops: exp, broadcast_to, add\n" in text
        assert "launched as [1, 256]" in text
        assert kernel.key in repr(kernel)

    def test_functions_that_numba_compiled_for_the_cpu(self) -> None:
        x = np.linspace(-1, 1, 4, dtype=np.float32)
        f = wf.compile(lambda x: bent(x) + 1, device="gpu:0")
        (kernel,) = f.kernels(x)
        with pytest.raises(UnsupportedError, match="calls a function of yours that Numba compiled"):
            kernel.source()
        with pytest.raises(UnsupportedError, match="calls a function of yours that Numba compiled"):
            wf.compile(lambda x: bent(x) + 1, device="gpu:0", engine="numba")(x)

    def test_checks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_EMULATE_GPU", "check")
        f = wf.compile(lambda x: wf.exp(x), device="gpu:0", engine="numba")
        with pytest.raises(UnsupportedError, match="looks for no races"):
            f(np.ones(3, np.float32))

    def test_reproducible_steps(self) -> None:
        f = wf.compile(
            lambda x: wf.exp(x) * 2, device="gpu:0", engine="numba", passes="gpu_reproducible"
        )
        with pytest.raises(UnsupportedError, match="is of a reproducible step"):
            f(np.ones(3, np.float32))

    def test_dumps_have_the_modules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
        x = np.linspace(-1, 1, 4, dtype=np.float32)
        wf.compile(lambda x: wf.exp(x) + bent(x), device="gpu:0")(x)
        wf.compile(lambda x: wf.exp(x) + 1, device="gpu:0")(x)
        texts = sorted(p.read_text() for p in tmp_path.glob("*/launches/*.py"))
        assert len(texts) == 2
        assert any("@cuda.jit\ndef exp_add_each" in text for text in texts)
        assert any(text.startswith("# the kernel") for text in texts)


@wf.elementwise
def bent(x: Any) -> Any:
    while x > 0.5:
        x = x - math.exp(-x)
    return x


def test_a_printed_module_runs_in_a_simulator_of_its_own(tmp_path: Path) -> None:
    x, _ = some()
    graph = wf.compile(lambda x: wf.sum(wf.exp(x), axis=1)).trace(x)
    (op,) = pipeline(graph).ops
    (launch,) = fused_launches(op)[0]
    arrays = {"in0": "x.ravel()", "out0": "out"}
    given = [
        arrays.get(p.name, str(a))
        for p, a in zip(launch.kernel.parameters, launch.args, strict=True)
    ]
    path = tmp_path / "kernel.py"
    path.write_text(
        f"""{numba_text(launch.kernel)}
import numpy as np
x = np.random.default_rng(0).random((5, 16), np.float32)
out = np.zeros(5, np.float32)
{launch.kernel.name}[{launch.blocks}, {launch.block_threads}]({", ".join(given)})
np.testing.assert_allclose(out, np.exp(x).sum(1), rtol=1e-6)
print("equal")
"""
    )
    ran = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert ran.stdout == "equal\n", path.read_text() + ran.stderr


class TestNames:
    """What a module may import."""

    def test_the_simulator_has_all(self) -> None:
        assert set(simulated.NAMES) == NAMES

    def test_no_other(self) -> None:
        with language.simulating(), pytest.raises(AttributeError, match="no attribute 'sinus'"):
            language.sinus  # noqa: B018

    @needs_numba_cuda
    def test_numba_cuda_has_all(self) -> None:
        from weft.codegen.cuda.numba_cuda.names import NAMES as names

        assert set(names) == NAMES


class TestMissing:
    """Without numba-cuda."""

    def test_it_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib.metadata

        def none(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", none)
        kernel = CudaKernel("k", "def k(p):\n    p[0] = f32(1)\n", (P,), engine="numba")
        with pytest.raises(ToolchainError, match="no Python package numba-cuda"):
            emit_ptx(kernel, (9, 0))

    def test_its_kernels_have_keys_of_their_own(self) -> None:
        one, other = (
            CudaKernel("k", "def k(p):\n    p[0] = f32(1)\n", (P,), engine=engine)
            for engine in ("llvm", "numba")
        )
        assert one.key != other.key


@needs_numba_cuda
class TestCompiled:
    """numba-cuda and NVIDIA's compilers take every text."""

    @pytest.mark.slow
    @pytest.mark.parametrize("op", OPS_HERE)
    def test_every_op(self, op: str) -> None:
        made: list[CudaKernel] = []

        @SAME
        @given(graph_and_inputs(stage="traced", ops=[op], dtypes=SOME, max_ops=2))
        def look(case: GraphCase) -> None:
            if made or not any(on_gpu(inner) for inner in pipeline(case.graph).ops):
                return
            try:
                with by_numba():
                    made.extend(graph_kernels(case.graph))
            except UnsupportedError:  # complex numbers
                return

        look()
        assert made
        for kernel in made:
            assert compile_kernel(kernel, (9, 0)).report.registers > 0

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", KINDS, ids=str)
    def test_elementwise_ops(self, dtype: DType) -> None:
        case = Case()
        for k, op in enumerate(ops_at(dtype)):
            arrays = domain(op, operands(dtype, OPS[op].arity or 1, 60, seed=k))
            case.op(op, *(case.input(x) for x in arrays))
        with by_numba():
            for kernel in graph_kernels(case.graph()):
                assert compile_kernel(kernel, (9, 0)).report.registers > 0

    def test_tensor_cores(self) -> None:
        graph = product_graph((64, 64), (64, 64), "f16")
        with by_numba():
            (kernel, *_) = graph_kernels(graph)
        assert "mma.sync.aligned.m16n8k16" in emit_ptx(kernel, (8, 0))
        with pytest.raises(UnsupportedError, match="from sm_80 on"):
            emit_ptx(kernel, (7, 5))

    @pytest.mark.parametrize(("dtype", "kind"), [("i8", "s32"), ("u8", "u32")])
    def test_products_of_bytes(self, dtype: str, kind: str) -> None:
        with by_numba():
            (kernel, *_) = graph_kernels(product_graph((64, 64), (64, 64), dtype))
        assert f"dp4a.{kind}.{kind}" in emit_ptx(kernel, (9, 0))

    def test_a_launch_has_the_bounds_and_the_name(self) -> None:
        x, _ = some()
        with by_numba():
            (kernel,) = graph_kernels(wf.compile(lambda x: wf.exp(x) + 1).trace(x))
        ptx = emit_ptx(kernel, (9, 0))
        assert f".entry weft_{kernel.key.replace('-', '_')}(" in ptx
        assert ".maxntid 256" in ptx
