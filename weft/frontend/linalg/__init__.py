"""`wf.linalg`: the array API's linear algebra, and SciPy's and NumPy's `solve_triangular`, `lu`,
`lstsq`, `eig`, `expm` and `cond`.

Enters: tensors. Leaves: ops, or results. Imports: `ops`, and late `autodiff` and `control`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.linalg.matrix_functions import (
    cond,
    det,
    expm,
    lstsq,
    matrix_rank,
    pinv,
    slogdet,
)
from weft.frontend.ops.decompositions import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    lu,
    qr,
    solve,
    solve_triangular,
    svd,
    svdvals,
)
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
    "cholesky",
    "cond",
    "cross",
    "det",
    "diag",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inner",
    "inv",
    "lstsq",
    "lu",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
