"""Lanes: small messages between processes of one host, over sockets of the host."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import queue
import socket
import struct
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
from comm_hostile import wait_for
from comm_peers import FAST, Here, spawn

from weft.comm import wire
from weft.comm.addresses import Secret
from weft.comm.endpoint import Endpoint
from weft.comm.errors import BackpressureError
from weft.comm.lane import LANE_BYTES, address_of
from weft.comm.limits import Limits
from weft.comm.protocol import Message

SECRET = Secret(bytes(range(32)))


def linked(a: Here, b: Endpoint) -> Any:
    """The link from one to the other, once it has a lane."""
    a.connect(b.name, b.address)
    link = a.peers.named(b.name)
    wait_for(lambda: link.has_lane)
    return link


@pytest.mark.parametrize("secret", [None, SECRET])
def test_both_ends_have_one(secret: Secret | None) -> None:
    with Here("a", secret=secret) as a, Here("b", secret=secret) as b:
        linked(a, b)
        wait_for(lambda: b.peers.named("a").has_lane)
        for one, other in ((a, b), (b, a)):
            one.signal(other.name, 3, 7, 11, 13)
            got = other.messages.get(timeout=5)
            assert (got.peer, got.kind, got.step, got.key, got.offset) == (one.name, 3, 7, 11, 13)
        a.send_tensor("b", 1 << 36, 5, (), np.arange(6.0).reshape(2, 3))
        assert b.take(1 << 36, 5).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_packets_come_beside_a_flood_over_zeromq() -> None:
    """Of a peer without a lane, which is faster than they are handled."""
    done, came = threading.Event(), queue.SimpleQueue[int]()

    def handle(message: Message) -> None:
        if message.peer == "b":
            came.put(message.key)
        else:
            done.wait(5e-3)

    with (
        Endpoint("a", on_message=handle) as a,
        Here("b") as b,
        Endpoint("c", shared=False) as c,
    ):
        linked(b, a)
        c.connect("a", a.address)

        def flood() -> None:
            while not done.is_set():
                with contextlib.suppress(BackpressureError):
                    c.signal("a", 3, 7, 11)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_for(lambda: a.peers.named("c").traffic.came > 30)
            for key in range(40):
                b.signal("a", 3, 7, key)
            assert [came.get(timeout=5) for _ in range(40)] == list(range(40))
        finally:
            done.set()
            thread.join(20)


def test_no_descriptor_for_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is there without."""

    def none() -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with Here("a") as a, Here("b") as b:
        monkeypatch.setattr("weft.comm.lane._socket", none)
        a.connect("b", b.address)
        a.signal("b", 3, 7, 11)
        assert b.messages.get(timeout=5).key == 11
        b.signal("a", 3, 7, 12)
        assert a.messages.get(timeout=5).key == 12
        assert not a.peers.named("b").has_lane


@pytest.mark.parametrize("options", [{"shared": False}, {"checksums": True}])
def test_none_where_it_is_not_wanted(options: dict[str, Any]) -> None:
    with Here("a", **options) as a, Here("b") as b:
        a.connect("b", b.address)
        a.signal("b", 3, 7, 11)
        b.messages.get(timeout=5)
        b.signal("a", 3, 7, 11)
        a.messages.get(timeout=5)
        assert not a.peers.named("b").has_lane


def test_messages_come_in_order_whichever_way_they_go() -> None:
    """What is larger than a packet goes over ZeroMQ, and takes longer."""
    rng = np.random.default_rng(4)
    sizes = rng.choice([0, 1, 100, LANE_BYTES - 60, LANE_BYTES, 50_000, 59_000], 600)
    with Here("a") as a, Here("b") as b:
        linked(a, b)

        def send() -> None:
            for i, size in enumerate(sizes.tolist()):
                a.send("b", 1, i, "x" * size, [np.zeros(200_000)] if i % 50 == 7 else ())

        thread = threading.Thread(target=send)
        thread.start()
        for i, size in enumerate(sizes.tolist()):
            got = b.messages.get(timeout=20)
            assert (got.step, len(got.meta)) == (i, size)
        thread.join()
        assert b.rejections.total == 0
        assert b.lost.empty()


