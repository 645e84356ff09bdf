"""Fault words: how a kernel reports an index out of bounds (the words behind `call.Status`).

A kernel that meets one goes on without touching memory out of bounds; the step stops after the
call and raises. Of several the one at the smallest position is reported, whichever threads met
them."""

from __future__ import annotations

import ctypes

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.pool import emit_function, emit_pause, repeat_while
from weft.ir.analysis.index_maps import index_operand, index_sizes
from weft.ir.graph import Operation
from weft.ir.types import TensorType

#: Where the word keeps the number of the failed op of a call that holds several.
FAULT_SHIFT = 40
_LAST = (1 << FAULT_SHIFT) - 1
_REPORT_TYPE = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
_VALUE, _LOCK = 1, 2


#: The value for a step that was stopped from outside (`loops/interrupt.py`).
STOPPED = -1
#: The value for a kernel compiled by Numba that raised: no index of an op is at that position.
RAISED = 1


class FaultWords(ctypes.Structure):
    """The fault words of a step. value: 0, or which element of which op's index operand is out of
    bounds (`fault_of`), or `STOPPED`; index: that element, as its 64 bits, or the exception that
    stopped the step; lock: held while the two are written.

    The others are for loops (`loops/interrupt.py`). api: the table of addresses, 0 if there is
    nobody to ask; hook: a Python callable that raises what is to stop the step, 0 for none; look:
    the native function; due: when Python is asked next; left, span: iterations until the walker
    looks, and
    from the last look to that; looked: when it did."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("value", "index", "lock", "api", "hook", "look", "due", "left", "span", "looked"),
        )
    )


def fault_of(word: int) -> tuple[int, int]:
    """(number of the op in the call, position in its index operand) of a word that is not 0."""
    number, rest = divmod(word - 1, 1 << FAULT_SHIFT)
    return number, _LAST - rest


def describe_fault(op: Operation, position: int, index: int, cut: bool = False) -> str:
    """What is wrong with the element at `position` of the op's index operand, for people.

    cut: `index` is what is nearest to it of the integers of 32 bits.
    """
    operand = index_operand(op).type
    assert isinstance(operand, TensorType)
    axis, size = _axis_and_size(op, position)
    return (
        f"index {_told(index, operand.dtype.short, cut)} (element {position} of the index operand, "
        f"{operand}) is out of bounds for axis {axis} of size {size}"
    )


def _told(index: int, dtype: str, cut: bool) -> str:
    low, high = -(1 << 31), (1 << 31) - 1
    if cut and dtype in ("i64", "u32", "u64"):
        if index == high:
            return f"{high} or more"
        if index == low:
            return f"{low} or less" if dtype == "i64" else f"{1 << 63} or more"
    return str(index % (1 << 64) if dtype == "u64" else index)


def _axis_and_size(op: Operation, position: int) -> tuple[int, int]:
    axis, sizes = op.attrs.get("axis"), index_sizes(op)
    number = position % len(sizes)  # in a row of the index operand, which has one for each axis
    return axis if isinstance(axis, int) else number, sizes[number]


def emit_fault(
    e: Emitter, status: ir.Value, position: ir.Value, index: ir.Value, number: int = 0
) -> None:
    """Tell that element `position` of the index operand, `index` (both i64), is out of bounds.

    The word is the greater the earlier the position, so the greatest one stays."""
    b = e.builder
    word = b.sub(e.index(1 + _LAST + (number << FAULT_SHIFT)), position)
    b.call(emit_function(e, "fault", _REPORT_TYPE, _emit_report), [status, word, index])


def _emit_report(e: Emitter, args: list[ir.Value]) -> None:
    b = e.builder
    status, word, index = args
    lock = e.at(status, e.index(_LOCK))
    taken = e.alloca(ir.IntType(1))

    def take() -> ir.Value:
        pair = b.cmpxchg(lock, e.index(0), e.index(1), "acquire", "monotonic")
        b.store(b.extract_value(pair, 1), taken)
        return b.not_(b.load(taken))

    with repeat_while(e, take):
        emit_pause(e)
    with b.if_then(b.icmp_signed(">", word, b.load_atomic(status, "monotonic", 8))):
        b.store_atomic(word, status, "monotonic", 8)
        b.store_atomic(index, e.at(status, e.index(_VALUE)), "monotonic", 8)
    b.store_atomic(e.index(0), lock, "release", 8)
