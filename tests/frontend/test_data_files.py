"""Data files: round trips, TensorFlow's own bytes, and what damaged files say."""

from __future__ import annotations

import base64
import csv
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.runtime.files import streams, wire
from weft.runtime.files.records import crc32c

D = wf.data

# tensorflow 2.21: an Example (below), b"" and b"third record", by tf.io.TFRecordWriter
WRITTEN_BY_TF = {
    "": (
        "UwAAAAAAAAANfU6RClEKDgoBYhIJCgcKA2EAYgoACgkKBWVtcHR5EgAKFQoBZhIQEg4KDAAAwD8AABDA5rFh"
        "fwodCgFpEhgaFgoU////////////AQCAgICAgICAgEDyJV/9AAAAAAAAAAApA5gH2OqCogwAAAAAAAAA9Mj+"
        "CnRoaXJkIHJlY29yZM3FcvA="
    ),
    "GZIP": (
        "H4sIAAAAAAAAAwtmgADeWr+JXIFcfFyMSUKcXOxczIkMSVwMXJxcrKm5BSWVQgxcolyMaUICQnxcPAwMB+wZ"
        "GAQOPNuYWM8ly8WYKSQhJcYl8h8GGBkaoMDhk2r8X6gNDJrMM9hvvGpaxAPlfznxj6skI7MoRaEoNTm/KOXs"
        "0aIPAHpjrQ+PAAAA"
    ),
    "ZLIB": (
        "eJwLZoAA3lq/iVyBXHxcjElCnFzsXMyJDElcDFycXKypuQUllUIMXKJcjGlCAkJ8XDwMDAfsGRgEDjzbmFjP"
        "JcvFmCkkISXGJfIfBhgZGqDA4ZNq/F+oDQyazDPYb7xqWsQD5X858Y+rJCOzKEWhKDU5vyjl7NGiDwBWEyoh"
    ),
}
COMPRESSIONS = pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])


def records_in(data: bytes, folder: Path, compression: str = "") -> list[bytes]:
    path = folder / "x.tfrecord"
    path.write_bytes(data)
    return list(D.read_tfrecords(path, compression))


def written(records: list[bytes], folder: Path, compression: str = "") -> bytes:
    path = folder / "w.tfrecord"
    with D.TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


# ----------------------------------------------------------------------------------------- TFRecord
@COMPRESSIONS
def test_reads_what_tensorflow_wrote(compression: str, tmp_path: Path) -> None:
    first, *rest = records_in(base64.b64decode(WRITTEN_BY_TF[compression]), tmp_path, compression)
    assert rest == [b"", b"third record"]
    found = D.decode_example(first)
    assert sorted(found) == ["b", "f", "i"]  # "empty" has no list
    assert found["b"].tolist() == [b"a\x00b", b""]
    assert found["f"].dtype == np.float32
    np.testing.assert_array_equal(found["f"], np.array([1.5, -2.25, 3e38], np.float32))
    assert found["i"].dtype == np.int64
    assert found["i"].tolist() == [-1, 0, 2**62]


def test_writes_tensorflows_bytes(tmp_path: Path) -> None:
    theirs = base64.b64decode(WRITTEN_BY_TF[""])
    assert written(records_in(theirs, tmp_path), tmp_path) == theirs


