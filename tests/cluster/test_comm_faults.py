"""A peer in another process is killed, stopped or restarted: who waits hears of it, soon."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from comm_peers import ECHO, EXIT, READ, Here, spawn

from weft.comm.errors import CommError, PeerLostError, StaleIncarnationError
from weft.comm.limits import Limits


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc://{}/peer"])
def test_two_processes(bind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(1_000_000)
    with Here("here") as here, spawn("peer", bind.format(tmp_path)) as peer:
        here.connect("peer", peer.address)
        here.send("peer", ECHO, 5, {"a": 1}, [x[:10]])
        message = here.messages.get(timeout=5)
        assert (message.peer, message.step, message.meta) == ("peer", 5, {"a": 1})
        np.testing.assert_array_equal(message.buffers[0], x[:10])
        for key, value in ((1, x), (3, x[:5])):
            here.send("peer", READ, 1, key)
            here.send_tensor("peer", 1, key, (), value)
            np.testing.assert_array_equal(here.take(1, key + 1), value)
        assert here.rejections.counts() == {}


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc://{}/peer"])
def test_killed_peer_is_noticed_at_once(bind: str, tmp_path: Path) -> None:
    with Here("here") as here, spawn("peer", bind.format(tmp_path)) as peer:
        here.connect("peer", peer.address)
        freed: list[int] = []
        held = np.zeros(1 << 20)
        here.send_tensor("peer", 9, 1, (), held, released=lambda: freed.append(1))
        waiting = here.ask(1, 2)
        started = time.monotonic()
        peer.kill()
        name, error = here.lost.get(timeout=5)
        assert time.monotonic() - started < 2.0  # far below any heartbeat
        assert name == "peer"
        assert str(error) == "the connection to peer was lost"
        here.abort(1, error)
        assert waiting.get(timeout=1) is error
        with pytest.raises(PeerLostError):
            here.send("peer", ECHO)
        deadline = time.monotonic() + 5
        while not freed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert freed == [1]
        assert here.transfers.outgoing == 0


def test_stopped_peer_is_noticed_by_its_missing_heartbeats() -> None:
    beat = Limits(heartbeat_s=0.1, heartbeat_timeout_s=0.5)
    with Here("here", limits=beat) as here, spawn("peer") as peer:
        here.connect("peer", peer.address)
        started = time.monotonic()
        peer.signal(signal.SIGSTOP)
        name, _ = here.lost.get(timeout=10)
        assert name == "peer"
        assert 0.3 < time.monotonic() - started < 4.0
        peer.signal(signal.SIGCONT)  # it goes on as if nothing had been; the link is made anew
        here.connect("peer", peer.address)
        here.send("peer", ECHO, 1, "again")
        assert here.messages.get(timeout=5).meta == "again"


def test_sends_to_a_stopped_peer_are_bounded() -> None:
    """What a peer does not take is not queued without end: the sender is held up, then told."""
    limits = Limits(heartbeat_s=0.1, heartbeat_timeout_s=30.0, send_s=0.3, connect_s=5.0)
    with Here("here", limits=limits) as here, spawn("peer") as peer:
        here.connect("peer", peer.address)
        peer.signal(signal.SIGSTOP)
        x = np.zeros(8192)
        sent: list[int] = []

        def send_all() -> None:
            for key in range(20_000):
                here.send_tensor("peer", 1, key, (), x)
                sent.append(x.nbytes)

        with pytest.raises(CommError, match=r"peer took no message for 0\.3 s"):
            send_all()
        assert sum(sent) < 150 << 20


@pytest.mark.share(2)
@pytest.mark.parametrize("bind", ["ipc://{}/peer", "tcp://127.0.0.1:{}"])
def test_restarted_at_the_same_address(bind: str, tmp_path: Path) -> None:
    """Nothing that was meant for the old process gets to the new one."""
    with Here("here") as here:
        with spawn("peer", bind.format(tmp_path if "ipc" in bind else 0)) as old:
            address = old.address
            incarnation = here.connect("peer", address).incarnation
            here.send("peer", EXIT)
            assert here.lost.get(timeout=5)[0] == "peer"
            for _ in range(100):
                with pytest.raises(PeerLostError):
                    here.send("peer", ECHO, 1, "old")
        with spawn("peer", address):
            with pytest.raises(StaleIncarnationError):
                here.connect("peer", address, incarnation)
            assert here.connect("peer", address).incarnation != incarnation
            here.send("peer", ECHO, 2, "new")
            assert here.messages.get(timeout=5).meta == "new"
            assert here.messages.empty()


@pytest.mark.share(2)
@pytest.mark.parametrize("shared", [False, True])
def test_killed_in_the_middle_of_a_large_tensor(shared: bool) -> None:
    x = np.zeros(64 << 20, np.uint8)
    with Here("here", shared=shared) as here, spawn("peer") as peer:
        here.connect("peer", peer.address)
        freed: list[int] = []
        here.send("peer", READ, 1, 1)
        here.send_tensor("peer", 1, 1, (), x, released=lambda: freed.append(1))
        waiting = here.ask(1, 2)
        while here.transfers.incoming == 0:  # the peer has it, and sends it back
            time.sleep(0.001)
        peer.kill()
        error = here.lost.get(timeout=5)[1]
        here.abort(1, error)
        assert waiting.get(timeout=1) is error or isinstance(error, CommError)
        assert here.transfers.incoming == 0


@pytest.mark.slow
def test_no_leak_over_killed_peers(tmp_path: Path) -> None:
    with Here("here") as here:

        def once(i: int) -> None:
            with spawn("peer", f"ipc://{tmp_path}/{i}") as peer:
                here.connect("peer", peer.address)
                here.send_tensor("peer", i, 1, (), np.zeros(1 << 18))
                peer.kill()
                here.lost.get(timeout=5)

        once(0)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for i in range(1, 3):
            once(i)
        deadline = time.monotonic() + 3
        while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(os.listdir("/proc/self/fd")) <= before
