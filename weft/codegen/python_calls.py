"""Native code that calls Python: a kernel for ops of the host in the middle of a native step, and
what it shares with the loops that ask Python whether to go on (`loops/interrupt.py`).

Python is reached through a table of addresses (`API`), whose address is in the fault words
(`faults.FaultWords.api`). What Python raises is kept in the fault words, the status becomes
`STOPPED`, and the step ends as it does after an index out of bounds.

The kernel takes the GIL and calls the object of its `Callee` argument with the address of the
words after it, as a Python integer. The words are, for each operand and then for each result, the
address of its elements and its sizes, which may be others in each call (`ir/sizes.py`);
`runtime/native/python_calls.py` makes arrays of them. Such a call is never cut over threads: the
thread that runs the step makes it."""

from __future__ import annotations

import inspect
import sys

from llvmlite import ir

from weft.codegen.call import Address, Arg, Callee, KernelCall, Status
from weft.codegen.faults import STOPPED, FaultWords
from weft.codegen.llvm.emitter import I8, I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.native_language import call, call32, emit_source, load, stack, store
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.types import TensorType

#: The words of the table at `FaultWords.api`: addresses of functions of CPython and of libc.
API = (
    "clock_gettime", "getpid", "gettid", "PyGILState_Ensure", "PyErr_CheckSignals",
    "PyObject_CallNoArgs", "Py_DecRef", "PyErr_Fetch", "PyErr_NormalizeException",
    "PyGILState_Release", "PyLong_FromLongLong", "PyObject_CallOneArg",
    "PyException_SetTraceback",
)  # fmt: skip
_AT = {name: 8 * k for k, name in enumerate(API)}
ENSURE, RELEASE, DECREF = (_AT[n] for n in ("PyGILState_Ensure", "PyGILState_Release", "Py_DecRef"))
_FETCH, _NORMALIZE = _AT["PyErr_Fetch"], _AT["PyErr_NormalizeException"]
_NUMBER, _CALL_ONE = _AT["PyLong_FromLongLong"], _AT["PyObject_CallOneArg"]
_TRACEBACK = _AT["PyException_SetTraceback"]
WORD = {str(row[0]): getattr(FaultWords, row[0]).offset for row in FaultWords._fields_}
_VALUE, _INDEX, _API = WORD["value"], WORD["index"], WORD["api"]
#: The places of arguments: what to call, and the first word that it is told the address of.
CALLEE, _FIRST = 1, 2


# -------------------------------------------------------------------------------------- native code
def keep_error(status: int, api: int) -> int:
    """Keep the exception that is set, with its traceback; the step stops. The GIL is held."""
    kept = stack(3)
    call(load(api + _FETCH), kept, kept + 8, kept + 16)
    call(load(api + _NORMALIZE), kept, kept + 8, kept + 16)
    call(load(api + DECREF), load(kept))
    if load(kept + 16) != 0:
        call32(load(api + _TRACEBACK), load(kept + 8), load(kept + 16))
        call(load(api + DECREF), load(kept + 16))
    store(status + _INDEX, load(kept + 8))
    store(status + _VALUE, STOPPED)
    return 0


def call_python(status: int, function: int, words: int) -> int:
    """`function(words)` under the GIL."""
    api = load(status + _API)
    held = call32(load(api + ENSURE))
    number = call(load(api + _NUMBER), words)
    made = 0
    if number != 0:
        made = call(load(api + _CALL_ONE), function, number)
        call(load(api + DECREF), number)
    if made != 0:
        call(load(api + DECREF), made)
    else:
        keep_error(status, api)
    call(load(api + RELEASE), held)
    return 0


#: What `keep_error` and `call_python` name.
CONSTANTS = {n: v for n, v in globals().items() if type(v) is int}


# ----------------------------------------------------------------------------------------- the call
def lower_python_call(op: Operation) -> list[KernelCall]:
    """The call of an op that Python carries out. UnsupportedError where Python is no CPython."""
    if sys.implementation.name != "cpython":
        raise UnsupportedError(
            f"op '{op.name}' calls Python from native code, which needs CPython",
            hint="build a wf.Graph and run it with wf.Session",
            location=op.locations,
        )
    args: list[Arg] = [Status(), Callee(op)]
    for value in (*op.operands, *op.results):
        if isinstance(value.type, TensorType):
            args += [Address(value), *value.type.static_shape]
    kernel = _CHECK if op.name == "assert" else _CALL
    return [KernelCall(kernel, tuple(args))]


def _emit_check(e: Emitter) -> None:
    """Python hears of an assertion that fails only."""
    b = e.builder
    holds = b.load(b.inttoptr(e.argument(_FIRST), I8.as_pointer()))
    with b.if_then(b.icmp_unsigned("==", holds, ir.Constant(I8, 0)), likely=False):
        _emit(e)


def _emit(e: Emitter) -> None:
    b = e.builder
    source = "\n".join(inspect.getsource(f) for f in (keep_error, call_python))
    made = emit_source(e, source, CONSTANTS, ())["call_python"]
    words = b.ptrtoint(e.at(e.arguments, e.index(_FIRST)), I64)
    b.call(made, [e.argument(0), e.argument(CALLEE), words])


_CALL = Kernel("python-call-1", "python_call", _emit, loops=False)
_CHECK = Kernel("python-check-1", "check", _emit_check, loops=False)
