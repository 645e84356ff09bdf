"""nonzero, masks, dynamic_partition, dynamic_stitch, repeat in `native_language`.

Arguments are words: `args` is the address of the first. The units of most functions are chunks of
`chunk` elements; the last chunk is shorter. Where a chunk's results begin follows from what the
chunks before it counted, so any thread may do any chunk.

A loop that writes without a branch goes on only while the chunk's own room lasts: what it writes
too early it writes over, and never into another chunk's room."""

from __future__ import annotations

from weft.codegen.dynamic.elements import (
    IS_BOOL,
    ROW,
    count_bools,
    integer,
    is_set,
    least,
    move,
)
from weft.codegen.native_language import below, load, stack, store, word

#: A sum of fewer numbers of repeats than these fits a word.
MOST_REPEATS = 1 << 40


def count_set(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, counts: how many elements of each chunk are not 0."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        total = 0
        if IS_BOOL == 1:
            total = count_bools(base, i, end)
        else:
            while i < end:
                total += is_set(base, i)
                i += 1
        store(load(args + 24) + 8 * c, total)
        c += 1
    return 0


def fill_places(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, starts, out: the places of the elements that are not 0."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    starts = load(args + 24)
    out = load(args + 32)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        n = load(starts + 8 * c)
        last = load(starts + 8 * c + 8)
        while (i + 8 <= end) and (n + 8 <= last):
            some = 1
            if IS_BOOL == 1:
                some = word(base + i)
            if some != 0:
                n += place(out, n, base, i)
                n += place(out, n, base, i + 1)
                n += place(out, n, base, i + 2)
                n += place(out, n, base, i + 3)
                n += place(out, n, base, i + 4)
                n += place(out, n, base, i + 5)
                n += place(out, n, base, i + 6)
                n += place(out, n, base, i + 7)
            i += 8
        while (i < end) and (n < last):
            n += place(out, n, base, i)
            i += 1
        c += 1
    return 0


def place(out: int, n: int, base: int, i: int) -> int:
    store(out + 8 * n, i)
    return is_set(base, i)


def fill_coordinates(args: int, lo: int, hi: int) -> int:
    """x, size, chunk, starts, rank, dims, outs, stride: the same as a coordinate for each axis,
    the n-th of axis d at outs[d] + n * stride."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    starts = load(args + 24)
    rank = load(args + 32)
    dims = load(args + 40)
    outs = load(args + 48)
    stride = load(args + 56)
    at = stack(rank)
    inner = load(dims + 8 * (rank - 1))
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        n = load(starts + 8 * c) * stride
        last = load(starts + 8 * c + 8) * stride
        unravel(at, dims, rank, i)
        while (i < end) and (n < last):
            j = load(at + 8 * (rank - 1))
            stop = least(end - i, inner - j) + j
            i += stop - j
            from_here = i - stop
            before = n
            while (j < stop) and (n < last):
                store(load(outs + 8 * rank - 8) + n, j)
                n += is_set(base, from_here + j) * stride
                j += 1
            d = 0
            while d < rank - 1:
                fill(load(outs + 8 * d), before, n, stride, load(at + 8 * d))
                d += 1
            carry(at, dims, rank)
        c += 1
    return 0


def fill(out: int, n: int, end: int, stride: int, value: int) -> int:
    while n < end:
        store(out + n, value)
        n += stride
    return 0


def unravel(at: int, dims: int, rank: int, i: int) -> int:
    """The coordinates of element i, by subtraction of whole slices from the first axis on."""
    d = 0
    while d < rank:
        slice_size = 1
        k = d + 1
        while k < rank:
            slice_size = slice_size * load(dims + 8 * k)
            k += 1
        index = quotient(i, slice_size)
        store(at + 8 * d, index)
        i = i - index * slice_size
        d += 1
    return 0


def quotient(a: int, b: int) -> int:
    """a // b, bit by bit: it is needed once in a chunk."""
    made = 0
    shift = 62
    while shift >= 0:
        if (b <= (a >> shift)) != 0:
            made = made | (1 << shift)
            a = a - (b << shift)
        shift = shift - 1
    return made


def carry(at: int, dims: int, rank: int) -> int:
    """The coordinates of the next run along the last axis."""
    store(at + 8 * (rank - 1), 0)
    d = rank - 2
    while d >= 0:
        following = load(at + 8 * d) + 1
        if following < load(dims + 8 * d):
            store(at + 8 * d, following)
            return 0
        store(at + 8 * d, 0)
        d = d - 1
    return 0


def fill_chosen(args: int, lo: int, hi: int) -> int:
    """mask, size, chunk, starts, out, x, row: the rows of x where the mask is true."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    starts = load(args + 24)
    out = load(args + 32)
    x = load(args + 40)
    row = load(args + 48)
    if ROW != 0:
        row = ROW
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        n = load(starts + 8 * c)
        last = load(starts + 8 * c + 8)
        while (i < end) and (n < last):
            if ROW != 0:
                move(out + n * row, x + i * row, row)
                n += is_set(base, i)
            elif is_set(base, i) != 0:
                move(out + n * row, x + i * row, row)
                n += 1
            i += 1
        c += 1
    return 0


def gather_rows(args: int, lo: int, hi: int) -> int:
    """places, size, chunk, out, x, row: row i of the result is row places[i] of x."""
    places = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    out = load(args + 24)
    x = load(args + 32)
    row = load(args + 40)
    if ROW != 0:
        row = ROW
    i = lo * chunk
    end = least(hi * chunk, size)
    while i < end:
        move(out + i * row, x + load(places + 8 * i) * row, row)
        i += 1
    return 0


# ---------------------------------------------------------------------------- parts and the whole
def count_parts(args: int, lo: int, hi: int) -> int:
    """partitions, size, chunk, counts, parts, wrong: how many rows of each chunk go to each part;
    wrong[c]: 1 if one goes to none."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    parts = load(args + 32)
    c = lo
    while c < hi:
        counts = load(args + 24) + 8 * c * parts
        p = 0
        while p < parts:
            store(counts + 8 * p, 0)
            p += 1
        i = c * chunk
        end = least(i + chunk, size)
        bad = 0
        while i < end:
            p = integer(base, i)
            if below(p, parts) != 0:
                store(counts + 8 * p, load(counts + 8 * p) + 1)
            else:
                bad = 1
            i += 1
        store(load(args + 40) + 8 * c, bad)
        c += 1
    return 0


def fill_parts(args: int, lo: int, hi: int) -> int:
    """partitions, size, chunk, ends, parts, x, row: each row goes to its part. ends: the address
    where each chunk's next row of each part goes."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    parts = load(args + 32)
    x = load(args + 40)
    row = load(args + 48)
    if ROW != 0:
        row = ROW
    c = lo
    while c < hi:
        ends = load(args + 24) + 8 * c * parts
        i = c * chunk
        end = least(i + chunk, size)
        while i < end:
            cell = ends + 8 * integer(base, i)
            to = load(cell)
            move(to, x + i * row, row)
            store(cell, to + row)
            i += 1
        c += 1
    return 0


def largest_index(args: int, lo: int, hi: int) -> int:
    """indices, size, chunk, largest: the largest of each chunk; -1 if one is negative."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        most = 0
        signs = 0
        while i < end:
            index = integer(base, i)
            signs = signs | index
            if index > most:
                most = index
            i += 1
        if signs < 0:
            most = -1
        store(load(args + 24) + 8 * c, most)
        c += 1
    return 0


def fill_rows(args: int, lo: int, hi: int) -> int:
    """indices, size, span, out, x, row: row indices[i] of the result is row i of x. Unit u writes
    rows u * span to (u + 1) * span, in order: of several rows the last stays."""
    base = load(args)
    size = load(args + 8)
    span = load(args + 16)
    out = load(args + 24)
    x = load(args + 32)
    row = load(args + 40)
    if ROW != 0:
        row = ROW
    first = lo * span
    many = (hi - lo) * span
    i = 0
    while i < size:
        index = integer(base, i)
        if below(index - first, many) != 0:
            move(out + index * row, x + i * row, row)
        i += 1
    return 0


# ----------------------------------------------------------------------------------------- repeats
def sum_repeats(args: int, lo: int, hi: int) -> int:
    """counts, size, chunk, sums: the sum of each chunk; -1 if one is negative or too large."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        total = 0
        bad = 0
        while i < end:
            count = integer(base, i)
            bad = bad | (below(count, MOST_REPEATS) ^ 1)
            total += count
            i += 1
        if bad != 0:
            total = -1
        store(load(args + 24) + 8 * c, total)
        c += 1
    return 0


def fill_repeats(args: int, lo: int, hi: int) -> int:
    """counts, size, chunk, starts, out: each place as often as its count says."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    starts = load(args + 24)
    out = load(args + 32)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, size)
        to = out + 8 * load(starts + 8 * c)
        last = out + 8 * load(starts + 8 * c + 8)
        while i < end:
            stop = to + 8 * integer(base, i)
            if to + 32 <= last:
                store(to, i)
                store(to + 8, i)
                store(to + 16, i)
                store(to + 24, i)
                to += 32
            while to < stop:
                store(to, i)
                to += 8
            to = stop
            i += 1
        c += 1
    return 0


def fill_repeated(args: int, lo: int, hi: int) -> int:
    """counts, size, chunk, starts, out, x, row, outer: each row of x as often as its count says, in
    each of `outer` slices."""
    base = load(args)
    size = load(args + 8)
    chunk = load(args + 16)
    starts = load(args + 24)
    row = load(args + 48)
    if ROW != 0:
        row = ROW
    total = load(starts + 8 * quotient(size + chunk - 1, chunk)) * row
    c = lo
    while c < hi:
        o = 0
        while o < load(args + 56):
            i = c * chunk
            end = least(i + chunk, size)
            to = load(args + 32) + o * total + row * load(starts + 8 * c)
            last = load(args + 32) + o * total + row * load(starts + 8 * c + 8)
            source = load(args + 40) + o * size * row
            while i < end:
                stop = to + row * integer(base, i)
                if ROW != 0:
                    if to + 4 * row <= last:
                        move(to, source + i * row, row)
                        move(to + row, source + i * row, row)
                        move(to + 2 * row, source + i * row, row)
                        move(to + 3 * row, source + i * row, row)
                        to += 4 * row
                while to < stop:
                    move(to, source + i * row, row)
                    to += row
                to = stop
                i += 1
            o += 1
        c += 1
    return 0
