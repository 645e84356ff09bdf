"""Tensors of strings: functions on them, eagerly and on the dataflow executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.ops.strings import fingerprint64, murmur64
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

Check = Callable[[Any, Any], None]
WORDS = np.array([b"b", b"\xff\x00", "é".encode()], object)

#: (name, function of a tensor of strings [3], what it gives), from TensorFlow 2.21 where it has it.
FUNCTIONS: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("join", lambda x: wf.string_join([x, "-", x], "+"), [b"b+-+b", b"\xff\0+-+\xff\0",
                                                           b"\xc3\xa9+-+\xc3\xa9"]),
    ("length", wf.string_length, [1, 2, 2]),
    ("substr", lambda x: wf.substr(x, -1, 5), [b"b", b"\0", b"\xa9"]),
    ("substr each", lambda x: wf.substr(x, [0, 1, 0], [0, 9, 1]), [b"", b"\0", b"\xc3"]),
    ("equal", lambda x: wf.equal(x, "b"), [True, False, False]),
    ("not equal", lambda x: x != "b", [False, True, True]),
    ("where", lambda x: wf.where([True, False, True], x, "no"), [b"b", b"no", "é".encode()]),
    ("reshape", lambda x: wf.reshape(x, [3, 1]), [[b"b"], [b"\xff\0"], ["é".encode()]]),
    ("take", lambda x: wf.take(x, [2, 0]), ["é".encode(), b"b"]),
    ("index", lambda x: x[1], b"\xff\0"),
    ("slice", lambda x: x[::2], [b"b", "é".encode()]),
    ("concat", lambda x: wf.concat([x[:1], ["a"]]), [b"b", b"a"]),
    ("stack", lambda x: wf.stack([x[0], "a"]), [b"b", b"a"]),
    ("tile", lambda x: wf.tile(x[:1], [2]), [b"b", b"b"]),
    ("bucket", lambda x: wf.string_to_hash_bucket(x, 10), [0, 0, 5]),
    ("bucket fast", lambda x: wf.string_to_hash_bucket_fast(x, 10), [2, 3, 5]),
]  # fmt: skip


@pytest.mark.parametrize(("_", "function", "expected"), FUNCTIONS, ids=[n for n, *_ in FUNCTIONS])
def test_functions_eagerly_and_in_a_graph(_: str, function: Any, expected: Any) -> None:
    assert function(wf.asarray(WORDS)).numpy().tolist() == expected
    with wf.Graph().as_default() as graph:
        y = function(wf.placeholder(wf.string, [3], "x"))
        text = print_graph(graph.ir([y]))
        assert print_graph(parse_graph(text)) == text
        with wf.Session() as session:
            found = session.run(y, {"x": WORDS})
            assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected


AS_STRING: list[tuple[Any, dict[str, Any], list[bytes]]] = [
    (np.float32([1.5, -2.25e10, np.inf]), {}, [b"1.500000", b"-22499999744.000000", b"inf"]),
    (np.float32([1.5, -2.25e10]), {"shortest": True, "precision": 3}, [b"1.5", b"-2.25e+10"]),
    (np.int32([3, -4]), {"width": 5, "fill": "0"}, [b"00003", b"-0004"]),
    ([True, False], {"width": 6}, [b"true", b"false"]),
    (np.complex64([1 + 2j]), {"scientific": True}, [b"(1.000000e+00,2.000000e+00)"]),
    (wf.asarray([2.5], dtype=wf.bfloat16), {"precision": 1}, [b"2.5"]),
]


@pytest.mark.parametrize(("x", "options", "expected"), AS_STRING)
def test_as_string_writes_what_tensorflow_writes(x: Any, options: Any, expected: Any) -> None:
    assert wf.as_string(x, **options).numpy().tolist() == expected


def test_numbers_become_text_and_back_in_a_step() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2], "x")
        text = wf.as_string(x * 2, shortest=True)
        back = wf.string_to_number(text) + 1
        whole = wf.string_to_number(wf.string_join([wf.as_string(wf.shape(x))]), wf.int64)
        with wf.Session() as session:
            found = session.run([text, back, whole], {x: [1.25, 3]})
    assert found[0].tolist() == [b"2.5", b"6"]
    assert found[1].tolist() == [3.5, 7]
    assert found[1].dtype == np.float32
    assert found[2].tolist() == [2]
    assert found[2].dtype == np.int64


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("1_0", wf.float32), ("", wf.float32), ("x", wf.float32), ("1.0", wf.int32),
     ("3000000000", wf.int32), ("0x10", wf.int64)],
)  # fmt: skip
def test_text_that_is_no_number(text: str, dtype: Any) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=f"is no {dtype.name}"):
        wf.string_to_number(text, dtype)


def test_numbers_with_blanks_around() -> None:
    assert wf.string_to_number(" 12 ", wf.int32).numpy() == 12
    assert np.isnan(wf.string_to_number("nan").numpy())


#: As TensorFlow 2.21 splits them.
SPLITS: list[tuple[list[str], dict[str, Any], list[list[int]], list[bytes], list[int]]] = [
    (["a b  c", "", "d"], {}, [[0, 0], [0, 1], [0, 2], [2, 0]], [b"a", b"b", b"c", b"d"], [3, 3]),
    (["a,b;;c", ",x"], {"delimiter": ",;"}, [[0, 0], [0, 1], [0, 2], [1, 0]],
     [b"a", b"b", b"c", b"x"], [2, 3]),
    (["a,b,,c", ",x", ""], {"delimiter": ",", "skip_empty": False},
     [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]], [b"a", b"b", b"", b"c", b"", b"x"], [3, 4]),
    (["ab", "é"], {"delimiter": ""}, [[0, 0], [0, 1], [1, 0], [1, 1]],
     [b"a", b"b", b"\xc3", b"\xa9"], [2, 2]),
    (["", ""], {}, [], [], [2, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "options", "indices", "values", "shape"), SPLITS)
def test_splitting(rows: Any, options: Any, indices: Any, values: Any, shape: Any) -> None:
    eager = wf.string_split(rows, **options)
    assert [t.numpy().tolist() for t in eager] == [indices, values, shape]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.string, [None], "x")
        made = wf.string_split(x, **options)
        total = wf.sum(wf.string_length(made.values)) + wf.shape(made.values)[0]
        found, n = session.run([made, total], {x: np.array(rows, object)})
        assert [a.tolist() for a in found] == [indices, values, shape]
        assert n == sum(map(len, values)) + len(values)


def test_words_are_looked_up() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        table = wf.MutableHashTable(wf.string, wf.int64, default_value=-1)
        session.run(table.insert(["in", "the"], [7, 2]))
        x = wf.placeholder(wf.string, [1], "x")
        ids = table.lookup(wf.string_split(x).values)
        assert session.run(ids, {x: ["the in and the"]}).tolist() == [2, 7, -1, 2]
        assert session.run(ids, {x: [""]}).tolist() == []


def test_hashes_are_those_of_tensorflow() -> None:
    texts = (b"", b"a", b"hello", b"0123456789", b"x" * 20, b"y" * 50, b"z" * 200)
    assert [fingerprint64(t) for t in texts] == [
        11160318154034397263, 12917804110809363939, 13009744463427800296, 12467408821976941803,
        8233088228747857348, 1536034821532487699, 8728890208429024092,
    ]  # fmt: skip
    assert [murmur64(t) for t in texts] == [
        9328806548029283899, 2996632905371535868, 5943547241907780938, 17707930009015134828,
        16483871840435223341, 5675954484960415913, 8470422553996826454,
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------- decoding
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_decode_raw_reads_what_numpy_wrote(data: st.DataObject) -> None:
    dtype = data.draw(
        st.sampled_from([wf.uint8, wf.int16, wf.float64, wf.complex64, wf.bool, wf.bfloat16])
    )
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    values = np.arange(rows * columns * 2).reshape(rows, columns, 2).astype(dtype.numpy)
    big = data.draw(st.booleans())
    stored = values.byteswap() if big else values
    texts = np.empty(rows, object)
    texts[:] = [row.tobytes() for row in stored]
    found = wf.decode_raw(texts, dtype, not big, shape=[columns, 2])
    np.testing.assert_array_equal(found.numpy(), values)
    flat = wf.decode_raw(texts, dtype, not big)
    assert flat.shape == (rows, columns * 2 if rows else 0)


def test_decode_raw_of_a_size_that_the_step_knows() -> None:
    assert wf.decode_raw(b"\0\1\2", wf.bool).numpy().tolist() == [False, True, True]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.string, [2], "x")
        y = wf.decode_raw(x, wf.int8, shape=[None, 2])
        total = wf.sum(wf.astype(y, wf.int32), axis=(1, 2)) + wf.shape(y)[1]
        for n in (3, 0, 3, 1):
            found = session.run([y, total], {x: [b"\1\2" * n, b"\3\4" * n]})
            assert found[0].shape == (2, n, 2)
            assert found[1].tolist() == [4 * n, 8 * n]
    with pytest.raises(wf.errors.ShapeError, match="at most one"):
        wf.decode_raw("ab", wf.int8, shape=[None, None])


def test_decode_raw_of_another_length() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"string 1 has 3 bytes"):
        wf.decode_raw(["abcd", "abc"], wf.int16)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"3 bytes, which is no multiple of 4"):
        wf.decode_raw(["abc"], wf.int16, shape=[None, 2])
    with pytest.raises(wf.errors.ShapeError, match=r"shape=\[-1, 2\] has a negative size"):
        wf.decode_raw(["abcd"], wf.int16, shape=[-1, 2])
    with pytest.raises(wf.errors.TypeRuleError, match="takes strings"):
        wf.decode_raw([1, 2], wf.int16)


# ----------------------------------------------------------------------------- through control flow
@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_strings_through_branches_and_loops(mode: str) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.string, [], "x")
        n = wf.placeholder(wf.int32, [], "n")
        chosen = wf.cond(n > 2, lambda: wf.string_join([x, "!"]), lambda: x)
        _, looped = wf.while_loop(
            lambda i, s: i < n,
            lambda i, s: (i + 1, wf.string_join([s, wf.as_string(i), x])),
            (0, wf.asarray("<")),
        )
        below, above = wf.switch(x, n > 2)
        merged, index = wf.merge([wf.string_join([below, "low"]), above])
        with wf.Session(control_flow=mode) as session:
            fetches = [chosen, looped, merged, index]
            assert session.run(fetches, {x: "a", n: 3}) == [b"a!", b"<0a1a2a", b"a", 1]
            assert session.run(fetches, {x: "a", n: 0}) == [b"a", b"<", b"alow", 0]


def test_a_long_loop_does_not_keep_its_strings() -> None:
    with wf.Graph().as_default():
        _, last = wf.while_loop(
            lambda i, s: i < 2000,
            lambda i, s: (i + 1, wf.string_join([wf.substr(s, 0, 100_000), wf.as_string(i)])),
            (0, wf.asarray(b"x" * 100_000)),
        )
        with wf.Session() as session:
            assert session.run(wf.string_length(last)) == 100_004


def test_queues_of_strings() -> None:
    with wf.Graph().as_default():
        queue = wf.FIFOQueue(10, [wf.string, wf.int64], shapes=[[2], []])
        names = wf.placeholder(wf.string, [3, 2], "names")
        put = queue.enqueue_many([names, [1, 2, 3]])
        one, many = queue.dequeue(), queue.dequeue_many(2)
        with wf.Session() as session:
            session.run(put, {names: [["a", "b"], ["c", b"\xff"], ["", "é"]]})
            (pair, number), (pairs, numbers) = session.run(one), session.run(many)
    assert pair.tolist() == [b"a", b"b"]
    assert number == 1
    assert pairs.tolist() == [[b"c", b"\xff"], [b"", "é".encode()]]
    assert numbers.tolist() == [2, 3]


def test_python_functions_on_strings() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.string, [2], "x")
        y = wf.py_function(lambda t: [s.upper() for s in t.numpy().tolist()], [x], wf.string, [2])
        with wf.Session() as session:
            assert session.run(wf.string_join([y, x]), {x: ["a", "b"]}).tolist() == [b"Aa", b"Bb"]


def test_variables_of_strings(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(["a", "bc"], name="v")
        more = v.assign(wf.string_join([v, v]))
        with pytest.raises(wf.errors.FailedPreconditionError, match="not initialised"):
            session.run(v)
        session.run(wf.global_variables_initializer())
        assert session.run(more).tolist() == [b"aa", b"bcbc"]
        ops = wf.train.Saver([v]).build(f"{tmp_path}/text")
        session.run(ops.save)
        session.run(more)
        session.run(ops.restore)
        assert session.run(wf.string_length(v)).tolist() == [2, 4]
    assert v.numpy().tolist() == [b"aa", b"bcbc"]


def test_random_shuffle_of_strings() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.string, [26], "x")
        y = wf.random_shuffle(x, seed=3)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            letters = [bytes([i]) for i in range(65, 91)]
            one, two = (session.run(y, {x: letters}).tolist() for _ in range(2))
    assert sorted(one) == sorted(two) == letters
    assert len({*map(tuple, (one, two, letters))}) == 3


# ---------------------------------------------------------------------------------------- refusals
def test_what_is_refused() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.string, [2], "x")
        with pytest.raises(wf.errors.UnsupportedError, match="dataflow executor only"):
            wf.Session(control_flow="native").run(wf.string_length(x), {x: ["a", "b"]})
        with pytest.raises(wf.errors.InvalidArgumentError, match="position 2 is not in b'a'"):
            wf.Session().run(wf.substr(x, 2, 1), {x: ["a", "bcd"]})
    with pytest.raises(wf.errors.ShapeError):
        wf.string_join([["a", "b"], ["a", "b", "c"]])
    with pytest.raises(wf.errors.InvalidArgumentError, match="exclude each other"):
        wf.as_string(1.0, scientific=True, shortest=True)
    with pytest.raises(wf.errors.TypeRuleError, match="takes numbers"):
        wf.as_string("a")


def test_lists_of_str_and_bytes() -> None:
    assert wf.asarray(["x", b"\xff"]).numpy().tolist() == [b"x", b"\xff"]
    with pytest.raises(wf.errors.WeftError):
        wf.asarray(["x", 1])
    with pytest.raises(wf.errors.WeftError):
        wf.asarray([["x"], ["y", "z"]])


def test_names_of_files_that_are_not_utf8() -> None:
    name = b"caf\xe9.txt"
    for text in (os.fsdecode(name), [os.fsdecode(name)], np.array([os.fsdecode(name)])):
        assert wf.constant(text).numpy().ravel().tolist() == [name]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.string, [])
        joined = wf.string_join([x, wf.constant(os.fsdecode(name))])
        assert session.run(joined, {x: os.fsdecode(name)}) == name + name
    with pytest.raises(wf.errors.TypeRuleError, match="is no text: surrogates not allowed"):
        wf.constant("\ud800")
