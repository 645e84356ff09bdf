"""Memory of the thread pool, named word by word, and the few native operations on it.

Everything is an int64 word; words that different threads write lie on different cache lines (128
bytes: processors fetch lines in pairs). Functions of the C library come in as addresses in words.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter

#: The word `state`: chunks [lo, hi) are left; only workers with a number below `limit` may help.
COUNT_MASK, HI_SHIFT, LIMIT_SHIFT = (1 << 24) - 1, 24, 48
#: Words for a pthread_mutex_t, a pthread_cond_t, a sigset_t (64 bytes at most where weft runs; 128)
_OPAQUE = 16
MAX_THREADS = 256
#: A cpu_set_t: one bit for each of 1024 processors.
PROCESSOR_WORDS = 16
GATE_OPEN, GATE_STARTING, GATE_CLOSED = 0, 1, 2

_LINES: tuple[tuple[str, ...], ...] = (
    ("state",),
    ("kernel", "arguments", "units", "chunk"),
    ("done",),
    ("waiting", "sleepers"),
    ("owner", "debt", "alone_until", "caller_cpu"), ("wake_after",),
    ("gate", "workers", "limit", "wake_least", "spin_caller", "set_mask", "clock"),
    ("pthread_create", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait",
     "pthread_cond_signal", "pthread_sigmask", "clock_gettime", "worker_loop", "sched_getcpu",
     "sched_getaffinity", "sched_setaffinity", "tell_refused", "parallel"),
    ("caller_mutex",), ("caller_condition",), ("all_signals",), ("old_signals",),
)  # fmt: skip
_LINE_WORDS = 16
WORDS = {name: _LINE_WORDS * k + i for k, line in enumerate(_LINES) for i, name in enumerate(line)}
#: A worker's words, from `FIRST_SLOT + SLOT_WORDS * number` on.
SLOT = {
    "asleep": 0, "running": 1, "thread": 2,
    "number": 16, "pool": 17, "spin": 18,
    "mutex": 32, "condition": 32 + _OPAQUE,
}  # fmt: skip
SLOT_WORDS = 64
FIRST_SLOT = _LINE_WORDS * len(_LINES)
TOTAL_WORDS = FIRST_SLOT + SLOT_WORDS * MAX_THREADS

_INT = ir.IntType(32)
_WORD = I64.as_pointer()


class Words:
    """The pool's words (or, with `names=SLOT`, one worker's) in code under construction."""

    def __init__(self, e: Emitter, base: ir.Value, *, pool: Words | None = None) -> None:
        self.e = e
        self.base = base
        self.pool = pool or self
        self._names = WORDS if pool is None else SLOT

    def at(self, name: str) -> ir.Value:
        """The address of a word."""
        return self.e.at(self.base, self.e.index(self._names[name]))

    def load(self, name: str, ordering: str = "monotonic") -> ir.Value:
        """The word, read atomically."""
        return self.e.builder.load_atomic(self.at(name), ordering, 8)

    def store(self, name: str, value: ir.Value, ordering: str = "monotonic") -> None:
        """Write the word atomically."""
        self.e.builder.store_atomic(value, self.at(name), ordering, 8)

    def swap(self, name: str, old: ir.Value, new: ir.Value) -> ir.Value:
        """Compare-and-swap; whether the word was `old`."""
        pair = self.e.builder.cmpxchg(self.at(name), old, new, "acq_rel", "monotonic")
        return self.e.builder.extract_value(pair, 1)

    def slot(self, number: ir.Value) -> Words:
        """The words of the worker of that number."""
        b, e = self.e.builder, self.e
        first = b.add(b.mul(number, e.index(SLOT_WORDS)), e.index(FIRST_SLOT))
        return Words(e, e.at(self.base, first), pool=self)

    def _call(self, function: str, *args: ir.Value) -> ir.Value:
        b = self.e.builder
        kind = ir.FunctionType(_INT, [a.type for a in args])
        return b.call(b.inttoptr(self.pool.load(function), kind.as_pointer()), args)

    def lock(self, mutex: str) -> None:
        """pthread_mutex_lock."""
        self._call("pthread_mutex_lock", self.at(mutex))

    def unlock(self, mutex: str) -> None:
        """pthread_mutex_unlock."""
        self._call("pthread_mutex_unlock", self.at(mutex))

    def wait(self, condition: str, mutex: str) -> None:
        """pthread_cond_wait."""
        self._call("pthread_cond_wait", self.at(condition), self.at(mutex))

    def signal(self, condition: str) -> None:
        """pthread_cond_signal."""
        self._call("pthread_cond_signal", self.at(condition))

    def processor(self) -> ir.Value:
        """The number of the processor that this runs on (i32); only where `sched_getcpu` is."""
        return self._call("sched_getcpu")

    def affinity(self, which: str, processors: ir.Value) -> ir.Value:
        """sched_getaffinity or sched_setaffinity of this thread; 0, or -1."""
        size = self.e.index(8 * PROCESSOR_WORDS)
        return self._call(which, ir.Constant(_INT, 0), size, processors)

    def mask_signals(self, new: str, old: str | None) -> None:
        """pthread_sigmask(SIG_SETMASK, new, old)."""
        how = self.e.builder.trunc(self.load("set_mask"), _INT)
        kept = ir.Constant(_WORD, None) if old is None else self.at(old)
        self._call("pthread_sigmask", how, self.at(new), kept)

    def now(self) -> ir.Value:
        """Nanoseconds by the system's monotonic clock."""
        b, e = self.e.builder, self.e
        time = e.alloca(ir.ArrayType(I64, 2))
        at = b.bitcast(time, _WORD)
        self._call("clock_gettime", b.trunc(self.load("clock"), _INT), at)
        seconds = b.mul(b.load(at), e.index(10**9))
        return b.add(seconds, b.load(e.at(at, e.index(1))))

    def create(self, slot: Words) -> ir.Value:
        """pthread_create of the worker loop on that slot; 0, or the error's number."""
        attributes = ir.Constant(_WORD, None)
        args = (slot.at("thread"), attributes, self.load("worker_loop"), slot.base)
        return self._call("pthread_create", *args)


