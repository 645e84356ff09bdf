"""Figure 8 of the paper: how long a synchronous step takes that waits for the first n of n + b
workers, some of which are slow at times; and what that is worth, t(0) / t(b) * n / (n + b).

    python benchmarks/paper/figure8.py [--workers 10] [--backups 5] [--steps 60]

Measured: a parameter server, a chief and n + b workers are processes of this machine, which train
by `wf.train.SyncReplicas`. Workers sleep while they "compute", so that two processors are enough;
how long is drawn from the distribution of the simulator, which draws the other curve. The
parameters are a few bytes: this is about waiting. Simulated: the paper's 50 workers and their
backups (`simulated.py`), beside what the paper says; its stragglers are fitted to these numbers, so
only the curve's shape is a prediction. It takes 3 to 4 minutes, most of them asleep, and writes
figure8.json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import simulated
from figure8_worker import Run
from rich.console import Console
from rich.table import Table
from windows import heard

from weft.frontend.tools.bench_workloads import machine
from weft.passes.placement import Links
from weft.passes.placement.simulate import Cluster, Workload, backup_curve, with_stragglers

HERE = Path(__file__).parent
PAPER_WORKERS, PAPER_BACKUPS = 50, range(7)
WARM = 15  # steps that do not count: threads still compile


@contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """A parameter server, and `count` tasks of the job `worker`; killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"ps": 1, "worker": count}
        spec = {job: [f"ipc://{folder}/{job}{i}" for i in range(n)] for job, n in jobs.items()}
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps(spec))
        environ = dict(os.environ, PYTHONPATH=str(HERE.parents[1]), WEFT_NUM_THREADS="1")
        ps = ["-m", "weft", "worker", "--cluster", str(path), "--job", "ps", "--task", "0"]
        own = [[str(HERE / "figure8_worker.py"), str(path), str(i)] for i in range(count)]
        made: list[subprocess.Popen[str]] = []
        try:
            for command in (ps, *own):
                made.append(subprocess.Popen(
                    [sys.executable, *command], env=environ, text=True, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if command is not ps else subprocess.DEVNULL,
                ))  # fmt: skip
            for process in made[1:]:
                heard(process)
            yield made[1:]
        finally:
            for process in made:
                process.kill()
            for process in made:
                process.wait(30)


def tell(running: Sequence[subprocess.Popen[str]], line: str = "") -> None:
    """Write a line to processes."""
    for process in running:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def measure(tasks: list[subprocess.Popen[str]], run: Run) -> dict[str, Any]:
    """The seconds of each step of a run, and how many gradients were dropped."""
    used = tasks[: run.workers + run.backups + 1]
    tell(used, json.dumps(asdict(run)))
    for process in used:
        heard(process)
    tell(used)  # all of them begin
    times = json.loads(heard(used[0]))[WARM:]
    done = [json.loads(heard(process)) for process in used[1:]]
    tell(used[:1])
    return {
        "backups": run.backups, "median": float(np.median(times)), "mean": float(np.mean(times)),
        "p90": float(np.percentile(times, 90)), "times": times,
        "dropped": sum(done) - run.steps * run.workers,
    }  # fmt: skip


def curves(args: argparse.Namespace) -> dict[str, Any]:
    """The measured and the simulated curve of the same workers."""
    backups = range(args.backups + 1)
    load = (args.spread, args.straggle, args.factor)
    rows = []
    with processes(args.workers + args.backups + 1) as tasks:
        for b in backups:
            run = Run(b, args.workers, b, args.steps + WARM, args.compute, *load, args.seed)
            rows.append(measure(tasks, run))
    for row in rows:
        share = args.workers / (args.workers + row["backups"])
        row["speedup"] = rows[0]["median"] / row["median"] * share
    work = with_stragglers(Workload.even(1, 1e3, 1e3, args.compute), *load)
    cluster = Cluster(Links(latency_s=50e-6, bytes_per_s=1e9, message_s=args.message), cores=2)
    guessed = backup_curve(work, args.workers, backups, cluster, steps=400, seed=args.seed)
    for row, (_, seconds, _) in zip(rows, guessed, strict=True):
        row["ratio"] = seconds / row["median"]
    return {"machine": machine(), **vars_of(args), "measured": rows, "simulated": guessed,
            "paper_simulated": paper_curve(args.paper_steps)}  # fmt: skip


