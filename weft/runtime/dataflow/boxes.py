"""Cells over arrays that Python keeps: of any shape, which only their values decide, and strings.

Such an array is never written to, so queues and other cells may share it. Native code passes the
cell on and counts it as any other; it cannot let the array go, so a cell that nobody reads any more
lies on the free list of class BOXED until Python comes by.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.codegen.steps.walker import ARRAY_DATA_OFFSET
from weft.runtime.dataflow import layout as at

Array = np.ndarray[Any, Any]


def data_of(array: Array) -> int:
    """The address of an array's data; `array.ctypes.data` takes ten times as long."""
    return int(ctypes.c_int64.from_address(id(array) + ARRAY_DATA_OFFSET).value)


class Boxes:
    """The boxed cells of one step. free_list: the address of the word where native code puts
    them."""

    def __init__(self, free_list: int) -> None:
        self._free_list = ctypes.c_int64.from_address(free_list)
        self._words: dict[int, Any] = {}  # of all cells, by address
        self._arrays: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}  # of cells of others
        self._idle: list[int] = []

    def __len__(self) -> int:
        """How many arrays are held."""
        return len(self._arrays)

    def hold(self, array: Any) -> int:
        """The address of a cell over `array` (C-contiguous, or a value on a device), counted
        once."""
        if self._free_list.value:
            self.reclaim()
        cell = self._idle.pop() if self._idle else self._new()
        words = self._words[cell]
        words[at.C_COUNT // 8] = 1
        # what lies on a device is read by nobody who looks at addresses
        words[at.C_DATA // 8] = data_of(array) if isinstance(array, np.ndarray) else 0
        self._arrays[cell] = array
        return cell

    def share(self, cell: int, array: Any) -> None:
        """Know the array of a cell that lives elsewhere, until `unshare`."""
        self._shared[cell] = array

    def unshare(self, cell: int) -> None:
        """Nobody reads that cell any more."""
        self._shared.pop(cell, None)

    def array(self, cell: int) -> Any:
        """What a cell holds, which nobody may write to: an array, or a value on a device; None if
        it is neither a boxed nor a shared one."""
        return self._arrays.get(cell) if cell in self._arrays else self._shared.get(cell)

    def drop(self) -> None:
        """Let all arrays go: the step has failed, and nobody reads its cells any more."""
        self._arrays.clear()

    def reclaim(self) -> None:
        """Let the arrays go whose cells nobody reads any more."""
        cell, self._free_list.value = self._free_list.value, 0
        while cell:
            del self._arrays[cell]
            self._idle.append(cell)
            cell = self._words[cell][at.C_NEXT // 8]

    def _new(self) -> int:
        words = (ctypes.c_int64 * (at.CELL_HEADER // 8))()
        words[at.C_CLASS // 8] = at.BOXED
        cell = ctypes.addressof(words)
        self._words[cell] = words
        return cell