def test_one_that_is_cut_is_done_without() -> None:
    with Here("a") as a, Here("b") as b:
        link = linked(a, b)
        theirs = b.peers.named("a")
        a.signal("b", 1, 0, 0)
        b.messages.get(timeout=5)
        theirs.inward.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: theirs.inward is None)
        for i in range(3):
            a.signal("b", 1, i, 0)
            assert b.messages.get(timeout=5).step == i
        assert not link.has_lane
        assert a.lost.empty()
        assert b.lost.empty()


@pytest.mark.slow
def test_packets_behind_what_never_comes_end_the_link() -> None:
    limits = Limits(heartbeat_s=0.2, heartbeat_timeout_s=1.0)
    with Here("a", limits=limits) as a, Here("b", limits=limits) as b:
        linked(a, b).count(wire.CTL)  # as if a message had been lost on the connection
        peer, error = b.lost.get(timeout=20)  # signs of life come behind it, too
        assert peer == "a"
        assert "1 messages of a were lost" in str(error)


def test_a_peer_that_reads_nothing_is_waited_for() -> None:
    """As for a connection that is full; what was sent comes when it reads."""
    gate = threading.Event()

    def wait(message: Message) -> None:
        gate.wait(10)

    b = Endpoint("b", on_message=wait)
    with Here("a", limits=Limits(send_s=0.2)) as a, b:
        linked(a, b)
        flood = iter(lambda: a.signal("b", 1, 0, 0), False)
        with pytest.raises(BackpressureError, match=r"b took no message for 0\.2 s"):
            deque(flood, maxlen=0)
        gate.set()
        a.send_tensor("b", 1 << 36, 5, (), np.arange(3))
        came: queue.Queue[Any] = queue.Queue()
        b.rendezvous.get(1 << 36, (5, ()), came.put)
        assert came.get(timeout=10).tolist() == [0, 1, 2]
        assert a.lost.empty()


@pytest.mark.parametrize("hello", [b"", b"nonsense", struct.pack("<4sQQ", b"WFL1", 1, 2)])
def test_strangers_get_no_lane(hello: bytes) -> None:
    with Here("a") as a, Here("b") as b:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(5)
            one.connect(address_of(a.incarnation))
            one.send(hello)
            assert one.recv(10) == b""
        linked(a, b)


def as_another_user(address: str) -> None:
    """Exit code 0 if who listens there ends the connection."""
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.settimeout(5)
        one.connect(address)
        try:
            sys.exit(one.recv(10) != b"")
        except ConnectionResetError:
            return


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_gets_no_lane() -> None:
    with Here("a") as a:
        where = address_of(a.incarnation)
        child = multiprocessing.get_context("fork").Process(target=as_another_user, args=(where,))
        child.start()
        child.join(20)
        assert child.exitcode == 0


def test_a_killed_peer_leaves_nothing() -> None:
    """No socket, no descriptor; and its end is noticed as ever."""
    with Here("here", limits=FAST) as here, spawn("peer") as peer:
        link = linked_to(here, peer)
        held = len(os.listdir("/proc/self/fd"))
        peer.kill()
        name, _ = here.lost.get(timeout=5)
        assert name == "peer"
        wait_for(lambda: link.inward is None)
        assert not link.has_lane
        assert len(os.listdir("/proc/self/fd")) < held


def linked_to(here: Here, peer: Any) -> Any:
    here.connect(peer.name, peer.address)
    link = here.peers.named(peer.name)
    wait_for(lambda: link.has_lane and link.inward is not None)
    return link


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [0, 3, 20_000, 200_000])
def test_signals_have_arrays(shared: bool, size: int) -> None:
    """All sizes, whichever way they go; and to the task itself."""
    with Here("a", shared=shared) as a, Here("b") as b:
        a.connect("b", b.address)
        if shared:
            linked(a, b)
        given = [np.arange(size, dtype=np.int16).reshape(1, -1), np.float32(2.5)]
        for where in (b, a):
            a.signal(where.name, 3, 7, 11, 13, given)
            got = where.messages.get(timeout=10)
            assert (got.peer, got.kind, got.step, got.key, got.offset) == ("a", 3, 7, 11, 13)
            assert got.meta is None
            assert [x.dtype for x in got.buffers] == [np.int16, np.float32]
            assert [x.tolist() for x in got.buffers] == [x.tolist() for x in given]
            assert all(x.flags.writeable for x in got.buffers)
        a.signal("b", 3, 7, 11, 13, [np.array([b"text", b""], object)])
        assert b.messages.get(timeout=10).buffers[0].tolist() == [b"text", b""]
        assert b.rejections.total == 0
