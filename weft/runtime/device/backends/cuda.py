"""A GPU through NVIDIA's driver: `device.protocol.Device` over `cuda.bindings.driver`.

Three streams: copies to the device, kernels, copies from it. Events keep them in order, so that
copies of one step overlap the kernels of another. Memory comes from the driver's stream-ordered
pool; a launch is one call of the driver with arguments that were packed before.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.codegen.cuda.kernel import CudaKernel, Launch
from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    ResourceExhaustedError,
    WeftError,
)
from weft.runtime.device.backends.driver import Driver
from weft.runtime.device.backends.peers import Peers, through_host
from weft.runtime.device.backends.streams import FORGET, Dead
from weft.runtime.device.blocks import Resident, no_room
from weft.runtime.device.info import real_gpu
from weft.runtime.device.libraries.choice import CudaLibraries
from weft.runtime.device.libraries.cublaslt import MatmulCall
from weft.runtime.device.protocol import Device, Mark, Prepared

Array = np.ndarray[Any, Any]
#: If set, every launch is waited for, so that a kernel that fails is known by its name.
BLOCKING = "WEFT_GPU_BLOCKING"
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class Compiled(Protocol):
    """What `compile_kernel` makes: machine code, and the kernel's name in it."""

    @property
    def code(self) -> bytes: ...
    @property
    def symbol(self) -> str: ...


CompileKernel = Callable[[CudaKernel, tuple[int, int]], Compiled]


class _Block:
    """Memory of the pool."""

    __slots__ = ("__weakref__", "_dead", "address", "nbytes", "what")

    def __init__(self, address: int, nbytes: int, what: str, dead: Dead) -> None:
        self.address, self.nbytes, self.what, self._dead = address, nbytes, what, dead

    def __del__(self) -> None:
        self._dead.append(("cuMemFreeAsync", self.address, self.nbytes, self.what))


class _Call:
    """What `cuLaunchKernel` is given, before the stream and after it: the addresses of the
    arguments, 8 bytes each, in a table."""

    __slots__ = ("_table", "after", "before", "name")

    def __init__(self, function: Any, launch: Launch, words: Array) -> None:
        self.name = launch.kernel.name
        start = words.ctypes.data
        self._table = np.array([start + 8 * k for k in range(len(words))], np.uint64)
        grid = (launch.blocks, 1, 1, launch.block_threads, 1, 1)
        self.before = (function, *grid, 0)
        self.after = (int(self._table.ctypes.data), 0)


