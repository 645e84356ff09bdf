"""Sums beside a step: a mesh adds up in the order in which they were started; errors, Ctrl-C and
steps that fail in between leave nothing under way. Its processes are threads here."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from at_once import outcomes

from weft.ir.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from weft.ir.ops.collectives import settle_exchanges
from weft.runtime.mesh import ProcessMesh

Array = np.ndarray[Any, Any]
_numbers = itertools.count()
SHAPES = [(3,), (20,), (2, 150_000)]


@contextmanager
def meshes(shape: Mapping[str, int], timeout: float = 10.0) -> Iterator[list[ProcessMesh]]:
    """All processes of a mesh."""
    name = f"{os.getpid()}-{next(_numbers)}"
    size = int(np.prod([*shape.values()]))

    def make(rank: int) -> ProcessMesh:
        return ProcessMesh(f"{name}-{rank}", name, shape, rank, timeout, 10.0)

    with ExitStack() as stack:
        made = outcomes([partial(make, rank) for rank in range(size)])
        for mesh in made:
            stack.callback(mesh.close)
        yield made


def attrs(number: int, beside: bool = True, axes: tuple[str, ...] = ("d",)) -> dict[str, Any]:
    return {"number": number, "beside": beside, "axes": axes, "axis_name": axes[0], "shapes": "",
            "line": f"a.py:{number}", "dim": -1, "sources": ()}  # fmt: skip


def drawn(rank: int, number: int) -> list[Array]:
    rng = np.random.default_rng(100 * rank + number)
    return [rng.normal(size=s).astype(np.float32) for s in SHAPES]


def each(made: list[ProcessMesh], work: Callable[[ProcessMesh, int], Any]) -> list[Any]:
    """What each process gives, or the error that it raises."""
    return outcomes([partial(work, mesh, rank) for rank, mesh in enumerate(made)])


@pytest.mark.parametrize("own", [1, 2])
def test_sums_are_made_in_their_order_while_others_come(own: int) -> None:
    """Whoever comes first, over one axis and several, beside the step and one by the step itself,
    which is the last or not."""
    axes = ("d", "m")

    def work(mesh: ProcessMesh, rank: int) -> list[bytes]:
        time.sleep(0.02 * rank)
        for k in range(3):
            given = attrs(k, beside=k != own, axes=axes[: k + 1])
            assert not mesh.start(drawn(rank, k), given).any()
        early = mesh.exchange("psum", [np.float32(rank)], attrs(9))  # type: ignore[list-item]
        assert early == (0 + 2 if rank % 2 == 0 else 1 + 3)
        return [mesh.done(attrs(k)).tobytes() for k in range(3)]

    with meshes({"d": 2, "m": 2}) as made:
        found = each(made, work)
    for rank, held in enumerate(found):
        for k, raw in enumerate(held):
            parts = [drawn(r, k) for r in range(4)]
            if k == 0:
                total = [a + b for a, b in zip(parts[rank % 2], parts[rank % 2 + 2], strict=True)]
            else:
                total = [(a + c) + (b + d) for a, b, c, d in zip(*parts, strict=True)]
            bucket = np.frombuffer(raw, np.float32)
            ends = [(0, 3, 16), (16, 36, 48), (48, 300_048, 300_048)]
            for (start, stop, end), wanted in zip(ends, total, strict=True):
                assert bucket[start:stop].tobytes() == wanted.tobytes()
                assert not bucket[stop:end].any()


def test_what_lies_in_the_bucket_is_not_copied() -> None:
    with meshes({"d": 1}) as (mesh,):
        room = np.arange(48, dtype=np.float32)
        members = [room[:16], room[16:20], np.full(12, 7, np.float32)]
        assert mesh.start(members, attrs(0), room) is room
        wanted = [*range(20), *[0] * 12, *[7] * 12, *[0] * 4]
        assert mesh.done(attrs(0)).tolist() == wanted
        with pytest.raises(InternalError, match="no sum number 0"):
            mesh.done(attrs(0))


def test_starting_waits_for_nobody_and_an_error_is_for_who_asks() -> None:
    """The first cause, in all processes, and the end of the mesh."""
    with meshes({"d": 2}) as (one, other):
        for k in range(2):
            one.start(drawn(0, k), attrs(k))  # returns though the other one does not come
        other.close("the other one has had enough")
        with pytest.raises(UnavailableError, match="has had enough"):
            one.done(attrs(0))
        with pytest.raises(AbortedError, match="has ended"):
            one.done(attrs(1))
        with pytest.raises(AbortedError):
            one.exchange("psum", [np.ones(3, np.float32)], attrs(9))


def test_programs_that_differ_and_one_that_is_late() -> None:
    def work(mesh: ProcessMesh, rank: int) -> None:
        mesh.start(drawn(rank, 0)[rank:], attrs(0))
        mesh.done(attrs(0))

    with meshes({"d": 2}) as made:
        for error in each(made, work):
            assert isinstance(error, InvalidArgumentError)
            assert "programs differ" in str(error)
            assert "a.py:0" in str(error)
    with meshes({"d": 2}, timeout=0.5) as (one, _):
        one.start(drawn(0, 0), attrs(0))
        with pytest.raises(DeadlineExceededError, match=r"rank 1 did not come within 0\.5 s"):
            one.done(attrs(0))


def test_a_step_that_fails_leaves_no_sum_under_way() -> None:
    """It waits for those that are; the mesh goes on."""

    def work(mesh: ProcessMesh, rank: int) -> bool:
        bucket = mesh.start(drawn(rank, 0), attrs(0), np.empty(300_048, np.float32))
        mesh.start(drawn(rank, 1), attrs(1, beside=False))
        time.sleep(0.2 * rank)
        mesh.settle(ValueError("the step has failed"))
        through = np.allclose(bucket[:3], drawn(0, 0)[0] + drawn(1, 0)[0])
        mesh.start(drawn(rank, 2), attrs(0))
        again = mesh.done(attrs(0))
        return through and np.allclose(again[:3], drawn(0, 2)[0] + drawn(1, 2)[0])

    with meshes({"d": 2}) as made:
        assert each(made, work) == [True, True]


def test_steps_of_two_threads() -> None:
    """They are told so; neither gets the other's sum."""
    with meshes({"d": 1}) as (mesh,):
        bucket = mesh.start(drawn(0, 0), attrs(0))
        (error,) = outcomes([partial(mesh.start, drawn(0, 1), attrs(0))])
        assert isinstance(error, FailedPreconditionError)
        assert "a step of another thread" in str(error)
        np.testing.assert_array_equal(mesh.done(attrs(0))[:3], drawn(0, 0)[0])
        assert bucket.shape == (300_048,)


