"""Elastic groups: the same bits whoever takes part, is killed, stopped, cut off or joins."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from at_once import outcomes
from elastic_processes import alone, check, disturb, fresh, kills, lost_before, processes
from elastic_run import Run
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from weft.comm import elastic as elastic_module
from weft.comm.elastic import Tree, share
from weft.comm.errors import (
    GroupEndedError,
    LeftBehindError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call
from weft.comm.meeting import Generation, Meeting, Member, address_of


def in_a_tree(values: list[Any]) -> Any:
    """The sum that is meant: halves of the next power of two, the right one as far as it goes."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return in_a_tree(values[:half]) + in_a_tree(values[half:])


@given(count=st.integers(1, 40), size=st.integers(1, 9), seed=st.integers(0, 100))
@examples(200)
def test_the_tree(count: int, size: int, seed: int) -> None:
    """However parts are shared out, the sum is that of the whole tree."""
    parts = [np.array([x]) for x in np.random.default_rng(seed).normal(size=count) * 1e3]
    whole = Tree(count)
    taken: list[int] = []
    for rank in range(size):
        own = Tree(count)
        for k in share(count, rank, size):
            taken.append(k)
            own.add(0, k, parts[k].copy())
        for (level, number), value in zip(own.nodes, own.sums, strict=True):
            whole.add(level, number, value)
    assert taken == list(range(count))
    assert len(whole.sums) == 1
    assert whole.sums[0].tobytes() == in_a_tree(parts).tobytes()


@pytest.mark.share(2)
@pytest.mark.parametrize(("size", "length"), [(2, 5), (3, 5), (3, 70_000), (9, 3)])
def test_any_number_of_members(size: int, length: int) -> None:
    """Sums that go at once or in pieces, shares that are no subtrees, more members than parts."""
    name, wanted = fresh(), alone(4, length)

    def work() -> Any:
        with closing(Run(name, size, length)) as run:
            assert run.group.size == size
            run.until(4)
        return run.state.tobytes()

    assert outcomes([work] * size) == [wanted.state.tobytes()] * size


def test_members_leave_and_join() -> None:
    """One leaves, another takes its place with the state of the others; all are written down."""
    name, end = fresh(), [1 << 30]
    left = threading.Event()

    def ends(run: Run) -> Any:
        while run.group.step < end[0]:
            run.advance()
        return run.seen, run.group.changes

    def stays() -> Any:
        with closing(Run(name, 2)) as run:
            run.until(10)
            left.wait(20)
            while run.group.step < 15 or run.group.size < 2:
                run.advance()
                time.sleep(0.001)
            end[0] = run.group.step + 5
            return ends(run)

    def leaves() -> Any:
        with closing(Run(name, 2)) as run:
            run.until(10)
        left.set()
        with pytest.raises(GroupEndedError, match="was closed here"):
            run.advance()
        return run.seen, []

    def joins() -> Any:
        left.wait(20)
        with closing(Run(name, 2)) as run:
            assert run.group.step >= 10
            return ends(run)

    found = outcomes([stays, leaves, joins])
    wanted = alone(end[0])
    for one in found:
        assert not isinstance(one, BaseException), one
        assert one[0] == {step: wanted.seen[step] for step in one[0]}
    changes = found[0][1]
    assert len(changes) == 2 or "is lost" in changes[0]
    assert f"(process {os.getpid()}) is lost" in changes[0]
    assert f"process {os.getpid()} has come" in changes[-1]


