"""`ProcessMesh`: this process's place in a mesh of processes, which does its exchanges.

For each axis of the mesh it has a group of the processes that differ in that axis alone
(`weft/comm/group.py`), through shared memory if all are of one host, else by TCP. All make them in
the same order.

A sum that a step has started is added up by a thread of the mesh, in the memory in which the step
has put it, while the step goes on. All sums are done in the order in which they were started, and
an exchange that the step waits for comes after them: so the order is the program's."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.comm.errors import (
    CommError,
    DeadlineError,
    GroupEndedError,
    PeerLostError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.group import Call, Group
from weft.comm.members import Remote
from weft.ir.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    WeftError,
)
from weft.ir.interpreter.evaluate import type_of
from weft.ir.ops.collectives import close_mesh, member_starts, open_mesh
from weft.ir.process import ForkLock
from weft.ir.spec import Attrs, int_attr, ints_attr

Array = np.ndarray[Any, Any]
_ADDS: Mapping[str, np.ufunc] = {
    "psum": np.add, "total": np.add, "pmax": np.maximum, "pmin": np.minimum,
}  # fmt: skip
#: What errors of the transport are to users, the first that fits.
_ERRORS: Sequence[tuple[type[CommError], type[WeftError], str]] = (
    (ProgramsDifferError, InvalidArgumentError, "all processes run the same program on arrays of "
     "the same shapes"),
    (DeadlineError, DeadlineExceededError, "wf.Mesh(timeout=...) says how long a collective waits"),
    (GroupEndedError, AbortedError, "an error ends a mesh for good: make a new one in all "
     "processes"),
    (UnreachableError, UnavailableError, "wf.Mesh(connect_timeout=...) says how long processes may "
     "take to start"),
    (PeerLostError, UnavailableError, "an error ends a mesh for good: make a new one in all "
     "processes"),
    (CommError, FailedPreconditionError, ""),
)  # fmt: skip


class _Sum:
    """A sum that a step has started: `add` makes it, in the bucket. beside: whether a thread does
    it, else who asks for it. step: the thread of the step."""

    def __init__(self, bucket: Array, add: Callable[[], None], beside: bool) -> None:
        self.bucket, self.beside, self._add = bucket, beside, add
        self.step = threading.get_ident()
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Add up; whatever goes wrong is for who waits."""
        try:
            self._add()
        except BaseException as error:
            self.error = error
        self.ended.set()


