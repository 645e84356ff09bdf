"""Transport: endpoints for servers and sessions, where they are bound, and with which keys."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.comm.addresses import parse_address
from weft.comm.errors import AddressError, CommError
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.cluster.messages import CLIENT, SESSIONS, Received, Wire

if TYPE_CHECKING:
    from weft.comm.addresses import Secret
    from weft.comm.members import Remote

#: The file with the cluster's secret, where none is given.
KEY_FILE = "WEFT_KEY_FILE"
_own: Secret | None = None
#: 1: what this process sends carries checksums.
CHECKSUMS = "WEFT_CHECKSUMS"


def as_weft_error(error: CommError, what: str) -> WeftError:
    """An error of the transport as one of weft's."""
    text = f"{what}: {error}"
    if isinstance(error, AddressError):
        return InvalidArgumentError(text, hint="it is tcp://host:port or ipc:///path")
    if isinstance(error, (ConnectionError, TimeoutError)):
        return UnavailableError(text)
    return FailedPreconditionError(text)


def open_endpoint(
    name: str,
    bind: str,
    key_file: str | os.PathLike[str] | None,
    secret: Secret | None,
    on_message: Callable[[Received], None],
    on_link_lost: Callable[[str, object], None],
) -> Wire:
    """An endpoint at `bind`. The errors of the transport as weft's; InvalidArgumentError for a
    value of WEFT_CHECKSUMS that is not 0 or 1."""
    from weft.comm.endpoint import Endpoint  # loads ZeroMQ, which only clusters need

    try:
        given = secret if secret is not None else secret_for([bind], key_file)
        made: Any = Endpoint(
            name,
            bind,
            secret=given,
            on_message=on_message,
            on_link_lost=on_link_lost,
            checksums=_checksums(),
            counted_as=_counted_as,
        )
    except CommError as error:
        raise as_weft_error(error, f"{name} cannot listen at {bind}") from None
    return made  # type: ignore[no-any-return]


def _counted_as(peer: str) -> str:
    """Tasks by their names; all sessions, of which there may be any number, as one."""
    return SESSIONS if peer.startswith(CLIENT) else peer


def _checksums() -> bool:
    given = os.environ.get(CHECKSUMS, "")
    if given not in ("", "0", "1"):
        raise InvalidArgumentError(f"{CHECKSUMS}={given!r} is neither 0 nor 1")
    return given == "1"


def use_secret(secret: Secret) -> None:
    """This process is of a cluster that has this secret, which no file holds."""
    global _own
    _own = secret


def secret_for(addresses: Iterable[str], key_file: str | os.PathLike[str] | None) -> Secret | None:
    """The cluster's secret: of the file given, else that of `use_secret`, else of the file that
    WEFT_KEY_FILE names, else, if others than this machine reach one of the addresses, of the user's
    own, if there is one. KeyFileError."""
    from weft.comm.addresses import Secret, default_key_file

    if key_file is None and _own is not None:
        return _own
    given = key_file if key_file is not None else os.environ.get(KEY_FILE) or None
    if given is None and not all(parse_address(a).is_local for a in addresses):
        own = default_key_file()
        given = own if own.exists() else None
    return None if given is None else Secret.from_file(given)


def remote_of(
    addresses: Sequence[str], key_file: str | os.PathLike[str] | None, what: str
) -> Remote | None:
    """How tasks on several hosts reach each other; None for those of one. what: asks for it, for
    errors: InvalidArgumentError for a mix of ipc and tcp, and those of `secret_for`."""
    hosts = {"" if a.startswith("ipc://") else a.rpartition(":")[0] for a in addresses}
    if len(hosts) == 1:
        return None
    from weft.comm.members import Remote

    if "" in hosts:
        raise InvalidArgumentError(
            f"{what}: tasks at ipc addresses are of one host, and others are at tcp addresses",
            location=caller_location(),
        )
    try:
        return Remote(tuple(addresses), secret_for(addresses, key_file))
    except CommError as error:
        raise as_weft_error(error, what) from None


def knows_peers(bind: str, key_file: str | os.PathLike[str] | None, secret: Secret | None) -> bool:
    """Whether whoever reaches an endpoint at `bind` holds the secret or is this user: any user of
    the machine reaches a loopback port. Errors as `secret_for`."""
    if secret is not None or secret_for([bind], key_file) is not None:
        return True
    where = parse_address(bind)
    if where.scheme != "ipc" or where.host.startswith("@"):  # that has no permissions
        return False
    try:
        status = os.lstat(where.host)
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH  # to connect is to write
    return status.st_uid == os.geteuid() and not status.st_mode & others


class ClientAddress:
    """Where a session listens for the answers of tasks: reachable from where the target is.

    For an ipc target a socket in a folder of its own, which `close` removes; if the process dies
    before, the next session of the user's does.
    """

    def __init__(self, target: str, who: str = "wf.Session(target={!r})") -> None:
        self._folder: Path | None = None
        try:
            where = parse_address(target)
        except AddressError as error:
            raise as_weft_error(error, who.format(target)) from None
        if where.scheme == "ipc":
            _remove_left_over()
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # only this user may look in
            self._lock = _locked(self._folder)
            self.bind = f"ipc://{self._folder}/session"
        elif where.is_local:
            self.bind = "tcp://127.0.0.1:*" if ":" not in where.host else "tcp://[::1]:*"
        else:
            self.bind = f"tcp://{_towards(where.host, where.port)}:*"

    def close(self) -> None:
        """Remove the folder. A second call does nothing."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)


_PREFIX = "weft-session-"


def _locked(folder: Path) -> int | None:
    """A lock on a folder, which ends with the process; None if another one has it, or it is no
    folder of a session of this user's."""
    try:
        held = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _remove_left_over() -> None:
    """Remove the folders of sessions whose processes have died."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        held = _locked(folder) if _is_old(folder) else None
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)


def _is_old(folder: Path) -> bool:
    """Whether it is a folder of this user's that was not made just now (and is not locked yet). In
    one of another user `lock` may be a link to anything."""
    try:
        found = os.lstat(folder)
    except OSError:  # it is gone
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return own and time.time() - found.st_mtime >= 5


def _towards(host: str, port: int) -> str:
    """The address of this machine on the way to another one."""
    try:
        family, kind, number, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.connect(where)  # sends nothing
            found = str(probe.getsockname()[0])
    except OSError as error:
        raise UnavailableError(f"there is no way to {host}: {error}") from None
    return f"[{found}]" if ":" in found else found
