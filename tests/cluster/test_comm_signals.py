"""Control messages that are two numbers, and what an inbox does with frames that follow others."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable
from functools import partial
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


@pytest.mark.parametrize(("checksums", "shared"), [(False, False), (True, False), (False, True)])
def test_ctrl_c_in_a_send_loses_no_later_message(checksums: bool, shared: bool) -> None:
    """It is raised when the call that sent comes back; a number that is used twice would have the
    next message refused as a repetition, and whoever waits for that one waits forever."""
    with Here("a", checksums=checksums) as a, Here("b", shared=shared) as b:
        a.connect("b", b.address)
        link = a.peers.named("b")
        if shared:
            wait_for(lambda: link.has_lane)
        left = [0]

        def interrupted(push: Any, frame: Any, flags: int = 0) -> None:
            push(frame, flags)
            if threading.current_thread() is not threading.main_thread():
                return  # the inbox pushes as well; no signal is raised there
            left[0] -= 1
            if not left[0]:
                left[0] = -1
                raise KeyboardInterrupt

        link._push = partial(interrupted, link._push)  # type: ignore[assignment]
        link.put = partial(interrupted, link.put)  # type: ignore[assignment]
        large = np.arange(100_000)  # in frames of its own
        for part, arrays in ((1, None), (1, [np.arange(3)]), (1, [large, large]), (2, [large])):
            left[0] = part
            send = partial(a.send, "b", 1, 5, None, arrays)
            if arrays is None:
                send = partial(a.signal, "b", 1, 5, 0)
            with pytest.raises(KeyboardInterrupt):
                send()
            a.signal("b", 2, 6, 0)
            got = b.messages.get(timeout=5)
            assert (got.kind, len(got.buffers)) == (1, len(arrays or ()))
            assert all(
                x.tolist() == y.tolist() for x, y in zip(got.buffers, arrays or (), strict=True)
            )
            assert b.messages.get(timeout=5).kind == 2
        assert b.rejections.total == 0


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


def test_frames_that_follow_a_whole_message_count_as_if_they_came_by_themselves() -> None:
    with Here("a", **QUIET) as a, Here("b", **QUIET) as b, Attacker(b) as attacker:
        forger = Forger(a, b, attacker)
        good = forger.frame(0, b"")
        attacker.send(good, *[good] * 3, b"x" * 1000)
        assert b.messages.get(timeout=5).key == 2
        attacker.send(b"WF")
        wait_for(lambda: b.rejections.total >= 2)  # from the first one that is refused on: dropped
        assert b.rejections.counts() == {"replayed": 1, "truncated header": 1}
        assert b.messages.empty()


def test_what_is_dealt_with_at_once() -> None:
    """`Protocol.take` leaves all that is not quite right to `handle`, and notes nothing of it."""
    with Here("a", **QUIET) as a, Here("b", **QUIET) as b, Attacker(b) as attacker:
        link = Forger(a, b, attacker).link
        theirs, take = b.peers.find("a"), b._protocol.take
        assert theirs is not None
        told = {
            "magic": wire.MAGIC, "version": wire.VERSION, "kind": wire.USER, "meta": 0, "lane": 0,
            "flags": 0, "source": link.token, "destination": link.incarnation, "step": 1, "key": 2,
            "sequence": theirs.expected[0], "offset": 3,
        }  # fmt: skip
        bad = {
            "magic": b"WG", "version": 9, "kind": 99, "meta": 1, "lane": 1,
            "flags": wire.CHECKSUM_FLAG, "source": 5, "destination": 5,
            "sequence": theirs.expected[0] + 1,
        }  # fmt: skip
        metas = [
            wire.pack_tensor_meta(wire.dtype_code(np.dtype("f4")), (2,), (), 8),
            wire.pack_tensor_meta(wire.STRINGS, (2,), (), 8), b"", b"\xc1",
        ]  # fmt: skip
        good = wire.HEADER.pack(*told.values())
        frames = [wire.HEADER.pack(*{**told, name: value}.values()) for name, value in bad.items()]
        for meta in metas:
            head = wire.HEADER.pack(*{**told, "kind": wire.TENSOR, "meta": len(meta)}.values())
            frames += [head + meta + bytes(size) for size in (0, 7, 9)]
        strings = wire.HEADER.pack(*{**told, "kind": wire.TENSOR, "meta": len(metas[1])}.values())
        known = theirs.traffic.came
        for frame in (*frames, strings + metas[1] + bytes(8), good[:-1], good + b"x", b""):
            assert not take(frame)
        assert (theirs.expected[0], theirs.traffic.came) == (told["sequence"], known)
        assert take(good)
        assert not take(good)  # it is a repetition
        assert b.messages.get(timeout=5)[:4] == ("a", a.incarnation, 0, 1)
        told |= {"kind": wire.TENSOR, "meta": len(metas[0]), "sequence": theirs.expected[0]}
        x = np.array([1.5, 2.5], np.float32)
        assert take(wire.HEADER.pack(*told.values()) + metas[0] + x.tobytes())
        np.testing.assert_array_equal(b.take(1, 2), x)
        assert theirs.traffic.came == known + 2
        assert b.rejections.total == 0


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
            a.send_tensor("b", 1, key, (4, key), x, released=partial(released.append, True))
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
