"""Random bits: Threefry-2x32-20 (`weft.ir.ops.random` has the source), vectorised over the
counters."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, cut_call
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import narrower
from weft.ir.cost.rates import NS_PER_RANDOM_BLOCK
from weft.ir.graph import Operation
from weft.ir.ops.random import PARITY, ROTATIONS, ROUNDS

I32 = ir.IntType(32)


def lower_random_bits(op: Operation) -> list[KernelCall]:
    """Element i is word i & 1 of the block with counter i >> 1."""
    count = math.prod(tensor(op.result).static_shape)
    blocks = (count + 1) // 2
    kernel = Kernel("random-bits-2", "random_bits", _emit_bits)
    args = (Address(op.result), Address(op.operands[0]), count)
    return [cut_call(kernel, args, blocks, NS_PER_RANDOM_BLOCK * narrower())]


def lower_random_fold_in(op: Operation) -> list[KernelCall]:
    """One block: counter (data, 0)."""
    key, data = op.operands
    kernel = Kernel("random-fold-in-1", "random_fold_in", _emit_fold_in)
    return [KernelCall(kernel, (Address(op.result), Address(key), Address(data)))]


def _threefry(
    e: Emitter, key: tuple[ir.Value, ir.Value], low: ir.Value, high: ir.Value
) -> tuple[ir.Value, ir.Value]:
    b = e.builder
    parity = b.xor(b.xor(key[0], key[1]), ir.Constant(I32, int(PARITY)))
    schedule = (key[0], key[1], parity)
    x, y = b.add(low, key[0]), b.add(high, key[1])
    for i in range(ROUNDS):
        turn = ROTATIONS[i % 8]
        x = b.add(x, y)
        rotated = b.or_(b.shl(y, ir.Constant(I32, turn)), b.lshr(y, ir.Constant(I32, 32 - turn)))
        y = b.xor(rotated, x)
        if i % 4 == 3:
            n = i // 4 + 1
            x = b.add(x, schedule[n % 3])
            y = b.add(b.add(y, schedule[(n + 1) % 3]), ir.Constant(I32, n))
    return x, y


def _key(e: Emitter, pointer: ir.Value) -> tuple[ir.Value, ir.Value]:
    first, second = (e.builder.load(e.at(pointer, e.index(k))) for k in (0, 1))
    return first, second


def _emit_bits(e: Emitter) -> None:
    """Units: blocks of two words; of the last one only the first may be wanted."""
    pointers = [e.pointer_argument(0, "u32"), e.pointer_argument(1, "u32")]
    scalars = [e.argument(2), e.lo, e.hi]
    with e.loop_function("bits", pointers, scalars) as (f, (out, key_at), (count, lo, hi)):
        b = f.builder
        key = _key(f, key_at)
        one = f.index(1)

        def block(i: ir.Value) -> tuple[ir.Value, ir.Value]:
            return _threefry(f, key, b.trunc(i, I32), b.trunc(b.lshr(i, f.index(32)), I32))

        pairs = b.lshr(count, one)
        whole = b.select(b.icmp_signed("<", hi, pairs), hi, pairs)
        with f.for_range(lo, whole) as i:
            for k, word in enumerate(block(i)):
                b.store(word, f.at(out, b.add(b.shl(i, one), f.index(k))))
        with b.if_then(b.icmp_signed(">", hi, pairs)):
            b.store(block(pairs)[0], f.at(out, b.shl(pairs, one)))


def _emit_fold_in(e: Emitter) -> None:
    b = e.builder
    out, key_at, data_at = (e.pointer_argument(k, "u32") for k in range(3))
    words = _threefry(e, _key(e, key_at), b.load(data_at), ir.Constant(I32, 0))
    for k, word in enumerate(words):
        b.store(word, e.at(out, e.index(k)))
