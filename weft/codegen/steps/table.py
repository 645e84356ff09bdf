"""The table of int64 words that the walker (`steps/walker.py`) carries out.

`steps/layout.py` makes it; a step whose plan is on disk loads nothing of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from weft.codegen.kernels.blas import blas_address
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value

SlotKey = tuple[str, int | str]
SlotOf = Callable[[Value], SlotKey]


@dataclass(frozen=True, slots=True)
class MovingPlace:
    """A place in iteration i of `loop`: `offset + i * stride` after `even` or, for odd i, `odd`."""

    loop: Operation
    even: SlotKey
    odd: SlotKey
    offset: int
    stride: int


@dataclass(slots=True)
class Table:
    """The plan as int64 words, before addresses are known: it means the same in every process.

    words: the arguments of all calls, one after another, and the loops' counters. calls: the rows
    (`CALL_WORDS` words each) for the walker; owner: per row the number of its kernel call, -1 for
    control. moves: what loops do to addresses (`MOVE_WORDS` words each).
    kernels: the content keys of the step's kernels, each once; rows: (word of `calls`, number of
    the kernel) to fill with its address, as are codes, in `words`. routines: (word, name) of BLAS.
    arrays: constants, at whose addresses point constants: (word, number of the array, byte offset).
    patches: (word, slot number, byte offset) to fill per call; arena: (word, byte offset) to fill
    per frame; workers: words that hold the address of the workers' scratch (`worker_bytes` for each
    thread that may run the step); status: words that hold the address of the status word; stacks:
    of the words of the arena of stacks; own: (word, the word at whose address it points).
    """

    words: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    arena: list[tuple[int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    stacks: list[int] = field(default_factory=list)
    own: list[tuple[int, int]] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    codes: list[tuple[int, int]] = field(default_factory=list)
    routines: list[tuple[int, str]] = field(default_factory=list)
    constants: list[tuple[int, int, int]] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    scratch_bytes: int = 0
    worker_bytes: int = 0

    def linked_calls(self, addresses: Mapping[str, int]) -> np.ndarray[Any, Any]:
        """The rows with the kernels' addresses, by content key."""
        calls = np.array(self.calls, np.int64)
        for word, kernel in self.rows:
            calls[word] = addresses[self.kernels[kernel]]
        return calls

    def linked_words(self, addresses: Mapping[str, int]) -> np.ndarray[Any, Any]:
        """The words with the addresses of kernels and constants; at least one word."""
        words = np.array(self.words or [0], np.int64)
        for word, kernel in self.codes:
            words[word] = addresses[self.kernels[kernel]]
        for word, name in self.routines:
            words[word] = blas_address(name)
        for word, number, offset in self.constants:
            words[word] = self.arrays[number].ctypes.data + offset
        return words
