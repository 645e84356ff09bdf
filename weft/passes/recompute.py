"""Recomputation: what a later nest can cheaply compute from another result is not stored for it.

Before::

    %1, %2, %3 = fused(%x) { multiply; tanh; add } : f32[512,512], f32[512,512], f32[512,512]
    %4 = fused(%g, %1, %2, %3) { ... }

After, if the third is 1 + the second: ``%1, %2 = fused(%x) {...}``, and the fourth begins with the
addition. A gradient reads fewer arrays, and they need no memory in between. The rules:

* the result is read by ``fused`` ops only, at their own element, and holds at least LEAST_BYTES;
* it follows from results that stay, or from what its nest reads, of the same shape or broadcast to
  it, by at most MOST_OPS ops of CHEAP; for the sake of it no reader reads more bytes than it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.index_maps import frame_of, is_gather, is_index_map, shape_of
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.ir.types import TensorType
from weft.passes.control.regions import in_regions
from weft.passes.memory.in_place import UPDATES

#: Ops that cost less than to read an element from beyond the first-level cache.
CHEAP = frozenset(
    {
        "add", "subtract", "multiply", "divide", "negative", "abs", "square", "where", "maximum",
        "minimum",
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and",
        "logical_or", "logical_not",
    }
)  # fmt: skip
MOST_OPS = 8
LEAST_BYTES = 4096


def recompute(graph: Graph) -> Graph:
    """Let nests compute what the module's rules allow instead of reading it, those of loops and
    branches too (each body by itself).
    """
    return _recomputed(graph, True)


def _recomputed(graph: Graph, top: bool) -> Graph:
    graph = in_regions(graph, lambda body: _recomputed(body, False))
    dropped, added = _dropped(graph, top)
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


# ------------------------------------------------------------------------------------------- which


def _dropped(graph: Graph, top: bool) -> tuple[dict[Value, Value], dict[Operation, Value]]:
    """The results that are not stored, each with the value inside its nest; and by nest the value
    inside that is stored in place of several."""
    readers: dict[Value, list[Operation | None]] = {v: [None] for v in graph.results}
    for op in graph.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
        for value in op.control:
            readers.setdefault(value, []).append(None)
    dropped: dict[Value, Value] = {}
    added: dict[Operation, Value] = {}
    for op in graph.ops:
        if op.name != "fused":
            continue
        (region,) = op.regions
        outer = dict(zip(region.results, op.results, strict=True))
        kept: set[Value] = set()
        given = {
            a: v
            for a, v in zip(region.args, op.operands, strict=True)
            if v not in dropped and _stays(v, top, readers[v])
        }
        free: set[Value] = set()  # those that need not be stored if something else is
        for member in region.ops:
            for inner in member.results:
                result = outer.get(inner)
                if result is None:
                    continue
                may_go = _may_go(result, readers.get(result, []))
                sources = _sources(inner, kept, given.keys()) if may_go else None
                if sources is not None:
                    read = [given[v] for v in sources if v in given]
                    if all(_reads_no_more(r, result, read) for r in readers[result]):
                        dropped[result] = inner
                        continue
                kept.add(inner)
                if may_go:
                    free.add(inner)
        found = _better(region, kept, free)
        if found is not None:
            added[op], instead = found
            dropped.update({outer[v]: v for v in instead})
    return dropped, added


def _better(region: Block, kept: set[Value], free: set[Value]) -> tuple[Value, list[Value]] | None:
    """A value of a plain nest from which two or more of those `free` follow, and which: 1 + tanh(x)
    and 1 - tanh(x)^2 both follow from tanh(x)."""
    if len(free) < 2 or frame_of(region) is not None:
        return None
    for member in region.ops:
        (value,) = member.results
        if is_index_map(member) or is_gather(member) or member.name in CHEAP or value in kept:
            continue
        instead = [v for v in free if _follows(v, (kept - free) | {value})]
        if sum(_bytes(v) for v in instead) > _bytes(value):
            return value, instead
    return None


def _bytes(value: Value) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.nbytes


def _may_go(result: Value, readers: list[Operation | None]) -> bool:
    """Is the result large, and read by nests alone, at their own element?"""
    held = result.type
    if not (isinstance(held, TensorType) and held.is_static and held.nbytes >= LEAST_BYTES):
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
    return op.name not in ("read", "variable") and "view" not in lookup(op.name).traits


def _reads_no_more(reader: Operation | None, result: Value, sources: list[Value]) -> bool:
    """Would the reader read no more bytes if it computed `result` from these?"""
    assert reader is not None
    more = sum(_bytes(v) for v in dict.fromkeys(sources) if v not in reader.operands)
    return more <= _bytes(result) + LEAST_BYTES


def _follows(value: Value, kept: set[Value]) -> bool:
    return _sources(value, kept, set()) is not None


def _sources(value: Value, stored: set[Value], given: Set[Value]) -> list[Value] | None:
    """Those of the values that are stored or given of which (and of constants) the value is a cheap
    function; None if it is not. What is stored differs from what is computed again where a product
    is contracted in one place only (v - max(v) must be 0), so none is made of what is given.
    """
    kept = stored | given
    shape, todo, seen, found = shape_of(value), [value], set[Value](), list[Value]()
    while todo:
        held = todo.pop()
        op = held.op
        if held in seen or _is_constant(held):
            continue
        if op is not None and op.name == "broadcast_to" and op.operands[0] in kept:
            found.append(op.operands[0])
        elif held in kept and shape_of(held) == shape:
            found.append(held)
        elif op is None or op.name not in CHEAP or shape_of(held) != shape:
            return None
        else:
            seen.add(held)
            todo += op.operands
    products = any(v.op is not None and v.op.name in ("multiply", "square") for v in seen)
    if products and not stored.issuperset(found):
        return None
    return found if len(seen) <= MOST_OPS else None


def _is_constant(value: Value) -> bool:
    """A constant, seen through index maps."""
    op = value.op
    while op is not None and is_index_map(op) and op.operands:
        op = op.operands[0].op
    return op is not None and op.name == "constant"


# ---------------------------------------------------------------------------------------- emission


class _Nest:
    """One nest anew: without what is dropped, and computing what it read of that."""

    def __init__(
        self, op: Operation, dropped: Mapping[Value, Value], added: Mapping[Operation, Value]
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
        if op in self.added:  # what readers outside know by the value inside
            outside.append(self.added[op])
            wanted.append(self.added[op])
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
        if value is self.added.get(maker):
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
