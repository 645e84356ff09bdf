"""Metrics of a task over HTTP, which Prometheus' own client reads."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from at_once import outcomes
from prometheus_text import at, scraped

import weft as wf
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.runtime.cluster import metrics, part_run
from weft.runtime.cluster.messages import SESSIONS

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


def test_what_prometheus_reads() -> None:
    """Counts of a task as they are, before and after a failure."""
    with wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=0) as server:
        assert server.metrics_url is not None
        own = {"task": "/job:w/task:0"}
        with wf.Graph().as_default(), wf.Session(server.target) as session:
            x, v = wf.placeholder(wf.float32, [3]), wf.Variable(wf.zeros([3]), name="v")
            queue = wf.tf1.FIFOQueue(8, wf.int64, name='a "queue"\\')
            with pytest.raises(FailedPreconditionError):
                session.run(v.read())
            session.run(wf.global_variables_initializer())
            session.run(queue.enqueue(1))
            session.run(v.read() + x, {x: [1, 2, 3]})
        samples = scraped(server.metrics_url)
        assert at(samples, "weft_steps_total", **own, outcome="done") == 3
        assert at(samples, "weft_steps_total", **own, outcome="failed") == 1
        assert at(samples, "weft_steps_running", **own) == 0
        assert at(samples, "weft_step_seconds_count", **own) == 4
        assert at(samples, "weft_step_seconds_bucket", **own, le="+Inf") == 4
        assert at(samples, "weft_variable_bytes", **own) == 12
        assert at(samples, "weft_queue_elements", **own, queue='a "queue"\\') == 1
        assert at(samples, "weft_link_messages_total", **own, peer=SESSIONS, direction="sent") > 0
        assert at(samples, "process_resident_memory_bytes") > 10 << 20
        url = server.metrics_url
        with pytest.raises(urllib.request.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/other"), timeout=20)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def test_only_this_machine_reaches_it() -> None:
    with wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=0) as server:
        assert server.metrics_url is not None
        assert server.metrics_url.startswith("http://127.0.0.1:")
    with wf.train.Server({"w": ["127.0.0.1:0"]}) as server:
        assert server.metrics_url is None


def test_a_child_of_a_fork_closes_it() -> None:
    """At once, and it does not keep the port."""
    with wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=0) as server:
        assert server.metrics_url is not None
        port = int(server.metrics_url.rpartition(":")[2].partition("/")[0])
        child = os.fork()
        if not child:
            server.stop()
            os.execv("/bin/sleep", ["sleep", "20"])
    try:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_asks_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 0.5)
    with (
        wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=0) as server,
        socket.socket() as slow,
    ):
        assert server.metrics_url is not None
        host, _, port = server.metrics_url[len("http://") : -len("/metrics")].rpartition(":")
        slow.connect((host, int(port)))
        slow.setblocking(False)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200:
                slow.send(b"G")
                sent += 1
                time.sleep(0.05)
                with contextlib.suppress(BlockingIOError):
                    if not slow.recv(100):
                        break
        assert sent < 200


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=f"metrics cannot be served .*:{port}"):
            wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=port)
    with pytest.raises(InvalidArgumentError, match="metrics cannot be served"):
        wf.train.Server({"w": ["127.0.0.1:0"]}, metrics_port=1 << 17)


def test_who_asks_too_often_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that never end keep no others out for ever, and take no further threads."""
    monkeypatch.setattr(metrics, "MOST_REQUESTS", 2)
    begun, gate = threading.Semaphore(0), threading.Event()

    def text() -> str:
        begun.release()
        gate.wait(20)
        return "x 1\n"

    server = metrics.MetricsServer(text, 0)
    try:
        held = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=20) for _ in range(2)]
        for one in held:
            one.request("GET", "/metrics")
            assert begun.acquire(timeout=20)
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            urllib.request.urlopen(server.url, timeout=20)
        gate.set()
        assert [one.getresponse().read() for one in held] == [b"x 1\n"] * 2
    finally:
        gate.set()
        server.close()


def test_a_report_and_a_run_use_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks first: else what one of them notes the other does not see."""
    both = threading.Barrier(2)

    class Slow(part_run.StepExchange):
        def __init__(self, *given: Any) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)  # if two threads make one
            super().__init__(*given)

    monkeypatch.setattr(part_run, "StepExchange", Slow)
    home: Any = SimpleNamespace(
        wire=None, name=PS, counters=SimpleNamespace(is_watched=False), over=None
    )
    part: Any = SimpleNamespace(receivers={})
    run = part_run.PartRun(None, home, part, 1, 0, {}, [])  # type: ignore[arg-type]
    first, second = outcomes([lambda: run.exchange, lambda: run.exchange])
    assert first is second
