"""A small program on which two engines differ, from a record on which they do.

The program is cut as `passes/shrink.py` says, with the values that it really had as arguments; what
it took from queues, files and Python functions is an argument from the start. What is in a branch
or a loop is looked at by itself: the body of an iteration is a program, too, on the values that it
had in that iteration. So is what comes before an op of the host there (`shrink_operands`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import LOOPS, Path, Watch, iterations_of
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import rebuilt
from weft.passes.shrink import Cut, shrink
from weft.runtime.record.agreement import disagreements
from weft.runtime.record.replay import Difference, differences, interpreted, run_again
from weft.runtime.record.step_record import StepRecord
from weft.runtime.run_log import goes_outside, is_outside

Array = np.ndarray[Any, Any]
#: Of a loop so many iterations are looked at.
MOST_ITERATIONS = 20
#: Programs tried in all: each is compiled.
ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class Small:
    """A record of a small program, and how the engines differ on it."""

    record: StepRecord
    difference: Difference


def shrink_record(
    record: StepRecord, engines: tuple[str, str] = ("interpreter", "native"),
    attempts: int = ATTEMPTS, bits: bool = False,
) -> Small | None:  # fmt: skip
    """The smallest part of a record's program that was found on which the engines differ; None if
    they differ on none. bits: whether a difference by rounding is one."""
    seen = _Values()
    interpreted(record, seen)  # where it raises, what came before is known
    values = dict(zip(record.graph.args, record.inputs, strict=True)) | seen.values

    outside = {op for op in record.graph.ops if is_outside(op.name)}
    whole = Cut.whole(record.graph).without(outside)
    return _smallest(record, whole, values, engines, attempts, bits)


def shrink_operands(
    record: StepRecord, op: Operation, iterations: tuple[int, ...],
    engines: tuple[str, str] = ("interpreter", "native"), attempts: int = ATTEMPTS,
) -> Small | None:  # fmt: skip
    """As `shrink_record`, of what goes into a run of a host op: of what comes before it in its
    branch or loop body, with the values of that iteration; then of the whole body in iterations
    before; then so for the ops around it. Operands of other host ops, and what is read from
    variables, are arguments."""
    for block, inner, inside in _around(record.graph.block, op, iterations):
        seen = _Runs(record, block, inside)
        interpreted(record, seen)
        before = block.ops[: block.ops.index(inner)]
        parts = [(before, inner.operands), *([(block.ops, block.results)] * (len(seen.runs) - 1))]
        for values, (ops, results) in zip(reversed(seen.runs), parts, strict=False):
            tensors = [v for v in results if isinstance(v.type, TensorType)]
            names = tuple([f"x{i}" for i in range(len(block.args))])
            part = Graph(record.name, rebuilt(block, ops, tensors), names, record.graph.stage)
            whole = Cut.whole(part).without({o for o in ops if not _on_tensors(o)})
            made = _part(record, whole, values)
            if made is not None and _difference(made, engines, False) is not None:
                return _smallest(record, whole, values, engines, attempts, False)
    return None


def _around(
    block: Block, op: Operation, iterations: tuple[int, ...]
) -> Iterator[tuple[Block, Operation, tuple[int, ...]]]:
    """The blocks around an op, the innermost first: each with the op in it that is this one or has
    it inside, and the iterations of that."""
    for inner in block.ops:
        if inner is op:
            yield block, op, iterations
            return
        for region in inner.regions:
            found = list(_around(region, op, iterations))
            if found:
                yield from found
                _, _, inside = found[-1]
                yield block, inner, inside[:-1] if inner.name in LOOPS else inside
                return


def _on_tensors(op: Operation) -> bool:
    """Whether an op makes tensors of tensors, and nothing else."""
    return not goes_outside(op.name) and all(
        isinstance(v.type, TensorType) for v in (*op.operands, *op.results)
    )


def _smallest(
    record: StepRecord, whole: Cut, values: Mapping[Value, Any], engines: tuple[str, str],
    attempts: int, bits: bool,
) -> Small | None:  # fmt: skip
    """The smallest part of `whole` that was found on which the engines differ. values: those that
    its arguments may have."""

    def goes_wrong(cut: Cut) -> Difference | None:
        part = _part(record, cut, values)
        return None if part is None else _difference(part, engines, bits)

    found = shrink(whole, goes_wrong, attempts)
    if found is None:
        return None
    cut, difference = found
    part = _part(record, cut, values)
    assert part is not None
    small = Small(part, difference)
    inner = _inside(small, engines, attempts, bits)
    return small if inner is None else inner


def _difference(record: StepRecord, engines: tuple[str, str], bits: bool) -> Difference | None:
    try:
        first, second = (run_again(record, engine) for engine in engines)
        if bits:
            return next(iter(differences(record.graph, first, second)), None)
        return next(iter(disagreements(record, first, second)), None)
    except WeftError:
        return None  # an engine that does not run it says nothing of it


def _part(record: StepRecord, cut: Cut, values: Mapping[Value, Any]) -> StepRecord | None:
    """The record of a part of the program, None where a value that it needs is not known, or what
    it took from outside."""
    if any(is_outside(op.name) for op in cut.graph.walk()):
        return None
    if any(v not in values for v in cut.sources):
        return None
    inputs = tuple([np.array(values[v]) for v in cut.sources])
    names = {str(op.attrs["name"]) for op in cut.graph.ops if op.name == "variable"}
    held = {n: x for n, x in record.variables.items() if n in names}
    return replace(record, graph=cut.graph, inputs=inputs, variables=held, host=(), outcome=None)


class _Values(Watch):
    """Notes the values that the ops outside of regions make."""

    def __init__(self) -> None:
        self.values: dict[Value, Any] = {}

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        if not around:
            pairs = zip(op.results, results, strict=True)
            self.values.update((v, x) for v, x in pairs if isinstance(v.type, TensorType))


class _Runs(Watch):
    """Notes the values of the last runs of a block up to the one with these iterations."""

    def __init__(self, record: StepRecord, block: Block, iterations: tuple[int, ...]) -> None:
        self.runs: deque[dict[Value, Any]] = deque(maxlen=MOST_ITERATIONS)
        self._block, self._ops = block, frozenset(block.ops)
        self._iterations = iterations
        self._over = False
        self._outside: Path | None = None
        self._number = 0  # of the run of the block, in one run of the op around it
        if block is record.graph.block:
            self.runs.append(dict(zip(block.args, record.inputs, strict=True)))

    def region(self, op: Operation, around: Path, block: Block, args: Sequence[Any]) -> None:
        if block is not self._block:
            return
        self._number = self._number + 1 if around == self._outside else 0
        self._outside = around
        inside = iterations_of((*around, (op, self._number)))
        self._over = self._over or inside > self._iterations
        if not self._over:
            self.runs.append(dict(zip(block.args, args, strict=True)))

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        if not self._over and op in self._ops:
            self.runs[-1].update(zip(op.results, results, strict=True))


class _Bodies(Watch):
    """Notes the first runs of the regions of one op, with the values of their arguments."""

    def __init__(self, op: Operation) -> None:
        self.op, self.runs = op, list[tuple[Block, list[Any]]]()
        self._counts: dict[Block, int] = {}

    def region(self, op: Operation, around: Path, block: Block, args: Sequence[Any]) -> None:
        count = self._counts[block] = self._counts.get(block, 0) + 1
        if op is self.op and count <= MOST_ITERATIONS:
            self.runs.append((block, list(args)))


def _inside(small: Small, engines: tuple[str, str], attempts: int, bits: bool) -> Small | None:
    """As `shrink_record`, of a body of the only op with regions that is left."""
    inner = [op for op in small.record.graph.ops if op.regions]
    if len(inner) != 1 or attempts <= 0:
        return None
    for graph, inputs in _bodies(small.record, inner[0]):
        record = replace(small.record, graph=graph, inputs=inputs, variables={}, host=())
        if _difference(record, engines, bits) is not None:
            return shrink_record(record, engines, attempts // 2, bits)
    return None


def _bodies(record: StepRecord, op: Operation) -> Iterator[tuple[Graph, tuple[Array, ...]]]:
    watch = _Bodies(op)
    interpreted(record, watch)
    for block, args in watch.runs:
        tensors = [*block.args, *block.results]
        if all(isinstance(v.type, TensorType) for v in tensors):
            names = tuple([f"x{i}" for i in range(len(args))])
            yield Graph(record.name, block, names, "traced"), tuple([np.array(x) for x in args])
