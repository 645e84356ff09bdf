"""Steps of real clusters traced, and looked at while they run. All tasks are on this machine, so
their clocks are one: what aligning them finds must hold zero."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from prometheus_text import at, scraped
from trace_format import read_trace

import weft as wf
from weft.frontend.tools import cluster as cli_top
from weft.frontend.tools.main import main, make_parser
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.runtime.cluster import master, messages, part_run
from weft.runtime.cluster.messages import SESSIONS
from weft.runtime.trace.analysis import critical_path, straggler
from weft.runtime.trace.timeline import Timeline

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
PAGE = ROOT / "docs" / "guide" / "timeline.md"
TRACE = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Any]]:
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 2})
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


@contextlib.contextmanager
def session_on(target: str) -> Iterator[wf.Session]:
    with wf.Session(target) as session:
        session.run(wf.global_variables_initializer())
        yield session


def traced(session: wf.Session, fetches: Any, feeds: Any = None) -> tuple[Any, wf.RunMetadata]:
    metadata = wf.RunMetadata()
    return session.run(fetches, feeds, options=TRACE, run_metadata=metadata), metadata


def timeline_of(metadata: wf.RunMetadata) -> Timeline:
    assert metadata.timeline is not None
    return metadata.timeline


def towers(sizes: dict[str, int]) -> tuple[wf.Tensor, wf.Tensor]:
    """A weight on the ps, read by each worker, which multiplies matrices of its own size."""
    with wf.device(PS):
        w = wf.Variable(np.float32(1.0), name="w")
    x = wf.placeholder(wf.float32, [], "x")
    parts = []
    for task, size in sizes.items():
        with wf.device(task):
            m = wf.ones([size, size]) * (w.read() * x)
            parts.append(wf.sum(m @ m @ m))
    with wf.device(PS):
        return parts[0] + parts[1], x


def test_a_step_of_three_tasks(cluster: list[Any]) -> None:
    with wf.Graph().as_default():
        total, x = towers({W0: 8, W1: 8})
        with session_on(cluster[0].target) as session:
            for _ in range(3):
                value, metadata = traced(session, total, {x: 1.0})
    assert float(value) == 2 * 8**4
    line = timeline_of(metadata)
    assert line.tasks == (PS, W0, W1)
    for task in line.tasks:
        clock = line.clocks[task]
        assert clock.uncertain_ns is not None
        # one clock, but processors do not read it to the same microsecond
        assert abs(clock.offset_ns) <= clock.uncertain_ns + 2000
        assert clock.drift == 0
    assert len(line.transfers) == 4
    for t in line.transfers:
        assert t.sent is not None
        assert t.received is not None
        assert t.sent.begin_ns <= t.received.end_ns
        assert t.event.nbytes == 4
        assert t.event.locations[0].file == __file__
    assert line.begin_ns < min(p.run_ns for p in line.parts)
    assert max(p.answered_ns for p in line.parts) < line.end_ns
    path = critical_path(line)
    assert sum(s.ns for s in path) == line.end_ns - line.begin_ns
    assert {s.task for s in path if s.kind == "run"} & {W0, W1}
    assert metadata.traced
    assert len(metadata.events) == len(line.spans) > 0
    assert "3 tasks, 3 parts" in metadata.cluster_report()
    rows = json.loads(metadata.chrome_trace())["traceEvents"]
    assert sum(r["ph"] == "s" for r in rows) == sum(r["ph"] == "f" for r in rows) == 4
    assert "cluster" in metadata.executor


def test_the_slow_worker_is_the_straggler(cluster: list[Any]) -> None:
    with wf.Graph().as_default():
        total, x = towers({W0: 4, W1: 1200})
        with session_on(cluster[0].target) as session:
            for _ in range(2):
                _, metadata = traced(session, total, {x: 1.0})
    line = timeline_of(metadata)
    found = straggler(line, critical_path(line))
    assert found is not None
    assert found.task == W1
    assert f"straggler: {W1}" in metadata.cluster_report()


def test_a_loop_over_two_tasks(cluster: list[Any]) -> None:
    """Each iteration's tensors are there, with its number."""

    def body(i: wf.Tensor, v: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        with wf.device(W0):
            half = v * 2.0
        with wf.device(W1):
            return i + 1, half + 1.0

    with wf.Graph().as_default():
        n = wf.placeholder(wf.int32, [], "n")
        _, out = wf.while_loop(lambda i, v: i < n, body, (wf.constant(0), wf.constant(1.0)))
        with wf.Session(cluster[1].target) as session:
            value, metadata = traced(session, out, {n: 5})
            assert float(value) == 63.0
            line = timeline_of(metadata)
    alive = [t for t in line.transfers if not t.event.dead]
    numbers = {t.event.iteration for t in alive if t.source == W0 and t.target == W1}
    assert {(i,) for i in range(5)} <= numbers
    path = critical_path(line)
    assert sum(s.ns for s in path) == line.end_ns - line.begin_ns
    assert "in iteration [" in " ".join(s.name for s in path)


def test_a_trace_of_many_events_comes_as_a_tensor(
    cluster: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than fit into one message; the results are the same."""
    for module in (messages, part_run):
        monkeypatch.setattr(module, "SMALL_MESSAGE_BYTES", 1000)
    with wf.Graph().as_default(), wf.device(W0):
        n = wf.placeholder(wf.int32, [], "n")
        v = wf.Variable(np.int32(0), name="counted")
        with wf.control_dependencies([v.assign(wf.constant(0, wf.int32))]):
            one = wf.constant(1, wf.int32)
            done = wf.while_loop(
                lambda i: i < n, lambda i: i + v.assign_add(one) * 0 + 1, wf.constant(0)
            )
        with wf.Session(cluster[1].target, control_flow="dataflow") as session:
            session.run(v.initializer)
            value, metadata = traced(session, done, {n: 100})
            again = session.run(done, {n: 100})
    assert int(np.asarray(value).reshape(())) == int(np.asarray(again).reshape(())) == 100
    assert len(metadata.events) > 100


def test_not_traced_and_not_on_a_cluster(cluster: list[Any]) -> None:
    with wf.Graph().as_default():
        c = wf.constant(1.0) + 1.0
        metadata = wf.RunMetadata()
        with wf.Session(cluster[0].target) as session:
            session.run(c, run_metadata=metadata)
        assert not metadata.traced
        with pytest.raises(FailedPreconditionError, match="not traced"):
            metadata.cluster_report()
        with wf.Session() as session:
            _, metadata = traced(session, c)
            with pytest.raises(FailedPreconditionError, match="not on a cluster"):
                metadata.cluster_report()
            with pytest.raises(InvalidArgumentError, match="sessions on a cluster"):
                session.task_stats()


def test_a_traced_step_that_fails(cluster: list[Any]) -> None:
    with wf.Graph().as_default():
        with wf.device(W0):
            x = wf.placeholder(wf.float32, [4, 4])
            product = wf.matmul(x, x)
        with wf.device(W1):
            late = wf.matmul(product, product)
            with wf.control_dependencies([late]):
                check = wf.Assert(wf.sum(late) < 0, ["too large:", wf.sum(late)])
            with wf.control_dependencies([check]):
                out = wf.identity(late)
        with wf.device(PS):
            total = wf.sum(out)  # waits for what never comes
        with wf.Session(cluster[0].target) as session:
            for _ in range(2):
                metadata = wf.RunMetadata()
                with pytest.raises(wf.errors.InvalidArgumentError, match="too large"):
                    session.run(total, {x: np.ones((4, 4))}, TRACE, metadata)
    line = timeline_of(metadata)
    assert line.tasks == (PS, W0, W1)
    (sent,) = [t for t in line.transfers if t.sent is not None]
    assert (sent.source, sent.target) == (W0, W1)
    assert sent.received is not None
    assert {s.task for s in line.spans} >= {W0, W1}
    assert len(read_trace(metadata.chrome_trace()).arrows) == 1
    assert "3 tasks, 3 parts" in metadata.cluster_report()


def test_what_tasks_count(cluster: list[Any]) -> None:
    with wf.Graph().as_default():
        total, x = towers({W0: 8, W1: 8})
        with session_on(cluster[0].target) as session:
            before = session.task_stats()
            for _ in range(20):
                session.run(total, {x: 1.0})
            after = session.task_stats()
    for task in (PS, W0, W1):
        assert after[task]["steps"]["done"] - before[task]["steps"]["done"] == 20
        assert after[task]["steps"]["begun"] == sum(
            after[task]["steps"][k] for k in ("done", "failed")
        )
        assert after[task]["memory"] > 10 << 20

    def moved(stats: Any) -> int:
        return sum(row[3] for row in stats[PS]["edges"] if row[0] in (W0, W1))

    assert moved(after) - moved(before) == 20 * 2 * 4
    assert after[PS]["variables"][0] >= 1


def test_top_shows_who_waits(cluster: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A worker waits for what a queue on the ps has not got yet."""
    with wf.Graph().as_default():
        with wf.device(PS):
            queue = wf.FIFOQueue(4, [wf.float32], [[]], name="shown", shared_name="shown")
            taken = queue.dequeue()
            put = queue.enqueue([wf.constant(3.0)])
        with wf.device(W1):
            y = taken * 2.0
        with wf.Session(cluster[0].target) as session:
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(session.run(y)))
            thread.start()
            try:
                until = time.monotonic() + 20
                while time.monotonic() < until:
                    if session.task_stats()[W1]["waiting"]:
                        break
                    time.sleep(0.02)
                assert main(["top", cluster[2].target, "--count", "1"]) == 0
                text = " ".join(capsys.readouterr().out.split())
                assert re.search(rf"{W1} has waited [\d.]+ s for 'dequeue", text)
                assert f"from {PS}" in text
                assert Path(__file__).name in text
                assert f"queue 'shown' on {PS}: 0 of 4 elements" in text
            finally:
                session.run(put)
                thread.join(20)
            assert [float(r) for r in results] == [6.0]


def test_top_as_json(cluster: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", cluster[0].target, "--json", "--count", "2", "--interval", "0.05"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [x["cluster"] for x in said] == [cluster[0].target] * 2
    assert said[1]["stragglers"] == []
    looks = [x["tasks"] for x in said]
    assert set(looks[0]) == {PS, W0, W1}
    assert looks[1][PS]["seconds"] - looks[0][PS]["seconds"] >= 0.03  # 0.05 less rounding
    with pytest.raises(SystemExit):
        main(["top", cluster[0].target, "--interval", "-1"])
    assert "no time between looks" in capsys.readouterr().err


def test_top_of_several_clusters_once(
    cluster: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table for each; two addresses may be of one cluster, and nobody at another."""
    from worker_processes import free_port

    monkeypatch.setattr(cli_top, "CONNECT_SECONDS", 0.3)
    nobody = f"tcp://127.0.0.1:{free_port()}"
    with wf.train.Server.create_local_server() as other:
        given = [cluster[0].target, other.target, cluster[2].target, nobody]
        once = ["top", *given, "--once", "--interval", "0.1"]
        assert main(once) == 0
        text = capsys.readouterr().out
        assert [text.count(f"cluster of {x}") for x in given] == [1, 1, 0, 1]
        assert f"cluster of {nobody} cannot be reached" in " ".join(text.split())
        assert main([*once, "--json"]) == 0
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [x["cluster"] for x in said] == [given[0], given[1], nobody]
        assert [sorted(x["tasks"]) for x in said] == [[PS, W0, W1], ["/job:local/task:0"], []]
        assert "cannot be reached" in said[2]["problem"]
        assert main(["top", nobody, nobody]) == 2


def test_top_shows_ops(cluster: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """While somebody looks, tasks time the ops of some parts; before that, of none."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [40, 40])
        with wf.device(W0):
            big = wf.matmul(x, x)
        with wf.device(W1):
            total = wf.sum(wf.exp(big * 0.01))
        with wf.Session(cluster[0].target) as session:

            def steps(seconds: float) -> None:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    assert session.run(total, {x: np.ones((40, 40))}) > 1000

            steps(0.1)
            before = session.task_stats()
            thread = threading.Thread(target=steps, args=(1.2,))
            thread.start()
            options = ["--count", "3", "--interval", "0.4"]
            assert main(["top", cluster[1].target, *options]) == 0
            thread.join()
            after = session.task_stats()
    for task, op in ((W0, "matmul"), (W1, "exp")):
        timed = after[task]["timed"] - before[task]["timed"]
        assert 3 <= timed <= 20  # one in a tenth of a second
        kinds = [row[0] for row in after[task]["ops"]]
        assert any(op in kind for kind in kinds), kinds
    text = capsys.readouterr().out
    assert re.search(r"worker:0 +\S*matmul\S* ", text)


def test_top_shows_gpus(
    cluster: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the process of a task has used."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    array = wf.to_device(np.ones(1000, np.float32), "gpu:0")
    assert main(["top", cluster[0].target, "--count", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"gpu:0 of {PS}, [^:]+: [\d.]+ [kM]?B, .*bytes\)", text)
    assert array.shape == (1000,)


def test_a_task_that_is_lost_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "RECONNECT_SECONDS", 0.2)
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 1})
    try:
        with wf.Graph().as_default(), wf.Session(servers[0].target) as session:
            assert isinstance(session.task_stats()[W0], dict)
            servers[1].stop()
            until = time.monotonic() + 20
            while time.monotonic() < until:
                stats = session.task_stats()
                if isinstance(stats[W0], str):
                    break
            assert isinstance(stats[W0], str)
            assert isinstance(stats[PS], dict)
    finally:
        for server in servers:
            server.stop()


@pytest.mark.slow
def test_top_where_a_task_was_never_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_top, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(master, "RECONNECT_SECONDS", 0.2)
    from worker_processes import free_port

    jobs = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
    server = wf.train.Server(jobs, "ps", 0)
    try:
        assert main(["top", server.target, "--count", "1", "--json"]) == 0
        (said,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        look = said["tasks"]
        assert isinstance(look[PS], dict)
        assert isinstance(look[W0], str)
    finally:
        server.stop()
    assert main(["top", server.target, "--count", "1"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_top_on_a_terminal(cluster: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last picture of the live view."""
    import rich.console

    screen = io.StringIO()
    made = rich.console.Console(file=screen, force_terminal=True, width=150, height=40)
    monkeypatch.setattr(rich.console, "Console", lambda: made)
    assert main(["top", cluster[0].target, "--count", "2", "--interval", "0.01"]) == 0
    text = screen.getvalue()
    assert text.count("cluster of tcp://") == 2
    for task in ("ps:0", "worker:0", "worker:1"):
        assert task in text


def test_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "timeline"}
    for block in blocks:
        code = block.replace("/tmp/step.json", str(tmp_path / "step.json"))
        exec(compile(code, str(PAGE), "exec"), namespace)
    assert "critical path" in capsys.readouterr().out
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    (command,) = re.findall(r"^weft (top \S+) +#(.*)", text, re.MULTILINE)
    args = make_parser().parse_args(command[0].split())
    for option in re.findall(r"--([a-z-]+)", command[1]):
        assert hasattr(args, option.replace("-", "_"))


@pytest.mark.slow
@pytest.mark.alone
def test_top_live_beside_processes(tmp_path: Path) -> None:
    """Two tasks as processes, `weft top` as a third, ended with Ctrl-C."""
    from worker_processes import Tasks

    tasks = Tasks(tmp_path, {"ps": 1, "worker": 1})
    top = None
    try:
        address = "tcp://" + tasks.addresses["ps"][0]
        command = [sys.executable, "-m", "weft", "top", address, "--json", "--interval", "0.2"]
        top = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert top.stdout is not None
        first = json.loads(top.stdout.readline())["tasks"]
        assert isinstance(first[PS], dict)
        tasks.processes["worker:0"].kill()
        for _ in range(60):
            now = json.loads(top.stdout.readline())["tasks"]
            if isinstance(now[W0], str):
                break
        assert isinstance(now[W0], str)
        tasks.start("worker", 0)
        for _ in range(60):
            now = json.loads(top.stdout.readline())["tasks"]
            if isinstance(now[W0], dict):
                break
        assert now[W0]["pid"] != first[W0]["pid"]
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
    finally:
        if top is not None:
            top.kill()
            top.wait()
            assert top.stdout is not None
            top.stdout.close()
        tasks.end()


def _in_time_of_its_own(seconds: int) -> list[str]:
    """A prefix for commands: CLOCK_MONOTONIC of the process is ahead by so much (Linux' time
    namespaces)."""
    return ["unshare", "--time", f"--monotonic={seconds}", "--fork", "--kill-child=SIGKILL"]


def _has_time_namespaces() -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([*_in_time_of_its_own(5), "true"], capture_output=True, timeout=10)
        return done.returncode == 0
    return False


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(not _has_time_namespaces(), reason="the system lets nobody set clocks apart")
def test_clocks_that_are_apart(tmp_path: Path) -> None:
    """Tasks whose clocks are hours and days from the session's, as on machines of their own."""
    from worker_processes import Tasks, free_port

    ahead = {PS: 7200, W0: 86_400 * 30, W1: 3}
    made = [f"127.0.0.1:{free_port()}" for _ in ahead]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"ps": made[:1], "worker": made[1:]}))
    processes = []
    try:
        for task, seconds in ahead.items():
            _, job, number = task.replace("task:", "").replace("job:", "").split("/")
            command = [sys.executable, "-m", "weft", "worker", "--cluster", str(file)]
            command += ["--job", job, "--task", number]
            processes.append(
                subprocess.Popen(
                    [*_in_time_of_its_own(seconds), *command], stdout=subprocess.PIPE, text=True
                )
            )
        for process in processes:
            Tasks.listens(process)
        with wf.Graph().as_default():
            total, x = towers({W0: 200, W1: 300})
            with session_on(f"tcp://{made[0]}") as session:
                for _ in range(5):
                    _, metadata = traced(session, total, {x: 1.0})
                    line = timeline_of(metadata)
                    for task, seconds in ahead.items():
                        clock = line.clocks[task]
                        assert clock.uncertain_ns is not None
                        assert clock.violated_ns == 0
                        wrong = abs(clock.offset_ns - seconds * 10**9)
                        assert wrong <= clock.uncertain_ns + 1
                    for t in line.transfers:
                        assert t.sent is not None
                        assert t.received is not None
                        assert t.sent.begin_ns <= t.received.end_ns
                    assert all(line.begin_ns <= s.event.begin_ns <= line.end_ns for s in line.spans)
        assert clock.uncertain_ns < 50_000_000
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_steps_after_one_that_was_traced(cluster: list[Any]) -> None:
    """A small part that is no short program (it sends what a region reads, too much to be copied at
    once) gives its thread back while it waits: a trace of the run before must not keep it there."""
    options = wf.RunOptions(timeout=60)
    with wf.Graph().as_default():
        with wf.device(PS):
            w = wf.Variable(np.ones((256, 256), np.float32), name="wide")
        sums = []
        for task in (W0, W1):
            with wf.device(task):
                sums.append(wf.sum(w.read()))
        with wf.device(PS):
            total = sums[0] + sums[1]
        with session_on(cluster[1].target) as session:
            for _ in range(3):
                assert session.run(total, options=options) == 2 * 256 * 256
                assert traced(session, total)[0] == 2 * 256 * 256
            assert session.run(total, options=options) == 2 * 256 * 256


def wide_towers(sizes: dict[str, int]) -> tuple[wf.Tensor, wf.Tensor]:
    """As `towers`, with weights of 1000 bytes."""
    with wf.device(PS):
        w = wf.Variable(np.ones(250, np.float32), name="weights")
    x = wf.placeholder(wf.float32, [], "x")
    parts = []
    for task, size in sizes.items():
        with wf.device(task):
            m = wf.ones([size, size]) * wf.sum(w.read() * x)
            parts.append(wf.sum(m @ m @ m))
    with wf.device(PS):
        return parts[0] + parts[1], x


def test_parts_that_wait_are_not_at_work(cluster: list[Any]) -> None:
    """A part that runs until another task's tensor comes is not busy with that; by the executor,
    too, whose part has a loop."""
    with wf.Graph().as_default():
        with wf.device(W0):
            m = wf.ones([900, 900])
            slow = wf.sum(m @ m @ m)
        with wf.device(W1):
            _, looped = wf.while_loop(
                lambda i, v: i < 3, lambda i, v: (i + 1, v * 0.5), (wf.constant(0), slow)
            )
        with wf.device(PS):
            total = slow + 1.0
        with wf.Session(cluster[0].target) as session:
            session.run([total, looped])
            before = session.task_stats()
            for _ in range(5):
                session.run([total, looped])
            after = session.task_stats()
    rows = {row.task: row for row in cli_top.rows_of(after, before)}
    working = rows[W0].at_work["graph"]
    for task in (PS, W1):
        seconds = rows[task].step_seconds
        assert seconds is not None
        assert seconds > working / 2
        assert rows[task].at_work["graph"] < working / 2


def test_links_in_top(cluster: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with wf.Graph().as_default():
        total, x = wide_towers({W0: 4, W1: 4})
        with wf.Session(cluster[0].target) as session:
            session.run(wf.global_variables_initializer())
            for _ in range(10):
                session.run(total, {x: 1.0})
            rows = cli_top.rows_of(session.task_stats(), {})
            assert main(["top", cluster[0].target, "--count", "1", "--json"]) == 0
            look = json.loads(capsys.readouterr().out)["tasks"]
            assert main(["top", cluster[0].target, "--count", "1"]) == 0
    links = {(x.source, x.target): x for x in cli_top.links_of(rows, 100)}
    assert {(PS, W0), (PS, W1), (W0, PS), (W1, PS), (PS, SESSIONS), (SESSIONS, PS)} <= set(links)
    assert links[PS, W0].nbytes >= 10 * 1000
    assert look[PS]["links"][W0]["sent_bytes"] >= links[PS, W0].nbytes
    text = capsys.readouterr().out
    assert "links; round trips" in text
    assert "(sessions)" in text


@pytest.mark.slow
def test_processes_one_of_which_is_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three processes: what each link counts is the same at both ends and what was sent; the slow
    one is named; Prometheus reads the same."""
    from worker_processes import Tasks

    tasks = Tasks(tmp_path, {"ps": 1, "worker": 2}, ["--metrics-port", "0"])
    try:
        with wf.Graph().as_default():
            total, x = wide_towers({W0: 4, W1: 900})
            with wf.Session("tcp://" + tasks.addresses["ps"][0]) as session:
                session.run(wf.global_variables_initializer())
                session.run(total, {x: 1.0})
                before = session.task_stats()
                for _ in range(20):
                    session.run(total, {x: 1.0})
                after = session.task_stats()
                samples = {name: scraped(url) for name, url in tasks.metrics.items()}
                look = ["top", "tcp://" + tasks.addresses["ps"][0], "--count", "1"]
                assert main([*look, "--json"]) == 0
                told = json.loads(capsys.readouterr().out)
                assert main(look) == 0
    finally:
        tasks.end()
    assert [(s["task"], s["part"]) for s in told["stragglers"]] == [(W1, "graph")]
    for worker in (W0, W1):
        out, back = after[PS]["links"][worker], after[worker]["links"][PS]
        grown = {key: out[key] - before[PS]["links"][worker][key] for key in ("sent", "sent_bytes")}
        assert 20 <= grown["sent"] < 20 + 15  # a tensor in each step, and signs of life
        assert 20 * 1000 <= grown["sent_bytes"] < 20 * 1200 + 15 * 60
        assert abs(out["sent"] - back["came"]) < 15  # the looks are at two moments
        assert abs(out["sent_bytes"] - back["came_bytes"]) < 15 * 60
        (edge,) = [row for row in after[PS]["edges"] if row[0] == worker]
        assert edge[2:] == [21, 21 * 1000]
        assert at(
            samples["worker:0" if worker == W0 else "worker:1"], "weft_link_bytes_total",
            task=worker, peer=PS, direction="received",
        ) >= back["came_bytes"]  # fmt: skip
    rows = cli_top.rows_of(after, before)
    (slow,) = cli_top.stragglers(rows)
    assert (slow.task, slow.part) == (W1, "graph")
    assert slow.seconds > 1.5 * slow.peers
    assert {row.task: round(row.busy, 1) for row in rows}[W0] < 0.5
    assert rows[0].at_work["graph"] < slow.seconds / 2  # the ps waits for it
    assert f"straggler: {W1} is at work for " in capsys.readouterr().out
    for name, found in samples.items():
        task = "/job:{}/task:{}".format(*name.split(":"))
        ended = at(found, "weft_steps_total", task=task, outcome="done")
        assert (
            ended == at(found, "weft_step_seconds_count", task=task) == (22 if task == PS else 21)
        )
        assert at(found, "weft_part_runs_total", task=task, graph="graph") == ended
