"""Every name of kernel source compiles to the instructions that it stands for."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from cuda_on_cpu import run as on_cpu
from cuda_toolchain import needs_toolchain

from weft.codegen.cuda.cubins.compile import compile_kernel, emit_ptx
from weft.codegen.cuda.source import kernel as language
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter
from weft.codegen.llvm.jit import CodegenError

pytestmark = needs_toolchain


def pointer(name: str, dtype: str) -> Parameter:
    return Parameter(name, "pointer", dtype)


def kernel(name: str, body: str, *parameters: Parameter, before: str = "") -> CudaKernel:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    head = f"def {name}({', '.join(p.name for p in parameters)}):"
    return CudaKernel(name, f"{before}{head}\n{lines}\n", parameters)


def instructions(ptx: str) -> list[str]:
    """Opcodes of the PTX, with their suffixes."""
    return re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][a-z0-9]*(?:\.[\w:]+)*)\s", ptx, re.MULTILINE)


def count(ptx: str, prefix: str) -> int:
    return sum(op.startswith(prefix) for op in instructions(ptx))


def ptx_of(name: str, body: str, *parameters: Parameter, cc: tuple[int, int] = (9, 0)) -> str:
    return emit_ptx(kernel(name, body, *parameters), cc)


def test_vectors_are_one_access_each() -> None:
    lines, parameters = ["i = u32(u32(cuda.threadIdx.x) * u32(16))"], []
    for dtype, lanes in language.LANES.items():
        values = ", ".join(f"{dtype}_{k}" for k in range(lanes))
        back = ", ".join(f"{dtype}_{k}" for k in reversed(range(lanes)))
        lines.append(f"{values} = {language.LOADS[dtype]}(p{dtype}, i)")
        lines.append(f"{language.STORES[dtype]}(p{dtype}, i, {back})")
        parameters.append(pointer(f"p{dtype}", dtype))
    ptx = ptx_of("vectors", "\n".join(lines), *parameters)
    assert count(ptx, "ld.global.v4") == count(ptx, "st.global.v4") == 7
    assert count(ptx, "ld.global.v2") == count(ptx, "st.global.v2") == 3
    assert count(ptx, "ld.global") == count(ptx, "st.global") == 10


def test_elements_are_one_access_each() -> None:
    dtypes = [*language.LANES]
    body = "\n".join(f"p{dtype}[0] = p{dtype}[1]" for dtype in dtypes)
    ptx = ptx_of("elements", body, *(pointer(f"p{dtype}", dtype) for dtype in dtypes))
    assert count(ptx, "ld.global") == count(ptx, "st.global") == len(dtypes)
    assert count(ptx, "ld.global.b64") == count(ptx, "st.global.b64") == 3


# Reducing a large angle takes a product of two f64, in a branch that small ones never see.
ANGLES = ("sin", "cos", "tan")


def maths_body(names: tuple[str, ...], dtype: str) -> str:
    lines = ["i = u32(cuda.threadIdx.x)"]
    for name in names:
        args = 3 if name in language.THREE else 2 if name in language.TWO else 1
        lines.append(f"p[i] = {name}_{dtype}({', '.join(['p[i]'] * args)})")
    return "\n".join(lines)


def test_maths_on_f32_stays_f32() -> None:
    names = tuple(name for name in language.MATHS if name not in ANGLES)
    ptx = ptx_of("maths", maths_body(names, "f32"), pointer("p", "f32"))
    assert [op for op in instructions(ptx) if "f64" in op] == []
    assert ".local" not in ptx
    assert "call" not in ptx


def test_angles_on_f32() -> None:
    ptx = ptx_of("angles", maths_body(ANGLES, "f32"), pointer("p", "f32"))
    f64 = [op for op in instructions(ptx) if "f64" in op]
    assert set(f64) <= {"cvt.rn.f64.s64", "mul.f64", "cvt.rn.f32.f64"}
    assert len(f64) <= 9


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", language.MATHS)
def test_each_function_assembles(name: str, dtype: str) -> None:
    source = kernel(f"only_{name}", maths_body((name,), dtype), pointer("p", dtype))
    for cc in ((7, 5), (10, 0)):
        assert compile_kernel(source, cc).report.registers > 0


def test_maths_on_f64_is_libdevice() -> None:
    ptx = ptx_of("both", maths_body(("exp", "sqrt", "fma", "floor"), "f64"), pointer("p", "f64"))
    assert count(ptx, "sqrt.rn.f64") == 1
    assert count(ptx, "fma.rn.f64") > 5
    assert count(ptx, "cvt.rmi.f64") == 1


def test_f32_is_exact_where_ieee_is() -> None:
    """No fast-math: division and square roots are rounded, small numbers kept."""
    ptx = ptx_of("exact", "p[0] = f32(sqrt_f32(p[1]) / p[2])", pointer("p", "f32"))
    assert count(ptx, "sqrt.rn.f32") == count(ptx, "div.rn.f32") == 1
    assert ".ftz" not in ptx


MEETING = """
t = u32(cuda.threadIdx.x)
x = p[t]
s = cuda.shared.array(64, f32)
s[t] = x
cuda.syncthreads()
x = s[u32(u32(63) - t)]
cuda.syncwarp(0xffffffff)
x = cuda.shfl_xor_sync(0xffffffff, x, 16)
p[t] = cuda.shfl_sync(0xffffffff, x, 3)
u[t] = cuda.shfl_up_sync(0xffffffff, u[t], 1)
v[t] = cuda.shfl_down_sync(0xffffffff, v[t], 1)
w[t] = cuda.shfl_xor_sync(0xffffffff, w[t], 1)
all_of = cuda.all_sync(0xffffffff, x > f32(0))
any_of = cuda.any_sync(0xffffffff, x > f32(1))
u[u32(t + u32(64))] = cuda.ballot_sync(0xffffffff, boolean(all_of and any_of))
if cuda.syncthreads_or(x > f32(2)):
    u[u32(t + u32(128))] = u32(cuda.laneid)
