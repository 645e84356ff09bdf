"""Summaries, TensorBoard's records of values, as serialized protobuf messages: scalars, histograms,
images, texts, hyperparameters.

From tensorflow/core/framework/{summary,tensor,tensor_shape}.proto and TensorBoard's plug-ins:

    Summary         { repeated Value value = 1; }
    Value           { tag = 1; float simple_value = 2; TensorProto tensor = 8; metadata = 9; }
    SummaryMetadata { PluginData plugin_data = 1; string summary_description = 3; data_class = 4; }
    PluginData      { string plugin_name = 1; bytes content = 2; }
    TensorProto     { dtype = 1; shape = 2; tensor_content = 4; float_val = 5; string_val = 8; }

A Summary is a list of values, so the bytes of two of them one after the other are the Summary of
all their values: that is how they are merged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import TypeRuleError
from weft.runtime.files.wire import double, integer, message, single, text

Array = np.ndarray[Any, Any]
#: What a plug-in's data are, by which TensorBoard chooses how to store them.
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3
_DOUBLE, _FLOAT, _STRING = 2, 1, 7  # DataType, of tensors
#: Image formats of PNG by the number of channels: grey, RGB, RGBA.
_COLOURS = {1: 0, 3: 2, 4: 6}
#: How pixels that are NaN are drawn, as TensorFlow 1 does: red.
_BAD = np.array([255, 0, 0, 255], np.uint8)


# ------------------------------------------------------------------------------------------- values
def encode(kind: str, tag: str, value: Array, limit: int) -> bytes:
    """The summary of a value: the op `summary`, whose type rule says what each kind takes."""
    if kind == "scalar":
        return scalar(tag, float(value))
    if kind == "histogram":
        return histogram(tag, value, limit)
    return image(tag, value, limit) if kind == "image" else written(tag, value)


def scalar(tag: str, value: float) -> bytes:
    """A number, which TensorBoard keeps as float32; NaN and infinities too."""
    return _value(tag, single(2, value) + _metadata("scalars", _SCALAR))


def histogram(tag: str, values: Array, buckets: int) -> bytes:
    """How many of the values lie in each of `buckets` equal parts between the least and the largest
    of the finite ones. If some are NaN or infinite, a scalar `<tag>/not_finite` says how many."""
    given = values.astype(np.float64).reshape(-1)
    finite = given[np.isfinite(given)]
    rows = _bucketed(finite, buckets)
    content = _tensor(_DOUBLE, rows.shape, message(4, rows.astype("<f8").tobytes()))
    made = _value(tag, content + _metadata("histograms", _TENSOR))
    if finite.size < given.size:
        made += scalar(f"{tag}/not_finite", given.size - finite.size)
    return made


def _bucketed(values: Array, buckets: int) -> Array:
    """f64[buckets, 3] of left edge, right edge and count. Where all values are alike they are in
    the last bucket, and of none all counts are 0, as in TensorFlow 2."""
    rows = np.zeros((buckets, 3))
    if not values.size:
        return rows
    low, high = values.min(), values.max()
    if low == high:
        rows[:, :2], rows[-1, 2] = low, values.size
        return rows
    half = 0.5 if abs(high / 2 - low / 2) > np.finfo(np.float64).max / 2 else 1.0  # no overflow
    # as np.histogram, which refuses ranges of fewer numbers than buckets
    edges = np.linspace(low * half, high * half, buckets + 1)
    places = np.searchsorted(edges, values * half, side="right") - 1
    counts = np.bincount(np.minimum(places, buckets - 1), minlength=buckets)
    rows[:, 0], rows[:, 1], rows[:, 2] = edges[:-1] / half, edges[1:] / half, counts
    return rows


def image(tag: str, pixels: Array, limit: int) -> bytes:
    """The first `limit` of images [n, height, width, channels] as PNG files; one image may be
    [height, width, channels] or [height, width]. Floats are from 0 to 1, and cut off there."""
    given = pixels[..., None] if pixels.ndim == 2 else pixels
    shown = (given[None] if given.ndim == 3 else given)[:limit]
    height, width = shown.shape[1:3]
    files = [str(width).encode(), str(height).encode(), *map(png, map(_bytes_of, shown))]
    return _value(tag, _strings((len(files),), files) + _metadata("images", _BLOBS))


def _bytes_of(pixels: Array) -> Array:
    """One image as u8[height, width, channels]."""
    if pixels.dtype == np.uint8:
        return pixels
    numbers = pixels.astype(np.float32)
    bad = np.asarray(np.isnan(numbers).any(axis=2))
    numbers = np.clip(np.where(bad[..., None], 0, numbers), 0, 1)
    made = np.asarray(np.rint(numbers * 255), np.uint8)
    if bad.any():
        made = np.repeat(made, 3, axis=2) if made.shape[2] == 1 else made
        made[bad] = _BAD[: made.shape[2]]
    return made


def png(pixels: Array) -> bytes:
    """u8[height, width, 1, 3 or 4] as a PNG file (ISO/IEC 15948), rows without filters."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, width * channels + 1), np.uint8)  # each begins with its filter, none
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def written(tag: str, words: Array) -> bytes:
    """Text, which TensorBoard reads as Markdown; with one or two axes a table."""
    strings = _strings(words.shape, words.reshape(-1).tolist())
    return _value(tag, strings + _metadata("text", _TENSOR))


