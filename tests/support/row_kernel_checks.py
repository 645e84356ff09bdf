"""Kernels of fused rows against the interpreter, whatever way their calls are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from compiled_checks import PIPELINE, same
from nest_runs import random_ranges, run, whole

import weft as wf
from weft.ir import dtypes
from weft.ir.graph import Graph

Array = np.ndarray[Any, Any]

WHOLE = (dtypes.int32, dtypes.int64, dtypes.uint8)
FLOATS = (dtypes.float32, dtypes.float64)
HALVES = (dtypes.float16, dtypes.bfloat16)


def check_cuts(fused: Graph, inputs: list[Array], seed: int) -> None:
    """Random ranges give the bits of one range."""
    if any(op.name not in ("fused", "reshape", "constant") for op in fused.ops):
        return
    at_once = run(fused, inputs, whole)
    in_pieces = run(fused, inputs, random_ranges(np.random.default_rng(seed)))
    for x, y in zip(at_once, in_pieces, strict=True):
        assert same(x, y)


def nests(f: Callable[..., Any], *args: Any) -> list[Any]:
    """The fused ops of a compiled function; every op of the graph must be one, or a view."""
    graph = wf.compile(f).trace(*args)
    for each in PIPELINE:
        graph = each(graph)
    views = ("reshape", "constant")
    assert all(op.name in ("fused", *views) for op in graph.ops), graph
    return [op for op in graph.ops if op.name == "fused"]
