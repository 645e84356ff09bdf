"""Points in the work of a CUDA device, and the streams of other libraries: what `CudaDevice` has
beside its own three streams.

A stream of another library is known by its handle, an integer (1: the legacy default stream, 2:
that of the thread), as DLPack and `__cuda_array_interface__` pass it on.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from weft.ir.errors import InternalError, InvalidArgumentError, WeftError
from weft.runtime.device.backends.driver import Driver
from weft.runtime.device.dlpack import DEFAULT_STREAM
from weft.runtime.device.protocol import Mark

#: What died since: the function of the driver that gives it back, what that is given, and how many
#: bytes of the device it was, for what. Objects die in any thread, while launches are recorded,
#: too: then it is no time to call the driver. `FORGET` is no function: it takes a stream.
Dead = deque[tuple[str, Any, int, str]]
FORGET = "forget"


class CudaMark:
    """`protocol.Mark`: an event, which others use again when this is gone."""

    __slots__ = ("_device", "_event")

    def __init__(self, device: Streams, event: Any) -> None:
        self._device, self._event = device, event

    def wait(self) -> None:
        self._device._wait_event(self._event)

    def done(self) -> bool:
        return self._device._is_past(self._event)

    def __del__(self) -> None:
        self._device._spare.append(self._event)


class Streams:
    """The part of `CudaDevice` that is about events and the streams of others."""

    _driver: Driver
    _lock: threading.RLock
    _dead: Dead
    _in: Any
    _work: Any

    def __init__(self) -> None:
        self._spare: list[Any] = []
        self._held: deque[tuple[CudaMark, object]] = deque()

    def _enter(self) -> None:
        raise NotImplementedError

    def _failed(self, what: str, error: WeftError) -> InternalError:
        raise NotImplementedError

    @property
    def stream(self) -> int:
        """The handle of the kernels' stream."""
        return int(self._work)

    # -- events -----------------------------------------------------------------------------------

    def mark(self) -> CudaMark:
        return self._marked(self._work)

    def sent(self) -> CudaMark:
        return self._marked(self._in)

    def _marked(self, stream: Any) -> CudaMark:
        with self._lock:
            self._enter()
            try:
                event = self._spare.pop()
            except IndexError:
                event = self._driver.call("cuEventCreate", 2)  # 2: without times
            made = CudaMark(self, event)
            self._driver.call("cuEventRecord", event, stream)
            return made

    def _after(self, stream: Any, mark: Any) -> None:
        """What `stream` is given from now on begins after `mark`."""
        assert isinstance(mark, CudaMark)
        self._driver.call("cuStreamWaitEvent", stream, mark._event, 0)

    def _wait_event(self, event: Any) -> None:
        self._enter()
        try:
            self._driver.call("cuEventSynchronize", event)
        except WeftError as error:
            raise self._failed("a kernel", error) from None

    def _is_past(self, event: Any) -> bool:
        self._enter()
        failed, _ = self._driver.tried("cuEventQuery", event)
        return failed != "CUDA_ERROR_NOT_READY"

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

    def _wait_to_forget(self, stream: int) -> None:
        """Memory is given back in the order of the kernels' stream: that waits for the default
        stream. Another may be gone by now, or (2) be another thread's: the host waits for all."""
        if stream == DEFAULT_STREAM:
            self.wait_for(stream)
        else:
            self._driver.call("cuCtxSynchronize")

    def number_at(self, address: int) -> int:
        what = self._driver.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self._lock:
            self._enter()
            failed, number = self._driver.tried("cuPointerGetAttribute", what, address)
        if failed:
            raise InvalidArgumentError(f"{address:#x} is not memory of a GPU: {failed}")
        return int(number)


__all__ = ["FORGET", "CudaMark", "Dead", "Streams"]
