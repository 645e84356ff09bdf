"""Tokens of the IR text, and parse errors that show the line with a caret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from weft.ir.dataclass import dataclass
from weft.ir.errors import ParseError
from weft.ir.locations import Location

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
