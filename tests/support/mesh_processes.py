"""The processes of a mesh, each of which runs one program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paths import ROOT

#: What each process runs before the test's own lines.
BEGIN = """
import sys
import numpy as np
import weft as wf
from weft import PartitionSpec as P
from weft import collectives as c

folder, rank, shape, timeout = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3]), float(sys.argv[4])
one = wf.Mesh(shape)
addresses = sys.argv[5:] or [f"ipc://{folder}/{k}" for k in range(one.size)]
task = wf.train.ClusterTask(wf.train.ClusterSpec({"worker": addresses}), "worker", rank)
mesh = wf.Mesh(shape, task=task, timeout=timeout, connect_timeout=60)
X = np.random.default_rng(0).normal(size=(8, 16))
W = np.random.default_rng(1).normal(size=(16, 4))


def same(got, wanted):
    for a, b in zip(wf.tree_leaves(got), wf.tree_leaves(wanted), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


def over(m, fn, i, o):
    return wf.shard_map(fn, m, i, o)

"""


@contextmanager
def processes(
    folder: Path,
    shape: dict[str, int],
    program: str,
    timeout: float = 30,
    addresses: Sequence[str] = (),
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a mesh, each of which runs the program; killed at the end. addresses: where
    they are, else they are on one host."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    size, made = 1, []
    for axis in shape.values():
        size *= axis
    path = folder / "program.py"
    path.write_text(BEGIN + program, encoding="utf-8")
    try:
        for rank in range(size):
            given = [sys.executable, path, folder, str(rank), str(shape), str(timeout), *addresses]
            made.append(
                subprocess.Popen(
                    given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
                )
            )
        yield made
    finally:
        for process in made:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def in_the_midst(made: list[subprocess.Popen[str]]) -> None:
    """Wait until all processes are beyond the line "here", in the calls after it."""
    for process in made:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    time.sleep(0.2)


def two_hosts(count: int) -> list[str]:
    """Addresses that nobody has just now, in turn on two addresses of loopback, as of two hosts."""
    held = [socket.socket() for _ in range(count)]
    try:
        for k, one in enumerate(held):
            one.bind((f"127.0.0.{1 + k % 2}", 0))
        return ["tcp://{}:{}".format(*one.getsockname()) for one in held]
    finally:
        for one in held:
            one.close()


def outputs(
    folder: Path,
    shape: dict[str, int],
    program: str,
    timeout: float = 30,
    addresses: Sequence[str] = (),
) -> list[str]:
    """What each process has printed at its end."""
    with processes(folder, shape, program, timeout, addresses) as made:
        return [process.communicate(timeout=300)[0] for process in made]


def errors(folder: Path, shape: dict[str, int], body: str, timeout: float = 30) -> list[str]:
    """What the processes print of the error that the lines raise."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = f"try:\n{lines}except wf.errors.WeftError as error:\n"
    program += "    print(type(error).__name__, error)\n"
    return outputs(folder, shape, program, timeout)
