"""Lookup tables from typed keys to values, kept on the host: `MutableHashTable`, and those that
never change, `StaticHashTable` and `StaticVocabularyTable`, with their initializers
(`wf.lookup`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.queues.host_ops import host_effect, host_op
from weft.frontend.state.resources import (
    eager,
    eager_or_graph,
    integer,
    label,
    made_at_once,
    operand,
    shared,
    value_of,
)
from weft.ir.dtypes import DType, as_dtype, int64, string
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.runtime.files.streams import read_lines
from weft.runtime.resources.components import Array
from weft.runtime.resources.table import HashTable, StaticTable, VocabularyTable


class LookupTable:
    """The base class of all tables."""

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

    @eager_or_graph
    def size(self, name: str | None = None) -> Tensor:
        """The number of keys (and buckets), an int64 tensor."""
        return host_op("table_size", (), (self._table,))[0]

    def _keys(self, keys: Any, operation: str) -> Tensor:
        t = self._table
        return operand(keys, t.key_dtype, lambda: f"{t.describe()} ({t}): {operation}: keys")

    def _values(self, values: Any, operation: str) -> Tensor:
        t = self._table
        return operand(values, t.value_dtype, lambda: f"{t.describe()} ({t}): {operation}: values")

    def _exported(self) -> tuple[Tensor, Tensor]:
        keys, values = host_op("table_export", (), (self._table,), sizes=1)
        return keys, values


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

    @eager_or_graph
    def lookup(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None
    ) -> Tensor:
        """The values of `keys` (any shape): keys.shape + value shape. Keys that are not there have
        the default value, or their own of `dynamic_default_values`."""
        given = [self._keys(keys, "lookup")]
        if dynamic_default_values is not None:
            given.append(self._values(dynamic_default_values, "lookup"))
        return host_op("table_lookup", given, (self._table,))[0]

    def __getitem__(self, keys: Any) -> Tensor:
        return self.lookup(keys)

    @eager_or_graph
    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Store values (keys.shape + value shape) for keys; the last of a duplicate key stays.
        ShapeError or TypeRuleError if they do not fit; then nothing is stored."""
        given = [self._keys(keys, "insert"), self._values(values, "insert")]
        return host_effect("table_insert", given, (self._table,), name=name)

    @eager_or_graph
    def remove(self, keys: Any, name: str | None = None) -> Any:
        """Forget keys; those that are not there are skipped."""
        return host_effect("table_remove", [self._keys(keys, "remove")], (self._table,), name=name)

    @eager_or_graph
    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """(keys [n], values [n, ...]), in the order in which the keys came."""
        return self._exported()

    @eager_or_graph
    def import_values(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Hold exactly these keys and values, as `export` gives them."""
        given = [self._keys(keys, "import"), self._values(values, "import")]
        return host_effect("table_import", given, (self._table,), name=name)

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


class TextFileIndex:
    """Which part of a line `TextFileInitializer` takes, if it is no column.

    >>> np.savetxt("words.txt", ["the", "of"], fmt="%s")
    >>> line, number = wf.lookup.TextFileIndex.WHOLE_LINE, wf.lookup.TextFileIndex.LINE_NUMBER
    >>> words = wf.lookup.TextFileInitializer("words.txt", wf.int64, number, wf.string, line)
    >>> wf.lookup.StaticHashTable(words, "?").lookup([1, 0, 9]).numpy().tolist()
    [b'of', b'the', b'?']
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


class KeyValueTensorInitializer:
    """`keys` [n] and `values` [n] (lists, arrays, tensors that have values).

    >>> given = wf.lookup.KeyValueTensorInitializer(["a", "b"], [1.5, 2.5])
    >>> given.key_dtype, given.value_dtype
    (weft.string, weft.float32)
    >>> wf.lookup.StaticHashTable(given, default_value=0.0).lookup(["b", "c"])
    Tensor([2.5, 0. ], dtype=float32)
    """

    @made_at_once
    @eager
    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self.keys, self.key_dtype = _column(keys, key_dtype, "keys")
        self.values, self.value_dtype = _column(values, value_dtype, "values")
        if len(self.keys) != len(self.values):
            raise ShapeError(
                f"KeyValueTensorInitializer: {len(self.keys)} keys, but {len(self.values)} values"
            )


class TextFileInitializer:
    """Keys and values from the lines of a file, split at `delimiter`: column numbers from 0, or one
    of `TextFileIndex`: the whole line (a string), the line's number from 0 (int64).

    vocab_size: at most so many lines. The file is read now. NotFoundError if there is none;
    InvalidArgumentError names the line that does not fit.

    >>> np.savetxt("ages.txt", ["Ada:36", "Alan:41"], fmt="%s")
    >>> ages = wf.lookup.TextFileInitializer("ages.txt", wf.string, 0, wf.int64, 1, delimiter=":")
    >>> wf.lookup.StaticHashTable(ages, default_value=-1).lookup(["Alan", "Grace"])
    Tensor([41, -1], dtype=int64)
    """

    @made_at_once
    @eager
    def __init__(
        self, filename: Any, key_dtype: Any, key_index: int, value_dtype: Any, value_index: int,
        vocab_size: int | None = None, delimiter: str = "\t", name: str | None = None,
    ) -> None:  # fmt: skip
        self.key_dtype, self.value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        _check_index("key", key_index, self.key_dtype)
        _check_index("value", value_index, self.value_dtype)
        if not isinstance(filename, (str, os.PathLike)):
            raise InvalidArgumentError(f"TextFileInitializer: {filename!r:.60} is no file name")
        if not delimiter:
            raise InvalidArgumentError(f"TextFileInitializer: delimiter={delimiter!r} is no text")
        keys: list[Any] = []
        values: list[Any] = []
        for number, line in enumerate(read_lines(filename)):
            if number == vocab_size:
                break
            parts = line.split(delimiter.encode())
            for out, index, dtype in (
                (keys, key_index, self.key_dtype), (values, value_index, self.value_dtype)
            ):  # fmt: skip
                out.append(_part(line, parts, number, index, dtype, filename))
        if vocab_size is not None and len(keys) < vocab_size:
            raise InvalidArgumentError(
                f"TextFileInitializer: {filename} has {len(keys)} lines, vocab_size={vocab_size}"
            )
        self.keys, self.values = _array(keys, self.key_dtype), _array(values, self.value_dtype)


class _Static(LookupTable):
    """The base class of both kinds that never change; all calls are for graphs, too."""

    __slots__ = ()

    def __init__(self, table: HashTable) -> None:
        self._table = table

    @eager_or_graph
    def lookup(self, keys: Any, name: str | None = None) -> Tensor:
        """The values of `keys`, in their shape."""
        return host_op("table_lookup", [self._keys(keys, "lookup")], (self._table,))[0]

    def __getitem__(self, keys: Any) -> Tensor:
        return self.lookup(keys)


class StaticHashTable(_Static):
    """Keys to values as `initializer` says; other keys have `default_value`.

    >>> names = wf.lookup.KeyValueTensorInitializer([7, 9], ["seven", "nine"])
    >>> table = wf.lookup.StaticHashTable(names, default_value="?")
    >>> table.lookup([[9, 8], [7, 7]]).numpy().tolist()
    [[b'nine', b'?'], [b'seven', b'seven']]
    >>> table.size()
    Tensor(2, dtype=int64)
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, initializer: Any, default_value: Any, name: str | None = None) -> None:
        name = label(name, "hash_table")
        what = f"StaticHashTable '{name}': default_value"
        given = _initializer(initializer, what)
        default = value_of(default_value, given.value_dtype, lambda: what)
        if default.shape:
            raise ShapeError(f"{what} has shape {list(default.shape)}; the values have no axes")
        super().__init__(
            StaticTable(given.keys, given.values, given.key_dtype, default, given.value_dtype, name)
        )

    @eager_or_graph
    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """(keys [n], values [n]), in the order in which they were given."""
        return self._exported()


class StaticVocabularyTable(_Static):
    """Keys to ids 0 .. n-1 as `initializer` says (its values are int64); other keys to one of
    `num_oov_buckets` ids from n on, by the Fingerprint64 of the key, as TensorFlow does.

    >>> ids = wf.lookup.KeyValueTensorInitializer(["the", "of"], [0, 1])
    >>> table = wf.lookup.StaticVocabularyTable(ids, num_oov_buckets=3)
    >>> table.lookup(["of", "the", "weft", "warp"])  # unknown words have an id of 2 to 4
    Tensor([1, 0, 3, 3], dtype=int64)
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, initializer: Any, num_oov_buckets: int, name: str | None = None) -> None:
        name = label(name, "vocabulary_table")
        what = f"StaticVocabularyTable '{name}'"
        buckets = integer(num_oov_buckets, f"{what}: num_oov_buckets", 1)
        given = _initializer(initializer, what)
        if given.value_dtype is not int64:
            raise InvalidArgumentError(f"{what}: ids are int64, got {given.value_dtype.name}")
        super().__init__(VocabularyTable(given.keys, given.values, given.key_dtype, buckets, name))


