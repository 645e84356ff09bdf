"""Parts of strings, and strings of parts, in `native_language`: where words between separators and
substrings lie, and what is in the objects of joined strings, and of those in another case.

A part is a row as `new_strings.py` takes it: the address and the size of its bytes."""

from __future__ import annotations

from weft.codegen.dynamic.elements import least, number_pairs
from weft.codegen.dynamic.new_strings import PLACE_BYTES, put_place
from weft.codegen.dynamic.parsing import same_bytes
from weft.codegen.dynamic.text_hash import BYTES_DATA, BYTES_SIZE
from weft.codegen.native_language import below, copy, load, load8, store, store8, store32

#: How text is cut: into what is not empty between the bytes of a set; at each byte of a set; at
#: each separator of several bytes.
RUNS, AT_BYTES, AT_SEPARATORS = 0, 1, 2
#: Which of them.
CUT = 0
#: The first letter of those that change their case.
LETTERS = 65
#: Whether it matters if there are others than ASCII's.
OTHERS = 1


def count_words(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, counts, separator, its size (of a set: a byte for each of the 256,
    whether it is in it), whether empty text is an empty word."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        store(load(args + 24) + 8 * i, words_of(args, load(load(args) + 8 * i), 0))
        i += 1
    return 0


def fill_words(args: int, lo: int, hi: int) -> int:
    """The same, but for the counts where the words of each string begin; then places, and (row,
    number) of each word (0: they are not asked for)."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        at = load(load(args + 24) + 8 * i)
        count = words_of(args, load(load(args) + 8 * i), load(args + 56) + PLACE_BYTES * at)
        if load(args + 64) != 0:
            number_pairs(load(args + 64) + 16 * at, i, count)
        i += 1
    return 0


def words_of(args: int, text: int, to: int) -> int:
    """How many words there are; written from `to` on, if that is not 0."""
    s = text + BYTES_DATA
    end = s + load(text + BYTES_SIZE)
    if (CUT != RUNS) and (s == end) and (load(args + 48) == 0):
        return 0
    if CUT == AT_SEPARATORS:
        return cut_at_separators(load(args + 32), load(args + 40), s, end, to)
    return cut_at_bytes(load(args + 32), s, end, to)


def put_word(to: int, s: int, end: int) -> int:
    """Where the next one goes."""
    if to == 0:
        return 0
    return put_place(to, s, end - s)


def cut_at_bytes(table: int, s: int, end: int, to: int) -> int:
    count = 0
    begin = s
    while s < end:
        if load8(table + load8(s)) != 0:
            if (CUT == AT_BYTES) or (s > begin):
                to = put_word(to, begin, s)
                count += 1
            begin = s + 1
        s += 1
    if (CUT == AT_BYTES) or (end > begin):
        put_word(to, begin, end)
        count += 1
    return count


def cut_at_separators(separator: int, size: int, s: int, end: int, to: int) -> int:
    count = 1
    begin = s
    first = load8(separator)
    while s + size <= end:
        found = 0
        if load8(s) == first:
            found = same_bytes(s, separator, size)
        if found != 0:
            to = put_word(to, begin, s)
            count += 1
            s += size
            begin = s
        else:
            s += 1
    put_word(to, begin, end)
    return count


def cut_strings(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, bad, positions, lengths, places: the substrings. bad: whether a
    position of the chunk is not in its string."""
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, load(args + 8))
        bad = 0
        while i < end:
            text = load(load(args) + 8 * i)
            size = load(text + BYTES_SIZE)
            at = load(load(args + 32) + 8 * i)
            if at < 0:
                at += size
            if (at < 0) or (at > size):
                bad = 1
                at = 0
            length = least(load(load(args + 40) + 8 * i), size - at)
            if length < 0:
                length = 0
            put_place(load(args + 48) + PLACE_BYTES * i, text + BYTES_DATA + at, length)
            i += 1
        store(load(args + 24) + 8 * c, bad)
        c += 1
    return 0


def count_bytes(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, out: how many bytes each has, as i32."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        store32(load(args + 24) + 4 * i, load(load(load(args) + 8 * i) + BYTES_SIZE))
        i += 1
    return 0


# ------------------------------------------------------------------------------------------ joining
def measure_joined(args: int, lo: int, hi: int) -> int:
    """arrays of strings, size, chunk, count of arrays, places, separator, its size: the size of
    each joined string, at an address that is not 0."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    count = load(args + 24)
    while i < end:
        size = (count - 1) * load(args + 48)
        k = 0
        while k < count:
            size += load(load(load(load(args) + 8 * k) + 8 * i) + BYTES_SIZE)
            k += 1
        put_place(load(args + 32) + PLACE_BYTES * i, 1, size)
        i += 1
    return 0


def fill_joined(args: int, lo: int, hi: int) -> int:
    """The same with the objects for the places."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    between = load(args + 48)
    while i < end:
        to = load(load(args + 32) + 8 * i) + BYTES_DATA
        k = 0
        while k < load(args + 24):
            if k > 0:
                copy(to, load(args + 40), between)
                to += between
            text = load(load(load(args) + 8 * k) + 8 * i)
            size = load(text + BYTES_SIZE)
            copy(to, text + BYTES_DATA, size)
            to += size
            k += 1
        i += 1
    return 0


# --------------------------------------------------------------------------------------------- case
def measure_ascii(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, other, places: where each string lies. other: whether one of the chunk
    has bytes that are not ASCII."""
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, load(args + 8))
        seen = 0
        while i < end:
            s = load(load(args) + 8 * i) + BYTES_DATA
            size = load(s - BYTES_DATA + BYTES_SIZE)
            put_place(load(args + 32) + PLACE_BYTES * i, s, size)
            k = 0
            if OTHERS == 0:
                k = size
            while k < size:
                seen = seen | load8(s + k)
                k += 1
            i += 1
        store(load(args + 24) + 8 * c, seen >> 7)
        c += 1
    return 0


def fill_case(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, objects: each string with its letters from `LETTERS` on in the other
    case."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        s = load(load(args) + 8 * i) + BYTES_DATA
        to = load(load(args + 24) + 8 * i) + BYTES_DATA
        size = load(s - BYTES_DATA + BYTES_SIZE)
        k = 0
        while k < size:
            c = load8(s + k)
            store8(to + k, c ^ (below(c - LETTERS, 26) << 5))
            k += 1
        i += 1
    return 0
