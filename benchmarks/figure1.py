"""The paper's Figure 1 step (784-100-10, ReLU, softmax cross entropy, Adagrad) against JAX.

    python benchmarks/figure1.py [--json benchmarks/figure1.json] [--rounds 300]

Needs the `bench` extra. Both sides update their parameters in place (JAX by donation) and return
the loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

LEARNING_RATE = 0.01
Params = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def start(rng: np.random.Generator) -> Params:
    """The same initial weights for every contestant."""
    return {
        "w1": rng.uniform(-0.05, 0.05, (784, 100)).astype(np.float32),
        "b1": np.zeros(100, np.float32),
        "w2": rng.uniform(-0.05, 0.05, (100, 10)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }


def weft_step(params: Params) -> Callable[[Any, Any], Any]:
    """The decorated step over weft variables."""
    v = {k: wf.Variable(p) for k, p in params.items()}
    optimizer = wf.train.AdagradOptimizer(LEARNING_RATE)

    @wf.compile
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        hidden = wf.nn.relu(wf.matmul(x, v["w1"]) + v["b1"])
        logits = wf.matmul(hidden, v["w2"]) + v["b2"]
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer.minimize(loss)
        return loss

    return step


def jax_step(params: Params) -> Callable[[Any, Any], Any]:
    """The same step in JAX, parameters and accumulators donated."""
    import jax
    import jax.numpy as jnp

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ p["w1"] + p["b1"])
        logits = hidden @ p["w2"] + p["b2"]
        return jnp.mean(-jnp.sum(y * jax.nn.log_softmax(logits), axis=-1))

    def update(p: Any, acc: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        acc = jax.tree.map(lambda a, d: a + d * d, acc, g)
        p = jax.tree.map(lambda w, d, a: w - LEARNING_RATE * d / jnp.sqrt(a), p, g, acc)
        return p, acc, loss

    compiled = jax.jit(update, donate_argnums=(0, 1))
    state = [
        jax.tree.map(jnp.asarray, params),
        jax.tree.map(lambda p: jnp.full_like(p, 0.1), params),
    ]

    def step(x: Any, y: Any) -> Any:
        state[0], state[1], loss = compiled(state[0], state[1], x, y)
        return loss.block_until_ready()

    return step


def check_same(batch: int) -> None:
    """Twenty steps must give the same losses on both sides before anything is timed."""
    rng = np.random.default_rng(0)
    params = start(rng)
    mine, theirs = weft_step(params), jax_step(params)
    for _ in range(20):
        x, y = batch_of(rng, batch)
        np.testing.assert_allclose(float(mine(x, y)), float(theirs(x, y)), rtol=1e-4)


def batch_of(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    """Random images and one-hot labels."""
    x = rng.random((size, 784), dtype=np.float32)
    return x, np.eye(10, dtype=np.float32)[rng.integers(0, 10, size)]


def run(batch: int, rounds: int) -> Comparison:
    """One batch size."""
    rng = np.random.default_rng(1)
    params, (x, y) = start(rng), batch_of(rng, batch)
    mine, theirs = weft_step(params), jax_step(params)
    contestants = {"weft": lambda: mine(x, y), "jax": lambda: theirs(x, y)}
    # blocks of some milliseconds: one side's threads, still spinning, must not slow the other
    inner = 5 if batch > 500 else 20
    return compare(f"Figure 1 step, batch {batch}", contestants, rounds=rounds, inner=inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    check_same(32)
    rows = [run(batch, options.rounds) for batch in (1, 32, 128, 1024)]
    report("Figure 1 training step", rows, options.json)


if __name__ == "__main__":
    main()
