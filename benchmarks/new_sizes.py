"""What a batch size costs that never came before: beyond a call of that size, in a process.

    python benchmarks/new_sizes.py [--json benchmarks/new_sizes.json] [--sizes 60]

A classifier of 784-256-10 with ReLU and log softmax: weft with `input_signature=` (one trace for
all sizes), weft traced for each size, jax.jit, one after the other for each size. That all give
the same numbers is checked for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf

Array = np.ndarray[Any, Any]
AGAIN = 5  # calls of a size that is known: the least of them is what a call takes
WARM_UP = 5  # sizes that nobody counts: the first of them compile kernels


def logits(x: Any, first: Any, second: Any) -> Any:
    out = wf.nn.relu(x @ first) @ second
    return out - wf.logsumexp(out, axis=1, keepdims=True)


def sides() -> dict[str, Callable[..., Any]]:
    kinds = [(None, 784), (784, 256), (256, 10)]
    signature = [wf.TensorType(wf.float32, shape) for shape in kinds]
    found: dict[str, Callable[..., Any]] = {
        "weft, input_signature": wf.compile(logits, input_signature=signature),
        "weft, traced for each": wf.compile(logits),
    }
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return found

    def theirs(x: Any, first: Any, second: Any) -> Any:
        out = jnp.maximum(x @ first, 0.0) @ second
        return out - jax.scipy.special.logsumexp(out, axis=1, keepdims=True)

    return {**found, "jax": jax.jit(theirs)}


def seconds(function: Callable[..., Any], *args: Array) -> float:
    started = time.perf_counter()
    np.asarray(function(*args))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--sizes", type=int, default=60)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s, np.float32) for s in ((784, 256), (256, 10)))
    found = sides()
    spent: dict[str, list[float]] = {name: [] for name in found}
    for number, size in enumerate(range(40, 40 + WARM_UP + args.sizes)):
        x: Array = rng.standard_normal((size, 784), np.float32)
        new, results = {}, []
        for name, function in found.items():
            new[name] = seconds(function, x, first, second)
            again = min(seconds(function, x, first, second) for _ in range(AGAIN))
            new[name] -= again
            results.append(np.asarray(function(x, first, second)))
        for other in results[1:]:
            np.testing.assert_allclose(other, results[0], rtol=1e-3, atol=1e-2)
        if number >= WARM_UP:
            for name, took in new.items():
                spent[name].append(took)
    rows = {n: [min(s) * 1e6, statistics.median(s) * 1e6] for n, s in spent.items()}
    print("a new size beyond a call of that size, us (min / median)")
    for name, (least, middle) in rows.items():
        print(f"  {name:<24}{least:>10,.0f} / {middle:,.0f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
