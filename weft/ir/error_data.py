"""Errors as plain data, for messages and files: class name, text and places, rebuilt from a fixed
table. Nothing is unpickled, and a name that is not in the table is an UnknownError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.ir import errors
from weft.ir.errors import UnknownError, WeftError
from weft.ir.locations import Location

_CLASSES: Mapping[str, type[WeftError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, WeftError)
}
#: An error says at most so much; the rest is cut off.
MOST_CHARACTERS, MOST_HINT, MOST_LOCATIONS, MOST_FILE = 6_000, 1_500, 8, 500


def error_data(error: BaseException) -> dict[str, Any]:
    """`error` as what JSON can hold. What is no error of weft's becomes an UnknownError with its
    class."""
    if not isinstance(error, WeftError):
        error = UnknownError(f"{type(error).__name__}: {error}")
    places = [
        [_text(p.file, MOST_FILE), p.line, p.column] for p in error.locations[:MOST_LOCATIONS]
    ]
    return {
        "class": next(k.__name__ for k in type(error).__mro__ if k.__name__ in _CLASSES),
        "what": _text(error.what, MOST_CHARACTERS),
        "hint": None if error.hint is None else _text(error.hint, MOST_HINT),
        "places": places,
    }


def _text(given: object, most: int) -> str:
    """At most so much of it, with what UTF-8 does not have (half of a surrogate pair) spelt out."""
    return str(given)[:most].encode("utf-8", "backslashreplace").decode()


def error_of(data: object) -> WeftError:
    """The error of `error_data`; of data that is not well formed an UnknownError."""
    if not isinstance(data, Mapping):
        return UnknownError("a task reported an error that is not well formed")
    kind = _CLASSES.get(str(data.get("class")), UnknownError)
    hint = data.get("hint")
    return kind(
        str(data.get("what", "an error without a text"))[:MOST_CHARACTERS],
        hint=None if hint is None else str(hint)[:MOST_HINT],
        location=_locations(data.get("places")),
    )


def _locations(data: object) -> tuple[Location, ...]:
    found = []
    for place in data[:MOST_LOCATIONS] if isinstance(data, (list, tuple)) else ():
        match place:
            case [str() as file, int() as line, int() as column] if "\0" not in file:
                found.append(Location(file, line, column))
    return tuple(found)
