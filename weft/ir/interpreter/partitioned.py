"""The interpreter of a partitioned program: all its parts in one process, messages in a dict.

It is the meaning of `send` and `recv`: a message is named by its key and the iteration numbers, is
sent once and received once, and may be a dead value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.ir.analysis.frames import find_frames
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, UnsupportedError
from weft.ir.graph import Operation
from weft.ir.interpreter.dataflow import DEAD, Instance, Iteration, Machine, Ready, Waiting
from weft.ir.interpreter.evaluate import (
    RunHost,
    as_array,
    bind_symbols,
    interpret,
    op_runner,
    own_results,
)
from weft.ir.interpreter.state import State
from weft.ir.program import Part, Program
from weft.ir.spec import Array, int_attr

#: Names a message: its key, and the iterations of the frames around it.
Name = tuple[int, tuple[int, ...]]


def interpret_program(
    program: Program,
    inputs: Sequence[Array],
    state: State | None = None,
    *,
    host: RunHost | None = None,
) -> list[Any]:
    """The results of a program, of one graph or of several parts. Arguments and errors as
    `interpret` and `interpret_parts`."""
    if program.is_whole:
        return interpret(program.graph, inputs, state, host=host)
    return interpret_parts(program.parts, inputs, state, host=host)


def interpret_parts(
    parts: Sequence[Part],
    inputs: Sequence[Array],
    state: State | None = None,
    *,
    schedule: int | None = None,
    host: RunHost | None = None,
) -> list[Any]:
    """The results of a partitioned graph on `inputs`, those of the whole graph.

    state: the variables of all parts, whose names are different. schedule: the seed of a random
    order of all that is ready in any part. host: as in `interpret`. Raises what `interpret` does,
    and InternalError if the parts wait for each other, saying who waits for whom, or if a message
    is sent twice or never received.
    """
    arrays = [as_array(x) for x in inputs]
    mail = _Mail()
    sizes: dict[str, int] = {}
    for part in parts:
        sizes |= bind_symbols(part.graph, [arrays[i] for i in part.feeds])
    with np.errstate(all="ignore"):
        tasks = [_Task(part, mail, state, sizes, schedule, host) for part in parts]
        for task in tasks:
            task.begin([arrays[i] for i in task.part.feeds])
        choose = None if schedule is None else random.Random(schedule)
        while busy := [task for task in tasks if task.ready]:
            (choose.choice(busy) if choose else busy[0]).step()
        _check_ended(tasks, mail)
        found = {
            number: result
            for task in tasks
            for number, result in zip(task.part.fetches, task.end(), strict=True)
        }
    return own_results([found[i] for i in range(len(found))])


@dataclass(slots=True)
class _Mail:
    """Messages under way, and who waits for one."""

    values: dict[Name, Any] = field(default_factory=dict)
    waiting: dict[Name, tuple[_Task, Ready]] = field(default_factory=dict)
    sent: set[Name] = field(default_factory=set)


class _Task(Machine):
    """One part under way."""

    def __init__(
        self,
        part: Part,
        mail: _Mail,
        state: State | None,
        sizes: dict[str, int],
        schedule: int | None,
        host: RunHost | None,
    ) -> None:
        self.part, self.mail, self.host = part, mail, host
        frames = find_frames(part.graph.block, part.graph.arg_names)
        if frames.faults:
            op, what = frames.faults[0]
            raise InternalError(f"op '{op.name}': {what}", location=op.locations)
        runner = op_runner(state, sizes, self._on_host)
        super().__init__(runner, part.graph.block, frames, schedule)

    def _make_ready(self, entry: Ready) -> None:
        """A recv waits for its message as well."""
        op, waiting, _, _ = entry
        if op.name == "recv" and not waiting.dead:
            name = message_name(op, waiting.operands)
            if name not in self.mail.values:
                self.mail.waiting[name] = self, entry
                return
        super()._make_ready(entry)

    def _run(self, op: Operation, waiting: Waiting, at: Instance, now: Iteration) -> None:
        if op.name == "send":
            data, *others = waiting.operands
            if not any(x is DEAD for x in others):
                self._send(op, data, message_name(op, others))
                return self._deliver(op.result, None, at, now)
        elif op.name == "recv" and not waiting.dead:
            name = message_name(op, waiting.operands)
            if self.mail.values[name] is DEAD:
                del self.mail.values[name]
                return self._deliver(op.result, DEAD, at, now)
        return super()._run(op, waiting, at, now)

    def _send(self, op: Operation, data: Any, name: Name) -> None:
        if name in self.mail.sent:
            raise InternalError(f"message {name} is sent twice", location=op.locations)
        self.mail.sent.add(name)
        self.mail.values[name] = data
        if name in self.mail.waiting:
            task, entry = self.mail.waiting.pop(name)
            task._make_ready(entry)

    def _on_host(self, op: Operation, operands: Sequence[Any]) -> Sequence[Any]:
        if op.name == "recv":
            return [self.mail.values.pop(message_name(op, operands))]
        if self.host is None:
            raise UnsupportedError(
                "the interpreter got nothing that carries out ops of the host",
                hint="pass host=, as weft.runtime.dataflow.host_dispatch.HostObjects",
            )
        return self.host(op, operands)


def message_name(op: Operation, counters: Sequence[Any]) -> Name:
    """The key and the iterations of a message; of the inputs of an op, control operands count for
    nothing."""
    count = len(op.operands) - (op.name == "send")
    return int_attr(op.attrs, "key"), tuple(int(x) for x in counters[:count])


def _check_ended(tasks: Sequence[_Task], mail: _Mail) -> None:
    """InternalError if parts wait for messages that never come, or leave some."""
    if mail.waiting:
        lines = [_wait(tasks, task, entry[0], name) for name, (task, entry) in mail.waiting.items()]
        first = next(iter(mail.waiting.values()))[1][0]
        raise InternalError(
            "the parts of a graph wait for each other:\n" + "\n".join(lines),
            hint="this is an error of the partitioning, not of the program",
            location=first.locations,
        )
    if mail.values:
        name = next(iter(mail.values))
        raise InternalError(f"message {name} was sent, and nobody received it")


def _wait(tasks: Sequence[_Task], task: _Task, op: Operation, name: Name) -> str:
    """Who waits for which message, and what its sender has of the inputs of its send."""
    key, iterations = name
    at = f" in iteration {', '.join(map(str, iterations))}" if iterations else ""
    line = (
        f"  {task.part.device} waits for key {key}{at}: '{op.attrs['tensor']}' "
        f"from {op.attrs['src']}"
    )
    for other in tasks:
        for made in other.block.ops:
            if made.name == "send" and made.attrs["key"] == key:
                return f"{line}, which has not come to its send of it"
    return f"{line}, which has no send of it"
