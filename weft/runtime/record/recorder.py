"""`Recorder`: keeps records of the last steps of a process, and of every step that raised.

A record is in memory until it is written: at once where the step raised, else when recording ends,
or the process does. With `sync` it is written before the step runs, too, so that a step that ends
the process is there. What a recorded step costs is a copy of its inputs, of its variables and of
its results."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.llvm.target import isa_line
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, OutOfRangeError, UnknownError, WeftError
from weft.ir.process import ForkLock, in_child
from weft.runtime.checkpoint.format import SUFFIX
from weft.runtime.record.step_record import Outcome, StepRecord, file_stem, save_record
from weft.runtime.record.traced_step import Call, TracedStep
from weft.runtime.run_log import RunLog, on_host

Array = np.ndarray[Any, Any]
#: How many of the last steps are kept, unless something else is said.
STEPS = 3
#: So many records of steps that raised are written: a loop that goes on after errors fills no disk.
MOST_FAILED = 20
#: How the names of files of steps end that run, and that raised.
RUNNING, FAILED = "running", "failed"
_log = logging.getLogger("weft.run")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Recording:
    """What is to be recorded. folder: for the files. steps: how many of the last steps; 0: those
    that raise alone. sync: whether a record is written before its step runs."""

    folder: Path
    steps: int = STEPS
    sync: bool = False

    @staticmethod
    def from_environment() -> Recording | None:
        """What WEFT_RECORD (a folder), WEFT_RECORD_STEPS (a number) and WEFT_RECORD_SYNC (1) say;
        None without the first. InvalidArgumentError for what is no number."""
        folder = os.environ.get("WEFT_RECORD", "")
        if not folder:
            return None
        steps = os.environ.get("WEFT_RECORD_STEPS", "") or str(STEPS)
        sync = os.environ.get("WEFT_RECORD_SYNC", "") or "0"
        if not steps.isdecimal():
            raise InvalidArgumentError(
                f"WEFT_RECORD_STEPS={steps!r} is no number of steps", hint="say how many, or 0"
            )
        if sync not in ("0", "1"):
            raise InvalidArgumentError(f"WEFT_RECORD_SYNC={sync!r}", hint="it is 0 or 1")
        return Recording(Path(folder), int(steps), sync == "1")


class Recorder:
    """Records the runs of steps. A step may be recorded in any thread."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.written: list[Path] = []
        self._kept: deque[StepRecord] = deque()
        self._failed = 0
        self._lock = ForkLock()

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """As of `Watcher`: the step, recorded. An error that is no error of weft's, and Ctrl-C, are
        recorded, too."""
        log = step.log(log)
        given = tuple([np.array(on_host(x)) for x in inputs])
        begun = StepRecord(
            step.graph, step.way, given, step.before(None), number=next(_numbers),
            made=time.time(), versions=versions(),
        )  # fmt: skip
        early = self._try_write(begun, RUNNING) if self.recording.sync else None
        try:
            results = call(inputs, log)
        except BaseException as error:
            known = error if isinstance(error, WeftError) else UnknownError(repr(error))
            self._ended(step, begun, log, Outcome(error=known), early)
            raise
        kept = tuple([None if r is None else np.array(on_host(r)) for r in results])
        self._ended(step, begun, log, Outcome(kept, step.after(log)), early)
        return results

    def _ended(
        self, step: TracedStep, begun: StepRecord, log: RunLog | None, outcome: Outcome,
        early: Path | None,
    ) -> None:  # fmt: skip
        record = begun.ended(outcome, step.groups(log))
        if step.remote:
            record = record.on(step.before(log), step.silent(log))
        error = outcome.error
        if error is not None and not isinstance(error, OutOfRangeError):  # that an input has ended
            with self._lock:
                self._failed += 1
                many = self._failed > MOST_FAILED
            if not many:
                self._try_write(record, FAILED)
        elif self.recording.steps:
            with self._lock:
                self._kept.append(record)
                while len(self._kept) > self.recording.steps:
                    self._kept.popleft()
        if early is not None:
            early.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write what is in memory. The first error of `save_record`, when all was tried."""
        with self._lock:
            records = list(self._kept)
            self._kept.clear()
        errors: list[WeftError] = []
        for record in records:
            self._try_write(record, "", errors)
        if errors:
            raise errors[0]

    def try_flush(self) -> None:
        """As `flush`; what goes wrong is in the log alone."""
        with suppress(WeftError):
            self.flush()

    def _try_write(
        self, record: StepRecord, mark: str, errors: list[WeftError] | None = None
    ) -> Path | None:
        """Write a record. What goes wrong is in the log, and added to `errors`: the step's own
        matters more."""
        parts = (file_stem(record), str(os.getpid()), f"{record.number:06}", mark)
        path = self.recording.folder / f"{'-'.join(x for x in parts if x)}{SUFFIX}"
        try:
            save_record(record, path)
        except WeftError as error:
            _log.warning("step %d of '%s' is not recorded: %s", record.number, record.name, error)
            if errors is not None:
                errors.append(error)
            return None
        if mark != RUNNING:
            self.written.append(path)
        if mark == FAILED:
            _log.warning("recorded the step that raised: weft replay %s", path)
        return path


@cache
def versions() -> Mapping[str, str]:
    """What steps of this process are run by."""
    found = {"python": platform.python_version(), "isa": isa_line(), "machine": platform.machine()}
    for name in ("weft", "numpy", "llvmlite"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# ------------------------------------------------------------------------------------ what is on
_on: list[Recorder] = []
_environment: dict[Recording, Recorder] = {}
_at_exit: set[int] = set()  # processes


def recorder() -> Recorder | None:
    """The recorder of this process: that of the newest `recording` that is open, else of
    WEFT_RECORD. None without either."""
    if _on:
        return _on[-1]
    asked = Recording.from_environment() if os.environ.get("WEFT_RECORD") else None
    if asked is None:
        return None
    made = _environment.get(asked)
    if made is None:
        made = _environment[asked] = Recorder(asked)
    if os.getpid() not in _at_exit:
        _at_exit.add(os.getpid())
        atexit.register(_flush_all)
        # of a child of multiprocessing, which does not come to what `atexit` holds
        util.Finalize(None, _flush_all, exitpriority=0)
    return made


def _flush_all() -> None:
    for made in _environment.values():
        made.try_flush()


def is_on() -> bool:
    """Whether a `begin` has had no `end`."""
    return bool(_on)


def begin(recording: Recording) -> Recorder:
    """Record all steps from now on."""
    _on.append(Recorder(recording))
    return _on[-1]


def end(made: Recorder) -> None:
    """Record no more by it; `flush` writes what is left."""
    _on.remove(made)


def _in_child() -> None:
    """A forked child writes nothing of what its parent has recorded."""
    for made in (*_on, *_environment.values()):
        made._kept.clear()


in_child(_in_child)
