"""What one call of a compiled function costs, beside the work: arrays of 4 floats.

Against JAX with arrays on its device, and against NumPy where one function does the same. Also what
`Session.run` of a compiled step costs.

python benchmarks/call.py [--json benchmarks/call.json] [--rounds 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf


def add_all(*xs: Any) -> Any:
    """The sum of the arguments."""
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def scale(params: Any, rate: Any) -> Any:
    """A nested dict of parameters, each scaled."""
    return {k: {n: p * rate for n, p in layer.items()} for k, layer in params.items()}


def contest(name: str, f: Callable[..., Any], args: tuple[Any, ...], numpy: Any, rounds: int,
            tensors: bool = False) -> Comparison:  # fmt: skip
    """Time the same call in weft, JAX and (if given) NumPy."""
    import jax

    mine, theirs = wf.compile(f), jax.jit(f)
    given = jax.tree.map(wf.asarray, args) if tensors else args
    on_device = jax.tree.map(jax.numpy.asarray, args)
    contestants = {
        "weft": lambda: mine(*given),
        "jax": lambda: jax.block_until_ready(theirs(*on_device)),
    }
    if numpy is not None:
        contestants["numpy"] = lambda: numpy(*args)
    return compare(name, contestants, rounds=rounds, inner=500)


def session(rounds: int) -> Comparison:
    """Two feeds, two fetches; the peer is the same step as a compiled function."""
    with wf.Graph().as_default() as graph:
        x, y = (wf.placeholder(wf.float32, [4], name=n) for n in "xy")
        fetches = [x + y, x * y]
    run = wf.Session(graph=graph).run
    f = wf.compile(lambda x, y: [x + y, x * y])
    a = np.ones(4, np.float32)
    contestants = {"weft": lambda: run(fetches, {x: a, y: a}), "compiled": lambda: f(a, a)}
    return compare("Session.run, 2 feeds, 2 fetches", contestants, rounds=rounds, inner=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    a, one = np.ones(4, np.float32), np.float32(1)
    params = {f"layer{i}": {"w": a, "b": a} for i in range(10)}
    rounds = options.rounds
    rows = [
        contest("a + 1", lambda x: x + 1, (a,), lambda x: x + one, rounds),
        contest("a + 1, a tensor", lambda x: x + 1, (a,), lambda x: x + one, rounds, tensors=True),
        contest("a + b", add_all, (a, a), np.add, rounds),
        contest("sum of 8 arguments", add_all, (a,) * 8, add_all, rounds),
    ]
    report("One call on 4 x f32", rows, options.json)
    nested = [
        contest("a dict of 20 parameters", scale, (params, one), None, max(rounds // 5, 5)),
        contest("... of tensors", scale, (params, one), None, max(rounds // 5, 5), tensors=True),
    ]
    report("One call on nested arguments", nested, None)
    report("One step of a session", [session(rounds)], None)


if __name__ == "__main__":
    main()
