"""The state file of a folder of checkpoints: which there are, which is the latest, which to remove.

JSON with a sha256 of its own, written atomically after the checkpoint that it names; so at every
moment it names complete checkpoints only. Checkpoints that are to go are listed in `removed` before
they are removed, so that a process that is killed in between leaves none that nobody knows of.

Its checksum tells damage, not who wrote it: the file may have come with a folder from anywhere. So
it can name only files of its own folder whose suffix is a checkpoint's; with any other name in it,
or a field of another type, it is damaged as a whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import NoneType
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError
from weft.runtime.checkpoint.atomic import read_whole, write_atomically
from weft.runtime.checkpoint.names import check_file_name

STATE_FILE = "checkpoint"  # TensorFlow 1's name
_VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One row: a file in the same folder. `prefix` is its name without step and suffix, `time` in
    seconds since 1970, `always`: it is never removed, `first`: the time of the prefix's first
    checkpoint (None until there is a row for it)."""

    file: str
    prefix: str
    step: int | None
    time: float
    metric: float | None = None
    always: bool = False
    first: float | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Rows in the order in which they were saved; the last is the latest."""

    rows: tuple[SavedCheckpoint, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def latest(self) -> SavedCheckpoint | None:
        return self.rows[-1] if self.rows else None


def load_manifest(path: Path) -> Manifest | None:
    """None if there is no state file. DataLossError naming it if it is damaged."""
    try:
        data = read_whole(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _damaged(path, str(error)) from error
    try:
        fields = json.loads(data)
        digest = fields.pop("sha256")
        if digest != _digest(fields):
            raise ValueError("its checksum does not fit its content")
        if fields["format"] != _VERSION:
            raise ValueError(f"its format is {fields['format']}, this weft reads {_VERSION}")
        rows = tuple(_row(row) for row in fields["checkpoints"])
        return Manifest(rows, tuple(check_file_name(name) for name in fields["removed"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def saved_checkpoint(file: str, notes: Mapping[str, Any]) -> SavedCheckpoint:
    """The row of a checkpoint by what its own notes say. ValueError, TypeError or KeyError for
    what `Saver.save` does not write."""
    names = "prefix", "step", "time", "metric"
    return _row({"file": file, **{name: notes[name] for name in names}})


def _row(fields: Mapping[str, Any]) -> SavedCheckpoint:
    row = SavedCheckpoint(**fields)
    check_file_name(row.file)
    wanted = {
        "prefix": (str,), "step": (int, NoneType), "time": (int, float), "always": (bool,),
        "metric": (int, float, NoneType), "first": (int, float, NoneType),
    }  # fmt: skip
    for name, types in wanted.items():
        if type(getattr(row, name)) not in types:
            raise TypeError(f"it says {name}={getattr(row, name)!r} of '{row.file}'")
    return row


def store_manifest(path: Path, manifest: Manifest) -> None:
    """Write it, whole or not at all; errors as `write_atomically`."""
    rows = [asdict(row) for row in manifest.rows]
    latest = None if manifest.latest is None else manifest.latest.file
    fields: dict[str, Any] = {
        "format": _VERSION, "latest": latest, "checkpoints": rows,
        "removed": list(manifest.removed),
    }  # fmt: skip
    fields["sha256"] = _digest(fields)
    write_atomically(path, [memoryview((json.dumps(fields, indent=1) + "\n").encode())])


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, why: str) -> DataLossError:
    return DataLossError(
        f"the state file '{path}' is damaged: {why}",
        hint="pass the path of a checkpoint to restore(); "
        "restore_or_initialize(..., or_previous=True) takes the newest complete one",
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints of one prefix stay: the last `most` (None: all), besides these the `best`
    by metric, and one every `hours`."""

    most: int | None = 5
    best: int = 0
    mode: str = "min"
    hours: float = math.inf

    def apply(
        self, rows: Sequence[SavedCheckpoint], prefix: str
    ) -> tuple[list[SavedCheckpoint], list[SavedCheckpoint]]:
        """The rows that stay, and those that go. Rows of other prefixes stay as they are."""
        own = [row for row in rows if row.prefix == prefix]
        if not own:
            return list(rows), []
        first = own[0].time if own[0].first is None else own[0].first
        always = {row.file for row in own if row.always}
        last = max((row.time for row in own if row.always), default=first)
        best = {row.file for row in self.rank(own)[: self.best]}
        gone = set()
        for row in own[: -self.most] if self.most is not None else ():
            if not row.always and row.time - last >= self.hours * 3600:
                always.add(row.file)
                last = row.time
            elif row.file not in always | best:
                gone.add(row.file)
        stay = [
            replace(row, always=row.file in always, first=first) if row.prefix == prefix else row
            for row in rows
            if row.file not in gone
        ]
        return stay, [row for row in own if row.file in gone]

    def rank(self, rows: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Those with a metric, best first; of equal ones the later first, NaN is no metric."""
        sign = 1.0 if self.mode == "min" else -1.0
        rated = [
            (r.metric, r) for r in reversed(rows) if r.metric is not None and r.metric == r.metric
        ]
        return [row for _, row in sorted(rated, key=lambda pair: sign * pair[0])]
