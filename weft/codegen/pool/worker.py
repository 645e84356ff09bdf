"""The native loop of the pool's worker threads: wait for a job, help with it, wait again."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.pool.emit import WAKE_TYPE, emit_wake, has_work, take_chunks
from weft.codegen.pool.words import (
    GATE_CLOSED,
    GATE_OPEN,
    LIMIT_SHIFT,
    MAX_THREADS,
    PROCESSOR_WORDS,
    SLOT,
    Words,
    emit_function,
    emit_pause,
    repeat_while,
    spin_while,
)

#: What `CONTROL` is asked for, and how often it looks.
CLOSE, SPIN = 0, 1
SPINS = 1 << 14
#: Sleepers are woken at least for so much work, however often they came too late.
MOST_WAKE_NS = 6_400_000


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
