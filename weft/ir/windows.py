"""Windows that slide over the spatial axes of (batch, spatial..., channels) arrays.

Position o of the small side and tap k of the window meet at position

    p = o * stride + k * dilation - lo

of the large side, along each spatial axis. Where p is outside the large side there is nothing:
that is all there is to padding, and no op needs to know how far it goes at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dataclass import dataclass
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.rules import ints_attr
from weft.ir.spec import Array

#: Convolutions and pooling have so many spatial axes.
MOST_AXES = 3
SLIDING = {"strides": AttrSpec("ints"), "lo": AttrSpec("ints"), "dilation": AttrSpec("ints")}


@dataclass(frozen=True, slots=True)
class Sliding:
    """How a window slides: one number per spatial axis in each."""

    strides: tuple[int, ...]
    lo: tuple[int, ...]
    dilation: tuple[int, ...]

    def meetings(
        self, large: tuple[int, ...], window: tuple[int, ...], small: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap, row-major: (tap, the positions of the large side, of the small side).

        The two tuples of slices pick equally many positions; pairs outside are left out.
        """
        for tap in product(*map(range, window)):
            pairs = [self._axis(i, k, large[i], small[i]) for i, k in enumerate(tap)]
            yield tap, tuple(p for p, _ in pairs), tuple(o for _, o in pairs)

    def _axis(self, axis: int, tap: int, large: int, small: int) -> tuple[slice, slice]:
        stride = self.strides[axis]
        start = tap * self.dilation[axis] - self.lo[axis]  # p at o = 0
        first = max(0, -(start // stride))
        stop = min(small, (large - 1 - start) // stride + 1)
        if stop <= first:
            return slice(0, 0), slice(0, 0)
        at = start + first * stride
        return slice(at, start + (stop - 1) * stride + 1, stride), slice(first, stop)


def sliding_of(attrs: Attrs) -> Sliding:
    """The attributes `strides`, `lo` and `dilation`."""
    return Sliding(*(ints_attr(attrs, name) for name in SLIDING))


def check_sliding(op: str, attrs: Attrs, rank: int, *sizes: str) -> int:
    """The number of spatial axes of operands of `rank`, to which all attributes must fit.

    sizes: further attributes that hold one size per spatial axis.
    """
    axes = rank - 2
    if not 1 <= axes <= MOST_AXES:
        raise ShapeError(
            f"op '{op}' needs 1 to {MOST_AXES} spatial axes between batch and channels, got "
            f"operands of rank {rank}"
        )
    for name, least in (("strides", 1), ("lo", None), ("dilation", 1), *((s, 0) for s in sizes)):
        given = ints_attr(attrs, name)
        if len(given) != axes or (least is not None and any(v < least for v in given)):
            wanted = "integers" if least is None else f"integers of at least {least}"
            raise TypeRuleError(
                f"op '{op}': {name} {list(given)} must be {axes} {wanted}, one per spatial axis"
            )
    return axes


def part(array: Array, slices: tuple[slice, ...]) -> Array:
    """The positions `slices` of all spatial axes."""
    picked: Array = array[(slice(None), *slices)]
    return picked


def lowest(dtype: np.dtype[Any]) -> int | float:
    """What no number of a real dtype is below: the maximum of nothing."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    return -np.inf
