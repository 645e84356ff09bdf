"""Native kernels that parse tf.train.Examples: what the parser in Python gives or raises, for all
bytes; no byte outside of a record is read; no object is lost."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.dtypes import float32, int64, string
from weft.ir.errors import WeftError
from weft.ir.types import TensorType
from weft.runtime.dynamic import door
from weft.runtime.dynamic import examples as native
from weft.runtime.dynamic.calls import run_kernel
from weft.runtime.files.decoding import bytes_array, parse_examples
from weft.runtime.files.wire import message, packed, varint

Array = np.ndarray[Any, Any]
#: What is wanted; "é" also of records whose names are not ASCII.
WANTED: dict[str, TensorType] = {
    "x": TensorType(float32, (2,)), "n": TensorType(int64, ()), "s": TensorType(string, (1, 1)),
    "v": TensorType(int64, (None,)), "w": TensorType(string, (None,)),
    "é": TensorType(float32, (None,)), "none": TensorType(int64, (0,)),
}  # fmt: skip
DEFAULTS: dict[int, Array] = {
    0: np.float32([0.5, -0.0]), 1: np.array(7), 2: np.array([[b"default"]], object),
    6: np.empty(0, np.int64),
}  # fmt: skip


def texts(values: Sequence[Any]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def outcome(call: Callable[[], Sequence[Array] | None]) -> object:
    """What a call gives, to the bit, or raises."""
    try:
        made = call()
    except WeftError as error:
        return type(error), error.what, error.hint
    assert made is not None
    return [(a.dtype, a.shape, a.tolist() if a.dtype.hasobject else a.tobytes()) for a in made]


def check(
    records: Array, wanted: Mapping[str, TensorType] = WANTED,
    defaults: Mapping[int, Array] = DEFAULTS,
) -> None:  # fmt: skip
    args = (records, list(wanted), list(wanted.values()), defaults)
    assert outcome(lambda: native.example_features(*args)) == outcome(lambda: parse_examples(*args))


# ------------------------------------------------------------------------------------ any messages
def padded(value: int, more: int) -> bytes:
    """A varint with bytes that it does not need."""
    made = bytearray(varint(value))
    for _ in range(min(more, 10 - len(made))):
        made[-1] |= 0x80
        made.append(0)
    return bytes(made)


INT64 = st.one_of(st.integers(0, 130), st.integers(-(2**63), 2**63 - 1))
UNKNOWN = st.one_of(
    st.builds(lambda n, v: varint(n << 3) + padded(v, 3), st.integers(4, 2**29 - 1), INT64),
    st.builds(lambda v: b"\x0d" + v, st.binary(min_size=4, max_size=4)),  # 1: 32 bits
    st.builds(lambda v: b"\x21" + v, st.binary(min_size=8, max_size=8)),  # 4: 64 bits
    st.builds(lambda v: message(9, v), st.binary(max_size=6)),
    st.builds(lambda v: b"\x08" + varint(v), INT64),  # 1: a varint
)


def joined(part: st.SearchStrategy[bytes], most: int) -> st.SearchStrategy[bytes]:
    return st.lists(part, max_size=most).map(b"".join)


LISTS: dict[int, st.SearchStrategy[bytes]] = {
    1: joined(st.one_of(st.binary(max_size=9).map(lambda v: message(1, v)), UNKNOWN), 4),
    2: joined(
        st.one_of(
            st.binary(max_size=4).map(lambda v: message(1, v * 4)),
            st.binary(min_size=4, max_size=4).map(lambda v: b"\x0d" + v),
            UNKNOWN,
        ),
        4,
    ),
    3: joined(
        st.one_of(
            st.lists(INT64, max_size=12).map(lambda v: message(1, packed(np.array(v, np.int64)))),
            INT64.map(lambda v: b"\x08" + padded(v % 2**64, 2)),
            UNKNOWN,
        ),
        4,
    ),
}
#: Lists of the number of values that is wanted.
RIGHT = {
    "x": st.binary(min_size=8, max_size=8).map(lambda v: message(2, message(1, v))),
    "n": INT64.map(lambda v: message(3, message(1, varint(v)))),
    "s": st.binary(max_size=9).map(lambda v: message(1, message(1, v))),
}


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(["x", "n", "s", "v", "w", "é", "none", "", "other", "\U0001f600"]))
    if name in RIGHT and draw(st.integers(0, 9)):
        value = draw(RIGHT[name])
    else:
        kind = {"v": 3, "w": 1, "é": 2}.get(name) or draw(st.integers(1, 3))
        if not draw(st.integers(0, 9)):
            kind = draw(st.integers(1, 3))
        value = message(kind, draw(LISTS[kind]))
        if not draw(st.integers(0, 9)):
            value += draw(st.one_of(UNKNOWN, LISTS[kind].map(lambda v: message(kind, v))))
    key = name.encode() if draw(st.integers(0, 30)) else draw(st.binary(max_size=5))
    parts = [message(1, key), message(2, value)]
    if not draw(st.integers(0, 9)):
        parts.append(draw(st.one_of(UNKNOWN, st.sampled_from(parts), st.just(message(1, b"x")))))
    if not draw(st.integers(0, 4)):
        parts = draw(st.permutations(parts))
    return message(1, b"".join(parts))


RECORDS = st.builds(
    lambda parts, before, after: before + message(1, parts) + after,
    joined(st.one_of(entries(), entries(), entries(), UNKNOWN), 8),
    st.sampled_from([b"", b"", b"", b"\x10\x01", message(1, b"")]),
    st.sampled_from([b"", b"", b"", b"\x10\x01", message(1, b""), b"\x08", b"\x0b"]),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A record of which some bytes are others, are gone, or there twice."""
    data = bytearray(draw(RECORDS))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at, what = draw(st.integers(0, len(data) - 1)), draw(st.integers(0, 4))
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == 2:
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        elif what == 3:
            data[at:at] = draw(st.binary(max_size=3))
        else:
            del data[at : at + draw(st.integers(1, 4))]
    return bytes(data)


