"""Which eager calls run as native code: the threshold, and the switch that turns it off."""

from __future__ import annotations

import os

from weft.ir.errors import InvalidArgumentError

#: Calls with an operand of so many elements, or whose operands broadcast to so many, run as native
#: code. Measured by benchmarks/eager.py: from a few thousand elements on native code is the faster
#: one, but a function's first such call compiles it, which programs on small arrays should not pay.
LARGE = 1 << 15

MODES = ("native", "interpreter")


class Switch:
    """`on`: whether large eager calls run as native code. WEFT_EAGER says what it is at first."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = _checked(os.environ.get("WEFT_EAGER") or "native")


def _checked(mode: str) -> bool:
    """Whether the mode is "native". InvalidArgumentError for no mode."""
    if mode not in MODES:
        raise InvalidArgumentError(
            f"WEFT_EAGER={mode!r}", hint=f"one of {', '.join(MODES)}; unset, it is {MODES[0]}"
        )
    return mode == MODES[0]


SWITCH = Switch()
