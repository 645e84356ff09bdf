"""Which kernels carry out a convolution, by its sizes and dtype.

| convolution                            | kernels                                           |
|----------------------------------------|---------------------------------------------------|
| integers, complex; sums over nothing   | plain loops (`windows/conv_plain.py`)                |
| 1x1, stride 1, no padding, f32 and f64 | a matrix product (`gemm_calls`)                   |
| as many groups as channels in and out  | tap by tap (`windows/reduce.py`; its kernel's        |
|                                        | gradient: `windows/conv_plain.py`)                   |
| all others                             | register tiles over patches (`windows/conv.py`,      |
|                                        | `windows/conv_kernel.py`)                            |
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.codegen.call import Address, KernelCall
from weft.codegen.gemm.blocking import Product, dense_product
from weft.codegen.gemm.call import gemm_calls, stored_calls
from weft.codegen.gemm.follow import Follow, Prologues
from weft.codegen.gemm.tile import ACCUMULATOR
from weft.codegen.windows.conv import direct_calls
from weft.codegen.windows.conv_kernel import kernel_gradient_calls
from weft.codegen.windows.conv_plain import (
    depthwise_kernel_calls,
    plain_calls,
    plain_kernel_calls,
)
from weft.codegen.windows.geometry import Sizes, sizes_of
from weft.codegen.windows.reduce import lower_depthwise
from weft.ir.graph import Operation


def lower_conv(op: Operation) -> list[KernelCall]:
    """The kernel calls of conv, conv_input and conv_kernel."""
    s = sizes_of(op)
    kernel = op.name == "conv_kernel"
    counts = (s.batch, *s.large, *s.window, *s.small, s.groups, s.inside, s.outside)
    if s.dtype not in ACCUMULATOR or 0 in counts:
        return plain_kernel_calls(op, s) if kernel else plain_calls(op, s)
    if _is_product(s):
        a, b = (Address(v) for v in op.operands)
        return stored_calls(_product(op.name, s), Address(op.result), a, b)
    if s.inside == s.outside == 1 and s.groups > 1:
        return depthwise_kernel_calls(op, s) if kernel else lower_depthwise(op, s)
    if kernel:
        return kernel_gradient_calls(op, s)
    a, b = (Address(v) for v in op.operands)
    return direct_calls(op.name == "conv", s, Address(op.result), a, b)


def conv_with(
    op: Operation, a: Address, b: Address, epilogue: Callable[[int], Follow], before: Prologues
) -> list[KernelCall]:
    """A conv or conv_input, `weft.ir.ops.windows.is_dense`, whose blocks go to an epilogue.

    Convolutions have no prologues.
    """
    assert before == (None, None)
    s = sizes_of(op)
    if _is_product(s):
        p = _product(op.name, s)
        return gemm_calls(p, 0, a, b, epilogue(p.m))
    result = s.small if op.name == "conv" else s.large
    return direct_calls(op.name == "conv", s, 0, a, b, epilogue(s.batch * math.prod(result)))


def _is_product(s: Sizes) -> bool:
    return (
        s.dtype in ("f32", "f64")
        and s.groups == 1
        and s.taps == 1
        and s.strides == (1, 1, 1)
        and s.lo == (0, 0, 0)
        and s.large == s.small
    )


def _product(name: str, s: Sizes) -> Product:
    """Pixels x channels in, channels in x channels out."""
    pixels = s.batch * math.prod(s.large)
    m, n, k = {
        "conv": (pixels, s.outside, s.inside),
        "conv_input": (pixels, s.inside, s.outside),
        "conv_kernel": (s.inside, s.outside, pixels),
    }[name]
    flags = name == "conv_kernel", name == "conv_input"
    return dense_product(s.dtype, (m, n, k), (0,), (0,), flags)
