"""`wf.lookup`: tables that never change, eagerly and in graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

E = wf.errors
L = wf.lookup
WORDS = ["emerson", "lake", "palmer"]


def refused(call: Any, kind: type[Exception], text: str) -> None:
    """The call fails so, and the message has the line of this file."""
    with pytest.raises(kind, match=text) as error:
        call()
    assert __file__ in str(error.value)


def both(make: Any, keys: Any) -> list[Any]:
    """What `make()` gives for keys eagerly, which must be what it gives in a graph."""
    eager = make()
    found, size = eager.lookup(keys).tolist(), eager.size().item()
    with wf.Graph().as_default(), wf.Session() as session:
        table = make()
        x = wf.placeholder(table.key_dtype, [None] * np.ndim(keys))
        assert session.run(table[x], {x: keys}).tolist() == found
        assert session.run(table.size()) == size
    return list(found)


def test_static_table() -> None:
    def make() -> Any:
        return L.StaticHashTable(L.KeyValueTensorInitializer(WORDS, [1.5, 2.5, 3.5]), -1.0)

    assert both(make, ["lake", "yes", "emerson"]) == [2.5, -1, 1.5]
    assert both(make, [["palmer"], ["lake"]]) == [[3.5], [2.5]]
    table = make()
    assert (table.key_dtype, table.value_dtype) == (wf.string, wf.float32)
    keys, values = table.export()
    assert keys.tolist() == [w.encode() for w in WORDS]
    assert values.tolist() == [1.5, 2.5, 3.5]
    assert "3 keys" in repr(table)
    with wf.Graph().as_default(), wf.Session() as session:
        keys, values = make().export()
        assert session.run(wf.sum(values)) == 7.5


# TensorFlow 2.21: tf.lookup.StaticVocabularyTable with these words and 5 buckets
TRUTH = {"emerson": 0, "lake": 1, "palmer": 2, "and": 5, "cat": 4, "": 6, "the": 7, "x" * 100: 7}


def test_unknown_words_have_tensorflows_ids() -> None:
    keys = list(TRUTH)
    assert both(lambda: L.index_table_from_tensor(WORDS, num_oov_buckets=5), keys) == list(
        TRUTH.values()
    )
    assert both(lambda: L.index_table_from_tensor(WORDS), ["lake", "cat"]) == [1, -1]
    assert both(lambda: L.index_table_from_tensor(WORDS, default_value=7), ["cat"]) == [7]
    assert L.index_table_from_tensor(WORDS, 5).size().item() == 8


INTEGER_TRUTH = {10: 0, 20: 1, 30: 2, 5: 6, -7: 5, 10**18: 6}


def test_integer_keys() -> None:
    keys = np.array(list(INTEGER_TRUTH))
    listed = np.array([10, 20, 30])
    assert both(lambda: L.index_table_from_tensor(listed, 4), keys) == list(INTEGER_TRUTH.values())


def test_back_to_words() -> None:
    def make() -> Any:
        return L.index_to_string_table_from_tensor(WORDS)

    assert both(make, [2, 9, 0]) == [b"palmer", b"UNK", b"emerson"]


def test_from_files(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("emerson\nlake\r\npalmer\n")
    assert both(lambda: L.index_table_from_file(file), ["palmer", "x", "lake"]) == [2, -1, 1]
    assert both(lambda: L.index_table_from_file(file, vocab_size=2), ["palmer", "lake"]) == [-1, 1]
    keyed = tmp_path / "keyed.tsv"
    keyed.write_text("1\tone\t0.5\n2\ttwo\t0.25\n")

    def table(key: Any, i: int, value: Any, j: int, default: Any) -> Any:
        return lambda: L.StaticHashTable(L.TextFileInitializer(keyed, key, i, value, j), default)

    assert both(table(wf.int32, 0, wf.string, 1, "?"), np.array([2, 3], np.int32)) == [b"two", b"?"]
    assert both(table(wf.string, 1, wf.float64, 2, 0.0), ["one"]) == [0.5]
    assert both(table(wf.string, -2, wf.int64, -1, -1), ["2\ttwo\t0.25"]) == [1]
    comma = tmp_path / "comma.csv"
    comma.write_text("a,3\nb,4")
    made = L.TextFileInitializer(comma, wf.string, 0, wf.int64, 1, delimiter=",")
    assert L.StaticHashTable(made, -1)[["b", "a"]].tolist() == [4, 3]


def test_what_does_not_fit(tmp_path: Path) -> None:
    pairs = L.KeyValueTensorInitializer
    refused(lambda: pairs(WORDS, [1, 2]), E.ShapeError, "3 keys, but 2 values")
    refused(lambda: pairs([["a"]], [1]), E.ShapeError, "keys of shape")
    refused(lambda: L.StaticHashTable({"a": 1}, 0), E.InvalidArgumentError, "is no initializer")
    twice = pairs(["a", "b", "a"], [1, 2, 3])
    refused(lambda: L.StaticHashTable(twice, 0), E.InvalidArgumentError, "b'a' is given two values")
    assert L.StaticHashTable(pairs(["a", "b", "a"], [1, 2, 1]), 0).size().item() == 2
    refused(lambda: L.StaticHashTable(pairs(WORDS, [1, 2, 3]), "x"), E.TypeRuleError, "default")
    refused(
        lambda: L.StaticVocabularyTable(pairs(WORDS, np.array([1, 2, 3])), 1),
        E.InvalidArgumentError, "ids must be 0 to 2",
    )  # fmt: skip
    refused(lambda: L.index_table_from_tensor(WORDS, -1), E.InvalidArgumentError, "num_oov_buckets")
    refused(lambda: L.index_table_from_tensor(None), E.TypeRuleError, "NoneType is not a tensor")
    refused(lambda: L.index_table_from_tensor(3), E.ShapeError, r"keys of shape \[\]")
    refused(lambda: L.index_table_from_tensor(WORDS)[[1]], E.TypeRuleError, "keys")
    refused(lambda: L.index_table_from_file(tmp_path / "no"), E.NotFoundError, "no")
    refused(lambda: L.index_table_from_file(None), E.InvalidArgumentError, "None is no file name")
    refused(
        lambda: L.index_table_from_file(tmp_path, delimiter=""), E.InvalidArgumentError, "delimiter"
    )
    file = tmp_path / "bad.tsv"
    file.write_text("1\n2\tx\n")
    index = L.TextFileIndex
    refused(
        lambda: L.TextFileInitializer(file, wf.int64, 1, wf.int64, index.LINE_NUMBER),
        E.InvalidArgumentError, "bad.tsv:1: there is no column 1",
    )  # fmt: skip
    refused(
        lambda: L.TextFileInitializer(file, wf.string, index.WHOLE_LINE, wf.int64, 0, 3),
        E.InvalidArgumentError, "has 2 lines, vocab_size=3",
    )  # fmt: skip
    file.write_text("1\nx\n")
    refused(
        lambda: L.TextFileInitializer(file, wf.int64, 0, wf.int64, index.LINE_NUMBER),
        E.InvalidArgumentError, "bad.tsv:2: column 0 is b'x', no int64",
    )  # fmt: skip
    refused(
        lambda: L.TextFileInitializer(file, wf.int64, index.WHOLE_LINE, wf.int64, 0),
        E.InvalidArgumentError, "key_index=-2 does not give int64",
    )  # fmt: skip


def test_it_stays_as_it_is() -> None:
    table = L.index_table_from_tensor(WORDS)._table
    for call in (
        lambda: table.insert(np.array([b"x"], object), np.array([1])),
        lambda: table.remove(np.array([b"lake"], object)),
        lambda: table.import_values(np.array([b"x"], object), np.array([1])),
        lambda: table.load_state_dict({}),
    ):
        with pytest.raises(E.FailedPreconditionError, match="never changes"):
            call()
    assert table.size() == 3
