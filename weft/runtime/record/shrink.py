"""A small program on which two engines differ, from a record on which they do.

The program is cut as `passes/shrink.py` says, with the values that it really had as arguments; what
it took from queues, files and Python functions is an argument from the start. What is in a branch
or a loop is looked at by itself: the body of an iteration is a program, too, on the values that it
had in that iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import Path, Watch
from weft.ir.types import TensorType
from weft.passes.shrink import Cut, shrink
from weft.runtime.record.agreement import disagreements
from weft.runtime.record.replay import Difference, differences, interpreted, run_again
from weft.runtime.record.step_record import StepRecord
from weft.runtime.run_log import is_outside

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

    def goes_wrong(cut: Cut) -> Difference | None:
        part = _part(record, cut, values)
        return None if part is None else _difference(part, engines, bits)

    outside = {op for op in record.graph.ops if is_outside(op.name)}
    whole = Cut.whole(record.graph).without(outside)
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
