"""All tasks on one machine, simulated: threads that sleep, wake, wait for their processor."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace

import pytest

from weft.ir.errors import InvalidArgumentError
from weft.passes.placement.simulate import (
    Cluster,
    Ends,
    Machine,
    Processors,
    Thread,
    Workload,
    simulate,
)

PLAIN = Machine(2, Ends(1e-3), Ends(1e-3), tasks=2, balance_s=0.0)


class Clock:
    """Events in order of time."""

    def __init__(self) -> None:
        self.now, self.events, self.count = 0.0, list[tuple[float, int, Callable[[], None]]](), 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            what()


def made(machine: Machine) -> tuple[Clock, Processors, Callable[[str], Callable[[], None]], list]:
    clock = Clock()
    log: list[tuple[str, float]] = []
    processors = Processors(machine, clock.at, lambda: clock.now)
    return clock, processors, lambda name: lambda: log.append((name, clock.now)), log


def test_a_thread_waits_for_the_processor_where_it_ran_last() -> None:
    clock, processors, note, log = made(PLAIN)
    first, second, elsewhere = Thread(0), Thread(0), Thread(1)
    processors.do(first, 3.0, note("first"))
    processors.do(second, 2.0, note("second"))
    processors.do(elsewhere, 1.0, note("elsewhere"))
    processors.do(first, 1.0, note("first again"))
    clock.run(99.0)
    # the other processor has nothing to do from second 1 on, and yet `second` waits
    assert log == [("elsewhere", 1.0), ("first", 3.0), ("first again", 4.0), ("second", 6.0)]
    assert processors.busy_s == 7.0


def test_those_that_wait_are_moved_now_and_then() -> None:
    clock, processors, note, log = made(replace(PLAIN, balance_s=1.5))
    threads = [Thread(0) for _ in range(3)]
    for i, thread in enumerate(threads):
        processors.do(thread, 4.0, note(str(i)))
    clock.run(20.0)
    # at 1.5 the last one is moved; at 3.0 one waits, and the other processor is not idle
    assert log == [("0", 4.0), ("2", 5.5), ("1", 8.0)]
    assert threads[2].processor == 1
    assert threads[1].processor == 0


def test_waking_takes_time_on_an_idle_processor_only() -> None:
    clock, processors, note, log = made(replace(PLAIN, wake_s=0.25))
    processors.do(Thread(0), 1.0, note("woken"))
    processors.do(Thread(0), 1.0, note("next"))
    clock.run(99.0)
    assert log == [("woken", 1.25), ("next", 2.25)]


def test_one_trip_on_one_processor_is_all_its_work() -> None:
    """A step of one worker and one server: four messages, each handled twice and carried twice."""
    load = Workload((0.0,), (0.0,), 0.0)
    ends = Ends(2e-3, 1e-3)
    alone = replace(PLAIN, processors=1, worker=ends, server=ends)
    assert simulate(load, 1, Cluster(machine=alone)).median >= 4 * 6e-3
    free = simulate(load, 1, Cluster(machine=alone), synchronous=False, steps=5)
    assert free.median == pytest.approx(4 * 6e-3)
    eight = simulate(load, 8, Cluster(machine=alone), synchronous=False, steps=5)
    assert eight.median == pytest.approx(8 * free.median, rel=0.05)
    woken = simulate(
        load, 1, Cluster(machine=replace(alone, wake_s=1e-4)), synchronous=False, steps=5
    )
    assert 4 * 6e-3 < woken.median <= 4 * 6e-3 + 16e-4


def test_computing_is_done_by_the_thread_that_handles_messages() -> None:
    load = Workload((0.0,), (0.0,), 0.5, (0.25,))
    run = simulate(load, 1, Cluster(machine=PLAIN), synchronous=False, steps=3)
    assert run.median == pytest.approx(0.5 + 0.25 + 4 * 2e-3)


def test_bytes_and_large_messages() -> None:
    load = Workload((1e6,), (1e3,), 0.0)
    alone = replace(PLAIN, processors=1)

    def median(machine: Machine) -> float:
        return simulate(load, 1, Cluster(machine=machine), synchronous=False, steps=3).median

    plain = median(alone)
    bytewise = replace(alone, server=Ends(1e-3, byte_s=1e-9))
    assert median(bytewise) == pytest.approx(plain + 1.001e6 * 1e-9)  # sent and received
    large = Ends(1e-3, large_s=7e-3)
    assert median(replace(alone, server=large)) == pytest.approx(plain)  # nothing is large
    of_it = replace(alone, server=large, worker=Ends(1e-3, large_s=5e-3), large_bytes=1e6)
    assert median(of_it) == pytest.approx(plain + 12e-3)


@pytest.mark.parametrize("part", ["message", "carrier", "byte"])
def test_more_tasks_cost_each_other_time(part: str) -> None:
    """Eight workers and a server, 1 + 7 * 0.1 times as long as among two tasks."""
    load = Workload((1e6,), (0.0,), 0.0)
    field = {"message": "message_s", "carrier": "carrier_s", "byte": "byte_s"}[part]
    ends = replace(Ends(0.0), **{field: 1e-9 if part == "byte" else 1e-3})
    crowded = replace(ends, **{f"{part}_crowd": 0.1})
    quiet, loud = (
        simulate(
            load, 8, Cluster(machine=replace(PLAIN, processors=1, worker=e, server=e)),
            synchronous=False, steps=5,
        ).median
        for e in (ends, crowded)
    )  # fmt: skip
    assert loud == pytest.approx(1.7 * quiet)
    both = replace(PLAIN, processors=1, worker=crowded, server=crowded)
    alone = simulate(load, 1, Cluster(machine=both), synchronous=False, steps=5).median
    assert alone == pytest.approx(quiet / 8, rel=0.01)


def test_processors_are_not_always_busy_though_there_is_work() -> None:
    """Eight workers and four servers on two processors: never faster than the work, and slower as
    threads wait where they ran last."""
    load = Workload.even(4, 0.0, 0.0, 0.0)
    ends = Ends(10e-6, 4e-6)
    machine = Machine(2, ends, ends, tasks=12)
    work = 4 * 4 * 2 * 14e-6  # of one step
    for workers, least, most in ((2, 1.03, 1.35), (8, 1.0, 1.15)):
        steps = [
            simulate(
                load, workers, Cluster(machine=replace(machine, tasks=workers + 4)),
                synchronous=False, steps=20, seed=seed,
            ).median
            for seed in range(6)
        ]  # fmt: skip
        mean = sum(steps) / len(steps)
        assert least < mean / (workers * work / 2) < most


@pytest.mark.parametrize(
    "wrong",
    [
        {"processors": 0},
        {"wake_s": -1.0},
        {"balance_s": -1.0},
        {"wake_s": float("nan")},
    ],
)
def test_machines_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        replace(PLAIN, **wrong)
    with pytest.raises(InvalidArgumentError, match="seconds are not negative"):
        Ends(-1.0)
