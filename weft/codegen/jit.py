"""The process-wide table of compiled kernels: content key -> native address.

Every kernel has the C signature ``void kernel(int64_t *args, int64_t lo, int64_t hi, int64_t
worker)``.  Kernels are immutable once compiled and live as long as the process.  LLVM is loaded
when the first kernel is compiled; Numba only for kernels that call plain Python functions.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from weft.codegen.emitter import Emitter
from weft.ir import loading
from weft.ir.fork import around_fork

__all__ = [
    "CodegenError",
    "Emitter",
    "Kernel",
    "adopt_kernel",
    "compile_count",
    "compile_kernels",
    "do_later",
    "is_done",
    "kernel_asm",
    "kernel_llvm",
    "load_count",
    "load_kernels",
    "start_compiling",
    "wait_for_background",
]


class CodegenError(RuntimeError):
    """A kernel that weft generated did not compile: always weft's fault, never the user's."""


class NeedsNumbaError(Exception):
    """The kernel calls a plain Python function, which only Numba compiles."""


@dataclass(frozen=True)
class Kernel:
    """A kernel emitted as LLVM.

    ``key`` identifies its content (equal keys = equal code, on disk too: `llvm/cache_key.py`),
    ``name`` is for people and appears in LLVM and assembly, ``emit`` builds the body at
    ``e.builder`` and reads ``e.argument(k)``.  ``loops=False`` says that it is control code, which
    LLVM shall compile with few passes; functions marked ``alwaysinline`` are inlined there, no
    others.
    """

    key: str
    name: str
    emit: Callable[[Emitter], None]
    loops: bool = True


class Code(Protocol):
    """Machine code of one kernel in this process; texts are made when asked for."""

    @property
    def address(self) -> int: ...

    @property
    def from_disk(self) -> bool: ...

    def llvm(self) -> str: ...

    def asm(self) -> str: ...


Outcome = Code | Exception


class Engine(Protocol):
    """What turns kernels into code: `codegen.llvm.engine`, `codegen.llvm.numba_engine`."""

    def compile(self, kernels: Sequence[Kernel]) -> Sequence[Outcome]: ...


LOADED_AT = loading.LOADED_AT

_compiled: dict[str, Code] = {}
# Never freed, not even at exit: LLVM's bindings may be gone by then, and code may still run.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_compiled))
_counts = {"compiled": 0, "loaded": 0}
# Reentrant: the thread that forks may hold it.
_lock = threading.RLock()


def _before_fork() -> None:
    """Wait for compilations in progress: a child would find LLVM's own locks as they are now, held
    by threads that it does not have."""
    _lock.acquire()
    if _engine.cache_info().currsize:
        _engine().wait()


around_fork(_before_fork, _lock.release)


@cache
def _engine() -> Any:
    return importlib.import_module("weft.codegen.llvm.engine").ENGINE


def start_compiling(kernels: Sequence[Kernel]) -> None:
    """Begin to compile those of ``kernels`` that are new, in other threads, and return at once.

    `compile_kernels` takes the results, failures among them.
    """
    missing = [k for k in kernels if k.key not in _compiled]
    if missing:
        with _lock:
            _engine().start([k for k in missing if k.key not in _compiled])


def is_done(kernel: Kernel) -> bool:
    """Whether `compile_kernels` would return at once: it did, or what `start_compiling` began is
    over."""
    return kernel.key in _compiled or bool(_engine().is_done(kernel.key))


def compile_kernels(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Compile those of ``kernels`` that are new; returns key -> address for all of them.

    New kernels come from the cache on disk or are compiled, several at a time.  Safe to call from
    any number of threads.  Raises CodegenError, naming the kernel, if one does not compile; the
    others of the call are compiled all the same.
    """
    # Entries are only ever added, so a complete hit needs no lock.
    if any(kernel.key not in _compiled for kernel in kernels):
        with _lock:
            _compile_missing(kernels)
    return {kernel.key: _compiled[kernel.key].address for kernel in kernels}


def adopt_kernel(key: str, make: Callable[[], Code]) -> None:
    """Have `make` compile the kernel, if the process does not have it: by another compiler, never
    from disk. What `make` raises is the caller's."""
    if key not in _compiled:
        with _lock:
            if key not in _compiled:
                _compiled[key] = make()
                _counts["compiled"] += 1


def do_later(job: Callable[[], None]) -> None:
    """Do `job`, which must not compile anything, in another thread: a fork or the end of the
    process waits for it."""
    with _lock:
        _engine().later(job)


def wait_for_background() -> None:
    """Until all that was begun in other threads is over: kernels compiled early, files written."""
    with _lock:
        _engine().wait()


def load_kernels(files: Mapping[str, str]) -> dict[str, int] | None:
    """key -> address of kernels whose files in the cache on disk are known (`llvm/cache.py`), by
    key. None if one of them is not there any more: `compile_kernels` then makes what is missing.
    """
    if any(key not in _compiled for key in files):
        with _lock:
            missing = {key: file for key, file in files.items() if key not in _compiled}
            loaded = _engine().load(missing) if missing else {}
            if loaded is None:
                return None
            _compiled.update(loaded)
            _counts["loaded"] += len(loaded)
    return {key: _compiled[key].address for key in files}


def compile_count() -> int:
    """How many kernels this process has compiled so far, those from disk not counted."""
    return _counts["compiled"]


def load_count() -> int:
    """How many kernels this process has loaded from the cache on disk so far."""
    return _counts["loaded"]


def kernel_llvm(key: str) -> str:
    """Optimised LLVM IR of the kernel's functions; KeyError if it is not compiled."""
    return _compiled[key].llvm()


def kernel_asm(key: str) -> str:
    """Assembly of the kernel's functions; KeyError if it is not compiled."""
    return _compiled[key].asm()


def _compile_missing(kernels: Sequence[Kernel]) -> None:
    missing = list({k.key: k for k in kernels if k.key not in _compiled}.values())
    if not missing:
        return
    outcomes: list[Outcome] = list(_engine().compile(missing))
    others = [k for k, outcome in enumerate(outcomes) if isinstance(outcome, NeedsNumbaError)]
    if others:
        numba: Engine = importlib.import_module("weft.codegen.llvm.numba_engine").ENGINE
        compiled = numba.compile([missing[k] for k in others])
        for k, outcome in zip(others, compiled, strict=True):
            outcomes[k] = outcome
    failures: list[tuple[str, Exception]] = []
    for kernel, outcome in zip(missing, outcomes, strict=True):
        if isinstance(outcome, Exception):
            failures.append((kernel.name, outcome))
            continue
        _compiled[kernel.key] = outcome
        _counts["loaded" if outcome.from_disk else "compiled"] += 1
    if failures:
        name, cause = failures[0]
        rest = "".join(f", {other!r}" for other, _ in failures[1:])
        raise CodegenError(
            f"weft bug: kernel {name!r}{rest} did not compile: {type(cause).__name__}: {cause}"
        ) from cause
