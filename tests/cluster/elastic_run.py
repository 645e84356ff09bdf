"""A run of an elastic group: by itself a member in a process of its own.

    elastic_run.py NAME SIZE STEPS LENGTH TIMEOUT [ADDRESSES PLACE [BIND]]

BIND: where it listens really, if its address is that of a proxy. It says "ready", waits for a line,
joins, and writes at its end what it has seen."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from group_members import listen_at

from weft.comm.elastic import ElasticGroup
from weft.comm.errors import CommError
from weft.comm.group import Call
from weft.comm.members import Remote

#: The parts of a sum.
COUNT = 8


class Run:
    """A program whose state follows from sums: a vector, which each step moves."""

    def __init__(self, name: str, size: int, length: int = 5, **options: Any) -> None:
        self.state = np.zeros(length)
        self.seen: dict[int, float] = {}
        settings = {"timeout": 20.0, "connect_timeout": 20.0, **options}
        self.group = ElasticGroup(name, size, lambda: [self.state], self.take, **settings)

    def take(self, arrays: Any) -> None:
        self.state = arrays[0].copy()

    def part(self, k: int) -> Any:
        return np.sin(self.state * (k + 1) + np.arange(self.state.size) * 0.1 + self.group.step)

    def advance(self) -> None:
        step = self.group.step
        total = self.group.sum(COUNT, self.part, Call(f"step {step}"))
        self.state = self.state * 0.9 + total / COUNT
        self.seen[step] = float(self.state.sum())

    def until(self, steps: int) -> None:
        while self.group.step < steps:
            self.advance()

    def bits(self) -> str:
        """The beginning of the state."""
        return self.state.tobytes().hex()[:4000]

    def close(self) -> None:
        self.group.close()


def main() -> None:
    name, size, steps, length = sys.argv[1], *map(int, sys.argv[2:5])
    options: dict[str, Any] = {"timeout": float(sys.argv[5])}
    if sys.argv[6:]:
        options |= {"remote": Remote(tuple(sys.argv[6].split(","))), "place": int(sys.argv[7])}
    if sys.argv[8:]:
        listen_at(sys.argv[8])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        run = Run(name, size, length, **options)
        print("here", run.group.step, flush=True)
        while run.group.step < steps:
            run.advance()
            time.sleep(0.002)
        print("end", run.bits())
        print("seen", sorted(run.seen.items()))
        for text in run.group.changes:
            print("change", text)
        run.close()
    except CommError as error:
        print("error", type(error).__name__, error)


if __name__ == "__main__":
    main()
