"""Compiling kernels with llvmlite alone: emit, optimise and compile side by side, link, cache.

One module per kernel, so that each object can be kept on disk by its key. Modules that are not
there are emitted by the calling thread and compiled by as many threads as there are processors.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

from llvmlite import ir

from weft.codegen.llvm.cache import CachedObject, KernelCache, describe_kernel, kernel_cache
from weft.codegen.llvm.compile import assembly_text, compile_text, llvm_text, release_memory
from weft.codegen.llvm.emitter import emit_kernel
from weft.codegen.llvm.jit import Kernel, Outcome
from weft.codegen.llvm.link import Linked, imports_of, link
from weft.codegen.llvm.target import host, using
from weft.ir.dataclass import dataclass

# llvmlite 0.50 fills a table when it first prints a string, and a second thread that prints at that
# time finds half of it: here nobody else prints yet.
ir.MetaDataString(ir.Module(), "").get_reference()

MOST_THREADS = 8
#: How long what was put off leaves the interpreter to the first call of a step.
FIRST_CALL_SECONDS = 0.01
#: LLVM's time for a byte of text with loops, in that for one of control code.
LOOP_COST = 4


@dataclass(frozen=True, eq=False)
class LlvmCode:
    """Machine code that LLVM made: `weft.codegen.llvm.jit.Code`."""

    address: int
    from_disk: bool
    bitcode: bytes
    library: Linked  # keeps the machine code alive

    @property
    def can_go(self) -> bool:
        return self.library.can_go

    def llvm(self) -> str:
        return llvm_text(self.bitcode)

    def asm(self) -> str:
        return assembly_text(self.bitcode)


@dataclass(frozen=True)
class _Unit:
    """A kernel on its way: where its object, from disk or from LLVM, comes from. `stored`: whoever
    makes it also writes it to disk."""

    kernel: Kernel
    found: Future[CachedObject]
    stored: bool


class LlvmEngine:
    """The compiler of kernels by LLVM: `weft.codegen.llvm.jit.Engine`."""

    def __init__(self) -> None:
        # by key: what `start` began and `compile` has not asked for yet
        self._started: dict[str, Future[CachedObject]] = {}
        # those of them that are over: a future's own lock could be lost by a fork
        self._over: set[str] = set()
        self._later: list[Future[None]] = []
        self._idle = threading.Event()  # nobody waits for a kernel that is compiled just now
        self._idle.set()

    def start(self, kernels: Sequence[Kernel]) -> None:
        """Begin to emit and compile in another thread, one after another; `compile` takes the
        results. Nobody waits for them yet: after the first they leave the processors to
        `compile`."""
        pool = ThreadPoolExecutor(1, "weft-compile")
        with contextlib.suppress(RuntimeError):  # no new threads: `compile` does it later
            for number, kernel in enumerate(kernels):
                if kernel.key not in self._started:
                    self._over.discard(kernel.key)
                    self._started[kernel.key] = pool.submit(self._begin, kernel, number > 0)
        pool.shutdown(wait=False)

    def _begin(self, kernel: Kernel, later: bool) -> CachedObject:
        if later and not self._idle.is_set():
            self._idle.wait()
            # or until the program's end, which waits for this
            threading.main_thread().join(FIRST_CALL_SECONDS)
        try:
            return machine_code(kernel)
        finally:
            self._over.add(kernel.key)

    def is_done(self, key: str) -> bool:
        """Whether `start` began with this kernel and is through with it."""
        return key in self._over and key in self._started

    def wait(self) -> None:
        """Wait for what `start` and `later` began."""
        wait(list(self._started.values()))
        wait(list(self._later))

    def later(self, job: Callable[[], None]) -> None:
        """Do `job` in another thread, before the process ends or forks."""
        self._later = [begun for begun in self._later if not begun.done()]
        pool = ThreadPoolExecutor(1, "weft-store")
        try:
            self._later.append(pool.submit(job))
        except RuntimeError:  # no new threads
            job()
        pool.shutdown(wait=False)

    def load(self, files: Mapping[str, str]) -> dict[str, LlvmCode] | None:
        """The code of kernels by their keys, from these files of the cache on disk; None if one
        cannot be had."""
        cache = kernel_cache()
        if cache is None:
            return None
        objects: list[CachedObject | Exception] = []
        for file in files.values():
            made = cache.load_file(file)
            if made is None:
                return None
            objects.append(made)
        codes = {
            key: code
            for key, code in zip(files, _link_all(objects), strict=True)
            if isinstance(code, LlvmCode)
        }
        return codes if len(codes) == len(files) else None

    def compile(self, kernels: Sequence[Kernel]) -> Sequence[Outcome]:
        """The code of each kernel, from disk or compiled now, or the exception that stopped it."""
        cache = kernel_cache()
        with ThreadPoolExecutor(min(_processors(), len(kernels), MOST_THREADS)) as pool:
            by_key: dict[str, _Unit] = {}
            compilers = _Compilers(pool)
            try:
                # loops are short to emit and long to compile: with them all processors have work
                for kernel in sorted(kernels, key=lambda k: not k.loops):
                    started = self._started.pop(kernel.key, None)
                    if started is None:
                        self._idle.clear()
                    found = started or _begin(compilers, kernel, cache)
                    by_key[kernel.key] = _Unit(kernel, found, started is not None)
                wait([unit.found for unit in by_key.values() if not unit.stored])
            finally:
                self._idle.set()
            units = [by_key[kernel.key] for kernel in kernels]
            objects = [_finished(unit) for unit in units]
        outcomes = _link_all(objects)
        for k, (made, outcome) in enumerate(zip(objects, outcomes, strict=True)):
            if isinstance(outcome, Exception) and isinstance(made, CachedObject) and made.from_disk:
                objects[k], outcomes[k] = _replaced(units[k].kernel, cache, outcome)
                units[k] = replace(units[k], stored=False)
        if any(isinstance(made, CachedObject) and not made.from_disk for made in objects):
            self.later(partial(_tidy, units, objects, outcomes, cache))
        return outcomes


def _replaced(
    kernel: Kernel, cache: KernelCache | None, error: Exception
) -> tuple[CachedObject, LlvmCode | Exception]:
    """A kernel whose file of the cache holds no code that can be linked, compiled again."""
    description = describe_kernel(kernel)
    if cache is not None and description is not None:
        cache.reject(description, error)
    symbol = _symbol(kernel)
    made = _compile(kernel, symbol, emit_text(kernel, symbol))
    return made, _link_all([made])[0]


def _tidy(
    units: Sequence[_Unit],
    objects: Sequence[CachedObject | Exception],
    outcomes: Sequence[Outcome],
    cache: KernelCache | None,
) -> None:
    """What the first call need not wait for: write the new kernels to disk, free LLVM's memory."""
    for unit, made, outcome in zip(units, objects, outcomes, strict=True):
        if isinstance(made, CachedObject) and isinstance(outcome, LlvmCode) and not unit.stored:
            _store(unit.kernel, cache, made)
    release_memory()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: Minus what it costs, a number, and what makes the object to come: a heap's row.
