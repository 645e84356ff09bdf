"""Tokens of the IR text, and parse errors that show the line with a caret; and its literals:
strings, bytes, numbers, and constant arrays, bit for bit.

A whole float prints as it is, another finite one as the shortest decimal that reads back as the
same bits; NaNs other than the two quiet ones print as `bits(0x...)`. An array of more than 32
elements prints as `splat(x)` where all its elements have the same bits, and as little-endian base64
otherwise."""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, bfloat16, real_of
from weft.ir.errors import ParseError
from weft.ir.locations import Location

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


#: Names that print bare, as `%x` or `@step`; every other name is quoted, as `%"x[0]"`.
NAME = re.compile(r"[A-Za-z_][\w.]*")

_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_TOKEN = (  # compiled when a text is read
    rf"""
      (?P<space>\s+|//[^\n]*)
    | (?P<bytes>b{_STRING})
    | (?P<string>{_STRING})
    | (?P<value>%(?:{NAME.pattern}|[0-9]+|{_STRING}))
    | (?P<symbol>@(?:{NAME.pattern}|{_STRING}))
    | (?P<name>{NAME.pattern})
    | (?P<hex>0x[0-9a-fA-F]+)
    | (?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<int>[0-9]+)
    | (?P<punct>->|[()\[\]{{}}<>,:=^?*+-])
    """
)
_MAX_DIGITS = 4000  # int() refuses more than 4300: a number that long is a corrupt file
_KIND_NAMES = {
    "name": "a name",
    "value": "a value such as %0",
    "symbol": "a name such as @step",
    "int": "an integer",
    "string": "a quoted string",
    "bytes": 'bytes in quotes after b, as in b"text",',
    "end": "the end of the text",
}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text: its kind (punctuation is its own kind), the text itself, where it starts."""

    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return repr(self.text if len(self.text) <= 40 else self.text[:37] + "...")


class TokenStream:
    """The tokens of one text with a cursor. All complaints go through `error`."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self.tokens = list(self._tokenize())
        self.index = 0

    def _tokenize(self) -> Iterator[Token]:
        at, text, tokens = 0, self.text, re.compile(_TOKEN, re.VERBOSE)
        while at < len(text):
            match = tokens.match(text, at)
            if match is None:
                raise self._bad_character(at)
            kind, piece = match.lastgroup or "", match.group()
            if kind != "space":
                token = Token(piece if kind == "punct" else kind, piece, at)
                if kind in ("int", "float", "hex") and len(piece) > _MAX_DIGITS:
                    raise self.error(f"a number of {len(piece)} digits", token)
                yield token
            at = match.end()
        yield Token("end", "", len(text))

    def _bad_character(self, at: int) -> ParseError:
        char = self.text[at]
        token = Token("bad", char, at)
        if '"' in self.text[at : at + 2] and char in '"%@':
            line_end = (self.text + "\n").index("\n", at)
            token = Token("bad", self.text[at:line_end], at)
            hint = 'close it with " on the same line; write a line break as \\n'
            return self.error("this string is not terminated", token, hint=hint)
        if char == "%":
            return self.error(
                "'%' must be followed by a value's name", token, hint="as in %0 or %x"
            )
        if char == "@":
            return self.error("'@' must be followed by the graph's name", token, hint="as in @step")
        if char == "/":
            return self.error("unexpected character '/'", token, hint="a comment starts with //")
        return self.error(f"unexpected character {char!r}", token)

    # ---------------------------------------------------------------------- cursor

    def peek(self, ahead: int = 0) -> Token:
        """The token at the cursor, or `ahead` tokens after it; the end token repeats for ever."""
        return self.tokens[min(self.index + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """The token at the cursor, which moves on."""
        token = self.peek()
        self.index += 1
        return token

    def at_keyword(self, word: str) -> bool:
        """Whether the next token is the bare name `word`."""
        token = self.peek()
        return token.kind == "name" and token.text == word

    def accept(self, kind: str) -> Token | None:
        """The next token if it is of `kind`, else None and the cursor stays."""
        return self.next() if self.peek().kind == kind else None

    def expect(self, kind: str, context: str, hint: str | None = None) -> Token:
        """The next token, which must be of `kind`; `context` says what is being read."""
        token = self.peek()
        if token.kind != kind:
            wanted = _KIND_NAMES.get(kind, repr(kind))
            raise self.error(f"expected {wanted} {context}, got {token}", token, hint=hint)
        return self.next()

    def expect_keyword(self, word: str, context: str, hint: str | None = None) -> Token:
        """The next token, which must be the bare name `word`."""
        if not self.at_keyword(word):
            token = self.peek()
            raise self.error(f"expected {word!r} {context}, got {token}", token, hint=hint)
        return self.next()

    # ---------------------------------------------------------------------- errors

    def position(self, token: Token) -> tuple[int, int]:
        """1-based line and column at which `token` starts."""
        before = self.text[: token.start]
        line = before.count("\n") + 1
        return line, token.start - (before.rfind("\n") + 1) + 1

    def error(
        self, what: str, where: Token | Sequence[Token], *, hint: str | None = None
    ) -> ParseError:
        """A ParseError with `file:line:column`, the line, and a caret under `where` (a range of
        tokens is underlined from its first to its last, as far as the line goes)."""
        first, last = (where, where) if isinstance(where, Token) else (where[0], where[-1])
        line, column = self.position(first)
        source = self.text.split("\n")[line - 1].rstrip("\r")
        stop = min(last.start + len(last.text) - first.start, len(source) - column + 1)
        begin, width, shown = column - 1, max(stop, 1), source
        if len(source) > 160:  # a long constant: show the surroundings only
            cut = max(0, begin - 60)
            shown = ("..." if cut else "") + source[cut : cut + 150] + "..."
            begin = begin - cut + (3 if cut else 0)
            width = min(width, max(len(shown) - begin, 1))
        lead = "".join("\t" if c == "\t" else " " for c in shown[:begin])
        mark = "^" + "~" * (width - 1)
        error = ParseError(
            f"{self.filename}:{line}:{column}: {what}\n    {shown}\n    {lead}{mark}", hint=hint
        )
        error.locations = (Location(self.filename, line, column),)
        return error
