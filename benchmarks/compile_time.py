"""What compiling the Figure 1 step costs in a fresh process, and what a new batch size costs.

    python benchmarks/compile_time.py [--repeat 5]

Prints minima and medians: seconds to import, to the first result (tracing, passes, kernels), and to
the first result at another batch size, with the number of kernels compiled; the same for JAX.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

_CHILD = """
import json, sys, time
sys.path.insert(0, {here!r})
t = [time.perf_counter()]
{imports}
t.append(time.perf_counter())
import numpy as np, figure1
rng = np.random.default_rng(1)
params = figure1.start(rng)
batches = [figure1.batch_of(rng, n) for n in (128, 96)]
{setup}
count = []
for x, y in batches:
    started = time.perf_counter()
    step(x, y)
    t.append(time.perf_counter() - started)
    count.append({compiled})
print(json.dumps([t[1] - t[0], t[2], t[3], *count]))
"""
_SIDES = {
    "weft": (
        "import weft, numba",
        "import weft.codegen.jit as jit; step = figure1.weft_step(params)",
        "jit.compile_count()",
    ),
    "jax": (
        "import jax, jax.numpy; jax.numpy.zeros(1).block_until_ready()",
        "step = figure1.jax_step(params)",
        "0",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    here = __file__.rsplit("/", 1)[0]
    rows: dict[str, list[list[float]]] = {name: [] for name in _SIDES}
    for _ in range(options.repeat):
        for name, (imports, setup, compiled) in _SIDES.items():
            code = _CHILD.format(here=here, imports=imports, setup=setup, compiled=compiled)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            rows[name].append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(title="Figure 1 step in a fresh process: seconds, minimum / median")
    for column in ("", "import", "first step, batch 128", "first step, batch 96", "kernels"):
        table.add_column(column)
    for name, runs in rows.items():
        columns = list(zip(*runs, strict=True))
        cells = [f"{min(c):.3f} / {statistics.median(c):.3f}" for c in columns[:3]]
        first, second = columns[3][0], columns[4][0] - columns[3][0]
        table.add_row(name, *cells, f"{first:.0f}, then {second:.0f}" if name == "weft" else "")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
