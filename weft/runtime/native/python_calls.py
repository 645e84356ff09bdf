"""Python calls of native steps: what the kernel of `codegen/python_calls.py` calls, an object for
each op of a plan that Python carries out, and how a plan on disk says which.

Such an object makes arrays of the addresses and sizes that it is told the place of, and has the
op's reference (`ir/ops/io.py`) do the rest. Operands are views of the step's memory, which nobody
may write to, and nobody sees after the call, but for the bucket of a sum over processes: its mesh
adds up in it until it is asked for, or the step has failed (`settle_exchanges`). Ops added by
others need a row in `PYTHON_CALLS`."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import Any

import numpy as np

from weft.codegen.call import PythonCall
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InternalError, WeftError
from weft.ir.ops import lookup
from weft.ir.ops.collectives import exchange_into
from weft.ir.spec import Attrs
from weft.runtime.plan_store import NotKeptError
from weft.runtime.run_log import RunLog, call_key, is_outside

Array = np.ndarray[Any, Any]


class _Logged(threading.local):
    """What is told of the calls that steps of this thread make."""

    log: RunLog | None = None


_LOGGED = _Logged()


@contextmanager
def logged(log: RunLog | None) -> Iterator[None]:
    """`log` is told of the calls that steps of this thread make in the block."""
    before, _LOGGED.log = _LOGGED.log, log
    try:
        yield
    finally:
        _LOGGED.log = before


def carry_out_logged(op: str, given: Sequence[Array], attrs: Attrs) -> Sequence[Any]:
    """What the reference of an op that Python carries out gives; the log of this thread is told."""
    reference, log = lookup(op).reference, _LOGGED.log
    assert reference is not None
    if log is None:
        return list(reference(given, attrs))
    key = call_key(op, attrs)
    log.note_operands(key, (), given)
    if not is_outside(op):
        try:
            return list(reference(given, attrs))
        except WeftError:
            log.note_error(op)
            raise
    return log.carry_out(key, (), lambda: [*reference(given, attrs)])


def python_object(call: PythonCall) -> Callable[[int], None]:
    """What a native step calls for `call`, with the address of the words of its operands and
    results."""
    spec = lookup(call.op)
    assert spec.reference is not None
    reference, attrs, operands, results = spec.reference, call.attrs, call.operands, call.results

    def python_call(words: int) -> None:
        given, words = _arrays(operands, words, False)
        try:
            made: Any
            if call.op == "exchange" and _LOGGED.log is None:  # large arrays are not copied
                exchange_into(given, attrs, _arrays(results, words, True)[0])
                return
            if _LOGGED.log is None:
                made = reference(given, attrs)
            else:
                made = carry_out_logged(call.op, given, attrs)
        except BaseException as error:
            given.clear()
            _forget(error)
            raise
        if not results:
            return
        places, _ = _arrays(results, words, True)
        for place, value in zip(places, made, strict=True):
            if place.shape != value.shape or place.dtype != value.dtype:
                raise InternalError(
                    f"op '{call.op}' gave {value.dtype}{list(value.shape)}, its type is "
                    f"{place.dtype}{list(place.shape)}"
                )
            place[...] = value

    return python_call


def _forget(error: BaseException | None) -> None:
    """Clear weft's frames in the tracebacks of an error, and of those that it comes from: their
    arrays are views of the step's memory, which the error outlives. The user's have copies."""
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith("weft."):
                with suppress(RuntimeError):  # it still runs: `python_call`, and who called it
                    frame.clear()
        error = error.__cause__ or error.__context__


def _arrays(
    kinds: Sequence[tuple[DType, int]], words: int, writeable: bool
) -> tuple[list[Array], int]:
    """Arrays of these dtypes and ranks at the addresses that the words say, and what follows."""
    made = []
    for dtype, rank in kinds:
        address, *shape = (ctypes.c_int64 * (1 + rank)).from_address(words)
        size, words = int(np.prod(shape, dtype=np.int64)), words + 8 * (1 + rank)
        if size:
            memory: Any = (ctypes.c_byte * (size * dtype.itemsize)).from_address(address)
            made.append(np.ndarray(shape, dtype.numpy, memory))
        else:
            made.append(np.empty(shape, dtype.numpy))
        made[-1].flags.writeable = writeable
    return made, words


def pack_calls(calls: Sequence[PythonCall]) -> list[Any]:
    """Python calls as JSON holds them. NotKeptError for a function of the user's, which is another
    one in each process."""
    for call in calls:
        if "function" in call.attrs:
            raise NotKeptError(f"the Python function '{call.attrs['function']}'")
    return [
        [c.op, dict(c.attrs), *([[d.name, rank] for d, rank in k] for k in (c.operands, c.results))]
        for c in calls
    ]


def unpack_calls(held: Sequence[Any]) -> list[PythonCall]:
    """The opposite of `pack_calls`."""

    def kinds(rows: Sequence[Any]) -> tuple[tuple[DType, int], ...]:
        return tuple((as_dtype(name), rank) for name, rank in rows)

    def attrs(given: Mapping[str, Any]) -> dict[str, Any]:
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}

    return [PythonCall(op, attrs(given), kinds(a), kinds(b)) for op, given, a, b in held]
