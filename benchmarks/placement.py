"""Greedy placement, a search, and a lower bound, in the simulator: the paper's models over 2 to 16
tasks.

    python benchmarks/placement.py [--evaluations 2000] [--seed 0] [--quick] [-o placement.json]
    python benchmarks/placement.py --workers | --peaks [--quick]

Models: training steps of AlexNet and GoogLeNet (`paper/table1_nets.py`, at the paper's batch and
image) and of the LSTM language model (`examples/language_model.py`, full softmax over 40,000
words). Each as one graph over equal tasks, where variables may be anywhere (`free_state`), and with
variables on parameter servers, as `wf.train.replica_device_setter` spreads them, where what reads
them may be anywhere. Tasks are one core of the machine of the prices; links are the default ones
(ZeroMQ over loopback, 1.2 GB/s) or fast (12 GB/s, 5 us). The last rows give each device less memory
than the step takes on one. Nothing runs but the simulator: no time of a step here is measured.

`--workers` simulates 1 to 16 workers that share two, four or sixteen servers, event by event, with
ops on their worker, where the placer wants them for one worker, and where a session puts them that
nobody told (`automatic.py`). `--peaks` holds the predicted memory against the plans of steps that
run here, of reduced models, on one device and over two of this process: bytes, no times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.session.compiling import pruned
from weft.frontend.session.fetches import feed_values, fetch_values
from weft.ir.graph import Graph, Operation
from weft.ir.program import Program
from weft.passes.manager import PassOptions, run_pipeline
from weft.passes.pipelines import PIPELINES, before_placement
from weft.passes.placement import CostModel, Device, Links, Placement, Search, place
from weft.passes.placement.automatic import Machine, place_where_it_wins
from weft.passes.placement.choose import HOME, SEARCHED
from weft.passes.placement.constraints import with_devices
from weft.passes.placement.simulate import Cluster, Workload, simulate
from weft.runtime.device.backends.placement import place_step

ROOT = Path(__file__).parent
sys.path += [str(ROOT / "paper"), str(ROOT.parent / "examples")]

import language_model  # noqa: E402
from table1_nets import loss_of, net, problem  # noqa: E402
from table1_steps import RATE, Weft  # noqa: E402

LINKS = {
    "loopback": Links(),
    "fast": Links(latency_s=5e-6, bytes_per_s=12e9, message_s=2e-6),
}
WORKER = "/job:worker/task:0"


@dataclass
class Row:
    """One placement problem: seconds of a step in the session's task, by the best greedy candidate
    that fits, by the search; what no step is faster than; of the search: processor seconds."""

    model: str
    tasks: int
    links: str
    ops: int
    home: float
    greedy: float | None
    search: float
    bound: float
    reason: str
    took: float
    memory: float | None = None

    @property
    def gain(self) -> str:
        """How many times as long the greedy step takes."""
        return "does not fit" if self.greedy is None else f"{self.greedy / self.search:.2f}"


def step_of(graph: wf.Graph, fetches: list[Any], feeds: list[Any]) -> Graph:
    """The step of a graph as a session places it."""
    fed = {t: np.zeros([int(n) for n in t.shape], t.dtype.numpy) for t in feeds}
    step = pruned(graph, fetch_values(graph, fetches)[0], feed_values(graph, fed))
    passes = before_placement(PIPELINES["standard"], step)
    return run_pipeline(Program.of(step), passes, options=PassOptions())[0].graph


def conv_net(name: str, quick: bool, setter: Any = None) -> Graph:
    """A training step of a net of Table 1. setter: of the devices of its variables."""
    found = net(name)
    batch, image = (4, 96) if quick else (found.batch, found.image)
    return step_of(*conv_graph(name, batch, image, setter))


def conv_graph(
    name: str, batch: int, image: int, setter: Any = None
) -> tuple[wf.Graph, list[Any], list[Any]]:
    """The graph of a net, and what a training step fetches and is fed."""
    found = net(name)
    given = problem(found, 1, image)
    with wf.Graph(name).as_default() as graph, wf.device(setter):
        x = wf.placeholder(wf.float32, [batch, image, image, 3], name="x")
        labels = wf.placeholder(wf.int64, [batch], name="labels")
        params = [wf.Variable(np.zeros(p.shape, np.float32)) for p in given.params]
        loss = loss_of(Weft, found)(params, x, labels)
        train = wf.train.SGD(RATE).minimize(loss, params)
    return graph, [loss, train], [x, labels]


def words(parts: int, quick: bool, ps: int) -> Graph:
    """A training step of the language model, its tables in parts. ps: parameter servers."""
    size = (2000, 32, 32, 16, 10) if quick else (40000, 512, 512, 16, 20)
    made = language_model.Model(language_model.Sizes(*size, parts, 0), ps, 0)
    return step_of(made.graph, [made.loss, made.train], [made.ids])


def on_servers(name: str, servers: int, quick: bool) -> Graph:
    """A model whose variables are on parameter servers, and all else on the worker."""
    if name == "LSTM":
        return words(servers, quick, servers)
    setter = wf.train.replica_device_setter(ps_tasks=servers, worker_device=WORKER)
    return conv_net(name, quick, setter)


def unbound(graph: Graph) -> Graph:
    """The graph, where what was to run on the worker may run anywhere."""

    def device_of(op: Operation, _: str) -> str:
        return "" if op.device.startswith(WORKER) else op.device

    return replace(graph, block=with_devices(graph.block, device_of, {}))


def measured(
    model: str, graph: Graph, devices: list[Device], links: str, how: Search, *, free: bool,
    memory: float | None = None,
) -> Row:  # fmt: skip
    """One row: placed greedily and by a search."""
    costs = CostModel(LINKS[links])
    begin = time.process_time()
    placed = place(graph, devices, costs=costs, free_state=free, search=how)
    took = time.process_time() - begin
    found, bound = placed.predict(), placed.choice.bound
    fits = [s for n, s in found.compared.items() if n != SEARCHED and n not in found.unfit]
    return Row(
        model, len({d.task for d in devices}), links, len(placed.choice.model.ops),
        found.compared[HOME], min(fits, default=None), found.compared[SEARCHED], bound.seconds,
        bound.reason, took, memory,
    )  # fmt: skip


def rows(how: Search, quick: bool) -> Iterator[Row]:
    """All rows of the table."""
    counts = (2, 4) if quick else (2, 4, 8, 16)
    models: dict[str, Callable[[int], Graph]] = {
        "AlexNet": lambda _: conv_net("AlexNet", quick),
        "GoogLeNet": lambda _: conv_net("GoogLeNet", quick),
        "LSTM": lambda n: unbound(words(n, quick, 0)),
    }
    for name, made in models.items():
        for count in counts:
            graph = made(count)
            devices = [Device(f"/job:worker/task:{i}/cpu:0") for i in range(count)]
            for links in LINKS:
                yield measured(name, graph, devices, links, how, free=True)
    for name in ("AlexNet", "LSTM"):
        for servers in counts:
            graph = unbound(on_servers(name, servers, quick))
            names = [WORKER, *(f"/job:ps/task:{i}" for i in range(servers))]
            devices = [Device(f"{task}/cpu:0") for task in names]
            for links in LINKS:
                label = f"{name}, {servers} PS"
                yield measured(label, graph, devices, links, how, free=False)
    yield from tight(how, quick)


def tight(how: Search, quick: bool) -> Iterator[Row]:
    """Devices that have less memory than the step takes on one of them."""
    for name in ("AlexNet", "GoogLeNet"):
        graph = conv_net(name, quick)
        alone = place(graph, [Device(f"{WORKER}/cpu:0")]).predict().peaks[0].nbytes
        for part in (0.75, 0.5):
            limit = int(alone * part)
            devices = [Device(f"/job:worker/task:{i}/cpu:0", memory=limit) for i in range(4)]
            label = f"{name}, memory {part:.0%}"
            try:
                yield measured(label, graph, devices, "fast", how, free=True, memory=limit)
            except wf.errors.ResourceExhaustedError as error:
                print(f"{label}: {error}")


# ---------------------------------------------------------------------------------------- workers
WORKERS = (1, 2, 4, 8, 16)


def decayed(servers: int) -> Graph:
    """A layer of a large model, of which a step reads a few rows, and the sum of squares of all of
    it: its weight decay, as a number to look at."""
    place_of = wf.train.replica_device_setter(ps_tasks=servers, worker_device=WORKER)
    with wf.Graph("decayed").as_default() as graph, wf.device(place_of):
        ids = wf.placeholder(wf.int64, [64], name="ids")
        tables = [wf.Variable(np.zeros((50000, 64), np.float32)) for _ in range(servers)]
        loss = sum(wf.sum(wf.nn.embedding_lookup(t, ids) ** 2) for t in tables)
        norm = sum(wf.sum(t.read() ** 2) for t in tables)
    return step_of(graph, [loss, norm], [ids])


def automatic(graph: Graph, workers: int, servers: int, links: str) -> Placement:
    """As the session of the first of so many workers places it, each task on a machine of one
    processor; nobody says that it only serves."""
    names = [f"/job:worker/task:{k}" for k in range(workers)]
    names += [f"/job:ps/task:{k}" for k in range(servers)]
    devices = [Device(f"{name}/cpu:0") for name in names]
    machines = {name: Machine(name, 1, 1) for name in names}
    return place_where_it_wins(graph, devices, machines, tuple, costs=CostModel(LINKS[links]))


def by_workers(quick: bool) -> list[dict[str, Any]]:
    """Steps of 1 to 16 workers that share servers, by where their ops are: medians of the
    simulation of all workers together."""
    out = []
    for name in ("AlexNet", "LSTM", "decayed"):
        for servers in (4,) if quick else (2, 4, 16):
            made = decayed(servers) if name == "decayed" else on_servers(name, servers, quick)
            graph = unbound(made)
            names = [WORKER, *(f"/job:ps/task:{i}" for i in range(servers))]
            devices = [Device(f"{task}/cpu:0") for task in names]
            for links in LINKS:
                row: dict[str, Any] = {"model": name, "servers": servers, "links": links}
                cluster = Cluster(LINKS[links], cores=1)
                stay, moved = (
                    place(graph, devices, costs=CostModel(LINKS[links]), spread=spread)
                    for spread in (False, True)
                )
                for label, placed in (("stay", stay), ("one worker's", moved), ("automatic", None)):
                    seconds, left = {}, []
                    for n in WORKERS:
                        mine = placed or automatic(graph, n, servers, links)
                        load = Workload.of_placement(mine)
                        seconds[n] = simulate(load, n, cluster, steps=4).median
                        left.append(mine.choice.why != HOME)
                    row[label] = seconds
                    row[f"{label}: leaves"] = left
                    told = ", ".join(f"{n}: {s * 1e3:.4g}" for n, s in seconds.items())
                    print(f"{name}, {servers} servers, {links}, {label}: {told} ms", flush=True)
                out.append(row)
    return out


# ------------------------------------------------------------------------------------------ peaks
def mlp() -> tuple[wf.Graph, list[Any], list[Any]]:
    """Layers of 512 with a large batch: activations are most of it."""
    with wf.Graph("MLP").as_default() as graph:
        x = wf.placeholder(wf.float32, [4096, 256], name="x")
        y, wide = x, 256
        for n in (512, 512, 512, 10):
            w = wf.Variable(np.zeros((wide, n), np.float32))
            y, wide = wf.tanh(y @ w), n
        loss = wf.mean(y * y)
        train = wf.train.SGD(RATE).minimize(loss)
    return graph, [loss, train], [x]


def problem_of(name: str, setter: Any, quick: bool) -> tuple[wf.Graph, list[Any], list[Any]]:
    """A model: its graph, and what a training step fetches and is fed. setter: of the devices."""
    if name == "MLP":
        with wf.device(setter):
            return mlp()
    if name == "LSTM":
        size = (2000, 32, 32, 16, 10) if quick else (8000, 256, 128, 16, 20)
        with wf.device(setter):
            made = language_model.Model(language_model.Sizes(*size, 1, 0), 0, 0)
        return made.graph, [made.loss, made.train], [made.ids]
    return conv_graph(name, 4, 96 if quick else 128, setter)


def peaks_of(name: str, quick: bool) -> Iterator[dict[str, Any]]:
    """Bytes that a step has at once besides variables, constants and feeds: predicted, and of the
    plans of a step that ran; on one device, and with all variables and their updates on another.
    Of the latter the plans' bytes are those of all regions together: not all are alive at once."""

    def elsewhere(op: Any) -> str:
        return "/cpu:1" if op.type == "variable" else ""

    for count, setter in ((1, None), (2, elsewhere))[: 1 if name == "LSTM" else 2]:
        graph, fetches, feeds = problem_of(name, setter, quick)
        fed = {t: np.zeros([int(n) for n in t.shape], t.dtype.numpy) for t in feeds}
        placed = place_step(step_of(graph, fetches, feeds), cpus=count)
        predicted = [p.nbytes - p.lasting for p in placed.predict().peaks]
        predicted[0] -= sum(a.nbytes for a in fed.values())
        with wf.Session(graph=graph, cpu_devices=count) as session:
            with graph.as_default():
                session.run(wf.global_variables_initializer())
            session.run(fetches, fed, run_metadata=(report := wf.RunMetadata()))
        real = report.arena_bytes + report.result_bytes
        yield {
            "model": name, "devices": count, "executor": report.executor, "predicted": predicted,
            "arena": report.arena_bytes, "results": report.result_bytes,
            "ratio": sum(predicted) / real,
        }  # fmt: skip


