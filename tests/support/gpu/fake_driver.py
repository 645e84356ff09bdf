"""NVIDIA's driver without a GPU, for tests: what
`runtime/device/backends/cuda.py` calls, on host memory.

Streams are as lazy as they may be: work waits until somebody waits for it, and then only what that
depends on is done. So a missing wait shows as wrong values, and memory that is used after it was
given back as an error. Where the driver may wait it does: in copies of memory that is not pinned.
What must not be called while a stream is captured is refused (`fake_capture`). Kernels are carried
out by the emulator; `FakeCompiler` makes "machine code" that names them.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fake_capture import Capture, Captures, Graph, unsafe
from fake_driver_types import (
    ATTRIBUTES,
    OK,
    AccessFlags,
    Attribute,
    CaptureMode,
    CUresult,
    FakeAccess,
    FakeNode,
    LocationType,
    MemoryType,
    PointerAttribute,
    PoolAttribute,
)

from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.source.kernel import CudaKernel, memory_dtype

NUMPY_OF = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8",
          "i64": "i8", "f32": "f4", "f64": "f8"}  # fmt: skip


def kernel_words(kernel: CudaKernel, table: int) -> list[int]:
    """The arguments at the addresses that are at `table`, as `cuLaunchKernel` is given them."""
    addresses = (ctypes.c_uint64 * len(kernel.parameters)).from_address(table)
    return [ctypes.c_int64.from_address(address).value for address in addresses]


def kernel_args(kernel: CudaKernel, words: list[int], memory: Callable[[int], Any]) -> list[Any]:
    """What the emulator takes for them; `memory`: the bytes from an address on."""
    args: list[Any] = []
    for parameter, word in zip(kernel.parameters, words, strict=True):
        if parameter.kind == "integer":
            args.append(word)
            continue
        dtype, held = np.dtype(NUMPY_OF[memory_dtype(parameter.dtype)]), memory(word)
        args.append(held[: len(held) // dtype.itemsize * dtype.itemsize].view(dtype))
    return args


@dataclass(frozen=True)
class FakeCubin:
    code: bytes
    symbol: str


class FakeCompiler:
    """A `compile_kernel` for `FakeDriver`."""

    def __init__(self) -> None:
        self.kernels: dict[str, CudaKernel] = {}
        self.compiled: list[str] = []

    def __call__(
        self, kernel: CudaKernel, cc: tuple[int, int], driver: tuple[int, int]
    ) -> FakeCubin:
        assert driver >= (12, 0)  # what the driver says of itself
        self.kernels[kernel.key] = kernel
        self.compiled.append(kernel.name)
        return FakeCubin(kernel.key.encode() + b"\0", f"{kernel.name}_entry")


class _Stream:
    def __init__(self, api: FakeDriver, context: str) -> None:
        self.api, self.context = api, context
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.capture: Capture | None = None
        _streams[id(self)] = self

    def __int__(self) -> int:
        return id(self)


_streams: weakref.WeakValueDictionary[int, _Stream] = weakref.WeakValueDictionary()


def stream_at(handle: int) -> _Stream:
    """The stream whose handle another library was given."""
    return _streams[handle]


class _Event:
    def __init__(self, context: str) -> None:
        self.context = context
        self.stream: _Stream | None = None
        self.position = 0
        self.captured: Capture | None = None  # in which it was recorded


class Ready:
    """A graph that can be launched."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.work = graph, list(graph)

    def change(self, node: tuple[Graph, int], work: Callable[[], None]) -> CUresult:
        """What a node does from now on."""
        graph, number = node
        assert graph is self.graph
        assert not graph.destroyed, "nodes are known by their graph, which is gone"
        self.work[number] = work
        return OK


