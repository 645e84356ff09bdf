"""Convolutions and windowed reductions, compiled, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import evaluate_op, interpret, type_of
from weft.ir.ops.builder import Builder
from weft.runtime.native.executable import compile_graph

Array = np.ndarray[Any, Any]

DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i32": np.int32, "u8": np.uint8, "c64": np.complex64, "c128": np.complex128,
}  # fmt: skip
#: Relative to the sum of absolute products; any order of a sum of so few terms is far below it.
ROUNDING = {"f16": 2e-3, "bf16": 2e-2, "f64": 1e-13, "c128": 1e-13}


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, shape) if dtype[0] in "iu" else rng.standard_normal(shape)
    x = x + 1j * rng.standard_normal(shape) if dtype[0] == "c" else x
    return np.asarray(x).astype(DTYPES[dtype])


def graph_of(op: str, arrays: list[Array], **attrs: Any) -> Graph:
    builder = Builder([type_of(a) for a in arrays])
    y = builder.emit1(op, *builder.args, **attrs)
    return builder.graph("g", [f"a{i}" for i in range(len(arrays))], [y])


def check(op: str, arrays: list[Array], dtype: str, **attrs: Any) -> None:
    """Compiled code against the interpreter."""
    graph = graph_of(op, arrays, **attrs)
    (wanted,), (got,) = interpret(graph, arrays), compile_graph(graph).run(arrays)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind in "iu":
        np.testing.assert_array_equal(got, wanted)
        return
    sizes = [np.abs(a.astype(np.complex128)) for a in arrays]
    (bound,) = evaluate_op(op, sizes, attrs)
    wide = np.complex128
    assert (
        np.abs(got.astype(wide) - wanted.astype(wide)) <= ROUNDING.get(dtype, 1e-5) * bound
    ).all()
