"""Tasks as processes: `weft worker`, killed and stopped in the middle of things."""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_processes import Tasks

import weft as wf

pytestmark = [pytest.mark.slow, pytest.mark.alone]
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    made = None
    try:
        made = Tasks(tmp_path, {"ps": 1, "worker": 1})
        yield made
    finally:
        if made is not None:
            made.end()


def program() -> tuple[Any, Any, Any]:
    """An initializer, a step that both tasks take part in, and one that waits for ever."""
    with wf.device(PS):
        v = wf.Variable(2.0, name="v")
        taken = wf.FIFOQueue(1, [wf.float32], [[]], name="empty").dequeue()
    with wf.device(WORKER):
        return wf.global_variables_initializer(), v.read() * 3.0, taken + 1.0


def test_a_task_is_killed_and_comes_back(tasks: Tasks) -> None:
    with wf.Graph().as_default():
        init, y, waits = program()
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            session.run(init)
            assert session.run(y) == 6
            killed: list[float] = []

            def kill() -> None:
                killed.append(time.monotonic())
                tasks.processes["ps:0"].kill()

            threading.Timer(0.3, kill).start()
            with pytest.raises(wf.errors.UnavailableError) as caught:
                session.run(waits)
            assert time.monotonic() - killed[0] < 2.5  # a heartbeat is missed after 3
            text = str(caught.value)
            assert f"{PS} was lost" in text
            assert f"while {WORKER} waited for 'dequeue" in text
            assert "test_cluster_processes.py" in text
            with pytest.raises(wf.errors.UnavailableError, match=f"{PS} at tcp.*cannot be reached"):
                session.run(y)
            tasks.listens(tasks.start("ps", 0))
            with pytest.raises(wf.errors.FailedPreconditionError, match="'v' is not initialised"):
                session.run(y)
            session.run(init)
            assert session.run(y) == 6


def test_a_step_is_recorded_though_a_task_is_killed(tasks: Tasks, tmp_path: Path) -> None:
    """The record has what the others say, and a replay says which log is missing."""
    with wf.Graph().as_default():
        init, y, waits = program()
        with wf.device(WORKER):
            mine = wf.Variable([3.0, 4.0], name="mine")
            mine_only = wf.exp(mine.read())
            z = mine_only + waits + y
            init = wf.group(init, mine.initializer)
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            session.run(init)
            session.run(mine_only)
            threading.Timer(2, tasks.processes["ps:0"].kill).start()
            with (
                wf.record(tmp_path / "records") as files,
                pytest.raises(wf.errors.UnavailableError, match=f"{PS}.* was lost"),
            ):
                session.run(z)
    (path,) = files

    def replay(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "weft", "replay", str(path), *options]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    whole = replay()
    assert whole.returncode == 0
    assert f"nothing is known of {PS}" in whole.stdout
    assert f"the log of {PS} is missing: " in whole.stdout
    assert "for nobody knows what these held or gave: variable 'v' (" in whole.stdout
    assert "gave %" in replay("--until", "exp").stdout
    late = replay("--until", "error")
    assert late.returncode == 2
    assert f"does not come to error: the log of {PS} is missing" in late.stderr


def test_a_step_that_was_not_begun_is_recorded(tasks: Tasks, tmp_path: Path) -> None:
    """Nobody has told of it."""
    with wf.Graph().as_default():
        init, y, _ = program()
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            session.run(init)
            tasks.processes["ps:0"].kill()
            tasks.processes["ps:0"].wait()
            with (
                wf.record(tmp_path / "records") as files,
                pytest.raises(wf.errors.UnavailableError),
            ):
                session.run(y)
    with pytest.raises(wf.errors.UnavailableError, match=r"the logs? of .*are? missing|is missing"):
        wf.replay(files[0]).run()


