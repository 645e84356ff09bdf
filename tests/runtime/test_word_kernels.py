"""Native kernels that cut and make strings: words, substrings, lengths, joined strings and those in
another case are what the references give."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.ops import OPS
from weft.runtime.dynamic.door import native_results
from weft.runtime.dynamic.rows import NATIVE
from weft.runtime.dynamic.strings import STRINGS

Array = np.ndarray[Any, Any]


def texts(values: Sequence[Any]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def check(op: str, arrays: Sequence[Array], **attrs: Any) -> None:
    """The reference's arrays, bit for bit."""
    reference = OPS[op].reference
    assert reference is not None
    wanted = reference(arrays, attrs)
    made = NATIVE[op](arrays, attrs)
    assert made is not None
    for a, b in zip(made, wanted if isinstance(wanted, list) else [wanted], strict=True):
        assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())
        assert not a.dtype.hasobject or {type(v) for v in a.flat} <= {bytes}


#: Few bytes, so that words end often, and separators overlap.
TEXT = st.one_of(
    st.text(alphabet="aab, é\t\n\x0b\x1f\0", max_size=30).map(str.encode),
    st.binary(max_size=40),
    st.sampled_from([b"", b" ", b"aaa", b"a" * 3000 + b" b"]),
)
MARKS = ["a", ",", " ", "aa", "ab", "aba", "é", ", ", "\0", "a b", "\udcff"]


@examples(500)
@given(st.lists(TEXT, max_size=12), st.sampled_from(MARKS), st.booleans())
def test_words_between_bytes(values: list[bytes], delimiter: str, skip: bool) -> None:
    check("string_split", [texts(values)], delimiter=delimiter, skip_empty=skip)


@examples(500)
@given(st.lists(TEXT, max_size=12), st.sampled_from(["", *MARKS]))
def test_words_between_separators(values: list[bytes], pattern: str) -> None:
    for x in (texts(values), texts([b"a b", *values])[-1:].reshape(())):
        check("string_split_rows", [x], kind="separator", pattern=pattern, maxsplit=-1)


@examples(300)
@given(st.lists(TEXT, max_size=9), st.data())
def test_substrings_and_lengths(values: list[bytes], data: st.DataObject) -> None:
    x = texts(values)
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    most = np.iinfo(dtype)
    starts = [data.draw(st.integers(-len(v), len(v))) for v in values]
    lengths = [
        data.draw(st.one_of(st.integers(-2, 50), st.sampled_from([most.min, most.max])))
        for _ in values
    ]
    check("substr", [x, np.array(starts, dtype), np.array(lengths, dtype)])
    check("string_length", [x])
    check("string_length", [x.reshape(1, -1)])


@examples(300)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=9), st.sampled_from(["", *MARKS]))
def test_joined_strings(rows: list[tuple[bytes, ...]], separator: str) -> None:
    columns = [texts([row[k] for row in rows]) for k in range(3)]
    for count in (1, 2, 3):
        check("string_join", columns[:count], separator=separator)
    check("string_join", [c.reshape(1, -1, 1) for c in columns], separator=separator)


@examples(300)
@given(st.lists(st.binary(max_size=40), max_size=9), st.sampled_from(["lower", "upper"]))
def test_cases(values: list[bytes], case: str) -> None:
    """Of single bytes, too, whose objects CPython shares; and of all bytes."""
    x = texts([*values, *(bytes([c]) for c in range(256)), bytes(range(256)) * 9])
    check("string_case", [x], case=case, ascii=True)
    plain = texts([bytes(c & 127 for c in v) for v in x.tolist()])
    check("string_case", [plain], case=case, ascii=False)
    assert NATIVE["string_case"]([x], {"case": case, "ascii": False}) is None
    assert [bytes([c]) for c in range(256)] == x[len(values) : -1].tolist()


def test_single_bytes_that_cpython_shares_stay_as_they_are() -> None:
    x = texts([b"a", b"", b"B"] * 20)
    (made,) = NATIVE["string_case"]([x], {"case": "upper", "ascii": True}) or []
    assert made.tolist() == [b"A", b"", b"B"] * 20
    (made,) = NATIVE["string_join"]([x, texts([b""] * 60)], {"separator": ""}) or []
    assert made.tolist() == x.tolist()
    assert [bytes([c]).decode() for c in b"aAbB"] == ["a", "A", "b", "B"]


