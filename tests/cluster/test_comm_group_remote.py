"""Groups over several hosts, here by TCP on loopback: the bits of groups of one host; members that
go, are stopped, or have another key."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from at_once import outcomes
from cut_network import network, port
from elastic_processes import kills
from group_members import (
    DTYPES,
    add_for_ever,
    drawn,
    free_addresses,
    fresh,
    members,
    small_pieces,
    summed,
)

from weft.comm.addresses import Secret
from weft.comm.errors import (
    AddressError,
    AuthenticationError,
    DeadlineError,
    GroupEndedError,
    InsecureAddressError,
    PeerLostError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call, Group
from weft.comm.members import Remote


def together(
    size: int,
    work: Callable[[Group], Any],
    timeout: float = 20.0,
    secrets: Any = None,
    connect_timeout: float = 20.0,
) -> list[Any]:
    """What each member gives, or the error that it raises; members are threads."""
    name, addresses = fresh(), free_addresses(size)

    def run(rank: int) -> Any:
        remote = Remote(addresses, secrets[rank] if secrets else None)
        with Group(name, rank, size, timeout, connect_timeout, remote=remote) as group:
            return work(group)

    return outcomes([partial(run, rank) for rank in range(size)])


@pytest.mark.share(3)
@pytest.mark.parametrize(("size", "secret"), [(2, True), (3, False), (5, False)])
def test_all_calls(size: int, secret: bool) -> None:
    """One after the other, on arrays that go at once and in several pieces, of all dtypes; members
    come to each in any order. The bits are those of NumPy, in the order of ranks."""
    key = Secret.generate() if secret else None
    sources = [-1, *range(size - 1)]

    def work(group: Group) -> list[str]:
        rank, late, wrong = group.rank, random.Random(group.rank), []
        for seed, dtype in enumerate(DTYPES):
            for length in (0, 1, 7, 300):
                xs = [drawn(seed + r, (length, 2), dtype) for r in range(size)]
                tables = [drawn(seed + 50 + r, (size, length), dtype) for r in range(size)]
                time.sleep(late.choice([0, 0, 1e-3]))
                zeros = np.zeros_like(xs[0])
                for what, got, right in [
                    ("psum", group.reduce(xs[rank], np.add, Call("psum")), summed(xs)),
                    ("all_gather", group.gather(xs[rank], Call("all_gather")), np.stack(xs)),
                    ("psum_scatter", group.scatter(tables[rank], np.add, Call("psum_scatter")),
                     summed([t[rank] for t in tables])),
                    ("all_to_all", group.exchange(tables[rank], Call("all_to_all")),
                     np.stack([t[rank] for t in tables])),
                    ("ppermute", group.permute(xs[rank], sources, Call("ppermute")),
                     xs[rank - 1] if rank else zeros),
                    ("broadcast", group.broadcast(xs[rank].copy(), size - 1, Call("broadcast")),
                     xs[-1]),
                ]:  # fmt: skip
                    same = got.tobytes() == right.tobytes()
                    if not same or (got.shape, got.dtype) != (right.shape, right.dtype):
                        wrong.append(f"{what} of {dtype}[{length}]")
        return wrong

    with small_pieces(64, 256):
        assert together(size, work, secrets=[key] * size) == [[]] * size


@pytest.mark.parametrize("more", [1, 2, 4])
def test_a_last_piece_of_few_elements(more: int) -> None:
    """Of which some members have no slice to add up."""
    length = 3 * (256 << 10) // 8 + more
    xs = [drawn(rank, (length,), np.float64) for rank in range(3)]
    wanted = summed(xs).tobytes()

    def work(group: Group) -> Any:
        return group.reduce(xs[group.rank], np.add, Call("psum")).tobytes() == wanted

    assert together(3, work) == [True] * 3


@pytest.mark.slow
def test_large_arrays_in_place() -> None:
    """Several real pieces, into the array itself, which is written to again at once."""
    xs = [drawn(rank, (3, 1_000_001), np.float32) for rank in range(3)]
    first, second = summed(xs).tobytes(), summed([x + 1 for x in xs]).tobytes()

    def work(group: Group) -> Any:
        own = xs[group.rank].copy()
        made = [group.reduce(own, np.add, Call("psum"), own).tobytes() == first]
        own[...] = xs[group.rank] + 1
        made.append(group.reduce(own, np.add, Call("psum"), own).tobytes() == second)
        return made

    assert together(3, work) == [[True, True]] * 3


@pytest.mark.slow
def test_more_than_sixteen() -> None:
    """Each with each: rings are for none."""
    xs = [drawn(rank, (3000,), np.float64) for rank in range(17)]
    wanted = summed(xs).tobytes()

    def work(group: Group) -> Any:
        return group.reduce(xs[group.rank], np.add, Call("psum")).tobytes() == wanted

    assert together(17, work, timeout=60, connect_timeout=60) == [True] * 17


def test_several_groups_of_one_process() -> None:
    """They share the endpoint; what comes for a group that is not open yet is kept."""
    name, made, addresses = fresh(), [[], []], free_addresses(2)

    def run(rank: int) -> None:
        remote, found = Remote(addresses), made[rank]
        with Group(f"{name}-a", rank, 2, 20, 10, remote=remote) as first:
            time.sleep(0.3 * rank)  # rank 0 opens the second one, and rank 1 has not yet
            with Group(f"{name}-b", rank, 2, 20, 10, remote=remote) as second:
                for group in (first, second, second, first):
                    x = np.array([rank + len(found) + 1.0])
                    found += group.reduce(x, np.add, Call("psum")).tolist()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [[3.0, 5.0, 7.0, 9.0]] * 2


def test_programs_that_differ() -> None:
    def work(group: Group) -> Any:
        group.reduce(np.ones(2), np.add, Call("psum"))
        if group.rank == 1:
            return group.gather(np.ones(3, "f"), Call("all_gather", "b.py:9"))
        return group.reduce(np.ones(4, "f"), np.add, Call("psum", "a.py:5"))

    found = together(2, work)
    assert ProgramsDifferError in map(type, found)
    for error in found:
        assert isinstance(error, (ProgramsDifferError, PeerLostError))
        assert "all_gather of float32[3] at b.py:9" in str(error)
        assert "psum of float32[4] at a.py:5" in str(error)


def test_who_leaves_says_why() -> None:
    def work(group: Group) -> Any:
        group.reduce(np.ones(2), np.add, Call("psum"))
        if group.rank == 1:
            group.close("it has no more batches")
            return None
        group.reduce(np.ones(2), np.add, Call("psum", "a.py:7"))
        return None

    found = together(3, work)
    for error in (found[0], found[2]):
        assert isinstance(error, PeerLostError)
        assert "rank 1 has left, in psum of float64[2] at a.py:7" in str(error)
        assert "it has no more batches" in str(error)


@pytest.mark.slow
def test_a_deadline_names_who_is_late() -> None:
    over = threading.Barrier(3)

    def work(group: Group) -> Any:
        try:
            if group.rank != 2:
                group.reduce(np.ones(2), np.add, Call("psum", "a.py:7"))
        finally:
            over.wait(20)

    first, other, _ = together(3, work, timeout=1.0)
    assert DeadlineError in (type(first), type(other))
    for error in (first, other):
        assert "rank 2 did not come within 1 s, in psum of float64[2] at a.py:7" in str(error)


def test_who_may_come() -> None:
    """Keys have to fit, addresses beyond this machine need one, and who is missing is named."""
    addresses = free_addresses(3)
    with pytest.raises(UnreachableError, match=r"ranks 1, 2 of the group .* did not come"):
        Group(fresh(), 0, 3, connect_timeout=0.3, remote=Remote(addresses))
    with pytest.raises(UnreachableError, match=r"ranks 0, 1 of the group .* did not come"):
        Group(fresh(), 2, 3, connect_timeout=0.3, remote=Remote(addresses))
    with pytest.raises(InsecureAddressError, match="can be reached from other machines"):
        Group(fresh(), 0, 2, remote=Remote(("tcp://0.0.0.0:0", addresses[1])))
    with pytest.raises(AddressError, match="have one address"):
        Group(fresh(), 0, 2, remote=Remote(addresses[:1] * 2))
    found = together(
        2, lambda group: None, secrets=[Secret.generate(), Secret.generate()], connect_timeout=1
    )
    assert AuthenticationError in map(type, found)
    found = together(2, lambda group: None, secrets=[Secret.generate(), None], connect_timeout=1)
    assert {type(x) for x in found} <= {AuthenticationError, UnreachableError}


def test_another_number_of_members() -> None:
    addresses, errors, name = free_addresses(3), [], fresh()

    def member(rank: int, size: int) -> None:
        try:
            Group(name, rank, size, 10, 3, remote=Remote(addresses[:size])).close()
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=member, args=pair) for pair in ((0, 2), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 2
    assert any("is rank" in error for error in errors)


@contextmanager
def pair(length: int) -> Iterator[tuple[Group, Any]]:
    """A group of this process and one other."""
    addresses, name = free_addresses(2), fresh()
    with members(name, range(1, 2), 2, length, ",".join(addresses)) as (other,):
        yield Group(name, 0, 2, 20, 30, remote=Remote(addresses)), other


@pytest.mark.share(2)
@pytest.mark.parametrize("length", [4, 400_000])
def test_a_killed_member_is_named(length: int) -> None:
    with pair(length) as (group, victim):
        threading.Timer(0.3, victim.kill).start()
        with pytest.raises(PeerLostError, match=r"rank 1 \(tcp://127.0.0.1:\d+\) is lost, in psum"):
            add_for_ever(group, length)
        with pytest.raises(GroupEndedError, match="rank 1"):
            group.reduce(np.ones(1), np.add, Call("psum"))


@pytest.mark.slow
def test_a_stopped_member_is_lost_after_seconds() -> None:
    """By the endpoint's signs of life, before the deadline."""
    with pair(4) as (group, member):
        group.reduce(np.full(4, 1.0), np.add, Call("psum"))
        os.kill(member.pid, signal.SIGSTOP)
        with pytest.raises((PeerLostError, DeadlineError), match="rank 1"):
            add_for_ever(group, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", kills(4))
def test_faults_at_random_moments(seed: int) -> None:
    """A member is killed, stopped, or cut off: for good, or for a moment. No hang; all others name
    it, and it names one of them if it lives. Nothing is left, nobody listens."""
    dice = random.Random(seed)
    kind, victim = ("kill", "stop", "cut", "drop")[seed % 4], dice.randrange(3)
    name, length = fresh(), [4, 5_000, 400_000][seed % 3]
    with (
        network(3) as net,
        members(name, range(3), 3, length, ",".join(net.addresses), net.binds) as made,
    ):
        for process in made:
            assert process.stdout.readline() == "here\n"
        time.sleep(dice.uniform(0.0, 0.3))
        if kind == "kill":
            made[victim].kill()
        elif kind == "stop":
            made[victim].send_signal(signal.SIGSTOP)
        elif kind == "cut":
            net.cut([victim], {0, 1, 2} - {victim})
        else:
            net.drop(victim)
        for rank, process in enumerate(made):
            if rank != victim:
                text = process.communicate(timeout=60)[0]
                assert re.search(rf"ranks? (\d, )*{victim}", text), text
                assert process.returncode == 0
            elif kind in ("cut", "drop"):
                text = process.communicate(timeout=60)[0]
                assert re.search(f"rank [{''.join(set('012') - {str(victim)})}]", text), text
        made[victim].kill()
        made[victim].wait()
        for bind in net.binds:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port(bind)), 5)
