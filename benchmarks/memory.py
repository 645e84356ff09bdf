"""Memory of a training step: its tensors, and what a process grows by, against JAX and PyTorch.

    python benchmarks/memory.py [--json benchmarks/memory.json]
        [--models figure1,mlp,gpt,conv,lstm,block128,block512,block2048]

block: the transformer block of benchmarks/transformer.py, at so many positions.

Each row is a process of its own, the median of `--repeat`. In bytes:

* tensors: what a step needs at once besides parameters, optimizer state and batch. weft and JAX:
  as the compiler planned it (weft's arena, scratch and results; JAX's `memory_analysis()`:
  temporaries, and outputs that are no donated input). PyTorch has no plan: the most that its
  allocator had given out during two steps, less the least, by `torch.profiler`.
* first: the most resident memory (VmHWM) up to the end of the first step, less what was resident
  before it: libraries imported, parameters, optimizer and batch made. JAX and PyTorch have loaded
  their compilers and kernels by then. weft loads LLVM, if it needs it, when a function is
  decorated; here that waits for the first step, so that it is counted.
* anonymous: the part of what the first step left resident that is the process's own: heaps, arenas,
  machine code. The rest are pages of library files, which all processes share.
* later: the most resident memory during half a second of further steps, less what was before.
* process: the most resident memory of the process from its start.

"from disk": the compiled step is in weft's cache or in JAX's persistent cache (which is off unless
asked for). torch.compile has a cache too, and compiles in other processes that are not counted.

Needs the `bench` extra, and Linux (/proc/self/smaps_rollup, /proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Step = Callable[[], Any]
Figures = dict[str, int | None]
SIDES = (
    "weft, empty cache", "weft, from disk", "jax", "jax, from disk", "torch", "torch.compile",
)  # fmt: skip
MODELS = ("figure1", "mlp", "gpt", "conv", "lstm", "block128", "block512", "block2048")
COLUMNS = ("tensors", "first", "anonymous", "later", "process")
SECONDS = 0.5  # of further steps


def make_step(model: str, side: str) -> Step:
    """One training step of the model on its fixed batch (1024 images for Figure 1)."""
    if model == "lstm":
        return {"weft": weft_lstm, "jax": jax_lstm}.get(side, torch_lstm)()
    if model == "figure1":
        figure1 = importlib.import_module("figure1")
        rng = np.random.default_rng(1)
        params, (x, y) = figure1.start(rng), figure1.batch_of(rng, 1024)
        if side.startswith("torch"):
            step = figure1.torch_step(params, side == "torch.compile")
        else:
            step = getattr(figure1, f"{side}_step")(params)
        return lambda: step(x, y)
    if model.startswith("block"):
        step = importlib.import_module("transformer").block_step(side, int(model[len("block") :]))
        return step  # type: ignore[no-any-return]
    training = importlib.import_module("training")
    make = training.MODELS[model]
    if side.startswith("torch"):
        return training.torch_step(make, side == "torch.compile")
    return getattr(training, f"{side}_step")(make)


def weft_lstm() -> Step:
    """Value and gradient of the LSTM of `benchmarks/loops.py`."""
    import models

    import weft as wf

    params, x = models.lstm_inputs()

    def loss(p: Any, x: Any) -> Any:
        return models.lstm_loss(wf, wf.sigmoid, lambda f, i, xs: wf.scan(f, init=i, xs=xs), p, x)

    step = wf.compile(wf.value_and_grad(loss, argnums=(0, 1)))
    return lambda: step(params, x)


def jax_lstm() -> Step:
    """The same in JAX."""
    import jax
    import models

    params, x = models.lstm_inputs()
    state, batch = [tuple(map(jax.numpy.asarray, params))], (jax.numpy.asarray(x),)

    def loss(p: Any, x: Any) -> Any:
        return models.lstm_loss(jax.numpy, jax.nn.sigmoid, jax.lax.scan, p, x)

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return lambda: jax.block_until_ready(compiled(*state, *batch))


def torch_lstm() -> Step:
    """The same by torch.nn.LSTM."""
    import models

    return models.torch_lstm_step(*models.lstm_inputs())


def resident(what: str = "Rss") -> int:
    """Resident bytes of this process, or of them the "Anonymous" ones."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/smaps_rollup has no {what}")


