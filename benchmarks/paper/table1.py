"""Table 1 of the paper: training steps of AlexNet, Overfeat, OxfordNet and GoogLeNet on synthetic
images, beside JAX and PyTorch.

    python benchmarks/paper/table1.py [--full] [--only GoogLeNet ...] [--rounds 10]

The paper's step times are those of convnet-benchmarks on a Titan X, of forward and backward; here
a step also updates all parameters (SGD), on the processors of this machine. What can be set beside
each other is how the libraries compare: the paper's over TensorFlow, here the peers over weft. By
default batches and images are small (16 of 96 x 96: a minute a net); --full takes the paper's
(128 of 224 x 224, OxfordNet 64, Overfeat 231 x 231: minutes a round). AlexNet and GoogLeNet come a
second time with the local response normalisation that their papers have and that was benchmarked
without. Needs the `bench` extra; writes table1.json and table1.png (table1.full.*).

Where others use the machine, `taskset -c 0 python ... --processor-time` still compares: one thread,
by the processor's time. Two threads that wait for each other do not: PyTorch's lose most.

Before anything is timed, three steps of all sides must give the same losses, and the first the same
update of every parameter.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from table1_nets import NETS, Array, Problem, net, problem
from table1_steps import MAKERS, Contestant

from weft.frontend.tools.bench_workloads import Comparison, compare, machine

HERE = Path(__file__).parent
#: Milliseconds of a training step on one Titan X, 32-bit floats (the paper's Table 1).
PAPER = {
    "AlexNet": {"Caffe": 324, "Neon": 87, "Torch": 81, "TensorFlow": 81},
    "Overfeat": {"Caffe": 823, "Neon": 211, "Torch": 268, "TensorFlow": 279},
    "OxfordNet": {"Caffe": 1068, "Neon": 320, "Torch": 529, "TensorFlow": 540},
    "GoogLeNet": {"Caffe": 1935, "Neon": 270, "Torch": 470, "TensorFlow": 445},
}
WITH_LRN = ("AlexNet", "GoogLeNet")
STEPS = 3  # that must agree


class Disagreement(Exception):
    """A contestant computes something else."""


def updates(given: Problem, contestant: Contestant) -> tuple[list[float], list[Array]]:
    """The losses of the first steps, and by how much the first of them moved each parameter."""
    first = float(contestant.step())
    moves = [a - b for a, b in zip(contestant.params(), given.params, strict=True)]
    return [first, *(float(contestant.step()) for _ in range(STEPS - 1))], moves


def check(given: Problem, name: str, found: Any, wanted: Any) -> None:
    """Losses agree to 1e-3, updates to 2 % of their norm: float32 adds in another order, so that
    one ReLU or maximum in 10^6 falls the other way, which all layers before it see. Disagreement.
    """
    (losses, moves), (their_losses, their_moves) = found, wanted
    if not np.allclose(losses, their_losses, rtol=1e-3):
        raise Disagreement(f"{given.name}: losses of {name} {losses}, of weft {their_losses}")
    for place, (a, b) in enumerate(zip(moves, their_moves, strict=True)):
        size = float(np.linalg.norm(b))
        if not size > 0:
            raise Disagreement(f"{given.name}: a step of weft does not move parameter {place}")
        if not np.linalg.norm(a - b) <= 0.02 * size:
            raise Disagreement(f"{given.name}: {name} moves parameter {place} elsewhere")


def contest(
    given: Problem, peers: Sequence[str], rounds: int, clock: Callable[[], float]
) -> Comparison:
    """All sides from the same parameters; once they agree they are timed in turn."""
    contestants = {name: MAKERS[name](given) for name in ("weft", *peers)}
    wanted = updates(given, contestants["weft"])
    for name, contestant in contestants.items():
        check(given, name, wanted if name == "weft" else updates(given, contestant), wanted)
    del wanted
    gc.collect()
    steps = {n: c.step for n, c in contestants.items()}
    return compare(given.name, steps, rounds=rounds, clock=clock)


def row_of(given: Problem, measured: Comparison) -> dict[str, Any]:
    """What the files keep of a net."""
    seconds = {n: {"minimum": t.minimum, "median": t.median} for n, t in measured.timings.items()}
    base = given.net.name.removesuffix(" + LRN")
    return {
        "net": given.net.name, "batch": given.batch, "image": given.image, "flops": given.flops,
        "parameters": sum(p.size for p in given.params), "seconds": seconds,
        "paper_ms": PAPER[base],
    }  # fmt: skip


def over(seconds: dict[str, dict[str, float]], peer: str) -> tuple[float, float]:
    """A peer's time over weft's, by minima and by medians."""
    mine, other = seconds["weft"], seconds[peer]
    return other["minimum"] / mine["minimum"], other["median"] / mine["median"]


def paper_over(paper: dict[str, float], library: str) -> float:
    """A library's time over TensorFlow's, in the paper."""
    return paper[library] / paper["TensorFlow"]


def show(result: dict[str, Any]) -> None:
    """The paper's figures beside those of this run."""
    rows = result["rows"]
    peers = [n for n in rows[0]["seconds"] if n != "weft"]
    table = Table(title=result["title"])
    table.add_column("net, batch, image")
    for column in (
        "paper: TensorFlow ms", "Caffe, Neon, Torch over it", "weft ms (min / median)", "GFLOP/s",
        *(f"{p} over it (min / median)" for p in peers),
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for row in rows:
        paper, seconds = row["paper_ms"], row["seconds"]
        mine = seconds["weft"]
        theirs = ", ".join(f"{paper_over(paper, n):.2f}" for n in ("Caffe", "Neon", "Torch"))
        ratios = [over(seconds, p) for p in peers]
        table.add_row(
            f"{row['net']}, {row['batch']}, {row['image']}", str(paper["TensorFlow"]), theirs,
            f"{mine['minimum'] * 1e3:,.1f} / {mine['median'] * 1e3:,.1f}",
            f"{row['flops'] / mine['minimum'] / 1e9:.0f}",
            *(f"{a:.2f} / {b:.2f}" for a, b in ratios),
        )  # fmt: skip
    Console(width=150).print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """How long the others take: in the paper over TensorFlow, here over weft."""
    from matplotlib import pyplot

    rows = result["rows"]
    nets = list(dict.fromkeys(row["net"].removesuffix(" + LRN") for row in rows))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.4))
    paper = {n: [paper_over(PAPER[m], n) for m in nets] for n in ("Caffe", "Neon", "Torch")}
    _bars(left, nets, paper, "the paper, one Titan X: time over TensorFlow's")
    peers = [n for n in rows[0]["seconds"] if n != "weft"]
    here = {p: [over(row["seconds"], p)[0] for row in rows] for p in peers}
    cpu, cores = result["machine"]["cpu"], result["threads"]
    _bars(
        right,
        [row["net"].replace(" + ", "\n+ ") for row in rows],
        here,
        f"{cores} x {cpu}: time over weft's",
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, groups: list[str], series: dict[str, list[float]], title: str) -> None:
    width = 0.8 / max(len(series), 1)
    for k, (name, values) in enumerate(series.items()):
        places = [i + (k - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axis.bar_label(axis.bar(places, values, width, label=name), fmt="%.2f", fontsize=7)
    axis.axhline(1.0, color="grey", lw=0.8)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    axis.set_title(title, fontsize=9)
    if series:
        axis.legend(fontsize=8)


def chosen(options: argparse.Namespace) -> Iterator[Problem]:
    """The nets at their sizes, one after the other."""
    again = [] if options.no_lrn else [name for name in options.only if name in WITH_LRN]
    pairs = [(name, False) for name in options.only] + [(name, True) for name in again]
    for name, lrn in pairs:
        found = net(name, lrn)
        small = (options.batch or 16, options.image or 96)
        yield problem(found, *((found.batch, found.image) if options.full else small))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="the paper's batches and images")
    parser.add_argument("--only", nargs="*", choices=NETS, default=list(NETS))
    parser.add_argument("--no-lrn", action="store_true", help="no net a second time")
    parser.add_argument("--peers", nargs="*", choices=[m for m in MAKERS if m != "weft"],
                        default=["jax", "torch"])  # fmt: skip
    parser.add_argument("--rounds", type=int, help="10, with --full 3")
    parser.add_argument("--batch", type=int, help="16; not with --full")
    parser.add_argument("--image", type=int, help="96; not with --full")
    parser.add_argument("--processor-time", action="store_true",
                        help="not that of other jobs: for one thread, taskset -c 0")  # fmt: skip
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    options = parser.parse_args(argv)
    if options.full and (options.batch or options.image):
        parser.error("--full has the paper's batches and images")
    rounds = options.rounds or (3 if options.full else 10)
    clock = time.process_time if options.processor_time else time.perf_counter
    sizes = "the paper's sizes" if options.full else "reduced sizes"
    threads = len(os.sched_getaffinity(0))
    title = f"Training steps of the paper's Table 1, {sizes}, threads: {threads}"
    result = {
        "title": title, "machine": machine(), "rounds": rounds, "threads": threads,
        "clock": "processor time" if options.processor_time else "wall", "rows": [],
    }  # fmt: skip
    for given in chosen(options):
        row = row_of(given, contest(given, options.peers, rounds, clock))
        result["rows"].append(row)
        least = {n: f"{t['minimum'] * 1e3:.1f}" for n, t in row["seconds"].items()}
        print(f"{given.name}: ms {', '.join(f'{n} {t}' for n, t in least.items())}", flush=True)
        gc.collect()
    show(result)
    base = options.out / ("table1.full" if options.full else "table1")
    Path(f"{base}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, Path(f"{base}.png"))
    return result


if __name__ == "__main__":
    main()
