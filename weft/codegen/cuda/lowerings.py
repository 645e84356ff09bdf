"""Table of GPU lowerings: the kernels that carry out each op, and the ops and dtypes a GPU takes.

Loop nests and row nests are lowered by rule; every other op has one row in `GPU_LOWERINGS`.
`gpu_ops` is what placement asks before there is a plan: an op that is neither a nest nor in the
table is the CPU's."""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.call import Address
from weft.codegen.cuda.kernels.conv import conv_launches, fused_conv_launches
from weft.codegen.cuda.kernels.data_movement import (
    concat_launches,
    dim_size_launches,
    gather_launches,
    pad_launches,
    slice_update_launches,
)
from weft.codegen.cuda.kernels.pooling import (
    window_max_launches,
    window_pick_launches,
    window_place_launches,
    window_spread_launches,
    window_sum_launches,
)
from weft.codegen.cuda.kernels.random import random_bits_launches, random_fold_in_launches
from weft.codegen.cuda.kernels.scan import cumulative_launches, position_launches
from weft.codegen.cuda.kernels.scatter import (
    first_occurrence_launches,
    scatter_along_axis_launches,
    scatter_launches,
)
from weft.codegen.cuda.kernels.sort import searchsorted_launches, sort_launches
from weft.codegen.cuda.nests.plain_nests import plain_launches
from weft.codegen.cuda.nests.row_kernel import row_launches
from weft.codegen.cuda.products.matmul import fused_matmul_launches, matmul_launches
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.nests.nest import Nest, build_nest
from weft.codegen.nests.rows import RowNest, build_rows
from weft.codegen.products.calls import is_product, product_in
from weft.codegen.steps.plan import NO_CODE
from weft.ir.analysis.index_maps import INDEX_MAPS, row_space_of
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.ops import OPS
from weft.ir.ops.control_flow import CONTROL, STACK_OPS
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.ops.state import UPDATES
from weft.ir.types import TensorType

__all__ = ["GPU_LOWERINGS", "fused_launches", "launches_of"]

Lowering = Callable[[Operation], list[Launch]]

#: The ops that have GPU kernels beside loop nests. Updates (`passes/in_place.UPDATES`) find their
#: first operand in the result.
GPU_LOWERINGS: dict[str, Lowering] = {
    # linear algebra
    "matmul": matmul_launches,
    # windows
    "conv": conv_launches,
    "conv_input": conv_launches,
    "conv_kernel": conv_launches,
    "window_sum": window_sum_launches,
    "window_spread": window_spread_launches,
    "window_max": window_max_launches,
    "window_pick": window_pick_launches,
    "window_place": window_place_launches,
    # moving elements
    "concat": concat_launches,
    "pad": pad_launches,
    "slice_update": slice_update_launches,
    "dim_size": dim_size_launches,
    # by index
    "take": gather_launches,
    "take_along_axis": gather_launches,
    "gather_nd": gather_launches,
    "first_occurrence": first_occurrence_launches,
    "index_add": scatter_launches,
    "scatter_along_axis_add": scatter_along_axis_launches,
    "scatter_nd_add": scatter_launches,
    "scatter_nd_update": scatter_launches,
    "scatter_nd_min": scatter_launches,
    "scatter_nd_max": scatter_launches,
    # along an axis
    "cumulative_sum": cumulative_launches,
    "cumulative_prod": cumulative_launches,
    "cumulative_max": cumulative_launches,
    "cumulative_min": cumulative_launches,
    "cumulative_logsumexp": cumulative_launches,
    "argmax": position_launches,
    "argmin": position_launches,
    "sort": sort_launches,
    "argsort": sort_launches,
    "searchsorted": searchsorted_launches,
    # random bits
    "random_bits": random_bits_launches,
    "random_fold_in": random_fold_in_launches,
}


def fused_launches(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> tuple[list[Launch], Nest | RowNest]:
    """The launches of a `fused` op, and the nest for people to read: what follows its product, if
    it holds one.

    in_place: operand number -> number of the output whose buffer it shares. UnsupportedError, at
    the user's line, for an op or a dtype that has no GPU code.
    """
    outputs, operands = [Address(v) for v in op.results], [Address(v) for v in op.operands]
    row_space = row_space_of(op.regions[0])
    try:
        _check(op)
        if is_product(op):
            is_matmul = product_in(op).name == "matmul"
            return (fused_matmul_launches if is_matmul else fused_conv_launches)(op, in_place)
        if row_space is not None:
            rows = build_rows(op, row_space, in_place)
            return row_launches(rows, outputs, operands), rows
        nest = build_nest(op, in_place)
        return plain_launches(nest, outputs, operands), nest
    except UnsupportedError as error:
        raise error.at(op.locations) from None


def _check(op: Operation) -> None:
    """UnsupportedError, naming the op, for complex numbers in a `fused` op."""
    for inner in op.regions[0].ops:
        for value in (*inner.operands, *inner.results):
            if isinstance(value.type, TensorType) and value.type.dtype.short not in DTYPES:
                raise UnsupportedError(
                    f"op '{inner.name}' on {value.type} has no GPU code",
                    hint="complex numbers run on the CPU only",
                    location=inner.locations,
                )


def launches_of(op: Operation) -> list[Launch]:
    """The launches of any other op. UnsupportedError, naming it, if it has no GPU kernel."""
    lowering = GPU_LOWERINGS.get(op.name)
    if lowering is None:
        raise UnsupportedError(
            f"op '{op.name}' has no GPU kernel",
            hint='`with wf.device("cpu:0"):` around it has it done on the processor, which has one',
            location=op.locations,
        )
    try:
        return lowering(op)
    except UnsupportedError as error:
        raise error.at(op.locations) from None


#: What passes take away or make other ops of before there are launches.
_REWRITTEN = frozenset(
    {"custom_gradient", "custom_rule", "loop_mark", "row_guard", *UPDATES, *STACK_OPS}
)
#: What Python does beside a variable, wherever that is; it needs no kernel.
_BESIDE_VARIABLES = frozenset(
    {"is_initialized", "assert_initialized", "report_uninitialized", "count_up_to"}
)

GPU_DTYPES = frozenset(DTYPES)


def gpu_ops() -> frozenset[str]:
    """The ops that a GPU takes, as the table of lowerings is now."""
    in_nests = {
        name
        for name, spec in OPS.items()
        if spec.traits & {"elementwise", "reduction"} or name in INDEX_MAPS
    }
    named = (GPU_LOWERINGS, NO_CODE, CONTROL, _REWRITTEN, _BESIDE_VARIABLES, PYTHON_CALLS)
    return frozenset(in_nests).union(*named)
