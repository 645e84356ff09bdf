"""Native code of the thread pool: its memory, named word by word, the few operations on it, and the
fork-join of one kernel call, done at once or cut into chunks over the pool's threads.

Every word is an int64; words that different threads write lie on different cache lines (128 bytes:
processors fetch lines in pairs). Functions of the C library come in as addresses in words.

In a fork-join the caller publishes a job in the pool's words and takes chunks from its front, the
workers take them from its back; both by compare-and-swap of one word that holds what is left and
which workers may help, so a chunk that was taken belongs to the job that is described, however long
the taker had slept before. The caller waits only for chunks that a worker has really begun: a
worker that the operating system does not run holds nothing up. If another thread's step has the
pool, a call is done by its own thread.

`PARALLEL` is the caller's side, `WORKER` the loop of the worker threads: wait for a job, help with
it, wait again."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, KERNEL_TYPE, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.ir.cost.thresholds import MOST_WAKE_NS

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


I32 = ir.IntType(32)
_WORDS = I64.as_pointer()
#: What `PARALLEL` is called with, word by word.
_GIVEN = ("pool", "threads", "kernel", "arguments", "units", "chunk", "long")
#: Added to a call's chunk: each of its chunks takes long enough to wake a sleeper for.
LONG = 1 << 40
WAKE_TYPE = ir.FunctionType(ir.VoidType(), [_WORDS, I64, I64])
_TELL_TYPE = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
_START_TYPE = ir.FunctionType(ir.VoidType(), [_WORDS, I64])


def emit_parallel_call(
    e: Emitter,
    pool: ir.Value,
    threads: ir.Value,
    kernel: ir.Value,
    arguments: ir.Value,
    units: ir.Value,
    chunk: ir.Value,
) -> None:
    """Call `kernel(arguments, lo, hi, worker)` so that all of [0, units) is done on return.

    `pool` is the address of the pool's words (0: there is none), `threads` how many threads may run
    this step: workers' numbers stay below it. chunk: see `KernelCall`; plus `LONG`, or not.
    """
    b = e.builder
    long = b.and_(chunk, e.index(LONG))
    chunk = b.and_(chunk, e.index(LONG - 1))
    whole = b.icmp_unsigned("<=", units, chunk)
    alone = b.or_(b.icmp_signed("==", chunk, e.index(0)), whole)
    alone = b.or_(alone, b.icmp_signed("<", threads, e.index(2)))
    with b.if_else(b.or_(alone, b.icmp_signed("==", pool, e.index(0))), likely=True) as (one, many):
        with one:
            b.call(kernel, [arguments, e.index(0), units, e.index(0)])
        with many:
            # code of its own: no step waits for it to be compiled
            words = e.alloca(ir.ArrayType(I64, len(_GIVEN)))
            given = b.bitcast(words, _WORDS)
            code, at = b.ptrtoint(kernel, I64), b.ptrtoint(arguments, I64)
            values = (pool, threads, code, at, units, chunk, long)
            for k, value in enumerate(values):
                b.store(value, e.at(given, e.index(k)))
            parallel = Words(e, b.inttoptr(pool, _WORDS)).load("parallel")
            zero = e.index(0)
            b.call(b.inttoptr(parallel, KERNEL_TYPE.as_pointer()), [given, zero, zero, zero])


def _emit_parallel(e: Emitter) -> None:
    b = e.builder
    words, threads, kernel, arguments, units, chunk, long = map(e.argument, range(len(_GIVEN)))
    kernel = b.inttoptr(kernel, KERNEL_TYPE.as_pointer())
    arguments = b.inttoptr(arguments, _WORDS)
    pool = Words(e, b.inttoptr(words, _WORDS))
    zero, one = e.index(0), e.index(1)
    count = b.udiv(b.add(units, b.sub(chunk, one)), chunk)
    allowed = pool.load("limit")
    limit = b.select(b.icmp_signed("<", threads, allowed), threads, allowed)
    fits = b.icmp_unsigned("<=", count, e.index(COUNT_MASK))
    useful = b.and_(b.icmp_signed(">", limit, one), fits)
    with b.if_then(b.or_(b.not_(useful), b.icmp_signed("!=", pool.load("owner"), zero))):
        b.call(kernel, [arguments, zero, units, zero])
        b.ret_void()
    with b.if_then(b.not_(pool.swap("owner", zero, one))):
        b.call(kernel, [arguments, zero, units, zero])
        b.ret_void()
    begun = pool.now()
    with b.if_then(b.icmp_signed("<", begun, pool.load("alone_until")), likely=False):
        pool.store("owner", zero, "release")
        b.call(kernel, [arguments, zero, units, zero])
        b.ret_void()
    with b.if_then(b.icmp_signed("!=", pool.load("sched_getcpu"), zero)):
        pool.store("caller_cpu", b.sext(pool.processor(), I64))
    helpers = b.sub(limit, one)
    with b.if_then(b.icmp_signed("<", pool.load("workers"), helpers), likely=False):
        b.call(emit_function(e, "start", _START_TYPE, _emit_start), [pool.base, helpers])
    pool.store("kernel", b.ptrtoint(kernel, I64))
    pool.store("arguments", b.ptrtoint(arguments, I64))
    pool.store("units", units)
    pool.store("chunk", chunk)
    pool.store("done", zero)
    job = b.or_(b.shl(count, e.index(HI_SHIFT)), b.shl(limit, e.index(LIMIT_SHIFT)))
    b.atomic_rmw("xchg", pool.at("state"), job, "seq_cst")
    first = e.alloca(I64)
    b.store(zero, first)
    asleep = b.icmp_signed("!=", pool.load("sleepers", "seq_cst"), zero)
    at_once = b.icmp_signed("!=", long, zero)
    with b.if_then(b.and_(asleep, at_once)):
        b.call(emit_function(e, "wake", WAKE_TYPE, emit_wake), [pool.base, limit, e.index(2)])
    with b.if_then(b.and_(asleep, b.not_(at_once))):
        b.store(take_chunks(e, pool, zero, front=True, most=one), first)
        _wake_if_worth_it(e, pool, limit, b.mul(b.sub(pool.now(), begun), count))
    mine = b.add(b.load(first), take_chunks(e, pool, zero, front=True))
    _wait(e, pool, b.sub(count, mine), begun)
    pool.store("owner", zero, "release")


PARALLEL = Kernel("pool-parallel-1", "pool_parallel", _emit_parallel, loops=False)


def _wake_if_worth_it(e: Emitter, pool: Words, limit: ir.Value, work: ir.Value) -> None:
    """Waking costs the caller a few microseconds: at once for a long call, for short ones only when
    as much work has been done without the sleepers as would have paid for it. `work` is that of the
    call in nanoseconds, by what its first chunk took."""
    b = e.builder
    debt = b.add(pool.load("debt"), work)
    pool.store("debt", debt)
    with b.if_then(b.icmp_signed(">=", debt, pool.load("wake_after"))):
        pool.store("debt", e.index(0))
        b.call(emit_function(e, "wake", WAKE_TYPE, emit_wake), [pool.base, limit, e.index(2)])


def take_chunks(
    e: Emitter, pool: Words, worker: ir.Value, *, front: bool, most: ir.Value | None = None
) -> ir.Value:
    """Take chunks of the published job and run them until none is left, or `most` of them; how many
    it were."""
    b = e.builder
    mine = e.alloca(I64)
    b.store(e.index(0), mine)
    head, take, run, end = (b.append_basic_block(f"chunks.{n}") for n in ("head", "t", "r", "end"))
    b.branch(head)
    b.position_at_end(head)
    state = pool.load("state", "acquire")
    go_on = has_work(e, state, worker)
    if most is not None:
        go_on = b.and_(go_on, b.icmp_signed("<", b.load(mine), most))
    b.cbranch(go_on, take, end)
    b.position_at_end(take)
    low = b.and_(state, e.index(COUNT_MASK))
    high = b.and_(b.lshr(state, e.index(HI_SHIFT)), e.index(COUNT_MASK))
    left = b.add(state, e.index(1)) if front else b.sub(state, e.index(1 << HI_SHIFT))
    number = low if front else b.sub(high, e.index(1))
    b.cbranch(pool.swap("state", state, left), run, head)
    b.position_at_end(run)
    chunk, units = pool.load("chunk"), pool.load("units")
    start = b.mul(number, chunk)
    stop = b.add(start, chunk)
    stop = b.select(b.icmp_signed("<", stop, units), stop, units)
    kernel = b.inttoptr(pool.load("kernel"), KERNEL_TYPE.as_pointer())
    b.call(kernel, [b.inttoptr(pool.load("arguments"), _WORDS), start, stop, worker])
    b.store(b.add(b.load(mine), e.index(1)), mine)
    b.branch(head)
    b.position_at_end(end)
    return b.load(mine)


def has_work(e: Emitter, state: ir.Value, worker: ir.Value) -> ir.Value:
    """Whether a chunk is left that this worker may take."""
    b = e.builder
    low = b.and_(state, e.index(COUNT_MASK))
    high = b.and_(b.lshr(state, e.index(HI_SHIFT)), e.index(COUNT_MASK))
    mine = b.icmp_unsigned("<", worker, b.lshr(state, e.index(LIMIT_SHIFT)))
    return b.and_(b.icmp_unsigned("<", low, high), mine)


def _wait(e: Emitter, pool: Words, handed_out: ir.Value, begun: ir.Value) -> None:
    """Until the workers have done their chunks: spin for a while, then sleep.

    A wait of more than twice the caller's own work says that the machine has no processor to spare:
    a worker was stopped within a chunk, for the milliseconds of a time slice. Steps then work
    alone for sixteen times as long as was lost, so that such waits cost a small part of the time.
    """
    b = e.builder

    def unfinished(ordering: str) -> Callable[[], ir.Value]:
        return lambda: b.icmp_signed("!=", pool.load("done", ordering), handed_out)

    spin_while(e, unfinished("acquire"), pool.load("spin_caller"))
    with b.if_then(unfinished("acquire")(), likely=False):
        worked = pool.now()
        pool.lock("caller_mutex")
        pool.store("waiting", e.index(1), "seq_cst")
        with repeat_while(e, unfinished("seq_cst")):
            pool.wait("caller_condition", "caller_mutex")
        pool.store("waiting", e.index(0))
        pool.unlock("caller_mutex")
        ended = pool.now()
        lost, own = b.sub(ended, worked), b.sub(worked, begun)
        with b.if_then(b.icmp_signed(">", lost, b.shl(own, e.index(1)))):
            pool.store("alone_until", b.add(ended, b.shl(lost, e.index(4))))


def emit_wake(e: Emitter, args: list[ir.Value]) -> None:
    """wake(pool, limit, most): end the sleep of up to `most` of the workers 1 .. limit - 1."""
    b = e.builder
    words, limit, most = args
    pool = Words(e, words)
    woken = e.alloca(I64)
    b.store(e.index(0), woken)
    with e.for_range(e.index(1), limit) as w:
        slot = pool.slot(w)
        with b.if_then(b.icmp_signed("!=", slot.load("asleep"), e.index(0))):
            slot.lock("mutex")
            with b.if_then(b.icmp_signed("!=", slot.load("asleep"), e.index(0))):
                slot.store("asleep", e.index(0))
                b.atomic_rmw("sub", pool.at("sleepers"), e.index(1), "seq_cst")
                slot.signal("condition")
                b.store(b.add(b.load(woken), e.index(1)), woken)
            slot.unlock("mutex")
            with b.if_then(b.icmp_signed(">=", b.load(woken), most)):
                b.ret_void()


def _emit_start(e: Emitter, args: list[ir.Value]) -> None:
    """start(pool, helpers): create the workers up to `helpers` that are not there.

    Only the pool's owner does this, unless the gate is closed (a fork, or the process ends). The
    workers block the process's signals: those are for the threads that run Python.
    """
    b = e.builder
    words, helpers = args
    pool = Words(e, words)
    with b.if_then(b.not_(pool.swap("gate", e.index(GATE_OPEN), e.index(GATE_STARTING)))):
        b.ret_void()
    pool.mask_signals("all_signals", "old_signals")
    first = b.add(pool.load("workers"), e.index(1))
    with e.for_range(first, b.add(helpers, e.index(1))) as w:
        slot = pool.slot(w)
        with b.if_then(b.icmp_signed("==", slot.load("running", "acquire"), e.index(0))):
            slot.store("running", e.index(1))
            failed = pool.create(slot)
            with b.if_then(b.icmp_signed("!=", failed, ir.Constant(I32, 0)), likely=False):
                # the system refuses more threads: steps go on with those that there are, and say so
                slot.store("running", e.index(0))
                pool.store("limit", w)
                pool.mask_signals("old_signals", None)
                pool.store("gate", e.index(GATE_OPEN), "release")
                tell = b.inttoptr(pool.load("tell_refused"), _TELL_TYPE.as_pointer())
                b.call(tell, [b.sub(helpers, e.index(-1)), w, b.zext(failed, I64)])
                b.ret_void()
        pool.store("workers", w)
    pool.mask_signals("old_signals", None)
    pool.store("gate", e.index(GATE_OPEN), "release")


#: What `CONTROL` is asked for, and how often it looks.
CLOSE, SPIN = 0, 1
SPINS = 1 << 14


def _emit_worker(e: Emitter) -> None:
    """`worker(slot)`: the thread's one argument arrives where a kernel has its argument words."""
    b = e.builder
    base = b.inttoptr(b.load(e.at(e.arguments, e.index(SLOT["pool"]))), I64.as_pointer())
    pool = Words(e, base)
    slot = Words(e, e.arguments, pool=pool)
    number = slot.load("number")
    closed = e.index(GATE_CLOSED)

    def idle() -> ir.Value:
        nothing = b.not_(has_work(e, pool.load("state", "seq_cst"), number))
        return b.and_(nothing, b.icmp_signed("!=", pool.load("gate", "seq_cst"), closed))

    apart = _Apart(e, pool)
    spins = e.alloca(I64)
    b.store(slot.load("spin"), spins)
    with repeat_while(e, lambda: b.icmp_signed("!=", pool.load("gate"), closed)):
        spin_while(e, idle, b.load(spins))
        woken = e.alloca(ir.IntType(1))
        b.store(idle(), woken)
        with b.if_then(b.load(woken), likely=False):
            _sleep(e, pool, slot, idle)
            _wake_more(e, pool)
        apart.move()
        mine = take_chunks(e, pool, number, front=False)
        some = b.icmp_signed(">", mine, e.index(0))
        # woken too late: where the caller got its processor only afterwards, it should not wait
        late = b.and_(b.load(woken), b.not_(some))
        b.store(b.select(late, e.index(0), slot.load("spin")), spins)
        with b.if_then(b.load(woken), likely=False):
            _note_waking(e, pool, some)
        with b.if_then(some):
            _report(e, pool, mine)
    slot.store("running", e.index(0), "release")


