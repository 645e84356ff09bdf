"""Folder of checkpoints and its state file: the list of checkpoints, the latest, those to remove;
and checkpoints of several files, with a manifest.

The state file is JSON with a sha256 of its own, written atomically after the checkpoint that it
names; so at every moment it names complete checkpoints only. Checkpoints that are to go are listed
in `removed` before they are removed, so that a process that is killed in between leaves none that
nobody knows of.

Its checksum tells damage, not who wrote it: the file may have come with a folder from anywhere. So
it can name only files of its own folder whose suffix is a checkpoint's; with any other name in it,
or a field of another type, it is damaged as a whole.

Writing a checkpoint names it in the state file and removes those that are to go. `save_arrays` and
`restore_arrays` are what the ops `save` and `restore` do.

A checkpoint of several files has one for each task that holds variables. `model-7.manifest.json`
says which files belong to it and what is in which; it is written, whole or not at all, when all of
them are there, and replaces the one before under its name. The names of the files hold a number
that each save draws anew, so a save that ends halfway overwrites nothing. The number stands in the
files, too: a file that was exchanged is found out."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Self, cast

from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    suggest,
)
from weft.ir.process import ForkLock
from weft.ir.types import TensorType
from weft.runtime.checkpoint.format import (
    MANIFEST,
    SUFFIX,
    Array,
    CheckpointFile,
    Entry,
    check_file_name,
    read_whole,
    write_atomically,
    write_file,
)
from weft.runtime.files.paths import UrlPath, path_of
from weft.runtime.files.permissions import confined

#: The name under which each file holds the number of its save (i64[]).
MARK = "__save__"
_FORMAT = "weft sharded checkpoint 2"
_SHARD = re.compile(r"(.*?)(?:-\d+)?-[0-9a-f]{16}-\d{5}-of-\d{5}" + re.escape(SUFFIX))

log = logging.getLogger("weft.checkpoint")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file in the manifest's folder. task: which wrote it, "" for a session's own; tensors: the
    names that it holds."""

    task: str
    file: str
    tensors: tuple[str, ...]


def marked(name: str, mark: int) -> str:
    """What the names of the files of a save begin with."""
    return f"{name}-{mark:016x}"


def shard_end(number: int, count: int) -> str:
    """What the name of one of them ends with."""
    return f"-{number:05d}-of-{count:05d}{SUFFIX}"


def write_shards_manifest(
    path: Path, mark: int, shards: Sequence[Shard], notes: dict[str, Any]
) -> None:
    """Write a manifest; with that the checkpoint is there. Errors as `write_atomically`."""
    rows = [{**asdict(shard), "tensors": list(shard.tensors)} for shard in shards]
    fields: dict[str, Any] = {"format": _FORMAT, "mark": mark, "notes": notes, "shards": rows}
    fields["sha256"] = _digest(fields)
    write_atomically(path, [memoryview((json.dumps(fields, indent=1) + "\n").encode())])


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _load(path: Path) -> tuple[int, tuple[Shard, ...], dict[str, Any]]:
    """Mark, files and notes. NotFoundError if there is no such file, DataLossError for what is no
    manifest or damaged."""
    try:
        fields = json.loads(read_whole(path))
        if fields.pop("sha256") != _digest(fields) or fields["format"] != _FORMAT:
            raise ValueError("its checksum or format does not fit")
        rows = [
            Shard(r["task"], check_file_name(r["file"], (SUFFIX,)), tuple(r["tensors"]))
            for r in fields["shards"]
        ]
        return fields["mark"], tuple(rows), fields["notes"]
    except FileNotFoundError:
        raise NotFoundError(f"there is no checkpoint file '{path}'") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"'{path}' is no manifest of a sharded checkpoint, or damaged: {error}",
            hint="restore an earlier one; restore_or_initialize(..., or_previous=True) does",
        ) from error


class ShardedCheckpoint:
    """The files of a checkpoint, open for reading, with the attributes of a `CheckpointFile`.

    Errors as `CheckpointFile`; DataLossError also for a file that is not there or of another save.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mark, shards, self.notes = _load(path)
        entries: dict[str, Entry] = {}
        self._held: dict[str, CheckpointFile] = {}
        with ExitStack() as stack:
            files = [stack.enter_context(_opened(path, shard, mark)) for shard in shards]
            for shard, file in zip(shards, files, strict=True):
                entries |= {name: file.entries[name] for name in shard.tensors}
                self._held |= dict.fromkeys(shard.tensors, file)
            self.entries = dict(sorted(entries.items()))
            self.verified = all(file.verified for file in files)
            self._files = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def read(self, name: str) -> Array:
        """The array of an entry whose dtype weft has. DataLossError if it is damaged."""
        return self._held[name].read(name)


def _opened(manifest: Path, shard: Shard, mark: int) -> CheckpointFile:
    path = manifest.parent / shard.file
    try:
        file = CheckpointFile(path)
    except NotFoundError as error:
        raise DataLossError(f"'{manifest}' names the file '{path}', which is not there") from error
    held = file.entries.keys()
    if MARK in held and held >= set(shard.tensors) and int(file.read(MARK)) == mark:
        return file
    file.close()
    raise DataLossError(f"'{path}' is of another save than '{manifest}', which names it")


#: What can be read like one file.
Checkpoint = CheckpointFile | ShardedCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint of one file, or of several by its manifest. Errors as `CheckpointFile`."""
    return ShardedCheckpoint(path) if path.name.endswith(MANIFEST) else CheckpointFile(path)


