"""What is left of a tensor whose memory a call took (`donate=`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.ir.locations import Locations, caller_location


class Donated:
    """In place of a tensor's trace, once a call took its memory: which function, called where."""

    closed = True
    fate = "its memory holds a result now"

    def __init__(self, function: str, location: Locations) -> None:
        self.function = function
        self.location = location

    def error(self) -> FailedPreconditionError:
        """What every use of the tensor raises."""
        where = f" at {self.location[0].describe()}" if self.location else ""
        return FailedPreconditionError(
            f"this tensor was donated to '{self.function}'{where}: {self.fate}",
            hint="use the result, or leave the argument out of donate=",
            location=caller_location(),
        )


class DonatedMemory(Donated):
    """In place of the memory of a `wf.DeviceArray`: whatever is asked of it raises."""

    fate = "its memory holds a result now, or went back to the device"

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error()


def donated(trace: object) -> Donated | None:
    """What stands in place of a tensor's trace if it was donated."""
    return trace if isinstance(trace, Donated) else None


def refuse_unused(function: str, unused: Sequence[tuple[str, str]]) -> None:
    """InvalidArgumentError for donated arguments (path, type) that no result can take over."""
    if not unused:
        return
    which = ", ".join(f"'{path}' ({kind})" for path, kind in unused)
    raise InvalidArgumentError(
        f"'{function}' cannot use the donated {which}: no result of that type can be computed in "
        "its memory",
        hint="a result of its dtype and shape is needed that is elementwise in it, or computed "
        "after its last use; leave it out of donate= otherwise",
        location=caller_location(),
    )
