"""A convolution as a product of matrices, one of them gathered (`conv_tiles.py`): its sizes, and
where positions and taps meet."""

from __future__ import annotations

import math
from itertools import product as pairs

from weft.codegen.windows.geometry import Sizes, sizes_of
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

#: Rows, columns and k of a product, at least.
LEAST = (16, 8, 8)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis: `count` positions at p * step + start, `limit` elements of the array."""

    count: int
    step: int
    start: int
    limit: int

    def always_inside(self, shift: int) -> bool:
        """Whether every position meets the shift inside the array."""
        first = self.start + shift
        return first >= 0 and first + (self.count - 1) * self.step < self.limit


@dataclass(frozen=True, slots=True)
class _Tap:
    """shifts: one number for each axis; number: row-major among all taps."""

    shifts: tuple[int, ...]
    number: int


class Geometry:
    """What is multiplied by what: see the table of the module's text."""

    def __init__(self, op: Operation) -> None:
        z = self.sizes = sizes_of(op)
        self.op = op
        ones = zip(z.large, z.window, z.small, z.strides, z.lo, strict=True)
        kept = [a for a, ones_ in enumerate(ones) if ones_ != (1, 1, 1, 1, 0)] or [0]
        self.kept = kept
        self.adjoint = op.name == "conv_input"
        self.phases = (
            list(pairs(*(range(z.strides[a]) for a in kept)))
            if self.adjoint
            else [(0,) * len(kept)]
        )
        self.axes = [self._axis(z, a) for a in kept]
        self.taps = [self._taps(z, phase) for phase in self.phases]
        self.channels, self.columns = (
            (z.outside, z.inside) if self.adjoint else (z.inside, z.outside)
        )
        positions = z.batch * math.prod(axis.count for axis in self.axes)
        most = max(map(len, self.taps)) * self.channels
        kernel = op.name == "conv_kernel"
        self.rows, self.k = (most, positions) if kernel else (positions, most)

    def _axis(self, z: Sizes, a: int) -> _Axis:
        if self.adjoint:
            return _Axis(-(-z.large[a] // z.strides[a]), 1, 0, z.small[a])
        return _Axis(z.small[a], z.strides[a], -z.lo[a], z.large[a])

    def _taps(self, z: Sizes, phase: tuple[int, ...]) -> list[_Tap]:
        """Those that reach a phase, in their order."""
        along: list[list[tuple[int, int]]] = []  # of each axis (tap, shift)
        for a, at in zip(self.kept, phase, strict=True):
            all_taps = range(z.window[a])
            if not self.adjoint:
                along.append([(t, t * z.dilation[a]) for t in all_taps])
                continue
            back = [(t, at + z.lo[a] - t * z.dilation[a]) for t in all_taps]
            along.append([(t, e // z.strides[a]) for t, e in back if e % z.strides[a] == 0])
        out = []
        for tap in pairs(*along):
            number = 0
            for a, (t, _) in zip(self.kept, tap, strict=True):
                number = number * z.window[a] + t
            out.append(_Tap(tuple(shift for _, shift in tap), number))
        return out

    @property
    def fits(self) -> bool:
        """Whether the product is large enough for tiles."""
        given = self.rows, self.columns, self.k
        return all(n >= least for n, least in zip(given, LEAST, strict=True))

    @property
    def sees_nothing(self) -> bool:
        """Whether a tap is beyond the edges anywhere."""
        shifts = [tap.shifts for taps in self.taps for tap in taps]
        return not all(
            axis.always_inside(shift)
            for each in shifts
            for axis, shift in zip(self.axes, each, strict=True)
        )
