"""Literals of the IR text: strings, bytes, numbers, and constant arrays, bit for bit.

A whole float prints as it is, another finite one as the shortest decimal that reads back as the
same bits; NaNs other than the two quiet ones print as `bits(0x...)`. An array of more than 32
elements prints as `splat(x)` where all its elements have the same bits, and as little-endian base64
otherwise.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from typing import Any

import numpy as np

from weft.ir.dtypes import DType, bfloat16, real_of

Array = np.ndarray[Any, Any]

READABLE = 32  #: arrays of up to this many elements print element by element
MAX_SPLAT_BYTES = 1 << 30  #: a text of a few bytes must not ask for more memory than this

_ESCAPES = {"\n": "n", "\t": "t", "\r": "r", '"': '"', "\\": "\\"}
_UNESCAPES = {v: k for k, v in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|(.)|$)", re.DOTALL)
_QUIET_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}


class LiteralFault(Exception):
    """A literal that is lexically fine but wrong; the parser adds where."""


# ---------------------------------------------------------------------------------------- strings


def quote(text: str) -> str:
    """`text` in double quotes; unprintable characters as `\\u{hex}`."""
    return '"' + "".join(map(_quote_char, text)) + '"'


def _quote_char(char: str) -> str:
    if char in _ESCAPES:
        return "\\" + _ESCAPES[char]
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def quote_bytes(data: bytes) -> str:
    """`data` as `b"..."`; bytes that are not printable ASCII as `\\xhh`."""
    return 'b"' + "".join(map(_quote_byte, data)) + '"'


def _quote_byte(byte: int) -> str:
    char = chr(byte)
    if char in _ESCAPES:
        return "\\" + _ESCAPES[char]
    return char if 32 <= byte < 127 else f"\\x{byte:02x}"


def unquote(literal: str) -> str:
    """The inverse of `quote`. Raises LiteralFault for an unknown escape."""

    def replace(match: re.Match[str]) -> str:
        code, byte, char = match.groups()
        if code is not None and int(code, 16) <= sys.maxunicode:
            return chr(int(code, 16))
        if byte is None and char in _UNESCAPES:
            return _UNESCAPES[char]
        raise LiteralFault(f"unknown escape {match.group()!r} in a string")

    return _ESCAPE.sub(replace, literal[1:-1])


def unquote_bytes(literal: str) -> bytes:
    """The inverse of `quote_bytes`. Raises LiteralFault for what is no ASCII or no escape."""
    body = literal[2:-1]
    if not body.isascii():
        raise LiteralFault("a bytes string holds ASCII characters and \\xhh only")

    def replace(match: re.Match[str]) -> str:
        code, byte, char = match.groups()
        if byte is not None:
            return chr(int(byte, 16))
        if code is None and char in _UNESCAPES:
            return _UNESCAPES[char]
        raise LiteralFault(f"unknown escape {match.group()!r} in a bytes string")

    return _ESCAPE.sub(replace, body).encode("latin-1")


# ---------------------------------------------------------------------------------------- numbers


def format_float(value: float) -> str:
    """A Python float: `1.0`, `-0.0`, `1e-05`, `nan`, `-inf`; reads back as the same value."""
    return repr(value)


def format_float_bits(bits: int, dtype: DType) -> str:
    """The float with these bits in `dtype`: a decimal, `nan`, `-nan`, `inf` or `bits(0x...)`."""
    for candidate in _float_candidates(bits, dtype):
        try:
            if float_bits(candidate, dtype) == bits:
                return candidate
        except LiteralFault:  # rounds to infinity
            continue
    return f"bits(0x{bits:0{dtype.bits // 4}x})"


def _float_candidates(bits: int, dtype: DType) -> list[str]:
    value = np.array(bits, _unsigned(dtype.bits)).view(dtype.numpy)[()]
    if math.isnan(float(value)):
        return ["nan", "-nan"]
    if float(value).is_integer() and abs(float(value)) < 1e16:
        return [repr(float(value))]  # 65504.0, where the shortest float16 would be 65500.0
    if dtype is bfloat16:  # NumPy knows no shortest decimal of it; 4 digits tell any two apart
        return [repr(float(f"{float(value):.{n}g}")) for n in range(1, 5)]
    return [repr(float(str(value)))]


def float_bits(text: str, dtype: DType) -> int:
    """The bits of a float literal (`1.5`, `-inf`, `-nan`, `7`) in `dtype`, rounded to nearest even.

    Raises LiteralFault for a finite literal that is too large for `dtype`.
    """
    if text.endswith("nan"):
        return _QUIET_NAN[dtype.name] | ((1 << (dtype.bits - 1)) if text.startswith("-") else 0)
    value = float(text)
    with np.errstate(over="ignore"):
        stored = np.float64(value).astype(dtype.numpy)
    if math.isinf(float(stored)) and not text.endswith("inf"):
        raise LiteralFault(f"{text} is too large for {dtype.short}")
    return int(np.array(stored).view(_unsigned(dtype.bits))[()])


def _unsigned(bits: int) -> np.dtype[np.generic]:
    return np.dtype(f"u{bits // 8}")


# ---------------------------------------------------------------------------------------- arrays


def format_array(array: Array, dtype: DType) -> str:
    """`array` without its type: a scalar, nested `[...]`, `splat(x)` or `base64("...")`."""
    if array.ndim == 0:
        return format_element(array, dtype)
    if array.size <= READABLE or dtype.kind == "string":
        return _format_nested(array, dtype)
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)
    if array.nbytes <= MAX_SPLAT_BYTES and bool((raw == raw[0]).all()):
        return f"splat({format_element(array.reshape(-1)[:1].reshape(()), dtype)})"
    ordered = array if sys.byteorder == "little" else array.byteswap()
    return f'base64("{base64.b64encode(ordered.tobytes()).decode("ascii")}")'


def _format_nested(array: Array, dtype: DType) -> str:
    if array.ndim == 0:
        return format_element(array, dtype)
    if array.size == 0:
        return "[]"
    # a[i, ...] keeps a 0-d array, where iterating would turn an object element into itself
    return "[" + ", ".join(_format_nested(array[i, ...], dtype) for i in range(len(array))) + "]"


def format_element(scalar: Array, dtype: DType) -> str:
    """One element, given as an array of shape ()."""
    match dtype.kind:
        case "bool":
            return "true" if scalar else "false"
        case "int" | "uint":
            return str(int(scalar))
        case "float":
            return format_float_bits(int(scalar.view(_unsigned(dtype.bits))), dtype)
        case "complex":
            part = real_of(dtype)
            real, imag = scalar.reshape(1).view(_unsigned(part.bits)).tolist()
            return f"({format_float_bits(real, part)}, {format_float_bits(imag, part)})"
        case "string":
            value: object = scalar.item()
            return quote_bytes(value) if isinstance(value, bytes) else quote(str(value))


def decode_base64(text: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The inverse of the base64 form. Raises LiteralFault where data and type do not fit."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise LiteralFault(f"this is not base64: {error}") from None
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise LiteralFault(f"the type needs {needed} bytes, the data has {len(data)}")
    if dtype.kind == "bool" and data.strip(b"\0\1"):
        raise LiteralFault("a bool is a byte 0 or 1")
    array = np.frombuffer(data, dtype.numpy).reshape(shape)
    return array if sys.byteorder == "little" else array.byteswap()
