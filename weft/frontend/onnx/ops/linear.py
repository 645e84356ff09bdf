"""Products of matrices, and attention."""

from __future__ import annotations

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.table import op


@op("MatMul")
def _matmul(A: Tensor, B: Tensor) -> Tensor:
    return wf.matmul(A, B)


@op("Gemm", since=7)
def _gemm(
    A: Tensor, B: Tensor, C: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    made = wf.matmul(wf.transpose(A) if transA else A, wf.transpose(B) if transB else B)
    if alpha != 1:
        made = wf.astype(made * alpha, A.dtype)
    if C is None:
        return made
    return made + (C if beta == 1 else wf.astype(C * beta, C.dtype))


@op("Gemm")
def _gemm_broadcast(
    A: Tensor, B: Tensor, C: Tensor, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    return _gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)


@op("Det", since=11)
def _det(X: Tensor) -> Tensor:
    return wf.linalg.det(X)
