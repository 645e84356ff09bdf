"""Tensors that are lent: read where the sender keeps them, and given back."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from comm_hostile import Attacker, wait_for
from comm_peers import LEND, TIMES, Here, spawn
from paths import SUPPORT

from weft.comm import shared_memory, wire
from weft.comm.bulk import _PLACE
from weft.comm.errors import AddressError, LimitError, PeerLostError
from weft.comm.limits import MIB, Limits
from weft.comm.link import Link
from weft.comm.rendezvous import DEAD
from weft.comm.shared_memory import ALIGNMENT, AVAILABLE, Arena, Block, PeerMemory

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfd is Linux's")
SMALL = Limits(lent_bytes=8 * MIB, landing_bytes=4 * MIB, **TIMES)  # type: ignore[arg-type]


def joined(a: Here, b: Here) -> Link:
    """The link from a to b, once each knows that the other can read its memory."""
    a.connect(b.name, b.address)
    link, back = a.peers.find(b.name), b.peers.find(a.name)
    assert link is not None
    assert back is not None
    wait_for(lambda: link.lends and back.lends)
    return link


def lent(a: Here) -> int:
    return a.transfers.lending.lent


# ------------------------------------------------------------------------------------------- arenas
def test_blocks_are_apart_and_come_back() -> None:
    arena, rng = Arena(64 * 4096), random.Random(0)
    held: dict[int, tuple[Block, Any, int]] = {}
    for turn in range(3000):
        if held and rng.random() < 0.5:
            block, array, value = held.pop(rng.choice([*held]))
            assert (array == value).all()
            del block, array
            continue
        size = rng.randrange(1, 9 * 4096)
        made = arena.take(size)
        if made is None:
            assert held
            continue
        array = made.array((size,), np.dtype(np.uint8), size)
        assert array.ctypes.data % ALIGNMENT == 0
        array[:] = turn % 251
        held[turn] = made, array, turn % 251
    assert all((array == value).all() for _, array, value in held.values())
    assert sum(array.nbytes for _, array, _ in held.values()) <= arena.held_bytes
    held.clear()
    del made, array
    assert arena.held_bytes == 0
    assert arena.take(64 * 4096) is not None  # all of it in one piece
    arena.close()
    assert arena.take(1) is None


def test_pages_that_nobody_needs_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "KEPT_S", 0.0)
    arena = Arena(32 * MIB)
    small, large = arena.take(MIB), arena.take(16 * MIB)
    assert small is not None
    assert large is not None
    small.array((MIB,), np.dtype(np.uint8), MIB)[:] = 1
    large.array((16 * MIB,), np.dtype(np.uint8), 16 * MIB)[:] = 2

    def taken() -> int:
        return 512 * os.fstat(arena.descriptor).st_blocks

    del large
    now = time.monotonic() + 1
    arena.trim(now)
    assert taken() >= 17 * MIB  # needed in the time that ends now
    arena.trim(now + 1)
    assert taken() <= MIB + 4096
    assert (small.array((MIB,), np.dtype(np.uint8), MIB) == 1).all()
    arena.close()


# --------------------------------------------------------------------------------------- what comes
DTYPES = [np.bool_, np.int8, np.float16, ml_dtypes.bfloat16, np.float32, np.complex128]


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_array_is_a_view_that_nobody_writes(dtype: Any) -> None:
    with Here("a") as a, Here("b") as b:
        link = joined(a, b)
        x = np.random.default_rng(0).integers(0, 2, (3, 400_000)).astype(dtype)
        a.send_tensor("b", 1, 1, (4, 5), x, lend=True)
        y = b.take(1, 1, (4, 5))
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.view(np.uint8), x.view(np.uint8))
        assert not y.flags.writeable
        assert not y.flags.owndata
        assert y.flags.aligned
        with pytest.raises(ValueError, match="WRITEABLE"):
            y.flags.writeable = True
        part = y[1:, ::2]
        del y
        gc.collect()
        assert lent(a) == 1  # a view of the view keeps it
        x[:] = 0  # was copied
        assert part.astype(bool).any()
        del part
        wait_for(lambda: lent(a) == 0)
        assert link.arena is not None
        wait_for(lambda: link.arena.held_bytes == 0)


def test_what_lies_there_already_is_not_copied() -> None:
    with Here("a") as a, Here("b") as b:
        link = joined(a, b)
        made = a.room("b", (500, 500), np.dtype(np.float64))
        assert made is not None
        assert made.flags.writeable
        made[:] = 3
        ended: list[int] = []
        a.send_tensor("b", 1, 1, (), made, released=lambda: ended.append(1), lend=True)
        y = b.take(1, 1)
        made[0, 0] = 4  # who does so has not waited for `released`
        assert y[0, 0] == 4
        a.send_tensor("b", 1, 2, (), made, lend=True)  # twice
        z = b.take(1, 2)
        assert z[0, 0] == 4
        del y
        wait_for(lambda: bool(ended))
        assert lent(a) == 1
        assert link.arena is not None
        held = link.arena.held_bytes
        a.send_tensor("b", 1, 3, (), made.reshape(-1)[1:100_001], lend=True)  # not aligned: a copy
        np.testing.assert_array_equal(b.take(1, 3), made.reshape(-1)[1:100_001])
        a.send_tensor("b", 1, 4, (), made.T, lend=True)  # not contiguous
        np.testing.assert_array_equal(b.take(1, 4), made.T)
        del made, z
        assert held == 2_002_944  # 500 * 500 * 8 in whole pages: once
        wait_for(lambda: link.arena.held_bytes == 0)


def test_who_does_not_ask_for_views_gets_arrays_of_its_own() -> None:
    with Here("a") as a, Here("b") as b:
        joined(a, b)
        a.send_tensor("b", 1, 1, (), np.ones(MIB))
        y = b.take(1, 1)
        assert y.flags.writeable
        assert lent(a) == 0


def test_small_text_and_dead_go_as_ever() -> None:
    with Here("a") as a, Here("b") as b:
        joined(a, b)
        text = np.array([b"x" * 400_000, b""], object)
        for key, value in enumerate([np.zeros(10), text, DEAD]):
            a.send_tensor("b", 1, key, (), value, lend=True)
        assert b.take(1, 0).tolist() == [0.0] * 10
        assert b.take(1, 1).tolist() == text.tolist()
        assert b.take(1, 2) is DEAD
        assert lent(a) == 0


# -------------------------------------------------------------------------------- bounds, and ends
def test_who_keeps_arrays_holds_nobody_up() -> None:
    """50 results of 1 MB are kept, of which 8 are lent: the others are arrays of b's own."""
    with Here("a", limits=SMALL) as a, Here("b", limits=SMALL) as b:
        link = joined(a, b)
        kept = []
        for step in range(1, 51):
            asked = b.ask(step, 1)
            a.send_tensor("b", step, 1, (), np.full(MIB, step, np.uint8), lend=True)
            kept.append(asked.get(timeout=10))
        assert lent(a) == 8
        assert all((x == step).all() for step, x in enumerate(kept, 1))
        assert sum(not x.flags.writeable for x in kept) == 8
        assert a.room("b", (MIB,), np.dtype(np.uint8)) is None
        assert link.arena is not None
        assert link.arena.held_bytes == 8 * MIB
        kept.clear()
        wait_for(lambda: lent(a) == 0)
        a.send_tensor("b", 99, 1, (), np.zeros(8 * MIB, np.uint8), lend=True)
        assert not b.take(99, 1).flags.writeable