def paper_curve(steps: int) -> list[tuple[int, float, float]]:
    """The paper's 50 workers in the simulator: backups, the median step, its speed-up."""
    load, cluster = simulated.inception_step(overlapped=False), simulated.paper_cluster()
    return backup_curve(load, PAPER_WORKERS, PAPER_BACKUPS, cluster, steps=steps)


def vars_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the curves depend on."""
    names = ("workers", "backups", "steps", "compute", "spread", "straggle", "factor", "seed")
    return {name: getattr(args, name) for name in names}


def show(result: dict[str, Any]) -> None:
    """A table of both curves, and one of the paper's."""
    console = Console(width=120)
    title = "{workers} workers and backups here, computing {compute} s".format(**result)
    table = Table("backups", "measured s: median", "mean", "p90", "speed-up", "dropped",
                  "simulated s: median", "speed-up", "/ measured", title=title)  # fmt: skip
    for row, (_, seconds, speedup) in zip(result["measured"], result["simulated"], strict=True):
        figures = [row["median"], row["mean"], row["p90"], row["speedup"]]
        table.add_row(str(row["backups"]), *(f"{x:.3f}" for x in figures), str(row["dropped"]),
                      f"{seconds:.3f}", f"{speedup:.3f}", f"{row['ratio']:.2f}")  # fmt: skip
    console.print(table)
    said = {b: [""] * 4 for b, _, _ in result["paper_simulated"]}
    steps = {b: values for b, *values in result["paper_simulated"]}
    for place, (b, value) in enumerate((simulated.BEST_STEP, simulated.BEST_SPEEDUP)):
        said[b][2 * place : 2 * place + 2] = [f"{value}", f"{steps[b][place] / value:.2f}"]
    table = Table("backups", "simulated s: median", "paper", "/ paper", "speed-up", "paper",
                  "/ paper", title=f"{PAPER_WORKERS} workers on the paper's cluster")  # fmt: skip
    for b, (seconds, speedup) in steps.items():
        table.add_row(str(b), f"{seconds:.3f}", *said[b][:2], f"{speedup:.3f}", *said[b][2:])
    console.print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """Both curves and the paper's, as the paper draws them."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8))
    (left, right), (paper_left, paper_right) = axes
    rows = result["measured"]
    b = [row["backups"] for row in rows]
    _, seconds, speedup = zip(*result["simulated"], strict=True)
    left.plot(b, [row["median"] for row in rows], "o-", label="measured")
    left.plot(b, seconds, "--", label="simulated")
    left.fill_between(b, [np.percentile(row["times"], 10) for row in rows],
                      [row["p90"] for row in rows], alpha=0.2, label="10 to 90 %")  # fmt: skip
    left.set(title=f"here: {result['workers']} workers and backups", ylabel="seconds, median")
    right.plot(b, [row["speedup"] for row in rows], "o-", label="measured")
    right.plot(b, speedup, "--", label="simulated")
    b, seconds, speedup = zip(*result["paper_simulated"], strict=True)
    paper_left.plot(b, seconds, "--", label="simulated")
    paper_left.plot(*simulated.BEST_STEP, "ks", mfc="none", label="paper's shortest")
    paper_left.set(title=f"the paper: {PAPER_WORKERS} workers and backups",
                   ylabel="seconds, median")  # fmt: skip
    paper_right.plot(b, speedup, "--", label="simulated")
    paper_right.plot(*simulated.BEST_SPEEDUP, "ks", mfc="none", label="paper's best")
    for axis in (right, paper_right):
        axis.axhline(1.0, color="grey", lw=0.8)
        axis.set(title="normalised speed-up", ylabel="t(0) / t(b) * n / (n + b)")
    for axis in axes.flat:
        axis.set(xlabel="backup workers")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--backups", type=int, default=5, help="at most")
    parser.add_argument("--steps", type=int, default=60, help="of each number of backups")
    parser.add_argument("--compute", type=float, default=0.2, help="seconds of a worker, median")
    parser.add_argument("--spread", type=float, default=0.035)
    parser.add_argument("--straggle", type=float, default=0.2, help="how likely a step is slow")
    parser.add_argument("--factor", type=float, default=2.0, help="how slow, on average")
    parser.add_argument("--message", type=float, default=0.5e-3, help="seconds, in the simulator")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--paper-steps", type=int, default=60, help="of each simulated number")
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    args = parser.parse_args(argv)
    result = curves(args)
    show(result)
    (args.out / "figure8.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, args.out / "figure8.png")
    return result


if __name__ == "__main__":
    main()
