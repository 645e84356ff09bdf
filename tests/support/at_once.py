"""Calls in threads of their own, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


def outcomes(calls: Sequence[Callable[[], object]]) -> list[Any]:
    """Run each call in a thread, for a minute at most: what each gives, or the error that it
    raises."""
    made: list[Any] = [None] * len(calls)

    def guarded(k: int) -> None:
        try:
            made[k] = calls[k]()
        except BaseException as error:
            made[k] = error

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return made


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Run each call in a thread, for a minute at most; the first error of any is raised."""
    for made in outcomes(calls):
        if isinstance(made, BaseException):
            raise made