@examples(1500)
@given(st.lists(st.one_of(RECORDS, damaged()), min_size=1, max_size=4), st.booleans())
def test_any_records(records: list[bytes], with_defaults: bool) -> None:
    given_defaults = DEFAULTS if with_defaults else {}
    check(texts(records), defaults=given_defaults)
    for record in records:
        check(texts([record]).reshape(()), defaults=given_defaults)


@examples(600)
@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    check(texts([data]).reshape(()))
    check(texts([message(1, message(1, data)), message(1, data)]))


def test_all_truncations_and_all_flips_of_a_bit() -> None:
    record = wf.data.encode_example(
        {"x": [1.5, 2.5], "n": 300, "s": "abc", "v": [1, -1, 2**40], "w": ["", "ab"], "é": [0.5]}
    )
    for end in range(len(record)):
        check(texts([record[:end]]))
    for at in range(8 * len(record)):
        data = bytearray(record)
        data[at // 8] ^= 1 << at % 8
        check(texts([bytes(data)]).reshape(()))
        check(texts([record, bytes(data)]))


@pytest.mark.parametrize("name", [
    b"\x7f", "é".encode(), "\u0800".encode(), "\ud7ff".encode(), "\ue000".encode(),
    "\U00010000".encode(), "\U0010ffff".encode(), b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xc3",
    b"\xc3(", b"\xe0\x9f\xbf", b"\xe2\x82", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf",
    b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"a\xe2\x82\xacb\xbf",
])  # fmt: skip
def test_names_are_utf_8(name: bytes) -> None:
    """The edges of the table of well-formed byte sequences (The Unicode Standard, table 3-7)."""
    value = message(2, message(3, b"\x08\x05"))
    record = message(1, message(1, message(1, name) + value))
    check(texts([record]))
    odd: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "declared_features", lambda *_: odd.append(1) or _empty())
        native.example_features(texts([record]), ["a"], [TensorType(int64, (None,))], {})
    try:
        name.decode()
    except UnicodeDecodeError:
        assert odd == [1]
    else:
        assert odd == []


def _empty() -> list[Array]:
    return [np.empty(0, np.int64)]


# ------------------------------------------------------------------------------------ whole batches
def regular(count: int) -> Array:
    """Records without anything odd: in any order of names, packed or not, with unknown fields, and
    names that come twice."""
    rng, made = random.Random(0), []
    for i in range(count):
        floats, ints = np.float32([i, -i]).tobytes(), [i, -i, i << 40][: i % 4]
        unpacked = b"".join(b"\x08" + varint(v % 2**64) for v in ints)
        run = message(1, packed(np.array(ints, np.int64)))
        found = [
            (b"x", message(2, message(1, floats[:4]) + b"\x0d" + floats[4:])),
            (b"v", message(3, unpacked if i % 2 else run)),
            (b"w", message(1, b"".join(message(1, b"w" * (j * i)) for j in range(i % 3)))),
            ("é".encode(), message(2, b"")), (b"other \xe2\x82\xac", message(3, b"\x08\x01")),
            (b"none", b""), (b"unknown", message(7, b"abc")),
        ]  # fmt: skip
        if i % 2:
            found.append((b"s", message(1, message(1, b"s%d" % i))))
            found.append((b"n", message(3, b"\x08" + varint(i))))
        rng.shuffle(found)
        found = [(b"x", message(3, b"\x08\x01")), *found]  # of two the last holds
        rows = [message(1, message(1, k) + message(2, v) + b"\x18\x01") for k, v in found]
        made.append(b"\x10\x01" + message(1, b"".join(rows) + b"\x15abcd"))
    return texts(made)


