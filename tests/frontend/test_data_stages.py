"""Stages of `wf.data` beside plain Python: random pipelines, corners, threads, errors."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

Dataset = wf.data.Dataset
InvalidArgumentError = wf.errors.InvalidArgumentError


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every test ends all threads it has started."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    end = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.005)
    assert not left, [t.name for t in left]


def numbers(n: int) -> Any:
    return Dataset.range(n)


def plain(element: Any) -> Any:
    if isinstance(element, tuple):
        return tuple(map(plain, element))
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def values(dataset: Any) -> list[Any]:
    return [plain(e) for e in dataset]


# ----------------------------------------------------------------- random pipelines, plain lists
def interleaved(rows: list[list[int]], cycle: int, block: int) -> list[int]:
    """TensorFlow's order, with a list of iterators: a place whose iterator ends is filled again
    when its turn comes."""
    coming, places, out = iter(rows), [None] * cycle, []  # type: ignore[var-annotated]
    at, more = 0, True
    while True:
        if places[at] is None and more:
            row = next(coming, None)
            more = row is not None
            places[at] = None if row is None else iter(row)  # type: ignore[call-overload]
        if places[at] is None:
            if not more and not any(p is not None for p in places):
                return out
        else:
            taken = list(itertools.islice(places[at], block))
            out += taken
            if len(taken) < block:
                places[at] = None
        at = (at + 1) % cycle


def windows(xs: list[Any], size: int, shift: int, stride: int, drop: bool) -> list[list[Any]]:
    all_ = [xs[i : i + (size - 1) * stride + 1 : stride] for i in range(0, len(xs), shift)]
    whole = (size - 1) * stride + 1
    return [w for i, w in zip(range(0, len(xs), shift), all_, strict=True)
            if not drop or i + whole <= len(xs)]  # fmt: skip


def copies(n: Any) -> Any:
    return numbers(int(n) % 4)


#: Each: the stage, and what it does to a list of numbers.
STAGES: dict[str, tuple[Callable[[Any], Any], Callable[[list[int]], list[int]]]] = {
    "filter": (lambda d: d.filter(lambda n: n % 3 != 1), lambda xs: [x for x in xs if x % 3 != 1]),
    "take": (lambda d: d.take(7), lambda xs: xs[:7]),
    "skip": (lambda d: d.skip(2), lambda xs: xs[2:]),
    "map": (lambda d: d.map(lambda n: n * 2 + 1), lambda xs: [x * 2 + 1 for x in xs]),
    "workers": (lambda d: d.map(lambda n: n + 5, workers=2), lambda xs: [x + 5 for x in xs]),
    "prefetch": (lambda d: d.prefetch(2), list),
    "repeat": (lambda d: d.repeat(2), lambda xs: xs * 2),
    "shard": (lambda d: d.shard(1, 2), lambda xs: xs[1::2]),
    "cache": (lambda d: d.cache(), list),
    "concatenate": (lambda d: d.concatenate(numbers(3)), lambda xs: [*xs, 0, 1, 2]),
    "scan": (
        lambda d: d.scan(0, lambda s, n: (s + int(n), np.asarray(s + int(n)))),
        lambda xs: list(itertools.accumulate(xs)),
    ),
    "zip": (
        lambda d: Dataset.zip(d, numbers(9).prefetch(1)).map(lambda a, b: a - b),
        lambda xs: [a - b for a, b in zip(xs, range(9), strict=False)],
    ),
    "enumerate": (
        lambda d: d.enumerate(3).map(lambda i, n: i * n),
        lambda xs: [i * x for i, x in enumerate(xs, 3)],
    ),
    "flat_map": (lambda d: d.flat_map(copies), lambda xs: [y for x in xs for y in range(x % 4)]),
    "interleave": (
        lambda d: d.interleave(copies, 3, 2),
        lambda xs: interleaved([list(range(x % 4)) for x in xs], 3, 2),
    ),
    "interleave ahead": (
        lambda d: d.interleave(copies, 2, 1, workers=2),
        lambda xs: interleaved([list(range(x % 4)) for x in xs], 2, 1),
    ),
    "unbatch": (lambda d: d.batch(3).unbatch(), list),
    "window": (
        lambda d: d.window(3, 2, 2).flat_map(lambda w: w.batch(3)).map(lambda b: b.sum()),
        lambda xs: [sum(w) for w in windows(xs, 3, 2, 2, False)],
    ),
    "ignore_errors": (
        lambda d: d.map(lambda n: n if n % 5 else 1 // (n * 0)).ignore_errors(),
        lambda xs: [x for x in xs if x % 5],
    ),
}  # fmt: skip


@examples(120)
@given(names=st.lists(st.sampled_from(sorted(STAGES)), max_size=5), n=st.integers(0, 12),
       data=st.data())  # fmt: skip
def test_random_pipelines(names: list[str], n: int, data: st.DataObject) -> None:
    def made() -> Any:
        dataset = numbers(n).map(int)
        for name in names:
            dataset = STAGES[name][0](dataset).map(int)
        return dataset

    want = list(range(n))
    for name in names:
        want = STAGES[name][1](want)
    assert values(made()) == want
    count = made().cardinality()
    assert count is None or count == len(want)
    # the place is saved, and another iterator goes on there
    at = data.draw(st.integers(0, len(want)))
    it = iter(made())
    for _ in range(at):
        next(it)
    again = iter(made())
    again.load_state_dict(it.state_dict())
    it.close()
    assert values(again) == want[at:]


# --------------------------------------------------------------------------- each stage's corners
def test_range_is_pythons() -> None:
    for args in ((5,), (2, 9), (9, 2, -3), (0,), (10**12, 10**12 + 2)):
        assert values(Dataset.range(*args)) == list(range(*args))
        assert Dataset.range(*args).cardinality() == len(range(*args))
    assert next(iter(Dataset.range(3))).dtype == np.int64
    with pytest.raises(InvalidArgumentError, match=r"Dataset\.range\(1, 2, 0\).*zero"):
        Dataset.range(1, 2, 0)


def test_take_and_skip_of_all_and_none() -> None:
    assert values(numbers(4).take(-1)) == [0, 1, 2, 3]
    assert values(numbers(4).skip(-1)) == values(numbers(4).take(0)) == values(numbers(4).skip(9))
    assert (numbers(4).take(9).cardinality(), numbers(4).skip(9).cardinality()) == (4, 0)
    assert values(numbers(3).repeat(-1).take(5)) == [0, 1, 2, 0, 1]
    calls: list[int] = []
    assert values(numbers(9).map(lambda n: calls.append(int(n)) or n).skip(7)) == [7, 8]
    assert calls == [7, 8]


def test_predicates_of_each_kind_of_bool() -> None:
    for yes in (lambda n: bool(n > 1), lambda n: n > 1, lambda n: wf.asarray(n) > 1):
        assert values(numbers(4).filter(yes)) == [2, 3]
    pairs = Dataset.zip(numbers(4), numbers(4).skip(1))
    assert values(pairs.filter(lambda a, b: a * b > 2)) == [(2, 3)]
    for bad in (lambda n: n, lambda n: [True], lambda n: None):
        with pytest.raises(InvalidArgumentError, match=r"filter\(.*no bool") as caught:
            list(numbers(4).filter(bad))
        assert "test_data_stages.py" in str(caught.value)


def test_zip_of_trees_ends_with_the_shortest() -> None:
    both = Dataset.zip({"a": numbers(3), "b": (numbers(5), numbers(4))})
    assert [plain(e["b"]) for e in both] == [(0, 0), (1, 1), (2, 2)]
    assert both.cardinality() == 3
    assert Dataset.zip(numbers(3), numbers(3).repeat()).cardinality() is None
    assert values(Dataset.zip(numbers(3), numbers(3).repeat().prefetch(1))) == [
        (0, 0), (1, 1), (2, 2),
    ]  # fmt: skip
    for bad in ([], [3], ["ab"]):
        with pytest.raises(InvalidArgumentError, match="zip takes datasets"):
            Dataset.zip(*bad)


def test_interleave_is_tensorflows_example() -> None:
    """Of tf.data.Dataset.interleave's documentation."""
    runs = ((1, 4), (2, 4), (1, 2), (2, 2), (3, 4), (4, 4), (3, 2), (4, 2), (5, 6))
    want = [x for x, count in runs for _ in range(count)]
    source = Dataset.range(1, 6)
    for workers in (0, 1, 3):
        found = source.interleave(
            lambda x: Dataset.from_arrays(np.array([x])).repeat(6), 2, 4, workers=workers
        )
        assert values(found) == want


