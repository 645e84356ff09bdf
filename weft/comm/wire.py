"""Wire format of a frame: a 48-byte header, meta data in msgpack, raw bytes. Nothing is unpickled.

    magic "WF" | version u8 | kind u8 | meta bytes u16 | lane u8 | flags u8
    source link u64 | destination incarnation u64 | step u64
    key u32 | sequence u32 | offset u64                                       little-endian

The source is a random number for each link that is made, told with the process's incarnation in its
first frame. The sequence counts the frames of one lane of a link from 0, so that a repeated frame
and a lost one are both seen. OFFER, GRANT and CANCEL have the number of a transfer as `offset`; a
CHUNK has it as `step`, and the place of its first byte as `offset` (bulk.py).

Everything is checked before anything is allocated: sizes against the frame and `Limits`, dtypes
against a fixed table, and the bytes of a tensor against its shape.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple
from zlib import crc32

import ml_dtypes
import msgpack
import numpy as np
import numpy.typing as npt

from weft.comm.errors import BadFrameError, MessageTooLargeError, UnsendableError

Array = npt.NDArray[Any]

MAGIC: Final = b"WF"
VERSION: Final = 1
HEADER: Final = struct.Struct("<2sBBHBBQQQIIQ")
#: The same, with magic, version and kind as one number, and lane and flags as one.
SHORT_HEADER: Final = struct.Struct("<IHHQQQIIQ")
#: Payloads up to this size travel in the header's frame: a second frame costs half a round trip
#: more (docs/internals/comm.md).
INLINE_BYTES: Final = 64 << 10
META_BYTES: Final = 60 << 10  # the most meta data of a frame
MAX_RANK: Final = 32
MAX_ITERATIONS: Final = 64

# Kinds of the transport's own frames; those of its user begin at USER.
HELLO, HELLO_ACK, BYE, PING, TENSOR, OFFER, GRANT, CHUNK, CANCEL, RELEASE = range(1, 11)
USER: Final = 128
MOST_USER: Final = 255 - USER
CTL, BULK = 0, 1  # lanes
ASKED, ECHO = 0, 1  # keys of a PING whose `offset` is its sender's time, and of its answer

# Flags of a frame.
DEAD_FLAG, BUFFERS_FLAG, CHECKSUM_FLAG, SHARED_FLAG = 1, 2, 4, 8

_NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
#: A dtype's number on the wire is its place here; 255 is strings (objects that are bytes).
DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(
    np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in _NAMES
)
#: Of the dtypes that have one.
CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
STRINGS: Final = 255
OBJECT: Final = np.dtype(object)

if sys.byteorder != "little":
    raise ImportError("weft.comm sends arrays as they lie in memory, and that is little-endian")


def word_of(kind: int) -> int:
    """The first number of a SHORT_HEADER."""
    return int.from_bytes(MAGIC + bytes([VERSION, kind]), "little")


class Header(NamedTuple):
    """The fields of a frame's header, in order."""

    magic: bytes
    version: int
    kind: int
    meta_bytes: int
    lane: int
    flags: int
    source: int
    destination: int
    step: int
    key: int
    sequence: int
    offset: int


def unpack_header(frame: bytes | memoryview | bytearray, size: int) -> Header:
    """The header of a frame of `size` bytes. BadFrameError where it cannot be one of ours."""
    if size < HEADER.size:
        raise BadFrameError("truncated header")
    fields = HEADER.unpack_from(frame)
    magic, version, _, meta_bytes, lane = fields[:5]
    if magic != MAGIC:
        raise BadFrameError("wrong magic")
    if version != VERSION:
        raise BadFrameError("wrong version")
    if lane > BULK:
        raise BadFrameError("unknown lane")
    if HEADER.size + meta_bytes > size or meta_bytes > META_BYTES:
        raise BadFrameError("truncated meta data")
    header: Header = tuple.__new__(Header, fields)  # what `_make` does
    return header


# ------------------------------------------------------------------------------------------- meta


