"""Elementary functions, one op on an array that stays in cache: ns per element, one thread.

python benchmarks/vector_math.py [--json benchmarks/vector_math.json] [--rounds 200] [--ops sin,cos]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
from harness import Comparison, compare, report

import weft as wf

SIZE = 1 << 15  # float32: 128 KiB in, as much out
_SCIPY = {"sigmoid": "expit", "lgamma": "gammaln", "digamma": "psi"}
_JAX_SPECIAL = {"erf", "erfc", "lgamma", "digamma"}
BINARY = ("atan2", "power", "hypot", "logaddexp", "remainder", "floor_divide")
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "asinh"),
    *("acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sqrt", "rsqrt", "lgamma", "digamma"),
)


def arguments(op: str, dtype: type[np.floating[Any]]) -> list[np.ndarray[Any, Any]]:
    """Ordinary arguments, inside the function's domain."""
    draw = np.random.default_rng(0)
    low, high = {
        "acosh": (1.0, 9.0),
        **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-0.95, 0.95)),
        **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt"), (0.1, 9.0)),
        **dict.fromkeys(("power", "lgamma", "digamma"), (0.1, 9.0)),
    }.get(op, (-4.0, 4.0))
    count = 2 if op in BINARY else 1
    return [draw.uniform(low, high, SIZE).astype(dtype) for _ in range(count)]


def numpy_function(op: str) -> Callable[..., Any]:
    """NumPy's, or SciPy's where NumPy has none."""
    if op == "rsqrt":
        return lambda x: 1 / np.sqrt(x)
    found = getattr(np, op, None) or getattr(scipy.special, _SCIPY.get(op, op))
    return found  # type: ignore[no-any-return]


def jax_function(op: str) -> Callable[..., Any]:
    """JAX's function of that name."""
    import jax
    import jax.numpy as jnp

    if op == "erfinv":
        return jax.scipy.special.erfinv
    if op == "sigmoid":
        return jax.nn.sigmoid
    if op == "rsqrt":
        return jax.lax.rsqrt
    return getattr(jax.lax, op) if op in _JAX_SPECIAL else getattr(jnp, op)


def contest(op: str, dtype: type[np.floating[Any]], rounds: int) -> Comparison:
    """Check that all agree, then time them."""
    import jax
    import jax.numpy as jnp

    arrays = arguments(op, dtype)
    f = wf.pow if op == "power" else getattr(wf, op, None) or getattr(wf.nn, op)
    mine = wf.compile(lambda *a: f(*a), threads=1)
    theirs = jax.jit(jax_function(op))
    plain = numpy_function(op)
    on_device = [jnp.asarray(a) for a in arrays]
    tolerance = 2e-4 if dtype is np.float32 else 1e-11
    for other in (theirs(*on_device), plain(*arrays)):
        np.testing.assert_allclose(mine(*arrays), other, rtol=tolerance, atol=tolerance)
    contestants = {
        "weft": lambda: mine(*arrays),
        "jax": lambda: theirs(*on_device).block_until_ready(),
        "numpy": lambda: plain(*arrays),
    }
    return compare(f"{op} {np.dtype(dtype).name}", contestants, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--ops", default=",".join((*UNARY, *BINARY)))
    options = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    rows = [
        contest(op, dtype, options.rounds)
        for dtype in (np.float32, np.float64)
        for op in options.ops.split(",")
    ]
    report(f"One function over {SIZE} elements", rows, options.json)
    for row in rows:
        per_element = {n: t.minimum / SIZE * 1e9 for n, t in row.timings.items()}
        print(row.workload, " ".join(f"{n} {v:.3f} ns" for n, v in per_element.items()))


if __name__ == "__main__":
    main()
