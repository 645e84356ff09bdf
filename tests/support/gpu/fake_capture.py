"""What NVIDIA's driver allows while a stream is captured, for `fake_driver`.

By the CUDA C++ Programming Guide, "Prohibited and Unhandled Operations" of stream capture, and the
driver's `cuThreadExchangeStreamCaptureMode`: a captured stream, an event recorded in it and its
context are not waited for or asked about; a thread that captures by THREAD_LOCAL makes no call that
is potentially unsafe. Such a call fails, whoever makes it, and the capture is lost: what comes next
fails, and its end gives no graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from fake_driver_types import OK, CaptureMode, CUresult


class Graph(list[Callable[[], None]]):
    """The work of a captured stream, in order: a node is (the graph, its number)."""

    destroyed = False

    __hash__ = object.__hash__


class Capture:
    """What a stream was given while it is captured."""

    def __init__(self, context: str, mode: CaptureMode) -> None:
        self.context, self.thread, self.mode = context, threading.get_ident(), mode
        self.work = Graph()
        self.lost = False

    def status(self) -> CUresult:
        """What is said to whoever gives the stream more."""
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if self.lost else OK

    def add(self, work: Callable[[], None]) -> CUresult:
        """One more."""
        self.work.append(work)
        return self.status()

    def break_off(
        self, status: CUresult = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    ) -> CUresult:
        """Somebody did what must not be done: `status` is said to him."""
        self.lost = True
        return status


class Captures:
    """The captures of a fake driver. captures: how many there have been."""

    def __init__(self) -> None:
        self.captures = 0
        self._modes = threading.local()
        self._going: list[Capture] = []

    def begin_capture(self, stream: Any, mode: int) -> CUresult:
        """`cuStreamBeginCapture`."""
        assert stream.capture is None
        self.captures += 1
        stream.capture = Capture(stream.context, CaptureMode(mode))
        self._going.append(stream.capture)
        return OK

    def end_capture(self, stream: Any) -> tuple[Any, ...]:
        """`cuStreamEndCapture`."""
        held = stream.capture
        if held is None:
            return (CUresult.CUDA_ERROR_ILLEGAL_STATE, None)
        if held.thread != threading.get_ident():
            return (held.break_off(CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD), None)
        stream.capture = None
        self._going.remove(held)
        return (held.status(), None if held.lost else held.work)

    def break_off_all(self, context: str) -> CUresult:
        """Somebody waits for all streams of a context, or asks about them."""
        status = OK
        for held in list(self._going):
            if held.context == context:
                status = held.break_off()
        return status

    def exchange_mode(self, mode: int) -> CaptureMode:
        """`cuThreadExchangeStreamCaptureMode`: the thread's mode before."""
        before = getattr(self._modes, "mode", CaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        self._modes.mode = CaptureMode(mode)
        return before

    def break_off_own(self) -> CUresult:
        """The thread makes a call that is potentially unsafe."""
        status, whole = OK, CaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        wide = getattr(self._modes, "mode", whole) == whole
        for held in list(self._going):
            if held.thread == threading.get_ident() or (wide and held.mode == whole):
                status = held.break_off()
        return status


def unsafe(method: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A function of the driver that a thread that captures must not call."""

    @functools.wraps(method)
    def checked(self: Captures, *args: Any) -> tuple[Any, ...]:
        status = self.break_off_own()
        return (status, None) if status else method(self, *args)

    return checked
