"""Ops on strings (arbitrary bytes), with TensorFlow's meanings, and its hash functions.

No step is compiled with them: the host carries them out by their references.

Hashes are the same on all machines, bit for bit those of TensorFlow: `murmur64` is Hash64 of
tensorflow/core/lib/hash/hash.cc (MurmurHash64A, A. Appleby); `fingerprint64` is Fingerprint64 of
github.com/google/farmhash (farmhashna::Hash64, G. Pike)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, bfloat16, bool_, float32, float64, int32, int64, string
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import fill_sizes
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    InferRule,
    OpSpec,
    as_bytes,
    dtype_attr,
    elementwise_shape,
    int_attr,
    shape_attr,
    tensors,
)
from weft.ir.types import TensorType, Type

#: The ops on strings that have native kernels besides their references (`runtime/dynamic/`).
BY_KERNELS = frozenset(
    {
        "string_to_hash_bucket",
        "string_to_hash_bucket_fast",
        "string_to_hash_bucket_strong",
        "string_to_number",
        "decode_raw",
        "string_split",
        "string_split_rows",
        "substr",
        "string_length",
        "string_join",
        "string_case",
    }
)
#: Those of them whose references are quick: a function of CPython's for each string.
QUICK = frozenset({"string_split_rows", "string_length", "string_join", "string_case"})
_M = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 0xDECAFCAFFE
_MURMUR = 0xC6A4A7935BD1E995


def murmur64(s: bytes) -> int:
    """MurmurHash64A with TensorFlow's seed, as `string_to_hash_bucket` uses it."""
    h = (_SEED ^ len(s) * _MURMUR) & _M
    whole = len(s) & ~7
    for at in range(0, whole, 8):
        k = int.from_bytes(s[at : at + 8], "little") * _MURMUR & _M
        k = (k ^ k >> 47) * _MURMUR & _M
        h = (h ^ k) * _MURMUR & _M
    if whole < len(s):
        h = (h ^ int.from_bytes(s[whole:], "little")) * _MURMUR & _M
    h = (h ^ h >> 47) * _MURMUR & _M
    return h ^ h >> 47


def fingerprint64(s: bytes) -> int:
    """FarmHash's Fingerprint64, as `string_to_hash_bucket_fast` uses it."""
    n = len(s)
    if n <= 16:
        return _to_16(s)
    if n <= 32:
        return _to_32(s)
    return _to_64(s) if n <= 64 else _long(s)


def _word(s: bytes, at: int) -> int:
    return int.from_bytes(s[at : at + 8], "little")


def _rotated(x: int, by: int) -> int:
    x &= _M
    return (x >> by | x << 64 - by) & _M


def _folded(x: int) -> int:
    x &= _M
    return x ^ x >> 47


def _mixed(u: int, v: int, multiplier: int) -> int:
    a = _folded((u ^ v) * multiplier)
    b = _folded((v ^ a) * multiplier)
    return b * multiplier & _M


def _to_16(s: bytes) -> int:
    n = len(s)
    if n >= 8:
        multiplier = _K2 + n * 2
        a, b = (_word(s, 0) + _K2) & _M, _word(s, n - 8)
        c = (_rotated(b, 37) * multiplier + a) & _M
        d = (_rotated(a, 25) + b) * multiplier & _M
        return _mixed(c, d, multiplier)
    if n >= 4:
        a = int.from_bytes(s[:4], "little")
        return _mixed(n + (a << 3), int.from_bytes(s[-4:], "little"), _K2 + n * 2)
    if n:
        y, z = s[0] + (s[n >> 1] << 8), n + (s[-1] << 2)
        return _folded(y * _K2 ^ z * _K0) * _K2 & _M
    return _K2


