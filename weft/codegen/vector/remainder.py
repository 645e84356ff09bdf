"""The remainder of a division, exactly, as branch-free code that LLVM can vectorise."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.vector.rare import unless_beyond


def truncated_remainder(m: FloatBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """fmod of C: a - b trunc(a / b), exact but for the sign of 0. NaN if a is infinite or b is 0.

    With q = trunc(a / b), at most one too large in magnitude, a - q b is a multiple of the last
    place of b and smaller than b: exact in one multiply-add. Quotients that q cannot hold exactly,
    infinite and NaN ones are left to the C library, element by element.
    """
    ratio = m.div(a, b)
    q = m.call("trunc", ratio)
    rest = m.exact_fma(m.neg(q), b, a)
    # q was rounded up, away from 0: the rest has not the sign of a.
    over = m.compare("<", m.mul(m.copysign(1.0, a), rest), 0.0)
    rest = m.select(over, m.add(rest, m.copysign(m.abs(b), a)), rest)
    rest = m.select(m.compare("==", m.abs(b), math.inf), a, rest)
    limit = 2.0 ** (m.mantissa_bits - 1)
    return unless_beyond(m, limit, ratio, rest, "fmod", _fmod, (a, b))


def _fmod(m: FloatBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return m.builder.frem(a, b)
