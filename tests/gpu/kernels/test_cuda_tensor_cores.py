"""Products of tensor cores in kernel source: what they mean, and what they become."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_device import on_device, use_device
from cuda_on_cpu import run as on_cpu
from cuda_sources import kernel
from cuda_toolchain import TARGETS, needs_toolchain
from gpu_kinds import REAL

from weft.codegen.cuda.cubins.compile import assemble, emit_ptx
from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.source.kernel import MMAS, CudaKernel, Launch
from weft.codegen.cuda.source.typecheck import EmulationError

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
WORDS = ("a0", "a1", "a2", "a3", "b0", "b1")
#: (number of the lane, of the element in it) -> index in the matrix, whose first index is the fast
#: one: (extent, stride) of both, as CUTLASS has them (cute/atom/mma_traits_sm80.hpp,
#: `MMA_Traits<SM80_16x8x16_F16F16F16F16_TN>`). B is there columns x k.
A = (((4, 32), (8, 1)), ((2, 16), (2, 8), (2, 128)))
B = (((4, 16), (8, 1)), ((2, 8), (2, 64)))
C = (((4, 32), (8, 1)), ((2, 16), (2, 8)))


def places(layout: Any) -> Array:
    """[lane, element]: the index in the matrix."""
    counts = [np.prod([n for n, _ in half]) for half in layout]
    made = np.zeros(counts, np.intp)
    for axis, half in enumerate(layout):
        rest = np.arange(counts[axis])
        for n, stride in half:
            made += (rest % n * stride).reshape((-1, 1) if axis == 0 else (1, -1))
            rest //= n
    return made


def fragments(matrix: Array, layout: Any) -> Array:
    """[lane, element] of a matrix whose first index is the fast one."""
    return np.ascontiguousarray(matrix.ravel(order="F")[places(layout)])


def product(name: str, before: str = "") -> CudaKernel:
    """A, B and C as fragments, of each warp."""
    lines = ["t = u32(cuda.threadIdx.x)", before]
    lines += [f"{w} = a[u32(u32(t * u32(4)) + u32({i}))]" for i, w in enumerate(WORDS[:4])]
    lines += [f"{w} = b[u32(u32(t * u32(2)) + u32({i}))]" for i, w in enumerate(WORDS[4:])]
    lines += [f"c{i} = c[u32(u32(t * u32(4)) + u32({i}))]" for i in range(4)]
    sums = ", ".join(f"c{i}" for i in range(4))
    lines += [f"{sums} = cuda.{name}({', '.join(WORDS)}, {sums})"]
    lines += [f"c[u32(u32(t * u32(4)) + u32({i}))] = c{i}" for i in range(4)]
    return kernel("a:u32 b:u32 c:f32", "\n".join(lines), threads=64)


def matrices(dtype: str, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((2, *s)).astype(NUMPY[dtype]) for s in ((16, 16), (16, 8)))
    return a, b, rng.standard_normal((2, 16, 8)).astype(np.float32)


def carried_out(how: Any, name: str, a: Array, b: Array, c: Array) -> Array:
    """A B + C for two warps, by their fragments."""
    words = [np.concatenate([fragments(x, A) for x in a]).view(np.uint32)]
    words.append(np.concatenate([fragments(x.T, B) for x in b]).view(np.uint32))
    sums = np.concatenate([fragments(x, C) for x in c])
    how(product(name), 1, 64, [*words, sums])
    made = np.zeros((2, 128), np.float32)
    made[:, places(C)] = sums.reshape(2, 32, 4)
    return made.reshape(2, 8, 16).transpose(0, 2, 1)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("name", MMAS)
def test_a_warp_multiplies(name: str, seed: int | None) -> None:
    """Both emulators, by the fragments that CUTLASS says: sums are rounded once."""
    a, b, c = matrices(MMAS[name])
    got = carried_out(partial(run, seed=seed), name, a, b, c)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_allclose(got, wanted, rtol=1e-7)


def on_gpu(kernel: CudaKernel, blocks: int, threads: int, args: Sequence[Any]) -> None:
    """Of /gpu:0."""
    assert threads == kernel.threads
    on_device(Launch(kernel, (), blocks), args)


@pytest.mark.parametrize("name", MMAS)
@pytest.mark.parametrize("kind", ["faked", REAL])
def test_a_warp_multiplies_on_a_device(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's adders cut off what lies 2**-23 or more below the largest of the 17 numbers that are
    added up, in one go or in parts, and the sum."""
    use_device(kind, monkeypatch)
    a, b, c = matrices(MMAS[name], 3)
    got = carried_out(on_gpu, name, a, b, c)
    x, y = a.astype(np.float64), b.astype(np.float64)
    allowed = 20 * 2.0**-23 * (np.abs(x) @ np.abs(y) + np.abs(c))
    assert (np.abs(got - (x @ y + c)) <= allowed).all()


