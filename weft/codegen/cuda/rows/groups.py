"""Folds over the threads of a group: shuffles within a warp, shared memory beyond, in a fixed tree.

Every thread of the group gets the result. All threads of the block must come here together.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.cuda.rows.layout import COLUMNS, WARP
from weft.codegen.cuda.scalars.scalar import fold_expression, identity
from weft.codegen.cuda.writer import Source
from weft.ir.dataclass import dataclass

#: All threads of a warp.
MASK = "0xFFFFFFFF"
#: Dtypes that shuffles and shared memory hold narrower ones in.
_CARRIER = {"bool": "u32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}


@dataclass(frozen=True, slots=True)
class GroupFold:
    """A fold over one value of each thread; `dtype` is the one that it is kept in."""

    value: str
    reduction: str
    dtype: str


class Group:
    """The threads that share a row: `size` of them, thread `lane`. by_columns: those of one
    `column` of a block, else neighbours.
    """

    def __init__(
        self, s: Source, size: int, lane: str, folds: Sequence[str], column: str | None = None
    ) -> None:
        """folds: the dtypes of all folds that are to come, in order."""
        self.s, self.size, self.lane, self.column = s, size, lane, column
        count = size * COLUMNS if column is not None else max(size // WARP, 1)
        self.shared: list[str] = []
        if size > (1 if column is not None else WARP):
            for dtype in folds:
                text = f"cuda.shared.array({count}, {carrier(dtype)})"
                self.shared.append(s.let(text, "shared"))
            if column is None:
                self.warp = s.let(s.div(lane, s.const(WARP)), "warp")
                self.warp_lane = s.let(s.mod(lane, s.const(WARP)), "warp_lane")
        self.used = 0

    @property
    def meets(self) -> bool:
        """Whether its folds have barriers of the whole block."""
        return bool(self.shared)

    def barrier(self) -> None:
        """All of the group have got here, and see what the others have written."""
        if self.size > WARP or (self.column is not None and self.size > 1):
            self.s.line("cuda.syncthreads()")
        elif self.size > 1:
            self.s.line(f"cuda.syncwarp({MASK})")

    def fold(self, folds: Sequence[GroupFold]) -> list[str]:
        """The results of several folds at once."""
        if self.size == 1:
            return [f.value for f in folds]
        if self.column is not None:
            return self._columns(folds)
        values = [self._shuffled(f, f.value, min(self.size, WARP)) for f in folds]
        return self._across_warps(folds, values) if self.size > WARP else values

    def _shuffled(self, f: GroupFold, value: str, lanes: int) -> str:
        """The fold over `lanes` neighbouring threads."""
        s = self.s
        while lanes > 1:
            lanes //= 2
            held = s.let(carried(f.dtype, value), "w") if f.dtype in _CARRIER else value
            got = s.let(f"cuda.shfl_xor_sync({MASK}, {held}, {lanes})", "w")
            other = s.let(given(f.dtype, got), "w") if f.dtype in _CARRIER else got
            value = s.let(fold_expression(f.reduction, f.dtype, value, other), "w")
        return value

    def _arrays(self, count: int) -> list[str]:
        first = self.used % len(self.shared)
        self.used += count
        return self.shared[first : first + count]

    def _across_warps(self, folds: Sequence[GroupFold], values: Sequence[str]) -> list[str]:
        s, warps = self.s, self.size // WARP
        arrays = self._arrays(len(folds))
        with s.block(f"if {self.warp_lane} == {s.const(0)}"):
            for f, array, value in zip(folds, arrays, values, strict=True):
                s.line(f"{array}[{self.warp}] = {carried(f.dtype, value)}")
        s.line("cuda.syncthreads()")
        place = s.let(s.mod(self.warp_lane, s.const(warps)), "place")
        out = []
        for f, array in zip(folds, arrays, strict=True):
            part = s.let(given(f.dtype, f"{array}[{place}]"), "w")
            out.append(self._shuffled(f, part, warps))
        return out

    def _columns(self, folds: Sequence[GroupFold]) -> list[str]:
        s, column = self.s, self.column
        assert column is not None
        arrays = self._arrays(len(folds))
        here = s.let(s.add(s.mul(self.lane, s.const(COLUMNS)), column), "place")
        for f, array in zip(folds, arrays, strict=True):
            s.line(f"{array}[{here}] = {carried(f.dtype, f.value)}")
        s.line("cuda.syncthreads()")
        out = [s.let(identity(f.reduction, f.dtype), "w") for f in folds]
        with s.loop(column, s.const(self.size * COLUMNS), s.const(COLUMNS), "q") as q:
            for f, array, total in zip(folds, arrays, out, strict=True):
                part = s.let(given(f.dtype, f"{array}[{q}]"), "part")
                s.line(f"{total} = {fold_expression(f.reduction, f.dtype, total, part)}")
        return out


def carrier(dtype: str) -> str:
    """What shuffles and shared memory hold a register value of `dtype` in."""
    return _CARRIER.get(dtype, dtype)


def carried(dtype: str, value: str) -> str:
    """A register value in its carrier."""
    if dtype == "bool":
        return f"u32(1) if {value} else u32(0)"
    return f"{_CARRIER[dtype]}({value})" if dtype in _CARRIER else value


def given(dtype: str, value: str) -> str:
    """The register value in a carrier."""
    if dtype == "bool":
        return f"{value} != u32(0)"
    return f"{dtype}({value})" if dtype in _CARRIER else value