class _Apart:
    """Keeps a worker off its caller's processor.

    Linux often wakes a thread on the processor of the one that woke it, and may leave it there for
    many time slices although another processor is idle. A worker that finds itself there gives up
    that one processor (and takes back what it gave up before).
    """

    def __init__(self, e: Emitter, pool: Words) -> None:
        self.e, self.pool = e, pool
        self.all, self.others, self.known = self._mask(), self._mask(), e.alloca(ir.IntType(1))
        e.builder.store(ir.Constant(ir.IntType(1), 0), self.known)
        b = e.builder
        with b.if_then(b.icmp_signed("!=", pool.load("sched_getcpu"), e.index(0))):
            failed = pool.affinity("sched_getaffinity", self.all)
            b.store(b.icmp_signed("==", failed, ir.Constant(failed.type, 0)), self.known)

    def _mask(self) -> ir.Value:
        held = self.e.alloca(ir.ArrayType(I64, PROCESSOR_WORDS))
        return self.e.builder.bitcast(held, I64.as_pointer())

    def move(self) -> None:
        """Leave the caller's processor, if this is it and there is another."""
        e, b, pool = self.e, self.e.builder, self.pool
        with b.if_then(b.load(self.known)):
            here = b.sext(pool.processor(), I64)
            met = b.icmp_signed("==", here, pool.load("caller_cpu"))
            inside = b.icmp_unsigned("<", here, e.index(64 * PROCESSOR_WORDS))
            with b.if_then(b.and_(met, inside), likely=False):
                for k in range(PROCESSOR_WORDS):
                    b.store(b.load(e.at(self.all, e.index(k))), e.at(self.others, e.index(k)))
                word = e.at(self.others, b.lshr(here, e.index(6)))
                bit = b.shl(e.index(1), b.and_(here, e.index(63)))
                b.store(b.and_(b.load(word), b.not_(bit)), word)
                # no processor left: it fails, and nothing changes
                pool.affinity("sched_setaffinity", self.others)


