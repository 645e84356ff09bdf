"""Transformations: a batch by `vmap` beside one written by hand, gradients of each example, and
products with a Hessian beside a gradient. The peer is JAX, with the same programs.

python benchmarks/transforms.py [--json benchmarks/transforms.json] [--rounds 60]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

Program = Callable[..., Any]


def mlp(xp: Any, params: Any, x: Any) -> Any:
    """Two hidden layers, for one example or a batch."""
    for k, (w, b) in enumerate(params):
        x = x @ w + b
        if k < len(params) - 1:
            x = xp.tanh(x)
    return x


def parameters(widths: tuple[int, ...]) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Weights and biases of the layers."""
    rng = np.random.default_rng(0)
    return [
        ((rng.standard_normal((a, b)) / a**0.5).astype(np.float32), np.zeros(b, np.float32))
        for a, b in pairwise(widths)
    ]


def contest(
    name: str, mine: Program, theirs: Program, args: tuple[Any, ...], rounds: int, inner: int,
    **more: Callable[[], Any],
) -> Comparison:  # fmt: skip
    """weft's compiled function beside JAX's."""
    import jax

    given = jax.tree.map(jax.numpy.asarray, args)
    f, g = wf.compile(mine), jax.jit(theirs)
    contestants = {
        "weft": lambda: f(*args),
        "jax": lambda: jax.block_until_ready(g(*given)),
        **more,
    }
    return compare(name, contestants, rounds=rounds, inner=inner)


def forward_and_gradients(rounds: int, params: Any, xs: Any, ys: Any) -> list[Comparison]:
    """The network by `vmap`, and the gradient of each example's loss."""
    import jax
    import jax.numpy as jnp

    by_hand = wf.compile(lambda p, x: mlp(wf, p, x))
    what = f"MLP 64-128-128-10, batch {len(xs)}"
    return [
        contest(
            f"{what}: forward by vmap",
            wf.vmap(lambda p, x: mlp(wf, p, x), in_axes=(None, 0)),
            jax.vmap(lambda p, x: mlp(jnp, p, x), in_axes=(None, 0)),
            (params, xs),
            rounds,
            10,
            by_hand=lambda: by_hand(params, xs),
        ),
        contest(
            f"{what}: gradient of each example",
            wf.vmap(wf.grad(lambda p, x, y: loss(wf, p, x, y)), in_axes=(None, 0, 0)),
            jax.vmap(jax.grad(lambda p, x, y: loss(jnp, p, x, y)), in_axes=(None, 0, 0)),
            (params, xs, ys),
            rounds,
            3,
        ),
    ]


def hessian_product(rounds: int, params: Any, xs: Any, ys: Any) -> Comparison:
    """The Hessian of the whole loss times the parameters; the peer `gradient` is weft's."""
    import jax
    import jax.numpy as jnp

    gradient = wf.compile(wf.grad(lambda p, x, y: loss(wf, p, x, y)))

    def theirs(p: Any, t: Any, x: Any, y: Any) -> Any:
        return jax.jvp(jax.grad(lambda q: loss(jnp, q, x, y)), (p,), (t,))[1]

    return contest(
        f"MLP 64-128-128-10, batch {len(xs)}: product with the Hessian",
        lambda p, t, x, y: wf.hvp(lambda q: loss(wf, q, x, y), (p,), (t,)),
        theirs,
        (params, params, xs, ys),
        rounds,
        5,
        gradient=lambda: gradient(params, xs, ys),
    )


def loss(xp: Any, params: Any, x: Any, y: Any) -> Any:
    """The squared error, summed."""
    return xp.sum((mlp(xp, params, x) - y) ** 2)


def cases(rounds: int) -> list[Comparison]:
    """All programs."""
    params = parameters((64, 128, 128, 10))
    rng = np.random.default_rng(1)
    out = []
    for batch in (16, 256):
        xs = rng.standard_normal((batch, 64)).astype(np.float32)
        ys = rng.standard_normal((batch, 10)).astype(np.float32)
        out += forward_and_gradients(rounds, params, xs, ys)
        out.append(hessian_product(rounds, params, xs, ys))
    return out


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    report("Transformations", cases(given.rounds), given.json)


if __name__ == "__main__":
    main()
