"""`Launches`: the launches of a step carried out - captured segments, the host's work between.

The host leads loops and branches, reads the fault words in which launches report indices out of
bounds, and hands out the cells of stacks: what loops keep of their iterations for gradients. A
stack is the address of its top element, or 0: a header of `HEADER` bytes, the first eight of which
are the address of the element below, then the value. The host takes them one by one from chunks,
all of which are free again when the next step begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from weft.codegen.cuda.source.kernel import fault_of
from weft.codegen.faults import describe_fault
from weft.ir.errors import BoundsError, ResourceExhaustedError, WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.state import too_large
from weft.runtime.device.execution.segments import (
    Ask,
    Base,
    Branch,
    Captures,
    Counted,
    Cutter,
    Loop,
    Noted,
    Places,
    Section,
    Segment,
    Still,
    Sums,
    places_of,
)
from weft.runtime.device.plan import (
    CheckFaults,
    DevicePlan,
    DevicePop,
    DevicePush,
    DevicePython,
    Place,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
)
from weft.runtime.device.protocol import Array, Call, Device, LibraryCall, Mark, Memory, Prepared
from weft.runtime.native.python_calls import carry_out_logged
from weft.runtime.resources.attempts import CancelToken

HEADER = 16
_FIRST = 1 << 20
_ALIGNMENT = 16


class Cells:
    """The elements of the stacks of one step at a time. used: their bytes so far."""

    def __init__(self, name: str, device: Device) -> None:
        self._name, self._device = name, device
        self._chunks: list[Memory] = []
        self._free: list[Memory] = []
        self._next = self._end = 0
        self.used = 0

    def begin(self) -> None:
        """All elements are free."""
        self._free += self._chunks
        self._chunks = []
        self._next = self._end = self.used = 0

    def take(self, nbytes: int, op: Operation) -> int:
        """The address of an element with a value of `nbytes`, which `op` keeps.
        ResourceExhaustedError."""
        size = HEADER + (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        if self._next + size > self._end:
            try:
                self._grow(size)
            except ResourceExhaustedError as error:
                value = f"{op.operands[-1].type}, " if op.operands else ""
                raise ResourceExhaustedError(
                    f"{error.what}; an iteration keeps {value}{nbytes:,} bytes for the gradient "
                    f"of op '{op.name}', all before it {self.used:,} bytes",
                    hint=error.hint,
                    location=op.locations,
                ) from None
        place, self._next = self._next, self._next + size
        self.used += size
        return place

    def _grow(self, size: int) -> None:
        fits = next((k for k, chunk in enumerate(self._free) if chunk.nbytes >= size), None)
        if fits is None:
            wanted = max(_FIRST, size, self.used)
            what = f"what loops of '{self._name}' keep for gradients"
            chunk = self._device.allocate(wanted, what)
        else:
            chunk = self._free.pop(fits)
        self._chunks.append(chunk)
        self._next, self._end = chunk.address, chunk.address + chunk.nbytes


class FaultFound(Exception):
    """Raised when an op met an index out of bounds: which fault words, and what is in them."""

    def __init__(self, number: int, words: Array) -> None:
        super().__init__(number)
        self.number, self.words = number, words

    def error(self, plan: DevicePlan) -> BoundsError:
        """The same for people. plan: with its ops (`DeviceExecutable.told`)."""
        number, position, index = fault_of(int(self.words[0]), int(self.words[1]))
        op = plan.faults[self.number][number]
        types = ", ".join(str(v.type) for v in op.operands)
        return BoundsError(
            f"op '{op.name}' ({types}): {describe_fault(op, position, index, cut=True)}",
            hint="indices must be in -n .. n-1 for an axis of size n; "
            "clip them with wf.clip if that is meant",
            location=op.locations,
        )


class FaultWords:
    """`nbytes` bytes at `address`, the words of `count` launches. Raises FaultFound."""

    def __init__(self, device: Device, address: int, nbytes: int, count: int) -> None:
        self._device, self._address = device, address
        self._nbytes, self._count = nbytes, count
        self._unseen = False  # whether launches that check were asked for since the last look
        self._done: Mark | None = None  # where the device is when it has done them

    def clear(self) -> None:
        """Nothing has happened yet."""
        self._unseen, self._done = False, None
        if self._count:
            self._device.clear(self._address, self._nbytes)

    def asked(self) -> None:
        """Launches that check have been asked for."""
        self._unseen, self._done = True, None

    def mark(self) -> None:
        """The next look need not wait for what is asked for from now on."""
        if self._unseen and self._done is None:
            self._done = self._device.mark()

    def look(self) -> None:
        """Wait for the launches that check, and look whether something has happened since the last
        look."""
        if self._unseen:
            words = np.empty(self._nbytes, np.uint8)
            self._device.download(words, self._address, self._done)
            self._unseen, self._done = False, None
            self.check(words)

    def check(self, raw: Array) -> None:
        """The same of a copy of the words."""
        if not self._count:
            return
        rows = raw.view(np.int64).reshape(self._count, -1)
        failed = np.flatnonzero(rows[:, 0])
        if len(failed):
            raise FaultFound(int(failed[0]), rows[failed[0]].copy())


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
        self._captures = Captures(device, self._places)
        cutter = Cutter(plan, self._prepared, self._chosen)
        self._sections = cutter.sections(plan.nodes)
        self._captures.segments = cutter.segments
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
        if self._captures.use(tuple(new.values())):
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
            self._do_all(self._sections)
        finally:
            self._device.calls.end(self._call)
            self.cancel = None

    def _do_all(self, sections: Sequence[Section]) -> None:
        for section in sections:
            match section:
                case Segment():
                    self._do(section)
                case Loop():
                    self._loop(section)
                case Branch():
                    if not self._around:  # else with the next iteration: variables keep whole ones
                        self._go_on(section.node.op)
                    held = self._holds(section.node.decision)
                    self._do_all(section.then if held else section.orelse)
                case CheckFaults():
                    self._faults.look()
                case Noted():
                    self._faults.mark()
                case DevicePush():
                    self._push(section)
                case DevicePop():
                    self._pop(section)
                case DevicePython():
                    self._python(section)
                case Sums():
                    at, node = self._places.at, section.node
                    a, b = self._handle(at(node.a)), self._handle(at(node.b))
                    made = self._sum(section, a, b, node.depth)
                    self._device.put(at(node.result), made)

    # -- segments ----------------------------------------------------------------------------------

    def _do(self, segment: Segment) -> None:
        if not (self.records and self.watch is None and self._captures.replay(segment, self._ask)):
            self._ask(segment.stills)
        if segment.checks:
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

    def _count(self, section: Counted) -> None:
        iteration = self._places.iteration
        first = 0 if section.begins else iteration[section.loop]
        if section.begins:
            self._around.append(section.loop)
        for i in range(first, first + section.count):
            iteration[section.loop] = i
            self._ask(section.body)
        if section.begins:
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
            self._captures.note(ask)

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

    # -- calls of Python ---------------------------------------------------------------------------

    def _python(self, node: DevicePython) -> None:
        at = self._places.at
        if node.op.name == "assert" and self._holds(node.operands[0]):
            return
        given = [np.empty(t.static_shape, t.dtype.numpy) for t in node.types[: len(node.operands)]]
        for array, place in zip(given, node.operands, strict=True):
            if array.size:
                self._device.download(array, at(place))
        try:
            made = carry_out_logged(node.op.name, given, node.attrs)
        except WeftError as error:
            raise error.at(node.op.locations) from error.__cause__
        for value, place in zip(made, node.results, strict=False):  # a token has no place
            if place.nbytes:
                self._device.upload(at(place), np.ascontiguousarray(value))

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
