"""Graphs of one product for GPUs, and the tiles and kernels that they become."""

from __future__ import annotations

import pytest

from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.products import matmul
from weft.codegen.cuda.products.tiles import Tile
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Shape = tuple[int, ...]


def product_graph(a: Shape, b: Shape, dtype: str, ta: bool = False, tb: bool = False) -> Graph:
    """`matmul` alone."""
    builder = Builder()
    operands = [builder.add_arg(TensorType(as_dtype(dtype), s)) for s in (a, b)]
    (made,) = builder.emit("matmul", operands, {"transpose_a": ta, "transpose_b": tb})
    return builder.graph("product", ("a", "b"), [made])


def done_in(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are done in this tile, and k is not cut."""
    monkeypatch.setattr(matmul, "choose", lambda *given, **how: (tile, 1))


def graph_of(m: int, n: int, k: int, dtype: str, ta: bool = False, tb: bool = False) -> Graph:
    return product_graph((k, m) if ta else (m, k), (n, k) if tb else (k, n), dtype, ta, tb)


def kernel_of(graph: Graph) -> CudaKernel:
    (op,) = graph.ops
    (launch,) = launches_of(op)
    return launch.kernel