def test_crc_is_castagnolis() -> None:
    assert crc32c()(b"123456789") == 0xE3069283  # RFC 3720's check value is of the same CRC
    assert crc32c()(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@COMPRESSIONS
@settings(max_examples=30)
@given(records=st.lists(st.binary(max_size=300), max_size=8))
def test_record_round_trip(
    compression: str, records: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("records")
    data = written(records, folder, compression)
    assert records_in(data, folder, compression) == records


@pytest.mark.slow
def test_long_records(tmp_path: Path) -> None:
    records = [bytes(40_000_000), b"x" * 300_000]
    for compression in ("", "GZIP"):
        assert records_in(written(records, tmp_path, compression), tmp_path, compression) == records


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    data = written([b"abc", b"", b"0123456789"], tmp_path)
    starts = [0, 19, 35, len(data)]
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        record = next(i for i in range(3) if bit // 8 < starts[i + 1])
        with pytest.raises(
            wf.errors.DataLossError,
            match=rf"x\.tfrecord: record {record} at byte {starts[record]}: ",
        ):
            records_in(bytes(damaged), tmp_path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    data = written([b"abc", b"", b"0123456789"], tmp_path)
    for end in range(len(data)):
        if end in (0, 19, 35):  # between records: nothing is missing that anybody could know of
            assert len(records_in(data[:end], tmp_path)) == [0, 19, 35].index(end)
            continue
        with pytest.raises(wf.errors.DataLossError, match="the file ends"):
            records_in(data[:end], tmp_path)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_damaged_compressed_files(compression: str, tmp_path: Path) -> None:
    records = [bytes([i]) * i * 7 for i in range(20)]
    data = written(records, tmp_path, compression)
    for end in range(1, len(data), 3):
        with pytest.raises(wf.errors.DataLossError, match="of the decompressed data"):
            records_in(data[:end], tmp_path, compression)
    for bit in range(0, 8 * len(data), 5):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = records_in(bytes(damaged), tmp_path, compression)
        except wf.errors.DataLossError:
            continue
        assert found == records  # such as a bit of the time in gzip's header


def test_concatenated_gzip_files(tmp_path: Path) -> None:
    data = written([b"a"], tmp_path, "GZIP") + written([b"b"], tmp_path, "GZIP")
    assert records_in(data, tmp_path, "GZIP") == [b"a", b"b"]


def test_a_length_that_is_not_there_is_not_allocated(tmp_path: Path) -> None:
    import struct

    length = struct.pack("<Q", 1 << 60)
    crc = crc32c()(length)
    head = length + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    with pytest.raises(wf.errors.DataLossError, match=f"ends after 4 of its {1 << 60} bytes"):
        records_in(head + b"abcd", tmp_path)


def test_wrong_compression_is_named(tmp_path: Path) -> None:
    for compression in ("GZIP", "ZLIB"):
        data = written([b"abc" * 9], tmp_path, compression)
        with pytest.raises(wf.errors.DataLossError, match=f'compression_type="{compression}"'):
            records_in(data, tmp_path)
    with pytest.raises(wf.errors.InvalidArgumentError, match="not known"):
        D.read_tfrecords(tmp_path / "x", "LZ4")
    with pytest.raises(wf.errors.NotFoundError, match="nowhere"):
        next(D.read_tfrecords(tmp_path / "nowhere"))
    writer = D.TFRecordWriter(tmp_path / "x")
    with writer, pytest.raises(wf.errors.InvalidArgumentError, match="is str"):
        writer.write("text")  # type: ignore[arg-type]
    with pytest.raises(wf.errors.FailedPreconditionError, match="closed"):
        writer.write(b"")


def test_flushed_records_can_be_read(tmp_path: Path) -> None:
    with D.TFRecordWriter(tmp_path / "x") as writer:
        writer.write(b"abc")
        writer.flush()
        assert list(D.read_tfrecords(tmp_path / "x")) == [b"abc"]


# ------------------------------------------------------------------------------------------ Example
int64s = st.integers(-(2**63), 2**63 - 1)
features = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.lists(st.binary(max_size=20), min_size=1, max_size=5),
        st.lists(st.one_of(int64s, st.integers(0, 200)), max_size=30).map(
            lambda v: np.array(v, np.int64)
        ),
        st.lists(st.floats(width=32), max_size=5).map(lambda v: np.array(v, np.float32)),
    ),
    max_size=6,
)


@given(features)
def test_example_round_trip(given_features: dict[str, Any]) -> None:
    data = D.encode_example(given_features)
    found = D.decode_example(data)
    assert set(found) == set(given_features)
    for name, values in given_features.items():
        if isinstance(values, list):
            assert found[name].tolist() == values
        else:
            assert found[name].dtype == values.dtype
            assert found[name].tobytes() == values.tobytes()
    assert D.encode_example(found) == data


@given(st.lists(int64s, max_size=40))
def test_varints_match_the_definition(values: list[int]) -> None:
    data = b"".join(wire.varint(v % 2**64) for v in values)
    assert wire.packed(np.array(values, np.int64)) == data
    assert wire.varints(data).tolist() == values


@given(st.binary(max_size=60))
def test_other_bytes_raise_or_decode(data: bytes) -> None:
    try:
        found = D.decode_example(data)
    except wf.errors.DataLossError:
        return
    assert all(isinstance(v, np.ndarray) and v.ndim == 1 for v in found.values())


def test_truncated_example() -> None:
    data = D.encode_example({"i": [1, 300], "f": [1.5], "b": b"abc"})
    for end in range(1, len(data)):
        with pytest.raises(wf.errors.DataLossError, match=r"tf\.train\.Example"):
            D.decode_example(data[:end])


def test_unpacked_merged_and_unknown_fields() -> None:
    m = wire.message
    unpacked = b"".join(b"\x08" + wire.varint(v) for v in (1, 300)) + m(1, b"\x05")
    floats = b"\x0d" + np.float32(1.5).tobytes() + m(1, np.float32([2, 3]).tobytes())
    first = m(1, m(1, b"i") + m(2, m(3, unpacked)) + b"\x18\x07")
    second = m(1, m(1, b"f") + m(2, m(2, floats)))
    replaced = m(1, m(1, b"r") + m(2, m(1, m(1, b"old")))) + m(
        1, m(1, b"r") + m(2, m(3, b"\x08\x09"))
    )
    found = D.decode_example(m(1, first) + m(9, b"unknown") + m(1, second + replaced))
    assert found["i"].tolist() == [1, 300, 5]
    assert found["f"].tolist() == [1.5, 2, 3]
    assert found["r"].tolist() == [9]


def test_parse_single_example() -> None:
    data = D.encode_example({"image": np.arange(6.0), "label": 3, "name": "ab", "ids": [1, 2, 3]})
    found = D.parse_single_example(
        data,
        {
            "image": D.FixedLenFeature([2, 3], wf.float32),
            "label": D.FixedLenFeature([], "int64"),
            "name": D.FixedLenFeature([], wf.string),
            "ids": D.VarLenFeature(np.int64),
            "none": D.VarLenFeature(wf.float32),
            "default": D.FixedLenFeature([2], wf.float32, 0.5),
            "text": D.FixedLenFeature([], wf.string, "?"),
        },
    )
    np.testing.assert_array_equal(found["image"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert found["label"].shape == ()
    assert int(found["label"]) == 3
    assert found["name"][()] == b"ab"
    assert found["ids"].tolist() == [1, 2, 3]
    assert (found["none"].dtype, found["none"].shape) == (np.float32, (0,))
    assert found["default"].tolist() == [0.5, 0.5]
    assert found["text"][()] == b"?"


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"lable": D.FixedLenFeature([], wf.int64)}, r"no feature 'lable'; did you mean 'label'"),
        ({"label": D.FixedLenFeature([], wf.float32)}, "'label' holds int64, float32 is wanted"),
        ({"label": D.FixedLenFeature([2], wf.int64)}, r"has 1 values, its shape is \[2\]"),
        ({"label": D.FixedLenFeature([], wf.int32)}, "float32, int64 and string, not int32"),
        ({"x": D.FixedLenFeature([2], wf.int64, [1, 2, 3])}, "default_value"),
    ],
)
def test_parse_errors(feature: Any, message: str) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=message):
        D.parse_single_example(D.encode_example({"label": 3}), feature)


