"""Matrix products against the machine's multiply-add peak, OpenBLAS, PyTorch and JAX: of f32, and
of i8 in i32 (PyTorch: `torch._int_mm`, of two matrices).

    OPENBLAS_NUM_THREADS=1 python benchmarks/gemm.py [--json benchmarks/gemm.json] [--rounds 30]
        [--threads 1] [--only i8]

weft and PyTorch run on one thread, or as many as are asked for; JAX takes what it likes
(`taskset -c 0` makes all equal, `--threads 2` where there are two processors). The peak is that of
the micro-kernel on operands that stay in L1, measured in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf
from weft.codegen.llvm.jit import compile_kernels
from weft.codegen.products.gemm import WORDS, gemm_kernel
from weft.codegen.tiles.micro_kernel import tile_of
from weft.frontend.tools.bench_workloads import LONG_PAUSE_SECONDS, PAUSE_SECONDS

#: (batch, m, n, k, A is stored transposed, B is stored transposed)
SIZES = (
    (1, 1024, 100, 784, False, False),
    (1, 784, 100, 1024, True, False),
    (1, 32, 100, 784, False, False),
    (1, 1024, 100, 10, False, True),
    (1, 256, 512, 512, False, False),
    (1, 512, 512, 512, False, False),
    (1, 512, 512, 512, False, True),
    (1, 1024, 1024, 1024, False, False),
    (1, 2048, 2048, 2048, False, False),
    (32, 64, 64, 32, False, True),
    (32, 64, 32, 64, False, False),
    (1, 20000, 64, 64, False, False),
    (1, 1000, 10, 1000, False, False),
)
#: Products of i8.
INTEGERS = (
    (1, 512, 512, 512, False, False),
    (1, 512, 512, 512, False, True),
    (1, 1024, 1024, 1024, False, False),
    (1, 1024, 100, 784, False, False),
    (1, 32, 100, 784, False, False),
    (1, 1000, 10, 1000, False, False),
    (1, 16, 4096, 4096, False, True),
    (32, 64, 64, 32, False, True),
)
PEAK_STEPS = 200_000


def peak_gflops() -> float:
    """Multiply-adds (2 flops) per nanosecond of the f32 micro-kernel with its operands in L1."""
    kernel, tile = gemm_kernel("f32"), tile_of("f32")
    address = compile_kernels([kernel])[kernel.key]
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)(address)
    buffers = [np.ones(4096, np.float32) for _ in range(4)]
    offsets = np.zeros(1, np.int64)
    a, b, c, scratch = (int(x.ctypes.data) for x in buffers)
    at = int(offsets.ctypes.data)
    given = {
        "c": c, "a": a, "b": b, "a_offsets": at, "b_offsets": at, "c_offsets": at,
        "c_row": tile.columns, "scratch": scratch, "k_all": PEAK_STEPS,
        "m": tile.rows, "n": tile.columns, "k": PEAK_STEPS, "block_rows": tile.rows,
        "block_columns": tile.columns, "block_k": PEAK_STEPS, "b_column": 1,
    }  # fmt: skip
    words = np.array([given.get(name, 0) for name in WORDS], np.int64)
    best = float("inf")
    for _ in range(30):
        started = time.perf_counter()
        run(int(words.ctypes.data), 0, 1, 0)
        best = min(best, time.perf_counter() - started)
    return 2 * tile.rows * tile.columns * PEAK_STEPS / best / 1e9


def contest(size: tuple[int, int, int, int, bool, bool], rounds: int, threads: int) -> Comparison:
    """One size on all sides, checked against each other first."""
    import jax
    import jax.numpy as jnp
    import torch
    from scipy.linalg.blas import sgemm

    batch, m, n, k, ta, tb = size
    rng = np.random.default_rng(0)
    lead = (batch,) if batch > 1 else ()
    a = rng.standard_normal((*lead, *((k, m) if ta else (m, k))), dtype=np.float32)
    b = rng.standard_normal((*lead, *((n, k) if tb else (k, n))), dtype=np.float32)
    mine = wf.compile(lambda x, y: wf.matmul(x, y, transpose_a=ta, transpose_b=tb), threads=threads)

    def logical(x: Any, y: Any) -> tuple[Any, Any]:
        return (x.swapaxes(-1, -2) if ta else x), (y.swapaxes(-1, -2) if tb else y)

    theirs = jax.jit(lambda x, y: jnp.matmul(*logical(x, y)))
    on_device = [jnp.asarray(x) for x in (a, b)]
    tensors = logical(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_allclose(mine(a, b).numpy(), np.matmul(*logical(a, b)), rtol=1e-3, atol=1e-3)
    contestants = {
        "weft": lambda: mine(a, b),
        "torch": lambda: torch.matmul(*tensors),
        "jax": lambda: theirs(*on_device).block_until_ready(),
    }
    if batch == 1:  # C' = B' A' of the column-major views, without copies
        contestants["openblas"] = lambda: sgemm(1.0, b.T, a.T, trans_a=tb, trans_b=ta)
    name = f"{batch} x " * (batch > 1) + f"{m} x {n} x {k}" + " A'" * ta + " B'" * tb
    inner = max(1, int(2e7 / (batch * m * n * k)))
    pause = PAUSE_SECONDS if threads == 1 else LONG_PAUSE_SECONDS
    return compare(name, contestants, rounds=rounds, inner=inner, pause=pause)


def contest_integers(
    size: tuple[int, int, int, int, bool, bool], rounds: int, threads: int
) -> Comparison:
    """One size of i8 in i32 on all sides whose results are right: without VNNI PyTorch's (oneDNN's)
    saturate at 16 bits."""
    import jax
    import jax.numpy as jnp
    import torch

    batch, m, n, k, ta, tb = size
    rng = np.random.default_rng(0)
    lead = (batch,) if batch > 1 else ()
    a = rng.integers(-128, 128, (*lead, *((k, m) if ta else (m, k)))).astype(np.int8)
    b = rng.integers(-128, 128, (*lead, *((n, k) if tb else (k, n)))).astype(np.int8)
    flags: dict[str, Any] = {"transpose_a": ta, "transpose_b": tb}
    mine = wf.compile(
        lambda x, y: wf.matmul(x, y, preferred_element_type=wf.int32, **flags), threads=threads
    )

    def logical(x: Any, y: Any) -> tuple[Any, Any]:
        return (x.swapaxes(-1, -2) if ta else x), (y.swapaxes(-1, -2) if tb else y)

    theirs = jax.jit(lambda x, y: jnp.matmul(*logical(x, y), preferred_element_type=jnp.int32))
    on_device = [jnp.asarray(x) for x in (a, b)]
    contestants = {
        "weft": lambda: mine(a, b),
        "jax": lambda: theirs(*on_device).block_until_ready(),
    }
    if batch == 1:
        tensors = logical(torch.from_numpy(a), torch.from_numpy(b))
        contestants["torch"] = lambda: torch._int_mm(*tensors)
    wanted = np.matmul(*(v.astype(np.float64) for v in logical(a, b)))
    name = f"i8 {batch} x " if batch > 1 else "i8 "
    name += f"{m} x {n} x {k}" + " A'" * ta + " B'" * tb
    if "torch" in contestants and not np.array_equal(np.asarray(contestants["torch"]()), wanted):
        print(f"{name}: torch left out, its result is wrong")
        del contestants["torch"]
    for peer, run in contestants.items():
        np.testing.assert_array_equal(np.asarray(run()), wanted, peer)
    inner = max(1, int(4e7 / (batch * m * n * k)))
    return compare(name, contestants, rounds=rounds, inner=inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("f32", "i8"))
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    rows = []
    cases = [("f32", contest, s) for s in SIZES] + [("i8", contest_integers, s) for s in INTEGERS]
    for dtype, run, size in cases:
        if options.only not in (None, dtype):
            continue
        rounds = options.rounds if max(size[1:4]) <= 1024 else options.rounds // 3
        row = run(size, rounds, options.threads)
        rows.append(row)
        work = 2.0 * size[0] * size[1] * size[2] * size[3]
        rates = ", ".join(f"{n} {work / t.minimum / 1e9:.0f}" for n, t in row.timings.items())
        print(f"{row.workload}: GFLOP/s {rates}; f32 peak {peak_gflops():.0f}", flush=True)
    core = os.environ.get("OPENBLAS_CORETYPE", "its own choice")
    report(
        f"Matrix products, weft threads: {options.threads}; OpenBLAS kernels: {core}",
        rows,
        options.json,
    )


if __name__ == "__main__":
    main()
