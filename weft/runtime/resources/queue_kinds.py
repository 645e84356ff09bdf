"""Queues in other orders than arrival: `ShuffleQueue`, `PriorityQueue`, and `Barrier`.

A barrier's elements have components that arrive one by one, by key, and leave when they are
complete (TensorFlow 1's `Barrier`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import int64, string
from weft.ir.errors import (
    CancelledError,
    InvalidArgumentError,
    ShapeError,
    WeftError,
)
from weft.ir.spec import AttrValue
from weft.runtime.resources.attempts import Attempt, CancelToken, Done
from weft.runtime.resources.components import (
    Array,
    Components,
    ComponentShape,
    Element,
    check_saved,
    describe_array,
    rows,
    saved_integer,
)
from weft.runtime.resources.queue import Queue

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

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `queue`, with its seed."""
        seed = self._random.seed
        signed = seed - (seed >> 63 << 64)
        name, attrs = super().maker(ranks)
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


_FIRST_INDEX = -(2**63)  # as in TensorFlow


class _Incomplete:
    """A key that misses components. `index` counts keys in the order in which they came."""

    __slots__ = ("index", "values")

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        self.values: list[Array | None] = [None] * count


class Barrier(PriorityQueue):
    """The complete elements are a queue of (index, key, *components) by index."""

    kind = "Barrier"
    unequal = "they are in the barrier again; take_many(1) takes them one by one"

    def __init__(self, components: Components, name: str) -> None:
        shapes = ((), (), *components.shapes)
        dtypes = (int64, string, *components.dtypes)
        super().__init__(Components(components.owner, dtypes, shapes), None, name)
        self.parts = components
        self._incomplete: dict[bytes, _Incomplete] = {}
        self._next_index = _FIRST_INDEX

    @property
    def shapes(self) -> Sequence[ComponentShape]:
        """None: what a graph inserts first does not say how many axes all components have."""
        return ()

    def ranks(self) -> Sequence[int | None]:
        """Those of the elements that are there, complete or not, else of what a graph inserted
        last; None for a component that nothing says it of."""
        found: list[int | None] = list(self.last_ranks) or [None] * len(self.parts)
        with self._lock:
            taken = [e for a in self._taking for e in a.items]
            held = [e[2:] for e in self._contents(taken)]
            for values in (*(entry.values for entry in self._incomplete.values()), *held):
                found = [r if v is None else v.ndim for r, v in zip(found, values, strict=True)]
        return found

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `barrier`."""
        return "barrier", {"parts": self.parts.parts(ranks or [None] * len(self.parts))}

    def taken(self, elements: list[Element], ranks: Sequence[int] | None) -> tuple[Array, ...]:
        """Elements that were just taken: indices, keys and values, stacked. ranks: how many axes
        these have in the graph, None outside. ShapeError, and they are in the barrier again, for
        other values, and those of different shapes."""
        made = self.stacked(elements, "take_many")
        if ranks is None or [a.ndim for a in made] == list(ranks):
            return made
        if not elements:  # of no shape, if any will do
            return tuple([a.reshape((0,) * rank) for a, rank in zip(made, ranks, strict=True)])
        self._change(lambda: self._put_back(elements))
        there = ", ".join(map(describe_array, elements[0][2:]))
        raise ShapeError(
            f"{self.describe()}: take_many found an element of other axes than the graph was built "
            f"for: {there}, not of {', '.join(str(rank - 1) for rank in ranks[2:])} axes",
            hint="it is in the barrier again; a graph has one number of axes for each component: "
            "that of what it inserts first, or of what is in the barrier when it is built",
        )

    # ----------------------------------------------------------------------------------- inserting
    def start_insert(
        self,
        component: int,
        keys: Array,
        values: Array,
        done: Done,
        cancel: CancelToken | None = None,
    ) -> Attempt:
        """Give `component` of the elements `keys` [n] their values, copies of the rows of `values`;
        never waits. `done(None)`.

        InvalidArgumentError if a key has the component already, CancelledError if the barrier is
        closed and a key is new; then nothing is inserted. ShapeError unless there are as many keys
        as values.
        """
        if keys.shape != (len(values),):
            raise ShapeError(
                f"{self.describe()}: insert_many got keys of shape {list(keys.shape)} and "
                f"{len(values)} values"
            )
        names: list[bytes] = keys.tolist()
        copied = rows(values)

        def insert(attempt: Attempt) -> bool:
            error = self._wrong(component, names)
            if error is not None:
                self._fail(attempt, error)
                return False
            for name, row in zip(names, copied, strict=True):
                self._insert(component, name, row)
            self._finish(attempt, None)
            return True

        attempt = Attempt("insert_many", insert, done)
        return self._start(attempt, self._putting, cancel)

    def _wrong(self, component: int, keys: Sequence[bytes]) -> WeftError | None:
        seen: set[bytes] = set()
        for key in keys:
            known = self._incomplete.get(key)
            if known is None and self._closing:
                return CancelledError(
                    f"{self.describe()} is closed: insert_many was refused for the new key {key!r}"
                )
            if key in seen or (known is not None and known.values[component] is not None):
                return InvalidArgumentError(
                    f"{self.describe()}: insert_many: the key {key!r} has a value for "
                    f"{self.parts.label(component)} already",
                    hint="each key takes one value for each component until it is taken",
                )
            seen.add(key)
        return None

    def _insert(self, component: int, key: bytes, value: Array) -> None:
        entry = self._incomplete.get(key)
        if entry is None:
            entry = self._incomplete[key] = _Incomplete(self._next_index, len(self.parts))
            self._next_index += 1
        entry.values[component] = value
        full = [v for v in entry.values if v is not None]
        if len(full) == len(entry.values):
            del self._incomplete[key]
            self._push((np.array(entry.index, np.int64), np.array(key, object), *full))

    # ------------------------------------------------------------------------------------- the end
    @property
    def _at_end(self) -> bool:
        return self._closing and not self._incomplete

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Accept no new keys; those that miss components may still get them, or (with
        `cancel_pending_enqueues`) are dropped."""

        def shut() -> None:
            self._closing = True
            if cancel_pending_enqueues:
                self._incomplete.clear()

        self._change(shut)

    def incomplete_size(self) -> int:
        """The number of keys that miss components."""
        with self._lock:
            return len(self._incomplete)

    def _state(self) -> str:
        return f"{self._count()} elements are complete, {len(self._incomplete)} are not"

    # ------------------------------------------------------------------------------- checkpoints
    def _extra_state(self) -> dict[str, Any]:
        waiting = [
            {"key": key, "index": entry.index, "values": list(entry.values)}
            for key, entry in self._incomplete.items()
        ]
        return {"next_index": self._next_index, "incomplete": waiting}

    def _extra_loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        next_index = saved_integer(state["next_index"])
        waiting = {_key(e["key"]): self._incomplete_of(e) for e in state["incomplete"]}

        def load() -> None:
            self._next_index, self._incomplete = next_index, waiting

        return load

    def _incomplete_of(self, saved: Mapping[str, Any]) -> _Incomplete:
        made = _Incomplete(saved_integer(saved["index"]), len(self.parts))
        held = zip(saved["values"], self.parts.dtypes, strict=True)
        for i, (value, dtype) in enumerate(held):
            if value is not None:
                check_saved(value, dtype)
                self.parts.check(i, value, "load_state_dict")
                made.values[i] = value.copy()
        if sum(v is None for v in made.values) in (0, len(made.values)):
            raise ValueError(f"the key {saved['key']!r} misses no component, or all")
        return made


def _key(saved: Any) -> bytes:
    if not isinstance(saved, bytes):
        raise TypeError(f"{saved!r:.40} is no key")
    return saved
