"""Native loops against JAX, PyTorch and plain Numba.

python benchmarks/loops.py [--json benchmarks/loops.json] [--rounds 30] [--only lstm]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from harness import Comparison, compare, report
from models import lstm_inputs, lstm_loss, torch_lstm_step

import weft as wf

STEPS, CARRIES = 614, 60
ITERATIONS = 1 << 22
ORBIT_STEPS, ORBIT_DT = 10_000, 0.01


def scalar_carries(rounds: int) -> Comparison:
    """60 scalar carries over 614 iterations, value and gradient (the shape of jax-ml/jax#40150)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(STEPS).astype(np.float32)
    start = {f"s{k}": np.float32(v) for k, v in enumerate(rng.uniform(0.5, 1, CARRIES))}

    def loss(m: Any, scan: Callable[..., Any], start: Any, x: Any) -> Any:
        def step(carry: Any, value: Any) -> Any:
            out, seen = {}, value
            for name, held in carry.items():
                expected = m.tanh(held)
                error = seen - expected
                precision = 1 / (1 + m.exp(-held))
                out[name] = held + 0.1 * precision * error
                seen = expected + 0.01 * error * error
            return out, seen

        last, ys = scan(step, start, x)
        return m.sum(ys * ys) + sum(v * v for v in last.values())

    mine = wf.compile(
        wf.value_and_grad(lambda s, x: loss(wf, lambda f, i, xs: wf.scan(f, init=i, xs=xs), s, x))
    )
    theirs = jax.jit(jax.value_and_grad(lambda s, x: loss(jnp, jax.lax.scan, s, x)))
    device = {k: jnp.asarray(v) for k, v in start.items()}, jnp.asarray(x)
    (a, da), (b, db) = mine(start, x), theirs(*device)
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4)
    for k in da:
        np.testing.assert_allclose(np.asarray(da[k]), np.asarray(db[k]), rtol=2e-3, atol=1e-4)
    contestants = {
        "weft": lambda: mine(start, x),
        "jax": lambda: jax.block_until_ready(theirs(*device)),
    }
    return compare("60 scalar carries, 614 steps, value and gradient", contestants, rounds=rounds)


@numba.njit
def _numba_while(n: int, a: float) -> tuple[int, float]:  # pragma: no cover
    i = 0
    while i < n:
        a = a * np.float32(0.999) + np.float32(0.5)
        i += 1
    return i, a


def tiny_iterations(rounds: int) -> Comparison:
    """A while of 2^22 tiny iterations."""
    n, a = np.int64(ITERATIONS), np.float32(3)

    def body(i: Any, a: Any) -> Any:
        return i + 1, a * 0.999 + 0.5

    mine = wf.compile(lambda n, a: wf.while_loop(lambda i, a: i < n, body, (wf.asarray(0), a)))
    theirs = jax.jit(
        lambda n, a: jax.lax.while_loop(lambda s: s[0] < n, lambda s: body(*s), (0, a))
    )
    np.testing.assert_allclose(np.asarray(mine(n, a)[1]), _numba_while(n, a)[1], rtol=1e-5)
    contestants = {
        "weft": lambda: mine(n, a),
        "jax": lambda: jax.block_until_ready(theirs(n, a)),
        "numba": lambda: _numba_while(n, a),
    }
    return compare("while, 2^22 iterations", contestants, rounds=rounds)