class FakeDriver(Captures):
    """Stands for the module `cuda.bindings.driver`. memory: bytes of each device. runs: whether
    kernels do anything. peers: whether devices reach each other's memory. pools: whether there are
    pools of memory. cc: the compute capability."""

    CUDA_VERSION = 13000
    CUresult = CUresult
    CUdevice_attribute = Attribute
    CUmemPool_attribute = PoolAttribute
    CUpointer_attribute = PointerAttribute
    CUstreamCaptureMode = CaptureMode
    CUmemAccessDesc = FakeAccess
    CUmemorytype = MemoryType
    CUDA_KERNEL_NODE_PARAMS = CUDA_MEMCPY3D = FakeNode
    CUmemLocationType = LocationType
    CUmemAccess_flags = AccessFlags
    CUdeviceptr = int
    cuuint64_t = int

    def __init__(
        self, compiler: FakeCompiler | None = None, *, version: int = 13000, devices: int = 1,
        memory: int = 1 << 30, missing: bool = False, init: CUresult = OK, runs: bool = True,
        peers: bool = True, pools: bool = True, cc: tuple[int, int] = (9, 0),
    ) -> None:  # fmt: skip
        super().__init__()
        self.compiler = compiler or FakeCompiler()
        self.version, self.devices, self.memory = version, devices, memory
        self.missing, self.init, self.runs = missing, init, runs
        self.peers, self.pools = peers, pools
        self.attributes = ATTRIBUTES | {75: cc[0], 76: cc[1], 115: int(pools)}
        self.readable: set[tuple[str, str]] = set()  # (the pool, who may read it), by contexts
        self.owners: dict[int, str] = {}  # of blocks
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, np.ndarray[Any, Any]] = {}
        self.calls: list[str] = []
        self.pageable: list[str] = []  # copies from or to memory that is not pinned
        self.on_wait: Callable[[], None] = lambda: None  # called where the host waits
        self.current = threading.local()
        self.failed = OK
        self.foreign: dict[tuple[int, str], _Stream] = {}
        self.draining = threading.RLock()
        self.pending: set[int] = set()  # blocks that no stream has come to
        self.fault_in = ""  # a kernel that is to fail
        self.graphs = 0

    # -- devices ----------------------------------------------------------------------------------

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        if self.missing:
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return (self.init,)

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        self.current.context = context
        return (OK,)

    def _check(self, stream: _Stream) -> None:
        assert stream.context == self.current.context, "another device's context is current"

    def __getattr__(self, name: str) -> Any:
        held = {
            "cuDriverGetVersion": lambda: (OK, self.version),
            "cuDeviceGetCount": lambda: (OK, self.devices),
            "cuDeviceGet": lambda index: (OK, index),
            "cuDeviceGetName": lambda length, device: (OK, b"Fake GPU\0\0\0"),
            "cuDeviceGetAttribute": lambda what, device: (OK, self.attributes[what]),
            "cuDeviceCanAccessPeer": lambda device, other: (OK, int(self.peers)),
            "cuDeviceTotalMem": lambda device: (OK, self.memory),
            "cuDevicePrimaryCtxRetain": lambda device: (OK, f"context {device}"),
            "cuGetErrorString": lambda status: (OK, status.name.lower().encode()),
            "cuEventCreate": lambda flags: (OK, _Event(self.current.context)),
            "cuDeviceGetDefaultMemPool": lambda device: (
                (OK, f"context {device}")
                if self.pools
                else (CUresult.CUDA_ERROR_NOT_SUPPORTED, None)
            ),
            "cuMemPoolSetAttribute": lambda pool, what, value: (OK,),
            "cuMemPoolTrimTo": lambda pool, least: (OK,),
            "cuEventDestroy": lambda event: (OK,),
            "cuEventElapsedTime": lambda first, last: (OK, 0.5),
        }
        if name not in held:
            raise AttributeError(name)
        return held[name]

    # -- memory -----------------------------------------------------------------------------------

    @unsafe
    def cuMemAllocAsync(self, nbytes: int, stream: _Stream) -> tuple[Any, ...]:
        self._check(stream)
        if not self.pools:
            return (CUresult.CUDA_ERROR_NOT_SUPPORTED, None)
        return self._allocated(nbytes, stream)

    @unsafe
    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        return self._allocated(nbytes, None)

    def _allocated(self, nbytes: int, stream: _Stream | None) -> tuple[Any, ...]:
        if self.failed:
            return (self.failed, None)
        context = self.current.context
        own = (b for a, b in list(self.blocks.items()) if self.owners[a] == context)
        if sum(map(len, own)) + nbytes > self.memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        room = np.full(nbytes + 256, 0xFF, np.uint8)
        start = -room.ctypes.data % 256
        block = room[start : start + nbytes]
        self.owners[block.ctypes.data] = context  # before it is there for other threads
        if stream is not None:
            self.pending.add(block.ctypes.data)  # other streams have to wait for it
            stream.work.append(lambda: self.pending.discard(block.ctypes.data))
        self.blocks[block.ctypes.data] = block
        return (OK, block.ctypes.data)

    @unsafe
    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        """At once, whatever still uses it: the driver may wait, or may not."""
        self.calls.append("cuMemFree")
        del self.blocks[int(address)]
        return (OK,)

    def cuMemPoolSetAccess(self, pool: str, map: list[FakeAccess], count: int) -> tuple[Any, ...]:
        (access,) = map
        assert (access.location.type, access.flags, count) == (1, 3, 1)
        self.readable.add((pool, f"context {access.location.id}"))
        return (OK,)

    @unsafe
    def cuMemFreeAsync(self, address: int, stream: _Stream) -> tuple[Any, ...]:
        assert self.owners[int(address)] == stream.context, "memory of another device"

        def free() -> None:
            del self.blocks[int(address)]

        return self._put(stream, free)

    @unsafe
    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        block = np.full(nbytes, 0xEE, np.uint8)
        self.pinned[block.ctypes.data] = block
        return (OK, block.ctypes.data)

    @unsafe
    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        del self.pinned[address]
        return (OK,)

    def view(self, address: int, nbytes: int = -1, by: str = "") -> np.ndarray[Any, Any]:
        """`nbytes` of device memory, or all up to the block's end. by: the context that reads or
        writes there."""
        for start, block in list(self.blocks.items()):  # other threads give memory back
            if start in self.pending:
                continue
            if start <= address and address - start + max(nbytes, 0) <= len(block):
                own = self.owners[start]
                assert by in ("", own), f"{by} works on memory of {own}"
                end = len(block) if nbytes < 0 else address - start + nbytes
                return block[address - start : end]
        raise MemoryError(f"{nbytes} bytes at {address:#x}")

    # -- streams ----------------------------------------------------------------------------------

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return (OK, _Stream(self, self.current.context))

    def _put(self, stream: _Stream, work: Callable[[], None]) -> tuple[Any, ...]:
        self._check(stream)
        if stream.capture is not None:
            return (stream.capture.add(work),)
        stream.work.append(work)
        return (self.failed,)

    def _drain(self, stream: _Stream, position: int) -> None:
        with self.draining:  # or what another thread is at would count as done
            while stream.done < position:
                work = stream.work[stream.done]
                stream.done += 1
                work()

    @unsafe
    def cuStreamSynchronize(self, stream: _Stream) -> tuple[Any, ...]:
        self._check(stream)
        if stream.capture is not None:
            return (stream.capture.break_off(),)
        return self._wait(stream, len(stream.work))

    def _wait(self, stream: _Stream, position: int) -> tuple[Any, ...]:
        self.on_wait()
        try:
            self._drain(stream, position)
        except (MemoryError, KeyError):
            self.failed = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return (self.failed,)

    def CUstream(self, handle: int) -> _Stream:
        """A stream by its handle: small numbers are those of other libraries, in each context."""
        if handle in _streams:
            return _streams[handle]
        return self.foreign.setdefault(
            (handle, self.current.context), _Stream(self, self.current.context)
        )

    @unsafe
    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self.calls.append("cuCtxSynchronize")
        if broken := self.break_off_all(self.current.context):
            return (broken,)
        for stream in self._streams_of(self.current.context):
            self._wait(stream, len(stream.work))
        return (self.failed,)

    @unsafe
    def cuCtxRecordEvent(self, context: str, event: _Event) -> tuple[Any, ...]:
        """The event is at the end of what all streams of the context have now."""
        assert context == event.context == self.current.context
        self.calls.append("cuCtxRecordEvent")
        if broken := self.break_off_all(context):
            return (broken,)
        ends = [(stream, len(stream.work)) for stream in self._streams_of(context)]
        event.stream, event.captured = _Stream(self, context), None
        for stream, end in ends:
            event.stream.work.append(partial(self._drain, stream, end))
        event.position = len(event.stream.work)
        return (OK,)

    def _streams_of(self, context: str) -> list[_Stream]:
        """Other drivers, of tests before, may have such a context."""
        return [s for s in list(_streams.values()) if s.api is self and s.context == context]

    @unsafe
    def cuEventSynchronize(self, event: _Event) -> tuple[Any, ...]:
        if event.captured is not None:
            return (event.captured.break_off(CUresult.CUDA_ERROR_CAPTURED_EVENT),)
        assert event.stream is not None
        return self._wait(event.stream, event.position)

    @unsafe
    def cuEventQuery(self, event: _Event) -> tuple[Any, ...]:
        if event.captured is not None:
            return (event.captured.break_off(CUresult.CUDA_ERROR_CAPTURED_EVENT),)
        assert event.stream is not None
        past = event.stream.done >= event.position
        return (self.failed if past or self.failed else CUresult.CUDA_ERROR_NOT_READY,)

    def cuPointerGetAttribute(self, what: int, address: int) -> tuple[Any, ...]:
        assert what == PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        for start, block in list(self.blocks.items()):
            if start <= address < start + len(block):
                return (OK, int(self.owners[start].split()[1]))
        return (CUresult.CUDA_ERROR_INVALID_VALUE, None)

    def cuEventRecord(self, event: _Event, stream: _Stream) -> tuple[Any, ...]:
        assert event.context == stream.context, "an event of another device"
        event.captured = stream.capture
        if stream.capture is not None:
            return (stream.capture.status(),)
        event.stream, event.position = stream, len(stream.work)
        return (OK,)

    def cuStreamWaitEvent(self, stream: _Stream, event: _Event, flags: int) -> tuple[Any, ...]:
        if stream.capture is not event.captured:  # what one has is not for the other
            held = stream.capture or event.captured
            assert held is not None
            return (held.break_off(CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION),)
        other, position = event.stream, event.position
        assert other is not None
        return self._put(stream, lambda: self._drain(other, position))

    # -- work -------------------------------------------------------------------------------------

    def cuMemcpyHtoDAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("upload")
        held = self._is_pinned(source)
        now = b"" if held else ctypes.string_at(source, nbytes)  # pageable: read at once

        def work() -> None:
            given = ctypes.string_at(source, nbytes) if held else now
            self.view(target, nbytes, stream.context)[:] = np.frombuffer(given, np.uint8)

        return self._copied(stream, work, "" if held else "upload")

    def _is_pinned(self, address: int) -> bool:
        return any(a <= address < a + len(b) for a, b in list(self.pinned.items()))

    def _copied(self, stream: _Stream, work: Callable[[], None], pageable: str) -> tuple[Any, ...]:
        """A copy, which waits for its stream if it is one of memory that is not pinned."""
        if pageable:
            self.pageable.append(pageable)
            if stream.capture is not None:
                return (stream.capture.break_off(),)
        done = self._put(stream, work)
        return self._wait(stream, len(stream.work)) if pageable else done

    def cuMemcpyDtoHAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("download")

        def work() -> None:
            held = self.view(source, nbytes, stream.context)
            ctypes.memmove(target, held.tobytes(), nbytes)

        return self._copied(stream, work, "" if self._is_pinned(target) else "download")

    def cuMemcpyDtoDAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("copy")
        return self._put(stream, self._copying(target, source, nbytes, stream.context))

    def _copying(self, target: int, source: int, nbytes: int, by: str) -> Callable[[], None]:
        def work() -> None:
            self.view(target, nbytes, by)[:] = self.view(source, nbytes, by).copy()

        return work

    def cuMemcpyPeerAsync(
        self, target: int, to: str, source: int, other: str, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        assert self.peers, "devices that do not reach each other"
        self.calls.append("peer copy")
        allowed = (other, stream.context) in self.readable or not self.pools
        assert allowed, "the pool does not allow it"

        def work() -> None:
            held = self.view(source, nbytes, other).copy()
            self.view(target, nbytes, to)[:] = held

        return self._put(stream, work)

    def cuMemsetD8Async(
        self, target: int, value: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        def work() -> None:
            self.view(target, nbytes, stream.context)[:] = value

        return self._put(stream, work)

    def cuMemsetD32Async(
        self, target: int, value: int, count: int, stream: _Stream
    ) -> tuple[Any, ...]:
        def work() -> None:
            self.view(target, 4 * count, stream.context).view(np.uint32)[:] = value

        return self._put(stream, work)

    @unsafe
    def cuModuleLoadData(self, image: int) -> tuple[Any, ...]:
        key = ctypes.string_at(image).decode()
        if key not in self.compiler.kernels:
            return (CUresult.CUDA_ERROR_INVALID_IMAGE, None)
        return (OK, self.compiler.kernels[key])

    def cuModuleGetFunction(self, module: CudaKernel, name: bytes) -> tuple[Any, ...]:
        assert name.decode() == f"{module.name}_entry"
        return (OK, module)

    def cuLaunchKernel(self, kernel: CudaKernel, *rest: Any) -> tuple[Any, ...]:
        blocks, _, _, threads, _, _, shared, stream, table, extra = rest
        assert (shared, extra) == (0, 0)
        self.calls.append(f"launch {kernel.name}")
        return self._put(stream, self._launching(kernel, blocks, threads, table, stream.context))

    def _launching(
        self, kernel: CudaKernel, blocks: int, threads: int, table: int, by: str
    ) -> Callable[[], None]:
        words = kernel_words(kernel, table)  # read now, as the driver does

        def work() -> None:
            if kernel.name == self.fault_in:
                raise MemoryError
            if not self.runs:
                return
            args = kernel_args(kernel, words, lambda word: self.view(word, -1, by))
            run(kernel, blocks, threads, args, check=False)

        return work

    # -- graphs -----------------------------------------------------------------------------------

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[Any, ...]:
        return (OK, self.exchange_mode(mode))

    def cuStreamBeginCapture(self, stream: _Stream, mode: int) -> tuple[Any, ...]:
        assert mode == CaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        return (self.begin_capture(stream, mode),)

    def cuStreamEndCapture(self, stream: _Stream) -> tuple[Any, ...]:
        return self.end_capture(stream)

    def cuStreamGetCaptureInfo(self, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is not None
        if stream.capture.lost:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, *[None] * 6)
        graph = stream.capture.work
        nodes = [(graph, len(graph) - 1)] if graph else []
        return (OK, 1, 1, graph, nodes, [], len(nodes))

    def cuGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Any, ...]:
        self.graphs += 1
        return (OK, Ready(graph))

    def cuGraphDestroy(self, graph: Graph) -> tuple[Any, ...]:
        graph.destroyed = True
        return (OK,)

    def cuGraphExecKernelNodeSetParams(
        self, ready: Ready, node: tuple[Graph, int], params: Any
    ) -> tuple[Any, ...]:
        """For later launches: what was launched before keeps what it had."""
        assert (params.gridDimY, params.gridDimZ, params.blockDimY, params.blockDimZ) == (1,) * 4
        self.calls.append(f"relaunch {params.func.name}")
        sizes = params.gridDimX, params.blockDimX
        work = self._launching(params.func, *sizes, params.kernelParams, self.current.context)
        return (ready.change(node, work),)

    def cuGraphExecMemcpyNodeSetParams(
        self, ready: Ready, node: tuple[Graph, int], params: Any, context: str
    ) -> tuple[Any, ...]:
        assert params.srcMemoryType == params.dstMemoryType == MemoryType.CU_MEMORYTYPE_DEVICE
        assert (params.Height, params.Depth) == (1, 1)
        self.calls.append("recopy")
        places = params.dstDevice, params.srcDevice, params.WidthInBytes
        return (ready.change(node, self._copying(*places, context)),)

    def cuGraphExecDestroy(self, ready: Ready) -> tuple[Any, ...]:
        """One that runs goes on: what it does is in its stream."""
        self.graphs -= 1
        return (OK,)

    def cuGraphLaunch(self, ready: Ready, stream: _Stream) -> tuple[Any, ...]:
        self.calls.append("graph")
        for work in ready.work:
            self._put(stream, work)
        return (self.failed,)
