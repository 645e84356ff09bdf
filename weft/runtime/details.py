"""What compiling a step did: the fused graph and the report, kept or made again when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from weft.codegen.steps.parts import runs_in_parts
from weft.codegen.steps.plan import check_supported, large_scratch
from weft.codegen.steps.program import Node, PlannedCall, describe_program
from weft.codegen.steps.scalar_check import in_registers
from weft.ir.errors import InternalError
from weft.ir.fork import ForkLock
from weft.ir.graph import Graph, Operation
from weft.passes.fusion.fuse import fuse_folds
from weft.passes.manager import PassOptions, PassReport, run_passes
from weft.passes.memory.plan_memory import MemoryPlan, plan_memory
from weft.runtime.collector import collector_paused
from weft.runtime.program import StepProgram, step_program
from weft.runtime.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling did: the passes, the memory plan, the program, its kernel calls, how many
    kernels were new, and whether the plan came from disk (then the passes ran for this report)."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    program: tuple[Node, ...]
    calls: tuple[PlannedCall, ...]
    kernels_compiled: int
    seconds: float
    kernels_loaded: int = 0
    plan_loaded: bool = False

    def describe_program(self) -> list[str]:
        """The kernel calls, numbered as in `calls`, and loops and branches, as lines for people."""
        return describe_program(self.program).splitlines()


#: The fused graph of a step, and how it came about.
Details = tuple[Graph, CompileReport]


def planned(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    options: PassOptions,
    folder: Path | None = None,
) -> tuple[Graph, list[PassReport], MemoryPlan, StepProgram]:
    """Passes, memory plan and program of a traced graph; errors as `runtime.compile_graph`."""
    fused, reports = run_passes(graph, passes, options=options, folder=folder)
    check_supported(fused)
    small_loops = in_registers if fuse_folds not in passes else _of_one_element
    memory = plan_memory(fused, small_loops, donated, runs_in_parts, large_scratch)
    return fused, reports, memory, step_program(fused, memory)


def _of_one_element(op: Operation) -> int:
    """`in_registers` for values of one element: elsewhere registers add up in an order of their
    own."""
    return 1 if in_registers(op) == 1 else 0


def details_again(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    plan: StepPlan,
    effort: tuple[int, float, int],
    plan_loaded: bool,
) -> Details:
    """What a plan does not say: run the passes again, on this program's own graph."""
    with collector_paused():
        fused, reports, memory, program = planned(graph, passes, donated, PassOptions())
    if program.table.kernels != plan.table.kernels or program.table.calls != plan.table.calls:
        raise InternalError(
            f"the plan of '{graph.name}' is not what weft makes of it now",
            hint="`weft cache clear` removes it, if it is on disk",
        )
    report = CompileReport(
        tuple(reports), memory, program.nodes, program.calls, *effort, plan_loaded
    )
    return fused, report


T = TypeVar("T")


class Once(Generic[T]):
    """A function of no arguments that is called once, whichever thread asks first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = ForkLock()

    def __call__(self) -> T:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
