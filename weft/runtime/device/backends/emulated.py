"""`EmulatedDevice`: NumPy memory, and kernels carried out by `codegen/cuda/emulator`.

It is for tests and for machines without a GPU: thousands of times slower than one, and exact about
what a GPU leaves open - bounds, races, memory that was never written - where it raises."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.codegen.cuda.cubins.cache import architecture
from weft.codegen.cuda.emulator import run
from weft.codegen.cuda.numba_cuda.simulator import simulate
from weft.codegen.cuda.source.kernel import Launch, memory_dtype
from weft.ir.errors import (
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnsupportedError,
)
from weft.runtime.device.backends.cuda import in_order, through_host
from weft.runtime.device.backends.info import EMULATED_CC
from weft.runtime.device.libraries.choice import OwnKernels
from weft.runtime.device.protocol import Calls, Device, Mark, Prepared, Resident, bytes_of, no_room

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256
#: What memory holds that nobody has written: NaN as a float, -1 as an integer.
_POISON = 0xFF


class _Block:
    __slots__ = ("__weakref__", "_device", "address", "bytes", "nbytes", "what")

    def __init__(self, device: EmulatedDevice, nbytes: int, what: str) -> None:
        self._device, self.nbytes, self.what = device, nbytes, what
        room = np.full(nbytes + _ALIGNMENT, _POISON, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        self.bytes = room[start : start + nbytes]
        self.address = int(self.bytes.ctypes.data)

    def __del__(self) -> None:  # at any time, in a thread that holds any lock: a note, no more
        self._device._dead.append((self.address, self.nbytes, self.what))


class _Done:
    """`protocol.Mark` of what has no other streams."""

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True


_DONE = _Done()


class EmulatedDevice:
    """`device.protocol.Device` without a device. memory: how many bytes it has (0: no limit).
    check: look for races, too, and for reads of what a launch has not been given values for."""

    emulated = True
    dlpack = (1, 0)  # kDLCPU: it is memory of the host, and others may read it there
    stream = 0

    def __init__(self, name: str = "/gpu:0", memory: int = 0, check: bool = False) -> None:
        self.name, self._memory, self._checks = name, memory, check
        self.cc = EMULATED_CC
        self.description = f"emulated with NumPy, as {architecture(self.cc)}"
        self.resident, self.calls = Resident(), Calls()
        self.libraries = OwnKernels("the device is emulated")
        self.launches = 0  # so far, for tests
        self._dead: deque[tuple[int, int, str]] = deque()
        self._starts: list[int] = []
        self._blocks: dict[int, Array] = {}
        self._lock = threading.RLock()
        self._recording: list[Callable[[], None]] | None = None

    def begin(self) -> None:
        pass

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int, what: str, early: bool = False, spare: bool = False) -> _Block:
        with self._lock:
            self._forget()
            short = self._memory and self.resident.nbytes + nbytes > self._memory
            if short and not spare:
                self.resident.drop_idle()
                self._forget()
            if short and self.resident.nbytes + nbytes > self._memory:
                raise ResourceExhaustedError(
                    no_room(self.name, what, nbytes, self.resident, self._memory)
                )
            made = _Block(self, nbytes, what)
            self._starts.insert(bisect_right(self._starts, made.address), made.address)
            self.resident.add(what, nbytes)
            self._blocks[made.address] = made.bytes
        return made

    def reclaim(self) -> bool:
        with self._lock:
            self._forget()
            return True

    def _forget(self) -> None:
        """Let go of the blocks that died since."""
        while self._dead:
            address, nbytes, what = self._dead.popleft()
            if address in self._blocks:  # else Ctrl-C came as it was made
                self.resident.add(what, -nbytes)
                self._starts.remove(address)
                del self._blocks[address]

    def host(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def _view(self, address: int, nbytes: int) -> Array:
        k = bisect_right(self._starts, address) - 1
        block = self._blocks[self._starts[k]] if k >= 0 else np.empty(0, np.uint8)
        first = address - self._starts[k] if k >= 0 else 0
        if k < 0 or first + nbytes > len(block):
            raise InternalError(f"{nbytes} bytes at {address:#x} are not memory of {self.name}")
        return block[first : first + nbytes]

    # -- work -------------------------------------------------------------------------------------

    def upload(self, address: int, source: Array, after: Mark | None = None) -> None:
        with self._lock:
            self._view(address, source.nbytes)[:] = bytes_of(source)

    def download(self, target: Array, address: int, after: Mark | None = None) -> None:
        with self._lock:
            bytes_of(target)[:] = self._view(address, target.nbytes)

    # all is done when it is asked for

    def mark(self) -> Mark:
        return _DONE

    def sent(self) -> Mark:
        return _DONE

    def keep(self, thing: object) -> None:
        pass

    def wait_for(self, stream: int) -> None:
        pass

    def precede(self, stream: int, after: Mark | None = None) -> None:
        pass

    def forget(self, stream: int) -> None:
        pass

    def number_at(self, address: int) -> int:
        raise InvalidArgumentError(
            f"{address:#x} is not memory of a GPU: {self.name} is emulated, no other library knows "
            "its memory"
        )

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._do(self._copying(target, source, nbytes))

    def _copying(self, target: int, source: int, nbytes: int) -> Callable[[], None]:
        def work() -> None:
            self._view(target, nbytes)[:] = self._view(source, nbytes)

        return work

    def copy_from(self, other: Device, target: int, source: int, nbytes: int) -> None:
        if not isinstance(other, EmulatedDevice):
            through_host(self, target, other, source, nbytes)
            return
        first, second = in_order(self, other)
        with first._lock, second._lock:
            self._view(target, nbytes)[:] = other._view(source, nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        def work() -> None:
            self._view(address, nbytes)[:] = 0

        self._do(work)

    def put(self, address: int, value: int) -> None:
        with self._lock:
            self._view(address, 8).view(np.int64)[0] = value

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        made = Prepared(len(spans))
        made.handle = (launch, tuple(spans))
        return made

    def launch(self, prepared: Prepared) -> None:
        self._do(self._launching(prepared))

    def _launching(self, prepared: Prepared) -> Callable[[], None]:
        words = prepared.words.copy()
        launch, spans = prepared.handle
        return lambda: self._run(launch, spans, words)

    def _run(self, launch: Launch, spans: tuple[int, ...], words: Array) -> None:
        args: list[Array | int] = []
        for parameter, word, span in zip(launch.kernel.parameters, words, spans, strict=False):
            if parameter.kind == "integer":
                args.append(int(word))
                continue
            dtype = np.dtype(_NUMPY[memory_dtype(parameter.dtype)])
            args.append(self._view(int(word), span - span % dtype.itemsize).view(dtype))
        kernel, threads = launch.kernel, launch.block_threads
        if kernel.engine == "numba":
            if self._checks:
                raise UnsupportedError(
                    'Numba\'s simulator, which runs kernels of the engine "numba", looks for no '
                    "races",
                    hint='WEFT_EMULATE_GPU=1, or WEFT_ENGINE=llvm (engine="llvm")',
                )
            simulate(kernel, launch.blocks, threads, args)
        else:
            run(kernel, launch.blocks, threads, args, check=self._checks)
        self.launches += 1

    def capture(self, work: Callable[[], None]) -> EmulatedRecording:
        with self._lock:
            held: list[Callable[[], None]] = []
            self._recording = held
            try:
                work()
            finally:
                self._recording = None
        return EmulatedRecording(self, held)

    def recorded(self) -> int:
        assert self._recording is not None
        return len(self._recording) - 1

    def timed(self, work: Callable[[], None]) -> float:
        raise UnsupportedError(f"device {self.name} is emulated: its times say nothing of a GPU")

    def synchronize(self) -> None:
        pass

    def _do(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._recording is not None:
                self._recording.append(work)
            else:
                work()


class EmulatedRecording:
    """`protocol.Recording`: a node is its number."""

    def __init__(self, device: EmulatedDevice, held: list[Callable[[], None]]) -> None:
        self._device, self._held = device, held

    def __call__(self) -> None:
        with self._device._lock:
            for one in self._held:
                one()

    def relaunch(self, node: object, prepared: Prepared) -> bool:
        assert isinstance(node, int)
        self._held[node] = self._device._launching(prepared)
        return True

    def recopy(self, node: object, target: int, source: int, nbytes: int) -> bool:
        assert isinstance(node, int)
        self._held[node] = self._device._copying(target, source, nbytes)
        return True


_NUMPY = {
    "u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8",
    "i64": "i8", "f32": "f4", "f64": "f8",
}  # fmt: skip
