"""Thread pool: the worker threads of the process, on one block of memory that native code works on.

The workers are native threads (pthread_create by address): the first step that has a call worth
cutting creates them from native code, none of them ever runs Python, and so a fork or the end of
the process needs no Python thread to cooperate."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import threading
import time
from typing import Any

from weft.codegen.llvm.jit import compile_kernels, is_done
from weft.codegen.pool import (
    CLOSE,
    CONTROL,
    FIRST_SLOT,
    MAX_THREADS,
    PARALLEL,
    SLOT,
    SLOT_WORDS,
    SPIN,
    SPINS,
    TOTAL_WORDS,
    WORDS,
    WORKER,
)
from weft.ir.cost.thresholds import SPIN_SECONDS, WAKE_AFTER_NS
from weft.ir.errors import UnsupportedError
from weft.ir.process import around_fork, cpython
from weft.runtime.native.machine import default_threads, usable_processors

_log = logging.getLogger("weft.compile")
#: How long a fork or the end of the process waits for workers that are in the middle of a chunk.
_PATIENCE = 0.5
_FUNCTIONS = (
    "pthread_create", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait",
    "pthread_cond_signal", "pthread_sigmask", "clock_gettime",
)  # fmt: skip
_CODE = (WORKER, CONTROL, PARALLEL)
#: Linux only: a worker must not share its caller's processor.
_PLACEMENT = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")
#: Signals that tell of a fault of the thread itself: workers do not block them.
FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


class Pool:
    """The words of the pool, and what Python does with them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit: int | None = None
        self._words: Any = None
        self._control: Any = None
        self._loop = self._parallel = 0
        self._spins = 0
        self._closed = False

    @property
    def limit(self) -> int:
        """How many threads one step may use: as was said, or those that the system would give."""
        if self._limit is None:
            self._limit = default_threads() if _has_threads() else 1
        return self._limit if self._words is None else int(self._words[WORDS["limit"]])

    def set_limit(self, count: int) -> None:
        """Steps use so many threads from now on."""
        if count > 1 and not _has_threads():
            raise UnsupportedError("this system has no POSIX threads: weft uses one thread there")
        with self._lock:
            self._limit = count
            if self._words is not None:
                self._words[WORDS["limit"]] = count

    def is_ready(self) -> bool:
        """Whether `enter` returns at once: its code is compiled, or will not be needed."""
        return self._words is not None or not _has_threads() or all(map(is_done, _CODE))

    def enter(self, most: int | None, worker_bytes: int) -> tuple[int, int]:
        """For a step that has calls to cut: the address of the words, made when first asked for (0:
        no pool), and below what number the workers stay that may take part.

        most: the function's own limit. worker_bytes: what each worker costs the step in memory.
        """
        if most == 1 or not _has_threads():
            return 0, 1
        with self._lock:
            if self._words is None:
                self._make()
            held = MAX_THREADS if not worker_bytes else max(self.limit, usable_processors())
            return ctypes.addressof(self._words), min(held, most or held)

    @property
    def parallel(self) -> int:
        """The address of the native code that cuts a call over the threads, after `enter`."""
        return self._parallel

    def workers(self) -> int:
        """How many worker threads there are now."""
        if self._words is None:
            return 0
        return sum(self._running(w) for w in range(1, MAX_THREADS))

    def _make(self) -> None:
        limit = self.limit
        addresses = compile_kernels(_CODE)
        self._loop, self._parallel = addresses[WORKER.key], addresses[PARALLEL.key]
        self._control = _CONTROL_TYPE(addresses[CONTROL.key])
        memory = (ctypes.c_int64 * (TOTAL_WORDS + 16))()
        # steps may outlive the interpreter in daemon threads: these words are never freed
        cpython.Py_IncRef(ctypes.py_object(memory))
        start = -ctypes.addressof(memory) % 128
        words = (ctypes.c_int64 * TOTAL_WORDS).from_buffer(memory, start)
        cpython.Py_IncRef(ctypes.py_object(words))
        started = time.perf_counter()
        self._control(ctypes.addressof(words), SPIN, 0, 0)
        each = (time.perf_counter() - started) / SPINS
        self._spins = max(1, int(SPIN_SECONDS / each))
        self._fill(words, limit)
        self._words = words

    def _fill(self, words: Any, limit: int) -> None:
        """Write all that the native code expects; nothing uses the words yet."""
        ctypes.memset(words, 0, ctypes.sizeof(words))
        library, base = _c_library(), ctypes.addressof(words)
        for name in _FUNCTIONS:
            words[WORDS[name]] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        if all(hasattr(library, name) for name in _PLACEMENT):
            for name in _PLACEMENT:
                words[WORDS[name]] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        words[WORDS["worker_loop"]] = self._loop
        words[WORDS["parallel"]] = self._parallel
        words[WORDS["tell_refused"]] = ctypes.cast(_TELL_REFUSED, ctypes.c_void_p).value
        words[WORDS["limit"]] = limit
        words[WORDS["wake_after"]] = words[WORDS["wake_least"]] = WAKE_AFTER_NS
        words[WORDS["spin_caller"]] = self._spins
        words[WORDS["set_mask"]] = signal.SIG_SETMASK
        words[WORDS["clock"]] = time.CLOCK_MONOTONIC
        library.pthread_mutex_init(_at(base, WORDS["caller_mutex"]), None)
        library.pthread_cond_init(_at(base, WORDS["caller_condition"]), None)
        blocked = _at(base, WORDS["all_signals"])
        library.sigfillset(blocked)
        for fault in FAULTS:
            library.sigdelset(blocked, getattr(signal, fault))
        processors = usable_processors()
        for number in range(MAX_THREADS):
            slot = FIRST_SLOT + SLOT_WORDS * number
            words[slot + SLOT["number"]] = number
            words[slot + SLOT["pool"]] = base
            # more workers than processors must not keep them from one another
            words[slot + SLOT["spin"]] = self._spins if number < processors else 0
            library.pthread_mutex_init(_at(base, slot + SLOT["mutex"]), None)
            library.pthread_cond_init(_at(base, slot + SLOT["condition"]), None)

    def _running(self, number: int) -> bool:
        return bool(self._words[FIRST_SLOT + SLOT_WORDS * number + SLOT["running"]])

    def close(self) -> None:
        """End the workers; those in the middle of a long chunk go on for now. Steps go on alone."""
        if self._words is None or self._closed:
            return
        self._closed = True
        self._control(ctypes.addressof(self._words), CLOSE, 0, 0)
        until = time.monotonic() + _PATIENCE
        for number in range(1, MAX_THREADS):
            thread = FIRST_SLOT + SLOT_WORDS * number + SLOT["thread"]
            if not self._words[thread]:
                continue
            while self._running(number) and time.monotonic() < until:
                time.sleep(20e-6)
            if not self._running(number):
                _c_library().pthread_join(ctypes.c_void_p(self._words[thread]), None)
                self._words[thread] = 0

    def reopen(self) -> None:
        """After `close`: steps may create workers again."""
        if self._closed:
            self._words[WORDS["workers"]] = 0
            self._words[WORDS["gate"]] = 0
            self._closed = False

    def before_fork(self) -> None:
        self._lock.acquire()
        self.close()

    def after_fork_in_parent(self) -> None:
        self.reopen()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """No worker lives here, and the step that had the pool may be another thread's."""
        if self._words is not None:
            self._fill(self._words, self._limit or 1)
        self._closed = False
        self._lock = threading.Lock()

    def at_exit(self) -> None:
        with self._lock:
            self.close()


_CONTROL_TYPE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


def _tell_refused(wanted: int, there: int, error: int) -> None:
    """Native code calls this when pthread_create failed with that error number."""
    _log.warning(
        "the system refused a worker thread (%s): steps use %d threads, not %d; "
        "wf.set_num_threads(%d) tries again",
        os.strerror(error), there, wanted, wanted,
    )  # fmt: skip


_TELL_REFUSED = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
    _tell_refused
)


def _has_threads() -> bool:
    return os.name == "posix"


def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _at(base: int, word: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(base + 8 * word)


POOL = Pool()
if _has_threads():
    around_fork(POOL.before_fork, POOL.after_fork_in_parent, POOL.after_fork_in_child)
    atexit.register(POOL.at_exit)
