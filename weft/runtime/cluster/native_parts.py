"""`NativeParts`: the small parts of a task whose messages native code takes and answers.

A part that has run in Python some times becomes a program of `packet_path.py`: tables that say what
its RUN looks like, what it computes and sends first, what it waits for, and what follows. What a
RUN begins there is a run of 4 KB in a table. Whatever else happens to such a run (another way for
its tensors, an abort, a lost link, a question who waits) has it recalled first: it goes on as a
`PartRun`, from where it is."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.comm import wire
from weft.comm.rendezvous import MASTER_SHIFT
from weft.ir.errors import UnknownError, WeftError
from weft.ir.types import TensorType
from weft.runtime.cluster import packet_layout as to
from weft.runtime.cluster.packets import PacketCode, Unfit, Words, address_of, packet_code
from weft.runtime.cluster.part import Registered
from weft.runtime.cluster.part_run import Client, Home, PartRun
from weft.runtime.cluster.small_step import (
    COMPUTE,
    FETCH,
    RECV,
    SEND,
    Act,
    Row,
    Segment,
    SmallProgram,
)
from weft.runtime.native.executable import Executable
from weft.runtime.trace.prometheus import SECONDS

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint

_LOG = logging.getLogger("weft.cluster")
#: Runs of a part in Python before its program is made, and how often that is tried: lanes may not
#: be there yet.
RUNS_BEFORE, MOST_TRIES = 3, 30
_BUSY = -2  # of `recall`
_PAUSE = 5e-5  # seconds between two looks at a run that computes


class Program:
    """A part of a session as native code runs it. `Unfit` where it cannot."""

    def __init__(self, client: Client, part: Registered, handle: int, wires: Endpoint) -> None:
        assert part.brief is not None
        self.client, self.part, self.handle, self.brief = client, part, handle, part.brief
        self._endpoint, self._own = wires, Words()
        self.received: list[Row] = []  # by the numbers of edges
        self.sends: list[tuple[Row, int, int]] = []  # and the address of the act, bytes
        self._links: dict[str, int] = {}
        self._segments: dict[int, int] = {}  # addresses; several messages may lead to one
        self.is_direct = client.deliver is not None
        self._check()
        session, self.source = 0, 0
        if not self.is_direct:
            session, self.source = self._link(client.name), wires.peers.named(client.name).source
        feeds, meta, nbytes = self._feeds()
        first = self._segment([r for r in self.brief.first.rows if r.does != RECV], -1)
        edges, count = self._edges()
        own = self._own
        self.words = (ctypes.c_int64 * to.PROGRAM_WORDS)()
        given = {
            to.P_VALID: 1, to.P_HANDLE: handle, to.P_DONE: session, to.P_META: len(meta),
            to.P_META_AT: own.raw(meta), to.P_FLAGS: to.BUFFERS if meta else 0,
            to.P_FEED_BYTES: nbytes, to.P_FEED_COUNT: len(self.brief.feeds), to.P_FEEDS: feeds,
            to.P_RESULTS: len(self.brief.fetched), to.P_ROWS: len(self.brief.rows),
            to.P_FIRST: first, to.P_EDGES: edges, to.P_EDGE_COUNT: count,
            to.P_LEFT: own.block(self.brief.left), to.P_LEFT_COUNT: len(self.brief.left),
            to.P_LOW: address_of(client.low),
            to.P_BOUNDS: own.block(round(bound * 1e9) for bound in SECONDS),
        }  # fmt: skip
        for offset, value in given.items():
            self.words[offset // 8] = value
        self._counted = [0] * (3 + to.BOUNDS + 1)
        self._sent = [0] * len(self.sends)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.words)

    def _check(self) -> None:
        brief = self.brief
        if brief.waits or self.part.constants or len(brief.rows) > to.MOST_ROWS:
            raise Unfit("it waits for the host, is fed constants, or is large")

    def _link(self, peer: str) -> int:
        found = self._links.get(peer)
        if found is None:
            words = self._endpoint.words_of(peer)
            if words is None:
                raise Unfit(f"packets do not go to and from {peer}")
            found = self._links[peer] = self._own.link(words)
        return found

    def _feeds(self) -> tuple[int, bytes, int]:
        """Rows of what a RUN brings, their description in its frame, their bytes."""
        rows: list[int] = []
        described, nbytes = [], 0
        for place, (dtype, kind) in zip(self.brief.feeds, self.part.kinds, strict=True):
            shape = kind.static_shape
            rows += [place, self._own.type(dtype, shape)]
            described.append((wire.CODES[dtype], shape, kind.nbytes))
            nbytes += kind.nbytes
        meta = wire.pack_buffer_metas(tuple(described)) if described else b""
        return self._own.block(rows), meta, nbytes

    def _segment(self, rows: Sequence[Row], place: int) -> int:
        own, words = self._own, []
        for row in rows:
            words += self._act(row)
        acts = own.block(words)
        sent = [i for i, row in enumerate(rows) if row.does == SEND]
        for i in sent:
            kind: Any = rows[i].edge.op.operands[0].type  # type: ignore[union-attr]
            self.sends.append((rows[i], acts + to.ACT_BYTES * i, kind.nbytes))
        return own.block([acts, len(rows), place])

    def _act(self, row: Row) -> list[int]:
        own, inputs = self._own, self._inputs(row.inputs)
        if row.does == SEND and row.edge is not None:
            edge, kind = row.edge, row.edge.op.operands[0].type
            if len(row.inputs) != 1 or edge.target == edge.source or edge.is_text:
                raise Unfit("a message in a loop, to itself, or of strings")
            if not isinstance(kind, TensorType) or not kind.is_static:
                raise Unfit("a message of open size")
            described = own.type(kind.dtype.numpy, kind.static_shape)
            return [0, 0, row.number, inputs, 1, self._link(edge.target), edge.key, described, 0]
        if row.does == FETCH:
            copies = own.object(list)
            return [copies, copies, row.number, inputs, len(row.inputs), 0, 0, 0, 0]
        step = getattr(row.call, "__self__", None)
        if row.does != COMPUTE or not isinstance(step, Executable) or row.donated:
            raise Unfit(f"row {row.number} is no native step")
        native = step.native_step()
        if native is None:
            raise Unfit("its native step is not there yet")
        calls = own.object(native.run), own.object(row.call)
        return [*calls, row.number, inputs, len(row.inputs), 0, 0, 0, 0]

    def _inputs(self, places: Sequence[tuple[int, int]]) -> int:
        words: list[int] = []
        for number, port in places:
            row = self.brief.rows[number]
            if row is not None and row.does != RECV:
                words += [number, port]
            elif row is not None or number in self.brief.feeds:
                words += [number, to.WHOLE]
            else:
                words += [self._own.object(self.brief.values[number][port]), to.OBJECT]
        return self._own.block(words)

    def _edges(self) -> tuple[int, int]:
        words: list[int] = []
        for row in self.brief.first.rows:
            if row.does != RECV or row.edge is None:
                continue
            edge = row.edge
            if row.inputs or edge.source == edge.target or len(self.received) == to.MOST_EDGES:
                raise Unfit("a message in a loop, of its own, or too many of them")
            following = self.brief.then[row.number]
            segments = [self._segment_of(segment) for segment in following]
            link, kind = self._link(edge.source), self._own.type(row.dtype, row.shape)
            source = self._endpoint.peers.named(edge.source).source
            bit, pointers = 1 << len(self.received), self._own.block(segments)
            words += [edge.key, source, link, kind, row.number, bit, pointers, len(segments)]
            self.received.append(row)
        if len(self.received) != self.brief.count:
            raise Unfit("it waits for one message before it asks for another")
        return self._own.block(words), len(self.received)

    def _segment_of(self, segment: Segment) -> int:
        known = self._segments.get(id(segment))
        if known is None:
            known = self._segments[id(segment)] = self._segment(segment.rows, segment.place)
        return known

    def count(self, home: Home) -> None:
        """Have the task's counters, and the session, know what ran since the last time."""
        last = self.words[to.P_LAST // 8] & 0xFFFFFFFFFFFFFFFF
        self.client.last = max(self.client.last, last)
        first = to.P_RUNS // 8
        now = self.words[first : first + len(self._counted)]
        new = [a - b for a, b in zip(now, self._counted, strict=True)]
        self._counted = now
        runs, seconds, waited, *buckets = new
        if runs:
            told = self.part.whole, runs, seconds / 1e9, waited / 1e9, buckets
            home.counters.ended_natively(*told)
        for i, (row, act, nbytes) in enumerate(self.sends):
            sent = ctypes.c_int64.from_address(act + to.A_SENT).value
            times, self._sent[i] = sent - self._sent[i], sent
            if times and row.edge is not None:
                home.counters.sent(row.edge.target, row.edge.tensor, nbytes, times)


class NativeParts:
    """The programs and runs of one task. code: once it is compiled. admit: called with a run that
    goes on in Python, before it does. is_current: whether a session has that part, by its handle.
    The methods may be called in any thread; packets are taken by the one that reads messages."""

    def __init__(
        self,
        endpoint: Endpoint,
        home: Home,
        admit: Callable[[PartRun], None],
        is_current: Callable[[Client, Registered, int], bool],
    ) -> None:
        self._endpoint, self._home, self._admit = endpoint, home, admit
        self._is_current = is_current
        self._lock = threading.Lock()
        self._programs: dict[tuple[str, int], Program] = {}  # by session and handle
        self._by_address: dict[int, Program] = {}
        self._active, self._count = array("q", [0]), array("q", [0])
        self._steps = array("Q", [0] * to.RUNS)
        self._rows = (ctypes.c_int64 * (to.PROGRAMS * to.PROGRAM_ROW // 8))()
        self._runs: Any = None
        self.code: PacketCode | None = None
        self._free: Any = None
        self._recall: Any = None
        self._begin: Any = None
        self._first_run = 0
        self.take: Callable[[int], Any] | None = None

    # ------------------------------------------------------------------------------ new programs
    def ran(self, client: Client, part: Registered, handle: int, low: int) -> None:
        """A part has run in Python, at a RUN that could have been native code's. low: the step up
        to which all are forgotten."""
        who, runs = (client.name, handle), client.runs.get(handle, 0) + 1
        client.runs[handle] = runs
        if not RUNS_BEFORE <= runs < RUNS_BEFORE + MOST_TRIES or part.brief is None:
            return
        with self._lock:
            if not self._is_ready():
                client.runs[handle] = RUNS_BEFORE - 1
                return
            if who in self._programs or len(self._programs) == to.PROGRAMS:
                return
            if not self._is_current(client, part, handle):  # else `drop` comes later
                return
            client.low[0] = low
            try:
                made = Program(client, part, handle, self._endpoint)
            except Unfit as reason:
                _LOG.debug("part %d of %s is run by Python: %s", handle, client.name, reason)
                return
            self._programs[who] = made
            self._by_address[made.address] = made
            self._tell(made)
        assert self.take is not None
        self._endpoint.take_packets(self.take)

    def _tell(self, made: Program) -> None:
        """Have native code know a program."""
        if not made.is_direct:
            row = self._count[0] * to.PROGRAM_ROW // 8
            source = ctypes.c_int64(made.source).value
            self._rows[row : row + 3] = [source, made.handle, made.address]
            self._count[0] += 1  # last: it is found from now on

    def begin(self, run: PartRun) -> bool:
        """Begin a run that a session in this process wants; False if Python has to."""
        made = self._programs.get((run.client.name, run.handle))
        if made is None or not made.is_direct or run.was_ended():
            return False
        try:
            feeds = run.part.inputs(run.buffers) if run.part.kinds or run.buffers else ()
        except WeftError:
            return False  # Python says it
        if not self._begin(made.address, run.step, run, list(feeds)):
            return False
        if run.was_ended():  # meanwhile
            self.recall_step(run.step)
        return True

    def _is_ready(self) -> bool:
        """Under the lock: whether the code is compiled; it is begun if not."""
        if self.take is None:
            code = packet_code()
            if code is None:
                return False
            self._use(code)
        return True

    def _use(self, code: PacketCode) -> None:
        self._runs = ctypes.create_string_buffer(to.RUN_BYTES * to.RUNS + 64)
        runs = (ctypes.addressof(self._runs) + 63) & -64
        for i in range(to.RUNS):
            ctypes.c_int64.from_address(runs + to.RUN_BYTES * i + to.T_NUMBER).value = i
        self._first_run, number, who = runs, ctypes.c_int64, ctypes.py_object
        known = self._endpoint.rendezvous.lend(self._active, self.recall_step)
        code.set({
            to.C_KNOWN: code.own.object(known), to.C_RESUME: code.own.object(self._resume),
            to.C_ME: self._endpoint.incarnation, to.C_PROGRAMS: ctypes.addressof(self._rows),
            to.C_COUNT: address_of(self._count), to.C_STEPS: address_of(self._steps),
            to.C_RUNS: runs, to.C_ACTIVE: address_of(self._active),
        })  # fmt: skip
        self._free = code.function("free_run", number)
        self._recall = code.function("recall", ctypes.c_uint64)
        self._begin = code.function("begin_run", number, ctypes.c_uint64, who, who)
        self.code, self.take = code, code.builtin("take")

    # -------------------------------------------------------------------------------- what ends
    def drop(self, is_over: Callable[[Program], bool]) -> None:
        """Python runs these programs from now on."""
        with self._lock:
            gone = [one for one in self._programs.values() if is_over(one)]
            for one in gone:
                one.words[to.P_VALID // 8] = 0
        if not gone:
            return
        addresses = {one.address for one in gone}
        self.recall(lambda number: self._word(number, to.T_PROGRAM) in addresses)
        with self._lock:
            self._count[0] = 0
            for one in gone:
                one.count(self._home)
                who = one.client.name, one.handle
                one.client.runs.pop(one.handle, None)
                if self._programs.get(who) is one:
                    del self._programs[who]
                self._by_address.pop(one.address, None)
            for one in self._programs.values():
                self._tell(one)

    def forgot(self, low: int) -> None:
        """All steps of a master up to this one are over."""
        self.recall(lambda number: self._is_over(self._steps[number], low))
        with self._lock:
            clients = {one.client for one in self._programs.values()}
        for client in clients:
            if client.last >> MASTER_SHIFT == low >> MASTER_SHIFT:
                client.low[0] = low

    @staticmethod
    def _is_over(step: int, low: int) -> bool:
        return step <= low and step >> MASTER_SHIFT == low >> MASTER_SHIFT

    def watch(self, seconds: float) -> None:
        """For so long Python runs all parts, as somebody looks at the times of their ops."""
        if self.code is not None:
            self.code.set({to.C_WATCHED: time.monotonic_ns() + int(seconds * 1e9)})

    def stop(self) -> None:
        """No run begins here any more."""
        if self.code is not None:
            self.code.set({to.C_OFF: 1})
        self.recall()

    def count(self) -> None:
        """Have the task's counters know what ran here."""
        with self._lock:
            for one in self._programs.values():
                one.count(self._home)

    # ---------------------------------------------------------------------------------- recalls
    def recall(self, wanted: Callable[[int], bool] = lambda number: True) -> None:
        """Have runs go on in Python."""
        if self._active[0]:
            for number, step in enumerate(self._steps):
                if step and wanted(number):
                    self.recall_step(step)

    def begun(self) -> int:
        """How many runs its programs have begun."""
        with self._lock:
            return sum(one.words[to.P_BEGUN // 8] for one in self._programs.values())

    def held(self) -> int:
        """How many runs wait here."""
        return self._active[0]

    def _word(self, number: int, offset: int) -> int:
        address = self._first_run + to.RUN_BYTES * number + offset
        return ctypes.c_int64.from_address(address).value

    def recall_step(self, step: int) -> None:
        """Have the run of a step, if there is one, go on in Python, where it waits."""
        if not self._active[0]:
            return
        while self._recall(step) == _BUSY:  # in another thread
            time.sleep(_PAUSE)

    def _resume(
        self, number: int, row: int, place: int, act: int, error: BaseException | None
    ) -> None:
        """Native code has stopped at a function, of those that follow a row's message in the
        segment of this place; -1: all is done. error: what it has raised."""
        try:
            program = self._program(number)
            if error is not None:
                acts: list[Act] = [partial(_raise, error)]
            elif act < 0:
                acts = []
            elif row < 0:
                first = program.brief.first
                acts = [r.act for r in first.rows if r.does != RECV][act:]
            else:
                acts = self._rest(program.brief, number, row, place, act)
            self._go_on(number, acts)
        except Exception:
            _LOG.exception("%s: a run could not go on", self._home.name)
            raise

    def _rest(self, brief: SmallProgram, number: int, row: int, place: int, act: int) -> list[Act]:
        """What follows a message, but for what was done."""
        stopped, *others = brief.then[row][place:]
        acts = list(stopped.acts[act:])
        for segment in others:
            if segment.place >= 0:
                at_ = self._first_run + to.RUN_BYTES * number + to.T_LEFT + 8 * segment.place
                left = ctypes.c_int64.from_address(at_)
                left.value -= 1
                if left.value:
                    continue
            acts += segment.acts
        return acts

    def _program(self, number: int) -> Program:
        return self._by_address[self._word(number, to.T_PROGRAM)]

    def _go_on(self, number: int, acts: Sequence[Act]) -> None:
        """Have a run go on in Python with these functions; it is not native code's any more."""
        program = self._program(number)
        brief, address = program.brief, self._first_run + to.RUN_BYTES * number
        step = self._steps[number]
        words = (ctypes.c_int64 * (to.RUN_BYTES // 8)).from_address(address)
        values = brief.values.copy()
        for i, row in enumerate(brief.rows):
            held = words[to.T_VALUES // 8 + i]
            if held:
                found = ctypes.cast(held, ctypes.py_object).value
                values[i] = found if row is not None and row.does in (COMPUTE, FETCH) else (found,)
        left = words[to.T_LEFT // 8 : to.T_LEFT // 8 + len(brief.left)]
        came, todo = words[to.T_CAME // 8], words[to.T_TODO // 8]
        begun, worked = words[to.T_BEGUN // 8] / 1e9, words[to.T_WORKED // 8] / 1e9
        missing = [row for i, row in enumerate(program.received) if not came >> i & 1]
        owner = words[to.T_OWNER // 8]
        if owner:
            run: PartRun = ctypes.cast(owner, ctypes.py_object).value
        else:
            run = PartRun(program.client, self._home, program.part, step, program.handle, {}, ())
            self._admit(run)  # before the step is none of these any more: who ends all finds it
        self._free(address)
        run.take_over(begun, values, left, todo, worked, [*acts, *_expecting(missing)])


def _raise(error: object, run: object, values: object) -> None:
    if isinstance(error, BaseException):
        raise error
    raise error() if isinstance(error, type) else UnknownError(str(error))


def _expecting(rows: Sequence[Row]) -> list[Act]:
    """What asks for the messages that have not come."""
    wanted = {(r.edge.key, ()): (r.number, r.edge.source) for r in rows if r.edge is not None}
    if not wanted:
        return []
    return [lambda run, values: run.wire.rendezvous.expect(run.step, wanted, run.take)]
