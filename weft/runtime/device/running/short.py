"""What a step does where there is no memory: it says for which buffer, and keeps nothing."""

from __future__ import annotations

from contextlib import suppress

from weft.ir.errors import ResourceExhaustedError
from weft.runtime.device.protocol import Device, Memory
from weft.runtime.device.running.pieces import Base


class Short(ResourceExhaustedError):
    """There is no memory for a buffer of a plan, by its kind and number or name, as of `Place`;
    ("arena", 0) is a step's own block, ("constant", 0) all constants, ("results", 0) all small
    results."""

    def __init__(self, error: ResourceExhaustedError, base: Base) -> None:
        super().__init__(error.what, hint=error.hint, location=error.locations)
        self.base = base


def allocate_for(device: Device, nbytes: int, what: str, base: Base) -> Memory:
    """`Device.allocate`, whose error is `Short`."""
    try:
        return device.allocate(nbytes, what)
    except ResourceExhaustedError as error:
        raise Short(error, base) from None


def let_go(error: BaseException) -> None:
    """What a call that failed has made is held by nobody, though its error is held: the locals of
    weft's functions that the error has left, and those before it, are cleared."""
    errors: list[BaseException | None] = [error]
    seen: set[int] = set()
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        errors += [one.__cause__, one.__context__]
        place = one.__traceback__
        while place is not None:
            if str(place.tb_frame.f_globals.get("__name__")).startswith("weft."):
                with suppress(RuntimeError):  # it still runs
                    place.tb_frame.clear()
            place = place.tb_next


__all__ = ["Short", "allocate_for", "let_go"]
