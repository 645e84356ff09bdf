"""All that is measured on a GPU, in one command.

    python benchmarks/gpu.py [--json benchmarks/gpu.json] [--markdown benchmarks/RESULTS-gpu.md]
        [--rounds 20] [--only softmax] [--small]

Needs a GPU with its driver and `pip install 'weft[cuda13]'`; says so and ends with status 2 where
there is none, or where it is emulated. PyTorch (eager, torch.compile) and JAX are compared with
where they are installed and find the GPU. Every figure is of this run on this device: times on the
device by its own events, weft's and the peers' in turn; nothing is taken over from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from figure1 import LEARNING_RATE, batch_of, start
from harness import machine
from rich.console import Console
from rich.table import Table

import weft as wf
from weft.runtime.device.protocol import Device
from weft.runtime.device.registry import gpu

Array = np.ndarray[Any, Any]
#: Seconds of some runs on the device.
Times = list[float]


@dataclass
class Row:
    """One workload: seconds on the device of weft and of each peer; what they mean."""

    workload: str
    weft: Times
    peers: dict[str, Times] = field(default_factory=dict)
    launches: int = 0
    host: Times = field(default_factory=list)  # seconds to ask for the launches
    nbytes: int = 0
    flops: int = 0
    note: str = ""


@dataclass(frozen=True)
class Case:
    """A function for weft and, by name, what a peer runs. peers: given the arguments, a call that
    leaves its work on the device; it raises where the peer is not installed or finds no GPU."""

    name: str
    function: Callable[..., Any]
    args: tuple[Array, ...]
    peers: dict[str, Callable[..., Callable[[], Any]]]
    nbytes: int = 0
    flops: int = 0


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def torch_peer(function: Callable[..., Any], compiled: bool) -> Callable[..., Callable[[], Any]]:
    """A function of tensors as PyTorch runs it on the GPU."""

    def make(*args: Array) -> Callable[[], Any]:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        given = [torch.from_numpy(a).cuda() for a in args]
        run = torch.compile(function, dynamic=False) if compiled else function
        return lambda: run(*given)

    return make


def time_torch(run: Callable[[], Any], rounds: int) -> Times:
    """Seconds on the device of each call, by CUDA events."""
    import torch

    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return times


def run_case(case: Case, rounds: int) -> Row:
    """weft and its peers in turn, twice."""
    step = wf.compile(device="gpu:0")(case.function)._specialized(case.args, {}).executable()
    row = Row(case.name, [], nbytes=case.nbytes, flops=case.flops)
    peers: dict[str, Callable[[], Any]] = {}
    for name, make in case.peers.items():
        try:
            peers[name] = make(*case.args)
            time_torch(peers[name], 1)
        except Exception as error:  # a peer that does not run here is told of, and left out
            peers.pop(name, None)
            row.note += f"{name} did not run: {type(error).__name__}. "
    for _ in range(2):
        made = step.measure(list(case.args), rounds)
        row.weft += made.device
        row.host += made.host
        row.launches = made.launches
        for name, run in peers.items():
            row.peers.setdefault(name, []).extend(time_torch(run, rounds))
    return row


# ------------------------------------------------------------------------------------------- cases


def copy_row(device: Device, nbytes: int, rounds: int) -> Row:
    """The driver's own copy on the device: what "bandwidth" is measured against."""
    source, target = (device.allocate(nbytes, "the copy that is measured") for _ in range(2))
    times = [
        device.timed(lambda: device.copy(target.address, source.address, nbytes))
        for _ in range(rounds + 3)
    ]
    return Row(f"copy of {nbytes >> 20} MiB by the driver", times[3:], nbytes=2 * nbytes)


def elementwise(n: int) -> Case:
    """gelu(x * w + b), elements of its own each."""

    def weft(x: Any, w: Any, b: Any) -> Any:
        return wf.nn.gelu(x * w + b)

    def torch(x: Any, w: Any, b: Any) -> Any:
        import torch.nn.functional as functional

        return functional.gelu(x * w + b)

    peers = {"torch": torch_peer(torch, False), "torch.compile": torch_peer(torch, True)}
    args = (_random(n), _random(n), _random(n))
    return Case(f"gelu(x * w + b), {n:,} f32", weft, args, peers, nbytes=16 * n)


