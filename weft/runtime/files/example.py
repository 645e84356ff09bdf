"""tf.train.Example: named lists of bytes, floats or integers in protobuf's wire format
(tensorflow/core/example/{example,feature}.proto).

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof: BytesList = 1, FloatList = 2, Int64List = 3; }
    each list { repeated value = 1; }, numbers packed or not
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.errors import DataLossError, InvalidArgumentError
from weft.runtime.files.wire import (
    BYTES,
    FIXED32,
    VARINT,
    Array,
    fields,
    message,
    packed,
    varints,
)

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
