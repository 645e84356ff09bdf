"""The arena of stacks of one frame: words for its kernels to work on (`codegen/kernels/stack.py`).

It grows as what loops keep for their gradients does, up to WEFT_STACK_BYTES (if not set, three
quarters of the machine's or container's memory). After a step at most 256 MiB stay for the next
one: fresh pages cost as much as what is written to them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from weft.codegen.stacks import WORD_COUNT, WORDS, element_bytes
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError
from weft.ir.graph import Block, Graph, Operation
from weft.ir.interpreter.stacks import CHECKPOINT_HINT, too_large
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType

#: What a frame keeps for its next step, or an eighth of the machine's memory.
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
