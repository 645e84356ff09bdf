"""What goes into ops of the host - queues, files, tables, Python functions, prints - in a real run,
held against what the interpreter gives to them on the same inputs.

The runs of each op are compared in their order, tensor by tensor, by the rules of results
(`agreement.py`): floats may differ as rounding has it, strings and integers not at all, and what
differs much is looked at again with rounding errors put in. Runs that a native step does not tell
apart, of several prints or of one function at several places, are compared in the program's order;
callbacks with ordered=False that are called so have none, and are left out. So are ops that passes
may merge or take away, where several share a line. Of an assertion that
holds nobody hears: what it was given is not compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.interpreter.evaluate import Path, Watch, iterations_of
from weft.ir.interpreter.rounding import Overflow, Rounding, roundings, spread_of
from weft.ir.ops import lookup
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.program import Program
from weft.ir.types import TensorType
from weft.passes.differential import tolerance
from weft.passes.simplify.effects import expand_updates
from weft.runtime.record.agreement import within_spread
from weft.runtime.record.replay import Difference, difference_between, interpreted
from weft.runtime.record.step_record import StepRecord
from weft.runtime.run_log import HostKey, OperandRow, RunLog, call_key, goes_outside, host_keys

Array = np.ndarray[Any, Any]


class HostRun(NamedTuple):
    """One run of a host op in the interpreter. number: of the op in the order of `Graph.walk`;
    operands: the tensors that it was given."""

    number: int
    iterations: tuple[int, ...]
    operands: list[Array]


class OperandWatch(Watch):
    """Notes what goes into host ops. numbers: those of the ops. rounding: puts errors in."""

    def __init__(self, numbers: Mapping[Operation, int], rounding: Rounding | None = None) -> None:
        self.runs: list[HostRun] = []
        self._numbers, self._rounding = numbers, rounding

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self._note(op, around, operands)

    def failed(
        self, op: Operation, around: Path, operands: Sequence[Any], error: WeftError
    ) -> None:
        self._note(op, around, operands)

    def changed(
        self, op: Operation, operands: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        if self._rounding is None:
            return results
        return self._rounding.changed(op, operands, results)

    def _note(self, op: Operation, around: Path, operands: Sequence[Any]) -> None:
        number = self._numbers.get(op)
        if number is not None:
            given = [x for x in operands if isinstance(x, np.ndarray)]
            if _is_heard(op, given):
                self.runs.append(HostRun(number, iterations_of(around), given))


def _is_heard(op: Operation, operands: Sequence[Array]) -> bool:
    """Whether a run of an op gives anything to the outside."""
    return op.name != "assert" or not operands[0]


def host_numbers(graph: Graph, made: Graph | None = None) -> dict[Operation, int]:
    """The numbers, in the order of `Graph.walk`, of the ops of a program that give something to the
    outside. made: what a pass made of the program, whose ops are then the keys."""
    numbers = {op: number for number, op in enumerate(graph.walk())}
    by_key = {key: numbers[op] for op, key in host_keys(graph, goes_outside).items()}
    keys = host_keys(graph if made is None else made, goes_outside)
    return {op: by_key[key] for op, key in keys.items()}


@dataclass(frozen=True, slots=True)
class WrongOperand:
    """An operand of a host op that a real run and the interpreter do not agree about, or how often
    the op ran. iterations: of the run."""

    difference: Difference
    op: Operation
    iterations: tuple[int, ...]


class _Group(NamedTuple):
    """Host ops, by their numbers, whose real runs are in one order."""

    numbers: tuple[int, ...]
    rows: Sequence[OperandRow]


class _Place(NamedTuple):
    """The k-th run of a group; operand: which tensor; None: whether there is such a run at all."""

    group: int
    k: int
    operand: int | None


def wrong_operands(
    record: StepRecord, log: RunLog, runs: Sequence[HostRun], *, counted: bool
) -> list[WrongOperand]:
    """Where what went into the host ops of a real run is not what the interpreter gave to them, in
    the order of the interpreter. log: of the real run, runs: of the interpreter. counted: whether
    an op that ran more or less often is wrong; not so where a step raised."""
    groups = _groups(record, log)
    wanted = _in_groups(groups, runs)
    found = dict(_differences(record, groups, wanted, counted))
    if not found:
        return []
    found = _unexplained(record, groups, wanted, found)
    order = {id(run): k for k, run in enumerate(runs)}
    ops = list(record.graph.walk())
    wrong: list[tuple[int, WrongOperand]] = []
    for place, difference in found.items():
        held = wanted[place.group]
        run = held[place.k] if place.k < len(held) else None
        number = groups[place.group].numbers[0] if run is None else run.number
        at = len(runs) if run is None else order[id(run)]
        inside = () if run is None else run.iterations
        wrong.append((at, WrongOperand(difference, ops[number], inside)))
    return [one for _, one in sorted(wrong, key=lambda pair: pair[0])]


def _groups(record: StepRecord, log: RunLog) -> list[_Group]:
    """What a real run has told of its host ops; of a task that said nothing there is none."""
    keys = host_keys(record.graph, goes_outside)
    numbers = {op: number for number, op in enumerate(record.graph.walk())}
    placed = record.way.parts
    logs = {one.device: one for one in log.parts} if placed else {"": log}
    places: dict[tuple[str, str], list[Operation]] = {}
    calls: dict[tuple[str, str], list[Operation]] = {}
    for op, key in keys.items():
        device = op.device if placed else ""
        places.setdefault((device, key.what), []).append(op)
        if op.name in PYTHON_CALLS:
            calls.setdefault((device, call_key(op.name, op.attrs).what), []).append(op)
    groups: list[_Group] = []
    native = set[Operation]()
    for (device, what), ops in calls.items():
        held = logs[device].operands if device in logs else None
        rows = [] if held is None else _heard(ops[0], held.get(HostKey(what, -1), []))
        if rows:
            native.update(ops)
            if len(ops) == 1 or all(op.attrs.get("ordered", True) for op in ops):
                groups.append(_Group(tuple(numbers[op] for op in ops), rows))
    for (device, what), ops in places.items():
        held = logs[device].operands if device in logs else None
        certain = len(ops) == 1 or all(map(_stays, ops))
        for number, op in enumerate(ops):
            if held is not None and op not in native and certain:
                rows = _heard(op, held.get(HostKey(what, number), []))
                in_turn = sorted(rows, key=lambda row: row.iterations)
                groups.append(_Group((numbers[op],), in_turn))
    return groups


def _stays(op: Operation) -> bool:
    """Whether no pass takes the op away, or merges it with another."""
    return {"no_dce", "no_cse"} <= lookup(op.name).traits


def _heard(op: Operation, rows: Sequence[OperandRow]) -> list[OperandRow]:
    return [row for row in rows if _is_heard(op, row.operands)]


def _in_groups(groups: Sequence[_Group], runs: Sequence[HostRun]) -> list[list[HostRun]]:
    """The runs of the interpreter, for each group."""
    group_of = {number: g for g, group in enumerate(groups) for number in group.numbers}
    found: list[list[HostRun]] = [[] for _ in groups]
    for run in runs:
        if run.number in group_of:
            found[group_of[run.number]].append(run)
    return found


def _differences(
    record: StepRecord, groups: Sequence[_Group], wanted: Sequence[Sequence[HostRun]], counted: bool
) -> Iterator[tuple[_Place, Difference]]:
    """What differs more than rounding does by itself."""
    ops, rtol = list(record.graph.walk()), tolerance(Program.of(record.graph))
    for g, (group, runs) in enumerate(zip(groups, wanted, strict=True)):
        for k, (row, run) in enumerate(zip(group.rows, runs, strict=False)):
            op = ops[run.number]
            where = _where(op, run.iterations)
            tensors = [i for i, v in enumerate(op.operands) if isinstance(v.type, TensorType)]
            triples = zip(tensors, run.operands, row.operands, strict=True)
            for number, (i, a, b) in enumerate(triples):
                found = difference_between(f"operand {i} of op '{op.name}'{where}", a, b, rtol)
                if found is not None and not found.close:
                    yield _Place(g, k, number), found
        many, asked = len(group.rows), len(runs)
        op = ops[group.numbers[0]]
        if counted and many != asked and _stays(op):
            why = f"ran {many} times instead of {asked}"
            place = _Place(g, min(many, asked), None)
            yield place, Difference(f"op '{op.name}'{_where(op, ())}", why)


def _where(op: Operation, iterations: tuple[int, ...]) -> str:
    """` (model.py:12:3, iteration 3, on /job:worker/task:0/cpu:0)`."""
    told = [str(op.locations[0])] if op.locations else []
    if iterations:
        told.append(f"iteration {', '.join(map(str, iterations))}")
    if op.device:
        told.append(f"on {op.device}")
    return f" ({', '.join(told)})" if told else ""


def _unexplained(
    record: StepRecord, groups: Sequence[_Group], wanted: Sequence[Sequence[HostRun]],
    found: Mapping[_Place, Difference],
) -> dict[_Place, Difference]:  # fmt: skip
    """The differences that are more than rounding errors put into the program make."""
    graph = expand_updates(record.graph)
    numbers = host_numbers(record.graph, graph)
    samples: list[list[list[HostRun]]] = []
    for rounding in roundings(0, anything=True):
        watch = OperandWatch(numbers, rounding)
        try:
            interpreted(record, watch, graph)
        except Overflow:
            return {}
        samples.append(_in_groups(groups, watch.runs))
    return {
        place: one for place, one in found.items() if not _explained(place, groups, wanted, samples)
    }


def _explained(
    place: _Place, groups: Sequence[_Group], wanted: Sequence[Sequence[HostRun]],
    samples: Sequence[Sequence[Sequence[HostRun]]],
) -> bool:  # fmt: skip
    g, k, operand = place
    if operand is None:
        return any(len(sample[g]) != len(wanted[g]) for sample in samples)
    if any(len(sample[g]) <= k for sample in samples):
        return True  # whether the op comes to this run depends on rounding
    values = [sample[g][k].operands[operand] for sample in samples]
    if any(x.shape != values[0].shape for x in values):
        return True
    spread = spread_of(values)
    both = (wanted[g][k].operands[operand], groups[g].rows[k].operands[operand])
    return all(within_spread(x, *spread) for x in both)
