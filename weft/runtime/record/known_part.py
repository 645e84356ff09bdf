"""The part of a recorded program that can be run again, where the record does not hold all that the
step took from outside: it raised while ops of the host were under way, or a task was lost, whose
log nobody has: neither what its queues and files gave, nor what its variables held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.ir.analysis.frames import is_dataflow
from weft.ir.dataclass import dataclass
from weft.ir.errors import DeadlineExceededError, UnavailableError, WeftError
from weft.ir.graph import Operation
from weft.passes.rewriting.rewrite import rebuilt, with_block
from weft.runtime.record.step_record import StepRecord
from weft.runtime.run_log import HostGroup, is_outside

#: So many ops an error names.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class UnknownPart:
    """What cannot be run again. ops: those whose own results are not in the record; count: with all
    that needs them, of so many in the program; silent: the tasks whose log is missing."""

    ops: tuple[Operation, ...]
    count: int
    total: int
    silent: tuple[str, ...]

    def error(self) -> WeftError:
        """What a replay raises that has come to it."""
        first = self.ops[0]
        if not self.silent:
            return nothing_given(first.name).at(first.locations)
        named = [_described(op) for op in self.ops[:_MOST_NAMED]]
        more = len(self.ops) - len(named)
        named += [f"{more} more"] if more else []
        return UnavailableError(
            f"{missing_logs(self.silent)}: {self.count} of {self.total} ops cannot be replayed, "
            f"for nobody knows what these held or gave: {', '.join(named)}",
            hint="inner values before them are there: record.values(), or weft replay --until OP",
            location=first.locations,
        )


def missing_logs(silent: tuple[str, ...]) -> str:
    """`the log of /job:worker/task:1 is missing`."""
    one = len(silent) == 1
    return f"the log{'' if one else 's'} of {', '.join(silent)} {'is' if one else 'are'} missing"


def _described(op: Operation) -> str:
    what = f"variable '{op.attrs['name']}'" if op.name == "variable" else f"'{op.name}'"
    places = [str(op.locations[0])] if op.locations else []
    return f"{what} ({', '.join([*places, f'on {op.device}'])})"


def nothing_given(name: str) -> WeftError:
    """The error of an op that had not ended when its step did."""
    return DeadlineExceededError(
        f"op '{name}' had given nothing when the recorded step ended",
        hint="the record goes as far as the step went",
    )


def known_part(record: StepRecord) -> tuple[StepRecord, UnknownPart | None]:
    """The record of what is known: without the ops outside of branches and loops whose results it
    does not hold, and without all that needs those."""
    roots = (
        [] if is_dataflow(record.graph.block) else list(_unknown(record))
    )  # there it may be dead
    if not roots:
        return record, None
    gone = {v for op in roots for v in op.results}
    kept: list[Operation] = []
    for op in record.graph.ops:
        if op in roots or gone.intersection((*op.operands, *op.control)):
            gone.update(op.results)
        else:
            kept.append(op)
    numbers = {op: k for k, op in enumerate(record.graph.walk())}
    results = [v for v in record.graph.results if v not in gone]
    graph = with_block(record.graph, rebuilt(record.graph.block, kept, results))
    new = {numbers[op]: k for k, op in enumerate(graph.walk())}
    host = [HostGroup(tuple(new[n] for n in g.ops), g.rows) for g in record.host
            if all(n in new for n in g.ops)]  # fmt: skip
    left = UnknownPart(tuple(roots), len(numbers) - len(new), len(numbers), record.silent)
    return replace(record, graph=graph, host=tuple(host)), left


def _unknown(record: StepRecord) -> Iterator[Operation]:
    """The ops outside of branches and loops whose results are not known. Of a step that has ended
    these are on tasks that said nothing; of one that raised also what had not ended."""
    numbers = {op: number for number, op in enumerate(record.graph.walk())}
    gave = {number for group in record.host if group.rows for number in group.ops}
    ended = record.outcome is not None and record.outcome.error is None
    for op in record.graph.ops:
        inside = (op, *(inner for region in op.regions for inner in region.walk()))
        under_way = is_outside(op.name) and numbers[op] not in gave and not ended
        if under_way or any(_said_nothing(record, inner) for inner in inside):
            yield op


def _said_nothing(record: StepRecord, op: Operation) -> bool:
    """Whether an op takes something that only a task without a log could tell."""
    if not any(op.device.startswith(f"{task}/") for task in record.silent):
        return False
    if op.name == "variable":
        return str(op.attrs["name"]) not in record.variables
    return is_outside(op.name)
