"""Native plans for many sizes: made once, their numbers computed anew for each set.

While passes and planning run, the open sizes are numbers that remember how they came about
(`ir/sizes.py`). So are the words of the table that comes out, the offsets in the arena, the
shapes of the results: `NativeSizePlan` computes them for other sizes and puts them into an
activation. `NativeMaker` makes such plans for a `SizedStep`, and those for some sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from weft.codegen.faults import STOPPED
from weft.codegen.llvm.jit import hold_kernels
from weft.codegen.steps.walker import Table
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType
from weft.ir.errors import InternalError
from weft.ir.graph import Graph
from weft.ir.process import collector_paused
from weft.ir.sizes import hint, is_traced
from weft.passes.manager import Pass, PassOptions
from weft.passes.pipelines import STANDARD
from weft.runtime.native.activation import Activation, LinkedPlan, aligned, raise_stopped, watched
from weft.runtime.native.executable import LARGE_ARENA, Executable, compile_graph
from weft.runtime.native.planning import for_machine
from weft.runtime.native.step_plan import CompileReport, Details, StepPlan, planned, step_plan
from weft.runtime.resources.variables import VariableState
from weft.runtime.sized_step import Numbers, Shapes, SizedGraph, SizedStep, SizePlan, may_share
from weft.runtime.step import PLAIN, RunContext

Array = np.ndarray[Any, Any]
#: Columns of the table that hold sizes; of patches, moves and others as a flat list.
_COLUMNS = ("words", "calls", "patches", "moves")
#: Activations that wait for the next call.
MOST_IDLE = 2
#: An arena that is too small becomes larger than it must be by this part.
SPARE = 0.25
#: One that is so many times as large as it must be is given back.
MOST_SPARE = 8


class Filled:
    """A native plan for many sizes, at work on some."""

    __slots__ = ("numbers", "plan", "results")

    def __init__(self, plan: NativeSizePlan, numbers: Numbers) -> None:
        self.plan, self.numbers = plan, numbers
        self.results = plan.results(numbers)

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As `Step.run`."""
        return self.plan.run(self, inputs, context)


@dataclass(frozen=True, slots=True)
class NativeMaker:
    """Native plans of a graph, as a `StepMaker`. variables, passes, threads: as of
    `compile_graph`. step: options of the passes of the step that it is a region of. donated: inputs
    whose memory results may take, as far as the sizes that come allow."""

    graph: SizedGraph
    variables: Mapping[str, VariableState]
    threads: int | None = None
    passes: Sequence[Pass] = STANDARD
    step: PassOptions | None = None
    donated: Sequence[int] = ()

    def alone(self, shapes: Shapes, *, kept: bool) -> Executable:
        """A plan for inputs of these shapes only."""
        graph = self.graph.at(shapes)
        return compile_graph(
            graph, self.variables, name=graph.name, passes=self.passes, threads=self.threads,
            donated=self.donated, kept=kept, options=self.step and self.step.for_part("region"),
        )  # fmt: skip

    def many(self, shapes: Shapes, *, wide: bool) -> NativeSizePlan | None:
        """A plan for these shapes with others in mind."""
        return NativeSizePlan(self, shapes, wide=wide) if may_share(self.graph, shapes) else None


#: A step of native plans.
NativeSizedStep: TypeAlias = SizedStep[Executable | Filled]


def native_step_of_any_size(
    graph: Graph,
    variables: Mapping[str, VariableState],
    threads: int | None = None,
    passes: Sequence[Pass] = STANDARD,
    step: PassOptions | None = None,
    donated: Sequence[int] = (),
) -> NativeSizedStep:
    """A graph whose sizes follow from those of its inputs as native plans, the first of them for
    the sizes that come first alone. step, donated: as of `NativeMaker`."""
    return SizedStep(NativeMaker(SizedGraph.of(graph), variables, threads, passes, step, donated))


