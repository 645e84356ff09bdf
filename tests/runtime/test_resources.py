"""Barriers, accumulators, hash tables, tensor arrays and stacks, called eagerly."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import weft as wf

E = wf.errors


def refused(call: Any, kind: type[Exception], text: str) -> None:
    """The call fails so, and the message has the line of this file."""
    with pytest.raises(kind, match=text) as error:
        call()
    assert __file__ in str(error.value)


# ------------------------------------------------------------------------------------------- copies
MAKERS = [
    lambda: wf.tf1.FIFOQueue(9, wf.float32), lambda: wf.tf1.RandomShuffleQueue(9, 0, wf.float32),
    lambda: wf.Barrier(wf.float32), lambda: wf.ConditionalAccumulator(wf.float32),
    lambda: wf.MutableHashTable(wf.string, wf.int64, 0), lambda: wf.Stack(wf.float32),
    lambda: wf.tf1.TextLineReader(),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_no_copies_but_of_the_reference(make: Any) -> None:
    held = make()
    for call in (copy.deepcopy, pickle.dumps, lambda x: copy.deepcopy({"a": [x]})):
        refused(lambda call=call: call(held), E.UnsupportedError, "cannot be copied or pickled")


def test_a_shallow_copy_is_the_same_queue() -> None:
    queue = wf.tf1.FIFOQueue(9, wf.float32)
    copy.copy(queue).enqueue(3.0)
    assert float(queue.dequeue()) == 3


# ----------------------------------------------------------------------------------------- barriers
def test_barrier_elements_leave_when_they_are_complete() -> None:
    b = wf.Barrier([wf.float32, wf.string], [[2], []])
    b.insert_many(0, ["a", "b", "c"], [[1, 2], [3, 4], [5, 6]])
    assert (b.ready_size().item(), b.incomplete_size().item()) == (0, 3)
    b.insert_many(1, ["c", "d", "a"], ["C", "D", "A"])
    assert (b.ready_size().item(), b.incomplete_size().item()) == (2, 2)
    indices, keys, (x, s) = b.take_many(2)
    assert keys.tolist() == [b"a", b"c"]
    assert [i + 2**63 for i in indices.tolist()] == [0, 2]
    assert x.tolist() == [[1, 2], [5, 6]]
    assert s.tolist() == [b"A", b"C"]
    refused(
        lambda: b.take_many(1, timeout=0), E.DeadlineExceededError, "0 elements are complete, 2"
    )
    b.insert_many(0, ["a"], [[0, 0]])  # the key is free again
    assert b.incomplete_size().item() == 3


def test_barrier_refuses_and_inserts_nothing() -> None:
    b = wf.Barrier([wf.int64, wf.int64], [[], []])
    b.insert_many(0, ["a"], [1])
    for keys in (["b", "a"], ["c", "c"]):
        refused(
            lambda k=keys: b.insert_many(0, k, [1, 2]),  # type: ignore[misc]
            E.InvalidArgumentError, "has a value for component 0",
        )  # fmt: skip
    refused(lambda: b.insert_many(2, ["a"], [1]), E.InvalidArgumentError, "it has 2 components")
    refused(lambda: b.insert_many(1, ["a"], [1, 2]), E.ShapeError, "2 values")
    refused(lambda: b.insert_many(1, ["a"], [[1]]), E.ShapeError, "component 1")
    assert b.incomplete_size().item() == 1


def test_barrier_closing() -> None:
    b = wf.Barrier([wf.int64, wf.int64], [[], []])
    b.insert_many(0, ["a", "b"], [1, 2])
    b.close()
    refused(lambda: b.insert_many(1, ["x"], [1]), E.CancelledError, "new key b'x'")
    b.insert_many(1, ["b"], [20])
    with pytest.raises(E.DeadlineExceededError):  # a may still come
        b.take_many(2, timeout=0)
    taken: list[Any] = []
    t = threading.Thread(target=lambda: taken.append(b.take_many(2)))
    t.start()
    b.insert_many(1, ["a"], [10])
    t.join(10)
    assert sorted(taken[0][1].tolist()) == [b"a", b"b"]
    refused(lambda: b.take_many(1), E.OutOfRangeError, "is closed")


def test_barrier_small_batch_and_cancelled_keys() -> None:
    b = wf.Barrier(wf.int64, [])
    b.insert_many(0, ["a", "b"], [1, 2])
    two = wf.Barrier([wf.int64, wf.int64], [[], []])
    two.insert_many(0, ["x"], [1])
    two.close(cancel_pending_enqueues=True)
    assert two.incomplete_size().item() == 0
    refused(lambda: two.insert_many(1, ["x"], [1]), E.CancelledError, "new key")
    refused(lambda: two.take_many(1), E.OutOfRangeError, "is closed")
    b.close()
    assert b.take_many(5, allow_small_batch=True)[2][0].tolist() == [1, 2]


class BarrierMachine(RuleBasedStateMachine):
    """Against a dict of what each key has."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = wf.Barrier([wf.int64, wf.int64], [[], []])
        self.keys: dict[str, dict[int, int]] = {}  # in the order in which they came
        self.closed = False

    @rule(component=st.integers(0, 1), keys=st.lists(st.sampled_from("abcde"), max_size=4))
    def insert(self, component: int, keys: list[str]) -> None:
        values = [ord(k) * 10 + component for k in keys]
        # one check after the other, as the keys come
        wrong = None
        for i, key in enumerate(keys):
            if self.closed and not 0 < len(self.keys.get(key, {})) < 2:
                wrong = wrong or E.CancelledError
            elif key in keys[:i] or (
                component in self.keys.get(key, {}) and len(self.keys[key]) < 2
            ):
                wrong = wrong or E.InvalidArgumentError
            elif len(self.keys.get(key, {})) == 2:
                return  # a second element of that key beside a complete one: not modelled
        if wrong is not None:
            with pytest.raises(wrong):
                self.barrier.insert_many(component, keys, values)
            return
        self.barrier.insert_many(component, keys, values)
        for key, value in zip(keys, values, strict=True):
            self.keys.setdefault(key, {})[component] = value

    @rule(n=st.integers(0, 3), small=st.booleans())
    def take(self, n: int, small: bool) -> None:
        ready = [k for k, parts in self.keys.items() if len(parts) == 2]
        ended = self.closed and len(ready) == len(self.keys)
        if len(ready) < n and not (ended and small and ready):
            with pytest.raises(E.OutOfRangeError if ended else E.DeadlineExceededError):
                self.barrier.take_many(n, small, timeout=0)
            return
        indices, keys, (one, two) = self.barrier.take_many(n, small, timeout=0)
        assert keys.tolist() == [k.encode() for k in ready[:n]]
        assert indices.tolist() == sorted(indices.tolist())
        for key, a, b in zip(ready, one.tolist(), two.tolist(), strict=False):
            assert self.keys.pop(key) == {0: a, 1: b}

    @rule()
    def close(self) -> None:
        self.barrier.close()
        self.closed = True

    @invariant()
    def same(self) -> None:
        ready = sum(len(parts) == 2 for parts in self.keys.values())
        assert self.barrier.ready_size().item() == ready
        assert self.barrier.incomplete_size().item() == len(self.keys) - ready


