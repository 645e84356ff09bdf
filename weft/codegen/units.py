"""Ranges of units that are the elements of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.emitter import Emitter


@contextmanager
def unit_parts(
    f: Emitter, lo: ir.Value, hi: ir.Value, length: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """The units [lo, hi) as parts of runs of `length`: (run, first, last within it) of each."""
    b, zero, one = f.builder, f.index(0), f.index(1)
    with b.if_then(b.icmp_signed("<", lo, hi)):
        stop = b.add(b.udiv(b.sub(hi, one), length), one)
        with f.for_range(b.udiv(lo, length), stop) as run:
            start = b.mul(run, length)
            first, last = b.sub(lo, start), b.sub(hi, start)
            first = b.select(b.icmp_signed(">", first, zero), first, zero)
            last = b.select(b.icmp_signed("<", last, length), last, length)
            yield run, first, last
