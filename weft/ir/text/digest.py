"""The digest of a graph: equal for graphs that passes and code generation treat alike.

The names of the graph and of its inputs do not count, nor the source lines as such: an edited
comment above a function moves them all. Which ops have a line in common does count, as passes that
compare ops may ask that. Constants count by their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Location, Locations
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import TensorType, Type

_PLAIN = frozenset({int, bool, float, str, type(None)})


def digest_graph(graph: Graph) -> tuple[str, list[ConstArray]]:
    """The digest (hexadecimal), and the graph's constants, each once, in an order that equal graphs
    share."""
    reader = _Reader()
    rows = reader.block(graph.block)
    digest = hashlib.sha256(repr((graph.stage, rows)).encode())
    digest.update(repr(list(reader.contents)).encode())
    return digest.hexdigest(), reader.constants


class _Reader:
    """Numbers values, types, locations and constants by their first appearance."""

    def __init__(self) -> None:
        self.constants: list[ConstArray] = []
        self.contents: dict[str, int] = {}  # number of each constant by its dtype, shape and bytes
        self._seen: dict[int, int] = {}  # the same by its identity
        self._places: dict[Location, int] = {}
        # by identity: the graph keeps them, and to hash locations takes longer than the rest
        self._lines: dict[int, tuple[int, ...]] = {}
        self._types: dict[object, str] = {}

    def block(self, block: Block) -> list[object]:
        """The block in terms of numbers and plain Python values whose repr is exact."""
        number: dict[Value, int] = {}
        for value in block.args:
            number[value] = len(number)
        rows: list[object] = [[self._type(v.type) for v in block.args]]
        for op in block.ops:
            rows.append(self._op(op, number))
            for value in op.results:
                number[value] = len(number)
        rows.append([number[v] for v in block.results])
        return rows

    def _op(self, op: Operation, number: dict[Value, int]) -> tuple[object, ...]:
        return (
            op.name,
            [number[v] for v in op.operands],
            [number[v] for v in op.control] if op.control else 0,
            [self._type(v.type) for v in op.results],
            [v if type(v) in _PLAIN else self._attr(v) for v in op.attrs.values()],
            [self.block(region) for region in op.regions] if op.regions else 0,
            self._location(op.locations),
            (op.device, op.group) if op.device or op.group else 0,
        )

    def _type(self, given: Type) -> str:
        key = (id(given.dtype), given.shape) if type(given) is TensorType else given
        text = self._types.get(key)
        if text is None:
            text = self._types[key] = str(given)
        return text

    def _location(self, given: Locations) -> tuple[int, ...]:
        found = self._lines.get(id(given))
        if found is None:
            places = self._places
            found = tuple([places.setdefault(place, len(places)) for place in given])
            self._lines[id(given)] = found
        return found

    def _attr(self, value: AttrValue) -> object:
        if isinstance(value, tuple):
            return [v if type(v) in _PLAIN else self._attr(v) for v in value]
        if isinstance(value, ConstArray):
            return ("array", self._constant(value))
        if isinstance(value, DType):
            return ("dtype", value.name)
        if isinstance(value, SymbolicDim):
            return ("dim", str(value))
        if isinstance(value, (int, float, str)):  # of a class of its own, such as NumPy's float64
            return (type(value).__name__, repr(value))
        raise TypeError(f"an attribute of type {type(value).__name__}")

    def _constant(self, held: ConstArray) -> int:
        found = self._seen.get(id(held))
        if found is None:
            array = held.array
            content = _objects(array) if array.dtype == object else _bytes(array)
            key = repr((held.dtype.name, array.dtype.str, array.shape, content))
            found = self.contents.setdefault(key, len(self.contents))
            if found == len(self.constants):
                self.constants.append(held)
            self._seen[id(held)] = found
        return found


def _objects(array: np.ndarray[Any, Any]) -> Sequence[object]:
    return [(type(x).__name__, x) for x in array.ravel().tolist()]


def _bytes(array: np.ndarray[Any, Any]) -> str:
    """Small arrays as they are; of large ones a digest."""
    if array.nbytes <= 64:
        return array.tobytes().hex()
    return "sha256 " + hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
