"""A GPU through NVIDIA's driver: `device.protocol.Device` over `cuda.bindings.driver`.

Three streams: copies to the device, kernels, copies from it. Events keep them in order, so that
copies of one step overlap the kernels of another. Memory comes from the driver's stream-ordered
pool; a launch is one call of the driver with arguments that were packed before.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from weft.codegen.cuda.source.kernel import CudaKernel, Launch
from weft.ir.errors import FailedPreconditionError, InternalError
from weft.runtime.device.backends.driver import DeviceDriver, Driver
from weft.runtime.device.backends.memory import Block
from weft.runtime.device.backends.peers import Peers, through_host
from weft.runtime.device.blocks import Resident
from weft.runtime.device.calls import Calls
from weft.runtime.device.info import real_gpu
from weft.runtime.device.libraries.choice import CudaLibraries
from weft.runtime.device.libraries.library import LibraryLaunch
from weft.runtime.device.protocol import Device, Prepared

Array = np.ndarray[Any, Any]
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

    def __init__(self, function: Any, launch: Launch, words: Array) -> None:
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
