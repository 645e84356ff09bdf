"""NVIDIA's driver without a GPU, for tests: what `runtime/device/cuda.py` calls, on host memory.

Streams are as lazy as they may be: work waits until somebody waits for it, and then only what that
depends on is done. So a missing wait shows as wrong values, and memory that is used after it was
given back as an error. Kernels are carried out by the emulator; `FakeCompiler` makes "machine code"
that names them.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.language import memory_dtype

NUMPY_OF = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8",
          "i64": "i8", "f32": "f4", "f64": "f8"}  # fmt: skip


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


OK = CUresult.CUDA_SUCCESS


class _Attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class _PoolAttribute(enum.IntEnum):
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4


class _CaptureMode(enum.IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


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


class _Event:
    def __init__(self) -> None:
        self.stream: _Stream | None = None
        self.position = 0


class FakeDriver:
    """Stands for the module `cuda.bindings.driver`. memory: bytes of the device. runs: whether
    kernels do anything."""

    CUDA_VERSION = 13000
    CUresult = CUresult
    CUdevice_attribute = _Attribute
    CUmemPool_attribute = _PoolAttribute
    CUstreamCaptureMode = _CaptureMode
    CUdeviceptr = int
    cuuint64_t = int

    def __init__(
        self, compiler: FakeCompiler | None = None, *, version: int = 13000, devices: int = 1,
        memory: int = 1 << 30, missing: bool = False, init: CUresult = OK, runs: bool = True,
    ) -> None:  # fmt: skip
        self.compiler = compiler or FakeCompiler()
        self.version, self.devices, self.memory = version, devices, memory
        self.missing, self.init, self.runs = missing, init, runs
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, np.ndarray[Any, Any]] = {}
        self.calls: list[str] = []
        self.current = threading.local()
        self.failed = OK
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
            "cuDeviceGetAttribute": lambda what, device: (OK, 9 if what == 75 else 0),
            "cuDeviceTotalMem": lambda device: (OK, self.memory),
            "cuDevicePrimaryCtxRetain": lambda device: (OK, f"context {device}"),
            "cuGetErrorString": lambda status: (OK, status.name.lower().encode()),
            "cuEventCreate": lambda flags: (OK, _Event()),
            "cuDeviceGetDefaultMemPool": lambda device: (OK, "pool"),
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
        if sum(map(len, self.blocks.values())) + nbytes > self.memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        room = np.full(nbytes + 256, 0xFF, np.uint8)
        start = -room.ctypes.data % 256
        block = room[start : start + nbytes]
        self.blocks[block.ctypes.data] = block
        return (OK, block.ctypes.data)

    def cuMemFreeAsync(self, address: int, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None, "given back while launches are recorded"

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

    def view(self, address: int, nbytes: int = -1) -> np.ndarray[Any, Any]:
        """`nbytes` of device memory, or all up to the block's end."""
        for start, block in self.blocks.items():
            if start <= address and address - start + max(nbytes, 0) <= len(block):
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
        while stream.done < position:
            work = stream.work[stream.done]
            stream.done += 1
            work()

    def cuStreamSynchronize(self, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None
        self._check(stream)
        try:
            self._drain(stream, len(stream.work))
        except (MemoryError, KeyError):
            self.failed = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return (self.failed,)

    def cuEventRecord(self, event: _Event, stream: _Stream) -> tuple[Any, ...]:
        assert stream.capture is None
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
            self.view(target, nbytes)[:] = np.frombuffer(given, np.uint8)

        return self._put(stream, work)

    def cuMemcpyDtoHAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("download")
        return self._put(
            stream, lambda: ctypes.memmove(target, self.view(source, nbytes).tobytes(), nbytes)
        )

    def cuMemcpyDtoDAsync(
        self, target: int, source: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        self.calls.append("copy")

        def work() -> None:
            self.view(target, nbytes)[:] = self.view(source, nbytes).copy()

        return self._put(stream, work)

    def cuMemsetD8Async(
        self, target: int, value: int, nbytes: int, stream: _Stream
    ) -> tuple[Any, ...]:
        def work() -> None:
            self.view(target, nbytes)[:] = value

        return self._put(stream, work)

    def cuMemsetD32Async(
        self, target: int, value: int, count: int, stream: _Stream
    ) -> tuple[Any, ...]:
        def work() -> None:
            self.view(target, 4 * count).view(np.uint32)[:] = value

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
                held = self.view(word)
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
