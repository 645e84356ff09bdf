"""Hashes of strings, numbers of text and of bytes, by kernels that read CPython's bytes objects.

They run without the GIL: an array of strings holds its objects, and nobody writes to bytes. What is
no object of exactly that type, and what the kernels leave ("odd"), the references do."""

from __future__ import annotations

import ctypes
import math
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from weft.codegen.dynamic import parsing, text_hash
from weft.codegen.dynamic.kernels import powers_of_ten
from weft.ir.dtypes import DType, as_dtype, bool_, float32, float64, int32, int64, string
from weft.ir.errors import InvalidArgumentError
from weft.ir.ops.strings import number_of
from weft.ir.spec import Array, Attrs, ints_attr
from weft.runtime.dynamic.calls import CHUNK, behaved, chunks_of, per_chunk, run_kernel
from weft.runtime.dynamic.new_strings import put_strings
from weft.runtime.files.decoding import csv_field
from weft.runtime.native.ahead import address

#: Strings of a chunk.
STRINGS = CHUNK >> 4
_NO_BYTE = 256
#: Of CSV records: the kernel has a word for each field up to the last one that is wanted.
_MOST_FIELDS = 1 << 16
_KINDS = {
    int32: parsing.TO_I32, int64: parsing.TO_I64, float32: parsing.TO_F32, float64: parsing.TO_F64,
    string: parsing.TO_TEXT,
}  # fmt: skip