TestBarrier = BarrierMachine.TestCase
TestBarrier.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# ------------------------------------------------------------------------------------- accumulators
def test_accumulator_mean_and_stale_gradients() -> None:
    a = wf.ConditionalAccumulator(wf.float32, [2])
    a.apply_grad([1, 2], local_step=0)
    a.apply_grad([3, 6], local_step=1)
    a.apply_grad([2, 1], local_step=0)
    assert a.num_accumulated().item() == 3
    np.testing.assert_array_equal(a.take_grad(2), [2, 3])  # the mean of all three
    assert a.num_accumulated().item() == 0
    a.apply_grad([9, 9], local_step=0)  # of a step before the take
    assert a.num_accumulated().item() == 0
    a.set_global_step(5)
    a.apply_grad([9, 9], local_step=4)
    a.apply_grad([1, 1], local_step=5)
    np.testing.assert_array_equal(a.take_grad(1), [1, 1])
    refused(lambda: a.take_grad(1, timeout=0), E.DeadlineExceededError, "of step 6 and later")


def test_accumulator_takes_wait_in_order() -> None:
    a = wf.ConditionalAccumulator(wf.float64, [], reduction_type="SUM")
    got: dict[int, float] = {}
    threads = []
    for i, n in enumerate((2, 1)):
        t = threading.Thread(
            target=lambda i=i, n=n: got.__setitem__(i, a.take_grad(n).item())  # type: ignore[misc]
        )
        t.start()
        threads.append(t)
        while len(a._accumulator._taking) <= i:
            pass
    for x in (1, 2, 3):
        a.apply_grad(float(x), local_step=9)
    for t in threads:
        t.join(10)
    assert got == {0: 3.0, 1: 3.0}


