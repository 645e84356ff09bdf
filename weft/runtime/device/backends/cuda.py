"""`CudaDevice`: a GPU through NVIDIA's driver (`device.protocol.Device`, `cuda.bindings.driver`).

Three streams: copies to the device, kernels, copies from it. Events keep them in order, so that
copies of one step overlap the kernels of another. A launch is one call of the driver with arguments
that were packed before; launches are recorded as CUDA graphs.

Memory comes from the driver's stream-ordered pool; on a GPU without pools from `cuMemAlloc`, and is
given back once the device is past its last use. The driver may wait for a stream where memory of
the host is not pinned (CUDA Driver API, "API synchronization behavior"), and whoever asks holds the
device's lock. So such memory goes through pinned memory of the device's own, and the host waits for
events, without the lock.

A stream of another library is known by its handle, an integer (1: the legacy default stream, 2:
that of the thread), as DLPack and `__cuda_array_interface__` pass it on.

In this order: streams, memory, copies, recordings, copies between devices, the device."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from weft.codegen.cuda.source.kernel import CudaKernel, Launch
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    WeftError,
)
from weft.ir.process import collector_paused
from weft.runtime.device.backends.dlpack import DEFAULT_STREAM
from weft.runtime.device.backends.driver import DeviceDriver, Driver
from weft.runtime.device.backends.info import real_gpu
from weft.runtime.device.libraries.choice import CudaLibraries
from weft.runtime.device.libraries.library import LibraryLaunch
from weft.runtime.device.protocol import (
    Array,
    Calls,
    Device,
    Mark,
    Prepared,
    Recording,
    Resident,
    bytes_of,
    no_room,
    what_is_there,
)

#: What died since: the function of the driver that gives it back, what that is given, and how many
#: bytes of the device it was, for what. Objects die in any thread, while launches are recorded,
#: too: then it is no time to call the driver. `FORGET` is no function: it takes a stream.
Dead = deque[tuple[str, Any, int, str]]
FORGET = "forget"
#: No handle of a stream: all of the context.
_EVERY = -1
#: The first release of CUDA with `cuCtxRecordEvent`.
_CONTEXT_EVENTS = 12050
#: What the driver says where somebody has ended a recording, this thread or another, or what was
#: asked for cannot be while one is made: 900 to 908.
ENDED = frozenset(
    f"CUDA_ERROR_{what}"
    for what in (
        *(f"STREAM_CAPTURE_{why}" for why in ("UNSUPPORTED", "INVALIDATED", "MERGE", "UNMATCHED")),
        *(f"STREAM_CAPTURE_{why}" for why in ("UNJOINED", "ISOLATION", "IMPLICIT", "WRONG_THREAD")),
        "CAPTURED_EVENT",
    )
)


class CudaMark:
    """`protocol.Mark`: an event, which others use again when this is gone. after: the number of the
    last call (`calls.Calls`) that is done when the device is there."""

    __slots__ = ("_device", "_event", "after")

    def __init__(self, device: Streams, event: Any) -> None:
        self._device, self._event, self.after = device, event, 0

    def wait(self) -> None:
        self._device._wait_event(self._event)
        self._device.calls.done(self.after)

    def done(self) -> bool:
        return self._device._is_past(self._event)

    def __del__(self) -> None:
        self._device._spare.append(self._event)


class Streams(ABC):
    """The part of `CudaDevice` that is about events and the streams of others."""

    calls: Calls
    _driver: DeviceDriver
    _lock: threading.RLock
    _dead: Dead
    _in: Any
    _work: Any
    _out: Any
    _context: Any

    def __init__(self) -> None:
        self._spare: list[Any] = []
        self._held: deque[tuple[CudaMark, object]] = deque()

    @abstractmethod
    def _enter(self) -> None:
        """Make the device's context that of this thread."""

    @property
    def stream(self) -> int:
        """The handle of the kernels' stream."""
        return int(self._work)

    # -- events -----------------------------------------------------------------------------------

    def mark(self) -> CudaMark:
        last = self.calls.last  # before the event: it may grow meanwhile
        made = self._marked(self._work)
        made.after = last
        return made

    def sent(self) -> CudaMark:
        return self._marked(self._in)

    def _marked(self, stream: Any) -> CudaMark:
        with self._lock:
            self._enter()
            made = CudaMark(self, self._event())
            self._driver.call("cuEventRecord", made._event, stream)
            return made

    def _event(self) -> Any:
        try:
            return self._spare.pop()
        except IndexError:
            return self._driver.call("cuEventCreate", 2)  # 2: without times

    def _after(self, stream: Any, mark: Any) -> None:
        """What `stream` is given from now on begins after `mark`."""
        assert isinstance(mark, CudaMark)
        self._driver.call("cuStreamWaitEvent", stream, mark._event, 0)

    def _wait_event(self, event: Any) -> None:
        self._enter()
        self._driver.call("cuEventSynchronize", event)

    def _is_past(self, event: Any) -> bool:
        try:
            self._enter()
            failed, _ = self._driver.tried("cuEventQuery", event)
        except WeftError:  # a kernel failed: nothing runs any more
            return True
        # not known while another library records by CU_STREAM_CAPTURE_MODE_GLOBAL
        return failed != "CUDA_ERROR_NOT_READY" and failed not in ENDED

    def keep(self, thing: object) -> None:
        """Hold `thing` until the work so far is done."""
        self._held.append((self.mark(), thing))
        self.let_go()

    def let_go(self) -> None:
        """Let go of what is kept no longer. No lock is held: it may run code of others, and another
        thread may be recording."""
        while True:
            try:
                mark, thing = self._held.popleft()
            except IndexError:
                return
            if not mark.done():
                self._held.appendleft((mark, thing))
                return

    # -- streams of others ------------------------------------------------------------------------

    def wait_for(self, stream: int) -> None:
        with self._lock:
            self._enter()
            other = self._driver.api.CUstream(stream)
            self._after(self._work, self._marked(other))

    def precede(self, stream: int, after: Mark | None = None) -> None:
        with self._lock:
            self._enter()
            self._after(self._driver.api.CUstream(stream), after or self._marked(self._work))

    def forget(self, stream: int) -> None:
        self._dead.append((FORGET, stream, 0, ""))

    def _wait_to_forget(self, stream: int, waits: set[int]) -> bool:
        """Memory is given back in the order of the kernels' stream: that waits for the default
        stream. Another may be gone by now, or (2) be another thread's: it waits for all that the
        context was given. waits: for which streams it does already, `_EVERY` for all. False: it
        cannot now, as another library is recording."""
        if stream in waits or _EVERY in waits:
            return True
        if not self._wait_for_others(stream == DEFAULT_STREAM):
            return False
        waits.add(stream if stream == DEFAULT_STREAM else _EVERY)
        return True

    def _wait_for_others(self, default: bool) -> bool:
        """What is asked for from now on begins when all streams of the context, or the default one,
        have done what they were given. The host waits where the driver has no event for all (before
        CUDA 12.5). False where one of them is captured."""
        api, driver = self._driver.api, self._driver
        mark = CudaMark(self, self._event())
        if default:
            given = mark._event, api.CUstream(DEFAULT_STREAM)
            failed, _ = driver.tried("cuEventRecord", *given)
        elif driver.version < _CONTEXT_EVENTS or not hasattr(api, "cuCtxRecordEvent"):
            failed, _ = driver.tried("cuCtxSynchronize")
            mark = self._marked(self._work) if not failed else mark
        else:
            failed, _ = driver.tried("cuCtxRecordEvent", self._context, mark._event)
        if failed in ENDED:
            return False
        if failed:
            raise InternalError(f"waiting for the work of other libraries failed: {failed}")
        self._after(self._work, mark)
        return True

    def number_at(self, address: int) -> int:
        what = self._driver.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self._lock:
            self._enter()
            failed, number = self._driver.tried("cuPointerGetAttribute", what, address)
        if failed:
            raise InvalidArgumentError(f"{address:#x} is not memory of a GPU: {failed}")
        return int(number)


OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_OTHERS = "other programs may use the device too: nvidia-smi shows them"


class Block:
    """Memory of the device."""

    __slots__ = ("__weakref__", "_dead", "address", "nbytes", "what")

    def __init__(self, address: int, nbytes: int, what: str, dead: Dead) -> None:
        self.address, self.nbytes, self.what, self._dead = address, nbytes, what, dead

    def __del__(self) -> None:
        self._dead.append(("cuMemFree", self.address, self.nbytes, self.what))


class Pinned:
    """Pinned memory for NumPy, which keeps this object as long as an array is on it."""

    def __init__(self, address: int, nbytes: int, dead: Dead) -> None:
        self._address, self._dead = address, dead
        self.__array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._dead.append(("cuMemFreeHost", self._address, 0, ""))


def is_pinned(array: Array) -> bool:
    """Whether an array is on memory that `Memories.host` gave."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Pinned)


class Memories(Streams):
    """The part of `CudaDevice` that is about memory."""

    name: str
    memory: int | None
    resident: Resident
    _device: Any
    _now: Any

    def __init__(self) -> None:
        super().__init__()
        self._dead: Dead = deque()
        # what the driver takes at once, and others are using: until these marks
        self._leaving: deque[tuple[tuple[CudaMark, ...], str, int]] = deque()
        self._pool: Any = None  # None: the GPU has no pools

    def _find_pool(self) -> None:
        """The pool keeps what is given back, or every wait for the device would empty it."""
        call, api = self._driver.call, self._driver.api
        has = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        if not call("cuDeviceGetAttribute", has, self._device):
            return
        self._pool = call("cuDeviceGetDefaultMemPool", self._device)
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", self._pool, threshold, api.cuuint64_t((1 << 64) - 1))

    def allocate(self, nbytes: int, what: str, early: bool = False, spare: bool = False) -> Block:
        stream = self._in if early else self._work
        with self._lock:
            self._enter()
            self._free()
            failed, address = self._take(nbytes, stream)
            for drop in (self.resident.drop_spare, self.resident.drop_idle):
                if failed == OUT_OF_MEMORY and not spare:
                    self._make_room(drop)
                    failed, address = self._take(nbytes, stream)
            if failed == OUT_OF_MEMORY:
                raise ResourceExhaustedError(
                    no_room(self.name, what, nbytes, self.resident, self.memory or 0),
                    hint=_OTHERS,
                )
            if failed:
                raise InternalError(f"the NVIDIA driver gave no memory: {failed}")
            self.resident.add(what, nbytes)
            return Block(int(address), nbytes, what, self._dead)

    def _take(self, nbytes: int, stream: Any) -> tuple[str, Any]:
        size = max(nbytes, 1)
        if self._pool is None:
            return self._driver.tried("cuMemAlloc", size)
        return self._driver.tried("cuMemAllocAsync", size, stream)

    def _make_room(self, drop: Callable[[], None]) -> None:
        """Give back what `drop` lets go. Waits, so that all that was given back can be taken again;
        the pool may keep what others do not use."""
        drop()
        self._free()
        for stream in (self._in, self._work, self._out):
            self._driver.call("cuStreamSynchronize", stream)
        self._let_leave()
        if self._pool is not None:
            self._driver.call("cuMemPoolTrimTo", self._pool, 0)

    def _again(self, status: Any, launch: Callable[[], Any], what: str) -> Any:
        """The status of a launch that failed, after another try if the driver had no memory for
        what it takes by itself: it gets what is idle. ResourceExhaustedError; what: what was to be
        launched."""
        if self._driver.name_of(status) != OUT_OF_MEMORY:
            return status
        if self._now is self._work:  # else it is recorded, and nothing can be waited for
            self._make_room(self.resident.drop_idle)
            (status,) = launch()
        if self._driver.name_of(status) == OUT_OF_MEMORY:
            there = what_is_there(self.resident, self.memory or 0)
            raise ResourceExhaustedError(
                f"device {self.name} has no memory that the driver needs to launch {what}: {there}",
                hint=_OTHERS,
            )
        return status

    def reclaim(self) -> bool:
        with self._lock:
            self._enter()
            return self._free()

    def _free(self) -> bool:
        """Give back what died since, without waiting for the device. False where a stream cannot be
        waited for now: what died after that was said is not given back yet."""
        waits: set[int] = set()
        for _ in range(len(self._dead)):  # what dies meanwhile has been used meanwhile
            one = function, held, nbytes, what = self._dead.popleft()
            if function == FORGET:
                try:
                    forgotten = self._wait_to_forget(held, waits)
                except BaseException:
                    self._dead.appendleft(one)
                    raise
                if not forgotten:
                    self._dead.appendleft(one)
                    self._let_leave()
                    return False
            elif function == "cuMemFree":
                self._give_back(held)
                self.resident.add(what, -nbytes)
            elif function == "cuMemFreeHost":
                marks = self._marked(self._in), self._marked(self._out)
                self._leaving.append((marks, function, held))
            else:  # a recording: one that runs is freed when it is done (`cuGraphExecDestroy`)
                self._driver.call(function, held)
        self._let_leave()
        return True

    def _give_back(self, address: int) -> None:
        if self._pool is None:
            self._leaving.append(((self._marked(self._work),), "cuMemFree", address))
        else:
            self._driver.call("cuMemFreeAsync", address, self._work)

    def _let_leave(self) -> None:
        while self._leaving and all(mark.done() for mark in self._leaving[0][0]):
            _, function, held = self._leaving.popleft()
            self._driver.call(function, held)

    def host(self, nbytes: int) -> Array:
        """Pinned memory, as long as an array is on it."""
        with self._lock:
            self._enter()
            self._free()
            address = int(self._driver.call("cuMemHostAlloc", max(nbytes, 1), 0))
        return np.asarray(Pinned(address, nbytes, self._dead))


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


_log = logging.getLogger("weft.run")


class Recordings(Copies):
    """The part of `CudaDevice` that records launches."""

    _context: Any
    _blocking: bool
    _recorder: Any
    _now: Any

    def __init__(self) -> None:
        super().__init__()
        self._told = False  # whether it was said that a recording was ended
        self._nodes_known = False  # whether somebody asked which node was recorded

    def capture(self, work: Callable[[], None]) -> Recording | None:
        """The launches as a CUDA graph; None where every launch is to be waited for, and where
        somebody else's work in the context, or the lack of memory, has ended the recording."""
        if self._blocking:
            return None
        # what a collection frees may be another library's, whose calls would end the recording
        with self._lock, collector_paused():
            self._enter()
            try:
                return self._captured(work)
            except BaseException:  # Ctrl-C, too: before the recording has ended little is allowed
                with suppress(WeftError):  # a kernel has failed: that was told already
                    _, graph = self._driver.tried("cuStreamEndCapture", self._recorder)
                    if graph is not None:
                        self._driver.call("cuGraphDestroy", graph)
                raise

    def _captured(self, work: Callable[[], None]) -> Recording | None:
        mode = self._driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._driver.call("cuStreamBeginCapture", self._recorder, mode)
        wrong: WeftError | None = None
        try:
            self._now, self._nodes_known = self._recorder, False
            work()
        except WeftError as error:
            wrong = error
        finally:
            self._now = self._work
        try:
            failed, graph = self._driver.tried("cuStreamEndCapture", self._recorder)
        except WeftError as error:  # a kernel has failed: the first one told says more
            raise wrong or error from None
        if wrong is not None and failed not in ENDED:
            if not failed:
                self._driver.call("cuGraphDestroy", graph)
            if not isinstance(wrong, ResourceExhaustedError):
                raise wrong
            failed = OUT_OF_MEMORY
        if failed:
            self._not_recorded(failed)
            return None
        return self._instantiated(graph)

    def _instantiated(self, graph: Any) -> Recording | None:
        failed, ready = self._driver.tried("cuGraphInstantiate", graph, 0)
        if failed or not self._nodes_known:  # nodes are known by those of the graph
            self._driver.call("cuGraphDestroy", graph)
            graph = None
        if failed:
            self._not_recorded(failed)
            return None
        return CudaRecording(self, ready, graph, self._dead)

    def _not_recorded(self, failed: str) -> None:
        if failed not in ENDED and failed != OUT_OF_MEMORY:
            raise InternalError(f"launches could not be recorded on {self.name}: {failed}")
        level = logging.DEBUG if self._told else logging.WARNING
        self._told = True
        _log.log(level, "launches on %s are asked for one by one, as they could not be recorded: "
                 "%s; the program's other work on that GPU may have ended the recording "
                 "(said once)", self.name, failed)  # fmt: skip

    def recorded(self) -> object:
        """`Device.recorded`: the graph's node."""
        assert self._now is self._recorder
        self._nodes_known = True
        # (status, state, id, graph, nodes that the next one follows, ...): one stream, so one node
        nodes = self._driver.call("cuStreamGetCaptureInfo", self._recorder)[3]
        return nodes[0] if nodes else None

    def _replay(self, ready: Any) -> None:
        with self._lock:
            launch = self._driver.api.cuGraphLaunch
            (status,) = launch(ready, self._work)
            if int(status):
                what = "what was recorded"
                status = self._again(status, lambda: launch(ready, self._work), what)
                self._driver._check(status, "cuGraphLaunch")


