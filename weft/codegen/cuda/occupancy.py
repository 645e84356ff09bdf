"""How many blocks of a kernel a multiprocessor holds at once.

Limits: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability";
granularities: the occupancy calculator of Nsight Compute 2025.3.
"""

from __future__ import annotations

from weft.codegen.cuda.report import KernelReport
from weft.ir.dataclass import dataclass

WARP = 32
REGISTERS = 64 << 10  # of a multiprocessor
_REGISTER_UNIT = 256  # of a warp
_WARP_UNIT = 4  # warps of a block get registers in fours: one for each quarter of a multiprocessor


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a multiprocessor. shared: bytes. unit: bytes by which blocks get shared memory. reserved:
    bytes of it that the system takes of each block."""

    warps: int
    blocks: int
    shared: int
    unit: int = 128
    reserved: int = 1024


_LIMITS = {
    (7, 5): Limits(32, 16, 64 << 10, unit=256, reserved=0),
    (8, 0): Limits(64, 32, 164 << 10),
    (8, 6): Limits(48, 16, 100 << 10),
    (8, 7): Limits(48, 16, 164 << 10),
    (8, 9): Limits(48, 24, 100 << 10),
    (9, 0): Limits(64, 32, 228 << 10),
    (10, 0): Limits(64, 32, 228 << 10),
    (10, 3): Limits(64, 32, 228 << 10),
    (12, 0): Limits(48, 24, 100 << 10),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """blocks: that a multiprocessor holds at once. share: of the warps that it can hold. bound: of
    what there is too little for one more: "warps", "blocks", "registers" or "shared memory"."""

    blocks: int
    share: float
    bound: str


def occupancy(report: KernelReport, threads: int, cc: tuple[int, int]) -> Occupancy | None:
    """Of a kernel in blocks of `threads`; None for a compute capability that is not in the table.

    Needs no device: it is arithmetic on what the cubin says."""
    limits = _LIMITS.get(cc)
    if limits is None:
        return None
    warps = -(-threads // WARP)
    registers = _up(report.registers * WARP, _REGISTER_UNIT) * _up(warps, _WARP_UNIT)
    shared = _up(report.shared + limits.reserved, limits.unit)
    fits = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers:
        fits["registers"] = REGISTERS // registers
    if shared:
        fits["shared memory"] = limits.shared // shared
    bound = min(fits, key=fits.__getitem__)
    blocks = fits[bound]
    return Occupancy(blocks, blocks * warps / limits.warps, bound)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
