"""Reading a dimension: `7`, `b`, `b*28+1`, `max(b-1,0)`, `?`; the inverse of printing it."""

from __future__ import annotations

import re

from weft.ir.dims import Dim, SymbolicDim
from weft.ir.errors import ShapeError
from weft.ir.size_functions import divided, largest, least

_FUNCTIONS = {"max": largest, "min": least, "div": divided}
_TOKEN = re.compile(r"\w+|[-+*(),]")
MAX_DEPTH = 40


def parse_dim(text: str) -> Dim:
    """The dimension that `text` is. Raises ShapeError."""
    if text == "?":
        return None
    reader = _Reader(text)
    dim = reader.sum(0)
    if reader.tokens:
        raise reader.error()
    return dim


class _Reader:
    """What is left of the text, in tokens."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, _TOKEN.findall(text)
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
