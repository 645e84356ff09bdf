"""Containers of tensors: flattening, structures, and the errors that name a place in them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import OrderedDict, namedtuple
from typing import Any

import pytest

import weft as wf
from weft.frontend.core import pytree
from weft.ir.errors import InvalidArgumentError, TypeRuleError

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Layer:
    w: Any
    b: Any = None


@pytest.mark.parametrize(
    ("tree", "leaves", "paths"),
    [
        (5, [5], [""]),
        (None, [], []),
        ((1, [2, 3]), [1, 2, 3], ["[0]", "[1][0]", "[1][1]"]),
        ({"b": 1, "a": 2}, [2, 1], ["['a']", "['b']"]),
        (Point(1, {"k": 2}), [1, 2], [".x", ".y['k']"]),
        (Layer(1, None), [1], [".w"]),
        (OrderedDict(z=1, y=2), [1, 2], ["['z']", "['y']"]),
        ((), [], []),
    ],
)
def test_flatten_and_unflatten(tree: Any, leaves: list[int], paths: list[str]) -> None:
    found, structure = pytree.flatten(tree)
    assert found == leaves
    assert pytree.paths(structure) == paths
    assert pytree.unflatten(structure, found) == tree
    assert hash(structure) == hash(pytree.flatten(tree)[1])


def test_structures_differ_by_class_keys_and_length() -> None:
    trees = [(1, 2), [1, 2], {"a": 1, "b": 2}, {"a": 1, "c": 2}, Point(1, 2), Layer(1, 2), (1,), 1]
    structures = [pytree.flatten(t)[1] for t in trees]
    assert len(set(structures)) == len(trees)


def test_custom_containers() -> None:
    class Box:
        def __init__(self, inside: Any, label: str) -> None:
            self.inside, self.label = inside, label

    leaves, _ = pytree.flatten([Box(1, "a")])
    assert isinstance(leaves[0], Box)
    pytree.register_pytree(
        Box, lambda b: ([b.inside], b.label), lambda label, c: Box(c[0], str(label))
    )
    leaves, structure = pytree.flatten([Box((1, 2), "a")])
    assert leaves == [1, 2]
    assert pytree.unflatten(structure, [3, 4])[0].inside == (3, 4)
    assert structure != pytree.flatten([Box((1, 2), "b")])[1]
    with pytest.raises(InvalidArgumentError, match="already"):
        pytree.register_pytree(Box, lambda b: ([], None), lambda m, c: Box(c, ""))


def test_tree_map_names_where_structures_differ() -> None:
    assert pytree.tree_map(lambda a, b: a + b, {"x": [1, 2]}, {"x": [3, 4]}) == {"x": [4, 6]}
    with pytest.raises(InvalidArgumentError, match=r"differ at \['x'\]") as caught:
        pytree.tree_map(lambda a, b: a, {"x": [1, 2]}, {"x": (1, 2)})
    assert "{'x': [*, *]}" in str(caught.value)


def test_unsortable_keys() -> None:
    with pytest.raises(
        InvalidArgumentError, match="cannot be sorted: they are of the types int, str"
    ):
        pytree.flatten({1: 0, "a": 0})


def test_unflatten_counts_leaves() -> None:
    with pytest.raises(InvalidArgumentError, match="2 leaves was given 3"):
        pytree.unflatten(pytree.flatten((1, 2))[1], [1, 2, 3])


def nested(depth: int, wrap: Any = lambda a: [a], leaf: Any = 1.0) -> Any:
    return functools.reduce(lambda a, _: wrap(a), range(depth), leaf)


@pytest.mark.parametrize("depth", [49, 51, 150, 300])
def test_deep_containers(depth: int) -> None:
    f = wf.compile(lambda tree: pytree.tree_map(lambda x: x + 1, tree))
    for _ in range(2):
        assert pytree.tree_leaves(f(nested(depth)))[0] == 2
    assert str(f(nested(depth, lambda a: (a,)))).startswith("(" * depth + "Tensor")


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "call",
    [
        lambda tree: wf.compile(lambda t: t)(tree),
        lambda tree: wf.compile(lambda x: tree)(1.0),
        lambda tree: wf.grad(lambda t: 1.0)(tree),
        pytree.flatten,
        wf.asarray,
    ],
)
@pytest.mark.parametrize("cyclic", [True, False])
def test_containers_without_end(call: Any, cyclic: bool) -> None:
    tree = nested(100_000)
    if cyclic:
        tree = [1.0]
        tree.append(tree)
    with pytest.raises(InvalidArgumentError, match="is nested too deeply, or contains itself"):
        call(tree)


@dataclasses.dataclass
class Named:
    w: Any
    name: str
    b: Any


@dataclasses.dataclass
class Single:
    w: Any
    name: str


@pytest.mark.parametrize("given", [Named(1.0, "n", 2.0), Single(1.0, "n")])
def test_the_hint_for_a_field_that_is_no_tensor_works(given: Any) -> None:
    f = wf.compile(lambda p: p)
    with pytest.raises(TypeRuleError, match=r"argument p\['k'\]\.name of .* is a str") as caught:
        f({"k": given})
    (hint,) = re.findall(r"hint: .*: (wf\.register_pytree\(.*\))$", str(caught.value))
    eval(hint)
    assert f({"k": given})["k"] == given
    assert f({"k": dataclasses.replace(given, name="m")})["k"].name == "m"


@pytest.mark.parametrize("given", [{"a": 1.0, "s": "x"}, [1.0, "x"], Point(1.0, "x")])
def test_a_setting_inside_a_container(given: Any) -> None:
    with pytest.raises(TypeRuleError, match="pass it as an argument of its own, named in static"):
        wf.compile(lambda p: p)(given)
