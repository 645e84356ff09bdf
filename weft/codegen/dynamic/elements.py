"""Elements of an array in `native_language`: their bits, whether they are 0 or NaN, and rows.

The constants are those of 64-bit integers; `kernels.element_constants` sets them for a dtype."""

from __future__ import annotations

from weft.codegen.native_language import (
    copy,
    load,
    load8,
    load16,
    load32,
    store,
    store8,
    store16,
    store32,
    word,
)

PLAIN, FLOAT, PAIR = 0, 1, 2
#: Bytes of an element (16: of two words); what it is: an integer, a float, two floats; which bits
#: of a part say whether it is 0; the bits of infinity; whether an integer has a sign.
ITEM, KIND, CARES, INFINITE, SIGNED, IS_BOOL = 8, 0, -1, 0, 1, 0
#: Bytes of a row, if it is moved by one load and one store; 0: of a row of any size.
ROW = 8
_LOW, _HALF = 0xFFFFFFFF, 0x7FFFFFFF
_ONES, _EVEN, _SUMS = 0x0101010101010101, 0x00FF00FF00FF00FF, 0x0001000100010001


def least(a: int, b: int) -> int:
    if a < b:
        return a
    return b


def most(a: int, b: int) -> int:
    if a > b:
        return a
    return b


def number_pairs(to: int, i: int, count: int) -> int:
    """(i, 0), (i, 1) and so on: so many rows of two."""
    j = 0
    while j < count:
        store(to, i)
        store(to + 8, j)
        to += 16
        j += 1
    return 0


def bits_of(base: int, i: int) -> int:
    """The bits of element i, of two words the first; of a bool 0 or 1: memory that became bools
    may hold any bytes."""
    if IS_BOOL == 1:
        return load8(base + i) != 0
    if ITEM == 1:
        return load8(base + i)
    if ITEM == 2:
        return load16(base + 2 * i)
    if ITEM == 4:
        return load32(base + 4 * i) & _LOW
    if ITEM == 16:
        return load(base + 16 * i)
    return load(base + 8 * i)


def integer(base: int, i: int) -> int:
    """Element i, an integer; one of u64 from 2**63 on is negative."""
    a = bits_of(base, i)
    if SIGNED == 1:
        if ITEM == 1:
            return (a ^ 0x80) - 0x80
        if ITEM == 2:
            return (a ^ 0x8000) - 0x8000
        if ITEM == 4:
            return (a ^ 0x80000000) - 0x80000000
    return a


def is_set(base: int, i: int) -> int:
    """1 if element i is not 0: a float neither 0 nor -0."""
    if ITEM == 16:
        return ((load(base + 16 * i) | load(base + 16 * i + 8)) << 1) != 0
    if KIND == PAIR:
        return (load(base + 8 * i) & ((_HALF << 32) | _HALF)) != 0
    return (bits_of(base, i) & CARES) != 0


def plain_float(a: int) -> int:
    """The bits of a float, of 0 for -0."""
    if (a & CARES) == 0:
        return 0
    return a


def key(base: int, i: int) -> int:
    """A word that is equal for equal elements, of two words the first."""
    a = bits_of(base, i)
    if KIND == PLAIN:
        return a
    if KIND == PAIR:
        if ITEM == 8:
            return plain_float(a & _LOW) | (plain_float((a >> 32) & _LOW) << 32)
    return plain_float(a)


def second(base: int, i: int) -> int:
    """The other word of an element of 16 bytes; 0 of others."""
    if ITEM == 16:
        return plain_float(load(base + 16 * i + 8))
    return 0


def is_nan(base: int, i: int) -> int:
    """1 if element i is equal to nothing."""
    if KIND == PLAIN:
        return 0
    a = bits_of(base, i)
    if KIND == FLOAT:
        return (a & CARES) > INFINITE
    if ITEM == 16:
        return ((a & CARES) > INFINITE) or ((load(base + 16 * i + 8) & CARES) > INFINITE)
    return ((a & CARES) > INFINITE) or (((a >> 32) & CARES) > INFINITE)


def move(to: int, source: int, row: int) -> int:
    """Copy a row of `row` bytes."""
    if ROW == 1:
        store8(to, load8(source))
    if ROW == 2:
        store16(to, load16(source))
    if ROW == 4:
        store32(to, load32(source))
    if ROW == 8:
        store(to, load(source))
    if ROW == 0:
        if row == 16:
            first = word(source)
            other = word(source + 8)
            store(to, first)
            store(to + 8, other)
        else:
            copy(to, source, row)
    return 0


def count_bools(base: int, i: int, end: int) -> int:
    """How many of the bools i to end are true: bytes are added eight at a time."""
    total = 0
    while i + 8 <= end:
        stop = least(i + 8 * 31, end - 7)
        sums = 0
        while i < stop:
            bits = word(base + i)
            bits = bits | (bits >> 4)  # into the lowest bit of each byte all of its bits
            bits = bits | (bits >> 2)
            bits = bits | (bits >> 1)
            sums += bits & _ONES
            i += 8
        total += (((sums & _EVEN) + ((sums >> 8) & _EVEN)) * _SUMS) >> 48
    while i < end:
        total += load8(base + i) != 0
        i += 1
    return total