def _to_32(s: bytes) -> int:
    n = len(s)
    multiplier = _K2 + n * 2
    a, b = _word(s, 0) * _K1 & _M, _word(s, 8)
    c, d = _word(s, n - 8) * multiplier & _M, _word(s, n - 16) * _K2 & _M
    return _mixed(
        (_rotated(a + b, 43) + _rotated(c, 30) + d) & _M,
        (a + _rotated(b + _K2, 18) + c) & _M,
        multiplier,
    )


def _to_64(s: bytes) -> int:
    n = len(s)
    multiplier = _K2 + n * 2
    a, b = _word(s, 0) * _K2 & _M, _word(s, 8)
    c, d = _word(s, n - 8) * multiplier & _M, _word(s, n - 16) * _K2 & _M
    y = (_rotated(a + b, 43) + _rotated(c, 30) + d) & _M
    z = _mixed(y, (a + _rotated(b + _K2, 18) + c) & _M, multiplier)
    e, f = _word(s, 16) * multiplier & _M, _word(s, 24)
    g, h = (y + _word(s, n - 32)) * multiplier & _M, (z + _word(s, n - 24)) * multiplier & _M
    return _mixed(
        (_rotated(e + f, 43) + _rotated(g, 30) + h) & _M,
        (e + _rotated(f + a, 18) + g) & _M,
        multiplier,
    )


def _weak(s: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """WeakHashLen32WithSeeds of 32 bytes."""
    w, x, y, z = (_word(s, at + 8 * i) for i in range(4))
    a = (a + w) & _M
    b = _rotated(b + a + z, 21)
    c = a
    a = (a + x + y) & _M
    return (a + z) & _M, (b + _rotated(a, 44) + c) & _M


def _long(s: bytes) -> int:
    n, seed = len(s), 81
    x, y = seed, (seed * _K1 + 113) & _M
    z = _folded(y * _K2 + 113) * _K2 & _M
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _word(s, 0)) & _M
    last = (n - 1) // 64 * 64
    end = n - 64
    for at in range(0, last, 64):
        x = _rotated(x + y + v[0] + _word(s, at + 8), 37) * _K1 & _M
        y = _rotated(y + v[1] + _word(s, at + 48), 42) * _K1 & _M
        x ^= w[1]
        y = (y + v[0] + _word(s, at + 40)) & _M
        z = _rotated(z + w[0], 33) * _K1 & _M
        v = _weak(s, at, v[1] * _K1 & _M, (x + w[0]) & _M)
        w = _weak(s, at + 32, (z + w[1]) & _M, (y + _word(s, at + 16)) & _M)
        z, x = x, z
    multiplier = (_K1 + ((z & 0xFF) << 1)) & _M
    w = ((w[0] + (n - 1 & 63)) & _M, w[1])
    v = ((v[0] + w[0]) & _M, v[1])
    w = ((w[0] + v[0]) & _M, w[1])
    x = _rotated(x + y + v[0] + _word(s, end + 8), 37) * multiplier & _M
    y = _rotated(y + v[1] + _word(s, end + 48), 42) * multiplier & _M
    x ^= w[1] * 9 & _M
    y = (y + v[0] * 9 + _word(s, end + 40)) & _M
    z = _rotated(z + w[0], 33) * multiplier & _M
    v = _weak(s, end, v[1] * multiplier & _M, (x + w[0]) & _M)
    w = _weak(s, end + 32, (z + w[1]) & _M, (y + _word(s, end + 16)) & _M)
    z, x = x, z
    return _mixed(
        (_mixed(v[0], w[0], multiplier) + _folded(y) * _K0 + z) & _M,
        (_mixed(v[1], w[1], multiplier) + x) & _M,
        multiplier,
    )


def strings_operands(op: str, types: Sequence[Type]) -> list[TensorType]:
    """The operand types, all of which must be strings. Raises TypeRuleError."""
    found = tensors(op, types)
    for t in found:
        if t.dtype is not string:
            raise TypeRuleError(
                f"op '{op}' takes strings, got {t}",
                hint="wf.tf1.as_string makes strings of numbers",
            )
    return found


