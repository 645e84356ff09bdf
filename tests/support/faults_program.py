"""Trains on task processes while one of them is killed, stopped or cut off at a random moment.

`python tests/support/faults_program.py [runs] [first seed]`; test_faults.py runs it, too. Each run
must end in the uninterrupted run's values, bit for bit, or in a named error, within a deadline, and
leave nothing behind.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from paths import ROOT

sys.path.insert(0, str(Path(__file__).parent))

from fault_tasks import Supervisor, TaskProcess, free_cluster

import weft as wf

train = wf.train
JOBS = {"ps": 2, "worker": 2}
STEPS = 60
FAULTS = ("kill", "stop", "pause", "cut")
#: Seconds. A run whose tasks come back may wait for heartbeats, a new process, a new session.
DEADLINE = 120.0
#: How long a session tries to begin anew. A new process takes long to start on a busy machine.
COMES_BACK, STAYS_AWAY = 90.0, 1.0
#: What a program is told of a task that is lost and stays away.
NAMED = (
    wf.errors.UnavailableError,
    wf.errors.AbortedError,
    wf.errors.DeadlineExceededError,
)


class Model:
    """Variables on two tasks, gradients on two others, summed in a fixed order."""

    def __init__(self, placed: bool = True) -> None:
        def on(task: str) -> AbstractContextManager[Any]:
            return wf.device(task) if placed else contextlib.nullcontext()

        self.graph = wf.Graph("faults")
        with self.graph.as_default():
            with on("/job:ps/task:0"):
                self.w = wf.Variable(np.ones((8, 4), np.float32), name="w")
                self.step = train.get_or_create_global_step()
            with on("/job:ps/task:1"):
                # large enough to go as chunks
                self.b = wf.Variable(np.zeros((100, 400), np.float32), name="b")
            self.x = wf.placeholder(wf.float32, [2, 8], name="x")
            losses = []
            for task in range(2):
                with on(f"/job:worker/task:{task}"):
                    y = wf.matmul(self.x[task : task + 1], self.w)
                    losses.append(wf.sum((y - 1.0) ** 2) + 1e-3 * wf.sum((self.b - 0.5) ** 2))
            loss = losses[0] + losses[1]
            optimizer = train.Momentum(0.02, 0.9)
            self.train = optimizer.minimize(loss, global_step=self.step)
        self.state = [self.w, self.b, self.step]

    @staticmethod
    def feed(step: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(step).normal(size=(2, 8)).astype(np.float32)


def in_one_process() -> list[bytes]:
    """The values at the end of a run without a cluster."""
    model = Model(placed=False)
    with wf.Session(graph=model.graph, reproducible=True) as session:
        session.run(wf.global_variables_initializer())
        for step in range(STEPS):
            session.run(model.train, {model.x: model.feed(step)})
        return [np.asarray(v).tobytes() for v in session.run(model.state)]


def arrays(values: list[bytes]) -> list[Any]:
    """Values as arrays."""
    types = [np.float32, np.float32, np.int64]
    return [np.frombuffer(v, t) for v, t in zip(values, types, strict=True)]


@dataclass
class Outcome:
    """How one run ended."""

    seed: int
    kind: str
    task: str
    restarts: bool
    seconds: float = 0.0
    recoveries: int = 0
    end: str = "hang"
    error: str = ""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        back = "comes back" if self.restarts else "stays away"
        text = (
            f"seed {self.seed}: {self.kind} {self.task}, {back}: {self.end} after "
            f"{self.seconds:.2f} s, {self.recoveries} recoveries {self.error[:100]}"
        )
        return "\n  ".join([text, *self.wrong])


class Client(threading.Thread):
    """The training program."""

    def __init__(self, target: str, folder: Path, recovery_wait: float) -> None:
        super().__init__(daemon=True)
        self.target, self.folder, self.wait = target, folder, recovery_wait
        self.at = 0
        self.on_step: Callable[[int], object] = lambda step: None
        self.recoveries = 0
        self.values: list[bytes] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.error = error

    def _train(self) -> None:
        model = Model()

        def feed(step: int) -> dict[Any, Any]:
            self.at = step
            self.on_step(step)
            return {model.x: model.feed(step)}

        with model.graph.as_default():
            session = train.MonitoredTrainingSession(
                train.Cluster(self.target, connect_timeout=2.0), True, self.folder,
                hooks=[train.StopAtStepHook(last_step=STEPS)],
                save_checkpoint_steps=15, recovery_wait_secs=self.wait,
                session_options={"reproducible": True},
            )  # fmt: skip
        with session:
            while not session.should_stop():
                session.run(model.train, feed)
                self.recoveries = session.recoveries
            values = session.run(model.state)
            self.recoveries = session.recoveries
        self.values = [np.asarray(v).tobytes() for v in values]


def one_run(tasks: Supervisor, seed: int, right: list[bytes]) -> Outcome:
    """A run with one fault at a random moment."""
    rng = np.random.default_rng(seed)
    kind = FAULTS[rng.integers(len(FAULTS))]
    victim = tasks.tasks[rng.integers(len(tasks.tasks))]
    restarts = bool(rng.random() < 0.7)
    target = tasks.cluster.address("worker", int(rng.integers(2)))
    outcome = Outcome(seed, kind, victim.name, restarts)
    with tempfile.TemporaryDirectory() as folder:
        comes_back = restarts or kind in ("pause", "cut")
        client = Client(target, Path(folder), COMES_BACK if comes_back else STAYS_AWAY)
        begun = time.monotonic()
        client.start()
        moment = int(rng.integers(STEPS + 5))
        while client.is_alive() and client.at < moment and time.monotonic() - begun < DEADLINE:
            time.sleep(0.0005)
        tasks.restarts = restarts
        time.sleep(float(rng.random()) * 0.005)
        tasks.fault(kind, victim)
        client.join(DEADLINE)
        outcome.seconds = time.monotonic() - begun
        if client.is_alive():
            faulthandler.dump_traceback(all_threads=True)
        tasks.repair()
    judge(outcome, client, right)
    return outcome


def judge(outcome: Outcome, client: Client, right: list[bytes]) -> None:
    """Fill in how it ended, and what is wrong with that."""
    outcome.recoveries, error = client.recoveries, client.error
    if client.is_alive():
        outcome.wrong.append("it hangs")
    elif error is not None:
        outcome.end, outcome.error = type(error).__name__, str(error).split("\n")[0]
        # a target that does not answer has no name yet, but an address
        names = any(one in str(error) for one in ("/job:", "tcp://", "ipc://"))
        if not isinstance(error, NAMED) or not names:
            outcome.wrong.append(f"no error that names the task: {error!r}")
        if outcome.restarts or outcome.kind in ("pause", "cut"):
            outcome.wrong.append(f"the task came back, and the run did not recover: {error}")
    else:
        outcome.end = "recovered" if outcome.recoveries else "undisturbed"
        if client.values != right:
            outcome.wrong.append("other values than the uninterrupted run's")


def killed_program(tasks: Supervisor, seed: int, right: list[bytes]) -> list[str]:
    """Kill the training program itself, several times, and start it again; what is wrong then."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "values.npz"
        words = [
            sys.executable,
            __file__,
            "train",
            tasks.cluster.address("ps", 0),
            folder,
            str(out),
        ]
        env = dict(os.environ, PYTHONPATH=str(ROOT))
        for kills_left in (2, 1, 0):
            begun = time.monotonic()
            program = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
            try:
                if kills_left:
                    moment = int(rng.integers(1, STEPS))
                    for line in program.stdout or ():  # one for each step
                        if int(line) >= moment or time.monotonic() - begun > DEADLINE:
                            break
                    program.kill()
                program.communicate(timeout=DEADLINE)
            finally:
                program.kill()
                program.wait()
        if program.returncode:
            return [f"the program ended with {program.returncode}"]
        with np.load(out) as found:
            values = [found[name].tobytes() for name in sorted(found)]
    return [] if values == right else ["other values than the uninterrupted run's"]


