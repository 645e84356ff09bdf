"""What a step on a device is for those who hold it: they need not load what made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.ir.graph import Graph

if TYPE_CHECKING:
    from weft.runtime.device.executable import DeviceReport
    from weft.runtime.device.plan import DevicePlan
    from weft.runtime.device.protocol import Array


class DeviceStep:
    """A plan for a device, which is called as an `Executable` is (`device/executable.py`)."""

    name: str
    graph: Graph
    plan: DevicePlan
    report: DeviceReport

    def __call__(self, inputs: list[Array]) -> list[Any]:
        """Run one step."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of the device that one call at a time takes, beside variables and constants."""
        raise NotImplementedError

    def describe_device(self) -> str:
        """The device, or why there is none, in words."""
        raise NotImplementedError

    def describe_program(self) -> str:
        """The launches in order, for people."""
        raise NotImplementedError

    def describe_kernels(self) -> list[str]:
        """What each kernel takes of the device, of those that are compiled already."""
        raise NotImplementedError

    def asm(self) -> str:
        """PTX of every kernel, each once, for the device; for sm_90 if there is none here."""
        raise NotImplementedError

    def native_step(self) -> None:
        """There is no native call path to a device."""
