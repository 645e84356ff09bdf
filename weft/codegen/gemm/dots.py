"""Instructions that multiply several narrow integers of two vectors and add them up.

Operands of 8 and 16 bits are packed with two or four neighbours of k in 32 bits
(`weft.codegen.gemm.pack`), and each lane of a sum takes all of them at once:

| packed     | instruction                                    | of                              |
|------------|------------------------------------------------|---------------------------------|
| 2 x i16    | pmaddwd and paddd; vpdpwssd where LLVM has it  | SSE2, AVX2, AVX-512 (BW); VNNI  |
| 4 x i8     | vpdpbusd                                       | AVX-512 VNNI                    |

All of them are exact modulo 2^32: two products of i16 reach 2^31 only as (-2^15)^2 + (-2^15)^2,
which is what int32 wraps it to. Those of four take one operand as unsigned. B is packed plus 128,
and the sums of a run begin with -128 times the sum of A's row: sum of a (b + 128) - 128 a = a b.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.elements import I16, INTEGERS, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.llvm.target import has_feature, per_isa

#: 128 in each byte, which each number of a B that is packed by four is larger by.
BIASES = -0x7F7F7F80
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@per_isa
def elements_of_k(dtype: str, vector_bits: int) -> int:
    """How many neighbours of k are packed into 32 bits of an operand of `dtype`: 4, 2 or 1."""
    if dtype not in INTEGERS or width_bits(dtype) > 16 or not has_feature("sse2"):
        return 1
    if vector_bits == 512 and not has_feature("avx512bw"):
        return 1
    quads = dtype == "i8" and vector_bits == 512 and has_feature("avx512_vnni")
    return 4 if quads else 2


def add_products(e: Emitter, a: ir.Value, b: ir.Value, c: ir.Value, depth: int) -> ir.Value:
    """c + the sum of the `depth` products of each lane, for vectors of 32-bit lanes."""
    builder, lanes = e.builder, c.type.count
    if depth == 4:  # the unsigned operand comes first
        kind = ir.FunctionType(c.type, [c.type] * 3)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return builder.call(_declared(e, name, kind), [c, b, a])
    halves = ir.VectorType(I16, 2 * lanes)
    kind = ir.FunctionType(c.type, [halves, halves])
    pairs = _declared(e, f"llvm.x86.{_PAIRS[lanes]}", kind)
    return builder.add(c, builder.call(pairs, [builder.bitcast(x, halves) for x in (a, b)]))


def _declared(e: Emitter, name: str, kind: ir.FunctionType) -> ir.Function:
    held = e.module.globals.get(name)
    return held if held is not None else ir.Function(e.module, kind, name)
