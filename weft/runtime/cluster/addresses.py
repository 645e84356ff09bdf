"""Addresses of tasks: `tcp://host:port` and `ipc:///path`, as ZeroMQ writes them."""

from __future__ import annotations

import re

from weft.ir.errors import InvalidArgumentError

_TCP = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
_LONGEST_PATH = 107  # bytes in sockaddr_un.sun_path, less the zero at its end
_IPC = "ipc://"


def parse_address(given: object) -> str:
    """The address in canonical form: `host:port` (TensorFlow's form) gets `tcp://`.

    Port 0 stands for one that the system chooses when the task starts. InvalidArgumentError for
    anything else.
    """
    text = given if isinstance(given, str) else ""
    if text.startswith(_IPC):
        path = text[len(_IPC) :]
        if not path.startswith("/") or "\0" in path or len(path.encode()) > _LONGEST_PATH:
            raise InvalidArgumentError(
                f"the address {given!r:.200} is no ipc:// address",
                hint=f"ipc:// and an absolute path of at most {_LONGEST_PATH} bytes",
            )
        return text
    found = _TCP.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise InvalidArgumentError(
            f"{given!r:.200} is no address of a task",
            hint="'host:port', 'tcp://host:port' or 'ipc:///path'; grpc:// is not spoken here",
        )
    return f"tcp://{found[1]}:{int(found[2])}"


def tcp_address(host: str, port: int) -> str:
    """`tcp://host:port`; an IPv6 address gets its brackets. InvalidArgumentError as above."""
    return parse_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def is_open(address: str) -> bool:
    """Whether the system chooses the port: such an address cannot be connected to."""
    return address.startswith("tcp://") and address.endswith(":0")
