"""WEFT_VERIFY=native: each run of a step is held against the reference interpreter.

The step runs as ever, on its real inputs and variables; then the interpreter runs its program as it
was traced on the same ones, and on what queues, files, Python functions and other tasks gave. A
result, a variable that the step wrote, or what went into a queue, a file, a print or a Python
function (`host_operands.py`), that differs by more than rounding is an error, and so is a step that
raises where the interpreter does not. The program is then shrunk (`shrink.py`), with the values
that it really had, to the ops whose kernels disagree.

A step beside which another one that is verified writes to its variables is not compared.

Whichever way a step runs - one native plan, the dataflow executor, a GPU, several devices, the
tasks of a cluster - it is its program that is held against it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.ir.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    UnavailableError,
    VerifyError,
    WeftError,
)
from weft.ir.ops.io import muted
from weft.ir.process import ForkLock
from weft.runtime.checkpoint.format import SUFFIX
from weft.runtime.record.agreement import disagreements
from weft.runtime.record.host_operands import (
    OperandWatch,
    WrongOperand,
    host_numbers,
    wrong_operands,
)
from weft.runtime.record.needs import needs_of, replay_command
from weft.runtime.record.replay import Difference, Replayed, run_again
from weft.runtime.record.shrink import Small, shrink_operands, shrink_record
from weft.runtime.record.step_record import Outcome, StepRecord, file_stem, save_record
from weft.runtime.record.traced_step import Call, TracedStep
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import RunLog, on_host

Array = np.ndarray[Any, Any]
_numbers = itertools.count()  # of files
#: Deadlines, cancellations and lost tasks: the interpreter knows none.
_NOT_THE_PROGRAM = (AbortedError, CancelledError, DeadlineExceededError, UnavailableError)


class _Writes:
    """How often steps that are verified began or ended to write each variable, and how many are at
    it: a step beside others that write what it reads or writes is not judged."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._counts: WeakKeyDictionary[VariableState, int] = WeakKeyDictionary()
        self._under_way: WeakKeyDictionary[VariableState, int] = WeakKeyDictionary()

    def begin(self, step: TracedStep) -> list[int] | None:
        """The step begins; what `end` is given. None if others write its variables now."""
        with self._lock:
            alone = not any(self._under_way.get(s, 0) for s in step.variables.values())
            self._add(step, 1)
            return self._seen(step) if alone else None

    def end(self, step: TracedStep, seen: list[int] | None) -> bool:
        """It has ended; whether nobody else wrote."""
        with self._lock:
            alone = seen is not None and seen == self._seen(step)
            self._add(step, -1)
            return alone

    def _seen(self, step: TracedStep) -> list[int]:
        return [self._counts.get(state, 0) for state in step.variables.values()]

    def _add(self, step: TracedStep, change: int) -> None:
        for name in step.written & step.variables.keys():
            state = step.variables[name]
            self._counts[state] = self._counts.get(state, 0) + 1
            self._under_way[state] = self._under_way.get(state, 0) + change


_writes = _Writes()


class NativeVerifier:
    """Holds runs of steps against the interpreter, as a `Watcher`."""

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """As of `Watcher`: VerifyError, with the user's line, for a run that the interpreter does
        not agree with."""
        log = step.log_with_operands(log)
        given = tuple([np.array(on_host(x)) for x in inputs])
        seen = _writes.begin(step)
        before = step.before(None)
        results: list[Any] = []
        error: WeftError | None = None
        after: dict[str, Any] = {}
        try:
            results = call(inputs, log)
        except WeftError as raised:
            error = raised
        finally:
            after = step.after(log)
            alone = _writes.end(step, seen)
        told = not step.silent(log)  # else not all can be run again
        if told and alone and not isinstance(error, _NOT_THE_PROGRAM):
            _check(step, log, given, before, Replayed(_copies(results), after, error))
        if error is not None:
            raise error
        return results


def _copies(results: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([None if r is None else np.array(on_host(r)) for r in results])


def _check(
    step: TracedStep, log: RunLog | None, inputs: tuple[Array, ...], before: dict[str, Array],
    found: Replayed,
) -> None:  # fmt: skip
    """VerifyError where the interpreter gives something else."""
    record = StepRecord(
        step.graph, step.way, inputs, step.before(log) if step.remote else before,
        tuple(step.groups(log)), Outcome(found.results, error=found.error), made=time.time(),
    )  # fmt: skip
    watch = OperandWatch(host_numbers(record.graph))
    wrong: list[Difference] = []
    operands: list[WrongOperand] = []
    with muted(assertions=False):
        wanted = run_again(record, "interpreter", watch)
        refused = log is not None and any(part.refused for part in (log, *log.parts))
        again = wanted.error is not None or refused
        if found.error is None or not again:  # of two errors, which comes first is not said
            wrong = disagreements(record, wanted, found, tuple(found.variables))
        if not wrong and log is not None:
            counted = wanted.error is None and found.error is None
            operands = wrong_operands(record, log, watch.runs, counted=counted)
    with muted():
        if wrong:
            raise _verify_error(step, record, wrong[0], shrink_record(record))
        if operands:
            first = operands[0]
            small = shrink_operands(record, first.op, first.iterations) or shrink_record(record)
            raise _verify_error(step, record, first.difference, small).at(first.op.locations)


def _verify_error(
    step: TracedStep, record: StepRecord, wrong: Difference, small: Small | None
) -> WeftError:
    """The error, with the smallest program that shows it."""
    head = f"WEFT_VERIFY=native: {wrong} in '{step.name}', says the reference interpreter"
    if small is None:
        why = "" if step.way.kind == "native" else f": look at how it runs as '{step.way.kind}'"
        return VerifyError(
            head, hint=f"no smaller program shows it in one native plan{why}; wf.record keeps steps"
        )
    folder = Path(os.environ.get("WEFT_DUMP") or ".")
    stem = f"verify-native-{file_stem(small.record)}-{os.getpid()}-{next(_numbers)}"
    path = folder / f"{stem}{SUFFIX}"
    engines = " --engine native --engine interpreter"
    hint = replay_command(path, needs_of(small.record.graph), engines)
    try:
        save_record(small.record, path)
    except WeftError as error:  # what was found matters more
        hint = f"that program cannot be written: {error.what}"
    op = next((o for o in small.record.graph.ops if o.locations), None)
    names = ", ".join(o.name for o in small.record.graph.ops if o.name != "constant")
    return VerifyError(
        f"{head}; a program of {len(small.record.graph.ops)} ops shows it ({names}): "
        f"{small.difference}",
        hint=hint,
        location=op.locations if op is not None else (),
    )
