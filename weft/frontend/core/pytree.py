"""Nested containers of tensors: flatten to a list of leaves and a hashable structure, and back.

Containers are dict (by sorted keys; OrderedDict by its own order), list, tuple, namedtuple,
dataclasses, None (no leaf) and classes given to `register_pytree`; everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

T = TypeVar("T")
Flatten = Callable[[Any], tuple[Iterable[Any], Hashable]]
Unflatten = Callable[[Hashable, list[Any]], Any]


class Node(NamedTuple):  # a tuple: it is hashed and compared on every call of a compiled function
    """A container: its class, what else identifies it (keys, fields), and the structures inside."""

    cls: type
    meta: Hashable
    children: tuple[Node | None, ...]  # None: a leaf


Structure = Node | None
LEAF: Structure = None

_custom: dict[type, tuple[Flatten, Unflatten]] = {}
_fields: dict[type, tuple[str, ...]] = {}
_LEAVES = frozenset({DType, TensorType})  # dataclasses that are no containers
_leaf_classes: set[type] = set(_LEAVES)  # seen before, and no containers


def register_pytree(cls: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Make instances of `cls` containers: `flatten(x) -> (children, meta)`, `unflatten(meta,
    children)`.

    `meta` must be hashable. InvalidArgumentError if the class is a container already.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> wf.register_pytree(Pair, lambda p: ([p.a, p.b], None), lambda _, ab: Pair(*ab))
    >>> wf.grad(lambda p: p.a * p.b)(Pair(2.0, 5.0)).a
    Tensor(5., dtype=float64, weak)
    """
    if cls in _custom or issubclass(cls, (dict, list, tuple)) or cls is type(None):
        raise InvalidArgumentError(
            f"{cls.__name__} is a pytree container already", location=caller_location()
        )
    _custom[cls] = (flatten, unflatten)
    _leaf_classes.intersection_update(_LEAVES)


#: By class: the container that one is among the results of a traced function, and more leaves.
_results: dict[type, Callable[[Node], tuple[Node, Sequence[Any]]]] = {}


def register_result(cls: type, convert: Callable[[Node], tuple[Node, Sequence[Any]]]) -> None:
    """Where a container of this class is a result of a traced function its structure is what
    `convert` gives, with these leaves after its own: sizes that the function alone knows."""
    _results[cls] = convert


def as_results(leaves: Sequence[Any], structure: Structure) -> tuple[list[Any], Structure]:
    """Leaves and structure of results, with what `register_result` was told."""
    out: list[Any] = []
    given = iter(leaves)

    def converted(part: Structure) -> Structure:
        if part is None:
            out.append(next(given))
            return None
        inside = part._replace(children=tuple(map(converted, part.children)))
        if part.cls not in _results:
            return inside
        made, more = _results[part.cls](inside)
        out.extend(more)
        return made

    return out, converted(structure)


class Incomplete:
    """The identifying rest of a container that has no leaves yet, as what is put into it first
    decides them. A loop that carries one looks at what its body gives, and begins with
    `completed`."""

    def completed(self, like: Node, leaves: Sequence[Any]) -> Any:
        """The container with leaves like these, which make up the container `like`."""
        raise NotImplementedError


def is_incomplete(structure: Structure) -> bool:
    """Whether a container in it has no leaves yet."""
    return structure is not None and (
        isinstance(structure.meta, Incomplete) or any(map(is_incomplete, structure.children))
    )


