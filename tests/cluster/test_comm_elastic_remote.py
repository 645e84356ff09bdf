"""Elastic groups over several hosts, here by TCP on loopback: the same bits whoever takes part, is
killed, stopped, cut off or joins; and never two runs."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from at_once import outcomes
from cut_network import network, port
from elastic_processes import alone, check, disturb, fresh, kills, lost_before, processes
from elastic_run import Run
from group_members import free_addresses

from weft.comm import remote_meeting
from weft.comm.addresses import Secret
from weft.comm.errors import AddressError, LeftBehindError, UnreachableError
from weft.comm.meeting import Generation
from weft.comm.members import Remote
from weft.comm.remote_meeting import RemoteMeeting


def runs(name: str, size: int, addresses: Sequence[str], steps: int = 5, **options: Any) -> Any:
    """What members at the addresses make of a run, in threads."""

    def work(place: int, secret: Secret | None) -> Any:
        remote = Remote(tuple(addresses), secret)
        with closing(Run(name, size, remote=remote, place=place, **options)) as run:
            run.until(steps)
        return run.state.tobytes()

    key = Secret.generate()
    return outcomes([partial(work, place, key) for place in range(size)])


@pytest.mark.parametrize(("size", "host"), [(1, ""), (3, ""), (3, socket.gethostname())])
def test_the_bits_of_one_process(size: int, host: str) -> None:
    """Some of the addresses have no process. They may have names of hosts."""
    addresses = [a.replace("127.0.0.1", host or "127.0.0.1") for a in free_addresses(4)]
    assert runs(fresh(), size, addresses) == [alone(5).state.tobytes()] * size


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_meeting, "SLACK_S", 0.3)


def test_who_cannot_come(impatient: None) -> None:
    addresses = free_addresses(3)
    one, other = (Remote(addresses, Secret.generate()) for _ in range(2))
    with (
        closing(Run(fresh(), 1, remote=one, place=1)),
        pytest.raises(UnreachableError, match=f"{addresses[1]} .* do not go together"),
    ):
        Run(fresh(), 1, remote=other, connect_timeout=0.5, timeout=0.5)
    with pytest.raises(UnreachableError, match=r"1 processes of the run .* have come, and 2 are"):
        Run(fresh(), 2, connect_timeout=0.5, remote=Remote(addresses))
    with pytest.raises(AddressError, match="has an address twice"):
        Run(fresh(), 2, remote=Remote(addresses[:1] * 2))
    name = fresh()
    with closing(Run(name, 1, remote=Remote(addresses))), pytest.raises(AddressError):
        Run(name, 1, remote=Remote(addresses))


def meetings(
    addresses: Sequence[str], count: int, size: int | None = None, **options: float
) -> list[RemoteMeeting]:
    """Of so many processes; size: as many begin, by default all."""
    name, remote = fresh(), Remote(tuple(addresses))
    seconds = {"timeout": 0.5, "connect_timeout": 5.0, **options}
    return [
        RemoteMeeting(name, size or count, 1, remote=remote, place=k, **seconds)
        for k in range(count)
    ]


def met(ones: Sequence[RemoteMeeting], step: int, last: Sequence[Generation]) -> Any:
    known = step > 0
    calls: list[Callable[[], Any]] = [
        partial(one.meet, step, known, g) for one, g in zip(ones, last, strict=True)
    ]
    return outcomes(calls)


def test_of_two_halves_one_goes_on(impatient: None) -> None:
    """The one with the first address; to each the others are there, and do not come."""
    four = meetings(free_addresses(4), 4)
    try:
        (first, *others) = met(four, 0, [Generation()] * 4)
        assert others == [first] * 3
        after = met(four[:2], 5, [first] * 2)
        assert after[0] == after[1]
        assert {m.ident for m in after[0].members} == {m.ident for m in four[:2]}
        last = met(four[2:], 5, [first] * 2)
        assert [type(error) for error in last] == [LeftBehindError] * 2
        assert str(last[0]).count("tcp://127.0.0.1:") == 2
    finally:
        for one in four:
            one.close()


def test_newcomers_do_not_begin_beside_others(impatient: None) -> None:
    """However many they are, while there is an address that is not known to be empty."""
    ones = meetings(free_addresses(4), 4, 3, connect_timeout=0.5)
    try:
        found = met(ones[1:], 0, [Generation()] * 3)
        assert [type(error) for error in found] == [UnreachableError] * 3
        assert "may have a process" in str(found[0])
    finally:
        for one in ones:
            one.close()
    addresses = free_addresses(4)
    ones = meetings(addresses, 3)
    try:  # nobody is at the fourth
        found = met(ones, 0, [Generation()] * 3)
        assert len(found[0].members) == 3
        assert found == [found[0]] * 3
    finally:
        for one in ones:
            one.close()


def test_lists_in_another_order_are_no_run(impatient: None) -> None:
    """Else each could take another one for the first address."""
    addresses = free_addresses(2)
    ones = [
        RemoteMeeting("orders", 2, 1, 5.0, 5.0, Remote(tuple(addresses)), 0),
        RemoteMeeting("orders", 2, 1, 5.0, 5.0, Remote(tuple(addresses[::-1])), 0),
    ]
    try:
        found = outcomes([partial(one.meet, 0, False, Generation()) for one in ones])
    finally:
        for one in ones:
            one.close()
    assert any(isinstance(error, AddressError) for error in found), found
    assert "or in another order" in "".join(map(str, found))


def test_who_is_behind_is_told_so() -> None:
    ones = meetings(free_addresses(3), 3)
    try:
        (first, *_) = met(ones, 0, [Generation()] * 3)
        steps = zip(ones, (3, 9, 9), strict=True)
        found = outcomes([partial(one.meet, step, True, first) for one, step in steps])
    finally:
        for one in ones:
            one.close()
    assert isinstance(found[0], LeftBehindError)
    assert "the others are at step 9, and this process at step 3" in str(found[0])


def test_a_killed_member_is_named_and_another_one_takes_its_place() -> None:
    """kill -9; the newcomer is at the address of the one that was killed."""
    wanted = alone(400)
    with processes(3, 400, addresses=free_addresses(3)) as run:
        victim = run.made[0]
        newcomer = run.start(1, place=0)
        victim.kill()
        victim.wait()
        run.join(newcomer)
        texts = [check(one, wanted) for one in run.made[1:]]
        for text in texts[:2]:
            assert f"(process {victim.pid} at {run.addresses[0]}) is lost" in text
            assert f"process {run.made[3].pid} at {run.addresses[0]} has come" in text


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 2])
def test_a_stopped_member_is_left_behind(which: int) -> None:
    """Of whichever number: the others are more. It hears so when it goes on."""
    wanted = alone(300)
    with processes(3, 300, timeout=1.0, addresses=free_addresses(3)) as run:
        stopped = run.made[which]
        os.kill(stopped.pid, signal.SIGSTOP)
        for one in run.made:
            if one is not stopped:
                assert f"(process {stopped.pid} at" in check(one, wanted)
        os.kill(stopped.pid, signal.SIGCONT)
        text = stopped.communicate(timeout=60)[0]
        ends = ["end", "error LeftBehindError", "error UnreachableError"]
        ends.append("stream_engine_base.cpp:310")  # libzmq 4.3.5 may abort who was stopped
        assert any(end in text for end in ends)


@pytest.mark.slow
@pytest.mark.parametrize("seed", kills(2))
def test_disturbed_at_random_moments(seed: int) -> None:
    """No hang; all who live end with the state of the run that nothing happens to."""
    dice = random.Random(seed)
    length, steps = [(5, 800), (5_000, 500), (300_000, 40)][seed % 3]
    wanted = alone(steps, length)
    with (
        network(5) as net,
        processes(3, steps, length, 20, 2, net.addresses, net.binds) as run,
    ):
        spare = run.made[3:]
        killed = disturb(run, spare, dice, net)
        for one in run.made:
            if one.pid in killed or one in spare:
                continue
            text = check(one, wanted)
            assert lost_before(steps - 1, text) <= set(killed), text
        assert all(one.poll() is None for one in spare)
        for bind in net.binds:  # nobody listens
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port(bind)), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "others", "stay"), [([0, 1], [2, 3, 4], [2, 3, 4]), ([0], [2], [0, 1])]
)
def test_a_network_in_parts(one: list[int], others: list[int], stay: list[int]) -> None:
    """The larger one goes on, of those that all hear each other. In the other one, though it has
    the first address, they hear that they are left behind: there is no second run."""
    wanted, size = alone(1500), max(others) + 1
    with (
        network(size) as net,
        processes(size, 1500, 5, 2.0, 0, net.addresses, net.binds) as run,
    ):
        net.cut(one, others)
        left = [k for k in range(size) if k not in stay]
        for k in stay:
            text = check(run.made[k], wanted)
            for lost in left:
                assert f"(process {run.made[lost].pid} at" in text
        for k in left:
            text = run.made[k].communicate(timeout=60)[0]
            assert "error LeftBehindError of the run" in text, text
            assert all(net.addresses[other] in text for other in stay)
