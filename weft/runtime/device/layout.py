"""The memory of one step on a device: one block, in which every buffer has its place."""

from __future__ import annotations

from dataclasses import dataclass

from weft.runtime.device.plan import FAULT_BYTES, DevicePlan

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets. inputs, results: of each (results without a value are 0). What comes from the
    host lies at the front, up to `input_end`; what goes back follows, up to `result_end`: the
    results, then the fault words, at `faults`."""

    inputs: tuple[int, ...]
    input_end: int
    results: tuple[int, ...]
    faults: int
    result_end: int
    arena: int
    scratch: int
    nbytes: int


def layout_of(plan: DevicePlan) -> Layout:
    """Where everything is."""
    end = 0
    inputs, results = [], []
    for held in plan.inputs:
        inputs.append(end)
        end = _after(end, held.nbytes)
    input_end = end
    for result in plan.results:
        results.append(end)
        end = _after(end, 0 if result is None else result.nbytes)
    faults = end
    result_end = faults + FAULT_BYTES * len(plan.faults)
    arena = _after(faults, FAULT_BYTES * len(plan.faults))
    scratch = _after(arena, plan.arena_bytes)
    nbytes = _after(scratch, plan.scratch_bytes)
    return Layout(
        tuple(inputs), input_end, tuple(results), faults, result_end, arena, scratch, nbytes
    )


def _after(offset: int, nbytes: int) -> int:
    return (offset + nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