class _Adder:
    """The thread of a mesh: it begins with the first sum that is added up beside a step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[_Sum | None] | None = None

    def add(self, one: _Sum) -> None:
        """Add it up when those before it have ended."""
        if self._queue is None:
            made: queue.SimpleQueue[_Sum | None] = queue.SimpleQueue()
            given = [made]  # nothing else; and a process may end while it waits
            try:
                threading.Thread(target=_add_all, args=given, name=self._name, daemon=True).start()
            except BaseException as error:  # no thread to be had, Ctrl-C: nobody will add it up
                one.error = error
                one.ended.set()
                raise
            self._queue = made
        self._queue.put(one)

    def close(self) -> None:
        """End the thread when all is added up."""
        if self._queue is not None:
            self._queue.put(None)
            self._queue = None


def _add_all(sums: queue.SimpleQueue[_Sum | None]) -> None:
    while (one := sums.get()) is not None:
        one.run()
        del one  # what it adds up is the step's


class ProcessMesh:
    """The groups of process `rank` in a mesh of this shape, in row-major order of ranks.

    name: what exchanges call it. address: the same in all processes of the mesh, and of no other
    mesh of this host and user. remote: where all are, if they are of several hosts. Raises
    UnavailableError for a process that does not come, FailedPreconditionError where another one is
    in its place.
    """

    def __init__(
        self,
        name: str,
        address: str,
        shape: Mapping[str, int],
        rank: int,
        timeout: float,
        connect_timeout: float,
        remote: Remote | None = None,
    ) -> None:
        self.name = name
        sizes = tuple(shape.values())
        indices = np.unravel_index(rank, sizes)
        self.place = {axis: int(k) for axis, k in zip(shape, indices, strict=True)}
        self._groups: dict[str, Group] = {}
        self._adder = _Adder(name)
        self._started: dict[int, _Sum] = {}  # by number, in the order in which they were started
        self._process = os.getpid()
        self._closed, self._lock = False, ForkLock()
        try:
            for axis, size in shape.items():
                others = [k for other, k in self.place.items() if other != axis]
                places = [{**self.place, axis: k} for k in range(size)]
                row = [int(np.ravel_multi_index([*p.values()], sizes)) for p in places]
                self._groups[axis] = Group(
                    "-".join([address, axis, *map(str, others)]), self.place[axis], size,
                    timeout, connect_timeout,
                    remote=remote and remote.of(row), label=f"{name}/{axis}",
                )  # fmt: skip
        except CommError as error:
            self.close(str(error))
            raise _as_users_know(error) from None
        open_mesh(name, self)

    def close(self, why: str = "its program closed the mesh") -> None:
        """Leave all groups; processes that wait for this one hear why."""
        with self._lock:
            self._closed = True  # nothing is started any more, and what was started ends
        self._stop(why)
        self._adder.close()
        close_mesh(self.name)

    def _end(self, why: str) -> None:
        """Leave all groups, in the midst of a sum too."""
        for group in self._groups.values():
            group.close(why)

    def exchange(
        self, kind: str, arrays: Sequence[Array], attrs: Attrs, out: Array | None = None
    ) -> Array:
        """The result of an op `exchange`, in `out` where that saves a copy. Whatever goes wrong
        closes the mesh."""
        axis = str(attrs["axis_name"])
        group = self._groups[axis]
        if kind == "axis_index":
            return np.array(group.rank, np.int64)
        (x,) = arrays
        if kind in ("enter", "leave"):
            return x
        if kind == "first":
            return x if group.rank == 0 else np.zeros_like(x)
        if kind == "split":
            return np.split(x, group.size, int_attr(attrs, "dim"))[group.rank]
        self._wait(list(self._sums().values()))
        return self._done_by(group, lambda: _collective(group, kind, x, attrs, out))

    def _done_by(self, group: Group, work: Callable[[], Array]) -> Array:
        """What a call of the group gives. Whatever goes wrong ends the other groups, too."""
        try:
            return work()
        except CommError as error:
            self._leave(group, str(error))
            raise _as_users_know(error) from None
        except BaseException as error:
            self._leave(group, str(error) or type(error).__name__)
            raise

    # ------------------------------------------------------------------------- sums beside a step

    def _sums(self) -> dict[int, _Sum]:
        """Those that were started and not asked for yet."""
        if self._process != os.getpid():  # in a child of a fork: they are the parent's
            self._process, self._started, self._adder = os.getpid(), {}, _Adder(self.name)
        return self._started

    def start(self, arrays: Sequence[Array], attrs: Attrs, out: Array | None = None) -> Array:
        """Pack arrays into a bucket, and begin its sum; see `ir.ops.collectives`. What is in its
        place already is not copied. Without `out` the bucket is the mesh's own, and zeros are what
        anybody else sees of it: who logs a step sees the same each time."""
        starts, count = member_starts([type_of(x) for x in arrays])
        bucket = np.empty(count, arrays[0].dtype) if out is None else out
        for x, start, end in zip(arrays, starts, [*starts[1:], count], strict=True):
            member = bucket[start : start + x.size]
            if member.ctypes.data != x.ctypes.data:
                np.copyto(member, x.reshape(-1))
            bucket[start + x.size : end] = 0  # what is between members is nobody's
        number, sums = int_attr(attrs, "number"), self._sums()
        if number in sums:
            if sums[number].step != threading.get_ident():
                raise FailedPreconditionError(
                    f"the mesh '{self.name}' has a step of another thread under way",
                    hint="one step at a time: the exchanges of a mesh are in one order everywhere",
                )
            self._drop([number])  # of a step that has failed
        if not all(one.beside or one.ended.is_set() for one in sums.values()):
            self._wait(list(sums.values()))  # the step's own comes before this one
        one = _Sum(bucket, lambda: self._add(bucket, attrs), bool(attrs["beside"]))
        with self._lock:
            if self._closed:
                raise FailedPreconditionError(f"the mesh '{self.name}' was closed")
            sums[number] = one
        if one.beside:
            self._adder.add(one)
        return bucket if out is not None else np.zeros_like(bucket)

    def _add(self, bucket: Array, attrs: Attrs) -> None:
        """The sum over all axes, one after the other, in the bucket."""
        axes = attrs["axes"]
        assert isinstance(axes, tuple)
        for axis in map(str, axes):
            group, call = self._groups[axis], _call("psum", axis, attrs)
            if group.size > 1:
                self._done_by(group, lambda g=group, c=call: g.reduce(bucket, np.add, c, bucket))  # type: ignore[misc]

    def done(self, attrs: Attrs) -> Array:
        """The bucket that was started with this number, when the sum stands in it."""
        sums, number = self._sums(), int_attr(attrs, "number")
        if number not in sums:
            raise InternalError(f"the mesh '{self.name}' has started no sum number {number}")
        before = list(sums).index(number)
        try:
            self._wait(list(sums.values())[: before + 1])
        finally:
            one = sums.pop(number)
        return one.bucket

    def _wait(self, sums: Sequence[_Sum]) -> None:
        """Until these have ended, which are the first of all; those that no thread does are added
        up here. The first error is raised; Ctrl-C ends the mesh."""
        for one in sums:
            if not one.beside and not one.ended.is_set():
                one.run()
            try:
                one.ended.wait()
            except BaseException as error:
                self._stop(str(error) or type(error).__name__)
                raise
            if one.error is not None:
                raise one.error

    def _stop(self, why: str) -> None:
        """Leave all groups, and wait until the thread is through: this takes moments, in which
        nobody may give its memory away."""
        self._end(why)
        for one in list(self._sums().values()):
            while one.beside and not one.ended.is_set():
                with suppress(KeyboardInterrupt):
                    one.ended.wait()

    def _drop(self, numbers: Sequence[int]) -> None:
        """Sums that nobody will ask for: wait for those that are under way."""
        for number in numbers:
            one = self._started[number]
            if one.beside:
                with suppress(Exception):  # the next exchange says it
                    self._wait([one])
            del self._started[number]

    def settle(self, error: BaseException) -> None:
        """A step of this thread has failed, whose memory will be somebody else's."""
        here = threading.get_ident()
        own = [number for number, one in self._sums().items() if one.step == here]
        if own and not isinstance(error, Exception):
            self._stop(str(error) or type(error).__name__)
        self._drop(own)

    def _leave(self, broken: Group, why: str) -> None:
        """Leave the other groups, too: who waits there hears of what went wrong here."""
        for group in self._groups.values():
            if group is not broken:
                group.close(why)


