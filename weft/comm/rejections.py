"""What was refused: counted by reason, and logged when a count reaches a power of two."""

from __future__ import annotations

import logging
import threading
from collections import Counter

_log = logging.getLogger("weft.comm")
#: A tensor under a key that another task's send owns.
STRAY = "wrong sender"


class Rejections:
    """Counts of one endpoint. Thread-safe; flooding it does not flood the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, reason: str, detail: str = "", *, expected: bool = False) -> None:
        """`expected`: honest peers cause it too (what was on its way when a step ended)."""
        with self._lock:
            self._counts[reason] += 1
            times = self._counts[reason]
        if times & (times - 1) == 0:
            level = logging.DEBUG if expected else logging.WARNING
            _log.log(level, "%s refused: %s%s (%d so far)", self._name, reason, detail, times)

    def counts(self) -> dict[str, int]:
        """Reason -> how often."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        with self._lock:
            return self._counts.total()
