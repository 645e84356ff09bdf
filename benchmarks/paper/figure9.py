"""Figure 9 of the paper: words per second of the LSTM language model, with the full and with the
sampled softmax, over the number of parameter servers.

    python benchmarks/paper/figure9.py [--servers 0 1 2 4 8] [--rounds 2] [--steps 8]

The model is that of examples/language_model.py: LSTM-512-512, the 40,000 most frequent words, of
which the sampled softmax draws 512; the text is the source of Python's standard library. Each
number of servers is a cluster of processes on this machine, of one thread each, as if each were a
machine with one processor: a worker has the LSTM, the servers the embedding and the softmax in
parts. 0 servers: all of it in one process with its usual threads. All clusters come in each round,
one after the other; written are the least and the median time of a step: figure9.json and .png.

The paper's curve goes to 32 servers, a machine each. Here tasks share the processors, and what is
measured can rise only as far as there are some. So there is a second curve, a prediction: the
processor's time that a step takes of the worker, and of the server that it takes most of, added up,
since each waits for the other; what messages take between machines is not in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft as wf
from weft.frontend.tools.bench_workloads import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import language_model

HERE = Path(__file__).parent
WARM = 3  # steps that do not count: what they run is compiled
SOFTMAXES = ("full", "sampled")


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that are started in the block have one thread."""
    before = os.environ.get("WEFT_NUM_THREADS")
    os.environ["WEFT_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["WEFT_NUM_THREADS"]
        else:
            os.environ["WEFT_NUM_THREADS"] = before


def processor_seconds() -> dict[str, float]:
    """What the tasks that this process has started have had of the processors, by job and task."""
    found = {}
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--job" in words:
                name = f"{words[words.index('--job') + 1]}{words[words.index('--task') + 1]}"
                # as clock_getcpuclockid(3) has it, threads that have ended included
                found[name] = time.clock_gettime(~int(pid) << 3 | 2)
    return found


def measured(
    text: Any, sizes: Any, servers: int, steps: int
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each step, in a cluster that is made for them; the processor's seconds that a step
    took of each task."""
    model = language_model.Model(sizes, servers, seed=0)
    batches = language_model.pieces(text.learn, sizes.batch, sizes.length).repeat()
    seconds: list[float] = []
    before: dict[str, float] = {}
    with one_thread_each() if servers else contextlib.nullcontext():
        tasks = language_model.tasks(servers)
        with tasks as (target,), wf.Session(target, graph=model.graph) as session:
            session.run(model.init)
            for number, ids in enumerate(batches.take(WARM + steps)):
                if number == WARM:
                    before = processor_seconds()
                began = time.perf_counter()
                session.run([model.loss, model.train], {model.ids: ids})
                seconds.append(time.perf_counter() - began)
            taken = {n: (t - before[n]) / steps for n, t in processor_seconds().items()}
    return seconds[WARM:], taken


def rows_of(options: argparse.Namespace, text: Any) -> list[dict[str, Any]]:
    """All clusters with both softmaxes, in turn, `rounds` times."""
    seconds: dict[tuple[str, int], list[float]] = {}
    taken: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for softmax in SOFTMAXES:
            for servers in options.servers:
                sampled = options.sampled if softmax == "sampled" else 0
                sizes = language_model.Sizes(
                    len(text.names), options.units, options.units, options.batch, options.length,
                    max(servers, 1), sampled,
                )  # fmt: skip
                found, each = measured(text, sizes, servers, options.steps)
                seconds.setdefault((softmax, servers), []).extend(found)
                taken.setdefault((softmax, servers), []).append(each)
                print(f"{softmax}, {servers} servers: least {min(found) * 1e3:.0f} ms", flush=True)
    words = options.batch * options.length
    return [
        {
            "softmax": softmax, "servers": servers, "words_per_step": words,
            "seconds": {"minimum": min(found), "median": float(np.median(found))},
            "words_per_second": words / min(found),
            **apart(words, taken[softmax, servers]),
        }
        for (softmax, servers), found in seconds.items()
    ]  # fmt: skip


def apart(words: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Words per second if each task had a machine: the prediction, from its least round."""
    if not rounds[0]:
        return {}
    servers = [max(t for name, t in r.items() if name.startswith("ps")) for r in rounds]
    steps = [r["worker0"] + server for r, server in zip(rounds, servers, strict=True)]
    best = rounds[int(np.argmin(steps))]
    return {"processor_seconds": best, "predicted_words_per_second": words / min(steps)}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Words per second, and the sampled softmax's gain."""
    table = Table(
        "servers", "full: words/s (least / median)", "sampled", "a machine each: full", "sampled",
        "sampled : full",
        title="Figure 9: LSTM language model, full and sampled softmax",
    )  # fmt: skip
    for servers in dict.fromkeys(row["servers"] for row in rows):
        full, sampled = (
            next(r for r in rows if (r["softmax"], r["servers"]) == (softmax, servers))
            for softmax in SOFTMAXES
        )
        cells = []
        for row in (full, sampled):
            rates = (row["words_per_step"] / row["seconds"][k] for k in ("minimum", "median"))
            cells.append(" / ".join(f"{rate:,.0f}" for rate in rates))
        name = "predicted_words_per_second" if servers else "words_per_second"
        cells += [f"{row[name]:,.0f}" if servers else "-" for row in (full, sampled)]
        gain = sampled[name] / full[name]
        table.add_row(str(servers) if servers else "one process", *cells, f"{gain:.2f}")
    Console(width=120).print(table)


def draw(rows: Sequence[dict[str, Any]], path: Path, cores: int) -> None:
    """As the paper draws it: both axes logarithmic."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 4.4))
    for softmax, color in zip(SOFTMAXES, ("C0", "C1"), strict=True):
        mine = [r for r in rows if r["softmax"] == softmax]
        tasks = [r for r in mine if r["servers"]]
        for name, style, what in (
            ("predicted_words_per_second", "--", "predicted, a machine each"),
            ("words_per_second", "o", "measured on this machine"),
        ):
            axis.plot([r["servers"] for r in tasks], [r[name] for r in tasks], style, color=color,
                      label=f"{softmax}: {what}")  # fmt: skip
        for row in (r for r in mine if not r["servers"]):
            axis.axhline(row["words_per_second"], ls=":", lw=1, color=color,
                         label=f"{softmax}: one process")  # fmt: skip
    servers = sorted({r["servers"] for r in rows} - {0})
    axis.set_xscale("log", base=2)
    axis.set_xticks(servers, list(map(str, servers)))
    axis.set_yscale("log")
    axis.set(xlabel="parameter servers, of one thread each", ylabel="words per second",
             title=f"LSTM-512-512, 40,000 words, {cores} processors")  # fmt: skip
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--servers", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    for name, value in (("rounds", 2), ("steps", 8), ("vocabulary", 40000), ("sampled", 512),
                        ("units", 512), ("batch", 16), ("length", 20)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    options = parser.parse_args(argv)
    text = language_model.Text.of(language_model.read_files(), options.vocabulary)
    rows = rows_of(options, text)
    given = {k: v for k, v in vars(options).items() if k != "out"}
    result = {"title": "Figure 9 of the paper", "machine": machine(), **given, "rows": rows}
    show(rows)
    (options.out / "figure9.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, options.out / "figure9.png", os.cpu_count() or 1)
    return result


if __name__ == "__main__":
    main()
