"""TensorFlow 1's `sparse_*` functions, with its arguments, by those of `wf.sparse`.

They differ from TensorFlow's in this: entries may be in any order and indices repeat (they add up),
where it asks for row-major order; results are in the order that `wf.sparse` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.manipulation import expand_dims as with_axis
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import Axes, TensorLike, expand, strong_tensor
from weft.frontend.sparse import arithmetic, entries, products, sparse_tensor
from weft.frontend.sparse.entries import FilledRows
from weft.frontend.sparse.sparse_tensor import SparseTensor, to_dense
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


def sparse_add(a: Any, b: Any, thresh: Any = 0) -> Any:
    """`wf.sparse.add`: of two SparseTensors one, with a tensor a tensor. thresh: entries of a
    smaller absolute value are left out.

    >>> a = wf.sparse.SparseTensor([[0], [1]], [1.0, 2.0], (2,))
    >>> wf.tf1.sparse_add(a, a, thresh=3).values
    Tensor([4.], dtype=float32)
    """
    return arithmetic.add(a, b, thresh)


def sparse_concat(axis: int, sp_inputs: Sequence[Any], name: str | None = None) -> SparseTensor:
    """`wf.sparse.concat`, in row-major order.

    >>> a = wf.sparse.SparseTensor([[0, 1], [1, 0]], [5.0, 6.0], (2, 2))
    >>> wf.tf1.sparse_concat(1, [a, a]).values
    Tensor([5., 5., 6., 6.], dtype=float32)
    """
    return sparse_tensor.reorder(entries.concat(sp_inputs, axis))


def sparse_fill_empty_rows(
    sp_input: Any, default_value: Any, name: str | None = None
) -> FilledRows:
    """`wf.sparse.fill_empty_rows`.

    >>> a = wf.sparse.SparseTensor([[1, 2]], [5.0], (2, 3))
    >>> wf.tf1.sparse_fill_empty_rows(a, -1.0).output.values
    Tensor([-1.,  5.], dtype=float32)
    """
    return entries.fill_empty_rows(sp_input, default_value)


def sparse_maximum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """`wf.sparse.maximum`.

    >>> a = wf.sparse.SparseTensor([[0], [1]], [1.0, -2.0], (2,))
    >>> wf.tf1.sparse_maximum(a, -a).values
    Tensor([1., 2.], dtype=float32)
    """
    return arithmetic.maximum(sp_a, sp_b)


def sparse_minimum(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
    """`wf.sparse.minimum`.

    >>> a = wf.sparse.SparseTensor([[0], [1]], [1.0, -2.0], (2,))
    >>> wf.tf1.sparse_minimum(a, -a).values
    Tensor([-1., -2.], dtype=float32)
    """
    return arithmetic.minimum(sp_a, sp_b)


def sparse_reduce_max(sp_input: Any, axis: Axes = None, keep_dims: bool = False) -> Tensor:
    """`wf.sparse.reduce_max`.

    >>> wf.tf1.sparse_reduce_max(wf.sparse.SparseTensor([[0, 1], [0, 2]], [5.0, 7.0], (1, 3)), 1)
    Tensor([7.], dtype=float32)
    """
    return entries.reduce_max(sp_input, axis, keep_dims)


def sparse_reduce_sum(sp_input: Any, axis: Axes = None, keep_dims: bool = False) -> Tensor:
    """`wf.sparse.reduce_sum`.

    >>> wf.tf1.sparse_reduce_sum(wf.sparse.SparseTensor([[0, 1], [0, 2]], [5.0, 7.0], (1, 3)), 1)
    Tensor([12.], dtype=float32)
    """
    return entries.reduce_sum(sp_input, axis, keep_dims)


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """`wf.sparse.reorder`.

    >>> wf.tf1.sparse_reorder(wf.sparse.SparseTensor([[1, 0], [0, 1]], [1, 2], (2, 2))).values
    Tensor([2, 1], dtype=int64)
    """
    return sparse_tensor.reorder(sp_input)


def sparse_reset_shape(sp_input: Any, new_shape: Any = None) -> SparseTensor:
    """`wf.sparse.reset_shape`.

    >>> wf.tf1.sparse_reset_shape(wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (9,))).shape
    (3,)
    """
    return entries.reset_shape(sp_input, new_shape)


def sparse_reshape(sp_input: Any, shape: Sequence[int], name: str | None = None) -> SparseTensor:
    """`wf.sparse.reshape`.

    >>> wf.tf1.sparse_reshape(wf.sparse.SparseTensor([[1, 2]], [5.0], (2, 3)), [-1]).indices
    Tensor([[5]], dtype=int64)
    """
    return sparse_tensor.reshape(sp_input, shape)


def sparse_retain(sp_input: Any, to_retain: TensorLike) -> SparseTensor:
    """`wf.sparse.retain`.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (3,))
    >>> wf.tf1.sparse_retain(a, [False, True]).values
    Tensor([2.], dtype=float32)
    """
    return entries.retain(sp_input, to_retain)


def sparse_slice(
    sp_input: Any, start: Sequence[int], size: Sequence[int], name: str | None = None
) -> SparseTensor:
    """`wf.sparse.slice`.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> wf.tf1.sparse_slice(a, [1, 0], [2, 1]).values
    Tensor([7.], dtype=float32)
    """
    return entries.slice(sp_input, start, size)


def sparse_softmax(sp_input: Any, name: str | None = None) -> SparseTensor:
    """`wf.sparse.softmax`.

    >>> wf.tf1.sparse_softmax(wf.sparse.SparseTensor([[0, 0], [0, 2]], [1.0, 1.0], (1, 3))).values
    Tensor([0.5, 0.5], dtype=float32)
    """
    return entries.softmax(sp_input)


def sparse_tensor_dense_matmul(
    sp_a: Any, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """`wf.sparse.matmul` of a sparse matrix and a tensor.

    >>> a = wf.sparse.SparseTensor([[0, 1]], [5.0], (2, 2))
    >>> wf.tf1.sparse_tensor_dense_matmul(a, [[1.0], [2.0]], adjoint_a=True)
    Tensor([[0.],
            [5.]], dtype=float32)
    """
    sparse = sparse_tensor.as_sparse("matmul", sp_a)
    out: Tensor = products.matmul(sparse, b, adjoint_a=adjoint_a, adjoint_b=adjoint_b)
    return out


def sparse_tensor_to_dense(
    sp_input: Any, default_value: Any = 0, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """`wf.sparse.to_dense`. Equal indices add up and order does not matter, so there is nothing
    that validate_indices would refuse.

    >>> wf.tf1.sparse_tensor_to_dense(wf.sparse.SparseTensor([[2]], [5], (4,)), default_value=-1)
    Tensor([-1, -1,  5, -1], dtype=int64)
    """
    return to_dense(sp_input, default_value)


def sparse_to_dense(
    sparse_indices: TensorLike, output_shape: Any, sparse_values: TensorLike,
    default_value: Any = 0, validate_indices: bool = True, name: str | None = None,
) -> Tensor:  # fmt: skip
    """A tensor of `output_shape` full of `default_value`, with the values at the indices.

    sparse_indices: integers [n, rank]; [n] for a vector, a scalar for one element of it.
    sparse_values: [n], or one for all. Equal indices add up. ShapeError for what does not fit.

    >>> wf.tf1.sparse_to_dense([1, 3], [5], 7, default_value=-1)
    Tensor([-1,  7, -1,  7, -1], dtype=int64)
    """
    indices, values = strong_tensor(sparse_indices), strong_tensor(sparse_values)
    if indices.ndim > 2 or values.ndim > 1:
        raise ShapeError(
            f"wf.tf1.sparse_to_dense: indices {indices.describe()} and values {values.describe()}",
            hint="indices are [n, rank], [n] or a scalar, values [n] or a scalar",
            location=caller_location(),
        )
    if indices.ndim == 0:
        indices = reshape(indices, [1])
    if indices.ndim == 1:
        indices = with_axis(indices, 1)
    if not values.ndim:
        values = expand(values, indices.shape[:1])
    return to_dense(SparseTensor(indices, values, output_shape), default_value)


def sparse_transpose(
    sp_input: Any, perm: Sequence[int] | None = None, name: str | None = None
) -> SparseTensor:
    """`wf.sparse.transpose`, in row-major order.

    >>> a = wf.sparse.SparseTensor([[0, 1], [1, 0]], [5.0, 6.0], (2, 2))
    >>> wf.tf1.sparse_transpose(a).values
    Tensor([6., 5.], dtype=float32)
    """
    return sparse_tensor.reorder(sparse_tensor.transpose(sp_input, perm))
