"""`Running`: one run of a step on the executor.

Native code walks the nodes. Python carries out the host nodes, at once or on a helper's thread, and
checks what they give; plans that are expensive run on threads of their own. A step with nothing
left to run that never ended has a loop one of whose enters got no value, live or dead: the error
names it.

`node_trace.py` records a traced step."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from weft.ir.analysis.deadness import dead_result
from weft.ir.analysis.frames import unended_frame
from weft.ir.errors import CancelledError, InternalError, InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.passes.control.dataflow_regions import Region
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Array, Built, HostOp
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.dataflow.nodes import Node, Tables, words
from weft.runtime.dataflow.state import ExternalCell, State, iterations_of, word_at
from weft.runtime.dataflow.threads import GAIN, HELPERS, Beside, Phase
from weft.runtime.native.executable import Executable
from weft.runtime.native.pool import POOL
from weft.runtime.recorder import clock
from weft.runtime.resources.attempts import CancelToken, too_late
from weft.runtime.run_log import HostKey, RunLog, is_outside
from weft.runtime.step import Donation, PartOfDonation

if TYPE_CHECKING:
    from weft.runtime.dataflow.node_trace import NodeTrace


class Times:
    """The times and the thread of a traced node: begin None: when it was begun; thread None: the
    step's."""

    __slots__ = ("begin", "end", "thread", "waits")

    def __init__(self, begin: int | None, end: int, thread: int | None, *, waits: bool) -> None:
        self.begin, self.end, self.thread, self.waits = begin, end, thread, waits


def run_now(run: Callable[[list[Array]], list[Any]], given: list[Array]) -> Any:
    try:
        return run(given)
    except WeftError as error:
        return error


def run_host(
    host: HostOp,
    given: list[Array],
    token: Beside,
    cancel: CancelToken,
    done: Callable[[Any, int], None],
) -> None:
    """On a helper's thread: what goes wrong is raised by the step's."""
    begun = clock()
    try:
        if token.may_begin():
            host.start(given, lambda made: done(made, begun), cancel)
    except BaseException as error:
        done(error, begun)
    finally:
        token.ended = True


def check_fits(made: list[Any], host: HostOp) -> None:
    """Whoever reads a result trusts its type, and would read past the end of a smaller one."""
    for array, t in zip(made, host.results, strict=True):
        if array is DEAD and host.op.name == "recv":
            continue
        if isinstance(t, TensorType) and (
            array is None or not t.allows(array.shape) or array.dtype != t.dtype.numpy
        ):
            got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise InternalError(
                f"op '{host.op.name}' was to give {t}, and gave {got}", location=host.op.locations
            )


class Look:
    """The hook that loops of plans call at intervals, on any thread: it raises the error that ends
    them."""

    def __init__(self) -> None:
        self.token = CancelToken()  # of the step that runs

    def __call__(self) -> None:
        self.token.end_if_over()


class PlanWords:
    """The row of a plan, and the activation that it runs on. look: raises what is to end its loops;
    alone: it never uses other threads."""

    def __init__(
        self,
        made: Executable,
        region: Region,
        state: State,
        look: Look,
        *,
        alone: bool = False,
    ) -> None:
        self.activation, walker, slots = made.own_activation(one_thread=alone)
        self.activation.status.hook = id(look)
        self._made, self._look = made, look
        self._rows = _result_rows(made, region, slots, state)
        self.words = [
            walker, self.activation.header, ctypes.addressof(self.activation.slots),
            ctypes.addressof(self.activation.status), ctypes.addressof(self._rows), len(slots),
        ]  # fmt: skip

    def raise_failed(self) -> NoReturn:
        """The plan stopped: which op, and why."""
        activation = self.activation
        self._made.raise_failed(
            activation.failed.value, activation.status.value, activation.status.index
        )


def _result_rows(made: Executable, region: Region, slots: list[int], state: State) -> Any:
    width = at.PLAN_RESULT_BYTES // 8
    rows = words(width * len(slots))
    for i, (result, slot) in enumerate(zip(region.results, slots, strict=True)):
        given = made.plan.donated.get(i, at.NOT_GIVEN)
        row = [slot if given == at.NOT_GIVEN else given, at.NO_CELL, given, 0]
        if isinstance(result.type, TensorType):
            if row[0] < 0:
                raise InternalError(f"result {i} of a region's plan has no slot")
            row[1], row[3] = state.class_of(result.type.nbytes), result.type.nbytes
        rows[width * i : width * (i + 1)] = row
    return rows


