"""Graph of one step definition: the part of the session's graph that the fetches need, with sizes
filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.trace import Trace
from weft.ir.analysis.effects import accesses, state_key
from weft.ir.dims import format_shape
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.ir.graph import Block, Graph, Operation, Value, stable_order, unique_name
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder, remapped
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.program import Program
from weft.ir.spec import ConstArray
from weft.ir.types import RefType, TensorType
from weft.passes.control.enter_invariants import enter_invariants
from weft.passes.manager import AnyPass, BoundPass, PassOptions, PassReport, run_pipeline
from weft.passes.sizes import (
    has_sizes,
    infer_sizes,
    made_symbols,
    needed_ops,
    specialize,
    tie_sizes,
)

Feed = tuple[Value, tuple[int, ...]]


def step_graph(
    trace: Trace,
    results: Sequence[Value],
    effects: Sequence[Value],
    feeds: Sequence[Feed],
    done: frozenset[Value] = frozenset(),
    *,
    sized: bool = True,
) -> Graph:
    """As `step_program` gives it, but by itself: nothing is dumped or verified, and sizes may be
    numbers that note what is decided by them."""
    graph = _pruned(trace, results, effects, feeds, done)
    return _static(graph, [shape for _, shape in feeds]) if sized else tie_sizes(graph)


def step_program(
    trace: Trace,
    results: Sequence[Value],
    effects: Sequence[Value],
    feeds: Sequence[Feed],
    done: frozenset[Value] = frozenset(),
    *,
    sized: bool = True,
    options: PassOptions | None = None,
) -> tuple[Graph, list[PassReport]]:
    """The step of these fetches and feeds, made from the whole graph by the passes `prune`,
    `specialize` and `tie_sizes`, and what they did. options: of the passes, the environment's if
    None. Errors as `step_graph`."""
    shapes = [shape for _, shape in feeds]
    passes: list[AnyPass] = [
        BoundPass("prune", lambda _: _pruned(trace, results, effects, feeds, done))
    ]
    if sized:
        passes.append(BoundPass("specialize", lambda graph: _specialized(graph, shapes)))
    args, ops = tuple(trace.builder.args), tuple(trace.builder.ops)
    block = Block(args, ops, tuple(results))
    whole = Graph(trace.name, block, tuple(trace.arg_names[: len(args)]))
    made, reports = run_pipeline(
        Program.of(whole), [*passes, tie_sizes], options=options, is_valid=False
    )
    return made.graph, reports


def _pruned(
    trace: Trace,
    results: Sequence[Value],
    effects: Sequence[Value],
    feeds: Sequence[Feed],
    done: frozenset[Value],
) -> Graph:
    """The graph from `feeds` to `results` that also does `effects`. What gives the values in `done`
    has run in an earlier part of the step. The sizes of the feeds stay symbols.

    Reads and writes of one variable that the graph leaves unordered are put in order: the writes as
    they were made, and reads before all writes that they need not follow. A branch or loop that
    assigns to a variable is one write with what it reads of it. InvalidArgumentError for a
    placeholder that is needed and not fed.
    """
    given = dict(feeds)
    stop = given.keys() | done if done else given
    ops, met = needed_ops(trace.builder.ops, [*results, *effects], stop)
    # not strict: another thread may be adding a placeholder
    named = dict(zip(trace.builder.args, trace.arg_names, strict=False))
    for arg, name in named.items():
        if arg in met and arg not in given:
            described = trace.tensor(arg).describe()
            raise InvalidArgumentError(
                f"the placeholder '{name}', {described}, must be fed to compute what is fetched",
                hint=f"pass feed_dict={{{name}: value}}",
                location=caller_location(),
            )
    builder = Builder()
    mapping: dict[Value, Value] = {value: builder.add_arg(value.type) for value in given}
    ordered, control = _ordered(ops, given)
    dead = any(op.name in DATAFLOW for op in ops)
    for op in ordered:
        after = [mapping[v] for v in control.get(op, ())]
        if dead:
            after = [_barrier(builder, v) for v in after if v.op]
        made = remapped(op, mapping, after)  # fed values, and what is done already, order nothing
        builder.ops.append(made)
        pairs = zip(op.results, made.results, strict=True)
        mapping.update((old, new) for old, new in pairs if old not in given)
    names: list[str] = []
    for value in given:
        names.append(unique_name(named.get(value, "feed"), names))
    graph = builder.graph(trace.name, names, [mapping[v] for v in results])
    return enter_invariants(graph)


def _barrier(builder: Builder, value: Value) -> Value:
    """A live value that comes after `value`, which may be dead: a merge waits for its control
    operands and is live all the same."""
    where = value.op.locations if value.op is not None else ()
    true = builder.emit1("constant", value=ConstArray(np.array(True)), locations=where)
    return builder.emit("merge", [true], control=[value], locations=where)[0]


def _static(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> Graph:
    return tie_sizes(_specialized(graph, shapes))


def _specialized(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> Graph:
    """`graph` with the sizes that the feeds say; those that depend on values stay symbols.
    InvalidArgumentError where one is missing."""
    try:
        sizes = infer_sizes(graph, shapes, partial=True)
    except WeftError as error:
        raise error.at(caller_location()) from None
    try:
        made = specialize(graph, sizes, shapes)
    except ShapeError as error:
        raise _misfit(error, graph, shapes) from None
    known = made_symbols(made)
    for op in made.ops:
        for t in (r.type for r in op.results):
            if isinstance(t, TensorType) and not has_sizes(t, known):
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
    ops: Sequence[Operation], given: Mapping[Value, Any]
) -> tuple[list[Operation], dict[Operation, list[Value]]]:
    """The ops in an order that respects all edges, and the control edges added between effects."""
    order = _Order(ops, given)
    variables = _accesses(ops, given)
    for _, writes in variables:  # first, or a read that must follow one write would turn others
        for i, write in enumerate(writes):
            for earlier in writes[:i]:
                order.put_all(earlier, write)
    for reads, writes in variables:
        for write in writes:
            for read in (*reads, *write[:-1]):
                order.put(read, write[-1])
    return order.sorted(), order.added


def _accesses(
    ops: Sequence[Operation], given: Mapping[Value, Any]
) -> list[tuple[list[Operation], list[list[Operation]]]]:
    """For each variable that is written, what only reads it, and the writes in program order: each
    the op that writes after the reads that are one access with it. An op that does both, itself or
    in its regions, is one that writes."""
    found: dict[Value, tuple[list[Operation], list[list[Operation]]]] = {}
    for op in ops:
        refs = dict.fromkeys(v for v in op.operands if isinstance(v.type, RefType))
        touched = list(accesses(op)) if refs else []
        for ref in refs if touched else ():
            here = [access.writes for access in touched if access.key == state_key(ref)]
            if here:
                reads, writes = found.setdefault(ref, ([], []))
                if any(here):
                    writes.append([*_carried(op, ref, given), op])
                else:
                    reads.append(op)
    out = []
    for reads, writes in found.values():
        inside = {op for write in writes for op in write}
        out.append(([op for op in reads if op not in inside], writes))
    return [pair for pair in out if pair[1]]


def _carried(write: Operation, ref: Value, given: Mapping[Value, Any]) -> list[Operation]:
    """What a branch or loop reads of the variable that `write` assigns its result to: what the
    carry of a loop starts as, all reads that a branch captures."""
    made = write.operands[-1]
    if write.name != "assign" or made in given or made.op is None or not made.op.regions:
        return []
    taken = made.op.operands
    if made.op.name != "cond":
        taken = taken[made.index : made.index + 1]
    read = (v.op for v in dict.fromkeys(taken) if v not in given and v.op is not None)
    return [op for op in read if op.name == "read" and op.operands[0] is ref]


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

    def put_all(self, first: Sequence[Operation], then: Sequence[Operation]) -> None:
        """As `put` for two accesses of one variable, the op that writes last in each; the other way
        round if it must be."""
        if len(first) > 1 and self.reaches(then[-1], first[-1]):
            first, then = then, first[:-1]
        for op in then:
            self.put(first[-1], op)

    def sorted(self) -> list[Operation]:
        """All ops, each after those that lead to it, else in program order."""
        before: dict[Operation, list[Operation]] = {op: [] for op in self.ops}
        for op, targets in self._next.items():
            for target in targets:
                before[target].append(op)
        return stable_order(self.ops, before.__getitem__)
