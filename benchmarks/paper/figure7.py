"""Figure 7 of the paper: training of Inception-v3 by number of workers, asynchronous and
synchronous, measured on the tasks that fit here and simulated to 200.

    python benchmarks/paper/figure7.py [--workers 4] [--width 0.25] [--image 107] [--batch 16]

1. Measured: processes of this machine of one thread each, 2 parameter servers and up to 4 workers,
   in short windows that take turns (`windows.py`); the 10th, 50th and 90th percentile of the steps.
   The net has all 94 convolutions (`inception.py`), but here a quarter of the channels, smaller
   images and batches, and 10 classes: a full one takes a processor seconds a step.
2. Predicted: the simulator's steps of 2 and more workers on this machine, from what those of one
   take of the processors and how they vary: how far it is to be believed. It takes the processors
   for those tasks' own; where other jobs use them, too, steps take longer, of one worker as well,
   and what can be compared is how steps grow with the number of workers ("of growth").
3. Simulated: the paper's cluster (`simulated.py`; 17 servers, batches of 32) with 25 to 200
   workers. As TensorFlow does it, transfers overlapping with computing layer by layer, with
   stragglers as the paper's steps with backup workers have them, and without any; as weft does it,
   one after the other, with the same stragglers, and with the variation of the steps that were
   measured here. Beside it what the paper says.

Written are figure7.json and .png. 5 minutes, and 5 more for the simulation (`--simulated` does this
part alone, prints it and writes nothing).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import inception
import numpy as np
import simulated
from figure6_predicted import tick_seconds
from figure7_worker import Settings
from rich.console import Console
from rich.table import Table
from table1_nets import Shapes
from windows import Figure, cores, in_turns, parameter_server, processes

from weft.frontend.tools.bench_workloads import machine
from weft.passes.placement.simulate import Cluster, Ends, Machine, Run, Workload, simulate

HERE = Path(__file__).parent
SIMULATED_WORKERS = (25, 50, 100, 200)
SHOWN = (10, 50, 90)  # percentiles
SCHEMES = ("asynchronous", "synchronous")

Row = dict[str, Any]


# ---------------------------------------------------------------------------------- on this machine
def parameter_bytes(given: Settings) -> int:
    """Of the net."""
    weights = Shapes(given.image, 3).walk(inception.net(given.width, given.classes).layers).weights
    return 4 * sum(int(np.prod(shape)) for shape in weights)


def measured(given: Settings, servers: int, counts: Sequence[int], options: Any) -> list[Row]:
    """Steps of each scheme with so many workers: of each number of synchronous ones there are
    processes of their own, which wait while others are measured."""
    script = HERE / "figure7_worker.py"
    with ExitStack() as stack:

        def tasks(workers: int, settings: Settings) -> Any:
            text = json.dumps(asdict(settings))
            made = processes(
                servers, workers, parameter_bytes(given), parameter_server,
                lambda index, folder: [script, index, folder, text],
                threads=1, together=settings.workers > 0,
            )  # fmt: skip
            return stack.enter_context(made)

        free = tasks(counts[-1], given)
        figures = [Figure(SCHEMES[0], free, n) for n in counts]
        # it is the chief, the first worker, that says how long a step takes
        figures += [Figure(SCHEMES[1], tasks(n, replace(given, workers=n)), 1) for n in counts]
        rows = in_turns(figures, options.rounds, options.window, [])
    for row, n in zip(rows, [*counts, *counts], strict=True):
        row["workers"] = n
        row["images_per_second"] = given.batch / row["median"] * n
    return rows


def variation(row: Row) -> tuple[float, ...]:
    """The steps of a row over their median."""
    return tuple(t / row["median"] for t in row["quantiles"])


def predicted(base: Row, workers: int) -> list[float]:
    """Percentiles of the steps of so many workers, from what the steps of one take."""
    servers, taken = int(base["servers"]), base["worker_app"] + base["worker_io"]
    applied = (base["server_app"] + base["server_io"]) / servers
    load = Workload((0.0,) * servers, (0.0,) * servers, taken, (applied,) * servers,
                    measured=variation(base))  # fmt: skip
    ends = Ends(0.0)  # messages are in what the tasks take
    here = Machine(cores(), ends, ends, servers + workers, balance_s=tick_seconds())
    synchronous = base["name"] == SCHEMES[1]
    runs = [
        simulate(load, workers, Cluster(machine=here), synchronous=synchronous, steps=30, seed=k)
        for k in range(8)
    ]
    return np.percentile([t for run in runs for t in run.steps], SHOWN).tolist()


def with_predictions(rows: list[Row]) -> list[Row]:
    """The rows, and what the first of each scheme predicts."""
    for scheme in SCHEMES:
        mine = [row for row in rows if row["name"] == scheme]
        for row in mine:
            row["predicted"] = predicted(mine[0], row["workers"])
            row["ratio"] = row["predicted"][SHOWN.index(50)] / row["median"]
            # other jobs, of which the prediction knows nothing, make all steps longer
            row["growth"] = row["ratio"] / mine[0]["ratio"]
    return rows


def percentiles(row: Row) -> list[float]:
    """Those that are shown, of a measured row."""
    return [row["quantiles"][q // 5] for q in SHOWN]


# ------------------------------------------------------------------------------ the paper's cluster
#: How the paper's cluster is simulated.
LAYERS, ALONE, WHOLE, HERE_VARIED = (
    "layer by layer", "layer by layer, no stragglers", "one after the other", "as measured here",
)  # fmt: skip


def simulated_rows(variations: dict[str, tuple[float, ...]]) -> list[Row]:
    """Steps on the paper's cluster: with fitted stragglers, without, and as steps vary here."""
    layers, whole = (simulated.inception_step(overlapped) for overlapped in (True, False))
    cluster, rows = simulated.paper_cluster(), []
    for scheme in SCHEMES:
        loads = {LAYERS: layers, ALONE: replace(layers, spread=0.0, straggle=0.0), WHOLE: whole}
        if scheme in variations:
            loads[HERE_VARIED] = replace(
                whole, spread=0.0, straggle=0.0, measured=variations[scheme]
            )
        for name, load in loads.items():
            for workers in SIMULATED_WORKERS:
                tied = scheme == SCHEMES[1]
                run: Run = simulate(
                    load, workers, cluster, synchronous=tied, steps=8 if tied else 2
                )
                rows.append({
                    "name": scheme, "load": name, "workers": workers,
                    "percentiles": [run.percentile(q) for q in SHOWN], "p99": run.percentile(99),
                    "images_per_second": workers * simulated.BATCH / run.median,
                })  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------- the report
