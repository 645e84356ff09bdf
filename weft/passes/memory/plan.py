"""What a memory plan is: slots, copies, moving slots."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.passes.memory.arena import Arena

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
    no slots. in_parts: loops that run in parts. donated: the results that are computed in an
    input's buffer, and which. scratch: of ops that need much of it for themselves.
    """

    slots: dict[Value, Slot] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    moving: list[Moving] = field(default_factory=list)
    registers: set[Operation] = field(default_factory=set)
    in_parts: set[Operation] = field(default_factory=set)
    donated: dict[int, int] = field(default_factory=dict)
    scratch: dict[Operation, Slot] = field(default_factory=dict)
    arena_bytes: int = 0
    result_bytes: int = 0
    unshared_bytes: int = 0
    in_place: int = 0

    @property
    def peak_bytes(self) -> int:
        """Bytes that a step adds to what its inputs and variables hold: arena and results."""
        return self.arena_bytes + self.result_bytes

    def place_arena(self, arena: Arena) -> None:
        """Put every range of the arena where it is to be."""
        offsets, self.arena_bytes = arena.pack()

        def placed(slot: Slot) -> Slot:
            if slot.kind != "arena":
                return slot
            assert isinstance(slot.which, int)
            return Slot("arena", offsets[slot.which])

        self.slots = {value: placed(slot) for value, slot in self.slots.items()}
        self.copies = [
            replace(c, source=placed(c.source), target=placed(c.target)) for c in self.copies
        ]
        self.moving = [replace(m, even=placed(m.even), odd=placed(m.odd)) for m in self.moving]
        self.scratch = {op: placed(slot) for op, slot in self.scratch.items()}

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
