"""Carry out a compiled graph's kernel calls in random cuts, as the pool's threads might.

    step = compile_graph(graph)
    whole = step(inputs)
    with cut_calls(step, random.Random(seed)):
        assert_same_bits(step(inputs), whole)

Each call's units [0, units) are cut at random places and the pieces done in random order by random
worker numbers: what a kernel may not depend on.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from weft.codegen import call
from weft.codegen.llvm.target import using
from weft.codegen.steps.walker import CALL_WORDS, FIRST_ADDRESS
from weft.ir.graph import Graph
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
WORKERS = 5
MOST_PIECES = 6


def step_of(graph: Graph, isa: str = "native") -> Executable:
    """A graph as it is, compiled for an instruction set."""
    with using(isa):
        return compile_graph(graph, passes=())


def check_cuts(graph: Graph, arrays: Sequence[Array]) -> None:
    """The step of a graph gives the same bits however its calls are cut over 16 threads."""
    limit = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        POOL.set_limit(16)
        step = step_of(graph)
        same_in_cuts(step, arrays, step.run(arrays))
    POOL.set_limit(limit)


def cut_everything(patch: pytest.MonkeyPatch, chunks: int = 16) -> None:
    """From now on every call of more than one unit is compiled to be cut over threads."""
    patch.setattr(call, "WORTH_CUTTING_NS", 0.0)
    patch.setattr(call, "CHUNK_NS", 1e-9)
    patch.setattr(call, "MOST_CHUNKS", chunks)


@contextmanager
def cut_calls(step: Executable, rng: random.Random) -> Iterator[list[int]]:
    """Within it, `step` does its calls in pieces; yields the list of how many pieces each was.

    Workers' numbers stay below the number of threads that `step` was compiled for.
    """
    workers = WORKERS if not step.plan.table.worker_bytes else min(WORKERS, step.threads)
    rows = step._linked.calls.reshape(-1, CALL_WORDS)
    before = rows.copy()
    pieces: list[int] = []
    kept = []
    for row in rows:
        if row[0] < FIRST_ADDRESS:
            continue
        cutter = KERNEL(_cutter(KERNEL(int(row[0])), rng, workers, pieces))
        kept.append(cutter)
        row[0] = ctypes.cast(cutter, ctypes.c_void_p).value
        row[3] = 0
    try:
        yield pieces
    finally:
        rows[:] = before


def _cutter(kernel: Any, rng: random.Random, workers: int, pieces: list[int]) -> Any:
    def run(arguments: int, lo: int, hi: int, worker: int) -> None:
        assert lo == 0  # a part of a loop hands on the number of its worker
        inner = range(1, min(hi, 1 << 40))
        places = sorted(rng.sample(inner, min(len(inner), rng.randrange(1, MOST_PIECES))))
        bounds = list(zip([0, *places], [*places, hi], strict=True))
        rng.shuffle(bounds)
        pieces.append(len(bounds))
        for start, stop in bounds:
            kernel(arguments, start, stop, rng.randrange(workers))

    return run


def same_in_cuts(
    step: Executable, inputs: Sequence[Any], whole: Sequence[Any], cut: bool = True
) -> None:
    """`step` gives the bits of `whole` in three random cuts. cut: some call must have several
    units, or there would be nothing to check.
    """
    for seed in range(3):
        with cut_calls(step, random.Random(seed)) as pieces:
            assert_same_bits(step.run(list(inputs)), whole)
        assert max(pieces) > 1 or not cut


def assert_same_bits(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Every result has the same bits; tokens are None."""
    assert len(got) == len(wanted)
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if b is None:
            assert a is None
        else:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes(), f"result {k} ({b.dtype}{list(b.shape)}) differs"
