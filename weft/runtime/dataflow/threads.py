"""Python threads that steps run on: helpers for expensive nodes, and a thread for each step.

Helpers are as many as there is work for and steps may use. They hold the GIL only to take a job and
to say that it is done. `StepThreads` are as many as there are steps at once, so that no step waits
for another one's end; those that idle are kept for the next."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from weft.ir.cost.thresholds import LEAST_PAUSE_NS, MOST_PAUSE_NS, SLACK_NS
from weft.ir.process import in_child
from weft.runtime.recorder import clock

Job = Callable[[], None]
#: How long the end of the process waits for a job that runs.
LAST_WAIT_SECONDS = 5.0


class Beside:
    """The progress of a job, for the thread that gave it away: that one sets `stopped`, the helper
    the others, and only under the GIL. What has not begun by then does nothing."""

    __slots__ = ("begun", "ended", "stopped")

    def __init__(self) -> None:
        self.begun = self.ended = self.stopped = False

    def may_begin(self) -> bool:
        """For the helper: whether to go on."""
        self.begun = True
        return not self.stopped

    def stop(self) -> None:
        """Do not begin; if that is too late, wait for the end."""
        self.stopped = True
        while self.begun and not self.ended:
            time.sleep(0.0005)


class Gain:
    """A measurement: whether jobs on other threads end sooner than one after the other, as they do
    not where other processes have the processors: then steps work alone for a while, twice as long
    each time."""

    def __init__(self) -> None:
        self.alone_until = 0
        self._pause = LEAST_PAUSE_NS

    def pays(self) -> bool:
        """Whether to give jobs away now."""
        return clock() >= self.alone_until

    def note(self, jobs: int, spent: int, alone: int) -> None:
        """So many jobs took `spent` ns in all; each alone takes `alone` ns in sum."""
        # one job beside a wait for something else need not be faster, only not much slower
        if spent > (alone if jobs > 1 else 2 * alone) + SLACK_NS:
            self.alone_until = clock() + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE_NS)
        else:
            self._pause = LEAST_PAUSE_NS


class Phase:
    """The jobs of one step that are under way together, from the first to the last."""

    def __init__(self, gain: Gain) -> None:
        self._gain = gain
        self._best: dict[int, int] = {}  # of each node the least time that it took
        self._begun = self._ended = self._under_way = self._jobs = self._alone = 0

    def begin(self) -> None:
        """A job is given away."""
        if not self._under_way:
            self._begun, self._jobs, self._alone = clock(), 0, 0
        self._under_way += 1

    def end(self, node: int, begun: int, ended: int) -> None:
        """A job of a node ran from `begun` to `ended`; the step may look later than that."""
        took = ended - begun
        best = self._best[node] = min(took, self._best.get(node, took))
        self._alone += best
        self._jobs += 1
        self._under_way -= 1
        self._ended = max(self._ended, ended)
        if not self._under_way:
            self._gain.note(self._jobs, self._ended - self._begun, self._alone)


class Helpers:
    """Threads that wait for jobs; made when there are more jobs than threads."""

    def __init__(self) -> None:
        self._start_again()

    def _start_again(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        # each thread sleeps on a queue of its own: two jobs put into one queue may wake one thread
        self._idle: list[SimpleQueue[Job | None]] = []
        self._jobs: deque[Job] = deque()
        self._ended = False

    def submit(self, job: Job, most: int) -> None:
        """Run `job`, which raises nothing, when fewer than `most` threads do; here after `end`."""
        with self._lock:
            ended = self._ended
            if ended:
                pass
            elif len(self._threads) - len(self._idle) >= most:
                self._jobs.append(job)
            elif self._idle:
                # a signal between these lines leaves a thread that is called idle and is not: what
                # it is given then waits, but is not lost
                self._idle[-1].put(job)
                self._idle.pop()
            else:
                own: SimpleQueue[Job | None] = SimpleQueue()
                own.put(job)
                made = threading.Thread(
                    target=self._work, args=(own,), name="weft-helper", daemon=True
                )
                made.start()
                self._threads.append(made)
        if ended:
            job()

    def count(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def _work(self, own: SimpleQueue[Job | None]) -> None:
        job = own.get()
        while job is not None:
            job()
            job = None  # what it holds is the step's
            with self._lock:
                if self._jobs:
                    job = self._jobs.popleft()
                elif self._ended:
                    return  # jobs that were given away before are done
                else:
                    self._idle.append(own)
            if job is None:
                job = own.get()

    def end(self) -> None:
        """At exit: no thread may be within native code when the process takes that down."""
        with self._lock:
            self._ended = True
            for own in self._idle:
                own.put(None)
            threads = list(self._threads)
        for made in threads:
            made.join(LAST_WAIT_SECONDS)


HELPERS, GAIN = Helpers(), Gain()
atexit.register(HELPERS.end)
in_child(HELPERS._start_again)


_LOG = logging.getLogger("weft.cluster")
#: So many idle threads are kept, each for so many seconds.
MOST_IDLE, IDLE_SECONDS = 16, 10.0
Work = Callable[[], None]


class StepThreads:
    """Runs each piece of work on a thread of its own, which may wait as long as it likes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work | None]] = []  # the one used last is the last
        self._closed = False

    def submit(self, work: Work) -> None:
        """Have it run soon; nothing happens after `close`."""
        with self._lock:
            if self._closed:
                return
            box = self._idle.pop() if self._idle else None
        if box is not None:
            box.put(work)
            return
        made: SimpleQueue[Work | None] = SimpleQueue()
        made.put(work)  # a thread holds its arguments to its end
        threading.Thread(target=self._serve, args=(made,), name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let the idle ones end; what runs goes on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for box in idle:
            box.put(None)

    def _serve(self, box: SimpleQueue[Work | None]) -> None:
        work = box.get()
        while work is not None:
            try:
                work()
            except Exception:
                _LOG.exception("%s: an error that nobody waits for", self._name)
            work = None  # what it holds may be large
            with self._lock:
                if self._closed or len(self._idle) >= MOST_IDLE:
                    return
                self._idle.append(box)
            work = self._next(box)

    def _next(self, box: SimpleQueue[Work | None]) -> Work | None:
        try:
            return box.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if box in self._idle:
                    self._idle.remove(box)
                    return None
        return box.get()  # it was given work just now
