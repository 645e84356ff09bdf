"""Segments of a step and their captures: what the device does without waiting for the host.

A segment (`Segment`) is launches and copies, and loops of them whose number of iterations is known:
nothing in it waits for the host, so all of it may be captured and launched as one. What is larger
than `MOST_NODES` is cut into segments of some iterations each. `Captures` keeps the captures, each
for the sets of addresses that were used last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.runtime.device.plan import (
    CheckFaults,
    DeviceAdd,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    DevicePlan,
    DevicePop,
    DevicePush,
    DevicePython,
    Place,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
    checks,
    marks,
)
from weft.runtime.device.protocol import Device, LibraryCall, Prepared, Recording

#: Launches and copies in one recording, at most: making one takes about a microsecond for each.
MOST_NODES = 1024
#: And in all recordings that an activation keeps, as each takes memory of the driver.
MOST_KEPT = 16 * MOST_NODES
#: Sets of addresses - of variables, large inputs and results - for which recordings are kept. What
#: comes beyond takes over those of the set that was used longest ago, with other addresses.
MOST_SETS = 4

Base = tuple[str, int | str]
#: The number of the set of addresses; in which iteration each loop is that a segment follows, or
#: whether that is an odd one.
Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A copy, or a launch, or a library's call, that is ready but for the words whose places follow
    a loop. late: whether it has places that `Launches.point` gets."""

    node: PlannedLaunch | PlannedCopy | LibraryCall
    launch: Prepared | None = None
    moving: tuple[tuple[int, Place], ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """`count` iterations of a loop. begins: from the first one on, else from where the loop is."""

    loop: Operation
    count: int
    body: tuple[Still, ...]
    begins: bool


Still = Ask | Counted


@dataclass(slots=True)
class Node:
    """A node of a recording with places that `Launches.point` gets. handle: what the device knows
    it by. iteration: where the loops were. given: the words of a launch, or a copy's source and
    target."""

    ask: Ask
    handle: object
    iteration: dict[Operation, int]
    given: bytes | tuple[int, int]


@dataclass(slots=True)
class Kept:
    """A recording. addresses: those of the set for which it is. nodes: what differs for others."""

    again: Recording
    addresses: tuple[int, ...]
    nodes: list[Node]


@dataclass(slots=True)
class Segment:
    """A segment. size: launches and copies of all iterations. checks: whether some check indices.
    fixed: whether a recording cannot get other addresses. follows: the loops around it, or before
    it, that move its places, and whether by every iteration (else every second is the same)."""

    stills: list[Still] = field(default_factory=list)
    size: int = 0
    checks: bool = False
    fixed: bool = False
    follows: tuple[tuple[Operation, bool], ...] = ()
    seen: set[Key] = field(default_factory=set)
    kept: dict[Key, Kept] = field(default_factory=dict)

    def key(self, iteration: Mapping[Operation, int]) -> tuple[int, ...]:
        """What the addresses in the segment depend on, beside those that `Launches.point` gets."""
        return tuple([iteration[op] if each else iteration[op] % 2 for op, each in self.follows])


@dataclass(slots=True)
class Loop:
    """A loop that the host leads, `step` iterations at a time. rest: those that are left then."""

    node: DeviceLoop
    test: list[Section]
    body: list[Section]
    step: int = 1
    rest: list[Section] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """A branch that the host takes."""

    node: DeviceBranch
    then: list[Section]
    orelse: list[Section]


@dataclass(slots=True)
class Sums:
    """Two stacks that the host adds up. launches: the sum of two elements."""

    node: DeviceAdd
    launches: tuple[Ask, ...]


class Noted:
    """The point up to which the next look for faults has to wait."""


Section = (
    Segment | Loop | Branch | CheckFaults | Noted | DevicePush | DevicePop | DevicePython | Sums
)


@dataclass(slots=True)
class Places:
    """The addresses of all buffers; for "moving" ones in which iteration each loop is."""

    plan: DevicePlan
    bases: dict[Base, int] = field(default_factory=dict)
    iteration: dict[Operation, int] = field(default_factory=dict)

    def at(self, place: Place) -> int:
        """The address."""
        if place.kind == "moving":
            moving, even, odd = self.plan.moving[int(place.which)]
            i = self.iteration[moving.loop]
            return self.at(odd if i % 2 else even) + i * moving.stride + place.offset
        return self.bases[place.kind, place.which] + place.offset

    def is_of(self, bases: Collection[Base], place: Place) -> bool:
        """Whether it is in one of these buffers, or in that of an element of a stack, in every
        iteration."""
        if place.kind == "moving":
            _, even, odd = self.plan.moving[int(place.which)]
            return self.is_of(bases, even) and self.is_of(bases, odd)
        return place.kind == "cell" or (place.kind, place.which) in bases


class Cutter:
    """Cuts the nodes of a plan into segments and what the host does between them. prepared: makes a
    launch or copy ready; chosen: what does a product."""

    def __init__(
        self,
        plan: DevicePlan,
        prepared: Callable[[PlannedLaunch | PlannedCopy], Ask],
        chosen: Callable[[PlannedProduct], Sequence[Ask]],
    ) -> None:
        self._plan, self._prepared, self._chosen = plan, prepared, chosen
        self.segments: list[Segment] = []

    def sections(self, nodes: Sequence[DeviceNode]) -> list[Section]:
        """The sections, whose segments are in `segments`, too."""
        sections = self._cut(nodes, last=True)
        self.segments = list(_segments(sections))
        for segment in self.segments:
            segment.follows = self._follows(segment)
            segment.fixed = any(map(_is_fixed, _all(segment.stills)))
        return sections

    def _cut(self, nodes: Sequence[DeviceNode], last: bool = False) -> list[Section]:
        sections: list[Section] = []
        noted = marks(nodes, last)
        for k, node in enumerate(nodes):
            match node:
                case PlannedLaunch() | PlannedCopy():
                    _join(sections, [self._prepared(node)], 1, checks(node))
                case PlannedProduct():
                    asks = self._chosen(node)
                    _join(sections, asks, len(asks), checks(node))
                case DeviceLoop():
                    self._loop(sections, node)
                case DeviceBranch():
                    sections.append(Branch(node, self._cut(node.then), self._cut(node.orelse)))
                case DeviceAdd():
                    sections.append(Sums(node, tuple(map(self._prepared, node.launches))))
                case CheckFaults() | DevicePush() | DevicePop() | DevicePython():
                    sections.append(node)
            if k in noted:
                sections.append(Noted())
        return sections

    def _loop(self, sections: list[Section], node: DeviceLoop) -> None:
        test, body = self._cut(node.test), self._cut(node.body)
        only = body[0] if len(body) == 1 else None
        if node.decision is not None or not isinstance(only, Segment):
            sections.append(Loop(node, test, body))
            return
        inner, op = tuple(only.stills), node.op
        if node.limit * only.size <= MOST_NODES:
            size = node.limit * only.size
            _join(sections, [Counted(op, node.limit, inner, True)], size, only.checks)
            return
        step = MOST_NODES // only.size // 2 * 2  # from an even iteration on, each time
        if step < 2:
            sections.append(Loop(node, [], body))
            return

        def some(count: int) -> list[Section]:
            still = Counted(op, count, inner, False)
            return [Segment([still], count * only.size, only.checks)] if count else []

        sections.append(Loop(node, [], some(step), step, some(node.limit % step)))

    def _follows(self, segment: Segment) -> tuple[tuple[Operation, bool], ...]:
        own: set[Operation] = set()
        found: dict[Operation, bool] = {}
        for still in _all(segment.stills):
            if isinstance(still, Counted):
                if still.begins:
                    own.add(still.loop)
                continue
            for place in places_of(still.node):
                self._note(place, found)
        return tuple([(op, each) for op, each in found.items() if op not in own])

    def _note(self, place: Place, found: dict[Operation, bool]) -> None:
        if place.kind != "moving":
            return
        moving, even, odd = self._plan.moving[int(place.which)]
        if moving.stride or even != odd:
            found[moving.loop] = found.get(moving.loop, False) or bool(moving.stride)
        self._note(even, found)
        self._note(odd, found)


def _join(sections: list[Section], stills: Sequence[Still], size: int, checked: bool) -> None:
    """Put more at the end of the last segment, if it has room."""
    last = sections[-1] if sections else None
    if not isinstance(last, Segment) or last.size + size > MOST_NODES:
        last = Segment()
        sections.append(last)
    last.stills += stills
    last.size += size
    last.checks = last.checks or checked


def _is_fixed(still: Still) -> bool:
    """Whether it is a library's, at places that change: what its kernels are given is not known."""
    return (
        isinstance(still, Ask)
        and still.late
        and not isinstance(still.node, PlannedLaunch | PlannedCopy)
    )


def _all(stills: Sequence[Still]) -> Iterator[Still]:
    for still in stills:
        yield still
        if isinstance(still, Counted):
            yield from _all(still.body)


def _segments(sections: Sequence[Section]) -> Iterator[Segment]:
    for section in sections:
        match section:
            case Segment():
                yield section
            case Loop():
                yield from _segments([*section.test, *section.body, *section.rest])
            case Branch():
                yield from _segments([*section.then, *section.orelse])
            case _:
                pass


def places_of(node: PlannedLaunch | PlannedCopy | LibraryCall) -> list[Place]:
    """All places that a node touches."""
    if isinstance(node, PlannedCopy):
        return [node.source, node.target]
    return [arg for arg in node.args if isinstance(arg, Place)]


class Captures:
    """The recordings of `segments`.

    A set of addresses - of variables, large inputs and results - has a number, and `MOST_SETS` of
    them have recordings: memory that is given back and asked for again comes back in turn. One more
    takes over the number of the set that was used longest ago, and its recordings, in which it
    changes what differs: that is a call of the driver for each such launch, and no recording.
    """

    def __init__(self, device: Device, places: Places) -> None:
        self._device, self._places = device, places
        self.segments: list[Segment] = []
        self._size = 0  # nodes in all recordings
        # the number of each, and the tuple that `Kept.addresses` is; the last one used last
        self._sets: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
        self._addresses: tuple[int, ...] = ()
        self._number = 0
        self._nodes: list[Node] | None = None  # of the recording that is being made

    def use(self, addresses: tuple[int, ...]) -> bool:
        """What follows is for these. False: so was what came before."""
        if addresses == self._addresses and self._number:
            return False
        number, addresses = self._sets.pop(addresses, (0, addresses))
        if not number and len(self._sets) < MOST_SETS:
            number = len(self._sets) + 1
        elif not number:
            number, _ = self._sets.pop(next(iter(self._sets)))
            for segment in self.segments:
                if segment.fixed:
                    self._drop(segment, number)
        self._addresses, self._number = addresses, number
        self._sets[addresses] = number, addresses
        return True

    def _drop(self, segment: Segment, number: int) -> None:
        segment.seen = {key for key in segment.seen if key[0] != number}
        for key in [key for key in segment.kept if key[0] == number]:
            self._forget(segment, key)

    def _forget(self, segment: Segment, key: Key) -> None:
        del segment.kept[key]
        self._size -= segment.size

    def replay(self, segment: Segment, ask: Callable[[Sequence[Still]], None]) -> bool:
        """Do a segment as it is recorded; False: it is not, and is to be asked for. ask: asks for
        it launch by launch, and tells `note` of each."""
        if segment.size < 2:
            return False
        key = (self._number, *segment.key(self._places.iteration))
        kept = segment.kept.get(key)
        if kept is not None and kept.addresses is not self._addresses and not self._moved(kept):
            segment.fixed = True  # the driver does not do it
            self._forget(segment, key)
            kept = None
        if kept is None:
            kept = self._recorded(segment, key, ask)
        if kept is not None:
            kept.again()
        return kept is not None

    # -- making one -------------------------------------------------------------------------------

    def _recorded(
        self, segment: Segment, key: Key, ask: Callable[[Sequence[Still]], None]
    ) -> Kept | None:
        """The segment as a recording, if that is worth it: the first time may be the only one."""
        if key not in segment.seen:
            segment.seen.add(key)
            return None
        if self._size + segment.size > MOST_KEPT:
            return None
        nodes: list[Node] = []
        self._nodes = None if segment.fixed else nodes
        iteration = dict(self._places.iteration)
        try:
            again = self._device.capture(lambda: ask(segment.stills))
        finally:
            self._nodes = None
        if again is None:
            self._restore(iteration)  # it is asked for from there
            return None
        kept = segment.kept[key] = Kept(again, self._addresses, nodes)
        self._size += segment.size
        return kept

    def note(self, ask: Ask) -> None:
        """A launch or copy has been asked for."""
        if self._nodes is None or not ask.late:
            return
        given = self._given(ask)
        there = not (isinstance(given, tuple) and given[0] == given[1])  # else nothing was copied
        handle = self._device.recorded() if there else None
        self._nodes.append(Node(ask, handle, dict(self._places.iteration), given))

    def _given(self, ask: Ask) -> bytes | tuple[int, int]:
        """The words of a launch, or a copy's source and target, as they are now."""
        at, node = self._places.at, ask.node
        if isinstance(node, PlannedCopy):
            return at(node.source), at(node.target)
        assert ask.launch is not None
        for word, place in ask.moving:
            ask.launch.words[word] = at(place)
        return ask.launch.words.tobytes()

    # -- other addresses --------------------------------------------------------------------------

    def _moved(self, kept: Kept) -> bool:
        """Change what is recorded to the addresses as they are now; False where that cannot be."""
        iteration = dict(self._places.iteration)
        try:
            for node in kept.nodes:
                self._places.iteration.update(node.iteration)
                given = self._given(node.ask)
                if given != node.given and not self._change(kept, node, given):
                    return False
        finally:
            self._restore(iteration)
        kept.addresses = self._addresses
        return True

    def _change(self, kept: Kept, node: Node, given: bytes | tuple[int, int]) -> bool:
        node.given = given
        if isinstance(given, bytes):
            assert node.ask.launch is not None
            return kept.again.relaunch(node.handle, node.ask.launch)
        assert isinstance(node.ask.node, PlannedCopy)
        if node.handle is None or given[0] == given[1]:  # there is no copy, or none is needed now
            return False
        return kept.again.recopy(node.handle, given[1], given[0], node.ask.node.source.nbytes)

    def _restore(self, iteration: dict[Operation, int]) -> None:
        self._places.iteration.clear()
        self._places.iteration.update(iteration)
