"""Queues called eagerly: what goes in comes out, in the right order, and errors say what is wrong.

Threads and waiting are in test_queue_threads.py, random programs in test_queue_model.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

E = wf.errors
KINDS: list[Any] = [
    lambda **kw: wf.FIFOQueue(10, **kw),
    lambda **kw: wf.PaddingFIFOQueue(10, **kw),
    lambda **kw: wf.RandomShuffleQueue(10, 0, seed=3, **kw),
]


def drained(queue: Any) -> list[Any]:
    return [queue.dequeue(timeout=0).item() for _ in range(int(queue.size()))]


# ------------------------------------------------------------------------------------------ basics
@pytest.mark.parametrize("make", KINDS)
def test_components_come_out_as_they_went_in(make: Any) -> None:
    q = make(dtypes=[wf.float32, wf.string, wf.bfloat16], shapes=[[2, 2], [], [0, 3]])
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    q.enqueue([x, "hello", np.zeros((0, 3), ml_dtypes.bfloat16)])
    a, b, c = q.dequeue(timeout=0)
    np.testing.assert_array_equal(a, x)
    assert b.item() == b"hello"
    assert (c.dtype, c.shape) == (wf.bfloat16, (0, 3))
    assert isinstance(a, wf.Tensor)
    assert (q.dtypes, q.shapes) == ([wf.float32, wf.string, wf.bfloat16], [(2, 2), (), (0, 3)])
    assert (q.size().dtype, q.size().item()) == (wf.int32, 0)


def test_one_component_is_a_tensor_and_names_make_a_dict() -> None:
    q = wf.FIFOQueue(4, wf.int64, [])
    q.enqueue(5)
    q.enqueue([6])
    q.enqueue((np.int64(7),))
    assert [q.dequeue().item() for _ in range(3)] == [5, 6, 7]
    named = wf.FIFOQueue(4, [wf.int64, wf.string], [[], []], names=["n", "s"])
    named.enqueue({"s": b"x", "n": 1})
    named.enqueue_many({"s": ["y", "z"], "n": [2, 3]})
    got = named.dequeue_many(3)
    assert got["n"].tolist() == [1, 2, 3]
    assert got["s"].tolist() == [b"x", b"y", b"z"]
    assert named.names == ["n", "s"]


def test_fifo_order_and_batches() -> None:
    q = wf.FIFOQueue(100, [wf.int32, wf.float64], [[], [2]])
    q.enqueue_many([np.arange(6, dtype=np.int32), np.arange(12.0).reshape(6, 2)])
    n, x = q.dequeue_many(4)
    assert n.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(x, np.arange(8.0).reshape(4, 2))
    q.close()
    n, x = q.dequeue_up_to(10)
    assert n.tolist() == [4, 5]
    assert q.dequeue_many(0)[1].shape == (0, 2)


@pytest.mark.parametrize("value", ["array", "batch", "tensor"])
def test_what_is_enqueued_is_copied(value: str) -> None:
    q = wf.FIFOQueue(5, wf.float32, [[3]])
    x = np.ones(3, np.float32)
    if value == "batch":
        q.enqueue_many([x[None]])
    else:
        q.enqueue(x if value == "array" else wf.asarray(x))
    x[:] = 9
    out = q.dequeue()
    np.testing.assert_array_equal(out, [1, 1, 1])
    assert not np.shares_memory(out.numpy(), x)


def test_batch_elements_do_not_keep_the_batch() -> None:
    q = wf.FIFOQueue(5, wf.float32, [[3]])
    q.enqueue_many([wf.ones((4, 3))])
    assert q.dequeue()._data.base is None


def test_padding() -> None:
    q = wf.PaddingFIFOQueue(9, [wf.int64, wf.string], [[None, 2], [None]])
    q.enqueue([[[1, 2]], ["a", "b"]])
    q.enqueue([[[3, 4], [5, 6]], ["c"]])
    q.enqueue([np.zeros((0, 2), np.int64), np.zeros(0, object)])
    x, s = q.dequeue_many(3)
    assert x.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]], [[0, 0], [0, 0]]]
    assert s.tolist() == [[b"a", b"b"], [b"c", b""], [b"", b""]]
    assert q.dequeue_many(0)[0].shape == (0, 0, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5))
def test_padding_of_any_sizes(sizes: list[tuple[int, int]]) -> None:
    q = wf.PaddingFIFOQueue(9, wf.int64, [[None, None]])
    arrays = [np.full(s, i + 1) for i, s in enumerate(sizes)]
    for a in arrays:
        q.enqueue(a)
    shape = tuple(max(s) for s in zip(*sizes, strict=True))
    expected = [
        np.pad(a, [(0, n - m) for n, m in zip(shape, a.shape, strict=True)]) for a in arrays
    ]
    np.testing.assert_array_equal(q.dequeue_many(len(arrays)), expected)


def test_priority_is_ascending_and_stable() -> None:
    q = wf.PriorityQueue(9, [wf.string], [[]])
    for priority, text in [(5, "a"), (-1, "b"), (5, "c"), (0, "d"), (5, "e")]:
        q.enqueue([priority, text])
    priorities, texts = q.dequeue_many(5)
    assert priorities.dtype is wf.int64
    assert priorities.tolist() == [-1, 0, 5, 5, 5]
    assert texts.tolist() == [b"b", b"d", b"a", b"c", b"e"]


def test_shuffling_keeps_a_minimum_until_closed_and_repeats_for_a_seed() -> None:
    def order(seed: int) -> list[Any]:
        q = wf.RandomShuffleQueue(100, 30, wf.int64, [], seed=seed)
        q.enqueue_many([np.arange(50)])
        first = q.dequeue_many(20).tolist()
        with pytest.raises(E.DeadlineExceededError, match="30 stay for shuffling"):
            q.dequeue(timeout=0)
        q.close()
        return first + drained(q)

    one, again, other = order(1), order(1), order(2)
    assert one == again != other
    assert sorted(one) == list(range(50))
    assert one != sorted(one)


def test_shuffling_is_uniform() -> None:
    counts = np.zeros((4, 4))
    for seed in range(2000):
        q = wf.RandomShuffleQueue(4, 0, wf.int64, [], seed=seed)
        q.enqueue_many([np.arange(4)])
        for place, element in enumerate(drained(q)):
            counts[place, element] += 1
    # 500 expected; five standard deviations of a binomial are 97
    assert np.abs(counts - 500).max() < 97


def test_without_a_seed_the_process_wide_generator_decides() -> None:
    def order() -> list[Any]:
        q = wf.RandomShuffleQueue(50, 0, wf.int64, [])
        q.enqueue_many([np.arange(50)])
        return drained(q)

    wf.set_random_seed(7)
    first, second = order(), order()
    wf.set_random_seed(7)
    assert order() == first != second
    wf.set_random_seed(0)


# ------------------------------------------------------------------------------------------ closing
def test_closing() -> None:
    q = wf.FIFOQueue(10, wf.int64, [])
    q.enqueue_many([[1, 2, 3]])
    assert not q.is_closed()
    q.close()
    q.close()
    assert q.is_closed()
    with pytest.raises(E.CancelledError, match=r"is closed: enqueue was refused\n  at .*# here"):
        q.enqueue(4)  # here
    with pytest.raises(E.OutOfRangeError, match="dequeue_many wants 4, there are 3"):
        q.dequeue_many(4)
    assert q.dequeue().item() == 1
    assert q.dequeue_up_to(5).tolist() == [2, 3]
    for take in (q.dequeue, lambda: q.dequeue_many(1), lambda: q.dequeue_up_to(1)):
        with pytest.raises(E.OutOfRangeError, match="there are 0"):
            take()
    assert q.dequeue_many(0).shape == (0,)


def test_a_full_queue_says_so() -> None:
    q = wf.FIFOQueue(2, wf.int64, [], name="small")
    with pytest.raises(
        E.DeadlineExceededError, match=r"2 of its 5 elements are in the queue.*2 of 2"
    ):
        q.enqueue_many([np.arange(5)], timeout=0.01)
    assert drained(q) == [0, 1]
    with pytest.raises(E.DeadlineExceededError, match=r"'small': dequeue was not done within 0 s"):
        q.dequeue(timeout=0)


def test_times() -> None:
    q = wf.FIFOQueue(2, wf.int64, [])
    q.enqueue(1, timeout=float("inf"))
    q.enqueue(2, timeout=np.float32(1e30))
    with pytest.raises(E.DeadlineExceededError, match=r"within 0\.01 s"):
        q.enqueue(3, timeout=np.float64(0.01))


def test_tokens() -> None:
    q = wf.FIFOQueue(2, wf.int64, [])
    token = wf.CancelToken()
    q.enqueue(1, cancel=token)
    token.cancel("the step failed")
    assert token.is_cancelled
    with pytest.raises(E.CancelledError, match="enqueue was cancelled: the step failed"):
        q.enqueue(2, cancel=token)
    assert q.size().item() == 1


# ------------------------------------------------------------------------------------------- errors
def make(**kw: Any) -> Any:
    return wf.FIFOQueue(10, [wf.float32, wf.int64], [[3], []], name="q", **kw)


X = np.ones(3, np.float32)
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (lambda q: q.enqueue([X[:2], 1]), E.ShapeError,
              r"FIFOQueue 'q': enqueue got f32\[2\] for component 0 \(f32\[3\]\)"),
    "rank": (lambda q: q.enqueue([X, [1]]), E.ShapeError, r"component 1 \(i64\[\]\)"),
    "stacked": (lambda q: q.enqueue([X[None], 1]), E.ShapeError, "enqueue_many takes several"),
    "dtype": (lambda q: q.enqueue([wf.ones(3, dtype=wf.float64), 1]), E.TypeRuleError,
              r"component 0 \(f32\[3\]\), which takes float32, got f64\[3\]"),
    "float for int": (lambda q: q.enqueue([X, 1.5]), E.TypeRuleError, r"takes int64, got f64\[\]"),
    "string": (lambda q: q.enqueue([X, "a"]), E.TypeRuleError, "strings and numbers"),
    "object": (lambda q: q.enqueue([X, object()]), E.TypeRuleError, "component 1.*not a tensor"),
    "ragged": (lambda q: q.enqueue([[[1], [1, 2]], 1]), E.InvalidArgumentError, "component 0"),
    "too few": (lambda q: q.enqueue([X]), E.InvalidArgumentError, "1 values for 2 components"),
    "dict": (lambda q: q.enqueue({"a": X}), E.InvalidArgumentError, "its components have no names"),
    "many shape": (lambda q: q.enqueue_many([X[None, :2], [1]]), E.ShapeError, r"takes \[\?,3\]"),
    "many scalar": (lambda q: q.enqueue_many([X[None], 1]), E.ShapeError, "a first axis"),
    "lengths": (lambda q: q.enqueue_many([X[None], [1, 2]]), E.ShapeError, r"got \[1, 2\] values"),
    "n": (lambda q: q.dequeue_many(-1), E.InvalidArgumentError, "n=-1 must be at least 0"),
    "n float": (lambda q: q.dequeue_many(1.5), E.InvalidArgumentError, "is not an integer"),
    "timeout": (lambda q: q.dequeue(timeout=-1), E.InvalidArgumentError, "timeout=-1 is no time"),
    "nan": (lambda q: q.dequeue(timeout=np.nan), E.InvalidArgumentError, "is no time"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_and_nothing_is_lost(case: str) -> None:
    q = make()
    q.enqueue([X, 1])
    call, kind, text = WRONG[case]
    with pytest.raises(kind, match=text) as error:
        call(q)
    assert f"{__file__}" in str(error.value)
    assert q.size().item() == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: wf.FIFOQueue(0, wf.int64), "capacity=0: nothing could be enqueued"),
        (lambda: wf.FIFOQueue(2.5, wf.int64), r"capacity=2\.5 is not an integer"),
        (lambda: wf.FIFOQueue(1, [wf.int64], [[1], [2]]), "1 dtypes, but 2 shapes"),
        (lambda: wf.FIFOQueue(1, [wf.int64] * 2, names=["a", "a"]), "not distinct"),
        (lambda: wf.FIFOQueue(1, []), "at least one component"),
        (lambda: wf.FIFOQueue(1, wf.int64, 3), "is not a list of shapes"),
        (lambda: wf.PaddingFIFOQueue(1, wf.int64, None), "number of axes"),
        (lambda: wf.RandomShuffleQueue(5, 5, wf.int64), "must be less than capacity=5"),
    ],
)
def test_wrong_queues_are_refused(call: Any, text: str) -> None:
    with pytest.raises(E.InvalidArgumentError, match=text) as error:
        call()
    assert __file__ in str(error.value)


def test_a_list_for_a_single_component_says_how_to_write_it() -> None:
    q = wf.FIFOQueue(5, wf.int64, [[3]])
    with pytest.raises(E.InvalidArgumentError, match=r"write enqueue\(\[value\]\)"):
        q.enqueue([1, 2, 3])
    q.enqueue([[1, 2, 3]])
    q.enqueue(np.array([1, 2, 3]))


def test_batches_need_shapes() -> None:
    q = wf.FIFOQueue(5, wf.int64)
    q.enqueue([[1, 2]])
    q.enqueue(3)
    with pytest.raises(E.InvalidArgumentError, match=r"queue<i64\[\.\.\.\]>"):
        q.dequeue_many(1)
    assert q.dequeue().tolist() == [1, 2]
    assert q.dequeue().item() == 3


def test_numbers_convert_as_feeds_do() -> None:
    q = wf.FIFOQueue(5, [wf.float32, wf.int8])
    q.enqueue([np.float64(1.5), 3])
    q.enqueue([wf.Variable([1.0]), True])
    with pytest.raises(E.InvalidArgumentError, match="does not fit int8"):
        q.enqueue([1, 300])
    assert q.dequeue()[0].dtype is wf.float32
    assert q.dequeue()[1].item() == 1


def test_a_batch_without_memory_leaves_the_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    q = wf.FIFOQueue(5, wf.int64, [])
    q.enqueue_many([[1, 2, 3]])

    def fail(elements: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(q._queue, "batch", fail)
    with pytest.raises(E.ResourceExhaustedError, match=r"for 2 elements of queue<i64\[\]>"):
        q.dequeue_many(2)
    with wf.Graph().as_default():
        two, four = q.dequeue_many(2), q.dequeue_many(4)
        with wf.Session() as session:
            with pytest.raises(E.ResourceExhaustedError, match=r"for 2 elements of queue<i64\[\]>"):
                session.run(two)
            monkeypatch.undo()
            assert session.run(two).tolist() == [1, 2]
            q._queue.start_enqueue([(np.array(4),), (np.array(5),)], lambda made: None)
            q._queue.close()
            with pytest.raises(E.OutOfRangeError):
                session.run(four)
    assert drained(q) == [3, 4, 5]


# ------------------------------------------------------------------------------------------- graphs
def test_nothing_runs_while_a_graph_is_built() -> None:
    q = wf.FIFOQueue(5, wf.int64, [])
    q.enqueue(1)

    wf.compile(lambda x: x + q.dequeue()).trace(np.int64(1))  # it is called for the queue's element
    with wf.Graph().as_default():
        assert len(q.state_dict()["components"][0]) == 1  # this is done at once
        q.enqueue(2), q.size(), q.close(), q.is_closed(), q.dequeue()  # ops, which nobody runs
    wf.placeholder(wf.float32, [])
    try:
        assert len(q.state_dict()["components"][0]) == 1
    finally:
        wf.reset_default_graph()
    assert q.size().item() == 1
    assert not q.is_closed()


# -------------------------------------------------------------------------------------- checkpoints
def filled(kind: int) -> Any:
    q = [
        lambda: wf.FIFOQueue(9, [wf.int64, wf.string], [[], []]),
        lambda: wf.PaddingFIFOQueue(9, [wf.int64, wf.string], [[], [None]]),
        lambda: wf.RandomShuffleQueue(9, 1, [wf.int64, wf.string], [[], []], seed=5),
        lambda: wf.PriorityQueue(9, [wf.string], [[]]),
    ][kind]()
    for i in (3, 1, 2, 1, 0):
        q.enqueue([i, ["x"] * i if kind == 1 else f"{i}"])
    return q


@pytest.mark.parametrize("kind", range(4))
def test_state_goes_on_in_another_queue(kind: int) -> None:
    one, other = filled(kind), filled(kind)
    one.dequeue()
    state = one.state_dict()
    other.load_state_dict(state)
    one.close()
    other.close()
    while one.size():
        a, b = one.dequeue(), other.dequeue()
        assert [x.tolist() for x in a] == [x.tolist() for x in b]
    assert not other.size()
    assert not state["closed"]
    other.load_state_dict(one.state_dict())
    assert other.is_closed()


def test_states_that_do_not_fit_change_nothing() -> None:
    q = filled(0)
    bad = [filled(2).state_dict(), {}, {**q.state_dict(), "dtypes": ["int64", "int64"]}]
    shapes = q.state_dict()
    shapes["components"][0] = np.zeros((5, 1), np.int64)
    for state in [*bad, shapes]:
        with pytest.raises(E.InvalidArgumentError):
            q.load_state_dict(state)
    shuffled = filled(2)
    state = shuffled.state_dict()
    del state["seed"]
    with pytest.raises(E.InvalidArgumentError, match="seed"):
        shuffled.load_state_dict(state)
    assert q.dequeue_many(5)[0].tolist() == [3, 1, 2, 1, 0]


# ------------------------------------------------------------------------------------------ sharing
def test_one_shared_name_is_one_queue() -> None:
    one = wf.FIFOQueue(3, wf.int64, [], shared_name="here")
    two = wf.FIFOQueue(3, wf.int64, [], shared_name="here")
    one.enqueue(4)
    assert two.dequeue(timeout=0).item() == 4
    with pytest.raises(
        E.InvalidArgumentError, match=r"of capacity 3; this is a FIFOQueue.*capacity 4"
    ):
        wf.FIFOQueue(4, wf.int64, [], shared_name="here")
    with pytest.raises(E.InvalidArgumentError, match="made alike"):
        wf.RandomShuffleQueue(3, 1, wf.int64, [], shared_name="here")
    del one, two
    assert not wf.FIFOQueue(3, wf.int64, [], shared_name="here").size()
