"""Compiling kernels with llvmlite alone: emit, optimise and compile side by side, link, cache.

One module per kernel, so that each object can be kept on disk by its key. Modules that are not
there are emitted by the calling thread and compiled by as many threads as there are processors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from weft.codegen.emitter import emit_kernel
from weft.codegen.jit import Kernel, NeedsNumbaError, Outcome
from weft.codegen.llvm.cache import CachedObject, KernelCache, kernel_cache
from weft.codegen.llvm.cache_key import describe_kernel
from weft.codegen.llvm.compile import assembly_text, compile_text, llvm_text
from weft.codegen.llvm.link import Linked, UnknownSymbolError, imports_of, link
from weft.codegen.llvm.target import host

MOST_THREADS = 8


@dataclass(frozen=True)
class LlvmCode:
    """Implements `weft.codegen.jit.Code`."""

    address: int
    from_disk: bool
    bitcode: bytes
    library: Linked  # keeps the machine code alive

    def llvm(self) -> str:
        return llvm_text(self.bitcode)

    def asm(self) -> str:
        return assembly_text(self.bitcode)


@dataclass(frozen=True)
class _Unit:
    """A kernel on its way: where its object, from disk or from LLVM, comes from."""

    kernel: Kernel
    found: Future[CachedObject]


class LlvmEngine:
    """Implements `weft.codegen.jit.Engine`."""

    def __init__(self) -> None:
        # by key: what `start` began and `compile` has not asked for yet
        self._started: dict[str, Future[CachedObject]] = {}

    def start(self, kernels: Sequence[Kernel]) -> None:
        """Begin to emit and compile in other threads; `compile` takes the results."""
        pool = ThreadPoolExecutor(min(_processors(), MOST_THREADS), "weft-compile")
        with contextlib.suppress(RuntimeError):  # no new threads: `compile` does it later
            for kernel in kernels:
                if kernel.key not in self._started:
                    self._started[kernel.key] = pool.submit(_make, kernel)
        pool.shutdown(wait=False)

    def is_done(self, key: str) -> bool:
        """Whether `start` began with this kernel and is through with it."""
        started = self._started.get(key)
        return started is not None and started.done()

    def wait(self) -> None:
        """Wait for what `start` began."""
        wait(list(self._started.values()))

    def compile(self, kernels: Sequence[Kernel]) -> Sequence[Outcome]:
        """The code of each kernel, from disk or compiled now, or the exception that stopped it."""
        cache = kernel_cache()
        with ThreadPoolExecutor(min(_processors(), len(kernels), MOST_THREADS)) as pool:
            units = []
            for kernel in kernels:
                found = self._started.pop(kernel.key, None)
                if found is None:
                    found = _begin(pool, kernel, cache)
                units.append(_Unit(kernel, found))
            objects = [_finished(unit) for unit in units]
        outcomes = _link_all(objects)
        for kernel, made, outcome in zip(kernels, objects, outcomes, strict=True):
            if cache is None or isinstance(outcome, Exception) or outcome.from_disk:
                continue
            assert isinstance(made, CachedObject)
            description = describe_kernel(kernel)
            if description is not None:
                cache.store(description, made)
        return outcomes


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _begin(
    pool: ThreadPoolExecutor, kernel: Kernel, cache: KernelCache | None
) -> Future[CachedObject]:
    """Load or emit here, where the GIL is; LLVM works in the pool meanwhile."""
    done: Future[CachedObject] = Future()
    try:
        loaded = _load(kernel, cache)
        if loaded is None:
            symbol = _symbol(kernel)
            text = emit_text(kernel, symbol)
            try:
                return pool.submit(_compile, kernel, symbol, text)
            except RuntimeError:  # there are no new threads: the interpreter is going down, say
                loaded = _compile(kernel, symbol, text)
        done.set_result(loaded)
    except Exception as error:
        done.set_exception(error)
    return done


def _make(kernel: Kernel) -> CachedObject:
    loaded = _load(kernel, kernel_cache())
    if loaded is not None:
        return loaded
    symbol = _symbol(kernel)
    return _compile(kernel, symbol, emit_text(kernel, symbol))


def _load(kernel: Kernel, cache: KernelCache | None) -> CachedObject | None:
    description = describe_kernel(kernel) if cache is not None else None
    return None if cache is None or description is None else cache.load(description)


def _compile(kernel: Kernel, symbol: str, text: str) -> CachedObject:
    made = compile_text(text, kernel.loops)
    return CachedObject(kernel.name, symbol, made.code, made.bitcode, from_disk=False)


def _finished(unit: _Unit) -> CachedObject | Exception:
    try:
        return unit.found.result()
    except Exception as error:
        return error


def _link_all(objects: Sequence[CachedObject | Exception]) -> list[LlvmCode | Exception]:
    """Link all objects at once: one call for 15 kernels takes as long as one for two."""
    outcomes: list[LlvmCode | Exception] = []
    ready: list[CachedObject] = []
    imports: dict[str, int] = {}
    for made in objects:
        if isinstance(made, Exception):
            continue
        try:
            imports |= imports_of(made.code)
        except UnknownSymbolError:
            continue
        ready.append(made)
    library = link([(made.symbol, made.code) for made in ready], imports) if ready else None
    for made in objects:
        if isinstance(made, Exception):
            outcomes.append(made)
        elif library is None or made.symbol not in library.addresses:
            outcomes.append(_missing(made))
        else:
            address = library.addresses[made.symbol]
            outcomes.append(LlvmCode(address, made.from_disk, made.bitcode, library))
    return outcomes


def _missing(made: CachedObject) -> Exception:
    try:
        imports_of(made.code)
    except UnknownSymbolError as error:
        return error
    raise AssertionError(f"{made.symbol} was not linked")


def emit_text(kernel: Kernel, symbol: str) -> str:
    """The kernel's module as LLVM IR text, before any optimisation."""
    target = host()
    module = ir.Module(kernel.name)
    module.triple, module.data_layout = target.triple, target.data_layout
    emit_kernel(kernel.emit, module, symbol, None, _needs_numba)
    return str(module)


def _needs_numba(
    context: Any,
    builder: ir.IRBuilder,
    function: Callable[..., Any],
    result: str,
    operands: Sequence[str],
    args: list[ir.Value],
) -> ir.Value:
    raise NeedsNumbaError(f"it calls {function.__name__}, a Python function")


def _symbol(kernel: Kernel) -> str:
    """An LLVM name for people that two keys never share, the same in every process."""
    readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
    digest = hashlib.sha256(kernel.key.encode()).hexdigest()[:12]
    return f"weft_{digest}_{readable[:80]}"


ENGINE = LlvmEngine()
