"""Bundles: how long a process takes to load one and to call it, and calls of shared libraries.

python benchmarks/bundle.py [--json benchmarks/bundle.json] [--processes 9] [--rounds 200]

Models: the MLP of the digits example, a residual conv net of 12 layers, a GPT block of 2 layers;
frozen and not. Each process imports weft with all that loading needs, then loads the bundle from a
warm cache (kernels and plans were written by an earlier process), and calls it. Peers, where they
are installed, in the same turns: PyTorch's `torch.export.load` of a module with as many weights
and its first call. Then one call: the loaded function, and the library that `weft compile --target
cpu` makes, by ctypes, on one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import compare, report

import weft as wf
from weft.frontend.bundle.load import bundle_graph
from weft.runtime.native.library import write_library

RNG = np.random.default_rng(0)


def weight(*shape: int) -> wf.Variable:
    return wf.Variable((RNG.standard_normal(shape) * 0.1).astype(np.float32))


def mlp() -> tuple[Callable[..., Any], Any]:
    layers = [(weight(i, o), weight(o)) for i, o in ((64, 512), (512, 512), (512, 10))]

    def f(x: Any) -> Any:
        for w, b in layers[:-1]:
            x = wf.nn.relu(wf.matmul(x, w) + b)
        return wf.nn.softmax(wf.matmul(x, layers[-1][0]) + layers[-1][1])

    return f, RNG.random((8, 64), np.float32)


def conv_net() -> tuple[Callable[..., Any], Any]:
    first = weight(3, 3, 3, 32)
    blocks = [
        [(weight(3, 3, 32, 32), weight(32), weight(32), wf.Variable(np.ones(32, np.float32)))
         for _ in range(2)]
        for _ in range(5)
    ]  # fmt: skip
    last = weight(32, 10)

    def f(x: Any) -> Any:
        y = wf.nn.relu(wf.nn.conv2d(x, first, padding="SAME"))
        for block in blocks:
            z = y
            for w, mean, offset, variance in block:
                z = wf.nn.conv2d(wf.nn.relu(z), w, padding="SAME")
                z = wf.nn.batch_norm(z, mean, variance, offset, None)
            y = y + z
        return wf.matmul(wf.mean(y, axis=(1, 2)), last)

    return f, RNG.random((1, 32, 32, 3), np.float32)


def gpt() -> tuple[Callable[..., Any], Any]:
    size, heads = 128, 4
    layers = [
        {n: weight(*s) for n, s in (
            ("q", (size, size)), ("k", (size, size)), ("v", (size, size)), ("o", (size, size)),
            ("up", (size, 4 * size)), ("down", (4 * size, size)),
        )}
        for _ in range(2)
    ]  # fmt: skip

    def split(x: Any) -> Any:
        return wf.permute_dims(wf.reshape(x, (*x.shape[:2], heads, size // heads)), (0, 2, 1, 3))

    def f(x: Any) -> Any:
        for p in layers:
            h = wf.nn.layer_norm(x)
            q, k, v = (split(wf.matmul(h, p[n])) for n in "qkv")
            a = wf.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + wf.matmul(wf.reshape(wf.permute_dims(a, (0, 2, 1, 3)), x.shape), p["o"])
            x = x + wf.matmul(wf.nn.gelu(wf.matmul(wf.nn.layer_norm(x), p["up"])), p["down"])
        return x

    return f, RNG.random((1, 64, size), np.float32)


MODELS: dict[str, Callable[[], tuple[Callable[..., Any], Any]]] = {
    "MLP 64-512-512-10": mlp, "conv net, 12 layers": conv_net, "GPT block, 2 layers": gpt,
}  # fmt: skip
LOADING = """
import sys, time
import numpy as np
import weft as wf
import safetensors
wf.load, wf.Variable, wf.compile
from weft.frontend.compile import function, compiled, host_steps
x = np.load(sys.argv[2])
a = time.perf_counter()
model = wf.load(sys.argv[1])
b = time.perf_counter()
y = model(x)
c = time.perf_counter()
model(x)
d = time.perf_counter()
print(b - a, c - b, d - c)
"""
PEER = """
import sys, time
import numpy as np
import torch
x = torch.from_numpy(np.load(sys.argv[2]))
a = time.perf_counter()
model = torch.export.load(sys.argv[1]).module()
b = time.perf_counter()
with torch.no_grad():
    model(x)
    c = time.perf_counter()
    model(x)
