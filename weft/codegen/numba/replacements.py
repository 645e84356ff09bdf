"""Kernels that a file of the user's replaces: `weft kernel use FILE` puts one here, by the key that
is in its first line; `weft kernel drop` takes it out.

They lie in the folder of the cache, in `replaced`, one for each key, and hold for every process
that uses that folder, with WEFT_CACHE=0 too; a process reads it once, and again when it changes it
itself. They are code that will run: a file or folder that another user owns, or that others may
write, is not read. What replaces a kernel must take that kernel's arguments."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from weft.codegen.llvm.cache import cache_folder, make_private, read_trusted
from weft.ir.errors import InvalidArgumentError, NotFoundError

_log = logging.getLogger("weft.compile")
#: The first line of a printed kernel, by which a file is known; its key follows.
MARK = "# weft kernel "
_FOLDER = "replaced"
#: The text and the path of each file, by the key of the kernel that it replaces.
Replacements = Mapping[str, tuple[str, str]]
_fixed: ContextVar[Replacements | None] = ContextVar("weft_replacements", default=None)
_read: dict[Path, dict[str, tuple[str, str]]] = {}


def key_of(text: str, where: str) -> str:
    """The key in the first line of a kernel's file. InvalidArgumentError if it has none."""
    first = text.split("\n", 1)[0]
    if not first.startswith(MARK) or not first.removeprefix(MARK).strip():
        raise InvalidArgumentError(
            f"{where} does not begin with '{MARK.strip()} KEY'",
            hint="keep the header of the file that weft printed: the key says what it replaces",
        )
    return first.removeprefix(MARK).strip()


def _folder() -> Path | None:
    base = cache_folder()
    return None if base is None else base / _FOLDER


def replacements() -> Replacements:
    """What is replaced: what `with_replacements` says, else what is in the folder."""
    fixed = _fixed.get()
    if fixed is not None:
        return fixed
    folder = _folder()
    if folder is None:
        return {}
    found = _read.get(folder)
    if found is None:
        found = {}
        for path in sorted(folder.glob("*.py")) if folder.is_dir() else ():
            data = read_trusted(path, "the kernel that it replaces is the generated one")
            if data is None:
                continue
            try:
                text = data.decode()
                found[key_of(text, str(path))] = text, str(path)
            except (UnicodeDecodeError, InvalidArgumentError):
                _log.warning("%s is no kernel that `weft kernel use` put there: not read", path)
        _read[folder] = found
    return found


def replacement(key: str) -> tuple[str, str] | None:
    """The text that replaces a kernel, and where it lies; None: nothing does."""
    return replacements().get(key)


@contextmanager
def with_replacements(held: Replacements) -> Iterator[None]:
    """Within, these are the kernels that are replaced."""
    token = _fixed.set(held)
    try:
        yield
    finally:
        _fixed.reset(token)


def digest() -> str:
    """A digest of all that is replaced, for the keys of plans; "" if nothing is."""
    held = replacements()
    if not held:
        return ""
    content = repr(sorted((key, text) for key, (text, _) in held.items()))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def forget() -> None:
    """Have the folder read again."""
    _read.clear()


def use(text: str, where: str) -> Path:
    """Put a file's text in the place of the kernel that it names; the path of the copy."""
    key, folder = key_of(text, where), _folder()
    if folder is None:
        raise InvalidArgumentError(
            "there is no folder for replaced kernels", hint="set WEFT_CACHE_DIR to one"
        )
    try:
        make_private(folder)
        path = folder / f"{_safe(key)}.py"
        temporary = folder / f".{os.getpid()}.tmp"  # another process reads all of it, or none
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(text.encode())
        temporary.replace(path)
    except OSError as error:
        raise InvalidArgumentError(
            f"{folder} cannot hold a kernel: {error}",
            hint="set WEFT_CACHE_DIR to a folder that only you write",
        ) from None
    forget()
    return path


def drop(key: str | None) -> list[str]:
    """Take out what replaces a kernel, or everything (None); the keys. NotFoundError if nothing
    replaces that kernel."""
    held = replacements()
    keys = [*held] if key is None else [key]
    for one in keys:
        if one not in held:
            listed = ", ".join(held) or "none"
            raise NotFoundError(
                f"nothing replaces the kernel '{one}'", hint=f"replaced are: {listed}"
            )
        Path(held[one][1]).unlink(missing_ok=True)
    forget()
    return keys


def _safe(key: str) -> str:
    name = re.sub(r"[^\w.-]", "_", key)
    return name if name == key else f"{name[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
