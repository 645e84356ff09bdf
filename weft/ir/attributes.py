"""Compile-time attributes of ops: which values they may have, and how arrays are held immutably."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import TypeRuleError, suggest
from weft.ir.sizes import is_traced


class ConstArray:
    """An immutable, hashable NumPy array: the value of a `constant`. Equal if dtype, shape and
    bits are.
    """

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        copy = np.array(array, dtype=as_dtype(array.dtype).numpy, order="C", copy=True)
        copy.setflags(write=False)
        self.array = copy
        self._hash: int | None = None

    @property
    def dtype(self) -> DType:
        return as_dtype(self.array.dtype)

    def is_valid(self) -> bool:
        """Whether its elements are of its dtype: strings are `bytes`, and only they are objects."""
        if self.array.dtype != object:
            return True
        return all(isinstance(value, bytes) for value in self.array.flat)

    def _key(self) -> object:
        data = (
            tuple(self.array.ravel().tolist())
            if self.array.dtype == object
            else self.array.tobytes()
        )
        return (self.array.dtype.str, self.array.dtype.name, self.array.shape, data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstArray) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        return f"ConstArray({self.array!r})"


AttrKind = Literal["int", "float", "bool", "str", "dtype", "ints", "dim", "shape", "array", "strs"]
AttrValue = int | float | bool | str | DType | ConstArray | SymbolicDim | tuple[Any, ...] | None
Attrs = Mapping[str, AttrValue]

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """One attribute of an op: its kind, its default (REQUIRED: none), whether None is a legal
    value.
    """

    kind: AttrKind
    default: Any = REQUIRED
    optional: bool = False

    def accepts(self, value: AttrValue) -> bool:
        """Whether `value` is of this kind."""
        if value is None:
            return self.optional
        is_int = isinstance(value, int) and not isinstance(value, bool)
        match self.kind:
            case "int":
                return is_int
            case "dim":
                return is_int or isinstance(value, SymbolicDim)
            case "float":
                return isinstance(value, float)
            case "bool":
                return isinstance(value, bool)
            case "str":
                return isinstance(value, str)
            case "dtype":
                return isinstance(value, DType)
            case "array":
                return isinstance(value, ConstArray)
            case "strs":
                return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
            case "ints":
                return isinstance(value, tuple) and all(_is_size(v) for v in value)
            case "shape":
                return isinstance(value, tuple) and all(
                    v is None or type(v) is SymbolicDim or _is_size(v) for v in value
                )


def _is_size(value: object) -> bool:
    """Whether `value` is an integer, of which its users may take what they like: no bool."""
    return type(value) is int or is_traced(value)


def complete_attrs(op: str, schema: Mapping[str, AttrSpec], given: Attrs) -> dict[str, AttrValue]:
    """`given` in schema order with defaults filled in. Raises TypeRuleError for a wrong set of
    attributes.
    """
    unknown = [k for k in given if k not in schema]
    if unknown:
        raise TypeRuleError(
            f"op '{op}' has no attribute '{unknown[0]}'{suggest(unknown[0], list(schema))}",
            hint=f"its attributes are: {', '.join(schema) or 'none'}",
        )
    out: dict[str, AttrValue] = {}
    for name, spec in schema.items():
        value = given.get(name, spec.default)
        if value is REQUIRED:
            raise TypeRuleError(f"op '{op}' needs the attribute '{name}' ({spec.kind})")
        if not spec.accepts(value):
            raise TypeRuleError(
                f"op '{op}': attribute '{name}' must be of kind {spec.kind}, got {value!r}"
            )
        out[name] = value
    return out
