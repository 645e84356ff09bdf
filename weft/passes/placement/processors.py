"""The processors of one machine on which all tasks are processes, as a simulation of them takes
them.

A task has two threads: one that handles messages (all that the interpreter does, one after the
other), and one that carries them to other processes. A thread that has nothing to do sleeps; what
gives it something wakes it. It goes on on the processor where it ran last, where others may be
before it even if another processor has nothing to do (Linux was seen to do so: threads change
their processor once in forty to a hundred wake-ups); every now and then one of those that wait is
moved. So the processors are not always busy though there is work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError

#: Puts a call at a time.
At = Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds of a processor for one end of a message in a task. message_s: of the thread that
    handles it; carrier_s: of the one that carries it; large_s: more for a message of
    `Machine.large_bytes`, byte_s for each byte, of the one that handles it. For each task of the
    machine beyond `Machine.tasks` they take longer by a part: message_crowd (large_s, too),
    carrier_crowd, byte_crowd: caches are cold when its turn comes."""

    message_s: float
    carrier_s: float = 0.0
    large_s: float = 0.0
    byte_s: float = 0.0
    message_crowd: float = 0.0
    carrier_crowd: float = 0.0
    byte_crowd: float = 0.0

    def __post_init__(self) -> None:
        if not min(self.message_s, self.carrier_s, self.large_s, self.byte_s) >= 0:
            raise InvalidArgumentError("seconds are not negative")

    def among(self, more: int) -> Ends:
        """What they take among so many more tasks."""
        message, carrier, byte = (
            max(0.0, 1 + more * crowd)
            for crowd in (self.message_crowd, self.carrier_crowd, self.byte_crowd)
        )
        return Ends(
            self.message_s * message, self.carrier_s * carrier, self.large_s * message,
            self.byte_s * byte,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine for all tasks. worker, server: the ends of messages there, among `tasks` tasks.
    wake_s: seconds until a processor that has nothing to do begins with a thread that was woken.
    balance_s: how often one of those that wait is moved to a processor that has less to do (Linux:
    each tick, 1 / CONFIG_HZ seconds); 0: never."""

    processors: int
    worker: Ends
    server: Ends
    tasks: int
    large_bytes: float = math.inf
    wake_s: float = 0.0
    balance_s: float = 4e-3

    def __post_init__(self) -> None:
        if self.processors < 1 or not (self.wake_s >= 0 and self.balance_s >= 0):
            raise InvalidArgumentError("a machine has processors, and seconds are not negative")


class Thread:
    """What it has to do, one after the other, and the processor where it ran last."""

    __slots__ = ("awake", "processor", "work")

    def __init__(self, processor: int) -> None:
        self.processor, self.awake = processor, False
        self.work: deque[tuple[float, Callable[[], None]]] = deque()


class Processors:
    """Threads on processors, each of which has a queue of its own. at: puts events into the
    simulation; now: its time."""

    def __init__(self, machine: Machine, at: At, now: Callable[[], float]) -> None:
        self._machine, self._at, self._now = machine, at, now
        count = machine.processors
        self._waiting: list[deque[Thread]] = [deque() for _ in range(count)]
        self._running = [False] * count  # or beginning with a thread
        self.busy_s = 0.0
        if machine.balance_s and count > 1:
            at(machine.balance_s, self._balance)

    def do(self, thread: Thread, seconds: float, then: Callable[[], None]) -> None:
        """Have a thread work for so long after what it has to do already."""
        thread.work.append((seconds, then))
        if thread.awake:
            return
        thread.awake = True
        place = thread.processor
        self._waiting[place].append(thread)
        if not self._running[place]:
            self._running[place] = True
            self._at(self._now() + self._machine.wake_s, lambda: self._next(place))

    def _next(self, place: int) -> None:
        """A processor is free: the thread that waits longest has it, until it sleeps."""
        self._running[place] = bool(self._waiting[place])
        if self._running[place]:
            self._go_on(place, self._waiting[place].popleft())

    def _go_on(self, place: int, thread: Thread) -> None:
        seconds, then = thread.work[0]

        def done() -> None:
            self.busy_s += seconds
            thread.work.popleft()
            then()
            if thread.work:
                self._go_on(place, thread)
            else:
                thread.awake = False
                self._next(place)

        self._at(self._now() + seconds, done)

    def _balance(self) -> None:
        """Move one thread that waits from the longest queue to the shortest."""
        self._at(self._now() + self._machine.balance_s, self._balance)
        load = [len(q) + busy for q, busy in zip(self._waiting, self._running, strict=True)]
        most, least = load.index(max(load)), load.index(min(load))
        if load[most] - load[least] < 2 or not self._waiting[most]:
            return
        thread = self._waiting[most].pop()
        thread.processor = least
        self._waiting[least].append(thread)
        if not self._running[least]:
            self._next(least)


class Tasks:
    """Tasks of a machine: the first `workers` of them are workers, the others servers. random:
    where their threads ran last."""

    def __init__(
        self, machine: Machine, workers: int, servers: int, random: np.random.Generator,
        processors: Processors,
    ) -> None:  # fmt: skip
        tasks = workers + servers
        more = tasks - machine.tasks
        worker, server = machine.worker.among(more), machine.server.among(more)
        self._large = machine.large_bytes
        self._ends = [worker] * workers + [server] * servers
        places = random.permutation(2 * tasks) % machine.processors
        threads = [Thread(int(place)) for place in places]
        self._handlers, self._carriers = threads[:tasks], threads[tasks:]
        self._processors = processors

    def work(self, task: int, seconds: float, then: Callable[[], None]) -> None:
        """Of the thread that handles messages."""
        self._processors.do(self._handlers[task], seconds, then)

    def carry(self, source: int, target: int, nbytes: float, then: Callable[[], None]) -> None:
        """A message from task to task: handled, carried, carried, handled."""
        do, out, into = self._processors.do, self._ends[source], self._ends[target]
        handled = [
            end.message_s + nbytes * end.byte_s + end.large_s * (nbytes >= self._large)
            for end in (out, into)
        ]

        def sent() -> None:
            do(self._carriers[source], out.carrier_s, carried)

        def carried() -> None:
            do(self._carriers[target], into.carrier_s, arrived)

        def arrived() -> None:
            do(self._handlers[target], handled[1], then)

        do(self._handlers[source], handled[0], sent)
