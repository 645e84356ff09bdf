"""What is resident on a device: who asked for how much, for people who run out of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from typing import Protocol


class Holder(Protocol):
    """Whoever keeps memory that it could do without."""

    def drop_spare(self) -> None:
        """Let go what only makes the next call faster."""

    def drop_idle(self) -> None:
        """Let all of it go."""


class Resident:
    """The memory of a device by what it is for."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def may_ask(self, holder: Holder) -> None:
        """`holder` is asked to let go what it can, when memory is short."""
        with self._lock:
            self._holders.add(holder)

    def drop_spare(self) -> None:
        """Ask all holders."""
        for holder in self._asked():
            holder.drop_spare()

    def drop_idle(self) -> None:
        """Ask all holders; arrays that only hold each other go, too, those let go just now and
        others."""
        for holder in self._asked():
            holder.drop_idle()
        gc.collect()

    def _asked(self) -> list[Holder]:
        with self._lock:
            return list(self._holders)

    def add(self, what: str, nbytes: int) -> None:
        """So much more (or less) is there for `what`."""
        with self._lock:
            self._held[what] += nbytes
            if not self._held[what]:
                del self._held[what]

    @property
    def nbytes(self) -> int:
        """All of it."""
        with self._lock:
            return self._held.total()

    def describe(self, most: int = 6) -> str:
        """The largest first."""
        with self._lock:
            held = self._held.most_common()
        if not held:
            return "nothing"
        text = ", ".join(f"{what} ({nbytes:,} bytes)" for what, nbytes in held[:most])
        rest = held[most:]
        return text + (f" and {len(rest)} more ({sum(n for _, n in rest):,} bytes)" if rest else "")


def no_room(device: str, what: str, nbytes: int, resident: Resident, total: int) -> str:
    """The message for memory that is not there."""
    return f"device {device} has no {nbytes:,} bytes for {what}: {what_is_there(resident, total)}"


def what_is_there(resident: Resident, total: int) -> str:
    """What there is instead."""
    of = f" of {total:,}" if total else ""
    return f"resident are {resident.nbytes:,}{of} bytes: {resident.describe()}"
