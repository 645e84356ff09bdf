"""Arguments of compiled functions that are numbers of a subclass of Python's."""

from __future__ import annotations

import enum
from typing import Any

import weft as wf


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Metres(float):
    """A float with a name."""


def test_subclasses_are_what_they_derive_from() -> None:
    """One specialisation, the same type of result, and the value counts in every call."""
    f = wf.compile(lambda x: x + 1)
    for given in (Level.HIGH, 3, Level.LOW, 1, Level.HIGH, Metres(2.5), 2.5):
        result = f(given)
        plain = f(float(given) if isinstance(given, float) else int(given))
        assert (result.item(), result.dtype, result.weak) == (given + 1, plain.dtype, plain.weak)
    assert f.cache_info().made == 2, "an int and a float"


def test_nested_by_name_and_in_a_trace() -> None:
    def total(x: Any, y: Any = 0) -> Any:
        return x["a"] * 10 + y

    f = wf.compile(total)
    for _ in range(3):
        assert f({"a": Level.HIGH}, y=Level.LOW).item() == 31
    assert wf.compile(lambda x: f({"a": Level.HIGH}, x))(5).item() == 35
