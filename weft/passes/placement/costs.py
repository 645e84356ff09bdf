"""Costs of ops for placement, static prices or as a trace of a step measured them, and the bytes of
values. What they add up to is simulated in `timeline.py`.

Ops that fusion will make one loop nest of are priced together: the nest starts once, and only what
goes into it and out of it is read and written. An op of it costs a share of that, in proportion to
what it would cost by itself. Ops that the user puts on different devices are no nest.

A trace names ops by what they are called and by their source lines, several to an event where one
kernel or region carries them out. So what an event took is shared out among the graph's ops that
have one of its names and one of its lines, in proportion to their static prices."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Protocol

from weft.ir.analysis.effects import runs_on_host
from weft.ir.analysis.known_values import trip_count
from weft.ir.cost.rates import (
    ASSUMED_SIZE,
    ASSUMED_STRING_BYTES,
    ASSUMED_TRIPS,
    HOST_NS,
    START_NS,
    streamed,
)
from weft.ir.cost.work import arithmetic_nanoseconds, nanoseconds
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim, substitute_dim
from weft.ir.errors import InvalidArgumentError, NotFoundError, WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import int_attr
from weft.ir.types import RefType, StackType, TensorType, Type
from weft.passes.fusion.fuse import Group, Grouping
from weft.passes.manager import NOT_KERNELS
from weft.passes.placement.devices import Links, Rates, links_from
from weft.passes.placement.unstored import Rules
from weft.passes.rewriting.rewrite import is_view
from weft.passes.sizes import is_symbolic, specialize


class Event(Protocol):
    """The fields of `runtime.recorder.TraceEvent` that a cost model reads."""

    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def locations(self) -> Locations: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def thread(self) -> int: ...
    @property
    def dead(self) -> bool: ...
    @property
    def waits(self) -> bool: ...
    @property
    def step(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured time of the ops of these names and source lines in one step together:
    nanoseconds, the median of the steps."""

    ops: tuple[str, ...]
    places: tuple[str, ...]
    ns: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """A cost model. links: of the messages. measured: of ops; all others have static prices. sizes:
    of symbolic dimensions; what is in none is taken to be 32 (and a loop of unknown length to run
    10 times).
    """

    links: Links = field(default_factory=Links)
    measured: tuple[Measured, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def from_events(events: Iterable[Event], links: Links | None = None) -> CostModel:
        """The costs that the events of a trace show, as `RunMetadata.events` of one traced step.
        Times are those of the device that ran them: its `Device.scale` is 1."""
        return CostModel.from_steps([events], links)

    @staticmethod
    def from_steps(steps: Iterable[Iterable[Event]], links: Links | None = None) -> CostModel:
        """As `from_events`, of the events of several steps: the median of what they took."""
        totals: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[tuple[int, int], float]] = {}
        for number, events in enumerate(steps):
            for e in _innermost([e for e in events if e.ops and not (e.dead or e.waits)]):
                key = tuple(dict.fromkeys(e.ops)), tuple(map(str, e.locations))
                took = totals.setdefault(key, {})
                step = number, e.step
                took[step] = took.get(step, 0.0) + (e.end_ns - e.begin_ns)
        measured = [Measured(*k, statistics.median(v.values())) for k, v in totals.items()]
        return CostModel(links or Links(), tuple(measured))

    def save(self, path: str) -> None:
        """Write the model to a JSON file, which `load` reads."""
        data = {
            "version": 1,
            "links": asdict(self.links),
            "sizes": dict(self.sizes),
            "measured": [asdict(m) for m in self.measured],
        }
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str) -> CostModel:
        """The model in a file that `save` wrote. NotFoundError, InvalidArgumentError."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["version"] != 1:
                raise InvalidArgumentError(f"{path} has version {data['version']}, not 1")
            rows = [_read_measured(m) for m in data["measured"]]
            sizes = {str(k): int(v) for k, v in data["sizes"].items()}
            return CostModel(links_from(data["links"]), tuple(rows), sizes)
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {path}") from None
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error.what}", hint=error.hint) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(
                f"{path} is no cost model: {type(error).__name__}: {error}",
                hint="CostModel.save writes them",
            ) from None

    def costs_of(self, graph: Graph) -> Costs:
        """What each op of `graph` takes."""
        return Costs(self, graph)


def _read_measured(row: Mapping[str, Any]) -> Measured:
    ns = float(row["ns"])
    if not ns >= 0:
        raise InvalidArgumentError(f"an op took {ns} ns")
    return Measured(tuple(map(str, row["ops"])), tuple(map(str, row["places"])), ns)


def _innermost(events: Sequence[Event]) -> list[Event]:
    """Those events that hold no other of the same thread."""
    threads: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda e: (e.begin_ns, -e.end_ns)):
        threads.setdefault(event.thread, []).append(event)
    kept: list[Event] = []
    for row in threads.values():
        for event, after in zip(row, [*row[1:], None], strict=True):
            if after is None or after.begin_ns >= event.end_ns or after.end_ns > event.end_ns:
                kept.append(event)
    return kept


class Costs:
    """Nanoseconds of the ops of one graph, and bytes of its values.

    measured: of how many ops with a price a trace has told it. unstored: values that take no memory
    where they are made, and whose they share (None: nobody's, as inside a nest).
    """

    def __init__(self, model: CostModel, graph: Graph) -> None:
        self.links = model.links
        self._sizes = model.sizes
        copies = _sized(graph, model.sizes)
        self._copy = dict(zip(graph.walk(), copies.walk(), strict=True))
        self._around: dict[Operation, int] = {}  # of ops in loops: how often they run in a step
        self._ns: dict[Operation, float] = {}
        self._nest: dict[Operation, tuple[Nest, float]] = {}  # of an op: its nest, and its share
        self._on_rates: dict[tuple[Nest, Rates], float] = {}  # of whole nests
        self.unstored: dict[Value, Value | None] = {}
        self._price(graph.block, copies.block, 1)
        self.measured = self._measure(model.measured)

    def _price(self, block: Block, copy: Block, times: int) -> None:
        """The static prices of the ops that run by themselves: those in `fused` do not."""
        for op, sized in zip(block.ops, copy.ops, strict=True):
            if op.name in CONTROL:
                for region, other in zip(op.regions, sized.regions, strict=True):
                    self._price(region, other, times * self.trips(op))
            else:
                self._ns[op] = self._static(op)
                if times != 1:
                    self._around[op] = times
        for op in block.ops:
            self._find_views(op)
        self._price_nests(dict(zip(copy.ops, block.ops, strict=True)), block, copy)

    def _find_views(self, op: Operation) -> None:
        """Results that have no memory of their own: views, stacks after a push, variables that are
        read or updated."""
        for result in op.results:
            if _uses_variable(op):
                self.unstored[result] = None
            elif isinstance(result.type, StackType):
                stack = next((v for v in op.operands if isinstance(v.type, StackType)), None)
                if stack is not None and op.name not in CONTROL:
                    self.unstored[result] = stack
            elif op.operands and (is_view(op) or op.name in NOT_KERNELS):
                self.unstored[result] = op.operands[0]

    def _price_nests(self, own: Mapping[Operation, Operation], block: Block, copy: Block) -> None:
        """What fusion will make one kernel of. own: the ops of the graph, by those of `copy`, which
        have sizes."""
        found = Nests(copy, self.nbytes)
        for free in found.free:
            self._ns[own[free]] = 0.0
            if free.operands:
                self.unstored.update(dict.fromkeys(own[free].results, own[free].operands[0]))
        for value in found.inside:
            assert value.op is not None
            self.unstored[own[value.op].results[value.index]] = None
        self._find_unstored(dict(zip(copy.args, block.args, strict=True)), own, copy, found)
        for nest in found.nests:
            ops = [own[sized] for sized in nest.ops]
            alone = [max(self._ns[op], 1.0) for op in ops]
            ns = nest.nanoseconds() + START_NS
            for op, weight in zip(ops, alone, strict=True):
                share = weight / sum(alone)
                self._nest[op], self._ns[op] = (nest, share), ns * share

    def _find_unstored(
        self, args: Mapping[Value, Value], own: Mapping[Operation, Operation], copy: Block,
        found: Nests,
    ) -> None:  # fmt: skip
        """What passes after `fuse` do not store."""

        def of_graph(value: Value) -> Value:
            maker = value.op
            return args[value] if maker is None else own[maker].results[value.index]

        rules = Rules(copy, found.nest, found.source)
        for value in rules.updates():
            self.unstored[of_graph(value)] = None
        for value, source in rules.again(frozenset(found.inside)).items():
            self.unstored[of_graph(value)] = of_graph(source)

    def _static(self, op: Operation) -> float:
        if runs_on_host(op):
            return HOST_NS
        if op.name in NOT_KERNELS and op.name != "read":
            return 0.0
        found = nanoseconds([self._copy[op]])
        if found == 0.0:  # also what it says where sizes are not known
            found = streamed(sum(map(self.nbytes, (*op.operands, *op.results))))
        return found + START_NS

    def _measure(self, measured: Sequence[Measured]) -> int:
        """Put what was measured in place of static prices; of how many ops."""
        by_place: dict[tuple[str, str], list[Operation]] = {}
        for op in self._ns:
            for at in op.locations:
                by_place.setdefault((op.name, str(at)), []).append(op)
        found: dict[Operation, float] = {}
        for m in measured:
            pairs = (by_place.get((name, at), ()) for name in m.ops for at in m.places)
            ops = list(dict.fromkeys(op for row in pairs for op in row))
            times = [self._around.get(op, 1) for op in ops]
            weights = [max(self._ns[op], 1.0) * n for op, n in zip(ops, times, strict=True)]
            for op, weight, n in zip(ops, weights, times, strict=True):
                found[op] = found.get(op, 0.0) + m.ns * weight / sum(weights) / max(n, 1)
        self._ns.update(found)
        return len(found)

    def nanoseconds(self, op: Operation, rates: Rates | None = None) -> float:
        """One run of the op on a device of scale 1, or on one of these rates; of a structured op,
        all of it on one device."""
        known = self._ns.get(op)
        if known is not None:
            if rates is None:
                return known
            if known == 0.0 or op.name in NOT_KERNELS:
                return 0.0
            if op in self._nest:
                nest, share = self._nest[op]
                if (nest, rates) not in self._on_rates:
                    self._on_rates[nest, rates] = rates.of_nest(nest.ops, nest.nbytes)
                return self._on_rates[nest, rates] * share
            nbytes = sum(map(self.nbytes, (*op.operands, *op.results)))
            return rates.nanoseconds(self._copy[op], nbytes)
        parts = [sum(self.nanoseconds(o, rates) for o in region.ops) for region in op.regions]
        decides = rates.read_s * 1e9 if rates is not None and op.name != "scan" else 0.0
        if op.name == "cond":
            return max(parts) + decides
        return (sum(parts) + decides) * self.trips(op)

    def is_inside(self, value: Value) -> bool:
        """Whether a value is inside a nest: in memory only where it is sent from."""
        inside = value in self.unstored and self.unstored[value] is None
        return inside and value.op is not None and not _uses_variable(value.op)

    def nest_of(self, op: Operation) -> Nest | None:
        """The nest that the op will be a part of, if it will be."""
        return self._nest[op][0] if op in self._nest else None

    def trips(self, op: Operation) -> int:
        """How often the body of a `while` or `scan` runs, as far as anybody knows."""
        if op.name == "scan":
            length = self._copy[op].attrs["length"]
            return length if isinstance(length, int) else ASSUMED_TRIPS
        if op.name != "while":
            return 1
        known = trip_count(self._copy[op])
        limit = int_attr(op.attrs, "limit")
        return known if known is not None else min(ASSUMED_TRIPS, limit if limit >= 0 else 10**9)

    def nbytes(self, value: Value) -> float:
        """Bytes of a value in a message; 0 of what is no data."""
        return bytes_of(value.type, self._sizes)

    def nbytes_held(self, value: Value) -> float:
        """Bytes of the variable that a value refers to; 0 of what refers to none."""
        return bytes_of(value.type.tensor, self._sizes) if isinstance(value.type, RefType) else 0.0


def _uses_variable(op: Operation) -> bool:
    return any(isinstance(v.type, RefType) for v in op.operands)


def bytes_of(t: Type, sizes: Mapping[str, int]) -> float:
    """Bytes of a value of this type; 0 of what is no data. sizes: as of `CostModel`."""
    if isinstance(t, StackType):
        return bytes_of(t.tensor, sizes) * ASSUMED_TRIPS
    if not isinstance(t, TensorType):
        return 0.0
    total = float(t.dtype.itemsize if t.dtype.kind != "string" else ASSUMED_STRING_BYTES)
    for dim in t.shape:
        size = substitute_dim(dim, sizes) if isinstance(dim, SymbolicDim) else dim
        if isinstance(size, SymbolicDim):
            size = substitute_dim(size, dict.fromkeys(size.symbols, ASSUMED_SIZE))
        total *= max(size, 0) if isinstance(size, int) else ASSUMED_SIZE
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """Ops that fusion will make one kernel of. nbytes: of what they read that they do not make, and
    of what others read of theirs."""

    ops: tuple[Operation, ...]
    nbytes: float

    def nanoseconds(self) -> float:
        """One run on a CPU, but for the start of the kernel."""
        return arithmetic_nanoseconds(self.ops) + streamed(self.nbytes)


class Nests:
    """What `fuse` will make of the ops of a block. nests: those that are more than one op, or read
    through others. inside: the values that only the nest which makes them reads. free: the ops that
    nests read through, which do not run. nest: of each op of a nest, however small, which. source:
    what a value is, read through these."""

    def __init__(self, block: Block, nbytes: Callable[[Value], float]) -> None:
        names = tuple(f"a{k}" for k in range(len(block.args)))
        self._grouping = grouping = Grouping(Graph("nests", block, names))
        self.source = grouping.source
        self._nbytes = nbytes
        self._readers: dict[Value, set[object]] = {v: {None} for v in block.results}
        members: dict[tuple[Group, str], list[Operation]] = {}
        self.free: list[Operation] = []
        self.nest: dict[Operation, tuple[Group, str]] = {}
        for op in block.ops:
            group = grouping.group.get(op)
            if group is None and op.name not in NOT_KERNELS:
                self.free.append(op)
            nest = None if group is None or group.space is None else (group, op.device)
            if nest is not None:
                members.setdefault(nest, []).append(op)
                self.nest[op] = nest
            if group is not None:
                for value in (*op.operands, *op.control):
                    self._readers.setdefault(grouping.source(value), set()).add(nest)
        self.nests = [
            Nest(tuple(ops), self._moved(nest, ops))
            for nest, ops in members.items()
            if len(ops) > 1 or any(grouping.source(v) is not v for v in ops[0].operands)
        ]
        self.inside = [
            v for nest, ops in members.items() for op in ops for v in op.results
            if not self._readers.get(v, set()) - {nest}
        ]  # fmt: skip

    def _moved(self, nest: tuple[Group, str], ops: Sequence[Operation]) -> float:
        """Bytes that a nest reads and writes. Of what it reads through index maps it reads as many
        elements as it has of them, at most all."""
        own = {r for op in ops for r in op.results}
        source_of = self._grouping.source
        read: dict[Value, float] = {}
        for value in dict.fromkeys(v for op in ops for v in op.operands):
            source = source_of(value)
            if source not in own:
                read[source] = read.get(source, 0.0) + self._nbytes(value)
        given = sum(min(self._nbytes(source), n) for source, n in read.items())
        return given + sum(self._nbytes(v) for v in own if self._readers.get(v, set()) - {nest})


def _sized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """`graph`, op by op, with all symbols given sizes; itself where they do not fit together."""
    if not is_symbolic(graph.block):
        return graph
    symbols: set[str] = set()
    for op in graph.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, TensorType):
                symbols |= {
                    s for d in value.type.shape if isinstance(d, SymbolicDim) for s in d.symbols
                }
    known = {s: sizes.get(s, ASSUMED_SIZE) for s in symbols}
    try:
        return specialize(graph, known)
    except WeftError:  # only prices are wanted: the unknown sizes are assumed one by one
        return graph
