"""All ops on resources but queues: hash tables, barriers, accumulators and stacks."""

from __future__ import annotations

from weft.ir.ops import resource_accumulator, resource_barrier, resource_stack, resource_table

TABLE = (
    *resource_table.TABLE,
    *resource_barrier.TABLE,
    *resource_accumulator.TABLE,
    *resource_stack.TABLE,
)
