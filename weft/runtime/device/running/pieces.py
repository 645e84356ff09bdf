"""What a step asks a device for, in pieces between which the host has something to do.

A piece is launches and copies, and loops of them whose number of iterations is known: nothing in it
waits for the host, so all of it may be recorded and launched as one. What is larger than
`MOST_NODES` is cut into pieces of some iterations each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.runtime.device.planning.looks import checks, marks
from weft.runtime.device.planning.plan import (
    CheckFaults,
    DeviceAdd,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    DevicePlan,
    DevicePop,
    DevicePush,
    Place,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
)
from weft.runtime.device.protocol import LibraryCall, Prepared, Recording

#: Launches and copies in one recording, at most: making one takes about a microsecond for each.
MOST_NODES = 1024
#: And in all recordings that a frame keeps, as each takes memory of the driver.
MOST_KEPT = 16 * MOST_NODES
#: Sets of addresses - of variables, large inputs and results - for which recordings are kept. What
#: comes beyond takes over those of the set that was used longest ago, with other addresses.
MOST_SETS = 4

Base = tuple[str, int | str]
#: The number of the set of addresses; in which iteration each loop is that a piece follows, or
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
class Piece:
    """size: launches and copies of all iterations. checks: whether some check indices. fixed:
    whether a recording cannot get other addresses. follows: the loops around it, or before it, that
    move its places, and whether by every iteration (else every second is the same)."""

    stills: list[Still] = field(default_factory=list)
    size: int = 0
    checks: bool = False
    fixed: bool = False
    follows: tuple[tuple[Operation, bool], ...] = ()
    seen: set[Key] = field(default_factory=set)
    kept: dict[Key, Kept] = field(default_factory=dict)

    def key(self, iteration: Mapping[Operation, int]) -> tuple[int, ...]:
        """What the addresses in the piece depend on, beside those that `Launches.point` gets."""
        return tuple([iteration[op] if each else iteration[op] % 2 for op, each in self.follows])


@dataclass(slots=True)
class Loop:
    """A loop that the host leads, `step` iterations at a time. rest: those that are left then."""

    node: DeviceLoop
    test: list[Part]
    body: list[Part]
    step: int = 1
    rest: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """A branch that the host takes."""

    node: DeviceBranch
    then: list[Part]
    orelse: list[Part]


@dataclass(slots=True)
class Sums:
    """Two stacks that the host adds up. launches: the sum of two elements."""

    node: DeviceAdd
    launches: tuple[Ask, ...]


class Noted:
    """The point up to which the next look for faults has to wait."""


Part = Piece | Loop | Branch | CheckFaults | Noted | DevicePush | DevicePop | Sums


@dataclass(slots=True)
class Places:
    """Where every buffer is; for "moving" ones in which iteration each loop is."""

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
    """From nodes to parts. prepared: makes a launch or copy ready; chosen: what does a product."""

    def __init__(
        self,
        plan: DevicePlan,
        prepared: Callable[[PlannedLaunch | PlannedCopy], Ask],
        chosen: Callable[[PlannedProduct], Sequence[Ask]],
    ) -> None:
        self._plan, self._prepared, self._chosen = plan, prepared, chosen
        self.pieces: list[Piece] = []

    def parts(self, nodes: Sequence[DeviceNode]) -> list[Part]:
        """The parts, whose pieces are in `pieces`, too."""
        parts = self._cut(nodes, last=True)
        self.pieces = list(_pieces(parts))
        for piece in self.pieces:
            piece.follows = self._follows(piece)
            piece.fixed = any(map(_is_fixed, _all(piece.stills)))
        return parts

    def _cut(self, nodes: Sequence[DeviceNode], last: bool = False) -> list[Part]:
        parts: list[Part] = []
        noted = marks(nodes, last)
        for k, node in enumerate(nodes):
            match node:
                case PlannedLaunch() | PlannedCopy():
                    _join(parts, [self._prepared(node)], 1, checks(node))
                case PlannedProduct():
                    asks = self._chosen(node)
                    _join(parts, asks, len(asks), checks(node))
                case DeviceLoop():
                    self._loop(parts, node)
                case DeviceBranch():
                    parts.append(Branch(node, self._cut(node.then), self._cut(node.orelse)))
                case DeviceAdd():
                    parts.append(Sums(node, tuple(map(self._prepared, node.launches))))
                case CheckFaults() | DevicePush() | DevicePop():
                    parts.append(node)
            if k in noted:
                parts.append(Noted())
        return parts

    def _loop(self, parts: list[Part], node: DeviceLoop) -> None:
        test, body = self._cut(node.test), self._cut(node.body)
        only = body[0] if len(body) == 1 else None
        if node.decision is not None or not isinstance(only, Piece):
            parts.append(Loop(node, test, body))
            return
        inner, op = tuple(only.stills), node.op
        if node.limit * only.size <= MOST_NODES:
            size = node.limit * only.size
            _join(parts, [Counted(op, node.limit, inner, True)], size, only.checks)
            return
        step = MOST_NODES // only.size // 2 * 2  # from an even iteration on, each time
        if step < 2:
            parts.append(Loop(node, [], body))
            return

        def some(count: int) -> list[Part]:
            still = Counted(op, count, inner, False)
            return [Piece([still], count * only.size, only.checks)] if count else []

        parts.append(Loop(node, [], some(step), step, some(node.limit % step)))

    def _follows(self, piece: Piece) -> tuple[tuple[Operation, bool], ...]:
        own: set[Operation] = set()
        found: dict[Operation, bool] = {}
        for still in _all(piece.stills):
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


def _join(parts: list[Part], stills: Sequence[Still], size: int, checked: bool) -> None:
    """Put more at the end of the last piece, if it has room."""
    last = parts[-1] if parts else None
    if not isinstance(last, Piece) or last.size + size > MOST_NODES:
        last = Piece()
        parts.append(last)
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


def _pieces(parts: Sequence[Part]) -> Iterator[Piece]:
    for part in parts:
        match part:
            case Piece():
                yield part
            case Loop():
                yield from _pieces([*part.test, *part.body, *part.rest])
            case Branch():
                yield from _pieces([*part.then, *part.orelse])
            case _:
                pass


def places_of(node: PlannedLaunch | PlannedCopy | LibraryCall) -> list[Place]:
    """All places that a node touches."""
    if isinstance(node, PlannedCopy):
        return [node.source, node.target]
    return [arg for arg in node.args if isinstance(arg, Place)]
