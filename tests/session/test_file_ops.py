"""Whole files, images, CSV records, Examples, prints and assertions, eagerly and in graphs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.runtime.files.decoding import decode_csv

Decode = Callable[..., Any]


def both(function: Decode, *args: Any) -> list[Any]:
    """What `function` of tensors gives eagerly, which must be what it gives in a graph."""
    eager = wf.tree_map(lambda t: np.asarray(t.numpy()), function(*args))
    arrays = [np.asarray(a, object if isinstance(a, (str, bytes)) else None) for a in args]
    with wf.Graph().as_default(), wf.Session() as session:
        given = [wf.asarray(a) for a in args]
        inputs = [wf.placeholder(g.dtype, g.shape) for g in given]
        made = session.run(function(*inputs), dict(zip(inputs, arrays, strict=True)))
    found = wf.tree_leaves(wf.tree_map(np.asarray, made))
    leaves = wf.tree_leaves(eager)
    assert len(found) == len(leaves)
    for x, y in zip(leaves, found, strict=True):
        assert x.shape == y.shape
        np.testing.assert_array_equal(x, y)
    return leaves


# ---------------------------------------------------------------------------------------------- csv
#: (records, defaults, options, columns): what TensorFlow 2.21 gives.
CSV: list[tuple[list[str], list[Any], dict[str, Any], list[Any]]] = [
    (["1,2.5,a b", '3,,"x,""y"'], [[0], [1.5], ["d"]], {},
     [np.int32([1, 3]), np.float32([2.5, 1.5]), [b"a b", b'x,"y']]),
    ([" 1 ,2,"], [wf.int32, [0.0], [""]], {}, [np.int32([1]), np.float32([2]), [b""]]),
    (["1,NA"], [[0], [5]], {"na_value": "NA"}, [np.int32([1]), np.int32([5])]),
    (["1,N_A"], [[0], [5]], {"na_value": "N_A"}, [np.int32([1]), np.int32([5])]),
    (["1,2,3"], [[0], [5]], {"select_cols": [0, 2]}, [np.int32([1]), np.int32([3])]),
    (["1;2"], [wf.int64, np.float64(0)], {"field_delim": ";"}, [np.int64([1]), np.float64([2])]),
    (['"1,2'], [wf.string, wf.string], {"use_quote_delim": False}, [[b'"1'], [b"2"]]),
    ([""], [[7]], {}, [np.int32([7])]),
    (["\n1,\r2", '\n"3",4\r\n'], [[0], [0]], {}, [np.int32([1, 3]), np.int32([2, 4])]),
    (['"' + "x" * 200_000 + '",""'], [[""], ["d"]], {}, [[b"x" * 200_000], [b"d"]]),
]  # fmt: skip


@pytest.mark.parametrize(("records", "defaults", "options", "columns"), CSV)
def test_csv_records(records: Any, defaults: Any, options: Any, columns: Any) -> None:
    found = both(lambda r: wf.decode_csv(r, defaults, **options), records)
    for x, wanted in zip(found, columns, strict=True):
        assert x.tolist() == np.asarray(wanted).tolist()
        if isinstance(wanted, np.ndarray):
            assert x.dtype == wanted.dtype
    single = wf.decode_csv(records[0], defaults, **options)
    assert [t.shape for t in single] == [()] * len(columns)


@pytest.mark.parametrize(
    ("record", "defaults", "words"),
    [("1", [[0], [0]], "1 fields, 2 are expected"), ("a", [[0]], r"field 0: b'a' is no int32"),
     (",1", [wf.int32, [1]], "field 0: it is empty"), ('"a', [[""]], "record 0"),
     ('x"a"b,"', [[""], [""]], "record 0, field 0 has a quote"),
     ('1,"a"b', [[""], [""]], "record 0, field 1 goes on after the quote"),
     ('a\nb"', [[""]], "record 0, field 0 has a quote or a line break"),
     ('x,"a""', [[""], [""]], "record 0, field 1: the quote has no end"),
     ("1_0", [[0]], "is no int32"),
     ("3000000000", [[0]], "is no int32"), ("nan", [[0]], "is no int32")],
)  # fmt: skip
def test_csv_errors(record: str, defaults: Any, words: str) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=words):
        wf.decode_csv([record], defaults)


@given(st.lists(st.text('ab,"\n\r;é', max_size=5), min_size=1, max_size=4), st.booleans())
def test_csv_records_as_the_csv_module_writes_them(fields: list[str], every: bool) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL).writerow(fields)
    found: Any = decode_csv(
        np.array(out.getvalue().encode(), object), [np.array([b""], object)] * len(fields)
    )
    assert [f[()].decode() for f in found] == fields


def test_csv_records_with_quotes_beside_plain_ones() -> None:
    records = np.array([b"1,\xff", b'"2","a\nb"', b"3,'x'"], object).reshape(3, 1)
    numbers, text = wf.decode_csv(records, [[0], [""]])
    assert numbers.numpy().tolist() == [[1], [2], [3]]
    assert text.numpy().tolist() == [[b"\xff"], [b"a\nb"], [b"'x'"]]
    with pytest.raises(wf.errors.InvalidArgumentError, match="record 1, field 0: b'x' is no"):
        wf.decode_csv(["1", "x", ""], [wf.float64])


def test_csv_bad_arguments() -> None:
    with pytest.raises(wf.errors.TypeRuleError, match="default of column 0"):
        wf.decode_csv("1", [np.uint8(1)])
    with pytest.raises(wf.errors.TypeRuleError, match="takes strings"):
        wf.decode_csv([1.0], [[0]])
    with pytest.raises(wf.errors.InvalidArgumentError, match="rise"):
        wf.decode_csv("1,2", [[0], [0]], select_cols=[1, 0])
    for count in (1, 40):  # few records and many
        with pytest.raises(wf.errors.InvalidArgumentError, match="at least 0"):
            wf.decode_csv(["1,2"] * count, [[0], [0]], select_cols=[-1, 1])
        with pytest.raises(wf.errors.InvalidArgumentError, match="record 0 has 2 fields"):
            wf.decode_csv(["1,2"] * count, [[0]], select_cols=[2**62])
    with pytest.raises(wf.errors.InvalidArgumentError, match="delimiter"):
        wf.decode_csv("1,2", [[0], [0]], field_delim=", ")


# ----------------------------------------------------------------------------------------- examples
FEATURES = {
    "x": wf.FixedLenFeature([2], wf.float32),
    "n": wf.FixedLenFeature([], wf.int64, 7),
    "s": wf.FixedLenFeature([1, 1], wf.string, "none"),
}
EXAMPLES = [
    wf.data.encode_example({"x": [1.0, 2.0], "n": 3, "s": b"\xff"}),
    wf.data.encode_example({"x": [3.0, 4.0]}),
]


def test_examples() -> None:
    n, s, x = both(lambda e: wf.parse_example(e, FEATURES), EXAMPLES)
    assert x.tolist() == [[1, 2], [3, 4]]
    assert n.tolist() == [3, 7]
    assert s.tolist() == [[[b"\xff"]], [[b"none"]]]
    one = wf.parse_single_example(EXAMPLES[1], FEATURES)
    assert one["x"].shape == (2,)
    assert one["n"].numpy() == 7
    assert one["s"].shape == (1, 1)
    text = wf.parse_example(EXAMPLES[:1], {"s": wf.FixedLenFeature([], wf.string)})["s"]
    assert text.numpy().tolist() == [b"\xff"]
    empty = wf.parse_example(np.empty(0, object), FEATURES)
    assert [t.shape for t in empty.values()] == [(0, 2), (0,), (0, 1, 1)]


def test_features_of_any_length() -> None:
    spec = {"x": wf.VarLenFeature(wf.float32), "none": wf.VarLenFeature(wf.int64)}
    none, x = both(lambda e: wf.parse_single_example(e, spec), EXAMPLES[0])
    assert x.tolist() == [1, 2]
    assert none.tolist() == []
    with wf.Graph().as_default(), wf.Session() as session:
        e = wf.placeholder(wf.string, [], "e")
        total = wf.sum(wf.parse_single_example(e, spec)["x"] * 2)
        assert [session.run(total, {e: given}) for given in EXAMPLES] == [6, 14]
    with pytest.raises(wf.errors.ShapeError, match=r"for one example, or for a list .* \[1,2\]"):
        wf.parse_example(np.array([EXAMPLES], object), spec)


def test_features_of_any_length_of_many_examples() -> None:
    """Sparse matrices, as TensorFlow's: a row for each example."""
    spec = {**FEATURES, "v": wf.VarLenFeature(wf.int64), "w": wf.VarLenFeature(wf.string)}
    rows: list[list[int]] = [[3, 4, 5], [], [6]]
    records = [wf.data.encode_example({"x": [0.0, 1.0], "v": v} if v else {"x": [0.0, 1.0]})
               for v in rows]  # fmt: skip
    eager = wf.parse_example(records, spec)
    with wf.Graph().as_default(), wf.Session() as session:
        e = wf.placeholder(wf.string, [None], "e")
        made = wf.parse_example(e, spec)
        sums = wf.sparse.reduce_sum(made["v"], axis=1)
        fetched, found = session.run([made, sums], {e: records})
        assert session.run(made["v"], {e: []}).dense_shape.tolist() == [0, 0]
    assert found.tolist() == [12, 0, 6]
    assert fetched["x"].shape == (3, 2)
    for got in (eager["v"], fetched["v"]):
        assert np.asarray(got.indices).tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]
        assert np.asarray(got.values).tolist() == [3, 4, 5, 6]
        assert tuple(got.dense_shape) == (3, 3)
    assert fetched["w"].values.dtype == object
    assert tuple(fetched["w"].dense_shape) == tuple(eager["w"].dense_shape) == (3, 0)
    assert eager["v"].to_dense(-1).numpy().tolist() == [[3, 4, 5], [-1, -1, -1], [6, -1, -1]]


