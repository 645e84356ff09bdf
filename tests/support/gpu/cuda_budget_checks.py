"""What a kernel may take of a GPU, by its machine code: registers, shared memory, no spills, and no
arithmetic that is wider than the program asked for."""

from __future__ import annotations

import re
from functools import cache

from weft.codegen.cuda.cubins.cache import KernelReport
from weft.codegen.cuda.cubins.compile import assemble, emit_ptx
from weft.codegen.cuda.cubins.llvm_instructions import takes_shuffles
from weft.codegen.cuda.source.kernel import CudaKernel

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
