"""A run of a step that gives its thread back where it would wait, and goes on in the thread that
brings what it waited for: for small steps, which take less than another thread takes to begin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weft.ir.graph import Graph
from weft.ir.ops import lookup
from weft.ir.types import TensorType, Type
from weft.passes.analysis.cost import nanoseconds
from weft.runtime.dataflow.build import Array
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.running import Running
from weft.runtime.resources.cancel import CancelToken

#: A step of at most so many nanoseconds, and ops, is small.
SMALL_NS, MOST_OPS = 30_000.0, 200
#: Ops of the host that only begin something, or are done in no time.
_BRIEF = frozenset({
    "send", "recv", "enqueue", "dequeue", "enqueue_many", "dequeue_many", "dequeue_up_to",
    "queue_size", "queue_close", "queue_is_closed", "is_initialized", "assert_initialized",
    "count_up_to",
})  # fmt: skip
#: Called once: with the results, or with what went wrong.
Finished = Callable[[list[Array] | BaseException], None]


def is_small(graph: Graph) -> bool:
    """Whether no thread is held up by a run of the graph: little to compute, no loop, nothing of
    the host that takes time, nothing of unknown size."""
    if len(graph.ops) > MOST_OPS or any(op.regions for op in graph.ops):
        return False
    for op in graph.ops:
        host = "host" in lookup(op.name).traits
        if (host and op.name not in _BRIEF) or op.name == "enter":
            return False
        types = [v.type for v in (*op.operands, *op.results)]
        if not all(_is_static(t) for t in types):
            return False
    sent = {v for op in graph.ops if op.name == "send" for v in op.operands} | {*graph.results}
    # a variable is read where it lies, but for what is sent
    inside = [op for op in graph.ops if op.name != "read" or op.result in sent]
    return nanoseconds(op for op in inside if op.name not in _BRIEF) <= SMALL_NS


def _is_static(kind: Type) -> bool:
    if isinstance(kind, TensorType):
        return kind.is_static and not kind.dtype.numpy.hasobject
    return True


class Stepping:
    """One run of a `DataflowStep`. finished: called in whichever thread ends it."""

    def __init__(self, step: DataflowStep, finished: Finished) -> None:
        self._step, self._finished = step, finished
        self._running: Running = step.take()
        self._turn = threading.Lock()  # held by the thread that carries it out
        self._over = False
        self._forget: Callable[[], None] = lambda: None

    def begin(self, inputs: list[Array], cancel: CancelToken) -> None:
        """Run until it would wait, or to its end."""
        put = self._running._done.put

        def came(item: Any) -> None:
            put(item)
            self._go_on()

        self._running.put = came
        with self._turn:
            self._forget = self._running.begin(inputs, cancel)
        self._go_on()

    def _go_on(self) -> None:
        """Carry it out, unless another thread does: that one sees what has come meanwhile."""
        while self._turn.acquire(blocking=False):
            outcome: list[Array] | BaseException | None = None
            try:
                if self._over:
                    return
                try:
                    if self._running.go_on(None, wait=False):
                        outcome = [a for a in self._running.end() if a is not None]
                except BaseException as error:
                    outcome = error
                self._over = outcome is not None
            finally:
                self._turn.release()
            if outcome is not None:
                self._end(outcome)
                return
            if self._running.idle:
                return

    def _end(self, outcome: list[Array] | BaseException) -> None:
        self._forget()
        if not isinstance(outcome, BaseException):
            self._running.put = self._running._done.put
            self._step.give_back(self._running)
        self._finished(outcome)