def test_example_errors() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"example 1: .* no feature 's'"):
        wf.parse_example(EXAMPLES, {"s": wf.FixedLenFeature([], wf.string)})
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"'x' has 2 values"):
        wf.parse_single_example(EXAMPLES[0], {"x": wf.FixedLenFeature([3], wf.float32)})
    with pytest.raises(wf.errors.DataLossError, match="example 0"):
        wf.parse_example([EXAMPLES[0][:-1]], FEATURES)


# ------------------------------------------------------------------------------------------- images
def png(height: int, width: int, mode: str = "RGB") -> tuple[bytes, Any]:
    from PIL import Image

    channels = {"RGB": 3, "L": 1}[mode]
    shape = (height, width, 3) if channels == 3 else (height, width)
    pixels = np.arange(height * width * channels, dtype=np.uint8).reshape(shape)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue(), pixels.reshape(height, width, channels)


def test_images() -> None:
    data, pixels = png(4, 5)
    for decode in (wf.decode_png, wf.decode_image, wf.decode_jpeg):
        (found,) = both(decode, data)
        np.testing.assert_array_equal(found, pixels)
    (found,) = both(lambda d: wf.decode_png(d, 3, shape=(4, 5, 3)), data)
    np.testing.assert_array_equal(found, pixels)
    assert wf.decode_png(data, channels=1).shape == (4, 5, 1)