def index_table_from_tensor(
    vocabulary_list: Any, num_oov_buckets: int = 0, default_value: int = -1,
    dtype: Any = None, name: str | None = None,
) -> StaticHashTable | StaticVocabularyTable:  # fmt: skip
    """The table from each entry (strings or integers, each once) to its place in the list. Other
    keys have `default_value`, or (num_oov_buckets > 0) an id after those of the list.

    >>> table = wf.lookup.index_table_from_tensor(["the", "of", "and"])
    >>> table.lookup(["and", "weft", "the"])
    Tensor([ 2, -1,  0], dtype=int64)
    >>> wf.lookup.index_table_from_tensor(["the", "of"], num_oov_buckets=1).lookup(["weft"])
    Tensor([2], dtype=int64)
    """
    made = KeyValueTensorInitializer(vocabulary_list, _places(vocabulary_list), dtype)
    return _index_table(made, num_oov_buckets, default_value, name)


def index_table_from_file(
    vocabulary_file: Any, num_oov_buckets: int = 0, vocab_size: int | None = None,
    default_value: int = -1, key_dtype: Any = string, name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER, delimiter: str = "\t",
) -> StaticHashTable | StaticVocabularyTable:  # fmt: skip
    """The table from the lines of a file to their numbers; else as `index_table_from_tensor`.

    >>> np.savetxt("vocabulary.txt", ["the", "of", "and"], fmt="%s")
    >>> table = wf.lookup.index_table_from_file("vocabulary.txt", vocab_size=2)
    >>> table.lookup(["of", "and"])
    Tensor([ 1, -1], dtype=int64)
    """
    made = TextFileInitializer(
        vocabulary_file, key_dtype, key_column_index, int64, value_column_index, vocab_size,
        delimiter,
    )  # fmt: skip
    return _index_table(made, num_oov_buckets, default_value, name)


