"""One step definition of a session: the part of the graph that the fetches need, with sizes filled
in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.session.subgraph import needed_ops
from weft.frontend.tracing.trace import Trace, unique_name
from weft.ir.attributes import ConstArray
from weft.ir.builder import Builder
from weft.ir.dims import format_shape
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.dataflow import DATAFLOW
from weft.ir.order import stable_order
from weft.ir.source import caller_location
from weft.ir.types import TensorType
from weft.passes.specialize import infer_sizes, specialize

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
    builder = Builder()
    mapping: dict[Value, Value] = {value: builder.add_arg(value.type) for value in given}
    ordered, control = _ordered(ops, trace.effects.private, given)
    dead = any(op.name in DATAFLOW for op in ops)
    for op in ordered:
        after = [mapping[v] for v in control.get(op, ())]
        made = _copy(op, mapping, [_barrier(builder, v) for v in after if v.op] if dead else after)
        builder.ops.append(made)
        pairs = zip(op.results, made.results, strict=True)
        mapping.update((old, new) for old, new in pairs if old not in given)
    known = dict(zip(trace.builder.args, trace.arg_names, strict=True))
    names: list[str] = []
    for value in given:
        names.append(unique_name(known.get(value, "feed"), names))
    graph = builder.graph(trace.name, names, [mapping[v] for v in results])
    return _static(graph, [shape for _, shape in feeds])


def _barrier(builder: Builder, value: Value) -> Value:
    """A live value that comes after `value`, which may be dead: a merge waits for its control
    operands and is live all the same."""
    where = value.op.locations if value.op is not None else ()
    true = builder.emit1("constant", value=ConstArray(np.array(True)), locations=where)
    return builder.emit("merge", [true], control=[value], locations=where)[0]


def _copy(op: Operation, mapping: Mapping[Value, Value], control: Sequence[Value]) -> Operation:
    """`op` in the step: operands mapped, with further control operands; fed values order
    nothing."""
    operands = [mapping[v] for v in op.operands]
    after = dict.fromkeys([*(mapping[v] for v in op.control), *control])
    return Operation(
        op.name,
        operands,
        op.attrs,
        [r.type for r in op.results],
        op.regions,
        [v for v in after if v.op is not None],
        op.locations,
    )


def _static(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> Graph:
    """`graph` with the sizes that the feeds say. InvalidArgumentError where one is missing."""
    try:
        sizes = infer_sizes(graph, shapes)
    except WeftError as error:
        raise error.at(caller_location()) from None
    try:
        made = specialize(graph, sizes, shapes)
    except ShapeError as error:
        raise _misfit(error, graph, shapes) from None
    for op in made.ops:
        for t in (r.type for r in op.results):
            if isinstance(t, TensorType) and not t.is_static:
                raise InvalidArgumentError(
                    f"the feeds do not say the shape {format_shape(t.shape)} of op '{op.name}'",
                    hint="feed the placeholders that have these sizes",
                    location=op.locations or caller_location(),
                )
    return made


def _misfit(error: ShapeError, graph: Graph, shapes: Sequence[tuple[int, ...]]) -> ShapeError:
    """`error`, about sizes that are fine one by one, with the feeds that they come from."""
    pairs = zip(graph.arg_names, graph.args, shapes, strict=True)
    fed = ", ".join(f"{name} {format_shape(n)} for {a.type}" for name, a, n in pairs)
    return ShapeError(
        f"the shapes fed do not fit together: {error.what}; fed: {fed}",
        hint="sizes given as None are not broadcast against each other; those that must be equal "
        'should have one name: wf.placeholder(dtype, ["batch"])',
        location=error.locations or caller_location(),
    )


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
        """All ops, each after those that lead to it, else in program order."""
        before: dict[Operation, list[Operation]] = {op: [] for op in self.ops}
        for op, targets in self._next.items():
            for target in targets:
                before[target].append(op)
        return stable_order(self.ops, before.__getitem__)
