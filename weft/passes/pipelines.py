"""The pipelines: the passes in their order, with the reasons. Nothing else decides which passes
run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from weft.ir.analysis.frames import is_dataflow
from weft.ir.graph import Graph
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.control.loop_products import transpose_outside_loops
from weft.passes.control.lower_control_flow import lower_control_flow, unroll
from weft.passes.control.lower_stacks import lower_stacks
from weft.passes.control.program_order import program_order
from weft.passes.control.simplify import simplify_control, simplify_control_exactly
from weft.passes.fusion.attention import fuse_attention
from weft.passes.fusion.epilogues import fuse_epilogues, fuse_matmul, split_tails
from weft.passes.fusion.fuse import fuse, fuse_elementwise, fuse_folds
from weft.passes.fusion.integer_products import integer_matmuls, integer_products
from weft.passes.fusion.product_operands import (
    narrow_products,
    stride_all_products,
    stride_products,
)
from weft.passes.fusion.prologues import fuse_prologues
from weft.passes.fusion.quantized_products import fuse_quantized_products
from weft.passes.fusion.recompute import recompute, rematerialize
from weft.passes.fusion.sparse_products import (
    fuse_sparse_products,
    pairs_by_kernel,
    pairs_by_ops,
)
from weft.passes.manager import BoundPass, Pass
from weft.passes.memory.schedule import schedule
from weft.passes.memory.start_early import start_early
from weft.passes.simplify.algebra import contract, simplify, simplify_exactly
from weft.passes.simplify.cse_dce import cse, dce
from weft.passes.simplify.effects import (
    expand_updates,
    merge_reads,
    order_effects,
    strip_barriers,
    strip_gradient_ops,
    strip_marks,
)
from weft.passes.simplify.fold import fold, fold_exactly
from weft.passes.simplify.layouts import move_permutations
from weft.passes.simplify.scales import fold_scales
from weft.passes.simplify.small_convolutions import small_convolutions
from weft.passes.simplify.sparse_updates import sparse_updates
from weft.passes.sizes import tie_sizes

#: Every pass by name, as `weft opt --passes=cse,dce` takes them.
PASSES: dict[str, Pass] = {
    "expand_updates": expand_updates,
    "order_effects": order_effects,
    "strip_gradient_ops": strip_gradient_ops,
    "pairs_by_kernel": pairs_by_kernel,
    "pairs_by_ops": pairs_by_ops,
    "merge_reads": merge_reads,
    "strip_marks": strip_marks,
    "strip_barriers": strip_barriers,
    "lower_stacks": lower_stacks,
    "dce": dce,
    "fold": fold,
    "simplify": simplify,
    "cse": cse,
    "move_permutations": move_permutations,
    "simplify_control": simplify_control,
    "sparse_updates": sparse_updates,
    "fuse_attention": fuse_attention,
    "fuse_sparse_products": fuse_sparse_products,
    "small_convolutions": small_convolutions,
    "integer_products": integer_products,
    "integer_matmuls": integer_matmuls,
    "fuse_quantized_products": fuse_quantized_products,
    "contract": contract,
    "transpose_outside_loops": transpose_outside_loops,
    "fuse": fuse,
    "recompute": recompute,
    "split_tails": split_tails,
    "fuse_matmul": fuse_matmul,
    "fuse_epilogues": fuse_epilogues,
    "stride_products": stride_products,
    "stride_all_products": stride_all_products,
    "fuse_prologues": fuse_prologues,
    "narrow_products": narrow_products,
    "program_order": program_order,
    "lower_control_flow": lower_control_flow,
    "schedule": schedule,
    "rematerialize": rematerialize,
    "start_early": start_early,
    "simplify_exactly": simplify_exactly,
    "fold_exactly": fold_exactly,
    "simplify_control_exactly": simplify_control_exactly,
    "fuse_elementwise": fuse_elementwise,
    "fuse_folds": fuse_folds,
    "tie_sizes": tie_sizes,
    "fold_scales": fold_scales,
    "unroll": BoundPass("unroll", partial(unroll, is_unrolled=lambda op: True)),
}

#: Passes that change what a graph computes, for `weft opt` (the frontend takes gradients while it
#: traces): `weft opt FILE --passes=differentiate,standard`.
TRANSFORMS: dict[str, Pass] = {"differentiate": differentiate}

#: What `@wf.compile` and `Session.run` do to a graph whose shapes are all known.
STANDARD: tuple[Pass, ...] = (
    expand_updates,  # what follows knows reads and assignments
    order_effects,  # afterwards pure ops may be moved and rewritten by their data alone
    lower_stacks,  # gradients have been taken: nothing that follows need know what is a stack
    strip_gradient_ops,  # and the marks for them only stand in the way
    pairs_by_kernel,  # before dce, which drops the other way to the same results
    dce,  # gradients that nobody asked for: less work for all that follows
    fold,  # scalars and sizes; constants that repeat one element become broadcasts of it
    integer_products,  # zero points are known, and products of vectors are no nests yet
    fuse_quantized_products,  # likewise, of what is left: one operand, or few rows
    simplify,  # algebra, views of views, transposes into matmul's flags
    cse,  # gradients recompute what the forward pass has; after simplify equal things look equal
    move_permutations,  # before simplify, in which those that meet cancel
    simplify_control,  # equal operands and bodies show which loops are one, what is invariant
    strip_barriers,  # equal ops are merged: those that are to be done twice are two now
    sparse_updates,  # algebra has shown what updates are; what it makes is still simplified
    fuse_attention,  # while a softmax is ops that can be told; its transposes are simplified next
    fuse_sparse_products,  # while gathers and scatters are ops of their own
    small_convolutions,  # permutations have moved; what it slices and reshapes is simplified next
    simplify,  # merged values open new rules: x - x, where(c, x, x)
    fold,  # and those new constants
    dce,  # what the rewrites left behind, or fusion would write it to memory
    contract,  # no more algebra: which products and sums are rounded together
    transpose_outside_loops,  # after simplify, which has put the transposes into the flags
    fuse,  # near the end: it hides ops in regions
    recompute,  # of what nests hand to each other, before products take nests over
    split_tails,  # a product could do a nest but for what it does with its sums
    fuse_matmul,  # products take over the nests that fuse has made
    stride_products,  # what is left of copies around products: they read and write by strides
    fuse_prologues,  # and of nests before them: what only a product reads is never stored
    narrow_products,  # what only widens integers is left to their packing
    schedule,  # the kernels are known: in an order in which less is alive at once
    rematerialize,  # and what is still alive at the peak, and cheap, is computed twice
    start_early,  # last: the order that it gives is that of the step
)

#: Instead of STANDARD, so that the bits of an op's results depend on its operands alone: on nothing
#: that comes before or after it, so neither on what is fused nor on where a graph is cut.
REPRODUCIBLE: tuple[Pass, ...] = (
    expand_updates,
    order_effects,
    lower_stacks,
    strip_gradient_ops,
    pairs_by_kernel,
    dce,
    fold_exactly,
    simplify_exactly,
    cse,
    simplify_control_exactly,
    strip_barriers,
    simplify_exactly,
    fold_exactly,
    dce,
    transpose_outside_loops,
    fuse_elementwise,
    fuse_matmul,  # elementwise nests: what adds up is not one yet
    stride_products,
    fuse_prologues,
    narrow_products,
    fuse_folds,
    schedule,
    start_early,
)
#: For a GPU: its products do more of what follows them and of copies than the CPU's, no prologues.
_OF_CPU_PRODUCTS = (
    fuse_attention, split_tails, fuse_prologues,
    fuse_sparse_products, fuse_quantized_products, small_convolutions,
)  # fmt: skip
_OF_GPU_PRODUCTS: dict[Pass, Pass] = {
    fuse_matmul: fuse_epilogues,
    stride_products: stride_all_products,
    pairs_by_kernel: pairs_by_ops,
    integer_products: integer_matmuls,
}
GPU: tuple[Pass, ...] = tuple(
    _OF_GPU_PRODUCTS.get(p, p) for p in STANDARD if p not in _OF_CPU_PRODUCTS
)
#: The same of REPRODUCIBLE: a product is a kernel by itself, whatever reads it. Integers are exact.
_OF_PRODUCTS = (fuse_matmul, stride_products, fuse_prologues)
GPU_REPRODUCIBLE: tuple[Pass, ...] = tuple(
    _OF_GPU_PRODUCTS.get(p, p) for p in REPRODUCIBLE if p not in _OF_PRODUCTS
)

#: What the passes of a pipeline are on a step that is placed and cut afterwards; others wait for
#: the parts. They work by the data alone: ops of the host may run beside each other yet, so effects
#: are not put in order, and an update stays one op, which is one access to its variable.
_BEFORE_PLACEMENT: dict[Pass, Pass] = {
    order_effects: merge_reads,
    strip_gradient_ops: strip_marks,
    **{p: p for p in (dce, cse, sparse_updates, pairs_by_kernel, pairs_by_ops)},
    **{p: p for p in (fold, simplify, fold_exactly, simplify_exactly)},
}


def before_placement(passes: Iterable[Pass], graph: Graph) -> tuple[Pass, ...]:
    """The passes of a pipeline that a step goes through before it is placed; its parts go through
    the whole pipeline. None where values may be dead: what is dead decides what runs."""
    if is_dataflow(graph.block):
        return ()
    return tuple(_BEFORE_PLACEMENT[p] for p in passes if p in _BEFORE_PLACEMENT)


#: Pipelines by name.
PIPELINES: dict[str, tuple[Pass, ...]] = {
    "standard": STANDARD,
    "reproducible": REPRODUCIBLE,
    "gpu": GPU,
    "gpu_reproducible": GPU_REPRODUCIBLE,
}