def most_resident() -> int:
    """The most resident bytes since the mark was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def reset_mark() -> None:
    """Let `most_resident` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def captured(step: Step, name: str) -> Any:
    """The object that a benchmark's step holds under that name, through the closures around it."""
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or (), strict=True))
    if name in cells:
        return cells[name].cell_contents
    if "step" in cells:
        return captured(cells["step"].cell_contents, name)
    raise LookupError(f"the step has no {name}")


def tensor_bytes(step: Step, side: str) -> int:
    """What the tensors of one step besides state and batch take at once."""
    return {"weft": weft_plan, "jax": jax_plan}.get(side, torch_peak)(step)


def jax_plan(step: Step) -> int:
    """Temporaries and new results of JAX's step."""
    compiled, state = captured(step, "compiled"), captured(step, "state")
    analysis = compiled.lower(*state, *jax_batch(step, state)).compile().memory_analysis()
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.temp_size_in_bytes + outputs)


def jax_batch(step: Step, state: list[Any]) -> tuple[Any, ...]:
    """The batch of a JAX step."""
    if len(state) == 1:
        return tuple(captured(step, "batch"))
    names = ("x", "y") if len(state) == 2 else ("x", "labels")
    return tuple(captured(step, name) for name in names)


def weft_plan(step: Step) -> int:
    """Arena with all scratch, and results, of the one specialisation of a weft step."""
    import weft as wf

    held = captured(step, "step")
    while not isinstance(held, wf.CompiledFunction):
        held = captured(held, "step")
    (made,) = held._specializations.entries.values()
    executable = made.on_cpu("a benchmark")
    plan = executable.plan
    scratch = plan.table.scratch_bytes + plan.table.worker_bytes * executable.threads
    return int(plan.arena_bytes + scratch + plan.result_bytes)


def torch_peak(step: Step) -> int:
    """The most bytes alive in PyTorch's allocator during two steps, less the least."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
        step()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    levels = np.cumsum([0, *(size for _, size in changes)])
    return int(levels.max() - levels.min())


def measure(model: str, side: str) -> Figures:
    """In this process: the figures of one contestant."""
    importlib.import_module({"torch.compile": "torch"}.get(side, side))
    if side == "weft":
        function = importlib.import_module("weft.frontend.compile.function")
        vars(function)["compile_ahead"] = lambda: None  # the first step does it
    step = make_step(model, side)
    gc.collect()
    process = most_resident()
    before, anonymous = resident(), resident("Anonymous")
    reset_mark()
    step()
    first = most_resident()
    anonymous = resident("Anonymous") - anonymous
    gc.collect()
    step()
    reset_mark()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        step()
    later = most_resident()
    return {
        "tensors": tensor_bytes(step, side),
        "first": first - before,
        "anonymous": anonymous,
        "later": later - before,
        "process": max(process, first, later),
    }


def in_fresh_process(model: str, side: str, folder: str) -> Figures:
    """`measure` in a process of its own, whose caches on disk are in `folder`."""
    name, _, cache = side.partition(", ")
    environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": f"{folder}/weft-{model}"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache == "empty cache":
        environment["WEFT_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)
    elif name == "jax" and cache:
        environment["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/jax-{model}"
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, __file__, "--measure", model, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def contest(model: str, sides: list[str], repeat: int) -> dict[str, Figures]:
    """The median figures of each side."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in sides:
            if side.endswith("from disk"):
                in_fresh_process(model, side, folder)  # fills the cache
            runs = [in_fresh_process(model, side, folder) for _ in range(repeat)]
            rows[side] = {
                name: statistics.median_low(run[name] or 0 for run in runs) for name in COLUMNS
            }
    return rows


def show(rows: dict[str, dict[str, Figures]]) -> None:
    """The table, in kilobytes."""
    table = Table(title="Memory of a training step, KB")
    for column in ("model", "contestant", *COLUMNS):
        table.add_column(column, justify="left" if column in ("model", "contestant") else "right")
    for model, sides in rows.items():
        for side, figures in sides.items():
            cells = [f"{(figures[name] or 0) / 1024:,.0f}" for name in COLUMNS]
            table.add_row(model, side, *cells)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sides", default="/".join(SIDES), help="separated by /")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("MODEL", "SIDE"))
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    rows = {}
    for model in options.models.split(","):
        sides = [s for s in options.sides.split("/") if (model, s) != ("lstm", "torch.compile")]
        rows[model] = contest(model, sides, options.repeat)
    show(rows)
    if options.json:
        harness = importlib.import_module("harness")
        held = {"title": "Memory of a training step", "machine": harness.machine(), "bytes": rows}
        Path(options.json).write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
