"""Kernel source to cubins for four architectures, without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cuda_toolchain import TARGETS, needs_toolchain

from weft.codegen.cuda.cubins import compile
from weft.codegen.cuda.cubins import compile as compiling
from weft.codegen.cuda.cubins.cache import KernelReport, read_report, targets
from weft.codegen.cuda.cubins.compile import (
    assemble,
    compile_for_gpu,
    compile_kernel,
    describe_kernels,
    emit_ptx,
    forget_cubins,
    known_cubin,
    symbol_of,
)
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter
from weft.codegen.llvm.jit import CodegenError
from weft.ir.errors import ToolchainError, UnsupportedError

pytestmark = needs_toolchain

P = Parameter("p", "pointer", "f32")
N = Parameter("n", "integer")
SCALE = CudaKernel("scale", "def scale(p, n):\n    p[n] = f32(p[n] * f32(2))\n", (P, N))
REVERSE = CudaKernel(
    "reverse",
    """def reverse(p, n):
    a = cuda.shared.array(256, f32)
    b = cuda.shared.array(64, i64)
    t = u32(cuda.threadIdx.x)
    a[t] = p[t]
    b[u32(t % u32(64))] = n
    cuda.syncthreads()
    p[t] = f32(a[u32(u32(255) - t)] + f32(b[3]))
