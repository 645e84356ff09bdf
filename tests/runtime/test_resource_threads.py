"""Barriers, accumulators, tables and stacks under 16 threads; who waits is woken at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft as wf

E = wf.errors
THREADS = 16
EACH = 60


def at_once(call: Callable[[int], object], count: int = THREADS) -> None:
    """`call(k)` in `count` threads; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            call(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_barrier() -> None:
    """6 threads give the first components, 6 the second, 4 take."""
    b = wf.Barrier([wf.int64, wf.int64], [[], []])
    givers, takers = 6, 4
    taken: list[tuple[int, int, int]] = []

    def work(k: int) -> None:
        part, first = divmod(k, givers)
        for i in range(EACH):
            if part < 2:
                number = first * EACH + i
                b.insert_many(part, [f"{number}"], [10 * number + part])
            else:
                count = givers // 2 * (i % 2 + 1) // 3  # 1 or 2
                _, keys, (x, y) = b.take_many(count, timeout=30)
                taken.extend(zip(map(int, keys.tolist()), x.tolist(), y.tolist(), strict=True))

    at_once(work, 2 * givers + takers)
    assert sorted(key for key, _, _ in taken) == list(range(givers * EACH))
    assert all((x, y) == (10 * key, 10 * key + 1) for key, x, y in taken)
    assert b.ready_size().item() == b.incomplete_size().item() == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_accumulators(sparse: bool) -> None:
    """15 threads add, one takes: every gradient is in exactly one sum."""
    made: Any = wf.SparseConditionalAccumulator if sparse else wf.ConditionalAccumulator
    a = made(wf.float64, [4, 2] if sparse else [2], reduction_type="SUM")
    adders, late = THREADS - 1, 10**9
    sums = np.zeros(2)  # of what was added, and how often

    def work(k: int) -> None:
        if k == adders:
            while sums[1] < adders * EACH:
                got = a.take_grad(1, timeout=30)
                sums[:] += got.values.numpy().sum(axis=0) if sparse else got.numpy()
            return
        for i in range(EACH):
            row = [k * EACH + i, 1.0]
            if sparse:
                a.apply_grad([k % 4], [row], local_step=late)
            else:
                a.apply_grad(row, local_step=late)

    at_once(work)
    assert sums.tolist() == [sum(range(adders * EACH)), adders * EACH]
    assert a.num_accumulated().item() == 0


def test_table() -> None:
    """Each call is whole: a lookup sees all of an insert, or nothing of it."""
    table = wf.MutableHashTable(wf.int64, wf.int64, -1)
    keys = np.arange(8)

    def work(k: int) -> None:
        for i in range(EACH):
            if k % 2:
                table.insert(keys, np.full(8, k * EACH + i))
                own = 1000 * k + np.arange(i, i + 3)
                table.insert(own, own * 2)
            else:
                assert len(set(table.lookup(keys).tolist())) == 1
            if k % 4 == 3:
                table.remove(1000 * k + i)

    at_once(work)
    for k in range(1, THREADS, 2):
        own = 1000 * k + np.arange(EACH + 2)
        found = table.lookup(own).numpy()
        # the last insert of a thread comes before its last remove
        there = own[-2:] if k % 4 == 3 else own
        assert np.array_equal(found[np.isin(own, there)], 2 * there)


def test_stack() -> None:
    s = wf.Stack(wf.int64, element_shape=[])
    popped: list[int] = []

    def work(k: int) -> None:
        for i in range(EACH):
            s.push(k * EACH + i)
            if i % 2:
                popped.append(s.pop().item())

    at_once(work)
    popped.extend(s.pop().item() for _ in range(s.size().item()))
    assert sorted(popped) == list(range(THREADS * EACH))


def waits() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """A call that waits, and what ends it."""
    barrier = wf.Barrier(wf.int64, [[]])
    dense = wf.ConditionalAccumulator(wf.float32, [2])
    sparse = wf.SparseConditionalAccumulator(wf.float32, [2, 2])
    token = wf.CancelToken()
    return {
        "barrier, closed": (partial(barrier.take_many, 1), barrier.close),
        "barrier, cancelled": (partial(barrier.take_many, 1, cancel=token), token.cancel),
        "dense, cancelled": (partial(dense.take_grad, 1, cancel=token), token.cancel),
        "sparse, cancelled": (partial(sparse.take_grad, 1, cancel=token), token.cancel),
    }


@pytest.mark.share(2)
@pytest.mark.parametrize("case", list(waits()))
def test_waiters_are_woken_at_once(case: str) -> None:
    """Within 100 ms, in one of five times (others may have the processors); here under 1 ms."""
    late: list[float] = []
    for _ in range(5):
        wait, end = waits()[case]
        woken: list[float] = []
        threads = [threading.Thread(target=_woken, args=(wait, woken)) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.02)
        begun = time.monotonic()
        end()
        for t in threads:
            t.join(30)
        assert len(woken) == 4
        late.append(max(woken) - begun)
    assert min(late) < 0.1


def _woken(wait: Callable[..., Any], woken: list[float]) -> None:
    with pytest.raises((E.CancelledError, E.OutOfRangeError)):
        wait()
    woken.append(time.monotonic())
