"""Points in the work of a CUDA device, and the streams of other libraries: what `CudaDevice` has
beside its own three streams.

A stream of another library is known by its handle, an integer (1: the legacy default stream, 2:
that of the thread), as DLPack and `__cuda_array_interface__` pass it on.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from weft.ir.errors import InternalError, InvalidArgumentError, WeftError
from weft.runtime.device.backends.driver import DeviceDriver
from weft.runtime.device.calls import Calls
from weft.runtime.device.dlpack import DEFAULT_STREAM
from weft.runtime.device.protocol import Mark

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


__all__ = ["ENDED", "FORGET", "CudaMark", "Dead", "Streams"]