class CudaRecording:
    """A CUDA graph, ready to be launched. graph: what its nodes are known by, if that is kept."""

    __slots__ = ("_dead", "_device", "_graph", "_ready")

    def __init__(self, device: Recordings, ready: Any, graph: Any, dead: Dead) -> None:
        self._device, self._ready, self._graph, self._dead = device, ready, graph, dead

    def __call__(self) -> None:
        self._device._replay(self._ready)

    def relaunch(self, node: object, prepared: Prepared) -> bool:
        node_of = getattr(prepared.handle, "node", None)
        if node_of is None:  # a library's: it alone knows what its kernels are given
            return False
        api = self._device._driver.api
        with self._device._lock:
            self._device._enter()
            failed, _ = self._device._driver.tried(
                "cuGraphExecKernelNodeSetParams", self._ready, node, node_of(api)
            )
        return not failed

    def recopy(self, node: object, target: int, source: int, nbytes: int) -> bool:
        api, device = self._device._driver.api, self._device
        given = api.CUDA_MEMCPY3D()
        kind = api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        given.srcMemoryType = given.dstMemoryType = kind
        given.srcDevice, given.dstDevice = api.CUdeviceptr(source), api.CUdeviceptr(target)
        given.WidthInBytes, given.Height, given.Depth = nbytes, 1, 1
        with device._lock:
            device._enter()
            failed, _ = device._driver.tried(
                "cuGraphExecMemcpyNodeSetParams", self._ready, node, given, device._context
            )
        return not failed

    def __del__(self) -> None:
        self._dead.append(("cuGraphExecDestroy", self._ready, 0, ""))
        if self._graph is not None:
            self._dead.append(("cuGraphDestroy", self._graph, 0, ""))


