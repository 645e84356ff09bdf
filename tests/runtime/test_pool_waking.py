"""Workers that come too late are woken more rarely; workers that the system refuses are told of."""

from __future__ import annotations

import ctypes
import errno
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything

import weft as wf
from weft.codegen.pool import FIRST_SLOT, SLOT, SLOT_WORDS, WORDS
from weft.ir.cost.thresholds import MOST_WAKE_NS, WAKE_AFTER_NS
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
CREATE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)


@pytest.fixture(autouse=True)
def everything_is_cut() -> Iterator[None]:
    before = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        yield
    POOL.set_limit(before)


def scans(x: Any) -> Any:
    return wf.cumulative_prod(wf.cumulative_sum(x, axis=1), axis=1)


def word(name: str) -> int:
    return int(POOL._words[WORDS[name]])


class TestRefusedWorkers:
    def test_fewer_threads_a_warning_and_the_same_bits(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        x = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
        wanted = wf.compile(threads=1)(scans)(x).numpy().tobytes()
        f = wf.compile(scans)
        POOL.set_limit(2)
        assert f(x).numpy().tobytes() == wanted
        there = POOL.workers() + 1
        refuse = CREATE(lambda *_: errno.EAGAIN)
        create = word("pthread_create")
        POOL._words[WORDS["pthread_create"]] = ctypes.cast(refuse, ctypes.c_void_p).value
        try:
            with caplog.at_level(logging.WARNING, logger="weft.compile"):
                wf.set_num_threads(there + 2)
                f = wf.compile(scans)  # a step has scratch for as many threads as there are now
                for _ in range(3):
                    # other processes may have taken a worker's time slice: do not work alone
                    POOL._words[WORDS["alone_until"]] = 0
                    assert f(x).numpy().tobytes() == wanted
        finally:
            POOL._words[WORDS["pthread_create"]] = create
        assert wf.get_num_threads() == there
        assert POOL.workers() + 1 == there
        (said,) = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
        assert f"steps use {there} threads, not {there + 2}" in said
        wf.set_num_threads(there + 2)
        assert f(x).numpy().tobytes() == wanted
        assert wf.get_num_threads() == there + 2
        assert POOL.workers() == there + 1


def until(condition: Callable[[], bool]) -> None:
    last = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < last
        time.sleep(1e-4)


def wake_for_nothing() -> None:
    """End worker 1's sleep when there is no job: as if the call had been over before it came."""
    slot = FIRST_SLOT + SLOT_WORDS
    until(lambda: bool(POOL._words[slot + SLOT["asleep"]]))
    before = word("wake_after")
    POOL._words[slot + SLOT["asleep"]] = 0
    POOL._words[WORDS["sleepers"]] -= 1
    condition = ctypes.addressof(POOL._words) + 8 * (slot + SLOT["condition"])
    ctypes.CDLL(None).pthread_cond_signal(ctypes.c_void_p(condition))
    until(lambda: word("wake_after") != before or before == MOST_WAKE_NS)


def test_wakes_that_come_too_late_become_rare() -> None:
    f, x = wf.compile(scans), np.ones((64, 1 << 16), np.float32)
    POOL.set_limit(2)
    f(x)
    until(lambda: word("sleepers") == POOL.workers())
    POOL._words[WORDS["wake_after"]] = WAKE_AFTER_NS
    for k in range(1, 9):
        wake_for_nothing()
        assert word("wake_after") == min(WAKE_AFTER_NS << k, MOST_WAKE_NS)
    for _ in range(40):  # until a worker helps
        until(lambda: word("sleepers") == POOL.workers())
        POOL._words[WORDS["debt"]] = MOST_WAKE_NS
        f(x)
        if word("wake_after") == WAKE_AFTER_NS:
            return
    pytest.fail("no worker came in time for a call of milliseconds")
