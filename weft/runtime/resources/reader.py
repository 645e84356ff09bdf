"""Readers: the records of files whose names come out of a queue, one after the other.

A reader is at one file at a time. An attempt that finds it at the end of its file takes the next
name off its queue, and waits for it if there is none; the records are then read by the thread that
brought the name. Who waits is served in order of arrival.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import (
    DataLossError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    WeftError,
)
from weft.ir.spec import AttrValue
from weft.runtime.files.records import Layout, Record, records
from weft.runtime.resources.attempts import Attempt, CancelToken, Done, Resource
from weft.runtime.resources.components import Array
from weft.runtime.resources.queue import Queue

_CLASSES = {
    "text_line": "TextLineReader", "tfrecord": "TFRecordReader", "whole_file": "WholeFileReader",
    "fixed_length": "FixedLengthRecordReader", "identity": "IdentityReader",
}  # fmt: skip


class Reader(Resource):
    """The records of the files that queues name."""

    def __init__(self, layout: Layout, name: str) -> None:
        super().__init__(name)
        self.kind = _CLASSES[layout.kind]
        self.layout = layout
        self._line: deque[Attempt] = deque()
        self._lines = (self._line,)
        self._queue_of: dict[Attempt, Queue] = {}
        self._asking: CancelToken | None = None  # for the next name
        self._process = os.getpid()
        self._failed: WeftError | None = None  # what the next attempt is told
        self._reset()

    def _reset(self) -> None:
        self._file: str | None = None
        self._records: Iterator[Record] | None = None
        self._position = 0  # records of the file that were read
        self._names: deque[str] = deque()  # of files that come next
        self._again: deque[Record] = deque()  # read, and given back
        self._produced = self._finished_files = 0

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `reader`."""
        return "reader", self.layout._asdict()

    # ------------------------------------------------------------------------------------- reading
    def start_read(
        self, queue: Queue, n: int, done: Done, cancel: CancelToken | None = None,
        operation: str = "read",
    ) -> Attempt:  # fmt: skip
        """Begin to read one record or more, up to n, of one file: a list of (key, value).

        OutOfRangeError if the queue is closed and empty. After an error in a file the reader goes
        on with the next one.
        """
        attempt = Attempt(operation, self._read, done, n)
        self._queue_of[attempt] = queue
        return self._start(attempt, self._line, cancel)

    def _read(self, attempt: Attempt) -> bool:
        """Under the lock: serve the attempt as far as it goes."""
        if self._process != os.getpid():
            self._forked()
        if self._asking is not None and not self._names:
            return False
        if self._failed is not None:
            error, self._failed = self._failed, None
            self._fail(attempt, error)
            return True
        while not self._take(attempt):
            if attempt.is_over():
                return True
            if not self._names:
                self._ask(attempt)
                return True
            self._open(self._names.popleft())
        self._produced += len(attempt.items)
        self._finish(attempt, list(attempt.items))
        return True

    def _forked(self) -> None:
        """In a child: who asked for a name is in the parent, whose place in the file is its own."""
        self._process, self._asking = os.getpid(), None
        if self._file is not None:
            self._open(self._file, self._position)

    def _take(self, attempt: Attempt) -> bool:
        """Records of the present file; whether there were any."""
        try:
            while attempt.left > 0:
                record = self._again.popleft() if self._again else self._next()
                if record is None:
                    break
                attempt.items.append(record)
                attempt.left -= 1
        except Exception as error:  # whatever it is: who waits has to be told
            self._failed = error if isinstance(error, WeftError) else self._unread(error)
            self._file, self._records, self._position = None, None, 0
            if not attempt.items:  # else the next one says what is wrong
                error, self._failed = self._failed, None
                self._fail(attempt, error)
        return bool(attempt.items)

    def _unread(self, error: Exception) -> WeftError:
        where = f"{self._file}: record {self._position}"
        if isinstance(error, MemoryError):
            return ResourceExhaustedError(f"{where}: {str(error) or 'no memory'}")
        if isinstance(error, OSError):
            return DataLossError(f"{where}: {error}")
        return InternalError(f"{where}: {error!r}")

    def _next(self) -> Record | None:
        if self._records is None:
            return None
        record = next(self._records, None)
        if record is None:
            self._finished_files += 1
            self._file, self._records, self._position = None, None, 0
        else:
            self._position += 1
        return record

    # -------------------------------------------------------------------------------- the next file
    def _ask(self, attempt: Attempt) -> None:
        """Ask the queue for a name, unless somebody does already."""
        if self._asking is not None:
            return
        self._asking = token = CancelToken()
        queue = self._queue_of[attempt]
        self._later(lambda: queue.start_dequeue(1, lambda made: self._named(token, made), token))

    def _later(self, call: Callable[[], object]) -> None:
        """Under the lock: have something called when it is free. No thread holds the locks of two
        resources: a fork takes all of them, in an order of its own."""

        def done(_: object) -> None:
            call()

        self._finished.append(Attempt("later", self._read, done))

    def _named(self, token: CancelToken, made: Any) -> None:
        """The queue has given a name, or an error."""

        def step() -> None:
            if self._asking is token:
                self._asking = None
                self._failed = made if isinstance(made, WeftError) else None
            if not isinstance(made, WeftError):  # also if nobody waits for it any more
                given: Array = made[0][0]
                if given.ndim:
                    self._failed = InvalidArgumentError(
                        f"{self.describe()}: the queue gave {given.size} names at once, of shape "
                        f"{list(given.shape)}; an element is one name"
                    )
                else:
                    self._names.append(os.fsdecode(bytes(given[()])))

        self._change(step)

    def _open(self, name: str, position: int = 0) -> None:
        self._file, self._position = name, position
        self._records = itertools.islice(records(name, self.layout), position, None)

    def _finish(self, attempt: Attempt, outcome: Any) -> None:
        super()._finish(attempt, outcome)
        self._queue_of.pop(attempt, None)

    def _give_back(self, attempt: Attempt) -> None:
        """Under the lock: what it has read is read again; nobody asks for a name on its behalf."""
        self._again.extendleft(reversed(attempt.items))
        if not attempt.pending and not isinstance(attempt.outcome, WeftError):
            self._produced -= len(attempt.items)
        attempt.items.clear()
        if self._asking is not None and (attempt.line and attempt.line[0] is attempt):
            token, self._asking = self._asking, None
            self._later(lambda: token.cancel("its read is over"))

    # ---------------------------------------------------------------------------------- the others
    def records_produced(self) -> int:
        """How many records were read."""
        with self._lock:
            return self._produced

    def files_finished(self) -> int:
        """How many files were read to their end."""
        with self._lock:
            return self._finished_files

    def reset(self) -> None:
        """Be as new: at no file, and nothing counted. Names that were taken stay taken."""
        self._change(self._reset)

    def state_dict(self) -> dict[str, Any]:
        """The file, the place in it and the counts."""
        with self._lock:
            return {
                "produced": self._produced, "finished": self._finished_files, "file": self._file,
                "position": self._position, "again": [list(r) for r in self._again],
                "names": list(self._names),
            }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the reader was that gave `state`. InvalidArgumentError, and no change, if it
        is no state of a reader."""
        try:
            counts = [int(state[k]) for k in ("produced", "finished", "position")]
            file = state["file"]
            again = [(bytes(k), bytes(v)) for k, v in state["again"]]
            names = [str(n) for n in state["names"]]
            if not (file is None or isinstance(file, str)) or min(counts) < 0:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InvalidArgumentError(f"{self.describe()}: this is no state of a reader") from None

        def step() -> None:
            self._reset()
            self._produced, self._finished_files, position = counts
            self._again.extend(again)
            self._names.extend(names)
            if file is not None:
                self._open(file, position)

        self._change(step)

    def _state(self) -> str:
        return "it waits for the name of a file" if self._asking is not None else ""


def as_arrays(found: list[Record]) -> list[Array]:
    """Keys and values."""
    out = []
    for column in zip(*found, strict=True):
        array = np.empty(len(column), object)
        array[:] = column
        out.append(array)
    return out
