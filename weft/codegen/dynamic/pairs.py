"""Which entries of two sparse matrices meet, and where, in `native_language`: Gustavson's algorithm
without the values.

Both matrices come by rows. The entries of a row of the product are in the order of their columns,
which a tree of bitmaps gives: a bit for each column, for each word of these one that says whether
it is 0, and for each word of those. A unit is `span` rows of the left matrix, with a space of its
own.

`begin_pairs` and `fill_room` are the same for one thread with fewer steps: for matrices of few
entries, and for a fixed number of pairs. Their arguments are one block, as `room_words` lays it
out."""

from __future__ import annotations

from weft.codegen.dynamic.elements import least, most
from weft.codegen.native_language import below, leading_zeros, load, store

_FIRST = -(1 << 63)


def bounds(args: int, lo: int, hi: int) -> int:
    """Words of both matrices' indices, how many, the same of the right one, out: the largest row
    and column of each, and of all the least."""
    out = load(args + 32)
    least_of_all = 0
    k = 0
    while k < 2:
        at = load(args + 16 * k)
        end = at + 8 * load(args + 16 * k + 8)
        rows = 0
        columns = 0
        while at < end:
            row = load(at)
            column = load(at + 8)
            least_of_all = least(least_of_all, least(row, column))
            rows = most(rows, row)
            columns = most(columns, column)
            at += 16
        store(out + 16 * k, rows)
        store(out + 16 * k + 8, columns)
        k += 1
    store(out + 32, least_of_all)
    return 0


def count_rows(args: int, lo: int, hi: int) -> int:
    """rows, stride, size, counts: how many of the entries are in each row."""
    at = load(args)
    end = at + load(args + 8) * load(args + 16)
    counts = load(args + 24)
    while at < end:
        cell = counts + 8 * load(at)
        store(cell, load(cell) + 1)
        at += load(args + 8)
    return 0


def fill_by_rows(args: int, lo: int, hi: int) -> int:
    """rows, stride, size, next, columns, stride of these, order, out: the numbers of the entries by
    rows, and their columns. next: where each row's next entry goes."""
    row = load(args)
    size = load(args + 16)
    column = load(args + 32)
    order = load(args + 48)
    out = load(args + 56)
    i = 0
    while i < size:
        cell = load(args + 24) + 8 * load(row)
        to = load(cell)
        store(cell, to + 1)
        store(order + 8 * to, i)
        store(out + 8 * to, load(column))
        row += load(args + 8)
        column += load(args + 40)
        i += 1
    return 0


def count_pairs(args: int, lo: int, hi: int) -> int:
    """rows, span, starts and columns of the left matrix, of the right one, found, marks, columns:
    how many pairs of entries meet in each unit, and in how many places. marks: a word for each of
    the columns, 0 at first."""
    rows = load(args)
    span = load(args + 8)
    starts = load(args + 16)
    inner = load(args + 24)
    others = load(args + 32)
    columns = load(args + 40)
    u = lo
    while u < hi:
        marks = load(args + 56) + 8 * u * load(args + 64)
        pairs = 0
        places = 0
        r = u * span
        last = least(r + span, rows)
        e = load(starts + 8 * r)
        while r < last:
            r += 1
            stop = load(starts + 8 * r)
            while e < stop:
                k = load(inner + 8 * e)
                t = load(others + 8 * k)
                end = load(others + 8 * k + 8)
                pairs += end - t
                while t < end:
                    mark = marks + 8 * load(columns + 8 * t)
                    places += load(mark) != r
                    store(mark, r)
                    t += 1
                e += 1
        store(load(args + 48) + 16 * u, pairs)
        store(load(args + 48) + 16 * u + 8, places)
        u += 1
    return 0


def fill_pairs(args: int, lo: int, hi: int) -> int:
    """rows, span, starts and columns of the left matrix, of the right one, begins, marks, columns,
    orders of both, the tree of each unit, words of its levels, left, right, place, indices, names
    of rows and of columns (0: numbers), words of a tree with room for a row's columns behind it.
    begins: of each unit's pairs and places."""
    rows = load(args)
    span = load(args + 8)
    starts = load(args + 16)
    inner = load(args + 24)
    others = load(args + 32)
    columns = load(args + 40)
    words = load(args + 96)
    middle = load(args + 104)
    top = load(args + 112)
    lefts = load(args + 120)
    rights = load(args + 128)
    places = load(args + 136)
    order = load(args + 80)
    u = lo
    while u < hi:
        marks = load(args + 56) + 8 * u * load(args + 64)
        tree = load(args + 88) + 8 * u * load(args + 168)
        listed = tree + 8 * (words + middle + top)
        n = load(load(args + 48) + 16 * u)
        m = load(load(args + 48) + 16 * u + 8)
        r = u * span
        last = least(r + span, rows)
        e = load(starts + 8 * r)
        while r < last:
            stop = load(starts + 8 * r + 8)
            first = n
            while e < stop:
                k = load(inner + 8 * e)
                number = load(load(args + 72) + 8 * e)
                t = load(others + 8 * k)
                end = load(others + 8 * k + 8)
                while t < end:
                    c = load(columns + 8 * t)
                    store(lefts + 8 * n, number)
                    store(rights + 8 * n, load(order + 8 * t))
                    store(places + 8 * n, c)
                    put(tree, words, middle, c)
                    n += 1
                    t += 1
                e += 1
            if first < n:
                row = r
                if load(args + 152) != 0:
                    row = load(load(args + 152) + 8 * r)
                end = take_columns(tree, words, middle, top, listed)
                m = name_places(listed, end, marks, m, load(args + 144), row, load(args + 160))
            number_places(places, first, n, marks)
            r += 1
        u += 1
    return 0


