"""The names of the devices of this process."""

from __future__ import annotations

from weft.ir.device import LOCAL_DEVICES
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Operation


def local_devices() -> tuple[str, ...]:
    """In full, the CPU first, then the GPUs that are here. Looks for a driver: for errors, and for
    people who ask."""
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.registry import gpu_names

    return (*LOCAL_DEVICES, *gpu_names())


def not_here(op: Operation, why: WeftError) -> InvalidArgumentError:
    """The error for an op that is on a GPU which, as `why` says, this process does not have."""
    return InvalidArgumentError(
        f"there is no device '{op.device}' here; the devices are: "
        f"{', '.join(local_devices())}: {why.what}",
        hint=why.hint,
        location=op.locations,
    )