def find_checkpoint(path: Path) -> Path:
    """The file of a checkpoint's name: `path` itself, or with one of the suffixes; one that need
    not exist if there is none. InvalidArgumentError if there are both."""
    if path.name.endswith((SUFFIX, MANIFEST)) or path.is_file():
        return path
    one, many = path.with_name(path.name + SUFFIX), path.with_name(path.name + MANIFEST)
    if one.exists() and many.exists():
        raise InvalidArgumentError(
            f"'{path}' is two checkpoints, '{one.name}' and '{many.name}'", hint="say which"
        )
    if many.exists():
        return many
    return path if path.exists() and not one.exists() else one


def checkpoint_name(path: Path) -> str:
    """What `find_checkpoint` finds it by: of a manifest the name without suffix, as in TensorFlow,
    unless there is a single file of that name besides."""
    if not path.name.endswith(MANIFEST):
        return str(path)
    name = path.with_name(path.name.removesuffix(MANIFEST))
    twice = name.is_file() or name.with_name(name.name + SUFFIX).exists()
    return str(path if twice else name)


# --------------------------------------------------------------------------------------- a folder's
def files_of(path: Path) -> list[str]:
    """The names of all files of a checkpoint, its manifest first."""
    if not path.name.endswith(MANIFEST):
        return [path.name]
    try:
        return [path.name, *(shard.file for shard in _load(path)[1])]
    except (NotFoundError, DataLossError):
        return [path.name]


def unnamed_shards(folder: Path, prefix: str) -> list[str]:
    """The files that saves under `prefix` have left that ended halfway, or were replaced: no
    manifest names them. Nothing if a manifest is damaged: it may have named any."""
    found = [p.name for p in folder.glob(f"*{SUFFIX}") if _prefix_of(p.name) == prefix]
    named: set[str] = set()
    for manifest in folder.glob(f"*{MANIFEST}") if found else ():
        try:
            named |= {shard.file for shard in _load(manifest)[1]}
        except NotFoundError:
            continue  # it was removed in this moment
        except DataLossError as error:
            log.warning("%s; nothing is cleared away", error.what)
            return []
    return sorted(set(found) - named)


def _prefix_of(file: str) -> str | None:
    """The name without step of the checkpoint that a file is a shard of."""
    match = _SHARD.fullmatch(file)
    return None if match is None else match[1]


def is_shard(file: str) -> bool:
    """Whether a file is by its name a part of a checkpoint, and none itself."""
    return _prefix_of(file) is not None


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


