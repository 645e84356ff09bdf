"""Random bits: Threefry-2x32-20 (`weft/ir/ops/random.py` has the source), the same as on the CPU.

A thread has a block of two words."""

from __future__ import annotations

from weft.codegen.call import Address
from weft.codegen.cuda.kernels.axes import count_of
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.graph import Operation
from weft.ir.ops.random import PARITY, ROTATIONS, ROUNDS


def random_bits_launches(op: Operation) -> list[Launch]:
    """Element i is word i & 1 of the block with counter i >> 1."""
    count = count_of(op.result)
    index = index_dtype(count)
    s = Source(f"random_bits_{index}", index)
    out = s.pointer("out", "u32", Address(op.result))
    key = s.pointer("key", "u32", Address(op.operands[0]))
    size = s.number("size", count)
    block = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "counter")
    first = s.let(s.mul(block, s.const(2)), "first")
    with s.block(f"if {first} < {size}"):
        high = f"u32({block} >> 32)" if index == "i64" else "u32(0)"
        words = _threefry(s, key, f"u32({block})" if index == "i64" else block, high)
        s.line(f"{out}[{first}] = {words[0]}")
        second = s.let(s.add(first, s.const(1)), "second")
        with s.block(f"if {second} < {size}"):
            s.line(f"{out}[{second}] = {words[1]}")
    return [s.launch(-(-count // (2 * s.threads)))]


def random_fold_in_launches(op: Operation) -> list[Launch]:
    """One block: counter (data, 0)."""
    s = Source("random_fold_in", "u32", 1)
    out = s.pointer("out", "u32", Address(op.result))
    key, data = (
        s.pointer(n, "u32", Address(v)) for n, v in zip(("key", "data"), op.operands, strict=True)
    )
    for k, word in enumerate(_threefry(s, key, s.let(f"{data}[0]"), "u32(0)")):
        s.line(f"{out}[{k}] = {word}")
    return [s.launch(1)]


def _threefry(s: Source, key: str, low: str, high: str) -> tuple[str, str]:
    k0, k1 = s.let(f"{key}[0]", "k"), s.let(f"{key}[1]", "k")
    parity = s.let(f"u32(u32({k0} ^ {k1}) ^ u32({int(PARITY)}))", "k")
    schedule = (k0, k1, parity)
    x, y = s.let(f"u32({low} + {k0})", "x"), s.let(f"u32({high} + {k1})", "y")
    for i in range(ROUNDS):
        turn = ROTATIONS[i % 8]
        s.line(f"{x} = u32({x} + {y})")
        s.line(f"{y} = u32(u32(u32({y} << {turn}) | u32({y} >> {32 - turn})) ^ {x})")
        if i % 4 == 3:
            n = i // 4 + 1
            s.line(f"{x} = u32({x} + {schedule[n % 3]})")
            s.line(f"{y} = u32(u32({y} + {schedule[(n + 1) % 3]}) + u32({n}))")
    return x, y
