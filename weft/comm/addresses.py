"""Addresses of endpoints: tcp://host:port, ipc:///path or ipc://@name; who can reach them, and the
secret that they share.

The cluster's secret: 32 random bytes in a file that nobody else may read. Whoever holds it can run
graphs in every task of the cluster: it is as good as a shell account."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weft.comm.errors import AddressError, InsecureAddressError, KeyFileError

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


MAX_ADDRESS = 512
_WILDCARDS = ("*", "0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Address:
    """`host` is the path for ipc; `port` is 0 there, and where the system chooses one."""

    scheme: str
    host: str
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """All of the machine's interfaces: bound to, but not connected to."""
        return self.scheme == "tcp" and self.host in _WILDCARDS

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it."""
        if self.scheme == "ipc":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name: what it resolves to may change


def parse_address(text: str) -> Address:
    """Raises AddressError for anything but the three forms."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("tcp", "ipc") or len(text) > MAX_ADDRESS:
        raise AddressError(f"{text[:80]!r} is no address")
    if scheme == "ipc":
        if rest in ("", "@") or not rest.isprintable():
            raise AddressError(f"{text!r} names no path: ipc:///path, or ipc://@name")
        if len(rest.encode()) > 104:  # sun_path has 108 bytes
            raise AddressError(f"the path of {text!r} is longer than a socket's may be (104)")
        return Address("ipc", rest)
    host, separator, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    host = "127.0.0.1" if host == "localhost" else host  # one name for one place
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:*%")
    if not separator or not host or not set(host) <= allowed:
        raise AddressError(f"{text!r} is no address: tcp://host:port is")
    if port != "*" and not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise AddressError(f"{text!r} has no port: a number below 65536, or * for any")
    return Address("tcp", host, 0 if port == "*" else int(port))


def check_reach(address: Address, secured: bool, allow_plain: bool) -> None:
    """InsecureAddressError for an address beyond this machine without keys, unless asked for."""
    if secured or allow_plain or address.is_local:
        return
    raise InsecureAddressError(
        f"{address} can be reached from other machines, and whoever reaches a task can run graphs "
        "in it: give all tasks and sessions one secret (`weft keygen FILE`, then key_file=, "
        "--key-file or WEFT_KEY_FILE)"
    )


def check_free(address: Address) -> None:
    """AddressError for an ipc path where another task listens, or that is no socket's: libzmq
    deletes whatever is there."""
    if address.scheme != "ipc" or address.host.startswith("@"):
        return
    try:
        mode = os.lstat(address.host).st_mode
    except OSError:
        return  # nothing is there, or binding says what is wrong
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{address} is the path of something else, which is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.host)
        except BlockingIOError:
            pass  # so many connect to it that there is no room
        except OSError:
            return  # its task is gone
    raise AddressError(f"another task listens at {address}")


def advertised(name: str, bound: Address, advertise: str | None) -> str:
    """The address that peers connect to: `advertise`, else where the task `name` listens.
    AddressError for one that is no place."""
    address = parse_address(advertise) if advertise is not None else bound
    if advertise is not None and address.scheme == "tcp" and address.port == 0:
        address = Address("tcp", address.host, bound.port)
    if address.is_wildcard:
        raise AddressError(
            f"{name} listens at {bound}, which is no address to connect to: say with "
            "advertise= how others reach it"
        )
    return str(address)


def socket_file(bound: Address) -> tuple[str, int] | None:
    """The file, and its inode, of an ipc address that was bound just now: its user's alone from
    here on."""
    if bound.scheme != "ipc" or bound.host.startswith("@"):
        return None
    os.chmod(bound.host, 0o600)
    return bound.host, os.stat(bound.host).st_ino


def remove_socket_file(path: str, inode: int) -> None:
    """libzmq leaves it; another task may have taken its place."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)
