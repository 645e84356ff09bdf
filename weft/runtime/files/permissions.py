"""Permission to use files, which graphs need that come from a file or another process.

What such a graph does to files is up to its author: `grant` refuses its ops on files, or binds them
to folders, by their attribute `within`; `confined` is where they keep to it when they run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from weft.ir.errors import InvalidArgumentError, PermissionDeniedError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import caller_location
from weft.ir.ops.io import USES_FILES
from weft.ir.spec import strs_attr
from weft.runtime.files.paths import is_url

#: What some stores, or the libraries before them, take for "." or "/", or leave out.
_ENCODED = re.compile(r"%2e|%2f|%5c|[\0-\x1f\x7f]", re.IGNORECASE)
#: URLs of files of the system, which may be links.
_LOCAL = re.compile(r"(?:file|local)://")
PathLike = str | os.PathLike[str]
#: None, False: none; True: all that the process may use; else those in a folder, or in several.
AllowFiles = bool | PathLike | Sequence[PathLike] | None


def grant(graph: Graph, allowed: AllowFiles, hint: str = "") -> Graph:
    """The same graph, which was just read and is nobody else's, with its ops on files bound to what
    is allowed. PermissionDeniedError at the first if nothing is; hint: how to allow it."""
    if allowed is True:
        return graph
    folders = _folders(allowed)
    for op in graph.walk():
        if not needs_leave(op):
            continue
        bound = strs_attr(op.attrs, "within")
        both = _common(bound, folders)
        if not both:
            raise PermissionDeniedError(
                f"op '{op.name}' of the graph '{graph.name}', which was not built in this process, "
                + (f"uses files in {', '.join(bound)}" if bound else "uses files")
                + ", and nothing allows that",
                hint=hint
                or "if you trust whoever wrote the graph: allow_files='DIR' for the files of a "
                "folder, allow_files=True for all",
                location=op.locations,
            )
        op.attrs["within"] = both
    return graph


def needs_leave(op: Operation) -> bool:
    """Whether an op names files that it reads or writes."""
    return op.name in USES_FILES and op.attrs.get("kind") != "identity"


def _folders(allowed: AllowFiles) -> tuple[str, ...]:
    if allowed is None or allowed is False:
        return ()
    given: object = [allowed] if isinstance(allowed, (str, os.PathLike)) else allowed
    folders: list[str] = []
    for one in given if isinstance(given, Sequence) else (None,):
        if not isinstance(one, (str, os.PathLike)) or not os.fspath(one):
            raise InvalidArgumentError(
                f"allow_files={allowed!r:.80} is neither a folder nor a list of folders",
                hint="True allows all files",
                location=caller_location(),
            )
        folders.append(_real(os.fspath(one)))
    return tuple(folders)


def _common(bound: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    """What lies in both; bound: nothing stands for everything."""
    if not bound:
        return tuple(folders)
    pairs = [(_real(b), f) for b in bound if "\0" not in b for f in folders]
    inner = (a if _is_in(a, b) else b if _is_in(b, a) else "" for a, b in pairs)
    return tuple(dict.fromkeys(filter(None, inner)))


def _real(path: str) -> str:
    """Links followed, in URLs of files of the system too; another URL as it is."""
    if not is_url(path):
        return os.path.realpath(path)
    local = _LOCAL.match(path)
    if local is None or "::" in path:
        return path.rstrip("/")
    return "file://" + os.path.realpath(os.path.expanduser(path[local.end() :]))


def _is_in(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, both as `_real` gives them. A URL lies in one that it begins
    with; what leads elsewhere, "..", or names another file system behind its "::", lies nowhere."""
    if not is_url(path) and not is_url(folder):
        return os.path.commonpath((path, folder)) == folder
    if ".." in re.split(r"[/\\]", path) or "::" in path or _ENCODED.search(path):
        return False
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def confined(path: str, within: Sequence[str]) -> str:
    """`path`, if it is, links followed, in one of the folders, or if there is no such bound;
    PermissionDeniedError otherwise."""
    if not within:
        return path
    try:
        real = _real(path)
    except ValueError:  # no name of a file: whoever opens it says so
        return path
    if any(_is_in(real, folder) for folder in within):
        return path
    raise PermissionDeniedError(
        f"the graph may not use the file {path!r}: it is not in {' or '.join(within)}",
        hint="allow_files= (--allow-files) says which folders it may use",
    )
