"""The calls that a device was asked for last, for the error of a kernel that fails: the driver says
that one has failed, and never which."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weft.runtime.device.planning.plan import PlannedLaunch

#: So many calls are remembered, of each so many kernels are told, of each so many lines.
MOST_CALLS, MOST_KERNELS, MOST_LINES = 8, 8, 4
#: The number of a call whose launches are not all asked for.
_OPEN = 1 << 62


class Launching(Protocol):
    """What launches kernels."""

    def launches(self) -> Sequence[PlannedLaunch]:
        """Them, in order."""


class Call:
    """The last call of a plan on one frame. name: of the function. number: the calls of a device
    are numbered as they are all asked for."""

    __slots__ = ("name", "number", "of")

    def __init__(self, name: str, of: Launching) -> None:
        self.name, self.of = name, weakref.ref(of)
        self.number = _OPEN

    def describe(self) -> str:
        """`'step': kernel 'exp_each' (/home/me/a.py:3), ...`: with the lines of its ops."""
        of = self.of()
        told = [] if of is None else list(dict.fromkeys(map(_launch, of.launches())))
        rest = [f"and {len(told) - MOST_KERNELS} more"] if len(told) > MOST_KERNELS else []
        kernels = ", ".join([*told[:MOST_KERNELS], *rest])
        return f"'{self.name}': {kernels or 'its kernels are not known any more'}"


class Calls:
    """The calls that a device was asked for last. Any thread may call any of these; a step costs an
    append and a number."""

    def __init__(self) -> None:
        self._asked: deque[Call] = deque(maxlen=MOST_CALLS)
        self._numbers = itertools.count(1)
        self.last = 0  # the number of the last call that is all asked for
        self._done = 0  # that of the last one that is known to be done

    def begin(self, call: Call) -> None:
        """Its launches are asked for from now on."""
        call.number = _OPEN
        self._asked.append(call)

    def end(self, call: Call) -> None:
        """All of them have been."""
        call.number = self.last = next(self._numbers)

    def done(self, number: int) -> None:
        """The device has done the calls up to that one."""
        if number > self._done:
            self._done = number

    def describe(self) -> str:
        """A line for each call that is not known to be done, the last one last."""
        asked = self._asked.copy()
        left = {call for call in asked if call.number > self._done}
        told = [call.describe() for call in sorted(left, key=lambda call: call.number)]
        if len(asked) == MOST_CALLS and asked[0] in left:
            told.insert(0, "calls before these, which are not remembered")
        return "".join([f"\n  {line}" for line in dict.fromkeys(reversed(told))][::-1])


def _launch(node: PlannedLaunch) -> str:
    places = () if node.op is None else node.op.locations
    lines = list(dict.fromkeys(f"{place.file}:{place.line}" for place in places))[:MOST_LINES]
    return f"kernel '{node.launch.kernel.name}'" + (f" ({', '.join(lines)})" if lines else "")


__all__ = ["Call", "Calls"]
