"""`wf.transfer_guard`: which copies between the host and a device may happen without being asked
for. As `jax.transfer_guard`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.ir.locations import caller_location

LEVELS = ("allow", "log", "disallow")
_log = logging.getLogger("weft.transfers")
_level: ContextVar[str | None] = ContextVar("weft.transfer_guard", default=None)
_of_process = ["allow"]


@contextmanager
def transfer_guard(level: str) -> Iterator[None]:
    """In the block, what is copied between the host and a device by the way is "allow"ed, "log"ged
    (a warning of the logger "weft.transfers", with the line), or "disallow"ed.

    By the way: host arrays and numbers as arguments of a function for a GPU, or as feeds of a step
    there; a `wf.DeviceArray` as a NumPy array, a Python number or condition, in an op outside of
    compiled functions, or as a feed of a step on the CPU; one of another GPU as an argument or a
    feed; what a session fetches from a GPU, which it gives as NumPy arrays; copies between the
    devices of a step of this process that is on several. Asked for, and so never an error:
    `wf.to_device`, `.numpy()`, `.to_device()`, `np.from_dlpack`. Variables, which move to where
    they are used, are not guarded, nor is what the host reads to lead loops and branches.

    It is for the thread (for the context, as in `contextvars`); blocks nest.
    `wf.set_transfer_guard` is for all threads. InvalidArgumentError for another word; what is
    disallowed is a FailedPreconditionError.
    """
    token = _level.set(_checked(level, "wf.transfer_guard"))
    try:
        yield
    finally:
        _level.reset(token)


def set_transfer_guard(level: str) -> None:
    """What `wf.transfer_guard` says where no block of it is around: for all threads."""
    _of_process[0] = _checked(level, "wf.set_transfer_guard")


def _checked(level: str, function: str) -> str:
    if level not in LEVELS:
        raise InvalidArgumentError(
            f"{function}: the level is one of {', '.join(LEVELS)}, not {level!r}",
            location=caller_location(),
        )
    return level


def guarded() -> bool:
    """Whether anything but "allow" holds here."""
    return (_level.get() or _of_process[0]) != "allow"


def transfer(what: str, hint: str) -> None:
    """A copy that nobody asked for is to happen: FailedPreconditionError where it must not."""
    level = _level.get() or _of_process[0]
    if level == "allow":
        return
    place = caller_location()
    if level == "log":
        _log.warning("%s%s", what, f" at {place[0].describe()}" if place else "")
        return
    raise FailedPreconditionError(
        f"{what}, which wf.transfer_guard disallows", hint=hint, location=place
    )
