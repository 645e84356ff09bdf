"""Features of tf.train.Examples in `native_language`: protobuf's wire format, as
`runtime/files/wire.py` and `runtime/files/decoding.py` say.

`find_features` gives each wanted feature of each record as a cell: where its list begins and ends,
and how many values it has; `fill_features` writes the values. Every position is compared with the
end of the message that it lies in before it is read. A record that is not as wanted, or that merges
messages, is left to Python ("odd")."""

from __future__ import annotations

from weft.codegen.dynamic.elements import least, number_pairs
from weft.codegen.dynamic.new_strings import PLACE_BYTES, put_place
from weft.codegen.dynamic.parsing import same_bytes
from weft.codegen.dynamic.text_hash import BYTES_DATA, BYTES_SIZE, BYTES_TYPE, murmur64
from weft.codegen.native_language import (
    below,
    copy,
    load,
    load8,
    rem,
    stack,
    store,
    store8,
    store32,
    word,
    word32,
)

#: Wire types, and the lists of a feature by their field numbers.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
#: Tags of the values of a list, which are its field 1.
_PACKED, _SINGLE_FLOAT, _SINGLE_INTEGER = 10, 13, 8
_NUMBERS, _LONGEST, _ENDS = (1 << 29) - 1, 10, 0x8080808080808080 - (1 << 64)
#: Words of a field: its tag, where its value begins and ends, and a number.
F_TAG, F_BEGIN, F_END, F_NUMBER = 0, 8, 16, 24
#: Words of a cell. A count below 0: the record does not have the feature, or of another kind.
C_BEGIN, C_END, C_COUNT, CELL_BYTES = 0, 8, 16, 24
MISSING, OTHER = -1, -2
#: A row for each wanted feature: its list; how many values (-1: any number); the address of those
#: of records without it (0: none); where values go (of bytes their address and size); of any number
#: where each record's begin, and (row, number) of each value (0: they are not asked for).
W_LIST, W_COUNT, W_DEFAULT, W_OUT, W_STARTS, W_INDICES, WANTED_BYTES = 0, 8, 16, 24, 32, 40, 48


def read_varint(s: int, end: int, to: int) -> int:
    """Write the number at s; where it is over, 0 if it is not before `end`."""
    value = 0
    shift = 0
    while (s < end) and (shift < 7 * _LONGEST):
        c = load8(s)
        value = value | ((c & 127) << shift)
        s += 1
        if c < 128:
            store(to, value)
            return s
        shift += 7
    return 0


def next_field(s: int, end: int, field: int) -> int:
    """Write the field at s; where it is over, 0 if there is none."""
    s = read_varint(s, end, field + F_TAG)
    if s == 0:
        return 0
    tag = load(field + F_TAG)
    if below((tag >> 3) - 1, _NUMBERS) == 0:
        return 0
    kind = tag & 7
    size = 0
    if kind == LENGTH:
        s = read_varint(s, end, field + F_NUMBER)
        if s == 0:
            return 0
        size = load(field + F_NUMBER)
    elif kind == VARINT:
        after = read_varint(s, end, field + F_NUMBER)
        if after == 0:
            return 0
        size = after - s
    elif kind == FIXED32:
        size = 4
    elif kind == FIXED64:
        size = 8
    else:
        return 0
    if below(end - s, size) != 0:
        return 0
    store(field + F_BEGIN, s)
    store(field + F_END, s + size)
    return s + size


def count_varints(s: int, end: int) -> int:
    """How many packed numbers there are; -1 if the last one does not end, or one is too long."""
    count = 0
    length = 0
    while s < end:
        fast = 0
        if (length == 0) and (end - s >= 8):
            fast = (word(s) & _ENDS) == 0
        if fast != 0:
            count += 8
            s += 8
        else:
            length += 1
            if length > _LONGEST:
                return -1
            if load8(s) < 128:
                count += 1
                length = 0
            s += 1
    if length != 0:
        return -1
    return count


def count_values(kind: int, s: int, end: int, field: int) -> int:
    """How many values a list has; -1 if it is none."""
    count = 0
    while s < end:
        s = next_field(s, end, field)
        if s == 0:
            return -1
        tag = load(field + F_TAG)
        if tag == _PACKED:
            if kind == BYTES_LIST:
                count += 1
            elif kind == FLOAT_LIST:
                size = load(field + F_END) - load(field + F_BEGIN)
                if (size & 3) != 0:
                    return -1
                count += size >> 2
            else:
                more = count_varints(load(field + F_BEGIN), load(field + F_END))
                if more < 0:
                    return -1
                count += more
        elif tag == _SINGLE_FLOAT:
            count += kind == FLOAT_LIST
        elif tag == _SINGLE_INTEGER:
            count += kind == INT64_LIST
    return count


