"""Tables: `HashTable`, keys to values of one shape, both typed, with lookups of many keys at once.

`StaticTable` and `VocabularyTable` never change once they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, int64, string
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, ShapeError
from weft.ir.ops.strings import fingerprint64
from weft.ir.spec import AttrValue, ConstArray
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.components import Array, check_saved, reading_state

_SMALLEST = 16


class HashTable(Resource):
    """Integers or byte strings to arrays of one shape. Every call is atomic.

    The values are rows of one array; a dict says which row belongs to which key.
    """

    kind = "MutableHashTable"
    graph_kind = "mutable"  # the attribute `kind` of the op

    def __init__(self, key_dtype: DType, default: Array, value_dtype: DType, name: str) -> None:
        super().__init__(name)
        if not key_dtype.is_integer and key_dtype is not string:
            raise InvalidArgumentError(
                f"{self.describe()}: keys of dtype {key_dtype.name}",
                hint="keys are integers or strings",
            )
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.default = default
        self.value_shape = default.shape
        self._rows = np.empty((_SMALLEST, *self.value_shape), value_dtype.numpy)
        self._row_of: dict[Any, int] = {}
        self._free: list[int] = []

    def __str__(self) -> str:
        value = f"{self.value_dtype.short}{format_shape(self.value_shape)}"
        return f"table<{self.key_dtype.short}[], {value}>"

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `table`."""
        value = f"{self.value_dtype.short}{format_shape(self.value_shape)}"
        return "table", {
            "parts": (f"{self.key_dtype.short}[]", value),
            "default": ConstArray(self.default),
            "kind": self.graph_kind,
        }

    def size(self) -> int:
        """The number of keys."""
        with self._lock:
            return len(self._row_of)

    def lookup(self, keys: Array, defaults: Array | None = None) -> Array:
        """The values, of shape keys.shape + value_shape. A key that is not there gives the default
        value, or its own of `defaults` (one value, or one for each key)."""
        shape = (*keys.shape, *self.value_shape)
        if defaults is None:
            defaults = self.default
        elif defaults.shape not in (shape, self.value_shape):
            raise ShapeError(
                f"{self.describe()} ({self}): lookup got default values of shape "
                f"{format_shape(defaults.shape)} for keys of shape {format_shape(keys.shape)}",
                hint=f"give {format_shape(self.value_shape)} or {format_shape(shape)}",
            )
        wanted = _flat(keys)
        with self._lock:
            places = map(self._row_of.get, wanted, repeat(-1))
            rows = np.fromiter(places, np.int64, len(wanted))
            found = rows >= 0
            if found.all():
                return np.take(self._rows, rows, axis=0).reshape(shape)
            out = np.array(np.broadcast_to(defaults, shape), self.value_dtype.numpy, order="C")
            flat = out.reshape(-1, *self.value_shape)
            flat[found] = self._rows[rows[found]]
        self._fill(keys, flat, np.flatnonzero(~found))
        return out

    def _fill(self, keys: Array, values: Array, missing: Array) -> None:
        """Change the values of keys that are not there. Here: they have the default value."""

    def insert(self, keys: Array, values: Array) -> None:
        """Store values for keys, over those that are there; the last of a duplicate key stays."""
        rows = self._checked(keys, values, "insert")
        with self._lock:
            self._store(_flat(keys), rows)

    def remove(self, keys: Array) -> None:
        """Forget keys; those that are not there are skipped."""
        with self._lock:
            for key in _flat(keys):
                row = self._row_of.pop(key, None)
                if row is not None:
                    self._free.append(row)

    def export(self) -> tuple[Array, Array]:
        """(keys [n], values [n, ...]), in the order in which the keys came."""
        with self._lock:
            keys = np.empty(len(self._row_of), self.key_dtype.numpy)
            keys[:] = list(self._row_of)
            values = self._rows[np.array(list(self._row_of.values()), np.int64)]
        return keys, values

    def import_values(self, keys: Array, values: Array) -> None:
        """Hold exactly these keys and values from now on."""
        rows = self._checked(keys, values, "import")
        with self._lock:
            self._row_of.clear()
            self._free.clear()
            self._rows = np.empty((_SMALLEST, *self.value_shape), self.value_dtype.numpy)
            self._store(_flat(keys), rows)

    def state_dict(self) -> dict[str, Any]:
        """The keys and values."""
        keys, values = self.export()
        return {"kind": self.kind, "keys": keys, "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. InvalidArgumentError, and no change, if it does not
        fit."""
        with reading_state(f"{self.describe()} ({self})"):
            keys, values = state["keys"], state["values"]
            wanted = (self.kind, self.key_dtype.numpy, self.value_dtype.numpy)
            if (state["kind"], keys.dtype, values.dtype) != wanted:
                raise InvalidArgumentError(
                    f"{self.describe()} ({self}): the state is that of a {state['kind']} from "
                    f"{keys.dtype} to {values.dtype}",
                    hint="load it into a table that is made alike",
                )
            check_saved(keys, self.key_dtype)
            check_saved(values, self.value_dtype)
        self.import_values(keys, values)

    def _checked(self, keys: Array, values: Array, operation: str) -> Array:
        shape = (*keys.shape, *self.value_shape)
        if values.shape != shape:
            raise ShapeError(
                f"{self.describe()} ({self}): {operation} got keys of shape "
                f"{format_shape(keys.shape)} and values of shape {format_shape(values.shape)}",
                hint=f"the values for these keys have shape {format_shape(shape)}",
            )
        return values.reshape(-1, *self.value_shape)

    def _store(self, keys: list[Any], values: Array) -> None:
        rows = np.empty(len(keys), np.int64)
        for i, key in enumerate(keys):
            row = self._row_of.get(key)
            if row is None:
                # rows are used without gaps: a new one is the next, unless one is free
                row = self._free.pop() if self._free else len(self._row_of)
                self._row_of[key] = row
            rows[i] = row
        self._grow(int(rows.max(initial=-1)) + 1)
        self._rows[rows] = values  # of a row that is there twice the last value stays

    def _grow(self, count: int) -> None:
        if count > len(self._rows):
            larger = np.empty(
                (max(count, 2 * len(self._rows)), *self.value_shape), self._rows.dtype
            )
            larger[: len(self._rows)] = self._rows
            self._rows = larger


def _flat(keys: Array) -> list[Any]:
    flat: list[Any] = keys.reshape(-1).tolist()
    return flat


class StaticTable(HashTable):
    """A table that never changes. InvalidArgumentError if a key has two values."""

    kind = "StaticHashTable"
    graph_kind = "static"

    def __init__(
        self, keys: Array, values: Array, key_dtype: DType, default: Array, value_dtype: DType,
        name: str,
    ) -> None:  # fmt: skip
        super().__init__(key_dtype, default, value_dtype, name)
        super().insert(keys, values)
        if len(self._row_of) < keys.size:
            self._check_twice(keys, values)

        self._attrs: dict[str, AttrValue] = {}

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `table`, with all keys and values."""
        if not self._attrs:
            keys, values = self.export()
            held = {"keys": ConstArray(keys), "values": ConstArray(values)}
            self._attrs = {**super().maker(ranks)[1], **held}
        return "table", self._attrs

    def _check_twice(self, keys: Array, values: Array) -> None:
        """A key may be given twice, with one value."""
        stored = self.lookup(keys)
        same = (stored == values).reshape(len(keys), -1).all(axis=1)
        if not same.all():
            key = keys.reshape(-1)[np.flatnonzero(~same)[0]]
            raise InvalidArgumentError(
                f"{self.describe()}: the key {key!r} is given two values",
                hint="give each key once",
            )

    def insert(self, keys: Array, values: Array) -> None:
        """FailedPreconditionError: it never changes."""
        raise self._fixed("insert")

    def remove(self, keys: Array) -> None:
        """FailedPreconditionError: it never changes."""
        raise self._fixed("remove")

    def import_values(self, keys: Array, values: Array) -> None:
        """FailedPreconditionError: it never changes."""
        raise self._fixed("import")

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """FailedPreconditionError: it never changes."""
        raise self._fixed("load_state_dict")

    def _fixed(self, operation: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self.describe()}: {operation} on a table that never changes",
            hint="wf.tf1.MutableHashTable is one that does",
        )


