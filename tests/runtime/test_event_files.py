"""Event files: the format byte by byte, the thread that writes them, one writer per folder."""

from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import event_files
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

import weft as wf
from weft.runtime.files import records, summaries
from weft.runtime.files.wire import integer

FileWriter = wf.summary.FileWriter


# ----------------------------------------------------------------------------------------- the file
def test_known_bytes(tmp_path: Path) -> None:
    """The first record of a file, and a scalar's, as TensorFlow's writer makes them."""
    with FileWriter(tmp_path) as writer:
        writer.scalar("a", 2.0, 3)
    (file,) = event_files.files(tmp_path)
    first, second = event_files.records(file.read_bytes())
    assert first[0] == 0x09  # wall_time, a double
    assert first[9:] == b"\x1a\rbrain.Event:2"
    value = b"\n\x01a" + b"\x15\x00\x00\x00\x40" + b"J\x0d\n\x09\n\x07scalars\x20\x01"
    assert (
        second[9:] == b"\x10\x03*" + bytes([len(value) + 2]) + b"\n" + bytes([len(value)]) + value
    )
    assert abs(event_files.event(second).wall_time - time.time()) < 60
    seconds, host, pid, number = file.name.removeprefix("events.out.tfevents.").rsplit(".", 3)
    assert len(seconds) == 10
    assert int(pid) == os.getpid()
    assert host
    assert number.isdigit()


@given(st.binary(max_size=300))
def test_checksums_by_a_table(data: bytes) -> None:
    assert records.by_table(data) == event_files.crc32c(data) == records.crc32c()(data)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    records.crc32c.cache_clear()
    try:
        with FileWriter(tmp_path) as writer:
            writer.scalar("a", 1.0, 0)
            assert records.checksum() is records.by_table
    finally:
        records.crc32c.cache_clear()
    assert event_files.values(tmp_path) == {"a": [(0, 1.0)]}


