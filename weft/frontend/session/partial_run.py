"""Steps carried out in parts (`Session.partial_run`): each part runs what its fetches need and
earlier parts have not run, and what later parts will read is kept.

An op that has run is not run again: its results are given to the later parts, or, where only the
order matters, count as done. Handles and constants are made anew in each part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.frontend.core.tensor import Array
from weft.frontend.core.trace import Trace
from weft.ir.analysis.deadness import Deadness
from weft.ir.analysis.frames import find_frames
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops import lookup
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.process import ForkLock
from weft.ir.types import TensorType, TokenType
from weft.passes.sizes import needed_ops

_ONCE = frozenset({"reads_state", "writes_state", "host", "no_dce"})
_MOST_DEFINITIONS, _MOST_PARTS = 64, 256
Fetches = tuple[Value | None, ...]
#: Runs a part: what to compute, what is given, what is done; gives a value for each of the first.
Run = Callable[[Fetches, Mapping[Value, Array], frozenset[Value]], list[Array | None]]


@dataclass(frozen=True, slots=True)
class Part:
    """One call of a partial run. given: values that the part takes. kept: results that later parts
    read. done: what needs not run any more after it. held: values known now that later parts read.
    """

    given: tuple[Value, ...]
    kept: tuple[Value, ...]
    done: frozenset[Value]
    held: frozenset[Value]


@dataclass(slots=True)
class Definition:
    """The definition of a partial run, and the parts that its calls have needed, by what came
    before."""

    trace: Trace
    fetches: tuple[Value, ...]
    feeds: tuple[Value, ...]
    parts: dict[tuple[object, ...], Part] = field(default_factory=dict)

    def part(self, run: PartialRun, wanted: Fetches, fed: tuple[Value, ...]) -> Part:
        """The part that a call is. InvalidArgumentError if feeds are missing for it."""
        key = (*run.history, (wanted, fed))
        found = self.parts.get(key)
        if found is None:
            if len(self.parts) >= _MOST_PARTS:
                self.parts.clear()
            found = self.parts[key] = _Planner(self.trace, run, wanted, fed).part()
        return found


class PartialRun:
    """One step under way: what is known, what is done, what is still to be fetched and fed."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.lock = ForkLock()
        self.known: dict[Value, Array] = {}
        self.done: frozenset[Value] = frozenset()
        self.unfetched = dict.fromkeys(definition.fetches)
        self.unfed = dict.fromkeys(definition.feeds)
        self.history: tuple[object, ...] = ()
        self.failed: WeftError | None = None

    def __call__(
        self, wanted: Fetches, feeds: Mapping[Value, Array], run: Run
    ) -> list[Array | None]:
        """Feed `feeds`, then compute `wanted`. InvalidArgumentError for what was not set up, is
        used twice, or lacks feeds: then nothing has changed. After an error of a part the step is
        over."""
        if self.definition.trace.running.step and self.lock.owner is not None:
            raise FailedPreconditionError(  # to wait would be for ever
                "partial_run: a function of the host goes on with a step of which a part is "
                "running, perhaps the one that calls the function",
                hint="end the part first; another step has a handle of its own",
                location=caller_location(),
            )
        with self.lock:
            self._check(wanted, feeds)
            part = self.definition.part(self, wanted, tuple(feeds))
            # the user may go on to write to the arrays that were fed, and to those given here
            known = {**self.known, **{v: np.array(a) for v, a in feeds.items()}}
            try:
                values = (*wanted, *part.kept)
                made = run(values, {v: known[v] for v in part.given}, self.done)
            except BaseException as error:
                self.failed = error if isinstance(error, WeftError) else None
                self.unfetched.clear()
                self.unfed.clear()
                raise
            given = [a for a in made[: len(wanted)] if a is not None]
            for value, array in zip(part.kept, made[len(wanted) :], strict=True):
                if array is not None:
                    shared = any(np.may_share_memory(array, a) for a in given)
                    known[value] = array.copy() if shared else array
            self.known = {v: a for v, a in known.items() if v in part.held}
            self.done = part.done
            self.history = (*self.history, (wanted, tuple(feeds)))
            for value in feeds:
                del self.unfed[value]
            for fetched in wanted:
                if fetched in self.unfetched:  # one call may fetch it twice
                    del self.unfetched[fetched]
            return made[: len(wanted)]

    @property
    def over(self) -> bool:
        """Whether everything was fetched and fed, or a part failed."""
        return not self.unfetched and not self.unfed

    def _check(self, wanted: Fetches, feeds: Iterable[Value]) -> None:
        if self.failed is not None:
            raise InvalidArgumentError(
                f"this partial run has failed: {self.failed.what}",
                hint="begin a new one with partial_run_setup",
                location=caller_location(),
            )
        described = self.definition.trace.tensor
        for value in feeds:
            if value not in self.unfed:
                known = value in self.definition.feeds
                raise InvalidArgumentError(
                    f"partial_run: {described(value).describe()} "
                    + ("was fed already" if known else "is not among the feeds set up"),
                    hint="each feed is fed once" if known else "name it in partial_run_setup",
                    location=caller_location(),
                )
        for fetch in wanted:
            if fetch is not None and fetch not in self.unfetched:
                known = fetch in self.definition.fetches
                what = described(fetch).describe() if _is_tensor(fetch) else "an effect"
                raise InvalidArgumentError(
                    f"partial_run: {what} "
                    + ("was fetched already" if known else "is not among the fetches set up"),
                    hint="each fetch is fetched once" if known else "name it in partial_run_setup",
                    location=caller_location(),
                )


