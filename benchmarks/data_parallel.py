"""The language model of examples/language_model.py on the processes of a mesh: what a second
process gains on this machine.

    python benchmarks/data_parallel.py [--rounds 6] [--steps 2] [--json FILE] [--quick]

LSTM-512-512, 40,000 words, batches of 16 x 20, full and sampled softmax: one process of one thread
and of two, and two processes of one thread each (`--processes 2`). They take turns. Least and
median seconds of a step, and what a step takes of the processors by process: where others use the
machine only these say what is computed twice. Efficiency is the time of one thread over that of two
processors, over 2."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine
from rich.console import Console
from rich.table import Table

import weft as wf

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import language_model

#: Processes, threads of each.
WAYS = {"1 thread": (1, 1), "2 threads": (1, 2), "2 processes": (2, 1)}
WARM = 3  # steps that do not count: what they run is compiled


def member(folder: str, rank: int, size: int, sizes: language_model.Sizes) -> None:
    """A process of a mesh: as many steps as the lines on stdin say; answers with their seconds, and
    what they took of the processors."""
    addresses = {"worker": [f"ipc://{folder}/{k}" for k in range(size)]}
    task = wf.train.ClusterTask(wf.train.ClusterSpec(addresses), "worker", rank)
    rng = np.random.default_rng(0)
    # small numbers stand for frequent words, as in the text
    words = (sizes.vocabulary ** rng.random((sizes.batch, sizes.length + 1)) - 1).astype(np.int32)
    with wf.Mesh({"data": size}, task=task) as mesh:
        runner = language_model.OnMesh(sizes, 0, mesh)
        for _ in range(WARM):
            runner.step(words)
        print("warm", flush=True)
        for line in sys.stdin:
            seconds, taken = [], time.process_time()
            for _ in range(int(line)):
                began = time.perf_counter()
                runner.step(words)
                seconds.append(time.perf_counter() - began)
            print(json.dumps([seconds, (time.process_time() - taken) / len(seconds)]), flush=True)


@contextmanager
def members(way: str, sizes: language_model.Sizes) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a way, warm; killed at the end."""
    count, threads = WAYS[way]
    environ = dict(os.environ, WEFT_NUM_THREADS=str(threads))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = []
        for rank in range(count):
            given = [folder, str(rank), str(count), json.dumps(vars(sizes))]
            process = subprocess.Popen(
                [sys.executable, __file__, "--member", *given], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env=environ,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            made.append(process)
        for process in made:
            answer(process)
        yield made


def answer(process: subprocess.Popen[str]) -> str:
    """The next line of a process; an error if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended with status {process.wait()}")
    return line.strip()


def measured(sizes: language_model.Sizes, rounds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each way."""
    with ExitStack() as stack:
        running = {way: stack.enter_context(members(way, sizes)) for way in WAYS}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, made in running.items():
                for process in made:
                    assert process.stdin is not None
                    process.stdin.write(f"{steps}\n")
                    process.stdin.flush()
                found = [json.loads(answer(process)) for process in made]
                seconds[way] += found[0][0]
                taken[way].append([processor for _, processor in found])
    alone = {kind: pick(seconds["1 thread"]) for kind, pick in PICKS.items()}
    return [
        {
            "softmax": "sampled" if sizes.sampled else "full", "way": way,
            "seconds": {kind: pick(seconds[way]) for kind, pick in PICKS.items()},
            "efficiency": {
                kind: alone[kind] / pick(seconds[way]) / (processes * threads)
                for kind, pick in PICKS.items()
            },
            "processor_seconds": min(taken[way], key=sum),
        }
        for way, (processes, threads) in WAYS.items()
    ]  # fmt: skip


PICKS = {"minimum": min, "median": statistics.median}


def show(rows: list[dict[str, Any]]) -> None:
    """A table."""
    table = Table("softmax", "way", "ms: least / median", "efficiency", "processor ms, by process",
                  title="language model, data-parallel")  # fmt: skip
    for row in rows:
        found, gain = row["seconds"], row["efficiency"]
        table.add_row(
            row["softmax"], row["way"],
            f"{found['minimum'] * 1e3:.0f} / {found['median'] * 1e3:.0f}",
            f"{gain['minimum']:.2f} / {gain['median']:.2f}",
            " + ".join(f"{t * 1e3:.0f}" for t in row["processor_seconds"]),
        )  # fmt: skip
    Console(width=120).print(table)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    names = ("units", "projection", "batch", "length", "parts")
    numbers = (16, 16, 4, 5, 1) if options.quick else (512, 512, 16, 20, 1)
    rows = []
    for sampled in (0, 16 if options.quick else 512):
        sizes = language_model.Sizes(
            vocabulary=100 if options.quick else 40_000, sampled=sampled,
            **dict(zip(names, numbers, strict=True)),
        )  # fmt: skip
        rows += measured(sizes, options.rounds, options.steps)
        show(rows[-len(WAYS) :])
    if options.json:
        text = {"title": "data-parallel language model", "machine": machine(), "rows": rows}
        options.json.write_text(json.dumps(text, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        place, number, count, given = sys.argv[2:]
        member(place, int(number), int(count), language_model.Sizes(**json.loads(given)))
    else:
        main()
