"""What the kernels of the test models take of a GPU, on every architecture: nothing spills, two
blocks fit on a multiprocessor, and no arithmetic is wider than the program asked for."""

from __future__ import annotations

import re
from functools import cache

import pytest
from cuda_models import MODELS, OPS, PROGRAMS
from cuda_toolchain import TARGETS, needs_toolchain

from weft.codegen.cuda.cubins.compile import assemble, emit_ptx
from weft.codegen.cuda.cubins.llvm_instructions import takes_shuffles
from weft.codegen.cuda.cubins.resources import KernelReport
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter

pytestmark = needs_toolchain

Cc = tuple[int, int]
REGISTERS = 64 << 10  # of a multiprocessor, on all four architectures
SHARED = 64 << 10  # bytes of a multiprocessor of sm_75; the others have more
BLOCKS = 2  # that are to fit at once, if they have less than 1024 threads
_WIDE_DIVISION = re.compile(r"^\s+(?:div|rem)\.[us]64", re.MULTILINE)
_F64 = re.compile(r"^\s+[a-z][\w.]*\.f64[\w.]*", re.MULTILINE)
# Reducing large angles takes a product in f64, and some local memory.
_ANGLES = re.compile(r"\b(?:sin|cos|tan)_f32\(")


@cache
def compiled(kernel: CudaKernel, cc: Cc) -> tuple[str, KernelReport]:
    ptx = emit_ptx(kernel, cc)
    return ptx, assemble(kernel, ptx, cc).report


def faults(kernel: CudaKernel, cc: Cc) -> list[str]:
    """What is wrong with the kernel's machine code, by the budgets of this page."""
    ptx, report = compiled(kernel, cc)
    of_f64 = "f64" in kernel.source or any(p.dtype == "f64" for p in kernel.parameters)
    angles = bool(_ANGLES.search(kernel.source))
    found = []
    # bf16 on sm_75, which has no tensor cores for it: correct, and as slow as it gets
    emulated = takes_shuffles(kernel.source, cc)
    if report.spills and not emulated:
        found.append(f"{report.spills} bytes spilled")
    if report.stack and not angles and not emulated:
        found.append(f"{report.stack} bytes of stack")
    blocks = 1 if kernel.threads == 1024 else BLOCKS
    if report.registers * kernel.threads * blocks > REGISTERS and not emulated:
        found.append(f"{report.registers} registers of {kernel.threads} threads")
    if report.shared * BLOCKS > SHARED:
        found.append(f"{report.shared} bytes of shared memory")
    if _F64.search(ptx) and not (of_f64 or angles):
        found.append("arithmetic in f64")
    if _WIDE_DIVISION.search(ptx):
        found.append("64-bit division")
    return [f"{kernel.name} on sm_{cc[0]}{cc[1]}: {what}" for what in found]


@pytest.mark.parametrize("program", ["chain", "broadcast", "sum of columns"])
def test_budgets_on_one_architecture(program: str) -> None:
    kernels = (MODELS | OPS)[program]().kernels()
    assert kernels
    assert [fault for kernel in kernels for fault in faults(kernel, (9, 0))] == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [*MODELS, *OPS, *PROGRAMS])
def test_budgets(program: str) -> None:
    kernels = (MODELS | OPS | PROGRAMS)[program]().kernels()
    assert kernels
    assert [f for kernel in kernels for cc in TARGETS for f in faults(kernel, cc)] == []


def kernel_of(body: str, threads: int = 256) -> CudaKernel:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    parameters = (Parameter("p", "pointer", "f32"), Parameter("n", "integer"))
    return CudaKernel("bad", f"def bad(p, n):\n{lines}", parameters, threads)


SHARED_ARRAY = """a = cuda.shared.array(9000, f32)
a[n] = p[0]
cuda.syncthreads()
p[1] = a[0]"""
LOCAL_ARRAY = """a = cuda.local.array(64, f32)
for k in range(64):
    a[k] = p[k]
p[1] = f32(a[n] + a[i64(p[0])])"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("p[0] = sin_f32 (p[1])", "arithmetic in f64"),  # with a space it is no angle to `faults`
        ("p[0] = p[i64(n // i64(p[0]))]", "64-bit division"),
        (SHARED_ARRAY, "36000 bytes"),
        (LOCAL_ARRAY, "bytes of stack"),
    ],
    ids=["f64", "division", "shared", "local"],
)
def test_the_budgets_see_what_is_wrong(body: str, told: str) -> None:
    assert told in " ".join(faults(kernel_of(body), (9, 0)))


def test_the_budgets_see_spills_and_too_many_registers() -> None:
    lines = [f"v{k} = p[{k}]" for k in range(150)]
    lines += ["cuda.syncthreads()", *(f"p[{k + 150}] = v{k}" for k in range(150))]
    spilling = " ".join(faults(kernel_of("\n".join(lines), threads=1024), (9, 0)))
    assert "bytes spilled" in spilling
    assert "bytes of stack" in spilling
    (large,) = faults(kernel_of("\n".join(lines), threads=256), (9, 0))
    assert "registers of 256 threads" in large
