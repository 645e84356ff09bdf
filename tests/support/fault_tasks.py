"""Task processes that tests kill, stop and cut off, and who starts them again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

import weft as wf

_PIDFD_GETFD = 438  # the number of the system call, on all machines (pidfd_getfd(2))
_libc = ctypes.CDLL(None, use_errno=True)


class TaskProcess:
    """`weft worker` for one task, in a process of its own."""

    def __init__(self, cluster_file: Path, job: str, task: int, log: Path) -> None:
        self.cluster_file, self.job, self.task, self.log = cluster_file, job, task, log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"/job:{self.job}/task:{self.task}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weft", "worker", "--cluster", str(self.cluster_file),
                 "--job", self.job, "--task", str(self.task), "--allow-files", "/"],
                cwd=ROOT, env=dict(os.environ, PYTHONPATH=str(ROOT), WEFT_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        if self.alive and self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def descriptors(self) -> list[str]:
        """What its open descriptors are."""
        assert self.process is not None
        folder = Path(f"/proc/{self.process.pid}/fd")
        found = []
        for one in folder.iterdir():
            with contextlib.suppress(OSError):  # closed in between
                found.append(os.readlink(one))
        return found

    def cut_off(self) -> int:
        """Shut down all its connections, as a network that goes away does; how many."""
        assert self.process is not None
        process = os.pidfd_open(self.process.pid)
        try:
            return sum(map(int, self._shut_down(process)))
        finally:
            os.close(process)

    def _shut_down(self, process: int) -> Iterator[bool]:
        assert self.process is not None
        for one in os.listdir(f"/proc/{self.process.pid}/fd"):
            own = _libc.syscall(_PIDFD_GETFD, process, int(one), 0)
            if own < 0:
                continue
            try:
                connection = socket.socket(fileno=own)
            except OSError:  # no socket
                os.close(own)
                continue
            with connection:
                try:
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)
                    yield True
                except OSError:  # it listens
                    yield False


class Supervisor:
    """The tasks of a cluster, and a thread that starts again what is gone: as an engine does.

    A task that has been stopped for `patience` seconds is killed, as an engine's health check
    would.
    """

    def __init__(self, cluster: wf.train.ClusterSpec, folder: Path, patience: float = 3.0) -> None:
        file = folder / "cluster.json"
        file.write_text(cluster.to_json())
        self.cluster = cluster
        self.restarts = True
        self.patience = patience
        self.tasks = [
            TaskProcess(file, job, i, folder / f"{job}-{i}.log") for job, i in cluster.tasks()
        ]
        self._stopped: dict[TaskProcess, float] = {}
        self._end = threading.Event()
        self._lock = threading.Lock()
        for task in self.tasks:
            task.start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def fault(self, kind: str, task: TaskProcess) -> None:
        """kill, stop, pause (stop and go on after a second) or cut."""
        with self._lock:
            if kind == "kill":
                task.kill()
            elif kind == "cut":
                task.cut_off()
            else:
                task.send(signal.SIGSTOP)
                seconds = 1.0 if kind == "pause" else self.patience
                self._stopped[task] = time.monotonic() + seconds
                if kind == "pause":
                    threading.Timer(1.0, self._go_on, [task]).start()

    def _go_on(self, task: TaskProcess) -> None:
        with self._lock:
            self._stopped.pop(task, None)
            task.send(signal.SIGCONT)

    def repair(self) -> None:
        """All tasks run again, from here on, too."""
        self.restarts = True
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with self._lock:
                if not self._stopped and all(task.alive for task in self.tasks):
                    return
            time.sleep(0.02)
        raise TimeoutError("the tasks were not started again")

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            with self._lock:
                if not self.restarts:
                    continue
                now = time.monotonic()
                for task in self.tasks:
                    if now >= self._stopped.get(task, now + 1):
                        del self._stopped[task]
                        task.kill()
                    if not task.alive:
                        task.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join(30)
        for task in self.tasks:
            task.kill()


def free_cluster(folder: Path, jobs: dict[str, int]) -> wf.train.ClusterSpec:
    """Addresses on this machine: of the last job ipc, of the others tcp with free ports."""
    with contextlib.ExitStack() as stack:
        spec: dict[str, list[str]] = {}
        for job, n in jobs.items():
            if job == list(jobs)[-1]:
                spec[job] = [f"ipc://{folder}/{job}{i}" for i in range(n)]
                continue
            sockets = [
                stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)
            ]
            spec[job] = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    return wf.train.ClusterSpec(spec)
