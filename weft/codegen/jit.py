"""The process-wide table of compiled kernels: content key -> native address.

Every kernel has the C signature ``void kernel(int64_t *args)``.  Kernels are immutable once
compiled and live as long as the process.  Numba is imported when the first kernel is compiled.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.codegen.emitter import Emitter

__all__ = [
    "CodegenError",
    "Emitter",
    "Kernel",
    "NumbaKernel",
    "compile_count",
    "compile_kernels",
    "compile_seconds",
    "kernel_asm",
    "kernel_llvm",
]


class CodegenError(RuntimeError):
    """A kernel that weft generated did not compile: always weft's fault, never the user's."""


@dataclass(frozen=True)
class Kernel:
    """A kernel emitted as LLVM.

    ``key`` identifies its content (equal keys = equal code), ``name`` is for people and appears in
    LLVM and assembly, ``emit`` builds the body at ``e.builder`` and reads ``e.argument(k)``.
    """

    key: str
    name: str
    emit: Callable[[Emitter], None]


@dataclass(frozen=True)
class NumbaKernel:
    """A kernel in plain Numba Python: ``def k(args)``, args a C pointer to int64.

    It must not raise and must not need the GIL.  Helpers for its body:
    `weft.codegen.numba_helpers`.
    """

    key: str
    name: str
    function: Callable[[Any], None]


AnyKernel = Kernel | NumbaKernel


class Library(Protocol):
    """Machine code of one or more kernels; texts are made when asked for."""

    def llvm(self, symbol: str) -> str: ...

    def asm(self, symbol: str) -> str: ...


class Engine(Protocol):
    """What `weft.codegen.numba_engine` provides."""

    def compile_emitted(
        self, kernels: Sequence[tuple[Kernel, str]]
    ) -> tuple[Library, list[int]]: ...

    def compile_function(self, kernel: NumbaKernel) -> tuple[Library, int, str]: ...


@dataclass(frozen=True)
class _Compiled:
    address: int
    symbol: str
    library: Library  # keeps the machine code alive
    seconds: float


_compiled: dict[str, _Compiled] = {}
_lock = threading.Lock()


def compile_kernels(kernels: Sequence[AnyKernel]) -> dict[str, int]:
    """Compile those of ``kernels`` that are new; returns key -> address for all of them.

    All new LLVM-emitted kernels go into one LLVM module (far cheaper than one module each).  Safe
    to call from any number of threads.  Raises CodegenError, naming the kernel, if one does not
    compile; the others of the call are compiled all the same.
    """
    # Entries are only ever added, so a complete hit needs no lock.
    if any(kernel.key not in _compiled for kernel in kernels):
        with _lock:
            _compile_missing(kernels)
    return {kernel.key: _compiled[kernel.key].address for kernel in kernels}


def compile_count() -> int:
    """How many kernels this process has compiled so far."""
    return len(_compiled)


def compile_seconds(key: str) -> float:
    """Seconds spent compiling this kernel (its equal share, where several went into one module)."""
    return _compiled[key].seconds


def kernel_llvm(key: str) -> str:
    """Optimised LLVM IR of the kernel's functions; KeyError if it is not compiled."""
    entry = _compiled[key]
    return entry.library.llvm(entry.symbol)


def kernel_asm(key: str) -> str:
    """Assembly of the kernel's functions; KeyError if it is not compiled."""
    entry = _compiled[key]
    return entry.library.asm(entry.symbol)


def _compile_missing(kernels: Sequence[AnyKernel]) -> None:
    missing = {k.key: k for k in kernels if k.key not in _compiled}
    emitted = [k for k in missing.values() if isinstance(k, Kernel)]
    failures: list[tuple[str, Exception]] = []
    if emitted:
        try:
            _compile_together(emitted)
        except Exception as error:
            # One bad kernel spoils its module: compile singly to find it and to keep the rest.
            failures += _compile_singly(emitted) if len(emitted) > 1 else [(emitted[0].name, error)]
    for kernel in missing.values():
        if isinstance(kernel, NumbaKernel):
            try:
                _compile_function(kernel)
            except Exception as error:
                failures.append((kernel.name, error))
    if failures:
        name, cause = failures[0]
        others = "".join(f", {other!r}" for other, _ in failures[1:])
        raise CodegenError(
            f"weft bug: kernel {name!r}{others} did not compile: {type(cause).__name__}: {cause}"
        ) from cause


def _compile_singly(kernels: Sequence[Kernel]) -> list[tuple[str, Exception]]:
    failures: list[tuple[str, Exception]] = []
    for kernel in kernels:
        try:
            _compile_together([kernel])
        except Exception as error:
            failures.append((kernel.name, error))
    # All fine alone but not together: symbols clash, which `_symbol` is there to prevent.
    return failures


def _compile_together(kernels: Sequence[Kernel]) -> None:
    started = time.perf_counter()
    symbols = [_symbol(kernel, len(_compiled) + k) for k, kernel in enumerate(kernels)]
    library, addresses = _engine().compile_emitted(list(zip(kernels, symbols, strict=True)))
    share = (time.perf_counter() - started) / len(kernels)
    for kernel, symbol, address in zip(kernels, symbols, addresses, strict=True):
        _compiled[kernel.key] = _Compiled(address, symbol, library, share)


def _compile_function(kernel: NumbaKernel) -> None:
    started = time.perf_counter()
    library, address, symbol = _engine().compile_function(kernel)
    seconds = time.perf_counter() - started
    _compiled[kernel.key] = _Compiled(address, symbol, library, seconds)


def _symbol(kernel: Kernel, number: int) -> str:
    """An LLVM name unique in the process, so that debuggers and profilers tell kernels apart."""
    readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
    return f"weft_k{number}_{readable}"


def _engine() -> Engine:
    # Numba takes 0.3-1 s to import; `import weft` must not pay for it.
    engine: Engine = importlib.import_module("weft.codegen.numba_engine").ENGINE
    return engine
