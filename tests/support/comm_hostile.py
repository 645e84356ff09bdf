"""Frames that no honest peer sends, for the fuzz tests of the transport."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq

from weft.comm import wire
from weft.comm.endpoint import Endpoint
from weft.comm.limits import FRAME_BYTES

KINDS = [*range(13), 64, wire.USER, wire.USER + 1, 255]
NUMBERS = [0, 1, 2, 63, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 62) - 1, 1 << 62, (1 << 64) - 1]


def any_object(rng: random.Random, depth: int = 0) -> Any:
    """A value of plain data, often of a form like that of real meta data."""
    choice = rng.randrange(12 if depth < 4 else 8)
    if choice < 3:
        return rng.choice(NUMBERS[:-1])
    if choice < 8:
        return rng.choice([None, True, -1, 1.5, float("nan"), "x", "", b"", b"\xff" * 9, "é" * 40])
    if choice < 11:
        return [any_object(rng, depth + 1) for _ in range(rng.randrange(6))]
    return {str(i): any_object(rng, depth + 1) for i in range(rng.randrange(4))}


def any_meta(rng: random.Random) -> bytes:
    """Meta data: of tensors with odd fields, of anything, or not msgpack at all."""
    choice = rng.randrange(8)
    if choice == 0:
        return rng.randbytes(rng.randrange(200))
    if choice == 1:  # lengths beyond the input, extension types, deep nesting
        bombs = [
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff\x01",
            b"\xc6\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
        ]
        return rng.choice([*bombs, b"\xc7\x08\x01" + b"x" * 8, b"\x91" * 5000, b"\x81\xa1a" * 3000])
    if choice == 2:
        return bytes(msgpack.packb(any_object(rng)))
    shape = [rng.choice([0, 1, 2, 3, *NUMBERS[:-1]]) for _ in range(rng.choice([0, 1, 2, 40]))]
    code, nbytes = rng.choice([0, 4, 11, 14, 15, 255, 256]), rng.choice([0, 4, 8, *NUMBERS[:-1]])
    fields = [code, shape, [], nbytes]
    if choice == 3:
        fields[rng.randrange(4)] = any_object(rng)
    if choice == 4:
        fields = [any_object(rng), [[code, shape, nbytes]] * rng.randrange(4)]
    if choice == 5:
        fields = [11, [2, 3], [1] * rng.randrange(3), 24]  # a tensor as it should be
    return bytes(msgpack.packb(fields))


def frame(rng: random.Random, source: int, destination: int, sequence: int) -> bytes:
    """A frame with a well-formed header and anything in its fields."""
    meta = any_meta(rng)
    claimed = len(meta) if rng.random() < 0.9 else rng.randrange(1 << 16)
    kind, flags = rng.choice(KINDS), rng.choice([0, 0, 0, 1, 2, 4, 8, 16, 255])
    step, key, offset = rng.choice(NUMBERS), rng.choice(NUMBERS[:6]), rng.choice(NUMBERS)
    lane = rng.choice([0, 0, 0, 1, 2, 255])
    head = wire.HEADER.pack(
        b"WF", 1, kind, claimed & 0xFFFF, lane, flags,
        source, destination, step, key, sequence & 0xFFFFFFFF, offset,
    )  # fmt: skip
    return head + meta + rng.randbytes(rng.choice([0, 0, 4, 24, 100, 5000]))


def stranger(rng: random.Random, endpoint: Endpoint) -> list[bytes]:
    """A message that is refused whatever the state is: it comes from no link."""
    choice = rng.randrange(6)
    if choice == 0:
        return [rng.randbytes(rng.randrange(300))]
    if choice == 1:  # truncated
        whole = frame(rng, rng.getrandbits(63), endpoint.incarnation, 0)
        return [whole[: rng.randrange(wire.HEADER.size)]]
    if choice == 2:  # another version, or magic
        whole = bytearray(frame(rng, rng.getrandbits(63), endpoint.incarnation, 0))
        whole[rng.randrange(3)] ^= 1 + rng.randrange(255)
        return [bytes(whole)]
    if choice == 3:  # many frames
        return [frame(rng, rng.getrandbits(63), 0, 1)] + [b"y" * 100] * rng.randrange(50)
    if choice == 4:
        return [b"", frame(rng, rng.getrandbits(63), endpoint.incarnation, 0)]
    return [frame(rng, rng.getrandbits(63) | 1, endpoint.incarnation, 1 + rng.getrandbits(31))]


OVERSIZED = b"WF" + b"z" * (FRAME_BYTES + 1)


class Attacker:
    """A socket that sends anything, and knows the numbers of a link if it is told them."""

    def __init__(self, endpoint: Endpoint, keys: Any = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.endpoint = endpoint
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = 10_000
        if keys is not None:
            keys.call(self.socket)
        self.socket.connect(endpoint.address)

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close(0)
        self.context.term()

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(2e-5)


def reset_peak() -> None:
    """Begin to measure `peak_bytes` anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(field: str = "VmHWM") -> int:
    """The most resident memory since `reset_peak` (VmRSS: now)."""
    found = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
