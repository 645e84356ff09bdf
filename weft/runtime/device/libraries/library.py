"""Interface to a library of NVIDIA's: lists of algorithms, calls, memory for them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Protocol, TypeVar

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.process import ForkLock
from weft.runtime.device.protocol import Array, Device, Memory

#: Bytes of a workspace that stay on the device.
KEPT = 32 << 20


class Call(Protocol):
    """A call of a library, but for addresses.

    dtype: of all operands; 16 bits are summed in f32. mode: how f32 is multiplied. epilogue: what
    the library does to the sums ("none": nothing).
    """

    @property
    def dtype(self) -> str: ...
    @property
    def mode(self) -> MathMode: ...
    @property
    def epilogue(self) -> str: ...
    @property
    def k(self) -> int:
        """Products in each sum, at most."""

    @property
    def key(self) -> str:
        """Equal keys, equal calls but for the addresses."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Bytes from each argument's address to where it begins."""

    def describe(self) -> str:
        """Sizes, dtype and mode, for people."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of a library's ways to do a call: `code` is what tells the library which, of use for the
    same version of it alone; workspace: bytes."""

    code: bytes
    workspace: int
    label: str


class LibraryLaunch(ABC):
    """A call that is ready but for its addresses and the stream. memory: its workspace."""

    name: str
    memory: Memory | None = None

    @abstractmethod
    def __call__(self, words: Array, stream: int) -> None:
        """Ask for it. words: the addresses of its arguments."""


C = TypeVar("C", bound=Call, contravariant=True)


class Library(Protocol[C]):
    """A library that is loaded, for one device. version: "9.28.0"; cuda: the release of CUDA that
    it is built for, 13."""

    version: str
    cuda: int

    def algorithms(self, call: C, most: int, /) -> list[Algorithm]:
        """At most so many, whose bits are the same on every run, the one that the library thinks
        fastest first; none if it has none."""

    def checked(self, call: C, code: bytes, /) -> Algorithm | None:
        """The algorithm of this code, which another process has kept; None if it cannot do this."""

    def prepared(self, call: C, algorithm: Algorithm, workspace: int, /) -> LibraryLaunch:
        """The call by this algorithm, ready but for the addresses; `workspace`: where it is."""

    def room(self, algorithm: Algorithm, /) -> int:
        """Bytes of memory for its workspace: those of another algorithm may lie there, too."""


class Workspaces:
    """Memory for workspaces on `device`, one of each size for all calls: launches of a device
    follow each other on one stream. More than `KEPT` bytes are given back when no call that is
    ready has them any more."""

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, ForkLock()
        self._held: weakref.WeakValueDictionary[tuple[str, int], Memory] = (
            weakref.WeakValueDictionary()
        )
        self._kept: list[Memory] = []

    def of(self, nbytes: int, whose: str) -> Memory | None:
        """So many bytes; None for none."""
        if not nbytes:
            return None
        with self._lock:
            found = self._held.get((whose, nbytes))
            if found is None:
                found = self._device.allocate(nbytes, f"{whose}'s workspace")
                self._held[whose, nbytes] = found
                if nbytes <= KEPT:
                    self._kept.append(found)
            return found
