"""tf.train.Example: named lists of bytes, floats or integers in protobuf's wire format.

From tensorflow/core/example/{example,feature}.proto:

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof: BytesList = 1, FloatList = 2, Int64List = 3; }
    each list { repeated value = 1; }, numbers packed or not

The wire format (protobuf.dev/programming-guides/encoding) is here as far as that needs it: varints,
lengths, 32 and 64 bits; no groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.ir.errors import DataLossError, InvalidArgumentError

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
    """A number of at least 0 as a varint."""
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


_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def decode_example(data: bytes) -> dict[str, Array]:
    """The features: f32[n], i64[n] or an object array of n bytes each.

    Fields that are not known are passed over, a feature without a list is not there (both as in
    TensorFlow). DataLossError if `data` is no Example.
    """
    if not isinstance(data, bytes):
        raise InvalidArgumentError(f"an Example is bytes, this is {type(data).__name__}")
    out: dict[str, Array] = {}
    name = None
    try:
        # messages of one field that comes twice are merged, which is the message of their bytes
        for entry in _submessages(_joined(data, 1), 1):
            name = None
            name = _joined(entry, 1, last=True).decode()
            out.pop(name, None)  # of two entries of one name the last holds
            values = _feature(_joined(entry, 2))
            if values is not None:
                out[name] = values
    except (DataLossError, UnicodeDecodeError) as error:
        where = "" if name is None else f", feature {name!r}"
        what = getattr(error, "what", "a name is not UTF-8")
        raise DataLossError(
            f"a tf.train.Example of {len(data)} bytes{where}: {what}",
            hint="is it a serialized tf.train.Example?",
        ) from None
    return out


def _submessages(data: bytes, number: int) -> list[bytes]:
    return [v for n, kind, v in fields(data) if n == number and isinstance(v, bytes) and kind == 2]


def _joined(data: bytes, number: int, last: bool = False) -> bytes:
    found = _submessages(data, number)
    return (found[-1] if found else b"") if last else b"".join(found)


def _feature(data: bytes) -> Array | None:
    chosen, parts = 0, b""
    for number, kind, value in fields(data):
        if kind == BYTES and number in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            assert isinstance(value, bytes)
            parts = parts + value if number == chosen else value  # of the oneof the last holds
            chosen = number
    if chosen == _BYTES_LIST:
        return bytes_array(_submessages(parts, 1))
    if chosen == _FLOAT_LIST:
        return _numbers(parts, FIXED32, np.float32)
    return _numbers(parts, VARINT, np.int64) if chosen == _INT64_LIST else None


def _numbers(data: bytes, single: int, dtype: type) -> Array:
    """A list of numbers, packed, one by one, or both."""
    runs: list[Array] = []
    for number, kind, value in fields(data):
        if number != 1 or kind not in (BYTES, single):
            continue
        if isinstance(value, int):
            runs.append(np.array([value], np.uint64).view(np.int64))
        elif dtype is np.int64:
            runs.append(varints(value))
        elif len(value) % 4:
            raise DataLossError(f"packed floats of {len(value)} bytes")
        else:
            runs.append(np.frombuffer(value, "<f4").astype(np.float32))
    return runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, dtype), *runs])


def bytes_array(values: list[bytes]) -> Array:
    """An object array of bytes."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def encode_example(features: Mapping[str, Any]) -> bytes:
    """A serialized tf.train.Example, sorted by name: bytes and str as BytesList, floats as
    FloatList (float32), integers and bools as Int64List; one value, a list or an array (flattened).

    InvalidArgumentError for other values, and for integers outside of int64.
    """
    entries = []
    for name in sorted(features):
        value = _list(name, features[name])
        entries.append(message(1, message(1, name.encode()) + message(2, value)))
    return message(1, b"".join(entries))


def _list(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, str)):
        value = [value]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (bytes, str)):
        flat: Any = value
    else:
        flat = np.asarray(value).reshape(-1)
    if not isinstance(flat, np.ndarray) or flat.dtype.kind in "OSU":
        if not all(isinstance(v, (bytes, str)) for v in flat):
            raise InvalidArgumentError(
                f"feature {name!r}: {value!r:.60} is no list of bytes, floats or integers"
            )
        items = [v.encode() if isinstance(v, str) else bytes(v) for v in flat]
        return message(_BYTES_LIST, b"".join(message(1, v) for v in items))
    if flat.dtype.kind in "iub":
        if flat.dtype == np.uint64 and flat.size and flat.max() > np.iinfo(np.int64).max:
            raise InvalidArgumentError(f"feature {name!r}: an integer does not fit int64")
        body = packed(flat)
        return message(_INT64_LIST, message(1, body) if body else b"")
    if flat.dtype.kind == "f" or flat.dtype.name == "bfloat16":
        with np.errstate(over="ignore"):
            body = flat.astype("<f4").tobytes()
        return message(_FLOAT_LIST, message(1, body) if body else b"")
    raise InvalidArgumentError(
        f"feature {name!r}: an Example holds bytes, floats and integers, not {flat.dtype}"
    )