def completed(
    structure: Structure, leaves: Iterator[Any], like: Structure, found: Iterator[Any]
) -> Any:
    """The tree of a structure with these leaves, containers without leaves as those of the same
    place in `like`, of which `found` are the leaves."""
    if structure is None or like is None:
        for _ in range(count_leaves(like)):
            next(found)
        return rebuild(structure, leaves)
    if isinstance(structure.meta, Incomplete):
        own = [next(found) for _ in range(count_leaves(like))]
        return structure.meta.completed(like, own)
    if len(structure.children) != len(like.children):  # an error that the loop tells of
        return rebuild(structure, leaves)
    pairs = zip(structure.children, like.children, strict=True)
    return build(structure, [completed(child, leaves, there, found) for child, there in pairs])


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves in order, and the structure. InvalidArgumentError for dict keys that do not
    sort, and for containers that contain themselves or are nested too deeply for Python."""
    leaves: list[Any] = []
    try:
        return leaves, _flatten(tree, leaves)
    except RecursionError:
        raise InvalidArgumentError(
            "a list, dict or other container is nested too deeply, or contains itself",
            hint="sys.getrecursionlimit() is how deep Python goes",
            location=caller_location(),
        ) from None


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    cls = type(tree)
    if cls is tuple or cls is list:
        return Node(cls, None, tuple([_flatten(item, leaves) for item in tree]))
    opened = None if cls in _leaf_classes else _open(tree)
    if opened is None:
        _leaf_classes.add(cls)
        leaves.append(tree)
        return LEAF
    children, meta = opened
    return Node(cls, meta, tuple([_flatten(child, leaves) for child in children]))


def _open(tree: Any) -> tuple[Iterable[Any], Hashable] | None:
    """The children and the identifying rest of a container; None for a leaf."""
    cls = type(tree)
    if cls in _custom:
        return _custom[cls][0](tree)
    if tree is None:
        return (), None
    if isinstance(tree, dict):
        keys = tuple(tree) if isinstance(tree, OrderedDict) else _sorted_keys(tree)
        return [tree[k] for k in keys], keys
    if isinstance(tree, (tuple, list)):
        return tree, None
    names = _dataclass_fields(cls)
    return None if names is None else ([getattr(tree, n) for n in names], None)


def children(tree: Any) -> list[Any] | None:
    """What a container holds, in the order of its leaves; None for a leaf."""
    opened = _open(tree)
    return None if opened is None else list(opened[0])


def _sorted_keys(tree: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError:
        kinds = sorted({type(k).__name__ for k in tree})
        raise InvalidArgumentError(
            f"the keys of a dict cannot be sorted: they are of the types {', '.join(kinds)}",
            hint="use keys of one type, such as str",
            location=caller_location(),
        ) from None


def _dataclass_fields(cls: type) -> tuple[str, ...] | None:
    known = _fields.get(cls)
    if known is None and dataclasses.is_dataclass(cls):
        known = _fields[cls] = tuple(f.name for f in dataclasses.fields(cls))
    return known


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves. InvalidArgumentError for a wrong number of
    them."""
    wanted = count_leaves(structure)
    if wanted != len(leaves):
        raise InvalidArgumentError(
            f"a structure of {wanted} leaves was given {len(leaves)}", location=caller_location()
        )
    return rebuild(structure, iter(leaves))


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """`unflatten` for as many leaves as there must be."""
    if structure is None:
        return next(leaves)
    return build(structure, [rebuild(child, leaves) for child in structure.children])


def build(node: Node, children: list[Any]) -> Any:
    """The container of `node` around `children`."""
    cls = node.cls
    if cls in _custom:
        return _custom[cls][1](node.meta, children)
    if cls is type(None):
        return None
    if issubclass(cls, dict):
        assert isinstance(node.meta, tuple)
        return _make_dict(cls, zip(node.meta, children, strict=True))
    if issubclass(cls, (tuple, list)):
        return cls(*children) if hasattr(cls, "_fields") else cls(children)
    return _make_dataclass(cls, children)


def is_custom(cls: type) -> bool:
    """Whether the class was given to `register_pytree`."""
    return cls in _custom


