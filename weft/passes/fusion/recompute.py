"""Recomputation: what a later nest can cheaply compute from another result is not stored for it;
and rematerialization: a tensor that is alive at the peak of memory is computed again after it.

`recompute`. Before::

    %1, %2, %3 = fused(%x) { multiply; tanh; add } : f32[512,512], f32[512,512], f32[512,512]
    %4 = fused(%g, %1, %2, %3) { ... }

After, if the third is 1 + the second: ``%1, %2 = fused(%x) {...}``, and the fourth begins with the
addition. A gradient reads fewer arrays, and they need no memory in between. The rules:

* the result is read by ``fused`` ops only, at their own element, and holds at least REPEATED_BYTES;
* it follows from results that stay, from what its nest reads, of the same shape or broadcast to it,
  or from numbers that a row kernel has for each row (they are stored then), by at most
  MOST_REPEATED ops of REPEATED; for the sake of it no reader reads more bytes than it has, but for
  such numbers;
* or it follows by any elementwise ops from what its readers read anyway, and they take no longer
  than writing and reading it would (`weft.ir.cost`). What is read soon comes from a cache.

`Choice` says which results these are, and why.

`rematerialize`. Before::

    %1 = fused(%x) { a norm of rows } : f32[4096,768]
    ... = matmul(%1, ...)
    ...                              the most memory of the step is in use here
    ... = matmul(%gradient, %1)

After: the second product reads a second ``fused(%x) {...}``, shortly before it, and the memory of
the first is free in between (T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016;
XLA and PyTorch's min-cut partitioner do the same). `recompute` does it inside nests, where it costs
no traffic; this pass stores the tensor twice, so it does so only for large steps. The rules:

* the arena of the step has `REMATERIALIZED_ARENA_BYTES` or more, the tensor `REMATERIALIZED_BYTES`;
* it is a result of a nest without a product that cannot fail, and no op reads it at the peak, but
  some before and some after it;
* what the nest reads is alive then in any case: inputs, but for large ones that a result may be
  written over, constants, and what is read later still. If it reads a variable that the step
  writes, it runs before that is written;
* all that is computed again takes no more than `REMATERIALIZED_TIME` of the step by
  `work.nanoseconds`;
* the arena shrinks by `REMATERIALIZED_SHARE`, and nothing more is copied.

What is computed again is the same nest of the same operands, without its other results: the same
bits where its kernel is written in vectors. Of rows whose sums LLVM puts into vectors the order may
depend on what is stored beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from weft.ir.analysis.index_maps import is_constant, is_gather, is_index_map, row_space_of, shape_of
from weft.ir.cost.rates import CACHED_BYTES, NS_PER_BYTE_CACHED, NS_PER_BYTE_STREAMED, arithmetic
from weft.ir.cost.thresholds import (
    MOST_ARITHMETIC,
    MOST_REPEATED,
    REMATERIALIZED_ARENA_BYTES,
    REMATERIALIZED_BYTES,
    REMATERIALIZED_INPUT_SHARE,
    REMATERIALIZED_SHARE,
    REMATERIALIZED_TIME,
    REPEATED,
    REPEATED_BYTES,
    ROW_SHARE,
)
from weft.ir.cost.work import nanoseconds
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.sizes import hint, now
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import emit_nest, matmul_of, variable_of
from weft.passes.fusion.liveness import makers_of
from weft.passes.in_place import UPDATES, may_fail
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.memory.schedule import can_be_planned, copied_bytes, nbytes_of
from weft.passes.rewriting.rewrite import behind_views, in_regions, is_view
from weft.passes.simplify.cse_dce import dce


class Choice:
    """The results that are not stored. dropped: each with the value inside its nest. added: by nest
    the values inside that are stored in place of others. why: of each that could go, for people.
    """

    def __init__(self, graph: Graph, top: bool) -> None:
        self.graph, self.top = graph, top
        self.dropped: dict[Value, Value] = {}
        self.added: dict[Operation, list[Value]] = {}
        self.why: list[tuple[Value, str]] = []
        self.readers: dict[Value, list[Operation | None]] = {v: [None] for v in graph.results}
        for op in graph.ops:
            for value in op.operands:
                self.readers.setdefault(value, []).append(op)
            for value in op.control:
                self.readers.setdefault(value, []).append(None)
        self.staying: dict[Value, bool] = {}
        self.made: dict[Operation, int] = {}  # the bytes that are made until after each op
        made = 0
        for op in graph.ops:
            made += sum(_bytes(v) for v in op.results if _is_sized(v))
            self.made[op] = made
        for op in graph.ops:
            if op.name == "fused":
                self._choose(op)

    def _choose(self, op: Operation) -> None:
        (region,) = op.regions
        outer = dict(zip(region.results, op.results, strict=True))
        kept: set[Value] = set()
        given = {
            a: v
            for a, v in zip(region.args, op.operands, strict=True)
            if v not in self.dropped and self._stays(v)
        }
        rows = _row_values(region)
        free: list[Value] = []  # those that need not be stored if something else is
        needs: dict[Value, list[Value]] = {}  # by what is kept: the results that follow from it
        for inner in (v for member in region.ops for v in member.results if v in outer):
            result = outer[inner]
            may_go = _may_go(result, self.readers.get(result, []))
            readers = [r for r in self.readers.get(result, []) if r is not None]
            sources = _sources(inner, kept, given.keys(), rows) if may_go else None
            if sources is not None:
                read = [given.get(v, outer.get(v, v)) for v in sources]
                if all(_reads_no_more(r, result, read) for r in readers):
                    self._drop(result, inner, "computed again: it follows from what stays")
                    for source in sources:
                        needs.setdefault(source, []).append(result)
                        if source in rows and source not in kept:
                            self.added.setdefault(op, []).append(source)
                            kept.add(source)
                    continue
            kept.add(inner)
            if may_go:
                free.append(inner)
        self._weigh(op, kept, given, free, needs)

    def _stays(self, value: Value) -> bool:
        if value not in self.staying:
            self.staying[value] = _stays(value, self.top, self.readers[value])
        return self.staying[value]

    def _drop(self, result: Value, inner: Value, why: str) -> None:
        self.dropped[result] = inner
        self.why.append((result, why))

    def _weigh(
        self,
        op: Operation,
        kept: set[Value],
        given: Mapping[Value, Value],
        free: list[Value],
        needs: Mapping[Value, Sequence[Value]],
    ) -> None:
        """Of what is expensive to compute, whether to store it, or what several follow from.
        given: arguments of the region that may be read later, and what they are outside."""
        (region,) = op.regions
        outer = dict(zip(region.results, op.results, strict=True))
        found = _better(region, kept, set(free))
        choices = [found] if found is not None else [(v, [v]) for v in free]
        for value, instead in choices:
            results = [outer[v] for v in instead]
            asked = [r for v in (value, *instead) for r in needs.get(v, ())]
            stored = {v: outer.get(v, v) for v in kept.difference(instead)} | dict(given)
            pays, why = self._pays(op, value, stored, [*results, *asked])
            if pays:
                kept.difference_update(instead)
            elif found is not None:
                assert value.op is not None
                self.added.setdefault(op, []).append(value)
                why = f"computed again: from {value.op.name}, {why}"
            else:
                self.why.append((results[0], why))
                continue
            for inner, result in zip(instead, results, strict=True):
                self._drop(result, inner, why)

    def _pays(
        self,
        op: Operation,
        value: Value,
        stored: Mapping[Value, Value],
        results: Sequence[Value],
    ) -> tuple[bool, str]:
        """Is it worth computing `value` again from what is stored, for the readers of `results`?
        stored: values inside the nest, and what they are outside."""
        steps = _steps(value, stored.keys())
        if steps is None:
            return False, "stored: it does not follow from what stays by elementwise ops"
        sources, chain = steps
        readers = [r for r in dict.fromkeys(x for v in results for x in self.readers[v]) if r]
        if any(stored[v] not in r.operands for r in readers for v in sources if _is_large(v)):
            return False, "stored: who reads it would read other arrays in its place"
        held = value.type
        assert isinstance(held, TensorType)
        between = max(self.made[r] for r in readers) - self.made[op]
        price = NS_PER_BYTE_CACHED if between <= CACHED_BYTES else NS_PER_BYTE_STREAMED
        traffic = price * held.dtype.itemsize * (1 + len(readers))
        again = arithmetic((o.name, _operand_dtype(o)) for o in chain) * len(readers)
        numbers = f"arithmetic {again:.2f} ns an element, traffic {traffic:.2f}"
        if again > MOST_ARITHMETIC * traffic:
            return False, f"stored: {numbers}"
        return True, f"computed again: {numbers}"


def _better(region: Block, kept: set[Value], free: set[Value]) -> tuple[Value, list[Value]] | None:
    """A value of a plain nest from which two or more of those `free` follow, and which: 1 + tanh(x)
    and 1 - tanh(x)^2 both follow from tanh(x)."""
    if len(free) < 2 or row_space_of(region) is not None:
        return None
    for member in region.ops:
        (value,) = member.results
        if is_index_map(member) or is_gather(member) or member.name in REPEATED or value in kept:
            continue
        instead = [v for v in free if _follows(v, (kept - free) | {value})]
        if sum(_bytes(v) for v in instead) > _bytes(value):
            return value, instead
    return None


def _steps(value: Value, stored: Set[Value]) -> tuple[list[Value], list[Operation]] | None:
    """Those of the values stored from which, with constants, the value follows by elementwise ops,
    and these ops; None if there is another kind of op on the way.
    """
    shape, todo, found = shape_of(value), [value], dict[Value, None]()
    chain: dict[Operation, None] = {}
    while todo:
        held = todo.pop()
        op = held.op
        if op in chain or is_constant(held):
            continue
        if op is not None and op.name == "broadcast_to" and op.operands[0] in stored:
            found[op.operands[0]] = None
        elif held in stored and shape_of(held) == shape:
            found[held] = None
        elif op is None or "elementwise" not in lookup(op.name).traits or shape_of(held) != shape:
            return None
        else:
            chain[op] = None
            todo += op.operands
    return list(found), list(chain)


def _operand_dtype(op: Operation) -> str:
    held = op.operands[0].type
    assert isinstance(held, TensorType)
    return held.dtype.short


def _is_sized(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _is_large(value: Value) -> bool:
    return _bytes(value) >= REPEATED_BYTES


def _bytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.nbytes


def _may_go(result: Value, readers: list[Operation | None]) -> bool:
    """Is the result large, and read by nests alone, at their own element?"""
    held = result.type
    if not (isinstance(held, TensorType) and held.is_static and held.nbytes >= REPEATED_BYTES):
        return False
    for op in readers:
        if op is None or op.name != "fused":
            return False
        (region,) = op.regions
        arg = region.args[op.operands.index(result)]
        for member in region.ops:
            if arg in member.operands and "elementwise" not in lookup(member.name).traits:
                return False
    return bool(readers)


def _stays(value: Value, top: bool, readers: list[Operation | None]) -> bool:
    """May a nest read the value later than now? An argument of a loop's body, what is read of a
    variable and what is updated in place may have changed by then.
    """
    if any(r is not None and (r.name in UPDATES or r.name in CONTROL) for r in readers):
        return False
    op = value.op
    if op is None:
        return top
    return op.name not in ("read", "variable") and not is_view(op)


def _reads_no_more(reader: Operation, result: Value, sources: list[Value]) -> bool:
    """Would the reader read no more bytes, but for some numbers for each row, if it computed
    `result` from these?"""
    more = sum(_bytes(v) for v in dict.fromkeys(sources) if v not in reader.operands)
    return more <= _bytes(result) + max(REPEATED_BYTES, _bytes(result) // ROW_SHARE)


def _row_values(region: Block) -> set[Value]:
    """The numbers that a row kernel has for each row, and could store."""
    held = [v for op in region.ops for v in (*op.operands, *op.results)]
    row_space = row_space_of(region) if all(map(_is_sized, held)) else None
    if row_space is None:
        return set()
    values = [v for op in region.ops for v in op.results if not is_index_map(op)]
    return {v for v in values if row_space.is_row_shape(shape_of(v)) and not is_constant(v)}


def _follows(value: Value, kept: set[Value]) -> bool:
    return _sources(value, kept, set(), set()) is not None


def _sources(
    value: Value, stored: set[Value], given: Set[Value], rows: Set[Value]
) -> list[Value] | None:
    """Those of the values that are stored, given or numbers of rows of which (and of constants) the
    value is a cheap function; None if it is not.
    """
    kept = stored | given
    shape, todo, seen, found = shape_of(value), [value], set[Value](), list[Value]()
    while todo:
        held = todo.pop()
        op = held.op
        if held in seen or is_constant(held):
            continue
        if op is not None and op.name == "broadcast_to" and op.operands[0] in kept | rows:
            found.append(op.operands[0])
        elif held in kept and shape_of(held) == shape:
            found.append(held)
        elif op is None or op.name not in REPEATED or shape_of(held) != shape:
            return None
        else:
            seen.add(held)
            todo += op.operands
    return found if len(seen) <= MOST_REPEATED else None


def recompute(graph: Graph) -> Graph:
    """Let nests compute what the module's rules allow instead of reading it, those of loops and
    branches too (each body by itself).
    """
    return _recomputed(graph, True)


def recompute_reasons(graph: Graph) -> list[tuple[Value, str]]:
    """For people: of the large results of nests that other nests alone read, before this pass,
    whether they are stored, or computed again by who reads them.
    """
    return Choice(graph, True).why


def _recomputed(graph: Graph, top: bool) -> Graph:
    graph = in_regions(graph, lambda body: _recomputed(body, False))
    choice = Choice(graph, top)
    dropped, added = choice.dropped, choice.added
    if not dropped:
        return graph
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        if any(v in dropped for v in (*op.operands, *op.results)):
            _Nest(op, dropped, added).emit(builder, mapping)
        else:
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


class _Nest:
    """One nest anew: without what is dropped, and computing what it read of that."""

    def __init__(
        self,
        op: Operation,
        dropped: Mapping[Value, Value],
        added: Mapping[Operation, Sequence[Value]],
    ) -> None:
        self.op, self.dropped, self.added = op, dropped, added
        self.inner = Builder()
        self.given: dict[Value, Value] = {}  # operands and the arguments for them
        self.local: dict[Value, Value] = {}  # values of this region and of others, copied here

    def emit(self, builder: Builder, mapping: dict[Value, Value]) -> None:
        op = self.op
        (region,) = op.regions
        pairs = list(zip(op.operands, region.args, strict=True))
        for value, arg in pairs:
            if value not in self.dropped:
                self.local[arg] = self._argument(value)
        for value, arg in pairs:
            if value in self.dropped:
                self.local[arg] = self._again(self.dropped[value], value.op)
        stay = [k for k, v in enumerate(op.results) if v not in self.dropped]
        outside = [op.results[k] for k in stay]
        wanted = [region.results[k] for k in stay]
        for value in self.added.get(op, ()):  # what readers outside know by the value inside
            outside.append(value)
            wanted.append(value)
        for member in _needed(region, wanted):
            self.local.update(
                zip(member.results, self.inner.clone(member, self.local), strict=True)
            )
        results = builder.emit(
            "fused",
            [mapping[v] for v in self.given],
            dict(op.attrs),
            regions=[self.inner.block([self.local[v] for v in wanted])],
            control=[mapping[v] for v in op.control],
            locations=op.locations,
        )
        mapping.update(zip(outside, results, strict=True))

    def _argument(self, value: Value) -> Value:
        if value not in self.given:
            self.given[value] = self.inner.add_arg(value.type)
        return self.given[value]

    def _again(self, value: Value, maker: Operation | None) -> Value:
        """A value of another nest, from the results of that which stay."""
        assert maker is not None
        (region,) = maker.regions
        if value.op is None:
            return self._argument(maker.operands[region.args.index(value)])
        outer = dict(zip(region.results, maker.results, strict=True)).get(value)
        if value in self.added.get(maker, ()):
            return self._argument(value)
        if outer is not None and outer not in self.dropped:
            return self._argument(outer)
        if value not in self.local:
            op = value.op
            assert op is not None
            for operand in op.operands:
                self.local[operand] = self._again(operand, maker)
            (self.local[value],) = self.inner.clone(op, self.local)
        return self.local[value]


def _needed(region: Block, wanted: list[Value]) -> list[Operation]:
    """The ops that the wanted results follow from, in order."""
    live, out = set(wanted), list[Operation]()
    for op in reversed(region.ops):
        if live.intersection(op.results):
            out.append(op)
            live.update(op.operands)
    return out[::-1]


#: The most rounds: each has another peak.
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value, the ops after the peak that read it or a view of it, and before which op it is
    computed again."""

    value: Value
    late: tuple[Operation, ...]
    before: Operation
    ns: float


