"""matmul: weft's own product for floats and integers, BLAS for complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool, Routine
from weft.codegen.llvm.emitter import COMPLEXES, I64, Emitter, memory_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.link import LETTER
from weft.codegen.products.calls import (
    Follow,
    Prologues,
    gemm_calls,
    is_computed,
    store_calls,
    stored_calls,
    unconverted,
)
from weft.codegen.products.gemm import Product
from weft.codegen.scalar.element_access import constant, store_element
from weft.codegen.tiles.tile import converts
from weft.ir.analysis.index_maps import Read, contiguous_strides, over_rows, read_of
from weft.ir.errors import InternalError, UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType

I32 = ir.IntType(32)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _offsets(batch: tuple[int, ...], read: Read) -> tuple[int, ...]:
    """Element offset of the operand's matrix for each matrix of the broadcast batch."""
    places = np.full((1,) * len(batch), read.offset, np.int64)
    own = read.strides[:-2]
    for axis, step in enumerate(own, len(batch) - len(own)):
        shape = [-1 if k == axis else 1 for k in range(len(batch))]
        moved = np.arange(batch[axis] if step else 1, dtype=np.int64) * step
        places = places + moved.reshape(shape)
    return tuple(np.broadcast_to(places, batch).reshape(-1).tolist())


def _whole(value: Value) -> Read:
    return Read(value, 0, contiguous_strides(_type(value).static_shape))


def product_of(
    op: Operation, read: Callable[[Value], Read] = _whole, c: tuple[int, ...] | None = None
) -> Product:
    """The sizes and strides of a matmul; rows of all matrices of A are one matrix if B is the same
    for all.

    read: where the operands are; c: the strides of the result, contiguous if not given.
    """
    a, b = (_type(v) for v in op.operands)
    at, bt = (read(v) for v in op.operands)
    ta, tb = bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])
    *batch, m, n = _type(op.result).static_shape
    k = a.static_shape[-2 if ta else -1]
    a_steps = (at.strides[-1], at.strides[-2]) if ta else (at.strides[-2], at.strides[-1])
    b_steps = (bt.strides[-1], bt.strides[-2]) if tb else (bt.strides[-2], bt.strides[-1])
    out = Read(op.result, 0, contiguous_strides((*batch, m, n)) if c is None else c)
    count = math.prod(batch)
    dtype = _type(at.source).dtype.short  # of what is packed, where that is narrower
    shared = math.prod(b.static_shape[:-2]) == 1 and count == math.prod(a.static_shape[:-2])
    if shared and not ta and count:
        full = (0,) * (len(out.strides) - len(at.strides)) + at.strides
        a_rows, c_rows = (over_rows(s, (*batch, m, n)) for s in (full, out.strides))
        if a_rows is not None and c_rows is not None and c_rows[1] <= 1:
            first = (at.offset,), (bt.offset,), (0,)
            a_steps, m = (a_rows[0], a_steps[1]), m * count
            return Product(dtype, m, n, k, *first, a_steps, b_steps, c_rows[0])
    at_all = [_offsets(tuple(batch), r) for r in (at, bt, out)]
    steps = a_steps, b_steps, out.strides[-2]
    return Product(dtype, m, n, k, at_all[0], at_all[1], at_all[2], *steps)


def matmul_with(
    op: Operation, a: Address, b: Address, epilogue: Callable[[int], Follow], before: Prologues
) -> list[KernelCall]:
    """A product in a `fused` op whose blocks are handed to an epilogue."""
    p = product_of(op, _inside)
    return gemm_calls(p, 0, a, b, epilogue(p.m), before=before)


def _inside(value: Value) -> Read:
    """An operand in the region of a `fused` op; what a prologue computes as if it were stored."""
    return _whole(value) if is_computed(value) else read_of(unconverted(value))


