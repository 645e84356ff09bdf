"""Figure 6 of the paper: null steps by number of workers, measured here and simulated to 100.

    python benchmarks/paper/figure6.py [--servers 16] [--only scalar ...] [--no-prediction]

A null step (section 6.2) fetches parameters from 16 servers, computes next to nothing and sends an
update: scalars, 100 MB and 1 GB in parts, 32 rows of a table of 1 GB and of 16 GB. Three things are
set side by side, and written to figure6.json and .png:

1. Measured: the processes of benchmarks/null_step.py on this machine, which share its processors,
   as many as fit (the table of 16 GB as one of 4; raw ZeroMQ messages beside, as a floor).
2. Simulated: the paper's cluster (`simulated.py`), fitted to its steps of one worker, to 100
   workers, beside what the paper says.
3. Predicted: null steps over 4 servers here, and the simulator's predictions of them from those of
   one worker (`figure6_predicted.py`): how far the simulator is to be believed. 4 minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from weft.frontend.tools.bench_workloads import machine
from weft.passes.placement.simulate import simulate

sys.path.insert(0, str(Path(__file__).parents[1]))
import figure6_predicted
import null_step
import simulated

HERE = Path(__file__).parent
SIMULATED_WORKERS = (1, 2, 5, 10, 25, 50, 100)
#: Of a curve of the paper: the kind, megabytes here, numbers of workers, steps of a round, rounds.
MEASURED: dict[str, tuple[str, int, tuple[int, ...], int, int]] = {
    "scalar": ("scalar", 0, (1, 2, 4, 8), 40, 6),
    "dense 100 MB": ("dense", 100, (1, 2, 4), 2, 5),
    "dense 1 GB": ("dense", 1000, (1,), 1, 4),
    "sparse 1 GB": ("sparse", 1000, (1, 2, 4), 20, 6),
    "sparse 16 GB": ("sparse", 4000, (1,), 20, 6),  # of 16 GB there is no room for
}
#: What is measured with ZeroMQ beside it: the rest takes the memory of two.
WITH_FLOOR = ("scalar", "dense 100 MB", "sparse 1 GB")


def measured(name: str, servers: int, most: int) -> list[dict[str, Any]]:
    """The steps of a curve on this machine."""
    kind, megabytes, counts, steps, rounds = MEASURED[name]
    systems = ("weft", "zmq") if name in WITH_FLOOR else ("weft",)
    rows = []
    for workers in (n for n in counts if n <= most):
        case = (kind, megabytes, servers, workers, steps, rounds)
        rows.append(
            {"curve": name, **null_step.measure(case, dict.fromkeys(systems, sys.executable))}
        )
        print(name, workers, rows[-1]["seconds"], flush=True)
    return rows


def simulated_rows(names: Sequence[str]) -> list[dict[str, Any]]:
    """The curves on the paper's cluster: the median step."""
    cluster = simulated.paper_cluster()
    return [
        {"curve": name, "workers": n, "median":
         simulate(simulated.null_workload(name), n, cluster, steps=8).median}
        for name in names for n in SIMULATED_WORKERS
    ]  # fmt: skip


def by_workers(rows: Sequence[dict[str, Any]], name: str) -> dict[int, dict[str, Any]]:
    """The rows of a curve."""
    return {row["workers"]: row for row in rows if row["curve"] == name}