class NativeSizePlan(SizePlan["Executable | Filled"]):
    """A native plan for many sizes. maker: what it is made of."""

    def __init__(self, maker: NativeMaker, shapes: Shapes, *, wide: bool = False) -> None:
        self._variables, self._threads = maker.variables, maker.threads
        self._passes, self._shapes = for_machine(maker.passes), shapes
        self._donated = maker.donated
        self._idle: list[_Activation] = []
        super().__init__(maker.graph, shapes, wide=wide)

    def _plan(self, graph: Graph) -> None:
        plan, kernels, _ = _planned(graph, self._passes, self._donated)
        self._addresses = hold_kernels(kernels)
        self._outputs = _Outputs(plan, self._place)
        self._made = _Resized(
            self.graph.name, _plain(plan, 0), self._variables, self._addresses, self._details,
            self._threads,
        )  # fmt: skip

    def fill(self, numbers: Numbers, shapes: Shapes) -> Filled:
        return Filled(self, numbers)

    def results(self, numbers: Numbers) -> list[tuple[tuple[int, ...], Any] | None]:
        """Shape and dtype of each result, None for one that needs no room."""
        return self._outputs.results(numbers)

    def run(self, sizes: Filled, arrays: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As `Step.run`, for these sizes."""
        if context.donation is not None:
            context.donation.take(self._made.taken)
        if context is not PLAIN and not context.is_plain:
            activation = self._new_activation(arrays)
            if context.keep is not None:
                context.keep(activation)
            if context.recorder is not None:
                raise InternalError("a plan for many sizes cannot be traced")
            with watched(activation.status, context):
                return self._run_on(activation, sizes, arrays)
        try:
            activation = self._idle.pop()
        except IndexError:
            activation = self._new_activation(arrays)
        results = self._run_on(activation, sizes, arrays)
        if len(self._idle) < (1 if activation.room >= LARGE_ARENA else MOST_IDLE):
            self._idle.append(activation)
        return results

    def _new_activation(self, arrays: Sequence[Array]) -> _Activation:
        made = self._made
        try:
            return _Activation(LinkedPlan(made.plan, self._addresses), *made.pool_and_threads())
        except MemoryError:
            self._exact(arrays).raise_no_memory()

    def _run_on(self, activation: _Activation, sizes: Filled, arrays: list[Array]) -> list[Any]:
        try:
            if activation.numbers is not sizes.numbers:
                self._outputs.resize(activation, sizes.numbers)
            results = [None if r is None else np.empty(r[0], r[1]) for r in sizes.results]
        except MemoryError:
            self._exact(arrays).raise_no_memory()
        try:
            return self._made.run_with(activation, arrays, results)
        except _Failed as failed:
            row, status, index = failed.where
            if status == STOPPED and not self._made.plan.table.callees:
                raise_stopped(index)
            # the same rows, as all that decides them is a condition
            self._exact(arrays).raise_failed(row, status, index)

    def _exact(self, arrays: Sequence[Array]) -> Executable:
        """The plan made anew for the sizes of these inputs, which errors tell of."""
        plan, details = self._again(tuple(a.shape for a in arrays))
        return Executable(
            self.graph.name, _plain(plan), self._variables, self._addresses, lambda: details
        )

    def _details(self) -> Details:
        """For errors that are the same whatever the sizes are."""
        return self._again(self._shapes)[1]

    def _again(self, shapes: Shapes) -> tuple[StepPlan, Details]:
        plan, _, details = _planned(self._anew(shapes), self._passes, self._donated)
        return plan, details


class _Failed(Exception):
    """A call of the plan failed: row, status, index."""

    def __init__(self, *where: int) -> None:
        self.where = where


class _Resized(Executable):
    """It runs on activations of other sizes than its plan's."""

    def native_step(self) -> None:
        """None: native code makes results of the plan's own sizes."""

    def raise_failed(self, call: int, status: int, index: int) -> NoReturn:
        raise _Failed(call, status, index)


class _Activation(Activation):
    """An activation whose numbers are those of the sizes that it ran on last."""

    __slots__ = ("numbers", "room")

    def __init__(self, linked: LinkedPlan, pool: int, threads: int) -> None:
        super().__init__(linked, pool, threads)
        self.numbers: Numbers | None = None
        self.room = len(self.arena)


def _planned(
    graph: Graph, passes: Sequence[Pass], donated: Sequence[int]
) -> tuple[StepPlan, Any, Details]:
    """The plan, whose numbers may be traced, its kernels, and what errors need to know."""
    with collector_paused():
        fused, reports, memory, program = planned(graph, passes, donated, PassOptions())
        plan = step_plan(fused, memory, program, reports[-1])
    report = CompileReport(tuple(reports), memory, program.nodes, program.calls, 0, 0.0)
    return plan, program.kernels, (fused, report)


def _plain(plan: StepPlan, room: int | None = None) -> StepPlan:
    """The plan for the sizes that it was made for. room: bytes of its arena, where that is to
    become what other sizes need."""

    def plain(held: Any) -> Any:
        if isinstance(held, (list, tuple)):
            return type(held)([plain(x) for x in held])
        return hint(held)

    table = plan.table
    columns = {name: plain(getattr(table, name)) for name in (*_COLUMNS, "arena", "constants")}
    sizes = {name: hint(getattr(table, name)) for name in ("scratch_bytes", "worker_bytes")}
    if room is not None:
        sizes["scratch_bytes"] = room
    given = {f: getattr(table, f) for f in Table.__slots__}
    results = [None if r is None else (plain(r[0]), r[1]) for r in plan.results]
    return replace(
        plan, table=Table(**{**given, **columns, **sizes}), results=tuple(results),
        arena_bytes=hint(plan.arena_bytes) if room is None else room,
        result_bytes=hint(plan.result_bytes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Column:
    """Places in a column, and which outputs go there."""

    at: Numbers
    rows: Numbers


class _Outputs:
    """Where the traced numbers of a plan go. place: as of `SizePlan`."""

    def __init__(self, plan: StepPlan, place: Callable[[int], int]) -> None:
        self._place = place
        table = plan.table
        for _, _, offset in table.constants:
            int(offset)  # a condition, if it is traced: no activation has constants of its own
        self.columns = {name: self._column(getattr(table, name)) for name in _COLUMNS}
        within = [(word, offset) for word, offset in table.arena if hint(offset) >= 0]
        self.arena_words = _indices(word for word, _ in within)
        self.arena_rows = _indices(self._place(offset) for _, offset in within)
        self.scratch_words = _indices(w for w, offset in table.arena if hint(offset) < 0)
        self.worker_words = _indices(table.workers)
        self.totals = [
            self._place(n) for n in (plan.arena_bytes, table.scratch_bytes, table.worker_bytes)
        ]
        self._results: list[tuple[list[int], Any] | None] = [
            None if r is None else ([self._place(n) for n in r[0]], _numpy(r[1]))
            for r in plan.results
        ]

    def _column(self, column: Sequence[int]) -> _Column:
        found = [(k, self._place(n)) for k, n in enumerate(column) if is_traced(n)]
        return _Column(_indices(k for k, _ in found), _indices(row for _, row in found))

    def results(self, numbers: Numbers) -> list[tuple[tuple[int, ...], Any] | None]:
        """As of `NativeSizePlan`."""
        given = numbers.tolist()
        return [None if r is None else (tuple([given[k] for k in r[0]]), r[1])
                for r in self._results]  # fmt: skip

    def resize(self, activation: _Activation, numbers: Numbers) -> None:
        """Make an activation one for these sizes."""
        activation.numbers = None
        linked = activation.linked
        held = {
            "words": activation.words, "calls": linked.calls, "patches": linked.patches,
            "moves": linked.moves,
        }  # fmt: skip
        for name, column in self.columns.items():
            if len(column.at):
                held[name][column.at] = numbers[column.rows]
        arena, scratch, workers = (int(numbers[k]) for k in self.totals)
        needed = aligned(arena + scratch) + workers * activation.threads + 64
        if needed > activation.room or activation.room > max(LARGE_ARENA, MOST_SPARE * needed):
            activation.arena = np.empty(int(needed * (1 + SPARE)), np.uint8)
            activation.room = len(activation.arena)
        base = (int(activation.arena.ctypes.data) + 63) // 64 * 64
        words = activation.words
        words[self.arena_words] = numbers[self.arena_rows] + base
        words[self.scratch_words] = base + arena
        words[self.worker_words] = base + aligned(arena + scratch)
        activation.numbers = numbers


def _indices(numbers: Any) -> Numbers:
    return np.array(list(numbers), np.int64)


def _numpy(dtype: DType) -> Any:
    return dtype.numpy
