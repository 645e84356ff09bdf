"""The cluster's secret: 32 random bytes in a file that nobody else may read.

Whoever holds it can run graphs in every task of the cluster: it is as good as a shell account.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from weft.comm.errors import KeyFileError

SECRET_BYTES: Final = 32


class Secret:
    """The secret of a cluster. Its repr does not show it."""

    __slots__ = ("_bytes",)

    def __init__(self, data: bytes) -> None:
        if len(data) != SECRET_BYTES:
            raise KeyFileError(f"a secret is {SECRET_BYTES} bytes, made by `weft keygen`")
        if len(set(data)) < 8:
            raise KeyFileError("this secret is not random: make one with `weft keygen`")
        self._bytes = data

    def __repr__(self) -> str:
        return "Secret(...)"

    @staticmethod
    def generate() -> Secret:
        return Secret(secrets.token_bytes(SECRET_BYTES))

    @staticmethod
    def from_hex(text: str) -> Secret:
        """From 64 hexadecimal digits."""
        try:
            return Secret(bytes.fromhex(text.strip()))
        except ValueError:
            raise KeyFileError(f"a secret is {2 * SECRET_BYTES} hexadecimal digits") from None

    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Secret:
        """Read a file of `weft keygen`. KeyFileError if it is missing, not a key, not the user's
        own, or readable or writable by others (its mode must be 0600 or 0400)."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise KeyFileError(f"the key file {os.fspath(path)} cannot be read: {error}") from None
        with os.fdopen(descriptor, "r", encoding="ascii", errors="replace") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"the key file {os.fspath(path)} is not a file")
            if status.st_uid not in (os.geteuid(), 0):
                raise KeyFileError(f"the key file {os.fspath(path)} belongs to another user")
            if status.st_mode & 0o077:
                raise KeyFileError(
                    f"others may read or write the key file {os.fspath(path)} (its mode is "
                    f"{status.st_mode & 0o777:04o}): chmod 600 it, and make a new key if others "
                    "have an account here"
                )
            text = file.read(4 * SECRET_BYTES)
        return Secret.from_hex(text)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a new file of mode 0600. FileExistsError if there is one."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask is
            file.write(self._bytes.hex() + "\n")

    def hex(self) -> str:
        """64 hexadecimal digits, for a file or a pipe; never for a command line, which others
        see."""
        return self._bytes.hex()

    def derive(self, person: bytes) -> bytes:
        """32 bytes of its own for each use (`person`: at most 16 bytes)."""
        return hashlib.blake2b(self._bytes, digest_size=32, person=person).digest()


def default_key_file() -> Path:
    """Where `weft keygen` puts a key, and tasks look for one, if nothing else is said."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "weft" / "cluster.key"
