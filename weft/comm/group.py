"""`Group`: collectives of arrays between processes of one host.

Each member has a socket of the host to each other one, and a memfd that the others map. A call
sends everybody what it is: its number, a hash of its op, shape and dtype, and the line of the
program that makes it; so members whose programs differ say so. Up to `INLINE_BYTES` the array is
behind that. Larger ones go through the memfds in pieces. Then messages are bare headers, which say
that one's piece is written, and that one's slice of the last piece is added up. A memfd has three
places for pieces: what is written over was read by all before they sent the last header.

Sums are in the order of ranks, whoever comes first. There is no thread: the caller's sends, waits
and adds. Whatever ends a call ends the group: its farewell tells the others why.

Names are abstract addresses of Unix sockets, so nothing is left in any folder; whoever connects has
to be of the same user, for which the kernel vouches."""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import hashlib
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn, Self

import numpy as np

from weft.comm.errors import (
    AddressError,
    CommError,
    DeadlineError,
    GroupEndedError,
    PeerLostError,
    ProgramsDifferError,
    UnreachableError,
)
from weft.comm.shared_memory import AVAILABLE, Region
from weft.comm.wire import Array

INLINE_BYTES: Final = 16 << 10
#: Of an array that lies in a memfd at once: small enough for the caches of all members.
PIECE_BYTES: Final = 1 << 20
_PLACES: Final = 3
_HEAD: Final = struct.Struct("<4sBxHIQQ")  # magic, kind, bytes of text, of data, number, hash
_HELLO: Final = struct.Struct("<4sIIQ")  # magic, rank, size, bytes of the memfd
_CREDENTIALS: Final = struct.Struct("3i")
_MAGIC: Final = b"WFG1"
_CALL, _NEXT, _FAREWELL = 1, 2, 3
#: How long a wait goes on until it looks whether somebody else was lost, and the deadline.
_SLICE_S: Final = 0.25
_MOST_TEXT: Final = 2000
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

    Raises AddressError where another process has this rank, UnreachableError for who does not come,
    and AddressError on systems without memfds. A group is used by one thread at a time.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: float = 300.0,
        connect_timeout: float = 60.0,
        is_there: Callable[[int], bool] = lambda rank: True,
    ) -> None:
        if not 0 <= rank < size:
            raise AddressError(f"rank {rank} of a group of {size}")
        self.name, self.rank, self.size, self.timeout = name, rank, size, timeout
        self._sockets: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._memory: list[Array] = [np.empty(0, np.uint8)] * size
        self._region: Region | None = None
        self._ended = ""  # why; an error would keep views of the memory
        self._lock = threading.Lock()
        self._is_there = is_there
        self._number = 0  # of the call
        self._place = 0
        self._what = ""
        self._hash = 0
        if size == 1:
            return
        if not AVAILABLE:
            raise AddressError(f"no shared memory between processes on {sys.platform}")
        self._region = Region(_PLACES * PIECE_BYTES)
        self._memory[rank] = self._region.bytes
        try:
            self._meet(time.monotonic() + connect_timeout)
        except BaseException as error:
            self._end(error)
            raise
        _groups.add(self)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ meeting

    def _meet(self, deadline: float) -> None:
        """Connect to all of a lower rank, and be connected to by the others."""
        with socket.socket(socket.AF_UNIX) as inbox:
            try:
                inbox.bind(address_of(self.name, self.rank))
            except OSError:
                raise AddressError(
                    f"another process has rank {self.rank} of the group '{self.name}'"
                ) from None
            inbox.listen(self.size)
            for rank in range(self.rank):
                self._sockets[rank] = self._connected(rank, deadline)
            while len(self._sockets) < self.size - 1:
                inbox.settimeout(min(_SLICE_S, self._left(deadline)))
                with contextlib.suppress(TimeoutError):
                    self._admit(inbox.accept()[0])
        seconds = struct.pack("ll", int(_SLICE_S), int(_SLICE_S % 1 * 1e6))
        for one in self._sockets.values():
            one.settimeout(None)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def _left(self, deadline: float) -> float:
        """Seconds until the deadline. UnreachableError if there are none."""
        self._what = "the meeting of the group"
        self._look(float("inf"), self.rank)
        left = deadline - time.monotonic()
        missing = [r for r in range(self.size) if r != self.rank and r not in self._sockets]
        gone = [r for r in missing if not self._is_there(r)]
        if gone or left <= 0:
            who = _ranks(gone or missing)
            raise UnreachableError(f"{who} of the group '{self.name}' did not come")
        return left

    def _connected(self, rank: int, deadline: float) -> socket.socket:
        pause = 1e-3
        while True:
            one = socket.socket(socket.AF_UNIX)
            try:
                one.settimeout(self._left(deadline))
                one.connect(address_of(self.name, rank))
                self._greet(one)
                if self._hello(one) == rank:
                    return one
            except BaseException as error:
                one.close()
                # Else it does not listen yet, or has left. Errors of a group are OSErrors, too.
                if isinstance(error, CommError) or not isinstance(error, OSError | _StrangerError):
                    raise
            one.close()
            time.sleep(min(pause, self._left(deadline)))
            pause = min(2 * pause, 0.05)

    def _admit(self, one: socket.socket) -> None:
        """Take a connection of somebody who belongs here; all others are closed."""
        try:
            one.settimeout(5.0)
            rank = self._hello(one)
            if rank in self._sockets or rank <= self.rank:
                raise _StrangerError
            self._greet(one)
            self._sockets[rank] = one
        except (OSError, _StrangerError):
            one.close()

    def _greet(self, one: socket.socket) -> None:
        assert self._region is not None
        hello = _HELLO.pack(_MAGIC, self.rank, self.size, self._region.bytes.nbytes)
        socket.send_fds(one, [hello], [self._region.descriptor])

    def _hello(self, one: socket.socket) -> int:
        """The rank of who is at the other end, whose memory is mapped then. _StrangerError, OSError
        for anybody else; AddressError for a member of a group of another size."""
        credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        if user != os.geteuid():
            raise _StrangerError
        space = socket.CMSG_SPACE(array.array("i").itemsize)
        data, found, _, _ = one.recvmsg(_HELLO.size, space, socket.MSG_CMSG_CLOEXEC)
        descriptors = [d for _, _, raw in found for d in array.array("i", raw)]
        try:
            if len(data) != _HELLO.size or len(descriptors) != 1:
                raise _StrangerError
            magic, rank, size, count = _HELLO.unpack(data)
            if magic != _MAGIC or rank >= size:
                raise _StrangerError
            if size != self.size or count != _PLACES * PIECE_BYTES:
                raise AddressError(
                    f"rank {rank} (process {pid}) says that the group '{self.name}' has {size} "
                    f"members, rank {self.rank} says {self.size}"
                )
            self._memory[rank] = _mapped(descriptors[0], count)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._pids[rank] = pid
        return int(rank)

    # ------------------------------------------------------------------------------------ the end

    def close(self, why: str = "its program closed the group") -> None:
        """Leave; members that are in a call, or make one, hear why. A second time nothing."""
        if not self._ended:
            self._end(GroupEndedError(why))

    def _end(self, error: BaseException) -> None:
        self._ended = str(error) or type(error).__name__
        _groups.discard(self)
        text = self._ended.encode(errors="replace")[:_MOST_TEXT]
        head = _HEAD.pack(_MAGIC, _FAREWELL, len(text), 0, self._number, 0)
        for one in self._sockets.values():
            with contextlib.suppress(OSError):
                one.send(head + text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            one.close()
        self._memory = [np.empty(0, np.uint8)] * self.size
        if self._region is not None:
            with contextlib.suppress(BufferError):  # the error's frames have views of it
                self._region.close()
            self._region = None

    def abandon(self) -> None:
        """In a child of a fork: the sockets are the parent's, a call of which may hold the lock."""
        self._lock = threading.Lock()
        for one in self._sockets.values():
            one.close()
        self._sockets = {}
        self._ended = "it was made before a fork of the process"

    def _run(self, call: Call, x: Array, work: Callable[[], Array]) -> Array:
        """The result of a call, which ends the group if it does not come."""
        with self._lock:
            if self._ended:
                raise GroupEndedError(f"the group '{self.name}' has ended: {self._ended}")
            self._number += 1
            self._what, self._hash = call.text(x), call.digest(x)
            try:
                return work()
            except BaseException as error:
                self._end(error)
                raise

    # ----------------------------------------------------------------------------------- messages

    def _tell(self, kind: int, data: Callable[[int], Any] | None = None) -> None:
        """Send a message to everybody. data: the bytes for a rank."""
        text = self._what.encode()[:_MOST_TEXT] if kind == _CALL else b""
        for rank, one in self._sockets.items():
            raw = memoryview(data(rank)).cast("B") if data is not None else b""
            head = _HEAD.pack(_MAGIC, kind, len(text), len(raw), self._number, self._hash)
            left = len(head) + len(text) + len(raw)
            try:
                left -= one.sendmsg([head, text, raw], [], socket.MSG_NOSIGNAL)
                if left:
                    self._send_rest(rank, (head + text + bytes(raw))[-left:])
            except BlockingIOError:
                self._send_rest(rank, head + text + bytes(raw))
            except OSError:
                self._last_words(rank)

    def _send_rest(self, rank: int, data: bytes) -> None:
        """What did not go at once, as the member is far behind."""
        deadline = time.monotonic() + self.timeout
        while data:
            try:
                data = data[self._sockets[rank].send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._look(deadline, rank)
            except OSError:
                self._last_words(rank)

    def _hear(self, kind: int) -> list[bytearray]:
        """The data of a message of each member, by rank, one's own empty."""
        return [
            self._read(rank, kind) if rank != self.rank else bytearray()
            for rank in range(self.size)
        ]

    def _read(self, rank: int, kind: int) -> bytearray:
        """The data of the next message of a member. Errors for any other than the expected."""
        head = self._bytes(rank, _HEAD.size)
        magic, what, length, count, number, digest = _HEAD.unpack(head)
        text = self._bytes(rank, length).decode(errors="replace") if length else ""
        if magic != _MAGIC:
            raise PeerLostError(f"rank {rank} sends what is no message")
        if what == _FAREWELL:
            raise PeerLostError(f"rank {rank} has left, in {self._what}: {text}")
        if number != self._number or digest != self._hash or what != kind:
            theirs = text or "a part of another call"
            raise ProgramsDifferError(
                f"the members' programs differ: call {self._number} of rank {self.rank} is "
                f"{self._what}, call {number} of rank {rank} is {theirs}"
            )
        return self._bytes(rank, count) if count else bytearray()

    def _bytes(self, rank: int, count: int) -> bytearray:
        """So many bytes of a member. PeerLostError, DeadlineError."""
        made = bytearray(count)
        view, one = memoryview(made), self._sockets[rank]
        deadline = 0.0
        while view:
            try:
                got = one.recv_into(view)
            except BlockingIOError:
                deadline = deadline or time.monotonic() + self.timeout - _SLICE_S
                self._look(deadline, rank)
                continue
            except OSError:
                got = 0
            if not got:
                raise self._lost(rank)
            view = view[got:]
        return made

    def _lost(self, rank: int) -> PeerLostError:
        return PeerLostError(f"rank {rank} (process {self._pids[rank]}) is lost, in {self._what}")

    def _look(self, deadline: float, waits_for: int) -> None:
        """PeerLostError if somebody is gone, DeadlineError after the deadline."""
        poll = select.poll()
        ranks = {one.fileno(): rank for rank, one in self._sockets.items()}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN | select.POLLRDHUP)
        found = {ranks[descriptor]: events for descriptor, events in poll.poll(0)}
        if not found.get(waits_for, 0) & select.POLLIN:  # else it has come; others may be through
            for rank, events in found.items():
                if events & (select.POLLRDHUP | select.POLLHUP) and rank != waits_for:
                    self._last_words(rank)
        if time.monotonic() > deadline:
            silent = {r for r in ranks.values() if not found.get(r, 0) & select.POLLIN}
            late = [r for r in ranks.values() if r == waits_for or (r > waits_for and r in silent)]
            raise DeadlineError(
                f"{_ranks(late)} did not come within {self.timeout:g} s, in {self._what}"
            )

    def _last_words(self, rank: int) -> NoReturn:
        """Raise what a member that is gone has said last: a farewell, or nothing."""
        one = self._sockets[rank]
        said = b""
        with contextlib.suppress(OSError):
            while more := one.recv(1 << 16, socket.MSG_DONTWAIT):
                said += more
        at = said.rfind(_MAGIC + bytes([_FAREWELL]))
        if at < 0:
            raise self._lost(rank)
        text = said[at + _HEAD.size :].decode(errors="replace")
        raise PeerLostError(f"rank {rank} has left, in {self._what}: {text}")

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
        else:
            self._combine_pieces(table, total, out)

    def _all(self, flat: Array) -> list[Array]:
        """The arrays of all members, sent whole."""
        self._tell(_CALL, lambda rank: _raw(flat))
        made = [np.frombuffer(raw, flat.dtype) for raw in self._hear(_CALL)]
        made[self.rank] = flat
        return made

    def _combine_pieces(self, table: Array, total: Total, out: Array) -> None:
        rows, columns = table.shape
        step = max(1, PIECE_BYTES // (table.itemsize * rows))
        here = self._write(table[:, :step])
        self._sync(_CALL)
        for start in range(0, columns, step):
            length = min(step, columns - start)
            cuts = [length * rank // self.size for rank in range(self.size + 1)]
            slices = [slice(a, b) for a, b in pairwise(cuts)]
            shown = self._pieces(here, rows * length, table.dtype)
            parts, own = [p.reshape(rows, length) for p in shown], slices[self.rank]
            piece = out[start : start + length]
            total([part[:, own] for part in parts], piece[own])
            np.copyto(parts[self.rank][0, own], piece[own])
            if start + step < columns:
                here = self._write(table[:, start + step : start + 2 * step])
            self._sync(_NEXT)
            for rank, share in enumerate(slices):
                if rank != self.rank:
                    np.copyto(piece[share], parts[rank][0, share])

    def broadcast(self, x: Array, root: int, call: Call, keep: bool = True) -> Array:
        """The array of the member `root`; of others x says shape and dtype. keep: whether this one
        wants it; else the result is anything."""
        out = _flat(x)

        def work() -> Array:
            here = self.rank == root
            if self.size > 1 and out.nbytes <= INLINE_BYTES:
                self._tell(_CALL, (lambda rank: _raw(out)) if here else None)
                raw = self._hear(_CALL)[root]
                return x if here else np.frombuffer(raw, x.dtype).reshape(x.shape)
            step = PIECE_BYTES // out.itemsize
            for k, start in enumerate(range(0, out.size if self.size > 1 else 0, step)):
                part = out[start : start + step]
                place = self._write(part if here else part[:0])
                self._sync(_NEXT if k else _CALL)
                if keep and not here:
                    np.copyto(part, self._pieces(place, part.size, part.dtype)[root])
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def gather(self, x: Array, call: Call) -> Array:
        """The arrays of all members, along a new first axis."""
        flat = _flat(x)
        out = np.empty((self.size, flat.size), flat.dtype)

        def work() -> Array:
            if flat.nbytes <= INLINE_BYTES or self.size == 1:
                for row, part in zip(out, self._all(flat), strict=True):
                    row[...] = part
            else:
                self._each_piece(flat[None], lambda parts, a, b: _copy_rows(out, parts, 0, a, b))
            return out.reshape(self.size, *x.shape)

        return self._run(call, x, work)

    def scatter(self, x: Array, add: np.ufunc, call: Call) -> Array:
        """`add` of the rows of all members that have this one's rank."""
        table = _flat(x).reshape(self.size, -1)
        out = np.empty_like(table[0])

        def work() -> Array:
            if table.nbytes <= INLINE_BYTES or self.size == 1:
                fold(self._rows(table), add, out)
            else:
                self._each_piece(
                    table, lambda parts, a, b: fold([p[self.rank] for p in parts], add, out[a:b])
                )
            made: Array = out.reshape(x.shape[1:])
            return made

        return self._run(call, x, work)

    def exchange(self, x: Array, call: Call) -> Array:
        """The rows of all members that have this one's rank, along the first axis."""
        table = _flat(x).reshape(self.size, -1)
        out = np.empty_like(table)

        def work() -> Array:
            if table.nbytes <= INLINE_BYTES or self.size == 1:
                for row, part in zip(out, self._rows(table), strict=True):
                    row[...] = part
            else:
                own = self.rank
                self._each_piece(table, lambda parts, a, b: _copy_rows(out, parts, own, a, b))
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def permute(self, x: Array, sources: Sequence[int], call: Call) -> Array:
        """The array of the member `sources[rank]`, zeros where that is -1."""
        flat, source = _flat(x), sources[self.rank]
        out = np.zeros_like(flat)

        def work() -> Array:
            if flat.nbytes <= INLINE_BYTES or self.size == 1:
                parts = self._all(flat)
                if source >= 0:
                    out[...] = parts[source]
            else:

                def take(parts: list[Array], a: int, b: int) -> None:
                    if source >= 0:
                        np.copyto(out[a:b], parts[source][0])

                self._each_piece(flat[None], take)
            return out.reshape(x.shape)

        return self._run(call, x, work)

    def _rows(self, table: Array) -> list[Array]:
        """The row of this rank of each member, sent whole."""
        self._tell(_CALL, lambda rank: _raw(table[rank]))
        made = [np.frombuffer(raw, table.dtype) for raw in self._hear(_CALL)]
        made[self.rank] = table[self.rank]
        return made

    # ------------------------------------------------------------------------------------- pieces

    def _each_piece(self, table: Array, take: Callable[[list[Array], int, int], None]) -> None:
        """Show everybody a table, some columns at a time; `take` gets those of all and their
        numbers."""
        rows, columns = table.shape
        step = max(1, PIECE_BYTES // (table.itemsize * rows))
        for k, start in enumerate(range(0, columns, step)):
            part = table[:, start : start + step]
            place = self._write(part)
            self._sync(_NEXT if k else _CALL)
            shown = self._pieces(place, part.size, table.dtype)
            take([p.reshape(part.shape) for p in shown], start, start + part.shape[1])

    def _write(self, part: Array) -> int:
        """Write a piece into the next place of one's own memory: which one."""
        self._place = (self._place + 1) % _PLACES
        own = self._pieces(self._place, part.size, part.dtype)[self.rank]
        np.copyto(own.reshape(part.shape), part)
        return self._place

    def _pieces(self, place: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """So many elements of a place in the memory of each member."""
        start = place * PIECE_BYTES
        return [m[start : start + count * dtype.itemsize].view(dtype) for m in self._memory]

    def _sync(self, kind: int) -> None:
        """Wait until everybody is as far."""
        self._tell(kind)
        self._hear(kind)


def address_of(name: str, rank: int) -> str:
    """Where a member of a group listens while it meets the others."""
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"\0weft-group-{digest}-{rank}"


class _StrangerError(Exception):
    """Who connects does not belong here."""


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


def _mapped(descriptor: int, count: int) -> Array:
    """The memory of another member, to be read. _StrangerError if its size may change: reading what
    is gone would end this process."""
    sealed = fcntl.F_SEAL_SHRINK
    if os.fstat(descriptor).st_size != count:
        raise _StrangerError
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & sealed != sealed:
        raise _StrangerError
    return np.frombuffer(mmap.mmap(descriptor, count, prot=mmap.PROT_READ), np.uint8)


def _ranks(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, sorted(ranks)))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.close("its process has ended")


def _abandon_all() -> None:
    for group in list(_groups):
        group.abandon()
    _groups.clear()


os.register_at_fork(after_in_child=_abandon_all)