def test_interleave_with_workers_opens_at_once() -> None:
    together = threading.Barrier(3)

    def rows(n: Any) -> Any:
        together.wait(10)
        return numbers(int(n))

    source = Dataset.from_arrays(np.array([2, 1, 3]))
    assert values(source.interleave(rows, 3, workers=3)) == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_not_deterministic_has_the_same_elements(workers: int) -> None:
    def slow(n: Any) -> Any:
        time.sleep(0.02 if n == 0 else 0)
        return n

    found = values(numbers(30).map(slow, workers, deterministic=False).prefetch(2))
    assert sorted(found) == list(range(30))
    if workers > 1:
        assert found[0] != 0  # the others did not wait for it
    rows = numbers(7).interleave(copies, 3, workers=workers, deterministic=False)
    want = [y for x in range(7) for y in range(x % 4)]
    assert sorted(values(rows)) == sorted(want)
    if workers > 1:
        with pytest.raises(wf.errors.UnsupportedError, match="threads decide the order: interlea"):
            iter(rows.prefetch(1)).state_dict()


def test_sampling_by_weight() -> None:
    some = [numbers(300), numbers(300).map(lambda n: n + 1000), numbers(2).map(lambda n: -n - 1)]
    dataset = Dataset.sample_from_datasets(some, [0.7, 0.2, 0.1], seed=3)
    found = values(dataset)
    assert sorted(found) == sorted([*range(300), *range(1000, 1300), -1, -2])
    assert [n for n in found if 0 <= n < 1000] == list(range(300))  # each in its order
    assert values(dataset) == found != values(dataset.iterate(1))
    first = found[:200]
    assert 110 < sum(0 <= n < 1000 for n in first) < 170  # 0.7 of them, 0.78 after the third's end
    assert dataset.cardinality() == 602
    stopped = values(Dataset.sample_from_datasets(some, seed=3, stop_on_empty_dataset=True))
    assert 2 <= len(stopped) < 60
    assert values(Dataset.sample_from_datasets(some, [0, 1, 0], seed=0)) == list(range(1000, 1300))
    for weights in ([1.0], [0, 0, 0], [1, -1, 1], [1, float("nan"), 1], some[0], ["a", 1, 1]):
        with pytest.raises(InvalidArgumentError, match="sample_from_datasets: weights="):
            Dataset.sample_from_datasets(some, weights)


