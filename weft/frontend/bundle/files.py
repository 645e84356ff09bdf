"""The files of a bundle: a folder with `bundle.json`, one graph as text for each signature, and
`weights.safetensors`.

`bundle.json` has the signatures (names, dtypes and sizes of inputs and outputs), the weights, of
each file its size and sha256 (of the weights' file that of its metadata, which have the sha256 of
every array), and the sha256 of all this. A folder is written beside its place and renamed, so it is
there whole or not at all; where the place is a URL, `bundle.json` is written last. What is read is
checked before it is used: a bundle may come from anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.format import (
    CheckpointFile,
    check_file_name,
    read_whole,
    write_atomically,
    write_file,
)
from weft.runtime.files.paths import UrlPath, is_file, is_there, path_of

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]

FORMAT = 1
MANIFEST, WEIGHTS, GRAPH = "bundle.json", "weights.safetensors", ".weft"
#: What is read of files that say nothing of their own size: bytes.
_LONGEST_MANIFEST = 16 << 20
#: The longest text of a graph, which takes some fifty times its size while it is parsed: bytes.
_LONGEST_TEXT = 256 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def is_bundle(path: PathLike) -> bool:
    """Whether a bundle is there."""
    return is_there(path_of(path) / MANIFEST)


def bundle_of(path: str) -> tuple[str, str] | None:
    """The folder and the signature of `FOLDER`, or of `FOLDER:SIGNATURE`; None for other paths."""
    folder, _, signature = path.rpartition(":")
    if is_bundle(path):
        return path, ""
    return (folder, signature) if folder and is_bundle(folder) else None


def checked_name(name: object, what: str) -> str:
    """`name`, if signatures, and the files of their graphs, may be called so. InvalidArgumentError
    otherwise."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidArgumentError(
        f"{what} {name!r:.120} is no name for a signature",
        hint="letters, digits, '_', '-' and '.', at most 100",
    )


