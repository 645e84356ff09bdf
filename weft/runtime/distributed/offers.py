"""The devices that a task offers to sessions: its processor, and the GPUs of its process."""

from __future__ import annotations

import ctypes
import os

from weft.ir.device import DeviceSpec

#: NVIDIA's driver, without which there is no GPU.
_DRIVER = "libcuda.so.1"


def devices_of(task: str) -> list[str]:
    """Full names, the processor first."""
    names = [f"{task}/cpu:0"]
    if os.environ.get("WEFT_EMULATE_GPU", "0") in ("", "0") and not _has_driver():
        return names  # a task without GPUs does not load what knows them
    from weft.runtime.device.registry import gpu_names

    return names + [f"{task}/gpu:{DeviceSpec.parse(name).index}" for name in gpu_names()]


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
