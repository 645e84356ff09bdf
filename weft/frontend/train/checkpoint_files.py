"""Checkpoint files: which checkpoints a folder has, and what is in one (`latest_checkpoint` and the
like)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    suggest,
)
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.folder import STATE_FILE, Manifest, Retention, load_manifest
from weft.runtime.checkpoint.format import RESERVED, Array
from weft.runtime.checkpoint.sharded import checkpoint_name, find_checkpoint, open_checkpoint

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class CheckpointState:
    """TensorFlow 1's fields: the path of the latest checkpoint, and those of all that are kept, in
    the order in which they were saved."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(
    checkpoint_dir: PathLike, latest_filename: str | None = None
) -> CheckpointState | None:
    """What the state file of a folder says; None if there is none, or it names no checkpoint.

    DataLossError naming it if it is damaged.
    """
    folder = as_path(checkpoint_dir)
    manifest = load_manifest(state_file(folder, latest_filename))
    if manifest is None or manifest.latest is None:
        return None
    return CheckpointState(
        checkpoint_name(folder / manifest.latest.file),
        [checkpoint_name(folder / row.file) for row in manifest.rows],
    )


def latest_checkpoint(checkpoint_dir: PathLike, latest_filename: str | None = None) -> str | None:
    """The path of the checkpoint that was saved last, for `Saver.restore`; None if there is none.

    It is what the state file says; whether the file is as it was written shows when it is restored.
    DataLossError naming the state file if that is damaged.
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return None if state is None else state.model_checkpoint_path


def best_checkpoint(
    checkpoint_dir: PathLike, mode: str = "min", latest_filename: str | None = None
) -> str | None:
    """The path of the checkpoint with the least metric (mode="max": the greatest); of equal ones
    the later. None if no checkpoint that is kept has a metric."""
    folder = as_path(checkpoint_dir)
    manifest = load_manifest(state_file(folder, latest_filename)) or Manifest()
    ranked = Retention(mode=check_mode(mode)).rank(manifest.rows)
    return checkpoint_name(folder / ranked[0].file) if ranked else None


def checkpoint_exists(checkpoint_prefix: PathLike) -> bool:
    """Whether there is a checkpoint of that path, with or without its suffix."""
    return os.path.isfile(checkpoint_path(checkpoint_prefix))


def list_variables(checkpoint_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Name and shape of each variable in a checkpoint, or in the latest one of a folder.

    NotFoundError if there is none, DataLossError for a damaged one.
    """
    with open_checkpoint(_file_of(checkpoint_dir_or_file)) as file:
        rows = [(name, list(entry.shape)) for name, entry in file.entries.items()]
    return [row for row in rows if not row[0].startswith(RESERVED)]


def load_variable(checkpoint_dir_or_file: PathLike, name: str) -> Array:
    """The value of one variable in a checkpoint, or in the latest one of a folder.

    NotFoundError with the closest names, DataLossError for a damaged file, UnsupportedError for a
    dtype that weft does not have.
    """
    with open_checkpoint(_file_of(checkpoint_dir_or_file)) as file:
        entry = file.entries.get(name)
        if entry is None:
            raise NotFoundError(
                f"'{file.path}' has no variable '{name}'{suggest(name, list(file.entries))}",
                location=caller_location(),
            )
        if entry.dtype is None:
            raise UnsupportedError(
                f"'{name}' in '{file.path}' is {entry}, a dtype that weft does not have",
                location=caller_location(),
            )
        return np.array(file.read(name))


def _file_of(given: PathLike) -> Path:
    if not os.path.isdir(as_path(given)):
        return checkpoint_path(given)
    latest = latest_checkpoint(given)
    if latest is None:
        raise NotFoundError(f"there is no checkpoint in '{given}'", location=caller_location())
    return checkpoint_path(latest)


def checkpoint_path(given: PathLike) -> Path:
    """The file of a checkpoint's path, with or without its suffix; of several files the manifest.

    InvalidArgumentError for a path that is both.
    """
    return find_checkpoint(as_path(given))


def as_path(given: object) -> Path:
    """A path. InvalidArgumentError for what is none, also None."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidArgumentError(
            f"a path is expected, got {given!r:.60}",
            hint="wf.train.latest_checkpoint is None where there is no checkpoint; "
            "Saver.restore_or_initialize asks for that itself",
            location=caller_location(),
        )
    return Path(os.fsdecode(given))


def state_file(folder: Path, latest_filename: str | None) -> Path:
    """The state file of a folder. InvalidArgumentError for a name that is a path."""
    name = STATE_FILE if latest_filename is None else latest_filename
    if not name or Path(name).name != name:
        raise InvalidArgumentError(
            f"latest_filename must be the name of a file in the same folder, got {name!r}",
            location=caller_location(),
        )
    return folder / name


def check_mode(mode: str) -> str:
    """ "min" or "max"."""
    if mode not in ("min", "max"):
        raise InvalidArgumentError(
            f"mode must be 'min' or 'max', got {mode!r}", location=caller_location()
        )
    return mode
