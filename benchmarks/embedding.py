"""A step on an embedding table, 100000 x 64 f32, 1024 ids, against JAX and PyTorch.

    python benchmarks/embedding.py [--json benchmarks/embedding.json] [--rounds 60]

The loss is the mean square distance of the looked-up rows from given ones; SGD or Adagrad changes
the table. JAX's step is jitted and donates its tables; PyTorch's `Embedding` makes sparse gradients
(and, as a second contestant, dense ones). All use the threads that they choose. Needs the `bench`
extra.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from harness import Comparison, compare, report

import weft as wf

ROWS, WIDTH, IDS = 100_000, 64, 1024
RATE, START = 0.1, 0.1
Array = np.ndarray[Any, Any]
Step = Callable[[], Any]


def weft_step(optimizer: str, table: Array, ids: Array, y: Array) -> Step:
    """One compiled step; gives the table before it."""
    w = wf.Variable(table)
    made = wf.train.SGD(RATE) if optimizer == "SGD" else wf.train.Adagrad(RATE, START)

    @wf.compile
    def step(ids: Any, y: Any) -> Any:
        loss = wf.mean(wf.square(wf.nn.embedding_lookup(w, ids) - y))
        made.minimize(loss, [w])
        return loss

    return lambda: step(ids, y).numpy()


def jax_step(optimizer: str, table: Array, ids: Array, y: Array) -> Step:
    """One jitted step whose tables are donated."""

    def loss_of(w: Any, ids: Any, y: Any) -> Any:
        return jnp.mean((w[ids] - y) ** 2)

    def update(w: Any, accum: Any, ids: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, ids, y)
        if optimizer == "SGD":
            return w - RATE * g, accum, loss
        accum = accum + g * g
        return w - RATE * g * jax.lax.rsqrt(accum), accum, loss

    compiled = jax.jit(update, donate_argnums=(0, 1))
    shape = table.shape if optimizer == "Adagrad" else (1,)
    held = [jnp.array(table), jnp.full(shape, START, jnp.float32)]
    given = jnp.array(ids), jnp.array(y)

    def step() -> Any:
        *held[:], loss = compiled(*held, *given)
        return np.asarray(jax.block_until_ready(loss))

    return step


def torch_step(optimizer: str, table: Array, ids: Array, y: Array, sparse: bool) -> Step:
    """One eager step, with sparse or dense gradients of the table."""
    layer = torch.nn.Embedding(ROWS, WIDTH, sparse=sparse)
    layer.weight.data = torch.from_numpy(table.copy())
    optim: Any = torch.optim
    made = (
        optim.SGD(layer.parameters(), lr=RATE)
        if optimizer == "SGD"
        else optim.Adagrad(layer.parameters(), lr=RATE, initial_accumulator_value=START)
    )
    index, wanted = torch.from_numpy(ids), torch.from_numpy(y)

    def step() -> Any:
        made.zero_grad()
        loss = ((layer(index) - wanted) ** 2).mean()
        loss.backward()
        made.step()
        return loss.detach().numpy()

    return step


def contest(optimizer: str, rounds: int) -> Comparison:
    """Three steps of all must give the same losses; then they are timed."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((ROWS, WIDTH), dtype=np.float32)
    ids, y = rng.integers(0, ROWS, IDS), rng.standard_normal((IDS, WIDTH), dtype=np.float32)
    y *= 30  # so that three steps of a mean's gradient show
    given = optimizer, table, ids, y
    runs = {
        "weft": weft_step(*given),
        "jax": jax_step(*given),
        "torch sparse": torch_step(*given, sparse=True),
        "torch dense": torch_step(*given, sparse=False),
    }
    for _ in range(3):
        losses = [run() for run in runs.values()]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-4)
    return compare(f"embedding step, {optimizer}", runs, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    rows = [contest(optimizer, options.rounds) for optimizer in ("SGD", "Adagrad")]
    report(f"embedding table {ROWS} x {WIDTH}, {IDS} ids", rows, options.json)


if __name__ == "__main__":
    main()