def mapped(x: Array, dtype: DType, f: Callable[[bytes], Any]) -> Array:
    """What `f` makes of each string."""
    out = np.empty(x.size, dtype.numpy)
    out[:] = [f(text) for text in x.flat]
    return out.reshape(x.shape)


# ------------------------------------------------------------------------------------------ joining
def _join_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    found = strings_operands("string_join", types)
    if not found:
        raise TypeRuleError("op 'string_join' needs an operand")
    return [TensorType(string, elementwise_shape("string_join", found))]


def _join(xs: Sequence[Array], attrs: Attrs) -> Array:
    separator = as_bytes(str(attrs["separator"]))
    out = np.empty(xs[0].shape, object)
    for i, parts in enumerate(zip(*(x.flat for x in xs), strict=True)):
        out.flat[i] = separator.join(parts)
    return out


# -------------------------------------------------------------------------------- numbers and text
def _as_string_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("as_string", types)
    if x.dtype is string:
        raise TypeRuleError("op 'as_string' takes numbers or bools, got strings")
    if str(attrs["fill"]) not in ("", "0", " ", "+", "-"):
        raise InvalidArgumentError(
            f"op 'as_string': fill={attrs['fill']!r} is none of '', '0', ' ', '+', '-'"
        )
    if attrs["scientific"] and attrs["shortest"]:
        raise InvalidArgumentError("op 'as_string': scientific and shortest exclude each other")
    return [TensorType(string, x.shape)]


def _as_string(xs: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = xs
    width, precision = int_attr(attrs, "width"), int_attr(attrs, "precision")
    start = f"%{attrs['fill']}{width if width >= 0 else ''}"
    kind = "e" if attrs["scientific"] else "g" if attrs["shortest"] else "f"
    digits = f".{precision}" if precision >= 0 else ""

    def text(value: Any) -> bytes:
        if isinstance(value, bool):
            made = str(value).lower()
        elif isinstance(value, int):
            made = f"{start}d" % value
        elif isinstance(value, complex):
            part = f"{start}{digits}{kind}"
            made = f"({part},{part})" % (value.real, value.imag)
        else:
            made = f"{start}{digits}{kind}" % value
        return made.encode()

    out = np.empty(x.shape, object)
    for i, value in enumerate(x.flat):
        plain: Any = value.item() if hasattr(value, "item") else value
        # a bfloat16 has no Python number of its own
        known = isinstance(plain, (bool, int, float, complex))
        out.flat[i] = text(plain if known else float(plain))
    return out


def _to_number_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = strings_operands("string_to_number", types)
    dtype = dtype_attr(attrs, "dtype")
    if dtype not in (float32, float64, int32, int64):
        raise TypeRuleError(
            f"op 'string_to_number' does not give {dtype.name}",
            hint="it gives float32, float64, int32 or int64",
        )
    return [TensorType(dtype, x.shape)]


def number_of(text: bytes, dtype: DType) -> Any:
    """The number that a text stands for. InvalidArgumentError if it stands for none."""
    try:
        if b"_" in text:  # Python's own way of writing numbers
            raise ValueError
        value = int(text) if dtype.is_integer else float(text)
        with np.errstate(over="ignore"):
            return np.array(value, dtype.numpy)[()]
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"{text!r:.80} is no {dtype.name}") from None


def _to_number(xs: Sequence[Array], attrs: Attrs) -> Array:
    dtype = dtype_attr(attrs, "dtype")
    return mapped(xs[0], dtype, lambda text: number_of(text, dtype))


# ------------------------------------------------------------------------------------ hashes, parts
def check_buckets(op: str, attrs: Attrs) -> None:
    """InvalidArgumentError if `num_buckets` is not from 1 on, or no int64, as the buckets are."""
    if int_attr(attrs, "num_buckets") < 1:
        raise InvalidArgumentError(f"op '{op}': num_buckets must be at least 1")
    if int_attr(attrs, "num_buckets") >= 1 << 63:
        raise InvalidArgumentError(f"op '{op}': num_buckets must be less than 2**63")