_Waiting = tuple[int, int, Callable[[], CachedObject], Future[CachedObject]]


class _Compilers:
    """Compilation in the threads of `pool`: of the modules that wait, the longest to compile goes
    first. Begun last, the kernel of products has one processor to itself while the others have
    nothing left to do."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []

    def submit(self, kernel: Kernel, symbol: str, text: str) -> Future[CachedObject]:
        """The object to come. RuntimeError if there are no new threads."""
        # a line of a loop takes the vectoriser several times as long as one of control code
        cost = len(text) * (LOOP_COST if kernel.loops else 1)
        future: Future[CachedObject] = Future()
        job = partial(_compile, kernel, symbol, text)
        row: _Waiting = (-cost, next(self._numbers), job, future)
        with self._lock:
            heapq.heappush(self._waiting, row)
        try:
            self._pool.submit(self._next)
        except RuntimeError:
            with self._lock:
                if row in self._waiting:
                    self._waiting.remove(row)
                    heapq.heapify(self._waiting)
                    raise
        return future

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            _, _, job, future = heapq.heappop(self._waiting)
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)


def _begin(
    compilers: _Compilers, kernel: Kernel, cache: KernelCache | None
) -> Future[CachedObject]:
    """Load or emit here, where the GIL is; LLVM works in the pool meanwhile."""
    done: Future[CachedObject] = Future()
    try:
        loaded = _load(kernel, cache)
        if loaded is None:
            symbol = _symbol(kernel)
            text = emit_text(kernel, symbol)
            try:
                return compilers.submit(kernel, symbol, text)
            except RuntimeError:  # there are no new threads: the interpreter is going down, say
                loaded = _compile(kernel, symbol, text)
        done.set_result(loaded)
    except Exception as error:
        done.set_exception(error)
    return done


def machine_code(kernel: Kernel) -> CachedObject:
    """The kernel's object, from disk, or compiled and stored at once: the process may end before
    anybody asks for it."""
    cache = kernel_cache()
    loaded = _load(kernel, cache)
    if loaded is not None:
        return loaded
    symbol = _symbol(kernel)
    made = _compile(kernel, symbol, emit_text(kernel, symbol))
    _store(kernel, cache, made)
    return made


def _load(kernel: Kernel, cache: KernelCache | None) -> CachedObject | None:
    if cache is None or not cache.exists():
        return None
    with using(kernel.isa):
        description = describe_kernel(kernel)
    return None if description is None else cache.load(description)


def _store(kernel: Kernel, cache: KernelCache | None, made: CachedObject) -> None:
    with using(kernel.isa):
        description = describe_kernel(kernel) if cache is not None and not made.from_disk else None
    if cache is not None and description is not None:
        cache.store(description, made)


def _compile(kernel: Kernel, symbol: str, text: str) -> CachedObject:
    with using(kernel.isa):
        made = compile_text(text, kernel.loops)
    return CachedObject(kernel.name, symbol, made.code, made.bitcode, from_disk=False)


def _finished(unit: _Unit) -> CachedObject | Exception:
    try:
        return unit.found.result()
    except Exception as error:
        return error


def _link_all(objects: Sequence[CachedObject | Exception]) -> list[LlvmCode | Exception]:
    """Link all objects at once: one call for 15 kernels takes as long as one for two."""
    failed: dict[int, Exception] = {}
    imports: dict[str, int] = {}
    for k, made in enumerate(objects):
        if isinstance(made, Exception):
            failed[k] = made
            continue
        try:
            imports |= imports_of(made.code)
        except Exception as error:  # what is on disk may hold anything
            failed[k] = error
    ready = [
        (k, made)
        for k, made in enumerate(objects)
        if isinstance(made, CachedObject) and k not in failed
    ]
    try:
        library = link([(made.symbol, made.code) for _, made in ready], imports) if ready else None
    except Exception as error:
        if len(objects) > 1:  # which of them it is
            return [_link_all([made])[0] for made in objects]
        return [error]
    outcomes: dict[int, LlvmCode | Exception] = dict(failed)
    for k, made in ready:
        assert library is not None
        address = library.addresses[made.symbol]
        outcomes[k] = LlvmCode(address, made.from_disk, made.bitcode, library)
    return [outcomes[k] for k in range(len(objects))]


def emit_text(kernel: Kernel, symbol: str) -> str:
    """The kernel's module as LLVM IR text, before any optimisation."""
    with using(kernel.isa):
        target = host()
        module = ir.Module(kernel.name)
        module.triple, module.data_layout = target.triple, target.data_layout
        emit_kernel(kernel.emit, module, symbol)
        return str(module)


def _symbol(kernel: Kernel) -> str:
    """An LLVM name for people that two keys never share, the same in every process."""
    readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
    digest = hashlib.sha256(kernel.key.encode()).hexdigest()[:12]
    return f"weft_{digest}_{readable[:80]}"


ENGINE = LlvmEngine()
