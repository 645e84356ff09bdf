"""Hostile frames: no crash, no memory beyond the limits, everything refused is counted and logged,
and honest peers notice nothing."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

import numpy as np
import pytest
import zmq
from comm_hostile import OVERSIZED, Attacker, frame, peak_bytes, reset_peak, stranger, wait_for
from comm_peers import TIMES, Here

from weft.comm import wire
from weft.comm.addresses import Secret
from weft.comm.errors import CommError
from weft.comm.limits import MIB, Limits
from weft.comm.link import Keys, Link

TIGHT = Limits(
    **TIMES,  # type: ignore[arg-type]
    landing_bytes=8 * MIB,
    held_bytes=16 * MIB,
    control_bytes=4 * MIB,
    tensor_bytes=8 * MIB,
    steps=256,
    keys=256,
)
#: The inbox's own buffers, connections' queues (16 messages each), pieces of the heap.
SLACK = 64 * MIB


def quiet(name: str, **options: Any) -> Here:
    """An endpoint that says nothing after its greeting: the number of its next frame is known."""
    limits = Limits(heartbeat_s=60.0, heartbeat_timeout_s=60.0)
    return Here(name, shared=False, limits=limits, **options)


class Honest:
    """A peer that sends tensors and checks that each arrives, while others attack."""

    def __init__(self, target: Here) -> None:
        self.target = target
        self.end = Here("honest", limits=TIGHT, shared=False)
        self.end.connect(target.name, target.address)
        self.count = 0
        self.failed: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        step = 77 << 36
        x = np.arange(40_000, dtype=np.float64)  # offered
        try:
            while not self._stop.is_set():
                step += 1
                self.end.send_tensor(self.target.name, step, 1, (), x[:9])
                self.end.send_tensor(self.target.name, step, 2, (), x)
                assert (self.target.take(step, 1) == x[:9]).all()
                assert (self.target.take(step, 2) == x).all()
                self.target.forget(step)
                self.count += 1
        except Exception as error:
            self.failed = error

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.end.lost.empty()
        self.end.close()
        if self.failed is not None:
            raise self.failed
        assert self.count > 0


def attack(count: int, seed: int, secret: Secret | None = None) -> None:
    """`count` messages of strangers, each refused and counted once."""
    rng = random.Random(seed)
    with Here("b", limits=TIGHT, secret=secret) as b:
        honest = Honest(b) if secret is None else None
        keys = None if secret is None else Keys(secret)
        reset_peak()
        before = peak_bytes("VmRSS")
        with Attacker(b, keys) as attacker:
            for _ in range(count):
                attacker.send(*stranger(rng, b))
            wait_for(lambda: b.rejections.total >= count, 120)
        if honest is not None:
            honest.finish()
        refused = b.rejections.counts()
        late = refused.pop("late", 0)
        assert sum(refused.values()) == count, late
        assert {"truncated header", "wrong magic", "wrong version", "unknown link"} <= set(refused)
        assert peak_bytes() - before < TIGHT.held_bytes + SLACK
        assert b.messages.empty()


def betray(count: int, seed: int) -> None:
    """`count` messages on a real link, with the right numbers and anything else in them: by a peer
    that has gone mad."""
    rng = random.Random(seed)
    quiet = Limits(heartbeat_s=1000.0, heartbeat_timeout_s=1000.0)
    with Here("b", limits=TIGHT) as b, Here("evil", limits=quiet) as evil:
        honest = Honest(b)
        reset_peak()
        before = peak_bytes("VmRSS")
        sent = 0
        while sent < count:
            token = connect_anew(evil, b)
            with Attacker(b) as attacker:
                link = b.peers.of_source(token)
                while sent < count and link is not None and link.alive:
                    right = rng.random() < 0.95
                    sequence = link.expected[wire.CTL] if right else rng.getrandbits(32)
                    send_and_wait(attacker, frame(rng, token, b.incarnation, sequence), link)
                    sent += 1
                    if sent % 64 == 0:
                        b.forget(255)
                        for step in (1 << 36, 1 << 62, (1 << 62) - 1, (1 << 64) - 1):
                            b.abort(step, RuntimeError("cleared"))
        honest.finish()
        assert peak_bytes() - before < 2 * TIGHT.held_bytes + SLACK
        assert b.rejections.total > count // 3
        assert b.transfers.incoming < 256


def send_and_wait(attacker: Attacker, message: bytes, link: Link) -> None:
    """Send, and wait until the message is accepted, refused, or the end of the link."""
    rejections = attacker.endpoint.rejections
    known = link.traffic.came + rejections.total
    attacker.send(message)
    wait_for(lambda: link.traffic.came + rejections.total > known or not link.alive)


def connect_anew(evil: Here, b: Here) -> int:
    """A new link from `evil`; the token that its frames carry."""
    evil.disconnect("b")
    while True:
        try:
            evil.connect("b", b.address)
        except CommError:
            continue  # what the last link's frames did to it
        link = evil.peers.find("b")
        if link is not None:
            return link.token


def test_strangers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "weft.comm"):
        attack(12_000, 1)
    texts = [record.getMessage() for record in caplog.records]
    assert any("b refused: wrong magic" in text for text in texts)
    assert len(texts) < 400  # a flood of frames is no flood of lines


def test_strangers_with_the_key() -> None:
    attack(3_000, 2, Secret.generate())


def test_mad_peer() -> None:
    betray(600, 3)


def test_oversized_frames_end_the_connection() -> None:
    """libzmq drops who announces a frame beyond the limit, before it takes memory for it."""
    with Here("b", limits=TIGHT) as b:
        honest = Honest(b)
        reset_peak()
        before = peak_bytes("VmRSS")
        for _ in range(20):
            with Attacker(b) as attacker:
                monitor = attacker.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                attacker.send(OVERSIZED)
                assert monitor.poll(10_000)
                attacker.socket.disable_monitor()
                monitor.close(0)
        honest.finish()
        assert peak_bytes() - before < SLACK
        assert b.rejections.counts() == {}  # libzmq has not shown them
        assert b.messages.empty()


def test_replayed_frames() -> None:
    """Frames of a real link, sent again: refused, and without effect."""
    with Here("a") as a, Here("b") as b, Attacker(b) as attacker:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        meta = wire.pack_tensor_meta(11, (2,), (), 8)
        tensor = (wire.TENSOR, 0, 1, 5, 0, meta, (np.zeros(8, np.uint8),))
        head = link.header(wire.CTL, wire.TENSOR, 0, 1, 5, 0, len(meta))
        a.deliver(link, tensor)
        assert b.take(1, 5).shape == (2,)
        for _ in range(3):
            attacker.send(head + meta + bytes(8))
        greeting = wire.pack_meta(["a", a.incarnation, a.address, 0, []])
        hello = wire.HEADER.pack(
            b"WF", 1, wire.HELLO, len(greeting), 0, 0, link.token, 0, 0, 0, 0, 0
        )
        attacker.send(hello + greeting)
        wait_for(lambda: b.rejections.total >= 4)
        assert b.rejections.counts() == {"replayed": 3, "for another incarnation": 1}
        assert b.rendezvous.unclaimed(1) == []
        a.send("b", 1, 0, "still there")
        assert b.messages.get(timeout=5).meta == "still there"


def test_gap_in_the_sequence_ends_the_link() -> None:
    with quiet("a") as a, Here("b") as b, Attacker(b) as attacker:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        link.count(wire.CTL)  # as if two frames had been lost
        link.count(wire.CTL)
        head = link.header(wire.CTL, wire.PING, 0, 0, 0, 0, 0)
        attacker.send(head)
        name, error = b.lost.get(timeout=5)
        assert (name, str(error)) == ("a", "2 messages of a were lost")
        assert "closed the connection" in str(a.lost.get(timeout=5)[1])


def test_damaged_frames_are_seen_by_checksums() -> None:
    with quiet("a", checksums=True) as a, Here("b") as b, Attacker(b) as attacker:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        body = link.header(wire.CTL, wire.USER, wire.CHECKSUM_FLAG, 0, 0, 0, 1) + b"\x05"
        good = body + wire.checksum(body)
        attacker.send(good[:48] + b"\x06" + good[49:])
        wait_for(lambda: b.rejections.total == 1)
        assert b.rejections.counts() == {"wrong checksum": 1}
        attacker.send(good)
        assert b.messages.get(timeout=5).meta == 5


@pytest.mark.slow
def test_a_million_frames() -> None:
    attack(850_000, 4)
    attack(50_000, 5, Secret.generate())
    betray(100_000, 6)
