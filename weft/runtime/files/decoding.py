"""Decoding to arrays: of many records at once, fields of CSV lines and features of Examples; of
tf.train.Example itself; and of images as u8[height, width, channels], by Pillow (extra `data`).

tf.train.Example: named lists of bytes, floats or integers in protobuf's wire format. From
tensorflow/core/example/{example,feature}.proto:

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof: BytesList = 1, FloatList = 2, Int64List = 3; }
    each list { repeated value = 1; }, numbers packed or not"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import DataLossError, InvalidArgumentError, UnsupportedError, WeftError, suggest
from weft.ir.ops.strings import number_of
from weft.ir.types import TensorType
from weft.runtime.files.paths import Path, is_url, matching
from weft.runtime.files.permissions import confined
from weft.runtime.files.streams import opened
from weft.runtime.files.wire import BYTES, FIXED32, VARINT, fields, message, packed, varints

Array = np.ndarray[Any, Any]
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def decode_example(data: bytes) -> dict[str, Array]:
    """The features: f32[n], i64[n] or an object array of n bytes each.

    Fields that are not known are passed over, a feature without a list is not there (both as in
    TensorFlow). DataLossError if `data` is no Example.

    >>> wf.data.decode_example(wf.data.encode_example({"label": 3, "name": "three"}))
    {'label': array([3]), 'name': array([b'three'], dtype=object)}
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

    >>> record = wf.data.encode_example({"x": np.zeros((2, 2)), "label": True})
    >>> type(record), {k: v.dtype.name for k, v in wf.data.decode_example(record).items()}
    (<class 'bytes'>, {'label': 'int64', 'x': 'float32'})
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


def decode_csv(
    records: Array, defaults: Sequence[Array], delimiter: str = ",", quote: str = '"',
    na_value: str = "", columns: Sequence[int] = (),
) -> list[Array]:  # fmt: skip
    """The fields of CSV records (RFC 4180): an array of the records' shape for each default.

    defaults: of the dtype of the column; of one value, for empty fields and `na_value`, or of none:
    such a field is an error. quote: "" for none. columns: those to give (all if there are none).
    InvalidArgumentError names the record and the field.
    """
    between, mark = delimiter.encode(), quote.encode()
    rows = [_fields(record, i, between, mark) for i, record in enumerate(records.flat)]
    chosen = columns or range(len(defaults))
    for i, row in enumerate(rows):
        if (len(row) <= max(chosen)) if columns else (len(row) != len(defaults)):
            raise InvalidArgumentError(
                f"record {i} has {len(row)} fields, "
                f"{max(chosen) + 1 if columns else len(defaults)} are expected: "
                f"{records.flat[i]!r:.80}"
            )
    missing = {b"", na_value.encode()}
    with np.errstate(over="ignore"):  # inf, as in a step
        made = [
            _column([r[at] for r in rows], default, missing, at)
            for at, default in zip(chosen, defaults, strict=True)
        ]
    return [column.reshape(records.shape) for column in made]


def csv_field(records: Array, at: int, delimiter: str, quote: str, number: int) -> bytes:
    """Field `at` of record `number`. InvalidArgumentError as of `decode_csv`."""
    return _fields(records.flat[number], number, delimiter.encode(), quote.encode())[at]


def _fields(record: bytes, number: int, between: bytes, mark: bytes) -> list[bytes]:
    record = record.rstrip(b"\r\n")
    if not (mark and mark in record) and b"\n" not in record and b"\r" not in record:
        return record.split(between)
    try:
        return _split(record, between, mark)
    except ValueError as error:
        raise InvalidArgumentError(f"record {number}, {error}: {record!r:.80}") from None


