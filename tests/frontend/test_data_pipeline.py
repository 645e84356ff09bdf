"""`wf.data.Dataset`: order, determinism, threads, errors, and going on after a restore."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import weft as wf

Dataset = wf.data.Dataset


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every test ends all threads it has started."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert threads_end(before), [t.name for t in set(threading.enumerate()) - before]


def threads_end(before: set[threading.Thread], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while set(threading.enumerate()) - before:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def numbers(n: int) -> Any:
    return Dataset.from_arrays(np.arange(n))


def values(dataset: Any) -> list[Any]:
    return [np.asarray(x).tolist() for x in dataset]


# -------------------------------------------------------------------------------- sources and forms
def test_elements_are_pytrees_of_arrays() -> None:
    data = {"x": np.arange(6.0).reshape(3, 2), "y": (np.arange(3), [np.array([b"a", b"b", b"c"])])}
    first, *_ = Dataset.from_arrays(data)
    assert first["x"].tolist() == [0, 1]
    assert isinstance(first["y"], tuple)
    assert first["y"][0].shape == ()
    (batch,) = Dataset.from_arrays(data).batch(3)
    np.testing.assert_array_equal(batch["x"], data["x"])
    assert isinstance(batch["y"][1], list)


def test_batches_of_rows_are_views(tmp_path: Path) -> None:
    x = np.arange(20.0).reshape(10, 2)
    np.save(tmp_path / "x.npy", x)
    for source in (x, wf.data.read_npy(tmp_path / "x.npy"), np.load(tmp_path / "x.npy", "r")):
        batches = list(Dataset.from_arrays(source).batch(4))
        assert [b.shape for b in batches] == [(4, 2), (4, 2), (2, 2)]
        for b in batches:
            assert type(b) is np.ndarray
            assert np.shares_memory(b, source)
            assert not b.flags.writeable
    x[0] = 5  # the array itself is the user's as before
    (gathered,) = Dataset.from_arrays(x).shuffle(10, 0).batch(10)
    assert not np.shares_memory(gathered, x)


def test_generators_may_reuse_their_arrays() -> None:
    def reuse() -> Iterator[Any]:
        x = np.zeros(2)
        for i in range(5):
            x[:] = i
            yield {"x": x}

    dataset = Dataset.from_generator(reuse)
    (batch,) = dataset.batch(5)
    assert batch["x"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert [e["x"][0] for e in list(dataset.prefetch(3))] == [0, 1, 2, 3, 4]
    (batch,) = Dataset.from_generator(reuse, copy=False).batch(5)
    assert batch["x"][:, 0].tolist() == [4] * 5


def test_files_one_after_the_other(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"{i}a\n{i}b\n")
    names = [tmp_path / f"{i}.txt" for i in range(3)]
    dataset = Dataset.from_files(names, wf.data.read_lines)
    assert list(dataset) == [b"0a", b"0b", b"1a", b"1b", b"2a", b"2b"]
    assert dataset.cardinality() is None
    (batch,) = Dataset.from_files(names[0], wf.data.read_lines).batch(2)
    assert (batch.dtype, batch.tolist()) == (object, [b"0a", b"0b"])
    with pytest.raises(wf.errors.NotFoundError, match=r"9\.txt"):
        Dataset.from_files([*names, tmp_path / "9.txt"], wf.data.read_lines)


def test_elements_go_into_compiled_functions() -> None:
    @wf.compile
    def total(batch: Any) -> Any:
        return wf.sum(batch["x"]) + wf.sum(wf.cast(batch["y"], wf.float32))

    data = {"x": np.ones((8, 3), np.float32), "y": np.arange(8)}
    got = [float(total(b)) for b in Dataset.from_arrays(data).shuffle(8, 1).batch(2).prefetch(2)]
    assert sum(got) == 24 + 28


def test_tuples_are_several_arguments() -> None:
    dataset = Dataset.from_arrays((np.arange(3), np.arange(3) * 10)).map(lambda a, b: a + b)
    assert values(dataset) == [0, 11, 22]
    dataset = Dataset.from_arrays([np.arange(3), np.arange(3) * 10]).map(lambda e: e[1])
    assert values(dataset) == [0, 10, 20]


# --------------------------------------------------------------------------- order and determinism
@settings(max_examples=60)
@given(
    n=st.integers(0, 40), buffer=st.integers(1, 50), seed=st.integers(0, 2**40),
    size=st.integers(1, 7), drop=st.booleans(), times=st.integers(0, 3),
)  # fmt: skip
def test_model(n: int, buffer: int, seed: int, size: int, drop: bool, times: int) -> None:
    shuffled = numbers(n).shuffle(buffer, seed)
    orders = [values(shuffled.iterate(epoch)) for epoch in range(times)]
    for order in orders:
        assert sorted(order) == list(range(n))
        assert all(x <= i + buffer - 1 for i, x in enumerate(order))  # nothing comes too early
    flat = [x for order in orders for x in order]
    dataset = shuffled.repeat(times).batch(size, drop)
    want = [flat[i : i + size] for i in range(0, len(flat), size)]
    want = [w for w in want if len(w) == size or not drop]
    assert values(dataset) == want
    assert dataset.cardinality() == len(want)
    shards = [values(shuffled.shard(i, 3)) for i in range(3)]
    assert [len(s) for s in shards] == [shuffled.shard(i, 3).cardinality() for i in range(3)]
    if orders:
        assert shards == [orders[0][i::3] for i in range(3)]


def test_order_of_a_seed_stays() -> None:
    """These orders are those of other machines and later versions, too."""
    assert values(numbers(10).shuffle(4, seed=7).repeat(2)) == ORDER_OF_SEED_7


ORDER_OF_SEED_7 = [1, 3, 0, 5, 2, 4, 8, 7, 9, 6, 2, 0, 1, 6, 4, 5, 3, 8, 7, 9]


def test_workers_keep_the_order() -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.003 if int(x) % 5 == 0 else 0)
        return x * 2

    dataset = numbers(100).map(slow, workers=4).prefetch(3)
    assert values(dataset) == [2 * i for i in range(100)]


def test_workers_work_at_once() -> None:
    together = threading.Barrier(3)
    dataset = numbers(6).map(lambda x: together.wait(10) * 0 + x, workers=3)
    assert values(dataset) == list(range(6))


def test_epochs_differ_and_seeds_are_drawn_from_wefts() -> None:
    dataset = numbers(50).shuffle(50, seed=3)
    assert values(dataset) == values(dataset.iterate(0)) != values(dataset.iterate(1))
    wf.set_random_seed(5)
    first = values(numbers(50).shuffle(50))
    assert first != values(numbers(50).shuffle(50))
    wf.set_random_seed(5)
    assert values(numbers(50).shuffle(50)) == first


def test_endless_repetition() -> None:
    dataset = numbers(3).repeat().map(lambda x: x, workers=2).prefetch(2)
    assert dataset.cardinality() is None
    with dataset.iterate() as it:
        assert [int(next(it)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert values(numbers(0).repeat()) == []
    inner = numbers(2).map(lambda x: x, workers=2).prefetch(1).repeat(30)
    assert values(inner.shard(1, 2)) == [1] * 30


# ------------------------------------------------------------------------------- threads and errors
PIPELINES: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(lambda x: x, workers=3),
    "prefetch": lambda d: d.prefetch(2),
    "both": lambda d: d.map(lambda x: x, workers=3).batch(2).prefetch(2),
    "repeated": lambda d: d.map(lambda x: x, workers=2).prefetch(1).repeat(5).prefetch(1),
}
EACH_PIPELINE = pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)


@EACH_PIPELINE
def test_breaking_out_stops_the_threads(make: Any) -> None:
    before = set(threading.enumerate())
    for _ in make(numbers(1000)):
        assert set(threading.enumerate()) - before
        break
    assert threads_end(before, 2)
    it = iter(make(numbers(1000)))
    next(it)
    it.close()
    assert set(threading.enumerate()) == before  # close waits for them
    assert list(it) == []
    list(make(numbers(10)))
    assert set(threading.enumerate()) == before


@EACH_PIPELINE
def test_an_error_of_the_source_comes_at_its_turn(make: Any) -> None:
    def broken() -> Iterator[Any]:
        yield from np.arange(4)
        raise OSError("disk gone") from KeyError("cause")

    seen = []
    it = iter(make(Dataset.from_generator(broken)))
    with pytest.raises(OSError, match="disk gone") as caught:
        seen.extend(np.asarray(x).reshape(-1).tolist() for x in it)
    assert isinstance(caught.value.__cause__, KeyError)
    assert np.hstack(seen).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="disk gone"):  # and again
        next(it)
    del it, caught


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_of_a_function(workers: int, ahead: int) -> None:
    def fails(x: Any) -> Any:
        if x == 6:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("six") from error
        return x

    dataset = numbers(20).map(fails, workers=workers)
    it = iter(dataset.prefetch(ahead) if ahead else dataset)
    seen = []
    with pytest.raises(ValueError, match="six") as caught:
        seen.extend(int(x) for x in it)
    assert it.delivered == 6
    assert isinstance(caught.value.__cause__, KeyError)
    (note,) = caught.value.__notes__
    assert "fails" in note
    assert "test_data_pipeline.py" in note
    assert any(f.name == "fails" for f in caught.traceback)
    del it, caught


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_iteration_of_a_function_is_no_end(workers: int) -> None:
    def ends(x: Any) -> Any:
        return next(iter(())) if x == 2 else x

    for dataset in (numbers(5).map(ends, workers), numbers(5).map(ends, workers).prefetch(1)):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(dataset)


def test_a_failing_loop_stops_the_threads() -> None:
    before = set(threading.enumerate())

    def loop() -> None:
        for _ in numbers(1000).map(lambda x: x, workers=2).prefetch(2):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        loop()
    del caught
    gc.collect()
    assert threads_end(before, 2)


def test_backpressure() -> None:
    made = []
    dataset = numbers(1000).map(lambda x: made.append(int(x)) or x, workers=2).prefetch(3)
    with dataset.iterate() as it:
        next(it)
        time.sleep(0.1)
        assert len(made) <= 1 + 3 + 1 + 2 * 2 + 2  # given, ahead, in hand, queue, workers


def test_several_consumers_share_an_iterator() -> None:
    it = iter(numbers(300).map(lambda x: x, workers=2).prefetch(4))
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(int(x) for x in it)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == list(range(300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_after_a_fork() -> None:
    it = iter(numbers(100).prefetch(2))
    next(it)
    pid = os.fork()
    if not pid:
        try:
            next(it)
        except wf.errors.FailedPreconditionError:
            other = iter(numbers(100).prefetch(2))
            other.load_state_dict(it.state_dict())
            os._exit(int(next(other)))
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert int(next(it)) == 1
    it.close()


# ---------------------------------------------------------------------------------------- restoring
STAGES: list[Callable[[Any], Any]] = [
    lambda d: d.shuffle(5, seed=4), lambda d: d.batch(3).map(lambda b: b.sum()),
    lambda d: d.repeat(2), lambda d: d.shard(1, 2), lambda d: d.map(lambda x: x + 1),
    lambda d: d.map(lambda x: x * 3, workers=2), lambda d: d.prefetch(2),
]  # fmt: skip


@settings(max_examples=60)
@given(
    stages=st.lists(st.sampled_from(STAGES), max_size=5), n=st.integers(0, 30), data=st.data(),
    arrays=st.booleans(),
)  # fmt: skip
def test_restored_iterators_go_on(stages: Any, n: int, data: Any, arrays: bool) -> None:
    def made() -> Any:
        dataset = numbers(n) if arrays else Dataset.from_generator(lambda: iter(np.arange(n)))
        for stage in stages:
            dataset = stage(dataset)
        return dataset

    want = values(made())
    at = data.draw(st.integers(0, len(want)))
    it = iter(made())
    for _ in range(at):
        next(it)
    state = it.state_dict()
    rest = values(it)
    again = iter(made())
    next(again, None)  # whatever it did before
    again.load_state_dict(state)
    assert again.delivered == at
    assert values(again) == rest == want[at:]


def test_skipped_elements_are_not_mapped() -> None:
    calls: list[int] = []
    for workers in (0, 2):
        calls.clear()
        dataset = numbers(1000).map(lambda x: calls.append(int(x)) or x, workers).shuffle(10, 0)
        it = iter(dataset)
        it.load_state_dict({**it.state_dict(), "delivered": 990})
        list(it)
        assert len(calls) == 10


def test_drawn_seeds_are_restored() -> None:
    it = iter(numbers(40).shuffle(40))
    for _ in range(7):
        next(it)
    other = iter(numbers(40).shuffle(40))  # another seed
    other.load_state_dict(it.state_dict())
    assert values(other) == values(it)


def test_states_of_others_are_refused() -> None:
    it = iter(numbers(9).batch(2))
    next(it)
    for dataset in (numbers(9).batch(3), numbers(8).batch(2)):
        other = iter(dataset)
        next(other)
        with pytest.raises(wf.errors.InvalidArgumentError, match="another dataset"):
            other.load_state_dict(it.state_dict())
        assert other.delivered == 1
    short = iter(numbers(9).batch(2))
    short.load_state_dict({**it.state_dict(), "delivered": 50})
    with pytest.raises(wf.errors.FailedPreconditionError, match="there are only 5 now"):
        next(short)


def test_prefetch_and_workers_may_differ() -> None:
    it = iter(numbers(9).map(lambda x: x).prefetch(2))
    next(it)
    other = iter(numbers(9).map(lambda x: x, workers=2))
    other.load_state_dict(it.state_dict())
    assert values(other) == list(range(1, 9))
    it.close()


def test_a_generator_that_cannot_start_again() -> None:
    once = iter([1, 2, 3])
    with pytest.raises(wf.errors.FailedPreconditionError, match="epoch 1 has no elements"):
        list(Dataset.from_generator(lambda: once).repeat(3).prefetch(1))


def test_saved_with_the_variables(tmp_path: Path) -> None:
    w = wf.Variable(0.0)
    dataset = numbers(20).shuffle(20).repeat().prefetch(3)
    it = iter(dataset)
    for _ in range(25):
        w.assign(w + wf.cast(next(it), wf.float32))
    path = wf.train.Saver({"w": w, "input": it}).save(None, f"{tmp_path}/m", 1)
    want = [int(next(it)) for _ in range(30)]
    it.close()
    again = iter(numbers(20).shuffle(20).repeat().prefetch(3))
    wf.train.Saver({"w": w, "input": again}).restore(None, path)
    assert [int(next(again)) for _ in range(30)] == want
    again.close()


# ------------------------------------------------------------------------------- messages, progress
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset.from_arrays((np.zeros(3), np.zeros(4))), "first axes of one length"),
        (lambda: Dataset.from_arrays(np.float32(1)), "first axes of one length"),
        (lambda: Dataset.from_generator(iter([])), "give the generator function"),
        (lambda: Dataset.from_files([], wf.data.read_lines), "takes files"),
        (lambda: numbers(3).batch(0), "batch: n=0 must be an integer of at least 1"),
        (lambda: numbers(3).shuffle(2, seed=-1), "seed=-1"),
        (lambda: numbers(3).shard(3, 3), "less than count"),
        (lambda: numbers(3).map(3), "map takes a function"),
        (lambda: numbers(3).prefetch(1.5), "prefetch: n=1.5"),
    ],
)
def test_arguments(make: Any, message: str) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=message) as caught:
        make()
    assert "test_data_pipeline.py" in str(caught.value)


def test_batches_that_do_not_stack() -> None:
    ragged = Dataset.from_generator(lambda: (np.zeros(i) for i in range(3)))
    with pytest.raises(wf.errors.InvalidArgumentError, match="one dtype and shape"):
        list(ragged.batch(3))
    mixed = Dataset.from_generator(lambda: iter([{"a": 1}, {"b": 1}]))
    with pytest.raises(wf.errors.InvalidArgumentError, match="another structure") as caught:
        list(mixed.batch(2).prefetch(1))
    assert "test_data_pipeline.py" in str(caught.value)


def test_not_while_a_function_is_compiled() -> None:
    @wf.compile
    def step(x: Any) -> Any:
        for y in numbers(3):
            x = x + y
        return x

    with pytest.raises(wf.errors.UnsupportedError, match="would become constants"):
        step(1.0)
    with wf.Graph().as_default():
        assert values(numbers(2)) == [0, 1]


def test_progress() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    dataset = numbers(5).map(lambda x: x, workers=2)
    assert values(wf.data.progress(dataset, "train", console=console)) == list(range(5))
    assert "train" in out.getvalue()
    assert "5/5" in out.getvalue()
    before = set(threading.enumerate())
    for _ in wf.data.progress(dataset, disable=True):
        break
    assert threads_end(before, 2)
    it = iter(dataset)
    next(it)
    out.truncate(0)
    assert len(list(wf.data.progress(it, console=console))) == 4
    assert "4/4" in out.getvalue()
    assert list(wf.data.progress(iter("ab"), console=console)) == ["a", "b"]
    assert "2/?" in out.getvalue()
    assert list(wf.data.progress(range(7), console=console)) == list(range(7))
    assert "7/7" in out.getvalue()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from weft.runtime.files.records import crc32c

    crc32c.cache_clear()
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    try:
        with pytest.raises(wf.errors.UnsupportedError, match=r"weft\[data\]"):
            wf.data.TFRecordWriter(tmp_path / "x")
        with pytest.raises(wf.errors.UnsupportedError, match=r"weft\[data\]"):
            wf.data.decode_image(b"")
    finally:
        crc32c.cache_clear()
