"""Launches of a step timed one by one, by the device's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from weft.codegen.cuda.source.kernel import Launch
from weft.runtime.device.libraries.choice import OwnKernels
from weft.runtime.device.protocol import Device, Prepared


class TimedDevice:
    """A device that notes how long each launch takes. seconds: for each launch that was prepared,
    in that order, those of its runs. All else is as on the device itself."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.libraries = OwnKernels("launches are timed one by one")
        self._numbers: dict[int, int] = {}
        self._prepared: list[Prepared] = []  # so that no id is used again
        self.seconds: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        """As `Device.prepare`."""
        made = self._device.prepare(launch, spans)
        self._numbers[id(made)] = len(self.seconds)
        self._prepared.append(made)
        self.seconds.append([])
        return made

    def launch(self, prepared: Prepared) -> None:
        """As `Device.launch`, and waits. UnsupportedError if the device has no clock."""
        took = self._device.timed(partial(self._device.launch, prepared))
        self.seconds[self._numbers[id(prepared)]].append(took)