D = TypeVar("D")


def in_order(a: D, b: D) -> tuple[D, D]:
    """Both, as everybody takes their locks: or two threads could wait for each other."""
    return (a, b) if id(a) <= id(b) else (b, a)


def through_host(to: Device, target: int, other: Device, source: int, nbytes: int) -> None:
    """`Device.copy_from` for devices that do not reach each other: by way of the host's memory,
    and the host waits for `other`. What `host` gave is not used again before it has been read."""
    held = to.host(nbytes)
    other.download(held, source)
    to.upload(target, held, to.mark())


class Peers(Recordings):
    """The part of `CudaDevice` that is about other GPUs of the machine."""

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[Peers, bool] = {}

    def copy_peer(self, other: Peers, target: int, source: int, nbytes: int) -> bool:
        """`Device.copy_from` without the host; False, and nothing is done, if that cannot be.

        The copy is work of this device, which waits for the other's so far; what the other is given
        from now on, memory that it gives back too, waits for the copy.
        """
        first, second = in_order(self, other)
        with first._lock, second._lock:
            if not self._reaches(other):
                return False
            before = other.mark()
            self._enter()
            self._after(self._work, before)
            if nbytes:
                places = target, self._context, source, other._context
                self._driver.call("cuMemcpyPeerAsync", *places, nbytes, self._work)
            copied = self.mark()
            other._enter()
            other._after(other._work, copied)
        return True

    def _reaches(self, other: Peers) -> bool:
        """Whether the device can read the other's memory. That of a pool is for another device to
        read once the pool says so."""
        if other not in self._reached:
            call, api = self._driver.call, self._driver.api
            reaches = bool(call("cuDeviceCanAccessPeer", self._device, other._device))
            if reaches and other._pool is not None:  # copies of other memory need no permission
                access = api.CUmemAccessDesc()
                access.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = int(self._device)
                access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                call("cuMemPoolSetAccess", other._pool, [access], 1)
            self._reached[other] = reaches
        return self._reached[other]