def test_many_small_gradients_of_16_bits_are_not_lost() -> None:
    a = wf.ConditionalAccumulator(wf.bfloat16, [])
    for _ in range(1000):
        a.apply_grad(wf.asarray(0.125, dtype=wf.bfloat16))
    assert a.take_grad(1000).item() == 0.125


def test_accumulator_refuses() -> None:
    a = wf.ConditionalAccumulator(wf.float32, [2])
    refused(lambda: a.apply_grad([1, 2, 3]), E.ShapeError, r"takes f32 \[2\]")
    refused(lambda: a.apply_grad(wf.ones(2, dtype=wf.float64)), E.TypeRuleError, "takes float32")
    refused(lambda: a.take_grad(0), E.InvalidArgumentError, "must be at least 1")
    refused(lambda: wf.ConditionalAccumulator(wf.int64), E.InvalidArgumentError, "floats or")
    refused(
        lambda: wf.ConditionalAccumulator(wf.float32, reduction_type="MAX"),
        E.InvalidArgumentError, "MEAN",
    )  # fmt: skip
    free = wf.ConditionalAccumulator(wf.float32)
    free.apply_grad([1.0])
    refused(lambda: free.apply_grad([1.0, 2.0]), E.ShapeError, r"shape \[2\] after one of \[1\]")
    assert a.num_accumulated().item() == 0
    assert free.num_accumulated().item() == 1


def test_sparse_accumulator_means_over_those_that_have_the_row() -> None:
    a = wf.SparseConditionalAccumulator(wf.float32, [5, 2])
    a.apply_grad([3, 0], [[1, 1], [2, 2]])
    a.apply_grad([3, 4, 4], [[3, 5], [1, 0], [1, 0]])  # 4 twice in one gradient: they add up
    a.apply_grad([1], [[9, 9]], local_step=-1)  # stale
    got = a.take_grad(2)
    assert got.indices.tolist() == [0, 3, 4]
    assert got.values.tolist() == [[2, 2], [2, 3], [2, 0]]
    assert got.shape is not None
    assert got.shape.tolist() == [5, 2]
    a.apply_grad(wf.asarray([1], dtype=wf.int32), [[1, 2]], grad_shape=[5, 2], local_step=1)
    assert a.take_grad(1).indices.tolist() == [1]