def train_alone(target: str, folder: str, out: str) -> None:
    """The training program as one of its own; prints the steps."""
    client = Client(target, Path(folder), COMES_BACK)
    client.on_step = lambda step: print(step, flush=True)
    client.run()
    if client.error is not None or client.values is None:
        raise SystemExit(str(client.error))
    np.savez(out, **{f"v{i}": v for i, v in enumerate(arrays(client.values))})


def own_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "weft" in name}


def left_behind() -> set[str]:
    """Folders of sessions' sockets."""
    return {p.name for p in Path(tempfile.gettempdir()).glob("weft-*")}


@contextlib.contextmanager
def supervised() -> Iterator[Supervisor]:
    """The tasks, which have answered once."""
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        tasks = Supervisor(free_cluster(Path(folder), JOBS), Path(folder))
        try:
            yield tasks
        finally:
            tasks.close()
            left = [p.name for p in Path(folder).iterdir() if p.is_socket()]
            gone = [t.name for t in tasks.tasks if t.alive]
            assert not gone, f"still there: {gone}"
            assert len(left) <= JOBS["worker"], f"socket files: {left}"


def run_all(runs: int, first_seed: int = 0, report: Any = print) -> list[Outcome]:
    """The runs; what they leave behind counts as wrong with the last."""
    before = (shared_memory(), left_behind())
    outcomes = []
    with supervised() as tasks:
        right, quiet = undisturbed(tasks)
        report(f"without a fault: {quiet:.2f} s")
        descriptors = own_descriptors()
        for seed in range(first_seed, first_seed + runs):
            outcomes.append(one_run(tasks, seed, right))
            report(outcomes[-1])
        check_leaks(tasks, outcomes[-1], descriptors)
    after = (shared_memory(), left_behind())
    for was, now in zip(before, after, strict=True):
        if now - was:
            outcomes[-1].wrong.append(f"left behind: {sorted(now - was)}")
    return outcomes


