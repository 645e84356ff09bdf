"""A small part without control flow, as a program of few steps that whoever has a thread goes on
with: the thread that reads the task's messages, most of the time.

It does what `runtime.dataflow` does with the same nodes (deadness included: section 3.4 of the
paper), each node once. The executor's general machinery, which has loops, many threads and traces,
takes several times as long as such a part has to compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from weft.comm.errors import CommError
from weft.comm.rendezvous import DEAD as WIRE_DEAD
from weft.ir.errors import CancelledError, InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built, HostOp
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.host_calls import check_fits
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.dataflow.nodes import Node
from weft.runtime.distributed.counters import Counters
from weft.runtime.distributed.exchange import Edge, outcome_of, unsent
from weft.runtime.distributed.messages import Wire
from weft.runtime.resources.cancel import CancelToken

Array = np.ndarray[Any, Any]
#: Called once: with the results, or with what went wrong.
Finished = Callable[[list[Array] | BaseException], None]

_COMPUTE, _HOST, _SEND, _RECV, _FETCH = range(5)


class _AllDead:
    """In place of the outputs of a node that is dead as a whole."""

    def __getitem__(self, port: int) -> Any:
        return DEAD


_DEAD_NODE: Any = _AllDead()
_TOKEN: Sequence[Any] = (None,)
_STOPPED = -1


@dataclass(frozen=True, slots=True)
class _Row:
    """One node. inputs, control: (row, port) that it reads, or that must be alive, port CONTROL:
    the node as a whole. readers: rows that wait for it, as often as they do. copied: inputs that it
    may write to. dtype, shape: of what a recv gives."""

    does: int
    inputs: tuple[tuple[int, int], ...]
    control: tuple[tuple[int, int], ...]
    readers: tuple[int, ...]
    op: Operation | None
    call: Callable[[list[Any]], list[Any]] | None = None
    host: HostOp | None = None
    edge: Edge | None = None
    copied: tuple[int, ...] = ()
    dtype: Any = None
    shape: tuple[int, ...] = ()


class BriefProgram:
    """The nodes of a part in an order that does not matter. values: what feeds and constants give,
    by row; left: how many others each row waits for; roots: those that wait for none; waits:
    whether there are rows of `_HOST`."""

    def __init__(self, built: Built, rows: Sequence[_Row | None]) -> None:
        self.rows = tuple(rows)
        self.fetches = built.fetches
        given = {cell.address: value for cell, value in built.constants}
        self.values: list[Any] = [None] * len(rows)
        self.feeds: list[int] = [0] * sum(n.kind == at.FEED for n in built.nodes)
        self.fetched: list[int] = [-1] * len(built.fetches)
        self.left = [0] * len(rows)
        for i, node in enumerate(built.nodes):
            if node.kind == at.CONSTANT:
                self.values[i] = (given[node.value],)
            elif node.kind == at.FEED:
                self.feeds[node.number] = i
            elif node.kind == at.FETCH:
                self.fetched[node.number] = i
        for row in rows:
            for reader in () if row is None else row.readers:
                self.left[reader] += 1
        self.roots = [i for i, row in enumerate(rows) if row is not None and not self.left[i]]
        self.roots.reverse()
        self.waits = any(row is not None and row.does == _HOST for row in rows)
        self.count = sum(row is not None for row in rows)


def brief_program(step: DataflowStep) -> BriefProgram | None:
    """The program of a step whose graph is small; None where it has control flow."""
    built = step.built
    number = {node: i for i, node in enumerate(built.nodes)}
    constants = {cell.address for cell, _ in built.constants}
    readers: list[list[int]] = [[] for _ in built.nodes]
    for i, node in enumerate(built.nodes):
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
        for source, _ in (*node.inputs, *_control(node)):
            if source.kind not in (at.FEED, at.CONSTANT):  # those are there from the beginning
                readers[number[source]].append(i)
    pairs = zip(built.nodes, readers, strict=True)
    return BriefProgram(built, [_row(built, node, number, tuple(r)) for node, r in pairs])


def _control(node: Node) -> list[tuple[Node, int]]:
    return [(c, at.CONTROL) if isinstance(c, Node) else c for c in node.control]


def _row(
    built: Built, node: Node, number: dict[Node, int], readers: tuple[int, ...]
) -> _Row | None:
    inputs = tuple([(number[source], port) for source, port in node.inputs])
    control = tuple([(number[source], port) for source, port in _control(node)])
    op = built.op_of.get(node)
    if node.kind in (at.FEED, at.CONSTANT):
        return None
    if node.kind == at.FETCH:
        return _Row(_FETCH, inputs, control, readers, op)
    if node.kind == at.PLAN:
        made = built.plans[node.number]
        copied = tuple(made.plan.donated.values())
        return _Row(_COMPUTE, inputs, control, readers, op, call=made, copied=copied)
    host = built.hosts[node.number]
    if host.op.name in ("send", "recv"):
        edge, kind = Edge.of(host.op), host.op.result.type
        if host.op.name == "send":
            return _Row(_SEND, inputs, control, readers, op, host=host, edge=edge)
        assert isinstance(kind, TensorType)
        shape, dtype = kind.static_shape, kind.dtype.numpy
        return _Row(
            _RECV, inputs, control, readers, op, host=host, edge=edge, dtype=dtype, shape=shape
        )
    if host.now is not None:
        return _Row(_COMPUTE, inputs, control, readers, host.op, call=host.now)
    written = () if host.reads_only or host.keeps else tuple(range(len(inputs)))
    return _Row(_HOST, inputs, control, readers, host.op, host=host, copied=written)


class BriefRun:
    """One run, of a task. finished: called in whichever thread ends it. Values are never written
    to."""

    __slots__ = (
        "_came", "_cancel", "_counters", "_finished", "_left", "_may_be_dead", "_over", "_program",
        "_step", "_task", "_todo", "_turn", "_values", "_waiting", "_wire",
    )  # fmt: skip

    def __init__(
        self,
        program: BriefProgram,
        wire: Wire,
        task: str,
        step: int,
        counters: Counters,
        finished: Finished,
    ) -> None:
        self._program, self._wire, self._task, self._step = program, wire, task, step
        self._counters, self._finished = counters, finished
        self._values, self._left = program.values.copy(), program.left.copy()
        self._todo = program.count
        self._came: list[tuple[int, Any]] = []  # a few; a deque is larger than all else here
        self._waiting: dict[int, None] = {}  # rows of `_HOST`
        self._cancel = CancelToken() if program.waits else None  # of these
        self._turn = threading.Lock()  # held by the thread that carries it out
        self._turn.acquire()
        self._over = self._may_be_dead = False

    def begin(self, inputs: Sequence[Array]) -> None:
        """Run until it would wait, or to its end."""
        for i, array in zip(self._program.feeds, inputs, strict=True):
            self._values[i] = (array,)
        self._carry_out(self._program.roots.copy())

    def stop(self, reason: str) -> None:
        """End it with CancelledError, in any thread."""
        self._take(_STOPPED, CancelledError(f"the step was cancelled: {reason}"))

    def waits(self) -> list[Operation]:
        """The ops of the host that are under way."""
        rows = [self._program.rows[i] for i in self._waiting.copy()]
        return [row.op for row in rows if row is not None and row.op is not None]

    def _take(self, i: int, made: Any) -> None:
        """What a row waited for has come; in any thread."""
        self._came.append((i, made))
        if self._turn.acquire(blocking=False):  # else the thread that has it sees what has come
            self._carry_out([])

    def _carry_out(self, ready: list[int]) -> None:
        """With the turn, which is given back."""
        while True:
            outcome: list[Array] | BaseException | None = None
            try:
                if not self._over:
                    outcome = self._go_on(ready)
                    self._over = outcome is not None
            except BaseException as error:
                self._over, outcome = True, error
            finally:
                self._turn.release()
            if outcome is not None:
                self._end(outcome)
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome  # Ctrl-C, in the thread of a session in this process
            if self._over or not self._came or not self._turn.acquire(blocking=False):
                return

    def _end(self, outcome: list[Array] | BaseException) -> None:
        self._values = []  # what was lent goes back now, not when the collector comes
        finished, self._finished = self._finished, _ended  # nor need it come for this
        if self._cancel is not None and isinstance(outcome, BaseException):
            self._cancel.cancel("its step has failed")  # its other hosts need not go on
        finished(outcome)

    def _go_on(self, ready: list[int]) -> list[Array] | None:
        """Do what can be done; the results at the end."""
        rows, values, left, came = self._program.rows, self._values, self._left, self._came
        while True:
            if ready:
                i = ready.pop()
                made = self._do(i, rows[i])
            elif came:
                i, made = came.pop(0)
                made = self._accepted(i, made)
            else:
                return None if self._todo else self._results()
            if made is None:
                continue
            values[i] = made
            self._todo -= 1
            for reader in rows[i].readers:  # type: ignore[union-attr]
                left[reader] -= 1
                if not left[reader]:
                    ready.append(reader)

    def _do(self, i: int, row: Any) -> Sequence[Any] | None:
        """Carry out a row that waits for nothing: what it gives, None if that comes later."""
        values, does = self._values, row.does
        if self._may_be_dead and not self._is_alive(row):
            made: Sequence[Any] = _DEAD_NODE
            return made
        given: list[Any] = [values[k][port] for k, port in row.inputs]
        if does == _COMPUTE:
            for k in row.copied:
                given[k] = given[k].copy()
            try:
                made = row.call(given)
            except WeftError as error:
                error.at(row.op.locations)
                raise
            return made
        if does == _SEND:
            self._send(row.edge, tuple([int(x) for x in given[1:]]), given[0])
            return _TOKEN
        if does == _FETCH:
            return given
        came = partial(self._take, i)
        if does == _RECV:
            key = row.edge.key, tuple([int(x) for x in given])
            self._wire.rendezvous.get(self._step, key, came)
        else:
            for k in row.copied:
                given[k] = given[k].copy()
            self._waiting[i] = None
            row.host.start(given, came, self._cancel)
        return None

    def _is_alive(self, row: _Row) -> bool:
        """Whether a row runs: all that it reads is alive. What a send moves may be dead, and so may
        what it comes after."""
        values = self._values
        inputs = row.inputs[1:] if row.does == _SEND else row.inputs
        control = () if row.does == _SEND else row.control
        return all(
            values[k] is not _DEAD_NODE and (port == at.CONTROL or values[k][port] is not DEAD)
            for k, port in (*inputs, *control)
        )

    def _send(self, edge: Edge, iterations: tuple[int, ...], value: Any) -> None:
        """As `StepExchange.send`."""
        held, nbytes, task = (WIRE_DEAD, 0, edge.target) if value is DEAD else (
            value, value.nbytes, edge.target)  # fmt: skip
        try:
            if task == self._task:
                self._wire.rendezvous.put(self._step, (edge.key, iterations), held)
                return
            self._wire.send_tensor(task, self._step, edge.key, iterations, held, lend=True)
        except CommError as error:
            raise unsent(edge, self._task, error) from None
        self._counters.sent(task, edge.tensor, nbytes)

    def _accepted(self, i: int, made: Any) -> Sequence[Any]:
        """What came for a row, checked. Raises what ends the step."""
        if i == _STOPPED:
            raise made
        row: Any = self._program.rows[i]
        if row.does == _RECV:
            if made.__class__ is not np.ndarray:
                made = outcome_of(row.op, self._task, made)
            if made.__class__ is np.ndarray and made.dtype == row.dtype and made.shape == row.shape:
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
        for number, i in enumerate(self._program.fetched):
            if i < 0:  # a token
                continue
            if self._values[i] is _DEAD_NODE:
                raise InvalidArgumentError(
                    f"result {number} is dead: the branch that computes it was not taken",
                    hint="fetch the output of wf.merge or wf.cond instead",
                )
            out.append(self._values[i][0].copy())
        return out


def _ended(outcome: object) -> None:
    """In place of who was told already."""
