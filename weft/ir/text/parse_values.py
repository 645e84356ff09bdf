"""Parsing the parts of the IR text that hold no SSA values: dims, types, attributes, constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.ir.attributes import AttrKind, AttrSpec, AttrValue, ConstArray
from weft.ir.dims import Dim, Shape
from weft.ir.dtypes import ALL, DType, real_of
from weft.ir.errors import ShapeError, suggest
from weft.ir.text.lexer import Token, TokenStream
from weft.ir.text.literals import (
    MAX_SPLAT_BYTES,
    LiteralFault,
    decode_base64,
    float_bits,
    unquote,
    unquote_bytes,
)
from weft.ir.text.parse_dim import MAX_DEPTH, parse_dim
from weft.ir.types import (
    HANDLE_KINDS,
    TOKEN,
    HandleType,
    RefType,
    StackType,
    TensorType,
    Type,
)

_DTYPES = {d.short: d for d in ALL}
_MAX_RANK = 64  # NumPy's


class ValueParser:
    """Reads dims, types and attributes from a token stream."""

    def __init__(self, tokens: TokenStream) -> None:
        self.tokens = tokens
        self.depth = 0  # of parentheses around the dimension that is read

    def string(self, context: str) -> str:
        """A quoted string."""
        token = self.tokens.expect("string", context)
        return self.unquoted(token.text, token)

    def unquoted(self, literal: str, token: Token) -> str:
        """The text of the literal in `token`, whose escapes must be right."""
        try:
            return unquote(literal)
        except LiteralFault as fault:
            raise self.tokens.error(str(fault), token) from None

    def integer(self, context: str) -> int:
        """An integer, perhaps negative."""
        sign = -1 if self.tokens.accept("-") else 1
        return sign * int(self.tokens.expect("int", context).text)

    # ---------------------------------------------------------------------- types

    def dtype(self, context: str) -> DType:
        """A dtype by its short name."""
        token = self.tokens.expect("name", context, hint="the dtypes are " + ", ".join(_DTYPES))
        if token.text not in _DTYPES:
            raise self.tokens.error(
                f"there is no dtype '{token.text}'{suggest(token.text, list(_DTYPES))}",
                token,
                hint="the dtypes are " + ", ".join(_DTYPES),
            )
        return _DTYPES[token.text]

    def dim(self) -> Dim:
        """`7`, `b`, `b*28+1`, `max(b-1,0)` or `?`."""
        stream = self.tokens
        first = stream.peek()
        if stream.accept("?"):
            return None
        try:
            dim = parse_dim(self._sum())
        except ShapeError as error:
            raise stream.error(error.what, first, hint=error.hint) from None
        if isinstance(dim, int) and dim < 0:
            raise stream.error(f"a dimension of size {dim}", first)
        return dim

    def _sum(self) -> str:
        """The text of a dimension."""
        stream = self.tokens
        text = (stream.next().text if stream.peek().kind == "-" else "") + self._factor()
        while stream.peek().kind in ("+", "-", "*"):
            text += stream.next().text + self._factor()
        return text

    def _factor(self) -> str:
        token = self.tokens.peek()
        if token.kind not in ("int", "name"):
            raise self.tokens.error(
                f"expected a dimension, got {token}",
                token,
                hint="write an integer, a name, b*28+1 or ? for a size that is not known",
            )
        text = self.tokens.next().text
        if token.kind == "int" or not self.tokens.accept("("):
            return text
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.tokens.error("a dimension of too many parentheses", token)
        first = self._sum()
        self.tokens.expect(",", f"between the operands of {text}")
        second = self._sum()
        self.tokens.expect(")", f"after the operands of {text}")
        self.depth -= 1
        return f"{text}({first},{second})"

    def shape(self, context: str) -> Shape:
        """`[2, b, ?]`."""
        opening = self.tokens.expect("[", context)
        dims: list[Dim] = []
        while not self.tokens.accept("]"):
            if dims:
                self.tokens.expect(",", "or ']' in a shape")
            dims.append(self.dim())
        if len(dims) > _MAX_RANK:
            raise self.tokens.error(f"a shape of rank {len(dims)}: at most {_MAX_RANK}", opening)
        return tuple(dims)

    def tensor_type(self, context: str) -> TensorType:
        """`f32[2,b]`."""
        dtype = self.dtype(context)
        return TensorType(dtype, self.shape(f"after the dtype (a scalar is {dtype.short}[])"))

    def type(self, context: str) -> Type:
        """A tensor type, `ref<...>`, `stack<...>`, a handle or `token`."""
        if self.tokens.at_keyword("token"):
            self.tokens.next()
            return TOKEN
        if self.tokens.at_keyword("ref"):
            self.tokens.next()
            self.tokens.expect("<", "after 'ref', as in ref<f32[2]>")
            held = self.tensor_type("in a ref")
            self.tokens.expect(">", "at the end of a ref")
            return RefType(held)
        if self.tokens.at_keyword("stack"):
            return self._stack_type()
        for kind in HANDLE_KINDS:
            if self.tokens.at_keyword(kind):
                self.tokens.next()
                return HandleType(kind, self._parts(kind))
        return self.tensor_type(context)

    def _stack_type(self) -> StackType:
        self.tokens.next()
        self.tokens.expect("<", "after 'stack', as in stack<f32[2]>")
        nested = self.tokens.at_keyword("stack")
        held = self._stack_type() if nested else self.tensor_type("in a stack")
        self.tokens.expect(">", "at the end of a stack")
        return StackType(held)

    def _parts(self, kind: str) -> tuple[TensorType, ...]:
        self.tokens.expect("<", f"after '{kind}', as in {kind}<f32[2]>")
        parts: list[TensorType] = []
        while not self.tokens.accept(">"):
            if parts:
                self.tokens.expect(",", f"between the parts of a {kind}")
            parts.append(self.tensor_type(f"in a {kind}"))
        return tuple(parts)

    # ---------------------------------------------------------------------- attributes

    def attribute(self, op: str, name: str, spec: AttrSpec) -> AttrValue:
        """The value of attribute `name`, of the kind that its schema says."""
        if self.tokens.at_keyword("none"):
            token = self.tokens.next()
            if not spec.optional:
                raise self.tokens.error(
                    f"the attribute '{name}' of '{op}' must not be none",
                    token,
                    hint=_hint(spec.kind),
                )
            return None
        first = self.tokens.peek()
        context = f"for the attribute '{name}' of '{op}'"
        value = self._of_kind(spec.kind, context)
        if self.tokens.peek().kind not in (",", "}"):
            raise self.tokens.error(
                f"expected ',' or '}}' after the attribute '{name}', got {self.tokens.peek()}",
                self.tokens.peek(),
                hint=_hint(spec.kind),
            )
        if not spec.accepts(value):
            raise self.tokens.error(f"a wrong value {context}", first, hint=_hint(spec.kind))
        return value

    def _of_kind(self, kind: AttrKind, context: str) -> AttrValue:
        match kind:
            case "int":
                return self.integer(context)
            case "float":
                return self.float_attribute(context)
            case "bool":
                return self.boolean(context)
            case "str":
                return self.string(context)
            case "dtype":
                return self.dtype(context)
            case "dim":
                return self.dim()
            case "shape":
                return self.raw_shape(context)
            case "ints":
                return tuple(self._items(lambda: self.integer(context), context))
            case "strs":
                return tuple(self._items(lambda: self.string(context), context))
            case "array":
                return self.constant(context)

    def _items(self, item: Any, context: str) -> list[Any]:
        self.tokens.expect("[", context)
        out: list[Any] = []
        while not self.tokens.accept("]"):
            if out:
                self.tokens.expect(",", f"or ']' {context}")
            out.append(item())
        return out

    def raw_shape(self, context: str) -> Shape:
        """A shape in which negative integers are legal too: the bounds of a slice."""

        def item() -> Dim:
            if self.tokens.peek().kind == "-" and self.tokens.peek(1).kind == "int":
                if self.tokens.peek(2).kind in (",", "]"):
                    return self.integer(context)
            return self.dim()

        return tuple(self._items(item, context))

    def boolean(self, context: str) -> bool:
        """`true` or `false`."""
        token = self.tokens.peek()
        if token.text not in ("true", "false") or token.kind != "name":
            raise self.tokens.error(f"expected true or false {context}, got {token}", token)
        return self.tokens.next().text == "true"

    def float_attribute(self, context: str) -> float:
        """`1.5`, `-inf`, `nan`, `3`."""
        text, token = self._float_text(context)
        value = float(text)
        if math.isinf(value) and not text.endswith("inf"):
            raise self.tokens.error(f"{text} is too large for a float", token)
        return value

    def _float_text(self, context: str) -> tuple[str, Token]:
        sign = "-" if self.tokens.accept("-") else ""
        token = self.tokens.peek()
        special = token.kind == "name" and token.text in ("nan", "inf")
        if special or token.kind in ("float", "int"):
            return sign + self.tokens.next().text, token
        raise self.tokens.error(f"expected a number {context}, got {token}", token)

    # ---------------------------------------------------------------------- constants

    def constant(self, context: str) -> ConstArray:
        """`f32[2] [1.0, nan]`, `i64[] 3`, `f32[100] splat(0.0)` or `u8[99] base64("...")`."""
        first = self.tokens.peek()
        kind = self.tensor_type(context)
        dtype = kind.dtype
        if not kind.is_static:
            raise self.tokens.error(f"a constant of type {kind}: its shape must be known", first)
        shape = kind.static_shape
        if self.tokens.at_keyword("base64") and dtype.kind != "string":
            return ConstArray(self._base64(dtype, shape))
        if self.tokens.at_keyword("splat"):
            return ConstArray(self._splat(dtype, shape, first))
        elements: list[Any] = []
        self._nested(dtype, shape, elements)
        return ConstArray(_from_elements(elements, dtype).reshape(shape))

    def _base64(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        self.tokens.next()
        self.tokens.expect("(", "after 'base64'")
        token = self.tokens.expect("string", "in base64(...)")
        self.tokens.expect(")", "after the base64 string")
        try:
            return decode_base64(token.text[1:-1], dtype, shape)
        except LiteralFault as fault:
            raise self.tokens.error(str(fault), token) from None

    def _splat(self, dtype: DType, shape: tuple[int, ...], first: Token) -> np.ndarray[Any, Any]:
        self.tokens.next()
        self.tokens.expect("(", "after 'splat'")
        if math.prod(shape) * dtype.itemsize > MAX_SPLAT_BYTES or math.prod(shape) == 0:
            limit = f"an empty array, or one of more than {MAX_SPLAT_BYTES} bytes"
            raise self.tokens.error(f"splat makes {limit}", first, hint="use broadcast_to")
        one = _from_elements([self.element(dtype)], dtype)
        self.tokens.expect(")", "after the element of splat")
        return np.broadcast_to(one, shape) if shape else one.reshape(())

    def _nested(self, dtype: DType, shape: tuple[int, ...], out: list[Any]) -> None:
        if not shape:
            out.append(self.element(dtype))
            return
        opening = self.tokens.expect("[", f"for a dimension of size {shape[0]}")
        if 0 in shape:
            self.tokens.expect("]", "for an array without elements")
            return
        count = 0
        while not self.tokens.accept("]"):
            if count:
                self.tokens.expect(",", "or ']' in an array")
            self._nested(dtype, shape[1:], out)
            count += 1
        if count != shape[0]:
            raise self.tokens.error(f"expected {shape[0]} elements here, got {count}", opening)

    def element(self, dtype: DType) -> Any:
        """One element: its bits for floats, a pair of bits for complex numbers, else the value."""
        context = f"of type {dtype.short}"
        match dtype.kind:
            case "bool":
                return self.boolean(context)
            case "int" | "uint":
                first = self.tokens.peek()
                value = self.integer(context)
                low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
                if not low <= value < low + (1 << dtype.bits):
                    raise self.tokens.error(f"{_short(value)} does not fit {dtype.short}", first)
                return value
            case "float":
                return self.bits(dtype)
            case "complex":
                self.tokens.expect("(", f"{context}, as in (1.0, -2.0)")
                real = self.bits(real_of(dtype))
                self.tokens.expect(",", "between the real and the imaginary part")
                imag = self.bits(real_of(dtype))
                self.tokens.expect(")", "after the imaginary part")
                return (real, imag)
            case "string":
                token = self.tokens.expect("bytes", context, 'as in b"text"')
                try:
                    return unquote_bytes(token.text)
                except LiteralFault as fault:
                    raise self.tokens.error(str(fault), token) from None

    def bits(self, dtype: DType) -> int:
        """The bits of a float literal of type `dtype`."""
        if self.tokens.at_keyword("bits"):
            self.tokens.next()
            self.tokens.expect("(", "after 'bits'")
            token = self.tokens.peek()
            if token.kind != "hex" or int(token.text, 16) >> dtype.bits:
                hint = "as in bits(0x7fc00001)"
                what = f"expected a hexadecimal number of {dtype.bits} bits, got {token}"
                raise self.tokens.error(what, token, hint=hint)
            self.tokens.next()
            self.tokens.expect(")", "after the bits")
            return int(token.text, 16)
        text, token = self._float_text(f"of type {dtype.short}")
        try:
            return float_bits(text, dtype)
        except LiteralFault as fault:
            raise self.tokens.error(str(fault), token) from None


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**24 else "this number"


def _from_elements(elements: list[Any], dtype: DType) -> np.ndarray[Any, Any]:
    """A flat array from what `ValueParser.element` gave."""
    match dtype.kind:
        case "float":
            return np.array(elements, np.dtype(f"u{dtype.itemsize}")).view(dtype.numpy)
        case "complex":
            words = np.dtype(f"u{dtype.itemsize // 2}")
            return np.array(elements, words).reshape(-1).view(dtype.numpy)
        case _:
            array = np.empty(len(elements), dtype.numpy)
            array[:] = elements
            return array


def _hint(kind: AttrKind) -> str:
    examples = {
        "int": "an integer, as in axis=1",
        "float": "a number, as in 1.5, -inf or nan",
        "bool": "true or false",
        "str": 'a quoted string, as in "W"',
        "dtype": "a dtype, as in f32",
        "ints": "integers, as in [0, 1]",
        "dim": "a size, as in 3 or b",
        "shape": "dimensions, as in [2, b, ?]",
        "strs": 'quoted strings, as in ["a", "b"]',
        "array": "a type and elements, as in f32[2] [1.0, 2.0]",
    }
    return "it takes " + examples[kind]