def show(result: dict[str, Any]) -> None:
    """Both halves of the figure as tables."""
    console = Console(width=140)
    titles = [f"{q} %" for q in SHOWN]
    table = Table("scheme", "workers", *(f"here ms: {t}" for t in titles), "images/s",
                  *(f"predicted: {t}" for t in titles), "ratio", "of growth", "own", "others",
                  title=result["title"])  # fmt: skip
    for row in result["measured"]:
        table.add_row(
            row["name"], str(row["workers"]), *(f"{t * 1e3:.1f}" for t in percentiles(row)),
            f"{row['images_per_second']:.0f}", *(f"{t * 1e3:.1f}" for t in row["predicted"]),
            *(f"{row[key]:.2f}" for key in ("ratio", "growth", "own", "others")),
        )  # fmt: skip
    console.print(table)
    console.print(simulated_table(result["simulated"]))
    show_ratios(console, result["synchronous_over_asynchronous"])


def simulated_table(rows: Sequence[Row]) -> Table:
    """The steps on the paper's cluster."""
    titles = [f"{q} %" for q in SHOWN]
    table = Table("scheme", "transfers and computing", "workers", *(f"{t}, s" for t in titles),
                  "images/s", "/ paper", title="simulated: the paper's cluster")  # fmt: skip
    for row in rows:
        last = row["workers"] == simulated.IMAGES[0]
        table.add_row(
            row["name"], row["load"], str(row["workers"]),
            *(f"{t:.2f}" for t in row["percentiles"]), f"{row['images_per_second']:.0f}",
            f"{row['images_per_second'] / simulated.IMAGES[1]:.2f}" if last else "",
        )  # fmt: skip
    return table


def show_ratios(console: Console, found: dict[str, dict[str, float]]) -> None:
    """Of synchronous and asynchronous steps."""
    for load, ratios in found.items():
        told = ", ".join(f"{n}: {r:.2f}" for n, r in ratios.items())
        console.print(f"median synchronous step over asynchronous, {load}: {told} "
                      f"(paper: about {simulated.SYNCHRONOUS:.2f})")  # fmt: skip