def test_choosing() -> None:
    some = [numbers(2), numbers(9).map(lambda n: n + 10)]
    choices = Dataset.from_arrays(np.array([0, 1, 0, 0, 1, 0, 1]))
    assert values(Dataset.choose_from_datasets(some, choices)) == [0, 10, 1]
    loose = Dataset.choose_from_datasets(some, choices, stop_on_empty_dataset=False)
    assert values(loose) == [0, 10, 1, 11, 12]
    endless = choices.repeat().prefetch(1)
    assert values(Dataset.choose_from_datasets([numbers(3).prefetch(1)] * 2, endless)) == [
        0, 0, 1, 2, 1,
    ]  # fmt: skip
    for bad in (2, -1, 0.5):
        wrong = Dataset.from_arrays(np.array([bad]))
        with pytest.raises(InvalidArgumentError, match="is none of the 2 datasets"):
            list(Dataset.choose_from_datasets(some, wrong))


def test_functions_that_give_no_dataset() -> None:
    for stage in ("flat_map", "interleave"):
        for workers in (0, 2) if stage == "interleave" else (0,):
            options = {"cycle_length": 2, "workers": workers} if stage == "interleave" else {}
            with pytest.raises(InvalidArgumentError, match=rf"{stage}\(.*gave array.*no Dataset"):
                list(getattr(numbers(3), stage)(lambda n: n, **options))


@examples(60)
@given(n=st.integers(0, 20), size=st.integers(1, 5), shift=st.integers(1, 6),
       stride=st.integers(1, 3), drop=st.booleans())  # fmt: skip
def test_windows(n: int, size: int, shift: int, stride: int, drop: bool) -> None:
    calls: list[int] = []
    source = numbers(n).map(lambda x: calls.append(int(x)) or x)
    dataset = source.window(size, shift, stride, drop)
    want = windows(list(range(n)), size, shift, stride, drop)
    assert [values(w) for w in dataset] == want
    assert len(calls) == len(set(calls))  # each is made once, however many windows have it
    assert dataset.cardinality() == len(want)


def test_windows_of_structures() -> None:
    source = Dataset.from_arrays({"x": np.arange(4), "y": (np.arange(4) * 2,)})
    first, second = source.window(2)
    assert (values(first["x"]), values(second["y"][0])) == ([0, 1], [4, 6])
    assert first["x"].cardinality() == 2


def test_scan_and_reduce() -> None:
    dataset = Dataset.zip(numbers(4), numbers(4))
    assert dataset.reduce((0, 1), lambda s, e: (s[0] + int(e[0]), s[1] * 2)) == (6, 16)
    assert numbers(0).reduce("none", lambda s, e: s) == "none"
    with pytest.raises(InvalidArgumentError, match=r"(?s)scan\(.*it gives two values"):
        list(numbers(2).scan(0, lambda s, e: s))
    with pytest.raises(ZeroDivisionError) as caught:
        numbers(2).reduce(0, lambda s, e: 1 // 0)
    assert "in reduce(" in caught.value.__notes__[0]


def test_unbatch() -> None:
    arrays = {"x": np.arange(6).reshape(3, 2), "s": np.array([b"a", b"b", b"c"], object)}
    dataset = Dataset.from_arrays(arrays).batch(2).unbatch()
    assert [e["x"].tolist() for e in dataset] == [[0, 1], [2, 3], [4, 5]]
    assert [e["s"].item() for e in dataset] == [b"a", b"b", b"c"]
    (again,) = dataset.batch(3)
    np.testing.assert_array_equal(again["x"], arrays["x"])
    assert not next(iter(dataset))["x"].flags.writeable
    for bad in (lambda n: n, lambda n: (np.zeros(2), np.zeros(3)), lambda n: ()):
        with pytest.raises(InvalidArgumentError, match=r"unbatch: .* first axes of one length"):
            list(numbers(2).map(bad).unbatch())


# ------------------------------------------------------------------------------ padding and buckets
def padded(rows: list[list[int]], width: int, value: int) -> list[list[int]]:
    return [row + [value] * (width - len(row)) for row in rows]


ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=15)


def ragged(rows: list[list[int]]) -> Any:
    return Dataset.from_generator(lambda: (np.array(r, np.int64) for r in rows))


@examples(60)
@given(rows=ROWS, n=st.integers(1, 4), value=st.integers(-3, 3), drop=st.booleans(),
       fixed=st.booleans())  # fmt: skip
def test_padded_batches(rows: list[list[int]], n: int, value: int, drop: bool, fixed: bool) -> None:
    dataset = ragged(rows).padded_batch(n, [8] if fixed else None, value, drop)
    parts = [rows[i : i + n] for i in range(0, len(rows), n)]
    want = [padded(p, 8 if fixed else max(map(len, p)), value) for p in parts
            if len(p) == n or not drop]  # fmt: skip
    assert [b.tolist() for b in dataset] == want


