"""Ahead-of-time compilation of what every step needs: the walker, the pool, kernels of products.

It begins in a background thread before the first step is asked for."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

import weft.codegen.llvm.engine  # noqa: F401 - or the first step would wait for its modules
from weft.codegen.llvm.jit import compile_kernels, start_compiling
from weft.codegen.pool import CONTROL, PARALLEL, WORKER
from weft.codegen.steps.walker import ARRAY_DATA_OFFSET, WALKER
from weft.ir.errors import InternalError
from weft.ir.graph import Graph, Operation
from weft.ir.types import TensorType


@cache
def compile_ahead() -> None:
    """Begin to compile, or to load from disk, the code that does not depend on the step: what every
    step waits for first, the pool's last (steps use one thread until it is there)."""
    start_compiling([WALKER, WORKER, CONTROL, PARALLEL])


def compile_products_ahead(graph: Graph) -> None:
    """Begin to compile the kernels of a traced graph's products, of which there is one for each
    dtype: they take LLVM longest, and the passes meanwhile have work for one processor only."""
    from weft.codegen.products.gemm import gemm_kernel  # not for who has a plan on disk

    dtypes = {_dtype(op) for op in graph.walk() if op.name == "matmul" and _is_product(op)}
    start_compiling([gemm_kernel(dtype) for dtype in sorted(dtypes)])


def _dtype(op: Operation) -> str:
    return op.result.type.dtype.short if isinstance(op.result.type, TensorType) else ""


def _is_product(op: Operation) -> bool:
    """Whether it will be a product of weft's own and of this dtype: not BLAS's, of complex numbers,
    not of integers, which may be narrower than they seem (`passes/fusion/product_operands.py`),
    and no loop nest, as those of one row, of one column or over one element are."""
    types = [v.type for v in op.operands]
    return all(
        isinstance(t, TensorType) and t.dtype.kind == "float" and min(t.static_shape[-2:]) > 1
        for t in types
    )


def address(array: np.ndarray[Any, Any]) -> int:
    """Of an array's first element; `array.ctypes.data` takes ten times as long."""
    return int(ctypes.c_int64.from_address(id(array) + ARRAY_DATA_OFFSET).value)


@cache
def check_layout() -> None:
    """InternalError if this NumPy does not keep an array's address where native code reads it."""
    probe = np.zeros(1)
    if address(probe) != probe.ctypes.data:
        raise InternalError(
            "this NumPy keeps an array's data pointer where weft does not look for it"
        )


@cache
def native_walker() -> tuple[int, Any]:
    """The walker's address, and it as a ctypes function (which releases the GIL), after a check of
    NumPy's layout."""
    check_layout()
    code = compile_kernels([WALKER])[WALKER.key]
    return code, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code)
