"""`wf.strings` beside Python's own functions, eagerly and in graphs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.ops.io import report
from weft.ir.ops.text_processing import sip_hash

InvalidArgumentError = wf.errors.InvalidArgumentError
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
#: Letters, blanks, what patterns and separators look for, and bytes that are no UTF-8.
BYTES = st.lists(
    st.sampled_from([b"a", b"B", b" ", b"\t", "é".encode(), "ß".encode(), b",", b", ", b"1",
                     b"\xff", "İ".encode(), "日".encode()]), max_size=10,
).map(b"".join)  # fmt: skip


def array(texts: Any, shape: Any = None) -> Any:
    out = np.empty(len(texts), object)
    out[:] = texts
    return out if shape is None else out.reshape(shape)


def both(function: Callable[[Any], Any], x: Any) -> Any:
    """What a function of strings gives eagerly, which a graph gives, too, of a size that it learns
    when the step runs."""
    eager = [t.numpy() for t in flat(function(x))]
    with wf.Graph().as_default(), wf.Session() as session:
        fed = wf.placeholder(wf.string, [None] * np.ndim(x))
        made = flat(function(fed))
        found = session.run(made, {fed: x})
    for a, b, t in zip(eager, found, made, strict=True):
        assert a.dtype == t.dtype.numpy
        np.testing.assert_array_equal(a, b)
    return eager[0] if len(eager) == 1 else eager


def flat(made: Any) -> list[Any]:
    return [made] if isinstance(made, wf.Tensor) else list(made)


def chars(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def back(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def rows(found: list[Any]) -> list[list[Any]]:
    values, splits = found[0].tolist(), found[1].tolist()
    assert splits[0] == 0
    assert splits[-1] == len(values)
    return [values[a:b] for a, b in pairwise(splits)]


# ---------------------------------------------------------------------------------- of each string
EACH: dict[str, tuple[Callable[[Any], Any], Callable[[bytes], Any]]] = {
    "lower": (wf.strings.lower, lambda b: back(chars(b).lower())),
    "upper": (wf.strings.upper, lambda b: back(chars(b).upper())),
    "ascii lower": (lambda x: wf.strings.lower(x, ""), bytes.lower),
    "ascii upper": (lambda x: wf.strings.upper(x, encoding=""), bytes.upper),
    "strip": (wf.strings.strip, bytes.strip),
    "strip chars": (lambda x: wf.strings.strip(x, "aé"), lambda b: back(chars(b).strip("aé"))),
    "strip nothing": (lambda x: wf.strings.strip(x, ""), bytes),
    "length": (wf.strings.length, len),
    "characters": (lambda x: wf.strings.length(x, "UTF8_CHAR"), lambda b: len(chars(b))),
    "replace": (
        lambda x: wf.strings.regex_replace(x, r"([a-z]+)(\W?)", r"<\2\g<1>\g<0>>"),
        lambda b: back(re.sub(r"([a-z]+)(\W?)", r"<\2\g<1>\g<0>>", chars(b))),
    ),
    "replace first": (
        lambda x: wf.strings.regex_replace(x, "(?P<n>.)é?", r"\g<n>\n", replace_global=False),
        lambda b: back(re.sub("(?P<n>.)é?", r"\g<n>\n", chars(b), count=1)),
    ),
    "match": (
        lambda x: wf.strings.regex_full_match(x, r"[\w ]*|,"),
        lambda b: re.fullmatch(r"[\w ]*|,", chars(b)) is not None,
    ),
    "base64": (
        wf.strings.encode_base64, lambda b: base64.urlsafe_b64encode(b).rstrip(b"="),
    ),
    "base64 padded": (
        lambda x: wf.strings.encode_base64(x, pad=True, urlsafe=False), base64.b64encode,
    ),
    "base64 there and back": (
        lambda x: wf.strings.decode_base64(wf.strings.encode_base64(x)), bytes,
    ),
    "latin-1": (
        lambda x: wf.strings.unicode_transcode(x, "latin-1", "utf-16-le"),
        lambda b: b.decode("latin-1").encode("utf-16-le"),
    ),
    "replaced": (
        lambda x: wf.strings.unicode_transcode(x, "utf-8", "ascii", "replace"),
        lambda b: b.decode("utf-8", "replace").encode("ascii", "replace"),
    ),
    "ignored": (
        lambda x: wf.strings.unicode_transcode(x, "utf-8", "utf-8", "ignore"),
        lambda b: b.decode("utf-8", "ignore").encode(),
    ),
    "strong hash": (
        lambda x: wf.strings.to_hash_bucket_strong(x, 999_983, [7, 2**64 - 1]),
        lambda b: sip_hash((7, 2**64 - 1), b) % 999_983,
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", EACH)
@examples(24)
@given(texts=st.lists(BYTES, max_size=6))
def test_each_string(name: str, texts: list[bytes]) -> None:
    function, truth = EACH[name]
    found = both(function, array(texts))
    assert found.tolist() == [truth(t) for t in texts]


@pytest.mark.parametrize("name", EACH)
def test_shapes_stay(name: str) -> None:
    function, truth = EACH[name]
    texts = [b"ab c", b"", b"\xc3\xa9,", b"A1", b"x\xff", b" "]
    found = both(function, array(texts, (2, 1, 3)))
    assert found.shape == (2, 1, 3)
    assert found.ravel().tolist() == [truth(t) for t in texts]
    assert both(function, array([], (0, 2))).shape == (0, 2)
    assert function("abc").shape == ()


@examples(60)
@given(texts=st.lists(BYTES, min_size=1, max_size=4), data=st.data())
def test_parts_by_characters(texts: list[bytes], data: st.DataObject) -> None:
    places, lengths = [], []
    for t in texts:
        n = len(chars(t))
        places.append(data.draw(st.integers(-n, n)))
        lengths.append(data.draw(st.integers(0, 12)))
    found = both(
        lambda x: (
            wf.strings.substr(x, np.array(places), np.array(lengths), "UTF8_CHAR")
            if not isinstance(x, wf.Tensor)
            else wf.strings.substr(wf.reshape(x, [len(texts)]), places, lengths, "UTF8_CHAR")
        ),
        array(texts),
    )
    starts = [p + len(chars(t)) if p < 0 else p for p, t in zip(places, texts, strict=True)]
    assert found.tolist() == [
        back(chars(t)[s : s + n]) for t, s, n in zip(texts, starts, lengths, strict=True)
    ]
    assert wf.strings.substr("naïve", 2, 3).item() == "naïve".encode()[2:5]
    with pytest.raises(InvalidArgumentError, match="position 3 is not in b'ab' of 2 characters"):
        wf.strings.substr("ab", 3, 1, "UTF8_CHAR")


# --------------------------------------------------------------------------------------------- rows
SPLITS: dict[str, tuple[Callable[[Any], Any], Callable[[bytes], list[bytes]]]] = {
    "blanks": (wf.strings.split, bytes.split),
    "comma": (lambda x: wf.strings.split(x, ", "), lambda b: b.split(b", ")),
    "twice": (lambda x: wf.strings.split(x, "é", 2), lambda b: b.split("é".encode(), 2)),
    "blanks once": (lambda x: wf.strings.split(x, maxsplit=1), lambda b: b.split(None, 1)),
    "regex": (
        lambda x: wf.strings.regex_split(x, r",?\s+|a"),
        lambda b: [back(p) for p in re.split(r",?\s+|a", chars(b))],
    ),
    "empty matches": (
        lambda x: wf.strings.regex_split(x, r"(?=a)|(é*)", 3),
        lambda b: [back(p) for p in re.split(r"(?=a)|(?:é*)", chars(b), maxsplit=3)],
    ),
    "characters": (wf.strings.unicode_split, lambda b: [back(c) for c in chars(b)]),
}


@pytest.mark.parametrize("name", SPLITS)
@examples(36)
@given(texts=st.lists(BYTES, max_size=5))
def test_splits(name: str, texts: list[bytes]) -> None:
    function, truth = SPLITS[name]
    assert rows(both(function, array(texts))) == [truth(t) for t in texts]
    for text in texts[:1]:
        assert rows([t.numpy() for t in function(text)]) == [truth(text)]


@examples(36)
@given(
    texts=st.lists(TEXT, max_size=5), encoding=st.sampled_from(["utf-8", "utf-16-be", "utf-32-le"])
)
def test_code_points(texts: list[str], encoding: str) -> None:
    coded = array([t.encode(encoding) for t in texts])
    found = both(lambda x: wf.strings.unicode_decode(x, encoding), coded)
    assert rows(found) == [[ord(c) for c in t] for t in texts]
    again = both(
        lambda x: wf.strings.unicode_encode(wf.strings.unicode_decode(x, encoding), encoding), coded
    )
    assert again.tolist() == coded.tolist()


def test_code_points_that_are_none() -> None:
    points = [[0xD800, 65], [0x110000], [-1, 66]]
    values, splits = [p for row in points for p in row], [0, 2, 3, 5]
    with pytest.raises(InvalidArgumentError, match="55296 is no code point"):
        wf.strings.unicode_encode((values, splits))
    found = wf.strings.unicode_encode((values, splits), errors="replace").tolist()
    assert [t.decode() for t in found] == ["\ufffdA", "\ufffd", "\ufffdB"]
    found = wf.strings.unicode_encode((values, splits), errors="ignore")
    assert found.tolist() == [b"A", b"", b"B"]
    assert wf.strings.unicode_encode(([], [0])).shape == (0,)
    for bad in ([0, 2], [1, 5], [0, 3, 2, 5]):
        with pytest.raises(InvalidArgumentError, match="row splits"):
            wf.strings.unicode_encode((values, bad))
    with pytest.raises(InvalidArgumentError, match="does not fit int32"):
        wf.strings.unicode_encode(([2**40], [0, 1]))
    with pytest.raises(InvalidArgumentError, match=r"b'\\xff' is no utf-8"):
        wf.strings.unicode_decode(b"\xff")
    assert wf.strings.unicode_decode(b"a\xff", errors="replace").values.tolist() == [97, 0xFFFD]


# ------------------------------------------------------------------------------------------ joining
@examples(36)
@given(data=st.data(), keepdims=st.booleans())
def test_reduce_join(data: st.DataObject, keepdims: bool) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    axes = data.draw(st.permutations(range(len(shape))).map(lambda p: p[: len(shape)]))
    axes = axes[: data.draw(st.integers(0, len(shape)))]
    given = data.draw(st.sampled_from([list(axes), [a - len(shape) for a in axes]]))
    x = array([str(i).encode() for i in range(int(np.prod(shape)))], shape)
    found = both(lambda t: wf.strings.reduce_join(t, given, keepdims, "-"), x)
    kept = [n for i, n in enumerate(shape) if i not in axes]
    want = np.empty(kept, object)
    for place in np.ndindex(*kept):
        where: list[Any] = [None] * len(shape)
        for i, at in zip([i for i in range(len(shape)) if i not in axes], place, strict=True):
            where[i] = at
        parts = []
        for inner in np.ndindex(*(shape[a] for a in axes)):
            for a, at in zip(axes, inner, strict=True):
                where[a] = at
            parts.append(x[tuple(where)])
        want[place] = b"-".join(parts)
    if keepdims:
        want = want.reshape([1 if i in axes else n for i, n in enumerate(shape)])
    assert found.shape == want.shape
    assert found.tolist() == want.tolist()


def test_joins_and_formats() -> None:
    assert wf.strings.reduce_join([["a", "b"], ["c", "d"]], separator=" ").item() == b"a b c d"
    assert wf.strings.join(["a", ["b", "c"], "é"], ", ").tolist() == [
        "a, b, é".encode(), "a, c, é".encode(),
    ]  # fmt: skip
    x = np.arange(12.0).reshape(3, 4)
    assert wf.strings.format("<{}>", x, summarize=-1).item() == f"<{x}>".encode()
    assert wf.strings.format("{:.2f} {} {{}}", (1.234, "é")).item() == "1.23 é {}".encode()
    assert wf.strings.format("", ()).item() == b""
    assert wf.strings.format("{}", (["a b", "", "é"],)).item() == "[a b '' é]".encode()
    with wf.Graph().as_default(), wf.Session() as session:
        n = wf.placeholder(wf.int32, [])
        assert session.run(wf.strings.format("step {:03d}", n), {n: 7}) == b"step 007"
    with pytest.raises(InvalidArgumentError, match=r"summarize is -1 \(all\), or at least 1"):
        wf.strings.format("{}", x, summarize=0)
    with pytest.raises(InvalidArgumentError, match="does not fit its values"):
        wf.strings.format("{} {}", (1,))


@pytest.mark.parametrize(
    "field", ["0.array", "0.__class__", "0[0]", ".__class__", "0.__init__.__globals__[sys]", "x"]
)
def test_formats_show_values_and_nothing_else(field: str) -> None:
    """A template may be that of somebody else's graph: no attribute of a value leads anywhere."""
    for template in (f"{{{field}}}", f"{{{field}!r}}", f"{{:{{{field}}}}}"):
        for call in (wf.strings.format, lambda t, x: report([x], {"format": t, "summarize": 3})):
            with pytest.raises(InvalidArgumentError, match="is no number of a value"):
                call(template, np.ones(2))
    assert wf.strings.format("{1:>{0}d}", (4, 7)).item() == b"   7"


