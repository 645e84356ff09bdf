"""Interfaces of CPython, NumPy and libc for the native call path: addresses and layouts.

Addresses and layouts are looked up and probed once per process. Where this Python or NumPy is laid
out otherwise (a free-threaded build, no POSIX), `native_api()` is None, one line in the log
`weft.compile` says why, and calls go through Python: the same results, about a microsecond later.
`WEFT_NATIVE_CALLS=0` asks for that.

Compiling the call path takes longer than most kernels, so calls do not wait: a process's first
calls go through Python, the second call of a step begins to compile it (`begin_native_api`), and
the first one after that is done goes on with it. `native_api()` waits, for who must have it: tests.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import logging
import os
import sys
import sysconfig
import threading
from dataclasses import field
from functools import cache
from typing import Any

import numpy as np

from weft.codegen.llvm import jit
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.native_language import LANGUAGE_VERSION, emit_source
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import float64
from weft.ir.errors import InvalidArgumentError
from weft.ir.process import around_fork, cpython
from weft.runtime.native import call_path
from weft.runtime.native import layout as at
from weft.runtime.resources.variable_lock import VariableLock
from weft.runtime.resources.variables import VariableState

_log = logging.getLogger("weft.compile")
_EXPORTS = (
    "vectorcall", "run_list", "pool_malloc", "pool_calloc", "pool_realloc", "pool_free",
    "pool_trim",
)  # fmt: skip
_PYTHON = {
    at.INCREF: "Py_IncRef", at.DECREF: "Py_DecRef", at.VECTORCALL: "PyObject_Vectorcall",
    at.CALL_NO_ARGS: "PyObject_CallNoArgs", at.CONTEXT_GET: "PyContextVar_Get",
    at.SAVE_THREAD: "PyEval_SaveThread", at.RESTORE_THREAD: "PyEval_RestoreThread",
    at.TYPE_ALLOC: "PyType_GenericAlloc", at.TUPLE_NEW: "PyTuple_New",
    at.TUPLE_SIZE: "PyTuple_Size", at.TUPLE_GET: "PyTuple_GetItem",
    at.TUPLE_SET: "PyTuple_SetItem", at.LIST_NEW: "PyList_New", at.LIST_SIZE: "PyList_Size",
    at.LIST_GET: "PyList_GetItem", at.LIST_SET: "PyList_SetItem", at.DICT_NEW: "PyDict_New",
    at.DICT_SIZE: "PyDict_Size", at.DICT_GET: "PyDict_GetItemWithError",
    at.DICT_SET: "PyDict_SetItem", at.LONG_AS: "PyLong_AsLongLong",
    at.LONG_FROM: "PyLong_FromLongLong", at.ERR_CLEAR: "PyErr_Clear",
    at.ERR_OCCURRED: "PyErr_Occurred", at.ERR_FETCH: "PyErr_Fetch",
    at.ERR_RESTORE: "PyErr_Restore", at.THREAD_IDENT: "PyThread_get_thread_ident",
}  # fmt: skip
_NUMPY_NEW_FROM_DESCR, _NUMPY_GET_HANDLER = 94, 305  # positions in NumPy's C API table
DEFAULT_POOL_BYTES = 256 << 20


class _Refused(Exception):
    """The reason why there is no native call path here."""


@dataclass
class NativeApi:
    """The native call path. table: the address of the words that the native code is given.
    functions: its entry points.

    `keep`: what these words point to; it lives as long as the process.
    """

    words: Any
    functions: dict[str, int]
    pool: Any
    keep: list[Any] = field(default_factory=list)

    @property
    def table(self) -> int:
        return ctypes.addressof(self.words)

    def set(self, offset: int, value: int) -> None:
        """Fill a word of the table."""
        self.words[offset // 8] = value

    def kept_bytes(self) -> int:
        """Bytes of dropped results that are kept for the next ones."""
        return int(self.pool[at.P_KEPT // 8])

    def limit_pool(self, nbytes: int) -> None:
        """Keep at most so many bytes from now on; the kept ones are given back to the system."""
        self.pool[at.P_LIMIT // 8] = nbytes
        trim = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        trim(self.functions["pool_trim"])(ctypes.addressof(self.pool))


_lock = threading.RLock()  # reentrant: the thread that forks may hold it
_made: list[NativeApi | None] = []
around_fork(_lock.acquire, _lock.release)  # LLVM is at work below it


def native_api() -> NativeApi | None:
    """The one of this process, compiled on first use; None where there is none."""
    if not _made:
        with _lock:
            if not _made:
                try:
                    _made.append(_make())
                except _Refused as reason:
                    _log.info("calls go through Python: %s", reason)
                    _made.append(None)
    return _made[0]


_begun: list[bool] = []  # no Event: a child would find its lock held by a thread that is gone


def native_api_or_none() -> NativeApi | None:
    """As `native_api`, but never waits: None until it is compiled, for calls through Python."""
    if not _made and _begun and jit.is_done(native_kernel()):
        native_api()
    return _made[0] if _made else None


def begin_native_api() -> None:
    """Have it compiled in other threads, unless that has begun; `is_native_api_known` later."""
    if _made or _begun:
        return
    try:
        _check_platform()
    except _Refused:
        native_api()
        return
    jit.start_compiling([native_kernel()])
    _begun.append(True)


def is_native_api_known() -> bool:
    """Whether `native_api()` returns at once."""
    return bool(_made)


def word_of(instance: object, value: object) -> int:
    """The offset in `instance` of the reference to `value`, which it holds in one slot. ValueError
    if it does not."""
    count = type(instance).__basicsize__ // 8
    words = (ctypes.c_int64 * count).from_address(id(instance))
    return 8 * list(words).index(id(value))


def function_address(name: str) -> int:
    """The address of a function of CPython."""
    found = getattr(cpython, name)
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def method_address(method: Any) -> int:
    """The C function of a bound method."""
    definition = _word(method, at.METHOD_DEFINITION)
    return ctypes.c_int64.from_address(definition + at.DEFINITION_FUNCTION).value


# ------------------------------------------------------------------------------------------ making
def _check_platform() -> None:
    given = os.environ.get("WEFT_NATIVE_CALLS", "1")
    if given not in ("0", "1"):
        raise InvalidArgumentError(
            f"WEFT_NATIVE_CALLS={given!r} means nothing", hint="it is 0 or 1 (the default)"
        )
    if given == "0":
        raise _Refused("WEFT_NATIVE_CALLS=0")
    if os.name != "posix" or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise _Refused("this is no 64-bit POSIX system")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise _Refused("this Python is not CPython with a GIL")


def _make() -> NativeApi:
    _check_platform()
    numpy_table = _numpy_table()
    _probe(numpy_table)
    functions = _compiled()
    words = (ctypes.c_int64 * at.API_WORDS)()
    pool = _pool()
    made = NativeApi(words, functions, pool)
    for offset, name in _PYTHON.items():
        made.set(offset, function_address(name))
    gate = VariableLock().gate
    made.set(at.GATE_ACQUIRE, method_address(gate.acquire))
    made.set(at.GATE_RELEASE, method_address(gate.release))
    objects = {
        at.NDARRAY: np.ndarray, at.TYPE_TUPLE: tuple, at.TYPE_LIST: list, at.TYPE_DICT: dict,
        at.TYPE_FLOAT: float, at.TYPE_INT: int, at.TYPE_BOOL: bool, at.NONE: None,
        at.FALSE: False, at.TRUE: True, at.NO_ARGUMENTS: (),
    }  # fmt: skip
    for offset, value in objects.items():
        made.set(offset, id(value))
    marker = np.zeros(1)
    state = VariableState("probe", float64, (1,))
    state.array = marker
    made.set(at.VARIABLE_ARRAY, word_of(state, marker))
    made.set(at.ARRAY_NEW, numpy_table[_NUMPY_NEW_FROM_DESCR])
    made.set(at.POOL, ctypes.addressof(pool))
    handler = _handler(functions, pool)
    made.set(at.HANDLER, id(handler))
    made.keep += [handler, numpy_table]
    # results may die after this module does: nothing that frees them may go before
    cpython.Py_IncRef(ctypes.py_object(made))
    return made


@cache
def native_kernel() -> jit.Kernel:
    """The code of the native call path, as a kernel that stores its functions' addresses."""
    source = inspect.getsource(call_path)
    layout = inspect.getsource(at)

    def emit(e: Emitter) -> None:
        emit_source(e, source, {"at": at}, _EXPORTS)

    from_text = hashlib.sha256((source + layout + LANGUAGE_VERSION).encode()).hexdigest()
    return jit.Kernel(f"native-calls-{from_text}", "native_calls", emit, loops=False)


