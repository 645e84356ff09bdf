"""Lowerings: the native kernels of the ops that are no loop nests, one row per op.

`fused` ops that hold a product are among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.codegen.call import Address, KernelCall
from weft.codegen.kernels.attention import attention_calls, attention_grad_calls
from weft.codegen.kernels.data_movement import (
    lower_along_axis,
    lower_concat,
    lower_dim_size,
    lower_first_occurrence,
    lower_nd,
    lower_pad,
    lower_slice_update,
)
from weft.codegen.kernels.fourier import fourier_calls
from weft.codegen.kernels.linear_algebra import (
    lower_cholesky,
    lower_eig,
    lower_eigh,
    lower_lu,
    lower_qr,
    lower_solve,
    lower_svd,
)
from weft.codegen.kernels.random import lower_random_bits, lower_random_fold_in
from weft.codegen.kernels.scan import cumulative_calls, position_calls
from weft.codegen.kernels.sort import lower_searchsorted, sort_calls
from weft.codegen.kernels.sparse import lower_padded_pairs, lower_sparse_matmul
from weft.codegen.kernels.stack import lower_add, lower_pop, lower_push
from weft.codegen.nests.nest import Nest
from weft.codegen.products.calls import (
    Lower,
    calls_another,
    lower_matmul,
    matmul_into,
    matmul_with,
    operands_of,
    product_calls,
    product_in,
    prologues,
    result_strides,
)
from weft.codegen.products.quantized import lower_quantized
from weft.codegen.python_calls import lower_python_call
from weft.codegen.windows.conv import conv_with, lower_conv
from weft.codegen.windows.reduce import lower_window, lower_window_place
from weft.ir.graph import Operation
from weft.ir.ops.io import PYTHON_CALLS

Lowering = Callable[[Operation], list[KernelCall]]

#: Products that a `fused` op may begin with.
PRODUCTS: dict[str, Lower] = {"matmul": matmul_with, "conv": conv_with, "conv_input": conv_with}


#: Ops that users register have a row, too, as long as they are there (`user_kernels.py`).
LOWERINGS: dict[str, Lowering] = {
    # linear algebra
    "matmul": lower_matmul,
    "quantized_matmul": lower_quantized,
    "attention": attention_calls,
    "attention_grad": attention_grad_calls,
    "sparse_matmul": lower_sparse_matmul,
    "sparse_pairs_padded": lower_padded_pairs,
    "cholesky": lower_cholesky,
    "lu": lower_lu,
    "lu_solve": lower_solve,
    "triangular_solve": lower_solve,
    "qr": lower_qr,
    "eigh": lower_eigh,
    "svd": lower_svd,
    "eig": lower_eig,
    # windows
    "conv": lower_conv,
    "conv_input": lower_conv,
    "conv_kernel": lower_conv,
    "window_sum": lower_window,
    "window_spread": lower_window,
    "window_max": lower_window,
    "window_pick": lower_window,
    "window_place": lower_window_place,
    # moving elements
    "concat": lower_concat,
    "pad": lower_pad,
    "slice_update": lower_slice_update,
    "dim_size": lower_dim_size,
    # by index
    "take": lower_along_axis,
    "index_add": lower_along_axis,
    "take_along_axis": lower_along_axis,
    "scatter_along_axis_add": lower_along_axis,
    "first_occurrence": lower_first_occurrence,
    "gather_nd": lower_nd,
    "scatter_nd_add": lower_nd,
    "scatter_nd_update": lower_nd,
    "scatter_nd_min": lower_nd,
    "scatter_nd_max": lower_nd,
    # along an axis
    "cumulative_sum": cumulative_calls,
    "cumulative_prod": cumulative_calls,
    "cumulative_max": cumulative_calls,
    "cumulative_min": cumulative_calls,
    "cumulative_logsumexp": cumulative_calls,
    "argmax": position_calls,
    "argmin": position_calls,
    "sort": sort_calls,
    "argsort": sort_calls,
    "searchsorted": lower_searchsorted,
    # Fourier transforms
    "fft": fourier_calls,
    "rfft": fourier_calls,
    "irfft": fourier_calls,
    # stacks
    "arena_push": lower_push,
    "arena_pop": lower_pop,
    "arena_add": lower_add,
    # calls of Python
    **dict.fromkeys(sorted(PYTHON_CALLS), lower_python_call),
    # random bits
    "random_bits": lower_random_bits,
    "random_fold_in": lower_random_fold_in,
}


#: A call, the nest that it carries out besides, and for other calls than the product's their use.
Planned = tuple[KernelCall, Nest | None, str]


def fused_product_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> Iterator[Planned]:
    """The calls of `op`, in order: what packs, the product, what adds up its partial results."""
    product = product_in(op)
    strides = result_strides(op)
    nest: Nest | None = None
    before = prologues(op)
    if strides is not None:
        a, b = operands_of(op)
        calls = matmul_into(product, a, b, Address(op.result), strides, before)
        at = len(calls) - 1
    else:
        calls, nest = product_calls(op, in_place, PRODUCTS[product.name], before)
        at = next(k for k, call in enumerate(calls) if calls_another(call))
    for k, call in enumerate(calls):
        why = "packs the product's B" if k < at else "adds up partial results" if k > at else ""
        yield call, nest if k == at else None, why