def test_images_of_several_sizes_in_one_step_definition() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        data = wf.placeholder(wf.string, [], "data")
        image = wf.decode_png(data, channels=1)
        mean = wf.mean(wf.astype(image, wf.float32))
        for height, width in ((2, 3), (7, 1), (2, 3)):
            given, pixels = png(height, width, "L")
            found, value = session.run([image, mean], {data: given})
            np.testing.assert_array_equal(found, pixels)
            assert value == pytest.approx(pixels.mean())


def test_image_errors() -> None:
    data, _ = png(2, 2)
    with pytest.raises(wf.errors.InvalidArgumentError, match="2 x 2, 3 x 2 is wanted"):
        wf.decode_png(data, shape=(3, 2, 3))
    with pytest.raises(wf.errors.DataLossError):
        wf.decode_png(data[:30])
    with pytest.raises(wf.errors.DataLossError, match=r"\(3 bytes\): no kind that Pillow knows"):
        wf.decode_png(b"abc")
    with pytest.raises(wf.errors.UnsupportedError, match="uint8"):
        wf.decode_png(data, dtype=wf.uint16)
    with pytest.raises(wf.errors.InvalidArgumentError, match="channels"):
        wf.decode_png(data, channels=5)


# -------------------------------------------------------------------------------------------- files
def test_whole_files(tmp_path: Path) -> None:
    name = tmp_path / "folder" / "a.bin"
    wf.write_file(name, b"\0abc")
    assert wf.read_file(name).numpy()[()] == b"\0abc"
    with wf.Graph().as_default(), wf.Session() as session:
        text = wf.placeholder(wf.string, [], "text")
        put = wf.write_file(str(tmp_path / "b.bin"), wf.string_join([text, "!"]))
        with wf.control_dependencies([put]):
            back = wf.read_file(str(tmp_path / "b.bin"))
        names = wf.matching_files([f"{tmp_path}/*.bin", f"{tmp_path}/*/*.bin"])
        count = wf.size(names)
        assert session.run(back, {text: "x"}) == b"x!"
        found, n = session.run([names, count])
        assert found.tolist() == [str(tmp_path / "b.bin").encode(), str(name).encode()]
        assert n == 2
    assert wf.matching_files(f"{tmp_path}/none*").numpy().tolist() == []
    with pytest.raises(wf.errors.NotFoundError, match="nothing"):
        wf.read_file(tmp_path / "nothing")
    with pytest.raises(wf.errors.FailedPreconditionError):
        wf.write_file(tmp_path / "b.bin" / "c", "x")