def index_to_string_table_from_tensor(
    vocabulary_list: Any, default_value: Any = "UNK", name: str | None = None
) -> StaticHashTable:
    """The table from places in the list to its strings; other keys have `default_value`.

    >>> table = wf.lookup.index_to_string_table_from_tensor(["the", "of"])
    >>> table.lookup([1, 0, 5]).numpy().tolist()
    [b'of', b'the', b'UNK']
    """
    made = KeyValueTensorInitializer(_places(vocabulary_list), vocabulary_list, int64, string)
    return StaticHashTable(made, default_value, name)


def _places(listed: Any) -> Array:
    """0, 1, ...; what is no list is for the initializer to refuse."""
    try:
        return np.arange(len(listed))
    except (TypeError, WeftError):
        return np.arange(0)


def _index_table(
    made: Any, buckets: int, default: int, name: str | None
) -> StaticHashTable | StaticVocabularyTable:
    if buckets:
        return StaticVocabularyTable(made, buckets, name)
    return StaticHashTable(made, default, name)


def _initializer(given: Any, what: str) -> Any:
    if not isinstance(given, (KeyValueTensorInitializer, TextFileInitializer)):
        raise InvalidArgumentError(
            f"{what}: a {type(given).__name__} is no initializer",
            hint="it is a wf.lookup.KeyValueTensorInitializer or TextFileInitializer",
        )
    return given


def _column(x: Any, dtype: Any, what: str) -> tuple[Array, DType]:
    t = as_tensor(x)
    wanted = t.dtype if dtype is None else as_dtype(dtype)
    array = value_of(x, wanted, lambda: f"KeyValueTensorInitializer: {what}")
    if array.ndim != 1:
        raise ShapeError(
            f"KeyValueTensorInitializer: {what} of shape {list(array.shape)}", hint="give lists"
        )
    return array, wanted


def _check_index(what: str, index: int, dtype: DType) -> None:
    wanted = {TextFileIndex.WHOLE_LINE: string, TextFileIndex.LINE_NUMBER: int64}.get(index, dtype)
    if index < TextFileIndex.WHOLE_LINE or dtype is not wanted:
        raise InvalidArgumentError(
            f"TextFileInitializer: {what}_index={index} does not give {dtype.name}",
            hint="WHOLE_LINE (-2) gives a string, LINE_NUMBER (-1) an int64, 0 ... a column",
        )


def _part(
    line: bytes, parts: Sequence[bytes], number: int, index: int, dtype: DType, file: Any
) -> Any:
    """What a line gives for one side of the table."""
    if index == TextFileIndex.WHOLE_LINE:
        return line
    if index == TextFileIndex.LINE_NUMBER:
        return number
    if index >= len(parts):
        raise InvalidArgumentError(
            f"{file}:{number + 1}: there is no column {index}, the line has {len(parts)}",
            hint="columns count from 0; delimiter= says what separates them",
        )
    text = parts[index]
    if dtype is string:
        return text
    read: Callable[[bytes], Any] = int if dtype.is_integer else float
    try:
        return dtype.numpy.type(read(text))
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{file}:{number + 1}: column {index} is {text!r}, no {dtype.name}"
        ) from None


def _array(values: list[Any], dtype: DType) -> Array:
    made = np.empty(len(values), dtype.numpy)
    made[:] = values
    return made