# ---------------------------------------------------------------------------------- hyperparameters
_SUCCESS, _FAILURE = 1, 2
#: TensorBoard's plug-in takes a record of its own only with a tensor, which says nothing.
_NULL = message(8, integer(1, _FLOAT) + message(2, message(2, integer(1, 1))) + single(5, 0.0))


def hparams(values: Mapping[str, bool | int | float | str], seconds: float) -> bytes:
    """The hyperparameters of a run that began at `seconds`: SessionStartInfo of
    tensorboard/plugins/hparams/api.proto. TypeRuleError for what is no bool, number or string."""
    for name in values:
        if not isinstance(name, str):
            raise TypeRuleError(f"the name of a hyperparameter is a str, got {name!r:.60}")
    fields = [message(1, text(1, name) + message(2, _plain(name, v))) for name, v in values.items()]
    start = b"".join(fields) + double(5, seconds)
    return _hparams_record("session_start_info", message(3, start))


def hparams_end(seconds: float, failed: bool) -> bytes:
    """The end of the run: SessionEndInfo."""
    end = integer(1, _FAILURE if failed else _SUCCESS) + double(2, seconds)
    return _hparams_record("session_end_info", message(4, end))


def _hparams_record(name: str, content: bytes) -> bytes:
    return _value(f"_hparams_/{name}", _NULL + _metadata("hparams", _TENSOR, content))


def _plain(name: str, value: object) -> bytes:
    """google.protobuf.Value."""
    if isinstance(value, bool | np.bool_):
        return integer(4, bool(value))
    if isinstance(value, int | float | np.integer | np.floating):
        return double(2, float(value))
    if isinstance(value, str):
        return text(3, value)
    raise TypeRuleError(
        f"the hyperparameter '{name}' is a {type(value).__name__}: {value!r:.60}",
        hint="give a bool, a number or a string",
    )


# ---------------------------------------------------------------------------------------- messages
def _value(tag: str, fields: bytes) -> bytes:
    """A Summary of one value."""
    return message(1, text(1, tag) + fields)


def _metadata(plugin: str, data_class: int, content: bytes = b"") -> bytes:
    data = text(1, plugin) + (message(2, content) if content else b"")
    return message(9, message(1, data) + integer(4, data_class))


def _tensor(dtype: int, shape: Sequence[int], content: bytes) -> bytes:
    return message(8, integer(1, dtype) + message(2, tensor_shape(shape)) + content)


def _strings(shape: Sequence[int], strings: Sequence[bytes]) -> bytes:
    return _tensor(_STRING, shape, b"".join(message(8, s) for s in strings))


def tensor_shape(shape: Sequence[int | None]) -> bytes:
    """TensorShapeProto; None: a size that is not known."""
    return b"".join(message(2, integer(1, -1 if n is None else n)) for n in shape)
