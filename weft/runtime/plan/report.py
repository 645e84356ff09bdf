"""Report of compiling a step: the fused graph, the passes, the memory plan and the program.

Kept from the compilation; for a plan from disk the passes run again when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weft.codegen.llvm.target import isa_line, using
from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph
from weft.ir.process import ForkLock, collector_paused, load
from weft.passes.manager import PassOptions, PassReport
from weft.runtime.plan.step_plan import StepPlan
from weft.runtime.plan.store import changed

if TYPE_CHECKING:
    from weft.codegen.loops.program import Node, PlannedCall
    from weft.passes.memory.block import MemoryPlan
    from weft.runtime.plan.planning import StepProgram


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The report on compiling a step: the passes, the memory plan, the program, its kernel calls,
    how many kernels were new, whether the plan came from disk (then the passes ran for this
    report), and the instruction set."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    program: tuple[Node, ...]
    calls: tuple[PlannedCall, ...]
    kernels_compiled: int
    seconds: float
    kernels_loaded: int = 0
    plan_loaded: bool = False
    isa: str = field(default_factory=isa_line)

    def describe_program(self) -> list[str]:
        """The kernel calls, numbered as in `calls`, and loops and branches, as lines for people."""
        describe: Any = load("weft.codegen.loops.program", "describe_program")
        lines: list[str] = describe(self.program).splitlines()
        return lines


#: The fused graph of a step, and how it came about.
Details = tuple[Graph, CompileReport]


def planned(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    options: PassOptions,
) -> tuple[Graph, list[PassReport], MemoryPlan, StepProgram]:
    """Passes, memory plan and program of a traced graph; errors as
    `runtime.native.executable.compile_graph`. The modules for it are loaded with the first graph
    that has no plan on disk."""
    plan: Any = load("weft.runtime.plan.planning", "planned")
    made: tuple[Graph, list[PassReport], MemoryPlan, StepProgram]
    made = plan(graph, passes, donated, options)
    return made


def details_again(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    plan: StepPlan,
    effort: tuple[int, float, int],
    plan_loaded: bool,
    isa: str,
) -> Details:
    """What a plan does not say: run the passes again, on this program's own graph."""
    with collector_paused(), using(isa):
        fused, reports, memory, program = planned(graph, passes, donated, PassOptions())
        report = CompileReport(
            tuple(reports), memory, program.nodes, program.calls, *effort, plan_loaded
        )
    if program.table.kernels != plan.table.kernels or program.table.calls != plan.table.calls:
        raise changed(graph)
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
