"""Collective groups: results by NumPy in the order of ranks, calls that differ, members that go."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from at_once import outcomes
from elastic_processes import kills
from example_counts import examples
from group_members import DTYPES, add_for_ever, drawn, fresh, members, small_pieces, summed
from hypothesis import given
from hypothesis import strategies as st

from weft.comm import local_members
from weft.comm.errors import (
    AddressError,
    CommError,
    DeadlineError,
    GroupEndedError,
    PeerLostError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call, Group, fold
from weft.comm.local_members import address_of


def together(size: int, work: Callable[[Group], Any], timeout: float = 10.0) -> list[Any]:
    """What each member gives, or the error that it raises; members are threads."""
    name = fresh()

    def run(rank: int) -> Any:
        with Group(name, rank, size, timeout=timeout, connect_timeout=10) as group:
            return work(group)

    return outcomes([partial(run, rank) for rank in range(size)])


@given(
    size=st.integers(1, 5), length=st.integers(0, 70), dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000), inline=st.sampled_from([0, 64, 1 << 14]),
)  # fmt: skip
@examples(60)
def test_all_calls(size: int, length: int, dtype: Any, seed: int, inline: int) -> None:
    """One after the other, on arrays that go at once and in several pieces; members come to each
    in any order. The bits are those of NumPy."""
    xs = [drawn(seed + rank, (length, 1), dtype) for rank in range(size)]
    tables = [drawn(seed + 100 + rank, (size, length), dtype) for rank in range(size)]
    sources = [*np.random.default_rng(seed).permutation(size).tolist()]
    sources[0] = -1

    def work(group: Group) -> Any:
        rank, found = group.rank, []
        late = random.Random(seed * 10 + rank)
        for call in (
            lambda: group.reduce(xs[rank], np.add, Call("psum")),
            lambda: group.reduce(xs[rank], np.maximum, Call("pmax")),
            lambda: group.gather(xs[rank], Call("all_gather")),
            lambda: group.scatter(tables[rank], np.add, Call("psum_scatter")),
            lambda: group.exchange(tables[rank], Call("all_to_all")),
            lambda: group.permute(xs[rank], sources, Call("ppermute")),
        ):
            if np.dtype(dtype).kind == "c" and len(found) == 1:
                found.append(None)  # there is no larger one
                continue
            time.sleep(late.choice([0, 0, 1e-3]))
            found.append(call())
        return found

    with small_pieces(inline, 256):
        made = together(size, work)
    for rank, found in enumerate(made):
        assert not isinstance(found, BaseException), found
        wanted = [
            summed(xs), None if found[1] is None else np.maximum.reduce(xs), np.stack(xs),
            summed([t[rank] for t in tables]), np.stack([t[rank] for t in tables]),
            xs[sources[rank]] if sources[rank] >= 0 else np.zeros_like(xs[0]),
        ]  # fmt: skip
        for got, right in zip(found, wanted, strict=True):
            if got is not None:
                assert (got.dtype, got.shape) == (right.dtype, right.shape)
                assert got.tobytes() == right.tobytes()


@pytest.mark.parametrize("length", [5, 250_001])
def test_in_place(length: int) -> None:
    """Into the array itself, which goes at once or in several real pieces."""
    xs = [drawn(rank, (3, length), np.float32) for rank in range(4)]
    wanted = summed(xs).tobytes()

    def work(group: Group) -> Any:
        own = xs[group.rank].copy()
        out = group.reduce(own, np.add, Call("psum"), own)
        return np.shares_memory(out, own) and out.tobytes() == wanted

    assert together(4, work) == [True] * 4


def test_halves_are_added_as_floats() -> None:
    parts = [np.array([x], np.float16) for x in (1, 2**-11, 2**-11)]
    out = np.empty(1, np.float16)
    fold(parts, np.add, out)
    assert out[0] == np.float16(1 + 2**-10)  # one by one each would be lost


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (lambda g: g.reduce(np.ones(4), np.add, Call("psum", "b.py:9")), "float64[4] at b.py:9"),
        (lambda g: g.reduce(np.ones(3, "f"), np.add, Call("psum", "b.py:9")), "float32[3]"),
        (lambda g: g.reduce(np.ones(4, "f"), np.maximum, Call("pmax", "b.py:9")), "pmax of"),
        (lambda g: g.gather(np.ones(4, "f"), Call("all_gather", "b.py:9")), "all_gather of"),
    ],
    ids=["dtype", "shape", "op", "kind"],
)
def test_programs_that_differ(second: Callable[[Group], Any], said: str) -> None:
    """Each member says what the others do."""

    def work(group: Group) -> Any:
        group.reduce(np.ones(2), np.add, Call("psum"))
        if group.rank == 1:
            return second(group)
        return group.reduce(np.ones(4, "f"), np.add, Call("psum", "a.py:5"))

    first, other = together(2, work)
    assert isinstance(first, (ProgramsDifferError, PeerLostError))
    assert isinstance(other, (ProgramsDifferError, PeerLostError))
    assert ProgramsDifferError in (type(first), type(other))
    for error in (first, other):
        assert said in str(error)
        assert "psum of float32[4] at a.py:5" in str(error)
        assert "call 2 of rank" in str(error)


def test_a_call_more_and_a_call_less() -> None:
    """Who has ended his program says so, to who is in a call or makes one."""

    def work(group: Group) -> Any:
        group.reduce(np.ones(2), np.add, Call("psum"))
        if group.rank == 1:
            return None
        group.reduce(np.ones(2), np.add, Call("psum", "a.py:7"))
        return None

    found = together(3, work)
    assert found[1] is None
    for error in (found[0], found[2]):
        assert isinstance(error, PeerLostError)
        assert "its program closed the group" in str(error)
        assert "psum of float64[2] at a.py:7" in str(error)


@pytest.mark.slow
def test_who_has_all_may_leave_before_others_have_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 waits for rank 2, and is off the processor while the others finish and leave."""
    slow: set[int] = set()
    poll = local_members.select.poll

    def later() -> Any:
        if threading.get_ident() in slow:
            time.sleep(0.8)
        return poll()

    monkeypatch.setattr(local_members.select, "poll", later)

    def work(group: Group) -> Any:
        if group.rank == 2:
            time.sleep(0.5)
        if group.rank == 1:
            slow.add(threading.get_ident())
        return group.reduce(np.ones(1), np.add, Call("psum")).tolist()

    assert together(3, work) == [[3.0]] * 3


