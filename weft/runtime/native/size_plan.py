"""Plans for many sets of sizes: made once, their numbers computed anew for each set.

While passes and planning run, the open sizes are numbers that remember how they came about
(`ir/sizes.py`). So are the words of the table that comes out, the offsets in the arena, the
shapes of the results. `SizePlan.numbers` computes them for other sizes, in some ten microseconds,
and says where planning would have decided otherwise: then they need another plan. `SizePlans` holds
the plans of one graph: found by the shapes that come, or made for them. `SizedStep` is a step for
any sizes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar

import numpy as np

from weft.codegen.faults import STOPPED
from weft.codegen.llvm.jit import hold_kernels
from weft.codegen.steps.walker import Table
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import InternalError
from weft.ir.graph import Graph
from weft.ir.process import ForkLock, collector_paused
from weft.ir.size_tape import LEAST, Sizes, Tape, Terms
from weft.ir.sizes import hint, is_traced, new_size, terms_of
from weft.ir.types import TensorType, Type
from weft.passes.manager import Pass, PassOptions
from weft.passes.pipelines import STANDARD
from weft.passes.sizes.specialize import specialize_inputs
from weft.runtime.native.activation import Activation, LinkedPlan, aligned, raise_stopped, watched
from weft.runtime.native.executable import LARGE_ARENA, Executable, compile_graph
from weft.runtime.plan.planning import for_machine
from weft.runtime.plan.report import CompileReport, Details, planned
from weft.runtime.plan.step_plan import StepPlan, step_plan
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
Numbers = np.ndarray[Any, Any]
#: Columns of the table that hold sizes; of patches, moves and others as a flat list.
_COLUMNS = ("words", "calls", "patches", "moves")
#: Activations that wait for the next call.
MOST_IDLE = 2
#: An arena that is too small becomes larger than it must be by this part.
SPARE = 0.25
#: One that is so many times as large as it must be is given back.
MOST_SPARE = 8


@dataclass(frozen=True, slots=True)
class SizedGraph:
    """A graph for any sizes. types: of its inputs, open ones among them. at: the graph for inputs
    of some shapes, ShapeError where they do not fit."""

    name: str
    types: tuple[Type, ...]
    at: Callable[[Sequence[tuple[int, ...]]], Graph]

    def has_open(self, shapes: Shapes) -> bool:
        """Whether inputs of these shapes have a size that a plan for many leaves open."""
        return any(
            size >= LEAST and not isinstance(dim, int)
            for kind, shape in zip(self.types, shapes, strict=True)
            if isinstance(kind, TensorType)
            for dim, size in zip(kind.shape, shape, strict=True)
        )


class SizeCheck:
    """Which sizes fit together as those do that a graph was found right for.

    shapes: of all inputs. Errors as `SizedGraph.at` has.
    """

    def __init__(self, graph: SizedGraph, shapes: Shapes) -> None:
        tape = Tape()
        self._given = Given(graph.types, shapes, tape)
        graph.at(self._given.shapes)
        self._sizes: Sizes = tape.sizes([])

    def holds(self, shapes: Shapes) -> bool:
        """Whether inputs of these shapes are known to fit."""
        given = self._given.read(shapes)
        return given is not None and self._sizes.evaluate(given) is not None


class SizePlan:
    """A plan for many sizes, and for which it is right.

    shapes: of all inputs, those that it is made for. wide: as of `Tape`. Errors as `compile_graph`;
    TypeError if planning gives a size to what takes no such number.
    """

    def __init__(
        self,
        graph: SizedGraph,
        shapes: Shapes,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
        passes: Sequence[Pass] = STANDARD,
        *,
        wide: bool = False,
    ) -> None:
        self.graph, self._variables, self._shapes = graph, variables, shapes
        self._passes, self._wide = for_machine(passes), wide
        tape = Tape(wide=wide)
        self._given = Given(graph.types, shapes, tape)
        plan, kernels, _ = _planned(graph.at(self._given.shapes), self._passes)
        self._addresses = hold_kernels(kernels)
        self._outputs = _Outputs(plan)
        self._sizes: Sizes = tape.sizes(self._outputs.terms)
        self._made = _Resized(
            graph.name, _plain(plan, 0), variables, self._addresses, self._details, threads
        )
        self._idle: list[_Activation] = []

    def numbers(self, shapes: Shapes) -> Numbers | None:
        """What the plan has to know of inputs of these shapes; None: it is not right for them."""
        given = self._given.read(shapes)
        return None if given is None else self._sizes.evaluate(given)

    @property
    def conditions(self) -> int:
        """As `Sizes.conditions`."""
        return self._sizes.conditions

    def summary(self) -> StepSummary:
        """Its kernels; its memory is that of the sizes that come."""
        return StepSummary(self._made.summary().kernels)

    def run(self, numbers: Numbers, arrays: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As `Step.run`, for the sizes of these numbers."""
        if context is not PLAIN and not context.is_plain:
            activation = self._new_activation(arrays)
            if context.keep is not None:
                context.keep(activation)
            if context.recorder is not None:
                raise InternalError("a plan for many sizes cannot be traced")
            with watched(activation.status, context):
                return self._run_on(activation, numbers, arrays)
        try:
            activation = self._idle.pop()
        except IndexError:
            activation = self._new_activation(arrays)
        results = self._run_on(activation, numbers, arrays)
        if len(self._idle) < (1 if activation.room >= LARGE_ARENA else MOST_IDLE):
            self._idle.append(activation)
        return results

    def _new_activation(self, arrays: Sequence[Array]) -> _Activation:
        made = self._made
        try:
            return _Activation(LinkedPlan(made.plan, self._addresses), *made.pool_and_threads())
        except MemoryError:
            self._exact(arrays).raise_no_memory()

    def _run_on(self, activation: _Activation, numbers: Numbers, arrays: list[Array]) -> list[Any]:
        try:
            if activation.numbers is not numbers:
                self._outputs.resize(activation, numbers)
            results = self._outputs.results(numbers)
        except MemoryError:
            self._exact(arrays).raise_no_memory()
        try:
            return self._made.run_with(activation, arrays, results)
        except _Failed as failed:
            row, status, index = failed.where
            if status == STOPPED:
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
        given = Given(self.graph.types, shapes, Tape(wide=self._wide))
        plan, _, details = _planned(self.graph.at(given.shapes), self._passes)
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


