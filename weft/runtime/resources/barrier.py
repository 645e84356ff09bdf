"""`Barrier`: elements whose components arrive one by one, by key, and leave when they are complete
(TensorFlow 1's `Barrier`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import int64, string
from weft.ir.errors import CancelledError, InvalidArgumentError, UnsupportedError, WeftError
from weft.ir.spec import AttrValue
from weft.runtime.resources.attempts import Attempt, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.components import Array, Components
from weft.runtime.resources.ordered import PriorityQueue
from weft.runtime.resources.saved import check_saved, saved_integer

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

    def __init__(self, components: Components, name: str) -> None:
        shapes = ((), (), *components.shapes)
        dtypes = (int64, string, *components.dtypes)
        super().__init__(Components(components.owner, dtypes, shapes), None, name)
        self.parts = components
        self._incomplete: dict[bytes, _Incomplete] = {}
        self._next_index = _FIRST_INDEX

    def maker(self) -> tuple[str, dict[str, AttrValue]]:
        """The op `barrier`. UnsupportedError if the shapes of the components are not known."""
        parts = self.parts
        if not parts.is_static:
            raise UnsupportedError(
                f"{self.describe()} holds elements of any shape ({parts}); in a graph they must be "
                "known",
                hint="give shapes= when the barrier is made",
            )
        return "barrier", {"parts": tuple(parts.type(i) for i in range(len(parts)))}

    # ----------------------------------------------------------------------------------- inserting
    def start_insert(
        self,
        component: int,
        keys: Sequence[bytes],
        values: Sequence[Array],
        done: Done,
        cancel: CancelToken | None = None,
    ) -> Attempt:
        """Give `component` of the elements `keys` their values; never waits. `done(None)`.

        InvalidArgumentError if a key has the component already, CancelledError if the barrier is
        closed and a key is new; then nothing is inserted.
        """

        def insert(attempt: Attempt) -> bool:
            error = self._wrong(component, keys)
            if error is not None:
                self._fail(attempt, error)
                return False
            for key, value in zip(keys, values, strict=True):
                self._insert(component, key, value)
            self._finish(attempt, None)
            return True

        attempt = Attempt("insert_many", insert, done)
        return self._start(attempt, self._putting, cancel)

    def insert_many(
        self,
        component: int,
        keys: Sequence[bytes],
        values: Sequence[Array],
        cancel: CancelToken | None = None,
    ) -> None:
        """`start_insert`, waited for."""
        self.wait(lambda done: self.start_insert(component, keys, values, done, cancel))

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