def is_utf8(s: int, end: int) -> int:
    """Whether the bytes are UTF-8: no surrogates, nothing longer than needed."""
    while s < end:
        c = load8(s)
        more = 0
        low = 0x80
        up = 0xC0
        if c >= 0x80:
            if (c < 0xC2) or (c > 0xF4):
                return 0
            more = 1 + (c >= 0xE0) + (c >= 0xF0)
            low += ((c == 0xE0) << 5) + ((c == 0xF0) << 4)
            up = up - ((c == 0xED) << 5) - ((c == 0xF4) * 0x30)
        s += 1
        if end - s < more:
            return 0
        while more > 0:
            if (load8(s) < low) or (load8(s) >= up):
                return 0
            low = 0x80
            up = 0xC0
            s += 1
            more = more - 1
    return 1


# ------------------------------------------------------------------------------------------ finding
def find_features(args: int, lo: int, hi: int) -> int:
    """records, size, chunk, cells, wanted, count of them, names, slots, count of them, odd, the
    type of bytes objects."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    field = stack(4)
    found = stack(4)
    while i < end:
        cells = load(args + 24) + i * load(args + 40) * CELL_BYTES
        record = load(load(args) + 8 * i)
        regular = 0
        if record != 0:
            if load(record + BYTES_TYPE) == load(args + 80):
                s = record + BYTES_DATA
                regular = find_in(args, cells, s, s + load(record + BYTES_SIZE), field, found)
        store8(load(args + 72) + i, 1 ^ regular)
        i += 1
    return 0


def find_in(args: int, cells: int, s: int, end: int, field: int, found: int) -> int:
    """Whether a record is as wanted."""
    k = 0
    while k < load(args + 40):
        store(cells + CELL_BYTES * k + C_COUNT, MISSING)
        k += 1
    if only_message(1, s, end, field, found) == 0:
        return 0
    s = load(found)
    end = load(found + 8)
    while s < end:
        s = next_field(s, end, field)
        if s == 0:
            return 0
        if load(field + F_TAG) == ((1 << 3) | LENGTH):
            if (
                put_entry(args, cells, load(field + F_BEGIN), load(field + F_END), field, found)
                == 0
            ):
                return 0
    k = 0
    while k < load(args + 40):
        count = load(cells + CELL_BYTES * k + C_COUNT)
        row = load(args + 32) + WANTED_BYTES * k
        if count == OTHER:
            return 0
        if load(row + W_COUNT) >= 0:
            if count == MISSING:
                if load(row + W_DEFAULT) == 0:
                    return 0
            elif count != load(row + W_COUNT):
                return 0
        k += 1
    return 1


def only_message(number: int, s: int, end: int, field: int, found: int) -> int:
    """Write where the message of that number begins and ends, both 0 if there is none. Whether
    there is at most one."""
    store(found, 0)
    store(found + 8, 0)
    while s < end:
        s = next_field(s, end, field)
        if s == 0:
            return 0
        if load(field + F_TAG) == ((number << 3) | LENGTH):
            if load(found) != 0:
                return 0
            store(found, load(field + F_BEGIN))
            store(found + 8, load(field + F_END))
    return 1


def put_entry(args: int, cells: int, s: int, end: int, field: int, found: int) -> int:
    """An entry of the map into its cell, if it is wanted. Whether it is one, of one message each.

    `found` holds where its name begins and ends, and its value."""
    store(found, 0)
    store(found + 8, 0)
    store(found + 16, 0)
    store(found + 24, 0)
    while s < end:
        s = next_field(s, end, field)
        if s == 0:
            return 0
        if load(field + F_TAG) == ((1 << 3) | LENGTH):  # of two names the last holds
            store(found, load(field + F_BEGIN))
            store(found + 8, load(field + F_END))
        elif load(field + F_TAG) == ((2 << 3) | LENGTH):
            if load(found + 16) != 0:
                return 0
            store(found + 16, load(field + F_BEGIN))
            store(found + 24, load(field + F_END))
    k = wanted_name(args, load(found), load(found + 8) - load(found))
    if k < 0:
        if is_utf8(load(found), load(found + 8)) == 0:
            return 0
    kind = list_of(load(found + 16), load(found + 24), field, found)
    if kind < 0:
        return 0
    count = MISSING
    if kind > 0:
        count = count_values(kind, load(found), load(found + 8), field)
        if count < 0:
            return 0
    if k >= 0:
        cell = cells + CELL_BYTES * k
        if kind > 0:
            if kind != load(load(args + 32) + WANTED_BYTES * k + W_LIST):
                count = OTHER
        store(cell + C_BEGIN, load(found))
        store(cell + C_END, load(found + 8))
        store(cell + C_COUNT, count)
    return 1


def list_of(s: int, end: int, field: int, found: int) -> int:
    """The number of a feature's list, which is written where it begins and ends; 0: it has none,
    -1: it is no feature of one list."""
    chosen = 0
    while s < end:
        s = next_field(s, end, field)
        if s == 0:
            return -1
        number = load(field + F_TAG) >> 3
        if ((load(field + F_TAG) & 7) == LENGTH) and (number <= INT64_LIST):
            if chosen != 0:
                return -1
            chosen = number
            store(found, load(field + F_BEGIN))
            store(found + 8, load(field + F_END))
    return chosen


def wanted_name(args: int, s: int, size: int) -> int:
    """Which wanted feature has the name; -1: none."""
    names = load(args + 48)
    slots = load(args + 56)
    at = rem(murmur64(s, size), load(args + 64))
    k = load(slots + 8 * at)
    while k >= 0:
        name = load(names + 8 * k)
        if load(name + BYTES_SIZE) == size:
            if same_bytes(name + BYTES_DATA, s, size) != 0:
                return k
        at = rem(at + 1, load(args + 64))
        k = load(slots + 8 * at)
    return -1


# ------------------------------------------------------------------------------------------ filling
def fill_features(args: int, lo: int, hi: int) -> int:
    """size, chunk, cells, wanted, count of them, odd: the values of the records that are not."""
    i = lo * load(args + 8)
    end = least(hi * load(args + 8), load(args))
    field = stack(4)
    while i < end:
        if load8(load(args + 40) + i) == 0:
            k = 0
            while k < load(args + 32):
                cell = load(args + 16) + CELL_BYTES * (i * load(args + 32) + k)
                fill_feature(load(args + 24) + WANTED_BYTES * k, cell, i, field)
                k += 1
        i += 1
    return 0


def fill_feature(row: int, cell: int, i: int, field: int) -> int:
    """The values of one feature of record i."""
    kind = load(row + W_LIST)
    width = 8
    if kind == BYTES_LIST:
        width = PLACE_BYTES
    elif kind == FLOAT_LIST:
        width = 4
    count = load(row + W_COUNT)
    at = i * count
    if count < 0:
        at = load(load(row + W_STARTS) + 8 * i)
    to = load(row + W_OUT) + width * at
    have = load(cell + C_COUNT)
    if have < 0:
        if count > 0:
            copy(to, load(row + W_DEFAULT), width * count)
        return 0
    if load(row + W_INDICES) != 0:
        number_pairs(load(row + W_INDICES) + 16 * at, i, have)
    return fill_values(kind, load(cell + C_BEGIN), load(cell + C_END), to, field)


def fill_values(kind: int, s: int, end: int, to: int, field: int) -> int:
    while s < end:
        s = next_field(s, end, field)
        tag = load(field + F_TAG)
        begin = load(field + F_BEGIN)
        size = load(field + F_END) - begin
        if kind == INT64_LIST:
            if tag == _PACKED:
                to = fill_varints(begin, begin + size, to, field)
            elif tag == _SINGLE_INTEGER:
                store(to, load(field + F_NUMBER))
                to += 8
        elif kind == FLOAT_LIST:
            if tag == _PACKED:
                copy(to, begin, size)
                to += size
            elif tag == _SINGLE_FLOAT:
                store32(to, word32(begin))
                to += 4
        elif tag == _PACKED:
            to = put_place(to, begin, size)
    return 0


def fill_varints(s: int, end: int, to: int, field: int) -> int:
    """Where the numbers written are over."""
    while s < end:
        c = load8(s)
        if c < 128:
            store(to, c)
            s += 1
        else:
            s = read_varint(s, end, field + F_NUMBER)
            store(to, load(field + F_NUMBER))
        to += 8
    return to
