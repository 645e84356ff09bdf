"""How many elements kernels read from memory, as the emulator carries them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from weft.codegen.cuda.emulator.memory import Elements


@contextmanager
def counted_loads() -> Iterator[Counter[str]]:
    """Elements that threads load, by the name that the kernel gives the pointer."""
    counts: Counter[str] = Counter()
    load, load_wide = Elements.load, Elements.load_wide

    def one(self: Elements, index: Any, mask: Any, line: int) -> Any:
        counts[self.name] += self.k.present(mask).size
        return load(self, index, mask, line)

    def wide(self: Elements, index: Any, count: int, mask: Any, line: int) -> Any:
        counts[self.name] += count * self.k.present(mask).size
        return load_wide(self, index, count, mask, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elements, "load", one)
        patch.setattr(Elements, "load_wide", wide)
        yield counts


SECTOR = 32  # bytes: what memory gives at least


@dataclass
class Traffic:
    """Of loads: instructions of warps, and sectors that these touch in all."""

    requests: int = 0
    sectors: int = 0


@contextmanager
def counted_sectors() -> Iterator[dict[str, Traffic]]:
    """What warps load, by the name that the kernel gives the pointer; for blocks of whole warps."""
    found: dict[str, Traffic] = {}
    load, load_wide = Elements.load, Elements.load_wide

    def note(self: Elements, index: Any, mask: Any, line: int) -> None:
        lanes = self.k.present(mask)
        places = np.broadcast_to(self.places(index, mask, line), self.k.count)[lanes]
        sectors = (places * self.data.itemsize + self.data.ctypes.data) // SECTOR
        pairs = np.stack([lanes // 32, sectors])
        traffic = found.setdefault(self.name, Traffic())
        traffic.requests += np.unique(lanes // 32).size
        traffic.sectors += np.unique(pairs, axis=1).shape[1]

    def one(self: Elements, index: Any, mask: Any, line: int) -> Any:
        note(self, index, mask, line)
        return load(self, index, mask, line)

    def wide(self: Elements, index: Any, count: int, mask: Any, line: int) -> Any:
        note(self, index, mask, line)  # 16 bytes at a multiple of them are in one sector
        return load_wide(self, index, count, mask, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elements, "load", one)
        patch.setattr(Elements, "load_wide", wide)
        yield found
