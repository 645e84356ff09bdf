"""Row nests as launches: the kernel, and those that add up the partial results of its totals."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Arg, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.rows.combine import Partial, combine_launches, lay_out
from weft.codegen.cuda.rows.layout import Layout, layout_of
from weft.codegen.cuda.rows.nodes import held_nodes
from weft.codegen.cuda.rows.writer import RowWriter
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.writer import Source, index_dtype
from weft.codegen.nests.row_passes import schedule
from weft.codegen.nests.rows import RowNest
from weft.ir.types import TensorType


def row_launches(
    nest: RowNest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[Launch]:
    """The launches of a row nest on these buffers. UnsupportedError for an op without GPU code."""
    plan = schedule(nest)
    layout = layout_of(nest, len(held_nodes(nest, plan)[1]), _offsets(nest, operands))
    partials, size = _partials(nest, layout, outputs)
    if not nest.rows:
        return combine_launches(partials, Scratch(size), 0)
    scratch = Scratch(size)
    starts = {p.output: p.first for p in partials}
    targets: list[tuple[Arg, int]] = []
    for o in nest.outputs:
        address = outputs[o.output]
        targets.append((scratch, starts[address]) if o.total else (address, 0))
    counts = [_elements(a) for a in (*outputs, *operands)] + [size, nest.rows * nest.row_elements]
    index = index_dtype(*counts)
    name = f"rows_{nest.name}_{layout.name}_{index}"
    s = Source(name, index, layout.threads)
    RowWriter(s, nest, plan, layout, targets, operands).write()
    launch = s.launch(layout.blocks(nest))
    return [launch, *combine_launches(partials, scratch, layout.units)]


def _offsets(nest: RowNest, operands: Sequence[Address]) -> dict[int, int]:
    return {
        n: operands[node.leaf].offset + node.offset * nbytes(node.dtype)
        for n, node in enumerate(nest.nodes)
        if node.kind == "load" and isinstance(node.leaf, int)
    }


def _elements(address: Address) -> int:
    held = address.value.type
    assert isinstance(held, TensorType)
    return held.nbytes // held.dtype.itemsize


def _partials(
    nest: RowNest, layout: Layout, outputs: Sequence[Address]
) -> tuple[list[Partial], int]:
    folds = [
        (
            o.total or "",
            o.dtype,
            nest.row_elements if nest.moves_in_row(o.strides) else 1,
            outputs[o.output],
        )
        for o in nest.totals
    ]
    return lay_out(folds, layout.units)