_walk = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Job:
    """A plan that runs beside others, on one thread; again and again, once at a time. op: to name
    in errors."""

    def __init__(
        self,
        number: int,
        made: Executable,
        region: Region,
        state: State,
        look: Look,
    ) -> None:
        self.number, self.op = number, region.ops[-1]
        self.plan = PlanWords(made, region, state, look, alone=True)
        given = self.plan.words
        self._row = words(at.PLAN_WORDS)
        self._row[:] = given
        self._outs = words(len(made.plan.results))
        self.row, self.outs = ctypes.addressof(self._row), ctypes.addressof(self._outs)
        self._walker, self._header = _walk(given[0]), given[1]

    def walk_by(self, walker: int) -> None:
        """From now on the plan's table is walked by the native function at this address."""
        self._walker = _walk(walker)

    def run(self) -> None:
        """Run it on what `State.prepare` has given it; without the GIL."""
        self._walker(self._header, 0, 0, 0)

    def check(self) -> None:
        """Raise what stopped it."""
        if self.plan.activation.status.value:
            self.plan.raise_failed()


def unended(built: Built, tables: Tables, root: int) -> WeftError:
    """The error for a step whose root iteration is at `root`: it names frame and enter."""
    found = _search(built, tables, 0, root)
    if found is None:
        return InternalError("a step on the dataflow executor ended with nodes under way")
    number, iteration, node = found
    outer = built.frames[number].parent
    inside = word_at(iteration + at.I_NUMBER) if outer else None
    names = built.frame_names
    short = names[number].rpartition("/")[2], names[outer].rpartition("/")[2]
    return unended_frame(short[0], built.op_of[node], built.labels[node], short[1], inside)


def _search(
    built: Built, tables: Tables, frame: int, iteration: int
) -> tuple[int, int, Node] | None:
    """The number of a frame that began in `iteration` of `frame`, the iteration, and the enter that
    is missing."""
    for number, inner in enumerate(built.frames):
        instance = word_at(iteration + tables.child_at(number)) if inner.parent == frame else 0
        if number == 0 or not instance:
            continue
        for node in built.nodes:
            if node.kind == at.ENTER and node.target == number:
                pending = word_at(iteration + tables.state_at(node))
                if pending & at.COUNT_MASK:
                    return number, iteration, node
        inside = word_at(instance + at.FI_FIRST)
        while inside:
            found = _search(built, tables, number, inside)
            if found is not None:
                return found
            inside = word_at(inside + at.I_NEXT)
    return None


#: Signals (Ctrl-C), deadlines and host nodes that are done are looked at after so many seconds, or
#: so many nodes at first.
SLICE_SECONDS, FIRST_SLICE, LONGEST_SLICE = 0.02, 1 << 12, 1 << 40
#: A node in an iteration, by their addresses.
_Key = tuple[int, int]