def pack_meta(meta: object) -> bytes:
    """Meta data of None, bool, int, float, str, bytes, list and dict. Errors of the sender's."""
    try:
        packed: bytes = msgpack.packb(meta, strict_types=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsendableError(f"this cannot be sent as meta data: {error}") from None
    if len(packed) > META_BYTES:
        raise MessageTooLargeError(
            f"{len(packed)} bytes of meta data; at most {META_BYTES} fit: put them in a buffer"
        )
    return packed


def unpack_meta(packed: bytes | memoryview) -> Any:
    """Plain data; no extension types, and no length beyond that of the input."""
    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise BadFrameError(f"meta data: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """The description of a tensor in a frame. `dtype` None: strings. `nbytes`: of its payload."""

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    iterations: tuple[int, ...]
    nbytes: int


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The number of a dtype on the wire. UnsendableError for one that weft does not have."""
    if dtype == OBJECT:
        return STRINGS
    code = CODES.get(dtype)
    if code is None:
        raise UnsendableError(f"arrays of dtype {dtype} cannot be sent")
    return code


def dtype_of(code: int) -> np.dtype[Any] | None:
    """The inverse of `dtype_code`; None for strings. BadFrameError for a number that is none."""
    if code == STRINGS:
        return None
    if code >= len(DTYPES):
        raise BadFrameError("unknown dtype")
    return DTYPES[code]


@lru_cache(4096)
def pack_tensor_meta(
    code: int, shape: tuple[int, ...], iterations: tuple[int, ...], nbytes: int
) -> bytes:
    """The meta data of a tensor."""
    return pack_meta([code, shape, iterations, nbytes])


@lru_cache(4096)  # errors are not kept; a hostile peer can only make the cache useless
def unpack_tensor_meta(packed: bytes) -> TensorMeta:
    """Raises BadFrameError for anything that is not a tensor of ours."""
    meta = unpack_meta(packed)
    if not isinstance(meta, list) or len(meta) != 4:
        raise BadFrameError("tensor meta data")
    code, shape, iterations, nbytes = meta
    if not (_naturals(shape, MAX_RANK) and _naturals(iterations, MAX_ITERATIONS)):
        raise BadFrameError("tensor shape or iterations")
    if not _natural(code) or not _natural(nbytes):
        raise BadFrameError("tensor dtype or size")
    if prod(size or 1 for size in shape) >= 1 << 58:  # more than NumPy makes, even if it is empty
        raise BadFrameError("tensor shape or iterations")
    count, dtype = prod(shape), dtype_of(code)
    if dtype is None:
        if nbytes < 4 * count:
            raise BadFrameError("strings shorter than their lengths")
    elif count * dtype.itemsize != nbytes:
        raise BadFrameError("tensor size does not fit its shape")
    return TensorMeta(dtype, tuple(shape), tuple(iterations), nbytes)


def _natural(x: object) -> bool:
    return type(x) is int and 0 <= x < 1 << 62


def _naturals(xs: object, most: int) -> bool:
    return isinstance(xs, list) and len(xs) <= most and all(map(_natural, xs))


# --------------------------------------------------------------------------------------- payloads


def as_sendable(array: object) -> tuple[int, tuple[int, ...], Array]:
    """(code, shape, bytes) of an array: its own memory as uint8 where that is contiguous and in
    native byte order, else a copy. Strings are their lengths (u32 each) and then their bytes."""
    x = np.asarray(array, order="C")
    code = CODES.get(x.dtype)
    if code is None:
        if x.dtype == OBJECT:
            return STRINGS, x.shape, _pack_strings(x)
        native = x.dtype.newbyteorder("=")
        code = dtype_code(native)
        x = x.astype(native)
    return code, x.shape, x.reshape(-1).view(np.uint8)


def _pack_strings(x: Array) -> Array:
    items = x.reshape(-1).tolist()
    if not all(type(item) is bytes for item in items):
        raise UnsendableError("arrays of objects can be sent only if all of them are bytes")
    lengths = np.fromiter(map(len, items), np.uint64, len(items))
    if items and lengths.max() >= 1 << 32:
        raise MessageTooLargeError("a string of 4 GB or more cannot be sent")
    return np.frombuffer(lengths.astype(np.uint32).tobytes() + b"".join(items), np.uint8)


def unpack_strings(payload: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_pack_strings`. BadFrameError where the lengths do not add up."""
    count = prod(shape)
    lengths = payload[: 4 * count].view(np.uint32)
    ends = 4 * count + np.cumsum(lengths, dtype=np.uint64)
    if int(ends[-1] if count else 4 * count) != payload.nbytes:
        raise BadFrameError("strings do not add up")
    blob = payload.tobytes()
    out = np.empty(count, object)
    start = 4 * count
    for i, end in enumerate(ends.tolist()):
        out[i] = blob[start:end]
        start = end
    return out.reshape(shape)


def checksum(*parts: bytes | memoryview) -> bytes:
    """CRC-32 of the parts, 4 bytes. A debugging option: TCP and CURVE have checks of their own, and
    zlib's (3 GB/s, in Python's library) needs no further dependency."""
    value = 0
    for part in parts:
        value = crc32(part, value)
    return value.to_bytes(4, "little")


def pack_buffers(user: object, buffers: Sequence[tuple[int, tuple[int, ...], Array]]) -> bytes:
    """The meta data of a control message: the user's, and what its buffers are."""
    described = tuple([(code, shape, data.nbytes) for code, shape, data in buffers])
    return pack_buffer_metas(described) if user is None else pack_meta([user, described])


@lru_cache(1024)
def pack_buffer_metas(described: tuple[tuple[int, tuple[int, ...], int], ...]) -> bytes:
    """As `pack_buffers`, without meta data of the user's."""
    return pack_meta([None, described])


def unpack_buffers(packed: bytes | memoryview, limit: int) -> tuple[Any, Sequence[TensorMeta]]:
    """The inverse of `pack_buffers`; BadFrameError where the buffers exceed `limit` bytes."""
    meta = unpack_meta(packed)
    if not isinstance(meta, list) or len(meta) != 2 or not isinstance(meta[1], list):
        raise BadFrameError("control meta data")
    found = []
    for item in meta[1]:
        if not isinstance(item, list) or len(item) != 3:
            raise BadFrameError("control meta data")
        found.append(unpack_tensor_meta(pack_meta([item[0], item[1], [], item[2]])))
    if sum(m.nbytes for m in found) > limit:
        raise BadFrameError("buffers larger than the limit")
    return meta[0], found


@lru_cache(1024)
def unpack_buffer_metas(packed: bytes) -> tuple[int, tuple[TensorMeta, ...]]:
    """The inverse of `pack_buffer_metas`, and the bytes of all buffers. BadFrameError for anything
    else, for strings, and for more bytes than go in the header's frame."""
    user, found = unpack_buffers(packed, INLINE_BYTES)
    if user is not None or any(meta.dtype is None for meta in found):
        raise BadFrameError("control meta data")
    return sum(meta.nbytes for meta in found), tuple(found)
