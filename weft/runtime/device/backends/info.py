"""`DeviceInfo`: the devices of a process, for people and for placement, read without using one."""

from __future__ import annotations

import os
from typing import Any

from weft.codegen.cuda.cubins.cache import architecture
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_DEVICES, LOCAL_TASK, DeviceSpec
from weft.runtime.device.backends.driver import Driver, version_text
from weft.runtime.native.machine import cpu_name, usable_processors

#: f32 lanes of a multiprocessor, by compute capability; 128 where it is not here.
_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
#: What an emulated GPU is emulated as.
EMULATED_CC = (9, 0)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device of this process.

    name: its full name, "/job:localhost/task:0/gpu:0". description: what it is, for people. memory:
    its bytes; None: no limit, or unknown. cc: the compute capability of a GPU. emulated: whether it
    is no real GPU. flops, bandwidth: at most so many operations on f32, and bytes of its memory, in
    a second; None: unknown.

    >>> cpu = wf.devices()[0]
    >>> cpu.name, cpu.cc, cpu.emulated
    ('/job:localhost/task:0/cpu:0', None, False)
    """

    name: str
    description: str
    memory: int | None = None
    cc: tuple[int, int] | None = None
    emulated: bool = False
    flops: float | None = None
    bandwidth: float | None = None

    @property
    def kind(self) -> str:
        """ "cpu" or "gpu"."""
        return str(DeviceSpec.parse(self.name).kind)

    @property
    def index(self) -> int:
        """Its number among the devices of its kind."""
        return int(DeviceSpec.parse(self.name).index or 0)

    def __str__(self) -> str:
        """The name as `wf.device` takes it, then what it is."""
        memory = "" if self.memory is None else f", {self.memory / 2**30:.1f} GiB"
        return f"/{self.kind}:{self.index}  {self.description}{memory}"


def cpu() -> DeviceInfo:
    """The CPU."""
    memory = None
    if "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return DeviceInfo(LOCAL_DEVICES[0], f"{cpu_name()}, {usable_processors()} cores", memory)


def emulated_gpu(index: int) -> DeviceInfo:
    """GPU `index` of those that are emulated."""
    text = f"emulated with NumPy, as {architecture(EMULATED_CC)}"
    return DeviceInfo(f"{LOCAL_TASK}/gpu:{index}", text, cc=EMULATED_CC, emulated=True)


def real_gpu(driver: Driver, index: int) -> DeviceInfo:
    """GPU `index` as the driver describes it; no context is made."""
    device = driver.call("cuDeviceGet", index)

    def ask(name: str) -> int:
        attribute = getattr(driver.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.call("cuDeviceGetAttribute", attribute, device))

    cc = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
    text = f"{_name(driver, device)}, {architecture(cc)}, driver for CUDA "
    lanes, hertz = ask("MULTIPROCESSOR_COUNT") * _LANES.get(cc, 128), ask("CLOCK_RATE") * 1e3
    bytes_wide, moved = ask("GLOBAL_MEMORY_BUS_WIDTH") / 8, ask("MEMORY_CLOCK_RATE") * 1e3 * 2
    return DeviceInfo(
        f"{LOCAL_TASK}/gpu:{index}",
        text + version_text(driver.version),
        int(driver.call("cuDeviceTotalMem", device)),
        cc,
        flops=2 * lanes * hertz or None,  # a product and a sum
        bandwidth=bytes_wide * moved or None,
    )


def _name(driver: Driver, device: Any) -> str:
    given = driver.call("cuDeviceGetName", 128, device)
    return given.split(b"\0")[0].decode() if isinstance(given, bytes) else str(given)
