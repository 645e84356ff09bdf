"""`StepExchange`: the messages of one step that the ops `send` and `recv` of a running part use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from weft.comm.errors import CommError
from weft.comm.rendezvous import DEAD as WIRE_DEAD
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.errors import AbortedError, DeadlineExceededError, UnavailableError, WeftError
from weft.ir.graph import Operation
from weft.ir.spec import int_attr
from weft.runtime.cluster.messages import Carrier
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.recorder import clock
from weft.runtime.trace.counters import Counters
from weft.runtime.trace.task_trace import RunTrace

Array = np.ndarray[Any, Any]
Came = Callable[[Any], None]


class LostLinkError(UnavailableError):
    """The step cannot go on, as it needs a task that is gone."""


class PartFailedError(AbortedError):
    """The step cannot go on, as another part of it has failed on this task."""


@lru_cache(maxsize=4096)
def task_of(device: str) -> str:
    """The task of a device, both by their canonical names."""
    return DeviceSpec.parse(device).task_name


def sendable(array: Array) -> Array:
    """`array`, or a copy of one of strings with all elements as bytes."""
    if array.dtype.hasobject and not all(type(item) is bytes for item in array.flat):
        made = np.empty(array.shape, object)
        flat = made.reshape(-1)
        flat[:] = [x if isinstance(x, bytes) else str(x).encode() for x in array.flat]
        return made
    return array


@dataclass(frozen=True, slots=True)
class Edge:
    """What a `send` or `recv` says of the messages that it moves: their key, the tasks that they
    go between, the name of the tensor, whether its elements are strings."""

    op: Operation
    key: int
    source: str
    target: str
    tensor: str
    is_text: bool

    @classmethod
    def of(cls, op: Operation) -> Edge:
        """As the attributes of the op have it."""
        key = int_attr(op.attrs, "key")
        kind: Any = (op.operands[0] if op.name == "send" else op.result).type
        source, target = (task_of(str(op.attrs[end])) for end in ("src", "dst"))
        is_text = bool(kind.dtype.numpy.hasobject)
        return cls(op, key, source, target, str(op.attrs.get("tensor", key)), is_text)


class StepExchange:
    """The messages of one step in one task.

    receivers: the ops `recv` of the part, by their keys. limit: after how many seconds one that
    waits is overdue. counters: of the task. trace: takes both ends of every message.
    """

    def __init__(
        self,
        wire: Carrier,
        task: str,
        step: int,
        receivers: Mapping[int, Operation],
        limit: float | None = None,
        counters: Counters | None = None,
        trace: RunTrace | None = None,
    ) -> None:
        self.wire, self._task, self._step = wire, task, step
        self._receivers, self._limit = receivers, limit
        self._hosts: Callable[[], list[Operation]] = list
        self._counters, self._trace = counters, trace
        self.waited_seconds = 0.0  # while nothing else was under way

    def send(self, op: Operation, iterations: tuple[int, ...], value: Any) -> None:
        """Hand a message over. UnavailableError if its task cannot be reached."""
        self.send_on(Edge.of(op), iterations, value)

    def send_on(self, edge: Edge, iterations: tuple[int, ...], value: Any) -> None:
        """As `send`."""
        key, task = edge.key, edge.target
        held: Any = WIRE_DEAD if value is DEAD else value
        begin = 0 if self._trace is None else clock()
        nbytes = 0
        if held is not WIRE_DEAD:
            held = sendable(held) if edge.is_text else held
            nbytes = held.nbytes
        try:
            if task == self._task:
                self.wire.rendezvous.put(self._step, (key, iterations), held, source=task)
            else:
                self.wire.send_tensor(task, self._step, key, iterations, held, lend=True)
        except CommError as error:
            raise unsent(edge, self._task, error) from None
        if self._counters is not None and task != self._task:
            self._counters.sent(task, edge.tensor, nbytes)
        if self._trace is not None:
            self._trace.message(edge.op, task, iterations, begin, nbytes, value is DEAD)

    def room(self, device: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array that the device's task reads where it lies, if it is sent there."""
        task = task_of(device)
        try:
            made: Array | None = self.wire.room(task, shape, dtype) if task != self._task else None
        except CommError:
            return None  # sending it says why
        return made

    def receive(self, op: Operation, iterations: tuple[int, ...], came: Came) -> None:
        """Have `came` called with the message, or with the error that ends the step."""
        self.receive_on(Edge.of(op), iterations, came)

    def receive_on(self, edge: Edge, iterations: tuple[int, ...], came: Came) -> None:
        """As `receive`."""
        trace = self._trace
        begin = 0 if trace is None else clock()

        def call(made: Any) -> None:
            if trace is not None and not isinstance(made, BaseException):
                nbytes = 0 if made is WIRE_DEAD else made.nbytes
                trace.message(edge.op, edge.source, iterations, begin, nbytes, made is WIRE_DEAD)
            came(made if isinstance(made, np.ndarray) else outcome_of(edge.op, self._task, made))

        self.wire.rendezvous.get(self._step, (edge.key, iterations), call, edge.source)

    def runs(self, waits: Callable[[], list[Operation]]) -> None:
        """The step begins; `waits` says which ops of the host are under way."""
        self._hosts = waits

    def waited(self, seconds: float) -> None:
        """For so long nothing was under way but messages that had not come."""
        self.waited_seconds += seconds

    def hosts(self) -> list[str]:
        """For a report of who waits for what: the ops of the task's own that are under way."""
        ops = [op for op in self._hosts() if op.name not in ("send", "recv")]
        return [f"{op.name} at {op.locations[0]}" if op.locations else op.name for op in ops]

    def overdue(self) -> None:
        """End the waiting of what waits for longer than the limit."""
        if self._limit is None:
            return
        for wait in self.wire.rendezvous.waiting(self._step):
            op = self._receivers.get(wait.key[0])
            if op is not None and wait.seconds > self._limit:
                error = DeadlineExceededError(
                    f"{self._task} has waited {wait.seconds:.1f} s for {_named(op)} from "
                    f"{task_of(str(op.attrs['src']))}",
                    location=op.locations,
                )
                self.wire.rendezvous.cancel(self._step, wait.key, error)

    def lost(self, task: str, cause: str) -> LostLinkError:
        """The error that ends the step because a task that it needs is gone: it names a message
        that is waited for, if there is one from that task."""
        table = self.wire.rendezvous
        waited = [self._receivers.get(wait.key[0]) for wait in table.waiting(self._step)]
        ops = [op for op in waited if op is not None and task_of(str(op.attrs["src"])) == task]
        if not ops:
            return LostLinkError(
                f"{task}, which {self._task} exchanges tensors with, was lost: {cause}"
            )
        return LostLinkError(
            f"{task} was lost ({cause}) while {self._task} waited for {_named(ops[0])} from it",
            hint="the step was ended on all tasks; once the task is back, restore what it held",
            location=ops[0].locations,
        )


