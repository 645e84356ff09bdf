"""Training steps (Adam) against JAX and PyTorch, eager and compiled.

    python benchmarks/training.py [--json benchmarks/training.json] [--rounds 30] [--only mlp]

Needs the `bench` extra; torch.compile needs a C++ compiler. Every contestant updates its own
parameters in place and returns the loss; the first losses must agree before anything is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report
from models import Array, Model, conv_net, gpt, mlp
from vocabulary import Weft, jax_vocabulary, torch_vocabulary

import weft as wf

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
MakeModel = Callable[[Callable[[Array], Any]], Model]
MODELS: dict[str, MakeModel] = {
    "mlp": lambda as_mask: mlp(),
    "gpt": gpt,
    "conv": lambda as_mask: conv_net(),
}


def weft_function(make: MakeModel) -> tuple[Callable[[Any, Any], Any], Model]:
    """The step in weft, of a batch and its labels, and the model."""
    model = make(lambda mask: mask)
    params = {k: wf.Variable(p) for k, p in model.params.items()}
    optimizer = wf.train.Adam(RATE, BETA1, BETA2, EPSILON)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        loss = model.loss(Weft, params, x, labels)
        optimizer.minimize(loss)
        return loss

    return step, model


def weft_step(make: MakeModel) -> Callable[[], Any]:
    """The same on the model's batch."""
    step, model = weft_function(make)
    return lambda: step(model.x, model.labels)


def jax_step(make: MakeModel) -> Callable[[], Any]:
    """The step in JAX, parameters and moments donated."""
    import jax
    import jax.numpy as jnp

    model, words = make(jnp.asarray), jax_vocabulary()

    def update(p: Any, m: Any, v: Any, t: Any, x: Any, labels: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: model.loss(words, p, x, labels))(p)
        m = jax.tree.map(lambda a, d: BETA1 * a + (1 - BETA1) * d, m, g)
        v = jax.tree.map(lambda a, d: BETA2 * a + (1 - BETA2) * d * d, v, g)
        rate = RATE * jnp.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        p = jax.tree.map(lambda w, a, b: w - rate * a / (jnp.sqrt(b) + EPSILON), p, m, v)
        return p, m, v, t + 1, loss

    compiled = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    p = jax.tree.map(jnp.asarray, model.params)
    state = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.float32(1)]
    x, labels = jnp.asarray(model.x), jnp.asarray(model.labels)

    def step() -> Any:
        *state[:], loss = compiled(*state, x, labels)
        return loss.block_until_ready()

    return step


def torch_step(make: MakeModel, compiled: bool) -> Callable[[], Any]:
    """The step in PyTorch: its own fused Adam where it is compiled, foreach Adam eagerly."""
    import torch

    model, words = make(torch.from_numpy), torch_vocabulary()
    params = {k: torch.tensor(p, requires_grad=True) for k, p in model.params.items()}
    x, labels = torch.from_numpy(model.x), torch.from_numpy(model.labels)
    optimizer = torch.optim.Adam(
        params.values(), RATE, (BETA1, BETA2), EPSILON, fused=True if compiled else None
    )

    def loss_of(x: Any, labels: Any) -> Any:
        return model.loss(words, params, x, labels)

    # the models share this function: without dynamic=False the second one would get symbolic sizes
    evaluate = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = evaluate(x, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def contest(make: MakeModel, rounds: int) -> Comparison:
    """Five steps must agree on all sides (Adam's epsilon is placed differently: 1 %)."""
    contestants = {
        "weft": weft_step(make),
        "jax": jax_step(make),
        "torch": torch_step(make, False),
        "torch.compile": torch_step(make, True),
    }
    losses = {n: [float(run()) for _ in range(5)] for n, run in contestants.items()}
    for found in losses.values():
        np.testing.assert_allclose(found, losses["jax"], rtol=1e-2)
    # blocks of some milliseconds: one side's threads, still spinning, must not slow the other
    return compare(make(lambda mask: mask).name, contestants, rounds=rounds, inner=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=MODELS)
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(MODELS)
    rows = [contest(MODELS[name], options.rounds) for name in chosen]
    report("Training step, Adam", rows, options.json)


if __name__ == "__main__":
    main()
