"""How training scales over tasks: the paper's figures by simulation, and the simulator against the
clock.

    python benchmarks/scaling.py                    # the figures: scaling.png, scaling.json
    python benchmarks/scaling.py --measure          # also 1..8 workers on this machine

The simulator (`weft/passes/placement/simulate.py`) is fitted to what the paper says of *one* worker
(and of backup workers, to the likelihood of stragglers); all else is prediction. `--measure`
runs null steps (read all parameters, add one number on each server) in processes of this machine,
in short windows that take turns (`scaling_windows.py`). What the steps of *one* worker take of the
processors, and how much longer messages without a session take of eight than of one
(`scaling_transport.py`), give the simulator's machine (`scaling_measured.py`).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scaling_measured import compare

from weft.frontend.tools.bench_workloads import machine
from weft.passes.placement import Links
from weft.passes.placement.simulate import (
    Cluster,
    Workload,
    backup_curve,
    simulate,
    with_stragglers,
)

HERE = Path(__file__).parent
WORKERS = (1, 2, 5, 10, 25, 50, 100)

# ------------------------------------------------------------------ what the paper says (OSDI 2016)

#: Section 6.2, figure 7: the median null step over 16 servers, (workers, seconds).
PAPER_NULL = {
    "scalar": ((1, 1.8e-3), (100, 8.8e-3)),
    "dense 100 MB": ((1, 147e-3), (100, 613e-3)),
    "dense 1 GB": ((1, 1.01), (100, 7.16)),
    "sparse": ((1, 5e-3), (100, 20e-3)),
}
NULL_BYTES = {"scalar": 64.0, "dense 100 MB": 100e6, "dense 1 GB": 1e9, "sparse": 32 * 8192.0}
#: Section 6.3, figure 8: Inception-v3 over 17 servers. 2300 images/s with 200 workers; synchronous
#: steps a tenth longer; of 50 workers with b = 4 backups the shortest step, 1.93 s; with b = 3 the
#: best normalised speed-up, 9.5 %.
PAPER_IMAGES = (200, 2300.0)
PAPER_BACKUP = {"best_step": (4, 1.93), "best_speedup": (3, 1.095)}
BATCH, INCEPTION_BYTES = 32, 95e6
#: Section 6.4, figure 9: LSTM-512-512 with 40,000 words; sampled softmax computes 512 of them.
WORDS, UNITS, SAMPLED = 40_000, 512, 512

# ---------------------------------------------------------------------------------- the predictions


def paper_cluster() -> Cluster:
    """The paper's machines: the time of a message from the scalar step of one worker, the rate of a
    link from the dense one of 1 GB."""
    rate = 1e9 / PAPER_NULL["dense 1 GB"][0][1]
    guess = Cluster(Links(latency_s=50e-6, bytes_per_s=rate, message_s=100e-6), cores=8)
    target = PAPER_NULL["scalar"][0][1]
    for _ in range(20):
        got = simulate(Workload.even(16, 64, 64, 0.0), 1, guess, steps=3).median
        new = guess.links.message_s * target / got
        guess = replace(guess, links=replace(guess.links, message_s=new))
    return guess


def null_steps(cluster: Cluster) -> dict[str, list[tuple[int, float]]]:
    """The median null step for each size and number of workers."""
    out = {}
    for name, nbytes in NULL_BYTES.items():
        load = Workload.even(16, nbytes, nbytes if name == "sparse" else 64.0, 0.0)
        out[name] = [(n, simulate(load, n, cluster, steps=8).median) for n in WORKERS]
    return out


def inception() -> Workload:
    """A step of one worker. Fitted: computing time, the cost of applying, stragglers."""
    load = Workload.even(17, INCEPTION_BYTES, INCEPTION_BYTES, 1.39)
    return with_stragglers(replace(load, apply_s=(0.01,) * 17), 0.035, 0.09, 1.2)


def images(cluster: Cluster) -> list[dict[str, float]]:
    """Images a second for workers from 25 to 200, asynchronously and synchronously."""
    rows = []
    for n in (25, 50, 100, 200):
        free = simulate(inception(), n, cluster, synchronous=False, steps=3)
        tied = simulate(inception(), n, cluster, steps=8)
        rows.append({
            "workers": n, "async_step": free.median, "sync_step": tied.median,
            "sync_p90": tied.percentile(90), "async_images": n * BATCH / free.median,
            "sync_images": n * BATCH / tied.median,
        })  # fmt: skip
    return rows


def words(cluster: Cluster, tokens: int = 32 * 20) -> dict[str, list[tuple[int, float]]]:
    """Words a second of the language model for 1 to 64 servers, full and sampled softmax: the
    servers do the softmax's products, at 50 GFLOP/s each, on their shards of the words."""
    out: dict[str, list[tuple[int, float]]] = {}
    flops = 3 * 2 * tokens * UNITS
    for workers in (4, 32, 128):
        for name, count in (("full", WORDS), ("sampled", SAMPLED)):
            rows = []
            for servers in (1, 4, 16, 64):
                seconds = flops * count / servers / 50e9
                load = Workload.even(servers, tokens * UNITS * 4, tokens * UNITS * 4, 0.35)
                load = replace(load, apply_s=(seconds,) * servers)
                run = simulate(load, workers, replace(cluster, cores=1), synchronous=False, steps=1)
                rows.append((servers, workers * tokens / run.median))
            out[f"{workers} workers, {name}"] = rows
    return out