def test_what_nobody_takes_comes_back() -> None:
    with Here("a") as a, Here("b") as b:
        joined(a, b)
        x = np.zeros(MIB, np.uint8)
        a.send_tensor("b", 1 << 36, 1, (), x, lend=True)
        wait_for(lambda: b.rendezvous.unclaimed(1 << 36) == [(1, ())])
        assert b.rendezvous.held_bytes == 0  # it is a's memory
        b.forget(1 << 36)
        wait_for(lambda: lent(a) == 0)
        a.send_tensor("b", 1 << 36, 2, (), x, lend=True)  # too late
        wait_for(lambda: b.rejections.counts() == {"late": 1} and lent(a) == 0)
        b.abort((1 << 36) + 1, RuntimeError("no"))
        a.send_tensor("b", (1 << 36) + 1, 2, (), x, lend=True)
        wait_for(lambda: b.rejections.counts() == {"late": 2} and lent(a) == 0)


@pytest.mark.parametrize("who", ["a", "b"])
def test_end_of_a_link_changes_no_view(who: str) -> None:
    """What a peer holds stays what it is, also if the sender goes on and needs memory."""
    with Here("a", limits=SMALL) as a, Here("b", limits=SMALL) as b, Here("c") as c:
        link = joined(a, b)
        joined(a, c)
        made = a.room("b", (MIB,), np.dtype(np.uint8))
        assert made is not None
        made[:] = 7
        ended: list[int] = []
        a.send_tensor("b", 1, 1, (), made, released=lambda: ended.append(1), lend=True)
        a.send_tensor("b", 1, 2, (), np.full(MIB, 8, np.uint8), lend=True)
        y, z = b.take(1, 1), b.take(1, 2)
        (a if who == "a" else b).close()
        wait_for(lambda: not link.alive and lent(a) == 0)
        assert ended == [1]
        assert link.arena is None
        del made
        if who == "b":
            joined(a, Here("b", limits=SMALL))
            for key in range(8):
                a.send_tensor("b", 2, key, (), np.full(MIB, 1, np.uint8), lend=True)
        gc.collect()
        assert (y == 7).all()
        assert (z == 8).all()