def waits_of(wire: Carrier, step: int, receivers: Mapping[int, Operation]) -> list[list[Any]]:
    """For a report of who waits for what: what it is, iterations, from whom, seconds and place of
    each message of a step that has not come. receivers: as of `StepExchange`."""
    rows: list[list[Any]] = []
    for wait in wire.rendezvous.waiting(step):
        op = receivers.get(wait.key[0])
        if op is not None:
            where = str(op.locations[0]) if op.locations else ""
            source = task_of(str(op.attrs["src"]))
            rows.append([_named(op), list(wait.key[1]), source, wait.seconds, where])
    return rows


def outcome_of(op: Operation, task: str, made: Any) -> Any:
    """What came for a `recv`, if it is no array: DEAD, or why nothing comes."""
    if made is WIRE_DEAD:
        return DEAD
    if isinstance(made, WeftError):  # several ops get it, and each says where it is
        return type(made)(made.what, hint=made.hint, location=made.locations)
    if isinstance(made, BaseException):
        return UnavailableError(
            f"{task} waited for {_named(op)} in vain: {made}", location=op.locations
        )
    return made  # on a device


def unsent(edge: Edge, task: str, error: CommError) -> LostLinkError:
    """The error of a message that its task cannot be given."""
    op = edge.op
    return LostLinkError(
        f"{task} cannot send {_named(op)} to {edge.target}: {error}", location=op.locations
    )


def _named(op: Operation) -> str:
    """What a `send` or `recv` moves, for messages to people."""
    value = op.operands[0] if op.name == "send" else op.result
    label = op.attrs.get("tensor")
    return f"{label!r} ({value.type}, key {op.attrs['key']})"
