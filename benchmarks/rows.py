"""Row kernels over 4096 x 1024 f32 against JAX and torch.compile, forward and backward.

    python benchmarks/rows.py [--json benchmarks/rows.json] [--rounds 40]

Needs the `bench` extra; torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report
from vocabulary import Weft, jax_vocabulary, torch_vocabulary

import weft as wf

ROWS, COLUMNS = 4096, 1024
Array = np.ndarray[Any, Any]


def softmax(m: Any, x: Any) -> Any:
    """Row softmax, forward."""
    return m.softmax(x)


def layer_norm(m: Any, x: Any, gamma: Any, beta: Any, seen: Any) -> Any:
    """sum(layer_norm(x) * seen): its gradients are layer norm's backward pass."""
    return m.sum(m.layer_norm(x, gamma, beta) * seen)


def cross_entropy(m: Any, logits: Any, labels: Any) -> Any:
    """Mean softmax cross entropy with integer labels."""
    return m.cross_entropy(logits, labels)


def contest(
    name: str, f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...], rounds: int
) -> Comparison:
    """Time f (wrt empty), or its value and gradients with respect to the arguments `wrt`."""
    runs = {
        "weft": _weft(f, arrays, wrt),
        "jax": _jax(f, arrays, wrt),
        "torch.compile": _torch(f, arrays, wrt),
    }
    expected = runs["jax"][1]()
    for other in ("weft", "torch.compile"):
        for a, b in zip(runs[other][1](), expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-4)
    return compare(name, {n: run for n, (run, _) in runs.items()}, rounds=rounds)


Contestant = tuple[Callable[[], object], Callable[[], list[Any]]]


def _weft(f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...]) -> Contestant:
    def forward(*a: Any) -> Any:
        return f(Weft, *a)

    step = wf.compile(wf.value_and_grad(forward, argnums=wrt) if wrt else forward)

    def flat() -> list[Any]:
        out = step(*arrays)
        return [out[0], *out[1]] if wrt else [out]

    return (lambda: step(*arrays)), flat


def _jax(f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...]) -> Contestant:
    import jax
    import jax.numpy as jnp

    vocabulary = jax_vocabulary()

    def forward(*a: Any) -> Any:
        return f(vocabulary, *a)

    step = jax.jit(jax.value_and_grad(forward, argnums=wrt) if wrt else forward)
    given = [jnp.asarray(a) for a in arrays]

    def flat() -> list[Any]:
        out = step(*given)
        return [out[0], *out[1]] if wrt else [out]

    return (lambda: jax.block_until_ready(step(*given))), flat


def _torch(f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...]) -> Contestant:
    import torch

    vocabulary = torch_vocabulary()
    given = [torch.from_numpy(a) for a in arrays]
    step = torch.compile(lambda *a: f(vocabulary, *a))
    if not wrt:
        return (lambda: step(*given)), (lambda: [step(*given)])
    for i in wrt:
        given[i].requires_grad_()

    def run() -> list[Any]:
        value = step(*given)
        return [value.detach(), *torch.autograd.grad(value, [given[i] for i in wrt])]

    return run, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x, seen = (rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) for _ in range(2))
    gamma, beta = (rng.standard_normal(COLUMNS, dtype=np.float32) for _ in range(2))
    labels = rng.integers(0, COLUMNS, ROWS)
    rows = [
        contest("softmax", softmax, [x], (), options.rounds),
        contest(
            "layer norm, forward + backward",
            layer_norm,
            [x.copy(), gamma, beta, seen],
            (0, 1, 2),
            options.rounds,
        ),
        contest(
            "cross entropy, forward + backward",
            cross_entropy,
            [x.copy(), labels],
            (0,),
            options.rounds,
        ),
    ]
    report(f"Row kernels over {ROWS} x {COLUMNS} f32", rows, options.json)


if __name__ == "__main__":
    main()
