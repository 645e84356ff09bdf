"""All that is measured on a GPU, in one command.

    python benchmarks/gpu.py [--rounds 20] [--only softmax] [--small]
        [--json benchmarks/gpu.json] [--markdown benchmarks/RESULTS-gpu.md]

Needs a GPU with its driver and `pip install 'weft[cuda13]'`; says so and ends with status 2 where
there is none, or where it is emulated. PyTorch (eager, torch.compile) and JAX are compared with
where they are installed and find the GPU: their results with weft's, before and after the times;
where there is none NumPy's. One that has other results is an error in the table, as is what fails;
the status is 1 then. Every figure is of this run on this device, weft's and the peers' in turn:
times on the device by its own events, without the host's to ask for the launches, unless a row says
"seconds of the host"; nothing is taken over from elsewhere. Both files are written after each row.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from figure1 import batch_of, start
from gpu_cases import (
    ROUNDING,
    Case,
    chain,
    convolution,
    elementwise,
    figure1,
    numpy_figure1,
    product,
    rows,
    weft_steps,
)
from gpu_peers import Absent, Peer, Times, jax_figure1, time_steps, torch_figure1
from harness import machine
from rich.console import Console
from rich.table import Table

import weft as wf
from weft.frontend.core import pytree
from weft.runtime.device.backends.registry import gpu
from weft.runtime.device.protocol import Device

Array = np.ndarray[Any, Any]
HERE = Path(__file__).parent


@dataclass
class Row:
    """One workload: seconds of weft and of each peer; what they mean. errors: what failed, and
    peers whose results are not weft's, which have no times."""

    workload: str
    weft: Times = field(default_factory=list)
    peers: dict[str, Times] = field(default_factory=dict)
    launches: int = 0
    host: Times = field(default_factory=list)  # seconds to ask for the launches
    nbytes: int = 0
    flops: int = 0
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def difference(
    ours: list[Array], theirs: list[Array], rounding: float,
    each: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """What is not the same but for rounding, which is a share of the largest element; "" if all
    is. each: as `Case.each`."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} results, weft has {len(ours)}"
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return f"a result of shape {b.shape}, weft's has {a.shape}"
        a, b = (v.astype(np.float64) for v in (a, b))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return "results that are not finite"
        apart, scale = np.abs(a - b), float(np.abs(a).max(initial=0))
        most = float(apart.max(initial=0))
        if most > rounding * scale:
            return f"results {most:.3g} off weft's, of which the largest is {scale:.3g}"
        if each is not None and (wrong := apart > each[0] * np.abs(a) + each[1]).any():
            one, other = a[wrong][0], b[wrong][0]
            return f"{wrong.sum()} elements off weft's: the first is {other:.9g}, weft's {one:.9g}"
    return ""


def checked(
    row: Row, name: str, peer: Callable[[], Any], ours: list[Array], *allowed: Any
) -> Any | None:
    """What `peer` makes, a pair of what is to be timed and of its results, if it is to be timed.
    allowed: the rest of what `difference` takes."""
    try:
        run, theirs = peer()
    except Absent as reason:
        row.notes.append(f"no {name}: {reason}")
        return None
    except Exception as error:
        row.errors.append(f"{name} failed: {type(error).__name__}: {error}")
        return None
    found = difference(ours, theirs, *allowed)
    if found:
        row.errors.append(f"{name} has {found}")
        return None
    return run


def run_case(case: Case, rounds: int) -> Row:
    """weft and its peers in turn, twice."""
    step = wf.compile(device="gpu:0", math=case.mode)(case.function)

    def call() -> list[Array]:
        return [np.asarray(leaf) for leaf in pytree.tree_leaves(step(*case.args))]

    ours = [leaf for _ in range(case.steps) for leaf in call()]
    made: Any = step._specialized(case.args, {}).executable()
    row = Row(case.name, nbytes=case.nbytes, flops=case.flops, notes=[case.note] * bool(case.note))
    row.notes += _by(step.explain(*case.args))
    allowed = case.rounding, case.each

    def begin(peer: Peer) -> tuple[Callable[[], Any], list[Array]]:
        run = peer.make(case.args, case.mode)
        return run, [result for _ in range(case.steps) for result in peer.read(run())]

    peers = {}
    for name, peer in case.peers.items():
        run = checked(row, name, partial(begin, peer), ours, *allowed)
        if run is not None:
            peers[name] = run
    if not peers:
        by_numpy = [np.asarray(case.numpy(*case.args)) for _ in range(case.steps)]
        tell(row, "NumPy", difference(ours, by_numpy, *allowed))
    for _ in range(2):
        times = made.measure(list(case.args), rounds)
        row.weft += times.device
        row.host += times.host
        row.launches = times.launches
        for name, run in list(peers.items()):
            try:
                row.peers.setdefault(name, []).extend(case.peers[name].time(run, rounds))
            except Absent as reason:
                row.notes.append(f"no times of {name}: {reason}")
                del row.peers[name], peers[name]
    later = {"weft, once timed,": [call() for _ in range(3)][-1]}  # launched, recorded, replayed
    later |= {f"{k}, once timed,": case.peers[k].read(run()) for k, run in peers.items()}
    for name, results in later.items():
        tell(row, name, after(case, ours, results))
    return row


def after(case: Case, ours: list[Array], results: list[Array]) -> str:
    """What is wrong with results of a call after all others."""
    if case.steps == 1:
        return difference(ours, results, case.rounding, case.each)
    return untrained(float(ours[0]), float(results[0]))


def untrained(before: float, last: float) -> str:
    """What is wrong with the loss of a last step: it must be below the first one. How many steps
    were made is not the same on all sides."""
    return "" if last < before else f"a loss of {last:.3g}, that of the first step was {before:.3g}"


def tell(row: Row, name: str, found: str) -> None:
    """What `difference` found is an error of the row."""
    row.errors += [f"{name} has {found}"] * bool(found)


#: A product in what `.explain` says of libraries, and what was chosen for it.
_CHOICE = re.compile(r"^ +\d+\. .*\n +(.*\(.*\))$", re.MULTILINE)


def _by(text: str) -> list[str]:
    """What does the products and convolutions of a step, by what `.explain` says of it."""
    _, _, told = text.partition("libraries: ")
    if not told:
        return []
    found = _CHOICE.findall(told.split("\n\n")[0])
    return [f"weft: {what}" for what in found or told.splitlines()[:1]]


# ------------------------------------------------------------------------------------------- cases


def copy_row(device: Device, nbytes: int, rounds: int) -> Row:
    """The driver's own copy on the device: what "bandwidth" is measured against."""
    source, target = (device.allocate(nbytes, "the copy that is measured") for _ in range(2))
    sent, got = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8), np.zeros(nbytes, "u1")
    device.upload(source.address, sent)
    times = [
        device.timed(lambda: device.copy(target.address, source.address, nbytes))
        for _ in range(rounds + 3)
    ]
    row = Row(f"copy of {nbytes >> 20} MiB by the driver", times[3:], nbytes=2 * nbytes)
    device.download(got, target.address)
    tell(row, "the copy", difference([sent], [got], 0.0))
    return row


