"""WEFT_VERIFY=native: each run of a step is held against the reference interpreter.

The step runs as ever, on its real inputs and variables; then the interpreter runs its program as it
was traced on the same ones, and on what queues, files, Python functions and other tasks gave. A
result, or a variable that the step wrote, that differs by more than rounding is an error, and so
is a step that raises where the interpreter does not. The program is then shrunk (`shrink.py`), with
the values that it really had, to the ops whose kernels disagree.

Whichever way a step runs - one native plan, the dataflow executor, a GPU, several devices, the
tasks of a cluster - it is its program that is held against it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
from weft.runtime.record.agreement import disagreements
from weft.runtime.record.replay import Difference, Replayed, run_again
from weft.runtime.record.shrink import shrink_record
from weft.runtime.record.step_record import Outcome, StepRecord, save_record
from weft.runtime.record.traced_step import Call, TracedStep
from weft.runtime.run_log import RunLog, values_of

Array = np.ndarray[Any, Any]
#: Deadlines, cancellations and lost tasks: the interpreter knows none.
_NOT_THE_PROGRAM = (AbortedError, CancelledError, DeadlineExceededError, UnavailableError)


class NativeVerifier:
    """Holds runs of steps against the interpreter, as a `Watcher`."""

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """As of `Watcher`: VerifyError, with the user's line, for a run that the interpreter does
        not agree with."""
        log = step.log(log)
        given = tuple([_host(x) for x in inputs])
        before = step.before(None)
        results: list[Any] = []
        error: WeftError | None = None
        try:
            results = call(inputs, log)
        except WeftError as raised:
            if isinstance(raised, _NOT_THE_PROGRAM):
                raise
            error = raised
        after = values_of({n: step.variables[n] for n in step.written if n in step.variables})
        groups = step.groups(log)
        record = StepRecord(
            step.graph(), step.way, given, step.before(log) if step.remote else before,
            tuple(groups), Outcome(tuple(results), error=error),
        )  # fmt: skip
        with muted():
            wanted = run_again(record, "interpreter")
        found = Replayed(tuple([None if r is None else _host(r) for r in results]), after, error)
        written = tuple(after)
        wrong = disagreements(record, wanted, found, written)
        if wrong and not _expected(wanted, error):
            raise _verify_error(step, record, wrong)
        if error is not None:
            raise error
        return results


def _expected(wanted: Replayed, error: WeftError | None) -> bool:
    """Whether both have failed: which of several errors comes first depends on the order."""
    return wanted.error is not None and error is not None


def _verify_error(step: TracedStep, record: StepRecord, wrong: list[Difference]) -> VerifyError:
    """The error, with the smallest program that shows it."""
    head = f"WEFT_VERIFY=native: {wrong[0]} in '{step.name}', says the reference interpreter"
    with muted():
        small = shrink_record(record)
    if small is None:
        return VerifyError(
            head,
            hint="no smaller program of one native plan shows it: what differs is in how the "
            f"step runs as '{step.way.kind}'; wf.record keeps the step",
        )
    folder = Path(os.environ.get("WEFT_DUMP") or ".")
    path = folder / f"verify-native-{os.getpid()}-{small.record.graph.name}.safetensors"
    save_record(small.record, path)
    op = next((o for o in small.record.graph.ops if o.locations), None)
    names = ", ".join(o.name for o in small.record.graph.ops if o.name != "constant")
    return VerifyError(
        f"{head}; a program of {len(small.record.graph.ops)} ops shows it ({names}): "
        f"{small.difference}",
        hint=f"weft replay {path} --engine native --engine interpreter",
        location=op.locations if op is not None else (),
    )


def _host(x: Any) -> Array:
    """A copy on the host of an array or of a tensor of a device."""
    return np.array(x if isinstance(x, (np.ndarray, np.generic, int, float)) else x.numpy())
