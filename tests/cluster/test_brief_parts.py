"""Small parts, which the thread that reads a task's messages runs: that they do what the executor
does."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.comm.errors import PeerLostError
from weft.comm.rendezvous import DEAD, Rendezvous
from weft.ir.errors import AbortedError, CancelledError, InvalidArgumentError, WeftError
from weft.runtime.cluster.exchange import LostLinkError, StepExchange
from weft.runtime.cluster.master import Once
from weft.runtime.cluster.part import Registered, read_part
from weft.runtime.cluster.small_step import SmallRun
from weft.runtime.dataflow.executor import DataflowStep, Stepping
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.store import Store
from weft.runtime.trace.counters import Counters

ME, OTHER = "/job:ps/task:0", "/job:worker/task:0"
ENDS = f'src="{ME}/cpu:0", dst="{OTHER}/cpu:0"'
BACK = f'src="{OTHER}/cpu:0", dst="{ME}/cpu:0"'
TYPE = "dtype=f32, shape=[], live=0, depth=2"

#: A value goes out, an update comes back: what a parameter server does.
SERVER = f"""graph @g() -> (f32[]) stage=partitioned {{
  %0 = variable() {{name="v", dtype=f32, shape=[]}} : ref<f32[]>
  %1 = read(%0) : f32[]
  %2 = send(%1) {{key=0, tensor="out", {ENDS}}} : token
  %3 = recv() {{key=1, tensor="in", {BACK}, {TYPE}}} : f32[]
  %4 = assign_add(%0, %3) after(%1) : f32[]
  %5 = read(%0) after(%4) : f32[]
  return %5
}}"""
#: Two values come; their sum, a feed and a constant go out.
ADDER = f"""graph @g(%x: f32[]) -> (f32[], f32[]) stage=partitioned {{
  %0 = recv() {{key=1, tensor="a", {BACK}, {TYPE}}} : f32[]
  %1 = recv() {{key=2, tensor="b", {BACK}, {TYPE}}} : f32[]
  %2 = constant() {{value=f32[] 10.0}} : f32[]
  %3 = add(%0, %1) : f32[]
  %4 = multiply(%3, %2) : f32[]
  %5 = add(%4, %x) : f32[]
  %6 = send(%5) {{key=3, tensor="c", {ENDS}}} : token
  %7 = send(%0) {{key=4, tensor="d", {ENDS}}} : token
  return %5, %x
}}"""
#: What waits for one of three values, for two and for all, some of it for what waited for fewer.
JOINER = f"""graph @g() -> (f32[], f32[]) stage=partitioned {{
  %0 = recv() {{key=1, tensor="a", {BACK}, {TYPE}}} : f32[]
  %1 = recv() {{key=2, tensor="b", {BACK}, {TYPE}}} : f32[]
  %2 = recv() {{key=5, tensor="e", {BACK}, {TYPE}}} : f32[]
  %3 = send(%0) {{key=3, tensor="c", {ENDS}}} : token
  %4 = add(%0, %1) : f32[]
  %5 = send(%4) {{key=4, tensor="d", {ENDS}}} : token
  %6 = multiply(%4, %2) : f32[]
  %7 = recv() after(%5) {{key=6, tensor="f", {BACK}, {TYPE}}} : f32[]
  %8 = add(%6, %7) : f32[]
  return %8, %0
}}"""
#: An element of a queue, when it comes.
TAKER = f"""graph @g() -> (f32[]) stage=partitioned {{
  %0 = queue() {{name="q", kind="fifo", capacity=9, parts=["f32[]"]}} : queue<f32[]>
  %1 = dequeue(%0) : f32[]
  %2 = send(%1) {{key=3, tensor="c", {ENDS}}} : token
  %3 = recv() {{key=1, tensor="a", {BACK}, {TYPE}}} : f32[]
  %4 = add(%1, %3) : f32[]
  return %4
}}"""
STEP = 1 << 36


class Wires:
    """A wire that notes what it is given."""

    address, incarnation = "here", 1

    def __init__(self) -> None:
        self.rendezvous = Rendezvous()
        self.sent: list[tuple[Any, ...]] = []
        self.broken = False

    def send_tensor(
        self, peer: str, step: int, key: int, iterations: Any, value: Any, *, lend: bool = False
    ) -> None:
        if self.broken:
            raise PeerLostError("gone")
        held = value if value is DEAD else np.array(value).tolist()
        self.sent.append((peer, key, tuple(iterations), held))


class Part:
    """A part that was read, and its runs, on the brief program or on the executor."""

    def __init__(self, text: str, brief: bool = True) -> None:
        self.wire, self.counters, self.brief = Wires(), Counters(), brief
        self.store = Store(ME)
        self.part: Registered = read_part(
            text, (), self.store, {}, frozenset({OTHER}), "auto", "standard"
        )
        assert self.part.brief is not None
        for state in self.store.held()[0]:
            state.array = np.array(2.0, np.float32)
        self.outcomes: list[Any] = []
        self.numbers = itertools.count(STEP)

    def begin(self, *inputs: float) -> Callable[[str], None]:
        """What ends the run."""
        self.step, wire, begun = next(self.numbers), self.wire, time.monotonic()
        given = [np.array(x, np.float32) for x in inputs]
        if self.brief:
            assert self.part.brief is not None
            run = SmallRun(
                self.part.brief, wire, ME, self.step, self.counters, self.outcomes.append  # type: ignore[arg-type]
            )  # fmt: skip
            self.waited = lambda: time.monotonic() - begun - run.worked
            run.begin(given)
            return run.stop
        exchange = StepExchange(wire, ME, self.step, {}, counters=self.counters)  # type: ignore[arg-type]
        self.waited = lambda: exchange.waited_seconds
        token = CancelToken(exchange)
        assert isinstance(self.part.step, DataflowStep)
        Stepping(self.part.step, self.outcomes.append).begin(given, token)
        return token.cancel

    def give(self, key: int, value: Any) -> None:
        held = value if value is DEAD else np.array(value, np.float32)
        self.wire.rendezvous.put(self.step, (key, ()), held)

    def result(self) -> list[float]:
        assert len(self.outcomes) == 1, self.outcomes
        made = self.outcomes.pop()
        assert not isinstance(made, BaseException), made
        return [a.tolist() for a in made]

    def error(self) -> BaseException:
        assert len(self.outcomes) == 1, self.outcomes
        made = self.outcomes.pop()
        assert isinstance(made, BaseException)
        return made


both = pytest.mark.parametrize("brief", [True, False])


@both
def test_a_server(brief: bool) -> None:
    p = Part(SERVER, brief)
    for i in range(3):
        p.begin()
        assert p.wire.sent.pop() == (OTHER, 0, (), 2.0 + 3 * i)
        assert p.outcomes == []
        p.give(1, 3.0)
        assert p.result() == [5.0 + 3 * i]
    assert p.counters.snapshot()["edges"] == [[OTHER, "out", 3, 12]]


@both
def test_seconds_that_it_waited(brief: bool) -> None:
    """Of messages of other tasks; what comes from a queue of its own is its own work."""
    p = Part(SERVER, brief)
    p.begin()
    time.sleep(0.2)
    p.give(1, 3.0)
    p.result()
    assert 0.15 < p.waited() < 1
    p = Part(TAKER, brief)
    p.begin()
    p.give(1, 1.0)
    time.sleep(0.2)
    p.store.held()[1]["q"].start_enqueue([(np.array(1, np.float32),)], lambda made: None)
    until = time.monotonic() + 20
    while not p.outcomes:
        assert time.monotonic() < until
    assert p.waited() < 0.1
    p.result()


@both
def test_what_comes_first_and_last(brief: bool) -> None:
    p = Part(ADDER, brief)
    p.begin(0.5)
    p.give(2, 2.0)
    assert p.wire.sent == []
    p.give(1, 1.0)
    assert sorted(p.wire.sent) == [(OTHER, 3, (), 30.5), (OTHER, 4, (), 1.0)]
    assert p.result() == [30.5, 0.5]
    p.wire.sent.clear()
    p.step = STEP + 1
    p.give(1, 4.0)  # both are there before the part begins
    p.give(2, 5.0)
    p.begin(1.0)
    assert sorted(p.wire.sent) == [(OTHER, 3, (), 91.0), (OTHER, 4, (), 4.0)]
    assert p.result() == [91.0, 1.0]


def test_results_are_nobody_elses() -> None:
    p = Part(ADDER)
    p.begin(1.0)
    p.give(1, 1.0)
    p.give(2, 1.0)
    made = p.outcomes.pop()
    made[0][...] = made[1][...] = 7
    p.begin(1.0)
    p.give(1, 1.0)
    p.give(2, 1.0)
    assert p.result() == [21.0, 1.0]


@both
@pytest.mark.parametrize("dead", [{1}, {2}, {1, 2}])
def test_dead_values(brief: bool, dead: set[int]) -> None:
    """A send passes on that its value is dead; a dead result is an error."""
    p = Part(ADDER, brief)
    p.begin(1.0)
    for key in (1, 2):
        p.give(key, DEAD if key in dead else 1.0)
    first = DEAD if 1 in dead else 1.0
    assert sorted(p.wire.sent) == [(OTHER, 3, (), DEAD), (OTHER, 4, (), first)]
    error = p.error()
    assert isinstance(error, InvalidArgumentError)
    assert "is dead" in str(error)
    p.begin(1.0)  # and the next one is alive
    p.give(1, 1.0)
    p.give(2, 1.0)
    assert p.result() == [21.0, 1.0]


@both
def test_what_ends_it(brief: bool) -> None:
    p = Part(SERVER, brief)
    stop = p.begin()
    stop("enough")
    error = p.error()
    assert isinstance(error, CancelledError)
    assert "enough" in str(error)
    stop("again")
    assert p.outcomes == []
    p.begin()
    p.wire.rendezvous.abort(p.step, AbortedError("the step was ended"))
    assert isinstance(p.error(), AbortedError)
    p.begin()
    p.wire.rendezvous.abort(p.step, PeerLostError("cut"))
    assert "waited for 'in' (f32[], key 1) in vain: cut" in str(p.error())
    p.wire.broken = True
    p.begin()
    error = p.error()
    assert isinstance(error, LostLinkError)
    assert f"{ME} cannot send 'out' (f32[], key 0) to {OTHER}: gone" in str(error)


@both
def test_a_variable_without_a_value(brief: bool) -> None:
    p = Part(SERVER, brief)
    p.store.held()[0][0].array = None
    p.begin()
    assert "'v'" in str(p.error())


@both
def test_what_does_not_fit_is_refused(brief: bool) -> None:
    p = Part(SERVER, brief)
    p.begin()
    p.wire.rendezvous.put(p.step, (1, ()), np.zeros(3, np.float32))
    assert "was to give f32[], and gave float32[3]" in str(p.error())
    p.begin()
    p.wire.rendezvous.put(p.step, (1, ()), np.zeros((), np.float64))
    assert "was to give f32[]" in str(p.error())


@both
def test_ops_that_wait_for_others_than_messages(brief: bool) -> None:
    p = Part(TAKER, brief)
    queue = p.store.held()[1]["q"]

    def put(value: float) -> None:
        queue.start_enqueue([(np.array(value, np.float32),)], lambda made: None)

    p.begin()
    p.give(1, 1.0)
    assert p.wire.sent == []
    put(4.0)
    assert p.wire.sent == [(OTHER, 3, (), 4.0)]
    assert p.result() == [5.0]
    stop = p.begin()
    stop("enough")
    assert isinstance(p.error(), CancelledError)
    put(5.0)  # whoever was stopped does not take it
    assert queue.size() == 1
    p.begin()
    p.wire.rendezvous.abort(p.step, AbortedError("over"))
    assert isinstance(p.error(), WeftError)


def test_ctrl_c_goes_on_to_the_thread_that_was_stopped() -> None:
    """The part ends, so that the step does on all tasks; who pressed it sees that."""
    part = Part(SERVER)

    def pressed(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    part.wire.send_tensor = pressed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        part.begin()
    (outcome,) = part.outcomes
    assert isinstance(outcome, KeyboardInterrupt)


@pytest.mark.parametrize("text", [SERVER, ADDER, TAKER])
def test_it_leaves_no_work_to_the_collector(text: str) -> None:
    p = Part(text)

    def run() -> None:
        if text is TAKER:
            queue = p.store.held()[1]["q"]
            queue.start_enqueue([(np.array(1, np.float32),)], lambda made: None)
        p.begin(*([1.0] if text is ADDER else []))
        p.give(1, 1.0)
        if text is ADDER:
            p.give(2, 1.0)
        p.outcomes.clear()

    run()
    gc.collect()
    gc.disable()
    try:
        for _ in range(300):
            run()
        assert gc.collect() < 300
    finally:
        gc.enable()


def test_many_threads_bring_what_one_part_waits_for() -> None:
    names = range(1, 33)
    recvs = "\n".join(
        f'  %{i} = recv() {{key={i}, tensor="a", {BACK}, {TYPE}}} : f32[]' for i in names
    )
    sums = "\n".join(f"  %{i + 40} = add(%{i + 39 if i > 1 else i}, %{i}) : f32[]" for i in names)
    text = f"graph @g() -> (f32[]) stage=partitioned {{\n{recvs}\n{sums}\n  return %{72}\n}}"
    p = Part(text)
    for _ in range(30):
        p.begin()
        threads = [
            threading.Thread(target=lambda k=k: [p.give(i, i) for i in names if i % 4 == k])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert p.result() == [sum(names) + 1]


def test_once() -> None:
    once = Once()
    assert not once.is_set()
    assert not once.wait(0.0)
    assert not once.wait(0.01)
    passed: list[bool] = []
    threads = [threading.Thread(target=lambda: passed.append(once.wait(10))) for _ in range(3)]
    for thread in threads:
        thread.start()
    once.set()
    once.set()
    for thread in threads:
        thread.join()
    assert passed == [True] * 3
    assert once.is_set()
    assert once.wait()
    assert once.wait(0.0)


@pytest.mark.share(3)
@both
@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 5])))
def test_what_waits_for_several(brief: bool, order: tuple[int, ...]) -> None:
    for last in range(4):  # so many come before the value that is asked for after a send
        p = Part(JOINER, brief)
        p.begin()
        for i, key in enumerate((*order[:last], 6, *order[last:])):
            p.give(key, float(key))
            assert len(p.outcomes) == (i == 3)
        assert p.result() == [(1.0 + 2.0) * 5.0 + 6.0, 1.0]
        assert sorted(p.wire.sent) == [(OTHER, 3, (), 1.0), (OTHER, 4, (), 3.0)]


@pytest.mark.parametrize("dead", [{1}, {2}, {5}, {6}, {1, 2, 5}, {2, 6}])
def test_what_is_dead_is_dead_for_all_who_wait(dead: set[int]) -> None:
    found = []
    for brief in (True, False):
        p = Part(JOINER, brief)
        p.begin()
        for key in (5, 2, 6, 1):
            p.give(key, DEAD if key in dead else float(key))
        found.append((sorted(p.wire.sent, key=str), str(p.error())))
    assert found[0] == found[1]
