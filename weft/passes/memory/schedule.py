"""Scheduling for memory: an op that frees memory, or needs none, runs as soon as it can.

Before::

    forward ... %h ...; %d1 = backward(%d0); %d2 = backward(%d1); ...; update of %w from (%h, %d0)

After: the update comes right behind the ops that make what it reads, so that `%h` and `%d0` need
not be kept until the end. The order stays as it is written but for ops that take at most as many
bytes of the arena as they give back; an update in a variable's own buffer takes none. The rules:

* what the graph itself says: operands before results, control operands before their op;
* an op that computes a variable's new value comes after those that read the old one, and one that a
  result is made of after the readers of inputs of its type, where it did so before: then the buffer
  of the variable, or of a donated input, can still be overwritten;
* nothing is written to a variable before an index is checked that was checked before it did so: a
  step that fails leaves as many variables alone as before;
* the plan of the new order takes REORDERED_SHARE less of the arena, and copies no more.

Bodies of loops and branches keep their order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import cached_property

from weft.ir.cost.thresholds import REORDERED_ARENA_BYTES, REORDERED_GROWTH_BYTES, REORDERED_SHARE
from weft.ir.graph import Graph, Value
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.sizes import hint
from weft.ir.types import TensorType
from weft.passes.control.lower_control_flow import executor_only
from weft.passes.in_place import UPDATES, may_fail
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import plan_memory, variable_name
from weft.passes.rewriting.rewrite import is_view, rebuilt, with_block

#: Ops that need no time: they name buffers or order effects.
_IDLE = frozenset({"variable", "read", "constant", "assign", "group"})


def schedule(graph: Graph) -> Graph:
    """Put ops where the step needs less memory (see the module's text)."""
    return _decided(graph)[0]


def order_reasons(graph: Graph) -> list[str]:
    """For people: what became of the order of a graph, before this pass."""
    return _decided(graph)[1]


def _decided(graph: Graph) -> tuple[Graph, list[str]]:
    if not can_be_planned(graph):
        return graph, ["as written: a size is not known, or the graph is not what runs"]
    # an order serves all sizes that the graph may get
    before = plan_memory(graph)
    written = hint(before.arena_bytes)
    if written < REORDERED_ARENA_BYTES:
        return graph, [f"as written: {written} bytes stay in the caches"]
    order = _Order(graph)
    moved = order.run()
    if not moved:
        return graph, ["as written: no op could free memory earlier"]
    ops = [graph.ops[i] for i in order.order]
    other = with_block(graph, rebuilt(graph.block, ops, graph.results))
    after = plan_memory(other)
    most = written * (1 - REORDERED_SHARE)
    sizes = f"{written} bytes of the arena as written, {hint(after.arena_bytes)} so"
    if hint(after.arena_bytes) > most or copied_bytes(after) > copied_bytes(before):
        return graph, [f"as written: {len(moved)} ops earlier would not save enough: {sizes}"]
    return other, [f"{len(moved)} ops run earlier, as soon as they free memory: {sizes}"]


def copied_bytes(plan: MemoryPlan) -> int:
    """Bytes that a step copies from one buffer to another."""
    return sum(hint(c.nbytes) for c in plan.copies)


def can_be_planned(graph: Graph) -> bool:
    """Whether the graph is one that runs as it is, of sizes that are known."""
    kinds = CONTROL | {"fused"}
    if any(op.regions and op.name not in kinds for op in graph.walk()):
        return False
    if executor_only(graph.ops, PYTHON_CALLS) is not None:
        return False
    values = [v for op in graph.walk() for v in op.results] + list(graph.args)
    return all(not isinstance(v.type, TensorType) or v.type.is_static for v in values)


class _Order:
    """An order of ops under construction. Positions of ops are those in the graph; sets of them are
    the bits of ints."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {op: i for i, op in enumerate(graph.ops)}
        self.root: dict[Value, Value] = {}
        self.readers: dict[Value, int] = {}  # of roots: the ops that read them, but for views
        for i, op in enumerate(graph.ops):
            if is_view(op):
                self.root[op.result] = self._root(op.operands[0])
                continue
            for value in op.operands:
                root = self._root(value)
                self.readers[root] = self.readers.get(root, 0) | 1 << i
        self.idle = [op.name in _IDLE or is_view(op) for op in graph.ops]
        self.done = 0
        self.order: list[int] = []

    def run(self) -> list[int]:
        """Fill `order`; the ops with kernels that come before one that they followed."""
        self._later: list[tuple[int, int]] = []  # a heap: ops that may be worth doing now
        for i, waits in enumerate(self._kernels_before):
            if not self.idle[i] and not waits:
                self._offer(i)
        for i in range(len(self.graph.ops)):
            if not self.idle[i] and not self.done >> i & 1:
                self._do(i)
            while self._later:
                _, k = heapq.heappop(self._later)
                if (
                    not self.done >> k & 1
                    and self._is_ready(k)
                    and self._growth(k) <= REORDERED_GROWTH_BYTES
                ):
                    self._do(k)
        for i in range(len(self.graph.ops)):
            self._emit(i)
        moved, first = [], len(self.graph.ops)
        for i in (i for i in reversed(self.order) if not self.idle[i]):
            if first < i:
                moved.append(i)
            first = min(first, i)
        return moved

    def _do(self, i: int) -> None:
        self._emit(i)
        for k in _bits(self._after.get(i, 0)):
            self._offer(k)
        for root in {self._root(v) for v in self.graph.ops[i].operands}:
            left = self.readers[root] & ~self.done
            last = left.bit_length() - 1
            if left and left == 1 << last and not self.idle[last]:  # one op would free it
                self._offer(last)

    def _offer(self, i: int) -> None:
        """Op `i` may be worth doing soon, before those that give less memory back."""
        if self._is_ready(i):
            heapq.heappush(self._later, (self._growth(i), i))

    def _emit(self, i: int) -> None:
        """Append op `i`, after the idle ops that it waits for, and the assignments of its results,
        so that they do not keep them."""
        found, todo = 0, [i] if not self.done >> i & 1 else []
        while todo:
            k = todo.pop()
            found |= 1 << k
            todo += _bits(self._before[k] & ~self.done & ~found)
        self.order += _bits(found)
        self.done |= found
        for k in _bits(self._assigns.get(i, 0) & ~self.done):
            if self._is_ready(k):
                self._emit(k)

    def _is_ready(self, i: int) -> bool:
        return self._kernels_before[i] & ~self.done == 0

    def _growth(self, i: int) -> int:
        """By how many bytes the arena is fuller after op `i`."""
        op = self.graph.ops[i]
        taken = sum(nbytes_of(v) for v in op.results if v not in self._elsewhere)
        given = 0
        for root in {self._root(v) for v in op.operands}:
            alone = self.readers[root] & ~self.done == 1 << i
            if alone and root.op is not None and root not in self._elsewhere:
                given += 0 if root.op.name in _IDLE else nbytes_of(root)
        return taken - given

    def _root(self, value: Value) -> Value:
        return self.root.get(value, value)

    # -- what waits for what -----------------------------------------------------------------------

    @cached_property
    def _elsewhere(self) -> set[Value]:
        """What is in a variable's buffer, or a result's: it takes nothing of the arena."""
        values = [op.operands[1] for op in self.graph.ops if op.name == "assign"]
        return {self._root(v) for v in (*values, *self.graph.results)}

    @cached_property
    def _before(self) -> list[int]:
        """What each op waits for."""
        before = []
        for op in self.graph.ops:
            made = [self.at[v.op] for v in (*op.operands, *op.control) if v.op is not None]
            before.append(sum(1 << k for k in set(made)))
        fallible = sum(1 << i for i, op in enumerate(self.graph.ops) if may_fail(op))
        for writer, name in self._writers():
            earlier = (1 << writer) - 1
            before[writer] |= (self._reads.get(name, 0) | fallible) & earlier
        for result in self.graph.results:
            maker = self._root(result).op
            if maker is not None:
                same = [a for a in self.graph.args if a.type == result.type]
                for arg in same:
                    before[self.at[maker]] |= self.readers.get(arg, 0) & ((1 << self.at[maker]) - 1)
        return before

    @cached_property
    def _kernels_before(self) -> list[int]:
        """What each op waits for, itself or by the idle ops that it waits for."""
        out: list[int] = []
        for waits in self._before:
            held = 0
            for k in _bits(waits):
                held |= out[k] if self.idle[k] else 1 << k
            out.append(held)
        return out

    @cached_property
    def _after(self) -> dict[int, int]:
        """The ops with kernels that wait for each."""
        after: dict[int, int] = {}
        for i, waits in enumerate(self._kernels_before):
            for k in _bits(waits) if not self.idle[i] else ():
                after[k] = after.get(k, 0) | 1 << i
        return after

    @cached_property
    def _assigns(self) -> dict[int, int]:
        """The assignments that wait for each op."""
        out: dict[int, int] = {}
        for i, op in enumerate(self.graph.ops):
            for k in _bits(self._kernels_before[i]) if op.name == "assign" else ():
                out[k] = out.get(k, 0) | 1 << i
        return out

    @cached_property
    def _reads(self) -> Mapping[str, int]:
        """The ops that read each variable, and those that read what was read."""
        reads: dict[str, int] = {}
        for i, op in enumerate(self.graph.ops):
            if op.name == "read":
                name = variable_name(op.operands[0])
                reads[name] = reads.get(name, 0) | 1 << i | self.readers.get(op.result, 0)
        return reads

    def _writers(self) -> Iterator[tuple[int, str]]:
        """The ops that may write to a variable's buffer, and its name."""
        for i, op in enumerate(self.graph.ops):
            if op.name == "assign":
                name = variable_name(op.operands[0])
                yield i, name
                maker = self._root(op.operands[1]).op
                while maker is not None and maker.name not in _IDLE:
                    yield self.at[maker], name
                    first = maker.operands[0] if maker.name in UPDATES else None
                    maker = None if first is None else self._root(first).op


def nbytes_of(value: Value) -> int:
    """Bytes of a tensor, as they are now; 0 of other values."""
    return hint(value.type.nbytes) if isinstance(value.type, TensorType) else 0


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