def test_a_deadline_names_who_is_late() -> None:
    over = threading.Barrier(3)  # rank 2 stays, silent, until the others have given up

    def work(group: Group) -> Any:
        try:
            if group.rank != 2:
                group.reduce(np.ones(2), np.add, Call("psum", "a.py:7"))
        finally:
            over.wait(20)

    started = time.monotonic()
    first, other, _ = together(3, work, timeout=1.0)
    assert time.monotonic() - started < 5
    assert DeadlineError in (type(first), type(other))  # or from the farewell of the other one
    for error in (first, other):
        assert "rank 2 did not come within 1 s, in psum of float64[2] at a.py:7" in str(error)


def test_an_error_ends_the_group_for_good() -> None:
    def work(group: Group) -> Any:
        with pytest.raises(TypeError):
            group.reduce(np.array(["a"]), np.maximum, Call("pmax"))
        group.reduce(np.ones(1), np.add, Call("psum"))

    for error in together(2, work):
        assert isinstance(error, GroupEndedError)
        assert "has ended: " in str(error)


def test_who_may_come() -> None:
    """Nobody else has the rank; strangers are sent away; sizes agree; who is missing is named."""
    name = fresh()
    with pytest.raises(UnreachableError, match=r"ranks 1, 2 of the group .* did not come"):
        Group(name, 0, 3, connect_timeout=0.2)
    with pytest.raises(UnreachableError, match=r"ranks 0, 1 of the group .* did not come"):
        Group(name, 2, 3, connect_timeout=0.2)
    found: list[Any] = []

    def first() -> None:
        with Group(name, 0, 2, connect_timeout=10) as group:
            found.append(group.reduce(np.ones(1), np.add, Call("psum")))

    thread = threading.Thread(target=first)
    thread.start()
    address = address_of(name, 0)
    for junk in (b"", b"x" * 1000, b"WFG1" + b"\xff" * 16):
        with socket.socket(socket.AF_UNIX) as stranger:
            while True:
                try:
                    stranger.connect(address)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            stranger.sendall(junk)
    with pytest.raises(AddressError, match="another process has rank 0"):
        Group(name, 0, 2, connect_timeout=0.2)
    with Group(name, 1, 2, connect_timeout=10) as group:
        found.append(group.reduce(np.ones(1), np.add, Call("psum")))
    thread.join(10)
    assert [x.tolist() for x in found] == [[2.0], [2.0]]


def test_a_fork_leaves_the_group_to_the_parent() -> None:
    name, found = "a name that is " + "long " * 40 + fresh(), []
    forked = threading.Event()

    def second() -> None:
        with Group(name, 1, 2, connect_timeout=10) as group:
            for _ in range(2):
                found.append(group.reduce(np.ones(1), np.add, Call("psum")).tolist())
                forked.wait(20)

    thread = threading.Thread(target=second)
    thread.start()
    with Group(name, 0, 2, connect_timeout=10) as group:
        group.reduce(np.ones(1), np.add, Call("psum"))
        caller = threading.Thread(target=group.reduce, args=(np.ones(1), np.add, Call("psum")))
        caller.start()
        time.sleep(0.2)  # it is in a call
        child = os.fork()
        if not child:
            ended = False
            try:
                group.reduce(np.ones(1), np.add, Call("psum"))
            except GroupEndedError as error:
                ended = "before a fork" in str(error)
            finally:  # no test goes on here
                os.execv("/bin/sh", ["sh", "-c", f"exit {0 if ended else 1}"])
        assert os.waitpid(child, 0)[1] == 0
        forked.set()
        caller.join(10)
        thread.join(10)
    assert found == [[2.0], [2.0]]