def test_views_outlive_the_process_that_lent_them() -> None:
    with Here("here") as here, spawn("peer") as peer:
        link = None
        here.connect("peer", peer.address)
        link = here.peers.find("peer")
        assert link is not None
        wait_for(lambda: link.lends)
        x = np.random.default_rng(0).standard_normal(1 << 20)
        here.send("peer", LEND, 1, 1)
        here.send_tensor("peer", 1, 1, (), x, lend=True)
        y = here.take(1, 2)
        assert not y.flags.writeable
        peer.kill()
        wait_for(lambda: not link.alive)
        gc.collect()
        np.testing.assert_array_equal(y, x)


def test_who_cannot_listen_holds_nothing() -> None:
    with Here("a") as a:
        with pytest.raises(AddressError):
            Here("b", a.address)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(AddressError):
                Here("b", a.address)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before


def test_arrays_may_die_after_the_endpoint() -> None:
    a, b = Here("a"), Here("b")
    try:
        joined(a, b)
        a.send_tensor("b", 1, 1, (), np.ones(MIB), lend=True)
        y = b.take(1, 1)
        b.close()
        a.close()
        assert (y == 1).all()
        del y
        gc.collect()
    finally:
        a.close()
        b.close()


def test_a_link_that_ends_while_a_tensor_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena has no descriptor any more; the sender hears of the loss, and of nothing else."""
    with Here("a", checksums=True) as a, Here("b") as b:
        joined(a, b)
        real, me, x = wire.checksum, threading.get_ident(), np.ones(MIB, np.uint8)

        def checksum(*parts: Any) -> bytes:
            if threading.get_ident() == me and len(parts[0]) == x.nbytes:  # else another message's
                monkeypatch.undo()
                a.disconnect("b")
            return real(*parts)

        monkeypatch.setattr(wire, "checksum", checksum)
        with pytest.raises(PeerLostError, match="disconnected"):
            a.send_tensor("b", 1, 1, (), x, lend=True)
        assert lent(a) == 0


def test_what_cannot_be_mapped_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with Here("a") as a, Here("b") as b:
        joined(a, b)

        def memory(self: PeerMemory, descriptor: int) -> Any:
            monkeypatch.undo()
            raise LimitError("no memory")

        monkeypatch.setattr(PeerMemory, "memory", memory)
        a.send_tensor("b", 1, 1, (), np.ones(MIB), lend=True)
        wait_for(lambda: b.rejections.counts() == {"over a limit": 1})
        wait_for(lambda: lent(a) == 0)
        a.send_tensor("b", 2, 1, (), np.ones(MIB), lend=True)
        assert (b.take(2, 1) == 1).all()


# ------------------------------------------------------------------------------------------ hostile
def test_checksum_of_what_is_lent() -> None:
    with Here("a", checksums=True) as a, Here("b") as b:
        link = joined(a, b)
        x = np.arange(100_000.0)
        a.send_tensor("b", 1, 1, (), x, lend=True)
        y = b.take(1, 1)
        assert not y.flags.writeable
        np.testing.assert_array_equal(y, x)
        assert link.arena is not None
        place = np.frombuffer(_PLACE.pack(0, link.arena.descriptor, 1), np.uint8)
        meta = wire.pack_tensor_meta(1, (100_000,), (), 100_000)
        a.deliver(link, (wire.TENSOR, wire.SHARED_FLAG, 2, 1, 99, meta, (place,)))
        wait_for(lambda: b.rejections.counts() == {"wrong checksum": 1})


def test_hostile_places() -> None:
    with Here("a") as a, Here("b") as b, Attacker(b) as attacker:
        link = joined(a, b)
        a.send_tensor("b", 1, 1, (), np.zeros(MIB, np.uint8), lend=True)
        y = b.take(1, 1)
        assert link.arena is not None
        good = link.arena.descriptor
        size = link.arena.bytes.nbytes
        meta = wire.pack_tensor_meta(1, (100_000,), (), 100_000)
        text = wire.pack_tensor_meta(wire.STRINGS, (2,), (), 8)
        huge = wire.pack_tensor_meta(1, (1 << 50,), (), 1 << 50)
        places: list[tuple[bytes, bytes]] = [
            (meta, b""),
            (meta, _PLACE.pack(0, good, 0)[:-1]),
            (meta, _PLACE.pack(0, good, 0) + b"x"),
            (meta, _PLACE.pack(size, good, 0)),
            (meta, _PLACE.pack(size - 64, good, 0)),
            (meta, _PLACE.pack((1 << 64) - 64, good, 0)),
            (meta, _PLACE.pack(1, good, 0)),
            (meta, _PLACE.pack(0, 0, 0)),
            (meta, _PLACE.pack(0, 1, 0)),
            (meta, _PLACE.pack(0, (1 << 32) - 1, 0)),
            (text, _PLACE.pack(0, good, 0)),
            (huge, _PLACE.pack(0, good, 0)),
            (b"", _PLACE.pack(0, good, 0)),
        ]
        for i, (packed, place) in enumerate(places, 1):
            head = link.header(wire.CTL, wire.TENSOR, wire.SHARED_FLAG, 2, i, 9, len(packed))
            attacker.send(head + packed + place)
            wait_for(lambda count=i: b.rejections.total == count)  # type: ignore[misc]
        assert b.rendezvous.unclaimed(2) == []
        for numbers in [b"", wire.pack_meta("x"), wire.pack_meta([1.5]), wire.pack_meta([[1]])]:
            head = link.header(wire.CTL, wire.RELEASE, 0, 0, 1, 0, len(numbers))
            attacker.send(head + numbers)
        wait_for(lambda: b.rejections.total == len(places) + 4)
        link.try_send((wire.RELEASE, 0, 0, 1, 0, wire.pack_meta([-1, 0, 1, 1 << 60]), ()))
        link.try_send((wire.PING, 0, 0, 0, 0, b"", ()))
        assert link.alive
        assert (y == 0).all()


def test_a_task_that_shares_nothing_lends_nothing() -> None:
    with Here("a", shared=False) as a, Here("b") as b:
        a.connect("b", b.address)
        a.send_tensor("b", 1, 1, (), np.ones(MIB), lend=True)
        assert b.take(1, 1).flags.writeable
        time.sleep(0.3)  # a sign of life
        link, back = a.peers.find("b"), b.peers.find("a")
        assert link is not None
        assert back is not None
        assert not link.lends
        assert not back.lends
        assert a.room("b", (MIB,), np.dtype(np.uint8)) is None


def test_a_link_that_is_lost_after_the_service_ended() -> None:
    # A peer may go between the end of the service thread and that of the links. libzmq's thread
    # told a monitor that was closed before its socket, for ever, and held the GIL: hence a process.
    code = """
import os, threading, time
import numpy as np
from comm_peers import Here
a, b = Here("a", shared=False), Here("b")
a.connect("b", b.address)
a.send_tensor("b", 1, 1, (), np.ones(1 << 20), lend=True)
b.take(1, 1)
assert a.peers.find("b").bulk is not None
a.service.stop()
b.service.stop()
threading.Thread(target=b._context.term, daemon=True).start()
b._inbox.thread.join(10)  # its own thread closes the socket, without a goodbye
assert not b._inbox.thread.is_alive()
time.sleep(0.5)
a.close()
print("closed", flush=True)
os._exit(0)
"""
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=SUPPORT,
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.stdout == "closed\n", made.stderr
