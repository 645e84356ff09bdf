"""`QueueBase`: what can be done with every kind of queue, with TensorFlow 1's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from weft.frontend.queues import in_graph
from weft.frontend.queues.in_graph import or_in_graph
from weft.frontend.queues.values import count, eager, integer, rows_of, seconds, tensors, value_of
from weft.frontend.tensor import Tensor
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.components import Array, Components, ComponentShape, Element
from weft.runtime.resources.queue import Queue

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

    # -------------------------------------------------------------------------------- enqueueing
    @or_in_graph(in_graph.enqueue)
    @eager
    def enqueue(
        self, vals: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> None:  # fmt: skip
        """Append one element, when there is room: a value, a list with one for each component, or a
        dict where components have names. The values are copied.

        CancelledError if the queue is closed. TypeRuleError, ShapeError or InvalidArgumentError if
        the values do not fit; then nothing is appended.
        """
        self._queue.enqueue([self._element(vals, "enqueue")], seconds(timeout), cancel)

    @or_in_graph(in_graph.enqueue_many)
    @eager
    def enqueue_many(
        self, vals: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> None:  # fmt: skip
        """Append several elements, as there is room: values as for `enqueue`, each stacked along a
        first axis. If it fails while it waits, the error says how many are in the queue."""
        elements = self._elements(vals, "enqueue_many")
        self._queue.enqueue(elements, seconds(timeout), cancel, "enqueue_many")

    # -------------------------------------------------------------------------------- dequeueing
    @or_in_graph(in_graph.dequeue)
    @eager
    def dequeue(
        self, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Take one element: a tensor, a list of them (several components) or a dict (names).

        OutOfRangeError if the queue is closed and empty.
        """
        (element,) = self._queue.dequeue(1, seconds(timeout), cancel)
        return self._given(element)

    @or_in_graph(in_graph.dequeue_many)
    @eager
    def dequeue_many(
        self, n: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """Take n elements, each component stacked along a first axis. While it waits it holds what
        came so far; if it fails, the elements are in the queue again.

        OutOfRangeError if the queue is closed and has fewer. All shapes must be known.
        """
        return self._dequeue_batch(n, "dequeue_many", seconds(timeout), cancel)

    @or_in_graph(in_graph.dequeue_up_to)
    @eager
    def dequeue_up_to(
        self, n: Any, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:  # fmt: skip
        """As `dequeue_many`, but what is left when the queue is closed will do, if there is any."""
        return self._dequeue_batch(n, "dequeue_up_to", seconds(timeout), cancel)

    def _dequeue_batch(
        self, n: Any, operation: str, timeout: float | None, cancel: CancelToken | None
    ) -> Any:
        queue = self._queue
        wanted = integer(n, f"{queue.describe()}: {operation}: n")
        queue.check_batches(operation)
        up_to = operation == "dequeue_up_to"
        batch = queue.dequeue_batch(wanted, timeout, cancel, up_to=up_to, operation=operation)
        return self._given(batch)

    # --------------------------------------------------------------------------------- the rest
    @or_in_graph(in_graph.size)
    @eager
    def size(self, name: str | None = None) -> Tensor:
        """The number of elements in the queue, as an int32 tensor."""
        return count(self._queue.size())

    @or_in_graph(in_graph.close)
    @eager
    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> None:
        """No more elements are accepted: later enqueues raise CancelledError, dequeues go on while
        there are enough elements and then raise OutOfRangeError. Returns at once.

        Enqueues that wait for room go on, or raise CancelledError if `cancel_pending_enqueues`.
        """
        self._queue.close(bool(cancel_pending_enqueues))

    @or_in_graph(in_graph.is_closed)
    @eager
    def is_closed(self, name: str | None = None) -> bool:
        """Whether `close` was called."""
        return self._queue.is_closed

    @eager
    def state_dict(self) -> dict[str, Any]:
        """The elements and all else that `load_state_dict` needs, for a checkpoint: NumPy arrays,
        numbers, strings and lists of them."""
        return self._queue.state_dict()

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

    def _labels(self, operation: str) -> list[Callable[[], str]]:
        c = self._queue.components
        return [partial(_label, c, operation, i) for i in range(len(c))]

    def _element(self, vals: Any, operation: str) -> Element:
        c = self._queue.components
        given = self._values(vals, operation)
        labels = self._labels(operation)
        element = tuple(value_of(x, d, w) for x, d, w in zip(given, c.dtypes, labels, strict=True))
        c.check_element(element, operation)
        return element

    def _elements(self, vals: Any, operation: str) -> list[Element]:
        c = self._queue.components
        given = self._values(vals, operation)
        labels = self._labels(operation)
        stacks = [rows_of(x, d, w) for x, d, w in zip(given, c.dtypes, labels, strict=True)]
        for i, (stack, _) in enumerate(stacks):
            c.check(i, stack, operation, batch=True)
        counts = [len(stack) for stack, _ in stacks]
        if len(set(counts)) != 1:
            raise ShapeError(
                f"{c.owner}: {operation} got {counts} values for the components of {c}",
                hint="all first axes have the same length, the number of elements",
            )
        return list(zip(*(rows() for _, rows in stacks), strict=True))

    def _given(self, arrays: Sequence[Array]) -> Dequeued:
        made = tensors(arrays)
        names = self._queue.components.names
        if names is not None:
            return dict(zip(names, made, strict=True))
        return made[0] if len(made) == 1 else made


def _label(components: Components, operation: str, i: int) -> str:
    return f"{components.owner}: {operation}: {components.label(i)}"