# ------------------------------------------------------------------------------------------- hashes
def test_sip_hash_has_the_vectors_of_its_paper() -> None:
    """Appendix A of "SipHash: a fast short-input PRF", and the first of its reference's vectors."""
    key = tuple(int.from_bytes(bytes(range(a, a + 8)), "little") for a in (0, 8))
    assert sip_hash(key, bytes(range(15))) == 0xA129CA6149BE45E5  # type: ignore[arg-type]
    first = [bytes.fromhex(h) for h in ("310e0edd47db6f72", "fd67dc93c539f874", "5a4fa9d909806c0d")]
    for n, want in enumerate(first):
        made = sip_hash(key, bytes(range(n)))  # type: ignore[arg-type]
        assert made.to_bytes(8, "little") == want
    # of tf.strings' documentation
    assert wf.strings.to_hash_bucket_strong(["Hello", "TF"], 3, [1, 2]).tolist() == [2, 0]
    fast = wf.strings.to_hash_bucket_fast(["Hello", "TensorFlow", "2.x"], 3)
    assert fast.tolist() == [0, 2, 2]
    with pytest.raises(InvalidArgumentError, match="is no two numbers of 64 bits"):
        wf.strings.to_hash_bucket_strong("a", 3, [1])
    with pytest.raises(InvalidArgumentError, match="num_buckets must be at least 1"):
        wf.strings.to_hash_bucket_strong("a", 0, [1, 2])
    with pytest.raises(InvalidArgumentError, match=r"num_buckets must be less than 2\*\*63"):
        wf.strings.to_hash_bucket_strong("a", 2**63, [1, 2])
    with pytest.raises(InvalidArgumentError, match=r"num_buckets must be less than 2\*\*63"):
        wf.strings.to_hash_bucket_fast("a", 2**64 + 1)