def test_regular_records_need_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    records = regular(500)
    args = (records, list(WANTED), list(WANTED.values()), DEFAULTS)
    wanted = outcome(lambda: parse_examples(*args))

    def none(*_: object) -> list[Array]:
        raise AssertionError("a record was left to Python")

    monkeypatch.setattr(native, "declared_features", none)
    before = wf.get_num_threads()
    try:
        for threads in (1, 2, 4):
            wf.set_num_threads(threads)
            assert outcome(lambda: native.example_features(*args)) == wanted
    finally:
        wf.set_num_threads(before)


def test_odd_ones_among_regular_ones() -> None:
    records = regular(200)
    merged = records[3] + records[4]
    for i in (0, 17, 199):
        records[i] = merged
    check(records)
    for i in (11, 150):
        records[i] = records[i][:-1]
    check(records)  # the error of the first one


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0)], ids=str)
def test_records_of_any_shape(shape: tuple[int, ...]) -> None:
    whole = {k: t for k, t in WANTED.items() if t.is_static}
    records = regular(int(np.prod(shape))).reshape(shape)
    args = (records, list(whole), list(whole.values()), dict(enumerate(DEFAULTS.values())))
    wanted = outcome(lambda: parse_examples(*args))
    made = native.example_features(*args)
    if made is None:
        assert not records.size
    else:
        assert outcome(lambda: made) == wanted
        check(records)


def test_many_names() -> None:
    """So many that some share a place of the hash table."""
    names = [f"name {i}" for i in range(700)]
    records = [wf.data.encode_example({n: i * k for k, n in enumerate(names[::-1])})
               for i in range(3)]  # fmt: skip
    check(texts(records), dict.fromkeys(names, TensorType(int64)), {})


def test_what_kernels_do_not_do_is_left_alone() -> None:
    one = texts([wf.data.encode_example({"x": 1})])
    t = TensorType(int64)
    assert native.example_features(one, ["x", "x"], [t, t], {}) is None
    assert native.example_features(one, ["\ud800"], [t], {0: np.array(1)}) is None
    assert native.example_features(one, [], [], {}) is None
    assert native.example_features(one[:0], ["x"], [t], {}) is None
    assert native.example_features(texts([*one] * 3)[::2], ["x"], [t], {}) is None
    for other in (None, "text", bytearray(one[0]), 3):
        args = (texts([one[0], other]), ["x"], [t], {})
        assert outcome(lambda: native.example_features(*args)) == outcome(  # noqa: B023
            lambda: parse_examples(*args)  # noqa: B023
        )

    class Own(bytes):
        pass

    check(texts([Own(one[0]), one[0]]), {"x": t}, {})


# ------------------------------------------------------------------------------------------ objects
def test_objects_of_any_length_are_new_ones() -> None:
    sizes = [0, 1, 2, 1023, 1024, 1025, 10**6]  # from 1025 on they are copied without the GIL
    values = [bytes([65 + i]) * n for i, n in enumerate(sizes)]
    records = texts([wf.data.encode_example({"w": [*values[i:], b"last"]}) for i in range(7)] * 40)
    (_, made, _) = native.example_features(records, ["w"], [WANTED["w"]], {}) or []
    assert made.tolist() == [v for i in range(7) for v in [*values[i:], b"last"]] * 40
    assert {type(v) for v in made} == {bytes}
    assert len({hash(v) for v in made.tolist()}) == len(sizes) + 1
    last = [v for v in made.tolist() if len(v) > 1]
    assert all(sys.getrefcount(v) <= 5 for v in last)  # made, last, v, the argument


def test_no_reference_is_lost_or_kept() -> None:
    """Of None, which is in an array before the objects are, and of all that is made."""
    records = regular(300)
    records[7] = records[3] + records[4]  # odd
    args = (records, list(WANTED), list(WANTED.values()), DEFAULTS)
    native.example_features(*args)
    gc.collect()
    before = sys.getrefcount(None), len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(20):
        native.example_features(*args)
    gc.collect()
    after = sys.getrefcount(None), len(gc.get_objects()), sys.getallocatedblocks()
    assert all(abs(b - a) < 300 for a, b in zip(before, after, strict=True))


