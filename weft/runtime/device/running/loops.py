"""The launches of a step carried out: pieces that are recorded, and what the host does between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.stacks import too_large
from weft.runtime.device.calls import Call
from weft.runtime.device.planning.plan import (
    CheckFaults,
    DevicePlan,
    DevicePop,
    DevicePush,
    Place,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
)
from weft.runtime.device.protocol import Device, LibraryCall, Prepared
from weft.runtime.device.running.cells import HEADER, Cells
from weft.runtime.device.running.fault_words import FaultWords
from weft.runtime.device.running.pieces import (
    Ask,
    Base,
    Branch,
    Counted,
    Cutter,
    Loop,
    Noted,
    Part,
    Piece,
    Places,
    Still,
    Sums,
    places_of,
)
from weft.runtime.device.running.recorded import Recorded
from weft.runtime.resources.cancel import CancelToken

Watch = Callable[
    [PlannedLaunch | PlannedCopy | LibraryCall, list[tuple[Operation, int]], Callable[[], None]],
    None,
]


class Launches:
    """The launches of a plan on buffers that are at `bases`, or where `point` says.

    records: whether what comes again is recorded. watch: does each launch and copy, in one run, if
    there is one. Errors as `Device.prepare`; FaultFound.
    """

    def __init__(
        self, name: str, plan: DevicePlan, device: Device, bases: Mapping[Base, int],
        faults: FaultWords,
    ) -> None:  # fmt: skip
        self._device, self._faults = device, faults
        self.records = True
        self.watch: Watch | None = None
        self.cancel: CancelToken | None = None  # of the step that runs
        self._around: list[Operation] = []  # the loops that run
        self._places = Places(plan, dict(bases))
        self._late: list[tuple[Prepared, int, Place]] = []
        self._fixed = frozenset(bases)
        self._recorded = Recorded(device, self._places)
        cutter = Cutter(plan, self._prepared, self._chosen)
        self._parts = cutter.parts(plan.nodes)
        self._recorded.pieces = cutter.pieces
        self._cells = Cells(name, device)
        self._call = Call(name, self)
        self.goes_on = False  # whether what loops kept the last time is still used
        self._begun = 0  # bytes of cells that were taken when the innermost loop began

    def launches(self) -> list[PlannedLaunch]:
        """Those of the plan, in order."""
        return self._places.plan.launches()

    def _chosen(self, node: PlannedProduct) -> list[Ask]:
        try:
            nodes = self._device.libraries.choose(node, self._places.at)
        except WeftError as error:
            raise error.at(node.op.locations) from None
        return [self._prepared(one) for one in nodes]

    def _prepared(self, node: PlannedLaunch | PlannedCopy | LibraryCall) -> Ask:
        late = not all(self._places.is_of(self._fixed, place) for place in places_of(node))
        if isinstance(node, PlannedCopy):
            return Ask(node, late=late)
        spans = [arg.nbytes if isinstance(arg, Place) else 0 for arg in node.args]
        try:
            if isinstance(node, PlannedLaunch):
                made = self._device.prepare(node.launch, spans)
            else:
                made = node.prepare()
        except WeftError as error:
            raise error.at(node.op.locations if node.op else ()) from None
        moving: list[tuple[int, Place]] = []
        for k, arg in enumerate(node.args):
            if not isinstance(arg, Place):
                made.words[k] = arg
            elif arg.kind in ("moving", "cell"):
                moving.append((k, arg))
            elif (arg.kind, arg.which) in self._places.bases:
                made.words[k] = self._places.at(arg)
            else:
                self._late.append((made, k, arg))
        return Ask(node, made, tuple(moving), late)

    def point(self, new: Mapping[Base, int]) -> None:
        """The addresses of the other buffers, all of them, for what follows."""
        if self._recorded.use(tuple(new.values())):
            self._places.bases.update(new)
            for launch, word, place in self._late:
                launch.words[word] = self._places.at(place)

    def carry_out(self) -> None:
        """All of them. What loops kept the last time is free again, unless `goes_on`."""
        if not self.goes_on:
            self._cells.begin()
        self._around.clear()
        self._begun = self._cells.used
        self._device.calls.begin(self._call)
        try:
            self._do_all(self._parts)
        finally:
            self._device.calls.end(self._call)
            self.cancel = None

    def _do_all(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Piece():
                    self._do(part)
                case Loop():
                    self._loop(part)
                case Branch():
                    if not self._around:  # else with the next iteration: variables keep whole ones
                        self._go_on(part.node.op)
                    held = self._holds(part.node.decision)
                    self._do_all(part.then if held else part.orelse)
                case CheckFaults():
                    self._faults.look()
                case Noted():
                    self._faults.mark()
                case DevicePush():
                    self._push(part)
                case DevicePop():
                    self._pop(part)
                case Sums():
                    at, node = self._places.at, part.node
                    a, b = self._handle(at(node.a)), self._handle(at(node.b))
                    made = self._sum(part, a, b, node.depth)
                    self._device.put(at(node.result), made)

    # -- pieces -----------------------------------------------------------------------------------

    def _do(self, piece: Piece) -> None:
        if not (self.records and self.watch is None and self._recorded.replay(piece, self._ask)):
            self._ask(piece.stills)
        if piece.checks:
            self._faults.asked()

    def _ask(self, stills: Sequence[Still]) -> None:
        for still in stills:
            if isinstance(still, Counted):
                self._count(still)
            elif self.watch is None:
                self._ask_one(still)
            else:
                inside = [(loop, self._places.iteration[loop]) for loop in self._around]
                self.watch(still.node, inside, partial(self._ask_one, still))

    def _count(self, part: Counted) -> None:
        iteration = self._places.iteration
        first = 0 if part.begins else iteration[part.loop]
        if part.begins:
            self._around.append(part.loop)
        for i in range(first, first + part.count):
            iteration[part.loop] = i
            self._ask(part.body)
        if part.begins:
            self._around.pop()

    def _ask_one(self, ask: Ask) -> None:
        node, at = ask.node, self._places.at
        if isinstance(node, PlannedCopy):
            source, target = at(node.source), at(node.target)
            if source != target:
                self._device.copy(target, source, node.source.nbytes)
        else:
            assert ask.launch is not None
            for word, place in ask.moving:
                ask.launch.words[word] = at(place)
            self._launch(ask.launch, node.op)
        if ask.late:
            self._recorded.note(ask)

    def _launch(self, launch: Prepared, op: Operation | None) -> None:
        try:
            self._device.launch(launch)
        except WeftError as error:
            raise error.at(op.locations if op else ()) from None

    # -- loops that the host leads ----------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        outside, self._begun = self._begun, self._cells.used
        self._around.append(loop.node.op)
        if loop.node.decision is None:
            self._run_all(loop)
        else:
            self._run_while(loop, loop.node.decision)
        self._around.pop()
        self._begun = outside

    def _run_all(self, loop: Loop) -> None:
        node, iteration = loop.node, self._places.iteration
        whole = node.limit - node.limit % loop.step
        for i in range(0, whole, loop.step):
            iteration[node.op] = i
            self._go_on(node.op, i)
            self._do_all(loop.body)
        iteration[node.op] = whole
        self._do_all(loop.rest)

    def _run_while(self, loop: Loop, decision: Place) -> None:
        node = loop.node
        for i in count():  # left with the addresses of the last carries
            self._places.iteration[node.op] = i
            if i == node.limit:
                return
            self._go_on(node.op, i)
            self._do_all(loop.test)
            if not self._holds(decision):
                return
            self._do_all(loop.body)

    def _go_on(self, op: Operation, iteration: int = -1) -> None:
        """Raise what ends the step, if something does: between two iterations, before a branch
        that is in no loop. What the device was asked for so far it does."""
        if self.cancel is not None and self.cancel.is_over:
            where = f"{f'iteration {iteration} of ' * (iteration >= 0)}op '{op.name}'"
            raise self.cancel.error(f"it was at {where} on {self._device.name}").at(op.locations)

    def _holds(self, decision: Place) -> bool:
        held = np.empty(1, np.uint8)
        self._device.download(held, self._places.at(decision))
        return bool(held[0])

    # -- what loops keep --------------------------------------------------------------------------

    def _push(self, node: DevicePush) -> None:
        at, value = self._places.at, node.value
        made = self._cells.take(value.nbytes, node.op)
        taken = self._cells.used - self._begun
        if 0 <= node.limit < taken:
            raise too_large(taken, node.limit).at(node.op.locations)
        self._device.copy(made, at(node.stack), 8)
        self._device.copy(made + HEADER, at(value), value.nbytes)
        self._device.put(at(node.result), made)

    def _pop(self, node: DevicePop) -> None:
        at, top = self._places.at, node.top
        made = self._handle(at(node.stack))
        if made:
            self._device.copy(at(top), made + HEADER, top.nbytes)
            self._device.copy(at(node.rest), made, 8)
        else:
            self._device.clear(at(top), top.nbytes)
            self._device.put(at(node.rest), 0)

    def _handle(self, address: int) -> int:
        """The address of an element, which is on the device: waits for it."""
        held = np.empty(1, np.int64)
        self._device.download(held, address)
        return int(held[0])

    def _sum(self, sums: Sums, a: int, b: int, depth: int) -> int:
        """The stack of the sums of the elements of two, from the tops on; where one ends the other
        goes on."""
        pairs: list[tuple[int, int]] = []
        while a and b:
            pairs.append((a, b))
            a, b = self._handle(a), self._handle(b)
        made, bases = a or b, self._places.bases
        for pair in reversed(pairs):
            held = [cell + HEADER for cell in pair]
            cell = self._cells.take(sums.node.nbytes if depth == 1 else 8, sums.node.op)
            self._device.put(cell, made)
            if depth == 1:
                for k, address in enumerate((*held, cell + HEADER)):
                    bases["cell", k] = address
                self._ask(sums.launches)
            else:
                below = self._handle(held[0]), self._handle(held[1])
                inner = self._sum(sums, below[0], below[1], depth - 1)
                self._device.put(cell + HEADER, inner)
            made = cell
        return made