def test_encode_errors() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="does not fit int64"):
        D.encode_example({"x": np.uint64(2**63)})
    with pytest.raises(wf.errors.InvalidArgumentError, match="complex"):
        D.encode_example({"x": 1j})
    with pytest.raises(wf.errors.InvalidArgumentError, match="no list of bytes"):
        D.encode_example({"x": [b"a", 1]})


# ---------------------------------------------------------------------------------------------- CSV
COLUMNS = {"n": wf.int64, "x": (wf.float32, -1.0), "s": wf.string, "b": (wf.bool, False)}
rows = st.lists(
    st.tuples(
        int64s,
        st.floats(width=32, allow_nan=False),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
        st.booleans(),
    ),
    max_size=6,
)


@given(rows, st.sampled_from([",", ";", "\t"]))
def test_csv_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], delimiter: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(COLUMNS)
        writer.writerows(values)
    found = list(D.read_csv(path, COLUMNS, delimiter=delimiter))
    assert [r["n"].item() for r in found] == [v[0] for v in values]
    assert [r["x"].item() for r in found] == [v[1] for v in values]
    assert [r["s"][()] for r in found] == [v[2].encode() for v in values]
    assert [r["b"].item() for r in found] == [v[3] for v in values]
    assert all(r["x"].dtype == np.float32 for r in found)


