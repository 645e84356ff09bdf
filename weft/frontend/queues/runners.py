"""`QueueRunner` and `LooperThread`: threads that fill queues or call a function at intervals,
stopped by a `Coordinator`.

They run Python functions, or effects of a graph in the steps of a session.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.frontend.core.trace import Effect
from weft.frontend.queues.queue import QueueBase, SelectedQueue
from weft.frontend.session.graph import get_default_graph
from weft.frontend.session.session import Session
from weft.frontend.state.resources import eager, made_at_once, seconds
from weft.ir.errors import InvalidArgumentError, OutOfRangeError
from weft.ir.process import ForkLock
from weft.runtime.resources.coordinator import Coordinator

_log = logging.getLogger("weft.resources")

Call = Callable[[], object]


class QueueRunner:
    """Threads that each call one of `enqueue_ops` again and again, until a stop is requested or the
    input ends.

    enqueue_ops: functions without arguments, or effects of a graph, which need a session to run
    in. When the last thread has met the end (one of
    `queue_closed_exception_types`, OutOfRangeError by default), `close_op` is called (default:
    close the queue); when a stop is requested, `cancel_op` (default: close it and cancel what
    waits to enqueue). What `QueueBase.from_list` gives needs both. Any other exception requests a
    stop and is raised by `Coordinator.join`.

    >>> numbers, queue = iter(range(3)), wf.tf1.FIFOQueue(10, wf.int64, shapes=[[]])
    >>> runner = wf.train.QueueRunner(
    ...     queue, [lambda: queue.enqueue(next(numbers))],
    ...     queue_closed_exception_types=[StopIteration])
    >>> for thread in runner.create_threads(start=True):
    ...     thread.join()
    >>> queue.is_closed(), queue.dequeue_many(3)
    (True, Tensor([0, 1, 2], dtype=int64))
    """

    @made_at_once
    @eager
    def __init__(
        self, queue: QueueBase | None = None, enqueue_ops: Sequence[Call | Effect] | None = None,
        close_op: Call | Effect | None = None, cancel_op: Call | Effect | None = None,
        queue_closed_exception_types: Sequence[type[BaseException]] | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(queue, QueueBase) or not enqueue_ops:
            raise InvalidArgumentError(
                "QueueRunner needs a queue and the functions or effects that fill it",
                hint="QueueRunner(queue, [function] * number_of_threads)",
            )
        if isinstance(queue, SelectedQueue) and not (close_op and cancel_op):
            raise InvalidArgumentError(
                f"QueueRunner: which one to close is not known: {queue!r}",
                hint="pass close_op= and cancel_op=: lambda: [q.close(True) for q in queues]",
            )
        self._queue = queue
        self._enqueue = [_callable(op, "enqueue_ops") for op in enqueue_ops]
        self._close = _callable(close_op or queue.close, "close_op")
        self._cancel = _callable(
            cancel_op or (lambda: queue.close(cancel_pending_enqueues=True)), "cancel_op"
        )
        given = queue_closed_exception_types
        self._ends = (OutOfRangeError,) if given is None else tuple(given)
        self._lock = ForkLock()
        self._runs = 0
        self._raised: list[Exception] = []

    @property
    def queue(self) -> QueueBase:
        """The queue that is filled."""
        return self._queue

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def queue_closed_exception_types(self) -> tuple[type[BaseException], ...]:
        """The exceptions that mean the end of the input."""
        return self._ends

    @property
    def exceptions_raised(self) -> list[Exception]:
        """Exceptions of threads that run without a coordinator."""
        return self._raised

    @made_at_once
    @eager
    def create_threads(
        self, sess: Session | None = None, coord: Coordinator | None = None, daemon: bool = False,
        start: bool = False,
    ) -> list[threading.Thread]:  # fmt: skip
        """The threads: one for each function, and, with a coordinator, one that waits for the stop.

        They are registered with `coord`. No threads ([]) while those of an earlier call run. sess:
        runs the effects; InvalidArgumentError if there are some and it is None.
        """
        calls = [_in_session(op, sess) for op in self._enqueue]
        close, cancel = _in_session(self._close, sess), _in_session(self._cancel, sess)
        with self._lock:
            if self._runs:
                return []
            self._runs = len(self._enqueue)
            self._raised = []
        name = f"queue-runner-{self.name}"
        threads = [
            threading.Thread(
                target=self._run, args=(op, coord, close), name=f"{name}-{i}", daemon=daemon
            )
            for i, op in enumerate(calls)
        ]
        if coord is not None:
            threads.append(
                threading.Thread(
                    target=self._close_on_stop,
                    args=(coord, cancel),
                    name=f"{name}-stop",
                    daemon=daemon,
                )
            )
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            if start:
                thread.start()
        return threads

    def _run(self, enqueue: Call, coord: Coordinator | None, close: Call) -> None:
        ended = False
        try:
            while coord is None or not coord.should_stop():
                enqueue()
        except self._ends:
            ended = True
        except Exception as error:
            if coord is None:
                _log.exception("a thread of the QueueRunner of '%s' failed", self.name)
                self._raised.append(error)
                raise
            coord.request_stop(error)
        finally:
            with self._lock:
                self._runs -= 1
                last = not self._runs
            if last and ended:
                self._finish(close)

    def _close_on_stop(self, coord: Coordinator, cancel: Call) -> None:
        coord.wait_for_stop()
        if coord.closes_queues:
            self._finish(cancel)

    def _finish(self, close: Call) -> None:
        try:
            close()
        except Exception:  # nobody is there to handle it; the input has ended anyway
            _log.exception("closing the queue '%s' failed", self.name)


def _callable(op: Any, what: str) -> Call | Effect:
    if isinstance(op, Effect):
        return op
    if callable(op):
        return op  # type: ignore[no-any-return]
    raise InvalidArgumentError(
        f"QueueRunner: {what} has a {type(op).__name__}: it takes functions, or effects of a graph",
        hint="pass a function, such as lambda: queue.enqueue(next(values))",
    )


def _in_session(op: Call | Effect, session: Session | None) -> Call:
    """What a thread calls for `op`."""
    if not isinstance(op, Effect):
        return op
    if session is None:
        raise InvalidArgumentError(
            f"QueueRunner.create_threads: the effect '{op.name}' needs a session to run in",
            hint="pass it: runner.create_threads(session, coordinator)",
        )
    return session.make_callable(op)


def add_queue_runner(runner: QueueRunner) -> None:
    """Have `start_queue_runners` start the threads of `runner` for the graph that is being built
    (else the default graph).

    >>> with wf.Graph().as_default() as graph:
    ...     queue = wf.tf1.FIFOQueue(10, wf.float32, shapes=[[]])
    ...     wf.train.add_queue_runner(wf.train.QueueRunner(queue, [queue.enqueue(1.0)] * 2))
    >>> len(graph.queue_runners)
    1
    """
    get_default_graph().queue_runners.append(runner)


@made_at_once
@eager
def start_queue_runners(
    sess: Session | None = None, coord: Coordinator | None = None, daemon: bool = True,
    start: bool = True,
) -> list[threading.Thread]:  # fmt: skip
    """The threads of all queue runners of the session's graph, or else of the default graph.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     number = wf.train.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()
    ...     coordinator = wf.train.Coordinator()
    ...     threads = wf.train.start_queue_runners(session, coordinator)
    ...     print([int(session.run(number)) for _ in range(3)])
    ...     coordinator.request_stop()
    ...     coordinator.join(threads)
    [0, 1, 2]
    """
    graph = get_default_graph() if sess is None else sess.graph
    return [t for r in graph.queue_runners for t in r.create_threads(sess, coord, daemon, start)]


class LooperThread(threading.Thread):
    """A thread that calls `target(*args, **kwargs)` every `timer_interval_secs` seconds (None:
    again and again) until the coordinator's stop. An exception requests the stop.

    Or a base class: override `start_loop`, `run_loop` and `stop_loop`.

    >>> calls, coordinator = [], wf.train.Coordinator()
    >>> def work():
    ...     calls.append(len(calls))
    ...     if len(calls) == 3:
    ...         coordinator.request_stop()
    >>> looper = wf.train.LooperThread.loop(coordinator, 0.001, work)
    >>> coordinator.join([looper])
    >>> calls
    [0, 1, 2]
    """

    @made_at_once
    @eager
    def __init__(
        self, coord: Coordinator, timer_interval_secs: float | None,
        target: Callable[..., object] | None = None, args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        if not isinstance(coord, Coordinator):
            raise InvalidArgumentError(f"LooperThread: coord={coord!r:.40} is no Coordinator")
        if target is None and (args or kwargs):
            raise InvalidArgumentError("LooperThread: args and kwargs are for a target")
        self._coord = coord
        self._interval = seconds(timer_interval_secs)
        self._call = target
        self._call_args = tuple(args or ())
        self._call_kwargs = dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator, timer_interval_secs: float | None, target: Callable[..., object],
        args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:  # fmt: skip
        """A started LooperThread."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """The thread's loop."""
        with self._coord.stop_on_exception():
            self.start_loop()
            if self._interval is None:
                while not self._coord.should_stop():
                    self.run_loop()
            else:
                at = time.monotonic()  # intervals count from start to start
                while not self._coord.wait_for_stop(max(0.0, at - time.monotonic())):
                    at += self._interval
                    self.run_loop()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called before the first round."""

    def run_loop(self) -> None:
        """Called in each round; here: the target."""
        if self._call is not None:
            self._call(*self._call_args, **self._call_kwargs)

    def stop_loop(self) -> None:
        """Called after the stop."""


__all__ = [
    "Coordinator", "LooperThread", "QueueRunner", "add_queue_runner", "start_queue_runners",
]  # fmt: skip