def lstm(rounds: int) -> Comparison:
    """LSTM(128), T=50, batch 16: loss and the gradients of the weights and of the input."""
    params, x = lstm_inputs()
    scan = lambda f, i, xs: wf.scan(f, init=i, xs=xs)  # noqa: E731
    mine = wf.compile(
        wf.value_and_grad(lambda p, x: lstm_loss(wf, wf.sigmoid, scan, p, x), argnums=(0, 1))
    )
    theirs = jax.jit(
        jax.value_and_grad(
            lambda p, x: lstm_loss(jnp, jax.nn.sigmoid, jax.lax.scan, p, x), argnums=(0, 1)
        )
    )
    device = tuple(jnp.asarray(p) for p in params), jnp.asarray(x)
    torch_step = torch_lstm_step(params, x)

    loss, (dp, dx) = mine(params, x)
    other, (jp, jx) = theirs(*device)
    np.testing.assert_allclose(np.asarray(loss), np.asarray(other), rtol=1e-4)
    for a, b in zip((*dp, dx), (*jp, jx), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(np.asarray(loss), torch_step().item(), rtol=1e-4)
    contestants = {
        "weft": lambda: mine(params, x),
        "jax": lambda: jax.block_until_ready(theirs(*device)),
        "torch.nn.LSTM": torch_step,
    }
    return compare("LSTM(128), T=50, batch 16, value and gradient", contestants, rounds=rounds)


def _orbit_field(m: Any, s: Any) -> Any:
    """A body around a fixed sun: the derivative of (x, y, vx, vy)."""
    square = m.sum(s[:2] * s[:2])
    pull = -1 / (square * m.sqrt(square))
    return m.concat((s[2:], s[:2] * pull))


def _orbit(m: Any, scan: Callable[..., Any], start: Any) -> Any:
    """The mean square of the positions of ORBIT_STEPS Runge-Kutta steps."""

    def step(s: Any, _: Any) -> Any:
        k1 = _orbit_field(m, s)
        k2 = _orbit_field(m, s + ORBIT_DT / 2 * k1)
        k3 = _orbit_field(m, s + ORBIT_DT / 2 * k2)
        k4 = _orbit_field(m, s + ORBIT_DT * k3)
        s = s + ORBIT_DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return s, s

    _, states = scan(step, start)
    return m.mean(states * states)


@numba.njit
def _numba_field(s: Any, k: Any) -> None:  # pragma: no cover
    square = s[0] * s[0] + s[1] * s[1]
    pull = np.float32(-1) / (square * np.sqrt(square))
    k[0], k[1], k[2], k[3] = s[2], s[3], s[0] * pull, s[1] * pull


@numba.njit
def _numba_orbit(start: Any, n: int, dt: Any) -> Any:  # pragma: no cover
    s, k, total = start.copy(), np.empty((4, 4), np.float32), np.float32(0)
    t = np.empty(4, np.float32)
    for _ in range(n):
        _numba_field(s, k[0])
        for stage in range(1, 4):
            share = dt if stage == 3 else dt / np.float32(2)
            for j in range(4):
                t[j] = s[j] + share * k[stage - 1, j]
            _numba_field(t, k[stage])
        for j in range(4):
            more = k[0, j] + np.float32(2) * k[1, j] + np.float32(2) * k[2, j] + k[3, j]
            s[j] += dt / np.float32(6) * more
            total += s[j] * s[j]
    return total / np.float32(4 * n)


def orbit(rounds: int) -> Comparison:
    """10,000 Runge-Kutta steps of a state of four numbers: value and gradient, and the value."""
    start, dt = np.array([1, 0, 0, 1.1], np.float32), np.float32(ORBIT_DT)
    mine_of = lambda s: _orbit(wf, lambda f, i: wf.scan(f, init=i, length=ORBIT_STEPS), s)  # noqa: E731
    theirs_of = lambda s: _orbit(  # noqa: E731
        jnp, lambda f, i: jax.lax.scan(f, i, None, length=ORBIT_STEPS), s
    )
    mine, value = wf.compile(wf.value_and_grad(mine_of)), wf.compile(mine_of)
    theirs, their_value = jax.jit(jax.value_and_grad(theirs_of)), jax.jit(theirs_of)
    device = jnp.asarray(start)
    (a, da), (b, db) = mine(start), theirs(device)
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3)
    np.testing.assert_allclose(np.asarray(da), np.asarray(db), rtol=2e-2)
    np.testing.assert_allclose(np.asarray(a), _numba_orbit(start, ORBIT_STEPS, dt), rtol=1e-3)
    contestants = {
        "weft": lambda: mine(start),
        "jax": lambda: jax.block_until_ready(theirs(device)),
        "weft, value": lambda: value(start),
        "jax, value": lambda: jax.block_until_ready(their_value(device)),
        "numba, value": lambda: _numba_orbit(start, ORBIT_STEPS, dt),
    }
    return compare("orbit, 10,000 RK4 steps of f32[4], value and gradient", contestants,
                   rounds=rounds)  # fmt: skip


WORKLOADS = {"while": tiny_iterations, "scalars": scalar_carries, "orbit": orbit, "lstm": lstm}


def main() -> None:
    """Print one table for each workload, as their peers differ; write the last with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=sorted(WORKLOADS))
    given = parser.parse_args()
    for name, run in WORKLOADS.items():
        if given.only in (None, name):
            path = given.json and given.json.replace(".json", f".{name}.json")
            report(f"Loops: {name}", [run(given.rounds)], path)


if __name__ == "__main__":
    main()
