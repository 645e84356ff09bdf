"""NVIDIA's driver without a GPU, for tests: what
`runtime/device/backends/cuda.py` calls, on host memory.

Streams are as lazy as they may be: work waits until somebody waits for it, and then only what that
depends on is done. So a missing wait shows as wrong values, and memory that is used after it was
given back as an error. Kernels are carried out by the emulator; `FakeCompiler` makes "machine code"
that names them.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fake_driver_types import (
    ATTRIBUTES,
    OK,
    AccessFlags,
    Attribute,
    CaptureMode,
    CUresult,
    FakeAccess,
    LocationType,
    PointerAttribute,
    PoolAttribute,
)

from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.language import memory_dtype

NUMPY_OF = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8",
          "i64": "i8", "f32": "f4", "f64": "f8"}  # fmt: skip


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
    def __init__(self, context: str) -> None:
        self.context = context
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.capture: list[Callable[[], None]] | None = None
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


class FakeDriver:
    """Stands for the module `cuda.bindings.driver`. memory: bytes of each device. runs: whether
    kernels do anything. peers: whether devices reach each other's memory."""

    CUDA_VERSION = 13000
    CUresult = CUresult
    CUdevice_attribute = Attribute
    CUmemPool_attribute = PoolAttribute
    CUpointer_attribute = PointerAttribute
    CUstreamCaptureMode = CaptureMode
    CUmemAccessDesc = FakeAccess
    CUmemLocationType = LocationType
    CUmemAccess_flags = AccessFlags
    CUdeviceptr = int
    cuuint64_t = int

    def __init__(
        self, compiler: FakeCompiler | None = None, *, version: int = 13000, devices: int = 1,
        memory: int = 1 << 30, missing: bool = False, init: CUresult = OK, runs: bool = True,
        peers: bool = True,
    ) -> None:  # fmt: skip
        self.compiler = compiler or FakeCompiler()
        self.version, self.devices, self.memory = version, devices, memory
        self.missing, self.init, self.runs = missing, init, runs
        self.peers = peers
        self.readable: set[tuple[str, str]] = set()  # (the pool, who may read it), by contexts
        self.owners: dict[int, str] = {}  # of blocks
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, np.ndarray[Any, Any]] = {}
        self.calls: list[str] = []
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
            "cuDeviceGetAttribute": lambda what, device: (OK, ATTRIBUTES[what]),
            "cuDeviceCanAccessPeer": lambda device, other: (OK, int(self.peers)),
            "cuDeviceTotalMem": lambda device: (OK, self.memory),
            "cuDevicePrimaryCtxRetain": lambda device: (OK, f"context {device}"),
            "cuGetErrorString": lambda status: (OK, status.name.lower().encode()),
            "cuEventCreate": lambda flags: (OK, _Event(self.current.context)),
            "cuDeviceGetDefaultMemPool": lambda device: (OK, f"context {device}"),
            "cuMemPoolSetAttribute": lambda pool, what, value: (OK,),
            "cuMemPoolTrimTo": lambda pool, least: (OK,),
            "cuGraphDestroy": lambda graph: (OK,),
            "cuEventDestroy": lambda event: (OK,),
            "cuEventElapsedTime": lambda first, last: (OK, 0.5),
        }
        if name not in held:
            raise AttributeError(name)
        return held[name]

    # -- memory -----------------------------------------------------------------------------------

    def cuMemAllocAsync(self, nbytes: int, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None, "allocated while launches are recorded"
        self._check(stream)
        if self.failed:
            return (self.failed, None)
        own = (b for a, b in list(self.blocks.items()) if self.owners[a] == stream.context)
        if sum(map(len, own)) + nbytes > self.memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        room = np.full(nbytes + 256, 0xFF, np.uint8)
        start = -room.ctypes.data % 256
        block = room[start : start + nbytes]
        self.owners[block.ctypes.data] = stream.context  # before it is there for other threads
        self.pending.add(block.ctypes.data)  # other streams have to wait for it
        self.blocks[block.ctypes.data] = block
        stream.work.append(lambda: self.pending.discard(block.ctypes.data))
        return (OK, block.ctypes.data)

    def cuMemPoolSetAccess(self, pool: str, map: list[FakeAccess], count: int) -> tuple[Any, ...]:
        (access,) = map
        assert (access.location.type, access.flags, count) == (1, 3, 1)
        self.readable.add((pool, f"context {access.location.id}"))
        return (OK,)

    def cuMemFreeAsync(self, address: int, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None, "given back while launches are recorded"
        assert self.owners[int(address)] == stream.context, "memory of another device"

        def free() -> None:
            del self.blocks[int(address)]

        return self._put(stream, free)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        block = np.full(nbytes, 0xEE, np.uint8)
        self.pinned[block.ctypes.data] = block
        return (OK, block.ctypes.data)

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
        return (OK, _Stream(self.current.context))

    def _put(self, stream: _Stream, work: Callable[[], None]) -> tuple[Any, ...]:
        self._check(stream)
        held = stream.work if stream.capture is None else stream.capture
        held.append(work)
        return (self.failed,)

    def _drain(self, stream: _Stream, position: int) -> None:
        with self.draining:  # or what another thread is at would count as done
            while stream.done < position:
                work = stream.work[stream.done]
                stream.done += 1
                work()

    def cuStreamSynchronize(self, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None
        self._check(stream)
        return self._wait(stream, len(stream.work))

    def _wait(self, stream: _Stream, position: int) -> tuple[Any, ...]:
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
            (handle, self.current.context), _Stream(self.current.context)
        )

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self.calls.append("cuCtxSynchronize")
        for stream in [s for s in _streams.values() if s.context == self.current.context]:
            self._wait(stream, len(stream.work))
        return (self.failed,)

    def cuEventSynchronize(self, event: _Event) -> tuple[Any, ...]:
        assert event.stream is not None
        return self._wait(event.stream, event.position)

    def cuEventQuery(self, event: _Event) -> tuple[Any, ...]:
        assert event.stream is not None
        past = event.stream.done >= event.position
        return (self.failed if past or self.failed else CUresult.CUDA_ERROR_NOT_READY,)

    def cuPointerGetAttribute(self, what: int, address: int) -> tuple[Any, ...]:
        assert what == PointerAttribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        for start, block in list(self.blocks.items()):
            if start <= address < start + len(block):
                return (OK, int(self.owners[start].split()[1]))
        return (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, None)

    def cuEventRecord(self, event: _Event, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None
        assert event.context == stream.context, "an event of another device"
        event.stream, event.position = stream, len(stream.work)
        return (OK,)

    def cuStreamWaitEvent(self, stream: _Stream, event: _Event, flags: int) -> tuple[Any, ...]:
        other, position = event.stream, event.position
        assert other is not None
        return self._put(stream, lambda: self._drain(other, position))

    # -- work -------------------------------------------------------------------------------------

    def cuMemcpyHtoDAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("upload")
        held = source in self.pinned or any(
            a <= source < a + len(b) for a, b in self.pinned.items()
        )
        now = b"" if held else ctypes.string_at(source, nbytes)  # pageable: read at once

        def work() -> None:
            given = ctypes.string_at(source, nbytes) if held else now
            self.view(target, nbytes, stream.context)[:] = np.frombuffer(given, np.uint8)

        return self._put(stream, work)

    def cuMemcpyDtoHAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("download")

        def work() -> None:
            held = self.view(source, nbytes, stream.context)
            ctypes.memmove(target, held.tobytes(), nbytes)

        return self._put(stream, work)

    def cuMemcpyDtoDAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("copy")

        def work() -> None:
            by = stream.context
            self.view(target, nbytes, by)[:] = self.view(source, nbytes, by).copy()

        return self._put(stream, work)

    def cuMemcpyPeerAsync(
        self, target: int, to: str, source: int, other: str, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        assert self.peers, "devices that do not reach each other"
        self.calls.append("peer copy")
        assert (other, stream.context) in self.readable, "the pool does not allow it"

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
        words = []
        for k in range(len(kernel.parameters)):  # read now, as the driver does
            address = ctypes.c_uint64.from_address(table + 8 * k).value
            words.append(ctypes.c_int64.from_address(address).value)

        def work() -> None:
            if kernel.name == self.fault_in:
                raise MemoryError
            if not self.runs:
                return
            args: list[Any] = []
            for parameter, word in zip(kernel.parameters, words, strict=True):
                if parameter.kind == "integer":
                    args.append(word)
                    continue
                dtype = np.dtype(NUMPY_OF[memory_dtype(parameter.dtype)])
                held = self.view(word, -1, stream.context)
                args.append(held[: len(held) // dtype.itemsize * dtype.itemsize].view(dtype))
            run(kernel, blocks, threads, args, check=False)

        return self._put(stream, work)

    # -- graphs -----------------------------------------------------------------------------------

    def cuStreamBeginCapture(self, stream: _Stream, mode: int) -> tuple[Any, ...]:
        stream.capture = []
        return (OK,)

    def cuStreamEndCapture(self, stream: _Stream) -> tuple[Any, ...]:
        held, stream.capture = stream.capture, None
        return (OK, held)

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[Any, ...]:
        self.graphs += 1
        return (OK, list(graph))

    def cuGraphExecDestroy(self, ready: list[Any]) -> tuple[Any, ...]:
        self.graphs -= 1
        return (OK,)

    def cuGraphLaunch(self, ready: list[Any], stream: _Stream) -> tuple[Any, ...]:
        self.calls.append("graph")
        for work in ready:
            self._put(stream, work)
        return (self.failed,)