def _split(record: bytes, between: bytes, mark: bytes) -> list[bytes]:
    """The fields of a record, some of them perhaps in quotes (`mark`, which is doubled within
    them). ValueError as RFC 4180 wants it. As in TensorFlow, line breaks before a field count
    nothing."""
    fields: list[bytes] = []
    at = -len(between)
    while at < len(record):
        at += len(between)
        while record[at : at + 1] in (b"\r", b"\n"):
            at += 1
        where = f"field {len(fields)}"
        if mark and record.startswith(mark, at):
            parts: list[bytes] = []
            while not parts or record.startswith(mark, at):
                end = record.find(mark, at + len(mark))
                if end < 0:
                    raise ValueError(f"{where}: the quote has no end")
                parts.append(record[at + len(mark) : end])
                at = end + len(mark)
            if at < len(record) and not record.startswith(between, at):
                raise ValueError(f"{where} goes on after the quote that ends it")
            fields.append(mark.join(parts))
            continue
        end = record.find(between, at)
        field, at = record[at : end if end >= 0 else None], end if end >= 0 else len(record)
        if (mark and mark in field) or b"\n" in field or b"\r" in field:
            raise ValueError(f"{where} has a quote or a line break, but is not in quotes")
        fields.append(field)
    return fields


def _column(fields: list[bytes], default: Array, missing: set[bytes], at: int) -> Array:
    """The fields of one column as an array."""
    dtype = as_dtype(default.dtype)
    given = default.flat[0] if default.size else None
    parse: Any = bytes if dtype is string else int if dtype.is_integer else float
    try:
        there = fields
        if not missing.isdisjoint(fields):
            there = [text for text in fields if text not in missing]
        if len(there) < len(fields) and given is None:
            raise ValueError
        if dtype is not string and b"_" in b"".join(there):  # Python's own way of writing numbers
            raise ValueError
        if there is fields:
            values = list(map(parse, fields))
        else:
            values = [given if text in missing else parse(text) for text in fields]
        out = np.empty(len(fields), dtype.numpy)
        out[:] = values
    except (ValueError, OverflowError):
        raise _bad_field(fields, default, missing, at) from None
    return out


def _bad_field(
    fields: list[bytes], default: Array, missing: set[bytes], at: int
) -> InvalidArgumentError:
    """The error for the first field of a column that stands for no value."""
    for i, text in enumerate(fields):
        where = f"record {i}, field {at}"
        if text in missing:
            if not default.size:
                return InvalidArgumentError(
                    f"{where}: it is empty, and there is no default",
                    hint="give the column a default of one value",
                )
            continue
        try:
            number_of(text, as_dtype(default.dtype))
        except WeftError as error:
            return InvalidArgumentError(f"{where}: {error.what}")
    return InvalidArgumentError(f"field {at} of the records stands for no value")


def parse_examples(
    serialized: Array, names: Sequence[str], types: Sequence[TensorType],
    defaults: Mapping[int, Array],
) -> list[Array]:  # fmt: skip
    """Features of serialized Examples: an array of the shape of `serialized` and of its type for
    each name. defaults: by number, for examples without the feature.

    A type `[?]` takes any number of values (none if an example does not have the feature): of one
    example a vector, of a list of them three arrays: indices, values and shape of a sparse matrix.
    InvalidArgumentError, naming example and feature, DataLossError for what is no Example.
    """
    found: list[list[Array]] = [[] for _ in names]
    for i, data in enumerate(serialized.flat):
        number = i if serialized.ndim else None
        for k, value in enumerate(declared_features(data, names, types, defaults, number)):
            found[k].append(value)
    out = []
    for values, t in zip(found, types, strict=True):
        if serialized.ndim and not t.is_static:
            out += _as_sparse(values, t)
            continue
        tail = values[0].shape if values else tuple(d or 0 for d in t.static_shape)
        stacked = np.empty((len(values), *tail), t.dtype.numpy)
        for i, value in enumerate(values):
            stacked[i, ...] = value
        out.append(stacked.reshape((*serialized.shape, *tail)))
    return out


def declared_features(
    data: bytes, names: Sequence[str], types: Sequence[TensorType], defaults: Mapping[int, Array],
    number: int | None,
) -> list[Array]:  # fmt: skip
    """Those of one Example, each of its type. number: which of several it is. Errors as of
    `parse_examples`."""
    try:
        features = decode_example(data)
        return [
            _as_declared(name, types[k], features, defaults.get(k)) for k, name in enumerate(names)
        ]
    except WeftError as error:
        if number is None:
            raise
        raise type(error)(f"example {number}: {error.what}", hint=error.hint) from None


