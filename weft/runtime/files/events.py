"""Event files, which TensorBoard reads: `EventFile` appends events to one, by a thread of its own.

From tensorflow/core/util/event.proto, in the records of a TFRecord file:

    Event { double wall_time = 1; int64 step = 2; oneof: string file_version = 3,
            bytes graph_def = 4, Summary summary = 5, SessionLog session_log = 7,
            TaggedRunMetadata tagged_run_metadata = 8; }

The first record has the file's version. One folder is one run, of which TensorBoard reads the files
one after the other, each to its end: what is written to an older file while a newer one is there is
never shown. So a folder has one writer at a time, in any process, and its file is the newest.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from weft.ir.errors import FailedPreconditionError, WeftError
from weft.ir.process import ForkLock, in_child
from weft.runtime.files.paths import is_url, path_of, upload
from weft.runtime.files.records import checksum, framed
from weft.runtime.files.streams import unreadable
from weft.runtime.files.wire import double, integer, message, text

_PREFIX = "events.out.tfevents."
_VERSION = "brain.Event:2"
GRAPH_DEF, SUMMARY, SESSION_LOG, TAGGED_RUN_METADATA = 4, 5, 7, 8
_MOST_WAITING = 1000  # events that wait for the disk; then who adds one waits
#: Seconds for which events are gathered: a thread that wakes for each would take a training loop
#: more time than the writing.
_GATHER = 0.2

#: Seconds after which an event file of a URL is put there again.
_UPLOAD = 30.0
_log = logging.getLogger("weft.summary")

_open: weakref.WeakSet[EventFile] = weakref.WeakSet()
_numbers = itertools.count()


class EventFile:
    """One event file in `folder`, which is made. Events are encoded and written by a thread, in the
    order in which they were added, a fifth of a second later at most. What is written is with the
    system: of a process that is killed only what still waits is lost, and no record is there in
    half but the last.

    FailedPreconditionError for a folder that another writer, of any process, has open.
    """

    def __init__(self, folder: str | os.PathLike[str], suffix: str = "") -> None:
        self.folder = Path(folder)
        self._pid = os.getpid()
        self._lock = ForkLock()
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], bytes]] = deque()
        self._busy = self._ending = self._hurry = False
        self._error: Exception | None = None
        self._crc = checksum()
        self._held = _claim(self.folder)
        try:
            self.path = self.folder / (_next_name(self._names()) + suffix)
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(self.path, new, 0o666)
        except OSError as error:
            os.close(self._held)
            raise unreadable(self.folder, error) from error
        first = double(1, time.time()) + text(3, _VERSION)
        self._waiting.append(lambda: first)
        self._thread = threading.Thread(target=self._run, name="weft-events", daemon=True)
        self._thread.start()
        _open.add(self)

    def _names(self) -> list[str]:
        """The files that are in the folder."""
        return [p.name for p in self.folder.iterdir()]

    def add(self, field: int, make: Callable[[], bytes], step: int | None = None) -> None:
        """Append an event whose field has the bytes that `make` gives; the thread calls it. Raises
        what writing earlier events has failed with."""
        head = double(1, time.time())
        head += b"" if step is None else integer(2, step)
        self._check()
        with self._changed:
            while len(self._waiting) >= _MOST_WAITING and self._error is None:
                self._hasten()
                self._changed.wait()
            self._raise()
            self._check()  # another thread may have closed it: nobody would write the event
            self._waiting.append(lambda: head + message(field, make()))
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def flush(self) -> None:
        """Return when all that was added is with the system. Raises what writing failed with."""
        self._check()
        with self._changed:
            while (self._waiting or self._busy) and self._error is None:
                self._hasten()
                self._changed.wait()
            self._raise()

    def _hasten(self) -> None:
        """Have the thread gather no longer."""
        self._hurry = True
        self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._ending

    @property
    def usable(self) -> bool:
        """Whether `add` is allowed: it is open, and this process's."""
        return not self.closed and self._pid == os.getpid()

    def close(self) -> None:
        """Write what waits, and end the file; the folder is free for another writer. A second time
        is allowed. Raises what writing has failed with, with the file closed."""
        with self._lock:
            if self.closed or self._pid != os.getpid():
                return
            with self._changed:
                self._ending = True
                self._changed.notify_all()
            self._thread.join()
            os.close(self._file)
            fcntl.flock(self._held, fcntl.LOCK_UN)  # a forked child may have it open, too
            _open.discard(self)
            os.close(self._held)
            self._raise()

    # ---------------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._ending)
                self._changed.wait_for(lambda: self._hurry or self._ending, _GATHER)
                self._hurry = False
                made = list(self._waiting)
                self._waiting.clear()
                self._busy = bool(made)
            if not made:
                break
            try:
                self._write(b"".join(framed(make(), self._crc) for make in made))
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._busy = False
                    self._waiting.clear()
                    self._changed.notify_all()
                break

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]

    def _check(self) -> None:
        if self.closed:
            raise FailedPreconditionError(f"the event file {self.path} is closed")
        if self._pid != os.getpid():
            raise FailedPreconditionError(
                f"the event file {self.path} is that of process {self._pid}, from which this one "
                "was forked",
                hint="make a writer of its own here, in another folder",
            )

    def _raise(self) -> None:
        if isinstance(self._error, OSError):
            raise FailedPreconditionError(
                f"{self.path}: {self._error.strerror or self._error}; events are lost from there on"
            ) from self._error
        if self._error is not None:
            what = self._error.what if isinstance(self._error, WeftError) else repr(self._error)
            raise FailedPreconditionError(
                f"{self.path}: an event could not be written: {what}; events are lost from there on"
            ) from self._error


