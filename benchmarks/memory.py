"""Memory of a training step: weft's plan, and what a process grows by, against JAX and PyTorch.

    python benchmarks/memory.py [--json benchmarks/memory.json] [--models figure1,mlp,gpt,conv]

Per model, in bytes:

* planned: what a step needs besides parameters, optimizer state and batch, as the compiler says:
  weft's arena, scratch and results; JAX's `memory_analysis()` (temporaries, and outputs that are no
  donated input). PyTorch has no plan.
* growth: the most resident memory of a fresh process during ten steps, less what it had before the
  first step with the same parameters and libraries. Compiling is part of it, so the figure of the
  second step on (`steady`: after the peak mark was reset) is given too: the peak during nine more
  steps, less what the process held before them, plus what it keeps from the first one.

Needs the `bench` extra, and Linux (/proc/self/status, /proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Step = Callable[[], Any]
SIDES = ("weft", "jax", "torch", "torch.compile")
MODELS = ("figure1", "mlp", "gpt", "conv")
STEPS = 9


def make_step(model: str, side: str) -> Step:
    """One training step of the model on its fixed batch (1024 images for Figure 1)."""
    if model == "figure1":
        figure1 = importlib.import_module("figure1")
        rng = np.random.default_rng(1)
        params, (x, y) = figure1.start(rng), figure1.batch_of(rng, 1024)
        if side.startswith("torch"):
            step = figure1.torch_step(params, side == "torch.compile")
        else:
            step = getattr(figure1, f"{side}_step")(params)
        return lambda: step(x, y)
    training = importlib.import_module("training")
    make = training.MODELS[model]
    if side.startswith("torch"):
        return training.torch_step(make, side == "torch.compile")
    return getattr(training, f"{side}_step")(make)


def resident(what: str) -> int:
    """VmRSS (now) or VmHWM (the most since the mark was reset) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


def captured(step: Step, name: str) -> Any:
    """The object that a benchmark's step holds under that name, through the closures around it."""
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or (), strict=True))
    if name in cells:
        return cells[name].cell_contents
    if "step" in cells:
        return captured(cells["step"].cell_contents, name)
    raise LookupError(f"the step has no {name}")


def planned(step: Step, side: str) -> int | None:
    """Bytes that the compiler planned for one step besides state and batch."""
    if side == "weft":
        return weft_plan(step)
    if side == "jax":
        compiled, state = captured(step, "compiled"), captured(step, "state")
        analysis = compiled.lower(*state, *jax_batch(step, state)).compile().memory_analysis()
        outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        return int(analysis.temp_size_in_bytes + outputs)
    return None


def jax_batch(step: Step, state: list[Any]) -> tuple[Any, ...]:
    """The batch of a JAX step."""
    names = ("x", "y") if len(state) == 2 else ("x", "labels")
    return tuple(captured(step, name) for name in names)


def weft_plan(step: Step) -> int:
    """Arena with all scratch, and results, of the one specialisation of a weft step."""
    import weft as wf

    held = captured(step, "step")
    while not isinstance(held, wf.CompiledFunction):
        held = captured(held, "step")
    (made,) = held._specializations.entries.values()
    executable = made.executable()
    workers = executable._table.worker_bytes * executable.threads
    return int(executable._arena_bytes + workers + executable.report.memory.result_bytes)


def measure(model: str, side: str) -> dict[str, int | None]:
    """In this process: the plan and the growth of one contestant."""
    for name in {"weft": ["weft"], "jax": ["jax"], "torch": ["torch"]}.get(side, ["torch"]):
        importlib.import_module(name)
    step = make_step(model, side)
    gc.collect()
    before = resident("VmRSS")
    step()
    first = resident("VmHWM") - before
    gc.collect()
    step()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    for _ in range(STEPS):
        step()
    steady = resident("VmHWM") - before
    return {"planned": planned(step, side), "first": first, "steady": steady}


def in_fresh_process(model: str, side: str) -> dict[str, int | None]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", model, side]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    figures: dict[str, int | None] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(rows: dict[str, dict[str, dict[str, int | None]]]) -> None:
    """The table, in kilobytes."""
    table = Table(title="Memory of a training step, KB")
    for column in ("model", "contestant", "planned", "growth, first step", "growth, steady"):
        table.add_column(column, justify="left" if column in ("model", "contestant") else "right")
    for model, sides in rows.items():
        for side, figures in sides.items():
            cells = [
                "-" if figures[k] is None else f"{(figures[k] or 0) / 1024:,.0f}"
                for k in ("planned", "first", "steady")
            ]
            table.add_row(model, side, *cells)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "SIDE"))
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    rows = {
        model: {side: in_fresh_process(model, side) for side in options.sides.split(",")}
        for model in options.models.split(",")
    }
    show(rows)
    if options.json:
        harness = importlib.import_module("harness")
        held = {"title": "Memory of a training step", "machine": harness.machine(), "bytes": rows}
        Path(options.json).write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