class VocabularyTable(StaticTable):
    """Keys to ids 0 .. n-1; other keys to one of `buckets` ids after these, by FarmHash's
    Fingerprint64 of the key (of an integer: of its digits), as TensorFlow does."""

    kind = "StaticVocabularyTable"
    graph_kind = "vocabulary"

    def __init__(
        self, keys: Array, values: Array, key_dtype: DType, buckets: int, name: str
    ) -> None:
        super().__init__(keys, values, key_dtype, np.array(-1, np.int64), int64, name)
        if sorted(values.tolist()) != list(range(len(values))):
            raise InvalidArgumentError(
                f"{self.describe()}: the ids must be 0 to {len(values) - 1}, each once",
                hint="the ids after these are those of unknown keys",
            )
        self.buckets = buckets

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `table`, with all keys and the number of buckets."""
        name, attrs = super().maker(ranks)
        return name, {**attrs, "buckets": self.buckets}

    def size(self) -> int:
        """The number of keys and of buckets."""
        return super().size() + self.buckets

    def _fill(self, keys: Array, values: Array, missing: Array) -> None:
        flat, known = keys.reshape(-1), len(self._row_of)
        for i in missing.tolist():
            text = flat[i] if self.key_dtype is string else str(int(flat[i])).encode()
            values[i] = known + fingerprint64(text) % self.buckets
