"""Members of an elastic run in processes of their own, which are killed, stopped and let in."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from cut_network import Network
from elastic_run import Run
from paths import ROOT


def kills(usual: int) -> range:
    """The seeds of a slow test's disturbed runs: by hand `WEFT_KILLS=100`, or `40-60`."""
    first, _, last = os.environ.get("WEFT_KILLS", str(usual)).rpartition("-")
    return range(int(first or 0), int(last))


def fresh() -> str:
    return f"test-{os.getpid()}-{random.randrange(1 << 40)}"


def alone(steps: int, length: int = 5) -> Run:
    """The run that nothing happens to."""
    with closing(Run(fresh(), 1, length)) as run:
        run.until(steps)
    return run


class Processes:
    """The members of a run in processes of their own. addresses: where they may be, in the order in
    which they are started, if that is by TCP; binds: where they listen really, if these are of
    proxies."""

    def __init__(
        self,
        size: int,
        steps: int,
        length: int,
        timeout: float,
        addresses: Sequence[str] = (),
        binds: Sequence[str] = (),
    ) -> None:
        self.name = fresh()
        self._given = [self.name, *map(str, (size, steps, length, timeout))]
        self.addresses, self._binds = tuple(addresses), binds
        self.made: list[subprocess.Popen[str]] = []

    def start(self, count: int, place: int | None = None) -> list[subprocess.Popen[str]]:
        """Start so many, which wait until they are to join. place: the number of the first one's
        address; by default that of the next."""
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        given = [sys.executable, str(Path(__file__).with_name("elastic_run.py")), *self._given]
        first, made = len(self.made) if place is None else place, []
        for k in range(first, first + count):
            more = [",".join(self.addresses), str(k)] if self.addresses else []
            more += [self._binds[k]] if self._binds else []
            made.append(
                subprocess.Popen(
                    [*given, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, env=environ,
                )
            )  # fmt: skip
        self.made += made
        for one in made:
            assert line(one) == "ready\n"
        return made

    def begin(self, ones: Sequence[subprocess.Popen[str]]) -> None:
        """Let them take part."""
        for one in ones:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()

    def join(self, ones: Sequence[subprocess.Popen[str]]) -> None:
        """Let them take part, and wait until they do."""
        self.begin(ones)
        for one in ones:
            said = line(one)
            assert said.startswith("here "), said


def line(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline()


@contextmanager
def processes(
    size: int,
    steps: int,
    length: int = 5,
    timeout: float = 20,
    spare: int = 0,
    addresses: Sequence[str] = (),
    binds: Sequence[str] = (),
) -> Iterator[Processes]:
    """A run of `size` processes; `spare` ones are ready to join it."""
    run = Processes(size, steps, length, timeout, addresses, binds)
    try:
        run.join(run.start(size + spare)[:size])
        yield run
    finally:
        for one in run.made:
            one.kill()
            one.wait()
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.close()
            one.stdout.close()


def check(one: subprocess.Popen[str], wanted: Run) -> str:
    """The process has ended well, with the state and the steps of the run that nothing happens to:
    what it wrote."""
    text = one.communicate(timeout=120)[0]
    lines = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    assert lines.get("end") == wanted.bits(), text
    assert all(wanted.seen[step] == value for step, value in eval(lines["seen"]))
    return text


def lost_before(last: int, text: str) -> set[int]:
    """The ids of those who are said to be lost before the last step: who has that may leave."""
    rows = re.findall(r"^change step (\d+): (.*)$", text, re.M)
    said = " ".join(what for step, what in rows if int(step) < last)
    return {int(found) for found in re.findall(r"\(process (\d+)[^)]*\) is lost", said)}


def disturb(
    run: Processes,
    spare: list[subprocess.Popen[str]],
    dice: random.Random,
    network: Network | None = None,
) -> list[int]:
    """Kill some, stop some for a while, let others in, cut connections, at random moments: the
    killed ones' ids."""
    killed: list[int] = []
    there = [one for one in run.made if one not in spare]
    for _ in range(dice.randint(1, 4)):
        time.sleep(dice.uniform(0.0, 0.2))
        one = dice.choice(there)
        act = dice.choice(["kill", "kill", "stop", "join", *(["drop", "cut"] if network else [])])
        if act == "kill" and len(there) > 1:
            one.kill()
            killed.append(one.pid)
            there.remove(one)
        elif act == "stop":
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(dice.uniform(0.0, 0.2))
            os.kill(one.pid, signal.SIGCONT)
        elif act == "drop" and network:
            network.drop(run.made.index(one))
        elif act == "cut" and network:
            others = [k for k in range(len(run.made)) if run.made[k] is not one]
            network.cut([run.made.index(one)], others)
            time.sleep(dice.uniform(0.0, 0.5))
            network.heal()
        elif act == "join" and spare:
            there.append(spare.pop())
            run.join(there[-1:])
    return killed
