"""A deadline, a closed session and other cancellations end the steps of a GPU between two
iterations that the host leads: whole steps, regions of steps over several devices, steps in
between that nothing disturbs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime.device.execution import segments
from weft.runtime.device.execution.launches import Launches
from weft.runtime.resources import attempts

LATE = wf.RunOptions(timeout=60)


class Decisions:
    """What is done when the host reads a decision of a loop."""

    def __init__(self) -> None:
        self._left, self._act = 0, lambda: None

    def do(self, at: int, act: Callable[[], object]) -> None:
        """Call `act` at the one of that number, counted from now on, from 1."""
        self._left, self._act = at, act

    def read(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    made, plain = Decisions(), Launches._holds

    def holds(self: Launches, decision: Any) -> bool:
        made.read()
        return plain(self, decision)

    monkeypatch.setattr(Launches, "_holds", holds)
    return made


class _Clock:
    """The time of the tokens, in seconds: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(attempts, "time", made)
    return made


class _Program:
    """Each iteration adds 1 to two variables, as long as there are fewer than `most`. where: the
    device of an op before the loop and of one after it."""

    def __init__(self, where: str) -> None:
        self.most = wf.placeholder(wf.float32, [])
        with wf.device("/gpu:0"):
            self.a = wf.Variable(np.zeros(3, np.float32), name="a")
            self.b = wf.Variable(np.zeros(3, np.float32), name="b")
        with wf.device(where):
            start = self.most * 0.0
        with wf.device("/gpu:0"):
            last = wf.while_loop(lambda n: n < self.most, self._body, start)
        with wf.device(where):
            self.last = last * 1.0

    def _body(self, n: Any) -> Any:
        self.a.assign_add(wf.ones((3,)))
        self.b.assign_add(wf.ones((3,)))
        return n + 1.0

    def values(self, session: wf.Session) -> list[float]:
        """What the variables hold: all elements of each are the same."""
        made = [session.run(v) for v in (self.a, self.b)]
        assert all((v == v[0]).all() for v in made)
        return [float(v[0]) for v in made]


@contextmanager
def _session(where: str = "/gpu:0") -> Iterator[tuple[_Program, wf.Session]]:
    with wf.Graph().as_default():
        program = _Program(where)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            assert session.run(program.last, {program.most: np.float32(2)}) == 2
            yield program, session


def _goes_on(session: wf.Session, program: _Program, count: float) -> None:
    """The next step works, and no part of the last one writes variables any more."""
    assert program.values(session) == [count, count]
    assert session.run(program.last, {program.most: np.float32(3)}, LATE) == 3
    assert program.values(session) == [count + 3, count + 3]


def _endless(program: _Program) -> dict[Any, Any]:
    return {program.most: np.float32(50_000)}  # half a minute, emulated


@pytest.mark.parametrize("level", [0, wf.RunOptions.FULL_TRACE])
def test_a_deadline_ends_a_whole_step_between_two_iterations(
    gpu: str, decisions: Decisions, clock: _Clock, level: int
) -> None:
    with _session() as (program, session):
        decisions.do(5, lambda: setattr(clock, "now", 2.0))
        options, made = wf.RunOptions(timeout=1.5, trace_level=level), wf.RunMetadata()
        with pytest.raises(wf.errors.DeadlineExceededError, match="did not end in time") as caught:
            session.run(program.last, _endless(program), options, made)
        assert "iteration 5 of op 'while' on /gpu:0" in str(caught.value)
        assert "test_device_deadlines.py" in str(caught.value)
        clock.now = 0.0
        _goes_on(session, program, 2 + 5)


def test_a_step_in_time_is_left_alone(gpu: str, decisions: Decisions, clock: _Clock) -> None:
    with _session() as (program, session):
        decisions.do(2, lambda: setattr(clock, "now", 1.0))
        late = wf.RunOptions(timeout=1.5)
        assert session.run(program.last, {program.most: np.float32(4)}, late) == 4
        assert program.values(session) == [6, 6]


def test_what_the_host_does_not_lead_is_not_interrupted(gpu: str, clock: _Clock) -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        step = lambda i, y: (i + 1, y + 1.0)  # noqa: E731
        _, last = wf.while_loop(lambda i, y: i < 5, step, (0, x))
        feed = {x: np.zeros(3, np.float32)}
        session.run(last, feed)
        with pytest.MonkeyPatch.context() as patch:
            plain = Launches._do

            def late(self: Launches, piece: Any) -> None:
                clock.now = float("inf")
                plain(self, piece)

            patch.setattr(Launches, "_do", late)
            made = session.run(last, feed, wf.RunOptions(timeout=1))
        assert clock.now == float("inf")
        np.testing.assert_array_equal(made, np.full(3, 5.0))


@pytest.mark.parametrize("where", ["/gpu:0", "/cpu:0"])
def test_closing_the_session_ends_a_step_between_two_iterations(
    gpu: str, decisions: Decisions, where: str
) -> None:
    with _session(where) as (program, session):
        decisions.do(4, session.close)
        with pytest.raises(wf.errors.CancelledError, match="the session was closed"):
            session.run(program.last, _endless(program))
        with wf.Session() as other:
            _goes_on(other, program, 2 + 4)


