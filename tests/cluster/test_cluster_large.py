"""Large tensors from task to task: read where the sender keeps them, and nothing writes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comm_hostile import wait_for

import weft as wf
from weft.comm import wire
from weft.comm.bulk import Lending
from weft.comm.shared_memory import AVAILABLE
from weft.ir.cost.thresholds import LENT_BYTES
from weft.runtime.cluster import master
from weft.runtime.cluster import server as worker
from weft.runtime.cluster.server import Server

PS, OTHER, WORKER = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"
N = 200_000
Build = Callable[[wf.Variable, wf.Variable], list[Any]]

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfd is Linux's")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    made = Server.create_local_cluster({"ps": 2, "worker": 1})
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each tensor that comes as a view; none may be written to, or all fails."""
    found: list[int] = []
    real = Lending.on_lent

    def on_lent(self: Lending, link: Any, message: Any) -> None:
        real(self, link, message)
        found.append(1)

    monkeypatch.setattr(Lending, "on_lent", on_lent)
    return found


def endpoints(servers: list[Server]) -> list[Any]:
    return [server._wire for server in servers]


def settled(servers: list[Server]) -> None:
    """All that was lent has come back."""
    wait_for(lambda: not any(e.transfers.lending.lent for e in endpoints(servers)))


def run(servers: list[Server], build: Build, times: int = 3) -> list[list[Any]]:
    """Fetches of some steps of a program on two variables of large vectors."""
    out = []
    with wf.Graph().as_default() as graph:
        with wf.device(PS):
            v = wf.Variable(wf.ones([N]), name="v")
        with wf.device(OTHER):
            w = wf.Variable(wf.arange(N, dtype=wf.float32), name="w")
        fetches = build(v, w)
        init = wf.global_variables_initializer()
        with wf.Session(servers[2].target, graph=graph) as session:
            session.run(init)
            for _ in range(times):
                out.append(session.run(fetches))
    wf.Session.reset(servers[2].target)
    return out


RAMP = np.arange(N, dtype=np.float32)


def test_null_step(servers: list[Server], came: list[int]) -> None:
    """The paper's: each way once for each variable, and none copied."""
    copied: list[int] = []
    real = np.copyto

    def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
        made = []
        for place, one in ((PS, v), (OTHER, w)):
            with wf.device(WORKER):
                delta = one.read() + 1.0
            with wf.device(place):
                made.append(one.assign_add(delta))
        with wf.control_dependencies(made), wf.device(PS):
            return [v.read()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "copyto", lambda *a, **k: (copied.append(1), real(*a, **k)))
        run(servers, build, 1)  # links may be new: tensors go the other way until peers have said
        before = len(came), len(copied)
        assert run(servers, build, 4)[3][0][0] == 31
        assert len(came) - before[0] >= 12
        assert len(copied) == before[1]
    settled(servers)


def add_rows(x: Any) -> Any:
    """What a compiled step does in place where it may."""
    return wf.scatter_nd_update(x, wf.constant([[0], [5]]), wf.constant([100.0, 200.0]))


def test_what_comes_is_not_written_to(servers: list[Server], came: list[int]) -> None:
    """A value that goes to several readers, each of which would like to have its memory."""

    def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
        value = w.read()
        with wf.device(WORKER):
            loop = wf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (0, value))
            first, twice, changed = value[:6], (value + value)[:6], add_rows(value)[:6]
        with wf.device(PS):
            taken = v.assign(value)
            with wf.control_dependencies([taken]):
                added = v.assign_add(value)
            with wf.control_dependencies([added]):
                left = v.assign_sub(value)
        return [loop[1][:6], first, twice, left[:6], value, changed]

    for looped, first, twice, left, whole, changed in run(servers, build, 3):
        assert changed.tolist() == [100, 1, 2, 3, 4, 200]
        np.testing.assert_array_equal(looped, RAMP[:6] * 8)
        np.testing.assert_array_equal(first, RAMP[:6])
        np.testing.assert_array_equal(twice, RAMP[:6] * 2)
        np.testing.assert_array_equal(left, RAMP[:6])
        np.testing.assert_array_equal(whole, RAMP)
        assert whole.flags.writeable
        assert whole.flags.owndata
    assert len(came) >= 4
    settled(servers)


def test_queues_keep_arrays_of_their_own(servers: list[Server], came: list[int]) -> None:
    """What waits in a queue holds nothing of the task that sent it."""

    def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
        with wf.device(WORKER):
            q = wf.FIFOQueue(100, [wf.float32], shapes=[[N]])
            put = q.enqueue(w.read())
            with wf.control_dependencies([put]):
                return [q.size()]

    with wf.Graph().as_default():
        sizes = run(servers, build, 10)
    assert [int(n) for (n,) in sizes] == list(range(1, 11))
    assert len(came) >= 8
    settled(servers)


