"""The kernel calls of a `fused` op that holds a product."""

from __future__ import annotations

from collections.abc import Iterator

from weft.codegen.call import Address, KernelCall
from weft.codegen.gemm.epilogue import (
    calls_another,
    operands_of,
    product_calls,
    product_in,
    result_strides,
)
from weft.codegen.gemm.prologue import prologues
from weft.codegen.kernels.linalg import matmul_into
from weft.codegen.lowerings import PRODUCTS
from weft.codegen.nests.nest import Nest
from weft.ir.graph import Operation

#: A call, the nest that it carries out besides, and for other calls than the product's their use.
Planned = tuple[KernelCall, Nest | None, str]


def fused_product_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> Iterator[Planned]:
    """The calls of `op`, in order: what packs, the product, what adds up its partial results."""
    product = product_in(op)
    strides = result_strides(op)
    nest: Nest | None = None
    before = prologues(op)
    if strides is not None:
        a, b = operands_of(op)
        calls = matmul_into(product, a, b, Address(op.result), strides, before)
        at = len(calls) - 1
    else:
        calls, nest = product_calls(op, in_place, PRODUCTS[product.name], before)
        at = next(k for k, call in enumerate(calls) if calls_another(call))
    for k, call in enumerate(calls):
        why = "packs the product's B" if k < at else "adds up partial results" if k > at else ""
        yield call, nest if k == at else None, why
