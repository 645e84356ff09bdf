"""Master and workers without a transport: what they say to each other, and what they do when one of
them fails."""

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_wires import LocalEndpoint, Network

from weft.comm.errors import MessageTooLargeError
from weft.comm.wire import pack_meta
from weft.ir import errors
from weft.ir.dtypes import float32
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import Location
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.partition.partition import Part
from weft.runtime.cluster import definition, master, messages, server
from weft.runtime.cluster.definition import TaskStep, lift_constants, parts_of
from weft.runtime.cluster.master import Failure, Master, Pending
from weft.runtime.cluster.messages import FORGET_EVERY, Derived, from_wire, to_wire
from weft.runtime.cluster.server import Worker
from weft.runtime.dataflow.threads import MOST_IDLE, StepThreads
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.step import RunContext

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
PAIR = f'key=0, tensor="w", src="{PS}/cpu:0", dst="{WORKER}/cpu:0"'
QUEUE = 'name="q", kind="fifo", capacity=1, parts=["f32[2]"]'
#: Assigns its feed to a variable and sends that to the other task.
STORE = f"""graph @g(%x: f32[2]) -> () stage=partitioned {{
  %0 = variable() {{name="w", dtype=f32, shape=[2]}} : ref<f32[2]> loc("a.py":1:1)
  %1 = assign(%0, %x) : token loc("a.py":1:1)
  %2 = read(%0) after(%1) : f32[2] loc("a.py":2:1)
  %3 = send(%2) {{{PAIR}}} : token loc("a.py":2:1)
  return
}}"""
#: Adds its feed to what comes.
ADD = f"""graph @g(%x: f32[2]) -> (f32[2]) stage=partitioned {{
  %0 = recv() {{{PAIR}, dtype=f32, shape=[2]}} : f32[2] loc("a.py":2:1)
  %1 = add(%0, %x) : f32[2] loc("a.py":3:1)
  return %1
}}"""
#: What is taken out of a queue goes to the other task.
TAKE = f"""graph @g() -> () stage=partitioned {{
  %0 = queue() {{{QUEUE}}} : queue<f32[2]> loc("b.py":1:1)
  %1 = dequeue(%0) : f32[2] loc("b.py":2:1)
  %2 = send(%1) {{{PAIR}}} : token loc("b.py":2:1)
  return
}}"""
CLOSE = f"""graph @g() -> () stage=partitioned {{
  %0 = queue() {{{QUEUE}}} : queue<f32[2]> loc("b.py":1:1)
  %1 = queue_close(%0) {{cancel_pending=false}} : token loc("b.py":9:1)
  return
}}"""
X = np.array([1, 2], np.float32)
VECTOR = TensorType(float32, (2,))


class Cluster:
    """A ps and a worker on local wires, and a master."""

    def __init__(self) -> None:
        self.network = Network()
        self.numbers = itertools.count()
        self.jobs = {"ps": ["tcp://127.0.0.1:1"], "worker": ["tcp://127.0.0.1:2"]}
        self.workers = {name: self.start(name) for name in (PS, WORKER)}
        self.master = self.connect()

    def start(self, name: str) -> Worker:
        made = Worker(name, self.jobs)
        address = self.jobs[name.split(":")[1].split("/")[0]][0]
        made.attach(LocalEndpoint(self.network, name, address, made.on_message, made.on_link_lost))
        return made

    def connect(self) -> Master:
        def make(name: str, on_message: Any, on_link_lost: Any) -> LocalEndpoint:
            where = f"tcp://127.0.0.1:{100 + next(self.numbers)}"
            return LocalEndpoint(self.network, name, where, on_message, on_link_lost)

        return Master("tcp://127.0.0.1:2", make, connect_timeout=2)

    def step(
        self, *parts: tuple[str, str, tuple[int, ...], tuple[int, ...]], **options: Any
    ) -> TaskStep:
        made = [Part(f"{task}/cpu:0", parse_graph(t), feeds, out) for task, t, feeds, out in parts]
        results = [VECTOR] * sum(len(part.fetches) for part in made)
        return TaskStep(self.master, "g", parts_of(made, {}), results, **options)

    def both(self) -> TaskStep:
        return self.step((PS, STORE, (0,), ()), (WORKER, ADD, (1,), (0,)))

    def stuck(self, **options: Any) -> TaskStep:
        return self.step((PS, TAKE, (), ()), (WORKER, ADD, (0,), (0,)), **options)


