"""`donate=` with open sizes, on the executor and over several devices: where results are, what
goes back, and what a call that fails has taken."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ShapeError,
)
from weft.runtime.step import Donation

F32 = np.float32
SIZE = 1 << 16  # large enough for its memory to count
ROWS = wf.TensorType(wf.float32, ("n", 3))
ANY = wf.TensorType(wf.float32, (None,))


def fresh(values: Any) -> wf.Tensor:
    return wf.asarray(np.array(values, F32), copy=True)


def address(t: Any) -> int:
    held = getattr(t, "_held", None)
    return int(t.__array_interface__["data"][0] if held is None else held.address)


def gone(t: Any, name: str) -> None:
    with pytest.raises(FailedPreconditionError, match=f"was donated to '{name}'"):
        t + 1.0


def queue_of(shape: Any = (SIZE,)) -> Any:
    return wf.tf1.FIFOQueue(99, [wf.float32], [shape])


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


# ------------------------------------------------------------------------------------- open sizes
@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
@pytest.mark.usefixtures("two")
def test_open_sizes_take_the_memory(device: str) -> None:
    @wf.compile(donate="x", input_signature=[ROWS, ROWS], device=device)
    def step(x: wf.Tensor, y: wf.Tensor) -> Any:
        return x * 2.0 + y, wf.sum(y)

    for rows in (4, 7, 1000, 7, 33, 5000, 2):  # the first has a plan of its own, others share one
        start = np.arange(rows * 3, dtype=F32).reshape(rows, 3)
        x = fresh(start) if device == "cpu" else wf.to_device(start, device)
        home = address(x)
        for _ in range(3):
            before = x
            x, total = step(x, np.ones_like(start))
            assert address(x) == home
            gone(before, "step")
            assert float(total) == 3 * rows
        np.testing.assert_array_equal(x.numpy(), start * 8 + 7)


@pytest.mark.parametrize("rows", [0, 1])
def test_small_open_sizes(rows: int) -> None:
    step = wf.compile(lambda x: x + 1.0, donate="x", input_signature=[ROWS])
    for _ in range(2):
        x = fresh(np.ones((rows, 3)))
        np.testing.assert_array_equal(step(x).numpy(), np.full((rows, 3), 2, F32))
        gone(x, "lambda")


def test_what_no_result_of_open_size_takes_goes_back() -> None:
    """Which sizes fit is known when they come: it is no error that none does."""
    step = wf.compile(
        lambda x, y: (wf.concat([x, y]), wf.sum(x)), donate="x", input_signature=[ANY, ANY]
    )
    for n, m in ((5, 3), (8, 8), (9, 0), (0, 4), (30, 1), (31, 0)):
        a, b = np.arange(n, dtype=F32), np.ones(m, F32)
        x = fresh(a)
        both, total = step(x, b)
        np.testing.assert_array_equal(both.numpy(), np.concatenate([a, b]))
        assert float(total) == a.sum()
        gone(x, "lambda")


_OPS = st.lists(st.sampled_from(["add", "both", "flip", "sum", "stack", "queue"]), max_size=5)


@examples(20)
@given(_OPS, st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_donation_changes_no_bit(ops: list[str], sizes: list[int]) -> None:
    queue = queue_of((None,))

    def f(a: wf.Tensor, b: wf.Tensor) -> Any:
        y, more = a * 2.0, [b + 1.0]
        for op in ops:
            if op == "add":
                y = y * b + a
            elif op == "both":
                more.append(y - b)
            elif op == "flip":
                y = y + wf.flip(b)
            elif op == "sum":
                more.append(wf.sum(y))
            elif op == "stack":
                more.append(wf.concat([y, b]))
            else:
                queue.enqueue(a)
                y = y + queue.dequeue()
        return y, more

    same = wf.TensorType(wf.float32, ("n",))
    plain = wf.compile(f, input_signature=[same, same])
    giving = wf.compile(f, input_signature=[same, same], donate=("a", "b"))
    for n in sizes:
        a, b = np.arange(n, dtype=F32), np.linspace(-1, 1, n, dtype=F32)
        wanted = wf.tree_leaves(plain(a, b))
        found = wf.tree_leaves(giving(fresh(a), fresh(b)))
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_call_of_sizes_that_do_not_fit_takes_nothing() -> None:
    step = wf.compile(lambda x, y: x + y, donate="x", input_signature=[ANY, ANY])
    step(fresh([1, 2, 3]), np.ones(3, F32))
    x = fresh([1, 2, 3])
    home = address(x)
    try:
        step(x, np.ones(5, F32))
    except ShapeError:  # while the error is held, too
        np.testing.assert_array_equal(x.numpy(), [1, 2, 3])
    else:
        raise AssertionError("3 and 5 fit each other")
    made = step(x, np.ones(3, F32))
    assert address(made) == home
    gone(x, "lambda")


def test_a_native_call_that_has_begun_has_taken_it() -> None:
    table = np.arange(4, dtype=F32)
    step = wf.compile(
        lambda x, i: (x + 1.0, wf.take(wf.asarray(table), i, axis=0)),
        donate="x", input_signature=[ANY, wf.TensorType(wf.int64, (None,))],
    )  # fmt: skip
    for n in (3, 4, 5):
        x = fresh(np.ones(n))
        with pytest.raises(InvalidArgumentError, match="out of bounds"):
            step(x, np.array([9]))
        gone(x, "lambda")


def test_open_sizes_on_the_executor() -> None:
    queue = queue_of(())

    @wf.compile(donate="x", input_signature=[ANY])
    def step(x: wf.Tensor) -> wf.Tensor:
        queue.enqueue(wf.cast(wf.size(x), wf.float32))
        return x + queue.dequeue()

    for n in (SIZE, SIZE + 5, 3, SIZE):
        x = fresh(np.arange(n))
        home = address(x)
        made = step(x)
        np.testing.assert_array_equal(made.numpy(), n + np.arange(n, dtype=F32))
        assert address(made) == home or n == 3  # small results are copied
        gone(x, "step")
    assert "the memory of the donated argument 'x' holds a result" in step.explain(fresh([1, 2]))


# ---------------------------------------------------------------------------------- several devices
@pytest.mark.usefixtures("two")
def test_the_part_of_the_processor_takes_what_it_alone_reads() -> None:
    @wf.compile(donate=("alone", "both", "far"))
    def step(alone: wf.Tensor, both: wf.Tensor, far: wf.Tensor) -> Any:
        with wf.device("gpu:0"):
            y = wf.exp(both) + far
        return alone - y, both + 1.0

    for n in (SIZE, 10):
        a, b, c = (np.linspace(0, k, n, dtype=F32) for k in (1, 2, 3))
        alone, both, far = fresh(a), fresh(b), fresh(c)
        homes = address(alone), address(both)
        first, second = step(alone, both, far)
        np.testing.assert_allclose(first.numpy(), a - np.exp(b) - c, rtol=1e-6)
        np.testing.assert_array_equal(second.numpy(), b + 1)
        assert address(first) == homes[0] or n == 10  # small results are copied
        assert address(second) != homes[1]  # the GPU reads it, too
        for t in (alone, both, far):
            gone(t, "step")
    text = step.explain(*(fresh(np.ones(SIZE)) for _ in range(3)))
    assert "the memory of the donated argument 'alone' holds a result when it ends" in text
    assert "the memory of the donated argument 'both' goes back when it ends" in text
    assert "the memory of the donated argument 'far' goes back when it ends" in text


@pytest.mark.usefixtures("two")
def test_all_of_a_function_on_a_gpu() -> None:
    @wf.compile(donate="x")
    def step(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            return x + 1.0

    x = fresh(np.ones(SIZE))
    np.testing.assert_array_equal(step(x).numpy(), np.full(SIZE, 2, F32))
    gone(x, "step")


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("signature", [None, [ANY, ANY]])
def test_the_part_of_a_gpu_takes_arrays_there(signature: Any) -> None:
    queue = wf.tf1.FIFOQueue(99, [wf.float32], [()])

    @wf.compile(device="gpu:0", donate=("x", "y"), input_signature=signature)
    def step(x: wf.Tensor, y: wf.Tensor) -> Any:
        queue.enqueue(wf.sum(y))
        return x + queue.dequeue(), wf.unique_values(y)

    for n in (1000, 77, 1000):
        a, b = np.arange(n, dtype=F32), np.full(n, 3, F32)
        for place in ("gpu:0", "gpu:1", "cpu"):
            x = fresh(a) if place == "cpu" else wf.to_device(a, place)
            y = wf.to_device(b, "gpu:0")
            home = address(x)
            made, values = step(x, y)
            np.testing.assert_array_equal(made.numpy(), a + 3 * n)
            np.testing.assert_array_equal(values.numpy(), [3])
            assert (address(made) == home) == (place == "gpu:0")
            gone(x, "step")
            gone(y, "step")
    text = step.explain(*(np.ones(1000, F32) for _ in range(2)))
    assert "the memory of the donated argument 'x' holds a result when it ends" in text
    assert "the memory of the donated argument 'y' goes back when it ends" in text


@pytest.mark.usefixtures("two")
def test_what_is_sent_to_another_device_is_not_written_over() -> None:
    @wf.compile(device="gpu:0", donate="x")
    def step(x: wf.Tensor) -> Any:
        with wf.device("gpu:1"):
            y = wf.flip(x) * 1.0
        return x + 1.0, y

    for _ in range(3):
        a = np.arange(SIZE, dtype=F32)
        x = wf.to_device(a, "gpu:0")
        first, second = step(x)
        np.testing.assert_array_equal(first.numpy(), a + 1)
        np.testing.assert_array_equal(second.numpy(), a[::-1])
        gone(x, "step")


# ---------------------------------------------------------------------------------- failed calls
def fails_before(queue: Any) -> Callable[..., Any]:
    return lambda a: a + queue.dequeue()


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("way", ["executor", "devices", "gpu"])
def test_a_failed_call_gives_back_what_it_has_not_written_to(way: str) -> None:
    queue = queue_of()
    queue.close()

    def f(a: wf.Tensor) -> wf.Tensor:
        if way == "devices":
            with wf.device("gpu:0"):
                wf.sum(wf.exp(queue.dequeue()))
        return a + queue.dequeue()

    step = wf.compile(f, donate="a", device="gpu:0" if way == "gpu" else "cpu")
    gc.disable()
    try:
        a = fresh(np.ones(SIZE)) if way != "gpu" else wf.to_device(np.ones(SIZE, F32), "gpu:0")
        home = address(a)
        for _ in range(2):
            with pytest.raises(OutOfRangeError) as held:
                step(a)
            assert address(a) == home
            assert float(wf.sum(a)) == SIZE
        made = wf.compile(lambda x: x * 2.0, donate="x", device=step_device(way))(a)  # and again
        assert address(made) == home
        gone(a, "lambda")
        assert held.value is not None
    finally:
        gc.enable()


def step_device(way: str) -> str:
    return "gpu:0" if way == "gpu" else "cpu"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_failed_call_keeps_what_it_has_written_to(device: str) -> None:
    queue, open_one = queue_of(()), queue_of(())
    queue.close()

    def f(a: wf.Tensor, b: wf.Tensor) -> Any:
        queue.enqueue(wf.sum(a))  # of the region in which `a + 1.0` is
        return a + 1.0, b * open_one.dequeue()

    step = wf.compile(f, donate=("a", "b"), device=device)
    ones = np.ones(SIZE, F32)
    a, b = (fresh(ones) if device == "cpu" else wf.to_device(ones, device) for _ in range(2))
    with pytest.raises(CancelledError, match="closed"):
        step(a, b)
    gone(a, "f")
    np.testing.assert_array_equal(b.numpy(), ones)


@pytest.mark.usefixtures("two")
def test_a_copy_on_a_gpu_is_nothing_of_the_callers() -> None:
    """A failed call has written to the copy of a tensor of the host, and not to that."""
    queue = queue_of(())
    queue.close()

    def f(a: wf.Tensor) -> wf.Tensor:
        queue.enqueue(wf.sum(a))  # of the region in which `a + 1.0` is
        return a + 1.0

    step = wf.compile(f, donate="a", device="gpu:0")
    a = fresh(np.ones(SIZE))
    with pytest.raises(CancelledError, match="closed"):
        step(a)
    np.testing.assert_array_equal(a.numpy(), np.ones(SIZE, F32))
    there = wf.to_device(a.numpy(), "gpu:0")
    with pytest.raises(CancelledError, match="closed"):
        step(there)
    gone(there, "f")


def test_nothing_is_taken_once_a_call_is_over() -> None:
    donation = Donation()
    part = donation.part([4, 7])
    part.take([1])
    assert donation.close() == {7}
    with pytest.raises(CancelledError, match="has ended"):
        part.take([0])
    with pytest.raises(CancelledError, match="has ended"):
        donation.take([0])
    assert donation.close() == {7}
    nested = Donation()
    nested.part([3, 5]).part([1]).take([0])
    assert nested.close() == {5}


def test_two_threads_never_take_the_same_tensor() -> None:
    step = wf.compile(lambda x: x + 1.0, donate="x", input_signature=[ANY])
    x, done = fresh(np.zeros(SIZE)), []

    def give() -> None:
        try:
            done.append(step(x))
        except (InvalidArgumentError, FailedPreconditionError) as error:
            done.append(error)

    threads = [threading.Thread(target=give) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [d for d in done if not isinstance(d, Exception)]
    assert len(made) <= 1
    assert len(done) == 4
    for one in made:
        np.testing.assert_array_equal(one.numpy(), np.ones(SIZE, F32))
