"""Protobuf's wire format (protobuf.dev/programming-guides/encoding), read and written: varints,
fields with a length, 32 and 64 bits; no groups. weft has few messages, and so needs no protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ir.errors import DataLossError

Array = np.ndarray[Any, Any]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST = 10  # bytes of a 64-bit varint


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of a message; the value is an int for a varint, else bytes.
    DataLossError if it is no message."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise DataLossError(f"field number {number} at byte {at}")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise DataLossError(f"wire type {kind} at byte {at}")
        if size > end - at:
            raise DataLossError(f"{size} bytes at byte {at}, where {end - at} are left")
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + i + 1
    raise DataLossError(f"a number at byte {at} does not end")


def varints(data: bytes) -> Array:
    """Packed varints as i64[n]. DataLossError if the last one does not end, or one is too long."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if raw.size and (not last.size or last[-1] != raw.size - 1):
        raise DataLossError("packed integers end in the middle of one")
    if last.size == raw.size:  # all below 128: a byte each
        return raw.astype(np.int64)
    first = np.concatenate([[0], last[:-1] + 1])
    sizes = last - first + 1
    if sizes.max() > _LONGEST:
        raise DataLossError("a packed integer is longer than 10 bytes")
    place = np.arange(raw.size) - np.repeat(first, sizes)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, first).view(np.int64)


def varint(value: int) -> bytes:
    """A number as a varint; a negative one takes 10 bytes."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def packed(values: Array) -> bytes:
    """i64[n] as packed varints; negative ones take 10 bytes."""
    bits = values.astype(np.int64).view(np.uint64)
    if not bits.size or bits.max() < 0x80:
        return bits.astype(np.uint8).tobytes()
    shifted = bits[:, None] >> (7 * np.arange(_LONGEST)).astype(np.uint64)
    out = (shifted & np.uint64(0x7F)).astype(np.uint8)
    there = np.concatenate([np.ones((len(bits), 1), bool), shifted[:, 1:] != 0], axis=1)
    out[:, :-1][there[:, 1:]] |= 0x80  # another byte follows
    chosen: bytes = out[there].tobytes()
    return chosen


def message(number: int, data: bytes) -> bytes:
    """Field `number` with a length and bytes."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def text(number: int, value: str) -> bytes:
    """Field `number` with text. What is no Unicode (a lone surrogate) becomes "?"."""
    return message(number, value.encode("utf-8", "replace"))


def integer(number: int, value: int) -> bytes:
    """Field `number` with an integer, a bool or an enumerator."""
    return varint(number << 3 | VARINT) + varint(value)


def double(number: int, value: float) -> bytes:
    """Field `number` with 64 bits."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """Field `number` with 32 bits; what is too large is infinite."""
    with np.errstate(over="ignore"):
        return varint(number << 3 | FIXED32) + np.array(value, "<f4").tobytes()