def test_a_mesh_that_is_closed_beside_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums that were started have ended when it is closed, and no other one begins."""
    begun, ended = threading.Event(), []

    def slow(mesh: ProcessMesh, *_: Any) -> None:
        begun.set()
        time.sleep(0.2)
        ended.append(mesh)

    monkeypatch.setattr(ProcessMesh, "_add", slow)
    with meshes({"d": 1}) as (mesh,):
        mesh.start(drawn(0, 0), attrs(0))
        assert begun.wait(5)
        mesh.close()
        assert ended == [mesh]
        with pytest.raises(FailedPreconditionError, match="was closed"):
            mesh.start(drawn(0, 1), attrs(1))


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a sum that nobody adds up."""

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with meshes({"d": 1}) as (mesh,):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            with pytest.raises(RuntimeError) as caught:
                mesh.start(drawn(0, 0), attrs(0))
            mesh.settle(caught.value)
        mesh.start(drawn(0, 1), attrs(0))
        np.testing.assert_array_equal(mesh.done(attrs(0))[:3], drawn(0, 1)[0])


@pytest.mark.parametrize("end", ["settle", "close"])
def test_who_is_waited_for_in_vain(end: str) -> None:
    """Ctrl-C, or another thread that closes the mesh, ends a sum that does not come in a moment,
    and says why to the others."""
    with meshes({"d": 2}) as (one, other):
        one.start(drawn(0, 0), attrs(0))
        time.sleep(0.1)  # it waits for the other one
        began = time.monotonic()
        if end == "settle":
            settle_exchanges(KeyboardInterrupt("it takes too long"))
        else:
            one.close("it takes too long")
        assert time.monotonic() - began < 2
        with pytest.raises(UnavailableError, match="it takes too long"):
            other.exchange("psum", [np.ones(3, np.float32)], attrs(0))


def test_ctrl_c_while_the_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Event.wait
    calls = []

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        calls.append(event)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(event, timeout)

    with meshes({"d": 2}) as (one, other):
        one.start(drawn(0, 0), attrs(0))
        time.sleep(0.1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Event, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.done(attrs(0))
        with pytest.raises(UnavailableError, match="KeyboardInterrupt"):
            other.exchange("psum", [np.ones(3, np.float32)], attrs(0))


def test_in_a_child_of_a_fork_a_sum_says_so() -> None:
    with meshes({"d": 2}) as made:
        each(made, lambda mesh, rank: mesh.start(drawn(rank, 0), attrs(0)))
        assert all(type(x) is np.ndarray for x in each(made, lambda mesh, _: mesh.done(attrs(0))))
        made[0].start(drawn(0, 1), attrs(1))  # under way, in the parent

        def in_child() -> None:
            made[0].start(drawn(0, 1), attrs(1))
            with pytest.raises(AbortedError, match="before a fork"):
                made[0].done(attrs(1))

        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        made[1].start(drawn(1, 1), attrs(1))
        assert all(type(x) is np.ndarray for x in each(made, lambda mesh, _: mesh.done(attrs(1))))