def _call(kind: str, axis: str, attrs: Attrs) -> Call:
    """What an exchange is, for the other processes."""
    named = f"{kind} over '{axis}'"
    if kind == "join":
        named += f" along axis {int_attr(attrs, 'dim')}"
    if attrs["shapes"]:
        named += f" of arrays of the shapes {attrs['shapes']} as one,"
    if kind == "ppermute":
        named += f" from {list(ints_attr(attrs, 'sources'))}"
    return Call(named, str(attrs["line"]))


def _collective(group: Group, kind: str, x: Array, attrs: Attrs, out: Array | None) -> Array:
    dim, sources = int_attr(attrs, "dim"), ints_attr(attrs, "sources")
    call = _call(kind, str(attrs["axis_name"]), attrs)
    if kind in _ADDS:
        return group.reduce(x, _ADDS[kind], call, out)
    if kind == "all_gather":
        return group.gather(x, call)
    if kind == "join":
        return np.concatenate(list(group.gather(x, call)), dim)
    if kind == "psum_scatter":
        return group.scatter(x, np.add, call)
    if kind == "all_to_all":
        return group.exchange(x, call)
    return group.permute(x, sources, call)


def _as_users_know(error: CommError) -> WeftError:
    made, hint = next((m, h) for kind, m, h in _ERRORS if isinstance(error, kind))
    return made(str(error), hint=hint or None)
