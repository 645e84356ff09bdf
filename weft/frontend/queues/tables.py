"""`MutableHashTable`: typed keys to values, kept on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from weft.frontend.queues import resources_in_graph as in_graph
from weft.frontend.queues.in_graph import made_at_once, or_effect, or_in_graph
from weft.frontend.queues.sharing import shared
from weft.frontend.queues.values import eager, label, tensors, value_of
from weft.frontend.tensor import Tensor
from weft.ir.dtypes import DType, as_dtype
from weft.runtime.resources.components import Array
from weft.runtime.resources.table import HashTable


class LookupTable:
    """What all tables share."""

    __slots__ = ("_table", "__weakref__")

    _table: HashTable

    def __repr__(self) -> str:
        t = self._table
        return f"<{t.kind} {t.name!r} {t}: {t.size()} keys>"

    @property
    def name(self) -> str:
        """The name given."""
        return self._table.name

    @property
    def key_dtype(self) -> DType:
        """The dtype of the keys."""
        return self._table.key_dtype

    @property
    def value_dtype(self) -> DType:
        """The dtype of the values."""
        return self._table.value_dtype

    @or_in_graph(in_graph.table_size)
    @eager
    def size(self, name: str | None = None) -> Tensor:
        """The number of keys (and buckets), an int64 tensor."""
        return Tensor(np.asarray(self._table.size(), np.int64))


class MutableHashTable(LookupTable):
    """Integers or strings to values of one dtype and shape: those of `default_value`, which a key
    that is not there has. Every call is atomic. Tables with one `shared_name` are one.

    In a `wf.Graph` the table is made at once, and the methods add ops: what changes the table is an
    effect.
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, key_dtype: Any, value_dtype: Any, default_value: Any,
        shared_name: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        name = label(name, "mutable_hash_table")
        dtype = as_dtype(value_dtype)
        what = f"MutableHashTable '{name}': default_value"
        default = value_of(default_value, dtype, lambda: what)
        key = as_dtype(key_dtype)
        declared = f"{key.short} to {dtype.short} with {default.tolist()!r}"
        self._table = shared(
            shared_name, HashTable, declared, lambda: HashTable(key, default, dtype, name)
        )

    @or_in_graph(in_graph.lookup)
    @eager
    def lookup(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None
    ) -> Tensor:
        """The values of `keys` (any shape): keys.shape + value shape. Keys that are not there have
        the default value, or their own of `dynamic_default_values`."""
        defaults = dynamic_default_values
        if defaults is not None:
            defaults = self._values(defaults, "lookup")
        return Tensor(self._table.lookup(self._keys(keys, "lookup"), defaults))

    def __getitem__(self, keys: Any) -> Tensor:
        return self.lookup(keys)

    @or_effect(in_graph.insert)
    @eager
    def insert(self, keys: Any, values: Any, name: str | None = None) -> None:
        """Store values (keys.shape + value shape) for keys; the last of a duplicate key stays.
        ShapeError or TypeRuleError if they do not fit; then nothing is stored."""
        self._table.insert(self._keys(keys, "insert"), self._values(values, "insert"))

    @or_effect(in_graph.remove)
    @eager
    def remove(self, keys: Any, name: str | None = None) -> None:
        """Forget keys; those that are not there are skipped."""
        self._table.remove(self._keys(keys, "remove"))

    @or_in_graph(in_graph.export)
    @eager
    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """(keys [n], values [n, ...]), in the order in which the keys came."""
        keys, values = tensors(self._table.export())
        return keys, values

    @or_effect(in_graph.import_values)
    @eager
    def import_values(self, keys: Any, values: Any, name: str | None = None) -> None:
        """Hold exactly these keys and values, as `export` gives them."""
        self._table.import_values(self._keys(keys, "import"), self._values(values, "import"))

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """Keys and values for a checkpoint."""
        return self._table.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what `state_dict` gave. Returns self."""
        self._table.load_state_dict(state)
        return self

    def _keys(self, keys: Any, operation: str) -> Array:
        t = self._table
        return value_of(keys, t.key_dtype, lambda: f"{t.describe()} ({t}): {operation}: keys")

    def _values(self, values: Any, operation: str) -> Array:
        t = self._table
        return value_of(values, t.value_dtype, lambda: f"{t.describe()} ({t}): {operation}: values")
