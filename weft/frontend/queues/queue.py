"""Queues, with TensorFlow 1's arguments: `QueueBase`, all that can be done with every kind, and
`FIFOQueue`, `PaddingFIFOQueue`, `RandomShuffleQueue` and `PriorityQueue`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from weft.frontend.control.branches import switch_case
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect
from weft.frontend.ops.elementwise import greater_equal, less, logical_and
from weft.frontend.queues.host_ops import Assert, host_effect, host_op
from weft.frontend.random.generator import default_generator
from weft.frontend.session.tf_names import identity
from weft.frontend.state.resources import (
    dtype_list,
    eager,
    eager_or_graph,
    element_shapes,
    integer,
    label,
    made_at_once,
    name_list,
    operand,
    shape_list,
    shared,
)
from weft.frontend.state.scopes import control_dependencies
from weft.ir.dtypes import DType, int64
from weft.ir.errors import InvalidArgumentError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.components import Components, ComponentShape
from weft.runtime.resources.queue import PaddingQueue, Queue
from weft.runtime.resources.queue_kinds import PriorityQueue as PriorityCore
from weft.runtime.resources.queue_kinds import ShuffleQueue

#: One tensor, a list of them (several components), or a dict (named components).
Dequeued = Tensor | list[Tensor] | dict[str, Tensor]


class QueueBase:
    """A queue of elements; each is a tuple of tensors of the declared dtypes and shapes.

    All methods may be called by any number of threads. Those that wait take `timeout=` in seconds
    (DeadlineExceededError; None: no limit, 0: do not wait) and `cancel=`, a `wf.CancelToken`
    (CancelledError). Who waits is served in order of arrival.

    In a `wf.Graph` the methods add ops: what enqueues or closes is an effect, what dequeues gives
    symbolic tensors, and a step that waits is limited by `Session.run(options=)`.
    """

    __slots__ = ("_queue", "__weakref__")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        q = self._queue
        state = ", closed" if q.is_closed else ""
        return f"<{q.kind} {q.name!r} {q.components}: {q.size()} elements{state}>"

    # -------------------------------------------------------------------------------- what it is
    @property
    def name(self) -> str:
        """The name given."""
        return self._queue.name

    @property
    def dtypes(self) -> list[DType]:
        """The dtypes of the components."""
        return list(self._queue.components.dtypes)

    @property
    def shapes(self) -> list[ComponentShape]:
        """The shapes of the components: None for a size that varies, or for no shape given."""
        return list(self._queue.components.shapes)

    @property
    def names(self) -> list[str] | None:
        """The names of the components, if they have any."""
        names = self._queue.components.names
        return None if names is None else list(names)

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue `queues[index]`; they have the same dtypes, shapes and names.

        index: an integer, or a scalar tensor of a `wf.Graph`: then each op on the result is one on
        the queue that the index says in that step. InvalidArgumentError if it is out of range.
        """
        try:
            return _chosen(index, queues)
        except WeftError as error:
            raise error.at(caller_location()) from None

    # -------------------------------------------------------------------------------- enqueueing
    @eager_or_graph
    def enqueue(
        self, vals: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Append one element, when there is room: a value, a list with one for each component, or a
        dict where components have names. The values are copied.

        CancelledError if the queue is closed. TypeRuleError, ShapeError or InvalidArgumentError if
        the values do not fit; then nothing is appended.
        """
        given = self._components(vals, "enqueue")
        return self._effect("enqueue", given, name=name, timeout=timeout, cancel=cancel)

    @eager_or_graph
    def enqueue_many(
        self, vals: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Append several elements, as there is room: values as for `enqueue`, each stacked along a
        first axis. If it fails while it waits, the error says how many are in the queue."""
        given = self._components(vals, "enqueue_many", many=True)
        return self._effect("enqueue_many", given, name=name, timeout=timeout, cancel=cancel)

    # -------------------------------------------------------------------------------- dequeueing
    @eager_or_graph
    def dequeue(
        self, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Take one element: a tensor, a list of them (several components) or a dict (names).

        OutOfRangeError if the queue is closed and empty.
        """
        shapes = element_shapes(self._queue)
        return self._given(self._op("dequeue", shapes=shapes, timeout=timeout, cancel=cancel))

    @eager_or_graph
    def dequeue_many(
        self, n: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Take n elements, each component stacked along a first axis. While it waits it holds what
        came so far; if it fails, the elements are in the queue again.

        OutOfRangeError if the queue is closed and has fewer. InvalidArgumentError for a queue
        without shapes; ShapeError, and they stay in the queue, for elements of which a size
        differs that is None in them (a PaddingFIFOQueue fills up with zeros).
        """
        return self._dequeue_batch("dequeue_many", n, timeout=timeout, cancel=cancel)

    @eager_or_graph
    def dequeue_up_to(
        self, n: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """As `dequeue_many`, but what is left when the queue is closed will do, if there is any."""
        return self._dequeue_batch("dequeue_up_to", n, sizes=1, timeout=timeout, cancel=cancel)

    def _dequeue_batch(self, op: str, n: Any, **how: Any) -> Any:
        queue = self._queue
        wanted = integer(n, f"{queue.describe()}: {op}: n")
        queue.check_batches(op)
        return self._given(self._op(op, n=wanted, shapes=queue.components.shapes, **how))

    # --------------------------------------------------------------------------------- the rest
    @eager_or_graph
    def size(self, name: str | None = None) -> Tensor:
        """The number of elements in the queue, as an int32 tensor."""
        return self._op("queue_size")[0]

    @eager_or_graph
    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Any:
        """No more elements are accepted: later enqueues raise CancelledError, dequeues go on while
        there are enough elements and then raise OutOfRangeError. Returns at once.

        Enqueues that wait for room go on, or raise CancelledError if `cancel_pending_enqueues`.
        """
        pending = bool(cancel_pending_enqueues)
        return self._effect("queue_close", name=name or "close", cancel_pending=pending)

    @eager_or_graph
    def is_closed(self, name: str | None = None) -> Any:
        """Whether `close` was called: a bool, in a graph a tensor."""
        (closed,) = self._op("queue_is_closed")
        return closed if closed._data is None else bool(closed._data)

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """The elements and all else that `load_state_dict` needs, for a checkpoint: NumPy arrays,
        numbers, strings and lists of them."""
        return self._queue.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what the queue that gave `state` held; what is in this one is dropped. Returns self.

        InvalidArgumentError, and no change, if the state is that of another kind of queue.
        """
        self._queue.load_state_dict(state)
        return self

    # -------------------------------------------------------------------------------- components
    def _values(self, vals: Any, operation: str) -> Sequence[Any]:
        c = self._queue.components
        if isinstance(vals, Mapping):
            if c.names is None or sorted(map(str, vals)) != sorted(c.names):
                raise InvalidArgumentError(
                    f"{c.owner}: {operation} got a dict with the keys {list(vals)}, its components "
                    f"{'have no names' if c.names is None else f'are {list(c.names)}'}",
                    hint="pass a list with one value for each component"
                    if c.names is None
                    else "pass one value for each name",
                )
            return [vals[n] for n in c.names]
        if c.names is not None:
            raise InvalidArgumentError(
                f"{c.owner}: {operation} got a {type(vals).__name__}, its components are "
                f"{list(c.names)}",
                hint="pass a dict with these keys",
            )
        given = vals if isinstance(vals, (list, tuple)) else [vals]
        if len(given) != len(c):
            hint = "a list holds one value for each component"
            if len(c) == 1:
                hint += f": write {operation}([value]), or pass an array"
            raise InvalidArgumentError(
                f"{c.owner}: {operation} got {len(given)} values for {len(c)} components ({c})",
                hint=hint,
            )
        return given

    def _components(self, vals: Any, op: str, *, many: bool = False) -> list[Tensor]:
        """What is to be enqueued, a tensor for each component. many: several elements, stacked."""
        c = self._queue.components
        made = []
        for i, (x, dtype) in enumerate(zip(self._values(vals, op), c.dtypes, strict=True)):
            t = operand(x, dtype, partial(_label, c, op, i), by_rows=many)
            if t._data is not None:
                c.check(i, t._data, op, batch=many)
            made.append(t)
        return made

    def _op(self, op: str, **how: Any) -> list[Tensor]:
        """What an op on the queue gives."""
        shapes = how.get("shapes", ())
        if self._queue.any_rank and shapes and None not in shapes:
            element_shapes(self._queue, [len(s) for s in shapes])  # one of several: as the first
        return host_op(op, (), (self._queue,), **how)

    def _effect(self, op: str, operands: Sequence[Tensor] = (), **how: Any) -> Effect | None:
        """What an op on the queue does."""
        if operands and self._queue.any_rank:
            many = op == "enqueue_many"
            element_shapes(self._queue, [t.ndim - many for t in operands])
        return host_effect(op, operands, (self._queue,), **how)

    def _given(self, made: list[Tensor]) -> Dequeued:
        names = self._queue.components.names
        if names is not None:
            return dict(zip(names, made, strict=True))
        return made[0] if len(made) == 1 else made


def _label(components: Components, operation: str, i: int) -> str:
    return f"{components.owner}: {operation}: {components.label(i)}"


class SelectedQueue(QueueBase):
    """The result of `QueueBase.from_list` in a graph: ops on it act on one of several queues."""

    __slots__ = ("_index", "_queues")

    def __init__(self, index: Tensor, queues: Sequence[QueueBase]) -> None:
        super().__init__(queues[0]._queue)
        self._index, self._queues = index, tuple(queues)

    def __repr__(self) -> str:
        return f"<one of {len(self._queues)} queues, by {self._index.describe()}>"

    def _op(self, op: str, **how: Any) -> list[Tensor]:
        made: list[Tensor] = self._on(lambda q: q._op(op, **how))
        return made

    def _effect(self, op: str, operands: Sequence[Tensor] = (), **how: Any) -> Effect | None:
        made: Effect = self._on(lambda q: q._effect(op, operands, **how))
        return made

    def state_dict(self) -> Any:
        """UnsupportedError: which queue it is, a step says."""
        raise self._several("state_dict")

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """UnsupportedError: which queue it is, a step says."""
        raise self._several("load_state_dict")

    def _several(self, operation: str) -> UnsupportedError:
        return UnsupportedError(
            f"{operation} of one of {len(self._queues)} queues, which a step chooses",
            hint="call it on each of the queues",
            location=caller_location(),
        )

    def _on(self, operation: Callable[[QueueBase], Any]) -> Any:
        count = len(self._queues)
        there = logical_and(greater_equal(self._index, 0), less(self._index, count))
        names = ", ".join(repr(q.name) for q in self._queues)
        what = f"no queue: {names} have the indices 0 to {count - 1}, not"
        with control_dependencies([Assert(there, [what, self._index])]):
            index = identity(self._index)
        return switch_case(index, [partial(operation, q) for q in self._queues])


def _chosen(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
    what = "QueueBase.from_list"
    listed = isinstance(queues, (list, tuple)) and bool(queues)
    if not listed or not all(isinstance(q, QueueBase) for q in queues):
        raise InvalidArgumentError(f"{what}: {queues!r:.60} is no list of queues")
    first = queues[0]
    for q in queues[1:]:
        if (q.dtypes, q.shapes, q.names) != (first.dtypes, first.shapes, first.names):
            raise InvalidArgumentError(
                f"{what}: {first!r} and {q!r} have other components",
                hint="they need the same dtypes, shapes and names",
            )
    given = as_tensor(index)
    if not given.dtype.is_integer or given.ndim:
        raise InvalidArgumentError(f"{what}: index is {given.describe()}, no integer")
    if given._data is None:
        return SelectedQueue(given, queues)
    place = int(given._data)
    if not 0 <= place < len(queues):
        raise InvalidArgumentError(f"{what}: there are {len(queues)} queues, index is {place}")
    return queues[place]


class FIFOQueue(QueueBase):
    """First in, first out, of at most `capacity` elements (-1: no bound).

    dtypes, shapes, names: those of the components, lists or (one component) one of each; None in
    a shape is a size that varies. Without shapes elements may have any, but there are no batches;
    in a graph they have as many axes as what it enqueues first. Queues with one `shared_name` are
    one.

    >>> queue = wf.tf1.FIFOQueue(10, [wf.int64, wf.string], shapes=[[], []])
    >>> queue.enqueue([1, "one"])
    >>> queue.enqueue_many([[2, 3], ["two", "three"]])
    >>> queue.dequeue_many(2)
    [Tensor([1, 2], dtype=int64), Tensor([b'one', b'two'], dtype=string)]
    >>> queue.close()
    >>> queue.dequeue()  # what is there; then OutOfRangeError
    [Tensor(3, dtype=int64), Tensor(b'three', dtype=string)]
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

    >>> queue = wf.tf1.PaddingFIFOQueue(10, wf.int64, shapes=[[None]])
    >>> for row in ([1], [2, 3, 4], [5, 6]):
    ...     queue.enqueue([row])
    >>> queue.dequeue_many(3)
    Tensor([[1, 0, 0],
            [2, 3, 4],
            [5, 6, 0]], dtype=int64)
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
    process-wide generator (`wf.random.set_random_seed`).

    >>> queue = wf.tf1.RandomShuffleQueue(100, 0, wf.int64, shapes=[[]], seed=7)
    >>> queue.enqueue_many([np.arange(6)])
    >>> drawn = queue.dequeue_many(6).tolist()
    >>> drawn == sorted(drawn), sorted(drawn)
    (False, [0, 1, 2, 3, 4, 5])
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

    >>> queue = wf.tf1.PriorityQueue(10, wf.string, shapes=[[]])
    >>> for priority, task in ((5, "write"), (1, "read"), (3, "think")):
    ...     queue.enqueue([priority, task])
    >>> [queue.dequeue()[1].item() for _ in range(3)]
    [b'read', b'think', b'write']
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
