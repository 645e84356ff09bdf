"""A SLURM of one node on this machine: munge, controller and daemon with ports and files of their
own, as root. Debian: `apt-get install slurm-wlm munge`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from worker_processes import free_port

#: Five tasks, whatever the machine has.
CPUS = 8
_CONF = """\
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiParams=ports=23500-23599
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_DAEMONS = ("slurmd", "slurmctld", "munge")


def missing() -> str:
    """Why there can be none here; "" if it can be started."""
    absent = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name)]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started as root"


class Slurm:
    """It runs until `close`. environ: for srun, sbatch and scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        conf = folder / "slurm.conf"
        conf.write_text(
            _CONF.format(
                host=socket.gethostname(), folder=folder, cpus=CPUS, controller=free_port(),
                daemon=free_port(),
            )
        )  # fmt: skip
        self.environ = os.environ | {"SLURM_CONF": str(conf)}
        try:
            munge = [f"--{name}={folder}/munge.{end}" for name, end in (
                ("socket", "sock"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"),
                ("seed-file", "seed"),
            )]  # fmt: skip
            self.run("munged", "--force", *munge)
            self.run("slurmctld", "-i")
            self.run("slurmd")
            until = time.monotonic() + 60
            while "idle" not in self.run("sinfo", "--noheader", check=False):
                assert time.monotonic() < until, (folder / "slurmctld.log").read_text()[-2000:]
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints."""
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def state(self, job: str) -> str:
        """`RUNNING`, say."""
        return self.run(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"
        ).strip()

    def pids(self, job: str) -> dict[int, int]:
        """Of the tasks of a job's step, by their numbers on the node."""
        found = {}
        for line in self.run("scontrol", "listpids", job, check=False).splitlines()[1:]:
            pid, _, step, local = line.split()[:4]
            if step.isdigit() and local.isdigit():
                found[int(local)] = int(pid)
        return found

    def close(self) -> None:
        """Cancel all jobs and end the daemons."""
        self.run("scancel", "--user=root", "--signal=KILL", check=False)
        self.run("scancel", "--user=root", check=False)
        for name in _DAEMONS:
            _end(self.folder / f"{name}.pid")


def _end(file: Path, seconds: float = 20.0) -> None:
    """End the daemon that wrote the file, and wait for its end."""
    if not file.exists():
        return
    pid, until = int(file.read_text()), time.monotonic() + seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        while time.monotonic() < until:
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.05)
        until += 5


def batch(script: Path, lines: Sequence[str]) -> Path:
    """A script for sbatch."""
    script.write_text("\n".join(["#!/bin/bash", *lines]) + "\n")
    script.chmod(0o700)
    return script
