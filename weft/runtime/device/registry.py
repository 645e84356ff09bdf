"""The GPUs of this process: found when one is first asked for."""

from __future__ import annotations

import os
from functools import partial

from weft.codegen.cuda.compile import compile_kernel
from weft.ir.errors import InvalidArgumentError
from weft.ir.fork import ForkLock
from weft.runtime.device.cuda import CudaDevice
from weft.runtime.device.driver import Driver
from weft.runtime.device.emulated import EmulatedDevice
from weft.runtime.device.protocol import Device

#: If "1", /gpu:0 is an emulated device, whatever the machine has; if "check", it looks for races.
EMULATE = "WEFT_EMULATE_GPU"

_devices: dict[tuple[str, int], Device] = {}
_lock = ForkLock()


def gpu(index: int) -> Device:
    """GPU number `index`.

    FailedPreconditionError, which says what is missing, where there is none; InvalidArgumentError
    for a number that is too large.
    """
    emulated = os.environ.get(EMULATE, "0") or "0"
    if emulated not in ("0", "1", "check"):
        raise InvalidArgumentError(f"{EMULATE} is 0, 1 or check, not {emulated!r}")
    with _lock:
        found = _devices.get((emulated, index))
        if found is None:
            made = _real(index) if emulated == "0" else _emulated(index, emulated == "check")
            found = _devices[emulated, index] = made
        return found


def _emulated(index: int, check: bool) -> Device:
    if index:
        raise InvalidArgumentError(
            f"there is no device '/gpu:{index}': {EMULATE}=1 makes one device, /gpu:0"
        )
    return EmulatedDevice(check=check)


def _real(index: int) -> Device:
    driver = Driver()
    count = int(driver.call("cuDeviceGetCount"))
    if index >= count:
        raise InvalidArgumentError(
            f"there is no device '/gpu:{index}' here; the GPUs are: "
            + ", ".join(f"/gpu:{k}" for k in range(count))
        )
    release = driver.version // 1000, driver.version % 1000 // 10
    return CudaDevice(index, partial(compile_kernel, driver=release), driver)