def _bucket_type(op: str) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        (x,) = strings_operands(op, types)
        check_buckets(op, attrs)
        return [TensorType(int64, x.shape)]

    return rule


def _buckets(hashed: Callable[[bytes], int]) -> Callable[[Sequence[Array], Attrs], Array]:
    def reference(xs: Sequence[Array], attrs: Attrs) -> Array:
        count = int_attr(attrs, "num_buckets")
        return mapped(xs[0], int64, lambda text: hashed(text) % count)

    return reference


def _length_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = strings_operands("string_length", types)
    return [TensorType(int32, x.shape)]


def _length(xs: Sequence[Array], attrs: Attrs) -> Array:
    return mapped(xs[0], int32, len)


def substr_type(op: str) -> InferRule:
    """The rule of an op that takes strings, positions and lengths."""

    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        x, *places = tensors(op, types)
        strings_operands(op, [x])
        for t in places:
            if t.dtype not in (int32, int64):
                raise TypeRuleError(f"op '{op}': positions and lengths are int32 or int64, got {t}")
        return [TensorType(string, elementwise_shape(op, [x, *places]))]

    return rule


def _substr(xs: Sequence[Array], attrs: Attrs) -> Array:
    text, places, lengths = xs
    out = np.empty(text.shape, object)
    for i, (s, at, n) in enumerate(zip(text.flat, places.flat, lengths.flat, strict=True)):
        start = int(at) + (len(s) if at < 0 else 0)
        if not 0 <= start <= len(s):
            raise InvalidArgumentError(f"position {at} is not in {s!r:.60} of {len(s)} bytes")
        out.flat[i] = s[start : start + max(int(n), 0)]
    return out


# ----------------------------------------------------------------------------------------- decoding
def _decode_raw_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = strings_operands("decode_raw", types)
    dtype = dtype_attr(attrs, "out_type")
    if dtype is string:
        raise TypeRuleError("op 'decode_raw' gives numbers, not strings")
    shape = shape_attr(attrs, "shape")
    if sum(d is None for d in shape) > 1:
        raise ShapeError("op 'decode_raw': at most one size may be open")
    return fill_sizes("decode_raw", [TensorType(dtype, (*x.shape, *shape))], attrs)


