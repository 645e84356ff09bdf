"""Input producers and batches: queues that their runners fill, in graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf


@contextmanager
def running(session: Any) -> Iterator[Any]:
    """The queue runners of the graph, and a coordinator that stops them."""
    session.run(wf.global_variables_initializer())
    session.run(wf.local_variables_initializer())
    stop = wf.train.Coordinator()
    threads = wf.train.start_queue_runners(session, stop)
    try:
        yield stop
    finally:
        stop.request_stop()
        stop.join(threads, stop_grace_period_secs=10)


def all_of(session: Any, fetch: Any) -> list[Any]:
    """What it gives until the input ends."""
    found = []
    with running(session):
        try:
            while len(found) < 1000:
                found.append(session.run(fetch))
        except wf.errors.OutOfRangeError:
            return found
    raise AssertionError("the input did not end")


def plain(values: Any) -> Any:
    return [v.tolist() if isinstance(v, np.ndarray) else v for v in values]


def test_epochs_in_order() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        queue = wf.train.string_input_producer(["a", "b", "c"], num_epochs=2, shuffle=False)
        assert all_of(session, queue.dequeue()) == [b"a", b"b", b"c"] * 2


def test_shuffled_epochs_are_permutations_that_a_seed_repeats() -> None:
    def run(seed: int) -> list[int]:
        wf.set_random_seed(0)  # generators begin anew
        with wf.Graph().as_default(), wf.Session() as session:
            queue = wf.train.range_input_producer(10, num_epochs=3, seed=seed)
            return [int(x) for x in all_of(session, queue.dequeue())]

    found = run(5)
    epochs = [found[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(10))
    assert run(5) == found != run(6)


def test_rows_and_slices() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    with wf.Graph().as_default(), wf.Session() as session:
        queue = wf.train.input_producer(x, num_epochs=1, shuffle=False)
        assert plain(all_of(session, queue.dequeue())) == x.tolist()
    with wf.Graph().as_default(), wf.Session() as session:
        y = np.array(["p", "q", "r"], object)
        pair = wf.train.slice_input_producer([x, y], num_epochs=2, seed=1)
        found = all_of(session, pair)
        assert len(found) == 6
        assert all(a.tolist() == x["pqr".index(b.decode())].tolist() for a, b in found)


def test_files_that_a_pattern_names(tmp_path: Path) -> None:
    for name in "bca":
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    with wf.Graph().as_default(), wf.Session() as session:
        names = wf.matching_files(f"{tmp_path}/*.txt")
        queue = wf.train.string_input_producer(names, num_epochs=1, shuffle=False)
        _, line = wf.TextLineReader().read(queue)
        assert all_of(session, line) == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("smaller", [False, True])
def test_batches(threads: int, smaller: bool) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        index = wf.train.range_input_producer(10, num_epochs=1, shuffle=False).dequeue()
        made = wf.train.batch(
            {"n": index, "text": wf.as_string(index), "row": wf.stack([index, index * 2])}, 4,
            num_threads=threads, allow_smaller_final_batch=smaller,
        )  # fmt: skip
        found = all_of(session, made)
    assert [len(b["n"]) for b in found] == ([4, 4, 2] if smaller else [4, 4])
    numbers = [int(n) for b in found for n in b["n"]]
    assert sorted({*numbers}) == sorted(numbers)
    assert {*numbers} <= {*range(10)}
    if threads == 1:
        assert numbers == list(range(len(numbers)))
    for b in found:
        assert b["text"].tolist() == [str(n).encode() for n in b["n"]]
        assert b["row"].tolist() == [[n, 2 * n] for n in b["n"]]


def test_results_are_nested_as_what_was_given() -> None:
    with wf.Graph().as_default():
        x = wf.train.range_input_producer(3).dequeue()
        assert isinstance(wf.train.batch(x, 2), wf.Tensor)
        assert isinstance(wf.train.batch([x], 2), list)
        assert isinstance(wf.train.batch({"x": x}, 2), dict)


def test_a_batch_of_rows_and_of_several_sources() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        sources = []
        for first in (0, 100):
            x = wf.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue_many(2)
            sources.append([x + first, wf.astype(x, wf.float32)])
        made = wf.train.batch_join(sources, 3, enqueue_many=True)
        found = all_of(session, made)
    assert sorted(int(n) for a, _ in found for n in a) == [*range(6), *range(100, 106)]
    assert all(float(n) % 100 == float(m) for a, b in found for n, m in zip(a, b, strict=True))


def test_shuffled_batches() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        index = wf.train.range_input_producer(40, num_epochs=1, shuffle=False).dequeue()
        made = wf.train.shuffle_batch(index, 5, capacity=30, min_after_dequeue=10, seed=1)
        found = [int(n) for b in all_of(session, made) for n in b]
    assert sorted(found) == list(range(40)) != found
    with wf.Graph().as_default(), wf.Session() as session:
        pair = [wf.train.range_input_producer(6, num_epochs=1).dequeue() for _ in range(2)]
        made = wf.train.shuffle_batch_join([[p] for p in pair], 4, 20, 2,
                                           allow_smaller_final_batch=True)  # fmt: skip
        assert sorted(int(n) for (b,) in all_of(session, made) for n in b) == sorted(
            [*range(6)] * 2
        )


def test_padded_batches() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        text = wf.train.string_input_producer(["abc", "d", "ef"], 1, shuffle=False).dequeue()
        values = wf.decode_raw(text, wf.uint8)
        (made,) = wf.train.batch([values], 3, dynamic_pad=True)
        (found,) = all_of(session, made)
    assert found.tolist() == [[97, 98, 99], [100, 0, 0], [101, 102, 0]]


def test_batches_of_what_is_kept() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.train.range_input_producer(10, num_epochs=1, shuffle=False).dequeue()
        made = wf.train.maybe_batch(x, x % 3 == 0, 2)
        assert plain(all_of(session, made)) == [[0, 3], [6, 9]]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.train.range_input_producer(12, num_epochs=1, shuffle=False).dequeue_many(4)
        made = wf.train.maybe_batch([x], x % 2 == 1, 3, enqueue_many=True)
        assert [b.tolist() for (b,) in all_of(session, made)] == [[1, 3, 5], [7, 9, 11]]


def test_epochs_are_counted_again_after_the_initializer() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.train.limit_epochs(wf.asarray(2.0), 2)
        for _ in range(2):
            session.run(wf.local_variables_initializer())
            assert [session.run(x) for _ in range(2)] == [2.0, 2.0]
            with pytest.raises(wf.errors.OutOfRangeError):
                session.run(x)


def test_an_error_in_a_file_stops_the_runners_and_says_where(tmp_path: Path) -> None:
    with wf.data.TFRecordWriter(tmp_path / "a.tfr") as writer:
        for i in range(3):
            writer.write(b"%d" % i)
    data = bytearray((tmp_path / "a.tfr").read_bytes())
    data[-6] ^= 1
    (tmp_path / "a.tfr").write_bytes(data)
    with wf.Graph().as_default(), wf.Session() as session:
        queue = wf.train.string_input_producer([tmp_path / "a.tfr"], num_epochs=1)
        made = wf.train.batch(wf.TFRecordReader().read(queue)[1], 1)
        session.run(wf.global_variables_initializer())
        stop = wf.train.Coordinator()
        threads = wf.train.start_queue_runners(session, stop)
        found = []
        try:
            while len(found) < 9:
                found += session.run(made).tolist()
        except (wf.errors.OutOfRangeError, wf.errors.CancelledError):
            pass
        assert found == [b"0", b"1"][: len(found)]
        with pytest.raises(wf.errors.DataLossError, match=r"a\.tfr: record 2 at byte 34"):
            stop.join(threads)


def test_no_thread_stays() -> None:
    before = set(threading.enumerate())
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.train.range_input_producer(10).dequeue()
        made = wf.train.batch([x], 4, num_threads=2)
        with running(session):
            for _ in range(20):
                session.run(made)
    assert not set(threading.enumerate()) - before


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: wf.train.string_input_producer([]), wf.errors.InvalidArgumentError, "one row"),
    (lambda: wf.train.string_input_producer([1]), wf.errors.TypeRuleError, "takes strings"),
    (lambda: wf.train.input_producer(1.0), wf.errors.InvalidArgumentError, "at least one row"),
    (lambda: wf.train.limit_epochs(1, 0), wf.errors.InvalidArgumentError, "at least 1"),
    (lambda: wf.train.batch([], 2), wf.errors.InvalidArgumentError, "no tensor"),
    (lambda: wf.train.batch([wf.asarray(1)], 2, num_threads=0), wf.errors.InvalidArgumentError,
     "num_threads"),
    (lambda: wf.train.batch_join([[wf.asarray(1)], [wf.asarray(1.0)]], 2),
     wf.errors.InvalidArgumentError, "same dtypes"),
    (lambda: wf.train.batch([wf.placeholder(wf.float32, [None])], 2),
     wf.errors.InvalidArgumentError, "dynamic_pad"),
    (lambda: wf.train.slice_input_producer([np.ones(2), np.ones(3)]),
     wf.errors.InvalidArgumentError, "one first axis"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), BAD)
def test_bad_arguments(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with wf.Graph().as_default(), pytest.raises(kind, match=words):
        call()


def test_outside_of_graphs() -> None:
    for call in (lambda: wf.train.range_input_producer(3), lambda: wf.train.batch([1], 2)):
        with pytest.raises(wf.errors.FailedPreconditionError, match=r"as_default|wf\.data"):
            call()
    with pytest.raises(wf.errors.UnsupportedError, match=r"wf\.train\.batch.* a function has none"):
        wf.compile(lambda x: wf.train.batch(x, 2))(1.0)
