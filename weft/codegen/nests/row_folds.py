"""A fold over one row in registers; sums of f32 in blocks, whose totals add up in f64."""

from __future__ import annotations

from typing import Protocol

from llvmlite import ir

from weft.codegen.emitter import Emitter
from weft.codegen.nests.folds import is_wide_sum
from weft.codegen.nests.held import Held
from weft.codegen.nests.rows import Node

F64 = ir.DoubleType()


class Adds(Protocol):
    """A fold that takes one element after another."""

    def add(self, value: ir.Value) -> None:
        """One more element."""


class Accumulator:
    """Of the fold `node`: its value so far; for blocked sums that of one block, and the total."""

    def __init__(self, e: Emitter, node: Node) -> None:
        self.e = e
        self.held = Held(e, node.name, node.dtype)
        self.held.begin()
        self.total: ir.Value | None = None
        if is_wide_sum(node.name, node.dtype):
            self.total = e.alloca(F64)
            e.builder.store(ir.Constant(F64, 0.0), self.total)

    def add(self, value: ir.Value) -> None:
        """One more element."""
        self.held.add(value)

    def begin_block(self) -> None:
        """Before a block of elements; nothing for folds without blocks."""
        if self.total is not None:
            self.held.begin()

    def end_block(self) -> None:
        """After a block of elements."""
        b = self.e.builder
        if self.total is not None:
            part = b.fpext(self.held.value(), F64)
            b.store(b.fadd(b.load(self.total), part), self.total)

    def close(self) -> tuple[ir.Value, ir.Value | None]:
        """The result, and the f64 total of a blocked sum."""
        b = self.e.builder
        if self.total is None:
            return self.held.value(), None
        wide = b.load(self.total)
        return b.fptrunc(wide, ir.FloatType()), wide