def test_padding_of_trees_and_strings() -> None:
    def rows() -> Iterator[Any]:
        for i in (1, 2):
            yield {"x": np.ones((i, 2), np.float32), "s": np.array([b"ab"] * i, object), "n": b"z"}

    (batch,) = Dataset.from_generator(rows).padded_batch(
        2, {"x": [3, -1], "s": [None], "n": []}, {"x": np.nan, "s": "-", "n": None}
    )
    assert batch["x"].shape == (2, 3, 2)
    assert np.isnan(batch["x"]).sum() == 6
    assert batch["s"].tolist() == [[b"ab", b"-"], [b"ab", b"ab"]]
    assert batch["n"].tolist() == [b"z", b"z"]
    (batch,) = Dataset.from_generator(rows).padded_batch(2)
    assert batch["s"].tolist() == [[b"ab", b""], [b"ab", b"ab"]]
    assert batch["x"][0, 1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rows", "shapes", "value", "message"),
    [
        ([[1, 2, 3]], [2], None, r"int64\[3\] is larger than \[2\]"),
        ([[1]], [2, None], None, r"padded_shapes has \[2, None\] for arrays with 1 axes"),
        ([[1]], None, 0.5, "padding_values has 0.5 for arrays of int64"),
        ([[1]], None, "a", "padding_values has 'a' for arrays of int64"),
        ([[1]], ([1], [1]), None, "another structure"),
    ],
)
def test_padding_that_does_not_fit(rows: Any, shapes: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"padded_batch: .*{message}") as caught:
        list(ragged(rows).padded_batch(2, shapes, value))
    assert "test_data_stages.py" in str(caught.value)


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), np.float32(0.1), 2, True, np.inf])
def test_values_of_floats_round(value: Any) -> None:
    rows = Dataset.from_generator(lambda: (np.zeros(n, np.float32) for n in (0, 1)))
    (batch,) = rows.padded_batch(2, padding_values=value)
    assert batch[0, 0] == np.float32(value)
    for bad in (1j, "a", [1]):
        with pytest.raises(InvalidArgumentError, match="padding_values"):
            list(rows.padded_batch(2, padding_values=bad))


def test_arrays_that_cannot_be_padded() -> None:
    mixed = Dataset.from_generator(lambda: iter([np.zeros(1), np.zeros((1, 1))]))
    with pytest.raises(InvalidArgumentError, match="one dtype and number of axes"):
        list(mixed.padded_batch(2))
    keys = Dataset.from_generator(lambda: iter([{"a": 1}, {"b": 1}]))
    with pytest.raises(InvalidArgumentError, match=r"padded_batch: element 1 .* another structure"):
        list(keys.padded_batch(2))
    with pytest.raises(InvalidArgumentError, match=r"padded_shapes has the keys \['b'\]"):
        list(keys.take(1).padded_batch(2, {"b": []}))


@examples(60)
@given(rows=ROWS, drop=st.booleans(), to_boundary=st.booleans(), no_padding=st.booleans())
def test_buckets(rows: list[list[int]], drop: bool, to_boundary: bool, no_padding: bool) -> None:
    boundaries, sizes = [2, 5, 8], [3, 2, 2, 1]
    held: dict[int, list[list[int]]] = {}
    want = []
    for row in rows:
        bucket = bisect_right(boundaries, len(row))
        held.setdefault(bucket, []).append(row)
        if len(held[bucket]) == sizes[bucket]:
            want.append((bucket, held.pop(bucket)))
    want += [] if drop else sorted(held.items())
    source = ragged(rows)
    if no_padding:
        source = source.map(lambda r: np.asarray(len(r)))
        dataset = source.bucket_by_sequence_length(
            lambda n: n, boundaries, sizes, no_padding=True, drop_remainder=drop
        )
        assert values(dataset) == [[len(r) for r in batch] for _, batch in want]
        return
    dataset = source.bucket_by_sequence_length(
        len, boundaries, sizes, pad_to_bucket_boundary=to_boundary, drop_remainder=drop
    )
    assert values(dataset) == [
        padded(batch, boundaries[b] - 1 if to_boundary else max(map(len, batch)), 0)
        for b, batch in want
    ]


def test_buckets_that_do_not_fit() -> None:
    source = ragged([[1] * 9])
    with pytest.raises(InvalidArgumentError, match="at least 8, the last boundary"):
        list(source.bucket_by_sequence_length(len, [8], [1, 1], pad_to_bucket_boundary=True))
    with pytest.raises(InvalidArgumentError, match="1 bucket_batch_sizes for 1 boundaries"):
        source.bucket_by_sequence_length(len, [8], [1])
    with pytest.raises(InvalidArgumentError, match="must rise"):
        source.bucket_by_sequence_length(len, [8, 3], [1, 1, 1])
    with pytest.raises(InvalidArgumentError, match=r"gave 0\.5, no length"):
        list(source.bucket_by_sequence_length(lambda r: 0.5, [8], [1, 1]))