@cache
def _laid_out() -> bool:
    """Whether bytes objects lie as the kernels read them: in a CPython with a GIL, on 64 bits."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe = b"weft"
    words = np.frombuffer(ctypes.string_at(id(probe), text_hash.BYTES_DATA + 4), np.uint8)
    kind, size = words[8:24].view(np.int64).tolist()
    return sys.maxsize == 2**63 - 1 and (kind, size, bytes(words[-4:])) == (id(bytes), 4, probe)


@cache
def _powers() -> Array:
    return powers_of_ten()


def may_be_read(x: Array) -> bool:
    """Whether the kernels may read those elements that are bytes objects."""
    return x.dtype.hasobject and behaved(x) and _laid_out()


def are_bytes(x: Array) -> bool:
    """Whether all elements are bytes objects, and the kernels may read them."""
    return may_be_read(x) and not per_chunk("check_bytes", (), x, id(bytes)).any()


def hash_buckets(kind: int) -> Callable[[Sequence[Array], Attrs], list[Array] | None]:
    """Of a kind of hash what gives each string's, modulo `num_buckets`."""

    def run(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
        (x,), count = arrays, attrs["num_buckets"]
        if not isinstance(count, int) or not 0 < count < 2**63 or not are_bytes(x):
            return None
        out = np.empty(x.shape, np.int64)
        keys = ints_attr(attrs, "key") if kind == text_hash.SIP else (0, 0)
        given = (address(x), x.size, STRINGS, address(out), count, *keys)
        run_kernel("hash_strings", (("HASH", kind),), given, chunks_of(x.size, STRINGS))
        return [out]

    return run


def numbers_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The number that each text stands for."""
    (x,), dtype = arrays, attrs["dtype"]
    if not isinstance(dtype, DType) or dtype not in _KINDS or dtype is string or not are_bytes(x):
        return None
    out, odd = np.empty(x.shape, dtype.numpy), np.empty(x.shape, np.uint8)
    powers = _powers()
    given = (
        address(x), x.size, STRINGS, address(out), _KINDS[dtype], address(powers), address(odd),
    )  # fmt: skip
    run_kernel("parse_strings", (), given, chunks_of(x.size, STRINGS))
    for i in np.flatnonzero(odd).tolist():
        try:
            out.flat[i] = number_of(x.flat[i], dtype)
        except InvalidArgumentError:
            return None
    return [out]


def raw_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    """The bytes of each string as numbers, of the shape `shape` for each string."""
    (x,), dtype, sizes = arrays, attrs["out_type"], attrs["shape"]
    if not isinstance(dtype, DType) or not isinstance(sizes, tuple) or not are_bytes(x):
        return None
    if dtype is string or not x.size:
        return None
    rest = dtype.itemsize * math.prod(d for d in sizes if isinstance(d, int))
    first = len(x.flat[0])
    if not rest or (len(sizes) != sum(isinstance(d, int) for d in sizes) and first % rest):
        return None
    shape = [d if isinstance(d, int) else first // rest for d in sizes]
    size = dtype.itemsize * math.prod(shape)
    if per_chunk("check_lengths", (), x, size, chunk=STRINGS).any():
        return None
    out = np.empty((*x.shape, *shape), dtype.numpy)
    swap = 1
    if bool(attrs["little_endian"]) != (sys.byteorder == "little"):
        swap = dtype.itemsize // (2 if dtype.numpy.kind == "c" else 1)
    constants = (("SWAP", swap), ("IS_BOOL", int(dtype is bool_)))
    given = (address(x), x.size, STRINGS, address(out), size)
    run_kernel("fill_raw", constants, given, chunks_of(x.size, STRINGS))
    return [out]


# ---------------------------------------------------------------------------------------------- CSV
def csv_columns(
    records: Array, defaults: Sequence[Array], delimiter: str, quote: str, na_value: str,
    columns: Sequence[int],
) -> list[Array] | None:  # fmt: skip
    """As `decode_csv` of runtime/files/decoding.py. Numbers are parsed without the GIL; fields of
    text become objects after that."""
    between, mark, na = (text.encode() for text in (delimiter, quote, na_value))
    chosen = list(columns) or list(range(len(defaults)))
    if len(between) != 1 or len(mark) > 1 or between == mark or (mark and mark in na):
        return None
    if len(set(chosen)) != len(chosen) or not chosen or not are_bytes(records):
        return None
    if min(chosen) < 0 or max(chosen) > _MOST_FIELDS:
        return None
    kinds = [_KINDS.get(as_dtype(d.dtype)) for d in defaults]
    if None in kinds or not all(map(behaved, defaults)):
        return None
    if not all(are_bytes(d) for d in defaults if d.dtype.hasobject and d.size):
        return None
    made = [_Column(records, kind, d) for kind, d in zip(kinds, defaults, strict=True)]
    fields = np.full(max(chosen) + 1, -1, np.int64)
    fields[chosen] = np.arange(len(chosen))
    rows = np.array([column.words() for column in made], np.int64)
    powers = _powers()
    given = (
        between[0], mark[0] if mark else _NO_BYTE, id(na) + text_hash.BYTES_DATA, len(na),
        address(fields), len(fields), address(rows), int(not columns), address(powers),
    )  # fmt: skip
    if per_chunk("parse_csv", (), records, *given, chunk=STRINGS).any():
        return None
    try:
        return [
            column.finished(partial(csv_field, records, at, delimiter, quote))
            for column, at in zip(made, chosen, strict=True)
        ]
    except InvalidArgumentError:
        return None


class _Column:
    """A column while it is parsed: of numbers the array, of text where each field lies."""

    def __init__(self, records: Array, kind: int | None, default: Array) -> None:
        assert kind is not None
        self._records, self._kind, self._default = records, kind, default
        self._odd = np.zeros(records.shape, np.uint8)
        if kind == parsing.TO_TEXT:
            self._out: Array = np.empty((records.size, 2), np.int64)
        else:
            self._out = np.empty(records.shape, default.dtype)

    def words(self) -> tuple[int, int, int, int]:
        """Its row for the kernel."""
        default = address(self._default) if self._default.size else 0
        return self._kind, address(self._out), default, address(self._odd)

    def finished(self, field: Callable[[int], bytes]) -> Array:
        """The column; field: of the number of a record its field. InvalidArgumentError for a field
        that is none."""
        if self._kind != parsing.TO_TEXT:
            dtype = as_dtype(self._out.dtype)
            for i in np.flatnonzero(self._odd).tolist():
                self._out.flat[i] = number_of(field(i), dtype)
            return self._out
        made: Array = np.empty(self._records.shape, object)
        put_strings(self._out, made)
        for i in np.flatnonzero(self._out[:, 0] == 0).tolist():
            made.flat[i] = field(i)
        return made
