"""Memory of the devices in a simulated step: the peak of each, the tensors that make it up, and
what is in use while a placement is picked.

A pick sees what is alive at that moment of the simulation, not what comes later (`Use`); whether a
placement fits is asked of the whole step (`peaks`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.ir.dataclass import dataclass
from weft.passes.placement.step_model import StepModel

#: So many of the largest tensors at a peak are named.
MOST_NAMED = 5


class Life(NamedTuple):
    """Bytes that are in the memory of a device for a time. kind: "lasting" and "scratch", of the op
    `number`, or "value" and "received", of the value `number`."""

    device: int
    begin: float
    end: float
    nbytes: float
    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a device has in use at once, and when. lasting: those of variables and
    constants among them. largest: what is in memory then, the largest first, a few of them."""

    device: int
    nbytes: float
    at: float
    lasting: float
    largest: tuple[Life, ...]


def peaks(lives: Iterable[Life]) -> list[Peak]:
    """The peak of each device that has anything in memory, in the order of the devices."""
    rows = [life for life in lives if life.nbytes and life.end > life.begin]
    by_device: dict[int, list[Life]] = {}
    for life in rows:
        by_device.setdefault(life.device, []).append(life)
    return [_peak(device, by_device[device]) for device in sorted(by_device)]


def _peak(device: int, rows: list[Life]) -> Peak:
    begin, end = (np.array([getattr(r, name) for r in rows]) for name in ("begin", "end"))
    nbytes = np.array([r.nbytes for r in rows])
    times = np.concatenate((end, begin))  # what ends at a time makes room for what begins then
    changes = np.concatenate((-nbytes, nbytes))
    order = np.argsort(times, kind="stable")
    in_use = np.cumsum(changes[order])
    at = int(np.argmax(in_use))
    when = float(times[order][at])
    alive = [r for r in rows if r.begin <= when < r.end]
    return Peak(
        device,
        sum(r.nbytes for r in alive),
        when,
        sum(r.nbytes for r in alive if r.kind == "lasting"),
        tuple(sorted(alive, key=lambda r: (-r.nbytes, r.begin, r.number))[:MOST_NAMED]),
    )


def overflow(model: StepModel, found: Sequence[Peak]) -> float:
    """Bytes over the memory of the devices, all together; 0 if all fits."""
    over = 0.0
    for peak in found:
        limit = model.devices[peak.device].memory
        if limit is not None:
            over += max(0.0, peak.nbytes - limit)
    return over


class Use:
    """What is in memory while ops are put on devices one after the other, for picks. reserve: the
    part of the memory that is kept for what comes later."""

    def __init__(self, model: StepModel, chosen: Sequence[int], reserve: float) -> None:
        self._model, self._chosen = model, chosen
        self._limit = [
            None if d.memory is None else d.memory * (1 - reserve) for d in model.devices
        ]
        self._now: dict[int, float] = {}
        self._readers = list(model.readers)
        self._where: dict[int, dict[int, float]] = {}  # of what can be freed: bytes by device
        for group, device in enumerate(chosen):
            if device >= 0:
                self.settle(group, device)

    def settle(self, group: int, device: int) -> None:
        """A group has got its device."""
        self._now[device] = self._now.get(device, 0.0) + self._model.lasting[group]

    def receive(self, value: int, device: int) -> None:
        """A value is sent to a device."""
        self._take(value, device, self._model.nbytes[value])

    def after(self, op: int, device: int) -> None:
        """An op was run: its results are there, and what it was the last to read is not."""
        model = self._model
        for v in model.results[op]:
            if self._readers[model.root[v]]:
                self._take(v, device, model.stored[v])
        for v in model.needs[op]:
            root = model.root[v]
            self._readers[root] -= 1
            if not self._readers[root]:
                for where, nbytes in self._where.pop(root, {}).items():
                    self._now[where] -= nbytes

    def _take(self, value: int, device: int, nbytes: float) -> None:
        if nbytes:
            held = self._where.setdefault(self._model.root[value], {})
            held[device] = held.get(device, 0.0) + nbytes
            self._now[device] = self._now.get(device, 0.0) + nbytes

    def over(self, op: int, device: int, on_device: Sequence[int]) -> float:
        """Bytes that running the op would take over the device's memory; 0 if it fits. on_device:
        the operands that it has already."""
        limit = self._limit[device]
        if limit is None:
            return 0.0
        model = self._model
        wanted = self._now.get(device, 0.0) + model.scratch[op]
        wanted += sum(model.stored[v] for v in model.results[op])
        wanted += sum(model.nbytes[v] for v in model.needs[op] if v not in on_device)
        if self._chosen[model.group[op]] < 0:
            wanted += model.lasting[model.group[op]]
        return max(0.0, wanted - limit)