def rows(name: str, shape: tuple[int, int], backward: bool) -> Case:
    """Row softmax or layer norm, with its gradient for a given one."""

    def weft_norm(x: Any) -> Any:
        if name == "softmax":
            return wf.nn.softmax(x)
        mean = wf.mean(x, axis=-1, keepdims=True)
        off = x - mean
        return off / wf.sqrt(wf.mean(off * off, axis=-1, keepdims=True) + 1e-5)

    def weft(x: Any, g: Any) -> Any:
        return wf.grad(lambda x: wf.sum(weft_norm(x) * g))(x) if backward else weft_norm(x)

    def torch(x: Any, g: Any) -> Any:
        import torch.nn.functional as functional

        def norm(x: Any) -> Any:
            if name == "softmax":
                return functional.softmax(x, -1)
            return functional.layer_norm(x, x.shape[-1:])

        if not backward:
            return norm(x)
        x = x.detach().requires_grad_()
        norm(x).backward(g)
        return x.grad

    peers = {"torch": torch_peer(torch, False), "torch.compile": torch_peer(torch, True)}
    size = 4 * shape[0] * shape[1]
    title = f"{name}{' forward and backward' if backward else ''}, {shape[0]} x {shape[1]} f32"
    args = (_random(*shape), _random(*shape))
    return Case(title, weft, args, peers, nbytes=(3 if backward else 2) * size)


def product(n: int) -> Case:
    """A square product of f32, without TF32."""

    def torch(a: Any, b: Any) -> Any:
        return a @ b

    args = (_random(n, n), _random(n, n))
    peers = {"torch": torch_peer(torch, False)}
    return Case(f"matmul {n} x {n} x {n}, f32", wf.matmul, args, peers, flops=2 * n**3)


def figure1_step(batch: int) -> Case:
    """The paper's training step; peers keep parameters and batch on the device."""
    params = start(np.random.default_rng(1))
    v = {k: wf.Variable(p) for k, p in params.items()}
    optimizer = wf.train.AdagradOptimizer(LEARNING_RATE)

    def weft(x: Any, y: Any) -> Any:
        hidden = wf.nn.relu(wf.matmul(x, v["w1"]) + v["b1"])
        logits = wf.matmul(hidden, v["w2"]) + v["b2"]
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer.minimize(loss)
        return loss

    def torch_step(x: Array, y: Array) -> Callable[[], Any]:
        import torch

        p = {k: torch.tensor(a, device="cuda", requires_grad=True) for k, a in params.items()}
        optimizer = torch.optim.Adagrad(
            p.values(), LEARNING_RATE, initial_accumulator_value=0.1, eps=0.0
        )
        data, labels = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            logits = torch.relu(data @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
            loss = -(labels * torch.log_softmax(logits, -1)).sum(-1).mean()
            loss.backward()
            optimizer.step()

        return step

    x, y = batch_of(np.random.default_rng(1), batch)
    return Case(f"Figure 1 step, batch {batch}", weft, (x, y), {"torch": torch_step})


def jax_figure1(batch: int, rounds: int) -> Times:
    """Seconds of JAX's step by the clock of the host, which waits for each: it has no events."""
    import time

    import jax
    from figure1 import jax_step

    if jax.default_backend() != "gpu":
        raise RuntimeError("JAX finds no GPU")
    step = jax_step(start(np.random.default_rng(1)))
    x, y = (jax.device_put(a) for a in batch_of(np.random.default_rng(1), batch))
    times = []
    for _ in range(rounds + 5):
        began = time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - began)
    return times[5:]


def whole_call(batch: int, rounds: int) -> Row:
    """weft's step as a user calls it: batch from the host, loss back, all waited for."""
    import time

    case = figure1_step(batch)
    step = wf.compile(device="gpu:0")(case.function)
    times = []
    for _ in range(rounds + 5):
        began = time.perf_counter()
        float(step(*case.args))
        times.append(time.perf_counter() - began)
    row = Row(f"Figure 1 step, batch {batch}, from the host and back", times[5:])
    try:
        row.peers["jax (batch on the device)"] = jax_figure1(batch, rounds)
    except Exception as error:  # as peers above
        row.note += f"jax did not run: {type(error).__name__}. "
    return row


