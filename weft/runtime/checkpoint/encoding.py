"""What safetensors has no word for: complex128, strings, and nested state.

A safetensors file maps names to arrays of numbers. complex128 is stored as float64 with a last
axis of 2; strings as their bytes, one after the other, with their lengths beside them. Nested state
(what a `state_dict()` returns) is JSON in which every array is a reference to one in the file.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from weft.ir.dtypes import DType, as_dtype, complex128, string
from weft.ir.errors import DataLossError, TypeRuleError

Array: TypeAlias = np.ndarray[Any, Any]

#: Names in a file that are not a variable's begin so.
RESERVED = "weft."
_LENGTHS = "weft.lengths/"


def encode_array(name: str, array: Array) -> dict[str, Array]:
    """The arrays that stand for one in the file, C-contiguous. TypeRuleError for a dtype that is
    not weft's, or elements of a string array that are neither bytes nor str."""
    dtype = as_dtype(array.dtype)
    if dtype is string:
        items = [_as_bytes(name, item) for item in array.ravel().tolist()]
        lengths = np.array([len(b) for b in items], np.int64).reshape(array.shape)
        return {name: np.frombuffer(b"".join(items), np.uint8), _LENGTHS + name: lengths}
    native = np.ascontiguousarray(array, dtype.numpy).reshape(-1)  # a view needs an axis
    if dtype is complex128:
        return {name: native.view(np.float64).reshape((*array.shape, 2))}
    return {name: native.reshape(array.shape)}


def parts_of(name: str, dtype: DType) -> tuple[str, ...]:
    """The names in the file that `encode_array` makes for an array of that dtype."""
    return (name, _LENGTHS + name) if dtype is string else (name,)


def is_part(name: str) -> bool:
    """Whether a name in the file is one that only belongs to another."""
    return name.startswith(_LENGTHS)


def decode_array(name: str, dtype: DType, parts: Mapping[str, Array]) -> Array:
    """The array that `encode_array` was given. DataLossError if its parts do not fit together."""
    stored = parts[name]
    if dtype is complex128:
        return stored.reshape(-1).view(np.complex128).reshape(stored.shape[:-1])
    if dtype is not string:
        return stored
    lengths, data = parts[_LENGTHS + name], stored.tobytes()
    ends = np.cumsum(lengths.ravel())
    if (lengths < 0).any() or (int(ends[-1]) if ends.size else 0) != len(data):
        raise DataLossError(f"the strings of '{name}' and their lengths do not fit together")
    out = np.empty(lengths.shape, object)
    starts = ends - lengths.ravel()
    out.ravel()[:] = [data[a:b] for a, b in zip(starts, ends, strict=True)]
    return out


def _as_bytes(name: str, item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeRuleError(
        f"'{name}' holds a {type(item).__name__} in an array of objects",
        hint="such arrays are weft's strings: bytes or str",
    )


def encode_tree(tree: Any, name: str, add: Callable[[str, Array], None]) -> Any:
    """`tree` as JSON; `add(name, array)` is called for each array in it.

    Dicts, lists, tuples, None, bool, int, float, str, bytes, arrays and NumPy scalars (which become
    arrays of rank 0). TypeRuleError, with the place, for anything else.
    """
    if isinstance(tree, np.ndarray | np.generic):  # first: np.float64 is a Python float, too
        add(name, np.asarray(tree))
        return {"$array": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, bytes):
        return {"$bytes": base64.b64encode(tree).decode()}
    if isinstance(tree, Mapping):
        keys = list(tree)
        if all(isinstance(k, str) and not k.startswith("$") for k in keys):
            return {k: encode_tree(v, f"{name}/{k}", add) for k, v in tree.items()}
        pairs = [[k, encode_tree(v, f"{name}/{k}", add)] for k, v in tree.items()]
        if all(isinstance(k, str | int) and not isinstance(k, bool) for k in keys):
            return {"$dict": pairs}
    elif isinstance(tree, list | tuple):
        items = [encode_tree(v, f"{name}/{i}", add) for i, v in enumerate(tree)]
        return items if isinstance(tree, list) else {"$tuple": items}
    raise TypeRuleError(
        f"the state '{name}' holds a {type(tree).__name__}, which a checkpoint cannot store",
        hint="state_dict() returns dicts (keys: str or int), lists and tuples of arrays, numbers, "
        "str, bytes, bool and None",
    )


def decode_tree(tree: Any, get: Callable[[str], Array]) -> Any:
    """What `encode_tree` was given; `get(name)` returns an array of the file."""
    if isinstance(tree, list):
        return [decode_tree(v, get) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if "$bytes" in tree:
        return base64.b64decode(tree["$bytes"])
    if "$array" in tree:
        return get(tree["$array"])
    if "$tuple" in tree:
        return tuple(decode_tree(v, get) for v in tree["$tuple"])
    if "$dict" in tree:
        return {k: decode_tree(v, get) for k, v in tree["$dict"]}
    return {k: decode_tree(v, get) for k, v in tree.items()}
