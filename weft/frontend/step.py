"""One step definition of a session: the part of the graph that the fetches need, with sizes filled
in."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from weft.frontend.subgraph import needed_ops
from weft.frontend.trace import Trace
from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder, make_op
from weft.ir.dims import SymbolicDim, format_shape, substitute_dim
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.source import caller_location
from weft.ir.types import TensorType, substitute_type

Feed = tuple[Value, tuple[int, ...]]


def step_graph(
    trace: Trace, results: Sequence[Value], effects: Sequence[Value], feeds: Sequence[Feed]
) -> Graph:
    """The graph from `feeds` to `results` that also does `effects`; every shape is known.

    Reads and writes of one variable that the graph leaves unordered are put in order: reads first,
    then the writes as they were made. InvalidArgumentError for a placeholder that is needed and not
    fed.
    """
    given = dict(feeds)
    ops, met = needed_ops(trace.builder.ops, [*results, *effects], given)
    for arg, name in zip(trace.builder.args, trace.arg_names, strict=True):
        if arg in met and arg not in given:
            described = trace.tensor(arg).describe()
            raise InvalidArgumentError(
                f"the placeholder '{name}', {described}, must be fed to compute what is fetched",
                hint=f"pass feed_dict={{{name}: value}}",
                location=caller_location(),
            )
    sizes = bind_sizes(feeds)
    builder = Builder()
    mapping: dict[Value, Value] = {}
    for value, shape in feeds:
        assert isinstance(value.type, TensorType)
        mapping[value] = builder.add_arg(TensorType(value.type.dtype, shape))
    ordered, control = _ordered(ops, trace.effects.private, given)
    for op in ordered:
        made = _specialized(op, mapping, sizes, control.get(op, ()))
        builder.ops.append(made)
        mapping.update(
            (r, n) for r, n in zip(op.results, made.results, strict=True) if r not in given
        )
    names = [f"feed_{i}" for i in range(len(feeds))]
    known = dict(zip(trace.builder.args, trace.arg_names, strict=True))
    names = [known.get(value, name) for (value, _), name in zip(feeds, names, strict=True)]
    return builder.graph(trace.name, names, [mapping[v] for v in results])


def bind_sizes(feeds: Sequence[Feed]) -> dict[str, int]:
    """The size of each symbol that the shapes of `feeds` say. InvalidArgumentError where two
    disagree."""
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    for value, shape in feeds:
        assert isinstance(value.type, TensorType)
        for dim, size in zip(value.type.shape, shape, strict=True):
            if not isinstance(dim, SymbolicDim) or dim.terms != (((str(dim),), 1),):
                continue
            name = str(dim)
            if sizes.setdefault(name, size) != size:
                raise InvalidArgumentError(
                    f"the feeds disagree on the size '{name}': {sizes[name]} in a value for "
                    f"{source[name]}, {size} in one for {value.type}",
                    hint="sizes of one name must be equal in all feeds of a step",
                    location=caller_location(),
                )
            source.setdefault(name, str(value.type))
    return sizes


def _specialized(
    op: Operation,
    mapping: Mapping[Value, Value],
    sizes: Mapping[str, int],
    control: Sequence[Value],
) -> Operation:
    """A copy of `op` with operands mapped and sizes filled in, its types inferred anew."""
    attrs = {k: _substitute(v, sizes) for k, v in op.attrs.items()}
    after = tuple(dict.fromkeys(mapping[v] for v in (*op.control, *control) if v in mapping))
    operands = [mapping[v] for v in op.operands]
    made = make_op(
        op.name,
        operands,
        attrs,
        regions=[_specialized_block(r, sizes) for r in op.regions],
        control=after,
        locations=op.locations,
    )
    for result in made.results:
        if isinstance(result.type, TensorType) and not result.type.is_static:
            raise InvalidArgumentError(
                f"the shape {format_shape(result.type.shape)} of op '{op.name}' is not known from "
                "the feeds",
                hint="feed the placeholders that have these sizes",
                location=op.locations or caller_location(),
            )
    return made


def _substitute(value: AttrValue, sizes: Mapping[str, int]) -> AttrValue:
    if not isinstance(value, tuple):
        return value
    return tuple(substitute_dim(d, sizes) if isinstance(d, SymbolicDim) else d for d in value)


def _specialized_block(block: Block, sizes: Mapping[str, int]) -> Block:
    builder = Builder([substitute_type(a.type, sizes) for a in block.args])
    mapping = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        made = _specialized(op, mapping, sizes, ())
        builder.ops.append(made)
        mapping.update(zip(op.results, made.results, strict=True))
    return builder.block([mapping[v] for v in block.results])


# ------------------------------------------------------------------------------------- effect order
def _ordered(
    ops: Sequence[Operation], private: Mapping[Operation, Operation], given: Mapping[Value, Any]
) -> tuple[list[Operation], dict[Operation, list[Value]]]:
    """The ops in an order that respects all edges, and the control edges added between effects."""
    order = _Order(ops, given)
    for reads, writes in _accesses(ops):
        own = {private[w]: w for w in writes if w in private}
        for read in reads:
            if read not in own:
                for write in writes:
                    order.put(read, write)
        for i, write in enumerate(writes):
            for earlier in writes[:i]:
                order.put(earlier, private.get(write, write))
        for read, write in own.items():
            for other in writes:
                if other is not write:
                    order.put(other, read) if order.reaches(other, write) else order.put(
                        read, other
                    )
    return order.sorted(), order.added


def _accesses(ops: Sequence[Operation]) -> list[tuple[list[Operation], list[Operation]]]:
    """For each variable that is written, its reads and its writes in program order."""
    found: dict[Value, tuple[list[Operation], list[Operation]]] = {}
    for op in ops:
        if op.name in ("read", "assign"):
            reads, writes = found.setdefault(op.operands[0], ([], []))
            (reads if op.name == "read" else writes).append(op)
    return [pair for pair in found.values() if pair[1]]


class _Order:
    """The edges between the ops of a step, to which more are added as long as they close no
    cycle."""

    def __init__(self, ops: Sequence[Operation], given: Mapping[Value, Any]) -> None:
        self.ops = ops
        self.added: dict[Operation, list[Value]] = {}
        self._next: dict[Operation, set[Operation]] = {op: set() for op in ops}
        for op in ops:
            for value in (*op.operands, *op.control):
                if value.op in self._next and value not in given:
                    self._next[value.op].add(op)

    def reaches(self, first: Operation, last: Operation) -> bool:
        """Whether some path leads from `first` to `last`."""
        seen, stack = {first}, [first]
        while stack:
            op = stack.pop()
            if op is last:
                return True
            new = self._next[op] - seen
            seen |= new
            stack.extend(new)
        return False

    def put(self, first: Operation, then: Operation) -> None:
        """Make `then` come after `first` unless it must come before it."""
        if then not in self._next[first] and first is not then and not self.reaches(then, first):
            self._next[first].add(then)
            self.added.setdefault(then, []).append(first.results[0])

    def sorted(self) -> list[Operation]:
        """All ops, each after those that lead to it, else in program order (Kahn 1962)."""
        position = {op: i for i, op in enumerate(self.ops)}
        waiting = dict.fromkeys(self.ops, 0)
        for targets in self._next.values():
            for op in targets:
                waiting[op] += 1
        ready = [i for op, i in position.items() if not waiting[op]]
        out: list[Operation] = []
        while ready:
            op = self.ops[heapq.heappop(ready)]
            out.append(op)
            for target in self._next[op]:
                waiting[target] -= 1
                if not waiting[target]:
                    heapq.heappush(ready, position[target])
        return out
