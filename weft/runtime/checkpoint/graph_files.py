"""Checkpoints that a step writes and reads: what the ops `save` and `restore` do."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.ir.types import TensorType
from weft.runtime.checkpoint.encoding import Array
from weft.runtime.checkpoint.folder import SaveJob
from weft.runtime.checkpoint.format import SUFFIX, write_file
from weft.runtime.checkpoint.manifest import STATE_FILE, Retention, SavedCheckpoint
from weft.runtime.checkpoint.sharded import find_checkpoint, open_checkpoint
from weft.runtime.files.leave import confined


def with_suffix(name: bytes) -> Path:
    """The file of a checkpoint by its name, with or without the suffix."""
    path = Path(os.fsdecode(name))
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
    path = find_checkpoint(Path(os.fsdecode(name)))
    confined(str(path), within)
    with open_checkpoint(path) as file:
        for label, wanted in zip(names, types, strict=True):
            entry = file.entries.get(label)
            if entry is None:
                raise NotFoundError(
                    f"'{path}' has no '{label}'{suggest(label, list(file.entries))}"
                )
            if (entry.dtype, entry.shape) != (wanted.dtype, wanted.shape):
                raise InvalidArgumentError(f"'{path}' has '{label}': {entry}, not {wanted}")
        return [file.read(label) for label in names]