def test_branch_loops_and_gradient(servers: list[Server], came: list[int]) -> None:
    """Large tensors through branches and loops over tasks, dead ones among them."""

    def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
        with wf.device(WORKER):
            chosen = wf.cond(
                wf.reduce_sum(v.read()[:5]) > 4.0, lambda: w.read() * 2.0, lambda: v.read() + 1.0
            )

            def body(i: Any, x: Any) -> Any:
                with wf.device(PS):
                    y = x + v.read()
                return i + 1, y

            _, total = wf.while_loop(lambda i, x: i < 3, body, (0, chosen))
        return [total, wf.gradients(wf.reduce_sum(total * total), [chosen])[0]]

    for total, gradient in run(servers, build, 2):
        np.testing.assert_array_equal(total, RAMP * 2 + 3)
        np.testing.assert_array_equal(gradient, 2 * (RAMP * 2 + 3))
    assert len(came) >= 4
    settled(servers)


def test_region_that_fails_gives_its_room_back(servers: list[Server]) -> None:
    with wf.Graph().as_default() as graph:
        ids = wf.placeholder(wf.int32, [N])
        with wf.device(PS):
            v = wf.Variable(wf.ones([N]), name="v")
            rows = wf.gather(v, ids)
        with wf.device(WORKER):
            y = rows + 1.0
        init = wf.global_variables_initializer()
        with wf.Session(servers[2].target, graph=graph) as session:
            session.run(init)
            good, bad = np.zeros(N, np.int32), np.full(N, N, np.int32)
            for _ in range(3):
                assert session.run(y, {ids: good})[0] == 2
                with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
                    session.run(y, {ids: bad})
        wf.Session.reset(servers[2].target)
    settled(servers)
    arenas = [x.arena for e in endpoints(servers) for x in e.peers.links() if x.arena is not None]
    wait_for(lambda: not any(arena.held_bytes for arena in arenas))


def test_feeds(servers: list[Server], came: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A large feed is read where the session's process has copied it to; itself may be written."""
    monkeypatch.setattr(master, "find", lambda who: None)  # as if the tasks were elsewhere
    monkeypatch.setattr(worker, "find", lambda who: None)
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [N])
        with wf.device(PS):
            v = wf.Variable(wf.zeros([N]), name="v")
            both = v.assign_add(x), wf.reduce_sum(x * 2.0)
        init = wf.global_variables_initializer()
        with wf.Session(servers[2].target, graph=graph) as session:
            session.run(init)
            given = RAMP.copy()
            for i in range(1, 5):
                total, doubled = session.run(both, {x: given})
                assert total[1] == i
                assert doubled == pytest.approx(RAMP.sum() * 2)
                assert total.flags.writeable
                given[:] = RAMP
                total[:] = -1
            assert len(came) >= 3
        wf.Session.reset(servers[2].target)


def test_nothing_is_lent_where_it_cannot_be(
    servers: list[Server], came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lending, "_take", lambda self, link, nbytes: None)

    def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
        with wf.device(WORKER):
            return [v.read() + w.read()]

    assert LENT_BYTES < 4 * N
    for (got,) in run(servers, build, 2):
        np.testing.assert_array_equal(got, RAMP + 1)
    assert came == []


@pytest.mark.parametrize("checksums", ["1", "0"])
def test_checksums_by_the_environment(
    checksums: str, came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEFT_CHECKSUMS=1: all that a task or session sends has one, also what is lent."""
    monkeypatch.setenv("WEFT_CHECKSUMS", checksums)
    checked: list[int] = []
    real = wire.checksum
    monkeypatch.setattr(
        wire,
        "checksum",
        lambda *parts: (checked.append(sum(memoryview(p).nbytes for p in parts)), real(*parts))[1],
    )
    made = Server.create_local_cluster({"ps": 2, "worker": 1})
    try:

        def build(v: wf.Variable, w: wf.Variable) -> list[Any]:
            with wf.device(WORKER):
                return [v.read() + w.read()]

        for (got,) in run(made, build, 3):
            np.testing.assert_array_equal(got, RAMP + 1)
        assert came
        assert (max(checked, default=0) >= 4 * N) == (checksums == "1")
        assert bool(checked) == (checksums == "1")
    finally:
        for server in made:
            server.stop()


def test_checksums_are_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECKSUMS", "yes")
    with pytest.raises(wf.errors.InvalidArgumentError, match="neither 0 nor 1"):
        Server.create_local_server()
