"""Checkpoints while training steps run: one point in time, all or nothing, no deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

SIZE = 1 << 14  # some microseconds for each copy, so that steps would come in between


@contextmanager
def running(*work: Callable[[], Any]) -> Iterator[list[BaseException]]:
    """Each function again and again in a thread of its own, until the block ends."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def loop(function: Callable[[], Any]) -> None:
        try:
            while not stop.is_set():
                function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(f,), daemon=True) for f in work]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(t.is_alive() for t in threads), "a deadlock"
    assert not errors, errors


def make_steps() -> tuple[list[wf.Variable], list[Callable[[], Any]]]:
    """Three variables that every step changes alike, in two compiled functions and a session."""
    v = [wf.Variable(np.zeros(SIZE), name=f"v{i}") for i in range(3)]

    @wf.compile
    def up() -> Any:
        return [x.assign_add(1.0) for x in v]

    @wf.compile
    def down() -> Any:
        return [x.assign_sub(3.0) for x in reversed(v)]

    graph = wf.Graph()
    with graph.as_default():
        double = wf.group(*[x.assign_add(7.0) for x in v])
    session = wf.Session(graph=graph)
    steps: list[Callable[[], Any]] = [up, down, lambda: session.run(double)]
    for step in steps:
        step()
    return v, steps


def is_one_point(arrays: list[np.ndarray[Any, Any]]) -> bool:
    return all(bool(np.all(a == arrays[0][0])) for a in arrays)


def test_a_checkpoint_is_one_point_in_time(tmp_path: Path) -> None:
    v, steps = make_steps()
    saver = wf.train.Saver(v, max_to_keep=None)
    counts = set()
    with running(*steps):
        for step in range(25):
            saver.save(None, tmp_path / "m", step, wait=step % 2 == 0)
        saver.wait()
    for path in saver.last_checkpoints:
        arrays = [wf.train.load_variable(path, x.name) for x in v]
        assert is_one_point(arrays), path
        counts.add(float(arrays[0][0]))
    assert len(counts) > 5, "the steps did not run meanwhile"


def test_the_counter_in_the_name_is_of_the_same_moment(tmp_path: Path) -> None:
    count, v = wf.Variable(0, name="count"), wf.Variable(np.zeros(SIZE), name="v")

    @wf.compile
    def step() -> Any:
        count.assign_add(1)
        return v.assign_add(1.0)

    step()
    saver = wf.train.Saver([v], max_to_keep=None)  # the counter is not even saved
    with running(step):
        for _ in range(15):
            saver.save(None, tmp_path / "m", count)
    for path in saver.last_checkpoints:
        number = int(Path(path).stem.removeprefix("m-"))
        assert np.all(wf.train.load_variable(path, "v") == number)


def test_a_step_sees_all_of_a_restore_or_nothing(tmp_path: Path) -> None:
    v, steps = make_steps()
    saver = wf.train.Saver(v)
    path = saver.save(None, tmp_path / "m")
    seen = []

    @wf.compile
    def spread() -> Any:
        return wf.max(wf.stack([wf.max(x.read()) for x in v])) - wf.min(
            wf.stack([wf.min(x.read()) for x in v])
        )

    spread()
    with running(*steps, lambda: seen.append(float(spread()))):
        for _ in range(25):
            saver.restore(None, path)
    assert len(seen) > 5
    assert set(seen) == {0.0}


def test_slots_that_a_step_makes_meanwhile_are_in_the_checkpoint(tmp_path: Path) -> None:
    """The first step makes slots and uses them; no checkpoint has its variables without them."""
    for attempt in range(6):
        w, optimizer = wf.Variable(np.zeros(8), name="w"), wf.train.Momentum(0.1, 0.9)

        @wf.compile
        def step(w: Any = w, optimizer: Any = optimizer) -> Any:
            optimizer.minimize(lambda: wf.sum((w - 1.0) ** 2), [w])

        saver = wf.train.Saver([w, optimizer], max_to_keep=None)
        thread = threading.Thread(target=step)
        thread.start()
        count = 0
        while thread.is_alive() or count < 2:
            saver.save(None, tmp_path / f"m{attempt}", count)
            count += 1
        thread.join()
        for path in saver.last_checkpoints:
            changed = bool(np.any(wf.train.load_variable(path, "w")))
            names = {name for name, _ in wf.train.list_variables(path)}
            assert not changed or "w/Momentum/momentum" in names


@pytest.mark.slow
def test_many_savers_and_steps_at_once(tmp_path: Path) -> None:
    v, steps = make_steps()
    savers = [wf.train.Saver(v, max_to_keep=2), wf.train.Saver(list(reversed(v)), max_to_keep=1)]
    counts = [0, 0]

    def save(i: int) -> None:
        counts[i] += 1
        savers[i].save(None, tmp_path / f"s{i}", counts[i], wait=counts[i] % 2 == 0)

    def same_saver() -> None:
        savers[0].save(None, tmp_path / "both", 1)

    with running(*steps, lambda: save(0), lambda: save(1), same_saver):
        threading.Event().wait(1.0)
    for saver in savers:
        saver.wait()
    assert min(counts) > 2
    names = sorted(p.name for p in tmp_path.iterdir())
    assert sum(n.startswith("s0") for n in names) == 2
    assert sum(n.startswith("s1") for n in names) == 1
    state = wf.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert sorted(Path(p).name for p in state.all_model_checkpoint_paths) == [
        n for n in names if n != "checkpoint"
    ]
    for path in state.all_model_checkpoint_paths:
        assert is_one_point([wf.train.load_variable(path, x.name) for x in v])


def test_variables_that_update_each_other_in_two_threads() -> None:
    a, b = wf.Variable(np.ones(100)), wf.Variable(np.ones(100))
    with running(lambda: a.assign_add(b), lambda: b.assign(a), lambda: b.scatter_add([0], a[:1])):
        threading.Event().wait(0.3)
