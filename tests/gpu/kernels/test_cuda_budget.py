"""What the kernels of the test models take of a GPU, on every architecture: nothing spills, two
blocks fit on a multiprocessor, and no arithmetic is wider than the program asked for."""

from __future__ import annotations

import pytest
from cuda_budget_checks import faults
from cuda_models import MODELS, OPS, PROGRAMS
from cuda_toolchain import TARGETS, needs_toolchain

from weft.codegen.cuda.source.kernel import CudaKernel, Parameter

pytestmark = needs_toolchain


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
