"""Native kernels of ops whose results' sizes depend on values, and of strings: the bits of the
references, on any dtype, shape and number of threads; errors; the GIL."""

from __future__ import annotations

import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.dtypes import ALL, DType, as_dtype, float32, float64, int32, int64, string
from weft.ir.errors import ResourceExhaustedError, WeftError
from weft.ir.ops import HAVE_KERNELS, OPS
from weft.ir.ops.strings import fingerprint64, murmur64, number_of
from weft.ir.ops.text_processing import sip_hash
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dynamic import calls, pairs, selection, strings, unique
from weft.runtime.dynamic.calls import CHUNK
from weft.runtime.dynamic.door import native_results
from weft.runtime.dynamic.examples import example_features
from weft.runtime.dynamic.rows import NATIVE
from weft.runtime.files.decoding import decode_csv

Array = np.ndarray[Any, Any]
NUMERIC = [d for d in ALL if d is not string]
SIZES = (0, 1, 9, CHUNK - 1, 2 * CHUNK + 77)


def numbers(dtype: DType, count: int, most: int = 3, seed: int = 0) -> Array:
    """Few distinct numbers; floats with NaN and both zeros."""
    rng = np.random.default_rng(seed)
    low = -1 if dtype.numpy.kind in "ifcV" else 0
    made = rng.integers(low, most, count).astype(np.float64 if most < 2**50 else np.int64)
    x = (made % 2 if dtype.short == "bool" else made).astype(dtype.numpy)
    if dtype.kind in ("float", "complex"):
        x[::5], x[1::7] = -0.0, np.nan
    if dtype.kind == "complex":
        parts = rng.choice(np.array([0.0, -0.0, 1.0, np.nan]), (2, count))
        x.real[::3], x.imag[::3] = parts[0][::3], parts[1][::3]
    return x


