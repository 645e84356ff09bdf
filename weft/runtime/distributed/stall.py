"""Who waits for whom in a step that does not end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.comm.errors import CommError
from weft.runtime.distributed import messages as m
from weft.runtime.distributed.pending import Who

if TYPE_CHECKING:
    from weft.runtime.distributed.master import Master

#: How long the tasks have to say what they wait for, and how many lines each may have.
ANSWER_SECONDS, MOST_LINES = 0.5, 12


def stall_report(master: Master, step: int, owing: Sequence[Who], tasks: Sequence[str]) -> str:
    """One line for each message that is waited for, and for each task that waits for none."""
    asked = list(dict.fromkeys(task for task, _ in owing))
    number, waits = master.begin([(task, 0) for task in asked])
    try:
        for task in asked:
            try:
                master.send(task, m.STATUS, step, {"n": number})
            except CommError:
                continue
        waits.stop.wait(ANSWER_SECONDS)
    finally:
        master.end(number)
    lines = []
    for task in tasks:
        if task not in asked:
            lines.append(f"  {task} is done with its part")
        elif (task, 0) not in waits.answers:
            lines.append(f"  {task} does not answer")
        else:
            lines += _lines(task, m.from_array(waits.answers[task, 0][1][0]))
    return "\n".join(lines)


def _lines(task: str, runs: list[Any]) -> list[str]:
    rows = [row for _, waits, _ in runs for row in waits]
    hosts = [host for _, _, hosts in runs for host in hosts]
    if not runs:
        return [f"  {task} does not run the step"]
    made = [f"  {task} waits in its own op {host}" for host in hosts[:MOST_LINES]]
    if not rows and not hosts:
        return [f"  {task} waits for nothing: it computes"]
    for label, iterations, source, seconds, where in rows[:MOST_LINES]:
        turn = f" in iteration {iterations}" if iterations else ""
        at = f", at {where}" if where else ""
        made.append(f"  {task} waits for {label}{turn} from {source} since {seconds:.1f} s{at}")
    if len(rows) > MOST_LINES:
        made.append(f"  {task} waits for {len(rows) - MOST_LINES} more")
    return made