def field_names(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass; none for other classes."""
    return _dataclass_fields(cls) or ()


def _make_dict(cls: type, items: Iterable[tuple[Any, Any]]) -> Any:
    if cls is dict:
        return dict(items)
    made = cls()  # OrderedDict, defaultdict (which loses its factory), user subclasses
    made.update(items)
    return made


def _make_dataclass(cls: type, children: list[Any]) -> Any:
    # not through __init__: it may convert or check fields, which are placeholders while tracing
    made: Any = object.__new__(cls)
    for name, child in zip(_dataclass_fields(cls) or (), children, strict=True):
        object.__setattr__(made, name, child)
    return made


def count_leaves(structure: Structure) -> int:
    """How many leaves a structure has."""
    return 1 if structure is None else sum(count_leaves(child) for child in structure.children)


def container_of(structure: Structure, i: int) -> type:
    """The class of the innermost container around leaf number `i`."""
    assert structure is not None
    for child in structure.children:
        count = count_leaves(child)
        if i < count:
            return structure.cls if child is None else container_of(child, i)
        i -= count
    raise IndexError(i)


def depth(structure: Structure) -> int:
    """How many containers are around the deepest leaf."""
    if structure is None:
        return 0
    return 1 + max((depth(child) for child in structure.children), default=0)


def paths(structure: Structure, root: str = "") -> list[str]:
    """Where each leaf is, as Python would write it: `params['w'][0].scale`."""
    if structure is None:
        return [root]
    names = [root + _step(structure, i) for i in range(len(structure.children))]
    return [
        p for name, child in zip(names, structure.children, strict=True) for p in paths(child, name)
    ]


def _step(node: Node, i: int) -> str:
    if issubclass(node.cls, dict):
        assert isinstance(node.meta, tuple)
        return f"[{node.meta[i]!r}]"
    names = getattr(node.cls, "_fields", None) or _dataclass_fields(node.cls)
    return f".{names[i]}" if names and node.cls not in _custom else f"[{i}]"


def describe(structure: Structure) -> str:
    """The structure with `*` for each leaf: `{'b': *, 'w': (*, *)}`."""
    if structure is None:
        return "*"
    if structure.cls is type(None):
        return "None"
    inner = [describe(child) for child in structure.children]
    if issubclass(structure.cls, dict):
        assert isinstance(structure.meta, tuple)
        return (
            "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(structure.meta, inner, strict=True)) + "}"
        )
    if structure.cls is list:
        return "[" + ", ".join(inner) + "]"
    name = "" if structure.cls is tuple else structure.cls.__name__
    return f"{name}({', '.join(inner)}{',' if structure.cls is tuple and len(inner) == 1 else ''})"


def same_structure(what: str, first: Structure, second: Structure) -> None:
    """Raise InvalidArgumentError, naming the first place where they differ, unless the two are
    equal."""
    if first != second:
        place = _difference(first, second, "")
        raise InvalidArgumentError(
            f"{what}: the structures {describe(first)} and {describe(second)} differ"
            + (f" at {place}" if place else ""),
            hint="both must be nested in the same way (same keys, lengths and classes)",
            location=caller_location(),
        )


def alike(first: Structure, second: Structure) -> bool:
    """Whether two structures are equal, namedtuples of the same name and fields taken as one
    class."""
    if first == second:
        return True
    if first is None or second is None or first.meta != second.meta:
        return False
    names = [(n.cls.__name__, getattr(n.cls, "_fields", None)) for n in (first, second)]
    same = first.cls is second.cls or (names[0] == names[1] and names[0][1] is not None)
    pairs = zip(first.children, second.children, strict=False)
    return same and len(first.children) == len(second.children) and all(alike(*p) for p in pairs)


def _difference(first: Structure, second: Structure, root: str) -> str:
    if first is None or second is None or (first.cls, first.meta) != (second.cls, second.meta):
        return root
    if len(first.children) != len(second.children):
        return root
    for i, (a, b) in enumerate(zip(first.children, second.children, strict=True)):
        if a != b:
            return _difference(a, b, root + _step(first, i))
    return root


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """`fn` on the leaves of `tree` (and of `rest`, nested alike), in the structure of `tree`.

    >>> wf.tree_map(lambda x, y: x + y, {"w": [1, 2], "b": 3}, {"w": [10, 20], "b": 30})
    {'b': 33, 'w': [11, 22]}
    """
    leaves, structure = flatten(tree)
    columns = [leaves]
    for other in rest:
        other_leaves, other_structure = flatten(other)
        same_structure("tree_map", structure, other_structure)
        columns.append(other_leaves)
    return unflatten(structure, [fn(*row) for row in zip(*columns, strict=True)])


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of `tree` in order.

    >>> wf.tree_leaves({"w": [1, 2], "b": None, "a": 3})  # by the sorted keys; None is no leaf
    [3, 1, 2]
    """
    return flatten(tree)[0]