def test_sparse_accumulator_refuses() -> None:
    a = wf.SparseConditionalAccumulator(wf.float32, [5, 2])
    refused(lambda: a.apply_grad([5], [[1, 1]]), E.ShapeError, "the index 5")
    refused(lambda: a.apply_grad([-1], [[1, 1]]), E.ShapeError, "the index -1")
    refused(lambda: a.apply_grad([1], [[1]]), E.ShapeError, r"values of shape \[1,1\]")
    refused(lambda: a.apply_grad([1, 2], [[1, 1]]), E.ShapeError, r"indices of shape \[2\]")
    refused(lambda: a.apply_grad([1], [[1, 1]], [4, 2]), E.InvalidArgumentError, r"\[5,2\]")
    free = wf.SparseConditionalAccumulator(wf.float32)
    free.apply_grad([7], [[1.0]])
    refused(lambda: free.apply_grad([7], [[1.0, 2.0]]), E.ShapeError, "after rows of")
    assert a.num_accumulated().item() == 0
    assert free.take_grad(1).shape is None


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(-8, 8)), min_size=1, max_size=4),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_sparse_accumulator_against_dense_sums(gradients: list[list[tuple[int, int]]]) -> None:
    a = wf.SparseConditionalAccumulator(wf.float64, [5])
    total, count = np.zeros(5), np.zeros(5)
    for g in gradients:
        a.apply_grad([i for i, _ in g], [float(v) for _, v in g])
        for i, v in g:
            total[i] += v
        for i in {i for i, _ in g}:
            count[i] += 1
    got = a.take_grad(len(gradients))
    rows = np.flatnonzero(count)
    assert got.indices.tolist() == rows.tolist()
    np.testing.assert_array_equal(got.values, total[rows] / count[rows])


# ------------------------------------------------------------------------------------------- tables
def test_table_lookup_shapes_and_defaults() -> None:
    t = wf.MutableHashTable(wf.string, wf.float32, [-1, -1])
    t.insert(["a", "b"], [[1, 2], [3, 4]])
    assert t[[["b", "x"], ["a", "a"]]].tolist() == [[[3, 4], [-1, -1]], [[1, 2], [1, 2]]]
    assert t.lookup("b").tolist() == [3, 4]
    assert t.lookup(["x", "a"], [[7, 7], [8, 8]]).tolist() == [[7, 7], [1, 2]]
    assert t.lookup(["x"], [9, 9]).tolist() == [[9, 9]]
    assert (t.size().dtype, t.size().item()) == (wf.int64, 2)
    refused(lambda: t.insert(["a"], [[1]]), E.ShapeError, r"table<string\[\], f32\[2\]>")
    refused(lambda: t.insert([1], [[1, 2]]), E.TypeRuleError, "insert: keys.*takes string")
    refused(lambda: t.lookup(["a"], [1]), E.ShapeError, r"give \[2\] or \[1,2\]")
    refused(
        lambda: wf.MutableHashTable(wf.float32, wf.int64, 0), E.InvalidArgumentError, "integers"
    )
    assert t["a"].tolist() == [1, 2]


def test_table_values_are_copies() -> None:
    t = wf.MutableHashTable(wf.int64, wf.int64, 0)
    x = np.array([5])
    t.insert([1], x)
    x[0] = 6
    assert t.lookup([1]).tolist() == [5]
    keys, values = t.export()
    t.insert([1], [7])
    assert (keys.tolist(), values.tolist()) == ([1], [5])


def test_table_uses_rows_again() -> None:
    t = wf.MutableHashTable(wf.int64, wf.int64, -1)
    t.insert(np.arange(16), np.arange(16) * 10)
    t.remove([0, 5, 99])
    t.insert([20, 21, 22], [200, 210, 220])
    assert t.lookup([0, 1, 15, 20, 21, 22]).tolist() == [-1, 10, 150, 200, 210, 220]
    assert len(t._table._rows) == 32


