"""Text to numbers in `native_language`: string_to_number, decode_raw, the fields of CSV records.

Decimals become float64 by the algorithm of N. Mushtak and D. Lemire, Fast Number Parsing Without
Fallback (2023): one or two products with the upper 128 bits of a power of ten. What is not plain
digits is left to Python ("odd"): infinities, more than 19 digits, results that are subnormal, and
text that stands for no number."""

from __future__ import annotations

from weft.codegen.dynamic.elements import IS_BOOL, least
from weft.codegen.dynamic.new_strings import PLACE_BYTES, put_place
from weft.codegen.dynamic.text_hash import BYTES_DATA, BYTES_SIZE
from weft.codegen.native_language import (
    below,
    copy,
    high,
    leading_zeros,
    load,
    load8,
    narrow,
    stack,
    store,
    store8,
    store32,
)

LEAST_POWER, MOST_POWER = -342, 308
#: What a text becomes.
TO_I32, TO_I64, TO_F32, TO_F64, TO_TEXT = 0, 1, 2, 3, 4
#: Bytes of a word whose bytes come in the other order; 1: none does.
SWAP = 1
_LOW_BITS = (1 << 9) - 1
_SPACE, _PLUS, _MINUS, _POINT, _ZERO, _SMALL_E = 32, 43, 45, 46, 48, 101
_RETURN, _NEWLINE = 13, 10
_MOST_DIGITS, _MOST_INTEGER = 19, 18
_FRACTION = (1 << 52) - 1


def is_space(c: int) -> int:
    return (c == _SPACE) or (below(c - 9, 5) != 0)


def after_space(s: int, end: int) -> int:
    while s < end:
        if is_space(load8(s)) == 0:
            return s
        s += 1
    return s


def before_space(s: int, end: int) -> int:
    while s < end:
        if is_space(load8(end - 1)) == 0:
            return end
        end = end - 1
    return end


def parse_integer(s: int, end: int, to: int) -> int:
    """Write the integer; whether it is one, of at most 18 digits."""
    negative = 0
    if s < end:
        negative = load8(s) == _MINUS
        if (negative != 0) or (load8(s) == _PLUS):
            s += 1
    if (s >= end) or (end - s > _MOST_INTEGER):
        return 0
    value = 0
    while s < end:
        digit = load8(s) - _ZERO
        if below(digit, 10) == 0:
            return 0
        value = value * 10 + digit
        s += 1
    if negative != 0:
        value = 0 - value
    store(to, value)
    return 1


def parse_float(s: int, end: int, to: int, powers: int) -> int:
    """Write the bits of the float64; whether it is decided."""
    sign = 0
    if s < end:
        if load8(s) == _MINUS:
            sign = 1 << 63
        if (load8(s) == _MINUS) or (load8(s) == _PLUS):
            s += 1
    digits = 0
    significand = 0
    some = 0
    point = 0
    exponent = 0
    while s < end:
        c = load8(s)
        if below(c - _ZERO, 10) != 0:
            some = 1
            significand = significand * 10 + (c - _ZERO)
            digits += (digits | (c - _ZERO)) != 0  # 20 digits may be 2**64, a word of 0
            exponent = exponent - point
        elif c == _POINT:
            if point != 0:
                return 0
            point = 1
        else:
            if ((c | 32) != _SMALL_E) or (some == 0):
                return 0
            if parse_exponent(s + 1, end, to) == 0:
                return 0
            exponent += load(to)
            s = end
        s += 1
    if (some == 0) or (digits > _MOST_DIGITS):
        return 0
    if significand == 0:
        store(to, sign)
        return 1
    if (exponent < LEAST_POWER) or (exponent > MOST_POWER):
        return 0
    return nearest_float(significand, exponent, sign, to, powers)


def parse_exponent(s: int, end: int, to: int) -> int:
    if end - s > 5:
        return 0
    return parse_integer(s, end, to)


