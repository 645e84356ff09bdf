"""Threads that steps run on: as many as there are steps at once, so that no step waits for another
one's end; those that idle are kept for the next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_LOG = logging.getLogger("weft.cluster")
#: So many idle threads are kept, each for so many seconds.
MOST_IDLE, IDLE_SECONDS = 16, 10.0
Work = Callable[[], None]


class StepThreads:
    """Runs each piece of work on a thread of its own, which may wait as long as it likes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work | None]] = []  # the one used last is the last
        self._closed = False

    def submit(self, work: Work) -> None:
        """Have it run soon; nothing happens after `close`."""
        with self._lock:
            if self._closed:
                return
            box = self._idle.pop() if self._idle else None
        if box is not None:
            box.put(work)
            return
        made: SimpleQueue[Work | None] = SimpleQueue()
        made.put(work)  # a thread holds its arguments to its end
        threading.Thread(target=self._serve, args=(made,), name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let the idle ones end; what runs goes on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for box in idle:
            box.put(None)

    def _serve(self, box: SimpleQueue[Work | None]) -> None:
        work = box.get()
        while work is not None:
            try:
                work()
            except Exception:
                _LOG.exception("%s: an error that nobody waits for", self._name)
            work = None  # what it holds may be large
            with self._lock:
                if self._closed or len(self._idle) >= MOST_IDLE:
                    return
                self._idle.append(box)
            work = self._next(box)

    def _next(self, box: SimpleQueue[Work | None]) -> Work | None:
        try:
            return box.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if box in self._idle:
                    self._idle.remove(box)
                    return None
        return box.get()  # it was given work just now
