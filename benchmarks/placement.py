"""Greedy placement, a search, and a lower bound, in the simulator: the paper's models over 2 to 16
tasks.

    python benchmarks/placement.py [--evaluations 2000] [--seed 0] [--quick] [-o placement.json]
    python benchmarks/placement.py --workers

Models: training steps of AlexNet and GoogLeNet (`paper/table1_nets.py`, at the paper's batch and
image) and of the LSTM language model (`examples/language_model.py`, full softmax over 40,000
words). Each as one graph over equal tasks, where variables may be anywhere (`free_state`), and with
variables on parameter servers, as `wf.train.replica_device_setter` spreads them, where what reads
them may be anywhere. Tasks are one core of the machine of the prices; links are the default ones
(ZeroMQ over loopback, 1.2 GB/s) or fast (12 GB/s, 5 us). The last rows give each device less memory
than the step takes on one. `--workers` simulates 1 to 16 workers that share four servers, with ops
on their worker or where the placer wants them. Nothing runs but the simulator: no time of a step
here is measured.
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
from weft.passes.placement import CostModel, Device, Links, Search, place
from weft.passes.placement.choose import HOME, SEARCHED
from weft.passes.placement.constraints import with_devices
from weft.passes.placement.simulate import Cluster, Workload, simulate

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
    given = problem(found, 1, image)
    with wf.Graph(name).as_default() as graph, wf.device(setter):
        x = wf.placeholder(wf.float32, [batch, image, image, 3], name="x")
        labels = wf.placeholder(wf.int64, [batch], name="labels")
        params = [wf.Variable(np.zeros(p.shape, np.float32)) for p in given.params]
        loss = loss_of(Weft, found)(params, x, labels)
        train = wf.train.SGD(RATE).minimize(loss, params)
    return step_of(graph, [loss, train], [x, labels])


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


def by_workers(quick: bool) -> list[dict[str, Any]]:
    """Steps of 1 to 16 workers that share four servers, where ops stay on their worker and where
    the placer may move them: medians of the simulation of all workers together."""
    out = []
    for name in ("AlexNet", "LSTM"):
        graph = unbound(on_servers(name, 4, quick))
        names = [WORKER, *(f"/job:ps/task:{i}" for i in range(4))]
        devices = [Device(f"{task}/cpu:0") for task in names]
        for links in LINKS:
            for spread in (False, True):
                placed = place(graph, devices, costs=CostModel(LINKS[links]), spread=spread)
                load, cluster = Workload.of_placement(placed), Cluster(LINKS[links], cores=1)
                seconds = {n: simulate(load, n, cluster, steps=4).median for n in (1, 2, 4, 8, 16)}
                out.append({"model": name, "links": links, "spread": spread, "seconds": seconds})
                told = ", ".join(f"{n}: {s * 1e3:.0f}" for n, s in seconds.items())
                print(f"{name}, {links}, spread={spread}, ms by workers: {told}", flush=True)
    return out


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
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "placement.json")
    args = parser.parse_args()
    if args.workers:
        data = json.loads(args.output.read_text()) if args.output.exists() else {}
        data["workers"] = by_workers(args.quick)
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
