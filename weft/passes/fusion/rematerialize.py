"""Rematerialization: a tensor that is alive at the peak of memory is computed again after it.

Before::

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

from collections.abc import Mapping, Sequence

from weft.ir.cost.thresholds import (
    REMATERIALIZED_ARENA_BYTES,
    REMATERIALIZED_BYTES,
    REMATERIALIZED_INPUT_SHARE,
    REMATERIALIZED_SHARE,
    REMATERIALIZED_TIME,
)
from weft.ir.cost.work import nanoseconds
from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.sizes import hint, now
from weft.passes.analysis.in_place import may_fail
from weft.passes.fusion.epilogue_split import emit_nest
from weft.passes.fusion.epilogues import matmul_of, variable_of
from weft.passes.fusion.liveness import makers_of
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.memory.schedule import can_be_planned, copied_bytes, nbytes_of
from weft.passes.rewriting.rewrite import behind_views, is_view
from weft.passes.simplify.cse_dce import dce

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
    """Where the values of a graph are made and read; views count as what they are views of."""

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
