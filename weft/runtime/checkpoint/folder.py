"""A folder of checkpoints: writing one, naming it in the state file, removing those that go."""

from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError, InvalidArgumentError, UnsupportedError
from weft.ir.process import ForkLock
from weft.runtime.checkpoint.encoding import Array
from weft.runtime.checkpoint.format import SUFFIX, write_file
from weft.runtime.checkpoint.manifest import (
    Manifest,
    Retention,
    SavedCheckpoint,
    load_manifest,
    saved_checkpoint,
    store_manifest,
)
from weft.runtime.checkpoint.sharded import (
    MANIFEST,
    files_of,
    is_shard,
    open_checkpoint,
    unnamed_shards,
)

log = logging.getLogger("weft.checkpoint")
_state_files = ForkLock()  # held from reading a state file to writing it


@dataclass
class SaveJob:
    """One checkpoint that is to be written: by who calls `write`, or by a thread."""

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
    if not stat.S_ISREG(path.lstat().st_mode):
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