# ------------------------------------------------------------------------------------------- base64
def test_base64_that_is_none() -> None:
    assert wf.strings.decode_base64(["-_8", "-_8="]).tolist() == [b"\xfb\xff"] * 2
    assert wf.strings.decode_base64("+/8=", urlsafe=False).item() == b"\xfb\xff"
    for bad in ("a", "ab=", "ab===", "a b=", "=ab", "ab==cd", "+/8=", "é"):
        with pytest.raises(InvalidArgumentError, match="is no URL-safe base64"):
            wf.strings.decode_base64(bad)
    with pytest.raises(InvalidArgumentError, match="hint: urlsafe=True has the other alphabet"):
        wf.strings.decode_base64("-_8", urlsafe=False)


# --------------------------------------------------------------------------------------------- JSON
VALUES = st.fixed_dictionaries({
    "i": st.integers(-(2**63), 2**63 - 1), "f": st.floats(allow_nan=False, width=32),
    "b": st.booleans(), "s": TEXT,
    "m": st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=2, max_size=2),
})  # fmt: skip


@examples(60)
@given(documents=st.lists(VALUES, max_size=4))
def test_fields_of_json(documents: list[dict[str, Any]]) -> None:
    documents = [{k: v for k, v in d.items() if v not in (np.inf, -np.inf)} for d in documents]
    fields = {
        "i": wf.int64, "f": (wf.float32, 0.5), "b": wf.bool, "s": wf.string,
        "m": wf.data.FixedLenFeature([2, 3], wf.int32), "/m/1/0": wf.float64,
        "none": (wf.int32, -1),
    }  # fmt: skip
    x = array([json.dumps(d).encode() for d in documents])
    found = both(lambda t: list(wf.strings.decode_json(t, fields).values()), x)
    got = dict(zip(fields, found, strict=True))
    assert got["i"].tolist() == [d["i"] for d in documents]
    assert got["f"].tolist() == [d.get("f", 0.5) for d in documents]
    assert got["b"].tolist() == [d["b"] for d in documents]
    assert got["s"].tolist() == [d["s"].encode() for d in documents]
    assert got["m"].tolist() == [d["m"] for d in documents]
    assert got["/m/1/0"].tolist() == [d["m"][1][0] for d in documents]
    assert got["none"].tolist() == [-1] * len(documents)