""",
    (P, N),
)
# More values live at once than the 32 registers that 2048 threads leave each.
HUNGRY = CudaKernel(
    "hungry",
    "def hungry(p, n):\n"
    + "".join(f"    v{k} = p[{k}]\n" for k in range(60))
    + "    cuda.syncthreads()\n"
    + "".join(f"    p[{60 + k}] = v{k}\n" for k in range(60)),
    (P, N),
)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.delenv("WEFT_CUBINS", raising=False)
    forget_cubins()
    yield
    forget_cubins()


@pytest.mark.parametrize("cc", TARGETS)
def test_cubins_of_four_architectures(cc: tuple[int, int]) -> None:
    cubin = compile_kernel(REVERSE, cc)
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.symbol == symbol_of(REVERSE) == f"weft_cuda_{REVERSE.key[5:]}"
    assert b".text." + cubin.symbol.encode() in cubin.code
    report = cubin.report
    assert (report.shared, report.stack, report.spills) == (256 * 4 + 64 * 8, 0, 0)
    assert 8 <= report.registers <= 32
    assert f"{report.registers} registers, 1536 bytes shared" == report.describe()


def test_the_same_source_gives_the_same_bytes() -> None:
    assert emit_ptx(REVERSE, (9, 0)) == emit_ptx(REVERSE, (9, 0))
    first = compile_kernel(REVERSE, (9, 0))
    emit_ptx(SCALE, (9, 0))
    forget_cubins()
    again = compile_kernel(REVERSE, (9, 0))
    assert again is not first
    assert again == first


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    emit = compiling.emit_ptx

    def counted(kernel: CudaKernel, cc: tuple[int, int]) -> str:
        calls.append(cc)
        return emit(kernel, cc)

    monkeypatch.setattr(compiling, "emit_ptx", counted)
    threads = [threading.Thread(target=compile_kernel, args=(SCALE, (9, 0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compile_kernel(replace(SCALE), (9, 0)) is compile_kernel(SCALE, (9, 0))
    assert calls == [(9, 0)]
    compile_kernel(SCALE, (8, 0))
    assert calls == [(9, 0), (8, 0)]


def test_what_is_known_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compile_kernel(SCALE, (9, 0))
    monkeypatch.setattr(compiling, "emit_ptx", lambda kernel, cc: pytest.fail("compiled"))
    assert known_cubin(SCALE, (9, 0)) is made
    assert known_cubin(SCALE, (8, 0)) is None
    assert describe_kernels([SCALE, REVERSE], (9, 0)) == [
        f"scale    {made.report.registers} registers, 0 bytes shared",
        "reverse  not compiled yet",
    ]


def test_the_target_is_made_known_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's list of targets breaks where two threads enter one target at once."""
    called: list[str] = []

    class Slow:
        def __getattr__(self, name: str) -> Callable[[], None]:
            def enter() -> None:
                called.append(name)
                time.sleep(0.01)

            return enter

    monkeypatch.setattr(compile, "library", Slow)
    compile._known.cache_clear()
    threads = [threading.Thread(target=compile._ready) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compile._known.cache_clear()
    assert len(called) == len(set(called)) == 4


def test_few_cubins_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_KEPT", 1)
    made = compile_kernel(SCALE, (9, 0))
    assert compile_kernel(SCALE, (9, 0)) is made
    compile_kernel(REVERSE, (9, 0))
    assert known_cubin(SCALE, (9, 0)) is None


def test_threads_and_blocks_bound_the_registers() -> None:
    compile = emit_ptx(replace(HUNGRY, threads=1024, blocks=2), (9, 0))
    assert ".maxntid 1024" in compile
    assert ".minnctapersm 2" in compile
    few = compile_kernel(replace(HUNGRY, threads=1024, blocks=2), (9, 0)).report
    many = compile_kernel(replace(HUNGRY, threads=128), (9, 0)).report
    assert few.registers <= 32 < many.registers
    assert few.spills > 0 == many.spills
    assert few.stack > 0 == many.stack
    assert "bytes of stack" in few.describe()
    assert "bytes spilled" in few.describe()


def test_the_report_agrees_with_nvjitlink_own(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []

    def noted(code: bytes, symbol: str, log: str) -> KernelReport:
        logs.append(log)
        return read_report(code, symbol, log)

    monkeypatch.setattr(compiling, "read_report", noted)
    for kernel in (REVERSE, replace(HUNGRY, threads=1024, blocks=2)):
        for cc in TARGETS:
            report = compile_kernel(kernel, cc).report
            (used,) = re.findall(r"Used (\d+) registers", logs[-1])
            (stack,) = re.findall(r"(\d+) bytes stack frame", logs[-1])
            shared = re.findall(r"(\d+) bytes smem", logs[-1]) or ["0"]  # not said where it is none
            assert [report.registers, report.stack] == [int(used), int(stack)]
            assert [report.shared] == [int(n) for n in shared]


def test_what_is_no_cubin_has_no_report() -> None:
    cubin = compile_kernel(SCALE, (9, 0))
    with pytest.raises(ValueError, match="no ELF"):
        read_report(b"PTX", cubin.symbol, "")
    with pytest.raises(ValueError, match="not in list"):
        read_report(cubin.code, "another", "")
    assert KernelReport(**cubin.report.fields()) == cubin.report


def test_old_and_unknown_architectures() -> None:
    with pytest.raises(UnsupportedError, match=r"not compiled for sm_70\n.*hint.*sm_75"):
        compile_kernel(SCALE, (7, 0))
    with pytest.raises(ToolchainError, match=r"nvJitLink 1\d\.\S+ .* does not know sm_999"):
        compile_kernel(SCALE, (99, 9))
    with pytest.raises(ToolchainError, match=r"LLVM \d+\.\S+ does not know sm_999"):
        emit_ptx(SCALE, (99, 9))
    with pytest.raises(ToolchainError, match=r"nvJitLink 1\d\.\S+ \(/\S+\) does not know sm_999"):
        assemble(SCALE, emit_ptx(SCALE, (9, 0)), (99, 9))


@pytest.mark.parametrize(
    ("cc", "runs"),
    [
        ((9, 0), [(9, 0)]),
        ((10, 3), [(10, 3), (10, 0)]),
        ((12, 1), [(12, 1), (12, 0)]),
        ((10, 7), [(10, 7), (10, 3), (10, 0)]),
        ((8, 9), [(8, 9), (8, 6), (8, 0)]),
        ((10, 1), [(10, 1)]),
        ((7, 0), [(7, 0)]),
    ],
)
def test_what_a_gpu_runs(cc: tuple[int, int], runs: list[tuple[int, int]]) -> None:
    assert list(targets(cc)) == runs


def test_a_gpu_that_the_toolchain_does_not_know_runs_what_is_of_one_before_it() -> None:
    assert known_cubin(SCALE, (10, 7)) is None
    assert compile_for_gpu(SCALE, (10, 7)).code == compile_kernel(SCALE, (10, 3)).code
    assert known_cubin(SCALE, (10, 7)) is not None
    assert compile_for_gpu(SCALE, (12, 1)).code == compile_kernel(SCALE, (12, 1)).code
    for _ in range(2):
        with pytest.raises(ToolchainError, match="does not know sm_999"):
            compile_for_gpu(SCALE, (99, 9))


def test_ptx_that_does_not_assemble_names_kernel_and_log() -> None:
    compile = emit_ptx(SCALE, (9, 0)).replace("mul.f32", "mull.f32").replace("add.f32", "addd.f32")
    with pytest.raises(CodegenError, match="kernel 'scale' does not compile for sm_90") as caught:
        assemble(SCALE, compile, (9, 0))
    assert "Not a name of any known instruction" in str(caught.value)
    assert "   2     p[n] = f32(p[n] * f32(2))" in str(caught.value)


def test_a_cubin_from_the_cache_loads_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "store_cubin", storing_always())
    want = compile_kernel(SCALE, (9, 0))
    program = f"""
import sys
import weft.codegen.cuda.cubins.cache as cache
cache.cuda_sources = lambda: "the same"
from weft.codegen.cuda.cubins.compile import compile_kernel
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter
from weft.codegen.llvm.target import is_loaded
kernel = CudaKernel({SCALE.name!r}, {SCALE.source!r}, {SCALE.parameters!r})
cubin = compile_kernel(kernel, (9, 0))
compilers = ("llvmlite.binding", "cuda.bindings", "cuda.pathfinder")
loaded = [name for name in compilers if name in sys.modules]
loaded += ["LLVM"] if is_loaded() else []
print(len(cubin.code), loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split(maxsplit=1) == [str(len(want.code)), "[]\n"]


def storing_always() -> object:
    """Other people may be editing weft while this test runs: the cache would be off."""
    from weft.codegen.cuda.cubins import cache

    def store(kernel: CudaKernel, cc: tuple[int, int], cubin: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "cuda_sources", lambda: "the same")
            cache.store_cubin(kernel, cc, cubin)  # type: ignore[arg-type]

    return store


def test_a_driver_that_is_too_old_for_what_is_compiled() -> None:
    with pytest.raises(ToolchainError, match=r"of CUDA 1\d, but the driver supports CUDA 11\.8"):
        compile_kernel(SCALE, (9, 0), driver=(11, 8))
    made = compile_kernel(SCALE, (9, 0))  # one that is there is not compiled: it may be loaded
    assert compile_kernel(SCALE, (9, 0), driver=(11, 8)) is made