#: weft's peers in steps that are timed by the clock of the host.
STEPS: dict[str, Callable[[Array, Array, bool], Callable[[], Any]]] = {
    "jax": lambda x, y, there: jax_figure1(start(np.random.default_rng(1)), x, y, there),
    "torch": lambda x, y, there: torch_figure1(start(np.random.default_rng(1)), x, y, there),
}


def figure1_calls(batch: int, rounds: int, on_device: bool, inner: int) -> Row:
    """The paper's step as users call it, alike on all sides: the batch is on the device for all,
    or each takes it there in every step. The loss of each step, or of `inner`, is read."""
    where = "the batch on the device" if on_device else "the batch from the host"
    wait = "each loss read" if inner == 1 else f"the loss of every {inner} read"
    row = Row(f"Figure 1 calls, batch {batch}, {where}, {wait}")
    x, y = batch_of(np.random.default_rng(1), batch)

    def begin(make: Callable[..., Any]) -> tuple[Callable[[], Any], list[Array]]:
        step = make(x, y, on_device)
        return step, [np.asarray(float(step())) for _ in range(5)]

    ours, losses = begin(weft_steps)
    steps = {"weft": ours}
    for name, make in STEPS.items():
        run = checked(row, name, partial(begin, make), losses, ROUNDING["f32", "ieee"])
        if run is not None:
            steps[name] = run
    if len(steps) == 1:
        by_numpy = numpy_figure1()
        expected = [by_numpy(x, y) for _ in losses]
        tell(row, "NumPy", difference(losses, expected, ROUNDING["f32", "ieee"]))
    for _ in range(2):
        for name, step in steps.items():
            times = row.weft if name == "weft" else row.peers.setdefault(name, [])
            times.extend(time_steps(step, rounds, inner))
    for name, step in steps.items():
        tell(row, f"{name}, once timed,", untrained(float(losses[0]), float(step())))
    row.notes.append("seconds of the host")
    return row