def show(result: dict[str, Any]) -> None:
    """The paper's steps, simulated and measured ones; then the predictions."""
    console = Console(width=120)
    table = Table("curve", "workers", "paper ms", "simulated", "/ paper", "here: median (least)",
                  "paper / here", "ZeroMQ here", title=result["title"])  # fmt: skip
    for name in result["only"]:
        paper = dict(simulated.NULL[name])
        there, here = by_workers(result["simulated"], name), by_workers(result["measured"], name)
        for n in sorted({*there, *here}):
            found = here.get(n, {}).get("seconds", {})
            said, guess = paper.get(n), there.get(n, {}).get("median")
            mine, floor = found.get("weft"), found.get("zmq")
            table.add_row(
                name, str(n), f"{said * 1e3:.4g}" if said else "",
                f"{guess * 1e3:.4g}" if guess else "",
                f"{guess / said:.2f}" if said and guess else "",
                f"{mine['median'] * 1e3:.3g} ({mine['minimum'] * 1e3:.3g})" if mine else "",
                f"{said / mine['median']:.2f}" if said and mine else "",
                f"{floor['median'] * 1e3:.3g} ({floor['minimum'] * 1e3:.3g})" if floor else "",
            )  # fmt: skip
    console.print(table)
    if "predicted" in result:
        table = Table("bytes", "workers", "measured ms (mean)", "10-90 %", "predicted ms", "ratio",
                      "processors: own", "others", title="4 servers, here")  # fmt: skip
        for row in result["predicted"]["measured"]:
            low, high = row["spread"]
            table.add_row(
                f"{row['bytes']:,}", str(row["workers"]), f"{row['mean'] * 1e3:.3f}",
                f"{low:.2f}-{high:.2f}", f"{row['predicted'] * 1e3:.3f}", f"{row['ratio']:.2f}",
                f"{row['own']:.2f}", f"{row['others']:.2f}",
            )  # fmt: skip
        console.print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves, and where the simulator was held against the clock."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    for k, name in enumerate(result["only"]):
        there, here = by_workers(result["simulated"], name), by_workers(result["measured"], name)
        left.loglog(list(there), [r["median"] for r in there.values()], "--", color=f"C{k}")
        left.loglog(*zip(*simulated.NULL[name], strict=True), "o", color=f"C{k}", mfc="none")
        medians = [r["seconds"]["weft"]["median"] for r in here.values()]
        left.loglog(list(here), medians, "s-", color=f"C{k}", label=name)
    for style, what in (("k--", "simulated, the paper's cluster"), ("s-k", "measured, here")):
        left.plot([], [], style, label=what)
    left.plot([], [], "ok", mfc="none", label="paper")
    left.set(title=f"null steps over {result['servers']} servers", xlabel="workers",
             ylabel="seconds, median")  # fmt: skip
    for k, nbytes in enumerate(
        sorted({r["bytes"] for r in result.get("predicted", {}).get("measured", [])})
    ):
        rows = [r for r in result["predicted"]["measured"] if r["bytes"] == nbytes]
        workers = [r["workers"] for r in rows]
        right.semilogy(workers, [r["mean"] for r in rows], "s-", color=f"C{k}",
                       label=f"{nbytes:,} bytes: measured")  # fmt: skip
        right.semilogy(workers, [r["predicted"] for r in rows], "--", color=f"C{k}",
                       label="predicted from one worker's")  # fmt: skip
    right.set(title="the simulator against the clock: 4 servers, here", xlabel="workers",
              ylabel="seconds, mean")  # fmt: skip
    for axis in (left, right):
        if axis.lines:
            axis.legend(fontsize=8)
        axis.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=MEASURED, default=list(MEASURED))
    parser.add_argument("--servers", type=int, default=simulated.NULL_SERVERS)
    parser.add_argument("--workers", type=int, default=8, help="at most, of what is measured")
    parser.add_argument("--no-prediction", action="store_true", help="without the third part")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each predicted row")
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    options = parser.parse_args(argv)
    result: dict[str, Any] = {
        "title": "Figure 6 of the paper: null steps", "machine": machine(),
        "servers": options.servers, "only": options.only,
        "simulated": simulated_rows(options.only),
        "measured": [
            row for name in options.only for row in measured(name, options.servers, options.workers)
        ],
    }  # fmt: skip
    if not options.no_prediction:
        result["predicted"] = figure6_predicted.compare(4, options.seconds, options.workers)
    show(result)
    (options.out / "figure6.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result, options.out / "figure6.png")
    return result


if __name__ == "__main__":
    main()
