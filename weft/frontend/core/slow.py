"""Warnings of programs that take more time than they need: each is given once, at the user's line,
and says what to write instead."""

from __future__ import annotations

import warnings

from weft.ir.graph import Graph, Operation
from weft.ir.locations import Locations, caller_location
from weft.ir.ops import OPS, REGISTERED
from weft.ir.types import TensorType

#: Elements from which on it matters that an op reads and writes memory by itself.
LARGE = 1 << 15
#: Bytes of an array from which on it should not be a constant of a function.
LARGE_CONSTANT = 16 << 20
#: An eager call that takes so many seconds op by op is told of.
SLOW_CALL = 0.02


class PerformanceWarning(UserWarning):
    """A program takes more time or memory than it needs. The message says what to write instead.

    `Float64Warning` and `RecompileWarning` are such warnings, too.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", wf.PerformanceWarning)
    ...     wf.compile(lambda x: x * np.float64(2))(wf.ones(3))
    Traceback (most recent call last):
        ...
    weft.frontend.core.float64.Float64Warning: wf.multiply: float32 meets a NumPy scalar ...
    """


#: What was told of already.
told: set[object] = set()


def warn(message: str, category: type[Warning], place: Locations) -> None:
    """A warning at the user's line."""
    file, line = (place[0].file, place[0].line) if place else ("<unknown>", 0)
    warnings.warn_explicit(message, category, file, line)


def warn_once(key: object, message: str, category: type[Warning], place: Locations) -> None:
    """A warning at the user's line, for the first of equal keys."""
    if key in told:
        return
    told.add(key)
    try:
        warn(message, category, place)
    except category:  # where warnings are errors, the next one is one, too
        told.discard(key)
        raise


def note_slow_call(name: str, seconds: float) -> None:
    """Tell of a large eager call that took long, since no native code ran."""
    if seconds < SLOW_CALL:
        return
    message = (
        f"wf.{name} ran op by op in the interpreter, which took {seconds * 1e3:.0f} ms\n"
        "  hint: @wf.compile on the function that calls it; WEFT_LOG=compile says why it has no "
        "native code"
    )
    warn_once((name, "eager"), message, PerformanceWarning, caller_location())


def note_constant(kind: str, nbytes: int, function: str) -> None:
    """Tell of a large array that a compiled function takes from its surroundings."""
    message = (
        f"'{function}' takes an array of {nbytes >> 20} MB ({kind}) from its surroundings: it is "
        "copied into the compiled code's constants, and what is changed in it later is not seen\n"
        "  hint: pass it as an argument, or make it a wf.Variable"
    )
    place = caller_location()
    line = (place[0].file, place[0].line) if place else None
    warn_once(("constant", line), message, PerformanceWarning, place)


def note_unfused(graph: Graph) -> None:
    """Tell of registered elementwise ops that stand beside weft's own, which are fused without
    them."""
    if not REGISTERED:
        return
    for op in graph.block.walk():
        for value in op.operands:
            if value.op is not None:
                _note_pair(value.op, op)


def _note_pair(maker: Operation, user: Operation) -> None:
    for op, beside in ((maker, user), (user, maker)):
        registered = REGISTERED.get(op.name)
        if registered is None or not registered.elementwise or beside.name in REGISTERED:
            continue
        if "elementwise" not in OPS[beside.name].traits or not (
            _is_large(op) and _is_large(beside)
        ):
            continue
        message = (
            f"op '{op.name}' does not fuse with '{beside.name}' beside it: its kernel reads and "
            f"writes {op.results[0].type} in memory\n"
            "  hint: the same formula in wf functions becomes one loop with the ops around it"
        )
        key = (op.name, registered.number)
        warn_once(key, message, PerformanceWarning, op.locations)


def _is_large(op: Operation) -> bool:
    made = op.results[0].type
    size = made.size if isinstance(made, TensorType) else None
    return isinstance(size, int) and size >= LARGE
