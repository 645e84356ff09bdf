"""Fused elementwise chains and row kernels against NumPy and JAX.

python benchmarks/chains.py [--json benchmarks/chains.json] [--rounds 50]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf


def gelu_chain(m: Any, x: Any, w: Any, b: Any) -> Any:
    """gelu(x * w + b), tanh form."""
    v = x * w + b
    return 0.5 * v * (1 + m.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))


def normal_pdf(m: Any, x: Any, w: Any, b: Any) -> Any:
    """Normal density at x, mean b, deviation |w| + 1."""
    s = m.abs(w) + 1
    z = (x - b) / s
    return m.exp(-0.5 * z * z) / (s * math.sqrt(2 * math.pi))


def mish(m: Any, x: Any, w: Any, b: Any) -> Any:
    """x tanh(softplus(x)) of x * w + b."""
    v = x * w + b
    return v * m.tanh(m.log1p(m.exp(v)))


def softmax(m: Any, x: Any) -> Any:
    """Row softmax."""
    e = m.exp(x - m.max(x, axis=1, keepdims=True))
    return e / m.sum(e, axis=1, keepdims=True)


def contest(name: str, f: Callable[..., Any], arrays: list[Any], rounds: int) -> Comparison:
    """Check that all agree, then time them."""
    import jax
    import jax.numpy as jnp

    mine = wf.compile(lambda *a: f(wf, *a))
    theirs = jax.jit(lambda *a: f(jnp, *a))
    on_device = [jnp.asarray(a) for a in arrays]
    np.testing.assert_allclose(
        np.asarray(mine(*arrays)), np.asarray(theirs(*on_device)), rtol=2e-5, atol=2e-6
    )
    contestants = {
        "weft": lambda: mine(*arrays),
        "jax": lambda: theirs(*on_device).block_until_ready(),
        "numpy": lambda: f(np, *arrays),
    }
    return compare(name, contestants, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    for exponent in (20, 24):
        arrays = [rng.standard_normal(2**exponent, dtype=np.float32) for _ in range(3)]
        rounds = options.rounds if exponent == 20 else max(5, options.rounds // 5)
        for f in (gelu_chain, normal_pdf, mish):
            rows.append(contest(f"{f.__name__}, 2^{exponent} f32", f, arrays, rounds))
    x = rng.standard_normal((4096, 1024), dtype=np.float32)
    rows.append(contest("softmax rows 4096 x 1024", softmax, [x], max(5, options.rounds // 2)))
    report("Fused chains, one weft thread", rows, options.json)


if __name__ == "__main__":
    main()
