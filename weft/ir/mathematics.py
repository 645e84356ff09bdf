"""The C library's mathematical functions (libm), loaded by ctypes."""

from __future__ import annotations

import ctypes
import sys
from functools import cache


@cache
def mathematics() -> ctypes.CDLL:
    """The library of fma, sin and the like. OSError if there is none."""
    if sys.platform == "linux":
        try:
            return ctypes.CDLL("libm.so.6")
        except OSError:  # another C library than GNU's
            pass
    # it loads eight modules more, 8 ms, and runs programs of the system: 5 ms and more
    from ctypes.util import find_library

    return ctypes.CDLL(find_library("m") or find_library("c"))