class TableMachine(RuleBasedStateMachine):
    """Against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = wf.MutableHashTable(wf.int64, wf.int64, -1)
        self.model: dict[int, int] = {}

    @rule(pairs=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 99)), max_size=20))
    def insert(self, pairs: list[tuple[int, int]]) -> None:
        self.table.insert([k for k, _ in pairs], [v for _, v in pairs])
        self.model.update(pairs)

    @rule(keys=st.lists(st.integers(0, 19), max_size=9))
    def remove(self, keys: list[int]) -> None:
        self.table.remove(keys)
        for k in keys:
            self.model.pop(k, None)

    @rule(keys=st.lists(st.integers(0, 21), max_size=9))
    def lookup(self, keys: list[int]) -> None:
        assert self.table.lookup(keys).tolist() == [self.model.get(k, -1) for k in keys]

    @rule()
    def move(self) -> None:
        other = wf.MutableHashTable(wf.int64, wf.int64, -1)
        other.insert([99], [1])
        self.table = other.load_state_dict(self.table.state_dict())

    @invariant()
    def same(self) -> None:
        keys, values = self.table.export()
        assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == self.model
        assert self.table.size().item() == len(self.model)


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_table_states_that_do_not_fit() -> None:
    t = wf.MutableHashTable(wf.int64, wf.int64, 0)
    t.insert([1], [2])
    other = wf.MutableHashTable(wf.string, wf.int64, 0)
    refused(lambda: t.load_state_dict(other.state_dict()), E.InvalidArgumentError, "state is that")
    refused(lambda: t.load_state_dict({}), E.InvalidArgumentError, "made alike")
    assert t.lookup([1]).tolist() == [2]


def test_table_many_threads() -> None:
    t = wf.MutableHashTable(wf.int64, wf.int64, -1)

    def work(me: int) -> None:
        for i in range(50):
            keys = np.arange(20) + 20 * me
            t.insert(keys, keys * 2)
            assert t.lookup(keys).tolist() == (keys * 2).tolist()
            if i % 3:
                t.remove(keys)

    ended: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: (work(i), ended.append(i)))  # type: ignore[misc]
        for i in range(6)
    ]
    for x in threads:
        x.start()
    for x in threads:
        x.join(20)
    assert sorted(ended) == list(range(6))
    assert t.size().item() == 0  # the last round of each removes its keys


# ------------------------------------------------------------------------------------ tensor arrays
def test_tensor_array_write_read_and_once() -> None:
    ta = wf.TensorArray(wf.float32, 3)
    ta = ta.write(0, [1, 2]).write(2, [5, 6])
    assert ta.element_shape == (2,)
    refused(lambda: ta.write(0, [1, 2]), E.InvalidArgumentError, "written already")
    assert ta.read(0).tolist() == [1, 2]
    refused(lambda: ta.read(0), E.InvalidArgumentError, "cleared by an earlier read")
    refused(lambda: ta.write(0, [1, 2]), E.InvalidArgumentError, "has been read already")
    assert ta.read(1).tolist() == [0, 0]  # never written, the shape is known
    refused(lambda: ta.write(1, [1, 2]), E.InvalidArgumentError, "has been read already")
    refused(lambda: ta.write(3, [1, 2]), E.InvalidArgumentError, "write to index 3.*size is 3")
    refused(lambda: ta.write(-1, [1, 2]), E.InvalidArgumentError, "index=-1 must be at least 0")
    refused(lambda: ta.read(3), E.InvalidArgumentError, "read from index 3")
    refused(lambda: ta.stack(), E.InvalidArgumentError, "cleared")
    assert ta.gather([2]).tolist() == [[5, 6]]
    ta.close()
    ta.close()
    refused(lambda: ta.size(), E.FailedPreconditionError, "was closed")


def test_tensor_array_shapes() -> None:
    ta = wf.TensorArray(wf.float32, 3)
    refused(lambda: ta.read(0), E.InvalidArgumentError, "the shape is not known")
    ta.write(0, [1])
    refused(lambda: ta.write(1, [1, 2]), E.ShapeError, r"shape \[2\] was written.*have shape \[1\]")
    refused(lambda: ta.write(1, wf.ones(1, dtype=wf.float64)), E.TypeRuleError, "takes float32")
    loose = wf.TensorArray(wf.float32, 2, infer_shape=False, element_shape=[None])
    loose.write(0, [1]).write(1, [2, 3])
    refused(lambda: loose.write(1, [[1]]), E.InvalidArgumentError, "written already")
    keep = wf.TensorArray(wf.float32, 2, infer_shape=False, clear_after_read=False)
    keep.write(0, [1]).write(1, [2, 3])
    refused(lambda: keep.stack(), E.ShapeError, r"\[1\], \[2\] do not stack")
    assert keep.concat().tolist() == [1, 2, 3]
    assert keep.read(1).tolist() == keep.read(1).tolist() == [2, 3]
    assert loose.concat().tolist() == [1, 2, 3]


def test_tensor_array_grows_only_where_it_may() -> None:
    ta = wf.TensorArray(wf.int64, 0, dynamic_size=True, clear_after_read=False)
    ta.write(3, 7)
    assert ta.size().item() == 4
    assert ta.stack().tolist() == [0, 0, 0, 7]
    ta2 = wf.TensorArray(wf.int64, dynamic_size=True).unstack([1, 2, 3])
    assert ta2.stack().tolist() == [1, 2, 3]
    fixed = wf.TensorArray(wf.int64, 2)
    refused(lambda: fixed.unstack([1, 2, 3]), E.InvalidArgumentError, "3 elements.*size 2")
    refused(lambda: fixed.scatter([0, 2], [1, 2]), E.InvalidArgumentError, "write to index 2")
    refused(lambda: fixed.scatter([0, 0], [1, 2]), E.InvalidArgumentError, "written already")
    refused(lambda: fixed.scatter([0], [1, 2]), E.ShapeError, "1 indices for 2 rows")
    assert fixed.scatter([1, 0], [5, 6]).stack().tolist() == [6, 5]  # nothing was written before


def test_tensor_array_split_and_concat() -> None:
    ta = wf.TensorArray(wf.float32, 3, infer_shape=False)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    ta.split(x, [1, 0, 5])
    x[:] = 0
    joined = ta.concat()
    np.testing.assert_array_equal(joined, np.arange(12).reshape(6, 2))
    refused(lambda: ta.split(x, [1, 2, 2]), E.ShapeError, r"lengths \[1, 2, 2\]")
    assert wf.TensorArray(wf.float32, 0, element_shape=[None, 2]).concat().shape == (0, 2)
    assert wf.TensorArray(wf.float32, 0, element_shape=[2]).stack().shape == (0, 2)


def test_tensor_array_gather_twice_the_same() -> None:
    ta = wf.TensorArray(wf.int64, 2).unstack([4, 5])
    refused(lambda: ta.gather([0, 0]), E.InvalidArgumentError, "read one twice")
    assert ta.gather([1, 0]).tolist() == [5, 4]
    kept = wf.TensorArray(wf.int64, 2, clear_after_read=False).unstack([4, 5])
    assert kept.gather([0, 0]).tolist() == [4, 4]


# ------------------------------------------------------------------------------------------- stacks
def test_stack() -> None:
    s = wf.Stack(wf.float32, max_size=2, element_shape=[None])
    x = np.ones(1, np.float32)
    s.push(x)
    x[0] = 9
    s.push([2, 3])
    refused(lambda: s.push([4]), E.ResourceExhaustedError, "max_size=2")
    refused(lambda: s.push(4), E.ShapeError, r"shape \[\]")
    assert s.size().item() == 2
    assert [s.pop().tolist(), s.pop().tolist()] == [[2, 3], [1]]
    refused(s.pop, E.InvalidArgumentError, "is empty")
    s.close()
    refused(lambda: s.push([1]), E.FailedPreconditionError, "was closed")


def test_resources_find_each_other_by_shared_name() -> None:
    one = wf.ConditionalAccumulator(wf.float32, [2], shared_name="sum")
    two = wf.ConditionalAccumulator(wf.float32, [2], shared_name="sum")
    one.apply_grad([1, 2])
    assert two.num_accumulated().item() == 1
    refused(
        lambda: wf.ConditionalAccumulator(wf.float32, [3], shared_name="sum"),
        E.InvalidArgumentError, "made alike",
    )  # fmt: skip
    refused(lambda: wf.Barrier(wf.float32, shared_name="sum"), E.InvalidArgumentError, "is that of")
