"""How the time to compile grows with the size of a program.

    python benchmarks/growth.py [--programs chain,scans,...] [--sizes 100,400,1600] [--most 60]
        [--json FILE]

Each compilation is a process of its own without the cache on disk; sizes count the ops that the
program calls. The table has milliseconds for each op, and the power with which the time grew from
size to size (1: linear). A program that took longer than --most seconds is not tried at the next
size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf

Program = Callable[[Any], Any]
SIZES = "100,400,1600"


def chain(n: int) -> Program:
    """Elementwise functions one after another: one nest after another."""

    def f(x: Any) -> Any:
        for i in range(n // 4):
            x = wf.tanh(wf.sin(x) * (1 + 0.001 * i) + 0.5)
        return x

    return f


def products(n: int) -> Program:
    """A sum of products."""

    def f(x: Any) -> Any:
        total = x
        for i in range(n // 2):
            total = total + x * (1.0 + i)
        return total

    return f


def slices(n: int) -> Program:
    """Slices that are put together."""

    def f(x: Any) -> Any:
        return wf.concat([x[i % 7 : i % 7 + 1] for i in range(n)], axis=0)

    return f


def fan(n: int) -> Program:
    """One large value that all others read."""

    def f(x: Any) -> Any:
        wide = wf.broadcast_to(x, (4096, 8)) + 1.0
        return [wf.sum(wide * float(i)) for i in range(n // 2)]

    return f


def conds(n: int) -> Program:
    """Branches one after another."""

    def f(x: Any) -> Any:
        for i in range(n // 4):
            x = wf.cond(wf.sum(x) > float(i), lambda x=x: x + 1.0, lambda x=x: x * 2.0)
        return x

    return f


def scans(n: int) -> Program:
    """Loops one after another."""
    rows = np.ones((4, 8), np.float32)

    def f(x: Any) -> Any:
        for i in range(n // 4):
            x, _ = wf.scan(lambda c, r: (c * 0.5 + r, None), init=x, xs=rows * i)
        return x

    return f


def layers(n: int) -> Program:
    """The gradient of layers of a network."""
    w = np.full((8, 8), 0.1, np.float32)

    def loss(x: Any) -> Any:
        y = wf.reshape(x, (1, 8))
        for _ in range(n // 6):
            y = y + wf.tanh(wf.matmul(y, w))
        return wf.sum(y)

    return wf.grad(loss)


def variables(n: int) -> Program:
    """Updates of as many variables."""
    held = [wf.Variable(np.ones(8, np.float32)) for _ in range(n // 2)]

    def f(x: Any) -> Any:
        for v in held:
            v.assign_add(x)
        return x

    return f


PROGRAMS: dict[str, Callable[[int], Program]] = {
    p.__name__: p for p in (chain, products, slices, fan, conds, scans, layers, variables)
}


def child(program: str, size: int) -> None:
    """The seconds of the first call in this process, as JSON."""
    x = np.ones(8, np.float32)
    wf.compile(lambda x: x + 1)(x)  # LLVM is there
    step = wf.compile(PROGRAMS[program](size))
    started = time.perf_counter()
    step(x)
    print(json.dumps(time.perf_counter() - started))


def measure(program: str, size: int) -> float:
    """The seconds that a new process takes for the first call."""
    command = [sys.executable, __file__, "--child", program, str(size)]
    environment = {**os.environ, "WEFT_CACHE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def curve(program: str, sizes: list[int], most: float) -> dict[int, float]:
    """Seconds by size, until one takes too long."""
    found: dict[int, float] = {}
    for size in sizes:
        if any(seconds > most for seconds in found.values()):
            break
        found[size] = measure(program, size)
    return found


def cell(size: int, seconds: float, before: tuple[int, float] | None) -> str:
    """Milliseconds for each op, and the power of the growth since the size before."""
    text = f"{seconds / size * 1e3:.2f}"
    if before is None:
        return text
    power = math.log(seconds / before[1]) / math.log(size / before[0])
    return f"{text} ({power:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--most", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=2, metavar=("PROGRAM", "SIZE"), help="one run, as JSON")
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        return
    from rich.console import Console
    from rich.table import Table

    sizes = [int(size) for size in options.sizes.split(",")]
    table = Table(title="time to compile: ms for each op (power of the growth)")
    for column in ("program", *map(str, sizes)):
        table.add_column(column, justify="left" if column == "program" else "right")
    everything: dict[str, dict[int, float]] = {}
    for program in options.programs.split(","):
        found = everything[program] = curve(program, sizes, options.most)
        rows = list(found.items())
        pairs = zip(rows, [None, *rows[:-1]], strict=True)
        cells = [cell(size, seconds, before) for (size, seconds), before in pairs]
        table.add_row(program, *cells, *["too long"] * (len(sizes) - len(cells)))
    Console(width=140).print(table)
    if options.json:
        from harness import machine

        rows_of = {"machine": machine(), "seconds": everything}
        Path(options.json).write_text(json.dumps(rows_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
