"""One step's memory on a device, and its launches with their arguments: what one call runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter_stack import too_large
from weft.runtime.device.cells import HEADER, Cells
from weft.runtime.device.layout import Layout
from weft.runtime.device.plan import (
    CheckFaults,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    DevicePlan,
    DevicePop,
    DevicePush,
    Place,
    PlannedCopy,
    PlannedLaunch,
)
from weft.runtime.device.protocol import Array, Device, Prepared

#: Inputs and results of so many bytes together go through memory that copies are fast for, all at
#: once; larger ones go one by one from where they are.
STAGED = 64 << 20

Base = tuple[str, int | str]


class FaultFound(Exception):
    """An op met an index out of bounds: which fault words, and what is in them."""

    def __init__(self, number: int, words: Array) -> None:
        super().__init__(number)
        self.number, self.words = number, words


@dataclass(slots=True)
class _Run:
    """Launches and copies with nothing between them for the host to do. again: them all in one go,
    for the addresses that variables had when it was made. moves: whether addresses follow a loop.
    """

    nodes: list[PlannedLaunch | PlannedCopy]
    launches: list[Prepared | None]
    moves: bool
    runs: int = 0
    again: Callable[[], None] | None = None


@dataclass(slots=True)
class _Loop:
    node: DeviceLoop
    test: list[_Part]
    body: list[_Part]


@dataclass(slots=True)
class _Branch:
    node: DeviceBranch
    then: list[_Part]
    orelse: list[_Part]


_Part = _Run | _Loop | _Branch | CheckFaults | DevicePush | DevicePop


@dataclass(slots=True)
class _Patch:
    """Word `word` of a launch is `offset` bytes after a buffer that may be elsewhere next time."""

    launch: Prepared
    word: int
    place: Place


@dataclass(slots=True)
class _Places:
    """Where every buffer is; for "moving" ones in which iteration each loop is."""

    plan: DevicePlan
    bases: dict[Base, int] = field(default_factory=dict)
    iteration: dict[Operation, int] = field(default_factory=dict)

    def at(self, place: Place) -> int:
        if place.kind == "moving":
            moving, even, odd = self.plan.moving[int(place.which)]
            i = self.iteration[moving.loop]
            return self.at(odd if i % 2 else even) + i * moving.stride + place.offset
        return self.bases[place.kind, place.which] + place.offset


class Frame:
    """Memory and launches for one call at a time of a plan on a device.

    constants: their addresses. Errors as `Device.allocate` and `Device.prepare`.
    """

    def __init__(
        self, name: str, plan: DevicePlan, layout: Layout, device: Device, constants: Sequence[int]
    ) -> None:
        self.plan, self.layout, self.device = plan, layout, device
        self.memory = device.allocate(layout.nbytes, f"a step of '{name}'")
        start = self.memory.address
        self._places = _Places(plan)
        known: dict[Base, int] = {
            ("arena", 0): start + layout.arena, ("scratch", 0): start + layout.scratch,
            ("fault", 0): start + layout.faults,
        }  # fmt: skip
        for i, offset in enumerate(layout.inputs):
            known["input", i] = start + offset
        for i, offset in enumerate(layout.results):
            known["result", i] = start + offset
        for i, address in enumerate(constants):
            known["constant", i] = address
        self._places.bases = known
        staged = layout.result_end <= STAGED
        self._host = device.host(layout.result_end) if staged else None
        self._of_variables: list[_Patch] = []
        self._of_loops: list[_Patch] = []
        self._runs: list[_Run] = []
        self._parts = self._parts_of(plan.nodes)
        self._cells = Cells(name, device)
        self._begun = 0  # bytes of cells that were taken when the innermost loop began
        self.records = True  # whether launches that come again are recorded

    # -- making -----------------------------------------------------------------------------------

    def _parts_of(self, nodes: Sequence[DeviceNode]) -> list[_Part]:
        parts: list[_Part] = []
        for node in nodes:
            match node:
                case PlannedLaunch() | PlannedCopy():
                    moves = any(p.kind == "moving" for p in _places_of(node))
                    last = parts[-1] if parts else None
                    if not isinstance(last, _Run) or last.moves != moves:
                        last = _Run([], [], moves)
                        parts.append(last)
                        self._runs.append(last)
                    last.nodes.append(node)
                    made = self._prepared(node) if isinstance(node, PlannedLaunch) else None
                    last.launches.append(made)
                case DeviceLoop():
                    parts.append(_Loop(node, self._parts_of(node.test), self._parts_of(node.body)))
                case DeviceBranch():
                    then, orelse = self._parts_of(node.then), self._parts_of(node.orelse)
                    parts.append(_Branch(node, then, orelse))
                case CheckFaults() | DevicePush() | DevicePop():
                    parts.append(node)
        return parts

    def _prepared(self, node: PlannedLaunch) -> Prepared:
        spans = [arg.nbytes if isinstance(arg, Place) else 0 for arg in node.args]
        try:
            made = self.device.prepare(node.launch, spans)
        except WeftError as error:
            raise error.at(node.op.locations if node.op else ()) from None
        for k, arg in enumerate(node.args):
            if not isinstance(arg, Place):
                made.words[k] = arg
            elif arg.kind == "variable":
                self._of_variables.append(_Patch(made, k, arg))
            elif arg.kind == "moving":
                self._of_loops.append(_Patch(made, k, arg))
            else:
                made.words[k] = self._places.at(arg)
        return made

    # -- running ----------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], variables: Mapping[str, int]) -> list[Array | None]:
        """One step: inputs as the plan wants them, the addresses of the variables -> the results.
        Raises FaultFound."""
        self.send(inputs, variables)
        self.work()
        return self._fetch()

    def send(self, inputs: Sequence[Array], variables: Mapping[str, int]) -> None:
        """The first part of `run`: what the launches read."""
        self._point(variables)
        self._send(inputs)

    def work(self) -> None:
        """The second part of `run`: the launches."""
        self.device.begin()
        self._cells.begin()
        self._begun = 0
        if self.plan.faults:
            nbytes = self.layout.result_end - self.layout.faults
            self.device.clear(self._places.bases["fault", 0], nbytes)
        self._carry_out(self._parts)

    def _point(self, variables: Mapping[str, int]) -> None:
        bases = self._places.bases
        new: dict[Base, int] = {("variable", name): at for name, at in variables.items()}
        if all(bases.get(key) == address for key, address in new.items()):
            return
        bases.update(new)
        for patch in self._of_variables:
            patch.launch.words[patch.word] = self._places.at(patch.place)
        for run in self._runs:
            run.again, run.runs = None, 0

    def _send(self, inputs: Sequence[Array]) -> None:
        start, layout = self.memory.address, self.layout
        if self._host is None:
            for offset, array in zip(layout.inputs, inputs, strict=True):
                self.device.upload(start + offset, array)
            return
        for offset, array in zip(layout.inputs, inputs, strict=True):
            self._host[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        if layout.input_end:
            self.device.upload(start, self._host[: layout.input_end])

    def _carry_out(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            match part:
                case _Run():
                    self._do(part)
                case _Loop():
                    self._loop(part)
                case _Branch():
                    held = self._holds(part.node.decision)
                    self._carry_out(part.then if held else part.orelse)
                case CheckFaults():
                    self._check(self._words())
                case DevicePush():
                    self._push(part)
                case DevicePop():
                    self._pop(part)

    def _do(self, run: _Run) -> None:
        if run.again is not None:
            run.again()
            return
        run.runs += 1
        # the first call may be the only one; what moves with a loop is another each time
        if self.records and run.runs > 1 and not run.moves and len(run.nodes) > 1:
            run.again = self.device.capture(lambda: self._ask(run))
            if run.again is not None:
                run.again()
                return
        self._ask(run)

    def _ask(self, run: _Run) -> None:
        for node, launch in zip(run.nodes, run.launches, strict=True):
            if isinstance(node, PlannedCopy):
                source, target = self._places.at(node.source), self._places.at(node.target)
                if source != target:
                    self.device.copy(target, source, node.source.nbytes)
                continue
            assert launch is not None
            try:
                self.device.launch(launch)
            except WeftError as error:
                raise error.at(node.op.locations if node.op else ()) from None

    def _loop(self, loop: _Loop) -> None:
        outside, self._begun = self._begun, self._cells.used
        self._iterate(loop)
        self._begun = outside

    def _iterate(self, loop: _Loop) -> None:
        node = loop.node
        for i in count():
            self._turn(node.op, i)
            if node.decision is not None:
                self._carry_out(loop.test)
                if not self._holds(node.decision):
                    return
            self._carry_out(loop.body)
            if i + 1 == node.limit:  # left with the addresses of the last carries
                self._turn(node.op, i + 1)
                return

    def _turn(self, loop: Operation, i: int) -> None:
        self._places.iteration[loop] = i
        for patch in self._of_loops:
            moving = self.plan.moving[int(patch.place.which)][0]
            if moving.loop is loop or moving.loop in self._places.iteration:
                patch.launch.words[patch.word] = self._places.at(patch.place)

    def _push(self, node: DevicePush) -> None:
        at, value = self._places.at, node.value
        made = self._cells.take(value.nbytes)
        taken = self._cells.used - self._begun
        if 0 <= node.limit < taken:
            raise too_large(taken, node.limit).at(node.op.locations)
        self.device.copy(made, at(node.stack), 8)
        self.device.copy(made + HEADER, at(value), value.nbytes)
        self.device.put(at(node.result), made)

    def _pop(self, node: DevicePop) -> None:
        at, top = self._places.at, node.top
        held = np.empty(1, np.int64)
        self.device.download(held, at(node.stack))
        made = int(held[0])
        if made:
            self.device.copy(at(top), made + HEADER, top.nbytes)
            self.device.copy(at(node.rest), made, 8)
        else:
            self.device.clear(at(top), top.nbytes)
            self.device.put(at(node.rest), 0)

    def _holds(self, decision: Place) -> bool:
        held = np.empty(1, np.uint8)
        self.device.download(held, self._places.at(decision))
        return bool(held[0])

    # -- results ----------------------------------------------------------------------------------

    def _fetch(self) -> list[Array | None]:
        layout, start = self.layout, self.memory.address
        types = self.plan.results
        made = [None if t is None else np.empty(t.static_shape, t.dtype.numpy) for t in types]
        if self._host is None:
            for offset, array in zip(layout.results, made, strict=True):
                if array is not None:
                    self.device.download(array, start + offset)
            self._check(self._words())
            self.device.synchronize()  # nothing above waits where nothing comes back
            return made
        back = self._host[layout.input_end : layout.result_end]
        self.device.download(back, start + layout.input_end)
        self._check(self._host[layout.faults : layout.result_end])
        for offset, array in zip(layout.results, made, strict=True):
            if array is not None:
                array.reshape(-1).view(np.uint8)[:] = self._host[offset : offset + array.nbytes]
        return made

    def _words(self) -> Array:
        words = np.zeros(self.layout.result_end - self.layout.faults, np.uint8)
        if len(words):
            self.device.download(words, self._places.bases["fault", 0])
        return words

    def _check(self, raw: Array) -> None:
        if not self.plan.faults:
            return
        rows = raw.view(np.int64).reshape(len(self.plan.faults), -1)
        failed = np.flatnonzero(rows[:, 0])
        if len(failed):
            raise FaultFound(int(failed[0]), rows[failed[0]].copy())


def _places_of(node: PlannedLaunch | PlannedCopy) -> list[Place]:
    if isinstance(node, PlannedCopy):
        return [node.source, node.target]
    return [arg for arg in node.args if isinstance(arg, Place)]


__all__ = ["FaultFound", "Frame"]
