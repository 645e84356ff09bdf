"""Shared names: by container and name, the variables and resources of this process that several
parts of a program find, as long as anybody holds them (TensorFlow 1's `shared_name=`)."""

from __future__ import annotations

import weakref
from typing import Any

from weft.ir.process import ForkLock

#: By container and name; guarded by `NAMES_LOCK`.
BY_NAME: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()
NAMES_LOCK = ForkLock()


def shared_as(thing: object) -> tuple[str, str] | None:
    """The container and shared name of an object; None if it has none."""
    with NAMES_LOCK:
        return next((key for key, x in BY_NAME.items() if x is thing), None)
