"""What one call of a compiled function costs: `a + 1` on 4 floats, against JAX and NumPy.

python benchmarks/call.py [--json benchmarks/call.json]
"""

from __future__ import annotations

import argparse

import numpy as np
from harness import compare, report

import weft as wf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    options = parser.parse_args()
    import jax

    a = np.ones(4, np.float32)
    on_device = jax.numpy.asarray(a)
    plus_one = wf.compile(lambda x: x + 1)
    jax_plus_one = jax.jit(lambda x: x + 1)
    contestants = {
        "weft": lambda: plus_one(a),
        "jax": lambda: jax_plus_one(on_device).block_until_ready(),
        "numpy": lambda: a + np.float32(1),
    }
    report(
        "One call", [compare("a + 1, 4 x f32", contestants, rounds=200, inner=500)], options.json
    )


if __name__ == "__main__":
    main()
