"""Eager calls of the public functions, as native code may run them, and as the interpreter does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.eager.native import EagerCalls
from weft.frontend.eager.numpy_calls import SWITCH
from weft.ir.errors import WeftError

NAN, INF = np.nan, np.inf


def interpreted(call: Callable[[], Any]) -> Any:
    """What the interpreter gives."""
    was, SWITCH.on = SWITCH.on, False
    try:
        return call()
    finally:
        SWITCH.on = was


def calls_of(function: Any) -> EagerCalls:
    found: EagerCalls = function.calls
    return found


def every_function() -> list[EagerCalls]:
    return [o for o in gc.get_objects() if type(o) is EagerCalls]


def outcome(call: Callable[[], Any]) -> Any:
    """The bits, and what is known of them, or the error in words."""
    try:
        t = call()
    except WeftError as error:
        return type(error), str(error)
    bits = np.asarray(t)
    number = bits.astype(np.float64) if bits.dtype.kind in "fV" else bits
    same = np.where(np.isnan(number), NAN, number).tobytes() if number.dtype.kind == "f" else bits
    return t.dtype, t.shape, t.weak, same if isinstance(same, bytes) else same.tobytes()
