"""Whether a thread is inside a step of a graph: then the graph takes no more ops from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Running(threading.local):
    """step: this thread is inside a step, or in a function that one calls."""

    step = False


@contextmanager
def inside_step(running: Running | None) -> Iterator[None]:
    """Be inside a step in the block; None: of no graph."""
    if running is None:
        yield
        return
    outer, running.step = running.step, True
    try:
        yield
    finally:
        running.step = outer
