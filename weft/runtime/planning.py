"""Passes, memory plan and program of a traced graph: what a step whose plan is on disk does not
load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.codegen.loops.batch_parallel import runs_in_parts
from weft.codegen.loops.in_registers import in_registers
from weft.codegen.steps.plan import check_supported, large_scratch
from weft.ir.graph import Graph, Operation
from weft.passes.fusion.fuse import fuse_folds
from weft.passes.manager import PassOptions, PassReport, run_passes
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import plan_memory
from weft.runtime.program import StepProgram, step_program
from weft.runtime.step_passes import for_machine


def planned(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    options: PassOptions,
    folder: Path | None = None,
) -> tuple[Graph, list[PassReport], MemoryPlan, StepProgram]:
    """Passes, memory plan and program of a traced graph; errors as `runtime.compile_graph`."""
    passes = for_machine(passes)
    fused, reports = run_passes(graph, passes, options=options, folder=folder)
    check_supported(fused)
    small_loops = in_registers if fuse_folds not in passes else _of_one_element
    memory = plan_memory(fused, small_loops, donated, runs_in_parts, large_scratch)
    return fused, reports, memory, step_program(fused, memory)


def _of_one_element(op: Operation) -> int:
    """`in_registers` for values of one element: elsewhere registers add up in an order of their
    own."""
    return 1 if in_registers(op) == 1 else 0