def rematerialize(graph: Graph) -> Graph:
    """Compute tensors again that the peak of memory need not hold (see the module's text)."""
    return _rematerialized(graph)[0]


def rematerialization_reasons(graph: Graph) -> list[str]:
    """For people: what is computed again, and what that saves, of a graph before this pass."""
    return _rematerialized(graph)[1]


def _rematerialized(graph: Graph) -> tuple[Graph, list[str]]:
    if not can_be_planned(graph):
        return graph, []
    if sum(nbytes_of(v) for op in graph.ops for v in op.results) < REMATERIALIZED_ARENA_BYTES:
        return graph, []
    plan = plan_memory(graph)
    if hint(plan.arena_bytes) < REMATERIALIZED_ARENA_BYTES:
        return graph, []
    left = REMATERIALIZED_TIME * now(nanoseconds(graph.ops))
    why: list[str] = []
    for _ in range(ROUNDS):
        chosen: list[_Candidate] = []
        for candidate in _candidates(graph, plan):
            if candidate.ns <= left:
                chosen.append(candidate)
                left -= candidate.ns
        if not chosen:
            break
        other = _emit(graph, chosen)
        after = plan_memory(other)
        before, arena = hint(plan.arena_bytes), hint(after.arena_bytes)
        if arena > before * (1 - REMATERIALIZED_SHARE) or copied_bytes(after) > copied_bytes(plan):
            break
        saved = f"the arena takes {arena} bytes in place of {before}"
        why += [f"{c.value.type} is computed again after the peak: {saved}" for c in chosen]
        graph, plan = other, after
    return graph, why