def test_order_flush_and_close(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    for i in range(3000):  # more than may wait
        writer.scalar("i", i, i)
    writer.flush()
    assert event_files.values(tmp_path)["i"] == [(i, i) for i in range(3000)]
    writer.scalar("i", 1, 3000)
    writer.close()
    writer.close()
    assert event_files.values(tmp_path)["i"][-1] == (3000, 1)
    assert repr(writer) == f"<FileWriter {str(tmp_path)!r}, closed>"
    for use in (lambda: writer.scalar("i", 0, 0), writer.flush):
        with pytest.raises(wf.errors.FailedPreconditionError, match=r"tfevents.* is closed"):
            use()


def test_written_without_flush(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.scalar("a", 1.0, 0)
        until = time.monotonic() + 10
        while "a" not in event_files.values(tmp_path):
            assert time.monotonic() < until
            time.sleep(0.01)


def test_one_writer_per_folder(tmp_path: Path) -> None:
    first = FileWriter(tmp_path)
    with pytest.raises(wf.errors.FailedPreconditionError, match="has an open writer") as caught:
        FileWriter(tmp_path)
    assert "a folder of its own" in str(caught.value)
    assert "test_event_files.py" in str(caught.value)
    other = f"import weft as wf; wf.summary.FileWriter({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", other], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "has an open writer of events, in this process or another" in done.stderr
    first.scalar("a", 1.0, 0)
    first.close()
    with FileWriter(tmp_path) as second:  # in the same second: its file is the newer one
        second.scalar("a", 2.0, 1)
    assert event_files.values(tmp_path)["a"] == [(0, 1.0), (1, 2.0)]
    assert len(event_files.files(tmp_path)) == 2


def test_newer_than_a_file_of_the_future(tmp_path: Path) -> None:
    old = tmp_path / "events.out.tfevents.4000000000.elsewhere.1.0"
    old.write_bytes(b"")
    FileWriter(tmp_path, filename_suffix=".eval").close()
    names = [p.name for p in event_files.files(tmp_path)]
    assert names[0] == old.name
    assert names[1].startswith("events.out.tfevents.4000000001.")
    assert names[1].endswith(".eval")


KILLED = """
import os, signal, sys, weft as wf
writer = wf.summary.FileWriter(sys.argv[1])
for i in range(100):
    writer.scalar("i", i, i)
writer.flush()
writer.scalar("late", 0.0, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
ENDING = """
import sys, weft as wf
writer = wf.summary.FileWriter(sys.argv[1])
for i in range(100):
    writer.scalar("i", i, i)
"""


@pytest.mark.parametrize(("program", "code"), [(KILLED, -signal.SIGKILL), (ENDING, 0)])
def test_what_is_there_after_the_process(tmp_path: Path, program: str, code: int) -> None:
    """A killed one has left whole records; one that ends has written all. The folder is free."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == code
    assert event_files.values(tmp_path)["i"] == [(i, i) for i in range(100)]
    FileWriter(tmp_path).close()


def _use_in_child(writer: Any, queue: Any) -> None:
    said = []
    for use in (lambda: writer.scalar("a", 2.0, 1), writer.flush):
        try:
            use()
        except wf.errors.FailedPreconditionError as error:
            said.append(str(error))
    writer.close()  # does nothing: it is the parent's
    queue.put(said)


def test_a_forked_child(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with FileWriter(tmp_path) as writer:
        writer.scalar("a", 1.0, 0)
        queue = context.Queue()
        child = context.Process(target=_use_in_child, args=(writer, queue))
        child.start()
        said = queue.get(timeout=30)
        child.join(30)
        assert len(said) == 2
        assert all(f"is that of process {os.getpid()}" in text for text in said)
        writer.scalar("a", 3.0, 1)
    assert event_files.values(tmp_path)["a"] == [(0, 1.0), (1, 3.0)]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FileWriter(tmp_path)
    writer.hparams({"rate": 0.1})
    writer.flush()
    write = os.write

    def full(file: int, data: Any) -> int:
        if threading.current_thread().name == "weft-events":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    writer.scalar("a", 1.0, 0)
    with pytest.raises(wf.errors.FailedPreconditionError, match="No space left on device; events"):
        writer.flush()
    with pytest.raises(wf.errors.FailedPreconditionError, match="events are lost"):
        writer.scalar("a", 1.0, 0)
    with pytest.raises(wf.errors.FailedPreconditionError, match="events are lost"):
        writer.close()
    writer.close()
    monkeypatch.undo()
    FileWriter(tmp_path).close()  # the folder is free


def test_a_writer_that_is_closed_beside_those_who_add(tmp_path: Path) -> None:
    writer, added, begun = FileWriter(tmp_path), 0, threading.Event()

    def add() -> None:
        nonlocal added
        with contextlib.suppress(wf.errors.FailedPreconditionError):
            while True:
                writer.scalar("a", 1.0, added)
                added += 1
                if added == 1500:  # more than may wait
                    begun.set()

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    assert begun.wait(60)
    writer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(event_files.values(tmp_path)["a"]) == added


@pytest.mark.parametrize(
    "values", [[1.0, np.nextafter(1.0, 2)], [2.0**53, 2.0**53 + 2], [0.0, 5e-324]], ids=str
)
def test_histograms_of_neighbours(values: list[float], tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.histogram("x", np.array(values), 0)
        writer.scalar("after", 1.0, 0)
    assert event_files.values(tmp_path)["after"] == [(0, 1.0)]


def test_steps_of_threads_and_steps_that_are_too_large(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        first, second = writer.as_default(1), writer.as_default(2)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        writer.scalar("x", 0.0)
        second.__exit__(None, None, None)
        with pytest.raises(wf.errors.InvalidArgumentError, match="beyond the 64 bits"):
            writer.scalar("x", 0.0, 2**64 + 7)
        with pytest.raises(wf.errors.TypeRuleError, match="name of a hyperparameter"):
            writer.hparams({3: 1})  # type: ignore[dict-item]
    assert event_files.values(tmp_path)["x"] == [(2, 0.0)]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(wf.errors.InvalidArgumentError, match="file"):
        FileWriter(tmp_path / "file")
    with pytest.raises(wf.errors.InvalidArgumentError, match="directory"):
        FileWriter(tmp_path / "file" / "run")


# --------------------------------------------------------------------------------------- the values
def one(tmp_path: Path, kind: str, value: Any, **options: Any) -> list[event_files.Value]:
    with FileWriter(tmp_path) as writer:
        getattr(writer, kind)("x", value, 7, **options)
    *_, last = event_files.events(tmp_path)
    assert last.step == 7
    return last.values


@pytest.mark.parametrize(
    "value",
    [
        True, 3, 0.1, np.float16(0.5), np.float64(1e300), np.nan, -np.inf, np.int64(2**40),
        np.uint8(200), ml_dtypes.bfloat16(1.5), np.array(2.5), wf.asarray(2.5), [[]],
        wf.asarray(1.5, dtype=wf.bfloat16), wf.Variable(4.0),
    ],
    ids=repr,
)  # fmt: skip
def test_scalars(tmp_path: Path, value: Any) -> None:
    if isinstance(value, list):
        with pytest.raises(wf.errors.ShapeError, match=r"'x'\) takes one number, got f32\[1,0\]"):
            one(tmp_path, "scalar", value)
        return
    (found,) = one(tmp_path, "scalar", value)
    given = value.numpy() if hasattr(value, "numpy") else value
    with np.errstate(over="ignore"):
        np.testing.assert_equal(np.float32(found.value), np.float32(given))
    assert (found.tag, found.plugin, found.data_class) == ("x", "scalars", 1)


@given(
    st.lists(st.floats(width=32) | st.integers(-5, 5).map(float), max_size=40),
    st.integers(1, 40),
)
def test_histograms(values: list[float], buckets: int) -> None:
    array = np.array(values, np.float32)
    made = event_files.summary(summaries.histogram("h", array, buckets))
    rows = made[0].value
    finite = array[np.isfinite(array)].astype(np.float64)
    assert rows.shape == (buckets, 3)
    assert (made[0].plugin, made[0].data_class) == ("histograms", 2)
    assert rows[:, 2].sum() == finite.size
    if finite.size:
        assert rows[0, 0] == finite.min()
        assert rows[-1, 1] == finite.max()
        assert (rows[:, 0] <= rows[:, 1]).all()
    if finite.size and finite.min() < finite.max():
        np.testing.assert_array_equal(rows[1:, 0], rows[:-1, 1])
        inside = (finite >= rows[:, :1]) & (finite < rows[:, 1:2])
        inside[-1] |= finite == rows[-1, 1]
        np.testing.assert_array_equal(rows[:, 2], inside.sum(axis=1))
    others = [(v.tag, v.value) for v in made[1:]]
    wanted = array.size - finite.size
    assert others == ([("h/not_finite", wanted)] if wanted else [])


def test_a_histogram_of_the_widest_range() -> None:
    (made,) = event_files.summary(summaries.histogram("h", np.array([-1.7e308, 0, 1.7e308]), 3))
    np.testing.assert_array_equal(made.value[:, 2], [1, 1, 1])
    assert made.value[0, 0] == -1.7e308
    assert made.value[-1, 1] == 1.7e308


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "float16", "bfloat16", "float64"])
def test_histograms_of_all_dtypes(tmp_path: Path, dtype: str) -> None:
    values = wf.astype(wf.asarray([0, 1, 1, 1]), getattr(wf, dtype))
    (found,) = one(tmp_path, "histogram", values, buckets=2)
    np.testing.assert_array_equal(found.value, [[0, 0.5, 1], [0.5, 1, 3]])


def pictures(found: event_files.Value) -> list[np.ndarray[Any, Any]]:
    from PIL import Image

    width, height, *files = found.value
    made = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
    assert all(m.shape[:2] == (int(height), int(width)) for m in made)
    assert (found.plugin, found.data_class) == ("images", 3)
    return made


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images(tmp_path: Path, channels: int) -> None:
    """Pillow sees the pixels."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 4, 7, channels)).astype(np.uint8)
    wanted = pixels[..., 0] if channels == 1 else pixels
    made = pictures(*one(tmp_path / "u8", "image", pixels, max_outputs=2))
    assert len(made) == 2
    np.testing.assert_array_equal(made, wanted[:2])
    for dtype in (np.float32, np.float64, np.float16):
        floats = (pixels / 255).astype(dtype)
        made = pictures(*one(tmp_path / dtype.__name__, "image", floats))
        np.testing.assert_array_equal(made, wanted[:3])
    made = pictures(*one(tmp_path / "bf16", "image", (pixels / 255).astype(ml_dtypes.bfloat16)))
    assert np.abs(np.array(made, int) - wanted[:3]).max() <= 1
    (single,) = pictures(*one(tmp_path / "one", "image", pixels[0]))
    np.testing.assert_array_equal(single, wanted[0])


def test_images_out_of_range(tmp_path: Path) -> None:
    grey = np.array([[-1.0, 0.5], [np.inf, 1.0]])
    (made,) = pictures(*one(tmp_path / "grey", "image", grey))
    np.testing.assert_array_equal(made, [[0, 128], [255, 255]])
    (made,) = pictures(*one(tmp_path / "nan", "image", np.array([[np.nan, 0.0]])))
    np.testing.assert_array_equal(made, [[[255, 0, 0], [0, 0, 0]]])
    rgba = np.zeros((1, 1, 2, 4))
    rgba[0, 0, 0, 2] = np.nan
    (made,) = pictures(*one(tmp_path / "rgba", "image", rgba))
    np.testing.assert_array_equal(made, [[[255, 0, 0, 255], [0, 0, 0, 0]]])


@pytest.mark.parametrize(
    ("words", "strings"),
    [
        ("ä *b*", ["ä *b*".encode()]),
        (b"\xff", [b"\xff"]),
        (np.array([["a", "b"]], object), [b"a", b"b"]),
        (wf.asarray(np.array([b"a"], object)), [b"a"]),
    ],
    ids=["text", "bytes", "table", "tensor"],
)
def test_texts(tmp_path: Path, words: Any, strings: list[bytes]) -> None:
    (found,) = one(tmp_path, "text", words)
    assert found.value == strings
    assert (found.plugin, found.data_class) == ("text", 2)


def test_hyperparameters(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.hparams({"rate": 0.1, "layers": np.int64(2), "name": "a", "fast": True})
        with pytest.raises(wf.errors.FailedPreconditionError, match="already"):
            writer.hparams({})
    with contextlib.suppress(ZeroDivisionError), FileWriter(tmp_path) as writer:
        writer.hparams({})
        writer.scalar("x", 1 / 0, 0)
    found = [v for e in event_files.events(tmp_path) for v in e.values]
    assert [v.tag.rpartition("/")[2] for v in found] == [
        "session_start_info",
        "session_end_info",
    ] * 2
    assert {v.plugin for v in found} == {"hparams"}
    start = event_files.parsed(event_files.parsed(found[0].content)[3][0])
    pairs = [event_files.parsed(pair) for pair in start[1]]
    given = {p[1][0].decode(): event_files.parsed(p[2][0]) for p in pairs}
    assert given["rate"] == {2: [np.float64(0.1).tobytes()]}
    assert given["layers"] == {2: [np.float64(2).tobytes()]}
    assert given["name"] == {3: [b"a"]}
    assert given["fast"] == {4: [1]}
    ends = [event_files.parsed(event_files.parsed(v.content)[4][0])[1] for v in found[1::2]]
    assert ends == [[1], [2]]  # success, failure
    with FileWriter(tmp_path) as other, pytest.raises(wf.errors.TypeRuleError, match="is a list"):
        other.hparams({"layers": [1, 2]})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("scalar", 1j, "takes real numbers, got c128"),
        ("scalar", "a", "takes real numbers, got string"),
        ("histogram", "a", "takes real numbers, got string"),
        ("image", np.zeros((2, 2, 2), np.float32), "with 1, 3 or 4 channels, got f32"),
        ("image", np.zeros(3, np.uint8), "takes .n, height, width, channels"),
        ("image", np.zeros((2, 2), np.int32), "uint8, or floats from 0 to 1, got i32"),
        ("text", 3.0, "takes strings"),
        ("text", np.full((1, 1, 1), "a"), "at most 2 axes"),
    ],
)
def test_wrong_values(tmp_path: Path, kind: str, value: Any, says: str) -> None:
    with FileWriter(tmp_path) as writer:
        with pytest.raises(wf.errors.WeftError, match=says) as caught:
            getattr(writer, kind)("x", value, 0)
        assert "test_event_files.py" in str(caught.value)
        writer.scalar("x", 1.0, 0)  # the writer goes on
    assert event_files.values(tmp_path) == {"x": [(0, 1.0)]}


def test_steps_and_names(tmp_path: Path) -> None:
    step = wf.Variable(5)
    with FileWriter(tmp_path) as writer:
        writer.scalar("a", 1, step)
        with writer.as_default(step):
            writer.scalar("a", 2)
            step.assign_add(1)
            with writer.as_default(100):
                writer.scalar("a", 3)
            writer.scalar("a", 4)
        writer.scalar("a", 5, np.int32(-1))
        with pytest.raises(wf.errors.InvalidArgumentError, match="needs a step"):
            writer.scalar("a", 6)
        for wrong in (1.5, True, "a", [1]):
            with pytest.raises(wf.errors.TypeRuleError, match="a step is an integer"):
                writer.scalar("a", 6, wrong)
        for name in ("", 3):
            with pytest.raises(wf.errors.InvalidArgumentError, match="needs a name"):
                writer.scalar(name, 6, 0)  # type: ignore[arg-type]
    assert event_files.values(tmp_path)["a"] == [(5, 1), (5, 2), (100, 3), (6, 4), (-1, 5)]


def test_a_value_that_changes_later(tmp_path: Path) -> None:
    values = np.zeros(4)
    with FileWriter(tmp_path) as writer:
        writer.histogram("x", values, 0, buckets=1)
        values[:] = 1
    assert event_files.values(tmp_path)["x"][0][1].tolist() == [[0, 0, 4]]


def test_restarts(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.add_restart(12)
    last = event_files.events(tmp_path)[-1]
    assert (last.restart, last.step) == (True, 12)


def test_negative_varints() -> None:
    assert integer(1, -1) == b"\x08" + b"\xff" * 9 + b"\x01"
    assert event_files.parsed(integer(1, -1)) == {1: [-1]}