# ------------------------------------------------------------------------------------------ cache
def counted(n: int) -> tuple[Any, list[int]]:
    calls: list[int] = []
    return numbers(n).map(lambda x: calls.append(int(x)) or np.asarray([x, x])), calls


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_cache_makes_elements_once(kind: str, tmp_path: Path) -> None:
    source, calls = counted(4)
    dataset = source.cache(None if kind == "memory" else tmp_path / "c")
    want = [[n, n] for n in range(4)]
    assert values(dataset.take(2)) == want[:2]
    assert os.listdir(tmp_path) == []  # half a pass is not kept
    assert values(dataset.shard(1, 2)) == want[1::2]  # a whole one is, whatever is used of it
    calls.clear()
    assert values(dataset) == values(dataset.prefetch(2)) == want
    assert values(dataset.shuffle(4, 0).repeat(2).take(8)) != want * 2
    assert calls == []
    for element in (next(iter(source.cache())), next(iter(dataset))):
        assert not element.flags.writeable
    assert os.listdir(tmp_path) == ([] if kind == "memory" else ["c"])


def test_what_is_before_a_cache_has_one_order() -> None:
    once = numbers(20).shuffle(20, 1).cache()
    assert values(once.repeat(2)) == values(numbers(20).shuffle(20, 1)) * 2
    first, second = (numbers(20).shuffle(20).cache() for _ in range(2))  # of seeds that differ
    want = values(second)
    assert values(first) != want
    other = iter(first)
    other.load_state_dict(iter(second).state_dict())  # the seed, too: that is another cache
    assert values(other) == want


def test_a_restored_pass_fills_no_cache() -> None:
    source, calls = counted(5)
    dataset = source.cache().repeat(2)
    it = iter(dataset)
    it.load_state_dict({**it.state_dict(), "delivered": 3})
    assert values(it) == [[n, n] for n in [3, 4, 0, 1, 2, 3, 4]]
    assert calls == [3, 4, 0, 1, 2, 3, 4]
    calls.clear()
    assert len(list(dataset)) == 10
    assert calls == []


@pytest.mark.parametrize("bad", ["map", "source"])
def test_a_pass_with_an_error_is_not_kept(bad: str, tmp_path: Path) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    source = numbers(3).map(lambda n: 1 // (int(n) - 1)) if bad == "map" else None
    dataset = (source or Dataset.from_generator(broken)).cache(tmp_path / "c")
    for _ in range(2):
        with pytest.raises((ZeroDivisionError, OSError)):
            list(dataset)
        assert os.listdir(tmp_path) == []
    it = iter(numbers(3).cache(tmp_path / "d"))
    next(it)
    assert len(os.listdir(tmp_path)) == 1
    it.close()
    del it
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_files_keep_every_kind_of_element(tmp_path: Path) -> None:
    element: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": (np.float64(2.5), [1, "é", b"\xff"]),
        "c": np.array([[b"x", b""]], object), "d": np.array([1, 2], wf.bfloat16.numpy), "e": None,
        "f": np.asarray(3 + 1j), "g": np.zeros((0, 3), ">i2"), "h": 1.5,
    }  # fmt: skip
    dataset = Dataset.from_generator(lambda: iter([element])).cache(tmp_path / "c")
    for _ in range(2):
        (found,) = dataset
        assert found.keys() == element.keys()
        for key in ("a", "c", "d", "f", "g"):
            assert found[key].dtype == element[key].dtype
            np.testing.assert_array_equal(found[key], element[key])
        assert found["b"] == element["b"]
        assert type(found["b"][0]) is np.float64
        assert (found["e"], found["h"]) == (None, 1.5)
    (tensor,) = Dataset.from_generator(lambda: iter([wf.asarray([1, 2])])).cache(tmp_path / "t")
    assert tensor.tolist() == [1, 2]
    for bad in ({1, 2}, np.array([object()], object), 2**70, np.zeros(1, "i4,f4")):
        with pytest.raises(wf.errors.UnsupportedError, match="cache: a file cannot hold"):
            list(Dataset.from_generator(partial(iter, [bad])).cache(tmp_path / "u"))