@pytest.mark.parametrize("name", MMAS)
def test_the_llvm_of_an_architecture_without_tensor_cores(name: str) -> None:
    """Shuffles and one fma after the other, carried out on this processor."""
    a, b, c = matrices(MMAS[name], 1)
    got = carried_out(on_cpu, name, a, b, c)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=3e-6)


def _not_finite(how: Any, name: str) -> None:
    a, b, c = matrices(MMAS[name], 2)
    a[0, 3, 5], a[1, 2, 1], b[0, 7, 2], c[1, 9, 4] = np.inf, np.nan, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    got = carried_out(how, name, a, b, c)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    for signed in (np.isposinf, np.isneginf):
        np.testing.assert_array_equal(signed(got), signed(wanted))


@pytest.mark.parametrize("name", MMAS)
def test_what_is_not_finite(name: str) -> None:
    for how in (run, on_cpu):
        _not_finite(how, name)


@pytest.mark.parametrize("name", MMAS)
@pytest.mark.parametrize("kind", ["faked", REAL])
def test_what_is_not_finite_on_a_device(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(kind, monkeypatch)
    _not_finite(on_gpu, name)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("gone", ["t == u32(40)", "t >= u32(33)"])
def test_all_32_lanes_have_to_be_there(gone: str, seed: int | None) -> None:
    made = product("mma_sync_f16", f"if {gone}:\n    return")
    args = [np.zeros(n * 64, d) for n, d in ((4, np.uint32), (2, np.uint32), (4, np.float32))]
    with pytest.raises(EmulationError, match="mma_sync_f16"):
        run(made, 1, 64, args, seed=seed)
    assert "mma_sync_f16" in made.source


@pytest.mark.parametrize("seed", [None, 1])
def test_half_a_warp_is_refused(seed: int | None) -> None:
    args = [np.zeros(n * 64, d) for n, d in ((4, np.uint32), (2, np.uint32), (4, np.float32))]
    with pytest.raises(EmulationError, match="mma_sync_f16"):
        run(product("mma_sync_f16"), 1, 48, args, seed=seed)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = cuda.mma_sync_f16(w, w, w, w, w, w, z, z, z, z)", "a variable of type"),
        ("x, y = cuda.mma_sync_f16(w, w, w, w, w, w, z, z, z, z)", "2 variables for"),
        ("x, y, v, q = cuda.mma_sync_f16(w, w, w, w, w, z, z, z, z)", "takes u32, u32"),
        ("x, y, v, q = cuda.mma_sync_f16(w, w, w, w, w, z, z, z, z, z)", "takes u32, u32"),
    ],
)
def test_its_types(text: str, told: str) -> None:
    made = kernel("p:f32", f"w = u32(1)\nz = f32(0.0)\n{text}\np[0] = x")
    with pytest.raises(EmulationError, match=re.escape(told)):
        run(made, 1, 32, [np.zeros(1, np.float32)])


@needs_toolchain
@pytest.mark.parametrize("cc", TARGETS, ids=str)
@pytest.mark.parametrize("name", MMAS)
def test_instructions(name: str, cc: tuple[int, int]) -> None:
    """One of PTX from sm_80 on; two of half the depth for f16 on sm_75, and none for bf16."""
    made = product(name)
    ptx = emit_ptx(made, cc)
    found = re.findall(r"mma\.sync\.aligned\.(\w+)\.row\.col\.f32\.(\w+)\.", ptx)
    dtype = MMAS[name]
    if cc >= (8, 0):
        assert found == [("m16n8k16", dtype)]
    elif dtype == "f16":
        assert found == [("m16n8k8", dtype)] * 2
        assert ".version 6.5" in ptx
    else:
        assert found == []
        assert (ptx.count("shfl.sync"), ptx.count("fma.rn.f32")) == (32, 64)
    report = assemble(made, ptx, cc).report
    assert (report.spills, report.stack) == (0, 0)