class Running:
    """The state of one step at a time."""

    def __init__(self, built: Built, tables: Tables, inputs: int) -> None:
        self.built, self.tables = built, tables
        self.state = State(tables, inputs, len(built.fetches))
        self._cells = [ExternalCell() for _ in range(inputs)]
        for i, cell in enumerate(self._cells):
            self.state.feeds[i] = cell.address
        for cell, value in built.constants:
            self.state.boxes.share(cell.address, value)
        pairs = zip(built.plans, built.regions, strict=True)
        self._look = Look()
        self._plans = [PlanWords(p, r, self.state, self._look) for p, r in pairs]
        rows = (ctypes.c_int64 * max(at.PLAN_WORDS * len(built.plans), 1))()
        for i, plan in enumerate(self._plans):
            for k, word in enumerate(plan.words):
                rows[at.PLAN_WORDS * i + k] = word
        self._rows = rows
        self.state.set(at.S_PLANS, ctypes.addressof(rows))
        self._done: SimpleQueue[tuple[_Key, Any, Times | None]] = SimpleQueue()
        #: Called when a node is done after it was begun; `stepping` replaces it.
        self.put: Callable[[tuple[_Key, Any, Times | None]], None] = self._done.put
        self._waiting: dict[_Key, HostOp | Job] = {}  # in the order in which they began
        self._late: dict[_Key, tuple[Any, Times | None]] = {}  # done before what began earlier
        self._dear: deque[_Key] = deque()
        self._jobs: list[list[Job]] = [[] for _ in built.plans]
        self._beside: dict[_Key, Beside] = {}  # on other threads
        self._phase = Phase(GAIN)
        self._trace: NodeTrace | None = None
        self._log: HostLog | None = None
        self._own = CancelToken()  # of the last step; helpers that keep self keep its stacks, too
        self._begun: dict[_Key, list[int]] = {}  # events of what waits
        self._root = 0  # the address of the root iteration
        self._taken: dict[int, Array] = {}  # the donated feeds that regions write to
        self._donation: Donation | PartOfDonation | None = None  # is told when they do

    def run(
        self,
        inputs: list[Array],
        timeout: float | None,
        cancel: CancelToken,
        trace: NodeTrace | None = None,
        log: HostLog | None = None,
        donation: Donation | PartOfDonation | None = None,
    ) -> list[Array | None]:
        """The results. After an error the state is of no use."""
        until = None if timeout is None else time.monotonic() + timeout
        forget = self.begin(inputs, cancel, trace, log, donation)
        try:
            self.go_on(until)
        finally:
            forget()
        return self.end()

    def _walk_by(self, number: int, walker: int) -> None:
        """From now on the native loop has the table of a plan walked by the function there."""
        self._rows[at.PLAN_WORDS * number + at.P_WALKER // 8] = walker

    def begin(
        self,
        inputs: list[Array],
        cancel: CancelToken,
        trace: NodeTrace | None = None,
        log: HostLog | None = None,
        donation: Donation | PartOfDonation | None = None,
    ) -> Callable[[], None]:
        """Take the inputs; what is to be called when the step is over, however it ended."""
        self._trace, self._log, self._donation = trace, log, donation
        if trace is not None:
            for number, (made, plan) in enumerate(zip(self.built.plans, self._plans, strict=True)):
                trace.walk_in(made, plan, partial(self._walk_by, number))
        for cell, array, is_open in zip(self._cells, inputs, self.built.open_feeds, strict=True):
            cell.hold(array)
            if is_open:
                self.state.boxes.share(cell.address, array)
        if self.built.taken:
            self._taken = {i: inputs[i] for i in self.built.taken}
        # its end cancels what it waits for, and nothing else
        own = self._own = self._look.token = CancelToken(cancel.exchange)
        forget = cancel.register(lambda: own.cancel(cancel.reason))
        if cancel.exchange is not None:
            cancel.exchange.runs(self.waits)
        self._root = self.state.start()
        return forget

    def go_on(self, until: float | None, *, wait: bool = True) -> bool:
        """Run to the end: True. Without `wait` also to where nothing is left but to wait: False; to
        be called again when `put` was."""
        own = self._own
        try:
            return self._run(until, own, wait)
        except BaseException:
            own.cancel("its step has failed")
            self._end_helpers()
            self.state.boxes.drop()
            self._forget_stacks(own)  # whoever keeps the error keeps this activation, too
            self._let_go()
            raise

    def end(self) -> list[Array | None]:
        """The results; the state is as new. InvalidArgumentError if one is dead."""
        try:
            results = self._results()
        finally:
            self._let_go()
        self._forget_stacks(self._own)
        return results

    def _results(self) -> list[Array | None]:
        results: list[Array | None] = []
        there = self.built.elsewhere
        far = there is not None and there.results_stay
        for i, t in enumerate(self.built.fetches):
            shared = i in self.built.donated
            made = None if t is None else self.state.result(i, t, shared=shared, far=far)
            if made is None and t is not None:
                raise dead_result(self.built.graph.block, i, self.built.feed_names)
            results.append(made)
        if not self.state.end(self._root):
            raise unended(self.built, self.tables, self._root)
        return results

    def _let_go(self) -> None:
        """Keep nothing of the inputs: who holds an error holds this, too."""
        for cell in self._cells:
            cell.hold(None)
            self.state.boxes.unshare(cell.address)
        if self._taken:
            self._taken = {}

    @property
    def idle(self) -> bool:
        """Whether nothing that was waited for has come."""
        return self._done.empty()

    def _forget_stacks(self, own: CancelToken) -> None:
        """Give back what stacks took that went from one region to another; nobody uses them now."""
        own.let_go()
        for plan in (*self._plans, *(job.plan for jobs in self._jobs for job in jobs)):
            plan.activation.forget_stacks()

    def _run(self, until: float | None, cancel: CancelToken, wait: bool) -> bool:
        state, budget, cancel.until = self.state, FIRST_SLICE, until
        while True:
            begun = time.perf_counter()
            state.set(at.S_BUSY, bool(self._waiting or self._dear))
            left = state.run(budget)
            if self._trace is not None:
                self._trace.drain()
            if left:
                spent = time.perf_counter() - begun
                slower = max(budget // 2, 1)
                budget = slower if spent > SLICE_SECONDS else min(2 * budget, LONGEST_SLICE)
            if state.word(at.S_FAILED):
                self._raise_failed()
            started = state.take_host()
            self._dear += state.take_dear()
            if not (left or started or self._dear or self._waiting):
                return True
            if until is not None and time.monotonic() > until:
                raise too_late(self.waits())
            if cancel.is_cancelled:
                raise CancelledError(
                    f"the step was cancelled: {cancel.reason or 'no reason given'}"
                )
            ran = False
            for key in started:
                host = self._host(key)
                if host.dear:
                    self._dear.append(key)
                else:
                    ran |= self._start_host(key, host, cancel)
            if self.built.deterministic:
                if not left and not ran:
                    self._take_first(until, cancel)
                continue
            if self._dear and not left and self._done.empty():
                ran |= self._run_dear(cancel)
            if self._waiting:
                still = not left and not ran
                if still and not wait and self._done.empty():
                    return False
                self._take_done(until, cancel, wait=still)

    # ------------------------------------------------------------------------------- what is begun
    def _host(self, key: _Key) -> HostOp:
        return self.built.hosts[self.tables.node_at(key[0]).number]

    def _inputs(self, key: _Key, host: HostOp) -> list[Any]:
        """What a host node reads."""
        given = self.state.inputs(self.tables.node_at(key[0]), key[1], host)
        if host.takes:
            if self._donation is not None:
                self._donation.take(host.takes.values())
            for i, feed in host.takes.items():
                given[i] = self._taken[feed]
        return given

    def _start_host(self, key: _Key, host: HostOp, cancel: CancelToken) -> bool:
        """Begin a host node; whether it is complete already."""
        given = self._inputs(key, host)
        self._waiting[key] = host
        if self._log is not None:
            self._log.note_operands(host.op, key[1], given)
            known = self._log.given(host.op, key[1])
            if known is not None:
                self._begun.pop(key, None)
                self._complete(key, known, None)
                return True
        if self._trace is not None:
            return self._start_traced(key, host, given, cancel)
        if host.now is not None:
            self._complete(key, run_now(host.now, given), None)
            return True
        me, starting, put = get_ident(), not self.built.deterministic, self.put
        at_once: list[Any] = []

        def done(made: Any) -> None:
            if starting and get_ident() == me:
                at_once.append(made)
            else:
                put((key, made, None))

        host.start(given, done, cancel)
        starting = False
        if at_once:
            self._complete(key, at_once[0], None)
        return bool(at_once)

    def _start_traced(
        self, key: _Key, host: HostOp, given: list[Array], cancel: CancelToken
    ) -> bool:
        """As `_start_host`; of a deterministic step in the same order."""
        assert self._trace is not None
        put = self._done.put
        host = self._trace.host(host)
        self._begun[key] = self._trace.begun(*key)
        if host.now is not None:
            made = run_now(host.now, given)
            self._complete(key, made, Times(None, clock(), None, waits=False))
            return True
        begun: list[bool] = []  # what is done before `start` returns did not wait

        def done(made: Any) -> None:
            put((key, made, Times(None, clock(), None, waits=bool(begun))))

        host.start(given, done, cancel)
        begun.append(True)
        return False

    def _run_dear(self, cancel: CancelToken) -> bool:
        """Dear nodes, when there is nothing else to do: each on a thread of its own if there is
        more than one thing under way. Whether one was run on this thread."""
        several = len(self._dear) > 1 or bool(self._waiting)
        if several and POOL.limit > 1 and GAIN.pays():
            wide: deque[_Key] = deque()
            while self._dear:
                key = self._dear.popleft()
                if self._is_wide(key):
                    wide.append(key)
                else:
                    self._start_beside(key, cancel)
            self._dear = wide
        if not self._dear:
            return False
        key = self._dear.popleft()
        if self.tables.node_at(key[0]).kind == at.HOST:
            self._start_host(key, self._host(key), cancel)
            return True
        row = None if self._trace is None else self._trace.begun(*key)
        self.state.run_here(*key)
        if self._trace is not None and row is not None:
            self._trace.ended(row, clock(), None, waits=False)
        return True

    def _is_wide(self, key: _Key) -> bool:
        node = self.tables.node_at(key[0])
        return node.kind == at.DEAR and self.built.wide[node.number]

    def _start_beside(self, key: _Key, cancel: CancelToken) -> None:
        """A dear node on a helper's thread. What it does to the state's memory is done by this
        thread, before and after."""
        node: Node = self.tables.node_at(key[0])
        put = self.put
        token = self._beside[key] = Beside()
        self._phase.begin()

        def done(made: Any, begun: int) -> None:
            put((key, made, Times(begun, clock(), get_ident(), waits=False)))

        if node.kind == at.HOST:
            host = self._host(key)
            if self._trace is not None:
                host = self._trace.host(host)
                self._begun[key] = self._trace.begun(*key)
            self._waiting[key] = host
            given = self._inputs(key, host)
            if self._log is not None:
                self._log.note_operands(host.op, key[1], given)
            run = partial(run_host, host, given, token, cancel, done)
            HELPERS.submit(lambda: self._run_held(run), self._most())
            return
        held = self._jobs[node.number]
        made, region = self.built.plans[node.number], self.built.regions[node.number]
        job = held.pop() if held else Job(node.number, made, region, self.state, self._look)
        if self._trace is not None:
            self._trace.walk_in(made, job.plan, job.walk_by)
            self._begun[key] = self._trace.begun(*key)
        self._waiting[key] = job
        self.state.prepare(*key, job.row, job.outs)
        HELPERS.submit(lambda: self._run_job(job, token, done), self._most())

    def _most(self) -> int:
        """How many threads a step may use now."""
        return min(self.built.threads, POOL.limit)

    def _run_held(self, run: Callable[[], None]) -> None:
        """On a helper's thread. That it is a method keeps the memory that `run` works on, whatever
        becomes of the step."""
        run()

    def _run_job(self, job: Job, token: Beside, done: Callable[[Any, int], None]) -> None:
        """A plan, as `_run_held`."""
        begun = clock()
        if token.may_begin():
            job.run()
        token.ended = True
        done(None, begun)

    # -------------------------------------------------------------------------------- what is done
    def _take_done(self, until: float | None, cancel: CancelToken, *, wait: bool) -> None:
        """Complete what is done; if `wait`, at least one, should any be under way."""
        block = wait and bool(self._waiting)
        while True:
            found = self._awaited(until) if block else self._next_done(until, block=False)
            if found is None:
                if block:
                    self._last_call(cancel)
                return
            block = False
            self._complete(*found)

    @property
    def awaits_messages(self) -> bool:
        """Whether all that is under way are messages of other tasks."""
        return all(x.op.name == "recv" for x in self._waiting.values())

    def _awaited(self, until: float | None) -> tuple[_Key, Any, Times | None] | None:
        """As `_next_done`. If all that is under way are messages, who exchanges them is told how
        long that was."""
        exchange = self._own.exchange
        if exchange is None or not self.awaits_messages:
            return self._next_done(until, block=True)
        begun = time.monotonic()
        found = self._next_done(until, block=True)
        exchange.waited(time.monotonic() - begun)
        return found

    def _take_first(self, until: float | None, cancel: CancelToken) -> None:
        """Complete what began first, and wait for it: in the same order in every run."""
        if not self._waiting:
            return
        first = next(iter(self._waiting))
        while first not in self._late:
            found = self._next_done(until, block=True)
            if found is None:
                self._last_call(cancel)
                return
            key, made, times = found
            self._late[key] = made, times
        self._complete(first, *self._late.pop(first))

    def _last_call(self, cancel: CancelToken) -> None:
        """The time is up: cancel what is under way. If all of that was done after all, just then,
        the step may go on, or what it took out of a queue would be lost; else it is too late."""
        error = too_late(self.waits())
        cancel.cancel("its step did not end in time")
        while len(self._late) < len(self._waiting):
            key, made, times = self._done.get()
            self._late[key] = made, times
        if any(isinstance(made, BaseException) for made, _ in self._late.values()):
            raise error
        for key in list(self._waiting):
            self._complete(key, *self._late.pop(key))

    def _next_done(
        self, until: float | None, *, block: bool
    ) -> tuple[_Key, Any, Times | None] | None:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        if left is not None and left > TIMEOUT_MAX:  # more than a lock can wait for
            left = None
        try:
            return self._done.get(block, left if block else None)
        except Empty:
            return None

    def _complete(self, key: _Key, made: Any, times: Times | None) -> None:
        item = self._waiting.pop(key)
        if self._beside.pop(key, None) is not None and times is not None:
            self._phase.end(key[0], times.begin or times.end, times.end)
        if self._trace is not None and times is not None:
            row = self._begun.pop(key)
            if times.begin is not None:
                row[at.T_BEGIN // 8] = times.begin
            self._trace.ended(row, times.end, times.thread, waits=times.waits, made=made)
        if self._log is not None and isinstance(item, HostOp):
            ended = isinstance(made, CancelledError) and self._own.is_cancelled
            if not ended:  # by the end of its step, which is not what the op gave
                self._log.note(item.op, key[1], made)
        if isinstance(made, WeftError):
            raise made.at(item.op.locations)
        if isinstance(made, BaseException):
            raise made
        if isinstance(item, Job):
            item.check()
            self.state.complete_plan(*key, item.outs)
            self._jobs[item.number].append(item)
            return
        check_fits(made, item)
        self.state.complete(*key, made, item.results)

    def _end_helpers(self) -> None:
        """Wait for the nodes on other threads that a failed step has begun: they write to its
        memory, and to variables."""
        for token in self._beside.values():
            token.stop()

    def waits(self) -> list[Operation]:
        """The ops of the host that are under way."""
        hosts = [h for h in self._waiting.copy().values() if isinstance(h, HostOp)]
        return [h.op for h in hosts if not h.dear]

    def _raise_failed(self) -> None:
        node = self.tables.node_at(self.state.word(at.S_FAILED_NODE))
        if self.state.word(at.S_FAILED) == at.TWO_VALUES:
            op = self.built.op_of[node]
            raise InvalidArgumentError(
                f"op '{op.name}' got two live values in one iteration",
                hint="at most one operand of a merge may be live, and an exit gives one value",
                location=op.locations,
            )
        self._plans[node.number].raise_failed()


class HostLog:
    """The log of one run, told of host ops by their nodes' iterations. keys: of the ops that take
    something from outside, or give something to it (`goes_outside`)."""

    def __init__(self, log: RunLog, keys: Mapping[Operation, HostKey]) -> None:
        self._log, self._keys = log, keys

    def given(self, op: Operation, iteration: int) -> Any:
        """What an op gives without being carried out, None if it is to be."""
        key = self._keys.get(op) if is_outside(op.name) else None
        return None if key is None else self._log.given(key, self._at(iteration))

    def note_operands(self, op: Operation, iteration: int, operands: Sequence[Any]) -> None:
        """An op is about to be carried out on these arrays."""
        key = self._keys.get(op)
        if key is not None:
            self._log.note_operands(key, self._at(iteration), operands)

    def note(self, op: Operation, iteration: int, made: Any) -> None:
        """An op gave this, an error perhaps."""
        if isinstance(made, WeftError):
            self._log.note_error(op.name)
        key = self._keys.get(op) if is_outside(op.name) else None
        if key is not None and (isinstance(made, WeftError) or not isinstance(made, BaseException)):
            self._log.note(key, self._at(iteration), made)

    @staticmethod
    def _at(iteration: int) -> tuple[int, ...]:
        return tuple(reversed(iterations_of(iteration)))