def put(tree: int, words: int, middle: int, c: int) -> int:
    """Set the bit of column c. In most cases the word has no bit yet, and the word above has: only
    the second is worth a branch."""
    cell = tree + 8 * (c >> 6)
    store(cell, load(cell) | (_FIRST >> (c & 63)))
    cell = tree + 8 * (words + (c >> 12))
    held = load(cell)
    store(cell, held | (_FIRST >> ((c >> 6) & 63)))
    if held == 0:
        cell = tree + 8 * (words + middle + (c >> 18))
        store(cell, load(cell) | (_FIRST >> ((c >> 12) & 63)))
    return 0


def take_columns(tree: int, words: int, middle: int, top: int, out: int) -> int:
    """The columns that are set, in their order, and the end of these; the tree is empty then. Of a
    word with one bit a second is written, too, which the next one replaces."""
    k = 0
    while k < top:
        cell = tree + 8 * (words + middle + k)
        upper = load(cell)
        store(cell, 0)
        while upper != 0:
            j = leading_zeros(upper)
            upper = upper ^ (_FIRST >> j)
            j += k << 6
            cell = tree + 8 * (words + j)
            between = load(cell)
            store(cell, 0)
            while between != 0:
                i = leading_zeros(between)
                between = between ^ (_FIRST >> i)
                i += j << 6
                cell = tree + 8 * i
                lower = load(cell)
                store(cell, 0)
                i = i << 6
                c = leading_zeros(lower)
                store(out, i + c)
                lower = lower ^ (_FIRST >> c)
                c = leading_zeros(lower)
                store(out + 8, i + c)
                out += 8 + 8 * (lower != 0)
                lower = lower & (-1 - (_FIRST >> (c & 63)))
                while lower != 0:
                    c = leading_zeros(lower)
                    lower = lower ^ (_FIRST >> c)
                    store(out, i + c)
                    out += 8
        k += 1
    return out


def name_places(
    columns: int, end: int, marks: int, m: int, indices: int, row: int, names: int
) -> int:
    """Number these columns of a row from m on, and write where they are. The number that follows.

    names: of the columns (0: numbers)."""
    out = indices + 16 * m
    while columns < end:
        c = load(columns)
        store(marks + 8 * c, m)
        if names != 0:
            c = load(names + 8 * c)
        store(out, row)
        store(out + 8, c)
        out += 16
        m += 1
        columns += 8
    return m


def number_places(places: int, first: int, n: int, marks: int) -> int:
    """The numbers of their columns for the pairs `first` to n, which have the columns."""
    while first < n:
        store(places + 8 * first, load(marks + 8 * load(places + 8 * first)))
        first += 1
    return n


# ------------------------------------------------------------------------------ one unit for it all
# words of the arguments: both matrices' indices, in rows of two, and how many; sizes
_LEFT, _RIGHT, _ROWS, _INNER, _COLUMNS = 0, 16, 32, 40, 48
# how many pairs there is room for; scratch; a pair of words for how many pairs and places there are
_ROOM, _SCRATCH, _FOUND = 56, 64, 72
# the results: indices, left, right, place
_INDICES = 80


def begin_pairs(args: int, lo: int, hi: int) -> int:
    """Both matrices by rows, in the scratch, and how many pairs there are. Entries out of range are
    none."""
    left = load(args + _SCRATCH)
    right = by_rows(args + _LEFT, load(args + _ROWS), load(args + _INNER), left)
    by_rows(args + _RIGHT, load(args + _INNER), load(args + _COLUMNS), right)
    e = left + 8 * load(args + _ROWS) + 16
    end = e + 16 * load(left + 8 * load(args + _ROWS))
    pairs = 0
    while e < end:
        cell = right + 8 * load(e)
        pairs += load(cell + 8) - load(cell)
        e += 16
    store(load(args + _FOUND), pairs)
    return 0


