"""What a GPU takes for an op, from its rates: a roofline, as long as nothing was measured.

Williams, Waterman, Patterson 2009, "Roofline": an op takes what its arithmetic takes at the rate of
the device, or what its bytes take, whichever is more; and each op is a launch.
"""

from __future__ import annotations

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.passes.work import work

#: How many times as long as operations on f32 others take.
_SLOWER = {"f64": 2.0, "i64": 4.0, "u64": 4.0}
#: What an exp or log takes, in operations.
_TRANSCENDENTAL = 8


@dataclass(frozen=True, slots=True)
class Rates:
    """flops, bytes_per_s: operations on f32, and bytes of its memory, in a second; the defaults are
    an H100's. used: how much of both kernels reach. launch_s: of a kernel. read_s: until the host
    knows what a loop or a branch decides by."""

    flops: float = 67e12
    bytes_per_s: float = 3.35e12
    used: float = 0.6
    launch_s: float = 3e-6
    read_s: float = 15e-6

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_per_s", "used"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"rates: {name}={getattr(self, name)} is not > 0")
        for name in ("launch_s", "read_s"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"rates: {name}={getattr(self, name)} is not >= 0")

    def nanoseconds(self, op: Operation, nbytes: float) -> float:
        """One run of an op that is a kernel. op: with all sizes known, if they are. nbytes: of its
        operands and results."""
        flops = 0.0
        try:
            found = work(op)
            nbytes = found.bytes_read + found.bytes_written
            flops = (found.flops or 0) + _TRANSCENDENTAL * (found.transcendentals or 0)
        except (WeftError, ValueError):  # a size that depends on values: its bytes count
            pass
        kind = op.results[0].type if op.results else None
        slower = _SLOWER.get(kind.dtype.short, 1.0) if isinstance(kind, TensorType) else 1.0
        rate = max(flops * slower / self.flops, nbytes / self.bytes_per_s)
        return (self.launch_s + rate / self.used) * 1e9
