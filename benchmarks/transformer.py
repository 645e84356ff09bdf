"""A transformer block that people run, and its attention alone, against JAX and PyTorch.

    python benchmarks/transformer.py [--json benchmarks/transformer.json] [--rounds 15]
        [--sizes 128,512,2048] [--only block|attention] [--threads 2]

The block: d = 768, 12 heads, batch 2, causal, pre-norm, GELU of 4 d; forward, backward and Adam.
The attention: 12 heads of 64, batch 2, forward and the gradients of query, key and value. weft's
side is wf.nn.scaled_dot_product_attention, PyTorch's torch.nn.functional's, JAX's
jax.nn.dot_product_attention. benchmarks/memory.py has the block's memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report
from models import Array, Model
from training import jax_step, torch_step, weft_step

import weft as wf

WIDTH, HEADS, BATCH, CLASSES = 768, 12, 2, 256
Attend = Callable[[Any, Any, Any], Any]


def weft_attention(q: Any, k: Any, v: Any) -> Any:
    return wf.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def jax_attention(q: Any, k: Any, v: Any) -> Any:
    """Of (batch, heads, rows, depth), as the others; JAX takes (batch, rows, heads, depth)."""
    import jax

    turned = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(*turned, is_causal=True).swapaxes(1, 2)


def block(time: int, attend: Attend) -> Model:
    """One layer and a classifier of every position."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    names = ("query", "key", "value", "out")
    params = {name: weight(WIDTH, WIDTH) for name in names}
    params |= {"up": weight(WIDTH, 4 * WIDTH), "down": weight(4 * WIDTH, WIDTH)}
    params |= {"head": weight(WIDTH, CLASSES)}
    for k in "12":
        params[f"g{k}"], params[f"o{k}"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    x = rng.standard_normal((BATCH, time, WIDTH), dtype=np.float32)

    def loss(m: Any, p: Any, x: Any, labels: Any) -> Any:
        normal = m.layer_norm(x, p["g1"], p["o1"])
        split = BATCH, time, HEADS, WIDTH // HEADS
        q, k, v = (
            m.permute(m.reshape(m.matmul(normal, p[n]), split), (0, 2, 1, 3)) for n in names[:3]
        )
        mixed = m.reshape(m.permute(attend(q, k, v), (0, 2, 1, 3)), (BATCH, time, WIDTH))
        x = x + m.matmul(mixed, p["out"])
        hidden = m.gelu(m.matmul(m.layer_norm(x, p["g2"], p["o2"]), p["up"]))
        x = x + m.matmul(hidden, p["down"])
        return m.cross_entropy(m.matmul(x, p["head"]), labels)

    labels = rng.integers(0, CLASSES, (BATCH, time))
    return Model(f"block d={WIDTH}, T={time}", loss, params, x, labels)


def block_step(side: str, time: int) -> Callable[[], Any]:
    """A training step of one side."""
    if side == "weft":
        return weft_step(lambda as_mask: block(time, weft_attention))
    if side == "jax":
        return jax_step(lambda as_mask: block(time, jax_attention))
    return torch_step(lambda as_mask: block(time, torch_attention), side == "torch.compile")


def attention_step(side: str, time: int) -> Callable[[], Any]:
    """The result's sum with a cotangent, and the gradients; returns the gradient of query."""
    rng = np.random.default_rng(0)
    shape = BATCH, HEADS, time, WIDTH // HEADS
    q, k, v, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    if side == "weft":
        loss = lambda q, k, v: wf.sum(weft_attention(q, k, v) * g)  # noqa: E731
        f = wf.compile(wf.value_and_grad(loss, argnums=(0, 1, 2)))
        return lambda: f(q, k, v)[1][0]
    if side == "jax":
        import jax
        import jax.numpy as jnp

        given = [jnp.asarray(a) for a in (q, k, v, g)]
        grad = jax.jit(
            jax.value_and_grad(
                lambda q, k, v, g: jnp.sum(jax_attention(q, k, v) * g), argnums=(0, 1, 2)
            )
        )
        return lambda: jax.block_until_ready(grad(*given)[1][0])
    import torch

    tensors = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    cotangent = torch.tensor(g)

    def step() -> Any:
        out = torch_attention(*tensors)
        loss = (out * cotangent).sum()
        return torch.autograd.grad(loss, tensors)[0]

    return step


STEPS = {"block": block_step, "attention": attention_step}


def contest(kind: str, time: int, rounds: int) -> Comparison:
    """All sides, checked against each other first."""
    sides = ("weft", "jax", "torch", *(("torch.compile",) if kind == "block" else ()))
    contestants = {side: STEPS[kind](side, time) for side in sides}
    found = {s: np.asarray([np.asarray(f()) for _ in range(3)]) for s, f in contestants.items()}
    for name, values in found.items():
        np.testing.assert_allclose(values, found["weft"], rtol=1e-2, atol=1e-4, err_msg=name)
    fewer = rounds if time <= 512 else max(3, rounds // 3)
    return compare(f"{kind}, T={time}", contestants, rounds=fewer, inner=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", default="128,512,2048")
    parser.add_argument("--only", choices=STEPS)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    sizes = [int(n) for n in options.sizes.split(",")]
    kinds = [options.only] if options.only else list(STEPS)
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
        wf.set_num_threads(options.threads)
    rows = [contest(kind, time, options.rounds) for kind in kinds for time in sizes]
    report("A transformer block with Adam, and attention with gradients", rows, options.json)


if __name__ == "__main__":
    main()