def undisturbed(tasks: Supervisor) -> tuple[list[bytes], float]:
    """The values at the end of an uninterrupted run, those of one process; seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        client = Client(tasks.cluster.address("worker", 0), Path(folder), COMES_BACK)
        client.start()
        client.join(DEADLINE)
    assert client.error is None, client.error
    assert client.values is not None, "it hangs"
    assert client.values == in_one_process()
    return client.values, time.monotonic() - begun


def check_leaks(tasks: Supervisor, last: Outcome, descriptors: int) -> None:
    """Descriptors of this process and of the tasks after all sessions are closed."""
    until = time.monotonic() + 10
    while own_descriptors() > descriptors + 4 and time.monotonic() < until:
        time.sleep(0.1)
    if own_descriptors() > descriptors + 4:
        last.wrong.append(f"descriptors: {descriptors} before, {own_descriptors()} after")
    for task in tasks.tasks:
        held = held_by(task)  # two memfds for each link at most, links to three tasks and a session
        if held["socket"] > 40 or held["memfd"] > 12 or held.total() > 90:
            last.wrong.append(f"{task.name} holds {dict(held)}")


def held_by(task: TaskProcess) -> collections.Counter[str]:
    """How many descriptors of each kind a task has."""
    kinds = [d.split(":")[0].removeprefix("/") for d in task.descriptors()]
    return collections.Counter(kinds)


def summary(outcomes: list[Outcome]) -> str:
    ends = collections.Counter(outcome.end for outcome in outcomes)
    slowest = max(outcome.seconds for outcome in outcomes)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    return f"{len(outcomes)} runs: {dict(ends)}; the slowest {slowest:.1f} s; {wrong} wrong"


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train_alone(*sys.argv[2:])
        sys.exit()
    given = [int(a) for a in sys.argv[1:]]
    found = run_all(*(given or [20]))
    print(summary(found))
    print(*(outcome for outcome in found if outcome.wrong), sep="\n")
    sys.exit(any(outcome.wrong for outcome in found))