def peaks(quick: bool) -> list[dict[str, Any]]:
    """All rows."""
    rows = []
    for name in ("AlexNet", "GoogLeNet", "LSTM", "MLP"):
        for row in peaks_of(name, quick):
            rows.append(row)
            print(
                f"{name}, {row['devices']} devices, {row['executor']}: predicted "
                f"{sum(row['predicted']):,.0f}, plans {row['arena']:,} and {row['results']:,} of "
                f"results, ratio {row['ratio']:.2f}", flush=True,
            )  # fmt: skip
    return rows


def table(found: list[Row]) -> Iterator[str]:
    """The rows as Markdown."""
    yield "| model | tasks | links | one task, ms | greedy | search | bound | greedy / search | search / bound |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in found:
        greedy = "none fits" if r.greedy is None else f"{r.greedy * 1e3:.4g}"
        yield (
            f"| {r.model} | {r.tasks} | {r.links} | {r.home * 1e3:.4g} | {greedy} | "
            f"{r.search * 1e3:.4g} | {r.bound * 1e3:.4g} ({r.reason}) | {r.gain} | "
            f"{r.search / r.bound:.2f} |"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small models over 2 and 4 tasks")
    parser.add_argument("--workers", action="store_true", help="several workers, this alone")
    parser.add_argument("--peaks", action="store_true", help="memory, this alone")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "placement.json")
    args = parser.parse_args()
    if args.workers or args.peaks:
        data = json.loads(args.output.read_text()) if args.output.exists() else {}
        if args.workers:
            data["workers"] = by_workers(args.quick)
        if args.peaks:
            data["peaks"] = peaks(args.quick)
        args.output.write_text(json.dumps(data, indent=1) + "\n")
        return
    how, found = Search(args.evaluations, args.seed), []
    for row in rows(how, args.quick):
        found.append(row)
        print(*list(table([row]))[2:], f"{row.took:.1f} s", flush=True)
    data = {"evaluations": args.evaluations, "seed": args.seed, "rows": [asdict(r) for r in found]}
    args.output.write_text(json.dumps(data, indent=1) + "\n")
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
