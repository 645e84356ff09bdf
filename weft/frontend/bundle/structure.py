"""Structures as JSON: how the arguments and results of a function in a bundle nest.

A leaf is its number among the inputs or results of the graph, None is null. The process that loads
a bundle need not have the classes of the one that wrote it: dataclasses come back as dicts, and
namedtuples as namedtuples of the same name and fields."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Iterator
from itertools import count
from keyword import iskeyword
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.pytree import Node, Structure
from weft.ir.errors import DataLossError, UnsupportedError

#: The deepest nesting that is written and read: Python's own limit is not far above.
_DEEPEST = 100


def structure_to_json(structure: Structure, what: str) -> Any:
    """JSON for a structure; `what` names it in errors. UnsupportedError for containers of the
    user's own (`wf.register_pytree`), dicts with keys that are neither str nor int, and what nests
    more than 100 times."""
    if pytree.depth(structure) > _DEEPEST:
        raise UnsupportedError(f"wf.export: {what} nests more than {_DEEPEST} times")
    return _to_json(structure, what, count())


def _to_json(structure: Structure, what: str, numbers: Iterator[int]) -> Any:
    if structure is None:
        return next(numbers)
    cls, parts = structure.cls, [_to_json(child, what, numbers) for child in structure.children]
    if cls is type(None):
        return None
    if pytree.is_custom(cls):
        raise UnsupportedError(
            f"wf.export: {what} holds a {cls.__name__}, which a process without that class cannot "
            "make",
            hint="pass and return tuples or dicts of its parts",
        )
    if issubclass(cls, dict):
        keys: Any = structure.meta
        pairs = [[_key(k, what), part] for k, part in zip(keys, parts, strict=True)]
        return {"ordered_dict" if issubclass(cls, OrderedDict) else "dict": pairs}
    fields = getattr(cls, "_fields", ("",))
    if issubclass(cls, tuple) and all(map(_is_field, fields)):
        return {"namedtuple": cls.__name__, "fields": list(fields), "parts": parts}
    if issubclass(cls, (tuple, list)):
        return {"tuple" if issubclass(cls, tuple) else "list": parts}
    names = pytree.field_names(cls)
    return {"dict": [[name, part] for name, part in zip(names, parts, strict=True)]}


def _key(key: object, what: str) -> str | int:
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key
    raise UnsupportedError(
        f"wf.export: {what} is a dict with the key {key!r:.60}",
        hint="keys are strings or integers",
    )


def structure_from_json(data: Any) -> tuple[Structure, list[int]]:
    """The structure that JSON tells of, and the number of each of its leaves, in their order.
    DataLossError for what `structure_to_json` never gives."""
    numbers: list[int] = []
    made = _from_json(data, numbers, 0)
    if sorted(numbers) != list(range(len(numbers))):
        raise _no_structure(data)
    return made, numbers


def _from_json(data: Any, numbers: list[int], depth: int) -> Structure:
    if type(data) is int:
        numbers.append(data)
        return None

    def inside(parts: Iterable[Any]) -> tuple[Structure, ...]:
        return tuple([_from_json(part, numbers, depth + 1) for part in parts])

    if data is None:
        return Node(type(None), None, ())
    if not isinstance(data, dict) or depth > _DEEPEST:
        raise _no_structure(data)
    match data:
        case {"tuple": list(parts)}:
            return Node(tuple, None, inside(parts))
        case {"list": list(parts)}:
            return Node(list, None, inside(parts))
        case {"dict": list(pairs)}:
            pairs = sorted(_checked(data, pairs), key=lambda pair: pair[0])
            return Node(dict, tuple([k for k, _ in pairs]), inside(part for _, part in pairs))
        case {"ordered_dict": list(pairs)}:
            keys = tuple([k for k, _ in _checked(data, pairs, mixed=True)])
            return Node(OrderedDict, keys, inside(part for _, part in pairs))
        case {"namedtuple": str(name), "fields": list(fields), "parts": list(parts)}:
            unique = len(set(map(str, fields))) == len(fields) == len(parts)
            if unique and _is_name(name) and all(map(_is_field, fields)):
                return Node(_named(name, tuple(fields)), None, inside(parts))
    raise _no_structure(data)


def _checked(data: Any, pairs: list[Any], mixed: bool = False) -> list[Any]:
    """`pairs`, if they are keys, each once and unless `mixed` of one type, with what they stand
    for."""
    kinds = {type(p[0]) if isinstance(p, list) and len(p) == 2 else None for p in pairs}
    if not (kinds <= {str, int}) or not (mixed or len(kinds) < 2):
        raise _no_structure(data)
    if len({p[0] for p in pairs}) < len(pairs):
        raise _no_structure(data)
    return pairs


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name)


def _is_field(name: object) -> bool:
    return _is_name(name) and str(name)[0] != "_"


_made: dict[tuple[str, tuple[str, ...]], type] = {}


def _named(name: str, fields: tuple[str, ...]) -> type:
    """The namedtuple of a name and fields, one class for all that are alike."""
    if (name, fields) not in _made:
        _made[name, fields] = namedtuple(name, fields)
    return _made[name, fields]


def _no_structure(data: object) -> DataLossError:
    return DataLossError(f"{str(data)[:80]!r} says nothing of how values nest")