def _as_sparse(rows: Sequence[Array], t: TensorType) -> list[Array]:
    """Vectors as the rows of a sparse matrix: its indices i64[n, 2], values [n], shape i64[2]."""
    lengths = np.asarray([len(row) for row in rows], np.int64)
    values = np.concatenate([np.empty(0, t.dtype.numpy), *rows]).astype(t.dtype.numpy, copy=False)
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(rows)), lengths)
    indices = np.stack([row, np.arange(len(values)) - starts[row]], axis=1).astype(np.int64)
    return [indices, values, np.asarray([len(rows), lengths.max(initial=0)], np.int64)]


def _as_declared(
    name: str, wanted: TensorType, found: Mapping[str, Array], default: Array | None
) -> Array:
    values = found.get(name)
    if values is None:
        if not wanted.is_static:
            return np.empty(0, wanted.dtype.numpy)
        if default is None:
            raise InvalidArgumentError(
                f"the example has no feature {name!r}{suggest(name, list(found))}",
                hint=f"it has {', '.join(map(repr, sorted(found))) or 'none'}; or give a "
                "default_value",
            )
        return default
    there = as_dtype(values.dtype)
    if there is not wanted.dtype:
        raise InvalidArgumentError(
            f"feature {name!r} holds {there.name}, {wanted.dtype.name} is wanted"
        )
    if not wanted.is_static:
        return values
    if values.size != math.prod(wanted.static_shape):
        raise InvalidArgumentError(
            f"feature {name!r} has {values.size} values, its shape is {format_shape(wanted.shape)}",
            hint="a VarLenFeature takes any number",
        )
    return values.reshape(wanted.static_shape)


def matching_files(patterns: Array, within: Sequence[str] = ()) -> Array:
    """The names of the files that fit any of the patterns (`*`, `?`, `[...]`), sorted.

    PermissionDeniedError for a pattern that begins outside of the folders `within`, and for a file
    that is outside, if there are any.
    """
    for pattern in patterns.flat if within else ():
        fixed = re.split(rb"[*?[]", pattern, maxsplit=1)[0]
        whole = fixed == pattern or is_url(pattern)  # a URL lies where all of it says
        confined(os.fsdecode(pattern if whole else os.path.dirname(fixed)), within)
    names = {n for p in patterns.flat for n in matching(p)}
    for name in names:
        confined(os.fsdecode(name), within)
    out = np.empty(len(names), object)
    out[:] = sorted(names)
    return out


