"""Parsing the text form of a graph, strictly: every fault is a ParseError that shows the line.

The grammar is in `printer`. Attributes may stand in any order; those with defaults and all
locations may be left out; each op's printed types must be the ones that its type rule infers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.attributes import AttrValue
from weft.ir.builder import make_op
from weft.ir.device import canonical_device
from weft.ir.errors import InvalidArgumentError, WeftError, suggest
from weft.ir.graph import STAGES, Block, Graph, Operation, Value
from weft.ir.ops import OPS
from weft.ir.source import Location, Locations
from weft.ir.spec import OpSpec
from weft.ir.text.lexer import Token, TokenStream
from weft.ir.text.parse_values import ValueParser
from weft.ir.text.printer import value_name
from weft.ir.types import Type

_MAX_NESTING = 50  # of regions: deeper is a corrupt file, and would exhaust Python's stack
_OP_SHAPE = "an op is written: %0 = add(%x, %y) : f32[2]"


def parse_graph(text: str, filename: str = "<text>") -> Graph:
    """The graph that `text` describes; the inverse of `print_graph`.

    Raises ParseError with `filename:line:column`, the line, a caret, and a hint.
    """
    return _GraphParser(TokenStream(text, filename)).graph()


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

    # ---------------------------------------------------------------------- graph

    def graph(self) -> Graph:
        stream = self.tokens
        hint = "as in: graph @step(%x: f32[2]) -> (f32[2]) stage=traced {"
        stream.expect_keyword("graph", "at the start", hint=hint)
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
        end = stream.peek()
        if end.kind != "end":
            raise stream.error(
                f"unexpected {end} after the end of the graph", end, hint="a text holds one graph"
            )
        block = Block(tuple(args), ops, results)
        return Graph(name, block, tuple(arg_names), stage, result_names, collections)

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
        found: dict[str, tuple[str, ...]] = {}
        while self.tokens.at_keyword("collection"):
            self.tokens.next()
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
            file = self.read.string("(the file) in loc(...)")
            stream.expect(":", "and the line in loc(...)")
            line = self.read.integer("(the line) in loc(...)")
            stream.expect(":", "and the column in loc(...)")
            out.append(Location(file, line, self.read.integer("(the column) in loc(...)")))
        stream.expect(")", "at the end of loc(...)")
        return tuple(out)


def _listed(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))
