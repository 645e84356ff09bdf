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
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.llvm.target import isa_line
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, UnknownError, WeftError
from weft.ir.process import in_child
from weft.runtime.checkpoint.format import SUFFIX
from weft.runtime.record.step_record import Outcome, StepRecord, save_record
from weft.runtime.record.traced_step import Call, TracedStep
from weft.runtime.run_log import RunLog, values_of

Array = np.ndarray[Any, Any]
#: How many of the last steps are kept, unless something else is said.
STEPS = 3
#: So many records of steps that raised are written: a loop that goes on after errors fills no disk.
MOST_FAILED = 20
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
        self._lock = threading.Lock()

    def run(self, step: TracedStep, call: Call, inputs: list[Any], log: RunLog | None) -> list[Any]:
        """As of `Watcher`: the step, recorded. An error that is no error of weft's is recorded,
        too."""
        log = step.log(log)
        given = tuple([_copied(x) for x in inputs])
        begun = StepRecord(
            step.graph(), step.way, given, step.before(None), number=next(_numbers),
            made=time.time(), versions=_versions(),
        )  # fmt: skip
        early = self._save(begun, "running") if self.recording.sync else None
        try:
            results = call(inputs, log)
        except Exception as error:
            known = error if isinstance(error, WeftError) else UnknownError(repr(error))
            self._ended(step, begun, log, Outcome(error=known), early)
            raise
        here = {n: step.variables[n] for n in step.written if n in step.variables}
        kept = tuple([None if r is None else _copied(r) for r in results])
        self._ended(step, begun, log, Outcome(kept, values_of(here)), early)
        return results

    def _ended(
        self,
        step: TracedStep,
        begun: StepRecord,
        log: RunLog | None,
        outcome: Outcome,
        early: Path | None,
    ) -> None:
        record = begun.ended(outcome, step.groups(log))
        if step.remote:
            record = record.on(step.before(log))
        if outcome.error is not None:
            with self._lock:
                self._failed += 1
                many = self._failed > MOST_FAILED
            if not many:
                self._write(record, "failed")
        elif self.recording.steps:
            with self._lock:
                self._kept.append(record)
                while len(self._kept) > self.recording.steps:
                    self._kept.popleft()
        if early is not None:
            early.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write what is in memory."""
        with self._lock:
            records = list(self._kept)
            self._kept.clear()
        for record in records:
            self._write(record, "")

    def _write(self, record: StepRecord, mark: str) -> None:
        path = self._save(record, mark)
        self.written.append(path)
        if mark:
            _log.warning("recorded the step that raised: weft replay %s", path)

    def _save(self, record: StepRecord, mark: str) -> Path:
        name = re.sub(r"[^\w-]", "_", record.name)
        stem = "-".join(x for x in (name, str(os.getpid()), f"{record.number:06}", mark) if x)
        path = self.recording.folder / f"{stem}{SUFFIX}"
        save_record(record, path)
        return path


def _copied(x: Any) -> Array:
    """An array of the host, a copy, of an array or of a tensor of a device."""
    return np.array(x if isinstance(x, (np.ndarray, np.generic, int, float)) else x.numpy())


@cache
def _versions() -> Mapping[str, str]:
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
        atexit.register(made.flush)
    return made


def is_on() -> bool:
    """Whether a `begin` has had no `end`."""
    return bool(_on)


def begin(recording: Recording) -> Recorder:
    """Record all steps from now on."""
    _on.append(Recorder(recording))
    return _on[-1]


def end(made: Recorder) -> None:
    """Write what is left, and record no more by it."""
    _on.remove(made)
    made.flush()


def _in_child() -> None:
    """A forked child writes nothing of what its parent has recorded."""
    for made in (*_on, *_environment.values()):
        made._kept.clear()


in_child(_in_child)
