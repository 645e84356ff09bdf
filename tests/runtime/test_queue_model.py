"""Queues under random programs of waiting, cancelled and closed operations, against plain models.

Everything runs in one thread on the asynchronous core, so what waits is part of the state.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest
from example_counts import share
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weft.ir.dtypes import int64
from weft.ir.errors import CancelledError, OutOfRangeError, WeftError
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.components import Components
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.queue_kinds import IndexStream, PriorityQueue, ShuffleQueue

CAPACITY, MINIMUM, SEED = 4, 2, 11
Pair = tuple[int, int]  # an element: a priority, and a number that no other element has


class Model:
    """What a queue means: two lines and a store, served until nothing moves."""

    def __init__(self) -> None:
        self.store: list[Pair] = []
        self.puts: list[dict[str, Any]] = []
        self.takes: list[dict[str, Any]] = []
        self.closing = False

    # the kind of queue
    def insert(self, e: Pair) -> None:
        self.store.append(e)

    def remove(self) -> Pair:
        return self.store.pop(0)

    def put_back(self, elements: list[Pair]) -> None:
        self.store[:0] = elements

    def ready(self) -> int:
        return len(self.store)

    @property
    def ended(self) -> bool:
        return self.closing and not self.puts

    def serve(self) -> None:
        """Each line in turn, as far as it goes."""
        moved = True
        while moved:
            puts = [self.put_one() for _ in iter(self.can_put, False)]
            takes = [self.take_one() for _ in iter(self.can_take, False)]
            moved = bool(puts or takes)

    def can_put(self) -> bool:
        return bool(self.puts) and (not self.puts[0]["left"] or len(self.store) < CAPACITY)

    def put_one(self) -> None:
        first = self.puts[0]
        if first["left"]:
            self.insert(first["left"].pop(0))
        if not first["left"]:
            first["result"] = "done"
            self.puts.pop(0)

    def can_take(self) -> bool:
        if not self.takes:
            return False
        return len(self.takes[0]["taken"]) == self.takes[0]["n"] or self.ready() > 0 or self.ended

    def take_one(self) -> None:
        first = self.takes[0]
        if len(first["taken"]) < first["n"] and self.ready() > 0:
            first["taken"].append(self.remove())
        if len(first["taken"]) == first["n"] or (
            self.ended and not self.ready() and first["up_to"] and first["taken"]
        ):
            first["result"] = first["taken"]
            self.takes.pop(0)
        elif self.ended and not self.ready():
            self.fail_take(first, OutOfRangeError)

    def fail_take(self, take: dict[str, Any], error: type[WeftError]) -> None:
        self.put_back(take["taken"])
        take["taken"] = []
        take["result"] = error
        self.takes[:] = [t for t in self.takes if t is not take]


class PriorityModel(Model):
    """Sorted by priority, then by arrival: the numbers of elements go up."""

    def insert(self, e: Pair) -> None:
        bisect.insort(self.store, e)

    def put_back(self, elements: list[Pair]) -> None:
        self.store[:] = sorted([*self.store, *elements])


class ShuffleModel(Model):
    """A bag, with the queue's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.random = IndexStream(SEED)

    def remove(self) -> Pair:
        i = self.random.below(len(self.store))
        self.store[i], self.store[-1] = self.store[-1], self.store[i]
        return self.store.pop()

    def put_back(self, elements: list[Pair]) -> None:
        self.store += elements

    def ready(self) -> int:
        return len(self.store) - (0 if self.ended else MINIMUM)


def pair(element: Any) -> Pair:
    return int(element[0]), int(element[1])


