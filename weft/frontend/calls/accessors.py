"""Python code generated for one structure of nested containers: what a call would pay for walking
it.

`flattener` gives the leaves of a tree of exactly that structure in one go (about 0.1 us a leaf,
where `pytree.flatten` takes 1 us), `packer` builds the tree of results. Source text is made and
executed, as `dataclasses` and `namedtuple` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.frontend import pytree
from weft.frontend.device_array import DeviceArray
from weft.frontend.tensor import Tensor

Flattener = Callable[[Any], list[Any] | None]
_MAX_DEPTH = 50  # of generated brackets: Python parses 200


class _Source:
    """Lines of a function, and the objects that they refer to by generated names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.count = 0

    def name(self, value: Any) -> str:
        """A global name for an object."""
        name = f"g{len(self.names)}"
        self.names[name] = value
        return name

    def local(self) -> str:
        """A fresh local name."""
        self.count += 1
        return f"v{self.count}"

    def function(self) -> Any:
        """The function, called `made` in the source."""
        exec("\n".join(self.lines), self.names)
        return self.names["made"]


def flattener(structure: pytree.Structure) -> Flattener | None:
    """A function from a tree to its leaves, or to None if the tree has another structure.

    A container where `structure` has a leaf is given back as if it were one. There is no such
    function (None) for structures with classes from `register_pytree`.
    """
    source = _Source()
    source.lines += ["def made(tree):", " try:"]
    leaves: list[str] = []
    if not _take_apart(source, structure, "tree", leaves):
        return None
    source.lines += [
        f"  return [{', '.join(leaves)}]",
        " except (KeyError, AttributeError):",
        "  return None",
    ]
    made: Flattener = source.function()
    return made


def _take_apart(source: _Source, node: pytree.Structure, value: str, leaves: list[str]) -> bool:
    if node is None:
        leaves.append(value)
        return True
    getters = _getters(source, node, value)
    if getters is None:
        return False
    sized = (
        f" or len({value}) != {len(node.children)}"
        if issubclass(node.cls, (dict, list, tuple))
        else ""
    )
    source.lines.append(f"  if type({value}) is not {source.name(node.cls)}{sized}: return None")
    for getter, child in zip(getters, node.children, strict=True):
        inner = source.local()
        source.lines.append(f"  {inner} = {getter}")
        if not _take_apart(source, child, inner, leaves):
            return False
    return True


def _getters(source: _Source, node: pytree.Node, value: str) -> Sequence[str] | None:
    """An expression for each child of a container; None for a class of the user's."""
    if pytree.is_custom(node.cls):
        return None
    if node.cls is type(None):
        return []
    if issubclass(node.cls, dict):
        if node.cls is not dict:  # an OrderedDict's order is part of its structure
            return None
        assert isinstance(node.meta, tuple)
        return [f"{value}[{source.name(key)}]" for key in node.meta]
    if issubclass(node.cls, (tuple, list)):
        return [f"{value}[{i}]" for i in range(len(node.children))]
    return [f"{value}.{name}" for name in pytree.field_names(node.cls)]


def packer(
    structure: pytree.Structure, weak: Sequence[bool], on_gpu: bool = False
) -> Callable[[list[Any]], Any]:
    """A function from result arrays (on_gpu: arrays on a device) to the tree of tensors; `weak`
    says which of them are weak."""
    kind: Any = DeviceArray if on_gpu else Tensor
    if pytree.depth(structure) > _MAX_DEPTH:
        return lambda arrays: pytree.unflatten(
            structure, [kind(a, weak=w) for a, w in zip(arrays, weak, strict=True)]
        )
    source = _Source()
    tensor = source.name(kind)
    leaves = (
        f"{tensor}(a[{i}], weak=True)" if w else f"{tensor}(a[{i}])" for i, w in enumerate(weak)
    )
    source.lines += ["def made(a):", f" return {_put_together(source, structure, leaves)}"]
    made: Callable[[list[Any]], Any] = source.function()
    return made


def _put_together(source: _Source, node: pytree.Structure, leaves: Iterator[str]) -> str:
    if node is None:
        return next(leaves)
    children = [_put_together(source, child, leaves) for child in node.children]
    if node.cls is tuple:
        return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
    if node.cls is list:
        return f"[{', '.join(children)}]"
    if node.cls is type(None):
        return "None"
    if node.cls is dict:
        assert isinstance(node.meta, tuple)
        pairs = zip(node.meta, children, strict=True)
        return "{" + ", ".join(f"{source.name(key)}: {child}" for key, child in pairs) + "}"
    build = source.name(lambda made, node=node: pytree.build(node, made))
    return f"{build}([{', '.join(children)}])"