def _damaged(path: Path, why: str) -> DataLossError:
    return DataLossError(
        f"the state file '{path}' is damaged: {why}",
        hint="pass the path of a checkpoint to restore(); "
        "restore_or_initialize(..., or_previous=True) takes the newest complete one",
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule by which checkpoints of one prefix stay: the last `most` (None: all), besides these
    the `best` by metric, and one every `hours`."""

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


_state_files = ForkLock()  # held from reading a state file to writing it


@dataclass
class SaveJob:
    """One checkpoint that is to be written, by the caller of `write` or by a thread."""

    state_path: Path
    row: SavedCheckpoint
    arrays: Mapping[str, Array]
    notes: Mapping[str, Any]
    retention: Retention
    kept: list[Path] = field(default_factory=list)  # of the same prefix, oldest first, when written
    _error: BaseException | None = None
    _thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        return self.state_path.parent / self.row.file

    def write(self) -> None:
        """Write it, then the state file, then remove what goes; errors as `write_atomically`."""
        write_file(self.path, self.arrays, self.notes)
        self.arrays = {}  # who waits for the job keeps it, not a copy of the model
        self.kept = record_checkpoint(self.state_path, self.row, self.retention)

    def start(self) -> None:
        """Write it in a thread."""
        # no daemon: a program that ends waits until its last checkpoint is written
        self._thread = threading.Thread(target=self._run, name=f"weft save {self.row.file}")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the thread; raises its error."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            self._error.add_note(f"this is the save of '{self.path}' that was begun before")
            raise self._error

    def _run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            log.error("saving %s failed: %s", self.path, error)
            self._error = error


def record_checkpoint(state_path: Path, row: SavedCheckpoint, retention: Retention) -> list[Path]:
    """Name a checkpoint that is written in the state file, then remove what is not kept any more;
    what is kept of its prefix, oldest first. Errors as `write_atomically`."""
    folder = state_path.parent
    with _state_files:
        try:
            known = load_manifest(state_path) or Manifest()
        except DataLossError as error:
            log.error("%s; it is made anew from the checkpoints that are there", error.what)
            known = Manifest(tuple(scan_folder(folder)))
        rows = [r for r in known.rows if r.file != row.file and (folder / r.file).exists()]
        stay, gone = retention.apply([*rows, row], row.prefix)
        going = [file for r in gone for file in files_of(folder / r.file)]
        files = dict.fromkeys([*known.removed, *going, *unnamed_shards(folder, row.prefix)])
        staying = {r.file for r in stay}
        removed = [f for f in files if f not in staying and (folder / f).exists()]
        store_manifest(state_path, Manifest(tuple(stay), tuple(removed)))
        for file in removed:
            try:
                with suppress(FileNotFoundError):
                    _remove(folder / file)
            except OSError as error:
                log.warning("cannot remove the old checkpoint %s: %s", folder / file, error)
    return [folder / r.file for r in stay if r.prefix == row.prefix]


def _remove(path: Path) -> None:
    """Remove a file that a save wrote; those are no links. OSError if it cannot be."""
    if not isinstance(cast(object, path), UrlPath) and not stat.S_ISREG(path.lstat().st_mode):
        raise OSError("it is no regular file")
    path.unlink()


def candidates(state_path: Path, or_previous: bool) -> list[SavedCheckpoint]:
    """What may be restored, oldest first: what the state file names.

    DataLossError if that is damaged; with `or_previous` what the folder holds, with a warning.
    """
    folder = state_path.parent
    try:
        known = load_manifest(state_path)
    except DataLossError as error:
        if not or_previous:
            raise
        log.warning("%s; the folder is searched", error.what)
        return scan_folder(folder)
    if known is None and any(folder.glob(f"*{SUFFIX}")):
        log.warning("%s has %s files, but no state file '%s': nothing is restored",
                    folder, SUFFIX, state_path.name)  # fmt: skip
    return [] if known is None else list(known.rows)


def scan_folder(folder: Path) -> list[SavedCheckpoint]:
    """The checkpoints of a folder whose state file is damaged, oldest first: those whose header is
    whole and has weft's checksums."""
    return sorted(_scanned(folder), key=lambda row: row.time)


def _scanned(folder: Path) -> Iterable[SavedCheckpoint]:
    single = [path for path in folder.glob(f"*{SUFFIX}") if not is_shard(path.name)]
    for path in sorted([*single, *folder.glob(f"*{MANIFEST}")]):
        try:
            with open_checkpoint(path) as file:
                notes = file.notes
        except (DataLossError, UnsupportedError, InvalidArgumentError) as error:
            log.warning("%s", error.what)
            continue
        if "time" in notes:
            try:
                yield saved_checkpoint(path.name, notes)
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s says of itself what no save writes: %s", path, error)


def with_suffix(name: bytes) -> Path:
    """The file of a checkpoint by its name, with or without the suffix."""
    path = path_of(os.fsdecode(name))
    return path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)


def save_arrays(
    name: bytes, arrays: Mapping[str, Array], keep: int = -1, within: Sequence[str] = ()
) -> None:
    """Write a checkpoint, whole or not at all.

    keep: -1 writes the file alone; else the folder's state file names it, as the latest, and so
    many checkpoints with its name (without `-<step>` at the end) stay, 0 for all. Errors as
    `write_atomically`; InvalidArgumentError for an empty name; PermissionDeniedError for a file
    that is not in one of the folders `within`, if there are any.
    """
    if not name:
        raise InvalidArgumentError("a checkpoint needs the name of a file, this one is empty")
    confined(os.fsdecode(name), within)  # before a file system is asked for anything
    path = with_suffix(name)
    confined(str(path.parent), within)
    confined(str(path), within)
    found = re.fullmatch(r"(.*)-(\d+)", path.name.removesuffix(SUFFIX))
    prefix, step = (found[1], int(found[2])) if found else (path.name.removesuffix(SUFFIX), None)
    notes: dict[str, Any] = {
        "step": step, "state": {}, "prefix": prefix, "time": round(time.time(), 3), "metric": None,
    }  # fmt: skip
    if keep < 0:
        write_file(path, arrays, notes)
        return
    row = SavedCheckpoint(path.name, prefix, step, notes["time"], None)
    SaveJob(path.parent / STATE_FILE, row, arrays, notes, Retention(keep or None)).write()


def restore_arrays(
    name: bytes,
    names: Sequence[str],
    types: Sequence[TensorType],
    within: Sequence[str] = (),
) -> list[Array]:
    """What a checkpoint has under `names`, of `types`; all are checked first.

    NotFoundError for a file or a name that is not there, InvalidArgumentError for another dtype or
    shape, DataLossError for a damaged file, PermissionDeniedError as `save_arrays`.
    """
    confined(os.fsdecode(name), within)  # before a file system is asked for anything
    path = find_checkpoint(path_of(os.fsdecode(name)))
    confined(str(path), within)
    with open_checkpoint(path) as file:
        for label, wanted in zip(names, types, strict=True):
            entry = file.entries.get(label)
            if entry is None:
                raise NotFoundError(
                    f"'{path}' has no '{label}'{suggest(label, list(file.entries))}"
                )
            if entry.dtype is not wanted.dtype or not wanted.allows(entry.shape):
                raise InvalidArgumentError(f"'{path}' has '{label}': {entry}, not {wanted}")
        return [file.read(label) for label in names]
