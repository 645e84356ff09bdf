"""The frames of a plan: those that calls run on, and those that wait for the next one."""

from __future__ import annotations

from contextlib import suppress

from weft.runtime.device.planning.layout import layout_of
from weft.runtime.device.planning.plan import DevicePlan
from weft.runtime.device.protocol import Device
from weft.runtime.device.running.constants import Constants, Shelf
from weft.runtime.device.running.frame import Frame

MOST_IDLE_FRAMES = 2


class KeptFrames(dict[object, Frame]):
    """What plans that are called several times in a step keep until it ends, by plan."""


class Frames:
    """The frames of a plan. shelf: where its constants are. A device asks it to let go what is
    idle (`blocks.Holder`). Any thread may call any of these."""

    def __init__(self, name: str, plan: DevicePlan, shelf: Shelf) -> None:
        self.layout = layout_of(plan)
        self._name, self._plan, self._shelf = name, plan, shelf
        self.idle: list[Frame] = []

    def make(self, device: Device, plan: DevicePlan | None = None) -> Frame:
        """One more. plan: the same, with what people are told."""
        constants = self.constants(device)
        return Frame(self._name, plan or self._plan, self.layout, device, constants)

    def constants(self, device: Device) -> Constants:
        """The plan's, on the device."""
        arrays = self._plan.constants
        return self._shelf.on(device, lambda: Constants(self._name, arrays, device))

    def take(self, device: Device) -> Frame:
        """An idle one, or one more."""
        with suppress(IndexError):
            return self.idle.pop()
        device.resident.may_ask(self)
        return self.make(device)

    def give(self, frame: Frame) -> None:
        """It is idle now."""
        if len(self.idle) < MOST_IDLE_FRAMES:
            self.idle.append(frame)

    def kept(self, device: Device, keep: KeptFrames, key: object) -> Frame:
        """That of a step that goes on where the plan was left."""
        frame = keep.get(key)
        if frame is None:
            frame = keep[key] = self.make(device)
            frame.launches.goes_on = True
        return frame

    def drop_spare(self) -> None:
        """Give up where arguments of idle frames arrive."""
        for frame in self.idle.copy():
            frame.landing.clear()

    def drop_idle(self) -> None:
        """Give up what only waits for the next call: frames with what is recorded of them, and the
        constants that no other frame uses."""
        self.idle.clear()


__all__ = ["Frames", "KeptFrames"]
