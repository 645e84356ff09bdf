"""Asking the tasks of a cluster what they count (`counters.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from weft.comm.errors import CommError
from weft.ir.errors import WeftError
from weft.runtime.distributed import messages as m
from weft.runtime.distributed.master import Master

#: What `counters.task_stats` gives.
Stats = Mapping[str, Any]


def ask_stats(master: Master, seconds: float = 2.0) -> dict[str, Stats | str]:
    """Task -> what it counts, or why it does not say. Tasks that were lost are looked for again.
    FailedPreconditionError where the session is closed."""
    lost = [task.name for task in master.tasks() if not task.incarnation]
    if lost:
        with suppress(WeftError):
            master.require(lost)
    tasks = master.tasks()
    found: dict[str, Stats | str] = {t.name: t.cause for t in tasks if not t.incarnation}
    there = [t.name for t in tasks if t.incarnation]
    number, waits = master.begin([(name, 0) for name in there])
    try:
        for name in there:
            try:
                master.wire.send(name, m.STATS, number, {"n": number})
            except CommError as error:
                found[name] = str(error)
                waits.part((name, 0))
        if there:
            waits.over.wait(seconds)
        for name in there:
            answer = waits.answers.get((name, 0))
            if answer is not None and answer[1]:
                found[name] = m.from_array(answer[1][0])
            found.setdefault(name, f"it has not answered for {seconds:g} s")
    finally:
        master.end(number)
    return {task.name: found[task.name] for task in tasks}
