"""`wf.linalg`: the part of the array API's linear algebra that needs no decomposition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.ops.linalg import (
    cross,
    diag,
    diagonal,
    inner,
    matmul,
    matrix_norm,
    matrix_power,
    outer,
    tensordot,
    trace,
    vecdot,
)
from weft.frontend.ops.manipulation import matrix_transpose
from weft.frontend.ops.reduction import vector_norm

__all__ = [
    "cross",
    "diag",
    "diagonal",
    "inner",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "outer",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
