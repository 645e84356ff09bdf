"""Kernel calls over and over in native code, for timing: the walker with a loop around its rows."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.codegen.faults import STOPPED, FaultWords
from weft.codegen.llvm.jit import compile_kernels
from weft.codegen.steps.walker import CALL_WORDS, HEADER, NEXT, SET, WALKER
from weft.ir.dataclass import dataclass
from weft.runtime.native.stopping import raise_stopped

Row = tuple[int, int, int, int]


class Walk:
    """Rows of a walker's table on `words`, run by `run`.

    rows: as in `walker.py`. pool, threads: as in the header of a frame. `failed` is the
    row at which a kernel set the status word, or -1.
    """

    def __init__(
        self,
        words: np.ndarray[Any, Any],
        rows: Sequence[Row],
        moves: np.ndarray[Any, Any] | None = None,
        pool: int = 0,
        threads: int = 1,
        status: FaultWords | None = None,
    ) -> None:
        self.words = words
        self.rows = np.array(rows, np.int64).reshape(-1, CALL_WORDS)
        self._moves = np.zeros(1, np.int64) if moves is None else moves
        self.status = FaultWords() if status is None else status
        self._failed = ctypes.c_int64(-1)
        self._slots = (ctypes.c_int64 * 1)()
        given = {
            "words": self.words.ctypes.data, "calls": self.rows.ctypes.data,
            "call_count": len(self.rows), "patches": 0, "patch_count": 0,
            "slots": ctypes.addressof(self._slots), "status": ctypes.addressof(self.status),
            "failed": ctypes.addressof(self._failed), "pool": pool, "threads": threads,
            "moves": self._moves.ctypes.data,
        }  # fmt: skip
        self._header = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
        self._address = ctypes.addressof(self._header)
        address = compile_kernels([WALKER])[WALKER.key]
        self._walker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def run(self) -> int:
        """Run the rows once; the row that failed, or -1."""
        self.status.value, self._failed.value = 0, -1
        self._walker(self._address)
        return self._failed.value


class Repeat(Walk):
    """Kernel rows that run `count` times for each call of `seconds(count)`.

    The loop costs about 3 ns an iteration (two rows of the walker), which is part of the time.
    """

    def __init__(
        self,
        words: np.ndarray[Any, Any],
        rows: Sequence[Row],
        pool: int = 0,
        threads: int = 1,
        status: FaultWords | None = None,
    ) -> None:
        counter = len(words)
        looped = [(SET, counter, 0, 0), *rows, (NEXT, counter, 1, 1)]
        more = np.append(words, 0)
        super().__init__(more, looped, None, pool, threads, status)

    def seconds(self, count: int) -> float:
        """Seconds for one run of the rows, of `count` runs in a row."""
        self.rows[-1, 3] = count
        run, address = self._walker, self._address
        self.status.value = 0
        started = time.perf_counter()
        run(address)
        passed = time.perf_counter() - started
        if self.status.value == STOPPED:
            raise_stopped(self.status.index)
        return passed / count


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per run: minimum and median over the rounds."""

    minimum: float
    median: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        """Of the figures of several rounds."""
        return Timing(min(seconds), float(np.median(seconds)))
