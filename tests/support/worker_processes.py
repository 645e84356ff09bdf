"""Tasks as processes: `weft worker` for each task of a cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class Tasks:
    """Processes of `weft worker`, by job; each can be killed and started again. options: further
    ones of the command. metrics: addresses by task, where they ask for that."""

    def __init__(self, folder: Path, jobs: dict[str, int], options: Sequence[str] = ()) -> None:
        self.options = options
        self.metrics: dict[str, str] = {}
        self.addresses = {
            j: [f"127.0.0.1:{free_port()}" for _ in range(n)] for j, n in jobs.items()
        }
        self.file = folder / "cluster.json"
        self.file.write_text(json.dumps(self.addresses))
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for job, count in jobs.items():
            for number in range(count):
                self.start(job, number)
        for name, process in self.processes.items():
            self.listens(process)
            if "--metrics-port" in options:
                assert process.stdout is not None
                self.metrics[name] = process.stdout.readline().split()[-1]

    def start(self, job: str, number: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "weft", "worker", "--cluster", str(self.file)]
        command += ["--job", job, "--task", str(number), *self.options]
        made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes[f"{job}:{number}"] = made
        return made

    @staticmethod
    def listens(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert "listens at tcp://127.0.0.1:" in process.stdout.readline()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