# ---------------------------------------------------------------------------------- memory's bounds
def fenced_records(seed: int, count: int) -> None:
    """Parse damaged records, the last byte of each of which is the last one that may be read: the
    next page is closed, so a process that reads on ends. Run by the test below."""
    page, rng = mmap.PAGESIZE, random.Random(seed)
    room = mmap.mmap(-1, 17 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(base + 16 * page), ctypes.c_size_t(page), 0) == 0
    good = regular(60).tolist()
    wanted = native.wanted_rows(tuple(WANTED), tuple(WANTED.values()))
    assert wanted is not None
    keys, slots, rows = wanted
    default = np.zeros(4, np.int64)
    rows[:, 2] = default.ctypes.data
    cells, odd = np.empty((1, len(rows), 3), np.int64), np.empty(1, np.uint8)
    at = np.empty(1, np.int64)
    seen = [0, 0]
    for _ in range(count):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(3)):
            where = rng.randrange(len(data))
            data[where] = rng.choice([0, 0x7F, 0x80, 0xFF, data[where] ^ 1 << rng.randrange(8)])
        data = data[: rng.randrange(1, len(data))] if rng.random() < 0.3 else data
        at[0] = base + 16 * page - len(data) - 32
        head = struct.pack("<qqqq", 1, id(bytes), len(data), -1)
        ctypes.memmove(int(at[0]), head + bytes(data), 32 + len(data))
        args = (
            at.ctypes.data, 1, 32, cells.ctypes.data, rows.ctypes.data, len(rows), keys.ctypes.data,
            slots.ctypes.data, len(slots), odd.ctypes.data, id(bytes),
        )  # fmt: skip
        run_kernel("find_features", (), args)
        seen[odd[0]] += 1
        if not odd[0]:
            starts = np.zeros(2, np.int64)
            outs = [np.empty(2 * max(n, 2), np.int64) for n in cells[0, :, 2].tolist()]
            filled = rows.copy()
            filled[:, 3] = [out.ctypes.data for out in outs]
            filled[:, 4] = starts.ctypes.data
            given = (cells.ctypes.data, filled.ctypes.data, len(rows), odd.ctypes.data)
            run_kernel("fill_features", (), (1, 32, *given))
    assert min(seen) > count // 20, seen


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_byte_after_a_record_is_read(seed: int) -> None:
    """Bytes objects end with a zero, which nothing here may read either."""
    code = f"import test_example_kernels as t; t.fenced_records({seed}, 3000)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]


# ---------------------------------------------------------------------------------------- the doors
def test_the_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls, sessions and `wf.data` parse by kernels once many Examples came."""
    records = [wf.data.encode_example({"x": [1.0, i], "w": ["a"] * i or "z"}) for i in range(3)]
    spec = {"x": wf.FixedLenFeature([2], wf.float32), "w": wf.VarLenFeature(wf.string)}
    calls: list[int] = []
    real = native.example_features

    def seen(serialized: Array, *more: Any) -> list[Array] | None:
        calls.append(serialized.size)
        return real(serialized, *more)

    monkeypatch.setattr(native, "example_features", seen)
    monkeypatch.setattr(door.Examples, "seen", 0)
    found = []
    for _ in range(2):
        eager = wf.tf1.parse_example(records, spec)
        with wf.Graph().as_default(), wf.Session() as session:
            e = wf.placeholder(wf.string, [None], "e")
            fetched = session.run(wf.tf1.parse_example(e, spec), {e: records})
        one = wf.data.parse_single_example(records[2], spec)
        found.append([
            eager["x"].tolist(), eager["w"].values.tolist(), fetched["x"].tolist(),
            fetched["w"].indices.tolist(), one["x"].tolist(), one["w"].tolist(),
        ])  # fmt: skip
        assert calls == ([] if len(found) == 1 else [3, 3, 1])
        assert door.Examples.seen == 7 * len(found)
        monkeypatch.setattr(door, "MANY_EXAMPLES", 0)
    assert found[0] == found[1]
    assert found[0][4:] == [[1, 2], [b"a", b"a"]]


def test_names_of_features_are_kept_for_some_calls_only() -> None:
    one = texts([wf.data.encode_example({})])
    for i in range(300):
        native.example_features(one, [f"a{i}"], [TensorType(int64, (None,))], {})
    assert native.wanted_rows.cache_info().currsize <= 256
    assert bytes_array([b"a"]).dtype == object
