"""The paper's Figure 1 step (784-100-10, ReLU, softmax cross entropy, Adagrad) against its peers.

    python benchmarks/figure1.py [--json benchmarks/figure1.json] [--rounds 100]
        [--pytensor /tmp/pytensor/bin/python]

JAX, PyTorch (eager and compiled) from the `bench` extra; PyTensor if the Python of an environment
that has it is given (see pytensor_worker.py). All update their parameters in place (JAX by
donation) and return the loss.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
    """The compiled step over weft variables."""
    return wf.compile(weft_function(params))


def weft_function(params: Params) -> Callable[[Any, Any], Any]:
    """The same before it is compiled."""
    v = {k: wf.Variable(p) for k, p in params.items()}
    optimizer = wf.train.Adagrad(LEARNING_RATE)

    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        hidden = wf.nn.relu(wf.matmul(x, v["w1"]) + v["b1"])
        logits = wf.matmul(hidden, v["w2"]) + v["b2"]
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer.minimize(loss)
        return loss

    return step


def jax_step(params: Params) -> Callable[[Any, Any], Any]:
    """As `jax_step_ahead`; each step is waited for."""
    step = jax_step_ahead(params)
    return lambda x, y: step(x, y).block_until_ready()


def jax_step_ahead(params: Params) -> Callable[[Any, Any], Any]:
    """The same step in JAX, parameters and accumulators donated; nobody waits for its loss."""
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
        return loss

    return step


def torch_step(params: Params, compiled: bool) -> Callable[[Any, Any], Any]:
    """The same step in PyTorch; the loss and its gradients are what torch.compile compiles."""
    import torch

    p = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    optimizer = torch.optim.Adagrad(
        p.values(), LEARNING_RATE, initial_accumulator_value=0.1, eps=0.0
    )

    def loss_of(x: Any, y: Any) -> Any:
        hidden = torch.relu(x @ p["w1"] + p["b1"])
        logits = hidden @ p["w2"] + p["b2"]
        return -(y * torch.log_softmax(logits, -1)).sum(-1).mean()

    evaluate = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = evaluate(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class PyTensor:
    """The same step in a process of its own; that process takes the time of its steps."""

    def __init__(self, python: str, params: Params, batches: dict[int, tuple[Any, Any]]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, "start.npz")
        data = {f"x{n}": x for n, (x, _) in batches.items()}
        np.savez(path, **params, **data, **{f"y{n}": y for n, (_, y) in batches.items()})
        worker = Path(__file__).with_name("pytensor_worker.py")
        self._process = subprocess.Popen(
            [python, str(worker), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )

    def run(self, batch: int, inner: int) -> tuple[float, float]:
        """Seconds of one step of `inner`, and the last loss."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{batch} {inner}\n")
        self._process.stdin.flush()
        seconds, loss = self._process.stdout.readline().split()
        return float(seconds), float(loss)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def check_same(batch: int) -> None:
    """Twenty steps must give the same losses on all sides before anything is timed."""
    rng = np.random.default_rng(0)
    params = start(rng)
    steps = [weft_step(params), torch_step(params, False), torch_step(params, True)]
    theirs = jax_step(params)
    for _ in range(20):
        x, y = batch_of(rng, batch)
        expected = float(theirs(x, y))
        for step in steps:
            np.testing.assert_allclose(float(step(x, y)), expected, rtol=1e-4)


def batch_of(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    """Random images and one-hot labels."""
    x = rng.random((size, 784), dtype=np.float32)
    return x, np.eye(10, dtype=np.float32)[rng.integers(0, 10, size)]


def run(batch: int, rounds: int, data: tuple[Any, Any], pytensor: PyTensor | None) -> Comparison:
    """One batch size."""
    params, (x, y) = start(np.random.default_rng(1)), data
    steps = {
        "weft": weft_step(params),
        "jax": jax_step(params),
        "torch": torch_step(params, False),
        "torch.compile": torch_step(params, True),
    }
    contestants = {name: partial(step, x, y) for name, step in steps.items()}
    # blocks of some milliseconds: one side's threads, still spinning, must not slow the other
    inner = 5 if batch > 500 else 20
    elsewhere: dict[str, Callable[[int], float]] = {}
    if pytensor is not None:
        first = [pytensor.run(batch, 1)[1] for _ in range(3)]
        fresh = weft_step(params)
        np.testing.assert_allclose(first, [float(fresh(x, y)) for _ in range(3)], rtol=1e-4)
        elsewhere["pytensor"] = lambda n: pytensor.run(batch, n)[0]
    name = f"Figure 1 step, batch {batch}"
    return compare(name, contestants, rounds=rounds, inner=inner, elsewhere=elsewhere)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pytensor", help="a Python that has PyTensor 3")
    options = parser.parse_args()
    check_same(32)
    rng = np.random.default_rng(1)
    params = start(rng)
    batches = {n: batch_of(rng, n) for n in (1, 32, 128, 1024)}
    pytensor = PyTensor(options.pytensor, params, batches) if options.pytensor else None
    rows = [run(n, options.rounds, data, pytensor) for n, data in batches.items()]
    if pytensor is not None:
        pytensor.close()
    report("Figure 1 training step", rows, options.json)


if __name__ == "__main__":
    main()