"""


def test_threads_meet() -> None:
    given = [pointer(n, d) for n, d in (("p", "f32"), ("u", "u32"), ("v", "i64"), ("w", "u64"))]
    ptx = ptx_of("meeting", MEETING, *given)
    assert count(ptx, "shfl.sync.bfly.b32") == 1 + 2  # of 64 bits: two
    assert count(ptx, "shfl.sync.idx.b32") == 1
    assert count(ptx, "shfl.sync.up.b32") == 1
    assert count(ptx, "shfl.sync.down.b32") == 2
    # the other lane, and the last one that there is (up: the first)
    assert re.search(r"shfl\.sync\.up\.b32\s+\S+ \S+ 1, 0, -1;", ptx)
    assert re.search(r"shfl\.sync\.bfly\.b32\s+\S+ \S+ 16, 31, -1;", ptx)
    assert count(ptx, "vote.sync.") == 3
    assert count(ptx, "bar.sync") == 1
    assert count(ptx, "bar.warp.sync") == 1
    assert "bar.red.or.pred" in ptx
    assert ptx.count("%laneid") == 1


def test_threads_that_meet_do_it_together() -> None:
    """What LLVM likes to do with code in a branch it must not do with what all threads come to:
    sink it into the only branch that wants it, thread a jump through it, unswitch its loop."""
    sunk = """
t = i64(cuda.threadIdx.x)
w = cuda.shfl_xor_sync(u32(0xFFFFFFFF), p[t], 1)
if t < 16:
    q[t] = exp_f32(w)
"""
    threaded = """
a = cuda.shared.array(256, f32)
t = i64(cuda.threadIdx.x)
few = boolean(False)
if t < 16:
    few = boolean(True)
    a[t] = p[t]
cuda.syncthreads()
if few:
    q[t] = exp_f32(a[i64(15 - t)])
"""
    unswitched = """
a = cuda.shared.array(256, f32)
t = i64(cuda.threadIdx.x)
for i in range(n):
    if t < 16:
        a[t] = p[i64(t + i)]
    cuda.syncthreads()
    if t < 16:
        q[t] = f32(q[t] + a[i64(15 - t)])
    cuda.syncthreads()
"""
    given = [pointer("p", "f32"), pointer("q", "f32"), Parameter("n", "integer")]
    for body, name, times in ((sunk, "shfl", 1), (threaded, "bar.", 1), (unswitched, "bar.", 2)):
        ptx = ptx_of("together", body, *given)
        assert count(ptx, name) == times
        assert not re.search(rf"@!?%p\d+ {name}", ptx)
    branch = ptx_of("together", sunk, *given)
    assert branch.index("shfl") < branch.index("bra")
    assert branch.index("shfl") < branch.index("ex2")


def test_atomics() -> None:
    body = """
