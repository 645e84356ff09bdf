"""Launches recorded as CUDA graphs: the part of `CudaDevice` that is about that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from weft.ir.errors import InternalError, ResourceExhaustedError, WeftError
from weft.ir.process import collector_paused
from weft.runtime.device.backends.copies import Copies
from weft.runtime.device.backends.memory import OUT_OF_MEMORY
from weft.runtime.device.backends.streams import ENDED, Dead
from weft.runtime.device.protocol import Prepared, Recording

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


__all__ = ["CudaRecording", "Recordings"]
