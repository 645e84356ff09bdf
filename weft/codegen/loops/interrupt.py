"""Interruption of a native loop from outside: by a signal (Ctrl-C), a deadline, a step that failed.

Loops count their iterations. After a fixed number of them they read the step's status word, and
call `look`: at most every `PERIOD_NS` it asks Python whether a signal has come, and the hook of
whoever runs the step (`FaultWords.hook`) whether to go on. If not, the exception is kept in the
fault words, the status becomes `STOPPED`, and the step ends as it does after an index out of
bounds.

The walker (`steps/walker.py`) goes round loops of kernels, which may take any time: it looks again
when about `PACE_NS` have gone by, after `MOST` iterations at most. A loop that is one kernel
(`register_kernel.py`) has iterations of single values: it looks after `MOST`.

`look` is native code (`weft.codegen.native_language`), part of the walker's kernel, which stores
its address where other kernels of the step find it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.native_language import call, call32, emit_source, load, stack, store
from weft.codegen.python_calls import API, CONSTANTS, DECREF, ENSURE, RELEASE, WORD, keep_error

#: Iterations between two looks, at most.
MOST = 4096
#: Nanoseconds between two looks of the walker, about; and between two times that Python is asked.
PACE_NS, PERIOD_NS = 1_000_000, 50_000_000
_NANO = 1_000_000_000
_MONOTONIC = 6 if sys.platform == "darwin" else 1
_LOOK_TYPE = ir.FunctionType(I64, [I64])
_ENSURE, _RELEASE, _DECREF = ENSURE, RELEASE, DECREF
_CLOCK, _GETPID, _GETTID, _SIGNALS, _CALL = (
    8 * API.index(n)
    for n in ("clock_gettime", "getpid", "gettid", "PyErr_CheckSignals", "PyObject_CallNoArgs")
)
_API, _HOOK, _DUE = (WORD[n] for n in ("api", "hook", "due"))
_LEFT, _SPAN, _LOOKED = (WORD[n] for n in ("left", "span", "looked"))


# -------------------------------------------------------------------------------------- native code
def now(api: int) -> int:
    """Nanoseconds."""
    time = stack(2)
    call32(load(api + _CLOCK), _MONOTONIC, time)
    return load(time) * _NANO + load(time + 8)


def ask(status: int, api: int) -> int:
    """Ask Python: what it raises stops the step."""
    hook = load(status + _HOOK)
    if (hook == 0) & (load(api + _GETTID) != 0):  # signals are the main thread's
        if call32(load(api + _GETTID)) != call32(load(api + _GETPID)):
            return 0
    held = call32(load(api + _ENSURE))
    good = call32(load(api + _SIGNALS)) == 0
    if good & (hook != 0):
        made = call(load(api + _CALL), hook)
        good = made != 0
        if good:
            call(load(api + _DECREF), made)
    if not good:
        keep_error(status, api)
    call(load(api + _RELEASE), held)
    return 0


def look(status: int) -> int:
    """The time, if there is anybody to ask; who is asked when it is time to. The first look of a
    run only begins to count."""
    api = load(status + _API)
    if api == 0:
        return 0
    time = now(api)
    due = load(status + _DUE)
    if due == 0:
        store(status + _DUE, time + PERIOD_NS)
    else:
        if time >= due:
            ask(status, api)
            store(status + _DUE, now(api) + PERIOD_NS)
    return time


def pace(status: int) -> int:
    """The walker's look: sets after how many iterations the next one is."""
    time = look(status)
    span = load(status + _SPAN)
    passed = time - load(status + _LOOKED)
    if passed < PACE_NS:
        span = span + span
    if passed > 4 * PACE_NS:
        span = span >> 3
    if span < 1:
        span = 1
    if span > MOST:
        span = MOST
    store(status + _SPAN, span)
    store(status + _LEFT, span)
    store(status + _LOOKED, time)
    return 0


def emit_looks(e: Emitter) -> dict[str, ir.Function]:
    """The native functions above, in this kernel, by name."""
    source = "\n".join(inspect.getsource(f) for f in (keep_error, now, ask, look, pace))
    constants = {**CONSTANTS, **{n: v for n, v in globals().items() if type(v) is int}}
    return emit_source(e, source, constants, ())


# ------------------------------------------------------------------------- what loops do about it
def emit_pace(
    e: Emitter, status: ir.Value, looks: dict[str, ir.Function], stop: Callable[[], None]
) -> None:
    """At the end of an iteration of the walker's; `stop` ends the function."""
    b = e.builder
    place = e.at(status, e.index(_LEFT // 8))
    left = b.sub(b.load(place), e.index(1))
    b.store(left, place)
    with b.if_then(b.icmp_signed("<=", left, e.index(0)), likely=False):
        b.call(looks["pace"], [b.ptrtoint(status, I64)])
        with b.if_then(b.icmp_signed("!=", b.load(status), e.index(0)), likely=False):
            stop()


def emit_count(
    e: Emitter, slot: ir.Value, status: ir.Value, stop: Callable[[], None],
    asks: ir.Value | None = None, most: int = MOST,
) -> None:  # fmt: skip
    """At the end of an iteration of a loop that is one kernel, or one part of a loop. slot: counts
    down from `most`; status: the fault words; asks: whether this thread may ask Python."""
    b = e.builder
    left = b.sub(b.load(slot), e.index(1))
    b.store(left, slot)
    with b.if_then(b.icmp_signed("<=", left, e.index(0)), likely=False):
        b.store(e.index(most), slot)
        function = b.load(e.at(status, e.index(WORD["look"] // 8)))
        known = b.icmp_signed("!=", function, e.index(0))
        with b.if_then(known if asks is None else b.and_(known, asks)):
            called = b.inttoptr(function, _LOOK_TYPE.as_pointer())
            b.call(called, [b.ptrtoint(status, I64)])
        found = b.load_atomic(status, "monotonic", 8)
        with b.if_then(b.icmp_signed("!=", found, e.index(0)), likely=False):
            stop()


def emit_begin(e: Emitter, status: ir.Value, looks: dict[str, ir.Function]) -> None:
    """At the start of the walker."""
    b = e.builder
    b.store(e.index(0), e.at(status, e.index(_DUE // 8)))
    b.store(b.ptrtoint(looks["look"], I64), e.at(status, e.index(WORD["look"] // 8)))