def by_rows(entries: int, rows: int, columns: int, out: int) -> int:
    """entries: the address of indices, and their number. At `out` where each row's entries begin,
    and where the last ones end; then for each its column and its number. The end of that."""
    i = out
    lists = out + 8 * rows + 16
    while i < lists:
        store(i, 0)
        i += 8
    at = load(entries)
    end = at + 16 * load(entries + 8)
    while at < end:
        if below(load(at), rows):
            if below(load(at + 8), columns):
                cell = out + 8 * load(at) + 16
                store(cell, load(cell) + 1)
        at += 16
    i = out + 16
    while i < lists:
        store(i, load(i) + load(i - 8))
        i += 8
    # a word before its own: where the next entry of a row goes, at the end where the next row's do
    at = load(entries)
    i = 0
    while at < end:
        if below(load(at), rows):
            if below(load(at + 8), columns):
                cell = out + 8 * load(at) + 8
                to = lists + 16 * load(cell)
                store(cell, load(cell) + 1)
                store(to, load(at + 8))
                store(to + 8, i)
        at += 16
        i += 1
    return lists + 16 * load(entries + 8)


def fill_room(args: int, lo: int, hi: int) -> int:
    """The first pairs, as many as there is room for, and the places to which they add; how many
    places there are."""
    rows = load(args + _ROWS)
    columns = load(args + _COLUMNS)
    room = load(args + _ROOM)
    left = load(args + _SCRATCH)
    right = left + 8 * rows + 16 + 16 * load(args + _LEFT + 8)
    others = right + 8 * load(args + _INNER) + 16
    words = (columns + 63) >> 6
    middle = (words + 63) >> 6
    top = (middle + 63) >> 6
    marks = others + 16 * load(args + _RIGHT + 8)
    tree = marks + 8 * columns
    listed = tree + 8 * (words + middle + top)
    r = tree
    while r < listed:
        store(r, 0)
        r += 8
    indices = load(args + _INDICES)
    lefts = load(args + _INDICES + 8)
    rights = load(args + _INDICES + 16)
    places = load(args + _INDICES + 24)
    entry = left + 8 * rows + 16
    n = 0
    m = 0
    r = 0
    while r < rows:
        stop = left + 8 * rows + 16 + 16 * load(left + 8 * r + 8)
        first = n
        while entry < stop:
            t = others + 16 * load(right + 8 * load(entry))
            end = others + 16 * load(right + 8 * load(entry) + 8)
            end = least(end, t + 16 * (room - n))
            while t < end:
                c = load(t)
                store(lefts + 8 * n, load(entry + 8))
                store(rights + 8 * n, load(t + 8))
                store(places + 8 * n, c)
                put(tree, words, middle, c)
                n += 1
                t += 16
            entry += 16
        if first < n:
            end = take_columns(tree, words, middle, top, listed)
            m = name_places(listed, end, marks, m, indices, r, 0)
        number_places(places, first, n, marks)
        r += 1
    store(load(args + _FOUND) + 8, m)
    return 0


def room_pairs(args: int, lo: int, hi: int) -> int:
    """`begin_pairs`, `fill_room`, and what is left of the results filled up."""
    begin_pairs(args, 0, 0)
    fill_room(args, 0, 0)
    room = load(args + _ROOM)
    found = load(args + _FOUND)
    n = load(found)
    while n < room:
        store(load(args + _INDICES + 8) + 8 * n, 0)
        store(load(args + _INDICES + 16) + 8 * n, 0)
        store(load(args + _INDICES + 24) + 8 * n, room - 1)
        n += 1
    cell = load(args + _INDICES) + 16 * load(found + 8)
    end = load(args + _INDICES) + 16 * room
    while cell < end:
        store(cell, load(args + _ROWS))
        store(cell + 8, load(args + _COLUMNS))
        cell += 16
    return 0


# ------------------------------------------------------------------------------- entries of a union
def merge_rows(args: int, lo: int, hi: int) -> int:
    """rows of indices, how many, the same of others, words of a row, found, out, places of both:
    the rows of either in their order, each once, and for each row of both which of them it is.
    found: how many there are, -1 if rows are not in order."""
    i = load(args)
    j = load(args + 16)
    words = load(args + 32)
    width = 8 * words
    last = i + width * load(args + 8)
    end = j + width * load(args + 24)
    out = load(args + 48)
    left = load(args + 56)
    right = load(args + 64)
    found = load(args + 40)
    n = 0
    if ascends(i, last, words) + ascends(j, end, words) < 2:
        store(found, -1)
        return 0
    while i < last or j < end:
        order = 1
        if i == last:
            order = 0
        elif j < end:
            order = precedes(i, j, words)
        row = i
        if order == 0:
            row = j
        else:
            store(left, n)
            left += 8
        if order != 1:
            store(right, n)
            right += 8
            j += width
        if order != 0:
            i += width
        k = 0
        while k < words:
            store(out, load(row + 8 * k))
            out += 8
            k += 1
        n += 1
    store(found, n)
    return 0


def precedes(i: int, j: int, words: int) -> int:
    """1 if row i comes first, 0 if row j does, 2 if they are equal."""
    k = 0
    while k < words:
        x = load(i + 8 * k)
        y = load(j + 8 * k)
        if x < y:
            return 1
        if x > y:
            return 0
        k += 1
    return 2


def ascends(i: int, end: int, words: int) -> int:
    """Whether each row comes after the one before it."""
    following = i + 8 * words
    while following < end:
        if precedes(i, following, words) != 1:
            return 0
        i = following
        following += 8 * words
    return 1