def _sleep(e: Emitter, pool: Words, slot: Words, idle: Callable[[], ir.Value]) -> None:
    b = e.builder
    slot.lock("mutex")
    slot.store("asleep", e.index(1), "seq_cst")
    b.atomic_rmw("add", pool.at("sleepers"), e.index(1), "seq_cst")

    def asleep() -> ir.Value:
        return b.icmp_signed("!=", slot.load("asleep"), e.index(0))

    # who publishes a job looks at `sleepers` afterwards, who sleeps looks for a job afterwards: one
    # of the two sees the other
    with repeat_while(e, lambda: b.and_(asleep(), idle())):
        slot.wait("condition", "mutex")
    with b.if_then(asleep()):  # it saw the job itself
        slot.store("asleep", e.index(0))
        b.atomic_rmw("sub", pool.at("sleepers"), e.index(1), "seq_cst")
    slot.unlock("mutex")


def _wake_more(e: Emitter, pool: Words) -> None:
    """One that was woken wakes two others, so that the caller need not wake all."""
    b = e.builder
    with b.if_then(b.icmp_signed("!=", pool.load("sleepers"), e.index(0))):
        state = pool.load("state")
        with b.if_then(has_work(e, state, e.index(0))):
            limit = b.lshr(state, e.index(LIMIT_SHIFT))
            b.call(emit_function(e, "wake", WAKE_TYPE, emit_wake), [pool.base, limit, e.index(2)])