def launch_cost(rounds: int) -> Row:
    """What the host pays for a plan of 50 kernels: launch by launch, and as one CUDA graph."""
    x = np.random.default_rng(0).standard_normal(64, np.float32)
    step = wf.compile(device="gpu:0")(chain)
    made: Any = step._specialized((x,), {}).executable()
    apart = made.measure([x], rounds, records=False)
    together = made.measure([x], rounds)
    row = Row(f"asking for {together.launches} launches, as a graph", list(together.host))
    row.launches = together.launches
    row.peers["weft, one by one"] = list(apart.host)
    row.notes.append("seconds of the host; no library has these kernels")
    for _ in range(3):  # launched, recorded, replayed
        tell(row, "NumPy", difference([np.asarray(step(x))], [np.maximum.accumulate(x)], 0.0))
    return row


def _case(rounds: int, make: Callable[..., Case], *given: Any) -> Row:
    return run_case(make(*given), rounds)


def all_rows(device: Device, rounds: int, only: str, small: bool) -> Iterator[Row]:
    """Every figure; one that fails is told of, and the others are made."""
    cut = 14 if small else 0
    shape, batch = (8192 >> cut // 2, 4096 >> cut // 2), 4 if small else 128
    steps = 3 if small else 50
    makers: dict[str, Callable[[], Row]] = {
        "copy": lambda: copy_row(device, 1 << (28 - cut), rounds),
        "elementwise": lambda: run_case(elementwise(1 << (26 - cut)), rounds),
        "softmax": lambda: run_case(rows("softmax", shape, False), rounds),
        "softmax backward": lambda: run_case(rows("softmax", shape, True), rounds),
        "layer norm": lambda: run_case(rows("layer norm", shape, False), rounds),
        "layer norm backward": lambda: run_case(rows("layer norm", shape, True), rounds),
    }
    for dtype, mode in ROUNDING:
        for n in (8, 16) if small else (4096, 8192):
            makers[f"matmul {n} {dtype} {mode}"] = partial(_case, rounds, product, n, dtype, mode)
    sizes = (1, 3, 4) if small else (64, 56, 128)
    for dtype, mode in ROUNDING:
        makers[f"conv2d {dtype} {mode}"] = partial(_case, rounds, convolution, *sizes, dtype, mode)
    makers["figure1"] = lambda: run_case(figure1(batch), rounds)
    for on_device, inner in ((True, 1), (False, 1), (True, steps), (False, steps)):
        name = f"figure1 calls {'device' if on_device else 'host'} {inner}"
        makers[name] = partial(figure1_calls, batch, rounds, on_device, inner)
    makers["launches"] = lambda: launch_cost(rounds)
    for name, make in makers.items():
        if only in name:
            try:
                yield make()
            except Exception as error:
                yield Row(name, errors=[f"failed: {type(error).__name__}: {error}"])


# ------------------------------------------------------------------------------------------ report


def cells(row: Row, copied: float) -> list[str]:
    """A row of the tables. copied: bytes a second of the measured copy, 0 if it was not made."""
    text = "; ".join([*(f"ERROR: {error}" for error in row.errors), *row.notes])
    note = " ".join(text.replace("|", "/").split())  # one line, in one cell
    if not row.weft:
        return [row.workload, "-", "-", "", note]
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
    return [row.workload, times, rate.strip(), ", ".join(ratios), note]


TITLES = ("workload", "weft us (min / median)", "rate", "faster than (min / median)", "note")


def table_of(made: list[Row]) -> list[list[str]]:
    """The cells of all rows."""
    copies = [row for row in made if row.workload.startswith("copy of") and row.weft]
    copied = copies[0].nbytes / min(copies[0].weft) if copies else 0.0
    return [cells(row, copied) for row in made]


def markdown(device: Device, command: str, table: list[list[str]]) -> str:
    """The page."""
    lines = ["# On a GPU", "", f"`{command}` on {device.description}.", ""]
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


def options_of(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=HERE / "gpu.json")
    parser.add_argument("--markdown", type=Path, default=HERE / "RESULTS-gpu.md")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    parser.add_argument("--small", action="store_true", help="sizes to try the script with")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    options = options_of(argv)
    device = find_device()
    command = " ".join(["python benchmarks/gpu.py", *argv])
    made: list[Row] = []
    for row in all_rows(device, options.rounds, options.only, options.small):
        made.append(row)
        held = {"device": device.description, "machine": machine(), "command": command,
                "rows": [vars(row) for row in made]}  # fmt: skip
        options.json.write_text(json.dumps(held, indent=1) + "\n")
        options.markdown.write_text(markdown(device, command, table_of(made)))
    shown = Table(title=device.description)
    for title in TITLES:
        shown.add_column(title)
    for line in table_of(made):
        shown.add_row(*line)
    Console(width=180).print(shown)
    if not made:
        print(f"nothing was measured: no workload has '{options.only}' in it", file=sys.stderr)
    if not made or any(row.errors for row in made):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
