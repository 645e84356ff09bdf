"""The devices that a task offers to sessions: its processor, and the GPUs of its process."""

from __future__ import annotations

import ctypes
import logging
import os

from weft.ir.device import DeviceSpec
from weft.ir.errors import InvalidArgumentError, WeftError

_log = logging.getLogger("weft.cluster")

#: NVIDIA's driver, without which there is no GPU.
_DRIVER = "libcuda.so.1"


def devices_of(task: str) -> list[str]:
    """Full names, the processor first. Why the GPUs of a driver cannot be used is logged.

    InvalidArgumentError for a WEFT_EMULATE_GPU that means nothing."""
    names = [f"{task}/cpu:0"]
    if os.environ.get("WEFT_EMULATE_GPU", "0") in ("", "0") and not _has_driver():
        return names  # a task without GPUs does not load what knows them
    from weft.runtime.device.registry import gpus

    try:
        found = gpus()
    except InvalidArgumentError:
        raise
    except WeftError as error:
        _log.warning("%s offers no GPU: %s", task, error)
        return names
    return names + [f"{task}/gpu:{DeviceSpec.parse(info.name).index}" for info in found]


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
