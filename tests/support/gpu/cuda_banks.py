"""What accesses of kernels to shared memory take of its banks, as the emulator carries them out.

An access of a warp is done in requests, each of which takes a cycle if no two different words in it
lie in one of the 32 banks of 4 bytes. All lanes are one request if each asks for 32 bits, half of
them for 64 bits, a quarter for 128 bits; of these twice as many where all pairs of lanes next to
each other, or all pairs two apart, ask for the same:
https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228/2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from weft.codegen.cuda.emulator.memory import Elements

Array = np.ndarray[Any, Any]
WORD, BANKS, WARP = 4, 32, 32


@dataclass
class Banks:
    """By the line of the kernel: cycles, requests, and accesses of a warp."""

    cycles: Counter[int] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)
    accesses: Counter[int] = field(default_factory=Counter)

    def conflicts(self) -> list[int]:
        """The lines where a request takes more than a cycle."""
        return [line for line, taken in self.cycles.items() if taken > self.requests[line]]


def taken(lanes: Array, places: Array, nbytes: int) -> tuple[int, int]:
    """(cycles, requests) of the access of these lanes of a warp to `nbytes` each, from the bytes
    `places` on."""
    together = WARP * WORD // max(nbytes, WORD)
    if nbytes == 16:
        at = dict(zip(lanes.tolist(), places.tolist(), strict=True))
        shared = [all(at.get(n ^ d, place) == place for n, place in at.items()) for d in (1, 2)]
        together *= 1 + any(shared)
    cycles = requests = 0
    for group in np.unique(lanes // together):
        first = places[lanes // together == group] // WORD
        words = np.unique(first[:, None] + np.arange(max(nbytes // WORD, 1)))
        cycles += int(np.bincount(words % BANKS).max())
        requests += 1
    return cycles, requests


@contextmanager
def counted_banks() -> Iterator[Banks]:
    """Of all accesses to shared memory."""
    found = Banks()

    def counting(name: str, wide: bool) -> Any:
        before = getattr(Elements, name)

        def method(self: Elements, index: Any, *rest: Any) -> Any:
            mask, line = rest[-2:]
            if self.starts is not None:  # one array for each block: in shared memory
                threads = self.k.present(mask)
                own = np.broadcast_to(index, self.k.count)[threads].astype(np.int64)
                nbytes = 16 if wide else self.data.itemsize
                for warp in np.unique(threads // WARP):
                    here = threads // WARP == warp
                    places = own[here] * self.data.itemsize
                    cycles, requests = taken(threads[here] % WARP, places, nbytes)
                    found.cycles[line] += cycles
                    found.requests[line] += requests
                    found.accesses[line] += 1
            return before(self, index, *rest)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for name in ("load", "store", "load_wide", "store_wide"):
            patch.setattr(Elements, name, counting(name, name.endswith("_wide")))
        yield found