@pytest.fixture(params=["apart", "here"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """apart: as if the tasks were in other processes; here: messages go by calls."""
    if request.param == "apart":
        monkeypatch.setattr(master, "find", lambda who: None)
        monkeypatch.setattr(server, "find", lambda who: None)
    made = Cluster()
    yield made
    made.master.close()
    for one in made.workers.values():
        one.close()
        one.wire.close()


def test_one_message_each_way(cluster: Cluster) -> None:
    step = cluster.both()
    assert step.run([X, X])[0].tolist() == [2, 4]
    assert step.tasks == (PS, WORKER)
    wire: Any = cluster.master.wire
    for endpoint in cluster.network.endpoints.values():
        endpoint.sent.clear()
    for _ in range(3):
        step.run([X, X])
    apart = not cluster.master.is_here(PS)
    assert wire.sent == [(PS, messages.RUN), (WORKER, messages.RUN)] * 3 * apart
    for one in cluster.workers.values():
        sent: Any = one.wire
        assert [kind for _, kind in sent.sent] == [messages.DONE] * 3 * apart


def test_a_link_that_is_lost_while_a_step_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the parts are to be registered anew is not forgotten."""
    step = cluster.both()
    step.run([X, X])
    before, real = step._handles, cluster.master.require

    class Known(dict[str, tuple[str, int]]):
        def __eq__(self, other: object) -> bool:
            same = dict.__eq__(self, other)
            step.forget()  # as another thread's step may, whose tasks have lost each other
            return same

        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(cluster.master, "require", lambda names: Known(real(names)))
    step.run([X, X])
    monkeypatch.undo()
    assert step._handles == before
    assert step.run([X, X])[0].tolist() == [2, 4]
    assert step._handles != before


def test_devices_and_tables_stay_small(cluster: Cluster) -> None:
    assert cluster.master.devices == [f"{WORKER}/cpu:0", f"{PS}/cpu:0"]
    step = cluster.both()
    for _ in range(3 * FORGET_EVERY):
        step.run([X, X])
    for one in cluster.workers.values():
        assert one.wire.rendezvous.steps <= FORGET_EVERY + 1
        assert not one._runs


def test_definitions_that_are_gone_are_dropped(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.both().run([X, X])
        gc.collect()
    held = [len(c.parts) for w in cluster.workers.values() for c in w._clients.values()]
    assert max(held) <= 2


def test_an_error_of_one_thread_does_not_end_the_steps_of_others(cluster: Cluster) -> None:
    step = cluster.both()
    step.run([X, X])
    handles = step._handles
    with pytest.raises(InvalidArgumentError):
        step.run([np.zeros(3, np.float32), X])
    step.run([X, X])
    assert step._handles == handles  # it is not registered anew


def test_many_threads_find_a_task_that_is_back(cluster: Cluster) -> None:
    step = cluster.both()
    step.run([X, X])
    cluster.workers[PS].close()
    cluster.workers[PS].wire.die()  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError):
        step.run([X, X])
    while any(task.name == PS and task.incarnation for task in cluster.master.tasks()):
        time.sleep(0.001)  # the other task may have heard of it first
    cluster.workers[PS] = cluster.start(PS)
    runs = [run_in_thread(lambda: step.run([X, X])) for _ in range(6)]
    for thread, _ in runs:
        thread.join(20)
    assert [caught for _, caught in runs] == [[]] * 6


def test_an_answer_that_cannot_be_sent_is_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = cluster.both()
    step.run([X, X])
    if cluster.master.is_here(WORKER):
        return
    wire: Any = cluster.workers[WORKER].wire
    send = wire.send

    def refuse(peer: str, kind: int, number: int, meta: Any, buffers: Any = ()) -> None:
        if kind == messages.DONE and (buffers or "e" not in meta):
            raise MessageTooLargeError("too large")
        send(peer, kind, number, meta, buffers)

    monkeypatch.setattr(wire, "send", refuse)
    with pytest.raises(UnavailableError, match="cannot be sent: too large"):
        step.run([X, X])
    monkeypatch.setattr(wire, "send", send)
    assert step.run([X, X])[0].tolist() == [2, 4]


def test_the_session_forgets_steps(cluster: Cluster) -> None:
    step = cluster.both()
    for _ in range(3 * FORGET_EVERY):
        with pytest.raises(InvalidArgumentError):
            step.run([np.zeros(3, np.float32), X])
    assert cluster.master.wire.rendezvous.steps <= FORGET_EVERY + 1


def run_in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[WeftError]]:
    caught: list[WeftError] = []

    def run() -> None:
        try:
            call()
        except WeftError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, caught


def test_the_first_error_wins(cluster: Cluster) -> None:
    """The worker is told that the step ended; what the user sees is why."""
    thread, caught = run_in_thread(lambda: cluster.stuck().run([X]))
    time.sleep(0.2)
    cluster.step((PS, CLOSE, (), ())).run([])
    thread.join(5)
    assert isinstance(caught[0], OutOfRangeError)
    assert "queue 'q'" in str(caught[0]).lower() or "'q'" in str(caught[0])
    assert caught[0].locations == (Location("b.py", 2, 1),)


def test_a_lost_task_is_named_with_what_was_waited_for(cluster: Cluster) -> None:
    thread, caught = run_in_thread(lambda: cluster.stuck().run([X]))
    time.sleep(0.2)
    begun = time.monotonic()
    cluster.workers[PS].wire.die()  # type: ignore[attr-defined]
    thread.join(5)
    assert time.monotonic() - begun < 2.5  # a heartbeat is missed after 3
    assert isinstance(caught[0], UnavailableError)
    assert f"{PS} was lost (killed) while {WORKER} waited for 'w' (f32[2], key 0)" in str(caught[0])
    assert caught[0].locations == (Location("a.py", 2, 1),)


@pytest.mark.share(2)
def test_a_task_that_comes_back_is_given_the_step_again(cluster: Cluster) -> None:
    step = cluster.both()
    step.run([X, X])
    cluster.workers[PS].close()
    cluster.workers[PS].wire.die()  # type: ignore[attr-defined]
    for _ in range(2):  # the first may have begun before the session hears of it
        with pytest.raises(UnavailableError, match=r"lost|cannot be reached"):
            step.run([X, X])
    cluster.workers[PS] = cluster.start(PS)
    assert step.run([X, X])[0].tolist() == [2, 4]


def test_deadline(cluster: Cluster) -> None:
    with pytest.raises(DeadlineExceededError) as caught:
        cluster.stuck().run([X], RunContext(timeout=0.3))
    lines = str(caught.value).splitlines()
    assert any(
        f"{WORKER} waits for 'w' (f32[2], key 0) from {PS} since 0." in line
        and line.endswith(" s, at a.py:2:1")
        for line in lines
    )
    assert any(f"{PS} waits in its own op dequeue at b.py:2:1" in line for line in lines)
    assert cluster.both().run([X, X])[0].tolist() == [2, 4]


def test_deadline_of_one_message(cluster: Cluster) -> None:
    with pytest.raises(DeadlineExceededError, match=rf"{WORKER} has waited [\d.]+ s for 'w'"):
        cluster.stuck(recv_timeout=0.2).run([X])


def test_cancel(cluster: Cluster) -> None:
    token = CancelToken()
    thread, caught = run_in_thread(lambda: cluster.stuck().run([X], RunContext(cancel=token)))
    time.sleep(0.2)
    token.cancel("enough")
    thread.join(5)
    assert isinstance(caught[0], CancelledError)
    assert "enough" in str(caught[0])
    for one in cluster.workers.values():
        assert not one._runs


def test_a_stalled_step_says_so_in_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(definition, "STALL_SECONDS", 0.1)
    token = CancelToken()
    thread, _ = run_in_thread(lambda: cluster.stuck().run([X], RunContext(cancel=token)))
    until = time.monotonic() + 20
    while not any("has not ended; who waits" in record.message for record in caplog.records):
        assert time.monotonic() < until
        time.sleep(0.05)
    token.cancel()
    thread.join(10)


def test_a_client_that_is_gone_leaves_nothing(cluster: Cluster) -> None:
    step = cluster.stuck()
    thread, caught = run_in_thread(lambda: step.run([X]))
    time.sleep(0.2)
    wire: Any = cluster.master.wire
    wire.die()
    until = time.monotonic() + 5
    while any(w._runs or w._clients for w in cluster.workers.values()):
        assert time.monotonic() < until
        time.sleep(0.01)
    cluster.master.close()
    thread.join(10)
    assert caught
    cluster.master = cluster.connect()
    assert cluster.both().run([X, X])[0].tolist() == [2, 4]


def test_errors_of_registering(cluster: Cluster) -> None:
    other = STORE.replace("shape=[2]", "shape=[3]").replace("f32[2]", "f32[3]")
    cluster.both().run([X, X])
    with pytest.raises(InvalidArgumentError, match="declared otherwise"):
        cluster.step((PS, other, (0,), ())).run([np.zeros(3, np.float32)])
    with pytest.raises(NotFoundError, match="no task /job:none/task:0"):
        cluster.step(("/job:none/task:0", STORE, (0,), ())).run([X])
    function = """graph @g() -> (f32[]) stage=partitioned {
  %0 = py_function() {function="f", parts=["f32[]"]} : f32[]
  return %0
}"""
    with pytest.raises(UnsupportedError, match="'f' cannot run on /job:ps/task:0/cpu:0"):
        cluster.step((PS, function, (), (0,)))


def test_a_feed_that_does_not_fit(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"float32\[3\] came for f32\[2\]"):
        cluster.both().run([np.zeros(3, np.float32), X])


def test_unknown_and_bad_messages_do_no_harm(cluster: Cluster) -> None:
    wire = cluster.master.wire
    for kind in (0, 5, messages.RUN, messages.ABORT, messages.REGISTER, messages.STATUS, 99):
        for meta in ({}, {"h": "x"}, {"h": 3, "l": 0}, {"e": 5}):
            wire.send(PS, kind, 7, dict(meta))
    assert cluster.both().run([X, X])[0].tolist() == [2, 4]


def test_a_closed_master(cluster: Cluster) -> None:
    step = cluster.both()
    step.run([X, X])
    cluster.master.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        step.run([X, X])


# ------------------------------------------------------------------------------------------ pieces
def test_constants_are_lifted() -> None:
    big = np.arange(40_000, dtype=np.float32)
    from weft.ir.ops.builder import Builder
    from weft.ir.spec import ConstArray

    builder = Builder([TensorType(float32, (40_000,))])
    held = builder.emit1("constant", value=ConstArray(big), locations=())
    small = builder.emit1("constant", value=ConstArray(np.float32(2)), locations=())
    spread = builder.emit1("broadcast_to", small, shape=(40_000,), locations=())
    total = builder.emit1("add", builder.args[0], held, locations=())
    last = builder.emit1("multiply", total, spread, locations=())
    graph = builder.graph("g", ["x"], [last])
    lifted, constants = lift_constants(graph)
    assert [a.tolist() for a in constants] == [big.tolist()]
    assert lifted.arg_names == ("x", "constant_0")
    assert [op.name for op in lifted.ops] == ["constant", "broadcast_to", "add", "multiply"]
    assert lift_constants(graph, 1 << 20)[0] is graph


@given(
    st.sampled_from([k for k in vars(errors).values() if isinstance(k, type)]),
    st.text(max_size=50),
    st.none() | st.text(max_size=20),
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10),
            st.integers(0, 99),
            st.integers(0, 99),
        ),
        max_size=3,
    ),
)
def test_errors_come_back_as_they_were(
    kind: type, what: str, hint: str | None, places: list[tuple[str, int, int]]
) -> None:
    if not issubclass(kind, WeftError):
        return
    error = kind(what, hint=hint, location=[Location(*p) for p in places])
    back, derived = from_wire(to_wire(error, Derived.LOST))
    assert type(back) is kind
    assert (back.what, back.hint, back.locations) == (what, hint, error.locations)
    assert derived == Derived.LOST


def test_errors_with_half_characters_can_be_sent() -> None:
    """File names with bytes that are no text, say."""
    error = NotFoundError("no \udcff", hint="see \ud800", location=[Location("a\udcff.py", 1, 2)])
    packed = to_wire(error)
    pack_meta(packed)
    back, _ = from_wire(packed)
    assert (back.what, back.hint) == ("no \\udcff", "see \\ud800")
    assert str(back).splitlines()[1].strip() == "at a\\udcff.py:1:2"
    assert "a\ud800.py:1:2" in Location("a\ud800.py", 1, 2).describe()


@pytest.mark.parametrize(
    "data",
    [None, 5, {}, {"class": "os.system"}, {"places": [1, [2]]}, {"places": [["a\0b", 1, 1]]}],
)
def test_errors_that_are_none(data: object) -> None:
    assert type(from_wire(data)[0]) is UnknownError
    assert from_wire(data)[0].locations == ()


def test_foreign_errors_keep_their_name() -> None:
    error, _ = from_wire(to_wire(ZeroDivisionError("by zero")))
    assert type(error) is UnknownError
    assert "ZeroDivisionError: by zero" in str(error)


def test_pending() -> None:
    waits = Pending([("a", 1), ("b", 2)])
    assert waits.answer(("a", 1), "x", 1)
    assert not waits.answer(("a", 1), "y")
    assert not waits.answer(("c", 1), "y")
    waits.part(("a", 1))
    assert waits.owing() == [("b", 2)]
    assert not waits.stop.is_set()
    derived = Failure(CancelledError("second"), Derived.ABORTED)
    waits.failed(("b", 2), derived)
    assert waits.over.is_set()
    waits.fail(Failure(UnavailableError("first"), Derived.ROOT))
    assert str(waits.error) == "first"
    assert not waits.lost("b", derived)


def test_step_threads() -> None:
    threads = StepThreads("test")
    gate, count = threading.Event(), 3 * MOST_IDLE
    barrier = threading.Barrier(count + 1)

    def work() -> None:
        barrier.wait(10)
        gate.wait(10)

    for _ in range(count):
        threads.submit(work)
    barrier.wait(10)  # all run at once
    gate.set()
    until = time.monotonic() + 5
    while len(threads._idle) < MOST_IDLE:
        assert time.monotonic() < until
        time.sleep(0.01)
    again = threading.Event()
    threads.submit(again.set)
    assert again.wait(5)
    threads.close()
    threads.submit(gate.clear)
    assert gate.is_set()


def test_an_idle_thread_holds_nothing_of_what_it_ran() -> None:
    """Else a step's arrays, which may lie in another task's memory, stay as long as the thread."""

    class Held:
        def run(self) -> None:
            """Nothing."""

    threads = StepThreads("test")
    try:
        for _ in range(2):  # a thread's first work, and what it is given later
            held = Held()
            gone = weakref.ref(held)
            threads.submit(held.run)
            del held
            until = time.monotonic() + 5
            while gone() is not None or not threads._idle:
                assert time.monotonic() < until
                time.sleep(0.01)
    finally:
        threads.close()