def emit_function(
    e: Emitter,
    name: str,
    kind: ir.FunctionType,
    body: Callable[[Emitter, list[ir.Value]], None],
) -> ir.Function:
    """The internal function of that name in this kernel, emitted when it is first asked for."""
    symbol = f"{e.symbol}.{name}"
    if symbol in e.module.globals:
        return e.module.globals[symbol]
    function, inner = e.define_function(symbol, kind)
    body(inner, list(function.args))
    inner.builder.ret_void()
    return function


@contextmanager
def repeat_while(e: Emitter, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """`while condition(): ...`."""
    b = e.builder
    head, body, after = (b.append_basic_block(f"while.{n}") for n in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    b.cbranch(condition(), body, after)
    b.position_at_end(body)
    yield
    b.branch(head)
    b.position_at_end(after)


def spin_while(e: Emitter, condition: Callable[[], ir.Value], most: ir.Value) -> None:
    """Look at `condition` again and again while it is true, at most so many times."""
    b = e.builder
    left = e.alloca(I64)
    b.store(most, left)

    def go_on() -> ir.Value:
        return b.and_(condition(), b.icmp_signed(">", b.load(left), e.index(0)))

    with repeat_while(e, go_on):
        b.store(b.sub(b.load(left), e.index(1)), left)
        emit_pause(e)


def emit_pause(e: Emitter) -> None:
    """Tell the processor that this is a waiting loop."""
    machine, nothing = platform.machine(), ir.VoidType()
    if machine in ("x86_64", "AMD64"):
        kind = ir.FunctionType(nothing, [])
        e.builder.call(e.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
    elif machine in ("aarch64", "arm64"):  # the instruction YIELD
        kind = ir.FunctionType(nothing, [_INT])
        hint = e.module.declare_intrinsic("llvm.aarch64.hint", (), kind)
        e.builder.call(hint, [ir.Constant(_INT, 1)])