def _note_waking(e: Emitter, pool: Words, in_time: ir.Value) -> None:
    """A wake that came too late was for nothing: the next is for twice as much work, as long as
    none helps. So where short calls lie far apart, or the other processors are taken, wakes become
    rare."""
    b = e.builder
    doubled, most = b.shl(pool.load("wake_after"), e.index(1)), e.index(MOST_WAKE_NS)
    doubled = b.select(b.icmp_signed("<", doubled, most), doubled, most)
    pool.store("wake_after", b.select(in_time, pool.load("wake_least"), doubled))


def _report(e: Emitter, pool: Words, mine: ir.Value) -> None:
    b = e.builder
    b.atomic_rmw("add", pool.at("done"), mine, "seq_cst")
    with b.if_then(b.icmp_signed("!=", pool.load("waiting", "seq_cst"), e.index(0)), likely=False):
        pool.lock("caller_mutex")
        pool.signal("caller_condition")
        pool.unlock("caller_mutex")


WORKER = Kernel("pool-worker-4", "pool_worker", _emit_worker, loops=False)


def _emit_control(e: Emitter) -> None:
    """`control(pool, what)`: `CLOSE` sends the workers home, `SPIN` looks 2^14 times for a job."""
    b = e.builder
    pool = Words(e, e.arguments)
    with b.if_else(b.icmp_signed("==", e.lo, e.index(CLOSE))) as (close, spin):
        with close:
            opened, shut = e.index(GATE_OPEN), e.index(GATE_CLOSED)
            with repeat_while(e, lambda: b.not_(pool.swap("gate", opened, shut))):
                emit_pause(e)
            every = e.index(MAX_THREADS)
            b.call(emit_function(e, "wake", WAKE_TYPE, emit_wake), [pool.base, every, every])
        with spin:
            number = e.index(0)

            def nothing() -> ir.Value:
                return b.not_(has_work(e, pool.load("state", "seq_cst"), number))

            spin_while(e, nothing, e.index(SPINS))


CONTROL = Kernel("pool-control-1", "pool_control", _emit_control, loops=False)