class Given:
    """Where the sizes of a tape come from: of all inputs the shapes, with traced sizes in them."""

    def __init__(self, types: Sequence[Type], shapes: Shapes, tape: Tape) -> None:
        self.fixed: list[tuple[int, int, int]] = []  # input, axis, the size
        self.leaves: list[tuple[int, int]] = []
        self.same: list[tuple[int, int, int]] = []  # and the number of the leaf
        self.shapes: list[tuple[int, ...]] = []
        number: dict[SymbolicDim, int] = {}
        made: list[int] = []
        for i, (kind, shape) in enumerate(zip(types, shapes, strict=True)):
            row = list(shape)
            dims = kind.shape if isinstance(kind, TensorType) else ()
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                if isinstance(dim, int):
                    continue
                if size < LEAST:
                    self.fixed.append((i, axis, size))
                elif dim is not None and dim in number and hint(made[number[dim]]) == size:
                    row[axis] = made[number[dim]]
                    self.same.append((i, axis, number[dim]))
                else:
                    if dim is not None:
                        number.setdefault(dim, len(made))
                    row[axis] = new_size(tape, size)
                    made.append(row[axis])
                    self.leaves.append((i, axis))
            self.shapes.append(tuple(row))

    def read(self, shapes: Shapes) -> list[int] | None:
        """The sizes of the tape in these shapes; None if they do not fit."""
        for i, axis, size in self.fixed:
            if shapes[i][axis] != size:
                return None
        found = [shapes[i][axis] for i, axis in self.leaves]
        for i, axis, number in self.same:
            if shapes[i][axis] != found[number]:
                return None
        return found


