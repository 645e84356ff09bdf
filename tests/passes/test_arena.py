"""Packing of the arena: ranges that are needed at once never overlap, and little is wasted."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from weft.passes.memory import block as arena_module
from weft.passes.memory.block import ALIGNMENT, Arena, aligned


def first_fit(arena: Arena) -> int:
    """Bytes that first fit, in the order in which the ranges were taken, needs."""
    placed: list[tuple[int, int, int, int]] = []
    for r in arena.ranges.values():
        offset = 0
        for start, end, begun, ended in sorted(placed):
            if r.start < ended and begun < r.end:
                if start - offset >= r.size:
                    break
                offset = max(offset, end)
        placed.append((offset, offset + r.size, r.start, r.end))
    return max((end for _, end, _, _ in placed), default=0)


def needed(arena: Arena) -> int:
    """The most bytes that are needed at once."""
    ranges = arena.ranges.values()
    return max(
        (sum(r.size for r in ranges if r.start <= t.start < r.end) for t in ranges), default=0
    )


def placed_one_by_one(order: list[Any], closest: bool) -> tuple[dict[int, int], int]:
    """Each range where none that it meets is, in the lowest gap or in the one that it fills best:
    compared with all that are placed."""
    placed: list[tuple[int, int, Any]] = []
    offsets, peak = {}, 0
    for one in order:
        offset, gap = 0, sys.maxsize
        found = None
        for start, end, other in sorted(placed, key=lambda row: row[:2]):
            if one.meets(other):
                if one.size <= start - offset < gap:
                    found, gap = offset, start - offset if closest else 0
                offset = max(offset, end)
        at = offset if found is None else found
        placed.append((at, at + one.size, one))
        offsets[id(one)] = at
        peak = max(peak, at + one.size)
    return offsets, peak


EVENTS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30)), max_size=60)


def filled(events: list[tuple[int, int]]) -> Arena:
    arena, held = Arena(), []
    for size, choice in events:
        if held and choice % 3 == 0:
            arena.release(held.pop(choice % len(held)))
        else:
            held.append(arena.take(size))
    return arena


@given(EVENTS, st.sampled_from([0, 3, 64]))
def test_gaps_are_found_as_by_looking_at_all_ranges(
    events: list[tuple[int, int]], few: int
) -> None:
    arena = filled(events)
    ranges = list(arena.ranges.values())
    assert arena_module._lowest(ranges) == placed_one_by_one(ranges, closest=False)
    largest = sorted(ranges, key=lambda r: -r.size)
    with mock.patch.object(arena_module, "_FEW", few):
        assert arena_module._closest(largest) == placed_one_by_one(largest, closest=True)


@given(EVENTS)
def test_ranges_that_meet_do_not_overlap(events: list[tuple[int, int]]) -> None:
    arena = filled(events)
    offsets, peak = arena.pack()
    rows = [(offsets[name], r) for name, r in arena.ranges.items()]
    for k, (a, one) in enumerate(rows):
        assert a % ALIGNMENT == 0
        assert a + one.size <= peak
        for b, other in rows[:k]:
            apart = a + one.size <= b or b + other.size <= a
            assert apart or one.end < other.start or other.end < one.start
    assert needed(arena) <= peak <= first_fit(arena)


def test_a_large_late_range_goes_below_a_small_early_one() -> None:
    """First fit puts the late one behind the early one: 3 units for 2."""
    arena = Arena()
    before = arena.take(64 * 64)
    early = arena.take(64)
    arena.release(before)
    late = arena.take(65 * 64)
    offsets, peak = arena.pack()
    assert first_fit(arena) == (64 + 1 + 65) * 64
    assert peak == (65 + 1) * 64 == needed(arena)
    assert abs(offsets[late] - offsets[early]) >= 64


def test_first_fit_stays_where_packing_saves_nothing() -> None:
    """What is freed last is written next: it is in the caches."""
    arena = Arena()
    names = []
    for size in (1000, 3000, 2000):
        names.append(arena.take(size))
    arena.release(names[1])
    names.append(arena.take(2500))
    offsets, peak = arena.pack()
    assert peak == aligned(1000) + aligned(3000) + aligned(2000)
    assert offsets[names[0]] == 0
    assert offsets[names[3]] == offsets[names[1]] == aligned(1000)


def test_long_and_short_ranges_are_placed_without_comparing_all() -> None:
    """Values that live to the end, as what a gradient needs, and others in between: where all stay
    that are needed at once, nothing else is tried."""
    arena, held = Arena(), []
    for _ in range(3000):
        arena.release(arena.take(640))
        held.append(arena.take(64))
    with mock.patch.object(arena_module, "_closest", side_effect=AssertionError):
        offsets, peak = arena.pack()
    assert arena._at_once() == 2999 * 64 + 640 == peak
    assert len({offsets[name] for name in held}) == 3000


def test_nothing() -> None:
    assert Arena().pack() == ({}, 0)