@pytest.mark.parametrize("count", [STRINGS - 1, STRINGS, 3 * STRINGS + 5])
def test_many_strings(count: int) -> None:
    x = texts([b" ".join([b"w%d" % (i + j) for j in range(i % 5)]) for i in range(count)])
    check("string_split", [x], delimiter=" ", skip_empty=True)
    for pattern in ("", " ", " w"):
        check("string_split_rows", [x], kind="separator", pattern=pattern, maxsplit=-1)
    at = np.arange(count) % 3
    check("substr", [texts([b"abc"] * count), at, at])
    check("string_length", [x])
    check("string_join", [x, x[::-1].copy()], separator="/")
    check("string_case", [x], case="upper", ascii=False)


@pytest.mark.parametrize("at", [-4, 4, -(2**63), 2**63 - 1])
def test_positions_outside_are_left_alone(at: int) -> None:
    x = texts([b"abc"] * 40)
    places, lengths = np.zeros(40, np.int64), np.ones(40, np.int64)
    places[33] = at
    assert NATIVE["substr"]([x, places, lengths], {}) is None
    with pytest.raises(wf.errors.InvalidArgumentError, match="is not in b'abc' of 3 bytes"):
        wf.tf1.substr(x, places, lengths)


def test_other_ways_to_cut_are_left_alone() -> None:
    x = texts([b"a b c"] * 40)
    how = {"kind": "separator", "pattern": " ", "maxsplit": -1}
    for other in ({"maxsplit": 1}, {"maxsplit": 0}, {"kind": "regex"}, {"kind": "characters"}):
        assert NATIVE["string_split_rows"]([x], {**how, **other}) is None
    assert NATIVE["string_split"]([x], {"delimiter": "", "skip_empty": True}) is None
    assert NATIVE["string_split_rows"]([texts([b"a", "b"])], how) is None
    assert NATIVE["string_join"]([x, x[:1]], {"separator": ""}) is None
    assert NATIVE["string_join"]([x, texts(["a"] * 40)], {"separator": ""}) is None
    assert NATIVE["string_case"]([texts(["a"] * 40)], {"case": "upper", "ascii": True}) is None
    words = {"delimiter": " ", "skip_empty": True}
    assert native_results("string_split", [x[:3]], words) is None  # few
    assert native_results("string_split", [x], words) is not None
    assert native_results("string_split_rows", [x], how) is None  # few for what is quick
    assert native_results("string_split_rows", [texts([b"a b"] * 600)], how) is not None


def test_sessions_and_eager_calls() -> None:
    values = [b"a%d,b" % i for i in range(5000)]
    with wf.Graph().as_default(), wf.Session() as session:
        s = wf.placeholder(wf.string, [None], "s")
        made = wf.tf1.string_split(s, ",")
        found = session.run([made.values, wf.tf1.string_length(s)], {s: values})
    eager = wf.tf1.string_split(values, ",")
    assert found[0].tolist() == eager.values.tolist() == [w for v in values for w in v.split(b",")]
    assert found[1].tolist() == list(map(len, values))
    rows = wf.strings.split(values, ",")
    assert rows.values.tolist() == eager.values.tolist()
    assert rows.row_splits.tolist() == list(range(0, 10001, 2))
    assert wf.tf1.substr([b"abc"], np.int32([1]), np.int32([2**31 - 1])).tolist() == [b"bc"]


def test_no_object_is_lost_or_kept() -> None:
    x = texts([b"one two %d" % i for i in range(2000)])
    how = {"delimiter": " ", "skip_empty": True}
    run = [
        lambda: NATIVE["string_split"]([x], how),
        lambda: NATIVE["string_case"]([x], {"case": "upper", "ascii": True}),
        lambda: NATIVE["string_join"]([x, x], {"separator": "-"}),
    ]
    for call in run:
        call()
    gc.collect()
    before = sys.getrefcount(None), sys.getallocatedblocks()
    for call in run * 10:
        call()
    after = sys.getrefcount(None), sys.getallocatedblocks()
    assert all(abs(b - a) < 500 for a, b in zip(before, after, strict=True))
