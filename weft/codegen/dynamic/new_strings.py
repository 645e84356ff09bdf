"""Bytes objects of text that lies somewhere in memory, in `native_language`.

Objects are made by the thread that holds the GIL; the bytes of long ones are copied without it."""

from __future__ import annotations

from weft.codegen.dynamic.elements import least
from weft.codegen.dynamic.text_hash import BYTES_DATA
from weft.codegen.native_language import call, call32, copy, load, store

#: A row for each object: where its bytes are (0: none is made), and how many.
P_TEXT, P_SIZE, PLACE_BYTES = 0, 8, 16
#: Bytes of the longest objects that are filled as they are made.
AT_ONCE = 1024


def put_place(to: int, text: int, size: int) -> int:
    """A row; where the next one goes."""
    store(to + P_TEXT, text)
    store(to + P_SIZE, size)
    return to + PLACE_BYTES


def make_strings(args: int, lo: int, hi: int) -> int:
    """places, out, PyBytes_FromStringAndSize, Py_DecRef, whether there are long ones, bytes of the
    longest that are filled: the objects lo to hi. An exception is set if there is no memory."""
    i = lo
    while i < hi:
        text = load(load(args) + PLACE_BYTES * i + P_TEXT)
        if text != 0:
            size = load(load(args) + PLACE_BYTES * i + P_SIZE)
            if size > load(args + 40):
                text = 0
                store(args + 32, 1)
            made = call(load(args + 16), text, size)
            if made == 0:
                return 0
            slot = load(args + 8) + 8 * i
            old = load(slot)
            store(slot, made)
            if old != 0:
                call32(load(args + 24), old)
        i += 1
    return 0


def copy_long(args: int, lo: int, hi: int) -> int:
    """places, size, chunk, out: the bytes of the long objects."""
    i = lo * load(args + 16)
    end = least(hi * load(args + 16), load(args + 8))
    while i < end:
        text = load(load(args) + PLACE_BYTES * i + P_TEXT)
        size = load(load(args) + PLACE_BYTES * i + P_SIZE)
        if (text != 0) and (size > AT_ONCE):
            copy(load(load(args + 24) + 8 * i) + BYTES_DATA, text, size)
        i += 1
    return 0