def nearest_float(significand: int, exponent: int, sign: int, to: int, powers: int) -> int:
    """Write significand * 10**exponent; whether that is no subnormal."""
    zeros = leading_zeros(significand)
    m = significand << zeros
    row = powers + 16 * (exponent - LEAST_POWER)
    upper = high(m, load(row + 8))
    lower = m * load(row + 8)
    if (upper & _LOW_BITS) == _LOW_BITS:
        more = high(m, load(row))
        lower += more
        upper += below(lower, more)
    top = upper >> 63
    kept = upper >> (top + 9)
    # 217706 / 2**16 is log2(10); the sum before the shift is not negative
    power = ((217706 * exponent + (1 << 30)) >> 16) - (1 << 14) + 63 + 1023 + top - zeros
    if (below(lower, 2) != 0) and (below(exponent + 4, 28) != 0) and ((kept & 3) == 1):
        if (kept << (top + 9)) == upper:  # halfway between two, the lower of which is even
            kept = kept - 1
    kept = (kept + (kept & 1)) >> 1
    if (kept >> 53) != 0:
        kept = kept >> 1
        power += 1
    if (power < 1) or (power > 2046):
        return 0
    store(to, sign | (power << 52) | (kept & _FRACTION))
    return 1


def parse_number(s: int, end: int, kind: int, to: int, powers: int, scratch: int) -> int:
    """Write the number that a text stands for, as `kind`; whether it is decided."""
    s = after_space(s, end)
    end = before_space(s, end)
    if kind <= TO_I64:
        if parse_integer(s, end, scratch) == 0:
            return 0
        value = load(scratch)
        if kind == TO_I64:
            store(to, value)
            return 1
        store32(to, value)
        return below(value + (1 << 31), 1 << 32)
    if parse_float(s, end, scratch, powers) == 0:
        return 0
    if kind == TO_F64:
        store(to, load(scratch))
    else:
        store32(to, narrow(load(scratch)))
    return 1


def item_size(kind: int) -> int:
    if (kind == TO_I32) or (kind == TO_F32):  # noqa: SIM109 (the language has no `in`)
        return 4
    return 8


def parse_strings(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, out, kind, powers, odd: the number of each; odd[i]: 1 if it is left."""
    strings = load(args)
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    kind = load(args + 32)
    width = item_size(kind)
    scratch = stack(1)
    while i < end:
        s = load(strings + 8 * i) + BYTES_DATA
        stop = s + load(s - BYTES_DATA + BYTES_SIZE)
        to = load(args + 24) + width * i
        store8(load(args + 48) + i, 1 ^ parse_number(s, stop, kind, to, load(args + 40), scratch))
        i += 1
    return 0


# --------------------------------------------------------------------------------------- raw bytes
def check_lengths(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, wrong, bytes: whether a string of the chunk has another length."""
    chunk = load(args + 16)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, load(args + 8))
        bad = 0
        while i < end:
            bad = bad | (load(load(load(args) + 8 * i) + BYTES_SIZE) != load(args + 32))
            i += 1
        store(load(args + 24) + 8 * c, bad)
        c += 1
    return 0