s = cuda.shared.array(4, i32)
t = u32(cuda.threadIdx.x)
u[0] = cuda.atomic.add(u, t, u32(1))
v[0] = cuda.atomic.max(v, t, u64(1))
w[0] = cuda.atomic.min(w, t, -1)
s[t] = i32(0)
cuda.syncthreads()
w[1] = i64(cuda.atomic.add(s, 1, i32(2)))
"""
    given = [pointer("u", "u32"), pointer("v", "u64"), pointer("w", "i64")]
    ptx = ptx_of("atomics", body, *given)
    atomics = [op for op in instructions(ptx) if op.startswith("atom.")]
    assert atomics == [
        "atom.global.add.u32",
        "atom.global.max.u64",
        "atom.global.min.s64",
        "atom.shared.add.u32",
    ]


def test_ptx_is_as_old_as_its_architecture() -> None:
    """So that every nvJitLink that has the architecture reads it."""
    found = {}
    for cc in ((7, 5), (8, 0), (9, 0), (10, 0), (10, 3), (12, 0)):
        text = ptx_of("k", "p[0] = f32(1)", pointer("p", "f32"), cc=cc)
        found[cc] = re.findall(r"^\.(?:version|target) (\S+)", text, re.MULTILINE)
    assert found == {
        (7, 5): ["6.3", "sm_75"],
        (8, 0): ["7.0", "sm_80"],
        (9, 0): ["7.8", "sm_90"],
        (10, 0): ["8.6", "sm_100"],
        (10, 3): ["8.8", "sm_103"],
        (12, 0): ["8.7", "sm_120"],
    }


def test_products_and_sums_are_fused_but_not_rounded_differently() -> None:
    body = """
a, b, c = p[1], p[2], p[3]
p[0] = f32(a * b) + c
s = f32(a + b)
t = f32(s - a)
p[4] = f32(f32(a - f32(s - t)) + f32(b - t))
p[5] = a / f32(4)
"""
    ptx = ptx_of("fused", body, pointer("p", "f32"))
    assert count(ptx, "fma.rn.f32") == 1
    assert count(ptx, "add.f32") + count(ptx, "sub.f32") == 6  # TwoSum is whole
    assert count(ptx, "mul.f32") == 1  # by 0.25, which is exact
    assert count(ptx, "div") == 0
    assert count(ptx_of("third", "p[0] = p[1] / f32(3)", pointer("p", "f32")), "div.rn.f32") == 1


def test_bits_and_upper_halves() -> None:
    body = """
u[0] = mul_high_u32(u[1], u[2])
v[0] = mul_high_u64(v[1], v[2])
u[3] = bits_f32(p[0])
p[1] = f32_bits(u[4])
v[3] = bits_f64(q[0])
q[1] = f64_bits(v[4])
"""
    given = [pointer(n, d) for n, d in (("p", "f32"), ("q", "f64"), ("u", "u32"), ("v", "u64"))]
    ptx = ptx_of("bits", body, *given)
    assert count(ptx, "mul.hi.u32") == count(ptx, "mul.hi.u64") == 1
    assert [op for op in instructions(ptx) if op.startswith("cvt.") and "f" in op[4:]] == []


def test_sums_of_products_of_bytes() -> None:
    body = """
u[0] = dp4a_u32(u[1], u[2], u[3])
i[0] = dp4a_i32(i[1], i[2], i[3])
"""
    ptx = ptx_of("dots", body, pointer("u", "u32"), pointer("i", "i32"))
    assert count(ptx, "dp4a.u32.u32") == count(ptx, "dp4a.s32.s32") == 1


def test_halves() -> None:
    body = """
h[1] = f32_to_f16(exp_f32(f16_to_f32(h[0])))
h[3] = f32_to_bf16(f32(bf16_to_f32(h[2]) * f32(3)))
"""
    ptx = ptx_of("halves", body, pointer("h", "u16"))
    assert count(ptx, "cvt.f32.f16") == count(ptx, "cvt.rn.f16.f32") == 1
    assert count(ptx, "cvt.rn.bf16.f32") == 1
    old = ptx_of("halves", body, pointer("h", "u16"), cc=(7, 5))
    assert "bf16" not in old.replace("weft_cuda", "")


def test_a_cast_to_16_bits_rounds_before_a_sum() -> None:
    """A product that is rounded to f16 and a sum are no fma of f16."""
    body = """
m = f16_to_f32(f32_to_f16(f32(f16_to_f32(h[0]) * f16_to_f32(h[1]))))
h[2] = f32_to_f16(f32(m + f16_to_f32(h[3])))
"""
    for cc in ((7, 5), (9, 0)):
        ptx = ptx_of("rounded", body, pointer("h", "u16"), cc=cc)
        assert count(ptx, "fma") == 0
        assert count(ptx, "mul.f32") == count(ptx, "add.f32") == 1
        assert count(ptx, "cvt.rn.f16.f32") == 2


def test_bfloat16_by_integers_rounds_as_ml_dtypes() -> None:
    """The instructions for sm_75, run here: LLVM's means the same on a CPU."""
    high = np.arange(1 << 16, dtype=np.uint32)[::7] << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    xs = (high[:, None] | low).view(np.float32).ravel()
    got = np.zeros(xs.size, np.uint16)
    body = "t = u32(cuda.blockIdx.x)\nh[t] = f32_to_bf16(p[t])"
    source = kernel("to_bf16", body, pointer("h", "u16"), pointer("p", "f32"))
    on_cpu(source, xs.size, 1, [got, xs])
    with np.errstate(invalid="ignore"):
        want = xs.astype(ml_dtypes.bfloat16)
    nan = np.isnan(xs)
    assert nan.any()
    assert np.array_equal(got[~nan], want.view(np.uint16)[~nan])
    assert (got[nan] == 0x7FFF).all()