class QueueMachine(RuleBasedStateMachine):
    """The queue and its model do the same."""

    model_class: type[Model] = Model

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.make()
        self.model = self.model_class()
        self.count = 0
        self.running: list[tuple[Any, dict[str, Any], CancelToken, list[Any]]] = []
        self.entered: list[Pair] = []  # what went in, in order of the programs

    def make(self) -> Queue:
        return Queue(Components("q", [int64, int64], [(), ()]), CAPACITY, "q")

    def begin(self, start: Any, entry: dict[str, Any]) -> None:
        token, outcomes = CancelToken(), []  # type: ignore[var-annotated]
        attempt = start(outcomes.append, token)
        self.running.append((attempt, entry, token, outcomes))
        self.model.serve()

    @rule(priorities=st.lists(st.integers(-1, 1), max_size=6))
    def enqueue(self, priorities: list[int]) -> None:
        elements = []
        for p in priorities:
            self.count += 1
            elements.append((p, self.count))
        arrays = [(np.array(p), np.array(n)) for p, n in elements]
        entry: dict[str, Any] = {"left": list(elements), "result": None, "all": elements}
        if self.model.closing:
            entry["result"] = CancelledError
        else:
            self.model.puts.append(entry)
        self.begin(lambda done, token: self.queue.start_enqueue(arrays, done, token), entry)

    @rule(n=st.integers(0, 6), up_to=st.booleans())
    def dequeue(self, n: int, up_to: bool) -> None:
        entry: dict[str, Any] = {"n": n, "up_to": up_to, "taken": [], "result": None}
        self.model.takes.append(entry)
        self.begin(lambda done, token: self.queue.start_dequeue(n, done, token, up_to=up_to), entry)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Also of what is over: then nothing happens."""
        _, entry, token, _ = self.running[data.draw(st.integers(0, len(self.running) - 1))]
        if entry["result"] is None:
            if "n" in entry:
                self.model.fail_take(entry, CancelledError)
            else:
                self.model.puts[:] = [p for p in self.model.puts if p is not entry]
                entry["result"] = CancelledError
        self.model.serve()
        token.cancel()

    @rule(pending=st.booleans())
    def close(self, pending: bool) -> None:
        self.model.closing = True
        if pending:
            for entry in self.model.puts:
                entry["result"] = CancelledError
            self.model.puts.clear()
        self.model.serve()
        self.queue.close(pending)

    @rule()
    def checkpoint(self) -> None:
        """What is saved is what the queue holds and what waiting dequeues have taken."""
        state = self.queue.state_dict()
        taken = self.model.takes[0]["taken"] if self.model.takes else []
        columns = [list(map(int, c)) for c in state["components"]]
        saved = list(zip(*columns, strict=True))
        assert sorted(saved) == sorted([*taken, *self.model.store])
        again = self.make()
        again.load_state_dict(state)
        back = again.state_dict()
        assert [np.array(c).tolist() for c in back["components"]] == columns
        assert back["closed"] == self.model.closing

    @precondition(lambda self: self.model.closing and not self.model.puts and not self.model.takes)
    @rule()
    def open_again(self) -> None:
        """A state of an open queue opens a closed one."""
        self.queue.load_state_dict({**self.queue.state_dict(), "closed": False})
        self.model.closing = False

    @invariant()
    def same(self) -> None:
        for attempt, entry, _, outcomes in self.running:
            result = entry["result"]
            assert attempt.is_over() == (result is not None)
            assert len(outcomes) == (result is not None)
            if result is None:
                continue
            got = outcomes[0]
            if isinstance(result, type):
                assert type(got) is result, got
            elif result == "done":
                assert got is None
            else:
                assert list(map(pair, got)) == result
        assert self.queue.size() == len(self.model.store)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """Of the real queue: every number that went in is out, taken or in the queue, once."""
        inside = [pair(e) for e in self.queue._contents([])]
        for attempt, entry, _, _ in self.running:
            if "n" in entry:
                inside += map(pair, attempt.items)
            else:  # what has not gone in, or was refused
                entry["missing"] = attempt.items[len(attempt.items) - attempt.left :]
        every = [e for _, entry, _, _ in self.running for e in entry.get("all", ())]
        out = [pair(e) for _, entry, _, _ in self.running for e in entry.get("missing", ())]
        assert sorted(inside + out) == sorted(every)


class PriorityMachine(QueueMachine):
    model_class = PriorityModel

    def make(self) -> Queue:
        return PriorityQueue(Components("q", [int64, int64], [(), ()]), CAPACITY, "q")


class ShuffleMachine(QueueMachine):
    model_class = ShuffleModel

    def make(self) -> Queue:
        parts = Components("q", [int64, int64], [(), ()])
        return ShuffleQueue(parts, CAPACITY, MINIMUM, SEED, "q")


TestFIFO = QueueMachine.TestCase
TestPriority = PriorityMachine.TestCase
TestShuffle = ShuffleMachine.TestCase
for machine in (TestFIFO, TestPriority, TestShuffle):
    machine.settings = settings(max_examples=share(300, 12), stateful_step_count=30, deadline=None)
    pytest.mark.examples(machine)
