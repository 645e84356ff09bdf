"""Distinct elements in `native_language`: by a hash table in the order of first occurrence, and of
an order that is known.

The table has rows of two words: an element's key and the number of its group, from 1; 0: free.
Groups are numbered as they occur first. A NaN is a group of its own that no table holds."""

from __future__ import annotations

from weft.codegen.dynamic.elements import ITEM, ROW, is_nan, key, least, move, second
from weft.codegen.native_language import load, store

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
#: Where the state of `find_groups` has the next element, the groups so far, and how many further
#: looks at the table there may be: keys that somebody chose may all fall into one row.
NEXT, GROUPS, LOOKS = 0, 8, 16


def slot_of(
    x: int, i: int, a: int, table: int, shift: int, mask: int, firsts: int, state: int
) -> int:
    """The row of the table that holds the group of element i, or is free for it."""
    mixed = (a ^ (a >> 32) ^ (second(x, i) * 31)) * _MIX
    slot = mixed >> shift
    number = load(table + 16 * slot + 8)
    while number != 0:
        if load(table + 16 * slot) == a:
            if ITEM != 16:
                return table + 16 * slot
            if second(x, i) == second(x, load(firsts + 8 * number - 8)):
                return table + 16 * slot
        slot = (slot + 1) & mask
        store(state + LOOKS, load(state + LOOKS) - 1)
        number = load(table + 16 * slot + 8)
    return table + 16 * slot


def find_groups(args: int, lo: int, hi: int) -> int:
    """x, size, table, shift, mask, firsts, counts, numbers, most, state: groups of the elements
    from state[NEXT] on, until there are no more, or `most` groups, or no further looks. firsts:
    where each occurs first; counts: how often; numbers: of each element its group (0: not
    wanted)."""
    x = load(args)
    size = load(args + 8)
    table = load(args + 16)
    shift = load(args + 24)
    mask = load(args + 32)
    firsts = load(args + 40)
    counts = load(args + 48)
    numbers = load(args + 56)
    most = load(args + 64)
    state = load(args + 72)
    i = load(state + NEXT)
    groups = load(state + GROUPS)
    while (i < size) and (groups < most) and (load(state + LOOKS) > 0):
        number = 0
        row = 0
        a = key(x, i)
        if is_nan(x, i) == 0:
            row = slot_of(x, i, a, table, shift, mask, firsts, state)
            number = load(row + 8)
        if number == 0:
            store(firsts + 8 * groups, i)
            store(counts + 8 * groups, 0)
            groups += 1
            number = groups
            if row != 0:
                store(row, a)
                store(row + 8, number)
        store(counts + 8 * number - 8, load(counts + 8 * number - 8) + 1)
        if numbers != 0:
            store(numbers + 8 * i, number - 1)
        i += 1
    store(state + NEXT, i)
    store(state + GROUPS, groups)
    return 0


def fill_table(args: int, lo: int, hi: int) -> int:
    """Arguments as of `find_groups`: the groups so far into a new table."""
    x = load(args)
    table = load(args + 16)
    firsts = load(args + 40)
    state = load(args + 72)
    g = 0
    while g < load(state + GROUPS):
        i = load(firsts + 8 * g)
        if is_nan(x, i) == 0:
            a = key(x, i)
            row = slot_of(x, i, a, table, load(args + 24), load(args + 32), firsts, state)
            store(row, a)
            store(row + 8, g + 1)
        g += 1
    return 0


def renumber(args: int, lo: int, hi: int) -> int:
    """numbers, size, chunk, places: places[number] for each number, in place."""
    numbers = load(args)
    places = load(args + 24)
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        store(numbers + 8 * i, load(places + 8 * load(numbers + 8 * i)))
        i += 1
    return 0


def invert(args: int, lo: int, hi: int) -> int:
    """order, size, chunk, places: places[order[i]] = i."""
    order = load(args)
    places = load(args + 24)
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        store(places + 8 * load(order + 8 * i), i)
        i += 1
    return 0


# --------------------------------------------------------------------------------- in a known order
def element_at(order: int, j: int) -> int:
    """The place of the element that is number j in order (0: they lie in order)."""
    if order == 0:
        return j
    return load(order + 8 * j)


def begins(x: int, i: int, before: int) -> int:
    """Whether element i, which comes after element `before`, is another one."""
    if ITEM == 16:
        if second(x, i) != second(x, before):
            return 1
    return (key(x, i) != key(x, before)) or (is_nan(x, i) != 0)


def count_runs(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, counts, order: how many runs of equal elements begin in each chunk."""
    x = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    order = load(args + 32)
    c = lo
    while c < hi:
        j = c * chunk
        end = least(j + chunk, size)
        total = 0
        if j == 0:
            total = 1
            j = 1
        before = element_at(order, j - 1)
        while j < end:
            i = element_at(order, j)
            total += begins(x, i, before)
            before = i
            j += 1
        store(load(args + 24) + 8 * c, total)
        c += 1
    return 0


def fill_runs(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, starts, order, firsts, begun, numbers: of each run the place of its first
    element and where it begins in order; of each element its run's number (0: not wanted)."""
    x = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    order = load(args + 32)
    firsts = load(args + 40)
    begun = load(args + 48)
    numbers = load(args + 56)
    c = lo
    while c < hi:
        j = c * chunk
        end = least(j + chunk, size)
        n = load(load(args + 24) + 8 * c)
        before = 0
        if j != 0:
            before = element_at(order, j - 1)
        while j < end:
            i = element_at(order, j)
            new = 1
            if j != 0:
                new = begins(x, i, before)
            if new != 0:
                store(firsts + 8 * n, i)
                store(begun + 8 * n, j)
                n += 1
            if numbers != 0:
                store(numbers + 8 * i, n - 1)
            before = i
            j += 1
        c += 1
    return 0


def fill_run_values(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, starts, out: the first element of each run of a vector that is in order."""
    x = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    out = load(args + 32)
    c = lo
    while c < hi:
        j = c * chunk
        end = least(j + chunk, size)
        n = load(load(args + 24) + 8 * c)
        last = load(load(args + 24) + 8 * c + 8)
        if j == 0:
            move(out, x, ROW)
            n = 1
            j = 1
        while (j < end) and (n < last):
            move(out + n * ROW, x + j * ROW, ROW)
            n += begins(x, j, j - 1)
            j += 1
        c += 1
    return 0