def test_fields_of_any_length() -> None:
    text = '{"words": ["a", "é"], "x": [], "a/b": {"~": [null, 5]}}'
    fields = {
        "words": wf.data.VarLenFeature(wf.string), "x": wf.data.VarLenFeature(wf.float32),
        "/a~1b/~0/1": wf.int32, "/a~1b/~0/0": (wf.float32, 2),
    }  # fmt: skip
    words, x, five, two = both(
        lambda t: list(wf.strings.decode_json(t, fields).values()), array([text.encode()], ())
    )
    assert words.tolist() == [b"a", "é".encode()]
    assert (x.shape, five, two) == ((0,), 5, 2)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("{", wf.int32, "is no JSON"), ("NaN", wf.int32, "NaN is no number in JSON"),
        ("[" * 100_000, wf.int32, "is no JSON"), (b"\xff", wf.int32, "is no JSON"),
        ("{}", wf.int32, "there is no field 'a'"), ("[1]", wf.int32, "there is no field 'a'"),
        ('{"a": 1.0}', wf.int32, "has 1.0, no int32"), ('{"a": true}', wf.float32, "has True, no"),
        ('{"a": 3000000000}', wf.int32, "no int32"), ('{"a": 1}', wf.bool, "has 1, no bool"),
        ('{"a": 1}', wf.string, "has 1, no string"), ('{"a": null}', wf.int32, "has None, no"),
        ('{"a": [1]}', wf.int32, r"has \[1\], no int32"),
        ('{"a": [1]}', wf.data.FixedLenFeature([2], wf.int32), r"is \[1\], no i32\[2\]"),
        ('{"a": [[1], [1, 2]]}', wf.data.FixedLenFeature([2, 1], wf.int32), r"no i32\[2,1\]"),
    ],
)  # fmt: skip
def test_json_that_does_not_fit(text: Any, field: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        wf.strings.decode_json([text], {"a": field})
    assert "test_text_functions.py" in str(caught.value)
    assert "document 0" in str(caught.value)


def test_fields_that_are_none() -> None:
    with pytest.raises(wf.errors.TypeRuleError, match="the field 'a' cannot be complex64"):
        wf.strings.decode_json("{}", {"a": wf.complex64})
    with pytest.raises(wf.errors.ShapeError, match="any length in one document at a time"):
        wf.strings.decode_json(["{}"], {"a": wf.data.VarLenFeature(wf.int64)})
    for bad in ([1, 2], "x", None.__class__):
        with pytest.raises(InvalidArgumentError, match=r"the default .* of 'a' is no i64\[\]"):
            wf.strings.decode_json("{}", {"a": (wf.int64, bad)})
    with pytest.raises(InvalidArgumentError, match=r"the default 1 of 'a' is no string\[\]"):
        wf.strings.decode_json("{}", {"a": (wf.string, 1)})
    with pytest.raises(InvalidArgumentError, match="no fields are asked for"):
        wf.strings.decode_json("{}", {})


# ---------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: wf.strings.lower([1, 2]), wf.errors.TypeRuleError, "takes strings"),
        (lambda: wf.strings.lower("a", "latin-1"), InvalidArgumentError, "encoding='latin-1'"),
        (lambda: wf.strings.length("a", "CHAR"), InvalidArgumentError, "unit='CHAR'"),
        (lambda: wf.strings.regex_replace("a", "(", ""), InvalidArgumentError, "at position 0"),
        (lambda: wf.strings.regex_replace("a", "b", r"\1"), InvalidArgumentError, "invalid group"),
        (lambda: wf.strings.regex_replace("a", "b", r"\g<x>"), InvalidArgumentError, "fit the p"),
        (lambda: wf.strings.regex_full_match("a", b"a"), wf.errors.TypeRuleError, "is a str"),
        (lambda: wf.strings.split("a", ""), InvalidArgumentError, "the separator is empty"),
        (lambda: wf.strings.split([["a"]]), wf.errors.ShapeError, "with one axis"),
        (lambda: wf.strings.unicode_decode("a", "klingon"), InvalidArgumentError, "is no encoding"),
        (lambda: wf.strings.unicode_decode("a", "base64"), InvalidArgumentError, "is no encoding"),
        (lambda: wf.strings.unicode_decode("a", errors="?"), InvalidArgumentError, "is none of"),
        (lambda: wf.strings.reduce_join(["a"], 1), wf.errors.ShapeError, "axes"),
        (lambda: wf.strings.unicode_encode([1]), InvalidArgumentError, "values and row splits"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "test_text_functions.py" in str(caught.value)


HALF, BYTE = "b\ud800", "\udcff"  # half of a surrogate pair; what stands for the byte 0xff
WITH_TEXT: dict[str, Callable[[Any, str], Any]] = {
    "strip": wf.strings.strip,
    "regex_replace": lambda x, text: wf.strings.regex_replace(x, "a", text),
    "regex_full_match": wf.strings.regex_full_match,
    "regex_split": lambda x, text: wf.strings.regex_split(x, text).values,
    "split": lambda x, text: wf.strings.split(x, text).values,
    "join": lambda x, text: wf.strings.join([x, x], text),
    "reduce_join": lambda x, text: wf.strings.reduce_join(x, separator=text),
    "format": lambda x, text: wf.strings.format("{}" + text, x),
}


@pytest.mark.parametrize("name", WITH_TEXT)
def test_text_that_no_bytes_stand_for(name: str) -> None:
    """It was an internal error of the reference, or matched nothing."""
    call = WITH_TEXT[name]

    def in_a_session() -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.string, [None])
            session.run(call(x, HALF), {x: ["a"]})

    for use in (
        lambda: call(["a"], HALF), in_a_session,
        lambda: wf.compile(lambda x: call(x, HALF))(np.array(["a"])),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=r"one half of a surrogate") as caught:
            use()
        assert name.removeprefix("regex_").split("_")[-1] in str(caught.value)
        assert "test_text_functions.py" in str(caught.value)


def test_bytes_of_no_text_in_patterns_and_separators() -> None:
    assert wf.strings.join([[b"a"], [b"b"]], BYTE).tolist() == [b"a\xffb"]
    assert wf.strings.reduce_join([b"a", b"b"], separator=BYTE).item() == b"a\xffb"
    assert wf.strings.split(b"a\xffb", BYTE).values.tolist() == [b"a", b"b"]
    assert wf.strings.regex_replace(b"a\xffb", BYTE, "é").item() == "aéb".encode()
    assert wf.strings.regex_replace(b"ab", "b", BYTE).item() == b"a\xff"
    assert wf.strings.format("{}" + BYTE, 1).item() == b"1\xff"
    words = wf.tf1.string_split([b"a\xffb"], BYTE)
    assert words.values.tolist() == [b"a", b"b"]


def test_errors_name_the_function() -> None:
    """Each function, called with numbers."""
    others: dict[str, Any] = {
        "join": [[1, 2]], "substr": [[1], 0, 1], "regex_replace": [1, "a", "b"],
        "regex_full_match": [1, "a"], "regex_split": [1, "a"], "as_string": ["a"],
        "unicode_encode": [([1.5], [0, 1])], "decode_json": [1, {"a": wf.int32}],
        "to_hash_bucket": [1, 5], "to_hash_bucket_fast": [1, 5], "format": None, "Rows": None,
        "to_hash_bucket_strong": [1, 5, [1, 2]], "unicode_transcode": [1, "utf-8", "utf-8"],
        "decode_csv": None,
    }  # fmt: skip
    for name in wf.strings.__all__:
        arguments = others.get(name, [[1, 2]])
        if arguments is None:  # takes numbers, or is TensorFlow 1's
            continue
        with pytest.raises(wf.errors.TypeRuleError, match=rf"^wf\.strings\.{name} ") as caught:
            getattr(wf.strings, name)(*arguments)
        assert "test_text_functions.py" in str(caught.value)


def test_compiled_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    for function in (wf.strings.upper, wf.strings.split):
        length = lambda x, function=function: wf.strings.length(flat(function(x))[0])  # noqa: E731
        x = np.array([b"a bc", b"d"], object)
        for device in ("cpu", "gpu:0"):
            made = wf.compile(length, device=device)(x)
            np.testing.assert_array_equal(made, length(wf.asarray(x)))


def test_rows_go_on_in_a_graph() -> None:
    """How many words there are is known when the step runs."""
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.string, [None])
        words, splits = wf.strings.split(wf.strings.lower(x))
        numbers = wf.strings.to_number(wf.strings.regex_replace(words, r"\D", ""), wf.int64)
        lengths = splits[1:] - splits[:-1]
        found = session.run([numbers, lengths], {x: ["A1 b22", "", "c3"]})
        assert [a.tolist() for a in found] == [[1, 22, 3], [2, 0, 1]]
        assert session.run(lengths, {x: []}).tolist() == []


def test_text_of_a_batch() -> None:
    x = array([b"Ab", b"cD"], (2, 1))
    assert wf.vmap(wf.strings.upper)(x).tolist() == [[b"AB"], [b"CD"]]
    assert wf.vmap(lambda t: wf.strings.reduce_join(t))(x).tolist() == [b"Ab", b"cD"]
