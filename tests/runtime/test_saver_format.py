"""The file of a checkpoint: every content comes back bit by bit, every damage is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.dtypes import ALL, DType, string
from weft.runtime.checkpoint.folder import Retention, SavedCheckpoint
from weft.runtime.checkpoint.format import (
    CheckpointFile,
    decode_tree,
    encode_tree,
    write_atomically,
    write_file,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: not name.startswith("weft.") and name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Any bits of any dtype; strings with any bytes."""
    dtype: DType = draw(st.sampled_from(ALL))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    if dtype is string:
        out = np.empty(shape, object)
        out.ravel()[:] = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return out
    size = count * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype is wf.bool_:
        data = bytes(b & 1 for b in data)
    return np.frombuffer(data, dtype.numpy).reshape(shape)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal dtype, shape and bits (NaNs included)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()


@settings(max_examples=60, deadline=None)
@given(content=st.dictionaries(NAMES, arrays(), max_size=5), step=st.integers())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], step: int
) -> None:
    path = tmp_path_factory.mktemp("round") / "a.safetensors"
    write_file(path, content, {"step": step})
    with CheckpointFile(path) as file:
        assert file.verified
        assert file.notes == {"step": step}
        assert file.entries.keys() == content.keys()
        for name, value in content.items():
            assert same_bits(file.read(name), value), name


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=4) | st.sampled_from(["$array", "$x"]), inner, max_size=3)
    | st.dictionaries(st.integers(), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(tree=TREES)
def test_nested_state_round_trip(tree: Any) -> None:
    stored: dict[str, Any] = {}
    text = json.dumps(encode_tree({"tree": tree}, "s", stored.__setitem__))
    back = decode_tree(json.loads(text), stored.__getitem__)["tree"]
    assert back == tree
    assert repr(back) == repr(tree)  # tuples stay tuples, 1 is not True


def test_nested_state_with_arrays() -> None:
    stored: dict[str, Any] = {}
    tree = {"a": [np.arange(3), np.float64(2.5)], "b": (b"\0", {"c": np.array([b"x\0"], object)})}
    back = decode_tree(encode_tree(tree, "s", stored.__setitem__), stored.__getitem__)
    assert sorted(stored) == ["s/a/0", "s/a/1", "s/b/1/c"]
    np.testing.assert_array_equal(back["a"][0], np.arange(3))
    assert back["a"][1].dtype == np.float64
    assert back["b"][0] == b"\0"
    assert back["b"][1]["c"][0] == b"x\0"


def test_nested_state_that_cannot_be_stored_says_where() -> None:
    with pytest.raises(wf.errors.TypeRuleError, match="'s/a/1' holds a complex"):
        encode_tree({"a": [1, 1j]}, "s", dict[str, Any]().__setitem__)
    with pytest.raises(wf.errors.TypeRuleError, match="'s' holds a dict"):
        encode_tree({(1, 2): 3}, "s", dict[str, Any]().__setitem__)


# -------------------------------------------------------------------------------------- damage
CONTENT: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "c": np.ones(1, np.complex128),
    "s": np.array([b"a\0", b"", b"xyz"], object),
    "flag": np.array([True, False]),
    "empty": np.zeros((0, 3), np.int8),
}


def read_all(path: Path) -> dict[str, Any]:
    with CheckpointFile(path) as file:
        assert file.verified, "a damaged file passes for one that others wrote"
        return {name: file.read(name) for name in file.entries}


