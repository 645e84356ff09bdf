"""The process-wide table of compiled kernels: content key -> native address.

Every kernel has the C signature ``void kernel(int64_t *args, int64_t lo, int64_t hi, int64_t
worker)``.  Kernels are immutable once compiled.  Those of steps (`hold_kernels`) live as long as
somebody holds them, and then among the `kept_limit()` ones last used of nobody's; all others, the
walker's say, as long as the process.  LLVM is loaded when the first kernel is compiled.

WEFT_KERNELS=n  how many kernels that nobody holds are kept (2048 if not set)
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Protocol

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.target import LEVELS, NATIVE, default_isa, isa, using
from weft.ir import process
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.process import ForkLock, around_fork, cpython


class CodegenError(RuntimeError):
    """A kernel that weft generated did not compile: always weft's fault, never the user's."""


@dataclass(frozen=True)
class Kernel:
    """A kernel emitted as LLVM.

    ``key`` identifies its content (equal keys = equal code, on disk too: `llvm/cache.py`),
    ``name`` is for people and appears in LLVM and assembly, ``emit`` builds the body at
    ``e.builder`` and reads ``e.argument(k)``.  ``loops=False`` says that it is control code, which
    LLVM shall compile with few passes; functions marked ``alwaysinline`` are inlined there, no
    others.  ``isa`` is the instruction set, the present one (`llvm/target.py`); another than the
    process's own is part of the key.
    """

    key: str
    name: str
    emit: Callable[[Emitter], None]
    loops: bool = True
    isa: str = field(default_factory=isa)

    def __post_init__(self) -> None:
        if self.isa != default_isa():
            object.__setattr__(self, "key", f"{self.isa} {self.key}")


class Code(Protocol):
    """Machine code of one kernel in this process; texts are made when asked for."""

    @property
    def address(self) -> int: ...

    @property
    def from_disk(self) -> bool: ...

    @property
    def can_go(self) -> bool:
        """Whether it is freed with the last reference to this."""
        ...

    def llvm(self) -> str: ...

    def asm(self) -> str: ...


Outcome = Code | Exception


class Engine(Protocol):
    """The interface of a compiler of kernels: `codegen.llvm.engine`."""

    def compile(self, kernels: Sequence[Kernel]) -> Sequence[Outcome]: ...


LOADED_AT = process.LOADED_AT


class Kernels(dict[str, int]):
    """key -> address of kernels, which live as long as this does."""

    __slots__ = ("_codes",)

    def __init__(self, codes: Mapping[str, Code]) -> None:
        super().__init__({key: code.address for key, code in codes.items()})
        self._codes = tuple(codes.values())


# What lives whoever holds it: for good, or because it was used lately, last used last.
_compiled: dict[str, Code] = {}
_for_good: set[str] = set()
_live: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
# Never freed, not even at exit: LLVM's bindings may be gone by then, and code may still run.
cpython.Py_IncRef(ctypes.py_object(_compiled))
_counts = {"compiled": 0, "loaded": 0}
# Reentrant: the thread that forks may hold it.
_lock = threading.RLock()
_order = ForkLock()  # held while the order of `_compiled` changes; never while something compiles
DEFAULT_KEPT = 2048


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
    missing = [k for k in kernels if _code(k.key) is None]
    if missing:
        with _lock:
            _engine().start([k for k in missing if _code(k.key) is None])


def is_done(kernel: Kernel) -> bool:
    """Whether `compile_kernels` would return at once: it did, or what `start_compiling` began is
    over."""
    return _code(kernel.key) is not None or bool(_engine().is_done(kernel.key))


def kept_limit() -> int:
    """WEFT_KERNELS. InvalidArgumentError if it is no number."""
    given = os.environ.get("WEFT_KERNELS", "")
    if given and not (given.isascii() and given.isdigit()):
        raise InvalidArgumentError(
            f"WEFT_KERNELS={given!r} is no number of kernels",
            hint=f"so many that nobody uses any more are kept; {DEFAULT_KEPT} if it is not set",
        )
    return int(given) if given else DEFAULT_KEPT


def hold_kernels(kernels: Sequence[Kernel]) -> Kernels:
    """As `compile_kernels`; the kernels live as long as what this returns, which whoever runs their
    code has to hold."""
    held = _held([kernel.key for kernel in kernels])
    if held is None:
        with _lock:
            made = _compile_missing(kernels)
            held = Kernels({k.key: made.get(k.key) or _known(k.key) for k in kernels})
            _shrink()
    return held


def _held(keys: Sequence[str]) -> Kernels | None:
    """Those kernels, now the last used; None if one is missing."""
    codes = {key: _code(key) for key in keys}
    found = {key: code for key, code in codes.items() if code is not None}
    if len(found) < len(codes):
        return None
    with _order:
        for key, code in found.items():
            if key not in _for_good:
                _compiled.pop(key, None)
                _compiled[key] = code
    return Kernels(found)


def _code(key: str) -> Code | None:
    return _compiled.get(key) or _live.get(key)


def _known(key: str) -> Code:
    code = _code(key)
    if code is None:
        raise KeyError(key)
    return code


def _add(key: str, code: Code) -> None:
    """Under the lock: a new kernel."""
    with _order:
        _compiled[key] = code
    if code.can_go:
        _live[key] = code
    else:
        _for_good.add(key)


def _shrink() -> None:
    """Under the lock: those that were used least recently go, unless somebody holds them."""
    with _order:
        over = len(_compiled) - len(_for_good) - kept_limit()
        for key in [k for k in _compiled if k not in _for_good][: max(over, 0)]:
            del _compiled[key]


def compile_kernels(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Compile those of ``kernels`` that are new; returns key -> address for all of them.

    New kernels come from the cache on disk or are compiled, several at a time.  Safe to call from
    any number of threads.  Raises CodegenError, naming the kernel, if one does not compile; the
    others of the call are compiled all the same.
    """
    # These entries are only ever added, so a complete hit needs no lock.
    if any(kernel.key not in _for_good for kernel in kernels):
        with _lock:
            made = _compile_missing(kernels)
            with _order:
                for kernel in kernels:
                    _compiled[kernel.key] = made.get(kernel.key) or _known(kernel.key)
                    _for_good.add(kernel.key)
    return {kernel.key: _compiled[kernel.key].address for kernel in kernels}


