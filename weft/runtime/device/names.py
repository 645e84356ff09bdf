"""The names of the devices of this process."""

from __future__ import annotations

from weft.ir.device import LOCAL_DEVICES


def local_devices() -> tuple[str, ...]:
    """In full, the CPU first, then the GPUs that are here. Looks for a driver: for errors, and for
    people who ask."""
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.registry import gpu_names

    return (*LOCAL_DEVICES, *gpu_names())