def assert_same(made: Sequence[Array] | None, wanted: Any) -> None:
    """The same arrays, bit for bit."""
    assert made is not None
    listed = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    assert len(made) == len(listed)
    for a, b in zip(made, listed, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes()


def check(op: str, arrays: Sequence[Array], **attrs: Any) -> None:
    reference = OPS[op].reference
    assert reference is not None
    with np.errstate(all="ignore"):
        assert_same(NATIVE[op](arrays, attrs), reference(arrays, attrs))


def texts(values: Sequence[bytes]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def test_the_table_is_what_the_door_says() -> None:
    assert set(NATIVE) == HAVE_KERNELS


# ---------------------------------------------------------------------------------------- selection
@pytest.mark.share(12)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_nonzero_and_masks(dtype: DType, size: int) -> None:
    x = numbers(dtype, size)
    check("nonzero", [x])
    mask = np.random.default_rng(1).random(size) < 0.3
    assert_same([selection.chosen_rows(x, mask)], [x[mask]])  # type: ignore[list-item]
    rest = x[: size // 6 * 6]
    for shape in ((-1, 6), (2, -1, 3), (-1, 1), (3, -1)):
        if rest.size:
            y = rest.reshape(shape)
            check("nonzero", [y])
            assert_same(selection.nonzero_columns(y), list(np.nonzero(y)))


@examples(120)
@given(st.data())
def test_nonzero_of_any_shape(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    density = data.draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = rng.random(shape) < density
    check("nonzero", [x])
    covered = data.draw(st.integers(1, len(shape)))
    mask = rng.random(shape[:covered]) < density
    rows = rng.random(shape).astype(data.draw(st.sampled_from(["f2", "f4", "f8", "c16"])))
    assert_same([selection.chosen_rows(rows, mask)], [rows[mask]])  # type: ignore[list-item]


@pytest.mark.share(6)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("row", [(), (3,), (2, 2), (0,), (33,)], ids=str)
def test_parts_and_the_whole(size: int, row: tuple[int, ...]) -> None:
    rng = np.random.default_rng(size)
    for index, dtype, count in (("i4", "f4", 1), ("i8", "i1", 4), ("i4", "c16", 100)):
        data = rng.integers(-9, 9, (size, *row)).astype(dtype)
        parts = rng.integers(0, count, size).astype(index)
        check("dynamic_partition", [data, parts], num_partitions=count)
        places = rng.integers(0, max(size, 1), size).astype(index)  # some come twice
        split = size // 3
        given = [places[:split], places[split:], data[:split], data[split:]]
        check("dynamic_stitch", given, rows=None)
        check("dynamic_stitch", given, rows=size + 5)


def test_parts_of_a_matrix_of_indices() -> None:
    data = np.arange(60.0).reshape(3, 4, 5)
    parts = np.arange(12, dtype=np.int32).reshape(3, 4) % 3
    check("dynamic_partition", [data, parts], num_partitions=3)
    check("dynamic_stitch", [parts, data], rows=None)


@pytest.mark.share(9)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_repeats(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    counts = rng.integers(0, rng.choice([2, 3, 12]), size).astype(dtype)
    check("repeat_index", [counts])
    for shape, kind in (((size,), "f4"), ((size, 3), "i2"), ((size,), "c16")):
        x = rng.integers(0, 99, shape).astype(kind)
        wanted = np.repeat(x, counts.astype(np.int64), 0)
        assert_same([selection.repeated(x, counts, 0)], [wanted])  # type: ignore[list-item]
    y = rng.random((2, min(size, 50), 3))
    few = counts[:50]
    wanted = np.repeat(y, few.astype(np.int64), 1)
    assert_same([selection.repeated(y, few, 1)], [wanted])  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------- unique
@pytest.mark.share(12)
@pytest.mark.parametrize("most", [3, 500, 2**50], ids=["few", "some", "distinct"])
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_unique(dtype: DType, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # small tables, so that they grow, and the sort takes over
    monkeypatch.setattr(unique, "FIRST_GROUPS", 16)
    monkeypatch.setattr(unique, "MOST_GROUPS", 600)
    reference = OPS["unique"].reference
    assert reference is not None
    for size in (1, 40, 3000, CHUNK + 5):
        info = np.iinfo(dtype.numpy).max if dtype.is_integer else 2000
        x = numbers(dtype, size, min(most, int(info)), size)
        values, firsts, inverse, counts = reference([x], {})
        check("unique", [x])
        only = unique.unique_ascending(x, inverse=False, index=False)
        assert only is not None
        assert_same([only.values], [values])
        found = unique.unique_as_they_occur(x)
        assert found is not None
        order = np.argsort(firsts)
        place = np.argsort(order)
        wanted = (values[order], firsts[order], place[inverse], counts[order])
        assert_same(list(found), wanted)  # type: ignore[arg-type]


def test_unique_of_keys_that_fall_into_one_row_of_the_table() -> None:
    """The table gives up, and all are sorted."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)  # of what keys are multiplied by
    keys = [k * inverse % 2**64 for k in range(3000)]
    keys = [k ^ (k >> 32) for k in keys]  # as the table mixes them
    x = np.random.default_rng(0).choice(np.array(keys, np.uint64).view(np.int64), 2**16)
    dtype = as_dtype(x.dtype)
    groups = unique.Groups(x, dtype)
    assert not groups.find(len(x))
    check("unique", [x])
    found = unique.unique_as_they_occur(x)
    assert found is not None
    assert found.inverse is not None
    assert_same([found.values[found.inverse]], [x])  # type: ignore[list-item]
    assert (np.diff(found.firsts) > 0).all()
    assert found.counts.tolist() == np.bincount(found.inverse).tolist()
    spread = np.random.default_rng(0).integers(0, 2**60, 2**15)
    assert unique.Groups(spread, dtype).find(len(x))


def test_unique_of_a_matrix() -> None:
    check("unique", [np.random.default_rng(0).integers(0, 9, (30, 40))])


# ------------------------------------------------------------------------- entries of two matrices
WIDE = (1, 3, 100, 70_000, 300_000, 2**40, 2**62)


@examples(150)
@given(st.data())
def test_pairs_of_entries(data: st.DataObject) -> None:
    """Of any order and with repetitions; rows and columns of few entries are renumbered."""
    rows, inner, columns = (data.draw(st.sampled_from(WIDE)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    few = rng.integers(0, inner, 5)
    a, b = (
        np.stack([rng.integers(0, size, n), rng.choice(few, n)], axis=1)
        for size, n in ((rows, rng.integers(1, 200)), (columns, rng.integers(1, 200)))
    )
    given = [a, np.ascontiguousarray(b[:, ::-1])]
    check("sparse_pairs", given)
    with pytest.MonkeyPatch.context() as patch:  # as if they were many
        patch.setattr(pairs, "FEW_ENTRIES", 0)
        check("sparse_pairs", given)


def test_few_entries_with_many_pairs() -> None:
    a = np.stack([np.arange(600), np.zeros(600, int)], axis=1)
    check("sparse_pairs", [a, np.ascontiguousarray(a[:, ::-1])])


@examples(60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 40), st.integers(0, 40))
def test_rows_are_merged(seed: int, rank: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (np.unique(rng.integers(0, 5, (k, rank)), axis=0) for k in (n, m))
    found = pairs.merged_rows(a, b)
    assert found is not None
    rows, left, right = found
    np.testing.assert_array_equal(rows, np.unique(np.concatenate([a, b]), axis=0))
    np.testing.assert_array_equal(rows[left], a)
    np.testing.assert_array_equal(rows[right], b)
    if len(a) > 1:
        assert pairs.merged_rows(a[::-1].copy(), b) is None
        assert pairs.merged_rows(b, np.concatenate([a, a[-1:]])) is None


def test_many_pairs_are_scipy_s() -> None:
    """The structure of SciPy's product, whose values are how many pairs add to each place."""
    rng = np.random.default_rng(0)
    for m, k, n, count in ((500, 300, 400, 9000), (40_000, 50, 9, 60_000), (9, 50, 500_000, 400)):
        a, b = (np.unique(rng.integers(0, s, (count, 2)), axis=0) for s in ((m, k), (k, n)))
        made = NATIVE["sparse_pairs"]([a, b], {})
        assert made is not None
        indices, left, right, place = made
        x, y = (
            scipy.sparse.csr_array((np.ones(len(i), int), tuple(i.T)), shape=shape)
            for i, shape in ((a, (m, k)), (b, (k, n)))
        )
        want = x @ y
        want.sort_indices()
        assert_same([indices], [np.stack(want.tocoo().coords, axis=1).astype(np.int64)])
        assert_same([np.bincount(place)], [want.data])
        np.testing.assert_array_equal(a[left, 1], b[right, 0])
        np.testing.assert_array_equal(indices[place], np.stack([a[left, 0], b[right, 1]], axis=1))
        assert (np.diff(left) >= 0).all()


# ------------------------------------------------------------------------------- what is as it was
BAD: dict[str, tuple[str, list[Array], dict[str, Any]]] = {
    "a part that is not there": (
        "dynamic_partition", [np.zeros(9), np.array([0] * 8 + [4])], {"num_partitions": 4}
    ),
    "a negative part": (
        "dynamic_partition", [np.zeros(9), np.array([0] * 8 + [-1])], {"num_partitions": 4}
    ),
    "a negative index": ("dynamic_stitch", [np.array([1, -3]), np.zeros(2)], {"rows": None}),
    "an index past the rows": ("dynamic_stitch", [np.array([1, 3]), np.zeros(2)], {"rows": 3}),
    "a negative count": ("repeat_index", [np.array([1, -1, 2])], {}),
    "no number": ("string_to_number", [texts([b"1", b"one"])], {"dtype": float32}),
    "no integer": ("string_to_number", [texts([b"1", b"1.5"])], {"dtype": int32}),
    "too large an integer": ("string_to_number", [texts([b"2147483648"])], {"dtype": int32}),
    "bytes of another length": (
        "decode_raw", [texts([b"1234", b"12345"])],
        {"out_type": int32, "shape": (None,), "little_endian": True},
    ),
    "half a number": (
        "decode_raw", [texts([b"12345"])],
        {"out_type": int32, "shape": (None,), "little_endian": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_are_the_reference_s(name: str) -> None:
    op, arrays, attrs = BAD[name]
    assert NATIVE[op](arrays, attrs) is None
    reference = OPS[op].reference
    assert reference is not None
    with pytest.raises(WeftError):
        reference(arrays, attrs)


def test_repeats_that_are_too_many_are_left_alone() -> None:
    for count in (2**62, 2**45):  # whose sum would wrap, or does not fit into memory
        counts = np.full(8, count)
        assert selection.repeated_places(counts) is None


def test_pairs_that_are_too_many_are_left_alone() -> None:
    """2**42 of them: no kernel counts them one by one."""
    ones = np.ones((2**21, 2), np.int64)
    assert native_results("sparse_pairs", [ones, ones], {}) is None
    t = wf.SparseTensor(ones, np.ones(2**21, np.float32), (2, 2))
    with pytest.raises(ResourceExhaustedError, match=r"4\.398e\+12 pairs of entries are more"):
        wf.sparse.matmul(t, t)


def test_what_has_no_kernel_is_left_alone() -> None:
    words = texts([b"a", b"b", b"a"])
    assert native_results("unique", [words], {}, few=0, few_strings=0) is None
    assert native_results("nonzero", [np.zeros(100)], {}) is None  # few
    assert native_results("sort", [np.zeros(10**4)], {}) is None
    mixed = np.array([b"a", "b"], object)  # no bytes
    assert NATIVE["string_to_hash_bucket_fast"]([mixed], {"num_buckets": 5}) is None


# ------------------------------------------------------------------------------------------ strings
def test_hashes() -> None:
    rng = np.random.default_rng(0)
    given = [bytes(rng.integers(0, 256, n, np.uint8)) for n in [*range(200), *range(200, 900, 31)]]
    keys = [(0, 0), (0x0706050403020100, 0x0F0E0D0C0B0A0908), (-1, 2**64 - 1), (-(2**63), 2**63)]
    kinds: list[tuple[str, Callable[[bytes], int], dict[str, Any]]] = [
        ("string_to_hash_bucket", murmur64, {}),
        ("string_to_hash_bucket_fast", fingerprint64, {}),
        *(("string_to_hash_bucket_strong", partial(sip_hash, key), {"key": key}) for key in keys),
    ]
    for op, function, more in kinds:
        for count in (1, 7, 2**63 - 1):
            made = NATIVE[op]([texts(given)], {"num_buckets": count, **more})
            assert made is not None
            assert made[0].tolist() == [function(s) % count for s in given]


def decimals(count: int) -> Iterator[bytes]:
    """Numbers of all magnitudes, written in many ways."""
    rng = random.Random(0)
    for _ in range(count):
        value = struct.unpack("d", struct.pack("Q", rng.getrandbits(64)))[0]
        yield repr(value).encode()
        yield b"%.*e" % (rng.randrange(18), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-320, 300))
        yield b"%d" % rng.randrange(-(10**18), 10**18)
        yield b"%.6f" % rng.uniform(-1e6, 1e6)
        # halfway between two float64, or next to it
        whole = (rng.getrandbits(53) << 1 | 1) + rng.choice([0, 0, 1, -1])
        yield b"%d" % (whole << rng.randrange(5))
    yield from (
        b" 12 ", b"+3", b"-0", b".5", b"5.", b"1e5", b"-1E-5\n", b"inf", b"-nan", b"0.0000",
        b"18446744073709551616", b"-3689348814741910323.200", b"0.92233720368547758080e3",
        b"1e400", b"1e-400", b"9007199254740993", b"4.9e-324", b"1" * 40,
        b"0." + b"0" * 30 + b"1", b"1e0005",
        b"123456789012345678901234567890e-20", b"1e+22", b"1e23", b"8.5e22",
    )  # fmt: skip


def test_decimals_become_what_python_makes_of_them() -> None:
    given = list(decimals(2000))
    for dtype in (float32, float64):
        made = NATIVE["string_to_number"]([texts(given)], {"dtype": dtype})
        with np.errstate(over="ignore"):
            wanted = np.array([number_of(s, dtype) for s in given])
        assert_same(made, wanted)


def test_plain_decimals_need_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has up to 19 digits and is no subnormal is decided by the kernel, but one in many
    millions."""
    monkeypatch.setattr(strings, "number_of", lambda text, _: pytest.fail(f"{text} was left"))
    rng = random.Random(1)
    given = [b"%.*e" % (rng.randrange(18), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-290, 290))
             for _ in range(3000)]  # fmt: skip
    made = NATIVE["string_to_number"]([texts(given)], {"dtype": float64})
    assert made is not None
    assert made[0].tolist() == [float(s) for s in given]


@pytest.mark.parametrize("dtype", [int32, int64], ids=str)
def test_integers(dtype: DType) -> None:
    rng = random.Random(0)
    given = [b"%d" % rng.randrange(-(2**31), 2**31) for _ in range(500)]
    given += [b" 007\t", b"+5", b"-2147483648", b"2147483647", b"0" * 30 + b"12", b"-0"]
    check("string_to_number", [texts(given)], dtype=dtype)


@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_raw_bytes(dtype: DType, little: bool) -> None:
    rng = np.random.default_rng(0)
    given = texts([bytes(rng.integers(0, 3, 96, np.uint8)) for _ in range(40)])
    for shape in ((None,), (2, None), (96 // dtype.itemsize,)):
        check("decode_raw", [given], out_type=dtype, shape=shape, little_endian=little)
        check(
            "decode_raw", [given.reshape(4, 10)], out_type=dtype, shape=shape, little_endian=little
        )


def csv_records(count: int, quote: bytes = b'"') -> Array:
    rng = random.Random(0)
    names = [b"ab c", quote + b"q,x" + quote, quote + b"d" + 2 * quote + b"q" + quote, b"", b"NA"]
    prices = [b"1.25", quote + b"2.5" + quote, b"", b"NA", b" 3", b"12345678901234567890123"]
    made = [
        b"%d,%.5f,%b,%b%b" % (
            rng.randrange(-999, 999), rng.random(), rng.choice(names), rng.choice(prices),
            rng.choice([b"", b"\r\n", b"\n"]),
        )
        for _ in range(count)
    ]  # fmt: skip
    return texts(made)


_DEFAULTS: list[Array] = [
    np.array([], np.int32), np.array([], np.float32), texts([b"none"]), np.array([7.5]),
]  # fmt: skip


def test_csv() -> None:
    records = csv_records(3000)
    for chosen in ((), (3, 2), (1,)):
        options = (",", '"', "NA", tuple(sorted(chosen)))
        defaults = [_DEFAULTS[k] for k in sorted(chosen)] or _DEFAULTS
        made = strings.csv_columns(records, defaults, *options)
        assert_same(made, decode_csv(records, defaults, *options))
    plain = texts([s.replace(b'"', b"") for s in records if b"q,x" not in s])
    assert_same(
        strings.csv_columns(plain, _DEFAULTS, ",", "", "NA", ()),
        decode_csv(plain, _DEFAULTS, ",", "", "NA", ()),
    )


@pytest.mark.parametrize(
    "record",
    [
        b"1,2,3", b"1,2,3,4,5", b'1,2,"x', b'1,2,"x"y,4', b'1,2,x"y,4', b"1,2,a\nb,4", b"x,1,a,1",
        b",1,a,1", b"9999999999,1,a,1", b"1,1_0,a,1", b"",
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_the_decoder_s_error(record: bytes) -> None:
    records = texts([b"1,2,3,4", record])
    assert strings.csv_columns(records, _DEFAULTS, ",", '"', "NA", ()) is None
    with pytest.raises(WeftError, match="record 1"):
        decode_csv(records, _DEFAULTS, ",", '"', "NA", ())


# ------------------------------------------------------------------------------ threads and the GIL
def test_the_same_bits_with_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    x, parts = rng.integers(0, 2, 10 * CHUNK), rng.integers(0, 7, 10 * CHUNK)
    words = texts([b"%d" % i for i in range(5000)])
    entries = rng.integers(0, 900, (9000, 2))
    before = wf.get_num_threads()
    found = []
    try:
        for count in (1, 2, 4):
            wf.set_num_threads(count)
            found.append([
                *(selection.nonzero_columns(x) or []), *(selection.partition(x, parts, 7) or []),
                *(NATIVE["unique"]([parts], {}) or []), selection.repeated_places(parts),
                *(NATIVE["sparse_pairs"]([entries, entries], {}) or []),
                *(NATIVE["string_to_hash_bucket"]([words], {"num_buckets": 99}) or []),
                *(NATIVE["string_to_number"]([words], {"dtype": float32}) or []),
            ])  # fmt: skip
    finally:
        wf.set_num_threads(before)
    for other in found[1:]:
        assert_same(other, found[0])


_NONZERO = """
graph @g(%x: bool[40000]) -> (i64[n,1]) stage=traced {
  %0 = nonzero(%x) {sizes=["n"]} : i64[n,1]
  return %0
}
"""


def test_a_step_s_limit_of_threads_holds_for_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    class OneThread:
        def enter(self, most: int | None, nbytes: int) -> tuple[int, int]:
            seen.append(most)
            return 0, 1

    monkeypatch.setattr(calls, "POOL", OneThread())
    x = np.arange(40000) % 3 == 0
    for most in (1, None):
        seen.clear()
        (made,) = DataflowStep(parse_graph(_NONZERO), threads=most).run([x])
        assert_same([made], np.argwhere(x))
        assert seen == [most, most]  # counting, filling


def progress_of_another_thread(run: Callable[[], object], most: int) -> int:
    """How far another thread comes while `run` is called, `most` times at most: it gets the GIL
    only if `run` gives it away, as nobody is asked for it."""
    count, begun, over = [0], threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        while not over.is_set():
            count[0] += 1
            time.sleep(0)  # gives the GIL back

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    other = threading.Thread(target=work)
    try:
        other.start()
        begun.wait()
        first = count[0]
        for _ in range(most):
            run()
            if count[0] > first:
                break
        return count[0] - first
    finally:
        over.set()
        other.join()
        sys.setswitchinterval(before)


_RNG = np.random.default_rng(0)
_MANY = _RNG.integers(0, 1000, 10**6)
_WORDS = texts([b"%d" % n for n in range(20000)])
_RECORDS = texts([wf.data.encode_example({"x": np.arange(99.0), "n": n}) for n in range(3000)])
_PARTS = [TensorType(float32, (99,)), TensorType(int64, (None,))]
LONG: dict[str, Callable[[], object]] = {
    "nonzero": lambda: selection.nonzero_columns(_MANY),
    "a mask": lambda: selection.chosen_rows(_MANY, _MANY > 3),
    "unique": lambda: unique.unique_as_they_occur(_MANY),
    "partition": lambda: selection.partition(_MANY, _MANY, 1000),
    "stitch": lambda: selection.stitch([_MANY], [_MANY], None),
    "repeat": lambda: selection.repeated_places(_MANY[:4000]),
    "pairs": lambda: NATIVE["sparse_pairs"]([_MANY[:40_000].reshape(-1, 2)] * 2, {}),
    "hash": lambda: NATIVE["string_to_hash_bucket_fast"]([_WORDS], {"num_buckets": 9}),
    "strong hash": lambda: NATIVE["string_to_hash_bucket_strong"](
        [_WORDS], {"num_buckets": 9, "key": (1, 2)}
    ),
    "numbers": lambda: NATIVE["string_to_number"]([_WORDS], {"dtype": int64}),
    "raw": lambda: NATIVE["decode_raw"](
        [_WORDS[1000:9000]], {"out_type": as_dtype("uint8"), "shape": (4,), "little_endian": True}
    ),
    "words": lambda: NATIVE["string_split"]([_WORDS], {"delimiter": "1", "skip_empty": True}),
    "examples": lambda: example_features(_RECORDS, ["x", "n"], _PARTS, {}),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", LONG)
def test_other_threads_go_on_meanwhile(name: str) -> None:
    LONG[name]()
    assert progress_of_another_thread(LONG[name], most=400) > 0


def test_other_threads_wait_for_python() -> None:
    """The measurement itself: a reference, which is a loop in Python, lets nobody else run."""
    reference = OPS["string_to_hash_bucket_fast"].reference
    assert reference is not None
    given = [_WORDS[:200]], {"num_buckets": 9}
    assert progress_of_another_thread(lambda: reference(*given), most=20) == 0
