"""`Barrier`: elements that leave when all their components have come, by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from weft.frontend.queues import resources_in_graph as in_graph
from weft.frontend.queues.in_graph import made_at_once, or_effect, or_in_graph
from weft.frontend.queues.sharing import shared
from weft.frontend.queues.values import (
    count,
    dtype_list,
    eager,
    integer,
    label,
    rows_of,
    seconds,
    shape_list,
    tensors,
    value_of,
)
from weft.frontend.tensor import Tensor
from weft.ir.dtypes import string
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.components import Components
from weft.runtime.resources.queue_kinds import Barrier as BarrierCore


class Barrier:
    """Components arrive one by one, by key (strings); complete elements leave in the order in which
    their keys first came (TensorFlow 1's Barrier). types, shapes: those of the components.

    In a `wf.Graph` the barrier is made at once, and the methods add ops, as those of queues do.
    """

    __slots__ = ("_barrier", "__weakref__")

    @made_at_once
    @eager
    def __init__(
        self, types: Any, shapes: Any = None, shared_name: str | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"Barrier '{(name := label(name, 'barrier'))}'"
        components = Components(owner, dtype_list(types), shape_list(shapes, owner))
        if any(s is not None and None in s for s in components.shapes):
            raise InvalidArgumentError(f"{owner}: the shapes must be known: {components}")
        self._barrier = shared(
            shared_name, BarrierCore, str(components), lambda: BarrierCore(components, name)
        )

    @property
    def name(self) -> str:
        """The name given."""
        return self._barrier.name

    @or_effect(in_graph.insert_many)
    @eager
    def insert_many(
        self, component_index: int, keys: Any, values: Any, name: str | None = None
    ) -> None:
        """Give one component of the elements `keys` (a list of n strings) their `values` (stacked).

        InvalidArgumentError if a key has that component already, CancelledError if a key is new and
        the barrier is closed; then nothing is inserted.
        """
        barrier = self._barrier
        parts = barrier.parts
        i = self._component(component_index)
        wanted = value_of(keys, string, lambda: f"{parts.owner}: insert_many: keys")
        what = f"{parts.owner}: insert_many: {parts.label(i)}"
        stack, rows = rows_of(values, parts.dtypes[i], lambda: what)
        parts.check(i, stack, "insert_many", batch=True)
        if wanted.shape != (len(stack),):
            raise ShapeError(
                f"{parts.owner}: insert_many got keys of shape {list(wanted.shape)} and "
                f"{len(stack)} values"
            )
        barrier.insert_many(i, wanted.tolist(), rows())

    @or_in_graph(in_graph.take_many)
    @eager
    def take_many(
        self, num_elements: int, allow_small_batch: bool = False, timeout: float | None = None,
        name: str | None = None, *, cancel: CancelToken | None = None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
        """Take `num_elements` complete elements, waiting for them: (indices, keys, values), values
        stacked, one tensor for each component. `indices` count keys from -2**63 on.

        If the barrier is closed and too few can become complete: OutOfRangeError, or, with
        `allow_small_batch`, those that there are. DeadlineExceededError after `timeout` seconds.
        """
        barrier = self._barrier
        barrier.check_batches("take_many")
        n = integer(num_elements, f"{barrier.describe()}: take_many: num_elements")
        indices, keys, *values = tensors(
            barrier.dequeue_batch(
                n, seconds(timeout), cancel, up_to=allow_small_batch, operation="take_many"
            )
        )
        return indices, keys, values

    @or_effect(in_graph.close_barrier)
    @eager
    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> None:
        """Accept no new keys. Those that miss components may still get them, or (with
        `cancel_pending_enqueues`) are dropped."""
        self._barrier.close(bool(cancel_pending_enqueues))

    @or_in_graph(in_graph.ready_size)
    @eager
    def ready_size(self, name: str | None = None) -> Tensor:
        """The number of complete elements, an int32 tensor."""
        return count(self._barrier.size())

    @or_in_graph(in_graph.incomplete_size)
    @eager
    def incomplete_size(self, name: str | None = None) -> Tensor:
        """The number of keys that miss components, an int32 tensor."""
        return count(self._barrier.incomplete_size())

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """The complete elements, the keys that miss components and what they have, for a
        checkpoint."""
        return self._barrier.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what the barrier that gave `state` held. Returns self. InvalidArgumentError, and no
        change, if it does not fit."""
        self._barrier.load_state_dict(state)
        return self

    def _component(self, given: Any) -> int:
        parts = self._barrier.parts
        i = integer(given, f"{parts.owner}: component_index")
        if i >= len(parts):
            raise InvalidArgumentError(
                f"{parts.owner}: component_index={i}, but it has {len(parts)} components"
            )
        return i