_Array = np.ndarray[Any, Any]
#: If set, every launch is waited for, so that a kernel that fails is known by its name.
BLOCKING = "WEFT_GPU_BLOCKING"
#: Before work is timed the device fills a block of memory over and over, while the host asks for
#: that work: bytes of the block, at most so many and this share of the memory; how often at most.
FILL_BYTES, FILL_SHARE, MOST_FILLS = 64 << 20, 1024, 256
#: Seconds for which it fills at least.
LEAST_FILL = 50e-6
#: What to do when a kernel has failed, and what tells more.
_AGAIN = "the process must be started again to use the device"
_WHICH = f"{BLOCKING}=1 there tells which kernel it is"


class Compiled(Protocol):
    """What `compile_kernel` makes: machine code, and the kernel's name in it."""

    @property
    def code(self) -> bytes: ...
    @property
    def symbol(self) -> str: ...


CompileKernel = Callable[[CudaKernel, tuple[int, int]], Compiled]


def fill_bytes(memory: int | None) -> int:
    """Bytes of the block that is filled before work is timed, on a device with so much memory."""
    return max(min(FILL_BYTES, (memory or 0) // FILL_SHARE), 1)


class _Call:
    """What `cuLaunchKernel` is given, before the stream and after it: the addresses of the
    arguments, 8 bytes each, in a table."""

    __slots__ = ("_node", "_table", "after", "before", "name")

    def __init__(self, function: Any, launch: Launch, words: _Array) -> None:
        self.name = launch.kernel.name
        start = words.ctypes.data
        self._table = np.array([start + 8 * k for k in range(len(words))], np.uint64)
        grid = (launch.blocks, 1, 1, launch.block_threads, 1, 1)
        self.before = (function, *grid, 0)
        self.after = (int(self._table.ctypes.data), 0)
        self._node: Any = None

    def node(self, api: Any) -> Any:
        """The same for a node of a graph; the driver reads the arguments when it is given this."""
        if self._node is None:
            made = self._node = api.CUDA_KERNEL_NODE_PARAMS()
            made.func, made.gridDimX, _, _, made.blockDimX, _, _, _ = self.before
            made.gridDimY = made.gridDimZ = made.blockDimY = made.blockDimZ = 1
            made.sharedMemBytes, made.kernelParams = 0, self.after[0]
        return self._node


class CudaDevice(Peers):
    """GPU number `index` of `driver`. compile_kernel: from kernel source to machine code for it."""

    emulated = False

    def __init__(self, index: int, compile_kernel: CompileKernel, driver: Driver) -> None:
        super().__init__()
        self.name, self.dlpack = f"/gpu:{index}", (2, index)  # kDLCUDA
        self._driver, self._compile = DeviceDriver(driver, self._fails), compile_kernel
        call = driver.call
        self._device = call("cuDeviceGet", index)
        found = real_gpu(driver, index)
        assert found.cc is not None
        assert found.memory is not None
        self.cc, self.description, self.memory = found.cc, found.description, found.memory
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self._lock = threading.RLock()
        self._failure = ""  # by which error the device failed
        self._alone = ""  # the one kernel that is waited for
        self._lost = False  # whether this is a child of the process whose device it is
        # seconds of the host to ask for what was timed last, and what a fill is longer on the
        # device than the host takes to ask for it
        self._asking, self._fill_gain = 0.0, 0.0
        _devices.add(self)
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self.resident, self.calls = Resident(), Calls()
        self.libraries = CudaLibraries(self, lambda: driver.version)
        self._blocking = os.environ.get(BLOCKING, "0") not in ("", "0")
        self._enter()
        made = [call("cuStreamCreate", 1) for _ in range(4)]  # 1: not with stream 0
        self._in, self._work, self._out, self._recorder = made
        self._streams = made[:3]
        self._now = self._work  # where launches go; others may wait for `_work` while one records
        self._events = [call("cuEventCreate", 2) for _ in range(3)]  # 2: without times
        self._find_pool()

    def begin(self) -> None:
        self._enter()

    def _enter(self) -> None:
        """Make the context that of this thread: another device, or library, may have set its own
        since. FailedPreconditionError in a forked child, which CUDA does not follow into;
        InternalError if a kernel has failed."""
        if self._lost:
            raise FailedPreconditionError(
                f"device {self.name} is of the process that forked this one, and lost here",
                hint="start processes with multiprocessing's 'spawn' method, or fork before a GPU "
                "is used",
            )
        if self._failure:
            raise self._failed_before()
        self._driver.call("cuCtxSetCurrent", self._context)

    # -- copies on the device ---------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int) -> None:
        with self._lock:
            if nbytes and target != source:
                self._driver.call("cuMemcpyDtoDAsync", target, source, nbytes, self._now)

    def copy_from(self, other: Device, target: int, source: int, nbytes: int) -> None:
        if not (isinstance(other, CudaDevice) and self.copy_peer(other, target, source, nbytes)):
            through_host(self, target, other, source, nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        with self._lock:
            if nbytes:
                self._driver.call("cuMemsetD8Async", address, 0, nbytes, self._now)

    def put(self, address: int, value: int) -> None:
        with self._lock:
            for at, half in ((address, value & 0xFFFFFFFF), (address + 4, value >> 32)):
                self._driver.call("cuMemsetD32Async", at, half & 0xFFFFFFFF, 1, self._now)

    # -- kernels ----------------------------------------------------------------------------------

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        made = Prepared(len(spans))
        with self._lock:
            self._enter()
            function = self._function(launch.kernel)
        made.handle = _Call(function, launch, made.words)
        return made

    def _function(self, kernel: CudaKernel) -> Any:
        found = self._functions.get(kernel.key)
        if found is None:
            made = self._compile(kernel, self.cc)
            image = np.frombuffer(made.code, np.uint8)
            module = self._driver.load(int(image.ctypes.data), kernel.name)
            self._modules.append(module)
            found = self._driver.call("cuModuleGetFunction", module, made.symbol.encode())
            self._functions[kernel.key] = found
        return found

    def launch(self, prepared: Prepared) -> None:
        handle = prepared.handle
        with self._lock:
            status = 0
            if isinstance(handle, LibraryLaunch):
                handle(prepared.words, int(self._now))
            else:
                launch, given = self._driver.api.cuLaunchKernel, (*handle.before, self._now)
                (status,) = launch(*given, *handle.after)
                if int(status):
                    what = f"kernel '{handle.name}'"
                    status = self._again(status, lambda: launch(*given, *handle.after), what)
            if int(status):
                self._driver.look(status)
                raise InternalError(
                    f"kernel '{handle.name}' could not be launched on {self.name}: "
                    f"{self._driver.name_of(status)}"
                )
            if self._blocking:
                self._alone = handle.name
                try:
                    self._wait(self._work)
                finally:
                    self._alone = ""

    def timed(self, work: Callable[[], None]) -> float:
        """As `Device.timed`. The device is busy until the host has asked for all of `work`, or the
        host's time would be counted: with fills of memory, for twice as long as the host took to
        ask for the `work` of the call before. They end too early if that is many milliseconds
        (`MOST_FILLS`), and where `work` waits for the device. Caches hold little of what it
        reads."""
        scratch = self.allocate(fill_bytes(self.memory), "the block filled before work is timed")
        if not self._fill_gain:
            seconds, asked = self._between_events(scratch, 16, partial(self._fill, scratch, 16))
            self._fill_gain = max((seconds - asked) / 16, 1e-6)
        fills = min(math.ceil((LEAST_FILL + 2 * self._asking) / self._fill_gain), MOST_FILLS)
        seconds, self._asking = self._between_events(scratch, fills, work)
        del scratch
        self.reclaim()  # it goes back
        return seconds

    def _fill(self, scratch: Block, times: int) -> None:
        for _ in range(times):
            place = scratch.address, 0, scratch.nbytes
            self._driver.call("cuMemsetD8Async", *place, self._work)

    def _between_events(
        self, scratch: Block, fills: int, work: Callable[[], None]
    ) -> tuple[float, float]:
        """Seconds of `work`, after so many fills, by the device's clock, and those of the host to
        ask for it."""
        call = self._driver.call
        with self._lock:
            self._enter()
            first, last = call("cuEventCreate", 0), call("cuEventCreate", 0)  # 0: with times
            self._fill(scratch, fills)
            call("cuEventRecord", first, self._work)
            began = time.perf_counter()
            work()
            asked = time.perf_counter() - began
            call("cuEventRecord", last, self._work)
        self._wait(self._work)
        milliseconds = float(call("cuEventElapsedTime", first, last))
        for event in (first, last):
            call("cuEventDestroy", event)
        return milliseconds / 1e3, asked

    def synchronize(self) -> None:
        last = self.calls.last
        for stream in self._streams:
            self._wait(stream)
        self.calls.done(last)
        self.let_go()

    def _wait(self, stream: Any) -> None:
        self._enter()
        self._driver.call("cuStreamSynchronize", stream)

    # -- kernels that fail ------------------------------------------------------------------------

    def _fails(self, said: str) -> InternalError:
        """The error for what the driver says when a kernel has failed."""
        if self._failure:
            return self._failed_before()
        if self._alone:
            self._failure = f"kernel '{self._alone}' failed on {self.name}: {said}"
            return InternalError(self._failure, hint=_AGAIN)
        calls = self.calls.describe()
        of = f"; it was asked for by one of these calls, the last one last:{calls}" if calls else ""
        self._failure = f"a kernel failed on {self.name}: {said}{of}"
        return InternalError(self._failure, hint=f"{_AGAIN}; {_WHICH}")

    def _failed_before(self) -> InternalError:
        """The error for whoever asks for anything after that."""
        return InternalError(
            f"{self.name} can do nothing more in this process, as it failed before: "
            f"{self._failure}",
            hint=_AGAIN if self._blocking else f"{_AGAIN}; {_WHICH}",
        )


_devices: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _lose_devices() -> None:
    for device in list(_devices):
        device._lost, device._lock = True, threading.RLock()  # a thread that is gone may hold it


os.register_at_fork(after_in_child=_lose_devices)
