"""Shared memory: rings, what is refused as one, and that nothing is left of them."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from typing import Any

import numpy as np
import pytest
from comm_hostile import Attacker, wait_for
from comm_peers import READ, Here, spawn

from weft.comm import wire
from weft.comm.errors import BadFrameError
from weft.comm.limits import CHUNK_BYTES, MIB
from weft.comm.shared_memory import AVAILABLE, PeerMemory, Proof, Region, Ring

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfd is Linux's")


def test_ring_gives_each_slot_once() -> None:
    ring = Ring(3 * MIB)
    slots = [ring.take() for _ in range(4)]
    assert sorted(slot for slot in slots if slot is not None) == [0, 1, 2]
    assert slots[3] is None
    assert ring.give_back(1)
    assert not ring.give_back(1)
    assert not ring.give_back(7)
    assert ring.take() == 1
    ring.close()
    ring.close()


def test_peer_reads_what_was_written() -> None:
    proof, ring = Proof(), Ring(2 * MIB)
    memory = PeerMemory.of(proof.told, 4 * MIB)
    assert memory is not None
    chunk = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES).astype(np.uint8)
    slot = ring.take()
    assert slot is not None
    ring.write(slot, chunk)
    target = np.empty(1000, np.uint8)
    memory.read(ring.descriptor, slot, target)
    assert (target == chunk[:1000]).all()
    with pytest.raises(BadFrameError):
        memory.read(ring.descriptor, 2, target)
    with pytest.raises(BadFrameError):
        memory.read(ring.descriptor, 1 << 60, target)
    small = PeerMemory.of(proof.told, MIB)
    assert small is not None
    with pytest.raises(BadFrameError):
        small.read(ring.descriptor, 0, target)
    memory.close()
    ring.close()
    proof.close()
    assert PeerMemory.of(proof.told, MIB) is None


def test_what_is_no_proof() -> None:
    proof = Proof()
    pid, number, low, high = proof.told
    other = Region(16)
    told: list[list[Any]] = [
        [],
        [pid, number, low],
        [pid, number, low, high ^ 1],
        [pid, number, low, 1 << 64],
        [pid, other.descriptor, low, high],
        [1, number, low, high],
        [1 << 40, number, low, high],
        [pid, 1 << 40, low, high],
        [-pid, number, low, high],
        [pid, "0", low, high],
        [True, number, low, high],
    ]
    for wrong in told:
        assert PeerMemory.of(wrong, MIB) is None, wrong
    proof.close()
    other.close()


def test_what_is_no_ring() -> None:
    """Pipes, files, devices, and memory that its owner can shrink are not even opened or mapped."""
    proof = Proof()
    memory = PeerMemory.of(proof.told, 4 * MIB)
    assert memory is not None
    readable, writable = os.pipe()
    unsealed = os.memfd_create("weft-ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MIB)
    named_otherwise = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    large = Region(8 * MIB)
    target = np.empty(10, np.uint8)
    with tempfile.TemporaryFile() as file, open("/dev/zero", "rb") as device:
        numbers = [readable, writable, unsealed, named_otherwise, large.descriptor]
        for number in [*numbers, file.fileno(), device.fileno(), 1 << 30]:
            with pytest.raises(BadFrameError, match="shared memory"):
                memory.read(number, 0, target)
    for number in numbers[:4]:
        os.close(number)
    large.close()
    proof.close()


def test_hostile_chunks_of_shared_memory() -> None:
    with Here("a") as a, Here("b") as b, Attacker(b) as attacker:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        meta = wire.pack_tensor_meta(1, (100_000,), (), 100_000)
        a.deliver(link, (wire.OFFER, 0, 1, 1, 123, meta, ()))
        waiting = b.ask(1, 1)
        wait_for(lambda: b.transfers.incoming == 1)
        places: list[Any] = [[0, 0], [1, 0], [99999, 0], [-1, 0], [0], "x", [None, 0], [3, 1 << 61]]
        for i, place in enumerate(places, 1):
            packed = wire.pack_meta(place)
            flags = wire.SHARED_FLAG
            head = link.header(wire.BULK, wire.CHUNK, flags, 123, 0, 0, len(packed))
            attacker.send(head + packed)
            wait_for(lambda count=i: b.rejections.total == count)  # type: ignore[misc]
        assert b.rejections.counts() == {"shared memory": len(places)}
        assert waiting.empty()


def test_two_processes_share_memory() -> None:
    x = np.random.default_rng(0).standard_normal(5_000_000)  # more than the ring holds
    with Here("here") as here, spawn("peer") as peer:
        here.connect("peer", peer.address)
        link = here.peers.find("peer")
        assert link is not None
        assert link.memory is not None
        here.send("peer", READ, 1, 1)
        here.send_tensor("peer", 1, 1, (), x)
        np.testing.assert_array_equal(here.take(1, 2), x)
        assert link.ring is not None


def test_slots_come_back_of_transfers_that_have_ended() -> None:
    """Chunks that nobody wants any more lie in slots, too: those after them need these."""
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        a.send_tensor("b", 1, 1, (), np.zeros(MIB))
        b.take(1, 1)
        wait_for(lambda: link.ring is not None and not link.ring._taken)

        def send_late() -> None:
            assert link.ring is not None
            assert link.bulk is not None
            place = wire.pack_meta([link.ring.descriptor, link.ring.take()])
            head = link.header(wire.BULK, wire.CHUNK, wire.SHARED_FLAG, 999, 0, 0, len(place))
            link.bulk.send(head + place)
            link.count(wire.BULK)

        for _ in range(3):
            a.service.post(send_late)
        wait_for(lambda: b.rejections.counts() == {"late": 3})
        wait_for(lambda: link.ring is not None and not link.ring._taken)
        a.send_tensor("b", 2, 1, (), x := np.arange(20.0 * MIB // 8))
        np.testing.assert_array_equal(b.take(2, 1), x)


def rings() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += "weft-ring" in os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    return found


def test_no_ring_is_left() -> None:
    gc.collect()
    before = rings()
    for _ in range(3):
        with Here("a") as a, Here("b") as b:
            a.connect("b", b.address)
            a.send_tensor("b", 1, 1, (), np.zeros(1 << 20))
            b.take(1, 1)
            assert rings() > before
    gc.collect()
    deadline = time.monotonic() + 3
    while rings() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rings() == before
