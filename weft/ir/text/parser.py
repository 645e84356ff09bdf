"""The parser of the text form, strict: every fault is a ParseError that shows the line.

The grammar is in `printer`. `_GraphParser` reads graphs, blocks and ops, `ValueParser` what holds
no SSA values: types, attributes, constants; `parse_dim` a dimension: `7`, `b`, `b*28+1`,
`max(b-1,0)`, `?`. Attributes may stand in any order; those with defaults and all locations may be
left out; each op's printed types must be the ones that its type rule infers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from weft.ir.device import canonical_device
from weft.ir.dims import Dim, Shape, SymbolicDim, divided, largest, least
from weft.ir.dtypes import ALL, DType, real_of
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError, suggest
from weft.ir.graph import STAGES, Block, Graph, Operation, Value
from weft.ir.locations import Location, Locations
from weft.ir.ops import OPS
from weft.ir.ops.builder import make_op
from weft.ir.program import Part, Program
from weft.ir.spec import AttrKind, AttrSpec, AttrValue, ConstArray, OpSpec
from weft.ir.text.lexer import (
    MAX_SPLAT_BYTES,
    LiteralFault,
    Token,
    TokenStream,
    decode_base64,
    float_bits,
    unquote,
    unquote_bytes,
)
from weft.ir.text.printer import value_name
from weft.ir.types import HANDLE_KINDS, TOKEN, HandleType, RefType, StackType, TensorType, Type

_FUNCTIONS = {"max": largest, "min": least, "div": divided}
_DIM_TOKEN = re.compile(r"\w+|[-+*(),]")
MAX_DEPTH = 40


def parse_dim(text: str) -> Dim:
    """The dimension that `text` is. Raises ShapeError."""
    if text == "?":
        return None
    reader = _DimReader(text)
    dim = reader.sum(0)
    if reader.tokens:
        raise reader.error()
    return dim


class _DimReader:
    """A reader of dimensions: the rest of the text, in tokens."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, _DIM_TOKEN.findall(text)
        if "".join(self.tokens) != text:
            raise self.error()

    def error(self) -> ShapeError:
        """That this is none."""
        return ShapeError(
            f"{self.text[:200]!r} is not a dimension",
            hint="write an integer, a name, b*28+1, max(b-1,0), div(b,2) or ?",
        )

    def sum(self, depth: int) -> int | SymbolicDim:
        """Products with signs between them."""
        if depth > MAX_DEPTH:
            raise self.error()
        total = -self._product(depth) if self._accept("-") else self._product(depth)
        while self.tokens and self.tokens[0] in "+-":
            sign = self.tokens.pop(0)
            total = total + self._product(depth) * (1 if sign == "+" else -1)
        return total

    def _product(self, depth: int) -> int | SymbolicDim:
        value = self._factor(depth)
        while self._accept("*"):
            value = value * self._factor(depth)
        return value

    def _factor(self, depth: int) -> int | SymbolicDim:
        word = self.tokens.pop(0) if self.tokens else ""
        if word.isdigit() and word.isascii():
            return int(word)
        if not self._accept("("):
            if not word or word in "-+*(),":
                raise self.error()
            return SymbolicDim.symbol(word)
        first = self.sum(depth + 1)
        if word not in _FUNCTIONS or not self._accept(","):
            raise self.error()
        second = self.sum(depth + 1)
        if not self._accept(")"):
            raise self.error()
        return _FUNCTIONS[word](first, second)

    def _accept(self, token: str) -> bool:
        found = self.tokens[:1] == [token]
        if found:
            self.tokens.pop(0)
        return found


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


_MAX_NESTING = 50  # of regions: deeper is a corrupt file, and would exhaust Python's stack
_Made = TypeVar("_Made")
_PART_SHAPE = 'as in: part "/job:ps/task:0/cpu:0" feeds [0] fetches []'
_OP_SHAPE = "an op is written: %0 = add(%x, %y) : f32[2]"


def parse_graph(text: str, filename: str = "<text>") -> Graph:
    """The graph that `text` describes; the inverse of `print_graph`.

    Raises ParseError with `filename:line:column`, the line, a caret, and a hint.
    """
    parser = _GraphParser(TokenStream(text, filename))
    return parser.ended(parser.graph())


