"""Calls in threads of their own, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Run each call in a thread, for a minute at most; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
