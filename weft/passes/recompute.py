"""Recomputation: what a later nest can cheaply compute from another result is not stored for it.

Before::

    %1, %2, %3 = fused(%x) { multiply; tanh; add } : f32[512,512], f32[512,512], f32[512,512]
    %4 = fused(%g, %1, %2, %3) { ... }

After, if the third is 1 + the second: ``%1, %2 = fused(%x) {...}``, and the fourth begins with the
addition. A gradient reads fewer arrays, and they need no memory in between. The rules:

* the result is read by ``fused`` ops only, at their own element, and holds at least LEAST_BYTES;
* it follows from results that stay, from what its nest reads, of the same shape or broadcast to it,
  or from numbers that a row kernel has for each row (they are stored then), by at most MOST_OPS ops
  of CHEAP; for the sake of it no reader reads more bytes than it has, but for such numbers;
* or it follows by any elementwise ops from what its readers read anyway, and they take no longer
  than writing and reading it would (`weft.ir.prices`). What is read soon comes from a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value
from weft.passes.control.regions import in_regions
from weft.passes.recompute_choice import Choice


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
