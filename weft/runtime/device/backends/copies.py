"""Copies between the host and a CUDA device: the part of `CudaDevice` that is about them.

The driver may wait for a stream where memory of the host is not pinned (CUDA Driver API, "API
synchronization behavior"), and whoever asks holds the device's lock. So such memory goes through
pinned memory of the device's own, and the host waits for events, without the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.runtime.device.backends.memory import Memories, is_pinned
from weft.runtime.device.backends.streams import CudaMark
from weft.runtime.device.protocol import Array, Mark, bytes_of

#: Bytes of a small slot, for words that the host looks at; so many of them are taken at once.
SMALL, SMALL_AT_ONCE = 4096, 16
#: Bytes of a large one: what is larger is copied in parts, and so many are on their way at once.
LARGE, MOST_LARGE = 4 << 20, 2


@dataclass(slots=True)
class _Slot:
    """Pinned memory. busy: the point at which the device has read it."""

    room: Array
    busy: Mark | None = None


class Staging:
    """Slots of pinned memory. host: gives that."""

    def __init__(self, host: Callable[[int], Array]) -> None:
        self._host = host
        self._free: dict[bool, deque[_Slot]] = {True: deque(), False: deque()}
        self._large = 0  # how many there are

    def take(self, nbytes: int) -> _Slot:
        """A slot for `nbytes`, or as much as there is in one. No lock is held: may wait."""
        small = nbytes <= SMALL
        free = self._free[small]
        try:
            slot = free.popleft()
        except IndexError:
            return self._made(small)
        if slot.busy is not None:
            if not slot.busy.done():
                if small or self._large < MOST_LARGE:
                    free.append(slot)
                    return self._made(small)
                slot.busy.wait()
            slot.busy = None
        return slot

    def give(self, slot: _Slot) -> None:
        """Others may use it, when it is not busy any more. A slot that is not given, because there
        was an error, is freed when nobody holds it."""
        small = len(slot.room) == SMALL
        if small or self._large <= MOST_LARGE:
            self._free[small].append(slot)
        else:
            self._large -= 1

    def _made(self, small: bool) -> _Slot:
        if not small:
            made = _Slot(self._host(LARGE))
            self._large += 1
            return made
        block = self._host(SMALL * SMALL_AT_ONCE)
        first, *others = (
            _Slot(block[k : k + SMALL]) for k in range(0, SMALL * SMALL_AT_ONCE, SMALL)
        )
        self._free[True].extend(others)
        return first


class Copies(Memories):
    """The part of `CudaDevice` that copies from and to the host."""

    _streams: list[Any]
    _events: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self._staging = Staging(self.host)

    def upload(self, address: int, source: Array, after: Mark | None = None) -> None:
        if not source.nbytes:
            return
        if is_pinned(source):
            self._send(address, source, after, True, True)
            return
        raw, size = bytes_of(source), source.nbytes
        try:
            for begin in range(0, size, LARGE):
                part = raw[begin : begin + LARGE]
                slot = self._staging.take(len(part))
                room = slot.room[: len(part)]
                room[:] = part
                last = begin + LARGE >= size
                slot.busy = self._send(address + begin, room, after, not begin, last)
                self._staging.give(slot)
        except BaseException:  # the target may be given back now: after the parts asked for so far
            with suppress(WeftError), self._lock:
                self._enter()
                self._follow(self._work, self._in)
            raise

    def _send(
        self, address: int, source: Array, after: Mark | None, first: bool, last: bool
    ) -> CudaMark | None:
        """Ask for a copy from pinned memory; where that has been read. first, last: whether it is
        of what is copied at once."""
        with self._lock:
            self._enter()
            if first and after is not None:
                self._after(self._in, after)
            elif first:
                self._follow(self._in, self._work)
            self._driver.call(
                "cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self._in
            )
            if last:
                self._follow(self._work, self._in)
            return self._marked(self._in)

    def download(self, target: Array, address: int, after: Mark | None = None) -> None:
        if not target.nbytes or is_pinned(target):
            self._fetch(target, address, after, True).wait()
            return
        raw, size = bytes_of(target), target.nbytes
        going: deque[tuple[CudaMark, _Slot, Array]] = deque()

        def end() -> None:
            mark, slot, part = going.popleft()
            mark.wait()
            part[:] = slot.room[: len(part)]
            self._staging.give(slot)

        for begin in range(0, size, LARGE):
            part = raw[begin : begin + LARGE]
            slot = self._staging.take(len(part))
            mark = self._fetch(slot.room[: len(part)], address + begin, after, not begin)
            going.append((mark, slot, part))
            if len(going) == MOST_LARGE:
                end()
        while going:
            end()

    def _fetch(self, target: Array, address: int, after: Mark | None, first: bool) -> CudaMark:
        """Ask for a copy to pinned memory; where it is there."""
        last = 0
        with self._lock:
            self._enter()
            if first and after is not None:
                self._after(self._out, after)
                assert isinstance(after, CudaMark)
                last = after.after
            elif first:
                last = self.calls.last
                self._follow(self._out, self._work)
            if target.nbytes:
                self._driver.call(
                    "cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, self._out
                )
            made = self._marked(self._out)
            made.after = last
            return made

    def _follow(self, stream: Any, other: Any) -> None:
        """What `stream` is given from now on begins when `other` has done what it was given."""
        event = self._events[self._streams.index(other)]
        self._driver.call("cuEventRecord", event, other)
        self._driver.call("cuStreamWaitEvent", stream, event, 0)


__all__ = ["Copies", "Staging"]
