"""Reads through indices in nests: where a load's place takes in what its index loads say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from weft.codegen.element_access import load_element
from weft.codegen.emitter import Emitter
from weft.codegen.scalar.scalar import emit_scalar
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype

LINE = 64
#: How many rows before it is read a row is asked for; what an index says, no processor foresees.
AHEAD, MOST_LINES = 4, 16


@dataclass(frozen=True, slots=True)
class PickWalk:
    """What the element of load `index` adds to a pointer: it counts elements of `stride` along an
    axis of `size`, from the end if negative. loop: the last loop that moves the index load, after
    which it is read; -1: none does.
    """

    index: int
    dtype: str
    loop: int
    stride: ir.Value
    size: ir.Value

    def applied(self, e: Emitter, pointer: ir.Value, index_at: ir.Value) -> ir.Value:
        """The pointer, moved by the index at `index_at`, which has been checked."""
        b = e.builder
        held = load_element(e, index_at, self.dtype)
        index = emit_scalar(e, "astype", self.dtype, [held], {"dtype": "i64"})
        if self.dtype.startswith("i"):
            wrapped = b.add(index, self.size, flags=["nsw"])
            index = b.select(b.icmp_signed("<", index, e.index(0)), wrapped, index)
        return e.at(pointer, b.mul(index, self.stride, flags=["nsw"]))


def last_moving(strides: Sequence[int]) -> int:
    """The innermost loop with a stride; -1 if there is none."""
    return max((k for k, s in enumerate(strides) if s), default=-1)


def pick_walks(
    picks: Sequence[tuple[int, int, int]],
    loads: Sequence[tuple[str, tuple[int, ...]]],
    following: Callable[[], ir.Value],
) -> list[PickWalk]:
    """The picks of a load. loads: dtype and strides of each index load, in their order; following:
    the next of the kernel's numbers.
    """
    return [
        PickWalk(k, dtype, last_moving(strides), following(), following())
        for (k, _, _), (dtype, strides) in zip(picks, loads, strict=True)
    ]


def ask_ahead(
    e: Emitter,
    pointer: ir.Value,
    picks: Sequence[tuple[PickWalk, ir.Value]],
    elements: ir.Value,
    dtype: str,
) -> None:
    """Ask for the cache lines of so many elements from where the picks, each with the place of its
    index, move the pointer; of `MOST_LINES` at most: the processor foresees those after them.
    """
    for pick, index_at in picks:
        pointer = pick.applied(e, pointer, index_at)
    itemsize = as_dtype(dtype).itemsize
    b, byte = e.builder, ir.IntType(8).as_pointer()
    flag = ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    intrinsic = e.module.declare_intrinsic("llvm.prefetch", [byte], function)
    step = e.index(max(LINE // itemsize, 1))
    most = e.index(MOST_LINES * max(LINE // itemsize, 1))
    count = b.select(b.icmp_signed("<", elements, most), elements, most)
    with e.for_range(e.index(0), count, step) as j:
        place = b.bitcast(e.at(pointer, j), byte)
        # to read, to stay in all caches, data
        b.call(intrinsic, [place, *(ir.Constant(flag, k) for k in (0, 3, 1))])
