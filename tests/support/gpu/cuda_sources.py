"""Kernels from a few lines of source, for tests."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter

Array = np.ndarray[Any, Any]


def kernel(parameters: str, body: str, before: str = "", threads: int = 256) -> CudaKernel:
    """`kernel("x:f32 n", "x[0] = f32(n)")`: pointers have a dtype, the others are integers. before:
    device functions. The body's first line is the second of the source, if nothing is before."""
    made = []
    for word in parameters.split():
        name, _, dtype = word.partition(":")
        made.append(Parameter(name, "pointer", dtype) if dtype else Parameter(name, "integer"))
    head = f"def tested({', '.join(p.name for p in made)}):\n"
    text = textwrap.dedent(before) + head + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return CudaKernel("tested", text + "\n", tuple(made), threads)


def results(
    body: str, dtype: str, lanes: int = 32, before: str = "", seed: int | None = None, **args: Any
) -> Array:
    """What a kernel whose body writes `out[t]`, `t` the number of its thread (u32), gives."""
    words = " ".join(
        f"{name}:{_memory(a)}" if isinstance(a, np.ndarray) else name for name, a in args.items()
    )
    head = "t = u32(cuda.threadIdx.x)\n"
    made = kernel(f"out:{dtype} {words}", head + textwrap.dedent(body).strip(), before)
    out = np.zeros(lanes, {"bool": "u1"}.get(dtype, np.dtype(dtype[0] + str(int(dtype[1:]) // 8))))
    run(made, 1, lanes, [out, *args.values()], seed=seed)
    return out


def _memory(array: Array) -> str:
    return f"{array.dtype.kind}{array.dtype.itemsize * 8}"
