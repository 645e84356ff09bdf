"""The LLVM of kernel source, carried out here, does what the emulator does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_expressions import COUNT, program, values
from cuda_graphs import lanes, run
from cuda_on_cpu import native
from cuda_on_cpu import run as on_cpu
from cuda_sources import kernel
from cuda_toolchain import needs_toolchain

import weft as wf
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.source.kernel import CASTS, NUMPY, CudaKernel
from weft.ir.interpreter.evaluate import interpret
from weft.passes.manager import run_passes
from weft.passes.pipelines import GPU

pytestmark = needs_toolchain

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def check(function: Callable[..., Any], *inputs: Array, exact: bool = True) -> None:
    """Emulated and carried out here: the same bits, but for maths (the C library's here)."""
    graph, _ = run_passes(wf.compile(function).trace(*inputs), GPU)
    wanted = run(graph, inputs, lanes)
    got = run(graph, inputs, native)
    assert wanted
    for x, y in zip(got, wanted, strict=True):
        if exact:
            assert x.tobytes() == y.tobytes()
        else:
            np.testing.assert_allclose(x, y, rtol=3e-6, atol=1e-6)
    for x, y in zip(wanted, interpret(graph, inputs), strict=True):  # the test itself runs right
        np.testing.assert_allclose(x.astype(np.float64), np.asarray(y, np.float64), 1e-2, 1e-2)


def test_elementwise() -> None:
    check(lambda x, y, z: x * y + z - x / y, normal(7, 30), normal(30), normal(7, 1))
    check(lambda x: wf.exp(x) * wf.tanh(x) + wf.erf(x), normal(210), exact=False)


def test_arithmetic() -> None:
    """Random expressions of all dtypes."""
    check_arithmetic(seed=0, each=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_more_arithmetic(seed: int) -> None:
    check_arithmetic(seed, each=6)


def check_arithmetic(seed: int, each: int) -> None:
    lines = program(seed, each)
    names = [f"out_{d}" for d in CASTS] + [f"{v}_{d}" for d in CASTS for v in ("xa", "xb")]
    words = " ".join(f"{name}:{name.split('_')[1]}" for name in names)
    made = kernel(words, "\n".join(["t = i64(cuda.threadIdx.x)", *lines]))
    inputs = [values(d, i) for i, d in enumerate(d for d in CASTS for _ in "ab")]
    wanted, got = ([np.zeros(COUNT * each, NUMPY[d]) for d in CASTS] for _ in range(2))
    emulate(made, 1, COUNT, [*wanted, *inputs])
    on_cpu(made, 1, COUNT, [*got, *inputs])
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


def both(made: CudaKernel, lanes: int, dtype: str, *args: Any) -> tuple[Array, Array]:
    """What the emulator and this processor write to a kernel's first parameter."""
    wanted, got = (np.zeros(lanes, NUMPY[dtype]) for _ in range(2))
    emulate(made, 1, lanes, [wanted, *args])
    on_cpu(made, 1, lanes, [got, *args])
    return got, wanted


RANGES = [
    "n",
    "2, n",
    "n, -7, -3",
    "-9, n, 4",
    "n - 1, n + 8, 3",
    "0, n, step",
    "n, 0, i64(0) - step",
]


def test_ranges() -> None:
    lines = ["t = i64(cuda.threadIdx.x)", "step = i64(t % 3) + 1", "n = t - 5"]
    for number, bounds in enumerate(RANGES):
        lines += [f"last_{number} = i64(77)", f"times_{number} = i64(0)"]
        lines += [f"for k_{number} in range({bounds}):", f"    last_{number} = k_{number}"]
        lines += [f"    times_{number} = times_{number} + 1"]
    terms = [f"last_{k} * {7**k} + times_{k} * {5**k}" for k in range(len(RANGES))]
    got, wanted = both(
        kernel("out:i64", "\n".join([*lines, f"out[t] = {' + '.join(terms)}"])), 24, "i64"
    )
    assert len(set(wanted.tolist())) == 24
    np.testing.assert_array_equal(got, wanted)


def test_ranges_that_end_near_the_last_number() -> None:
    body = f"""
    t = i64(cuda.threadIdx.x)
    times = i64(0)
    for k in range({2**63 - 10}, {2**63 - 1}, 4):
        times = times * 3 + i64(k & 15)
    for j in range(i32({2**31 - 10}), i32({2**31 - 1}), i32(4)):
        times = times * 3 + i64(j)
    out[t] = times
    """
    got, wanted = both(kernel("out:i64", body), 1, "i64")
    np.testing.assert_array_equal(got, wanted)


CONTROL = """
t = i64(cuda.threadIdx.x)
low, high = parted(t, x[t])
found = i64(-1)
k = i64(0)
while True:
    k = k + 1
    if k > 40 or x[k * t % 48] > f32(1.5):
        break
    if k % 2 == 0 and x[(k + t) % 48] < f32(0):
        continue
    found = k if (not low) and x[t] < f32(0) else found + 1
for j in range(5):
    if j == 3:
        break
    if x[j + t] < f32(0):
        continue
    found = found * 2 + (i64(x[j + t] * f32(9)) if high > f32(0) else -1)
held = cuda.local.array(4, f32)
for j in range(4):
    held[j] = f32(x[j] * high)
out[t] = found * 8 + i64(held[2] > held[3]) * 4 + i64(low)
"""
PARTED = """
def half(x):
    return f32(x * f32(0.5))
def parted(t, x):
    if t % 3 == 0:
        return boolean(True), half(x)
    return x > f32(0), f32(half(half(x)) + f32(1))
"""


def test_control_flow() -> None:
    x = normal(48)
    got, wanted = both(kernel("out:i64 x:f32", CONTROL, PARTED), 40, "i64", x)
    assert len(set(wanted.tolist())) > 12
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
def test_integers_divide_and_shift_as_numpy() -> None:
    x = RNG.integers(-100, 100, 200).astype(np.int32)
    y = RNG.integers(-9, 9, 200).astype(np.int32)
    check(lambda x, y: (x // y, x % y, x * 1000003 ^ y, x >> 3, x < y), x, np.where(y, y, 4))
    u = RNG.integers(0, 1 << 63, 200).astype(np.uint64)
    check(lambda u: (u // 7, u % 1000, u * u, u >> 5), u)
    b = RNG.integers(0, 255, 200).astype(np.uint8)
    check(lambda b: (b * b + b, b // 3, wf.astype(b, wf.int8) * 5), b)


def test_halves() -> None:
    check(lambda x: x * x + x, normal(300, dtype=np.float16))
    check(wf.exp, normal(300, dtype=np.float16), exact=False)
    check(lambda x: wf.astype(wf.astype(x, wf.bfloat16) * 3, wf.float32), normal(300))


@pytest.mark.slow
def test_transposed_tiles() -> None:
    check(lambda x, y: wf.permute_dims(x, (1, 0)) + y, normal(33, 40), normal(40, 33))


def test_threads_that_wait_for_others() -> None:
    check(lambda x: wf.sum(x, axis=1), normal(3, 70))


@pytest.mark.slow
def test_reductions() -> None:
    check(wf.sum, normal(3000))
    check(lambda x: wf.sum(x, axis=0), normal(70, 9))
    check(lambda x: (wf.max(x, axis=1), wf.argmax(x, axis=1)), normal(5, 300))


@pytest.mark.slow
def test_rows() -> None:
    check(wf.nn.softmax, normal(3, 300), exact=False)


@pytest.mark.slow
def test_products() -> None:
    check(wf.matmul, normal(20, 35), normal(35, 18))
    x = RNG.integers(-9, 9, (2, 9, 11))
    check(wf.matmul, x, np.swapaxes(x, 1, 2))


@pytest.mark.slow
def test_scans_and_scatters() -> None:
    check(lambda x: wf.cumulative_sum(x, axis=1), normal(2, 300))
    check(lambda x, i: wf.segment_sum(x, i, 5), normal(40, 3), np.sort(RNG.integers(0, 5, 40)))
    check(lambda x, i: wf.take(x, i, axis=0), normal(40, 3), RNG.integers(0, 40, 9))


def test_random_numbers() -> None:
    check(
        lambda x: x + wf.random.bits(wf.random.key(3), x.shape, wf.uint32), np.ones(100, np.uint32)
    )
