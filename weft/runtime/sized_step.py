"""`SizedStep`: a step for any sizes of its inputs, around steps for some.

A `StepMaker` knows one way to run a graph: on this processor, on a GPU, on the tasks of a cluster.
`SizedStep` asks it for a step for the first sizes alone, then for a `SizePlan`: made while the open
sizes are numbers that remember how they came about (`ir/sizes.py`), right for all sizes for which
its guards hold, and filled in for those in some ten microseconds. Where no plan holds another one
is made. Sessions, compiled functions with an `input_signature`, regions of the dataflow executor
and parts on a cluster run open sizes so, and in no other way."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.graph import Graph
from weft.ir.process import ForkLock
from weft.ir.size_tape import LEAST, Sizes, Tape, Terms
from weft.ir.sizes import hint, new_size, terms_of
from weft.ir.types import TensorType, Type
from weft.passes.manager import PassOptions
from weft.passes.sizes import specialize_inputs
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary

Shapes = tuple[tuple[int, ...], ...]
Numbers = np.ndarray[Any, Any]
_log = logging.getLogger("weft.compile")
#: So many plans for many sizes a graph has; those used last stay.
MOST_PLANS = 16
#: So many are made for sizes much like those that came; then one for as many as there may be.
MOST_NARROW = 3
#: After so many that no other sizes could use, each set of sizes has a plan of its own.
MOST_IN_VAIN = 4
#: For so many sets of sizes a step keeps what it found out; those used last stay.
MOST_SIZES = 64


class Runs(Protocol):
    """What runs a graph for inputs of some sizes: a step, or a plan for many that is filled in."""

    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """As `Step.run`."""
        ...


S = TypeVar("S", bound=Runs)


@dataclass(frozen=True, slots=True)
class SizedGraph:
    """A graph for any sizes. types: of its inputs, open ones among them. at: the graph for inputs
    of some shapes, ShapeError where they do not fit."""

    name: str
    types: tuple[Type, ...]
    at: Callable[[Sequence[tuple[int, ...]]], Graph]

    @classmethod
    def of(cls, graph: Graph, name: str = "") -> SizedGraph:
        """A graph whose sizes follow from those of its inputs."""
        types = tuple([a.type for a in graph.args])
        return cls(name or graph.name, types, partial(specialize_inputs, graph))

    def has_open(self, shapes: Shapes) -> bool:
        """Whether inputs of these shapes have a size that a plan for many leaves open."""
        return any(
            size >= LEAST and not isinstance(dim, int)
            for kind, shape in zip(self.types, shapes, strict=True)
            if isinstance(kind, TensorType)
            for dim, size in zip(kind.shape, shape, strict=True)
        )


class NotTraceableError(Exception):
    """Planning gives a size to code that takes no number but Python's own, or none so large."""


class SizePlan(ABC, Generic[S]):
    """A plan for many sizes, and for which it is right.

    shapes: of all inputs, those that it is made for. wide: as of `Tape`. Errors as planning has;
    NotTraceableError.
    """

    def __init__(self, graph: SizedGraph, shapes: Shapes, *, wide: bool) -> None:
        self.graph, self.wide = graph, wide
        tape = Tape(wide=wide)
        self._given = _Given(graph.types, shapes, tape)
        self._terms: list[Terms] = []
        self._places: dict[frozenset[Any], int] = {}
        try:
            self._plan(graph.at(self._given.shapes))
            self._sizes: Sizes = tape.sizes(self._terms)
        except (TypeError, AttributeError, OverflowError) as error:
            raise NotTraceableError(f"{error}") from error

    @abstractmethod
    def _plan(self, graph: Graph) -> None:
        """Plan a graph whose open sizes are traced; `_place` each number of the plan that is."""

    @abstractmethod
    def fill(self, numbers: Numbers, shapes: Shapes) -> S:
        """The plan for inputs of these shapes, whose numbers these are."""

    def _anew(self, shapes: Shapes) -> Graph:
        """What a plan for these shapes would be made of."""
        return self.graph.at(_Given(self.graph.types, shapes, Tape(wide=self.wide)).shapes)

    def _place(self, number: int) -> int:
        """Where in `numbers` the value of a number, traced or not, will be."""
        terms = terms_of(number)
        key = frozenset(terms.items())
        place = self._places.setdefault(key, len(self._terms))
        if place == len(self._terms):
            self._terms.append(terms)
        return place

    def numbers(self, shapes: Shapes) -> Numbers | None:
        """What the plan has to know of inputs of these shapes; None: it is not right for them."""
        given = self._given.read(shapes)
        return None if given is None else self._sizes.evaluate(given)

    @property
    def conditions(self) -> int:
        """As `Sizes.conditions`."""
        return self._sizes.conditions


