"""`wf.sparse`: tensors of which few elements are not 0, by their entries (`SparseTensor`, COO) or
by rows (`CSRMatrix`), and functions of them with the names of TensorFlow's `tf.sparse`.

Enters: tensors. Leaves: gathers, scatters and other ops, or results. Imports: `ops`.
What feeds and fetches them is in `session`; TensorFlow 1's names are in `tf_names`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.sparse.arithmetic import (
    add,
    divide,
    maximum,
    minimum,
    multiply,
    pow,
    subtract,
)
from weft.frontend.sparse.entries import (
    FilledRows,
    concat,
    expand_dims,
    fill_empty_rows,
    reduce_max,
    reduce_min,
    reduce_sum,
    reset_shape,
    retain,
    slice,
    softmax,
)
from weft.frontend.sparse.products import CSRMatrix, matmul, to_csr
from weft.frontend.sparse.sparse_tensor import (
    SparseTensor,
    coalesce,
    from_dense,
    reorder,
    reshape,
    to_dense,
    transpose,
)

__all__ = [
    "CSRMatrix",
    "FilledRows",
    "SparseTensor",
    "add",
    "coalesce",
    "concat",
    "divide",
    "expand_dims",
    "fill_empty_rows",
    "from_dense",
    "matmul",
    "maximum",
    "minimum",
    "multiply",
    "pow",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "reorder",
    "reset_shape",
    "reshape",
    "retain",
    "slice",
    "softmax",
    "subtract",
    "to_csr",
    "to_dense",
    "transpose",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
