"""Steps on a cluster whose messages, computations and ends meet in unlucky orders: none waits for
ever."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.comm.endpoint import Endpoint
from weft.runtime.cluster import definition, master, transport
from weft.runtime.cluster import server as worker
from weft.runtime.cluster.server import Server
from weft.runtime.dataflow import run as running

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    """All messages go over sockets, as between processes."""
    monkeypatch.setattr(master, "find", lambda who: None)
    monkeypatch.setattr(worker, "find", lambda who: None)
    made = Server.create_local_cluster({"ps": 1, "worker": 1})
    yield made
    for server in made:
        server.stop()


def test_a_helper_ends_after_the_message_came(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small part gives its thread back where it waits; a large variable that two of its regions
    read is copied by a helper, and whoever ends last must go on with the step."""
    monkeypatch.setattr(running.GAIN, "pays", lambda: True)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.int32, [4], name="x")
        with wf.device(PS):
            table = wf.Variable(np.arange(8.0, dtype=np.float32).repeat(1 << 20), name="table")
            rows = table.read()
            first = wf.reduce_sum(wf.gather(rows, x))
        with wf.device(WORKER):
            further = wf.cast(first, wf.int32) + x
        with wf.device(PS):
            second = wf.gather(rows, further << 20)
        with wf.Session(servers[1].target) as session:
            session.run(table.initializer)
            for _ in range(5):
                options = wf.RunOptions(timeout=20)
                made = session.run(second, {x: [0, 1, 2, 3]}, options=options)
                np.testing.assert_array_equal(made, [0, 1, 2, 3])


def test_a_session_that_is_lost_while_its_step_begins(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ended the session's runs has not seen this one: it must not begin."""
    made = worker.PartRun
    lost: list[str] = []

    def begun(client: Any, *rest: Any) -> Any:
        if not lost:
            lost.append(client.name)
            servers[0].worker.on_link_lost(client.name, "cut")
        return made(client, *rest)

    with wf.Graph().as_default(), wf.device(PS):
        queue = wf.FIFOQueue(2, [wf.float32], shapes=[[]], shared_name="q")
        taken, put = queue.dequeue(), queue.enqueue(wf.constant(7.0))
        with wf.Session(servers[1].target) as session, wf.Session(servers[1].target) as other:
            session.run(put)
            session.run(taken)
            monkeypatch.setattr(worker, "PartRun", begun)
            with pytest.raises(wf.errors.AbortedError):
                session.run(taken, options=wf.RunOptions(timeout=20))
            assert not servers[0].worker._runs
            other.run(put)
            assert after_errors(lambda: session.run(taken)) == 7.0


def after_errors(run: Callable[[], Any]) -> Any:
    """What it gives once the session has its tasks again."""
    for _ in range(5):
        try:
            return run()
        except (wf.errors.UnavailableError, wf.errors.AbortedError):
            time.sleep(0.05)
    return run()


def test_a_step_that_ends_while_the_stall_is_looked_into(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too late only if it has not ended by then; else what it took is lost."""
    with wf.Graph().as_default(), wf.device(PS):
        queue = wf.FIFOQueue(2, [wf.float32], shapes=[[]], shared_name="q")
        taken, put = queue.dequeue(), queue.enqueue(wf.constant(7.0))
        with wf.Session(servers[1].target) as session, wf.Session(servers[1].target) as other:
            other.run(put)
            session.run(taken)

            def report(used: Any, step: int, *_: Any) -> str:
                other.run(put)
                assert used._waits[step].stop.wait(10)
                return ""

            monkeypatch.setattr(definition, "stall_report", report)
            assert session.run(taken, options=wf.RunOptions(timeout=0.05)) == 7.0


def test_many_threads_hear_at_once_of_a_task_that_stays_away(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "RECONNECT_SECONDS", 0.4)
    errors: list[Exception] = []
    with wf.Graph().as_default():
        with wf.device(PS):
            y = wf.reduce_sum(wf.ones([3]))
        with wf.Session(servers[1].target) as session:
            assert session.run(y) == 3.0
            servers[0].stop()

            def run() -> None:
                try:
                    session.run(y)
                except wf.errors.UnavailableError as error:
                    errors.append(error)

            threads = [threading.Thread(target=run) for _ in range(12)]
            begun = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert time.monotonic() - begun < 3.0  # and not one after the other
    assert len(errors) == 12
    assert all(PS in str(error) for error in errors)


def test_a_step_that_is_ended_before_its_part_is_read_again(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset a task reads its parts anew; what was ended meanwhile does not begin."""
    monkeypatch.setattr(definition, "GRACE_SECONDS", 0.2)
    go = threading.Event()
    again = worker.Worker._read_again

    def slow(*given: Any) -> None:
        go.wait(10)
        again(*given)

    with wf.Graph().as_default(), wf.device(PS):
        v = wf.Variable(1.0, name="v")
        init, update, read = v.initializer, v.assign_add(1.0), v.read()
        with wf.Session(servers[1].target) as session:
            session.run(init)
            assert session.run(update) == 2.0
            wf.Session.reset(servers[1].target)
            session.run(init)
            monkeypatch.setattr(worker.Worker, "_read_again", slow)
            with pytest.raises(wf.errors.DeadlineExceededError):
                session.run(update, options=wf.RunOptions(timeout=0.05))
            go.set()
            time.sleep(0.3)
            assert session.run(read) == 1.0
            assert session.run(update) == 2.0


def test_the_target_is_restarted_while_a_session_begins() -> None:
    """It closes its end before it has said who it is; the next one at its address does."""
    heard = threading.Event()
    first = Endpoint("/job:ps/task:0", on_message=lambda message: heard.set())
    address = first.address
    servers: list[Server] = []

    def restart() -> None:
        heard.wait(10)
        first.close()
        servers.append(Server({"ps": [address]}, "ps", 0))

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        with wf.Graph().as_default():
            y = wf.reduce_sum(wf.ones([3]))
            with wf.Session(address) as session:
                assert session.run(y) == 3.0
    finally:
        thread.join()
        first.close()
        for server in servers:
            server.stop()


def test_folders_of_others_are_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no folder of this user's may lead anywhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "kept").touch()
    (tmp_path / "weft-session-link").symlink_to(theirs)
    os.utime(tmp_path / "weft-session-link", (0, 0), follow_symlinks=False)
    left = tmp_path / "weft-session-left"
    left.mkdir()
    os.utime(left, (0, 0))
    transport._remove_left_over()
    assert [p.name for p in theirs.iterdir()] == ["kept"]
    assert not left.exists()