class Handle(str):
    """Names a partial run, which is forgotten with it."""

    __slots__ = ("__weakref__",)


class PartialRuns:
    """The partial runs of a session by their handles."""

    def __init__(self) -> None:
        self._runs: dict[str, PartialRun] = {}
        self._definitions: dict[tuple[object, ...], Definition] = {}
        self._count = 0
        self._lock = ForkLock()

    def begin(self, trace: Trace, fetches: Fetches, feeds: tuple[Value, ...]) -> str:
        """The handle of a new run. InvalidArgumentError if there is nothing to fetch."""
        values = tuple(dict.fromkeys(v for v in fetches if v is not None))
        if not values:
            raise InvalidArgumentError(
                "partial_run_setup: there is nothing to fetch",
                hint="name all fetches and feeds of the calls to come",
                location=caller_location(),
            )
        with self._lock:
            key = (values, feeds)
            definition = self._definitions.get(key)
            if definition is None:
                if len(self._definitions) >= _MOST_DEFINITIONS:
                    del self._definitions[next(iter(self._definitions))]
                definition = self._definitions[key] = Definition(trace, values, feeds)
            self._count += 1
            handle = Handle(f"partial_run_{self._count}")
            self._runs[str(handle)] = PartialRun(definition)
            weakref.finalize(handle, self._runs.pop, str(handle), None).atexit = False
        return handle

    def get(self, handle: object) -> PartialRun:
        """The run of a handle. InvalidArgumentError if there is none, or it is over."""
        run = self._runs.get(handle) if isinstance(handle, str) else None
        if run is None:
            raise InvalidArgumentError(
                f"partial_run: there is no partial run {handle!r:.60} in this session",
                hint="partial_run_setup gives a handle; the step ends when everything was fed and "
                "fetched, or the handle is gone (keep it, not a copy of its text)",
                location=caller_location(),
            )
        return run

    def forget(self, handle: str) -> None:
        """The run is over."""
        self._runs.pop(handle, None)

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._definitions.clear()


class _Planner:
    """Finds out what a part runs and what has to be kept of it."""

    def __init__(
        self, trace: Trace, run: PartialRun, wanted: Fetches, fed: tuple[Value, ...]
    ) -> None:
        self.trace, self.run, self.fed = trace, run, fed
        self.ops = list(trace.builder.ops)
        self.wanted = [v for v in wanted if v is not None]
        self.rest = [v for v in run.unfetched if v not in self.wanted]
        self.unfed = dict.fromkeys(v for v in run.unfed if v not in fed)
        self.known = dict.fromkeys((*run.known, *fed))

    def part(self) -> Part:
        given = {*self.known, *self.run.done, *self.unfed}
        ops, met = needed_ops(self.ops, self.wanted, given)
        self._check_fed(met)
        kept = self._kept(ops)
        results = {r for op in kept for r in op.results}
        made = [r for op in kept for r in op.results if _is_tensor(r)]
        giving = {r for op in kept if self.rest and _makes_sizes(op) for r in op.results}
        later, later_met = needed_ops(self.ops, self.rest, given | results)
        self._check_once(set(ops) - set(kept), later)
        read = {*self.rest, *(v for op in later for v in op.operands)}
        sizes = {v for v in self.known if _decides_sizes(v)}
        return Part(
            tuple(v for v in self.known if v in met or v in sizes),
            tuple(r for r in made if r in read or (r in giving and _decides_sizes(r))),
            self.run.done | results,
            frozenset(later_met | sizes | read | giving),
        )

    def _check_fed(self, met: set[Value]) -> None:
        missing = [self.trace.tensor(v).describe() for v in self.unfed if v in met]
        if missing:
            raise InvalidArgumentError(
                "partial_run: what is fetched cannot be computed from what was fed so far; it also "
                f"needs {', '.join(missing)}",
                hint="feed it in this call, or fetch this in a later one",
                location=caller_location(),
            )

    def _kept(self, ops: Sequence[Operation]) -> list[Operation]:
        """Those whose results can be given to later parts: they have values, and are not dead."""
        kept = [
            op
            for op in ops
            if op.name != "constant"
            and any(isinstance(r.type, (TensorType, TokenType)) for r in op.results)
        ]
        if not any(op.name in DATAFLOW for op in ops):
            return kept
        frames = find_frames(self.trace.graph([]).block)
        if frames.faults:  # compiling the part says what they are
            return []
        deadness, of_value = Deadness(frames), frames.of_value
        return [
            op
            for op in kept
            if all(of_value[r] is frames.root and deadness.always_live(r) for r in op.results)
        ]

    def _check_once(self, again: set[Operation], later: Sequence[Operation]) -> None:
        for op in later:
            if op in again and _acts(op):
                raise UnsupportedError(
                    f"partial_run: op '{op.name}', which has an effect, runs in this part, and may "
                    "be dead; a later part needs it, too",
                    hint="fetch both in one call",
                    location=op.locations,
                )


def _acts(op: Operation) -> bool:
    """Whether it, or an op in its regions, has an effect."""
    inner = (o for region in op.regions for o in region.walk())
    return any(lookup(o.name).traits & _ONCE for o in (op, *inner))


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def _makes_sizes(op: Operation) -> bool:
    """Whether its results have sizes that its operands have not: later parts may need these."""
    return not _symbols(op.results) <= _symbols(op.operands)


def _symbols(values: Sequence[Value]) -> set[str]:
    types = [v.type for v in values]
    dims = [d for t in types if isinstance(t, TensorType) for d in t.shape]
    return {s for d in dims if isinstance(d, SymbolicDim) for s in d.symbols}


def _decides_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.is_static