class UploadedEventFile(EventFile):
    """An event file in a folder that a URL names: written to a temporary folder, and put in its
    place as one object when it is flushed or closed, and every `_UPLOAD` seconds; objects do not
    grow. Nothing keeps other processes from writing to the folder, too; of a process that is killed
    what was added since the last time is lost."""

    def __init__(self, url: str, suffix: str = "") -> None:
        self._target: Path = path_of(url)
        folder = self._target
        if any(isinstance(f, UploadedEventFile) and f._target == folder for f in list(_open)):
            raise FailedPreconditionError(
                f"{url} has an open writer of events in this process",
                hint="close that one, or give each run, and each task, a folder of its own",
            )
        self._upload_lock, self._close_lock = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._temporary = tempfile.mkdtemp(prefix="weft-events-")
        try:
            super().__init__(self._temporary, suffix)
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise
        self._local, self.folder = self.path, folder
        self.path = folder / self.path.name
        self._uploader = threading.Thread(target=self._repeat, name="weft-upload", daemon=True)
        self._uploader.start()

    def _names(self) -> list[str]:
        return [p.name for p in self._target.glob(f"{_PREFIX}*")]

    def flush(self) -> None:
        super().flush()
        self._upload("flush, or close, tries it again")

    def close(self) -> None:
        with self._close_lock:
            if not self.usable:
                return
            self._over.set()
            self._uploader.join()
            try:
                super().close()
            finally:
                self._upload(f"the events are in {self._local}, which stays there")
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _upload(self, hint: str) -> None:
        try:
            with self._upload_lock:
                upload(self._local, str(self.path))
        except Exception as error:  # each store has exceptions of its own
            raise FailedPreconditionError(
                f"{self.path} cannot be written: {error}", hint=hint
            ) from error

    def _repeat(self) -> None:
        while not self._over.wait(_UPLOAD):
            try:
                self.flush()
            except FailedPreconditionError as error:  # who flushes or closes it will hear of it
                _log.warning("%s", error.what)


def event_file(folder: str | os.PathLike[str], suffix: str = "") -> EventFile:
    """An event file in a folder of the system, or one that a URL names. Errors as `EventFile`."""
    if is_url(folder):
        return UploadedEventFile(os.fspath(folder), suffix)
    return EventFile(folder, suffix)


def _claim(folder: Path) -> int:
    """The folder, made and locked; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise unreadable(folder, error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise FailedPreconditionError(
            f"{folder} has an open writer of events, in this process or another: TensorBoard reads "
            "the files of a folder one after the other, and would show only one of the two",
            hint="close that one, or give each run, and each task, a folder of its own",
        ) from None
    except OSError as error:
        os.close(held)
        raise FailedPreconditionError(
            f"{folder} cannot be locked, so nobody knows whether it has another writer: "
            f"{error.strerror}",
            hint="write to a folder of a local file system",
        ) from error
    return held


def _next_name(names: Iterable[str]) -> str:
    """A name that sorts after those of all event files that are there: by seconds since the epoch,
    host, process and number. A clock that went back does not hide what comes."""
    found = [re.match(r"(\d{10})\.", name.partition(_PREFIX)[2]) for name in names]
    newest = max((int(m[1]) for m in found if m), default=0)
    seconds = max(int(time.time()), newest + 1)
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    return f"{_PREFIX}{seconds:010d}.{host}.{os.getpid()}.{next(_numbers)}"


def _close_all(*_: Any) -> None:
    """At the end of the process: what waits is written."""
    with ExitStack() as closing:  # all of them, whatever one raises
        for file in list(_open):
            closing.callback(file.close)


atexit.register(_close_all)


def _forget() -> None:
    """In a forked child: the folders are the parent's, whose locks must end with it."""
    for file in list(_open):
        os.close(file._held)
    _open.clear()


in_child(_forget)
