"""`send` and `recv`: messages between the parts of one step on several devices.

Neither waits on a thread: a `recv` is done when its message comes, which calls it back. What moves
the messages is the `exchange` of the step's `CancelToken`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from weft.ir.errors import CancelledError, FailedPreconditionError, WeftError
from weft.ir.graph import Operation
from weft.runtime.dataflow.host_ops.row import Array, Done, HostRow
from weft.runtime.resources.attempts import CancelToken


class Exchange(Protocol):
    """What a step gives and takes messages by."""

    def runs(self, waits: Callable[[], list[Operation]]) -> None:
        """The step begins; `waits` says, any time and in any thread, which ops of the host are
        under way."""
        ...

    def waited(self, seconds: float) -> None:
        """For so long nothing was under way but messages that had not come."""
        ...

    def send(self, op: Operation, iterations: tuple[int, ...], value: Any) -> None:
        """Hand a message over, an array or DEAD; nobody writes to it any more. Raises a WeftError
        where the other side cannot be reached."""
        ...

    def room(self, device: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array that the device's task reads where it lies, if it is sent there; None if it
        cannot."""
        ...

    def receive(
        self,
        op: Operation,
        iterations: tuple[int, ...],
        came: Callable[[Any], None],
    ) -> None:
        """Have `came` called, once and from any thread, with the message or the error that ends
        the waiting."""
        ...


def _send(_: None, op: Operation, arrays: list[Any], done: Done, cancel: CancelToken) -> None:
    try:
        _exchange(op, cancel).send(op, _numbers(arrays[1:]), arrays[0])
    except WeftError as error:
        done(error)
    else:
        done([None])


def _recv(_: None, op: Operation, arrays: list[Array], done: Done, cancel: CancelToken) -> None:
    left = [done]  # whoever takes it calls it

    def end(made: Any) -> None:
        try:
            call = left.pop()
        except IndexError:
            return
        call(made)

    def came(made: Any) -> None:
        forget()
        end(made if isinstance(made, WeftError) else [made])

    def stop() -> None:
        end(CancelledError(f"op 'recv' was cancelled: {cancel.reason or 'no reason given'}"))

    forget = cancel.register(stop)
    try:
        _exchange(op, cancel).receive(op, _numbers(arrays), came)
    except WeftError as error:
        forget()
        end(error)


def _numbers(arrays: list[Array]) -> tuple[int, ...]:
    return tuple([int(a) for a in arrays])


def _exchange(op: Operation, cancel: CancelToken) -> Exchange:
    found: Exchange | None = cancel.exchange
    if found is None:
        raise FailedPreconditionError(
            f"op '{op.name}' needs the other parts of its step, and this one runs alone",
            hint="a session on a cluster runs all parts: wf.Session('tcp://...')",
        )
    return found


ROWS: Mapping[str, HostRow] = {
    "send": HostRow(_send, None, brief=True),
    "recv": HostRow(_recv, None, brief=True),
}