def _decode_raw(xs: Sequence[Array], attrs: Attrs) -> Array:
    (x,), dtype = xs, dtype_attr(attrs, "out_type")
    given = shape_attr(attrs, "shape")
    rest = dtype.itemsize * math.prod(d for d in given if isinstance(d, int))
    first = len(x.flat[0]) if x.size else 0  # decides what is open
    shape = [d if isinstance(d, int) else first // rest if rest else 0 for d in given]
    size = dtype.itemsize * math.prod(shape)
    if shape != list(given) and rest and first % rest:
        raise InvalidArgumentError(
            f"string 0 has {first} bytes, which is no multiple of {rest} "
            f"({rest // dtype.itemsize} of {dtype.name})"
        )
    out = np.empty((x.size, *shape), dtype.numpy)
    for i, text in enumerate(x.flat):
        if len(text) != size:
            raise InvalidArgumentError(
                f"string {i} has {len(text)} bytes, a value of {dtype.name}{shape} has {size}"
            )
        out[i] = _numbers(text, dtype, bool(attrs["little_endian"])).reshape(shape)
    return out.reshape(x.shape + tuple(shape))


def _numbers(text: bytes, dtype: DType, little_endian: bool) -> Array:
    if dtype is bool_:
        return np.asarray(np.frombuffer(text, np.uint8) != 0)
    word = np.dtype(np.uint16) if dtype is bfloat16 else dtype.numpy  # none of NumPy's own
    read = np.frombuffer(text, word.newbyteorder("<" if little_endian else ">"))
    made: Array = read.astype(word).view(dtype.numpy)
    return made


# ---------------------------------------------------------------------------------------- splitting
def _split_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = strings_operands("string_split", types)
    if x.rank != 1:
        raise ShapeError(f"op 'string_split' takes strings with one axis, got {x}")
    (values,) = fill_sizes("string_split", [TensorType(string, (None,))], attrs)
    assert isinstance(values, TensorType)
    return [TensorType(int64, (*values.shape, 2)), values, TensorType(int64, (2,))]


def _split(xs: Sequence[Array], attrs: Attrs) -> list[Array]:
    delimiters, skip = as_bytes(str(attrs["delimiter"])), bool(attrs["skip_empty"])
    rows = [_words(text, delimiters, skip) for text in xs[0]]
    words = [word for row in rows for word in row]
    values = np.empty(len(words), object)
    values[:] = words
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    shape = np.array([len(rows), max(map(len, rows), default=0)], np.int64)
    return [np.array(places, np.int64).reshape(-1, 2), values, shape]


def _words(text: bytes, delimiters: bytes, skip_empty: bool) -> list[bytes]:
    if not text:
        return []
    if not delimiters:
        return [text[i : i + 1] for i in range(len(text))]
    first, others = delimiters[:1], delimiters[1:]
    for i in range(len(others)):  # each of its bytes ends a word
        text = text.replace(others[i : i + 1], first)
    found = text.split(first)
    return [word for word in found if word] if skip_empty else found


TABLE = (
    OpSpec(
        "string_join", None, _join_type, _join,
        "The strings of the operands one after the other, with a separator in between.",
        {"separator": AttrSpec("str", "")},
    ),
    OpSpec(
        "as_string", 1, _as_string_type, _as_string,
        "Numbers as text, as C's printf writes them.",
        {
            "precision": AttrSpec("int", -1), "scientific": AttrSpec("bool", False),
            "shortest": AttrSpec("bool", False), "width": AttrSpec("int", -1),
            "fill": AttrSpec("str", ""),
        },
    ),
    OpSpec(
        "string_to_number", 1, _to_number_type, _to_number,
        "The numbers that the strings stand for.", {"dtype": AttrSpec("dtype")},
    ),
    OpSpec(
        "string_to_hash_bucket", 1, _bucket_type("string_to_hash_bucket"), _buckets(murmur64),
        "A hash of each string modulo `num_buckets` (MurmurHash64A with TensorFlow's seed).",
        {"num_buckets": AttrSpec("int")},
    ),
    OpSpec(
        "string_to_hash_bucket_fast", 1, _bucket_type("string_to_hash_bucket_fast"),
        _buckets(fingerprint64),
        "A hash of each string modulo `num_buckets` (FarmHash's Fingerprint64).",
        {"num_buckets": AttrSpec("int")},
    ),
    OpSpec(
        "string_split", 1, _split_type, _split,
        "The words between the bytes `delimiter`: (row, number) of each, the words, and how many "
        "rows and words in a row there are.",
        {
            "delimiter": AttrSpec("str", " "), "skip_empty": AttrSpec("bool", True),
            "sizes": AttrSpec("strs", ()),
        },
    ),
    OpSpec("string_length", 1, _length_type, _length, "How many bytes each string has."),
    OpSpec(
        "substr", 3, substr_type("substr"), _substr,
        "The bytes of each string from a position on, as many as there are up to a length.",
    ),
    OpSpec(
        "decode_raw", 1, _decode_raw_type, _decode_raw,
        "The bytes of each string as numbers, of the shape `shape` for each string.",
        {
            "out_type": AttrSpec("dtype"), "shape": AttrSpec("shape"),
            "little_endian": AttrSpec("bool", True), "sizes": AttrSpec("strs", ()),
        },
    ),
)  # fmt: skip
