"""One op as CUDA launches, in the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda_ops import run_graph

from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def graph_of(op: str, inputs: list[Array], **attrs: Any) -> Graph:
    """One op on inputs like these."""
    builder = Builder()
    operands = [builder.add_arg(TensorType(as_dtype(x.dtype), x.shape)) for x in inputs]
    made = builder.emit(op, operands, attrs)
    return builder.graph(op, [f"x{k}" for k in range(len(inputs))], made)


def check(
    op: str, inputs: list[Array], exact: bool = True, seed: int | None = None, **a: Any
) -> None:
    """The interpreter's results: its bits, or nearly."""
    graph = graph_of(op, inputs, **a)
    wanted = interpret(graph, inputs, DictState({}))
    for got, want in zip(run_graph(graph, inputs, seed=seed), wanted, strict=True):
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def of(shape: tuple[int, ...], dtype: str = "f32") -> Array:
    """Numbers, whole ones."""
    return RNG.integers(0, 9, shape).astype(as_dtype(dtype).numpy)