def adopt_kernel(key: str, make: Callable[[], Code]) -> None:
    """Have `make` compile the kernel, if the process does not have it: by another compiler, never
    from disk. What `make` raises is the caller's."""
    if key not in _compiled:
        with _lock:
            if key not in _compiled:
                _add(key, make())
                _for_good.add(key)
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


def load_kernels(files: Mapping[str, str]) -> Kernels | None:
    """As `hold_kernels`, of kernels whose files in the cache on disk are known (`llvm/cache.py`),
    by key. None if one of them is not there any more: `hold_kernels` then makes what is missing.
    """
    held = _held(list(files))
    if held is not None:
        return held
    with _lock:
        known = {key: code for key in files if (code := _code(key)) is not None}
        missing = {key: file for key, file in files.items() if key not in known}
        loaded: dict[str, Code] | None = _engine().load(missing) if missing else {}
        if loaded is None:
            return None
        for key, code in loaded.items():
            _add(key, code)
        _counts["loaded"] += len(loaded)
        made = Kernels({key: known.get(key) or loaded[key] for key in files})
        _shrink()
        return made


def compile_count() -> int:
    """How many kernels this process has compiled so far, those from disk not counted."""
    return _counts["compiled"]


def load_count() -> int:
    """How many kernels this process has loaded from the cache on disk so far."""
    return _counts["loaded"]


def kernel_llvm(key: str) -> str:
    """Optimised LLVM IR of the kernel's functions; KeyError if it is not compiled."""
    return _known(key).llvm()


def kernel_asm(key: str) -> str:
    """Assembly of the kernel's functions; KeyError if it is not compiled."""
    name = key.partition(" ")[0]
    with using(name if name in LEVELS or name == NATIVE else default_isa()):
        return _known(key).asm()


def _compile_missing(kernels: Sequence[Kernel]) -> dict[str, Code]:
    """Under the lock: the code of the kernels, those that were there as well."""
    found = {k.key: code for k in kernels if (code := _code(k.key)) is not None}
    missing = list({k.key: k for k in kernels if k.key not in found}.values())
    if not missing:
        return found
    outcomes = _engine().compile(missing)
    failures: list[tuple[str, Exception]] = []
    for kernel, outcome in zip(missing, outcomes, strict=True):
        if isinstance(outcome, UnsupportedError):
            raise outcome
        if isinstance(outcome, Exception):
            failures.append((kernel.name, outcome))
            continue
        found[kernel.key] = outcome
        _add(kernel.key, outcome)
        _counts["loaded" if outcome.from_disk else "compiled"] += 1
    if failures:
        name, cause = failures[0]
        rest = "".join(f", {other!r}" for other, _ in failures[1:])
        raise CodegenError(
            f"weft bug: kernel {name!r}{rest} did not compile: {type(cause).__name__}: {cause}"
        ) from cause
    return found