def _compiled() -> dict[str, int]:
    kernel = native_kernel()
    address = jit.compile_kernels([kernel])[kernel.key]
    found = (ctypes.c_int64 * len(_EXPORTS))()
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    store(address)(ctypes.addressof(found), 0, 0, 0)
    return dict(zip(_EXPORTS, found, strict=True))


def pool_bytes() -> int:
    """How many bytes of dropped results are kept: WEFT_POOL_BYTES, or 256 MiB, or an eighth of the
    machine's memory. InvalidArgumentError for a value that is no count of bytes."""
    given = os.environ.get("WEFT_POOL_BYTES", "")
    if given:
        if not given.isdigit():
            raise InvalidArgumentError(
                f"WEFT_POOL_BYTES={given!r} is no count of bytes", hint="0 keeps nothing"
            )
        return int(given)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(DEFAULT_POOL_BYTES, machine // 8)


def _pool() -> Any:
    libc = ctypes.CDLL(None)
    pool = (ctypes.c_int64 * (at.P_HEADS // 8 + at.POOL_CLASSES))()
    names = {
        at.P_ALIGNED_ALLOC: "aligned_alloc", at.P_FREE: "free", at.P_MEMSET: "memset",
        at.P_MEMCPY: "memcpy",
    }  # fmt: skip
    if sys.platform == "linux":
        names[at.P_MADVISE] = "madvise"
    for offset, name in names.items():
        pool[offset // 8] = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0
    pool[at.P_LIMIT // 8] = pool_bytes()
    return pool


class _Handler(ctypes.Structure):
    """PyDataMem_Handler (NEP 49)."""

    _fields_ = (
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("ctx", ctypes.c_int64),
        ("malloc", ctypes.c_int64), ("calloc", ctypes.c_int64), ("realloc", ctypes.c_int64),
        ("free", ctypes.c_int64),
    )  # fmt: skip


_HANDLER_NAME = b"mem_handler"


def _handler(functions: dict[str, int], pool: Any) -> Any:
    steps = (functions[f"pool_{name}"] for name in ("malloc", "calloc", "realloc", "free"))
    held = _Handler(b"weft", 1, ctypes.addressof(pool), *steps)
    cpython.Py_IncRef(ctypes.py_object(held))  # lives as long as the process
    return new_capsule(ctypes.addressof(held), _HANDLER_NAME)


_NAMES: dict[bytes, Any] = {}  # CPython keeps no copy of a capsule's name


def new_capsule(address: int, name: bytes) -> Any:
    """A PyCapsule without destructor."""
    held = _NAMES.setdefault(name, ctypes.create_string_buffer(name))
    make = cpython.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return make(address, ctypes.addressof(held), None)


# ----------------------------------------------------------------------------------------- probing
def _numpy_table() -> Any:
    capsule = np._core.multiarray._ARRAY_API  # type: ignore[attr-defined]
    pointer = cpython.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(capsule, None)
    if not table:
        raise _Refused("NumPy shows no C API")
    return (ctypes.c_int64 * 320).from_address(table)


def _probe(numpy_table: Any) -> None:
    """Check the layouts that native code relies on, on objects made for that."""
    array = np.zeros((2, 3), np.float32)
    row = array[1:]
    gate = VariableLock().gate
    get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(numpy_table[_NUMPY_GET_HANDLER])
    checks = {
        "an object's type": (_word(array, at.OBJECT_TYPE), id(np.ndarray)),
        "a method's object": (_word(gate.acquire, at.METHOD_OBJECT), id(gate)),
        "a list's length": (_word([1, 2, 3], at.LIST_LENGTH), 3),
        "an array's data": (_word(array, 16), array.ctypes.data),
        "an array's rank": (_word(array, at.ARRAY_NDIM) & 0xFFFFFFFF, 2),
        "an array's shape": (_list(_word(row, at.ARRAY_DIMS), 2), [1, 3]),
        "an array's dtype": (_word(array, at.ARRAY_DESCR), id(array.dtype)),
        "an array's flags": (_word(array, at.ARRAY_FLAGS) & 0xFFFF, array.flags.num),
        "an array's allocator": (_word(array, at.ARRAY_HANDLER), id(get_handler())),
        "a view's allocator": (_word(row, at.ARRAY_HANDLER), 0),
        "a float's value": (_word(1.5, at.FLOAT_VALUE), 0x3FF8 << 48),
        "a NumPy scalar's value": (_word(np.int64(77), at.SCALAR_VALUE), 77),
        "a capsule's pointer": (_word(new_capsule(4096, b"probe"), at.CAPSULE_POINTER), 4096),
    }  # fmt: skip
    for what, (seen, wanted) in checks.items():
        if seen != wanted:
            raise _Refused(f"{what} is not where weft looks for it")


def _word(value: object, offset: int) -> int:
    return ctypes.c_int64.from_address(id(value) + offset).value


def _list(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))