class _Given:
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


class StepMaker(Protocol[S]):
    """One way to run a graph, for the sizes that come. Errors of both as those of the way."""

    @property
    def graph(self) -> SizedGraph: ...

    def alone(self, shapes: Shapes, *, kept: bool) -> S:
        """What runs inputs of these shapes only. kept: its plan is worth a place on the disk."""
        ...

    def many(self, shapes: Shapes, *, wide: bool) -> SizePlan[S] | None:
        """A plan for these shapes with others in mind; None where that is of no use."""
        ...


def may_share(graph: SizedGraph, shapes: Shapes) -> bool:
    """Whether to plan for more sizes than these: some are open, and nobody wants to see the passes
    at work, on sizes as they are."""
    options = PassOptions.from_environment()
    watched = bool(options.verify) or options.dump is not None or "passes" in options.log
    return not watched and graph.has_open(shapes)


class FilledStep(Step):
    """A graph for inputs of some sizes, which a plan for many has been filled in for: it runs, and
    cannot be looked at. made: what runs it."""

    kind: Literal["sized"] = "sized"

    def __init__(self, name: str, made: Runs) -> None:
        self.name, self._made = name, made

    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`."""
        return self._made.run(inputs, context)

    def summary(self) -> StepSummary:
        """Nothing: a plan of its own says it."""
        return StepSummary()

    def explain(self) -> Iterator[str]:
        yield "filled in by a plan for many sizes"

    def feeds_on_gpus(self, count: int) -> list[list[str]]:
        made = self._made
        return made.feeds_on_gpus(count) if isinstance(made, Step) else super().feeds_on_gpus(count)

    def results_on_gpus(self) -> Sequence[tuple[int, str]]:
        return self._made.results_on_gpus() if isinstance(self._made, Step) else ()


class _Entry(Generic[S]):
    __slots__ = ("made", "used")

    def __init__(self, made: S) -> None:
        self.made = made
        self.used = True


class SizedStep(Step, Generic[S]):
    """A graph for any sizes of its inputs, from which those of the results follow. own: so many
    sets of sizes are planned for by themselves, before a plan for many is made; other sizes then
    compile no kernel that is not there.

    Any number of threads may run it at once; two may make the same plan.
    """

    kind: Literal["sized"] = "sized"

    def __init__(self, maker: StepMaker[S], own: int = 1) -> None:
        self.name, self.maker = maker.graph.name, maker
        self._open = [
            i for i, t in enumerate(maker.graph.types)
            if isinstance(t, TensorType) and not t.is_static
        ]  # fmt: skip
        self._made: dict[Shapes, _Entry[S]] = {}
        self._plans: list[SizePlan[S]] = []  # that used last first
        self._own = own
        self._in_vain = 0  # plans that were made since one of them served other sizes
        self._alone = self._many = 0  # how many were made
        self._recorded: tuple[Shapes, S] | None = None  # the last sizes that a recorder saw
        self._lock = ForkLock()

    # ------------------------------------------------------------------------------------ as a step
    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`. ShapeError where sizes differ that must be equal."""
        if context.recorder is not None:
            return self.for_trace(tuple([a.shape for a in inputs])).run(inputs, context)
        entry = self._made.get(tuple([inputs[i].shape for i in self._open]))
        if entry is None:
            return self.at(tuple([a.shape for a in inputs])).run(inputs, context)
        entry.used = True
        return entry.made.run(inputs, context)

    def summary(self) -> StepSummary:
        """Nothing: the sizes that come decide."""
        return StepSummary()

    def explain(self) -> Iterator[str]:
        yield "compiled for the sizes that come"

    # --------------------------------------------------------------------------------- by the sizes
    def __len__(self) -> int:
        """For how many sets of sizes it knows what to do."""
        return len(self._made)

    @property
    def planned(self) -> int:
        """How often passes and planning ran."""
        return self._alone + self._many

    def at(self, shapes: Shapes) -> S:
        """What runs inputs of these shapes."""
        entry = self._made.get(self._key(shapes))
        if entry is not None:
            entry.used = True
            return entry.made
        made = self.shared(shapes)
        return self._keep(shapes, self.alone(shapes) if made is None else made)

    def shared(self, shapes: Shapes) -> S | None:
        """What a plan for many sizes makes of these; None where they are to have one of their
        own: at first, and where plans for many are of no use. It is not kept."""
        if self._own > 0:
            return None
        made = self._found(shapes)
        return self._new(shapes) if made is None else made

    def count_own(self) -> None:
        """Sizes have got a plan of their own, here or elsewhere."""
        self._own = max(self._own - 1, 0)

    def alone(self, shapes: Sequence[tuple[int, ...]]) -> S:
        """What runs inputs of these shapes only."""
        # of plans, the first is kept on disk; writing others takes longer than making most of them
        made = self.maker.alone(tuple(shapes), kept=not self._alone)
        self._alone += 1
        self.count_own()
        return made

    def for_trace(self, shapes: Shapes) -> S:
        """What runs inputs of these shapes where it is recorded: a plan of their own, which can be
        looked at, as `traced`."""
        known = self._recorded
        if known is None or known[0] != shapes:
            known = self._recorded = shapes, self.alone(shapes)
        return known[1]

    @property
    def traced(self) -> S | None:
        """What `for_trace` gave last."""
        return None if self._recorded is None else self._recorded[1]

    def _found(self, shapes: Shapes) -> S | None:
        """What a plan that is there makes of inputs of these shapes."""
        for k, plan in enumerate(self._plans):
            numbers = plan.numbers(shapes)
            if numbers is not None:
                self._in_vain = 0
                if k:
                    with self._lock:
                        self._plans = [plan, *(p for p in self._plans if p is not plan)]
                return plan.fill(numbers, shapes)
        return None

    def _new(self, shapes: Shapes) -> S | None:
        """The same of one that is made for them; None where that is of no use."""
        if self._in_vain >= MOST_IN_VAIN:
            return None
        begun = time.perf_counter()
        try:
            plan = self.maker.many(shapes, wide=self._many >= MOST_NARROW)
        except NotTraceableError as error:
            _log.warning("no plan of %s for many sizes: %s", self.name, error)
            self._in_vain = MOST_IN_VAIN
            return None
        if plan is None:
            return None
        self._many += 1  # those that raise for sizes that do not fit are not counted
        _log.info("planned %s for many sizes: %d conditions, %.1f ms", self.name, plan.conditions,
                  (time.perf_counter() - begun) * 1e3)  # fmt: skip
        numbers = plan.numbers(shapes)
        with self._lock:
            self._in_vain += 1
            if numbers is None:  # a size that such plans are not made for
                return None
            self._plans = [plan, *self._plans[: MOST_PLANS - 1]]
        return plan.fill(numbers, shapes)

    def _key(self, shapes: Shapes) -> Shapes:
        return tuple([shapes[i] for i in self._open])

    def _keep(self, shapes: Shapes, made: S) -> S:
        with self._lock:
            while len(self._made) >= MOST_SIZES:
                oldest = next(iter(self._made))
                held = self._made.pop(oldest)
                if held.used:  # since it was last looked at: it gets another turn
                    held.used = False
                    self._made[oldest] = held
            return self._made.setdefault(self._key(shapes), _Entry(made)).made
