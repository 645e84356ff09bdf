"""WEFT_CHECK: the op that made the first NaN, infinity or wrapped integer of a call.

A call runs as ever; then its results, and the variables that it wrote, are looked at, which reads
them once. Only where one is not finite the same program runs again, on the same inputs, the
variables as they were and what queues, files and Python functions gave (`runtime/run_log.py`), in
the reference interpreter (`ir/interpreter`), which is told of each op as it is carried out: the
first that makes such a value of operands without one is named, with the iterations around it and
the user's line. Prints, checks and callbacks are silent then. Nothing is compiled for it.

Integers that have wrapped look like any others: for `overflow` each call is run by the interpreter,
too. An index out of bounds is an error anyway; for `bounds` the iteration is added to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype
from weft.ir.errors import (
    BoundsError,
    InvalidArgumentError,
    OutOfRangeError,
    WeftError,
    suggest,
)
from weft.ir.graph import Operation
from weft.ir.interpreter.evaluate import LOOPS, Path, Watch, interpret
from weft.ir.interpreter.state import DictState
from weft.ir.locations import caller_location
from weft.ir.ops import lookup
from weft.ir.ops.io import muted
from weft.runtime.record.replay import HostReplay
from weft.runtime.record.traced_step import Call, TracedStep
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import RunLog, on_host, values_of

Array = np.ndarray[Any, Any]
KINDS = ("nan", "inf", "overflow", "bounds")


def wanted() -> frozenset[str]:
    """The kinds of values that WEFT_CHECK asks for. InvalidArgumentError for one that is none."""
    given = os.environ.get("WEFT_CHECK", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise InvalidArgumentError(
                f"WEFT_CHECK names '{name}', which does not exist{suggest(name, KINDS)}",
                hint=f"it knows {', '.join(KINDS)} (several with commas)",
            )
    return frozenset(names)


class ValueChecks:
    """Checks of the values of steps, as a `Watcher`. kinds: what is looked for."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """As of `Watcher`: InvalidArgumentError that names the op, where a result or a variable is
        not as it should be."""
        noted = step.log(log)
        written = {n: step.variables[n] for n in step.written if n in step.variables}
        before, given = values_of(written), list(inputs)
        for i in step.donated:
            given[i] = np.array(on_host(inputs[i]))

        def find(kind: str) -> None:
            self._find(step, noted, given, before, kind)

        try:
            results = call(inputs, noted)
        except BoundsError:
            if "bounds" in self.kinds:
                find("bounds")
            raise
        if "overflow" in self.kinds:
            find("overflow")
        found: list[tuple[str, Any]] = [(f"result {i}", r) for i, r in enumerate(results)]
        after: Mapping[str, Any] = step.after(noted) if step.remote else written
        found += [(f"variable '{name}'", value) for name, value in after.items()]
        for what, value in found:
            kind = _kind_of(value, self.kinds)
            if kind:
                find(kind)
                raise InvalidArgumentError(
                    f"WEFT_CHECK: {what} of '{step.name}' {_words(kind)}: the reference "
                    "interpreter makes none of the same inputs and variables: a kernel is at fault "
                    "(WEFT_VERIFY=native), or values are at the edge of what the dtype holds",
                    location=caller_location(),
                )
        return results

    def _find(
        self, step: TracedStep, log: RunLog | None, inputs: Sequence[Any],
        before: Mapping[str, Array], kind: str,
    ) -> None:  # fmt: skip
        """Run again; raises at the op that makes such a value, if one does."""
        graph = step.graph
        arrays = [on_host(x) for x in inputs]
        start = {n: a for n, a in step.before(log).items() if n not in step.written or step.remote}
        start |= before
        state = DictState(start)
        look = _Look(step.name, kind)
        host = HostReplay(graph, step.groups(log)).host(graph)
        with muted():
            try:
                interpret(graph, arrays, state, host=host, watch=look)
            except _Found as found:
                raise found.error from None
            except WeftError as error:
                if kind == "bounds" and look.where:
                    raise type(error)(
                        error.what + look.where, hint=error.hint, location=error.locations
                    ) from None
        held = [(f"argument '{n}'", a) for n, a in zip(graph.arg_names, arrays, strict=True)]
        held += [(f"before the call variable '{n}'", a) for n, a in start.items()]
        for what, array in held:
            if kind in ("nan", "inf") and _kind(array, frozenset({kind})):
                raise InvalidArgumentError(
                    f"WEFT_CHECK={kind}: {what} of '{step.name}' {_words(kind)}",
                    location=caller_location(),
                )


class _Found(BaseException):
    """Ends a run of the interpreter: what was looked for is found."""

    def __init__(self, error: WeftError) -> None:
        self.error = error


class _Look(Watch):
    """Told of each op; raises `_Found` at the first that makes a value of the kind. where: the
    iterations around the op that raised."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind, self.where = name, kind, ""

    def failed(
        self, op: Operation, around: Path, operands: Sequence[Any], error: WeftError
    ) -> None:
        self.where = self.where or _iterations(around)

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        if op.regions or op.name in ("constant", "read"):
            return
        for result in results:
            bad = _bad(op, operands, result, self.kind)
            if bad is not None and not any(_has(x, self.kind) for x in operands):
                raise _Found(self._error(op, around, operands, result, bad))

    def _error(
        self, op: Operation, around: Path, operands: Sequence[Any], result: Array, bad: Array
    ) -> WeftError:
        types = ", ".join(str(v.type) for v in op.operands)
        first = tuple(np.argwhere(bad)[0].tolist()) if result.ndim else ()
        where = f", first element {list(first)}" if first else ""
        same = [x for x in operands if np.shape(x) == np.shape(result)]
        given = ", ".join(str(x[first]) for x in same)
        cls = OutOfRangeError if self.kind == "overflow" else InvalidArgumentError
        return cls(
            f"WEFT_CHECK={self.kind}: op '{op.name}' ({types}) in '{self.name}' made "
            f"{_MADE[self.kind]}{_iterations(around)}: {np.count_nonzero(bad)} of {result.size} "
            f"elements{where}: {result[first]}"
            + (f" of {given}" if given else "")
            + (f", on {op.device}" if op.device else ""),
            location=op.locations,
        )


