"""A training step of examples/skipgram.py with its tables in parts: in one process, and with the
parts on two tasks of the job "ps", the rest on a worker (processes of this machine).

    python benchmarks/sharded.py [--steps 300]

How many of the 256 words of a batch fall to each part differs from step to step, so the step's
sizes do. Prints the median and the longest step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import skipgram

BATCH, DIM, SAMPLED, WORDS = 256, 64, 64, 12_000


def text() -> Any:
    """Words as frequent as Zipf's law has them."""
    draw = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    ids = draw.choice(WORDS, 200_000, p=share / share.sum())
    return skipgram.Text([f"w{k}" for k in range(WORDS)], ids)


@contextmanager
def tasks(ps: int) -> Iterator[str]:
    """The target of a cluster of so many tasks that keep parts, and one worker; they end with the
    block."""
    names = [("ps", k) for k in range(ps)] + [("worker", 0)]
    with tempfile.TemporaryDirectory() as folder:
        places = {name: f"ipc://{folder}/{name[0]}{name[1]}" for name in names}
        spec = Path(folder) / "cluster.json"
        spec.write_text(
            json.dumps({job: [places[n] for n in names if n[0] == job] for job, _ in names})
        )
        command = [sys.executable, "-m", "weft", "worker", "--cluster", str(spec)]
        running = [subprocess.Popen([*command, "--job", j, "--task", str(k)]) for j, k in names]
        try:
            yield places["worker", 0]
        finally:
            for process in running:
                process.kill()
                process.wait()


def measured(words: Any, shards: int, steps: int, target: str = "", ps: int = 0) -> list[float]:
    """Milliseconds of each step, after 20 others."""
    wf.random.set_random_seed(1)
    model = skipgram.SkipGram(len(words.names), DIM, shards, SAMPLED, BATCH, ps)
    batches = skipgram.pairs(words, BATCH, 3)
    times = []
    with wf.Session(target, graph=model.graph) as session:
        session.run(model.init)
        for _ in range(steps + 20):
            centre, context = next(batches)
            begun = time.perf_counter()
            session.run([model.train, model.loss], {model.centre: centre, model.context: context})
            times.append((time.perf_counter() - begun) * 1e3)
    return times[20:]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    words = text()
    rows = [(f"{k} in one process", measured(words, k, steps)) for k in (1, 2, 4)]
    for k in (1, 2):
        with tasks(k) as target:
            rows.append((f"{k} on {k} of {k + 1} tasks", measured(words, k, steps, target, k)))
    for what, times in rows:
        print(f"parts: {what:20} {np.median(times):8.2f} ms, longest {max(times):8.2f}")


if __name__ == "__main__":
    main()
