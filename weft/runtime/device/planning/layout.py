"""The memory of one step on a device: one block, in which every small buffer has its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dataclass import dataclass
from weft.runtime.device.planning.plan import FAULT_BYTES, DevicePlan

ALIGNMENT = 256
#: An input of more bytes has memory of its own, so that one that is on the device is not copied. A
#: smaller one is, into the block: where the launches find it is always the same then, and what was
#: recorded of them can be launched again.
SMALL_INPUT = 1 << 20
#: The same of results. All that are small leave the block together, in one copy: it should take
#: little memory if somebody keeps one of them for long.
SMALL_RESULT = 4 << 10


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets in the block. inputs, results: of the small ones by number. What comes from the
    host lies at the front, up to `input_end`; what goes back follows, up to `result_end`: the
    results, then the fault words, at `faults`."""

    inputs: Mapping[int, int]
    input_end: int
    results: Mapping[int, int]
    faults: int
    result_end: int
    arena: int
    scratch: int
    nbytes: int


def layout_of(plan: DevicePlan) -> Layout:
    """Where everything is. An input whose memory is donated, and the result there, are not small:
    the memory is used as it is."""
    end = 0
    inputs, results = {}, {}
    donated = set(plan.donated.values())
    for i, held in enumerate(plan.inputs):
        if held.nbytes <= SMALL_INPUT and i not in donated:
            inputs[i] = end
            end = _after(end, held.nbytes)
    input_end = end
    for i, result in enumerate(plan.results):
        if result is not None and result.nbytes <= SMALL_RESULT and i not in plan.donated:
            results[i] = end
            end = _after(end, result.nbytes)
    faults = end
    result_end = faults + FAULT_BYTES * len(plan.faults)
    arena = _after(faults, FAULT_BYTES * len(plan.faults))
    scratch = _after(arena, plan.arena_bytes)
    nbytes = _after(scratch, plan.scratch_bytes)
    return Layout(inputs, input_end, results, faults, result_end, arena, scratch, nbytes)


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where buffers of so many bytes lie, one after another, and where they end."""
    offsets, end = [], 0
    for nbytes in sizes:
        offsets.append(end)
        end = _after(end, nbytes)
    return offsets, end


def _after(offset: int, nbytes: int) -> int:
    return (offset + nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
