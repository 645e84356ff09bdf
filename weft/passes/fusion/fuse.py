"""Fusion: group elementwise ops, reads through index maps and reductions into loop nests.

Before::

    %2 = multiply(%x, %w) : f32[32,100]
    %3 = exp(%2) : f32[32,100]
    %4 = sum(%3) {axes=[0]} : f32[100]

After: one ``fused`` op whose region holds the three. There are two kinds of groups.

A *plain nest*: all ops share the iteration space (the shape that the loops run over), and all
reductions fold the same axes; what they give is an output, never used inside.

A *row kernel*: reductions over the inner axes give one number for each row, and those may be used
inside, by ops on such row values and by ops on the whole space (softmax, layer norm and their
gradients are one kernel each). There is more than one row. If the innermost axis is not in the row,
rows are columns side by side, a block of which is done at once: where that stays in a cache, and
after everything that fits kernels over other rows has joined them.
Besides, a row kernel may fold all rows into one (gradients of scale and bias; columns not) or
everything into a number (losses); those results are outputs only. It reads (`take_along_axis`) and
changes (`scatter_along_axis_add`) one element of each row: cross entropy with labels is one kernel.

For both:

* ``broadcast_to``, ``permute_dims``, ``slice``, ``iota`` and reshapes that only add or drop
  dimensions of size 1 are index maps: they cost no memory traffic and are repeated in every nest
  that reads through them;
* an op reads what another op of its nest makes at its own element or row only;
* no reduction is computed twice, and nothing that was read or written once is read or written twice
  for the sake of a join;
* a gather that only nests read is read through by them (`weft.passes.fusion.gathers`);
* a nest has at most `MOST_INSTRUCTIONS` (`weft.ir.code_size`): what a compiler takes grows faster
  than the code, and a nest so long gains nothing by more;
* two groups are not joined if a path between them leads through an op outside (that would be a
  cycle);
* when no more can join along what one makes and the other reads, those join that read the same
  (`weft.passes.fusion.siblings`).
"""

from __future__ import annotations

from weft.ir.graph import Graph
from weft.ir.index_maps import INDEX_MAPS
from weft.passes.control.regions import in_regions
from weft.passes.fusion.emit import emit_groups
from weft.passes.fusion.groups import Grouping
from weft.passes.fusion.rules import ELEMENTWISE, FOLDS, REDUCTIONS

__all__ = ["INDEX_MAPS", "REDUCTIONS", "fuse"]


def fuse(graph: Graph) -> Graph:
    """Group the ops of `graph`, those of regions too, into ``fused`` ops (see the rules above)."""
    return emit_groups(Grouping(in_regions(graph, fuse)))


def fuse_elementwise(graph: Graph) -> Graph:
    """`fuse` for elementwise ops without 16-bit floats; these are nests by themselves, and
    reductions stay: no bit of a result depends on what is fused."""
    return emit_groups(Grouping(in_regions(graph, fuse_elementwise), ELEMENTWISE))


def fuse_folds(graph: Graph) -> Graph:
    """Each reduction that `fuse_elementwise` has left as a nest by itself: in which order it adds
    up follows from its shape."""
    return emit_groups(Grouping(in_regions(graph, fuse_folds), FOLDS))
