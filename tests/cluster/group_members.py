"""Members of collective groups in processes of their own, and what their sums are."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from paths import ROOT

from weft.comm import group as group_module
from weft.comm import post
from weft.comm.group import Call, Group

#: A member in a process of its own, which adds up arrays until somebody is lost.
MEMBER = """
import sys

import numpy as np

from weft.comm.errors import CommError
from weft.comm.group import Call, Group
from weft.comm.members import Remote

name, rank, size, length = sys.argv[1], *map(int, sys.argv[2:5])
remote = Remote(tuple(sys.argv[5].split(","))) if sys.argv[5] else None
if sys.argv[7:]:
    from group_members import listen_at

    listen_at(sys.argv[7])
x = np.full(length, rank + 1.0)
try:
    group = Group(name, rank, size, timeout=float(sys.argv[6]), remote=remote)
    print("here", flush=True)
    while True:
        total = group.reduce(x, np.add, Call("psum", "member.py:7"))
        assert (total == size * (size + 1) / 2).all()
except CommError as error:
    print(type(error).__name__, error)
"""


def free_addresses(count: int) -> tuple[str, ...]:
    """Addresses of loopback that nobody has just now, with ports that no connection gets."""
    held: dict[int, socket.socket] = {}
    try:
        while len(held) < count:
            port = random.randrange(15_000, 32_000)
            with contextlib.suppress(OSError):
                held[port] = socket.create_server(("127.0.0.1", port))
        return tuple(f"tcp://127.0.0.1:{port}" for port in held)
    finally:
        for one in held.values():
            one.close()


def listen_at(bind: str) -> None:
    """Have this process listen there, and tell others the address that it is given: of a proxy."""
    real: Any = post.Endpoint

    def made(name: str, address: str, *given: Any, **options: Any) -> Any:
        return real(name, bind, *given, **{**options, "advertise": address})

    post.Endpoint = made  # type: ignore[misc, assignment]


def fresh() -> str:
    return f"test-{os.getpid()}-{random.randrange(1 << 40)}"


@contextmanager
def small_pieces(inline: int, piece: int) -> Iterator[None]:
    names = ("INLINE_BYTES", "PIECE_BYTES", "MESSAGE_BYTES")
    before = [getattr(group_module, name) for name in names]
    try:
        for name, value in zip(names, (inline, piece, piece), strict=True):
            setattr(group_module, name, value)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(group_module, name, value)


DTYPES = [np.float32, np.float64, np.int32, np.int8, np.uint64, np.complex64, np.float16,
          ml_dtypes.bfloat16]  # fmt: skip


def drawn(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return (rng.normal(size=shape) * 100).astype(dtype)


def summed(parts: list[Any]) -> Any:
    """In the order of ranks, one after the other; 16-bit floats by way of float32."""
    wide = np.float32 if parts[0].dtype in (np.float16, ml_dtypes.bfloat16) else parts[0].dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = (total + part.astype(wide)).astype(wide)
    return total.astype(parts[0].dtype)


@contextmanager
def members(
    name: str,
    ranks: range,
    size: int,
    length: int,
    remote: str = "",
    binds: Sequence[str] = (),
    timeout: float = 20,
) -> Iterator[list[Any]]:
    """Processes that add up arrays until somebody is lost. remote: addresses of all, with commas,
    of a group by TCP; binds: where they listen really, if these are of proxies."""
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environ = {**os.environ, "PYTHONPATH": paths}
    made = []
    try:
        for rank in ranks:
            numbers = map(str, (rank, size, length))
            more = [binds[rank]] if binds else []
            given = [sys.executable, "-c", MEMBER, name, *numbers, remote, str(timeout), *more]
            made.append(subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=environ))
        yield made
    finally:
        for process in made:
            process.kill()
            process.wait()
            process.stdout.close()


def add_for_ever(group: Group, length: int) -> None:
    x = np.full(length, 1.0)
    while True:
        group.reduce(x, np.add, Call("psum", "here.py:1"))