def test_files_of_others_and_damaged_ones(tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert len(list(numbers(5).cache(path))) == 5
    with pytest.raises(InvalidArgumentError, match=r"(?s)another dataset:.*range\(5\).*range\(6\)"):
        list(numbers(6).cache(path))
    data = path.read_bytes()
    for damaged in (
        data[:-3],
        data[: len(data) // 2],
        b"",
        b"x" * 40,
        data[:60] + b"!" + data[61:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(wf.errors.DataLossError, match="c: "):
            list(numbers(5).cache(path))
    with pytest.raises(wf.errors.NotFoundError):
        list(numbers(5).cache(tmp_path / "no" / "c"))
    with pytest.raises(InvalidArgumentError, match="filename=3"):
        numbers(5).cache(3)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- errors and threads
PLACES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda d: d, "prefetch": lambda d: d.prefetch(2), "batch": lambda d: d.batch(1),
    "workers": lambda d: d.map(lambda n: n, workers=2),
    "loose": lambda d: d.map(lambda n: n, workers=2, deterministic=False),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_ignored_errors(place: str, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    def fails(n: Any) -> Any:
        if n % 3 == 1:
            raise ValueError(f"no {n}")
        return n

    dataset = PLACES[place](numbers(9).map(fails, workers)).ignore_errors(log_warning=True)
    with caplog.at_level(logging.WARNING, "weft.data"):
        found = np.hstack([np.asarray(x).reshape(-1) for x in dataset]).tolist()
    assert sorted(found) == [0, 2, 3, 5, 6, 8]
    assert len(caplog.records) == 3
    assert values(numbers(6).filter(lambda n: 6 // int(n) > 1).ignore_errors()) == [1, 2, 3]
    with pytest.raises(KeyboardInterrupt):  # no Exception
        list(numbers(1).map(lambda n: (_ for _ in ()).throw(KeyboardInterrupt)).ignore_errors())


def test_files_after_a_damaged_one_are_read(tmp_path: Path) -> None:
    names = [tmp_path / f"{i}.csv" for i in range(3)]
    for i, name in enumerate(names):
        name.write_text(f"n\n{i}\n" + ("x\n" if i == 1 else "") + f"{i + 10}\n")
    rows = Dataset.from_files(names, lambda p: wf.data.read_csv(p, {"n": wf.int64}))
    with pytest.raises(InvalidArgumentError, match=r"1\.csv:3"):
        list(rows)
    assert [int(r["n"]) for r in rows.ignore_errors()] == [0, 10, 1, 2, 12]


Places = list[Any]  # an element each; None where making it raised an error


def failing(places: Places) -> Any:
    """0, 1, ...; an error in the places that have None, as the stage looks for the next one."""

    def fails(n: Any) -> bool:
        if places[int(n)] is None:
            raise ValueError(f"no {n}")
        return True

    return numbers(len(places)).filter(fails)


def in_batches(places: Places) -> Places:
    """Pairs; an error takes the pair that it is in, and the next one begins after it."""
    out, held = [], []
    for place in places:
        held.append(place)
        if place is None or len(held) == 2:
            out.append(None if place is None else held)
            held = []
    return [*out, held] if held else out


def zipped(places: Places) -> Places:
    return [None if p is None else (p, n) for n, p in enumerate(places)]


def one_of_three(places: Places) -> Places:
    """Windows of one element, 3 apart: a window is of the next element that can be made."""
    out, coming = [], iter(places)
    for place in coming:
        out.append(place)
        if place is not None:
            out += [x for x in itertools.islice(coming, 2) if x is None]
    return out


def kept(places: Places, numbers: range) -> Places:
    """Those of some numbers; the errors of others come, too, and are places of those who follow."""
    return [x for n, x in enumerate(places) if x is None or n in numbers]


COUNTING: dict[str, tuple[Callable[[Any], Any], Callable[[Places], Places]]] = {
    "skip": (lambda d: d.skip(4), lambda p: p[4:]),
    "take": (lambda d: d.take(6).skip(3), lambda p: p[3:6]),
    "shard": (lambda d: d.shard(1, 3), lambda p: p[1::3]),
    "shards": (
        lambda d: d.shard(1, 2).shard(0, 2).skip(1),
        lambda p: kept(kept(p, range(1, 99, 2)), range(0, 99, 2))[1:],
    ),
    "skips": (
        lambda d: d.skip(2).shard(2, 3),
        lambda p: kept(kept(p, range(2, 99)), range(2, 99, 3)),
    ),
    "enumerate": (
        lambda d: d.enumerate().shard(1, 2),
        lambda p: [None if x is None else (n, x) for n, x in enumerate(p)][1::2],
    ),
    "batch": (lambda d: d.batch(2).shard(1, 2), lambda p: in_batches(p)[1::2]),
    "window": (
        lambda d: d.window(1, 3).map(lambda w: next(iter(w))), one_of_three,
    ),
    "map": (lambda d: d.map(lambda n: n, workers=2).skip(4), lambda p: p[4:]),
    "prefetch": (lambda d: d.prefetch(2).shard(1, 2), lambda p: p[1::2]),
    "zip": (lambda d: Dataset.zip(d, numbers(99)).skip(4), lambda p: zipped(p)[4:]),
    "concatenate": (lambda d: numbers(1).concatenate(d).skip(4), lambda p: p[3:]),
    "repeat": (lambda d: d.repeat(2).shard(4, 5), lambda p: (p + p)[4::5]),
    "flat_map": (
        lambda d: numbers(1).flat_map(lambda _: d).shard(0, 2), lambda p: p[::2],
    ),
    "interleave": (
        lambda d: numbers(2).interleave(lambda _: d, 2, 2).skip(5),
        lambda p: [x for k in range(0, len(p), 2) for x in p[k : k + 2] * 2][5:],
    ),
    "unbatch": (
        lambda d: d.map(lambda n: np.stack([n, n])).unbatch().skip(3),
        lambda p: [x for n in p for x in ([None] if n is None else [n, n])][3:],
    ),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", COUNTING)
@given(st.lists(st.booleans(), max_size=14))
@examples(60)
def test_an_error_takes_the_place_of_an_element(name: str, fails: list[bool]) -> None:
    """Stages that pass over elements began anew after an error, or forgot what was left."""
    places = [None if f else n for n, f in enumerate(fails)]
    make, truth = COUNTING[name]
    expected = [x for x in truth(places) if x is not None]
    dataset = make(failing(places)).ignore_errors()
    assert values(dataset) == expected
    for done in range(len(expected) + 1):
        it = iter(dataset)
        for _ in range(done):
            next(it)
        again = iter(dataset)
        again.load_state_dict(it.state_dict())
        it.close()
        assert values(again) == expected[done:]


def test_the_error_of_a_passed_over_element_is_the_functions() -> None:
    """Nothing of how stages count is in it, and the state goes past what failed for a while."""
    cause, broken = KeyError("cause"), [True]

    def fails(n: Any) -> bool:
        if n == 2 and broken[0]:
            raise ValueError("no 2") from cause
        return True

    it = iter(numbers(9).filter(fails).skip(1).batch(2).skip(1))
    with pytest.raises(ValueError, match="no 2") as caught:
        next(it)
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is cause or caught.value.__context__ is None
    broken[0] = False
    state = {**it.state_dict(), "delivered": 1}
    it.load_state_dict(state)
    assert values(it) == [[5, 6], [7, 8]]
    broken[0] = True
    it.load_state_dict(state)
    with pytest.raises(ValueError, match="no 2"):
        next(it)


def test_repetitions_of_what_fails_end() -> None:
    def broken() -> Iterator[int]:
        raise OSError("gone")
        yield 1

    assert values(Dataset.from_generator(broken).repeat().ignore_errors()) == []
    once = iter([1, 2])
    assert values(Dataset.from_generator(lambda: once).repeat().ignore_errors()) == [1, 2]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_errors_of_inner_datasets_come_in_their_turn(workers: int) -> None:
    def rows(n: Any) -> Any:
        if n == 2:
            raise KeyError("two")
        return numbers(3).map(lambda x: x if n != 1 or x != 1 else 1 // int(x * 0))

    dataset = numbers(4).interleave(rows, 4, workers=workers)
    it = iter(dataset)
    seen = []
    with pytest.raises(KeyError) as caught:
        seen.extend(int(x) for x in it)
    assert seen == [0, 0]
    assert "in interleave(" in caught.value.__notes__[0]
    assert "test_data_stages.py" in caught.value.__notes__[0]
    assert values(dataset.ignore_errors()) == [0, 0, 0, 1, 1, 2, 2, 2]
    del it, caught


THREADED: dict[str, Callable[[], Any]] = {
    "interleave": lambda: numbers(99).interleave(
        lambda n: numbers(50).map(lambda x: x, workers=2).prefetch(1), 4, 2, workers=3
    ),
    "loose": lambda: numbers(99).interleave(
        lambda n: numbers(50).prefetch(1), 4, workers=3, deterministic=False
    ),
    "flat_map": lambda: numbers(99).flat_map(lambda n: numbers(50).prefetch(1)),
    "zip": lambda: Dataset.zip(numbers(99).prefetch(1), numbers(99).map(lambda n: n, workers=2)),
    "sample": lambda: Dataset.sample_from_datasets([numbers(99).prefetch(1)] * 3, seed=1),
    "no element": lambda: numbers(9).concatenate(
        numbers(3).repeat().filter(lambda n: n > 5)
    ).prefetch(1),
    "map": lambda: numbers(99).map(lambda n: n, workers=3, deterministic=False).take(50),
    "cache": lambda: numbers(99).prefetch(1).cache(),
}  # fmt: skip


@pytest.mark.parametrize("make", THREADED.values(), ids=THREADED)
def test_dropped_half_way(make: Any) -> None:
    before = set(threading.enumerate())
    it = iter(make())
    for _ in range(5):
        next(it)
    assert set(threading.enumerate()) - before
    it.close()
    assert set(threading.enumerate()) == before  # close waits for them
    assert list(it) == []
    it = iter(make())
    next(it)
    del it  # the fixture sees whether they end


def test_inner_threads_do_not_gather() -> None:
    most = 0

    def rows(n: Any) -> Any:
        nonlocal most
        most = max(most, threading.active_count())
        return numbers(1000).prefetch(1).take(2)

    before = threading.active_count()
    assert len(list(numbers(60).flat_map(rows))) == 120
    assert most <= before + 8  # those of the last ones may be ending


def test_a_pipeline_names_all_its_stages() -> None:
    dataset = Dataset.zip(numbers(3).prefetch(2), numbers(4).shuffle(2, 1)).concatenate(
        numbers(2).enumerate()
    )
    assert repr(dataset) == (
        "<Dataset zip(range(3) -> prefetch(2), range(4) -> shuffle(2, seed=1)) -> "
        "concatenate(range(2) -> enumerate())>"
    )
    assert "prefetch" not in iter(dataset).state_dict()["pipeline"]


@pytest.mark.parametrize("kind", ["concatenate", "repeat", "repeat without end", "cache"])
def test_what_cannot_begin_or_end_fails_once(kind: str, tmp_path: Path) -> None:
    """ignore_errors asked for the next element again and again, and got the same error."""
    begun = []

    def refuses() -> Any:
        begun.append(len(begun))
        raise ValueError("no elements")

    def closes_door() -> Iterator[int]:
        yield from range(3)
        for left in tmp_path.glob("*.tmp"):  # so it cannot be renamed
            left.unlink()
            begun.append(1)

    never = Dataset.from_generator(refuses)
    dataset, expected, times = {
        "concatenate": (numbers(2).concatenate(never), [0, 1], 1),
        "repeat": (numbers(2).concatenate(never).repeat(2), [0, 1, 0, 1], 2),
        "repeat without end": (never.repeat().take(5), [], 1),
        "cache": (Dataset.from_generator(closes_door).cache(tmp_path / "c"), [0, 1, 2], 1),
    }[kind]
    if kind == "cache":
        with pytest.raises(wf.errors.NotFoundError, match=r"/c: No such file"):
            list(dataset)
        begun.clear()
    with iter(dataset.ignore_errors()) as elements:
        found = []
        thread = threading.Thread(target=lambda: found.extend(values(elements)), daemon=True)
        thread.start()
        thread.join(5)
        ended = not thread.is_alive()
    assert ended
    assert found == expected
    assert len(begun) == times


def test_states_that_are_none() -> None:
    state = iter(numbers(5).shuffle(2, 1)).state_dict()
    some = [{k: v for k, v in state.items() if k != key} for key in state]
    for bad in (*some, {**state, "seeds": 3}, {**state, "epoch": None}, None, [state]):
        it = iter(numbers(5).shuffle(2, 1))
        with pytest.raises(InvalidArgumentError):
            it.load_state_dict(bad)  # type: ignore[arg-type]
        assert sorted(values(it)) == [0, 1, 2, 3, 4]


def test_numbers_beyond_int64() -> None:
    for args in ((2**63, 2**63 + 1), (-(2**64), 0, 2**62), (2**70,), (-(2**63), 2**63)):
        with pytest.raises(InvalidArgumentError, match=r"Dataset\.range"):
            Dataset.range(*args)
    assert values(Dataset.range(2**63 - 2, 2**70, 2**70)) == [2**63 - 2]


def test_a_file_is_the_cache_of_one_choice_of_settings(tmp_path: Path) -> None:
    """Settings that change elements stand in the text of a pipeline."""
    rows = Dataset.from_generator(lambda: (np.arange(n) for n in (1, 3)))
    two = [numbers(3), numbers(3)]
    buckets = partial(rows.bucket_by_sequence_length, len, [5], [1, 1])
    sampled = partial(Dataset.sample_from_datasets, two)
    chosen = partial(Dataset.choose_from_datasets, two, numbers(2))
    made: list[Any] = [
        *(rows.padded_batch(2, *given) for given in ((), (None, -1), (None, 1), ([4],), ([5],))),
        *(buckets(**{k: True}) for k in ("no_padding", "pad_to_bucket_boundary")),
        buckets(), buckets(padding_values=-1),
        sampled(seed=1), sampled(seed=2), sampled([0.1, 0.9], seed=1),
        sampled(seed=1, stop_on_empty_dataset=True),
        chosen(), chosen(stop_on_empty_dataset=False),
        Dataset.zip(*two), Dataset.zip({"a": two[0], "b": two[1]}),
        Dataset.zip((two[0], (two[1],))),
    ]  # fmt: skip
    texts = [repr(d) for d in made]
    assert len({*texts}) == len(texts)
    list(made[0].cache(tmp_path / "c"))
    for other in made[1:]:
        with pytest.raises(InvalidArgumentError, match="the elements of another dataset"):
            list(other.cache(tmp_path / "c"))


def test_shuffles_of_all_parts_are_restored() -> None:
    def made() -> Any:
        return Dataset.zip(numbers(9).shuffle(9), numbers(9).shuffle(9).concatenate(
            numbers(9).shuffle(9)))  # fmt: skip

    it = iter(made())
    for _ in range(4):
        next(it)
    other = iter(made())  # which has drawn other seeds
    other.load_state_dict(it.state_dict())
    assert values(other) == values(it)


def test_one_order_in_all_epochs() -> None:
    once = numbers(20).shuffle(20, 5, reshuffle_each_iteration=False)
    first = values(once)
    assert values(once.repeat(2)) == first * 2
    assert values(numbers(20).shuffle(20, 5).repeat(2)) != first * 2
    assert "once" in repr(once)


def test_fixed_records(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"HHabcdefT")
    assert list(wf.data.read_fixed_records(path, 3, 2, 1)) == [b"abc", b"def"]
    with pytest.raises(wf.errors.DataLossError, match="record 1"):
        list(wf.data.read_fixed_records(path, 4, 2, 1))
    with pytest.raises(InvalidArgumentError, match="record_bytes=0"):
        wf.data.read_fixed_records(path, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: numbers(3).filter(3), "filter takes a function, not int"),
        (lambda: numbers(3).take(-2), "take: count=-2"),
        (lambda: numbers(3).interleave(copies, 0), "interleave: cycle_length=0"),
        (lambda: numbers(3).window(2, 0), "window: shift=0"),
        (lambda: numbers(3).padded_batch(True), "padded_batch: n=True"),
        (lambda: numbers(3).concatenate([1]), r"concatenate takes datasets, not \[1\]"),
        (lambda: numbers(3).enumerate(0.5), "enumerate: start=0.5"),
    ],
)
def test_arguments(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        make()
    assert "test_data_stages.py" in str(caught.value)