def write_bundle(
    path: PathLike,
    manifest: Mapping[str, Any],
    texts: Mapping[str, str],
    weights: Mapping[str, Array],
    *,
    replace: bool,
) -> None:
    """Write a bundle to the folder `path`. texts: graphs, by the names of their files.

    AlreadyExistsError if something is there, unless it is to be replaced and is a bundle; errors as
    `write_atomically` has."""
    place = path_of(path)
    is_url = isinstance(cast(object, place), UrlPath)
    if not is_url and os.path.islink(place):
        place = Path(os.path.realpath(place))  # what it leads to is replaced
    if is_there(place / MANIFEST if is_url else place):
        if not replace or not is_there(place / MANIFEST):
            raise AlreadyExistsError(
                f"wf.export: '{place}' is there already",
                hint="replace=True replaces a bundle" if is_there(place / MANIFEST) else
                "it is no bundle: give another path, or remove it",
            )  # fmt: skip
    if is_url:
        _write_files(place, manifest, texts, weights)
        return
    beside = place.with_name(f".{place.name}-{os.getpid()}-{os.urandom(4).hex()}.weft-tmp")
    try:
        _write_files(beside, manifest, texts, weights)
        if is_there(place):
            old = beside.with_name(beside.name + "-old")
            os.rename(place, old)
            try:
                os.rename(beside, place)
            except OSError:
                os.rename(old, place)
                raise
            shutil.rmtree(old)
        else:
            os.rename(beside, place)
    except OSError as error:
        if isinstance(error, WeftError):
            raise
        raise FailedPreconditionError(
            f"wf.export: cannot write '{place}': {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write_files(
    folder: Path,
    manifest: Mapping[str, Any],
    texts: Mapping[str, str],
    weights: Mapping[str, Array],
) -> None:
    files: dict[str, Any] = {}
    for name, text in texts.items():
        data = text.encode()
        write_atomically(folder / name, [memoryview(data)])
        files[name] = _entry(data)
    write_file(folder / WEIGHTS, weights, {})
    with CheckpointFile(folder / WEIGHTS) as written:
        files[WEIGHTS] = {"sha256_of_metadata": written.digest}
    whole = {"weft_bundle": FORMAT, **manifest, "files": files}
    whole["sha256"] = digest_of(whole)
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, [memoryview(text.encode())])


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The sha256 of what a manifest says, however it is written."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """What a bundle's files hold, with their checks done. manifest: of `bundle.json`; texts: graphs
    by file; weights: arrays by name."""

    path: Path
    manifest: Mapping[str, Any]
    texts: Mapping[str, str]
    weights: Mapping[str, Array]


def read_bundle(path: PathLike) -> BundleFiles:
    """The content of a bundle.

    NotFoundError where there is none, UnsupportedError for a later format, DataLossError for files
    that are missing, damaged, or not those that were written together, ResourceExhaustedError for
    weights that do not fit into memory."""
    place = path_of(path)
    if not is_bundle(path):
        raise NotFoundError(
            f"wf.load: '{place}' is no bundle: it has no {MANIFEST}",
            hint="wf.export(model, path) writes one",
            location=caller_location(),
        )
    manifest = _manifest(place)
    texts: dict[str, str] = {}
    for name, entry in _files(place, manifest).items():
        if name != WEIGHTS:
            texts[name] = _text(place, name, entry)
    return BundleFiles(place, manifest, texts, _weights(place, manifest["files"]))


def damaged(place: object, why: str) -> DataLossError:
    """The error for a bundle whose files are not as they were written."""
    return DataLossError(
        f"the bundle '{place}' is damaged: {why}",
        hint="copy or export it again",
        location=caller_location(),
    )


def _manifest(place: Path) -> dict[str, Any]:
    data = _bytes(place, MANIFEST, _LONGEST_MANIFEST)
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(place, f"{MANIFEST}: {error}") from None
    if not isinstance(manifest, dict) or "weft_bundle" not in manifest:
        raise damaged(place, f"{MANIFEST} is not that of a bundle")
    if manifest["weft_bundle"] != FORMAT:
        raise UnsupportedError(
            f"the bundle '{place}' has the format {manifest['weft_bundle']!r:.40}, this weft reads "
            f"{FORMAT}",
            hint=f"it was written by weft {manifest.get('weft')!r:.40}",
            location=caller_location(),
        )
    if manifest.get("sha256") != digest_of(manifest):
        raise damaged(place, f"{MANIFEST} is not the file that was written")
    return manifest


def _files(place: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    files = manifest.get("files")
    if not isinstance(files, dict) or not isinstance(files.get(WEIGHTS), dict):
        raise damaged(place, f"{MANIFEST} lists no files")
    for name in files:
        try:
            check_file_name(name, (GRAPH, WEIGHTS))
        except ValueError as error:
            raise damaged(place, str(error)) from None
    return files


def _text(place: Path, name: str, entry: object) -> str:
    data = _bytes(place, name, _LONGEST_TEXT)
    if entry != _entry(data):
        raise damaged(place, f"{name} is not the file that was written ({MANIFEST} has its sha256)")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged(place, f"{name}: {error}") from None


def _bytes(place: Path, name: str, most: int) -> bytes:
    """A file whole. A DataLossError for one that is missing, none, or longer than `most`."""
    path = place / name
    try:
        if not is_file(path):
            raise damaged(place, f"it has no file {name}")
        if not isinstance(cast(object, path), UrlPath) and os.stat(path).st_size > most:
            raise damaged(place, f"{name} has more than {most:,} bytes")
        data = read_whole(path)
    except OSError as error:
        if isinstance(error, WeftError):
            raise
        raise damaged(place, f"cannot read {name}: {error.strerror or error}") from error
    if len(data) > most:
        raise damaged(place, f"{name} has more than {most:,} bytes")
    return data


def _weights(place: Path, files: Mapping[str, Any]) -> dict[str, Array]:
    try:
        with CheckpointFile(place / WEIGHTS) as file:
            if {"sha256_of_metadata": file.digest} != files[WEIGHTS]:
                raise damaged(place, f"{WEIGHTS} is not the file that was written")
            return {name: file.read(name) for name in file.entries}
    except MemoryError as error:
        if isinstance(error, WeftError):
            raise
        raise ResourceExhaustedError(
            f"the weights of the bundle '{place}' do not fit into memory",
            location=caller_location(),
        ) from None
    except (NotFoundError, DataLossError, InvalidArgumentError) as error:
        raise damaged(place, error.what) from error
