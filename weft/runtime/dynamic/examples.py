"""Features of serialized tf.train.Examples by kernels that run without the GIL, in two phases: one
finds the wanted features of each record, the other one writes their values.

Records that the first phase leaves ("odd"), among them all that are bad, `declared_features` of
runtime/files/decoding.py does, one after the other: errors are its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from weft.codegen.dynamic import examples as native
from weft.codegen.dynamic.text_hash import BYTES_DATA
from weft.ir.dtypes import float32, int64, string
from weft.ir.ops.strings import murmur64
from weft.ir.spec import Array
from weft.ir.types import TensorType
from weft.runtime.dynamic.calls import behaved, chunks_of, run_kernel, starts_of
from weft.runtime.dynamic.new_strings import put_strings
from weft.runtime.dynamic.strings import are_bytes, may_be_read
from weft.runtime.files.decoding import bytes_array, declared_features
from weft.runtime.native.ahead import address

_LISTS = {string: native.BYTES_LIST, float32: native.FLOAT_LIST, int64: native.INT64_LIST}
#: Records of a chunk: some microseconds of work.
_RECORDS = 1 << 5
_CELL, _ROW = native.CELL_BYTES // 8, native.WANTED_BYTES // 8
_DEFAULT, _OUT = native.W_DEFAULT // 8, native.W_OUT // 8


def example_features(
    serialized: Array, names: Sequence[str], types: Sequence[TensorType],
    defaults: Mapping[int, Array],
) -> list[Array] | None:  # fmt: skip
    """As `parse_examples` of runtime/files/decoding.py, whose errors it raises."""
    if sys.byteorder != "little" or not serialized.size or not may_be_read(serialized):
        return None
    wanted = wanted_rows(tuple(names), tuple(types))
    if wanted is None or not all(_is_plain(types[k], d) for k, d in defaults.items()):
        return None
    keys, slots, rows = wanted
    rows = rows.copy()
    given = {k: _as_places(d) if d.dtype.hasobject else d for k, d in defaults.items()}
    for k, default in given.items():
        rows[k, _DEFAULT] = address(default)
    size = serialized.size
    cells, odd = np.empty((size, len(rows), _CELL), np.int64), np.empty(size, np.uint8)
    chunks = chunks_of(size, _RECORDS)
    args = (
        address(serialized), size, _RECORDS, address(cells), address(rows), len(rows),
        address(keys), address(slots), len(slots), address(odd), id(bytes),
    )  # fmt: skip
    run_kernel("find_features", (), args, chunks)
    left = {
        i: declared_features(
            serialized.flat[i], names, types, defaults, i if serialized.ndim else None
        )
        for i in odd.nonzero()[0].tolist()
    }
    found = [
        _Feature(t, serialized.shape, cells[:, k, -1], {i: of[k] for i, of in left.items()})
        for k, t in enumerate(types)
    ]
    for row, feature in zip(rows, found, strict=True):
        row[_OUT:] = feature.words()
    filled = (size, _RECORDS, address(cells), address(rows), len(rows), address(odd))
    run_kernel("fill_features", (), filled, chunks)
    return [part for feature in found for part in feature.finished()]


@lru_cache(256)
def wanted_rows(
    names: tuple[str, ...], types: tuple[TensorType, ...]
) -> tuple[Array, Array, Array] | None:
    """The names as bytes; a hash table of their numbers (-1: none) by open addressing; their rows
    for the kernels. None if there is none, if two are the same, one is no Unicode, or of a type
    that no Example has."""
    try:
        keys = [name.encode() for name in names]
    except UnicodeEncodeError:
        return None
    if len({*keys}) != len(keys) or not keys or any(t.dtype not in _LISTS for t in types):
        return None
    slots = np.full(2 * len(keys) + 1, -1, np.int64)
    for k, key in enumerate(keys):
        at = murmur64(key) % len(slots)
        while slots[at] >= 0:
            at = (at + 1) % len(slots)
        slots[at] = k
    rows = np.zeros((len(keys), _ROW), np.int64)
    for row, t in zip(rows, types, strict=True):
        row[:2] = _LISTS[t.dtype], math.prod(t.static_shape) if t.is_static else -1
    return bytes_array(keys), slots, rows


def _is_plain(t: TensorType, default: Array) -> bool:
    """Whether kernels can copy the default of a feature."""
    if not behaved(default) or not t.is_static or default.shape != t.static_shape:
        return False
    return are_bytes(default) if t.dtype is string else default.dtype == t.dtype.numpy


def _as_places(texts: Array) -> Array:
    places = [(id(text) + BYTES_DATA, len(text)) for text in texts.flat]
    return np.array(places, np.int64).reshape(-1, 2)


class _Feature:
    """One wanted feature while values are written."""

    def __init__(
        self, t: TensorType, shape: tuple[int, ...], counts: Array, odd: Mapping[int, Array]
    ) -> None:
        """shape: of the records. counts: how many values each has. odd: those of the ones left."""
        self._shape, self._odd = shape, odd
        self._starts = self._indices = self._places = None
        if t.is_static:
            self._tail: tuple[int, ...] = t.static_shape
            self._out = np.empty((len(counts), *self._tail), t.dtype.numpy)
        else:
            lengths = np.maximum(counts, 0)
            for i, values in odd.items():
                lengths[i] = len(values)
            self._starts = starts_of(lengths)
            self._out = np.empty(int(self._starts[-1]), t.dtype.numpy)
            if shape:
                self._indices = np.empty((len(self._out), 2), np.int64)
        if t.dtype is string:
            self._places = np.zeros((self._out.size, 2), np.int64)

    def words(self) -> tuple[int, int, int]:
        """Its row for the kernel from `W_OUT` on."""
        out = self._out if self._places is None else self._places
        starts, indices = (0 if a is None else address(a) for a in (self._starts, self._indices))
        return address(out), starts, indices

    def finished(self) -> list[Array]:
        """Its results."""
        out, starts, indices = self._out, self._starts, self._indices
        if self._places is not None:
            put_strings(self._places, out)
        if starts is None:
            for i, values in self._odd.items():
                out[i, ...] = values
            return [out.reshape((*self._shape, *self._tail))]
        for i, values in self._odd.items():
            row = slice(int(starts[i]), int(starts[i + 1]))
            out[row] = values
            if indices is not None:
                indices[row, 0], indices[row, 1] = i, np.arange(len(values))
        if indices is None:
            return [out]
        shape = np.array([len(starts) - 1, np.diff(starts).max(initial=0)], np.int64)
        return [indices, out, shape]
