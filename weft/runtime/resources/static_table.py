"""Tables that never change once they are made: `StaticTable`, `VocabularyTable`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.ir.dtypes import DType, int64, string
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.ir.ops.strings import fingerprint64
from weft.ir.spec import AttrValue, ConstArray
from weft.runtime.resources.components import Array
from weft.runtime.resources.table import HashTable


class StaticTable(HashTable):
    """What it is made with. InvalidArgumentError if a key has two values."""

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

    def maker(self) -> tuple[str, dict[str, AttrValue]]:
        """The op `table`, with all keys and values."""
        if not self._attrs:
            keys, values = self.export()
            held = {"keys": ConstArray(keys), "values": ConstArray(values)}
            self._attrs = {**super().maker()[1], **held}
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
            hint="wf.MutableHashTable is one that does",
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

    def maker(self) -> tuple[str, dict[str, AttrValue]]:
        """The op `table`, with all keys and the number of buckets."""
        name, attrs = super().maker()
        return name, {**attrs, "buckets": self.buckets}

    def size(self) -> int:
        """The number of keys and of buckets."""
        return super().size() + self.buckets

    def _fill(self, keys: Array, values: Array, missing: Array) -> None:
        flat, known = keys.reshape(-1), len(self._row_of)
        for i in missing.tolist():
            text = flat[i] if self.key_dtype is string else str(int(flat[i])).encode()
            values[i] = known + fingerprint64(text) % self.buckets
