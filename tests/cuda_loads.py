"""How many elements kernels read from memory, as the emulator carries them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