def test_names_that_are_none() -> None:
    for call in (
        lambda: wf.read_file(b"a\0b"),
        lambda: wf.write_file(b"a\0b", "x"),
        lambda: wf.data.TFRecordWriter("a\0b"),
        lambda: list(wf.data.read_lines("a\0b")),
    ):
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"'a\\x00b' is no name of a file"):
            call()


# ------------------------------------------------------------------------------- prints, assertions
def test_print(capfd: pytest.CaptureFixture[str]) -> None:
    assert wf.Print(1.0, [np.arange(5), "é", 2.5], "so: ").numpy() == 1
    assert capfd.readouterr().err == "so: [[0 1 2...]][é][2.5]\n"
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [2], "x")
        y = wf.Print(x * 2, [x, wf.shape(x)], "x ", summarize=-1) + 1
        wf.Print(x, [x], "nobody asks for this")
        assert session.run(y, {x: [1, 2]}).tolist() == [3, 5]
        assert capfd.readouterr().err == "x [[1 2]][[2]]\n"
        _, total = wf.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, wf.Print(s + i, [i], "i=")), (0, 0)
        )
        assert session.run(total) == 3
        assert capfd.readouterr().err == "i=[0]\ni=[1]\ni=[2]\n"
        with pytest.raises(wf.errors.UnsupportedError, match="first_n"):
            wf.Print(x, [], first_n=3)
    assert wf.compile(lambda x: wf.Print(x * 2, [x], "x "))(1.0).numpy() == 2
    assert capfd.readouterr().err == "x [1]\n"


def test_assert() -> None:
    wf.Assert(True, [])
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"assertion failed: \[\[1 2\]\]"):
        wf.Assert([True, False], [[1, 2]])
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None], "x")
        with wf.control_dependencies([wf.Assert(x > 0, ["x must be positive: ", x], 1)]):
            y = wf.sqrt(x)
        assert session.run(y, {x: [4]}).tolist() == [2]
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"positive: \]\[\[-1...\]\]"):
            session.run(y, {x: [-1, 2]})
    with pytest.raises(wf.errors.TypeRuleError, match="bool"):
        wf.Assert(1, [])


def test_gradients_go_through_prints_and_assertions(capfd: pytest.CaptureFixture[str]) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [2], "x")
        with wf.control_dependencies([wf.Assert(x > 0, [x])]):
            y = wf.Print(wf.identity(x) ** 2, [x], "x = ")
        (dx,) = wf.gradients(wf.sum(y * 3), [x])
        loss, gradient = session.run([wf.sum(y), dx], {x: [1, 2]})
        assert loss == 5
        assert gradient.tolist() == [6, 12]
        assert capfd.readouterr().err == "x = [[1 2]]\n"  # once
        with pytest.raises(wf.errors.InvalidArgumentError, match="assertion failed"):
            session.run(y, {x: [1, -2]})
