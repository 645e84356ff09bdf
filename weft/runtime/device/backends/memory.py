"""Memory of a CUDA device and pinned memory of the host: the part of `CudaDevice` that is about
taking it and giving it back.

From the driver's stream-ordered pool; on a GPU without pools from `cuMemAlloc`, and given back once
the device is past its last use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.errors import InternalError, ResourceExhaustedError
from weft.runtime.device.backends.streams import FORGET, CudaMark, Dead, Streams
from weft.runtime.device.blocks import Resident, no_room, what_is_there
from weft.runtime.device.protocol import Array

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_OTHERS = "other programs may use the device too: nvidia-smi shows them"


class Block:
    """Memory of the device."""

    __slots__ = ("__weakref__", "_dead", "address", "nbytes", "what")

    def __init__(self, address: int, nbytes: int, what: str, dead: Dead) -> None:
        self.address, self.nbytes, self.what, self._dead = address, nbytes, what, dead

    def __del__(self) -> None:
        self._dead.append(("cuMemFree", self.address, self.nbytes, self.what))


class Pinned:
    """Pinned memory for NumPy, which keeps this object as long as an array is on it."""

    def __init__(self, address: int, nbytes: int, dead: Dead) -> None:
        self._address, self._dead = address, dead
        self.__array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        self._dead.append(("cuMemFreeHost", self._address, 0, ""))


def is_pinned(array: Array) -> bool:
    """Whether an array is on memory that `Memories.host` gave."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Pinned)


class Memories(Streams):
    """The part of `CudaDevice` that is about memory."""

    name: str
    memory: int | None
    resident: Resident
    _device: Any
    _now: Any

    def __init__(self) -> None:
        super().__init__()
        self._dead: Dead = deque()
        # what the driver takes at once, and others are using: until these marks
        self._leaving: deque[tuple[tuple[CudaMark, ...], str, int]] = deque()
        self._pool: Any = None  # None: the GPU has no pools

    def _find_pool(self) -> None:
        """The pool keeps what is given back, or every wait for the device would empty it."""
        call, api = self._driver.call, self._driver.api
        has = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        if not call("cuDeviceGetAttribute", has, self._device):
            return
        self._pool = call("cuDeviceGetDefaultMemPool", self._device)
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call("cuMemPoolSetAttribute", self._pool, threshold, api.cuuint64_t((1 << 64) - 1))

    def allocate(self, nbytes: int, what: str, early: bool = False, spare: bool = False) -> Block:
        stream = self._in if early else self._work
        with self._lock:
            self._enter()
            self._free()
            failed, address = self._take(nbytes, stream)
            for drop in (self.resident.drop_spare, self.resident.drop_idle):
                if failed == OUT_OF_MEMORY and not spare:
                    self._make_room(drop)
                    failed, address = self._take(nbytes, stream)
            if failed == OUT_OF_MEMORY:
                raise ResourceExhaustedError(
                    no_room(self.name, what, nbytes, self.resident, self.memory or 0),
                    hint=_OTHERS,
                )
            if failed:
                raise InternalError(f"the NVIDIA driver gave no memory: {failed}")
            self.resident.add(what, nbytes)
            return Block(int(address), nbytes, what, self._dead)

    def _take(self, nbytes: int, stream: Any) -> tuple[str, Any]:
        size = max(nbytes, 1)
        if self._pool is None:
            return self._driver.tried("cuMemAlloc", size)
        return self._driver.tried("cuMemAllocAsync", size, stream)

    def _make_room(self, drop: Callable[[], None]) -> None:
        """Give back what `drop` lets go. Waits, so that all that was given back can be taken again;
        the pool may keep what others do not use."""
        drop()
        self._free()
        for stream in (self._in, self._work, self._out):
            self._driver.call("cuStreamSynchronize", stream)
        self._let_leave()
        if self._pool is not None:
            self._driver.call("cuMemPoolTrimTo", self._pool, 0)

    def _again(self, status: Any, launch: Callable[[], Any], what: str) -> Any:
        """The status of a launch that failed, after another try if the driver had no memory for
        what it takes by itself: it gets what is idle. ResourceExhaustedError; what: what was to be
        launched."""
        if self._driver.name_of(status) != OUT_OF_MEMORY:
            return status
        if self._now is self._work:  # else it is recorded, and nothing can be waited for
            self._make_room(self.resident.drop_idle)
            (status,) = launch()
        if self._driver.name_of(status) == OUT_OF_MEMORY:
            there = what_is_there(self.resident, self.memory or 0)
            raise ResourceExhaustedError(
                f"device {self.name} has no memory that the driver needs to launch {what}: {there}",
                hint=_OTHERS,
            )
        return status

    def reclaim(self) -> bool:
        with self._lock:
            self._enter()
            return self._free()

    def _free(self) -> bool:
        """Give back what died since, without waiting for the device. False where a stream cannot be
        waited for now: what died after that was said is not given back yet."""
        waits: set[int] = set()
        for _ in range(len(self._dead)):  # what dies meanwhile has been used meanwhile
            one = function, held, nbytes, what = self._dead.popleft()
            if function == FORGET:
                try:
                    forgotten = self._wait_to_forget(held, waits)
                except BaseException:
                    self._dead.appendleft(one)
                    raise
                if not forgotten:
                    self._dead.appendleft(one)
                    self._let_leave()
                    return False
            elif function == "cuMemFree":
                self._give_back(held)
                self.resident.add(what, -nbytes)
            elif function == "cuMemFreeHost":
                marks = self._marked(self._in), self._marked(self._out)
                self._leaving.append((marks, function, held))
            else:  # a recording: one that runs is freed when it is done (`cuGraphExecDestroy`)
                self._driver.call(function, held)
        self._let_leave()
        return True

    def _give_back(self, address: int) -> None:
        if self._pool is None:
            self._leaving.append(((self._marked(self._work),), "cuMemFree", address))
        else:
            self._driver.call("cuMemFreeAsync", address, self._work)

    def _let_leave(self) -> None:
        while self._leaving and all(mark.done() for mark in self._leaving[0][0]):
            _, function, held = self._leaving.popleft()
            self._driver.call(function, held)

    def host(self, nbytes: int) -> Array:
        """Pinned memory, as long as an array is on it."""
        with self._lock:
            self._enter()
            self._free()
            address = int(self._driver.call("cuMemHostAlloc", max(nbytes, 1), 0))
        return np.asarray(Pinned(address, nbytes, self._dead))


__all__ = ["OUT_OF_MEMORY", "Block", "Memories", "Pinned", "is_pinned"]
