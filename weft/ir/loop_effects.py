"""Which effects in the loops of a dataflow graph no path orders from one iteration to the next.

Iterations of a frame overlap. Two accesses to one variable, one of them a write, are in order over
the iterations if all that starts an iteration, its next_iterations, comes after the first of them
in the one before, or if one that does feeds a merge that the second comes after.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.effects import Access, accesses
from weft.ir.frames import Frame, Frames
from weft.ir.graph import Operation, Value


def overlapping(frames: Frames) -> Iterator[tuple[Frame, Access, Access]]:
    """A frame, and two accesses in it, the second of which may come first in the next iteration."""
    found = [access for op in frames.order for access in dict.fromkeys(accesses(op))]
    if not any(access.writes for access in found):
        return
    starts = {access.op for access in found}
    starts.update(merge for frame in frames.inner for merge in frame.merges)
    past = _past(frames, {op: i for i, op in enumerate(starts)})
    bit = {op: 1 << i for i, op in enumerate(starts)}
    for frame in frames.inner:
        if frame.parallel_iterations == 1 or not frame.nexts:
            continue
        inside = [a for a in found if frame in frames.of_op[a.op].around()]
        nexts = [(merge, past[following]) for merge, following in frame.nexts.items()]
        for first in inside:
            own = bit[first.op]
            if all(before & own for _, before in nexts):
                continue
            chained = sum(bit[merge] for merge, before in nexts if before & own)
            for second in inside:
                if first.key == second.key and (first.writes or second.writes):
                    if not past[second.op] & chained:
                        yield frame, first, second


def _past(frames: Frames, number: dict[Operation, int]) -> dict[Operation, int]:
    """For each op the bits of the numbered ops that come before it in its iteration, or it is."""
    after_loops = frames.after_loops()
    out: dict[Operation, int] = {}
    for op in frames.order:
        bits = 1 << number[op] if op in number else 0
        values: list[Value] = [*op.operands, *op.control, *after_loops.get(op, ())]
        for value in values:
            if value.op is not None:
                bits |= out[value.op]
        out[op] = bits
    return out