def matmul_into(
    op: Operation, a: Address, b: Address, c: Address, strides: tuple[int, ...], before: Prologues
) -> list[KernelCall]:
    """A product in a `fused` op that reads its operands through index maps, or computes them, and
    writes its result with these strides.
    """
    p = product_of(op, _inside, strides)
    if converts(p.dtype) and strides == contiguous_strides(_type(op.result).static_shape):
        return stored_calls(p, c, a, b)
    if strides[-1] <= 1:
        return gemm_calls(p, c, a, b, before=before)
    if before != (None, None):
        raise InternalError("a product that is written by columns has no prologue")
    steps = p.b_steps[::-1], p.a_steps[::-1], strides[-1]  # by columns: C' = B' A'
    turned = Product(p.dtype, p.n, p.m, p.k, p.b_at, p.a_at, p.c_at, *steps)
    return gemm_calls(turned, c, b, a)


def lower_matmul(op: Operation) -> list[KernelCall]:
    """The product of all matrices of the batch is one call; one before it may pack B."""
    dtype = _type(op.result).dtype
    if not dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {dtype.name} is not supported")
    product = product_of(op)
    c, a, b = Address(op.result), Address(op.operands[0]), Address(op.operands[1])
    if converts(product.dtype):
        return store_calls(product, c, a, b)
    if product.dtype not in COMPLEXES:
        return stored_calls(product, c, a, b)
    p = product
    args: tuple[Arg, ...] = (
        c, a, b, Pool(ConstArray(np.array(p.a_at, np.int64))),
        Pool(ConstArray(np.array(p.b_at, np.int64))), len(p.a_at), p.m, p.n, p.k,
        int(bool(op.attrs["transpose_a"])), int(bool(op.attrs["transpose_b"])),
    )  # fmt: skip
    routine = LETTER[p.dtype] + "gemm"
    kernel = Kernel(
        f"matmul-blas-1-{p.dtype}", f"matmul_{routine}", lambda e: _emit_blas(e, p.dtype)
    )
    return [KernelCall(kernel, (*args, Routine(routine)))]


def _emit_blas(e: Emitter, dtype: str) -> None:
    """Row-major C = A B is column-major C' = B' A': operands swap, flags stay with theirs."""
    b = e.builder
    c_at, a_at, b_at = (e.pointer_argument(k, dtype) for k in range(3))
    a_offsets, b_offsets = e.pointer_argument(3, "i64"), e.pointer_argument(4, "i64")
    count, m, n, k, ta, tb = (e.argument(j) for j in range(5, 11))
    one, zero = ir.Constant(I64, 1), ir.Constant(I64, 0)

    def cell(value: ir.Value) -> ir.Value:
        slot = e.alloca(value.type)
        b.store(value, slot)
        return slot

    def at_least_one(value: ir.Value) -> ir.Value:
        return b.trunc(b.select(b.icmp_signed(">", value, one), value, one), I32)

    def flag(transposed: ir.Value) -> ir.Value:
        letters = (ir.Constant(ir.IntType(8), ord(x)) for x in "TN")
        return cell(b.select(b.icmp_signed("!=", transposed, zero), *letters))

    lda = cell(at_least_one(b.select(b.icmp_signed("!=", ta, zero), m, k)))
    ldb = cell(at_least_one(b.select(b.icmp_signed("!=", tb, zero), k, n)))
    ldc = cell(at_least_one(n))
    sizes = [cell(b.trunc(v, I32)) for v in (n, m, k)]
    scalars = []
    for number in (1, 0):
        slot = e.alloca(memory_type(dtype))
        store_element(e, constant(dtype, number), slot, dtype)
        scalars.append(slot)
    flag_a, flag_b = flag(ta), flag(tb)
    size = b.mul(m, n)
    operands = [flag_b, flag_a, *sizes, scalars[0], b_at, ldb, a_at, lda, scalars[1], c_at, ldc]
    gemm_type = ir.FunctionType(ir.VoidType(), [v.type for v in operands])
    gemm = b.inttoptr(e.argument(11), gemm_type.as_pointer())
    with b.if_then(b.icmp_signed(">", size, zero)), e.for_range(zero, count) as i:
        operands[6] = e.at(b_at, b.load(e.at(b_offsets, i)))
        operands[8] = e.at(a_at, b.load(e.at(a_offsets, i)))
        operands[11] = e.at(c_at, b.mul(i, size))
        b.call(gemm, operands)
