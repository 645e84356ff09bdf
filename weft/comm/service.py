"""The second thread of an endpoint: it watches connections, answers ZAP, sends what others queued
and the chunks of large tensors, and keeps the time. Sockets that it watches are its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from weft.comm.sockets import Socket

_log = logging.getLogger("weft.comm")


class Service:
    """A loop over a poller, calls posted from other threads, and timers."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, float, Callable[[], None]]] = []  # due, period, call
        self._busy: list[Callable[[], bool]] = []
        self._on_crash = on_crash
        self._own: list[Socket] = []
        self._stopping = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poller.register(self._wake_in, zmq.POLLIN)
        self._woken = self._ended = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"weft-service-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def discard(self) -> None:
        """In place of `start`: give the descriptors back."""
        with self._lock:
            self._ended = True
            os.close(self._wake_in)
            os.close(self._wake_out)

    def post(self, call: Callable[[], None]) -> None:
        """Have the thread call it, after what was posted before. Once the thread has ended it is
        called at once: what is to be closed must be."""
        with self._lock:
            if not self._ended:
                self._calls.append(call)
                if not self._woken:
                    self._woken = True
                    os.write(self._wake_out, b"x")
                return
        call()

    # ---- for the service thread, and before it is started

    def watch(
        self,
        socket: Socket | int,
        handler: Callable[[], None],
        events: int = zmq.POLLIN,
        *,
        close: bool = False,
    ) -> None:
        """Call `handler` whenever `socket`, or a descriptor, is readable (or as `events` says).

        close: the thread closes it at its end. Not for a monitor, which has to outlive what it
        monitors: an I/O thread that tells a closed one waits for ever, and with it who asks next.
        """
        self._poller.register(socket, events)
        self._handlers[socket] = handler
        if close and isinstance(socket, zmq.Socket):
            self._own.append(socket)

    def unwatch(self, socket: Socket) -> None:
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, seconds, call))

    def retry(self, call: Callable[[], bool]) -> None:
        """Call it about once a millisecond until it returns True, and once at the end."""
        if self._ended:
            call()
        else:
            self._busy.append(call)

    # ---- the loop

    def stop(self) -> None:
        """End the thread after what was posted, and wait for it unless it is the caller."""
        self.post(self._end)
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def _end(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            _log.exception("the service thread ended by an error")
            self._on_crash(error)
        finally:
            with self._lock:
                self._ended = True
                os.close(self._wake_in)
                os.close(self._wake_out)
            for call in [*self._calls, *self._busy]:
                call()
            for socket in self._own:
                socket.close(0)

    def _turn(self) -> None:
        for socket, _ in self._poller.poll(self._wait_ms()):
            handler = self._handlers.get(socket)  # one before it may have unwatched it
            if handler is not None:
                handler()
            elif socket == self._wake_in:
                with self._lock:
                    os.read(self._wake_in, 64)
                    self._woken = False
        while self._calls:
            self._calls.popleft()()
        if self._busy:
            busy, self._busy = self._busy, []
            self._busy += [call for call in busy if not call()]
        now = time.monotonic()
        for i, (due, period, call) in enumerate(self._timers):
            if now >= due:
                self._timers[i] = (now + period, period, call)
                call()

    def _wait_ms(self) -> int | None:
        if self._busy:
            return 1
        if not self._timers:
            return None
        due = min(timer[0] for timer in self._timers)
        return max(0, int((due - time.monotonic()) * 1000) + 1)