def _candidates(graph: Graph, plan: MemoryPlan) -> list[_Candidate]:
    """What need not be alive at the peak, the most bytes for their time first."""
    uses = _Uses(graph)
    peak = uses.peak(plan)
    found = []
    for value in uses.made:
        if uses.made[value] >= peak or not _is_in_arena(value, plan):
            continue
        readers = uses.readers.get(value, [])
        late = tuple(op for op in readers if uses.at[op] > peak)
        if (
            not late
            or any(uses.at[op] == peak for op in readers)
            or nbytes_of(value) < REMATERIALIZED_BYTES
        ):
            continue
        position = uses.repeatable_at(value, peak, uses.at[late[0]])
        if position is not None:
            ns = now(nanoseconds([graph.ops[uses.made[value]]]))
            found.append(_Candidate(value, late, graph.ops[position], ns))
    return sorted(found, key=lambda c: c.ns / nbytes_of(c.value))


class _Uses:
    """The positions at which the values of a graph are made and read; views count as what they are
    views of."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {op: i for i, op in enumerate(graph.ops)}
        self.made: dict[Value, int] = {}
        self.readers: dict[Value, list[Operation]] = {}
        for i, op in enumerate(graph.ops):
            if is_view(op):
                continue
            self.made.update(dict.fromkeys(op.results, i))
            for root in dict.fromkeys(behind_views(v) for v in (*op.operands, *op.control)):
                self.readers.setdefault(root, []).append(op)
        self.results = {behind_views(v) for v in graph.results}
        self.writers: dict[str | None, list[int]] = {}  # the ops that may write to a variable
        for op in graph.ops:
            if op.name == "assign":
                made = (op, *makers_of(op.operands[1]))
                held = self.writers.setdefault(variable_of(op.operands[0]), [])
                held += [self.at[maker] for maker in made]

    def last(self, value: Value) -> int:
        """The position of the last op that reads a value."""
        readers = self.readers.get(value, [])
        return self.at[readers[-1]] if readers else self.made.get(value, -1)

    def peak(self, plan: MemoryPlan) -> int:
        """The position of the op while which the most bytes of the arena are in use."""
        begin: dict[int, list[Value]] = {}
        end: dict[int, list[Value]] = {}
        for value, start in self.made.items():
            if _is_in_arena(value, plan):
                begin.setdefault(start, []).append(value)
                end.setdefault(self.last(value), []).append(value)
        held: dict[object, list[int]] = {}  # sizes by slot: what shares one counts once
        total = most = peak = 0
        for i in range(len(self.graph.ops)):
            for value in begin.get(i, ()):
                sizes = held.setdefault(plan.slots[value].which, [])
                total -= max(sizes, default=0)
                sizes.append(nbytes_of(value))
                total += max(sizes)
            if total > most:
                most, peak = total, i
            for value in end.get(i, ()):
                sizes = held[plan.slots[value].which]
                total -= max(sizes)
                sizes.remove(nbytes_of(value))
                total += max(sizes, default=0)
        return peak

    def repeatable_at(self, value: Value, after: int, position: int) -> int | None:
        """The last position up to `position` at which the nest of a value can run once more with
        all that it reads alive; None if there is none after `after`."""
        op = value.op
        assert op is not None
        if op.name != "fused" or op.control or matmul_of(op) is not None or may_fail(op):
            return None
        if value in self.results or any(inner.regions for inner in op.regions[0].ops):
            return None
        for operand in map(behind_views, op.operands):
            name = variable_of(operand)
            if name is not None:
                writes = [i for i in self.writers.get(name, ()) if i > self.at[op]]
                position = min([position, *writes])
            elif not self._is_alive(
                operand, position, nbytes_of(value) // REMATERIALIZED_INPUT_SHARE
            ):
                return None
        return position if position > after else None

    def _is_alive(self, value: Value, position: int, small: int) -> bool:
        if value.op is None:  # a result of its type may be written over it, if it is donated
            same = any(r.type == value.type for r in self.graph.results)
            return not same or nbytes_of(value) <= small
        return value.op.name == "constant" or self.last(value) >= position


def _emit(graph: Graph, chosen: Sequence[_Candidate]) -> Graph:
    """The graph in which the late readers of each candidate read it computed again."""
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    late = {op: {c.value for c in chosen if op in c.late} for c in chosen for op in c.late}
    copies: dict[Value, Value] = {}  # of values and of views of them
    for op in graph.ops:
        for value in [c.value for c in chosen if c.before is op]:
            copies[value] = _repeated(builder, value, mapping)
        own = {
            value: _view(builder, value, copies)
            for value in dict.fromkeys(op.operands)
            if op in late and behind_views(value) in late[op]
        }
        mapping.update(zip(op.results, builder.clone(op, mapping | own), strict=True))
    results = [mapping[v] for v in graph.results]
    # views of what nothing reads any more would keep it alive
    return dce(builder.graph(graph.name, graph.arg_names, results, graph.stage))


def _repeated(builder: Builder, value: Value, mapping: Mapping[Value, Value]) -> Value:
    """The nest of a value once more, with no other results."""
    op = value.op
    assert op is not None
    (region,) = op.regions
    known = {a: mapping[v] for a, v in zip(region.args, op.operands, strict=True)}
    wanted = region.results[value.index]
    return emit_nest(builder, op, [wanted], known)[wanted]


def _view(builder: Builder, value: Value, copies: dict[Value, Value]) -> Value:
    """A view of a copy, as `value` is one of the original."""
    if value not in copies:
        assert value.op is not None
        source = value.op.operands[0]
        (copies[value],) = builder.clone(value.op, {source: _view(builder, source, copies)})
    return copies[value]


def _is_in_arena(value: Value, plan: MemoryPlan) -> bool:
    return value in plan.slots and plan.slots[value].kind == "arena"
