"""`FIFOQueue`, `PaddingFIFOQueue`, `RandomShuffleQueue` and `PriorityQueue`."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.frontend.queues.base import QueueBase
from weft.frontend.queues.in_graph import made_at_once
from weft.frontend.queues.sharing import shared
from weft.frontend.queues.values import (
    dtype_list,
    eager,
    integer,
    label,
    name_list,
    shape_list,
)
from weft.frontend.random.state import default_generator
from weft.ir.dtypes import DType, int64
from weft.ir.errors import InvalidArgumentError
from weft.runtime.resources.components import Components, ComponentShape
from weft.runtime.resources.queue import PaddingQueue, Queue
from weft.runtime.resources.queue_kinds import PriorityQueue as PriorityCore
from weft.runtime.resources.queue_kinds import ShuffleQueue


class FIFOQueue(QueueBase):
    """First in, first out, of at most `capacity` elements (-1: no bound).

    dtypes, shapes, names: those of the components, lists or (one component) one of each. Without
    shapes elements may have any, but there are no batches. Queues with one `shared_name` are one.
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, capacity: int, dtypes: Any, shapes: Any = None, names: Any = None,
        shared_name: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"FIFOQueue '{(name := label(name, 'fifo_queue'))}'"
        components = _components(owner, dtype_list(dtypes), shape_list(shapes, owner), names)
        _check_static(components)
        bound = _capacity(capacity, owner)
        super().__init__(
            shared(
                shared_name,
                Queue,
                _declared(components, bound),
                lambda: Queue(components, bound, name),
            )
        )


class PaddingFIFOQueue(QueueBase):
    """First in, first out, of elements whose sizes may vary: None in `shapes`, which are required.

    A batch is as large as its largest element; smaller ones are filled up with zeros.
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, capacity: int, dtypes: Any, shapes: Any, names: Any = None,
        shared_name: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"PaddingFIFOQueue '{(name := label(name, 'padding_fifo_queue'))}'"
        components = _components(owner, dtype_list(dtypes), shape_list(shapes, owner), names)
        if None in components.shapes:
            raise InvalidArgumentError(
                f"{owner}: the number of axes of all components must be known: {components}",
                hint="write None for the sizes that vary: shapes=[[None, 3]]",
            )
        bound = _capacity(capacity, owner)
        super().__init__(
            shared(
                shared_name,
                PaddingQueue,
                _declared(components, bound),
                lambda: PaddingQueue(components, bound, name),
            )
        )


class RandomShuffleQueue(QueueBase):
    """Dequeues a random element, while more than `min_after_dequeue` are there (after `close`: down
    to the last).

    seed: the same seed and order of operations give the same elements; None draws one from the
    process-wide generator (`wf.set_random_seed`).
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, capacity: int, min_after_dequeue: int, dtypes: Any, shapes: Any = None,
        names: Any = None, seed: int | None = None, shared_name: str | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"RandomShuffleQueue '{(name := label(name, 'random_shuffle_queue'))}'"
        components = _components(owner, dtype_list(dtypes), shape_list(shapes, owner), names)
        _check_static(components)
        bound = _capacity(capacity, owner)
        least = integer(min_after_dequeue, f"{owner}: min_after_dequeue")
        if bound is not None and least >= bound:
            raise InvalidArgumentError(
                f"{owner}: min_after_dequeue={least} must be less than capacity={bound}",
                hint="nothing could be dequeued before close()",
            )

        def make() -> ShuffleQueue:
            number = _draw_seed() if seed is None else integer(seed, f"{owner}: seed", -(2**63))
            return ShuffleQueue(components, bound, least, number, name)

        super().__init__(shared(shared_name, ShuffleQueue, _declared(components, bound), make))


class PriorityQueue(QueueBase):
    """Dequeues the element with the smallest priority; among equal ones the first that came.

    The priority is a first component, int64 without axes, before those of `types` and `shapes`
    (`names` has one for it, too).
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, capacity: int, types: Any, shapes: Any = None, names: Any = None,
        shared_name: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        owner = f"PriorityQueue '{(name := label(name, 'priority_queue'))}'"
        dtypes = dtype_list(types)
        shaped = shape_list(shapes, owner)
        if shaped is None:
            shaped = [None] * len(dtypes)
        components = _components(owner, [int64, *dtypes], [(), *shaped], names)
        _check_static(components)
        bound = _capacity(capacity, owner)
        super().__init__(
            shared(
                shared_name,
                PriorityCore,
                _declared(components, bound),
                lambda: PriorityCore(components, bound, name),
            )
        )


def _components(
    owner: str, dtypes: list[DType], shapes: list[ComponentShape] | None, names: Any
) -> Components:
    return Components(owner, dtypes, shapes, name_list(names))


def _check_static(components: Components) -> None:
    if any(s is not None and None in s for s in components.shapes):
        raise InvalidArgumentError(
            f"{components.owner}: the shapes must be known: {components}",
            hint="a PaddingFIFOQueue takes elements whose sizes vary; a queue without shapes= any "
            "elements, one by one",
        )


def _capacity(capacity: Any, owner: str) -> int | None:
    bound = integer(capacity, f"{owner}: capacity", -1)
    if bound == 0:
        raise InvalidArgumentError(
            f"{owner}: capacity=0: nothing could be enqueued", hint="-1 is no bound"
        )
    return None if bound < 0 else bound


def _declared(components: Components, capacity: int | None) -> str:
    names = "" if components.names is None else f" named {list(components.names)}"
    return f"{components}{names} of capacity {-1 if capacity is None else capacity}"


def _draw_seed() -> int:
    low, high = np.asarray(default_generator().randint((2,), 0, 2**31 - 1, np.int64)).tolist()
    return int(high) << 32 | int(low)
