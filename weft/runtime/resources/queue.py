"""Queues of elements with several components, in order of arrival: the core that all kinds share.

Attempts to enqueue stand in one line, attempts to dequeue in another; each is served from its
front. One that wants many elements takes (or gives) them as they come and is done with the last. If
it fails, what it has taken is put back in front, in order; what it has given stays.

After `close`, new enqueues are refused; those that wait go on (or are cancelled). When the last of
them is through, the queue is at its end: a dequeue that finds too few elements fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.ir.dims import format_shape
from weft.ir.errors import (
    CancelledError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
    ShapeError,
    WeftError,
)
from weft.ir.spec import AttrValue
from weft.runtime.resources.attempts import Attempt, CancelToken, Done, Resource
from weft.runtime.resources.components import (
    Array,
    Components,
    ComponentShape,
    Element,
    describe_array,
    pad_and_stack,
    reading_state,
    rows,
    save_arrays,
    saved_arrays,
    stack_arrays,
)


class Queue(Resource):
    """First in, first out. Elements are tuples of arrays that the queue owns and hands on."""

    kind = "FIFOQueue"
    graph_kind = "fifo"  # the attribute `kind` of the op
    #: What to do about elements that make no batch.
    unequal = (
        "they are in the queue again; a PaddingFIFOQueue fills up with zeros, dequeue takes them "
        "one by one"
    )

    def __init__(self, components: Components, capacity: int | None, name: str) -> None:
        super().__init__(name)
        self.components = components
        self.any_rank = None in components.shapes  # elements may have any shape
        self.capacity = capacity  # None: no bound
        self._closing = False  # nothing more is accepted
        self._putting: deque[Attempt] = deque()
        self._taking: deque[Attempt] = deque()
        self._lines = (self._putting, self._taking)
        self._elements: deque[Element] = deque()

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `queue`."""
        return "queue", {
            "kind": self.graph_kind,
            "capacity": -1 if self.capacity is None else self.capacity,
            "parts": self.components.parts(ranks),
        }

    @property
    def shapes(self) -> Sequence[ComponentShape]:
        """Those of the components."""
        return self.components.shapes

    def ranks(self) -> Sequence[int | None]:
        """Those of an element that is in the queue, else of what a graph put in last."""
        with self._lock:
            waiting = [e for a in self._putting for e in a.items]
            taken = [e for a in self._taking for e in a.items]
            held = next(iter([*self._contents(taken), *waiting]), None)
        return self.last_ranks if held is None else [a.ndim for a in held]

    # ------------------------------------------------------------------ how elements are kept
    def _push(self, element: Element) -> None:
        self._elements.append(element)

    def _pop(self) -> Element:
        return self._elements.popleft()

    def _put_back(self, elements: Sequence[Element]) -> None:
        """What was popped, in that order, is to be popped again."""
        self._elements.extendleft(reversed(elements))

    def _contents(self, taken: Sequence[Element]) -> Iterable[Element]:
        """All elements, those in `taken` included, such that pushing them makes the same queue."""
        return [*taken, *self._elements]

    def _clear(self) -> None:
        self._elements.clear()

    def _count(self) -> int:
        return len(self._elements)

    def _available(self) -> int:
        """How many may be dequeued now."""
        return self._count()

    # ----------------------------------------------------------------------------- asynchronous
    def start_enqueue(
        self,
        elements: Sequence[Element],
        done: Done,
        cancel: CancelToken | None = None,
        operation: str = "enqueue",
    ) -> Attempt:
        """Append elements, as there is room; `done(None)` after the last one.

        Their dtypes and shapes are the caller's to check (`components.check`). CancelledError if
        the queue is closed, or is closed meanwhile with `cancel_pending_enqueues`.
        """
        attempt = Attempt(operation, self._put, done, len(elements))
        attempt.items = list(elements)
        return self._start(attempt, self._putting, cancel, lambda: self._refusal(operation))

    def start_dequeue(
        self,
        count: int,
        done: Done,
        cancel: CancelToken | None = None,
        *,
        up_to: bool = False,
        operation: str = "dequeue",
    ) -> Attempt:
        """Take `count` elements, as they come; `done(list of elements)` when they are there.

        OutOfRangeError if the queue is closed and has too few; with `up_to`, only if it has none.
        """
        attempt = Attempt(operation, self._take, done, count)
        attempt.small = up_to
        return self._start(attempt, self._taking, cancel)

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Accept no more elements; with `cancel_pending_enqueues`, also not from those that wait.
        A second time is allowed."""

        def shut() -> None:
            self._closing = True
            if cancel_pending_enqueues:
                for attempt in list(self._putting):
                    self._fail(attempt, self._was_closed(attempt))

        self._change(shut)

    # --------------------------------------------------------------------------------- blocking
    def enqueue(self, elements: Sequence[Element]) -> None:
        """`start_enqueue`, waited for."""
        self.wait(lambda done: self.start_enqueue(elements, done))

    def dequeue(self, count: int) -> list[Element]:
        """`start_dequeue`, waited for."""
        elements: list[Element] = self.wait(lambda done: self.start_dequeue(count, done))
        return elements

    def elements(self, stacks: Sequence[Array]) -> list[Element]:
        """The elements that lie along the first axes of `stacks`, one for each component, copied.
        ShapeError if the axes differ in length."""
        counts = [len(stack) for stack in stacks]
        if len(set(counts)) > 1:
            raise ShapeError(
                f"{self.describe()}: enqueue_many got {counts} values for the components of "
                f"{self.components}",
                hint="all first axes have the same length, the number of elements",
            )
        return list(zip(*map(rows, stacks), strict=True))

    def stacked(self, elements: list[Element], operation: str) -> tuple[Array, ...]:
        """Each component of elements that were just dequeued, stacked. If that cannot be done they
        are in the queue again; ResourceExhaustedError for want of memory."""
        try:
            return self.batch(elements)
        except BaseException as error:
            self._change(lambda: self._put_back(elements))
            if isinstance(error, MemoryError):
                raise ResourceExhaustedError(
                    f"{self.describe()}: {operation} has no memory for {len(elements)} elements of "
                    f"{self.components}",
                    hint="they are in the queue again; take fewer at once",
                ) from None
            raise

    def one(self, elements: list[Element], ranks: Sequence[int]) -> Element:
        """The element that was just dequeued. ShapeError, and it is in the queue again, unless it
        has so many axes as the graph was built for."""
        (element,) = elements
        if [a.ndim for a in element] != list(ranks):
            self._change(lambda: self._put_back(elements))
            there = ", ".join(map(describe_array, element))
            raise ShapeError(
                f"{self.describe()}: dequeue found an element of other axes than the graph was "
                f"built for: {there}, not of {', '.join(map(str, ranks))} axes",
                hint="it is in the queue again; a graph has one number of axes for what it takes: "
                "that of what it enqueues first, or of what is in the queue when it is built",
            )
        return element

    def batch(self, elements: Sequence[Element]) -> tuple[Array, ...]:
        """Each component of the elements, stacked along a new first axis. ShapeError if their
        shapes differ."""
        c = self.components
        for i in range(len(c)):
            found = list(dict.fromkeys(e[i].shape for e in elements))
            if len(found) > 1:
                raise ShapeError(
                    f"{self.describe()}: {c.label(i)}: elements of the shapes "
                    f"{format_shape(found[0])} and {format_shape(found[1])} make no batch",
                    hint=self.unequal,
                )
        return tuple(
            stack_arrays([e[i] for e in elements], c.dtypes[i], c.shapes[i]) for i in range(len(c))
        )

    def check_batches(self, operation: str) -> None:
        """InvalidArgumentError if elements may have any number of axes."""
        if self.any_rank:
            raise InvalidArgumentError(
                f"{self.describe()}: {operation} needs the shapes of all components, but this is "
                f"{self.components}",
                hint="give shapes= when the queue is made, with None for sizes that vary; dequeue "
                "takes them one by one",
            )

    def size(self) -> int:
        """The number of elements in the queue now."""
        with self._lock:
            return self._count()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing

    # ------------------------------------------------------------------------------ under the lock
    @property
    def _at_end(self) -> bool:
        """Whether no element can come any more."""
        return self._closing and not self._putting

    def _put(self, attempt: Attempt) -> bool:
        room = attempt.left
        if self.capacity is not None:  # more are there if some were given back
            room = max(0, min(room, self.capacity - self._count()))
        first = len(attempt.items) - attempt.left
        for element in attempt.items[first : first + room]:
            self._push(element)
        attempt.left -= room
        if not attempt.left:
            self._finish(attempt, None)
        return room > 0

    def _take(self, attempt: Attempt) -> bool:
        ready = max(0, min(attempt.left, self._available()))
        for _ in range(ready):
            attempt.items.append(self._pop())
        attempt.left -= ready
        if not attempt.left or (attempt.small and attempt.items and self._at_end):
            self._finish(attempt, attempt.items)
        elif self._at_end:
            self._fail(attempt, self._too_few(attempt))
        return ready > 0

    def _give_back(self, attempt: Attempt) -> None:
        if attempt.step == self._take and attempt.items:
            items, attempt.items = attempt.items, []
            attempt.left += len(items)
            self._put_back(items)

    # ---------------------------------------------------------------------------------- messages
    def _refusal(self, operation: str) -> WeftError | None:
        if not self._closing:
            return None
        return CancelledError(
            f"{self.describe()} is closed: {operation} was refused",
            hint="enqueue before close(), or make another queue",
        )

    def _was_closed(self, attempt: Attempt) -> WeftError:
        return CancelledError(
            f"{self.describe()} was closed with cancel_pending_enqueues while "
            f"{attempt.operation} waited for room{self._progress(attempt)}"
        )

    def _too_few(self, attempt: Attempt) -> WeftError:
        there = len(attempt.items) + self._count()
        return OutOfRangeError(
            f"{self.describe()} is closed and has too few elements: {attempt.operation} wants "
            f"{len(attempt.items) + attempt.left}, there are {there}",
            hint="dequeue_up_to takes what is left" if there else None,
        )

    def _progress(self, attempt: Attempt) -> str:
        if attempt.step == self._put and len(attempt.items) > 1:
            given = len(attempt.items) - attempt.left
            return f" ({given} of its {len(attempt.items)} elements are in the queue)"
        return ""

    def _state(self) -> str:
        bound = "" if self.capacity is None else f" of {self.capacity}"
        return f"the queue holds {self._count()}{bound} elements"

    # ------------------------------------------------------------------------------- checkpoints
    def state_dict(self) -> dict[str, Any]:
        """The elements (also those that a waiting dequeue has taken), and whether it is closed.

        "components" has one array for each component, the elements stacked; a list of arrays where
        their shapes differ.
        """
        with self._lock:
            elements = list(self._contents(self._taking[0].items if self._taking else []))
            closed = self._closing
            extra = self._extra_state()
        columns = [save_arrays([e[i] for e in elements]) for i in range(len(self.components))]
        return {
            "kind": self.kind,
            "dtypes": [d.name for d in self.components.dtypes],
            "closed": closed,
            "components": columns,
            **extra,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` of such a queue gave; what the queue holds is dropped, who
        waits is served. InvalidArgumentError, and no change, if it does not fit."""
        with reading_state(self.describe()):
            elements = self._elements_of(state)
            load_extra = self._extra_loader(state)
            closed = bool(state["closed"])

        def replace() -> None:
            for attempt in self._taking:
                attempt.left += len(attempt.items)
                attempt.items = []
            self._clear()
            load_extra()
            for element in elements:
                self._push(element)
            self._closing = closed

        self._change(replace)

    def _elements_of(self, state: Mapping[str, Any]) -> list[Element]:
        names = [d.name for d in self.components.dtypes]
        if state["kind"] != self.kind or list(state["dtypes"]) != names:
            raise InvalidArgumentError(
                f"{self.describe()} ({self.components}): the state is that of a "
                f"{state['kind']} of {state['dtypes']}",
                hint="load it into a queue that is made alike",
            )
        saved = zip(state["components"], self.components.dtypes, strict=True)
        columns = [saved_arrays(c, dtype) for c, dtype in saved]
        elements = list(zip(*columns, strict=True))
        for element in elements:
            self.components.check_element(element, "load_state_dict")
        return elements

    def _extra_state(self) -> dict[str, Any]:
        """What a kind of queue saves beside the elements."""
        return {}

    def _extra_loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check what `_extra_state` saved; what takes it over, under the lock."""
        return lambda: None


class PaddingQueue(Queue):
    """First in, first out, of elements whose sizes vary: a batch is as large as its largest, filled
    up with zeros."""

    kind = "PaddingFIFOQueue"
    graph_kind = "padding"

    def check_batches(self, operation: str) -> None:
        """Elements of one rank always make a batch."""

    def batch(self, elements: Sequence[Element]) -> tuple[Array, ...]:
        """Each component padded with zeros (empty strings), then stacked."""
        c = self.components
        return tuple(
            pad_and_stack([e[i] for e in elements], c.dtypes[i], c.shapes[i]) for i in range(len(c))
        )
