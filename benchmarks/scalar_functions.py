"""Scalar Python functions that Numba compiles (`wf.elementwise`), fused, against the same formulas
in weft's ops; reducers against weft's own; and what functions cost a second process.

    python benchmarks/scalar_functions.py [--json benchmarks/scalar_functions.json] [--rounds 100]

A ratio is the time of the formula in ops over that of the function: above 1, the function is
faster. One thread.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

Formula = Callable[..., Any]


@wf.elementwise
def elu(x: Any, *, alpha: float = 0.5) -> Any:
    """Two sides."""
    if x > 0:
        return x
    return alpha * (math.exp(x) - 1)


@wf.elementwise
def three(x: Any) -> Any:
    """Three sides, two functions."""
    if x < -1:
        return math.tanh(x)
    if x < 1:
        return x * x
    return math.log(x)


@wf.elementwise
def root(x: Any) -> Any:
    """A loop of constant length behind a branch."""
    if x < 0:
        x = -x
    y = 1.0
    for _ in range(4):
        y = 0.5 * (y + x / y)
    return y


def elu_ops(x: Any) -> Any:
    """`elu` in ops."""
    return wf.where(x > 0, x, 0.5 * (wf.exp(x) - 1))


def three_ops(x: Any) -> Any:
    """`three` in ops."""
    return wf.where(x < -1, wf.tanh(x), wf.where(x < 1, x * x, wf.log(x)))


def root_ops(x: Any) -> Any:
    """`root` in ops."""
    x = wf.where(x < 0, -x, x)
    y = wf.ones_like(x)
    for _ in range(4):
        y = 0.5 * (y + x / y)
    return y


#: What stands around a function: all of it one kernel with it, or with what follows.
AROUND: dict[str, Callable[[Formula], Formula]] = {
    "2 f(x) + 1": lambda f: lambda x: f(x) * 2 + 1,
    "sum of 2 f(x) + 1": lambda f: lambda x: wf.sum(f(x) * 2 + 1),
    "softmax of f(x), by rows": lambda f: lambda x: wf.nn.softmax(f(x)),
    "f(x w), 512 x 512": lambda f: lambda x: f(x @ wf.full((512, 512), 0.01, dtype=x.dtype)),
}


@wf.reducer(init=0)
def farthest(a: Any, b: Any) -> Any:
    """The number of the largest magnitude."""
    return a if abs(a) >= abs(b) else b


@wf.reducer(init=float("-inf"))
def largest(a: Any, b: Any) -> Any:
    """What `wf.max` gives of numbers that are not NaN, with a branch."""
    if a >= b:
        return a
    return b


def fused(rounds: int) -> list[Comparison]:
    """Each function in each surrounding, f32 and f64."""
    rows = []
    for dtype in (np.float32, np.float64):
        x = wf.asarray(np.random.default_rng(0).uniform(-3, 3, (256, 512)).astype(dtype))
        for f, ops in ((elu, elu_ops), (three, three_ops), (root, root_ops)):
            for around, make in AROUND.items():
                mine, theirs = wf.compile(make(f)), wf.compile(make(ops))
                np.testing.assert_allclose(mine(x), theirs(x), rtol=1e-4, atol=1e-4)
                runs = {"weft": partial(mine, x), "ops": partial(theirs, x)}
                name = f"{f.__name__}: {around}, {np.dtype(dtype).name}"
                rows.append(compare(name, runs, rounds=rounds))
    return rows


def _over(f: Formula, axis: int, x: Any) -> Any:
    return f(x, axis)


def reducers(rounds: int) -> list[Comparison]:
    """Reducers that have to be compiled: one beside `wf.max`, which is the same formula, and one
    that no op is, beside a sum of as many elements."""
    rows = []
    for mine, op, peer in ((largest, wf.max, "wf.max"), (farthest, wf.sum, "wf.sum")):
        for shape, axis in (((1 << 20,), 0), ((1024, 1024), 1), ((1024, 1024), 0)):
            x = wf.asarray(np.random.default_rng(0).normal(size=shape).astype("f4"))
            reduced, beside = (wf.compile(partial(_over, f, axis)) for f in (mine, op))
            runs = {"weft": partial(reduced, x), peer: partial(beside, x)}
            name = f"{mine.__name__}, {shape} over axis {axis}"
            rows.append(compare(name, runs, rounds=rounds))
    return rows


PROCESS = """
import math, sys, time
import numpy as np
import weft as wf
functions = []
for k in range(100):
    scope = {"math": math, "k": k}
    exec("def f(x):\\n    return x * 0.99 if x > k else math.exp(x - k)", scope)
    functions.append(wf.elementwise(scope["f"]) if sys.argv[1] == "functions" else (
        lambda x, k=k: wf.where(x > k, x * 0.99, wf.exp(x - k))))
begin = time.perf_counter()
@wf.compile
def total(x):
    return sum(f(x) for f in functions)
total(np.linspace(0, 1, 7, dtype=np.float32))
took = time.perf_counter() - begin
print(f"{took:.3f} s, Numba {'' if 'numba' in sys.modules else 'not '}loaded")
"""


def processes() -> None:
    """A hundred functions in a first process and in further ones, and their formulas in ops."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "WEFT_CACHE_DIR": folder, "WEFT_CACHE": "1"}
        for turn in range(4):
            for kind in ("functions", "ops"):
                made = subprocess.run(
                    [sys.executable, "-c", PROCESS, kind],
                    env=environment, capture_output=True, text=True, check=True,
                )  # fmt: skip
                print(f"process {turn + 1}, 100 {kind}: {made.stdout.strip()}")


def main() -> None:
    """The tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    wf.set_num_threads(1)
    report("scalar functions", fused(args.rounds) + reducers(args.rounds), args.json)
    processes()


if __name__ == "__main__":
    main()