def csv_file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_csv_forms(tmp_path: Path) -> None:
    path = csv_file(tmp_path, '\ufeffs,other,n\r\n"a ""b""\n,c",,7\r\n\r\n,z,8')
    found = list(D.read_csv(path, {"n": "int32", "s": wf.string}))
    assert [(int(r["n"]), r["s"][()]) for r in found] == [(7, b'a "b"\n,c'), (8, b"")]
    path = csv_file(tmp_path, "1,\n,2\n")
    found = list(D.read_csv(path, {"a": (wf.int64, 9), "b": (wf.uint8, 5)}, header=False))
    assert [(int(r["a"]), int(r["b"])) for r in found] == [(1, 5), (9, 2)]
    path = csv_file(tmp_path, b"s\n\xff\xfe\n")  # bytes that are no UTF-8 stay what they are
    assert [r["s"][()] for r in D.read_csv(path, {"s": wf.string})] == [b"\xff\xfe"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n,x\n1,2\n\nq,3\n", r"x\.csv:4: column 'n': 'q' is no int64"),
        ("n,x\n1,\n", r"x\.csv:2: column 'x': the field is empty"),
        ("n,x\n1\n", r"x\.csv:2: 1 fields, where 2 are expected"),
        ('n,x\n"1\n3",2\n1_0,2\n', r"x\.csv:2: column 'n'"),
        ("n,x\n1_0,2\n", r"x\.csv:2: column 'n': '1_0'"),
        ("n,x\n1,2\n9223372036854775808,2\n", r"x\.csv:3: .* does not fit int64"),
        ('n,x\n1,2\n"3,4\n5,6\n', r"x\.csv:3: unexpected end of data"),
        ("n,y\n1,2\n", r"no column 'x'"),
        ("n,x,n\n1,2,3\n", r"has 'n' twice"),
        ("", "the file is empty"),
    ],
)
def test_csv_errors(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((wf.errors.InvalidArgumentError, wf.errors.DataLossError), match=message):
        list(D.read_csv(csv_file(tmp_path, text), {"n": wf.int64, "x": wf.float32}))


def test_csv_arguments(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "n\n1\n")
    for columns in ({}, ["n"], {"n": wf.complex64}):
        with pytest.raises(wf.errors.InvalidArgumentError, match="column"):
            D.read_csv(path, columns)
    with pytest.raises(wf.errors.InvalidArgumentError, match="delimiter"):
        list(D.read_csv(path, {"n": wf.int64}, delimiter="ab"))


# ----------------------------------------------------------------------------------------- NumPy's
ARRAYS = [
    np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.empty((0, 5), np.int8), np.array(3.5), np.arange(4, dtype=">i4"),
]  # fmt: skip


def test_npy_is_mapped(tmp_path: Path) -> None:
    for array in ARRAYS:
        np.save(tmp_path / "x.npy", array)
        found = D.read_npy(tmp_path / "x.npy")
        assert type(found) is np.ndarray
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        if array.size:
            assert not found.flags.writeable
            assert not found.flags.owndata


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save: Any, tmp_path: Path) -> None:
    given_arrays = {f"a{i}": a for i, a in enumerate(ARRAYS)}
    save(tmp_path / "x.npz", **given_arrays)
    found = D.read_npz(tmp_path / "x.npz")
    assert list(found) == list(given_arrays)
    for name, array in given_arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npy_and_npz(save: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100))
    data = (tmp_path / "x.npy").read_bytes()
    for end in range(0, len(data), 7):
        (tmp_path / "y.npy").write_bytes(data[:end])
        with pytest.raises(wf.errors.DataLossError, match=r"y\.npy"):
            D.read_npy(tmp_path / "y.npy")
    save(tmp_path / "x.npz", a=np.arange(100), b=np.arange(10))
    data = (tmp_path / "x.npz").read_bytes()
    for end in range(0, len(data), 13):
        (tmp_path / "y.npz").write_bytes(data[:end])
        with pytest.raises(wf.errors.DataLossError, match=r"y\.npz"):
            D.read_npz(tmp_path / "y.npz")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("a.npy", b"no array")
    with pytest.raises(wf.errors.DataLossError, match="array 'a'"):
        D.read_npz(tmp_path / "y.npz")


