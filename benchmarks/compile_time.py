"""What compiling a training step costs in a fresh process, and what a new batch size costs.

    python benchmarks/compile_time.py [--models figure1,mlp,gpt,conv,lstm,softmax,deep] [--repeat 5]

Each run is a process of its own: weft with an empty cache on disk, weft with the cache that the run
before left, JAX (without its persistent cache), in turn. Prints minima and medians of the seconds
to import, to the first result (tracing, passes, kernels), of all threads' processor time for that,
and to the first result at another batch size, with the kernels compiled and loaded from disk.
Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Step = Callable[[], Any]
SIDES = ("weft, empty cache", "weft, from disk", "jax")
MODELS = ("figure1", "mlp", "gpt", "conv", "lstm", "softmax", "deep")
LAYERS = 100  # of "deep"


def figure1_steps(side: str) -> list[Step]:
    """The Figure 1 step on 128 and on 96 images."""
    import figure1

    rng = np.random.default_rng(1)
    params = figure1.start(rng)
    batches = [figure1.batch_of(rng, size) for size in (128, 96)]
    step = (figure1.jax_step if side == "jax" else figure1.weft_step)(params)
    return [partial(step, *batch) for batch in batches]


def training_steps(side: str, name: str) -> list[Step]:
    """A step of `benchmarks/training.py`, which has one batch size."""
    import training

    make = training.MODELS[name]
    return [(training.jax_step if side == "jax" else training.weft_step)(make)]


def _ready(function: Callable[..., Any], *given: Any) -> Any:
    """What JAX computes, waited for."""
    import jax

    return jax.block_until_ready(function(*given))


def lstm_steps(side: str) -> list[Step]:
    """Value and gradient of the LSTM of `benchmarks/loops.py`, of 16 and of 8 sequences."""
    import models

    inputs = [models.lstm_inputs(batch) for batch in (16, 8)]
    if side == "jax":
        import jax

        def loss(p: Any, x: Any) -> Any:
            return models.lstm_loss(jax.numpy, jax.nn.sigmoid, jax.lax.scan, p, x)

        theirs = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        return [partial(_ready, theirs, *given) for given in inputs]
    import weft as wf

    def scan(f: Any, init: Any, xs: Any) -> Any:
        return wf.scan(f, init=init, xs=xs)

    mine = wf.compile(
        wf.value_and_grad(lambda p, x: models.lstm_loss(wf, wf.sigmoid, scan, p, x), argnums=(0, 1))
    )
    return [partial(mine, *given) for given in inputs]


def softmax_steps(side: str) -> list[Step]:
    """Row softmax over 4096 x 1024 and 512 x 1024."""
    import chains

    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 1024), dtype=np.float32) for n in (4096, 512)]
    if side == "jax":
        import jax

        compiled = jax.jit(lambda x: chains.softmax(jax.numpy, x))
        return [partial(_ready, compiled, x) for x in arrays]
    import weft as wf

    mine = wf.compile(lambda x: chains.softmax(wf, x))
    return [partial(mine, x) for x in arrays]


def deep_loss(m: Any, gelu: Callable[[Any], Any], params: Any, x: Any, y: Any) -> Any:
    """Many equal layers: layer norm, matmul, gelu, residual; the mean square of the error."""
    for w, b, scale, shift in params:
        d = x - m.mean(x, axis=-1, keepdims=True)
        h = d / m.sqrt(m.mean(d * d, axis=-1, keepdims=True) + 1e-5) * scale + shift
        x = x + gelu(m.matmul(h, w) + b)
    return m.mean((x - y) ** 2)


def deep_steps(side: str) -> list[Step]:
    """A step of Adam for a net of `LAYERS` layers of 64 x 64."""
    rng = np.random.default_rng(1)
    params = []
    for _ in range(LAYERS):
        w = 0.05 * rng.standard_normal((64, 64), dtype=np.float32)
        params.append([w, *(np.full(64, v, np.float32) for v in (0, 1, 0))])
    x, y = (rng.standard_normal((32, 64), dtype=np.float32) for _ in range(2))
    if side == "jax":
        import jax

        each = jax.tree_util.tree_map

        def theirs(p: Any, m: Any, v: Any, t: Any) -> Any:
            loss, g = jax.value_and_grad(partial(deep_loss, jax.numpy, jax.nn.gelu))(p, x, y)
            t = t + 1
            m = each(lambda a, b: 0.9 * a + 0.1 * b, m, g)
            v = each(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
            rate = 1e-3 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
            p = each(lambda p, m, v: p - rate * m / (jax.numpy.sqrt(v) + 1e-8), p, m, v)
            return loss, p, m, v, t

        zeros = each(np.zeros_like, params)
        return [partial(_ready, jax.jit(theirs), params, zeros, zeros, np.float32(0))]
    import weft as wf

    held = [[wf.Variable(v) for v in layer] for layer in params]
    optimizer = wf.train.Adam(1e-3)

    @wf.compile
    def mine(x: Any, y: Any) -> Any:
        loss = deep_loss(wf, partial(wf.nn.gelu, approximate=True), held, x, y)
        optimizer.minimize(loss)
        return loss

    return [partial(mine, x, y)]


def child(side: str, model: str) -> None:
    """Measure in this process; prints one line of JSON."""
    started = time.perf_counter()
    if side == "jax":
        importlib.import_module("jax.numpy").zeros(1).block_until_ready()
    else:
        importlib.import_module("weft")
    seconds = [time.perf_counter() - started]
    others = {
        "figure1": figure1_steps, "lstm": lstm_steps, "softmax": softmax_steps, "deep": deep_steps,
    }  # fmt: skip
    steps = others[model](side) if model in others else training_steps(side, model)
    for step in steps:
        started, busy = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - started)
        if len(seconds) == 2:
            seconds.append(time.process_time() - busy)
        if side != "jax" and len(seconds) == 3:
            # the pool's code, too, for which the first call does not wait
            importlib.import_module("weft.runtime.native.pool").POOL.enter(None, 0)
            jit = importlib.import_module("weft.codegen.llvm.jit")
            first = jit.compile_count(), jit.load_count()
    counts = [] if side == "jax" else [*first, jit.compile_count() + jit.load_count() - sum(first)]
    print(json.dumps({"seconds": seconds, "counts": counts}))


def measure(model: str, repeat: int) -> dict[str, list[dict[str, Any]]]:
    """`repeat` runs of each side, in turn."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": folder}
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
            for side in SIDES:
                command = [sys.executable, __file__, "--child", side.partition(",")[0], model]
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    raise SystemExit(done.stderr)
                runs[side].append(json.loads(done.stdout.splitlines()[-1]))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--child", nargs=2, metavar=("SIDE", "MODEL"), help="one run, as JSON")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    from rich.console import Console
    from rich.table import Table

    everything = {}
    for model in options.models.split(","):
        runs = everything[model] = measure(model, options.repeat)
        table = Table(title=f"{model} in a fresh process: seconds, minimum / median")
        for column in (
            "",
            "import",
            "first step",
            "processor",
            "next size",
            "compiled, loaded, later",
        ):
            table.add_column(column)
        for side, rows in runs.items():
            columns = zip(*(row["seconds"] for row in rows), strict=True)
            cells = [f"{min(c):.3f} / {statistics.median(c):.3f}" for c in columns]
            cells += [""] * (4 - len(cells))
            table.add_row(side, *cells, ", ".join(map(str, rows[0]["counts"])))
        Console(width=120).print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