def over_each_other(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """The median synchronous step over the asynchronous one, by load and workers."""
    middle = SHOWN.index(50)
    found = {(r["name"], r["load"], r["workers"]): r["percentiles"][middle] for r in rows}
    return {
        load: {str(n): found[SCHEMES[1], load, n] / found[SCHEMES[0], load, n]
               for n in SIMULATED_WORKERS}
        for load in dict.fromkeys(r["load"] for r in rows)
    }  # fmt: skip


def draw(result: dict[str, Any], path: Path) -> None:
    """Throughput, and the percentiles of steps as bars: simulated, then measured."""
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(16, 4.8))
    for k, scheme in enumerate(SCHEMES):
        mine = [r for r in result["simulated"] if r["name"] == scheme]
        for load, style in ((LAYERS, "o-"), (WHOLE, "s:"), (HERE_VARIED, "x--")):
            rows = [r for r in mine if r["load"] == load]
            workers = [r["workers"] for r in rows]
            left.plot(workers, [r["images_per_second"] for r in rows], style, color=f"C{k}",
                      label=f"{scheme}, {load}")  # fmt: skip
            bars(middle, workers, [r["percentiles"] for r in rows], style, f"C{k}",
                 f"{scheme}, {load}", (2 * k - 1) * 1.5)  # fmt: skip
        here = [r for r in result["measured"] if r["name"] == scheme]
        workers = [r["workers"] for r in here]
        bars(right, workers, [percentiles(r) for r in here], "s-", f"C{k}", f"{scheme}, measured",
             (2 * k - 1) * 0.04)  # fmt: skip
        bars(right, workers, [r["predicted"] for r in here], "x--", f"C{k}",
             f"{scheme}, predicted from one worker", (2 * k - 1) * 0.08)  # fmt: skip
    left.plot(*simulated.IMAGES, "ks", mfc="none", label="paper")
    left.set(title="(a) the paper's cluster, simulated", ylabel="images per second")
    middle.set(title="(b, c) the same: 10 to 90 % of steps", ylabel="seconds a step")
    right.set(title="here: 10 to 90 % of steps", ylabel="seconds a step")
    for axis in (left, middle, right):
        axis.set(xlabel="workers", ylim=(0, None))
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def bars(
    axis: Any, x: Sequence[float], rows: Sequence[Sequence[float]], style: str, color: str,
    label: str, aside: float,
) -> None:  # fmt: skip
    """Medians with a bar from the first to the last percentile."""
    if not rows:
        return
    low, middle, high = np.array(rows).T
    places = np.array(x) + aside
    axis.errorbar(places, middle, [middle - low, high - middle], fmt=style, color=color,
                  label=label, capsize=2)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--servers", type=int, default=2)
    for name, default in (("width", 0.25), ("window", 3.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name, number in (("image", 107), ("batch", 16), ("classes", 10), ("rounds", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    parser.add_argument("--simulated", action="store_true", help="the third part alone")
    options = parser.parse_args(argv)
    if options.simulated:
        there, console = simulated_rows({}), Console(width=140)
        console.print(simulated_table(there))
        show_ratios(console, ratios := over_each_other(there))
        return {"simulated": there, "synchronous_over_asynchronous": ratios}
    if options.workers[0] != 1 or sorted(set(options.workers)) != options.workers:
        parser.error(
            "--workers: numbers that rise from 1, whose steps the others are predicted from"
        )
    given = Settings(options.width, options.classes, options.image, options.batch, 0)
    rows = with_predictions(measured(given, options.servers, options.workers, options))
    first = {row["name"]: variation(row) for row in rows if row["workers"] == 1}
    there = simulated_rows(first)
    title = (
        f"Figure 7 of the paper: Inception-v3, {options.width:g} of its channels, batches of "
        f"{options.batch} of {options.image} x {options.image}, {options.servers} servers"
    )
    result = {
        "title": title, "machine": machine(), **asdict(given), "servers": options.servers,
        "parameters": parameter_bytes(given) // 4, "measured": rows, "simulated": there,
        "synchronous_over_asynchronous": over_each_other(there),
    }  # fmt: skip
    show(result)
    (options.out / "figure7.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, options.out / "figure7.png")
    return result


if __name__ == "__main__":
    main()
