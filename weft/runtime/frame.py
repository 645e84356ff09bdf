"""The frame of one running step: argument words, arena, buffer addresses, status."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.codegen.llvm.jit import Kernels
from weft.codegen.steps.walker import CALL_WORDS, HEADER
from weft.runtime.native.step import frame_words
from weft.runtime.native.stopping import new_fault_words
from weft.runtime.stacks import StackArena
from weft.runtime.step_plan import StepPlan


class LinkedPlan:
    """A plan with the addresses of this process: its words and rows as the walker reads them."""

    __slots__ = (
        "addresses", "arena_bytes", "calls", "moves", "patches", "plan", "slot_count", "words"
    )  # fmt: skip

    def __init__(self, plan: StepPlan, addresses: Kernels) -> None:
        table = plan.table
        self.addresses = addresses  # keeps the code
        self.plan = plan  # keeps the constants
        self.calls = table.linked_calls(addresses)
        self.words = table.linked_words(addresses)
        self.patches = np.array(table.patches, np.int64)
        self.moves = np.array(table.moves, np.int64)
        self.arena_bytes = aligned(plan.arena_bytes + table.scratch_bytes)
        self.slot_count = max(len(plan.slots), 1)


class Frame:
    """What one running step owns. `pool`, `threads`: the pool's words and how many threads of it
    may take part (0, 1: the calling thread alone)."""

    __slots__ = (
        "arena", "block", "failed", "header", "linked", "native", "slots", "stacks", "status",
        "threads", "words",
    )  # fmt: skip

    def __init__(self, linked: LinkedPlan, pool: int, threads: int) -> None:
        self.linked = linked
        self.threads = threads
        table = linked.plan.table
        self.words = linked.words.copy()
        workers_bytes = table.worker_bytes * threads
        self.arena = np.empty(linked.arena_bytes + workers_bytes + 64, np.uint8)
        base = (int(self.arena.ctypes.data) + 63) // 64 * 64
        scratch = base + linked.plan.arena_bytes
        workers = base + linked.arena_bytes
        for word, offset in table.arena:
            self.words[word] = scratch if offset < 0 else base + offset
        self.slots = (ctypes.c_int64 * linked.slot_count)()
        self.status = new_fault_words()
        self.failed = ctypes.c_int64(-1)
        self.stacks = StackArena() if table.stacks else None
        for word in table.stacks:
            assert self.stacks is not None
            self.words[word] = self.stacks.address
        for word in table.workers:
            self.words[word] = workers
        for word in table.status:
            self.words[word] = ctypes.addressof(self.status)
        for word, place in table.own:
            self.words[word] = self.words.ctypes.data + 8 * place
        given = {
            "words": self.words.ctypes.data,
            "calls": linked.calls.ctypes.data,
            "call_count": len(linked.calls) // CALL_WORDS,
            "patches": linked.patches.ctypes.data,
            "patch_count": len(linked.patches) // 3,
            "slots": ctypes.addressof(self.slots),
            "status": ctypes.addressof(self.status),
            "failed": ctypes.addressof(self.failed),
            "pool": pool,
            "threads": threads,
            "moves": linked.moves.ctypes.data,
        }
        self.block: Any = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
        self.header = ctypes.addressof(self.block)
        self.native = frame_words(self, self.header, given["slots"], given["status"],
                                  given["failed"], linked.plan.inputs)  # fmt: skip

    def forget_stacks(self) -> None:
        """Give the memory of stacks back that the plan leaves to other plans, when all have run."""
        if self.stacks is not None:
            self.stacks.clear()


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return (size + 63) // 64 * 64