def launch_cost(rounds: int) -> Row:
    """What the host pays for a plan of 50 kernels: launch by launch, and as one CUDA graph."""

    def chain(x: Any) -> Any:
        for _ in range(50):
            x = wf.matmul(x, x)
        return x

    x = np.eye(8, dtype=np.float32)
    step = wf.compile(device="gpu:0")(chain)._specialized((x,), {}).executable()
    apart = step.measure([x], rounds, records=False)
    together = step.measure([x], rounds)
    row = Row("asking for 50 launches, as a graph", list(together.host), launches=together.launches)
    row.peers["one by one"] = list(apart.host)
    row.note = "seconds of the host"
    return row


def all_rows(device: Device, rounds: int, only: str, small: bool) -> Iterator[Row]:
    """Every figure; one that fails is told of, and the others are made."""
    cut = 14 if small else 0
    shape, batch = (8192 >> cut // 2, 4096 >> cut // 2), 4 if small else 128
    makers: dict[str, Callable[[], Row]] = {
        "copy": lambda: copy_row(device, 1 << (28 - cut), rounds),
        "elementwise": lambda: run_case(elementwise(1 << (26 - cut)), rounds),
        "softmax": lambda: run_case(rows("softmax", shape, False), rounds),
        "softmax backward": lambda: run_case(rows("softmax", shape, True), rounds),
        "layer norm": lambda: run_case(rows("layer norm", shape, False), rounds),
        "layer norm backward": lambda: run_case(rows("layer norm", shape, True), rounds),
        "matmul": lambda: run_case(product(4096 >> cut // 2), rounds),
        "figure1": lambda: run_case(figure1_step(batch), rounds),
        "figure1 call": lambda: whole_call(batch, rounds),
        "launches": lambda: launch_cost(rounds),
    }
    for name, make in makers.items():
        if only in name:
            try:
                yield make()
            except Exception as error:
                yield Row(name, [], note=f"FAILED: {type(error).__name__}: {error}")


# ------------------------------------------------------------------------------------------ report


def cells(row: Row, copied: float) -> list[str]:
    """A row of the tables. copied: bytes a second of the measured copy, 0 if it was not made."""
    if not row.weft:
        return [row.workload, "-", "-", "", row.note]
    best, middle = min(row.weft), statistics.median(row.weft)
    rate = ""
    if row.nbytes:
        rate = f"{row.nbytes / best / 1e9:,.0f} GB/s"
        rate += f" ({row.nbytes / best / copied:.0%} of the copy)" if copied else ""
    if row.flops:
        rate = f"{row.flops / best / 1e12:.1f} TFLOP/s"
    if row.launches:
        rate += f" {row.launches} launches, host {min(row.host or row.weft) * 1e6:.1f} us"
    ratios = [
        f"{min(t) / best:.2f}x / {statistics.median(t) / middle:.2f}x {name}"
        for name, t in row.peers.items()
    ]
    times = f"{best * 1e6:,.1f} / {middle * 1e6:,.1f}"
    return [row.workload, times, rate.strip(), ", ".join(ratios), row.note]


TITLES = ("workload", "weft us (min / median)", "rate", "faster than (min / median)", "note")


def markdown(device: Device, table: list[list[str]]) -> str:
    """The page."""
    lines = ["# On a GPU", "", f"`python benchmarks/gpu.py` on {device.description}.", ""]
    lines += ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    lines += ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join(lines) + "\n"


def find_device() -> Device:
    """The first GPU. SystemExit with status 2 where there is none."""
    try:
        device = gpu(0)
    except wf.errors.WeftError as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if device.emulated:
        print("nothing was measured: WEFT_EMULATE_GPU is set", file=sys.stderr)
        raise SystemExit(2)
    return device


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    parser.add_argument("--small", action="store_true", help="sizes to try the script with")
    options = parser.parse_args(argv)
    device = find_device()
    made = list(all_rows(device, options.rounds, options.only, options.small))
    copies = [row for row in made if row.workload.startswith("copy of") and row.weft]
    copied = copies[0].nbytes / min(copies[0].weft) if copies else 0.0
    table = [cells(row, copied) for row in made]
    shown = Table(title=device.description)
    for title in TITLES:
        shown.add_column(title)
    for line in table:
        shown.add_row(*line)
    Console(width=180).print(shown)
    if options.json:
        held = {"device": device.description, "machine": machine(),
                "rows": [vars(row) for row in made]}  # fmt: skip
        Path(options.json).write_text(json.dumps(held, indent=1) + "\n")
    if options.markdown:
        Path(options.markdown).write_text(markdown(device, table))
    if any(not row.weft for row in made):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