class CudaDevice(Peers):
    """GPU number `index` of `driver`. compile_kernel: from kernel source to machine code for it."""

    emulated = False

    def __init__(self, index: int, compile_kernel: CompileKernel, driver: Driver) -> None:
        super().__init__()
        self.name, self.dlpack = f"/gpu:{index}", (2, index)  # kDLCUDA
        self._driver, self._compile = driver, compile_kernel
        call = driver.call
        self._device = call("cuDeviceGet", index)
        found = real_gpu(driver, index)
        assert found.cc is not None
        assert found.memory is not None
        self.cc, self.description, self.memory = found.cc, found.description, found.memory
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self._lock = threading.RLock()
        self._lost = False  # whether this is a child of the process whose device it is
        _devices.add(self)
        self._dead: Dead = deque()
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self.resident = Resident()
        self.libraries = CudaLibraries(self, lambda: driver.version)
        self._blocking = os.environ.get(BLOCKING, "0") not in ("", "0")
        self._enter()
        made = [call("cuStreamCreate", 1) for _ in range(4)]  # 1: not with stream 0
        self._in, self._work, self._out, self._recorder = made
        self._streams = made[:3]
        self._now = self._work  # where launches go; others may wait for `_work` while one records
        self._events = [call("cuEventCreate", 2) for _ in range(3)]  # 2: without times
        self._keep_pool()

    def _keep_pool(self) -> None:
        """The pool keeps what is given back, or every wait for the device would empty it."""
        pool = self._pool = self._driver.call("cuDeviceGetDefaultMemPool", self._device)
        api = self._driver.api
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._driver.call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t((1 << 64) - 1))

    def begin(self) -> None:
        self._enter()

    def _enter(self) -> None:
        """Make the context that of this thread: another device, or library, may have set its own
        since. FailedPreconditionError in a forked child, which CUDA does not follow into."""
        if self._lost:
            raise FailedPreconditionError(
                f"device {self.name} is of the process that forked this one, and lost here",
                hint="start processes with multiprocessing's 'spawn' method, or fork before a GPU "
                "is used",
            )
        self._driver.call("cuCtxSetCurrent", self._context)

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int, what: str, early: bool = False) -> _Block:
        stream = self._in if early else self._work
        with self._lock:
            self._enter()
            self._free()
            size = max(nbytes, 1)
            failed, address = self._driver.tried("cuMemAllocAsync", size, stream)
            if failed == _OUT_OF_MEMORY:  # the pool may keep some of what others do not use
                self.resident.drop_idle()
                self._free()
                self._driver.call("cuStreamSynchronize", self._work)
                self._driver.call("cuMemPoolTrimTo", self._pool, 0)
                failed, address = self._driver.tried("cuMemAllocAsync", size, stream)
            if failed == _OUT_OF_MEMORY:
                raise ResourceExhaustedError(
                    no_room(self.name, what, nbytes, self.resident, self.memory),
                    hint="other programs may use the device too: nvidia-smi shows them",
                )
            if failed:
                raise InternalError(
                    f"the NVIDIA driver's cuMemAllocAsync failed: {failed}",
                    hint=self._driver.after_failure(failed),
                )
            self.resident.add(what, nbytes)
            return _Block(int(address), nbytes, what, self._dead)

    def _free(self) -> None:
        """Give back what died since, in the order of the kernels' stream."""
        while self._dead:
            function, held, nbytes, what = self._dead.popleft()
            if function == FORGET:
                self._wait_to_forget(held)
            elif function == "cuMemFreeAsync":
                self._driver.call(function, held, self._work)
                self.resident.add(what, -nbytes)
            else:
                # uploads may not have read it yet, the device may be at it
                before = self._in if function == "cuMemFreeHost" else self._work
                self._driver.call("cuStreamSynchronize", before)
                self._driver.call(function, held)

    def host(self, nbytes: int) -> Array:
        """Pinned memory, as long as an array is on it."""
        with self._lock:
            self._enter()
            self._free()
            address = int(self._driver.call("cuMemHostAlloc", max(nbytes, 1), 0))
        return np.asarray(_Pinned(address, nbytes, self._dead))

    # -- copies -----------------------------------------------------------------------------------

    def upload(self, address: int, source: Array, after: Mark | None = None) -> None:
        with self._lock:
            self._enter()
            if source.nbytes:
                if after is not None:
                    self._after(self._in, after)
                else:
                    self._follow(self._in, self._work)
                self._driver.call(
                    "cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self._in
                )
                self._follow(self._work, self._in)

    def download(self, target: Array, address: int, after: Mark | None = None) -> None:
        with self._lock:
            self._enter()
            if after is not None:
                self._after(self._out, after)
            else:
                self._follow(self._out, self._work)
            if target.nbytes:
                self._driver.call(
                    "cuMemcpyDtoHAsync", target.ctypes.data, address, target.nbytes, self._out
                )
        self._wait(self._out)

    def _follow(self, stream: Any, other: Any) -> None:
        """What `stream` is given from now on begins when `other` has done what it was given."""
        event = self._events[self._streams.index(other)]
        self._driver.call("cuEventRecord", event, other)
        self._driver.call("cuStreamWaitEvent", stream, event, 0)

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
            module = self._driver.call("cuModuleLoadData", int(image.ctypes.data))
            self._modules.append(module)
            found = self._driver.call("cuModuleGetFunction", module, made.symbol.encode())
            self._functions[kernel.key] = found
        return found

    def launch(self, prepared: Prepared) -> None:
        handle = prepared.handle
        with self._lock:
            status = 0
            if isinstance(handle, MatmulCall):
                handle(prepared.words, int(self._now))
            else:
                launch = self._driver.api.cuLaunchKernel
                (status,) = launch(*handle.before, self._now, *handle.after)
            if int(status):
                raise InternalError(
                    f"kernel '{handle.name}' could not be launched on {self.name}: "
                    f"{self._driver.name_of(status)}",
                    hint=self._driver.after_failure(status),
                )
            if self._blocking:
                self._wait(self._work, f"kernel '{handle.name}'")

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """The launches as a CUDA graph; None where every launch is to be waited for."""
        if self._blocking:
            return None
        call, api = self._driver.call, self._driver.api
        with self._lock:
            self._enter()
            mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            call("cuStreamBeginCapture", self._recorder, mode)
            self._now = self._recorder
            try:
                work()
            except BaseException:
                self._driver.tried("cuStreamEndCapture", self._recorder)
                raise
            finally:
                self._now = self._work
            graph = call("cuStreamEndCapture", self._recorder)
            ready = call("cuGraphInstantiate", graph, 0)
            call("cuGraphDestroy", graph)
        return _Recorded(self, ready, self._dead)

    def _replay(self, ready: Any) -> None:
        with self._lock:
            self._driver.call("cuGraphLaunch", ready, self._work)

    def timed(self, work: Callable[[], None]) -> float:
        call = self._driver.call
        with self._lock:
            self._enter()
            first, last = call("cuEventCreate", 0), call("cuEventCreate", 0)  # 0: with times
            call("cuEventRecord", first, self._work)
            work()
            call("cuEventRecord", last, self._work)
        self._wait(self._work)
        milliseconds = float(call("cuEventElapsedTime", first, last))
        for event in (first, last):
            call("cuEventDestroy", event)
        return milliseconds / 1e3

    def synchronize(self) -> None:
        for stream in self._streams:
            self._wait(stream)
        self.let_go()

    def _wait(self, stream: Any, what: str = "a kernel") -> None:
        self._enter()
        try:
            self._driver.call("cuStreamSynchronize", stream)
        except WeftError as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: WeftError) -> InternalError:
        hint = f"set {BLOCKING}=1 to learn which; the device cannot be used again in this process"
        said = f"{what} failed on {self.name}: {error.what}"
        return InternalError(said, hint=None if self._blocking else hint)


_devices: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _lose_devices() -> None:
    for device in list(_devices):
        device._lost, device._lock = True, threading.RLock()  # a thread that is gone may hold it


os.register_at_fork(after_in_child=_lose_devices)


class _Recorded:
    """A CUDA graph, ready to be launched."""

    __slots__ = ("_dead", "_device", "_ready")

    def __init__(self, device: CudaDevice, ready: Any, dead: Dead) -> None:
        self._device, self._ready, self._dead = device, ready, dead

    def __call__(self) -> None:
        self._device._replay(self._ready)

    def __del__(self) -> None:
        self._dead.append(("cuGraphExecDestroy", self._ready, 0, ""))


class _Pinned:
    """Pinned memory for NumPy, which keeps this object as long as an array is on it."""

    def __init__(self, address: int, nbytes: int, dead: Dead) -> None:
        self._address, self._dead = address, dead
        self.__array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._dead.append(("cuMemFreeHost", self._address, 0, ""))