_MADE = {"nan": "a NaN", "inf": "an infinity", "overflow": "an integer that does not fit"}


def _words(kind: str) -> str:
    return "has a NaN" if kind == "nan" else "has an infinity"


def _iterations(around: Path) -> str:
    """`, in iteration 3 of op 'scan' at a.py:9`, outermost last."""
    loops = [(op, n) for op, n in around if op.name in LOOPS]
    places = [f" at {op.locations[0].file}:{op.locations[0].line}" if op.locations else ""
              for op, _ in loops]  # fmt: skip
    told = [f"iteration {n} of op '{op.name}'{place}"
            for (op, n), place in zip(loops, places, strict=True)]  # fmt: skip
    return f", in {' in '.join(reversed(told))}" if told else ""


def _is_float(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype != object and as_dtype(x.dtype).is_inexact


def _flags(x: Array, kind: str) -> Array:
    wide = x.astype(np.float32) if x.dtype.kind == "V" else x
    return np.isnan(wide) if kind == "nan" else np.isinf(wide)


def _kind(value: Any, kinds: frozenset[str]) -> str:
    """Which of "nan" and "inf" is in a value and in `kinds`; "" if none is."""
    array = None if value is None else on_host(value)
    if array is None or not _is_float(array) or not kinds & {"nan", "inf"}:
        return ""
    with np.errstate(all="ignore"):
        if array.dtype.kind in "fc" and np.isfinite(array.sum()):
            return ""
        return next((k for k in ("nan", "inf") if k in kinds and _flags(array, k).any()), "")


def _kind_of(value: Any, kinds: frozenset[str]) -> str:
    """As `_kind`, of a variable, too, whose value is looked at where it is."""
    if not isinstance(value, VariableState):
        return _kind(value, kinds)
    with value.lock.shared():
        if not value.initialized:
            return ""
        there = value.resident is not None  # on a device: to ask for the array would move it
        return _kind(value.read() if there else value.array, kinds)


def _has(x: Any, kind: str) -> bool:
    """Whether an operand has what an op is to have made: inf - inf makes a NaN all the same."""
    return kind != "overflow" and _is_float(x) and bool(_flags(x, kind).any())


def _bad(op: Operation, operands: Sequence[Any], result: Any, kind: str) -> Array | None:
    if kind == "overflow":
        return _wrapped(op, operands, result)
    if not _is_float(result):
        return None
    flags = _flags(result, kind)
    return flags if flags.any() else None


_INTEGER_OPS = frozenset(
    {
        *("add", "subtract", "multiply", "negative", "abs", "square", "sum", "prod", "matmul"),
        *("cumulative_sum", "cumulative_prod", "pow"),
    }
)


def _wrapped(op: Operation, operands: Sequence[Any], result: Any) -> Array | None:
    """Where an op on integers gave something else than it does in a wider dtype."""
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "iu":
        return None
    if op.name == "astype":
        (x,) = operands
        if x.dtype.kind == "b":
            return None
        info = np.iinfo(result.dtype)
        wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
        bad = np.asarray((wide < info.min) | (wide > info.max))
        return bad if bad.any() else None
    reference = lookup(op.name).reference
    if op.name not in _INTEGER_OPS or reference is None:
        return None
    exact = result.dtype.itemsize < 8
    wide = np.int64 if exact else np.float64
    made: Any = reference([np.asarray(x).astype(wide) for x in operands], op.attrs)
    again = np.asarray(made)
    if exact:
        bad = np.asarray(again != result)
    else:
        bad = np.asarray(np.abs(again - result.astype(np.float64)) > 2.0**62)
    return bad if bad.any() else None