@pytest.mark.share(4)
@pytest.mark.filterwarnings("ignore")  # NumPy and Pillow warn of such headers
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "PNG", "JPEG", "GIF", "BMP"])
def test_damaged_bytes_give_an_array_or_our_error(kind: str, tmp_path: Path) -> None:
    """Mapped arrays and most images have no checksum; what cannot be read says so."""
    rng = np.random.default_rng(1)
    path = tmp_path / "x"
    read: Any = D.read_npz
    if kind == "npy":
        read = D.read_npy
        np.save(path.open("wb"), np.arange(6.0).reshape(2, 3))
    elif kind in ("npz", "compressed"):
        save = np.savez if kind == "npz" else np.savez_compressed
        save(path.open("wb"), a=np.arange(6.0), b=np.arange(3))
    else:
        read = D.read_image
        pixels = rng.integers(0, 256, (9, 8, 3), np.uint8)
        pytest.importorskip("PIL.Image").fromarray(pixels).save(path, kind)
    data = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except (
            wf.errors.DataLossError,
            wf.errors.InvalidArgumentError,
            wf.errors.UnsupportedError,
        ):
            refused += 1
    assert refused > 10


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    array = np.array([b"x", None], object)
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(wf.errors.InvalidArgumentError, match="pickled"):
        D.read_npy(tmp_path / "x.npy")
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", a=array)
        with pytest.raises(wf.errors.InvalidArgumentError, match="pickled"):
            D.read_npz(tmp_path / "x.npz")


# ------------------------------------------------------------------------------------ images, lines
def png(pixels: Any, mode: str | None = None) -> bytes:
    image = pytest.importorskip("PIL.Image").fromarray(pixels)
    out = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(out, "PNG")
    return out.getvalue()


def test_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for channels in (1, 2, 3, 4):
        pixels = rng.integers(0, 256, (5, 7, channels), np.uint8)
        data = png(pixels[..., 0] if channels == 1 else pixels)
        np.testing.assert_array_equal(D.decode_image(data), pixels)
        assert D.decode_image(data, 3).shape == (5, 7, 3)
        assert D.decode_image(data, 1, (2, 3)).shape == (2, 3, 1)
        (tmp_path / "x.png").write_bytes(data)
        np.testing.assert_array_equal(D.read_image(tmp_path / "x.png"), pixels)
        small = D.resize_image(pixels, (3, 2))
        assert (small.shape, small.dtype) == ((3, 2, channels), np.uint8)
        np.testing.assert_array_equal(D.decode_image(data, size=(3, 2)), small)
        double = D.resize_image(pixels, (10, 14), "nearest")
        np.testing.assert_array_equal(double, pixels.repeat(2, 0).repeat(2, 1))
    assert D.decode_image(png(pixels[..., :3], "P")).shape == (5, 7, 3)


def test_image_errors() -> None:
    data = png(np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8))
    for damaged in (data[:-40], data[:300], b"", b"no image", data[:40] + b"\0" * 60 + data[100:]):
        with pytest.raises(wf.errors.DataLossError, match="bytes"):
            D.decode_image(damaged)
    with pytest.raises(wf.errors.UnsupportedError, match="8 bits a channel"):
        D.decode_image(png(np.zeros((4, 4), np.uint16)))
    for bad in ({"channels": 5}, {"size": (0, 3)}, {"method": "best"}):
        with pytest.raises(wf.errors.InvalidArgumentError, match=next(iter(bad))):
            D.decode_image(data, **bad)
    with pytest.raises(wf.errors.InvalidArgumentError, match="float32"):
        D.resize_image(np.zeros((3, 3), np.float32), (2, 2))


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=20).map(lambda b: re.sub(rb"[\r\n]", b"", b)), max_size=9))
def test_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("lines")
    for end in (b"\n", b"\r\n"):
        for compression in ("", "GZIP"):
            with streams.Output(folder / "x", compression) as out:
                out.write(b"".join(line + end for line in lines) + b"last")
            assert list(D.read_lines(folder / "x", compression)) == [*lines, b"last"]


def test_long_lines_and_damage(tmp_path: Path) -> None:
    lines = [b"x" * 700_000, b"", b"y"]
    (tmp_path / "x").write_bytes(b"\n".join(lines) + b"\n")
    assert list(D.read_lines(tmp_path / "x")) == lines
    with streams.Output(tmp_path / "y", "GZIP") as out:
        out.write(b"a\nb\n")
    (tmp_path / "y").write_bytes((tmp_path / "y").read_bytes()[:-1])
    with pytest.raises(wf.errors.DataLossError, match=r"/y:\d: .*end too early"):
        list(D.read_lines(tmp_path / "y", "GZIP"))
