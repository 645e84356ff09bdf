"""Accumulators, and folds over the threads of a warp or block: trees that depend on sizes alone.

Sums of f32 (and of 16-bit floats, kept in f32) carry what each addition rounds off along (TwoSum:
D. Knuth, "The Art of Computer Programming", volume 2, 4.2.2), so that the only roundings that add
up are those of the tree over threads and of the few lanes of a vector."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.cuda.source.dtypes import load, stored
from weft.codegen.cuda.source.elementwise import fold_expression, identity, running_dtype
from weft.codegen.cuda.source.language import WARP as WARP
from weft.codegen.cuda.source.writer import Source

FULL = "0xFFFFFFFF"
#: What shuffles carry of dtypes that they do not take.
_CARRIED = {"bool": "i32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}


class Accumulator:
    """A fold over elements of `dtype`, one thread's part of it."""

    def __init__(self, s: Source, reduction: str, dtype: str) -> None:
        self.s, self.reduction = s, reduction
        self.dtype = running_dtype(reduction, dtype)
        self.total = s.let(identity(reduction, self.dtype), "total")
        self.rest = ""
        if reduction == "sum" and self.dtype == "f32":
            self.rest = s.let("f32(0)", "rest")

    def add(self, values: Sequence[str]) -> None:
        """Some more elements, as register values of the dtype in which the fold is kept."""
        s = self.s
        while len(values) > 1 and self.rest:  # in pairs
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [s.let(f"f32({a} + {b})", "part") for a, b in pairs]
        for value in values:
            if self.rest:
                self._add_exactly(value)
            else:
                folded = fold_expression(self.reduction, self.dtype, self.total, value)
                s.line(f"{self.total} = {folded}")

    def _add_exactly(self, value: str) -> None:
        s = self.s
        total = s.let(f"f32({self.total} + {value})", "after")
        taken = s.let(f"f32({total} - {self.total})", "taken")
        off = f"f32(f32({self.total} - f32({total} - {taken})) + f32({value} - {taken}))"
        s.line(f"{self.rest} = f32({self.rest} + {off})")
        s.line(f"{self.total} = {total}")

    def close(self) -> str:
        """The value: an infinite or NaN total is that without what was rounded off."""
        s = self.s
        if self.rest:
            finite = f"f32({self.total} - {self.total}) == f32(0)"
            s.line(f"{self.total} = f32({self.total} + {self.rest}) if {finite} else {self.total}")
        return self.total


def warp_fold(s: Source, value: str, reduction: str, dtype: str) -> str:
    """A name for the fold over the values of the 32 threads of a warp, the same in each. All of
    them must come here; dtype: that in which the fold is kept."""
    carried = _CARRIED.get(dtype, dtype)
    value, distance = s.let(value, "part"), s.let("i32(16)", "distance")
    with s.block(f"while {distance} > i32(0)"):  # compilers unroll it
        sent = value
        if carried != dtype:
            sent = s.let(f"{carried}({_number(dtype, value)})", "sent")
        other = s.let(f"cuda.shfl_xor_sync({FULL}, {sent}, {distance})", "other")
        if carried != dtype:
            back = f"{other} != i32(0)" if dtype == "bool" else f"{dtype}({other})"
            other = s.let(back, "other")
        s.line(f"{value} = {fold_expression(reduction, dtype, value, other)}")
        s.line(f"{distance} = i32({distance} >> i32(1))")
    return value


def _number(dtype: str, value: str) -> str:
    return stored(dtype, value) if dtype == "bool" else value


def block_folds(
    s: Source, values: Sequence[str], folds: Sequence[tuple[str, str]], threads: int
) -> list[str]:
    """Names for the folds (reduction, dtype in which it is kept) over the values of all `threads`
    of a block, the same in each. All threads must come here."""
    warps, shared, parts = threads // WARP, [], []
    for _, dtype in folds:
        memory = "u8" if dtype == "bool" else dtype
        shared.append(s.let(f"cuda.shared.array({warps}, {memory})", "shared"))
    for value, (reduction, dtype) in zip(values, folds, strict=True):
        parts.append(warp_fold(s, value, reduction, dtype))
    with s.block(f"if {s.mod(s.thread, s.const(WARP))} == {s.const(0)}"):
        warp = s.let(s.div(s.thread, s.const(WARP)), "warp")
        for part, array, (_, dtype) in zip(parts, shared, folds, strict=True):
            s.line(f"{array}[{warp}] = {stored(dtype, part)}")
    s.line("cuda.syncthreads()")
    return [
        ordered_fold(s, (array, s.const(0), s.const(1)), warps, reduction, dtype)
        for array, (reduction, dtype) in zip(shared, folds, strict=True)
    ]


def ordered_fold(
    s: Source, places: tuple[str, str, str], count: int, reduction: str, dtype: str
) -> str:
    """A name for the fold over `count` elements of a shared array in their order; places: the
    array, the first index, and the step from one to the next."""
    array, first, step = places
    total = s.let(load(dtype, array, first), "total")
    stop = s.add(first, s.mul(s.const(count), step))
    with s.loop(s.add(first, step), stop, step, "k") as k:
        other = s.let(load(dtype, array, k), "other")
        s.line(f"{total} = {fold_expression(reduction, dtype, total, other)}")
    return total