_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHANNELS = {"1": 1, "L": 1, "LA": 2, "La": 2, "PA": 4, "RGBA": 4, "RGBa": 4}
_DEEP = ("I", "F")  # modes of more than 8 bits begin like this
_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def pillow() -> Any:
    """Pillow's `Image`. UnsupportedError where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            "images need the package Pillow", hint="pip install 'weft[data]'"
        ) from error
    return Image


def read_image(
    path: Path, channels: int | None = None, size: tuple[int, int] | None = None,
    method: str = "bilinear",
) -> Array:  # fmt: skip
    """`decode_image` of a file.

    >>> with open("two.ppm", "wb") as file:  # a red and a blue pixel
    ...     _ = file.write(b"P6 2 1 255 " + bytes([255, 0, 0, 0, 0, 255]))
    >>> wf.data.read_image("two.ppm").tolist()
    [[[255, 0, 0], [0, 0, 255]]]
    >>> wf.data.read_image("two.ppm", channels=1, size=(28, 28)).shape
    (28, 28, 1)
    """
    with opened(path) as file:
        return decode_image(file.read(), channels, size, method, os.fspath(path))


def decode_image(
    data: bytes, channels: int | None = None, size: tuple[int, int] | None = None,
    method: str = "bilinear", source: str = "an image",
) -> Array:  # fmt: skip
    """A PNG, JPEG or other image as u8[height, width, channels].

    channels: 1 (grey), 2 (with alpha), 3 (RGB), 4 (RGBA); None: as the file has them. size:
    (height, width) to resize to. DataLossError for what is no whole image, UnsupportedError for
    more than 8 bits a channel.

    >>> grey = b"P5 2 2 255 " + bytes([0, 50, 100, 150])  # PGM: width, height, largest value
    >>> wf.data.decode_image(grey).shape, wf.data.decode_image(grey, channels=3).shape
    ((2, 2, 1), (2, 2, 3))
    >>> wf.data.decode_image(grey[:-1])
    Traceback (most recent call last):
        ...
    weft.ir.errors.DataLossError: an image (14 bytes): image file is truncated (1 bytes not ...
    """
    Image = pillow()
    _check(channels, size, method)
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith(_DEEP):
                raise UnsupportedError(
                    f"{source}: an image of mode {image.mode}: only 8 bits a channel are read"
                )
            transparent = image.mode == "P" and "transparency" in image.info
            wanted = channels or (4 if transparent else _CHANNELS.get(image.mode, 3))
            made = image.convert(_MODES[wanted])
    except Image.DecompressionBombError as error:
        raise InvalidArgumentError(
            f"{source}: {error}", hint="PIL.Image.MAX_IMAGE_PIXELS is the limit"
        ) from error
    except Image.UnidentifiedImageError as error:
        raise DataLossError(f"{source} ({len(data)} bytes): no kind that Pillow knows") from error
    # what Pillow's decoders raise for damaged files is not documented further than this
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError) as error:
        raise DataLossError(f"{source} ({len(data)} bytes): {error}") from error
    return _pixels(_resized(Image, made, size, method))


def decode_sized(data: bytes, height: int, width: int, channels: int) -> Array:
    """`decode_image` of the channels wanted (0: as it is). InvalidArgumentError if it is not of
    that height and width (-1: any)."""
    made = decode_image(data, channels or None)
    wanted = (height, width)
    if any(n not in (-1, found) for n, found in zip(wanted, made.shape, strict=False)):
        raise InvalidArgumentError(
            f"an image is {made.shape[0]} x {made.shape[1]}, {height} x {width} is wanted"
        )
    return made


def resize_image(image: Any, size: tuple[int, int], method: str = "bilinear") -> Array:
    """u8[h, w, c] (1 to 4 channels) or u8[h, w] resized to (height, width), u8 of the same rank.

    method: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming", as Pillow has them
    (filters that widen when they shrink, so without aliasing; colours are weighted by their
    alpha).

    >>> image = np.uint8([[0, 0, 100, 100], [0, 0, 100, 100]])
    >>> wf.data.resize_image(image, (1, 2), method="box")
    array([[  0, 100]], dtype=uint8)
    >>> wf.data.resize_image(np.zeros((32, 32, 3), np.uint8), (8, 16)).shape
    (8, 16, 3)
    """
    Image = pillow()
    _check(None, size, method)
    pixels = np.asarray(image)
    flat = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (flat or (pixels.ndim == 3 and pixels.shape[2] in _MODES)):
        raise InvalidArgumentError(
            f"resize_image takes uint8 of [h, w] or [h, w, 1 to 4], not {pixels.dtype} of "
            f"{list(pixels.shape)}"
        )
    one = pixels.ndim == 3 and pixels.shape[2] == 1
    given = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if one else pixels))
    made = np.array(_resized(Image, given, size, method))
    return made[..., None] if one else made


def _check(channels: int | None, size: Sequence[int] | None, method: str) -> None:
    if channels is not None and channels not in _MODES:
        raise InvalidArgumentError(f"channels={channels!r} is none of 1, 2, 3, 4, None")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise InvalidArgumentError(f"size={size!r} is no (height, width)")
    if method not in _FILTERS:
        raise InvalidArgumentError(f"method={method!r} is none of {', '.join(_FILTERS)}")


def _resized(Image: Any, image: Any, size: tuple[int, int] | None, method: str) -> Any:
    if size is None or (image.height, image.width) == tuple(size):
        return image
    return image.resize((int(size[1]), int(size[0])), Image.Resampling[method.upper()])


def _pixels(image: Any) -> Array:
    pixels = np.array(image)  # a copy: Pillow's own is read-only and in rows of its own
    return pixels[..., None] if pixels.ndim == 2 else pixels
