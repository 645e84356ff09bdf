"""Control messages that are two numbers, and what an inbox does with frames that follow others."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comm_hostile import Attacker, wait_for
from comm_peers import Here

from weft.comm import wire
from weft.comm.errors import EndpointClosedError, UnknownPeerError, UnsendableError
from weft.comm.limits import Limits


@pytest.mark.parametrize("checksums", [False, True])
def test_signals_come_in_order_with_other_messages(checksums: bool) -> None:
    with Here("a", checksums=checksums) as a, Here("b") as b:
        a.connect("b", b.address)
        for i in range(50):
            a.signal("b", 3, 10 + i, i, 1 << 63)
            a.send("b", 4, i, {"i": i}, [np.arange(i)])
        for i in range(50):
            got = b.messages.get(timeout=5)
            assert got == ("a", a.incarnation, 3, 10 + i, None, (), i, 1 << 63)
            got = b.messages.get(timeout=5)
            assert (got.kind, got.meta, len(got.buffers[0])) == (4, {"i": i}, i)
        assert b.rejections.total == 0


def test_to_itself_to_nobody_and_after_the_end() -> None:
    a = Here("a")
    try:
        a.signal("a", 0, 5, (1 << 32) - 1)
        assert a.messages.get(timeout=5) == ("a", a.incarnation, 0, 5, None, (), (1 << 32) - 1, 0)
        with pytest.raises(UnknownPeerError):
            a.signal("b", 0, 5, 0)
    finally:
        a.close()
    for peer in ("a", "b"):
        with pytest.raises(EndpointClosedError):
            a.signal(peer, 0, 5, 0)


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (128, 0, 0), (1, -1, 0), (1, 1 << 32, 0), (1, 0, -1), (1, 0, 1 << 64)]
)
def test_what_does_not_fit_is_not_sent(numbers: tuple[int, int, int]) -> None:
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        kind, key, offset = numbers
        with pytest.raises(UnsendableError):
            a.signal("b", kind, 0, key, offset)
        a.signal("b", 1, 0, 0)
        assert b.messages.get(timeout=5).kind == 1


class Forger:
    """Sends frames of a link from `a` to `b` that `a` has not sent."""

    def __init__(self, a: Here, b: Here, attacker: Attacker) -> None:
        self.b, self.attacker = b, attacker
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        self.link = link
        wait_for(lambda: self.next() == 1)  # the greeting is dealt with

    def next(self) -> int:
        theirs = self.b.peers.find("a")
        assert theirs is not None
        return int(theirs.expected[wire.CTL])

    def frame(self, flags: int, meta: bytes) -> bytes:
        return wire.HEADER.pack(
            wire.MAGIC, wire.VERSION, wire.USER, len(meta), wire.CTL, flags, self.link.token,
            self.link.incarnation, 1, 2, self.next(), 3,
        ) + meta  # fmt: skip

    def sent(self, *frames: bytes) -> dict[str, int]:
        """How these were refused, sent as one message."""
        before = self.b.rejections.counts()
        self.attacker.send(*frames)
        wait_for(lambda: self.b.rejections.total > sum(before.values()))
        found = self.b.rejections.counts()
        return {k: n - before.get(k, 0) for k, n in found.items() if n != before.get(k, 0)}


#: No PING takes the number that a forged frame has.
QUIET: dict[str, Any] = {
    "limits": Limits(heartbeat_s=60.0, heartbeat_timeout_s=180.0),
    "shared": False,
}
Forge = Callable[[Forger], tuple[bytes, ...]]


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda f: (f.frame(0, b"") + b"x",), "payload size"),
        (lambda f: (f.frame(wire.CHECKSUM_FLAG, b"") + b"xxxx",), "wrong checksum"),
        (lambda f: (f.frame(wire.CHECKSUM_FLAG, b""),), "truncated checksum"),
        (lambda f: (f.frame(wire.BUFFERS_FLAG, b""),), "meta data: ValueError"),
        (lambda f: (b"", f.frame(0, b"")), "truncated header"),
        (lambda f: (b"WF", *[b"x" * 100] * 20), "truncated header"),
    ],
)
def test_forged_signals(forge: Forge, why: str) -> None:
    with Here("a", **QUIET) as a, Here("b", **QUIET) as b, Attacker(b) as attacker:
        forger = Forger(a, b, attacker)
        assert forger.sent(*forge(forger)) == {why: 1}
        a.signal("b", 1, 0, 0)  # what honest peers send goes on coming
        assert b.messages.get(timeout=5).kind == 1


def test_frames_that_follow_a_whole_message_are_dropped() -> None:
    with Here("a", **QUIET) as a, Here("b", **QUIET) as b, Attacker(b) as attacker:
        forger = Forger(a, b, attacker)
        good = forger.frame(0, b"")
        attacker.send(good, *[good] * 3, b"x" * 1000)
        assert b.messages.get(timeout=5).key == 2
        attacker.send(b"WF")
        wait_for(lambda: b.rejections.total >= 1)
        assert b.rejections.counts() == {"truncated header": 1}
        assert b.messages.empty()


def test_small_tensors_of_all_kinds() -> None:
    arrays: list[Any] = [
        np.float32(1.5), np.zeros((0, 3), np.int8), np.arange(6).reshape(2, 3).T, True,
        np.array([1 + 2j]), np.asfortranarray(np.ones((3, 2), ">f4")), np.arange(9)[::-2],
        np.array([b"one", b""], object), np.zeros(1 << 14, np.float32), np.zeros(1 << 15),
    ]  # fmt: skip
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        for key, x in zip(itertools.count(), arrays, strict=False):
            released: list[bool] = []
            a.send_tensor("b", 1, key, (4, key), x, released=lambda r=released: r.append(True))
            got = b.take(1, key, (4, key))
            np.testing.assert_array_equal(got, x, strict=False)
            assert got.shape == np.shape(x)
            assert got.flags.c_contiguous
            wait_for(lambda r=released: r == [True])
        assert b.rejections.total == 0


def test_a_closed_endpoint_keeps_no_descriptor_until_the_collector_comes() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Here("a") as a, Here("b") as b:  # what is loaded and made once
        a.connect("b", b.address)
    before = descriptors()
    gc.disable()
    try:
        for _ in range(5):
            with Here("a") as a, Here("b") as b:
                a.connect("b", b.address)
        assert descriptors() <= before
    finally:
        gc.enable()