# --------------------------------------------------------------------------------------- the report


def draw(result: dict[str, Any], path: Path) -> None:
    """The figures beside what the paper says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3 if "measured" in result else 2, figsize=(15, 9))
    null, inception_axis, backup, lm = axes[0, 0], axes[0, 1], axes[1, 0], axes[1, 1]
    for (name, rows), color in zip(result["null"].items(), ("C0", "C1", "C2", "C3"), strict=True):
        null.loglog(*zip(*rows, strict=True), "-", color=color, label=name)
        null.loglog(*zip(*PAPER_NULL[name], strict=True), "o", color=color, mfc="none")
    null.set(title="null steps, 16 PS (paper's figure 7: circles)", xlabel="workers",
             ylabel="seconds, median")  # fmt: skip
    rows = result["images"]
    for kind in ("async", "sync"):
        inception_axis.plot([r["workers"] for r in rows], [r[f"{kind}_images"] for r in rows],
                            "o-", label=kind)  # fmt: skip
    inception_axis.plot(*PAPER_IMAGES, "ks", mfc="none", label="paper, 200 workers")
    inception_axis.set(title="Inception-v3, 17 PS (figure 8a)", xlabel="workers",
                       ylabel="images / s")  # fmt: skip
    b, seconds, speedup = zip(*result["backup"], strict=True)
    backup.plot(b, seconds, "o-", label="step")
    backup.plot(*PAPER_BACKUP["best_step"], "ks", mfc="none", label="paper's shortest")
    backup.set(title="50 workers and backups (figure 8c)", xlabel="backup workers",
               ylabel="seconds, median")  # fmt: skip
    right = backup.twinx()
    right.plot(b, speedup, "C1^--", label="normalised speed-up")
    right.plot(*PAPER_BACKUP["best_speedup"], "C1s", mfc="none")
    right.set_ylabel("normalised speed-up")
    for name, points in result["words"].items():
        lm.loglog(*zip(*points, strict=True), "-" if "full" in name else "--", label=name)
    lm.set(title="language model (figure 9, in shape)", xlabel="PS tasks", ylabel="words / s")
    if "measured" in result:
        for axis, nbytes in zip(axes[:, 2], sorted({r["bytes"] for r in result["measured"]}),
                                strict=True):  # fmt: skip
            mine = [r for r in result["measured"] if r["bytes"] == nbytes]
            for key in ("mean", "predicted"):
                axis.plot([r["workers"] for r in mine], [r[key] * 1e3 for r in mine], "o-",
                          label=key.replace("mean", "measured"))  # fmt: skip
            axis.set(title=f"here: {nbytes:,} bytes from 4 PS", xlabel="workers", ylabel="ms")
    for axis in axes.flat:
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def show(result: dict[str, Any]) -> None:
    """Tables of the paper's figures and ours, and of measured and predicted steps."""
    console = Console(width=120)
    table = Table("figure", "paper", "simulated", "ratio", title="paper and simulation")
    for name, points in PAPER_NULL.items():
        for workers, seconds in points:
            got = dict(result["null"][name])[workers]
            what = f"null step, {name}, {workers} workers"
            table.add_row(what, f"{seconds:.4g} s", f"{got:.4g} s", f"{got / seconds:.2f}")
    got = result["images"][-1]["async_images"]
    table.add_row("Inception, 200 workers", "2300 images/s", f"{got:.0f}", f"{got / 2300:.2f}")
    steps = {b: (s, n) for b, s, n in result["backup"]}
    for what, (b, value), i in (("shortest step", PAPER_BACKUP["best_step"], 0),
                                ("best speed-up", PAPER_BACKUP["best_speedup"], 1)):  # fmt: skip
        best = (min if i == 0 else max)(steps, key=lambda b: steps[b][i])
        got = steps[best][i]
        table.add_row(what, f"{value} (b={b})", f"{got:.3f} (b={best})", f"{got / value:.2f}")
    console.print(table)
    if "measured" in result:
        table = Table(
            "workers", "bytes", "measured ms", "10-90 %", "predicted ms", "ratio",
            "processors busy", "by others", title="here",
        )  # fmt: skip
        for row in result["measured"]:
            table.add_row(
                str(row["workers"]), f"{row['bytes']:,}", f"{row['mean'] * 1e3:.3f}",
                "{:.2f}-{:.2f}".format(*row["spread"]), f"{row['predicted'] * 1e3:.3f}",
                f"{row['ratio']:.2f}", f"{row['own']:.2f}", f"{row['others']:.2f}",
            )  # fmt: skip
        console.print(table)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="null steps of processes here")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=8, help="at most")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each figure that count")
    parser.add_argument("--json", type=Path, default=HERE / "scaling.json")
    parser.add_argument("--png", type=Path, default=HERE / "scaling.png")
    args = parser.parse_args()
    cluster = paper_cluster()
    begin = time.perf_counter()
    result: dict[str, Any] = {
        "machine": machine(),
        "cluster": {"message_s": cluster.links.message_s, "bytes_per_s": cluster.links.bytes_per_s},
        "null": null_steps(cluster),
        "images": images(cluster),
        "backup": backup_curve(inception(), 50, range(7), cluster, steps=60),
        "words": words(cluster),
    }
    result["seconds"] = time.perf_counter() - begin
    if args.measure:
        result |= compare(args.servers, args.seconds, args.workers)
    show(result)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, args.png)


if __name__ == "__main__":
    main()
