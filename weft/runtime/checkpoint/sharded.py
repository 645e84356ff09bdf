"""Checkpoints of several files, one for each task that holds variables, and a manifest.

`model-7.manifest.json` says which files belong to it and what is in which; it is written, whole or
not at all, when all of them are there, and replaces the one before under its name. The names of the
files hold a number that each save draws anew, so a save that ends halfway overwrites nothing. The
number stands in the files, too: a file that was exchanged is found out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError, InvalidArgumentError, NotFoundError
from weft.runtime.checkpoint.atomic import (
    MANIFEST,
    SUFFIX,
    check_file_name,
    read_whole,
    write_atomically,
)
from weft.runtime.checkpoint.format import Array, CheckpointFile, Entry

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
