"""Queues that do not keep the order of arrival: shuffling, and by priority."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.spec import AttrValue
from weft.runtime.resources.components import Components, Element
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.saved import saved_integer

_MASK = (1 << 64) - 1


class IndexStream:
    """Random indices by SplitMix64 (Steele, Lea, Flood 2014): the k-th number is a function of the
    seed and k, so (seed, count) is the whole state."""

    __slots__ = ("count", "seed")

    def __init__(self, seed: int, count: int = 0) -> None:
        self.seed = seed & _MASK
        self.count = count

    def below(self, n: int) -> int:
        """The next number in [0, n)."""
        self.count += 1
        z = (self.seed + self.count * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) * n) >> 64


class ShuffleQueue(Queue):
    """Dequeues a random element, and only while more than `min_after_dequeue` are there; after
    `close` down to the last one. The same for the same seed and order of operations."""

    kind = "RandomShuffleQueue"
    graph_kind = "shuffle"

    def __init__(
        self,
        components: Components,
        capacity: int | None,
        min_after_dequeue: int,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(components, capacity, name)
        self.min_after_dequeue = min_after_dequeue
        self._random = IndexStream(seed)
        self._bag: list[Element] = []

    def maker(self) -> tuple[str, dict[str, AttrValue]]:
        """The op `queue`, with its seed."""
        seed = self._random.seed
        signed = seed - (seed >> 63 << 64)
        name, attrs = super().maker()
        return name, {**attrs, "min_after_dequeue": self.min_after_dequeue, "seed": signed}

    def _push(self, element: Element) -> None:
        self._bag.append(element)

    def _pop(self) -> Element:
        bag = self._bag
        i = self._random.below(len(bag))
        bag[i], bag[-1] = bag[-1], bag[i]
        return bag.pop()

    def _put_back(self, elements: Sequence[Element]) -> None:
        self._bag.extend(elements)

    def _contents(self, taken: Sequence[Element]) -> Iterable[Element]:
        return [*self._bag, *taken]

    def _clear(self) -> None:
        self._bag.clear()

    def _count(self) -> int:
        return len(self._bag)

    def _available(self) -> int:
        return len(self._bag) - (0 if self._at_end else self.min_after_dequeue)

    def _state(self) -> str:
        return f"{super()._state()}, of which {self.min_after_dequeue} stay for shuffling"

    def _extra_state(self) -> dict[str, Any]:
        return {"seed": self._random.seed, "count": self._random.count}

    def _extra_loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        random = IndexStream(saved_integer(state["seed"]), saved_integer(state["count"], 0))

        def load() -> None:
            self._random = random

        return load


class PriorityQueue(Queue):
    """Dequeues the element with the smallest first component (int64), among equal ones the first
    that came."""

    kind = "PriorityQueue"
    graph_kind = "priority"

    def __init__(self, components: Components, capacity: int | None, name: str) -> None:
        super().__init__(components, capacity, name)
        self._heap: list[tuple[int, int, Element]] = []
        self._last = 0  # the number of the element that came last
        self._first = 0  # the number of the one that was put back last; they go down

    def _push(self, element: Element) -> None:
        self._last += 1
        heapq.heappush(self._heap, (int(element[0]), self._last, element))

    def _pop(self) -> Element:
        return heapq.heappop(self._heap)[2]

    def _put_back(self, elements: Sequence[Element]) -> None:
        for element in reversed(elements):  # they came before all that are there
            self._first -= 1
            heapq.heappush(self._heap, (int(element[0]), self._first, element))

    def _contents(self, taken: Sequence[Element]) -> Iterable[Element]:
        there = [e for _, _, e in sorted(self._heap, key=lambda entry: entry[:2])]
        return sorted([*taken, *there], key=lambda e: np.int64(e[0]).item())

    def _clear(self) -> None:
        self._heap.clear()

    def _count(self) -> int:
        return len(self._heap)
