"""What `passes="reproducible"` costs: training steps, row kernels and chains against themselves.

    python benchmarks/reproducible.py [--json benchmarks/reproducible.json] [--rounds 30]

Needs no peer: both columns are weft. Above 1, the standard pipeline is so many times faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import compare, report
from models import conv_net, gpt, mlp
from vocabulary import Weft

import weft as wf
from weft.frontend.tools.bench_workloads import CHAINS

PIPELINES = {"weft": "standard", "reproducible": "reproducible"}


def rows(x: Any) -> Any:
    """Layer norm, then softmax."""
    centred = x - wf.mean(x, axis=1, keepdims=True)
    normal = centred * wf.rsqrt(wf.mean(centred * centred, axis=1, keepdims=True) + 1e-5)
    return wf.nn.softmax(normal)


def training(make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
    """A training step by each pipeline."""

    def step_of(passes: str) -> Callable[[], object]:
        model = make()
        params = {k: wf.Variable(p) for k, p in model.params.items()}
        optimizer = wf.train.Adam(1e-3)

        def step(x: Any, labels: Any) -> Any:
            loss = model.loss(Weft, params, x, labels)
            optimizer.minimize(loss)
            return loss

        compiled = wf.compile(step, passes=passes)
        return lambda: compiled(model.x, model.labels)

    return {name: step_of(passes) for name, passes in PIPELINES.items()}


def calls(f: Callable[..., Any], arrays: list[Any]) -> dict[str, Callable[[], object]]:
    """A function by each pipeline."""
    made = {n: wf.compile(lambda *a: f(*a), passes=p) for n, p in PIPELINES.items()}
    return {n: partial(run, *arrays) for n, run in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4096, 1024), dtype=np.float32)
    chain = [rng.standard_normal(2**22, dtype=np.float32) for _ in range(3)]
    w, v = rng.standard_normal((2048, 2048), dtype=np.float32), x[:1, :].repeat(2, 1)
    models: dict[str, Callable[[], Any]] = {
        "MLP, training step": mlp,
        "GPT block, training step": lambda: gpt(lambda mask: mask),
        "conv net, training step": conv_net,
    }
    contests = {name: training(make) for name, make in models.items()}
    contests["layer norm and softmax, 4096 x 1024"] = calls(rows, [x])
    contests["sum of a product, 2^22"] = calls(lambda a, b, c: wf.sum(a * b), chain)
    contests["1 x 2048 times 2048 x 2048"] = calls(lambda v, w: v @ w, [v, w])
    for f in CHAINS:
        contests[f"{f.__name__}, 2^22"] = calls(lambda *a, f=f: f(Weft, *a), chain)
    found = [compare(name, runs, rounds=options.rounds) for name, runs in contests.items()]
    report("reproducible against standard", found, options.json)


if __name__ == "__main__":
    main()
