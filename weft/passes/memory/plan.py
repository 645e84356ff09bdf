"""What a memory plan is: slots, copies, moving slots; and the arena that the planner packs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weft.ir.graph import Block, Operation, Value

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SlotKind = Literal["input", "variable", "constant", "result", "arena", "moving"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`kind` and which one: input/result/constant number, variable name, byte offset in the arena,
    or number of a `Moving`.
    """

    kind: SlotKind
    which: int | str

    def __str__(self) -> str:
        return f"arena+{self.which}" if self.kind == "arena" else f"{self.kind} {self.which}"


@dataclass(frozen=True, slots=True)
class Moving:
    """A place that follows the iterations of a loop: in iteration i, counted from 0, it is
    `offset + i * stride` bytes after the start of `even` or, for odd i, of `odd`.
    """

    loop: Operation
    even: Slot
    odd: Slot
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the step makes after the op at `position` of `block` (-1: before all ops).

    block: a region of a loop or branch; None for the graph itself.
    """

    position: int
    source: Slot
    target: Slot
    nbytes: int
    why: str
    block: Block | None = None


@dataclass(slots=True)
class MemoryPlan:
    """slots: where each tensor value is, those of loop bodies included. copies: those that remain.
    arena_bytes: the step's scratch. registers: control flow that is one kernel, whose regions have
    no slots. donated: the results that are computed in an input's buffer, and which.
    """

    slots: dict[Value, Slot] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    moving: list[Moving] = field(default_factory=list)
    registers: set[Operation] = field(default_factory=set)
    donated: dict[int, int] = field(default_factory=dict)
    arena_bytes: int = 0
    result_bytes: int = 0
    unshared_bytes: int = 0
    in_place: int = 0

    @property
    def peak_bytes(self) -> int:
        """Bytes that a step adds to what its inputs and variables hold: arena and results."""
        return self.arena_bytes + self.result_bytes

    def describe(self) -> str:
        """One paragraph for people."""
        return (
            f"peak {self.peak_bytes} bytes: arena {self.arena_bytes} (without reuse "
            f"{self.unshared_bytes}), results {self.result_bytes}; {self.in_place} values in "
            f"place, {len(self.copies)} copies"
            + "".join(
                f"\n  copy {c.nbytes} bytes {c.source} -> {c.target}: {c.why}" for c in self.copies
            )
            + "".join(f"\n  moving {k}: {_moves(m)}" for k, m in enumerate(self.moving))
        )


def _moves(m: Moving) -> str:
    if m.even != m.odd:
        return f"{m.even} and {m.odd} in turn in a {m.loop.name}"
    start = f"{m.even} + {m.offset}" if m.offset else str(m.even)
    return f"{start} {'-' if m.stride < 0 else '+'} i * {abs(m.stride)} in a {m.loop.name}"


class Arena:
    """First-fit allocation of byte ranges."""

    def __init__(self) -> None:
        self.used: list[tuple[int, int]] = []  # (offset, size), sorted
        self.peak = 0

    def take(self, size: int) -> int:
        """The offset of `size` bytes that nobody has."""
        size, offset = aligned(size), 0
        for start, length in self.used:
            if start - offset >= size:
                break
            offset = start + length
        self.used.append((offset, size))
        self.used.sort()
        self.peak = max(self.peak, offset + size)
        return offset

    def release(self, offset: int) -> None:
        """Give the range at `offset` back."""
        self.used = [u for u in self.used if u[0] != offset]


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines; at least one."""
    return max(size + ALIGNMENT - 1, ALIGNMENT) // ALIGNMENT * ALIGNMENT
