"""Who may send what: a tensor under a key that another task's send owns is refused and counted."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from comm_peers import Here

import weft as wf
from weft.comm.errors import DuplicateKeyError, WrongSenderError
from weft.comm.rendezvous import DEAD, Rendezvous

KEY = (3, ())
STEP = 1 << 36


def take(table: Rendezvous, source: str | None, step: int = 1) -> list[Any]:
    got: list[Any] = []
    table.get(step, KEY, got.append, source)
    return got


def within(seconds: float, there: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not there() and time.monotonic() < until:
        time.sleep(0.005)
    return there()


# ---------------------------------------------------------------------------------- the rendezvous
def test_a_reader_that_waits_takes_only_its_sender() -> None:
    table = Rendezvous()
    got = take(table, "a")
    with pytest.raises(WrongSenderError, match=r"b sent key \(3, \(\)\) of step 1, which is a's"):
        table.put(1, KEY, "forged", source="b")
    with pytest.raises(WrongSenderError):
        table.offer(1, KEY, lambda: got.append("claimed"), "b")
    assert got == []
    assert table.put(1, KEY, "right", source="a")
    assert got == ["right"]
    assert table.steps == table.held_bytes == 0


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_what_came_before_the_reader_is_sorted_out(order: tuple[str, ...]) -> None:
    strays: list[str] = []
    taken: list[str] = []
    table = Rendezvous(on_stray=strays.append)
    for who in order:
        assert table.put(1, KEY, who, size=5, on_taken=partial(taken.append, who), source=who)
    assert table.held_bytes == 15
    assert take(table, "a") == ["a"]
    assert sorted(taken) == ["a", "b", "c"]
    assert sorted(why.split()[1] for why in strays) == ["b", "c"]
    assert table.held_bytes == table.steps == 0
    table.put(1, KEY, "again", source="a")
    with pytest.raises(DuplicateKeyError):
        table.put(1, KEY, "twice", source="a")


def test_a_reader_that_comes_too_early_waits_on() -> None:
    strays: list[str] = []
    table = Rendezvous(on_stray=strays.append)
    table.offer(1, KEY, lambda: strays.append("claimed"), "b")
    got = take(table, "a")
    assert (got, len(strays)) == ([], 1)
    assert not table.withdraw(1, KEY, "b")
    claimed: list[int] = []
    assert table.offer(1, KEY, lambda: claimed.append(1), "a")
    table.put(1, KEY, DEAD, source="a")
    assert (got, claimed) == ([DEAD], [1])


def test_offers_of_several_are_withdrawn_apart() -> None:
    table = Rendezvous()
    for who in "ab":
        assert not table.offer(1, KEY, lambda: None, who)
    with pytest.raises(DuplicateKeyError):
        table.offer(1, KEY, lambda: None, "b")
    assert table.withdraw(1, KEY, "b")
    assert not table.withdraw(1, KEY, "b")
    assert table.withdraw(1, KEY, "a")
    assert table.steps == 0


@pytest.mark.parametrize("end", ["abort", "forget"])
def test_the_end_of_a_step_drops_all(end: str) -> None:
    table, taken = Rendezvous(), list[str]()
    for who in "ab":
        table.put(STEP, KEY, who, size=7, on_taken=partial(taken.append, who), source=who)
    table.abort(STEP, RuntimeError("x")) if end == "abort" else table.forget(STEP)
    assert sorted(taken) == ["a", "b"]
    assert table.held_bytes == 0


def test_without_a_name_any_sender_fits() -> None:
    table = Rendezvous()
    table.put(1, KEY, "value", source="b")
    assert take(table, None) == ["value"]
    table.put(1, KEY, "own")
    assert take(table, "a") == ["own"]


# --------------------------------------------------------------------------------- over connections
@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[Here, Here, Here]]:
    """A reader, the sender, and another one, with links from these to the first."""
    with ExitStack() as stack:
        made = [Here(name) for name in ("reader", "sender", "other")]
        for end in made:
            stack.callback(end.close)
        for end in made[1:]:
            end.connect("reader", made[0].address)
        yield made[0], made[1], made[2]


SENT: dict[str, tuple[Any, bool]] = {
    "inline": (np.arange(3.0), False),
    "dead": (DEAD, False),
    "a frame of its own": (np.arange(20_000.0), False),
    "offered": (np.arange(100_000.0), False),
    "lent": (np.arange(100_001.0), True),
}
steps = itertools.count(STEP)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "comes later"])
@pytest.mark.parametrize("how", SENT)
def test_the_other_one_is_refused(ends: tuple[Here, Here, Here], how: str, waits: bool) -> None:
    reader, sender, other = ends
    step, (value, lend) = next(steps), SENT[how]
    wrong = value if value is DEAD else -value
    before = reader.rejections.counts().get("wrong sender", 0)
    answer: list[Any] = []

    def ask() -> None:
        reader.rendezvous.get(step, (7, ()), answer.append, "sender")

    if waits:
        ask()
    other.send_tensor("reader", step, 7, (), wrong, lend=lend)
    other.send("reader", 5, step, {})
    assert reader.messages.get(timeout=10).peer == "other"
    if not waits:
        ask()
    assert within(10, lambda: reader.rejections.counts().get("wrong sender", 0) == before + 1)
    assert answer == []
    sender.send_tensor("reader", step, 7, (), np.ones(4) if value is DEAD else value, lend=lend)
    assert within(10, lambda: bool(answer))
    np.testing.assert_array_equal(answer[0], np.ones(4) if value is DEAD else value)
    reader.forget(step)
    assert within(10, lambda: not other.transfers.outgoing)
    assert reader.lost.empty()


def test_the_first_refusal_is_logged(
    ends: tuple[Here, Here, Here], caplog: pytest.LogCaptureFixture
) -> None:
    _, sender, other = ends
    with Here("fresh") as fresh, caplog.at_level(logging.WARNING, "weft.comm"):
        other.connect("fresh", fresh.address)
        fresh.rendezvous.get(STEP, (7, ()), lambda value: None, sender.name)
        other.send_tensor("fresh", STEP, 7, (), [1.0])
        assert within(10, lambda: fresh.rejections.counts().get("wrong sender") == 1)
    assert "fresh refused: wrong sender: other sent key (7, ()) of step" in caplog.text


# ------------------------------------------------------------------------------------ on a cluster
def test_a_task_cannot_send_for_another_one() -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 2, "worker": 1})
    try:
        with wf.Graph().as_default():
            with wf.device("/job:ps/task:0"):
                queue = wf.FIFOQueue(10, [wf.float32], shapes=[[]])
                x = wf.placeholder(wf.float32, [])
                put, got = queue.enqueue(x), queue.dequeue()
            with wf.device("/job:worker/task:0"):
                y = got + 1.0
            with wf.Session(servers[2].target) as session:
                session.run(put, {x: 1.0})
                assert session.run(y) == 2.0
                results: list[Any] = []
                worker = servers[2].worker
                running = threading.Thread(target=lambda: results.append(session.run(y)))
                running.start()
                table, begun = worker.wire.rendezvous, session._remote.master._waits
                assert within(10, lambda: bool(begun))
                step = next(iter(begun))
                assert within(10, lambda: bool(table.waiting(step)))
                (wait,) = table.waiting(step)
                rogue = servers[1].worker.wire
                rogue.connect(worker.name, worker.wire.address)
                rogue.send_tensor(worker.name, step, *wait.key, np.float32(66.0))
                wire: Any = worker.wire
                refused = wire.rejections
                assert within(10, lambda: refused.counts().get("wrong sender") == 1)
                assert not results
                session.run(put, {x: 2.0})
                running.join(10)
                assert results == [3.0]
                assert session.run(put, {x: 5.0}) is None
                assert session.run(y) == 6.0
    finally:
        for server in servers:
            server.stop()
