"""Compiled functions that one native call does not hold, beside the other ways to do the same.

python benchmarks/host_functions.py [--json benchmarks/host_functions.json] [--rounds 200]

A queue's enqueue and dequeue: in a compiled function, in a session, eagerly, and by a
`queue.Queue` of Python with NumPy. The sum of exp(x[x > 0.5]) of 10^6 f32: compiled, eagerly, by
NumPy, and by PyTorch where it is installed (JAX's jit takes no mask of values). An op of the host
that waits for nothing: the hash of strings.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from harness import compare, report

import weft as wf

Ways = dict[str, Callable[[], Any]]


def queues() -> Ways:
    """One row in and out again."""
    row = np.ones(3, np.float32)
    own = [wf.tf1.FIFOQueue(10, [wf.float32], [(3,)]) for _ in range(3)]
    plain: queue.Queue[Any] = queue.Queue(10)

    @wf.compile
    def compiled(x: Any) -> Any:
        own[0].enqueue(x * 2)
        return own[0].dequeue()

    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, (3,))
        with wf.control_dependencies([own[1].enqueue(x * 2)]):
            taken = own[1].dequeue()
    session = wf.Session(graph=graph)

    def eager() -> Any:
        own[2].enqueue(wf.asarray(row) * 2)
        return own[2].dequeue()

    def python() -> Any:
        plain.put(row * 2)
        return plain.get()

    return {
        "weft": lambda: compiled(row),
        "session": lambda: session.run(taken, {x: row}),
        "eager": eager,
        "queue.Queue": python,
    }


def masks() -> Ways:
    """A sum over as many elements as there are."""
    x = np.random.default_rng(0).uniform(size=1_000_000).astype(np.float32)
    compiled = wf.compile(lambda x: wf.sum(wf.exp(x[x > 0.5])))
    held = wf.asarray(x)
    ways: Ways = {
        "weft": lambda: compiled(held),
        "eager": lambda: wf.sum(wf.exp(held[held > 0.5])),
        "numpy": lambda: np.exp(x[x > 0.5]).sum(),
    }
    if find_spec("torch") is not None:
        import torch

        t = torch.from_numpy(x)
        ways["torch"] = lambda: torch.exp(t[t > 0.5]).sum()
    return ways


def hashes() -> Ways:
    """A bucket for each of 1000 words."""
    words = np.array([f"word {i}" for i in range(1000)], object)
    compiled = wf.compile(lambda w: wf.strings.to_hash_bucket_fast(w, 1000))
    return {
        "weft": lambda: compiled(words),
        "eager": lambda: wf.strings.to_hash_bucket_fast(words, 1000),
        "Python's hash": lambda: np.array([hash(w) % 1000 for w in words]),
    }


CASES = {
    "enqueue and dequeue": queues,
    "sum of exp where x > 0.5, 10^6": masks,
    "hash of 1000 strings": hashes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    rows = [compare(name, made(), rounds=options.rounds) for name, made in CASES.items()]
    report("Functions beyond one native call", rows, options.json)


if __name__ == "__main__":
    main()