def test_groups_of_two_sizes() -> None:
    name = fresh()
    errors: list[str] = []

    def member(rank: int, size: int) -> None:
        try:
            Group(name, rank, size, connect_timeout=0.5).close()
        except CommError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=member, args=pair) for pair in ((0, 2), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2
    assert any("has 3 members, rank 0 says 2" in error for error in errors)


@pytest.mark.parametrize("length", [3, pytest.param(400_000, marks=pytest.mark.slow)])
def test_who_is_through_may_leave(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member is slow in between its messages: the third one waits for it."""
    send, slow = socket.socket.sendmsg, set[int]()

    def sends(one: socket.socket, *args: Any) -> int:
        made = send(one, *args)
        if threading.get_ident() in slow:
            time.sleep(0.4)
        return made

    def work(group: Group) -> Any:
        if group.rank == 2:
            slow.add(threading.get_ident())
        return group.reduce(np.ones(length), np.add, Call("psum"))[0]

    monkeypatch.setattr(socket.socket, "sendmsg", sends)
    assert together(3, work, timeout=20) == [3.0] * 3


@pytest.mark.parametrize("listens", [False, True])
def test_a_member_that_leaves_a_meeting_says_why(listens: bool) -> None:
    """To one who still waits for somebody else, too: who has not come, or is stopped."""
    name = fresh()
    errors: list[CommError] = []
    began, stopped = time.monotonic(), socket.socket(socket.AF_UNIX)
    if listens:
        stopped.bind(address_of(name, 1))
        stopped.listen(5)

    def leaves() -> None:
        try:
            Group(name, 0, 3, connect_timeout=0.7)
        except CommError as error:
            errors.append(error)

    thread = threading.Thread(target=leaves)
    thread.start()
    with pytest.raises(PeerLostError, match=r"rank 0 has left, in the meeting .*rank 1 .* did not"):
        Group(name, 2, 3, connect_timeout=20)
    thread.join(10)
    stopped.close()
    assert time.monotonic() - began < 10
    assert [type(error) for error in errors] == [UnreachableError]


def _descriptors() -> list[str]:
    """What this process has open of sockets and memory."""
    found = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
    return sorted(name for name in found if "memfd" in name or "socket" in name)


@pytest.mark.share(2)
@pytest.mark.parametrize("length", [4, 400_000])
def test_a_killed_member_is_named(length: int) -> None:
    """At some moment of many calls; nothing of the group stays open here."""
    gc.collect()
    before, name = _descriptors(), fresh()
    with members(name, range(1, 3), 3, length) as (other, victim):
        group = Group(name, 0, 3, timeout=20)
        threading.Timer(0.3, victim.kill).start()
        with pytest.raises(PeerLostError) as caught:
            add_for_ever(group, length)
        lost = f"rank 2 (process {victim.pid}) is lost, in psum of float64[{length}]"
        assert lost in str(caught.value)
        with pytest.raises(GroupEndedError, match="rank 2"):
            group.reduce(np.ones(1), np.add, Call("psum"))
        said = other.stdout.read()
        assert other.wait(10) == 0
        assert "rank 2" in said
        assert "PeerLostError" in said
    del caught  # the frames of an error have views of the group's memory
    gc.collect()
    assert _descriptors() == before


@pytest.mark.slow
def test_a_stopped_member_is_late() -> None:
    name = fresh()
    with members(name, range(1, 2), 2, 4) as (member,):
        group = Group(name, 0, 2, timeout=1.0)
        group.reduce(np.full(4, 1.0), np.add, Call("psum"))
        os.kill(member.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match="rank 1 did not come within 1 s"):
            add_for_ever(group, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", kills(16))
def test_faults_at_random_moments(seed: int) -> None:
    """No hang, whoever is killed, or stopped, in whatever call; all others name it, and nothing
    is left: no socket, no memory, no process."""
    gc.collect()
    before, dice = _descriptors(), random.Random(seed)
    pause, stops = dice.uniform(0.0, 0.3), seed % 4 == 3
    name, length = fresh(), [4, 5_000, 400_000][seed % 3]
    with members(name, range(1, 4), 4, length, timeout=1.5 if stops else 20) as processes:
        group = Group(name, 0, 4, timeout=1.5 if stops else 20)
        victim = processes[seed % 2]
        named = rf"ranks? (\d, )*{1 + seed % 2}"  # of who waits for it, others may be late, too
        number = signal.SIGSTOP if stops else signal.SIGKILL
        threading.Timer(pause, victim.send_signal, [number]).start()
        with pytest.raises((PeerLostError, DeadlineError), match=named) as caught:
            add_for_ever(group, length)
        for process in processes:
            if process is not victim:
                assert re.search(named, process.stdout.read())
                assert process.wait(10) == 0
    del caught  # the frames of an error have views of the group's memory
    gc.collect()
    assert _descriptors() == before
    address = address_of(name, 0)[1:-2]
    assert address not in Path("/proc/net/unix").read_text(encoding="utf-8")
