"""Strides over a space of any rank as strides over (rows, columns)."""

from __future__ import annotations


def over_rows(strides: tuple[int, ...], space: tuple[int, ...]) -> tuple[int, int] | None:
    """Strides over `space` as strides over (all axes but the last in one, the last one).

    None if the outer axes are not walked as one, or it is another space. No strides (a constant) do
    not move.
    """
    if not strides:
        return 0, 0
    if len(strides) != len(space):
        return None
    step, extent = 0, 1  # of the outer axes so far, from the inside
    for stride, size in zip(reversed(strides[:-1]), reversed(space[:-1]), strict=True):
        if size == 1:
            continue
        if extent == 1:
            step = stride
        elif stride != step * extent:
            return None
        extent *= size
    return step, strides[-1]
