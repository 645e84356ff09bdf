"""How the walker makes one kernel call: at once, or cut into chunks over the pool's threads."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.emitter import Emitter


def emit_parallel_call(
    e: Emitter,
    pool: ir.Value,
    threads: ir.Value,
    kernel: ir.Value,
    arguments: ir.Value,
    units: ir.Value,
    chunk: ir.Value,
) -> None:
    """Call `kernel(arguments, lo, hi, worker)` so that all of [0, units) is done on return."""
    del pool, threads, chunk
    e.builder.call(kernel, [arguments, e.index(0), units, e.index(0)])
