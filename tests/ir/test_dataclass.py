"""`weft.ir.dataclass`: as `dataclasses.dataclass`, with methods compiled when they are called."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.ir.dataclass import dataclass

WAYS: list[dict[str, bool]] = [
    {"frozen": frozen, "slots": slots, **more}
    for frozen in (False, True)
    for slots in (False, True)
    for more in ({}, {"eq": False}, {"order": True})
]


def _point(decorate: Callable[[type[Any]], type[Any]]) -> type[Any]:
    """A class with one field of each kind."""

    class Point:
        """A point."""

        x: int
        y: float = 1.5
        tags: list[str] = field(default_factory=list)
        note: str = field(default="n", repr=False, compare=False)
        sum: float = field(init=False, hash=False)
        made: list[int] = field(init=False, default_factory=lambda: [7])
        fixed: int = field(init=False, default=3)
        unit: str = field(default="m", kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.x + self.y)

    return decorate(Point)


def _seen(action: Callable[[], Any]) -> object:
    """What an action returns, or what it raises."""
    try:
        return action()
    except Exception as error:
        return type(error), re.sub(r" at 0x\w+", "", str(error))


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_the_same_as_the_standard_librarys(ways: dict[str, bool]) -> None:
    results = []
    for decorate in (dataclasses.dataclass(**ways), dataclass(**ways)):
        cls = _point(decorate)
        a, b, c = cls(1), cls(1, note="other"), cls(2, 0.5, ["t"], unit="km")
        d, e = cls(1, 2.0, ()), cls(1, 2.0, ())
        results.append(
            [
                repr(c),
                (a == b, a != b, a == c, a == 1, a.__eq__(b) is NotImplemented),
                [_seen(lambda: x < y) for x, y in ((a, c), (c, a), (a, b))],  # noqa: B023
                [_seen(lambda: x >= y) for x, y in ((a, c), (c, a), (a, b))],  # noqa: B023
                _seen(lambda: hash(d) == hash(e)),  # noqa: B023
                cls.__hash__ is None,
                cls.__match_args__,
                a.tags is not b.tags,
                _seen(lambda: cls()),  # noqa: B023
                _seen(lambda: cls(1, 2, [], "n", "km")),  # noqa: B023
                _seen(lambda: cls(1, z=2)),  # noqa: B023
                _seen(lambda: setattr(a, "x", 5)),  # noqa: B023
                _seen(lambda: delattr(a, "x")),  # noqa: B023
                dataclasses.asdict(c),
                repr(dataclasses.replace(c, x=4)),
                repr(copy.copy(c)), repr(copy.deepcopy(c)),
            ]
        )  # fmt: skip
    assert results[0] == results[1]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two of anything."""

    left: Any
    right: Any = None


def test_copies_and_a_repr_of_itself() -> None:
    pair = Pair([1], Pair("a"))
    assert copy.deepcopy(pair) == pair
    assert copy.copy(pair).left is pair.left
    held: list[Any] = []
    held.append(Pair(held))
    assert repr(held[0]).endswith("left=[...], right=None)")


def test_a_subclass_and_what_the_class_writes_itself() -> None:
    @dataclass(frozen=True)
    class Base:
        """A base."""

        x: int

        def __repr__(self) -> str:
            return f"<{self.x}>"

        def __hash__(self) -> int:
            return 5

    @dataclass(frozen=True)
    class Derived(Base):
        """With one more."""

        y: int = 2

    class Plain(Base):
        """No dataclass: what is new may be set."""

        z: int

    assert (repr(Base(1)), hash(Base(1)), Base(1) == Base(1)) == ("<1>", 5, True)
    assert repr(Derived(1)).endswith("Derived(x=1, y=2)")
    assert Derived(1) != Base(1)
    assert hash(Derived(1)) == hash((1, 2))
    plain = Plain(1)
    plain.z = 4
    assert plain.z == 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        plain.x = 2  # type: ignore[misc]


def test_a_method_is_compiled_by_its_first_call() -> None:
    @dataclass
    class Lazy:
        """Nothing of it is used yet."""

        x: int

    methods = ("__init__", "__repr__", "__eq__")
    first = [vars(Lazy)[m] for m in methods]
    a = Lazy(1)
    assert [vars(Lazy)[m] is f for m, f in zip(methods, first, strict=True)] == [False, True, True]
    assert a == Lazy(1)
    assert repr(a).endswith("Lazy(x=1)")
    assert not any(vars(Lazy)[m] is f for m, f in zip(methods, first, strict=True))
    first[0](a, 3)  # as one who wrapped it before still calls it
    assert a.x == 3


def test_signatures_are_the_standard_librarys() -> None:
    """Before and after the first instance, as `help` and notebooks ask for them."""
    plain, lazy = _point(dataclasses.dataclass), _point(dataclass)
    wanted = str(inspect.signature(plain))
    assert wanted.startswith("(x: 'int', y: 'float' = 1.5, tags: 'list[str]' = <factory>, note")
    assert str(inspect.signature(lazy)) == wanted
    lazy(1)
    assert str(inspect.signature(lazy)) == wanted


def test_all_of_weft_uses_it() -> None:
    """But `comm`, which knows nothing of `ir`, and is loaded for clusters only."""
    root = Path(str(weft.__file__)).parent
    found = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        if re.search(r"^\s*from dataclasses import .*\bdataclass\b", path.read_text("utf-8"), re.M)
    }
    assert found == {"comm"}
