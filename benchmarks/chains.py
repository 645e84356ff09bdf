"""Fused elementwise chains and row kernels against NumPy, JAX and torch.compile; memory traffic.

    python benchmarks/chains.py [--json benchmarks/chains.json] [--rounds 50] [--only mish]

Needs the `bench` extra; torch.compile needs a C++ compiler. The lines below the table compare the
chains over 2^24 elements with a copy, counted as STREAM does: a copy moves 8 bytes for an element,
a chain of three operands 16.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf
from weft.frontend.tools.bench_workloads import (
    CHAINS,
    NumPy,
    Weft,
    jax_vocabulary,
    torch_vocabulary,
)


def softmax(m: Any, x: Any) -> Any:
    """Row softmax in its parts, as the array API has them."""
    e = m.exp(x - m.max(x, axis=1, keepdims=True))
    return e / m.sum(e, axis=1, keepdims=True)


def contest(name: str, f: Callable[..., Any], arrays: list[Any], rounds: int) -> Comparison:
    """Check that all agree, then time them."""
    import jax
    import jax.numpy as jnp
    import torch

    mine = wf.compile(lambda *a: f(Weft, *a))
    alone = wf.compile(lambda *a: f(Weft, *a), threads=1)
    vocabulary, torch_words = jax_vocabulary(), torch_vocabulary()
    theirs = jax.jit(lambda *a: f(vocabulary, *a))
    torch._dynamo.reset()  # or all chains count as recompilations of one lambda
    compiled = torch.compile(lambda *a: f(torch_words, *a))
    on_device = [jnp.asarray(a) for a in arrays]
    tensors = [torch.from_numpy(a) for a in arrays]
    expected = np.asarray(theirs(*on_device))
    for got in (mine(*arrays), compiled(*tensors)):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-5, atol=2e-6)
    contestants = {
        "weft": lambda: mine(*arrays),
        "weft, 1 thread": lambda: alone(*arrays),
        "jax": lambda: theirs(*on_device).block_until_ready(),
        "torch.compile": lambda: compiled(*tensors),
        "numpy": lambda: f(NumPy, *arrays),
    }
    return compare(name, contestants, rounds=rounds)


def print_traffic(arrays: list[Any], rounds: int) -> None:
    """What the chains move for these operands, beside a copy of one in the same rounds."""
    nbytes = arrays[0].nbytes
    for title, threads in (("default threads", None), ("1 thread", 1)):
        copy = wf.compile(lambda x: -x, threads=threads)
        runs: dict[str, Callable[[], object]] = {"copy": partial(copy, arrays[0])}
        for f in CHAINS:
            chain = wf.compile(partial(f, Weft), threads=threads)
            runs[f.__name__] = partial(chain, *arrays)
        least = {n: t.minimum for n, t in compare("", runs, rounds=rounds).timings.items()}
        print(f"{title}: a copy moves {2e-9 * nbytes / least['copy']:.1f} GB/s")
        for name, seconds in list(least.items())[1:]:
            share = 2 * least["copy"] / seconds
            print(f"  {name}: {4e-9 * nbytes / seconds:.1f} GB/s, {share:.0%} of that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default="", help="part of a chain's name")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    for exponent in (20, 24):
        arrays = [rng.standard_normal(2**exponent, dtype=np.float32) for _ in range(3)]
        rounds = options.rounds if exponent == 20 else max(5, options.rounds // 5)
        for f in CHAINS:
            if options.only in f.__name__:
                rows.append(contest(f"{f.__name__}, 2^{exponent} f32", f, arrays, rounds))
    if options.only in "softmax":
        x = rng.standard_normal((4096, 1024), dtype=np.float32)
        rows.append(contest("softmax rows 4096 x 1024", softmax, [x], max(5, options.rounds // 2)))
    report("Fused chains", rows, options.json)
    print_traffic(arrays, options.rounds)


if __name__ == "__main__":
    main()
