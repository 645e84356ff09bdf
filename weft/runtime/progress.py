"""Signs of life: a line on a terminal while something takes more than a second, and what is said
again and again of a wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Seconds before the line appears, and between two looks.
PATIENCE, INTERVAL = 1.0, 0.25
_shown = threading.local()


@contextmanager
def reminded(seconds: float, say: Callable[[float], None]) -> Iterator[None]:
    """`say` is called each so many seconds while the block runs, with how many those are so far, in
    a thread of its own."""
    began, over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not over.wait(seconds):
            say(time.monotonic() - began)

    thread = threading.Thread(target=remind, name="weft reminder", daemon=True)
    try:
        thread.start()
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


@contextmanager
def progress(what: str, done: str, state: Callable[[], str]) -> Iterator[None]:
    """A line that begins with `what` while the block runs, if stderr is a terminal; at its end, if
    it was there, one that begins with `done`, or says that it failed. state: what is said of now.
    Within another such block of this thread nothing.
    """
    stream = sys.stderr
    if getattr(_shown, "is_on", False) or not _is_terminal(stream):
        yield
        return
    began, over = time.monotonic(), threading.Event()
    last = [f"{what} failed"]

    def say(begin: str, end: str) -> None:
        seconds = time.monotonic() - began
        # to the end of the line: what was longer before goes
        stream.write(f"\rweft: {begin}: {state()}, {seconds:.1f} s\x1b[K{end}")
        stream.flush()

    def look() -> None:
        wait = PATIENCE
        with suppress(OSError, ValueError):  # the stream was closed meanwhile
            while not over.wait(wait):
                say(what, "")
                wait = INTERVAL
            if wait != PATIENCE:
                say(last[0], "\n")

    looker = threading.Thread(target=look, name="weft progress", daemon=True)
    try:
        _shown.is_on = True
        looker.start()
        yield
        last[0] = done
    finally:
        over.set()
        _shown.is_on = False
        if looker.ident is not None:
            looker.join()


def _is_terminal(stream: Any) -> bool:
    """Of what a program may have put in stderr's place, too: closed, or without `isatty`."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
