"""Convolutions (`weft/ir/ops/windows.py`): tiles (`conv_tiles.py`) where there is enough to
multiply; else, as where each channel is its own group, each result is added up by one thread.

`conv_kernel`, whose sums are long and few, then gives each thread some items of the batch; a second
launch adds those up. 16-bit floats add up in f32. All orders are fixed by the sizes.

What a tap sees beyond the edges takes no part; in tiles it is a 0, which makes NaN of an infinity.
So sums that are NaN then are added up anew by one thread each, before anything follows; of a
`conv_kernel` by a launch of their own.
"""

from __future__ import annotations

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.others.conv_follow import Convolution, convolution, fused_convolution
from weft.codegen.cuda.others.conv_geometry import Geometry
from weft.codegen.cuda.others.conv_sums import ROLES, ConvSums
from weft.codegen.cuda.others.conv_tiles import tiled_launches
from weft.codegen.cuda.others.sizes import computed_dtype, count_of, shape_of
from weft.codegen.cuda.products.epilogue import Epilogue
from weft.codegen.cuda.rows.combine import Partial, combine_launches
from weft.codegen.cuda.scalars.memory import FLOATS, nbytes
from weft.codegen.cuda.scalars.scalar import load, register_dtype, stored
from weft.codegen.cuda.writer import Source
from weft.codegen.nests.nest import Nest
from weft.ir.graph import Operation

#: Sums of a conv_kernel are cut into parts until there are so many threads.
WANTED = 1 << 17


def conv_launches(op: Operation) -> list[Launch]:
    """conv, conv_input, conv_kernel. UnsupportedError for complex numbers."""
    return _launches(convolution(op))


def fused_conv_launches(
    op: Operation, in_place: tuple[tuple[int, int], ...]
) -> tuple[list[Launch], Nest]:
    """The launches of a `fused` op that holds a convolution, and the nest that follows it."""
    conv = fused_convolution(op, in_place)
    return _launches(conv), conv.follow.nest


def nan_launches(op: Operation) -> list[Launch]:
    """What adds up results that are NaN anew, where zeros beyond the edges were multiplied."""
    dtype, out = computed_dtype(op, op.result), Address(op.result)
    if not (Geometry(op).sees_nothing and dtype in FLOATS and count_of(op.result)):
        return []
    kernel = _Kernel(convolution(op), "_nan", 1)
    s, pointer = kernel.s, kernel.s.pointer("out", dtype, out)
    with s.block(f"if {kernel.i} < {kernel.count}"):
        made = s.let(load(dtype, pointer, kernel.i), "made")
        with s.block(f"if {made} != {made}"):
            s.line(f"{pointer}[{kernel.i}] = {stored(dtype, kernel.sums.total(kernel.i))}")
    return [kernel.launch()]


def _launches(conv: Convolution) -> list[Launch]:
    op, geometry = conv.op, Geometry(conv.op)
    computed_dtype(op, op.result)
    if not count_of(op.result):
        return []
    if geometry.fits:
        more = nan_launches(op) if op.name == "conv_kernel" else []
        return [*tiled_launches(conv, geometry), *more]
    batch, count = shape_of(op.operands[0])[0], count_of(op.result)
    parts = max(1, min(batch, WANTED // count)) if op.name == "conv_kernel" else 1
    return [_each_result(conv)] if parts == 1 else _in_parts(conv, parts)


class _Kernel:
    """One in the making: a thread for each result `i`, of each part; there are `count`."""

    def __init__(self, conv: Convolution, way: str, parts: int) -> None:
        op, size = conv.op, count_of(conv.op.result) * parts
        dtype, index = computed_dtype(op, op.result), conv.index(size)
        axes = len(shape_of(op.result)) - 2
        s = self.s = Source(f"{conv.name}_{dtype}_{axes}d{way}_{index}", index)
        given = zip(ROLES[op.name], conv.operands, strict=False)
        self.sums = ConvSums(s, op, {role: s.pointer(role, dtype, at) for role, at in given})
        self.size, self.count = size, s.number("count", size)
        self.i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")

    def launch(self) -> Launch:
        """Its launch."""
        return self.s.launch(-(-self.size // self.s.threads))


def _each_result(conv: Convolution) -> Launch:
    kernel = _Kernel(conv, "", 1)
    s, epilogue = kernel.s, Epilogue(kernel.s, conv.follow)
    columns = s.number("columns", conv.size[1])
    with s.block(f"if {kernel.i} < {kernel.count}"):
        total = kernel.sums.total(kernel.i)
        row, column = s.split(kernel.i, ["", columns], "at")
        epilogue.write(row, column, [total])
    return kernel.launch()


def _in_parts(conv: Convolution, parts: int) -> list[Launch]:
    """Each part of the batch by threads of its own; only of a `conv_kernel`, by itself."""
    op, kernel = conv.op, _Kernel(conv, "_parts", parts)
    dtype, count = computed_dtype(op, op.result), count_of(op.result)
    s, kept = kernel.s, register_dtype(dtype)
    scratch = Scratch(kernel.size * nbytes(kept))
    out = s.pointer("out", kept, scratch)
    with s.block(f"if {kernel.i} < {kernel.count}"):
        s.line(f"{out}[{kernel.i}] = {stored(kept, kernel.sums.total(kernel.i, parts))}")
    partial = Partial("sum", dtype, kept, count, 0, Address(op.result))
    return [kernel.launch(), *combine_launches([partial], scratch, parts)]