def parse_program(text: str, filename: str = "<text>") -> Program:
    """The program that `text` describes, one graph or several parts; the inverse of
    `print_program`. Errors as `parse_graph`."""
    parser = _GraphParser(TokenStream(text, filename))
    if not parser.tokens.at_keyword("part"):
        return Program.of(parser.ended(parser.graph()))
    parts: list[Part] = []
    while parser.tokens.at_keyword("part"):
        parts.append(parser.part())
    return parser.ended(Program(tuple(parts)), "after 'part' lines and their graphs the text ends")


class _Scope:
    """The values of one block: by printed name, with the token that defined each."""

    def __init__(self, outer: _Scope | None) -> None:
        self.outer = outer
        self.values: dict[str, tuple[Value, Token]] = {}

    def in_outer(self, name: str) -> bool:
        scope = self.outer
        while scope is not None:
            if name in scope.values:
                return True
            scope = scope.outer
        return False


class _GraphParser:
    def __init__(self, tokens: TokenStream) -> None:
        self.tokens = tokens
        self.read = ValueParser(tokens)
        self.depth = 0
        #: What names in loc(...) stand for, in the graph that is read.
        self.files: dict[str, str] = {}

    # ---------------------------------------------------------------------- graph

    def graph(self) -> Graph:
        stream = self.tokens
        hint = "as in: graph @step(%x: f32[2]) -> (f32[2]) stage=traced {"
        stream.expect_keyword("graph", "at the start", hint=hint)
        self.files = self._named_files()
        name = self._plain_name(stream.expect("symbol", "after 'graph'", hint=hint))
        scope = _Scope(None)
        args = self._arguments(scope)
        arg_names = [self._plain_name(token) for _, token in scope.values.values()]
        stream.expect("->", "and the result types", hint=hint)
        types_at = stream.expect("(", "before the result types")
        types, result_names = self._named_types()
        stage = self._stage()
        stream.expect("{", "before the ops", hint=hint)
        ops = self._ops(scope, "return")
        results = self._results(scope, "return")
        found = [v.type for v in results]
        if found != types:
            raise stream.error(
                f"the graph returns ({_listed(found)}), not ({_listed(types)})", types_at
            )
        stream.expect("}", "at the end of the graph", hint="only ops may stand before 'return'")
        collections = self._collections()
        block = Block(tuple(args), ops, results)
        return Graph(name, block, tuple(arg_names), stage, result_names, collections)

    def ended(self, made: _Made, hint: str = "a text holds one graph") -> _Made:
        """`made`, which the whole text must have been."""
        end = self.tokens.peek()
        if end.kind != "end":
            raise self.tokens.error(f"unexpected {end} after the end of the graph", end, hint=hint)
        return made

    def part(self) -> Part:
        """A part of a program."""
        stream = self.tokens
        stream.expect_keyword("part", "at the start", hint=_PART_SHAPE)
        token = stream.peek()
        try:
            device = canonical_device(self.read.string("(the device) after 'part'"))
        except InvalidArgumentError as error:
            raise stream.error(error.what, token, hint=error.hint) from None
        feeds, fetches = self._numbers("feeds"), self._numbers("fetches")
        at, graph = stream.peek(), self.graph()
        if (len(feeds), len(fetches)) != (len(graph.args), len(graph.results)):
            raise stream.error(
                f"the part says {len(feeds)} feeds and {len(fetches)} fetches, but its graph has "
                f"{len(graph.args)} arguments and {len(graph.results)} results",
                at,
                hint="one number for each: which of the whole program's it is",
            )
        return Part(device, graph, feeds, fetches)

    def _numbers(self, word: str) -> tuple[int, ...]:
        """`word [0, 2]`."""
        self.tokens.expect_keyword(word, "in the line of a part", hint=_PART_SHAPE)
        self.tokens.expect("[", f"after '{word}'", hint=_PART_SHAPE)
        found: list[int] = []
        while not self.tokens.accept("]"):
            if found:
                self.tokens.expect(",", f"or ']' after a number of '{word}'")
            found.append(int(self.tokens.expect("int", f"in '{word}'").text))
        return tuple(found)

    def _named_types(self) -> tuple[list[Type], tuple[str, ...]]:
        """The result types up to the closing bracket, and the names of the results."""
        types: list[Type] = []
        names: list[str] = []
        while not self.tokens.accept(")"):
            if types:
                self.tokens.expect(",", "or ')' in the result types")
            name, token = "", self.tokens.peek()
            if self.tokens.peek(1).kind == ":":
                name = self._label("as a result's name")
                self.tokens.next()
                if name in names:
                    raise self.tokens.error(f"two results are called {name!r}", token)
            names.append(name)
            types.append(self.read.type("in the result types"))
        return types, tuple(names) if any(names) else ()

    def _collections(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The `collection` lines after a graph, among which those of files may be."""
        found: dict[str, tuple[str, ...]] = {}
        named = set[str]()
        while self.tokens.at_keyword("collection") or self.tokens.at_keyword("file"):
            if self.tokens.next().text == "file":
                self._file_line(named)
                continue
            token = self.tokens.peek()
            name = self._label("after 'collection'")
            if name in found:
                raise self.tokens.error(f"the collection {name!r} is given twice", token)
            self.tokens.expect("[", "after the collection's name")
            items: list[str] = []
            while not self.tokens.accept("]"):
                if items:
                    self.tokens.expect(",", "or ']' in a collection")
                items.append(self.read.string("in a collection"))
            found[name] = tuple(items)
        return tuple(found.items())

    def _label(self, context: str) -> str:
        """A name, bare or quoted."""
        if self.tokens.peek().kind == "string":
            return self.read.string(context)
        return self.tokens.expect("name", context).text

    def _plain_name(self, token: Token) -> str:
        """The name in a `@symbol` or `%value` token."""
        body = token.text[1:]
        if not body.startswith('"'):
            return body
        return self.read.unquoted(body, token)

    def _stage(self) -> str:
        hint = "the stages are " + ", ".join(STAGES)
        self.tokens.expect_keyword("stage", "after the result types", hint=hint)
        self.tokens.expect("=", "after 'stage'")
        token = self.tokens.expect("name", "for the stage", hint=hint)
        if token.text not in STAGES:
            raise self.tokens.error(
                f"there is no stage '{token.text}'{suggest(token.text, STAGES)}", token, hint=hint
            )
        return token.text

    def _arguments(self, scope: _Scope) -> list[Value]:
        stream = self.tokens
        args: list[Value] = []
        stream.expect("(", "before the arguments")
        while not stream.accept(")"):
            if args:
                stream.expect(",", "or ')' after an argument")
            token = stream.expect("value", "as an argument")
            if scope.outer is None and token.text[1].isdigit():
                hint = 'a name starts with a letter; others are quoted, as in %"0"'
                raise stream.error("a graph's argument needs a name", token, hint=hint)
            stream.expect(":", "and the argument's type")
            value = Value(self.read.type("as the argument's type"), None, len(args))
            self._define(scope, token, value)
            args.append(value)
        return args

    # ---------------------------------------------------------------------- values

    def _key(self, token: Token) -> str:
        """The canonical spelling of a value: %"x" is %x."""
        return value_name(self._plain_name(token)) if token.text[1] == '"' else token.text

    def _define(self, scope: _Scope, token: Token, value: Value) -> None:
        key = self._key(token)
        if key in scope.values:
            line, _ = self.tokens.position(scope.values[key][1])
            what = f"{key} is defined twice: first on line {line}"
            raise self.tokens.error(what, token, hint="an SSA value has one definition")
        scope.values[key] = (value, token)

    def _use(self, scope: _Scope, token: Token) -> Value:
        key = self._key(token)
        if key in scope.values:
            return scope.values[key][0]
        if scope.in_outer(key):
            raise self.tokens.error(
                f"{key} is defined outside of this region",
                token,
                hint="a region sees only its own arguments: pass the value as an operand",
            )
        raise self.tokens.error(
            f"{key} is not defined{suggest(key, list(scope.values))}",
            token,
            hint="a value must be defined above its first use",
        )

    def _operands(self, scope: _Scope, context: str) -> list[Value]:
        self.tokens.expect("(", context, hint=_OP_SHAPE)
        values: list[Value] = []
        while not self.tokens.accept(")"):
            if values:
                self.tokens.expect(",", "or ')' after an operand")
            values.append(self._use(scope, self.tokens.expect("value", "as an operand")))
        return values

    def _results(self, scope: _Scope, end: str) -> tuple[Value, ...]:
        self.tokens.expect_keyword(end, "at the end of the ops")
        values: list[Value] = []
        if self.tokens.peek().kind == "value":
            values.append(self._use(scope, self.tokens.next()))
            while self.tokens.accept(","):
                values.append(self._use(scope, self.tokens.expect("value", f"after ',' in {end}")))
        return tuple(values)

    # ---------------------------------------------------------------------- ops

    def _ops(self, scope: _Scope, end: str) -> tuple[Operation, ...]:
        ops: list[Operation] = []
        while not self.tokens.at_keyword(end):
            token = self.tokens.peek()
            if token.kind not in ("value", "name") or token.text in ("return", "yield"):
                hint = _OP_SHAPE
                raise self.tokens.error(f"expected an op or '{end}', got {token}", token, hint=hint)
            ops.append(self._op(scope))
        return tuple(ops)

    def _op(self, scope: _Scope) -> Operation:
        stream = self.tokens
        defined: list[Token] = []
        while stream.peek().kind == "value":
            defined.append(stream.next())
            if stream.accept(",") is None:
                break
        if defined:
            stream.expect("=", "after the result names", hint=_OP_SHAPE)
        name = stream.expect("name", "of an op", hint=_OP_SHAPE)
        spec = self._spec(name)
        operands = self._operands(scope, f"after '{name.text}'")
        control: list[Value] = []
        if stream.at_keyword("after"):
            stream.next()
            control = self._operands(scope, "after 'after'")
        attrs = self._attributes(spec)
        printed: list[tuple[Type, Token, Token]] = []
        if stream.accept(":"):
            printed = self._printed_types()
        device, group = self._device(), self._group()
        regions = self._regions(scope)
        op = self._make(name, operands, attrs, regions, control)
        self._compare_types(op, name, printed)
        if len(defined) != len(op.results):
            raise stream.error(
                f"'{op.name}' has {len(op.results)} results, but {len(defined)} are named",
                defined or name,
                hint=_OP_SHAPE,
            )
        op.locations = self._locations()
        op.device, op.group = device, group
        for token, value in zip(defined, op.results, strict=True):
            self._define(scope, token, value)
        return op

    def _spec(self, name: Token) -> OpSpec:
        spec = OPS.get(name.text)
        if spec is None:
            what = f"there is no op '{name.text}'{suggest(name.text, list(OPS))}"
            hint = "ops of your own are registered (wf.register_op) before the text is read"
            raise self.tokens.error(what, name, hint=hint)
        return spec

    def _make(
        self,
        name: Token,
        operands: Sequence[Value],
        attrs: Mapping[str, AttrValue],
        regions: Sequence[Block],
        control: Sequence[Value],
    ) -> Operation:
        try:
            return make_op(name.text, operands, attrs, regions=regions, control=control)
        except WeftError as error:
            raise self.tokens.error(error.what, name, hint=error.hint) from error

    def _printed_types(self) -> list[tuple[Type, Token, Token]]:
        """The types after ':', each with its first and last token."""
        out: list[tuple[Type, Token, Token]] = []
        while not out or self.tokens.accept(","):
            first = self.tokens.peek()
            type_ = self.read.type("as a result type")
            out.append((type_, first, self.tokens.peek(-1)))
        return out

    def _compare_types(
        self, op: Operation, name: Token, printed: Sequence[tuple[Type, Token, Token]]
    ) -> None:
        inferred = [r.type for r in op.results]
        hint = f"write: : {_listed(inferred)}" if inferred else f"'{op.name}' has no results"
        if len(printed) != len(inferred):
            raise self.tokens.error(
                f"'{op.name}' has {len(inferred)} results, but {len(printed)} types are given",
                [printed[0][1], printed[-1][2]] if printed else name,
                hint=hint,
            )
        for (given, first, last), wanted in zip(printed, inferred, strict=True):
            if given != wanted:
                raise self.tokens.error(
                    f"the type is given as {given}, but '{op.name}' gives {wanted}",
                    [first, last],
                    hint=hint,
                )

    # ---------------------------------------------------------------------- op parts

    def _attributes(self, spec: OpSpec) -> dict[str, AttrValue]:
        stream = self.tokens
        attrs: dict[str, AttrValue] = {}
        if stream.peek().kind != "{" or stream.peek(1).kind == "^":
            return attrs
        stream.next()
        while not stream.accept("}"):
            if attrs:
                stream.expect(",", "or '}' after an attribute")
            token = stream.expect("name", "of an attribute")
            key = token.text
            if key not in spec.attrs:
                raise stream.error(
                    f"op '{spec.name}' has no attribute '{key}'{suggest(key, list(spec.attrs))}",
                    token,
                    hint=f"its attributes are: {', '.join(spec.attrs) or 'none'}",
                )
            if key in attrs:
                raise stream.error(f"the attribute '{key}' is given twice", token)
            stream.expect("=", f"after the attribute's name '{key}'")
            attrs[key] = self.read.attribute(spec.name, key, spec.attrs[key])
        return attrs

    def _device(self) -> str:
        """The canonical text in `device("...")`, if that comes next."""
        if not self._at_call("device"):
            return ""
        token = self.tokens.peek()
        try:
            device = canonical_device(self.read.string("(the device) in device(...)"))
        except InvalidArgumentError as error:
            raise self.tokens.error(error.what, token, hint=error.hint) from None
        self.tokens.expect(")", "at the end of device(...)")
        return device

    def _group(self) -> str:
        """The name in `group("...")`, if that comes next and is not the next op."""
        if not self._at_call("group"):
            return ""
        name = self.read.string("(the group's name) in group(...)")
        self.tokens.expect(")", "at the end of group(...)")
        return name

    def _at_call(self, word: str) -> bool:
        """Pass over `word(` if a string follows: `group()` alone is an op without results."""
        stream = self.tokens
        if not stream.at_keyword(word) or stream.peek(2).kind != "string":
            return False
        stream.next()
        stream.expect("(", f"after '{word}'")
        return True

    def _regions(self, scope: _Scope) -> list[Block]:
        stream, regions = self.tokens, []
        while stream.peek().kind == "{" and stream.peek(1).kind == "^":
            opening = stream.next()
            stream.next()
            self.depth += 1
            if self.depth > _MAX_NESTING:
                raise stream.error(f"regions nested more than {_MAX_NESTING} deep", opening)
            inner = _Scope(scope)
            args = self._arguments(inner)
            ops = self._ops(inner, "yield")
            results = self._results(inner, "yield")
            stream.expect("}", "at the end of the region", hint="'yield' ends a region")
            regions.append(Block(tuple(args), ops, results))
            self.depth -= 1
        return regions

    def _locations(self) -> Locations:
        stream = self.tokens
        if not stream.at_keyword("loc"):
            return ()
        stream.next()
        stream.expect("(", "after 'loc'", hint='as in loc("m.py":12:5)')
        out: list[Location] = []
        while not out or stream.accept(","):
            if not out or stream.peek().kind != "int":  # else the file of the place before
                file = self._file()
                stream.expect(":", "and the line in loc(...)")
            line = self.read.integer("(the line) in loc(...)")
            stream.expect(":", "and the column in loc(...)")
            column = self.read.integer("(the column) in loc(...)")
            named = stream.peek().kind == "string"
            scope = self.read.string("(the scope) in loc(...)") if named else ""
            out.append(Location(file, line, column, scope))
        stream.expect(")", "at the end of loc(...)")
        return tuple(out)

    def _file(self) -> str:
        """A file of loc(...): its path, or a name that stands for it."""
        token = self.tokens.accept("name")
        if token is None:
            return self.read.string("(the file) in loc(...)")
        if token.text not in self.files:
            raise self.tokens.error(
                f"no file is called {token.text!r}", token,
                hint=f'a line after the graph says which: file {token.text} = "model.py"',
            )  # fmt: skip
        return self.files[token.text]

    def _named_files(self) -> dict[str, str]:
        """The files that `file NAME = "path"` lines after the graph at the cursor name."""
        stream, found = self.tokens, dict[str, str]()
        if "\nfile " not in stream.text:
            return found
        tokens = stream.tokens
        for i in range(stream.index + 1, len(tokens) - 3):
            if tokens[i].kind != "name":
                continue
            if tokens[i].text == "graph" and tokens[i + 1].kind == "symbol":
                break
            kinds = [token.kind for token in tokens[i : i + 4]]
            if tokens[i].text == "file" and kinds == ["name", "name", "=", "string"]:
                found[tokens[i + 1].text] = self.read.unquoted(tokens[i + 3].text, tokens[i + 3])
        return found

    def _file_line(self, named: set[str]) -> None:
        """One that `_named_files` has read; named: the files before it."""
        token = self.tokens.expect("name", "after 'file'")
        if token.text in named:
            raise self.tokens.error(f"the file {token.text!r} is given twice", token)
        named.add(token.text)
        self.tokens.expect("=", "after the file's name", hint='as in file model = "model.py"')
        self.read.string("(the path) after 'file'")


def _listed(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))
