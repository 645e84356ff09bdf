"""Waiting for several tensors of one step, on a thread that may wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.comm.rendezvous import Key, Rendezvous
from weft.ir.errors import DeadlineExceededError, UnavailableError, WeftError

Array = np.ndarray[Any, Any]


def all_of(
    table: Rendezvous, step: int, keys: Sequence[Key], timeout: float | None, source: str
) -> list[Array]:
    """The tensors of all keys, which `source` sends. What ends the step is raised;
    DeadlineExceededError after `timeout` seconds."""
    found: dict[Key, Array] = {}
    failed: list[BaseException] = []
    lock, ready = threading.Lock(), threading.Event()

    def came(key: Key, made: Any) -> None:
        with lock:
            if isinstance(made, BaseException):
                failed.append(made)
            else:
                found[key] = made
            if failed or len(found) == len(keys):
                ready.set()

    for key in keys:
        table.get(step, key, partial(came, key), source)
    if not ready.wait(timeout):
        missing = len(keys) - len(found)
        raise DeadlineExceededError(f"{missing} of {len(keys)} tensors did not come in time")
    if failed:
        error = failed[0]
        raise error if isinstance(error, WeftError) else UnavailableError(str(error))
    return [found[key] for key in keys]