def _planned(graph: Graph, passes: Sequence[Pass]) -> tuple[StepPlan, Any, Details]:
    """The plan, whose numbers may be traced, its kernels, and what errors need to know."""
    with collector_paused():
        fused, reports, memory, program = planned(graph, passes, (), PassOptions())
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
    """The traced numbers of a plan: what they are (`terms`) and where they go."""

    def __init__(self, plan: StepPlan) -> None:
        self.terms: list[Terms] = []
        self._number: dict[frozenset[Any], int] = {}
        table = plan.table
        for _, _, offset in table.constants:
            int(offset)  # a condition, if it is traced: no activation has constants of its own
        self.columns = {name: self._column(getattr(table, name)) for name in _COLUMNS}
        within = [(word, offset) for word, offset in table.arena if hint(offset) >= 0]
        self.arena_words = _indices(word for word, _ in within)
        self.arena_rows = _indices(self._row(offset) for _, offset in within)
        self.scratch_words = _indices(w for w, offset in table.arena if hint(offset) < 0)
        self.worker_words = _indices(table.workers)
        self.totals = [
            self._row(n) for n in (plan.arena_bytes, table.scratch_bytes, table.worker_bytes)
        ]
        self._results: list[tuple[list[int], Any] | None] = [
            None if r is None else ([self._row(n) for n in r[0]], _numpy(r[1]))
            for r in plan.results
        ]

    def _column(self, column: Sequence[int]) -> _Column:
        found = [(k, self._row(n)) for k, n in enumerate(column) if is_traced(n)]
        return _Column(_indices(k for k, _ in found), _indices(row for _, row in found))

    def _row(self, number: int) -> int:
        """The number of the output that is this."""
        terms = terms_of(number)
        key = frozenset(terms.items())
        if key not in self._number:
            self._number[key] = len(self.terms)
            self.terms.append(terms)
        return self._number[key]

    def results(self, numbers: Numbers) -> list[Array | None]:
        """Room for the results."""
        given = numbers.tolist()
        return [None if r is None else np.empty([given[k] for k in r[0]], r[1])
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


F = TypeVar("F", covariant=True)
_log = logging.getLogger("weft.compile")
#: So many plans for many sizes a graph has; those used last stay.
MOST_PLANS = 16
#: So many are made for sizes much like those that came; then one for as many as there may be.
MOST_NARROW = 3
#: After so many that no other sizes could use, each set of sizes has a plan of its own.
MOST_IN_VAIN = 4


class Filled(Step):
    """A set of sizes, and a plan for many that has numbers for it."""

    kind: Literal["native"] = "native"
    __slots__ = ("name", "numbers", "plan")

    def __init__(self, plan: SizePlan, numbers: Numbers) -> None:
        self.name, self.plan, self.numbers = plan.graph.name, plan, numbers

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`."""
        return self.plan.run(self.numbers, inputs, context)

    def summary(self) -> StepSummary:
        return self.plan.summary()

    def explain(self) -> Iterator[str]:
        yield f"a plan for many sizes, with {self.plan.conditions} conditions on them"

    @property
    def is_filled(self) -> bool:
        return True


class Plan(Protocol[F]):
    """A plan for many sizes."""

    @property
    def conditions(self) -> int: ...
    def numbers(self, shapes: Shapes) -> Numbers | None: ...
    def filled(self, numbers: Numbers, shapes: Shapes) -> F: ...


class PlansBySize(Generic[F]):
    """The plans that a graph has for many sizes. make: one for some sizes, by keyword wide."""

    def __init__(self, graph: SizedGraph, make: Callable[..., Plan[F]]) -> None:
        self._make = make
        self._name, self._has_open = graph.name, graph.has_open
        self._plans: list[Plan[F]] = []  # that used last first
        self._in_vain = 0  # that were made since one of them served other sizes
        self._lock = ForkLock()
        self.made = 0  # how many

    def find(self, shapes: Shapes) -> F | None:
        """What a plan that is there makes of inputs of these shapes."""
        for k, plan in enumerate(self._plans):
            numbers = plan.numbers(shapes)
            if numbers is not None:
                self._in_vain = 0
                if k:
                    with self._lock:
                        self._plans = [plan, *(p for p in self._plans if p is not plan)]
                return plan.filled(numbers, shapes)
        return None

    def make(self, shapes: Shapes) -> F | None:
        """A plan for these shapes with others in mind. None where that is of no use: these shapes
        are to have a plan of their own."""
        if self._in_vain >= MOST_IN_VAIN or not self._has_open(shapes) or _watched():
            return None
        begun = time.perf_counter()
        try:
            plan = self._make(shapes, wide=self.made >= MOST_NARROW)
        except (TypeError, AttributeError, OverflowError) as error:
            # code that takes no number but Python's own, or none so large
            _log.warning("no plan of %s for many sizes: %s", self._name, error)
            self._in_vain = MOST_IN_VAIN
            return None
        self.made += 1  # those that raise for sizes that do not fit are not counted
        _log.info("planned %s for many sizes: %d conditions, %.1f ms", self._name, plan.conditions,
                  (time.perf_counter() - begun) * 1e3)  # fmt: skip
        numbers = plan.numbers(shapes)
        with self._lock:
            self._in_vain += 1
            if numbers is None:  # a size that such plans are not made for
                return None
            self._plans = [plan, *self._plans[: MOST_PLANS - 1]]
        return plan.filled(numbers, shapes)


class SizePlans(PlansBySize[Filled]):
    """Native plans for many sizes."""

    def __init__(
        self,
        graph: SizedGraph,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
        passes: Sequence[Pass] = STANDARD,
    ) -> None:
        def make(shapes: Shapes, *, wide: bool) -> Plan[Filled]:
            return _Native(graph, shapes, variables, threads, passes, wide=wide)

        super().__init__(graph, make)


class _Native(SizePlan):
    def filled(self, numbers: Numbers, shapes: Shapes) -> Filled:
        """As of `Plan`."""
        return Filled(self, numbers)


def _watched() -> bool:
    """Whether someone wants to see the passes at work, on sizes as they are."""
    options = PassOptions.from_environment()
    return bool(options.verify) or options.dump is not None or "passes" in options.log


#: For so many sets of sizes a step keeps what it found out; those used last stay.
MOST_SIZES = 64


class _Entry:
    __slots__ = ("made", "used")

    def __init__(self, made: Executable | Filled) -> None:
        self.made = made
        self.used = True


class SizedStep(Step):
    """A graph for any sizes of its inputs, from which those of the results follow: planned for the
    first set of them alone, then for many. Other sizes compile no kernel that is not there.
    """

    kind: Literal["sized"] = "sized"

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
        passes: Sequence[Pass] = STANDARD,
    ) -> None:
        self.name, self.graph = graph.name, graph
        self._variables, self._threads, self._passes = variables, threads, passes
        types = tuple([a.type for a in graph.args])
        self._open = [
            i for i, t in enumerate(types) if isinstance(t, TensorType) and not t.is_static
        ]
        sized = SizedGraph(graph.name, types, partial(specialize_inputs, graph))
        self._plans = SizePlans(sized, variables, threads, passes)
        self._made: dict[Shapes, _Entry] = {}
        self._own = 0  # how many sets of sizes were planned for by themselves
        self._lock = ForkLock()

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`. ShapeError where sizes differ that must be equal."""
        if context.recorder is not None:
            return self.alone([a.shape for a in inputs]).run(inputs, context)
        return self._plan(inputs).run(inputs, context)

    def summary(self) -> StepSummary:
        """Nothing: the sizes that come decide."""
        return StepSummary()

    def explain(self) -> Iterator[str]:
        yield "compiled for the sizes that come"

    def __len__(self) -> int:
        """For how many sets of sizes it knows what to do."""
        return len(self._made)

    @property
    def planned(self) -> int:
        """How often passes and planning ran."""
        return self._own + self._plans.made

    def _plan(self, arrays: list[Array]) -> Executable | Filled:
        key = tuple([arrays[i].shape for i in self._open])
        entry = self._made.get(key)
        if entry is None:
            entry = self._keep(key, _Entry(self._new(tuple([a.shape for a in arrays]))))
        entry.used = True
        return entry.made

    def _new(self, shapes: Shapes) -> Executable | Filled:
        if not self._own:
            return self.alone(shapes)
        return self._plans.find(shapes) or self._plans.make(shapes) or self.alone(shapes)

    def alone(self, shapes: Sequence[tuple[int, ...]]) -> Executable:
        """A plan for inputs of these shapes only."""
        graph = specialize_inputs(self.graph, shapes)
        kept = not self._own  # on disk; writing others takes longer than making most of them
        self._own += 1
        return compile_graph(
            graph, self._variables, name=graph.name, passes=self._passes,
            threads=self._threads, kept=kept,
        )  # fmt: skip

    def _keep(self, key: Shapes, entry: _Entry) -> _Entry:
        with self._lock:
            while len(self._made) >= MOST_SIZES:
                oldest = next(iter(self._made))
                held = self._made.pop(oldest)
                if held.used:  # since it was last looked at: it gets another turn
                    held.used = False
                    self._made[oldest] = held
            return self._made.setdefault(key, entry)
