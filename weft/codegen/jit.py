"""The process-wide table of compiled kernels: content key -> native address.

Every kernel has the C signature ``void kernel(int64_t *args, int64_t lo, int64_t hi, int64_t
worker)``.  Kernels are immutable once compiled and live as long as the process.  Numba is imported
when the first kernel is compiled.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.codegen.emitter import Emitter

__all__ = [
    "CodegenError",
    "Emitter",
    "Kernel",
    "compile_count",
    "compile_kernels",
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


class Library(Protocol):
    """Machine code of one or more kernels; texts are made when asked for."""

    def llvm(self, symbol: str) -> str: ...

    def asm(self, symbol: str) -> str: ...


class Engine(Protocol):
    """What `weft.codegen.numba_engine` provides."""

    def compile_emitted(
        self, kernels: Sequence[tuple[Kernel, str]]
    ) -> tuple[Library, list[int]]: ...


@dataclass(frozen=True)
class _Compiled:
    address: int
    symbol: str
    library: Library  # keeps the machine code alive


_compiled: dict[str, _Compiled] = {}
_lock = threading.Lock()


def compile_kernels(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Compile those of ``kernels`` that are new; returns key -> address for all of them.

    All new kernels go into one LLVM module (far cheaper than one module each).  Safe
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


def kernel_llvm(key: str) -> str:
    """Optimised LLVM IR of the kernel's functions; KeyError if it is not compiled."""
    entry = _compiled[key]
    return entry.library.llvm(entry.symbol)


def kernel_asm(key: str) -> str:
    """Assembly of the kernel's functions; KeyError if it is not compiled."""
    entry = _compiled[key]
    return entry.library.asm(entry.symbol)


def _compile_missing(kernels: Sequence[Kernel]) -> None:
    missing = list({k.key: k for k in kernels if k.key not in _compiled}.values())
    if not missing:
        return
    failures: list[tuple[str, Exception]] = []
    try:
        _compile_together(missing)
    except Exception as error:
        # One bad kernel spoils its module: compile singly to find it and to keep the rest.
        failures += _compile_singly(missing) if len(missing) > 1 else [(missing[0].name, error)]
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
    symbols = [_symbol(kernel, len(_compiled) + k) for k, kernel in enumerate(kernels)]
    library, addresses = _engine().compile_emitted(list(zip(kernels, symbols, strict=True)))
    for kernel, symbol, address in zip(kernels, symbols, addresses, strict=True):
        _compiled[kernel.key] = _Compiled(address, symbol, library)


def _symbol(kernel: Kernel, number: int) -> str:
    """An LLVM name unique in the process, so that debuggers and profilers tell kernels apart."""
    readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
    return f"weft_k{number}_{readable}"


def _engine() -> Engine:
    # Numba takes 0.3-1 s to import; `import weft` must not pay for it.
    engine: Engine = importlib.import_module("weft.codegen.numba_engine").ENGINE
    return engine