def test_kernels_of_tasks_are_on_the_page(tasks: Tasks) -> None:
    """What other processes have compiled, with their code and the times of a traced run."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [64, 64], name="x")
        with wf.device(WORKER):
            y = wf.nn.softmax(wf.matmul(wf.exp(x), x))
        with wf.device(PS):
            z = wf.sum(wf.sin(y) * 2.0)
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            report, full = wf.RunMetadata(), wf.RunOptions.FULL_TRACE
            feeds = {x: [[1.0] * 64] * 64}
            session.run(z, feeds, wf.RunOptions(trace_level=full), report)
            data = session.view(z, feeds, report).document.to_dict()
    devices = {f"{WORKER}/cpu:0", f"{PS}/cpu:0"}
    assert {kernel["device"] for kernel in data["kernels"]} == devices
    for kernel in data["kernels"]:
        assert kernel["microseconds"] > 0
        assert kernel["nodes"]
        assert "define" in data["codes"][kernel["code"]["LLVM"]]


def test_the_target_is_killed(tasks: Tasks) -> None:
    with wf.Graph().as_default():
        init, y, waits = program()
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            session.run(init)
            threading.Timer(0.3, tasks.processes["worker:0"].kill).start()
            with pytest.raises(wf.errors.UnavailableError, match=f"{WORKER} was lost"):
                session.run(waits)
            tasks.listens(tasks.start("worker", 0))
            assert session.run(y) == 6  # the variable is on the other one


def test_a_task_is_stopped(tasks: Tasks) -> None:
    with wf.Graph().as_default():
        init, y, _ = program()
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            session.run(init)
            os.kill(tasks.processes["ps:0"].pid, signal.SIGSTOP)
            begun = time.monotonic()
            with pytest.raises(wf.errors.UnavailableError, match=f"{PS} was lost"):
                session.run(y)
            assert time.monotonic() - begun < 8
            os.kill(tasks.processes["ps:0"].pid, signal.SIGCONT)
            time.sleep(1)
            assert session.run(y) == 6  # it kept its state


def test_sigterm_ends_a_task(tasks: Tasks) -> None:
    process = tasks.processes["ps:0"]
    process.terminate()
    assert process.wait(10) == 0


def test_a_client_dies_and_its_steps_end(tasks: Tasks) -> None:
    """Another session can use the queue that the dead one waited for."""
    target = f"tcp://{tasks.addresses['worker'][0]}"
    source = f"""
import weft as wf
with wf.Graph().as_default():
    with wf.device("{PS}"):
        taken = wf.FIFOQueue(1, [wf.float32], [[]], name="empty").dequeue()
    with wf.device("{WORKER}"):
        y = taken + 1.0
    session = wf.Session("{target}")
    print("ready", flush=True)
    session.run(y)
"""
    client = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        time.sleep(0.7)
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
    with wf.Graph().as_default():
        with wf.device(PS):
            queue = wf.FIFOQueue(1, [wf.float32], [[]], name="empty")
            put, taken = queue.enqueue([4.0]), queue.dequeue()
        with wf.Session(target) as session:
            time.sleep(0.3)
            session.run(put)
            assert session.run(taken, options=wf.RunOptions(timeout=5)) == 4


def test_large_tensors_of_tasks_that_are_killed(tasks: Tasks) -> None:
    """Updates are read in the worker's memory, which outlives it: a variable gets whole ones."""
    n, rng = 1 << 20, random.Random(0)
    with wf.Graph().as_default():
        with wf.device(PS):
            v = wf.Variable(wf.zeros([n]), name="large")
        with wf.device(WORKER):
            delta = v.read() * 1e-9 + 1.0
        with wf.device(PS):
            step = wf.group(v.assign_add(delta))
            extent = wf.reduce_min(v.read()), wf.reduce_max(v.read())
        init = wf.global_variables_initializer()
        with wf.Session(f"tcp://{tasks.addresses['ps'][0]}") as session:
            session.run(init)
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                process = tasks.processes["worker:0"]
                timer = threading.Timer(rng.uniform(0.05, 0.3), process.send_signal, [number])
                timer.start()
                with pytest.raises(wf.errors.UnavailableError, match=f"{WORKER} was lost"):
                    collections.deque(iter(lambda: session.run(step), "never"), maxlen=0)
                timer.join()
                low, high = session.run(extent)
                assert low == high
                process.kill()
                process.wait()
                session.run(init)
                tasks.listens(tasks.start("worker", 0))


def test_small_parts_are_killed_in_the_middle(tasks: Tasks) -> None:
    """Parts that native code has begun: who is killed is named, whoever is left ends its part, and
    steps go on once all are back."""
    with wf.Graph().as_default():
        with wf.device(PS):
            v = wf.Variable(0.0, name="v")
            value = v.read()
        with wf.device(WORKER):
            delta = value * 0.0 + 1.0
        with wf.device(PS), wf.control_dependencies([v.assign_add(delta)]):
            train = wf.no_op()
        init, total = wf.global_variables_initializer(), v.read() * 1.0
        with wf.Session(f"tcp://{tasks.addresses['worker'][0]}") as session:
            run = session.make_callable(train)
            for job in ("ps", "worker", "ps"):
                for _ in range(50):  # links are made anew, and what is lost is noticed
                    try:
                        session.run(init)
                        break
                    except wf.errors.UnavailableError:
                        time.sleep(0.1)
                for _ in range(400):
                    run()
                assert session.run(total) == 400
                killed: list[float] = []
                process = tasks.processes[f"{job}:0"]

                def kill(process: Any = process, killed: list[float] = killed) -> None:
                    killed.append(time.monotonic())
                    process.kill()

                threading.Timer(0.2, kill).start()
                with pytest.raises(wf.errors.UnavailableError, match=f"/job:{job}/task:0"):
                    collections.deque(iter(run, 0), maxlen=0)  # for ever
                assert time.monotonic() - killed[0] < 2.5
                process.wait()
                tasks.listens(tasks.start(job, 0))
