"""Sessions and tasks of one process find each other here: what they say to each other needs no
transport."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from weft.runtime.distributed.messages import Received

Deliver = Callable[[Received], None]


class Direct(NamedTuple):
    """A message within the process; its arrays are the sender's own, and nobody writes to them."""

    peer: str
    incarnation: int
    kind: int
    step: int
    meta: Any
    buffers: tuple[Any, ...]
    key: int = 0
    offset: int = 0


_lock = threading.Lock()
_known: dict[int | str, weakref.WeakMethod[Deliver]] = {}


def announce(who: int | str, deliver: Deliver) -> None:
    """`who`, a task's incarnation or a session's name, takes messages by that method."""
    with _lock:
        _known[who] = weakref.WeakMethod(deliver)


def withdraw(who: int | str) -> None:
    """It takes no more."""
    with _lock:
        _known.pop(who, None)


def find(who: int | str) -> Deliver | None:
    """How to hand it messages; None if it is not in this process."""
    with _lock:
        found = _known.get(who)
    return None if found is None else found()
