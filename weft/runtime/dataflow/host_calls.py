"""Calls of host nodes: at once or on a helper's thread, and the check of what they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.errors import CancelledError, DeadlineExceededError, InternalError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.runtime.dataflow.build import Array, HostOp
from weft.runtime.dataflow.helpers import Beside, clock
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.resources.cancel import CancelToken


class Times:
    """When and where a traced node ran: begin None: when it was begun; thread None: the step's."""

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


def end_if_over(token: CancelToken) -> None:
    """For a loop that goes on: DeadlineExceededError if the step's time is up, CancelledError if it
    was cancelled."""
    if token.until is not None and time.monotonic() > token.until:
        raise too_late(())
    if token.is_cancelled:
        raise CancelledError(f"the step was cancelled: {token.reason or 'no reason given'}")


def too_late(waits: Sequence[Operation]) -> DeadlineExceededError:
    """The error of a step whose time is up while it waits for these ops."""
    names = sorted({op.name for op in waits})
    return DeadlineExceededError(
        f"the step did not end in time; it waits for {', '.join(names) or 'computation'}",
        hint="give a longer timeout, or see why nothing arrives there",
        location=waits[0].locations if waits else (),
    )
