"""Python's cyclic garbage collector, paused while a graph is compiled or weft's modules are loaded.

Passes make new ops by the thousand and keep them; every so many of them the collector would look
through all that there are, without finding anything to free: a quarter of the time that Python
takes for a transformer's training step. Modules are kept, too: a tenth of the time that loading
them takes; and no collection of the young looks through them afterwards. Reference counts free what
is dropped meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from weft.ir.fork import ForkLock, in_child

_lock = ForkLock()
_state = {"depth": 0, "was_enabled": False}


def _after_fork_in_child() -> None:
    """No other thread is here to end its pause. One of the thread that forked ends early."""
    if _state["depth"] and _state["was_enabled"]:
        gc.enable()
    _state["depth"] = 0


in_child(_after_fork_in_child)


@contextmanager
def collector_paused(old: bool = False) -> Iterator[None]:
    """No automatic collections in any thread; only for work that runs none of the user's code.

    old: whether all objects there are then count as old: only a full collection looks at them.
    """
    with _lock:
        if not _state["depth"]:
            _state["was_enabled"] = gc.isenabled()
            gc.disable()
        _state["depth"] += 1
    try:
        yield
    finally:
        if old and not gc.get_freeze_count():  # else what the user froze would thaw
            gc.freeze()
            gc.unfreeze()  # to the oldest generation, in no time
        with _lock:
            _state["depth"] = max(0, _state["depth"] - 1)
            if not _state["depth"] and _state["was_enabled"]:
                gc.enable()
