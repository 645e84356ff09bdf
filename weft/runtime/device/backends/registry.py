"""The GPUs of this process: found when one is first asked for."""

from __future__ import annotations

import os
import re
from functools import partial

from weft.codegen.cuda.cubins.compile import compile_for_gpu
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.process import ForkLock
from weft.runtime.device.backends.cuda import CudaDevice
from weft.runtime.device.backends.driver import Driver
from weft.runtime.device.backends.emulated import EmulatedDevice
from weft.runtime.device.backends.info import DeviceInfo, emulated_gpu, real_gpu
from weft.runtime.device.protocol import Device

#: How many GPUs are emulated, in place of all that the machine has; "check" or "check:2": as many,
#: which look for races. "0": none.
EMULATE = "WEFT_EMULATE_GPU"
_FORM = re.compile(r"(?P<count>[0-9]{1,2})|(?P<check>check)(:(?P<checked>[1-9][0-9]?))?")

#: By "0" (real), "1" (emulated) or "check", and number.
_devices: dict[tuple[str, int], Device] = {}
_lock = ForkLock()


def _emulation() -> tuple[str, int]:
    """ "0", "1" or "check", as `_devices` has them, and how many there are to be."""
    text = os.environ.get(EMULATE) or "0"
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"{EMULATE} is 0, 1 or check, not {text!r}",
            hint="it is a number of devices, such as 2, or check:2",
        )
    if found["check"]:
        return "check", int(found["checked"] or 1)
    return ("1" if int(text) else "0"), int(text)


def gpu(index: int) -> Device:
    """GPU number `index`.

    FailedPreconditionError, which says what is missing, where there is none; InvalidArgumentError
    for a number that is too large.
    """
    sort, count = _emulation()
    with _lock:
        found = _devices.get((sort, index))
        if found is None or (sort != "0" and index >= count):
            made = _real(index) if sort == "0" else _emulated(index, count, sort == "check")
            found = _devices[sort, index] = made
        return found


def in_use() -> list[tuple[str, str, int, str]]:
    """Of each GPU that this process has used: its name, what it is, the bytes that the process
    holds there, and what they are for."""
    with _lock:
        held = list(_devices.values())
    return [(d.name, d.description, d.resident.nbytes, d.resident.describe()) for d in held]


def gpus() -> list[DeviceInfo]:
    """What GPUs there are, without making use of one. Errors as `gpu` where there is none."""
    sort, count = _emulation()
    if sort != "0":
        return [emulated_gpu(k) for k in range(count)]
    driver = Driver()
    return [real_gpu(driver, k) for k in range(int(driver.call("cuDeviceGetCount")))]


def gpu_names() -> list[str]:
    """The full names of the GPUs there are; empty if there is none, whatever the reason."""
    try:
        return [info.name for info in gpus()]
    except WeftError:
        return []


def _emulated(index: int, count: int, check: bool) -> Device:
    if index >= count:
        names = ", ".join(f"/gpu:{k}" for k in range(count))
        raise InvalidArgumentError(
            f"there is no device '/gpu:{index}': {EMULATE} makes {names}",
            hint=f"{EMULATE}={index + 1} makes {index + 1} devices",
        )
    return EmulatedDevice(f"/gpu:{index}", check=check)


def _real(index: int) -> Device:
    driver = Driver()
    count = int(driver.call("cuDeviceGetCount"))
    if index >= count:
        raise InvalidArgumentError(
            f"there is no device '/gpu:{index}' here; the GPUs are: "
            + ", ".join(f"/gpu:{k}" for k in range(count))
        )
    release = driver.version // 1000, driver.version % 1000 // 10
    return CudaDevice(index, partial(compile_for_gpu, driver=release), driver)