def fill_raw(args: int, lo: int, hi: int) -> int:
    """strings, size, chunk, out, bytes: the bytes of each as numbers."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    nbytes = load(args + 32)
    while i < end:
        source = load(load(args) + 8 * i) + BYTES_DATA
        to = load(args + 24) + i * nbytes
        k = 0
        if IS_BOOL == 1:
            while k < nbytes:
                store8(to + k, load8(source + k) != 0)
                k += 1
        elif SWAP == 1:
            copy(to, source, nbytes)
        else:
            while k < nbytes:
                store8(to + k, load8(source + (k ^ (SWAP - 1))))
                k += 1
        i += 1
    return 0


# ---------------------------------------------------------------------------------------------- CSV
#: A row for each column that is given: what it becomes, where to, its default (0: none), and which
#: fields are left.
C_KIND, C_OUT, C_DEFAULT, C_ODD, COLUMN_BYTES = 0, 8, 16, 24, 32


def parse_csv(args: int, lo: int, hi: int) -> int:
    """records, size, chunk, bad, delimiter, quote, na, na_size, fields, used, columns, exact,
    powers: the fields of each record, those of text as their address (0: quotes in it are doubled,
    it is left) and size. fields: of each field the number of its column, or -1; used: how many
    there are; exact: whether there may be no further ones. bad: 1 if a record of the chunk is not
    so."""
    chunk = load(args + 16)
    scratch = stack(4)
    c = lo
    while c < hi:
        i = c * chunk
        end = least(i + chunk, load(args + 8))
        bad = 0
        while (i < end) and (bad == 0):
            bad = 1 ^ parse_record(args, i, scratch)
            i += 1
        store(load(args + 24) + 8 * c, bad)
        c += 1
    return 0


def parse_record(args: int, i: int, scratch: int) -> int:
    """Whether record i is as it should be."""
    start = load(load(args) + 8 * i) + BYTES_DATA
    end = start + load(start - BYTES_DATA + BYTES_SIZE)
    while (start < end) and ((load8(end - 1) == _NEWLINE) or (load8(end - 1) == _RETURN)):
        end = end - 1
    number = 0
    used = load(args + 72)
    after = field_end(start, end, load(args + 32), load(args + 40), scratch + 8)
    while after != 0:
        if number < used:
            column = load(load(args + 64) + 8 * number)
            if column >= 0:
                row = load(args + 80) + COLUMN_BYTES * column
                if put_field(args, row, i, scratch) == 0:
                    return 0
        number += 1
        if after == end:
            if load(args + 88) != 0:
                return number == used
            return number >= used
        after = field_end(after + 1, end, load(args + 32), load(args + 40), scratch + 8)
    return 0


def field_end(s: int, end: int, delimiter: int, quote: int, found: int) -> int:
    """Where the field that begins at s is over; its begin, end, and whether quotes in it are
    doubled, at `found`. 0 for what RFC 4180 does not allow."""
    store(found + 16, 0)
    if s < end:
        if load8(s) == quote:
            store(found, s + 1)
            s += 1
            while 1:
                while (s < end) and (load8(s) != quote):
                    s += 1
                if s >= end:
                    return 0
                again = 0
                if s + 1 < end:
                    again = load8(s + 1) == quote
                if again == 0:
                    store(found + 8, s)
                    if s + 1 < end:
                        if load8(s + 1) != delimiter:
                            return 0
                    return s + 1
                store(found + 16, 1)
                s += 2
    store(found, s)
    while s < end:
        c = load8(s)
        if c == delimiter:
            store(found + 8, s)
            return s
        if (c == quote) or (c == _NEWLINE) or (c == _RETURN):  # noqa: SIM109
            return 0
        s += 1
    store(found + 8, s)
    return s


def put_field(args: int, column: int, i: int, scratch: int) -> int:
    """The field at `scratch` + 8 into its column; whether that is possible."""
    s = load(scratch + 8)
    end = load(scratch + 16)
    doubled = load(scratch + 24)
    kind = load(column + C_KIND)
    to = load(column + C_OUT)
    missing = 0
    if s == end:
        missing = 1
    if end - s == load(args + 56):
        missing = missing | same_bytes(s, load(args + 48), end - s)
    if (missing != 0) and (doubled == 0):
        if load(column + C_DEFAULT) == 0:
            return 0
        if kind == TO_TEXT:
            text = load(load(column + C_DEFAULT))
            put_place(to + PLACE_BYTES * i, text + BYTES_DATA, load(text + BYTES_SIZE))
            return 1
        width = item_size(kind)
        copy(to + width * i, load(column + C_DEFAULT), width)
        return 1
    if kind == TO_TEXT:
        size = end - s
        if doubled != 0:
            s = 0
        put_place(to + PLACE_BYTES * i, s, size)
        return 1
    decided = 0
    if doubled == 0:
        decided = parse_number(s, end, kind, to + item_size(kind) * i, load(args + 96), scratch)
    store8(load(column + C_ODD) + i, 1 ^ decided)
    return 1


def same_bytes(a: int, b: int, size: int) -> int:
    while size > 0:
        size = size - 1
        if load8(a + size) != load8(b + size):
            return 0
    return 1
