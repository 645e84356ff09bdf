"""What links count: the same messages and bytes at both ends, and round trips."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from at_once import outcomes
from comm_hostile import wait_for
from comm_peers import TIMES, Here

from weft.comm import traffic, wire
from weft.comm.group import Call, Group
from weft.comm.limits import MIB, Limits
from weft.comm.rendezvous import DEAD
from weft.comm.traffic import (
    EXCHANGES,
    LAST_TRIPS,
    OTHERS,
    TRIP_SECONDS,
    Traffic,
    TrafficTable,
)

#: No signs of life between what a test sends.
QUIET = Limits(**{**TIMES, "heartbeat_s": 100.0})  # type: ignore[arg-type]


def between(a: Here, b: Here) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a counts of b and b of a, once all that was sent has come."""

    def same() -> bool:
        out, back = a.traffic()[b.name], b.traffic()[a.name]
        return bool(out["sent"] == back["came"] and back["sent"] == out["came"]
                    and out["sent_bytes"] == back["came_bytes"])  # fmt: skip

    wait_for(same)
    return a.traffic()[b.name], b.traffic()[a.name]


@pytest.mark.parametrize("shared", [False, True])
def test_both_ends_count_the_same(shared: bool) -> None:
    with Here("a", limits=QUIET, shared=shared) as a, Here("b", limits=QUIET, shared=shared) as b:
        a.connect(b.name, b.address)
        before, _ = between(a, b)
        sizes = [0, 1, 1000, 20_000, 100_000, 3 * MIB // 4]
        for key, size in enumerate(sizes):
            a.send_tensor("b", 1, key, (), np.ones(size, np.float32))
            assert b.take(1, key).size == size
        a.send_tensor("b", 1, 99, (), DEAD)
        assert b.take(1, 99) is DEAD
        a.send("b", 3, 1, {"x": 1}, [np.arange(5), np.zeros(100_000)])
        a.signal("b", 4, 1, 5)
        for _ in range(2):
            b.messages.get(timeout=10)
        out, back = between(a, b)
        payload = 4 * sum(sizes) + 5 * 8 + 800_000
        grown = out["sent_bytes"] - before["sent_bytes"]
        assert payload < grown < payload + 200 * (out["sent"] - before["sent"])
        frames = 4 + (1 + 1) + (1 + 3) + 3  # the two large ones are offered, then sent in chunks
        if not shared:  # else signs of life say that memory can be read
            assert out["sent"] - before["sent"] == frames
            assert (out["trips"], out["trip_p50"]) == (0, None)
        large = 4 * sum(sizes[-2:]) if shared else 0
        assert (out["sent_shared"], back["came_shared"]) == (large, large)


def test_what_is_lent_is_counted() -> None:
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        wait_for(lambda: link.lends)
        a.send_tensor("b", 1, 1, (), np.ones(MIB, np.float32), lend=True)
        assert b.take(1, 1).nbytes == 4 * MIB
        wait_for(lambda: b.traffic()["a"]["came_shared"] == 4 * MIB)
        assert a.traffic()["b"]["sent_shared"] == 4 * MIB
        assert a.traffic()["b"]["sent_bytes"] > 4 * MIB


def test_round_trips() -> None:
    with Here("a") as a, Here("b") as b:
        a.connect("b", b.address)
        wait_for(lambda: a.traffic()["b"]["trips"] >= 3 and b.traffic()["a"]["trips"] >= 3)
        found = a.traffic()["b"]
    assert 0 < found["trip_p50"] <= found["trip_p99"] < 10
    assert sum(found["trip_buckets"]) == found["trips"]
    assert found["trip_seconds"] >= found["trip_p99"]
    assert len(found["trip_buckets"]) == len(TRIP_SECONDS) + 1


def test_an_answer_to_nothing_is_no_round_trip() -> None:
    with Here("a", limits=QUIET, shared=False) as a, Here("b", limits=QUIET) as b:
        a.connect("b", b.address)
        link = a.peers.find("b")
        assert link is not None
        _, known = between(a, b)
        for offset in (0, 1, time.monotonic_ns(), (1 << 64) - 1):
            assert link.try_send((wire.PING, 0, 0, wire.ECHO, offset, b"", ()))
        wait_for(lambda: b.traffic()["a"]["came"] == known["came"] + 4)
        assert b.traffic()["a"]["trips"] == 0


def test_times_that_come_back() -> None:
    counts = Traffic()
    asked = counts.ask()
    assert asked > 0
    assert counts.ask() == 0  # one is under way
    counts.answered(asked + 1)
    counts.answered(0)
    assert counts.told()["trips"] == 0
    counts.answered(asked)
    counts.answered(asked)  # repeated
    assert counts.told()["trips"] == 1
    counts.ask()
    counts.unsent()
    assert counts.ask() > 0


def test_quantiles_are_of_the_last_trips() -> None:
    counts = Traffic()
    counts.trips.extend([9.0] * LAST_TRIPS)
    counts.trips.extend(k / 1000 for k in range(1, LAST_TRIPS + 1))
    told = counts.told()
    assert told["trip_p50"] == pytest.approx(0.065)
    assert told["trip_p99"] == pytest.approx(0.127)


def test_counts_outlive_their_links() -> None:
    def kind(peer: str) -> str:
        return "clients" if peer.startswith("c") else peer

    with Here("a", limits=QUIET, counted_as=kind) as a:
        total = 0
        for number in range(3):
            with Here(f"c{number}", limits=QUIET) as other:
                other.connect("a", a.address)
                other.send("a", 1)
                a.messages.get(timeout=10)
            total += other.traffic()["a"]["sent"]
            wait_for(lambda: not a.peers.links())
        assert set(a.traffic()) == {"clients"}
        assert a.traffic()["clients"]["came"] >= total  # their farewells, too


def test_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MOST_PEERS", 3)
    table, one = TrafficTable(), Traffic()
    one.counts[traffic.SENT] = 1
    for number in range(10):
        table.gone(f"p{number}", one)
    told = table.told([("p1", one)])
    assert {peer: row["sent"] for peer, row in told.items()} == {
        "p0": 1, "p1": 2, "p2": 1, OTHERS: 7,
    }  # fmt: skip


def test_what_groups_exchange() -> None:
    """Messages and bytes of arrays by member: small arrays go whole, of large ones each reads in
    the others' memory half, and half of the result. They stay counted when the group is gone."""
    name, small, large = f"test-{os.getpid()}", np.ones(4), np.ones(100_000)

    def member(rank: int) -> None:
        with Group(name, rank, 2, connect_timeout=20, label=f"{name}/x") as group:
            for x in (small, small, large):
                group.reduce(x, np.add, Call("psum"))
            group.gather(large, Call("all_gather"))
            group.permute(large, [-1, 0], Call("ppermute"))
            group.broadcast(large, 0, Call("broadcast"))
            group.exchange(np.stack([large, large]), Call("all_to_all"))

    assert outcomes([partial(member, 0), partial(member, 1)]) == [None, None]
    found = EXCHANGES.told()
    first, other = found[f"{name}/x:1"], found[f"{name}/x:0"]  # of rank 0, and of rank 1
    assert (first["sent"], first["came"]) == (other["came"], other["sent"])
    assert first["sent_bytes"] == 2 * small.nbytes + 5 * large.nbytes == other["came_bytes"]
    assert first["sent_shared"] == 5 * large.nbytes
    assert first["came_bytes"] == 2 * small.nbytes + 3 * large.nbytes == other["sent_bytes"]
