"""`Group`: collectives of arrays between processes.

A call sends everybody what it is: its number, a hash of its op, shape and dtype, and the line of
the program that makes it; so members whose programs differ say so. Behind that are the arrays, if
they are small or members are of several hosts (`remote_members.py`). On one host
(`local_members.py`) those larger than `INLINE_BYTES` go through memory that all read, in pieces.
Then messages are bare headers, which say that one's piece is written, and that one's slice of the
last piece is added up. The memory has three places for pieces: what is written over was read by all
before they sent the last header.

Sums are in the order of ranks, whoever comes first. There is no thread: the caller's sends, waits
and adds. Whatever ends a call ends the group: its farewell tells the others why."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np

from weft.comm.errors import AddressError, GroupEndedError, PeerLostError, ProgramsDifferError
from weft.comm.local_members import LocalMembers
from weft.comm.members import CALL, FAREWELL, MOST_TEXT, NEXT, Data, Members, Message, Remote
from weft.comm.traffic import EXCHANGES
from weft.comm.wire import Array

INLINE_BYTES: Final = 16 << 10
#: Of an array that lies in a memfd at once: small enough for the caches of all members.
PIECE_BYTES: Final = 1 << 20
#: Of an array that is in one message between hosts.
MESSAGE_BYTES: Final = 1 << 18
_PLACES: Final = 3
#: For so long a call of another thread may go on when the group is closed.
_STOP_S: Final = 1.0
#: Calls whose text and hash are kept: a program has few, but a step may have its number in it.
_MOST_CALLS: Final = 1000
#: Makes of tables, by rank, an element of each column, in the array that it is given.
Total = Callable[[list[Array], Array], None]
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Call:
    """A collective: its op with all that must be the same everywhere, and where it stands in the
    program, which is for people."""

    op: str
    where: str = ""

    def text(self, x: Array) -> str:
        """What it is, for people."""
        at = f" at {self.where}" if self.where else ""
        return f"{self.op} of {x.dtype.name}{list(x.shape)}{at}"

    def digest(self, x: Array) -> int:
        """A hash of what must be the same everywhere."""
        what = f"{self.op}|{x.dtype.name}|{x.shape}".encode()
        return int.from_bytes(hashlib.blake2b(what, digest_size=8).digest(), "little")


class Group:
    """This process's end of a group of `size`, in which it has the number `rank`.

    name: the same in all members, and of no other group of this host and user. timeout: how many
    seconds a call waits for the others; connect_timeout: how many they may take to come. is_there:
    whether the process that has a rank is there, so that nobody waits for one that cannot come.
    remote: the members' addresses, if they are of several hosts. label: under which the traffic
    with the others is counted (`traffic.EXCHANGES`); without one it is not.

    Raises AddressError where another process has this rank, UnreachableError for who does not come,
    and AddressError on systems without memfds. A group is used by one thread at a time, but any
    may close it.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: float = 300.0,
        connect_timeout: float = 60.0,
        is_there: Callable[[int], bool] = lambda rank: True,
        remote: Remote | None = None,
        label: str = "",
    ) -> None:
        if not 0 <= rank < size:
            raise AddressError(f"rank {rank} of a group of {size}")
        self.name, self.rank, self.size, self.timeout = name, rank, size, timeout
        self._members: Members | None = None
        self._memory = remote is None
        self._ended = ""  # why; an error would keep views of the memory
        self._lock = threading.Lock()
        self._number = 0  # of the call
        self._place = self._counted = 0
        self._what = ""
        self._hash = 0
        self._calls: dict[tuple[Call, Any, tuple[int, ...]], tuple[str, int]] = {}  # text and hash
        if size == 1:
            return
        if remote is None:
            self._members = LocalMembers(
                name, rank, size, timeout, connect_timeout, is_there, _PLACES, PIECE_BYTES
            )
        else:
            # groups of one host do not wait for ZeroMQ
            from weft.comm.remote_members import RemoteMembers

            self._members = RemoteMembers(name, rank, timeout, connect_timeout, is_there, remote)
        _groups.add(self)
        self._counted = EXCHANGES.add(label, self._members.traffic) if label else 0

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ the end

    def close(self, why: str = "its program closed the group") -> None:
        """Leave; members that are in a call, or make one, hear why. A call of another thread ends
        before. A second time nothing."""
        if self._members is not None:
            self._members.stop = why
        through = self._lock.acquire(timeout=_STOP_S)
        try:
            if not self._ended:
                self._end(GroupEndedError(why), by_itself=True)
        finally:
            if through:
                self._lock.release()

    def _end(self, error: BaseException, by_itself: bool = False) -> None:
        self._ended = str(error) or type(error).__name__
        _groups.discard(self)
        EXCHANGES.end(self._counted)
        if self._members is not None:
            self._members.end(
                Message(FAREWELL, self._ended[:MOST_TEXT], self._number, int(by_itself))
            )

    def abandon(self) -> None:
        """In a child of a fork: the members are the parent's, a call of which may hold the lock."""
        self._lock = threading.Lock()
        if self._members is not None:
            self._members.abandon()
        self._ended = "it was made before a fork of the process"

    def _run(self, call: Call, x: Array, work: Callable[[], Array]) -> Array:
        """The result of a call, which ends the group if it does not come."""
        with self._lock:
            if self._ended:
                raise GroupEndedError(f"the group '{self.name}' has ended: {self._ended}")
            self._number += 1
            key = call, x.dtype, x.shape
            known = self._calls.get(key)
            if known is None:
                if len(self._calls) > _MOST_CALLS:
                    self._calls.clear()
                known = self._calls[key] = call.text(x)[:MOST_TEXT], call.digest(x)
            self._what, self._hash = known
            if self._members is not None:
                self._members.doing = self._what
            try:
                return work()
            except BaseException as error:
                self._end(error)
                raise

    # ----------------------------------------------------------------------------------- messages

    @property
    def _others(self) -> Members:
        assert self._members is not None
        return self._members

    def _tell(self, kind: int, data: Data | None = None) -> None:
        """Send a message to everybody. data: the bytes for a rank."""
        text = self._what if kind == CALL else ""
        self._others.tell(Message(kind, text, self._number, self._hash), data)

    def _hear(self, kind: int) -> list[Any]:
        """The data of a message of each member, by rank, one's own empty."""
        return [
            self._read(rank, kind) if rank != self.rank else bytearray()
            for rank in range(self.size)
        ]

    def _read(self, rank: int, kind: int) -> Any:
        """The data of the next message of a member. Errors for any other than the expected."""
        (what, text, number, digest), data = self._others.read(rank)
        if what == FAREWELL:
            raise PeerLostError(f"rank {rank} has left, in {self._what}: {text}")
        if number != self._number or digest != self._hash or what != kind:
            theirs = text or "a part of another call"
            raise ProgramsDifferError(
                f"the members' programs differ: call {self._number} of rank {self.rank} is "
                f"{self._what}, call {number} of rank {rank} is {theirs}"
            )
        return data

    def _sync(self, kind: int) -> None:
        """Wait until everybody is as far."""
        self._tell(kind)
        self._hear(kind)

    def _all(self, flat: Array, kind: int = CALL) -> list[Array]:
        """The arrays of all members, sent whole."""
        self._tell(kind, lambda rank: _raw(flat))
        made = [np.frombuffer(raw, flat.dtype) for raw in self._hear(kind)]
        made[self.rank] = flat
        return made

    def _rows(self, table: Array, kind: int = CALL) -> list[Array]:
        """The row of this rank of each member, sent whole."""
        self._tell(kind, lambda rank: _raw(np.ascontiguousarray(table[rank])))
        made = [np.frombuffer(raw, table.dtype) for raw in self._hear(kind)]
        made[self.rank] = table[self.rank]
        return made

    def _by_messages(self, table: Array) -> bool:
        """Whether arrays are sent, and do not go through memory that all read."""
        return not self._memory or table.nbytes <= INLINE_BYTES

    def _pieces_of(self, columns: int, item: int) -> Iterator[tuple[int, int, int]]:
        """What goes in a message: the kind of the message, and from which column to which. item:
        the bytes of a column."""
        step = max(1, (PIECE_BYTES if self._memory else MESSAGE_BYTES) // max(item, 1))
        for start in range(0, columns or 1, step):
            yield NEXT if start else CALL, start, min(start + step, columns)

    # -------------------------------------------------------------------------------------- calls

    def reduce(self, x: Array, add: np.ufunc, call: Call, out: Array | None = None) -> Array:
        """`add` of the arrays of all members, in the order of ranks. out: where to put it, of one
        piece; it may be x."""
        flat = _flat(x)
        out = np.empty_like(flat) if out is None else out.reshape(-1)

        def work() -> Array:
            self._combine(flat[None], lambda parts, to: fold([p[0] for p in parts], add, to), out)
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def combine(self, table: Array, total: Total, call: Call) -> Array:
        """What `total` makes of the tables of all members: of each column, of all their rows, an
        element."""
        out = np.empty(table.shape[1], table.dtype)

        def work() -> Array:
            self._combine(np.ascontiguousarray(table), total, out)
            return out

        return self._run(call, table, work)

    def _combine(self, table: Array, total: Total, out: Array) -> None:
        if self.size == 1:
            total([table], out)
        elif table.nbytes <= INLINE_BYTES:
            parts = [part.reshape(table.shape) for part in self._all(table.reshape(-1))]
            parts[self.rank] = table.copy()  # out may be its memory
            total(parts, out)
        elif self._memory:
            self._combine_in_memory(table, total, out)
        else:
            self._combine_by_messages(table, total, out)

    def _combine_in_memory(self, table: Array, total: Total, out: Array) -> None:
        rows, columns = table.shape
        step = max(1, PIECE_BYTES // (table.itemsize * rows))
        here = self._write(table[:, :step])
        self._sync(CALL)
        for start in range(0, columns, step):
            length = min(step, columns - start)
            slices = self._slices(length)
            self._count_slices(slices, rows, table.itemsize)
            shown = self._pieces(here, rows * length, table.dtype)
            parts, own = [p.reshape(rows, length) for p in shown], slices[self.rank]
            piece = out[start : start + length]
            total([part[:, own] for part in parts], piece[own])
            np.copyto(parts[self.rank][0, own], piece[own])
            if start + step < columns:
                here = self._write(table[:, start + step : start + 2 * step])
            self._sync(NEXT)
            for rank, share in enumerate(slices):
                if rank != self.rank:
                    np.copyto(piece[share], parts[rank][0, share])

    def _count_slices(self, slices: list[slice], rows: int, item: int) -> None:
        """Each reads its slice of all rows of the others, and the others' slices of the result."""
        sizes = [(s.stop - s.start) * item for s in slices]
        for rank, counts in self._others.traffic.items():
            counts.shared_bytes += rows * sizes[self.rank] + sizes[rank]
            counts.ring_bytes += rows * sizes[rank] + sizes[self.rank]

    def _combine_by_messages(self, table: Array, total: Total, out: Array) -> None:
        """Each member gets its slice of all tables, and sends what it makes of them to all. The
        slices of the next piece are on their way meanwhile."""
        rows, columns = table.shape
        step = self.size * max(1, MESSAGE_BYTES // (table.itemsize * rows))
        pieces = [slice(a, min(a + step, columns)) for a in range(0, columns, step)]

        def send(k: int) -> list[slice]:
            piece = table[:, pieces[k]]
            slices = self._slices(piece.shape[1])
            data = [np.ascontiguousarray(piece[:, share]) for share in slices]
            self._tell(NEXT if k else CALL, lambda rank: _raw(data[rank].reshape(-1)))
            kept.append(data[self.rank])
            return slices

        kept: list[Array] = []
        slices = send(0)
        heard = self._hear(CALL)
        for k, piece in enumerate(pieces):
            parts = [np.frombuffer(raw, table.dtype).reshape(rows, -1) for raw in heard]
            parts[self.rank] = kept.pop()
            made, shares = out[piece], slices
            own = np.empty(parts[self.rank].shape[1], table.dtype)
            total(parts, own)
            if k + 1 < len(pieces):
                slices = send(k + 1)
            self._tell(NEXT, lambda rank, own=own: _raw(own))  # type: ignore[misc]
            if k + 1 < len(pieces):
                heard = self._hear(NEXT)
            sums = self._hear(NEXT)
            for rank, share in enumerate(shares):
                made[share] = own if rank == self.rank else np.frombuffer(sums[rank], own.dtype)

    def _slices(self, length: int) -> list[slice]:
        """Which part of a piece each member makes a total of."""
        cuts = [length * rank // self.size for rank in range(self.size + 1)]
        return [slice(a, b) for a, b in pairwise(cuts)]

    def broadcast(self, x: Array, root: int, call: Call, keep: bool = True) -> Array:
        """The array of the member `root`; of others x says shape and dtype. keep: whether this one
        wants it; else the result is anything."""
        out = _flat(x)
        here = self.rank == root

        def take(part: Array, shown: Array) -> None:
            if keep and not here:
                np.copyto(part, shown)

        def work() -> Array:
            for kind, start, stop in self._pieces_of(out.size, out.itemsize):
                part = out[start:stop]
                if self.size == 1:
                    break
                if self._by_messages(out):
                    self._tell(kind, (lambda rank, p=part: _raw(p)) if here else None)  # type: ignore[misc]
                    take(part, np.frombuffer(self._hear(kind)[root], out.dtype))
                else:
                    place = self._write(part if here else part[:0])
                    self._sync(kind)
                    self._count_shown(
                        part.nbytes,
                        lambda reader, owner: owner == root and (keep or reader != self.rank),
                    )
                    take(part, self._pieces(place, part.size, part.dtype)[root])
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def gather(self, x: Array, call: Call) -> Array:
        """The arrays of all members, along a new first axis."""
        flat = _flat(x)
        out = np.empty((self.size, flat.size), flat.dtype)

        def work() -> Array:
            self._each_piece(flat[None], lambda parts, a, b: _copy_rows(out, parts, 0, a, b))
            return out.reshape(self.size, *x.shape)

        return self._run(call, x, work)

    def scatter(self, x: Array, add: np.ufunc, call: Call) -> Array:
        """`add` of the rows of all members that have this one's rank."""
        table = _flat(x).reshape(self.size, -1)
        out = np.empty_like(table[0])

        def work() -> Array:
            self._each_row(table, lambda parts, a, b: fold(parts, add, out[a:b]))
            made: Array = out.reshape(x.shape[1:])
            return made

        return self._run(call, x, work)

    def exchange(self, x: Array, call: Call) -> Array:
        """The rows of all members that have this one's rank, along the first axis."""
        table = _flat(x).reshape(self.size, -1)
        out = np.empty_like(table)

        def take(parts: list[Array], start: int, stop: int) -> None:
            for row, part in zip(out, parts, strict=True):
                np.copyto(row[start:stop], part)

        def work() -> Array:
            self._each_row(table, take)
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def permute(self, x: Array, sources: Sequence[int], call: Call) -> Array:
        """The array of the member `sources[rank]`, zeros where that is -1."""
        flat, source = _flat(x), sources[self.rank]
        out = np.zeros_like(flat)

        def take(parts: list[Array], a: int, b: int) -> None:
            if source >= 0:
                np.copyto(out[a:b], parts[source][0])

        def work() -> Array:
            self._each_piece(flat[None], take, lambda reader, owner: sources[reader] == owner)
            return out.reshape(x.shape)

        return self._run(call, x, work)

    # ------------------------------------------------------------------------------------- pieces

    def _each_piece(
        self,
        table: Array,
        take: Callable[[list[Array], int, int], None],
        reads: Callable[[int, int], float] = lambda reader, owner: 1,
    ) -> None:
        """Show everybody a table, some columns at a time; `take` gets those of all and their
        numbers. reads: how much of the memory of a rank another one reads."""
        rows, columns = table.shape
        if self.size == 1:
            take([table], 0, columns)
            return
        for kind, start, stop in self._pieces_of(columns, rows * table.itemsize):
            part = table[:, start:stop]
            if self._by_messages(table):
                shown = self._all(np.ascontiguousarray(part).reshape(-1), kind)
            else:
                place = self._write(part)
                self._sync(kind)
                self._count_shown(part.nbytes, reads)
                shown = self._pieces(place, part.size, table.dtype)
            take([p.reshape(part.shape) for p in shown], start, stop)

    def _each_row(self, table: Array, take: Callable[[list[Array], int, int], None]) -> None:
        """As `_each_piece`, of the row of this rank alone."""
        if self.size > 1 and self._by_messages(table):
            for kind, start, stop in self._pieces_of(table.shape[1], table.itemsize):
                take(self._rows(table[:, start:stop], kind), start, stop)
        else:
            self._each_piece(
                table, lambda parts, a, b: take([p[self.rank] for p in parts], a, b),
                lambda reader, owner: 1 / self.size,
            )  # fmt: skip

    def _count_shown(self, nbytes: int, reads: Callable[[int, int], float]) -> None:
        """A piece of each member was shown to all."""
        for rank, counts in self._others.traffic.items():
            counts.shared_bytes += int(nbytes * reads(self.rank, rank))
            counts.ring_bytes += int(nbytes * reads(rank, self.rank))

    def _write(self, part: Array) -> int:
        """Write a piece into the next place of one's own memory: which one."""
        self._place = (self._place + 1) % _PLACES
        own = self._pieces(self._place, part.size, part.dtype)[self.rank]
        np.copyto(own.reshape(part.shape), part)
        return self._place

    def _pieces(self, place: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """So many elements of a place in the memory of each member."""
        start, stop = place * PIECE_BYTES, place * PIECE_BYTES + count * dtype.itemsize
        return [m[start:stop].view(dtype) for m in self._others.memory]


def fold(parts: Sequence[Array], add: np.ufunc, out: Array) -> None:
    """`add` of arrays in their order; sums of 16-bit floats are made in float32."""
    if out.dtype.itemsize == 2 and out.dtype.kind not in "iu" and add is np.add:
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            total += part.astype(np.float32)
        out[...] = total.astype(out.dtype)
        return
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        add(out, part, out=out)


def _copy_rows(out: Array, parts: Sequence[Array], row: int, start: int, stop: int) -> None:
    for rank, part in enumerate(parts):
        np.copyto(out[rank, start:stop], part[row])


def _flat(x: Array) -> Array:
    """The elements in row-major order, at addresses one behind the other."""
    return np.ascontiguousarray(x).reshape(-1)


def _raw(x: Array) -> Any:
    return x.view(np.uint8)


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.close("its process has ended")


def _abandon_all() -> None:
    for group in list(_groups):
        group.abandon()
    _groups.clear()


os.register_at_fork(after_in_child=_abandon_all)
