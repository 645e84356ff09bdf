"""Shrinking: from a program on which something goes wrong to a small one on which it still does.

First one value alone is made the result, the first in the program's order that shows the fault;
then op after op is taken away: what it gave becomes an argument. Delta debugging (Zeller and
Hildebrandt, "Simplifying and isolating failure-inducing input", TSE 2002) with ops as the units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from weft.ir.analysis.verify import find_faults
from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import must_run

MAX_ATTEMPTS = 400
_Fault = TypeVar("_Fault")


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a program as a program. origin: for each of its values the one of the first program
    that it stands for."""

    graph: Graph
    origin: Mapping[Value, Value]

    @staticmethod
    def whole(graph: Graph) -> Cut:
        """All of a program."""
        values = [*graph.args, *(v for op in graph.ops for v in op.results)]
        return Cut(graph, {v: v for v in values})

    def without(self, dropped: Collection[Operation]) -> Cut:
        """The part without some ops: the tensors that they give are arguments."""
        return _cut(self, self.graph.results, dropped)

    @property
    def sources(self) -> tuple[Value, ...]:
        """The values of the first program that its arguments stand for."""
        return tuple(self.origin[arg] for arg in self.graph.args)


def shrink(
    whole: Cut, goes_wrong: Callable[[Cut], _Fault | None], attempts: int = MAX_ATTEMPTS
) -> tuple[Cut, _Fault] | None:
    """A small part of `whole` on which `goes_wrong` gives something, and what that is. None if it
    gives nothing for any part that was tried."""
    best: tuple[Cut, _Fault] | None = None
    left = attempts

    def better(candidate: Cut) -> bool:
        nonlocal best, left
        left -= 1
        if left < 0 or find_faults(candidate.graph):
            return False
        found = goes_wrong(candidate)
        if found is not None:
            best = (candidate, found)
        return found is not None

    better(whole)
    for value in [
        v for op in whole.graph.ops for v in op.results if isinstance(v.type, TensorType)
    ]:
        if better(_cut(whole, [value])):
            break
    changed = best is not None
    while changed and left > 0:
        assert best is not None
        kept = best[0]
        units = [op for op in kept.graph.ops if op.name not in ("variable", "constant")]
        changed = any(better(kept.without({op})) for op in units)
    return best


def _cut(whole: Cut, results: Sequence[Value], dropped: Collection[Operation] = ()) -> Cut:
    """`whole` with these results, without some ops, whose tensors become arguments, and without
    what is not needed."""
    given = {value for op in dropped for value in op.results}
    needed, ops = set(results), list[Operation]()
    for op in reversed(whole.graph.ops):
        if op not in dropped and (must_run(op) or needed.intersection(op.results)):
            ops.append(op)
            needed.update(op.operands)
    values = [
        *whole.graph.args,
        *(v for op in whole.graph.ops if op in dropped for v in op.results),
    ]
    args = [v for v in values if v in needed and isinstance(v.type, TensorType)]
    builder = Builder([v.type for v in args])
    mapping: dict[Value, Value] = dict(zip(args, builder.args, strict=True))
    for op in reversed(ops):
        control = [v for v in op.control if v in mapping and v not in given]
        types = [r.type for r in op.results]
        clean = Operation(
            op.name, op.operands, op.attrs, types, op.regions, control, op.locations,
            device=op.device, group=op.group,
        )  # fmt: skip
        mapping.update(zip(op.results, builder.clone(clean, mapping), strict=True))
    kept = [mapping[v] for v in results if v in mapping]
    names = [f"x{i}" for i in range(len(args))]
    made = builder.graph(whole.graph.name, names, kept, whole.graph.stage)
    return Cut(made, {new: whole.origin[old] for old, new in mapping.items()})
