"""A model cut over processes or tasks: by its layers' columns (tensor parallelism), or by layers.

    tensor    each process has some hidden units of every layer; the sum over them is a psum
    pipeline  each process has a layer; microbatches go from one to the next by ppermute

    tick 0   stage 0: m0
    tick 1   stage 0: m1   stage 1: m0
    tick 2                 stage 1: m1        (and backward by the gradient of it all)

Both are `wf.shard_map` of the program of one shard, so the same functions run in one process
(which computes all shards), with --processes in processes that this one starts, and with --tasks on
tasks of a cluster, by one program. All train as the model that is not cut at all, which the program
checks. What is cut is the work: each process has all weights, and gets those that the others have
computed the gradients of; of tasks the first has the weights.

    python examples/model_parallel.py [tensor|pipeline] [--shards 2] [--steps 20]
        [--processes] [--tasks]"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft import collectives

P = wf.PartitionSpec
WIDTH, HIDDEN, BATCH, MICROBATCHES = 16, 32, 24, 6
TOLERANCE = 1e-4  # of a loss: sums are made in another order
#: The weights of all layers: (layers, WIDTH, HIDDEN) and (layers, HIDDEN, WIDTH).
Weights = tuple[wf.Tensor, wf.Tensor]


def block(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
    """What a layer adds to its input: of all hidden units, or of some."""
    return wf.matmul(wf.tanh(wf.matmul(x, w)), v)


def whole(x: wf.Tensor, weights: Weights) -> wf.Tensor:
    """The model that is not cut."""
    w, v = weights
    for k in range(len(w)):
        x = x + block(x, w[k], v[k])
    return x


# ------------------------------------------------------------------------------------ tensor
def tensor_shard(x: wf.Tensor, weights: Weights) -> wf.Tensor:
    """All layers, with the hidden units of this shard."""
    w, v = weights
    for k in range(len(w)):
        x = x + collectives.psum(block(x, w[k], v[k]), "shard")
    return x


# ---------------------------------------------------------------------------------- pipeline
def pipeline_shard(x: wf.Tensor, weights: Weights) -> wf.Tensor:
    """The layer of this shard: in each tick it does the microbatch that the shard before it has
    done in the last one."""
    w, v = weights
    stages = collectives.axis_size("shard")
    stage = collectives.axis_index("shard")
    parts = wf.reshape(x, (MICROBATCHES, -1, WIDTH))
    ring = [(k, k + 1) for k in range(stages - 1)]
    here, done = wf.zeros_like(parts[0]), []
    for tick in range(MICROBATCHES + stages - 1):
        first = parts[min(tick, MICROBATCHES - 1)]
        given = wf.where(stage == 0, first, here)
        made = given + block(given, w[0], v[0])
        done.append(made)
        here = collectives.ppermute(made, "shard", ring)
    last = wf.where(stage == stages - 1, wf.concat(done[stages - 1 :]), 0.0)
    total: wf.Tensor = collectives.psum(last, "shard")  # the others have zeros there
    return total


#: How the weights of each kind are cut: along the hidden units, or the layers.
KINDS: dict[str, tuple[Callable[..., wf.Tensor], Any]] = {
    "tensor": (tensor_shard, (P(None, None, "shard"), P(None, "shard"))),
    "pipeline": (pipeline_shard, P("shard")),
}


# ---------------------------------------------------------------------------------- training
def trained(
    model: Callable[..., wf.Tensor], shards: int, steps: int, cluster: str | None = None
) -> list[float]:
    """The losses of training the model to turn its inputs, here or on a cluster."""
    rng = np.random.default_rng(0)
    shapes = (shards, WIDTH, HIDDEN), (shards, HIDDEN, WIDTH)
    weights = [wf.Variable((rng.normal(size=s) * 0.2).astype(np.float32)) for s in shapes]
    x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    y = np.roll(x, 1, axis=1)
    optimizer = wf.train.Adam(0.01)

    def loss(w: wf.Tensor, v: wf.Tensor, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.mean((model(x, (w, v)) - y) ** 2)

    @wf.compile(cluster=cluster)
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        w, v = (variable.read() for variable in weights)
        value, slopes = wf.value_and_grad(loss, argnums=(0, 1))(w, v, x, y)
        optimizer.apply_gradients(list(zip(slopes, weights, strict=True)))
        found: wf.Tensor = value
        return found

    return [float(step(x, y)) for _ in range(steps)]


def cut(kind: str, mesh: wf.Mesh) -> Callable[..., wf.Tensor]:
    """The model over the shards of a mesh."""
    shard, specs = KINDS[kind]
    return wf.shard_map(shard, mesh, in_specs=(None, specs), out_specs=None)


def work(options: argparse.Namespace) -> None:
    """Compute the shard of this process."""
    addresses = [f"ipc://{options.folder}/{k}" for k in range(options.shards)]
    cluster = wf.train.ClusterSpec({"worker": addresses})
    task = wf.train.ClusterTask(cluster, "worker", options.rank)
    with wf.Mesh({"shard": options.shards}, task=task) as mesh:
        print(json.dumps(trained(cut(options.kind, mesh), options.shards, options.steps)))


def in_processes(options: argparse.Namespace) -> list[float]:
    """The losses of as many processes as there are shards, which all have the same."""
    given = [options.kind, "--shards", str(options.shards), "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        made = [
            subprocess.Popen(
                [sys.executable, Path(__file__), *given, "--folder", folder, "--rank", str(rank)],
                stdout=subprocess.PIPE,
            )
            for rank in range(options.shards)
        ]
        try:
            texts = [process.communicate()[0] for process in made]
        finally:
            for process in made:
                process.kill()
                process.wait()
    if any(process.returncode for process in made) or len(set(texts)) != 1:
        raise SystemExit("a process has failed, or has other losses")
    losses: list[float] = json.loads(texts[0])
    return losses


def on_tasks(options: argparse.Namespace) -> list[float]:
    """The losses of one program whose shards are on tasks, which here are in this process."""
    servers = wf.train.Server.create_local_cluster({"worker": options.shards})
    try:
        devices = [f"/job:worker/task:{k}" for k in range(options.shards)]
        model = cut(options.kind, wf.Mesh({"shard": options.shards}, devices=devices))
        return trained(model, options.shards, options.steps, servers[0].target)
    finally:
        for server in servers:
            server.stop()


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """The command line; the losses of each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=list(KINDS), default="tensor")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--processes", action="store_true", help="a process for each shard")
    parser.add_argument("--tasks", action="store_true", help="a task for each shard")
    parser.add_argument("--rank", type=int, help="of this process, in --folder")
    parser.add_argument("--folder", help="where the processes meet")
    options = parser.parse_args(argv)
    if options.rank is not None:
        work(options)
        return {}
    mesh = wf.Mesh({"shard": options.shards})
    losses = {
        "not cut": trained(whole, options.shards, options.steps),
        "one process": trained(cut(options.kind, mesh), options.shards, options.steps),
    }
    if options.processes:
        losses["processes"] = in_processes(options)
    if options.tasks:
        losses["tasks"] = on_tasks(options)
    for name, found in losses.items():
        print(f"{options.kind}, {name}: loss {found[0]:.4f}, after {options.steps} {found[-1]:.4f}")
        if not np.allclose(found, losses["not cut"], rtol=TOLERANCE):
            raise SystemExit("that is another training than that of the model that is not cut")
    return losses


if __name__ == "__main__":
    main()
