"""Activations: the memory of one running step - argument words, arena, stacks, buffer addresses,
status.

The arena of stacks holds what loops keep for their gradients (`codegen/stacks.py`). It grows
up to WEFT_STACK_BYTES (if not set, three quarters of the machine's or container's memory); after a
step at most 256 MiB stay for the next one, as fresh pages cost as much as what is written to them.

Fault words of an activation let native loops be stopped (`weft.codegen.loops.interrupt`), by a
signal or by a
hook, and hold the exception that stopped one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from weft.codegen.faults import FaultWords
from weft.codegen.llvm.jit import Kernels
from weft.codegen.python_calls import API
from weft.codegen.stacks import WORD_COUNT, WORDS, element_bytes
from weft.codegen.steps.walker import CALL_WORDS, HEADER
from weft.ir.errors import CancelledError, InvalidArgumentError, ResourceExhaustedError
from weft.ir.graph import Block, Graph, Operation
from weft.ir.interpreter.state import CHECKPOINT_HINT, too_large
from weft.ir.process import cpython
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.runtime.native.python_calls import python_object
from weft.runtime.native.step import activation_words
from weft.runtime.native.step_plan import StepPlan
from weft.runtime.step import RunContext


def new_fault_words() -> FaultWords:
    """Of an activation: its loops hear of signals, and of the hook that `watch` sets."""
    return FaultWords(api=_api())


@contextmanager
def watched(words: FaultWords, context: RunContext) -> Iterator[None]:
    """While it is entered, loops of a step that has a timeout look now and then whether it is to
    end, on the thread that runs them."""
    if context.timeout is None:
        yield
        return
    with context.token().within(context.timeout) as own:
        look = own.end_if_over  # the words hold no reference
        words.hook = id(look)
        try:
            yield
        finally:
            words.hook = 0


def raise_stopped(kept: int) -> NoReturn:
    """Raise the exception that stopped a step, whose address and reference its fault words hold."""
    if not kept:
        raise CancelledError("the step was stopped")
    error: BaseException = ctypes.cast(kept, ctypes.py_object).value
    cpython.Py_DecRef(ctypes.py_object(error))
    raise error


@cache
def _api() -> int:
    """The address of the table; 0 where Python is no CPython."""
    if sys.implementation.name != "cpython":
        return 0
    words = (ctypes.c_int64 * len(API))(*map(_address, API))
    # steps may run after this module is gone
    cpython.Py_IncRef(ctypes.py_object(words))
    return ctypes.addressof(words)


def _address(name: str) -> int:
    """Of a function of CPython or libc; 0 for one that libc does not have."""
    library = cpython if name.startswith("Py") else ctypes.CDLL(None)
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


#: What an activation keeps for its next step, or an eighth of the machine's memory.
KEPT = 256 << 20


def most_bytes() -> int:
    """How many bytes the stacks of one step may take. InvalidArgumentError if WEFT_STACK_BYTES is
    no count of bytes."""
    given = os.environ.get("WEFT_STACK_BYTES", "")
    if given and not given.isdigit():
        raise InvalidArgumentError(
            f"WEFT_STACK_BYTES={given!r} is no count of bytes", hint="1000000000, for example"
        )
    if given:
        return int(given)
    return _machine_bytes() // 4 * 3


_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


@cache
def _machine_bytes() -> int:
    """The memory that this process may use: the machine's, or as much as its container has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        given = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(given)) if given.isdigit() else machine  # "max": no limit


@cache
def _free() -> Callable[[int], Any]:
    function = ctypes.CDLL(None).free
    function.argtypes, function.restype = [ctypes.c_void_p], None
    return function


class StackArena:
    """The words; the memory is given back with them."""

    __slots__ = ("_give", "words")

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * WORD_COUNT)()
        self.words[WORDS["most"]] = most_bytes()
        self.words[WORDS["kept"]] = min(KEPT, _machine_bytes() // 8)
        self._give = _free()

    @property
    def address(self) -> int:
        """Of the words."""
        return ctypes.addressof(self.words)

    @property
    def total(self) -> int:
        """Bytes of memory that it has."""
        return int(self.words[WORDS["total"]])

    def __del__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Give all memory back."""
        chunk = self.words[WORDS["first"]]
        for name in ("top", "end", "chunk", "before", "total", "first"):
            self.words[WORDS[name]] = 0
        while chunk:
            following = ctypes.c_int64.from_address(chunk).value
            self._give(chunk)
            chunk = following


def no_room(graph: Graph, op: Operation, taken: int) -> ResourceExhaustedError:
    """The error of a push that did not fit.

    taken: what the loop has kept, in bytes, which is beyond its limit; -1: there is no more memory.
    """
    each = sum(map(_bytes_pushed, _beside(graph.block, op)))
    hint = f"an iteration keeps {each:,} bytes; {CHECKPOINT_HINT}"
    if taken >= 0:
        error = too_large(taken, int_attr(op.attrs, "limit"))
        hint += ", or give a larger gradient_memory"
    else:
        error = ResourceExhaustedError(
            "what loops keep of their iterations for gradients takes more memory than there is, or "
            "than WEFT_STACK_BYTES allows"
        )
    return ResourceExhaustedError(error.what, hint=hint, location=op.locations)


def _beside(block: Block, op: Operation) -> list[Operation]:
    """The pushes of the loop whose body holds `op`."""
    if op in block.ops:
        return [o for o in block.ops if o.name == op.name and o.locations == op.locations]
    inner = (_beside(region, op) for other in block.ops for region in other.regions)
    return next((found for found in inner if found), [])


def _bytes_pushed(op: Operation) -> int:
    held = op.operands[-1].type
    return element_bytes(held.nbytes) if isinstance(held, TensorType) else 0


class LinkedPlan:
    """A plan with the addresses of this process: its words and rows as the walker reads them."""

    __slots__ = (
        "addresses", "arena_bytes", "calls", "moves", "patches", "plan", "python", "slot_count",
        "words",
    )  # fmt: skip

    def __init__(self, plan: StepPlan, addresses: Kernels) -> None:
        table = plan.table
        self.addresses = addresses  # keeps the code
        self.plan = plan  # keeps the constants
        self.calls = table.linked_calls(addresses)
        self.words = table.linked_words(addresses)
        self.python = [python_object(call) for call in table.python]  # words hold no references
        for word, number in table.callees:
            self.words[word] = id(self.python[number])
        self.patches = np.array(table.patches, np.int64)
        self.moves = np.array(table.moves, np.int64)
        self.arena_bytes = aligned(plan.arena_bytes + table.scratch_bytes)
        self.slot_count = max(len(plan.slots), 1)


class Activation:
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
        self.native = activation_words(self, self.header, given["slots"], given["status"],
                                  given["failed"], linked.plan.inputs)  # fmt: skip

    def forget_stacks(self) -> None:
        """Give the memory of stacks back that the plan leaves to other plans, when all have run."""
        if self.stacks is not None:
            self.stacks.clear()


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return (size + 63) // 64 * 64
