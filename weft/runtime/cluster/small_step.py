"""Small-step scheduler: a small part without control flow as a program of few steps.

The thread that brings an input goes on with the program: mostly the one that reads the task's
messages. It does what `runtime.dataflow` does with the same nodes (deadness included: section 3.4
of the paper), each node once. The executor's general machinery, which has loops, many threads and
traces, takes several times as long as such a part has to compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol

import numpy as np

from weft.comm.errors import CommError
from weft.comm.rendezvous import DEAD as WIRE_DEAD
from weft.comm.rendezvous import Key
from weft.ir.analysis.deadness import dead_result
from weft.ir.dataclass import dataclass
from weft.ir.errors import CancelledError, InternalError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.runtime.cluster.exchange import Edge, outcome_of, unsent
from weft.runtime.cluster.messages import Wire
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built, HostOp
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.dataflow.nodes import Node
from weft.runtime.dataflow.run import check_fits
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.trace.counters import Counters

COMPUTE, HOST, SEND, RECV, FETCH = range(5)


class _AllDead:
    """In place of the outputs of a node that is dead as a whole."""

    def __getitem__(self, port: int) -> Any:
        return DEAD


DEAD_NODE: Any = _AllDead()
_TOKEN: Sequence[Any] = (None,)


class Run(Protocol):
    """What the functions need of a `SmallRun`."""

    step: int
    wire: Wire

    def send(self, edge: Edge, iterations: tuple[int, ...], value: Any) -> None: ...
    def take(self, i: int, made: Any) -> None: ...
    def begin_host(self, i: int, host: HostOp, given: list[Any]) -> None: ...


#: Carries a row out, given the run and what all rows have given so far, by row. What begins
#: something (HOST, RECV) has `take` called later, the others note what they give.
Act = Callable[[Run, list[Any]], None]
_Places = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Row:
    """One node. inputs, control: (row, port) that it reads, or that must be alive, port CONTROL:
    the node as a whole. dtype, shape: of what a recv gives; edge: of a message. call: of COMPUTE,
    what computes; donated: inputs that it may write to."""

    number: int
    does: int
    inputs: tuple[tuple[int, int], ...]
    control: tuple[tuple[int, int], ...]
    op: Operation | None
    act: Act
    host: HostOp | None = None
    dtype: Any = None
    shape: tuple[int, ...] = ()
    edge: Edge | None = None
    call: Callable[[list[Any]], Sequence[Any]] | None = None
    donated: Sequence[int] = ()

    @property
    def begins(self) -> bool:
        """Whether what it gives comes later."""
        return self.does in (HOST, RECV)

    def is_alive(self, values: Sequence[Any]) -> bool:
        """Whether it runs: all that it reads is alive. What a send moves may be dead, and so may
        what it comes after."""
        inputs = self.inputs[1:] if self.does == SEND else self.inputs
        control = () if self.does == SEND else self.control
        return all(
            values[k] is not DEAD_NODE and (port == at.CONTROL or values[k][port] is not DEAD)
            for k, port in (*inputs, *control)
        )


def control_of(node: Node) -> list[tuple[Node, int]]:
    """What a node comes after: (node, port)."""
    return [(c, at.CONTROL) if isinstance(c, Node) else c for c in node.control]


def row_of(built: Built, node: Node, number: dict[Node, int]) -> Row | None:
    """The row of a node; None for what is there from the beginning."""
    inputs = tuple([(number[source], port) for source, port in node.inputs])
    control = tuple([(number[source], port) for source, port in control_of(node)])
    i, op = number[node], built.op_of.get(node)
    if node.kind in (at.FEED, at.CONSTANT):
        return None
    if node.kind == at.FETCH:
        return Row(i, FETCH, inputs, control, op, _computing(i, op, inputs, list), call=list)
    if node.kind == at.PLAN:
        made = built.plans[node.number]
        donated = tuple(made.plan.donated.values())
        act = _computing(i, op, inputs, made.run, donated)
        return Row(i, COMPUTE, inputs, control, op, act, call=made.run, donated=donated)
    host = built.hosts[node.number]
    if host.op.name == "send":
        edge = Edge.of(host.op)
        return Row(i, SEND, inputs, control, op, _sending(i, edge, inputs), host, edge=edge)
    if host.op.name == "recv":
        edge, kind = Edge.of(host.op), host.op.result.type
        act = _receiving(i, edge, inputs)
        assert isinstance(kind, TensorType)
        shape, dtype = kind.static_shape, kind.dtype.numpy
        return Row(i, RECV, inputs, control, op, act, host, dtype, shape, edge)
    if host.now is not None:
        act = _computing(i, host.op, inputs, host.now)
        return Row(i, COMPUTE, inputs, control, host.op, act, call=host.now)
    written = () if host.reads_only or host.keeps else tuple(range(len(inputs)))
    act = _hosting(i, host, inputs, written)
    return Row(i, HOST, inputs, control, host.op, act, host)


def _reading(inputs: _Places, copied: Sequence[int] = ()) -> Callable[[list[Any]], list[Any]]:
    """What gathers the inputs of a row; `copied`: those that it may write to."""
    if copied:
        read = _reading(inputs)

        def copies(values: list[Any]) -> list[Any]:
            given = read(values)
            for k in copied:
                given[k] = given[k].copy()
            return given

        return copies
    if not inputs:
        return lambda values: []
    if len(inputs) == 1:
        ((row, port),) = inputs
        return lambda values: [values[row][port]]
    return lambda values: [values[k][p] for k, p in inputs]


def _iterations(inputs: _Places) -> Callable[[list[Any]], tuple[int, ...]]:
    """The counters of the enclosing loops."""
    if not inputs:
        return lambda values: ()
    return lambda values: tuple([int(values[k][p]) for k, p in inputs])


def _computing(
    i: int,
    op: Operation | None,
    inputs: _Places,
    call: Callable[[list[Any]], Sequence[Any]],
    copied: Sequence[int] = (),
) -> Act:
    read = _reading(inputs, copied)

    def act(run: Run, values: list[Any]) -> None:
        try:
            values[i] = call(read(values) if inputs else [])
        except WeftError as error:
            if op is not None:
                error.at(op.locations)
            raise

    return act


def _sending(i: int, edge: Edge, inputs: _Places) -> Act:
    (row, port), *counters = inputs
    iterations = _iterations(counters) if counters else None

    def act(run: Run, values: list[Any]) -> None:
        run.send(edge, iterations(values) if iterations else (), values[row][port])
        values[i] = _TOKEN

    return act


def _receiving(i: int, edge: Edge, inputs: _Places) -> Act:
    key, source, iterations = edge.key, edge.source, _iterations(inputs)

    def act(run: Run, values: list[Any]) -> None:
        place = key, iterations(values)
        run.wire.rendezvous.get(run.step, place, partial(run.take, i), source)

    return act


def _expecting(rows: Sequence[Row]) -> tuple[Act, ...]:
    """What carries the rows out that wait for nothing: messages are asked for at once."""
    wanted: dict[Key, tuple[int, str | None]] = {}
    acts = []
    for row in rows:
        if row.does == RECV and row.edge is not None and not row.inputs:
            wanted[row.edge.key, ()] = row.number, row.edge.source
        else:
            acts.append(row.act)

    def expect(run: Run, values: list[Any]) -> None:
        run.wire.rendezvous.expect(run.step, wanted, run.take)

    return tuple([*acts, expect] if wanted else acts)


def _hosting(i: int, host: HostOp, inputs: _Places, copied: Sequence[int]) -> Act:
    read = _reading(inputs, copied)

    def act(run: Run, values: list[Any]) -> None:
        run.begin_host(i, host, read(values))

    return act


Array = np.ndarray[Any, Any]
#: Called once: with the results, or with what went wrong.
Finished = Callable[[list[Array] | BaseException], None]

_STOPPED = -1


class Segment:
    """Rows that are carried out one after the other, once all that they wait for has come. place:
    in `SmallProgram.left`; -1 if they wait for one thing at most."""

    __slots__ = ("acts", "place", "rows")

    def __init__(self, rows: Iterable[Row], place: int = -1) -> None:
        self.rows, self.place = tuple(rows), place
        self.acts: tuple[Act, ...] = tuple([row.act for row in self.rows])


class SmallProgram:
    """The nodes of a part. values: what feeds and constants give, by row; first: what waits for
    nothing; then: by row of those that begin something, what waits for that to come. left: for how
    many a segment waits, if for several. count: of the rows that begin something; waits: whether
    there are such of `HOST`."""

    def __init__(
        self, built: Built, rows: Sequence[Row | None], after: Sequence[Sequence[int]]
    ) -> None:
        self.rows = tuple(rows)
        self.fetches, self.graph = built.fetches, built.graph
        given = {cell.address: value for cell, value in built.constants}
        self.values: list[Any] = [None] * len(rows)
        self.feeds: list[int] = [0] * sum(n.kind == at.FEED for n in built.nodes)
        fetched: dict[int, int] = {}
        for i, node in enumerate(built.nodes):
            if node.kind == at.CONSTANT:
                self.values[i] = (given[node.value],)
            elif node.kind == at.FEED:
                self.feeds[node.number] = i
            elif node.kind == at.FETCH:
                fetched[node.number] = i
        self.fetched = sorted(fetched.items())  # without those that are tokens
        segments = _segments([row for row in rows if row is not None], after)
        self.first = Segment(segments.pop(frozenset(), ()))
        self.first.acts = _expecting(self.first.rows)
        self.left: list[int] = []
        begun = [row for row in rows if row is not None and row.begins]
        self.then: dict[int, list[Segment]] = {row.number: [] for row in begun}
        for waits, own in segments.items():
            segment = Segment(own, len(self.left) if len(waits) > 1 else -1)
            if len(waits) > 1:
                self.left.append(len(waits))
            for i in waits:
                self.then[i].append(segment)
        self.waits = any(row.does == HOST for row in begun)
        self.count = len(begun)


def _segments(
    rows: Sequence[Row], after: Sequence[Sequence[int]]
) -> dict[frozenset[int], list[Row]]:
    """The rows by which others they wait for that begin something, in an order in which they can be
    carried out; those that wait for fewer are first. after: what each row comes after."""
    waits: dict[int, frozenset[int]] = {}
    found: dict[frozenset[int], list[Row]] = {}
    left = sorted(rows, key=lambda row: row.does == RECV)  # others need not wait for a `get`
    while left:
        later = []
        for row in left:
            if not all(k in waits for k in after[row.number]):
                later.append(row)
                continue
            begun = frozenset(k for r in after[row.number] for k in waits[r])
            found.setdefault(begun, []).append(row)
            waits[row.number] = begun | {row.number} if row.begins else begun
        if len(later) == len(left):
            raise InternalError(f"{len(left)} rows of a small part wait for each other")
        left = later
    return dict(sorted(found.items(), key=lambda item: len(item[0])))


def small_program(step: DataflowStep) -> SmallProgram | None:
    """The program of a step whose graph is small; None where it has control flow."""
    built = step.built
    number = {node: i for i, node in enumerate(built.nodes)}
    constants = {cell.address for cell, _ in built.constants}
    after: list[list[int]] = []
    for node in built.nodes:
        if node.kind not in (at.FEED, at.FETCH, at.CONSTANT, at.HOST, at.PLAN):
            return None
        if node.kind == at.CONSTANT and (node.value not in constants or node.control):
            return None
        if (
            node.kind == at.HOST
            and node in built.region_of
            and built.hosts[node.number].now is None
        ):
            return None  # its stacks belong to a step of the executor
        before = [source for source, _ in (*node.inputs, *control_of(node))]
        there = (at.FEED, at.CONSTANT)  # from the beginning
        after.append([number[source] for source in before if source.kind not in there])
    return SmallProgram(built, [row_of(built, node, number) for node in built.nodes], after)


class SmallRun:
    """One run, of a task. finished: called in whichever thread ends it. Values are never written
    to."""

    __slots__ = (
        "_came", "_cancel", "_counters", "_finished", "_left", "_may_be_dead", "_over", "_program",
        "_since", "_task", "_todo", "_turn", "_values", "_waiting", "step", "wire", "worked",
    )  # fmt: skip

    def __init__(
        self,
        program: SmallProgram,
        wire: Wire,
        task: str,
        step: int,
        counters: Counters,
        finished: Finished,
    ) -> None:
        self._program, self.wire, self._task, self.step = program, wire, task, step
        self._counters, self._finished = counters, finished
        self._values, self._left = program.values.copy(), program.left.copy()
        self._todo = program.count
        self._came: list[tuple[int, Any]] = []  # a few; a deque is larger than all else here
        self._waiting: dict[int, None] = {}  # rows of `HOST`
        self._cancel = CancelToken() if program.waits else None  # of these
        self._turn = threading.Lock()  # held by the thread that carries it out
        self._turn.acquire()
        self._over = self._may_be_dead = False
        self.worked = 0.0  # seconds in which it was carried out, or ops of the host were under way
        self._since = 0.0  # when such ops were left to themselves

    def begin(self, inputs: Sequence[Array]) -> None:
        """Run until it would wait, or to its end."""
        if inputs:
            for i, array in zip(self._program.feeds, inputs, strict=True):
                self._values[i] = (array,)
        self._carry_out(self._program.first)

    def resume(
        self, values: list[Any], left: list[int], todo: int, worked: float, acts: Sequence[Act]
    ) -> None:
        """In place of `begin`, of a run that native code has begun: go on with these functions.
        values, left: so far; todo: what is to come yet; worked: seconds."""
        self._values, self._left, self._todo, self.worked = values, left, todo, worked
        following = Segment(())
        following.acts = tuple(acts)
        self._carry_out(following)

    def stop(self, reason: str) -> None:
        """End it with CancelledError, in any thread."""
        self.take(_STOPPED, CancelledError(f"the step was cancelled: {reason}"))

    def waits(self) -> list[Operation]:
        """The ops of the host that are under way."""
        rows = [self._program.rows[i] for i in self._waiting.copy()]
        return [row.op for row in rows if row is not None and row.op is not None]

    def take(self, i: int, made: Any) -> None:
        """What a row has begun has come; in any thread."""
        self._came.append((i, made))
        if self._turn.acquire(False):  # else the thread that has it sees what has come
            self._carry_out(None)

    def _carry_out(self, first: Segment | None) -> None:
        """With the turn, which is given back."""
        while True:
            outcome: list[Array] | BaseException | None = None
            begun = self._since or monotonic()
            try:
                if not self._over:
                    outcome = self._go_on(first)
                    self._over = outcome is not None
            except BaseException as error:
                self._over, outcome = True, error
            finally:
                now = monotonic()
                self.worked += now - begun
                self._since = now if self._waiting else 0.0
                self._turn.release()
            if outcome is not None:
                self._end(outcome)
                if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                    raise outcome  # Ctrl-C, in the thread of a session in this process
            if self._over or not self._came or not self._turn.acquire(False):
                return
            first = None

    def _end(self, outcome: list[Array] | BaseException) -> None:
        self._values = []  # what was lent goes back now, not when the collector comes
        finished, self._finished = self._finished, _ended  # nor need it come for this
        if self._cancel is not None and isinstance(outcome, BaseException):
            self._cancel.cancel("its step has failed")  # its other hosts need not go on
        finished(outcome)

    def _go_on(self, first: Segment | None) -> list[Array] | None:
        """Do what can be done; the results at the end."""
        values, came = self._values, self._came
        if first is not None:
            for act in first.acts:
                act(self, values)
        while came:
            i, made = came.pop(0)
            values[i] = self._accepted(i, made)
            self._todo -= 1
            for segment in self._program.then[i]:
                if segment.place >= 0:
                    self._left[segment.place] -= 1
                    if self._left[segment.place]:
                        continue
                if self._may_be_dead:
                    self._do_alive(segment.rows)
                    continue
                for act in segment.acts:
                    act(self, values)
        if self._todo:
            return None
        return self._results() if self._program.fetched else []

    def _do_alive(self, rows: Iterable[Row]) -> None:
        """Carry those of them out that are alive."""
        for row in rows:
            if row.is_alive(self._values):
                row.act(self, self._values)
            elif row.begins:
                self._came.append((row.number, DEAD_NODE))
            else:
                self._values[row.number] = DEAD_NODE

    def begin_host(self, i: int, host: HostOp, given: list[Any]) -> None:
        """For a row of `HOST`."""
        self._waiting[i] = None
        assert self._cancel is not None
        host.start(given, partial(self.take, i), self._cancel)

    def send(self, edge: Edge, iterations: tuple[int, ...], value: Any) -> None:
        """For a row of `SEND`, as `StepExchange.send`."""
        task = edge.target
        if value is DEAD:
            value, nbytes = WIRE_DEAD, 0
        else:
            nbytes = value.nbytes
        try:
            if task == self._task:
                place = edge.key, iterations
                self.wire.rendezvous.put(self.step, place, value, source=task)
                return
            self.wire.send_tensor(task, self.step, edge.key, iterations, value, lend=True)
        except CommError as error:
            raise unsent(edge, self._task, error) from None
        self._counters.sent(task, edge.tensor, nbytes)

    def _accepted(self, i: int, made: Any) -> Sequence[Any]:
        """What came for a row, checked. Raises what ends the step."""
        if i == _STOPPED:
            raise made
        if made is DEAD_NODE:
            return DEAD_NODE  # type: ignore[no-any-return]
        row: Any = self._program.rows[i]
        if row.does == RECV:
            if made.__class__ is not np.ndarray:
                made = outcome_of(row.op, self._task, made)
            fits = made.__class__ is np.ndarray and made.shape == row.shape
            if fits and (made.dtype is row.dtype or made.dtype == row.dtype):
                return (made,)  # it came from a message: in one piece
            self._may_be_dead |= made is DEAD
            found = [made]
        else:
            self._waiting.pop(i, None)
            found = made
        if isinstance(made, WeftError):
            raise made.at(row.op.locations)
        if isinstance(made, BaseException):
            raise made
        check_fits(found, row.host)
        return [x if not isinstance(x, np.ndarray) or x.flags.c_contiguous
                else np.array(x, order="C") for x in found]  # fmt: skip

    def _results(self) -> list[Array]:
        out: list[Array] = []
        for number, i in self._program.fetched:
            if self._values[i] is DEAD_NODE:
                graph = self._program.graph
                raise dead_result(graph.block, number, graph.arg_names)
            out.append(self._values[i][0].copy())
        return out


def _ended(outcome: object) -> None:
    """In place of who was told already."""
