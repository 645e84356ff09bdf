"""Products that take over what follows them: in the emulator, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from cuda_graphs import lanes, run

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.manager import run_passes
from weft.passes.pipelines import GPU

Array = np.ndarray[Any, Any]
RTOL = {"float32": 3e-6, "float64": 2e-14, "float16": 2e-3, "bfloat16": 2e-2}


def array(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    rng = np.random.default_rng((seed, *shape))
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def traced(function: Callable[..., Any], *args: Array) -> tuple[Graph, Graph]:
    """The graph of a function, and after the GPU pipeline."""
    graph = wf.compile(function).trace(*args)
    return graph, run_passes(graph, GPU)[0]


def kernels(graph: Graph) -> list[str]:
    """`launch` or `product` for each op of a graph that launches kernels."""
    return [
        str(op.attrs["kind"]) if op.name == "fused" else op.name
        for op in graph.ops
        if op.name in ("fused", "matmul")
    ]


def check(function: Callable[..., Any], *args: Array) -> Graph:
    """The emulated kernels against the interpreter; the graph after the pipeline."""
    graph, made = traced(function, *args)
    results, wanted = run(made, list(args), lanes), interpret(graph, list(args))
    for got, want in zip(results, wanted, strict=True):
        if got.dtype.name not in RTOL:
            np.testing.assert_array_equal(got, want)
            continue
        exact = np.asarray(want, np.float64)
        scale = max(float(np.abs(exact).max(initial=0.0)), 1e-30)
        apart = np.abs(np.asarray(got, np.float64) - exact)
        assert apart.max(initial=0.0) <= RTOL[got.dtype.name] * scale
    return made


DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint16]
