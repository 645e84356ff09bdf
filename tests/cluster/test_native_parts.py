"""Small parts whose messages native code takes and answers: that they do what Python does, and go
on there whatever else happens."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comm_hostile import wait_for

import weft as wf
from weft.comm import wire
from weft.runtime.cluster import master, server
from weft.runtime.cluster import packet_layout as to
from weft.runtime.cluster.native_parts import NativeParts
from weft.runtime.cluster.packets import PacketCode

PS = [f"/job:ps/task:{i}" for i in range(2)]
WORKER = "/job:worker/task:0"


@pytest.fixture(params=["apart", "here"])
def servers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[wf.train.Server]]:
    """apart: all messages over sockets, as between processes; here: by calls, but for tensors."""
    if request.param == "apart":
        monkeypatch.setattr(master, "find", lambda who: None)
        monkeypatch.setattr(server, "find", lambda who: None)
    made = wf.train.Server.create_local_cluster({"ps": 2, "worker": 1})
    yield made
    for one in made:
        one.stop()


class NullStep:
    """A step that reads a value of each of the servers, and adds 1 to it through the worker; of
    tables, to rows that are fed."""

    def __init__(self, target: str, rows: int = 0) -> None:
        self.graph = wf.Graph()
        with self.graph.as_default():
            ids = [wf.placeholder(wf.int32, [2], name=f"ids_{i}") for i in range(2 if rows else 0)]
            self.variables, updates = [], []
            for i, task in enumerate(PS):
                with wf.device(task):
                    v = wf.Variable(wf.zeros([rows, 3] if rows else []), name=f"v{i}")
                    value = wf.gather(v, ids[i]) if rows else v.read()
                with wf.device(WORKER):
                    delta = value * 0.0 + 1.0
                with wf.device(task):
                    made = v.scatter_add(ids[i], delta) if rows else v.assign_add(delta)
                    with wf.control_dependencies([made]):
                        updates.append(wf.no_op())
                self.variables.append(v)
            train, init = wf.group(*updates), wf.global_variables_initializer()
            reads = [v.read() * 1.0 for v in self.variables]
        self.session = wf.Session(target, graph=self.graph)
        self.init = lambda: self.session.run(init)
        self.run: Callable[..., Any] = self.session.make_callable(train, ids)
        self.values: Callable[[], Any] = lambda: self.session.run(reads)


def native(one: wf.train.Server) -> NativeParts:
    assert one.worker.native is not None
    return one.worker.native


def code_of(one: wf.train.Server) -> PacketCode:
    found = native(one).code
    assert found is not None
    return found


def refused(servers: list[wf.train.Server]) -> dict[str, int]:
    """What any of them has refused."""
    return {k: n for one in servers for k, n in one.worker.stats()["rejected"].items()}


def until_native(step: Callable[[], object], servers: list[wf.train.Server]) -> int:
    """Run it until native code begins the parts of all tasks: how often."""
    known = [native(one).begun() for one in servers]
    for times in range(1, 4000):
        step()
        if all(native(s).begun() > k for s, k in zip(servers, known, strict=True)):
            return times
        time.sleep(1e-3)
    raise AssertionError("a part was always run by Python")


def test_what_it_computes_and_counts(servers: list[wf.train.Server]) -> None:
    null = NullStep(servers[0].target)
    null.init()
    before = [one.worker.stats()["steps"]["done"] for one in servers]
    times = until_native(null.run, servers)
    for _ in range(200):
        null.run()
    times += 200
    assert [v.item() for v in null.values()] == [times, times]
    for one, known in zip(servers[:2], before, strict=False):
        found = one.worker.stats()
        assert found["steps"]["begun"] == found["steps"]["done"] >= known + times
        assert found["steps"]["failed"] == 0
        assert sum(found["step_buckets"]) == found["steps"]["done"]
        edges = [row for row in found["edges"] if row[0] == WORKER]
        assert [row[2:] for row in edges] == [[times, 4 * times]]
        assert native(one).begun() > 150
    null.session.close()


def test_rows_that_are_fed(servers: list[wf.train.Server]) -> None:
    null, rng = NullStep(servers[0].target, rows=10), np.random.default_rng(3)
    null.init()
    expected = np.zeros((2, 10, 3))

    def step() -> None:
        ids = rng.integers(0, 10, (2, 2)).astype(np.int32)
        for table, rows in zip(expected, ids, strict=True):
            np.add.at(table, rows, 1.0)
        null.run(*ids)

    until_native(step, servers)
    for _ in range(100):
        step()
    assert np.array_equal(null.values(), expected)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"out of (bounds|range)"):
        null.run(np.array([99, 0], np.int32), np.array([0, 0], np.int32))
    step()
    null.session.close()


def test_parts_with_results(servers: list[wf.train.Server]) -> None:
    """Of a server, of the worker, and a feed that both take."""
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [3])
        with wf.device(PS[0]):
            v = wf.Variable([1.0, 2.0, 3.0], name="given")
            read = v.read() * x
        with wf.device(WORKER):
            y = read + x
        with wf.device(PS[1]):
            w = wf.Variable(0.0, name="times")
            total = w.assign_add(1.0) + wf.sum(y)
        init = wf.global_variables_initializer()
    with wf.Session(servers[0].target, graph=graph) as session:
        session.run(init)
        call, times = session.make_callable([y, total], [x]), 0

        def step() -> None:
            nonlocal times
            times += 1
            given = np.float32([times, 1, 2])
            made, summed = call(given)
            assert made.tolist() == [2 * times, 3, 8]
            assert summed == times + 2 * times + 11

        until_native(step, servers)
        for _ in range(50):
            step()
        assert refused(servers) == {}


def test_variables_that_are_cleared(servers: list[wf.train.Server]) -> None:
    null = NullStep(servers[0].target)
    null.init()
    until_native(null.run, servers)
    wf.Session.reset(servers[0].target)
    with pytest.raises(wf.errors.FailedPreconditionError, match="is not initialised"):
        null.run()
    null.init()
    until_native(null.run, servers[:2])
    null.session.close()


def test_recalled_at_any_time(servers: list[wf.train.Server]) -> None:
    """By two threads, while three sessions run steps: each ends, and each counts once."""
    steps = [NullStep(servers[0].target) for _ in range(3)]
    steps[0].init()
    until_native(steps[0].run, servers)
    before = steps[0].values()[0].item()
    stop, times = threading.Event(), 150

    def recall(seed: int) -> None:
        rng = random.Random(seed)
        while not stop.is_set():
            native(rng.choice(servers)).recall()
            time.sleep(rng.random() * 1e-3)

    def run(one: NullStep) -> None:
        for _ in range(times):
            one.run()

    recalling = [threading.Thread(target=recall, args=(i,)) for i in range(2)]
    running = [threading.Thread(target=run, args=(one,)) for one in steps]
    for thread in (*recalling, *running):
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    stop.set()
    for thread in recalling:
        thread.join()
    assert [v.item() for v in steps[0].values()] == [before + 3 * times] * 2
    for one in servers:
        found = one.worker.stats()["steps"]
        assert (found["begun"], found["failed"]) == (found["done"], 0)
    assert refused(servers) == {}
    for null in steps:
        null.session.close()


def test_sends_that_cannot_be_now(servers: list[wf.train.Server]) -> None:
    """Half of the calls of `send` say that the socket is full: Python goes on at each of them."""
    null = NullStep(servers[0].target)
    null.init()
    until_native(null.run, servers)
    libc, rng, full = ctypes.PyDLL(None, use_errno=True), random.Random(5), [0]
    kind = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)

    def send(descriptor: int, data: int, size: int, flags: int) -> int:
        if rng.random() < 0.5:
            full[0] += 1
            return -1
        return int(libc.send(descriptor, ctypes.c_void_p(data), ctypes.c_size_t(size), flags))

    call = kind(send)
    before = null.values()[0].item()
    for one in servers:
        code_of(one).set({to.C_SEND: ctypes.cast(call, ctypes.c_void_p).value or 0})
    for _ in range(100):
        null.run()
    for one in servers:
        native(one).stop()
    assert full[0] > 50
    assert refused(servers) == {}
    assert [v.item() for v in null.values()] == [before + 100] * 2
    null.session.close()


def test_lanes_that_are_cut(servers: list[wf.train.Server]) -> None:
    """What comes over ZeroMQ instead is for the same runs."""
    null = NullStep(servers[0].target)
    null.init()
    times = until_native(null.run, servers)
    for one, peer in ((servers[0], WORKER), (servers[2], PS[1])):
        endpoint: Any = one.worker.wire
        inward = endpoint.peers.named(peer).inward
        inward.shutdown(socket.SHUT_RDWR)
        for _ in range(20):
            null.run()
    assert [v.item() for v in null.values()] == [times + 40] * 2
    null.session.close()


def waiting_step(target: str) -> tuple[wf.Session, Any, Any]:
    """A step whose update waits in the worker for an element of a queue."""
    graph = wf.Graph()
    with graph.as_default():
        with wf.device(WORKER):
            queue = wf.FIFOQueue(100, [wf.float32], [[]])
            element = wf.placeholder(wf.float32, [])
            fill = queue.enqueue([element])
        with wf.device(PS[0]):
            v = wf.Variable(0.0, name="waiting")
            value = v.read()
        with wf.device(WORKER):
            delta = value * 0.0 + queue.dequeue()
        with wf.device(PS[0]), wf.control_dependencies([v.assign_add(delta)]):
            train = wf.no_op()
        init = wf.global_variables_initializer()
    session = wf.Session(target, graph=graph)
    session.run(init)
    run = session.make_callable(train)
    put = session.make_callable(fill, [element])
    return session, run, lambda: put(np.float32(1))


def test_runs_that_wait_are_ended(servers: list[wf.train.Server]) -> None:
    """By the loss of who is to send, and by the end of their session; who asks sees them wait."""
    session, run, put = waiting_step(servers[0].target)
    until_native(lambda: (put(), run()), servers[:1])
    failed: list[Exception] = []

    def step() -> None:
        try:
            run()
        except Exception as error:
            failed.append(error)

    def waits() -> int:
        return len(servers[0].worker.stats()["waits"])

    thread = threading.Thread(target=step)
    thread.start()
    wait_for(lambda: waits() == 1)
    put()
    thread.join(20)
    assert failed == []
    thread = threading.Thread(target=step)
    thread.start()
    wait_for(lambda: native(servers[0]).held() == 1)
    endpoint: Any = servers[2].worker.wire
    endpoint.disconnect(PS[0])
    thread.join(20)
    assert isinstance(failed[0], wf.errors.UnavailableError)
    assert native(servers[0]).held() == 0
    with contextlib.suppress(wf.errors.WeftError):  # the links are made anew
        put()
        run()
    session.close()


@pytest.mark.parametrize("servers", ["apart"], indirect=True)
def test_packets_that_are_wrong(servers: list[wf.train.Server]) -> None:
    """What is nearly a RUN, or a tensor, of a session: native code leaves it as it came, or takes
    what one of that session may be; others go on."""
    endpoint: Any = servers[0].worker.wire
    good = NullStep(servers[0].target)
    good.init()
    until_native(good.run, servers)
    take: Any = native(servers[0]).take
    seen: list[bytes] = []

    def spy(descriptor: int) -> Any:
        with socket.socket(fileno=os.dup(descriptor)) as one, contextlib.suppress(OSError):
            seen.append(one.recv(to.PACKET_BYTES, socket.MSG_PEEK))
        return take(descriptor)

    bad = NullStep(servers[0].target)
    until_native(bad.run, servers)
    endpoint.take_packets(spy)
    for _ in range(3):
        bad.run()
    endpoint.take_packets(take)
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rng, begun, ended = random.Random(7), [], 0
    last = max(wire.unpack_header(frame, len(frame)).step for frame in seen)
    for number in range(4000):
        frame = rng.choice(seen)
        is_run = wire.unpack_header(frame, len(frame)).kind != wire.TENSOR
        step = last + 1 + number if is_run or not begun else rng.choice(begun[-40:])
        if near_packet(endpoint, take, ends, frame, step, rng):
            begun += [step] * is_run
            ended += not is_run
    assert 20 < ended < 1500
    assert len(begun) - ended <= native(servers[0]).held() <= to.RUNS
    assert take(ends[1].fileno()) is None
    ends[0].close()
    assert take(ends[1].fileno()) == b""
    ends[1].close()
    good.init()  # some bits of tensors were others
    for _ in range(20):
        good.run()
    assert good.values()[0].item() == 20
    bad.session.close()
    wait_for(lambda: native(servers[0]).held() == 0)
    good.run()
    good.session.close()


def near_packet(
    endpoint: Any, take: Any, ends: tuple[socket.socket, socket.socket], frame: bytes, step: int,
    rng: random.Random,
) -> bool:  # fmt: skip
    """Whether native code takes a packet like this one, with the number that it should have, of a
    step, and with up to three other bits."""
    header = list(wire.HEADER.unpack_from(frame))
    link = endpoint.peers.of_source(header[6])
    expected = link.expected[0]
    header[8:11] = [step, header[9], expected]
    raw = bytearray(wire.HEADER.pack(*header) + frame[wire.HEADER.size :])
    for _ in range(rng.randrange(4)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    del raw[rng.choice([len(raw), len(raw), rng.randrange(1, len(raw))]) :]
    raw += rng.randbytes(rng.choice([0, 0, 0, 5]))
    ends[0].send(raw)
    found = take(ends[1].fileno())
    assert found is True or found == bytes(raw)
    link.expected[0] = expected  # nothing was sent on the link
    return found is True


def exit_if_open(state: Any) -> None:
    sys.exit(list(state) != [-1, 0])


def test_a_fork_sends_nothing(servers: list[wf.train.Server]) -> None:
    """The parent's lanes are closed in the child, for native code, too."""
    endpoint: Any = servers[0].worker.wire
    null = NullStep(servers[0].target)
    null.init()
    null.run()
    wait_for(lambda: endpoint.words_of(WORKER) is not None)
    words = endpoint.words_of(WORKER)
    assert words.state[0] >= 0
    child = multiprocessing.get_context("fork").Process(target=exit_if_open, args=(words.state,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert list(words.state)[1] == 1
    null.session.close()