def test_device_functions_are_inlined_and_may_call_others() -> None:
    before = """def inner(x):
    return f32(exp_f32(x) * f32(2))

def outer(x):
    if x > f32(1):
        return x
    return f32(inner(x) + x)

"""
    source = kernel("calls", "p[0] = outer(p[1])\np[2] = outer(p[3])", pointer("p", "f32"))
    source = CudaKernel("calls", before + source.source, source.parameters)
    ptx = emit_ptx(source, (9, 0))
    assert "call" not in ptx.replace("callseq", "")
    assert ".func" not in ptx
    assert count(ptx, "ex2.approx") == 2


def test_a_device_function_of_the_same_name_is_another_one() -> None:
    def doubled(times: str) -> str:
        before = f"def scale(x):\n    return f32(x * f32({times}))\n\n"
        made = kernel("k", "p[0] = scale(p[0])", pointer("p", "f32"), before=before)
        return emit_ptx(made, (9, 0)).upper()

    assert "0F40400000" in doubled("3.0")
    assert "0F40A00000" in doubled("5.0")


def test_index_arithmetic_in_u32_stays_there() -> None:
    body = """
i = u32(u32(u32(cuda.blockIdx.x) * u32(cuda.blockDim.x)) + u32(cuda.threadIdx.x))
step = u32(u32(cuda.blockDim.x) * u32(cuda.gridDim.x))
count, columns = u32(n), u32(m)
while i < count:
    row = u32(i // columns)
    column = u32(i - u32(row * columns))
    p[u32(u32(column * u32(64)) + row)] = f32(p[i] + f32(1))
    i = u32(i + step)
"""
    sizes = Parameter("n", "integer"), Parameter("m", "integer")
    ptx = ptx_of("grid", body, pointer("p", "f32"), *sizes)
    wide = [op for op in instructions(ptx) if re.match(r"(div|rem|mul\.lo)\.[us]64", op)]
    assert wide == []
    assert count(ptx, "div.u32") == 1
    assert count(ptx, "div.s32") == 0


def test_divisions_that_ask_for_no_zero() -> None:
    body = "u[0] = div_u32(u[1], u[2])\nu[3] = rem_u32(u[4], u[5])"
    ptx = ptx_of("divisions", body, pointer("u", "u32"))
    assert count(ptx, "div.u32") == count(ptx, "rem.u32") == 1
    assert count(ptx, "setp") == 0
    asked = ptx_of("divisions", "u[0] = u32(u[1] // u[2])", pointer("u", "u32"))
    assert count(asked, "setp") > 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("a, b, c, d = load_f32x4(u, 0)", "load_f32x4 at elements of u32"),
        ("store_f32x4(p, 0, f32(0), f32(0), f32(0), f64(0))", "values that are not f32"),
        ("p[0] = f32(cuda.atomic.add(p, 0, f32(1)))", "cuda.atomic.add on f32"),
        ("u[0] = u32(cuda.shfl_sync(0xffffffff, u16(3), 0))", "cuda.shfl_sync of u16"),
        ("p[0] = f16_to_f32(p[1])", "takes u16"),
        ("u[0] = cuda.ballot_sync(0xffffffff, u[1])", "takes integer, bool"),
        ("p[0] = exp(p[1])", "no function exp"),
        ("p[0] = f32(p[1] * 0.5)", "f32 and float in p.1. . 0.5: cast to one type"),
    ],
)
def test_what_does_not_fit_is_refused(body: str, told: str) -> None:
    with pytest.raises(CodegenError, match=told) as caught:
        ptx_of("wrong", body, pointer("p", "f32"), pointer("u", "u32"))
    assert "kernel 'wrong' does not compile for sm_90" in str(caught.value)
    assert "   2     " + body in str(caught.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def other(p):\n    p[0] = f32(1)\n", "the source has no function wrong"),
        ("def wrong(p)\n", "expected ':'"),
        (
            "import os\ndef wrong(p):\n    p[0] = f32(1)\n",
            "line 1: only functions stand in kernel source",
        ),
    ],
)
def test_source_that_is_no_kernel(source: str, told: str) -> None:
    with pytest.raises(CodegenError, match=told):
        emit_ptx(CudaKernel("wrong", source, (pointer("p", "f32"),)), (9, 0))
