"""A kernel that multiplies a number: the smallest thing to compile, keep and run."""

from __future__ import annotations

import numpy as np
from scalar_kernels import call

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import (
    Kernel,
)


def scale_kernel(key: str, factor: float) -> Kernel:
    """``out = factor * x`` in f64 over args = (x, out, n)."""

    def emit(e: Emitter) -> None:
        buffers = [e.pointer_argument(0, "f64"), e.pointer_argument(1, "f64")]
        with (
            e.loop_function("loop", buffers, [e.argument(2)]) as (inner, (x, out), (n,)),
            inner.for_range(inner.index(0), n) as i,
        ):
            value = inner.builder.load(inner.at(x, i))
            scaled = inner.builder.fmul(value, value.type(factor))
            inner.builder.store(scaled, inner.at(out, i))

    return Kernel(key, f"scale by {factor}", emit)


def scaled(address: int) -> float:
    """What the kernel makes of 1."""
    out = np.zeros(1)
    call(address, np.ones(1), out)
    return float(out[0])