def damaged(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(wf.errors.DataLossError, match="is damaged") as caught:
        read_all(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("bit", [0, 1, pytest.param(None, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_seen(tmp_path: Path, bit: int | None) -> None:
    """Bits of every byte: of the header's length, the header, the arrays and the last one."""
    path = tmp_path / "a.safetensors"
    write_file(path, CONTENT, {"step": 3})
    data = path.read_bytes()
    step = 2 if bit is not None else 1
    for at in range(bit or 0, len(data), step):
        for flipped in range(8) if bit is None else [at // 2 % 8]:
            damaged(path, data[:at] + bytes([data[at] ^ 1 << flipped]) + data[at + 1 :])


def test_every_truncation_and_every_trailer_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, CONTENT, {})
    data = path.read_bytes()
    for length in {*range(0, len(data), 9), 0, 1, 7, 8, 9, len(data) - 1}:
        damaged(path, data[:length])
    for trailer in (b"\0", b" ", data):
        damaged(path, data + trailer)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_overwritten_regions_are_seen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("region") / "a.safetensors"
    write_file(path, CONTENT, {"step": 3})
    good = path.read_bytes()
    start = data.draw(st.integers(0, len(good) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=64) | st.just(bytes(64)))
    bad = (good[:start] + patch + good[start + len(patch) :])[: len(good)]
    if bad != good:
        damaged(path, bad)


def test_arrays_that_change_places_are_seen(tmp_path: Path) -> None:
    """A valid safetensors file with the right metadata, but another content."""
    path = tmp_path / "a.safetensors"
    write_file(path, {"a": np.zeros(2), "b": np.ones(2)}, {})
    data = path.read_bytes()
    damaged(path, data.replace(b'"a":{', b'"x":{').replace(b'"b":{', b'"a":{'))
    zeros, ones = bytes(16), np.ones(2).tobytes()
    assert data.endswith(zeros + ones)
    damaged(path, data[:-32] + ones + zeros)


def test_a_later_format_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    monkeypatch.setattr("weft.runtime.checkpoint.format._VERSION", "2")
    write_file(path, {"a": np.zeros(2)}, {})
    monkeypatch.undo()
    with pytest.raises(wf.errors.UnsupportedError, match="has the format 2"):
        CheckpointFile(path)


# --------------------------------------------------------------------------------- foreign files
def test_other_programs_read_what_weft_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    half = np.arange(3).astype(ml_dtypes.bfloat16)
    write_file(path, {**CONTENT, "half": half}, {"step": 1})
    theirs = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(theirs["w"], CONTENT["w"])
    np.testing.assert_array_equal(theirs["half"], half)
    np.testing.assert_array_equal(theirs["c"], [[1.0, 0.0]])  # complex128: real and imaginary
    assert theirs["s"].tobytes() == b"a\0xyz"


def test_weft_reads_what_other_programs_write(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    theirs = {"a": np.arange(4, dtype=np.int16), "z": np.ones((2, 1), np.complex64)}
    safetensors.numpy.save_file(theirs, path, metadata={"format": "np"})
    with CheckpointFile(path) as file:
        assert not file.verified
        assert {n: str(e) for n, e in file.entries.items()} == {"a": "i16[4]", "z": "c64[2, 1]"}
        for name, value in theirs.items():
            assert same_bits(file.read(name), value)


def test_foreign_bools_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": np.array([True, False])}, path)
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    with CheckpointFile(path) as file, pytest.raises(wf.errors.DataLossError, match="neither"):
        file.read("a")


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(wf.errors.NotFoundError, match="there is no checkpoint file"):
        CheckpointFile(tmp_path / "none.safetensors")
    with pytest.raises(wf.errors.InvalidArgumentError, match="is not a file"):
        CheckpointFile(tmp_path)
    damaged(tmp_path / "text.safetensors", b"hello, this is no checkpoint at all")


def test_a_file_cut_short_while_it_is_open(tmp_path: Path) -> None:
    """No mapped memory that could kill the process."""
    path = tmp_path / "a.safetensors"
    write_file(path, {"a": np.zeros(1 << 20)}, {})
    with CheckpointFile(path) as file:
        path.open("r+b").truncate(4096)
        with pytest.raises(wf.errors.DataLossError, match="reading 'a'"):
            file.read("a")


def test_leftovers_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    import fcntl

    dead, living = tmp_path / ".a-1-0-00.weft-tmp", tmp_path / ".a-2-0-00.weft-tmp"
    dead.write_bytes(b"half")
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "a", [memoryview(b"whole")])
    assert sorted(p.name for p in tmp_path.iterdir()) == [living.name, "a"]
    assert (tmp_path / "a").read_bytes() == b"whole"


# ------------------------------------------------------------------------------------- retention
def rows(*metrics: float | None, hours: float = 1.0) -> list[SavedCheckpoint]:
    return [
        SavedCheckpoint(f"m-{i}", "m", i, 3600.0 * hours * i, metric)
        for i, metric in enumerate(metrics)
    ]


@settings(max_examples=200, deadline=None)
@given(
    metrics=st.lists(st.none() | st.floats(), max_size=12),
    most=st.integers(1, 4),
    best=st.integers(0, 3),
    mode=st.sampled_from(["min", "max"]),
)
def test_retention(metrics: list[float | None], most: int, best: int, mode: str) -> None:
    """Saving one after the other keeps the last, and the best of all that there were."""
    retention = Retention(most, best, mode)
    kept: list[SavedCheckpoint] = []
    other = SavedCheckpoint("other-1", "other", 1, 0.0, 0.0)
    for row in rows(*metrics):
        kept, gone = retention.apply([other, *kept, row], "m")
        assert kept.pop(0) == other
        assert not set(kept) & set(gone)
    everything = rows(*metrics)
    rated = [r for r in everything if r.metric is not None and not np.isnan(r.metric)]
    sign = 1 if mode == "min" else -1
    leading = sorted(rated, key=lambda r: (sign * (r.metric or 0.0), -(r.step or 0)))[:best]
    assert {r.file for r in kept} == {r.file for r in [*everything[-most:], *leading]}
    assert [r.file for r in kept] == sorted((r.file for r in kept), key=lambda f: int(f[2:]))


def test_one_every_few_hours_is_kept_for_good() -> None:
    retention = Retention(2, hours=5.0)
    kept: list[SavedCheckpoint] = []
    for row in rows(*[None] * 20):
        kept, _ = retention.apply([*kept, row], "m")
    assert [r.step for r in kept] == [5, 10, 15, 18, 19]
    assert [r.step for r in kept if r.always] == [5, 10, 15]