def test_a_session_that_another_thread_closes(gpu: str, decisions: Decisions) -> None:
    with _session() as (program, session):
        begun, seen = threading.Event(), []
        decisions.do(3, begun.set)

        def run() -> None:
            try:
                session.run(program.last, _endless(program))
            except wf.errors.CancelledError as error:
                seen.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        session.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "the session was closed" in seen[0]
        with wf.Session() as other:
            made = program.values(other)
            assert made[0] == made[1] >= 2 + 3
            _goes_on(other, program, made[0])


def test_a_deadline_ends_the_part_of_a_gpu(gpu: str) -> None:
    """The thread that waits looks at the clock; the part of the GPU, on another, is told."""
    with _session("/cpu:0") as (program, session):
        with pytest.raises(wf.errors.DeadlineExceededError, match="who waits for whom"):
            session.run(program.last, _endless(program), wf.RunOptions(timeout=0.1))
        made = program.values(session)
        assert made[0] == made[1] < 50_000
        _goes_on(session, program, made[0])


def test_a_deadline_ends_a_part_of_a_gpu_that_the_caller_runs(
    decisions: Decisions, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    with _session("/gpu:1") as (program, session):
        decisions.do(4, lambda: setattr(clock, "now", float("inf")))
        with pytest.raises(wf.errors.DeadlineExceededError, match="did not end in time"):
            session.run(program.last, _endless(program), LATE)
        clock.now = 0.0
        made = program.values(session)
        assert made[0] == made[1]
        _goes_on(session, program, made[0])


def test_loops_in_loops_branches_and_blocks_of_iterations(
    gpu: str, decisions: Decisions, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop whose iterations are counted, but in blocks, and a branch are the host's, too."""
    monkeypatch.setattr(segments, "MOST_NODES", 4)
    looks = 0

    def look(self: Launches, op: Any, iteration: int = -1) -> None:
        nonlocal looks
        looks += 1
        if looks == stop:
            clock.now = 2.0
        plain(self, op, iteration)

    plain = Launches._go_on
    monkeypatch.setattr(Launches, "_go_on", look)
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        x = wf.placeholder(wf.float32, [3])
        body = lambda i, y: (i + 1, wf.tanh(y[::-1]) + wf.sum(y))  # noqa: E731
        _, counted = wf.while_loop(lambda i, y: i < 50, body, (0, x))
        made = wf.cond(wf.sum(x) > 100.0, lambda: counted + 1.0, lambda: counted - 1.0)
        feed = {x: np.ones(3, np.float32)}
        stop = 0
        expected = session.run(made, feed)
        total = looks
        assert total > 10
        for block, what in ((3, "iteration 4 of"), (total, "cond")):  # blocks of 2; the branch
            clock.now, looks, stop = 0.0, 0, block
            with pytest.raises(wf.errors.DeadlineExceededError, match=what):
                session.run(made, feed, wf.RunOptions(timeout=1))
        clock.now, stop = 0.0, 0
        np.testing.assert_array_equal(session.run(made, feed, LATE), expected)


def test_a_branch_in_a_loop_leaves_whole_iterations(
    gpu: str, decisions: Decisions, clock: _Clock
) -> None:
    """The deadline is looked at by the next iteration, not in the middle of one."""
    with wf.Graph().as_default():
        with wf.device("/gpu:0"):
            most = wf.placeholder(wf.float32, [])
            a, b = (wf.Variable(np.float32(0), name=name) for name in "ab")

            def body(n: Any) -> Any:
                a.assign_add(1.0)
                n = wf.cond(n > -1.0, lambda: n * 1.0, lambda: n * 3.0)
                b.assign_add(n * 0.0 + 1.0)
                return n + 1.0

            last = wf.while_loop(lambda n: n < most, body, most * 0.0)
        with wf.Session() as session:
            for at in range(1, 6):
                session.run(wf.global_variables_initializer())
                clock.now = 0.0
                decisions.do(at, lambda: setattr(clock, "now", 100.0))
                with pytest.raises(wf.errors.DeadlineExceededError, match="iteration"):
                    session.run(last, {most: np.float32(50)}, LATE)
                assert session.run(a) == session.run(b)


@pytest.mark.parametrize("how", ["deadline", "close"])
def test_a_step_that_waits_for_the_variables_of_another_ends(gpu: str, how: str) -> None:
    with _session() as (program, session):
        state = program.a.state
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with state.lock:
                held.set()
                over.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(60)
        try:
            if how == "close":
                threading.Timer(0.2, session.close).start()
                options, error = LATE, wf.errors.CancelledError
            else:
                options = wf.RunOptions(timeout=0.1)
                error = wf.errors.DeadlineExceededError
            with pytest.raises(error, match="it waited for another step that uses variable 'a'"):
                session.run(program.last, {program.most: np.float32(3)}, options)
        finally:
            over.set()
            holder.join()
