"""matmul: weft's own product for floats, BLAS for complex numbers, a loop for integers (exact)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool
from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import COMPLEXES, HALVES, memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.call import Product, gemm_calls
from weft.codegen.gemm.epilogue import Follow, store_calls
from weft.codegen.gemm.tile import ACCUMULATOR
from weft.codegen.jit import Kernel
from weft.codegen.kernels.blas import LETTER, blas_address
from weft.codegen.scalar.scalar import emit_scalar
from weft.ir.attributes import ConstArray
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.types import TensorType

I32 = ir.IntType(32)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _offsets(batch: tuple[int, ...], of: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Element offset of the operand's matrix for each matrix of the broadcast batch."""
    index = np.arange(math.prod(of), dtype=np.int64).reshape(of) * size
    return tuple(np.broadcast_to(index, batch).reshape(-1).tolist())


def product_of(op: Operation) -> Product:
    """The sizes of a matmul; rows of all matrices of A are one matrix if B is the same for all."""
    a, b = (_type(v) for v in op.operands)
    ta, tb = bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])
    *batch, m, n = _type(op.result).static_shape
    k = a.static_shape[-2 if ta else -1]
    count = math.prod(batch)
    a_batch, b_batch = a.static_shape[:-2], b.static_shape[:-2]
    if not ta and math.prod(b_batch) == 1 and count == math.prod(a_batch):
        m, a_batch, b_batch, batch = m * count, (), (), []
    a_at, b_at = _offsets(tuple(batch), a_batch, m * k), _offsets(tuple(batch), b_batch, k * n)
    return Product(a.dtype.short, m, n, k, a_at, b_at, ta, tb)


def matmul_with(
    op: Operation, a: Address, b: Address, epilogue: Callable[[int], Follow]
) -> list[KernelCall]:
    """A product whose blocks are handed to an epilogue."""
    p = product_of(op)
    follow = epilogue(p.m)
    return gemm_calls(p, 0, a, b, follow.kernel, follow.args, follow.statements)


def lower_matmul(op: Operation) -> list[KernelCall]:
    """The product of all matrices of the batch is one call; one before it may pack B."""
    dtype = _type(op.result).dtype
    product = product_of(op)
    c, a, b = Address(op.result), Address(op.operands[0]), Address(op.operands[1])
    if product.dtype in HALVES:
        return store_calls(product, c, a, b)
    if product.dtype in ACCUMULATOR:
        return gemm_calls(product, c, a, b)
    p = product
    args: tuple[Arg, ...] = (
        c, a, b, Pool(ConstArray(np.array(p.a_at, np.int64))),
        Pool(ConstArray(np.array(p.b_at, np.int64))), len(p.a_at), p.m, p.n, p.k,
        int(p.transpose_a), int(p.transpose_b),
    )  # fmt: skip
    if p.dtype in COMPLEXES:
        routine = LETTER[p.dtype] + "gemm"
        kernel = Kernel(
            f"matmul-blas-1-{p.dtype}", f"matmul_{routine}", lambda e: _emit_blas(e, p.dtype)
        )
        return [KernelCall(kernel, (*args, blas_address(routine)))]
    if not dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {dtype.name} is not supported")
    kernel = Kernel(
        f"matmul-loop-1-{p.dtype}", f"matmul_{p.dtype}", lambda e: _emit_loop(e, p.dtype)
    )
    return [KernelCall(kernel, args)]


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


def _emit_loop(e: Emitter, dtype: str) -> None:
    b = e.builder
    pointers = [e.pointer_argument(k, dtype) for k in range(3)]
    a_offsets, b_offsets = e.pointer_argument(3, "i64"), e.pointer_argument(4, "i64")
    count, m, n, k, ta, tb = (e.argument(j) for j in range(5, 11))
    one, zero = e.index(1), e.index(0)
    transposed_a, transposed_b = b.icmp_signed("!=", ta, zero), b.icmp_signed("!=", tb, zero)
    steps = [
        b.select(transposed_a, one, k), b.select(transposed_a, m, one),  # A: per row, per k
        b.select(transposed_b, one, n), b.select(transposed_b, k, one),  # B: per k, per column
    ]  # fmt: skip
    with e.loop_function("loop", [*pointers, a_offsets, b_offsets], [count, m, n, k, *steps]) as (
        f,
        p,
        s,
    ):
        fb = f.builder
        with f.for_range(zero, s[0]) as i:
            a0 = f.at(p[1], fb.load(f.at(p[3], i)))
            b0 = f.at(p[2], fb.load(f.at(p[4], i)))
            c0 = f.at(p[0], fb.mul(i, fb.mul(s[1], s[2])))
            with f.for_range(zero, s[1]) as row, f.for_range(zero, s[2]) as column:
                slot = f.alloca(constant(dtype, 0).type)
                fb.store(constant(dtype, 0), slot)
                with f.for_range(zero, s[3]) as j:
                    x = f.at(a0, fb.add(fb.mul(row, s[4]), fb.mul(j, s[5])))
                    y = f.at(b0, fb.add(fb.mul(j, s[6]), fb.mul(column, s[7])))
                    factors = [load_element(f, x, dtype), load_element(f, y, dtype)]
                    product = emit_scalar(f, "multiply", dtype, factors, {})
                    fb.store(emit_scalar(f, "add", dtype, [fb.load(slot), product], {}), slot)
                store_element(f, fb.load(slot), f.at(c0, fb.add(fb.mul(row, s[2]), column)), dtype)
