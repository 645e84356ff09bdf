"""Number of threads that compiled functions use."""

from __future__ import annotations

from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location
from weft.runtime.native.machine import check_threads
from weft.runtime.native.pool import POOL


def get_num_threads() -> int:
    """How many threads a compiled function may use, the calling one included.

    It is what `set_num_threads` said last; else the environment variable WEFT_NUM_THREADS; else the
    processors that the process may use, by its affinity and by the CPU quota of its control groups.
    If the system refused to make a worker thread (a warning in the log `weft.compile` says so), it
    is the number that there are, until `set_num_threads` is called again.
    InvalidArgumentError for a WEFT_NUM_THREADS that is not a number from 1 to 256.

    >>> 1 <= wf.get_num_threads() <= 256
    True
    """
    return POOL.limit


def set_num_threads(count: int) -> None:
    """Let compiled functions use up to `count` threads, the calling one included, from now on.

    Results do not depend on it, to the bit. A function that was called before, and whose kernels
    keep memory for each thread, goes on with at most as many as there were then, or processors.
    InvalidArgumentError for what is not an int from 1 to 256; UnsupportedError for more than one
    where the system has no POSIX threads.

    >>> before = wf.get_num_threads()
    >>> wf.set_num_threads(1)
    >>> wf.get_num_threads()
    1
    >>> wf.set_num_threads(before)
    """
    POOL.set_limit(checked(count, "wf.set_num_threads"))


def checked(count: object, what: str) -> int:
    """`count` as a number of threads. InvalidArgumentError, at the user's line, if it is none."""
    try:
        return check_threads(count, what)
    except InvalidArgumentError as error:
        raise error.at(caller_location()) from None