def test_who_has_the_sum_gives_it_to_who_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was cut off in the last moment of a sum gets it, and does not add again."""
    name, wanted = fresh(), alone(6)
    summed, cut = elastic_module.sum_of_parts, threading.local()

    def work(which: int) -> Any:
        cut.here = which == 1
        with closing(Run(name, 2)) as run:
            run.until(6)
        return run.seen, run.state.tobytes()

    def breaks(group: Any, count: int, part: Any, what: Call) -> Any:
        made = summed(group, count, part, what)
        if cut.here and what.op == "step 3":
            cut.here = False
            group.close("it was cut off")
            raise GroupEndedError("it was cut off")
        return made

    monkeypatch.setattr(elastic_module, "sum_of_parts", breaks)
    for seen, bits in outcomes([lambda: work(0), lambda: work(1)]):
        assert seen == wanted.seen
        assert bits == wanted.state.tobytes()


def test_too_few_and_another_state() -> None:
    with pytest.raises(UnreachableError, match=r"1 processes of the run .* have come, and 2 are"):
        Run(fresh(), 2, connect_timeout=0.3)
    name = fresh()

    def work(length: int) -> Any:
        with closing(Run(name, 2, length, connect_timeout=2)) as run:
            run.until(3)

    found = outcomes([lambda: work(5), lambda: work(6)])
    kinds = {type(x) for x in found}
    assert ProgramsDifferError in kinds
    assert any("its array 0 is float64[" in str(x) for x in found)


def meetings(name: str, size: int, step: int) -> tuple[list[Meeting], Generation]:
    """The meetings of members, and the generation that they were in."""
    made = [Meeting(name, size, 1, 0.5, 2.0) for _ in range(size)]
    members = tuple(Member(m.ident, 1, step, True) for m in made)
    return made, Generation(1, "t", members)


def test_a_leader_that_is_behind_leaves_the_others_to_another() -> None:
    (stale, *others), last = meetings(fresh(), 3, 3)
    try:

        def comes_late(one: Meeting) -> Any:
            time.sleep(0.1)
            return one.meet(50, True, last)

        found = outcomes(
            [lambda: stale.meet(3, True, last), *[lambda o=o: comes_late(o) for o in others]]
        )
    finally:
        for one in (stale, *others):
            one.close()
    assert isinstance(found[0], LeftBehindError)
    assert found[1] == found[2]
    assert {m.ident for m in found[1].members} == {m.ident for m in others}


def test_all_of_a_half_hear_that_it_is_left_behind() -> None:
    four, last = meetings(fresh(), 4, 5)
    try:
        found = outcomes([partial(m.meet, 5, True, last) for m in four[2:]])
    finally:
        for one in four:
            one.close()
    assert [type(error) for error in found] == [LeftBehindError] * 2


@pytest.mark.slow
def test_a_leader_that_was_silent_follows_the_next_one() -> None:
    """It has its name still, and does not begin a second run with one who has lost another."""
    name = fresh()
    old, b, c = (Meeting(name, 3, 1, 0.3, 0.3) for _ in range(3))

    def second(one: Meeting) -> Any:
        time.sleep(0.1)  # the first leads
        return one.meet(0, False, Generation())

    try:
        first = outcomes(
            [lambda: old.meet(0, False, Generation()), lambda: second(b), lambda: second(c)]
        )
        assert first[0].rank(old.ident) == 0
        after = outcomes([lambda: b.meet(5, True, first[0]), lambda: c.meet(5, True, first[0])])
        assert {m.ident for m in after[0].members} == {b.ident, c.ident}
        c.close()

        def goes_on() -> Any:
            made = b.meet(5, True, after[0])
            while made.rank(old.ident) < 0 and not b.visitors():
                time.sleep(0.01)
            return made if made.rank(old.ident) >= 0 else b.meet(5, True, made)

        last = outcomes([lambda: old.meet(5, True, first[0]), goes_on])
    finally:
        for one in (old, b, c):
            one.close()
    assert last[0] == last[1]
    assert len(last[0].members) == 2


def test_junk_and_strangers() -> None:
    """Connections that say what is no message are closed; the meeting goes on."""
    name = fresh()
    run = Run(name, 1)
    address = [x for x in _addresses(name) if x.endswith("leader-0")]
    assert len(address) == 1
    for junk in (b"", b"x" * 100, b"WFM1\xff\xff\xff\xff", b"WFM1\x02\x00\x00\x00{}"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("\0" + address[0][1:])
            stranger.sendall(junk)
    run.until(3)
    assert not run.group.changes
    run.group.close()
    assert not _addresses(name)


def _addresses(name: str) -> list[str]:
    """The sockets of a run in this system, whoever has them."""
    begin = address_of(name, "").replace("\0", "@")
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    return [line.split()[-1] for line in lines if begin in line]


def test_a_killed_member_is_named_and_the_others_go_on() -> None:
    """kill -9; nothing of the run is left in the system."""
    wanted = alone(300)
    with processes(3, 300) as run:
        victim = run.made[1]
        victim.kill()
        texts = [check(run.made[k], wanted) for k in (0, 2)]
        for text in texts:
            assert f"(process {victim.pid}) is lost" in text
        assert not _addresses(run.name)


@pytest.mark.slow
def test_the_leader_is_killed_and_another_comes() -> None:
    """Whichever of the first two leads: the one that came later has the state of both."""
    wanted = alone(500)
    with processes(2, 500, spare=2) as run:
        for victim, newcomer in zip(run.made[:2], run.made[2:], strict=True):
            run.join([newcomer])
            victim.kill()
        texts = [check(one, wanted) for one in run.made[2:]]
        assert f"(process {run.made[1].pid}) is lost" in texts[1]


@pytest.mark.slow
def test_a_stopped_member_is_left_behind() -> None:
    """It hears so when it goes on; who is more goes on without it."""
    wanted = alone(300)
    with processes(3, 300, timeout=1.0) as run:
        stopped = run.made[2]
        os.kill(stopped.pid, signal.SIGSTOP)
        for one in run.made[:2]:
            assert f"(process {stopped.pid}) is lost" in check(one, wanted)
        os.kill(stopped.pid, signal.SIGCONT)
        text = stopped.communicate(timeout=60)[0]
        assert "end" in text or "error LeftBehindError" in text or "error UnreachableError" in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", kills(2))
def test_disturbed_at_random_moments(seed: int) -> None:
    """No hang; all who live end with the state of the run that nothing happens to."""
    dice = random.Random(seed)
    length, steps = [(5, 1500), (5_000, 800), (300_000, 60)][seed % 3]
    wanted = alone(steps, length)
    with processes(3, steps, length, spare=2) as run:
        spare = run.made[3:]
        killed = disturb(run, spare, dice)
        for one in run.made:
            if one.pid in killed or one in spare:
                continue
            text = check(one, wanted)
            assert lost_before(steps - 1, text) <= set(killed), text
        assert all(one.poll() is None for one in spare)
        for one in spare:
            one.kill()
            one.wait()
        assert not _addresses(run.name)


def _descriptors() -> list[str]:
    found = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
    return sorted(name for name in found if "memfd" in name or "socket" in name)


def test_nothing_stays_open() -> None:
    gc.collect()
    before = _descriptors()
    alone(2)
    name = fresh()

    def work() -> None:
        with closing(Run(name, 2)) as run:
            run.until(2)
            run.close()

    assert outcomes([work, work]) == [None, None]
    gc.collect()
    assert _descriptors() == before


def test_a_fork_leaves_the_run_to_the_parent() -> None:
    """What a child has of it does not count as a member that is there."""
    name = fresh()
    with closing(Run(name, 1)) as run:
        heard, told = os.pipe()
        child = os.fork()
        if not child:
            os.write(told, b"x")
            time.sleep(20)
            os.kill(os.getpid(), signal.SIGKILL)  # no test goes on here
        assert os.read(heard, 1) == b"x"
        run.until(2)
    try:
        assert not _addresses(name)
    finally:
        os.close(heard)
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
