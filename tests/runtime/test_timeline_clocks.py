"""Clocks of several tasks aligned by their messages: true times are known, clocks are made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.runtime.trace.timeline import Clock, Sighting, align

HOME = "/client"


class World:
    """Clocks that start anywhere and drift; messages take their time."""

    def __init__(self, seed: int, clocks: dict[str, tuple[int, float]]) -> None:
        self.random = random.Random(seed)
        self.clocks = {HOME: (0, 0.0), **clocks}
        self.seen: list[Sighting] = []

    def read(self, task: str, ns: int) -> int:
        offset, drift = self.clocks[task]
        return ns + offset + round(drift * ns)

    def message(self, sender: str, receiver: str, at: int, least: int = 40_000) -> int:
        """One that is sent at `at` by the true clock: when it arrives."""
        came = at + least + round(self.random.expovariate(1 / 100_000))
        self.seen.append(
            Sighting(sender, receiver, self.read(sender, at), self.read(receiver, came))
        )
        return came

    def aligned(self) -> dict[str, Clock]:
        return align(self.seen, list(self.clocks), HOME)


def in_order(world: World, clocks: dict[str, Clock], slack: int = 2) -> None:
    """By the aligned clocks no message arrives before it was sent (roundings aside)."""
    for s in world.seen:
        sent = clocks[s.sender].reference(s.sent_ns)
        assert clocks[s.receiver].reference(s.received_ns) >= sent - slack


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=6),
    st.integers(1, 30),
)
def test_offsets_within_what_they_say(seed: int, offsets: list[int], count: int) -> None:
    tasks = {f"/job:w/task:{i}": (o, 0.0) for i, o in enumerate(offsets)}
    world = World(seed, tasks)
    for task in tasks:  # the session and each task always exchange two
        world.message(task, HOME, world.message(HOME, task, 0) + 1_000_000)
    for _ in range(count):
        one, other = world.random.choices(list(tasks), k=2)
        world.message(one, other, world.random.randrange(10**7))
    clocks = world.aligned()
    in_order(world, clocks)
    for task, (offset, _) in tasks.items():
        found = clocks[task]
        assert found.drift == 0
        assert found.violated_ns == 0
        assert found.uncertain_ns is not None
        rounded = abs(offset) >> 50  # bounds are floats
        assert abs(found.offset_ns - offset) <= found.uncertain_ns + 2 + rounded


def test_messages_between_tasks_make_offsets_better() -> None:
    """The session's own messages are slow, those between two tasks fast."""
    tasks = {"/job:w/task:0": (5_000_000, 0.0), "/job:w/task:1": (-7_000_000_000, 0.0)}
    slow, fast = World(1, tasks), World(1, tasks)
    first, second = tasks
    for world in (slow, fast):
        for task in tasks:
            world.message(task, HOME, world.message(HOME, task, 0, 2_000_000), 2_000_000)
    for at in range(0, 10**7, 10**5):
        fast.message(first, second, at, 5_000)
        fast.message(second, first, at, 5_000)
    clocks = fast.aligned()
    between = clocks[second].offset_ns - clocks[first].offset_ns
    assert abs(between - (-7_000_000_000 - 5_000_000)) < 10_000
    loose, tight = slow.aligned()[first].uncertain_ns, clocks[first].uncertain_ns
    assert loose is not None
    assert tight is not None
    assert tight <= loose


@pytest.mark.parametrize("ppm", [-300, -40, 15, 100, 450])
def test_drift_over_a_minute(ppm: int) -> None:
    drift = ppm / 1e6
    world = World(3, {"/job:w/task:0": (123_456_789, drift)})
    for second in range(60):
        came = world.message(HOME, "/job:w/task:0", second * 10**9)
        world.message("/job:w/task:0", HOME, came + 400_000)
    clock = world.aligned()["/job:w/task:0"]
    in_order(world, {HOME: Clock(), "/job:w/task:0": clock})
    assert clock.violated_ns == 0
    for second in range(60):
        true = second * 10**9
        assert abs(clock.reference(world.read("/job:w/task:0", true)) - true) < 150_000
    if abs(ppm) >= 15:
        assert clock.drift == pytest.approx(drift, abs=8e-6)


def test_no_drift_is_made_up_for_a_short_step() -> None:
    world = World(4, {"/job:w/task:0": (99, 3e-4)})
    world.message("/job:w/task:0", HOME, world.message(HOME, "/job:w/task:0", 0) + 10**6)
    assert world.aligned()["/job:w/task:0"].drift == 0.0


def test_many_messages() -> None:
    world = World(5, {"/job:w/task:0": (-(10**12), 5e-5)})
    for k in range(20_000):
        one, other = (HOME, "/job:w/task:0") if k % 2 else ("/job:w/task:0", HOME)
        world.message(one, other, k * 1_000_000)
    clock = world.aligned()["/job:w/task:0"]
    at = 10**10
    assert abs(clock.reference(world.read("/job:w/task:0", at)) - at) < 60_000


def test_times_that_contradict_each_other() -> None:
    """A clock that was set back by a second between two messages."""
    seen = [
        Sighting(HOME, "a", 0, 100),
        Sighting("a", HOME, 2_000_000_000, 1_000),  # bounds that exclude each other
        Sighting("a", "b", 0, 50),
        Sighting("b", "a", 60, 100),
    ]
    clocks = align(seen, [HOME, "a", "b"], HOME)
    assert clocks["a"].violated_ns >= 900_000_000
    assert "uneven" in clocks["a"].describe()


def test_one_way_only() -> None:
    clocks = align(
        [Sighting(HOME, "a", 10, 1_010), Sighting(HOME, "a", 20, 5_000)], [HOME, "a"], HOME
    )
    assert clocks["a"].offset_ns == 1_000
    assert clocks["a"].uncertain_ns is None
    assert "unknown" in clocks["a"].describe()
    assert align([], [HOME, "a"], HOME)["a"] == Clock(0, 0.0, 0, None)


def test_a_clock_reads() -> None:
    assert Clock(100).reference(150) == 50
    assert Clock(100, 1e-4, 100).reference(10**9 + 100) == 10**9 - 10**5
    assert Clock(12_300, 15e-6, 0, 4_000).describe() == "+12.3 us (+- 4.0), +15.0 ppm"