d = time.perf_counter()
print(b - a, c - b, d - c)
"""


def timed(code: str, *words: Path) -> list[float]:
    """Seconds to load, of the first call, of the next one, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
    )
    return [float(word) for word in done.stdout.split()]


def torch_mlp(path: Path) -> None:
    """The MLP as PyTorch exports it."""
    import torch

    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512),
              torch.nn.ReLU(), torch.nn.Linear(512, 10), torch.nn.Softmax(-1)]  # fmt: skip
    made = torch.export.export(torch.nn.Sequential(*layers), (torch.ones(8, 64),))
    torch.export.save(made, path)


def loading(folder: Path, processes: int) -> dict[str, list[list[float]]]:
    """By model: the times of each process, by turns."""
    ways: dict[str, tuple[str, Path, Path]] = {}
    for name, make in MODELS.items():
        f, x = make()
        at = folder / f"x{len(ways)}.npy"
        np.save(at, x)
        kind = wf.TensorType(wf.float32, ("batch", *x.shape[1:]))
        for freeze in (False, True):
            label = f"{name}, frozen" if freeze else name
            path = folder / label.replace(" ", "_").replace(",", "")
            example = x if "GPT" in name else kind
            wf.export(f, path, example=example, freeze=freeze)
            ways[label] = (LOADING, path, at)
        if name.startswith("MLP") and find_spec("torch"):
            torch_mlp(folder / "mlp.pt2")
            ways[f"{name}, torch.export"] = (PEER, folder / "mlp.pt2", at)
    times: dict[str, list[list[float]]] = {label: [] for label in ways}
    for turn in range(processes + 1):
        for label, (code, *words) in ways.items():
            found = timed(code, *words)
            if turn:  # the first one fills the cache
                times[label].append(found)
    return times


def libraries(folder: Path, rounds: int) -> list[Any]:
    """A call of the loaded function and of the library, interleaved."""
    made = []
    for k, (name, make) in enumerate(MODELS.items()):
        f, x = make()
        path = folder / f"static{k}"
        wf.export(f, path, example=x)
        model = wf.load(path)
        loaded = wf.compile(model, threads=1)
        wanted = np.asarray(loaded(x))
        written = write_library(bundle_graph(path), ["y"], folder, f"model{k}")
        run = ctypes.CDLL(str(written.library)).weft_model_run
        y = np.empty(wanted.shape, np.float32)
        given = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)

        def call(run: Any = run, given: Any = given) -> None:
            if run(*given):
                raise RuntimeError

        call()
        assert np.array_equal(y, wanted)
        ways: dict[str, Callable[[], Any]] = {"weft": partial(loaded, x), "library": call}
        made.append(compare(name, ways, rounds=rounds))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as held:
        times = loading(Path(held), args.processes)
        print("load, first call, next call: ms, min / median of", args.processes, "processes")
        rows = {}
        for label, found in times.items():
            columns = [[1e3 * row[k] for row in found] for k in range(3)]
            rows[label] = [[min(c), median(c)] for c in columns]
            print(f"{label:32}", "  ".join(f"{min(c):7.2f} / {median(c):7.2f}" for c in columns))
        report("One call, one thread", libraries(Path(held), args.rounds), args.json)
    if args.json:
        kept = json.loads(Path(args.json).read_text())
        Path(args.json).write_text(json.dumps({**kept, "loading_ms": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
