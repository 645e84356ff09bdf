"""What a step asks a device for, in pieces between which the host has something to do.

A piece is launches and copies, and loops of them whose number of iterations is known: nothing in it
waits for the host, so all of it may be recorded and launched as one. What is larger than
`MOST_NODES` is cut into pieces of some iterations each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.ir.graph import Operation
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
from weft.runtime.device.protocol import LibraryCall, Prepared

#: Launches and copies in one recording, at most: making one takes about a microsecond for each.
MOST_NODES = 1024
#: And in all recordings that a frame keeps, as each takes memory of the driver.
MOST_KEPT = 16 * MOST_NODES
#: Sets of addresses - of variables, large inputs and results - for which recordings are kept.
MOST_SETS = 4

Base = tuple[str, int | str]
#: The number of the set of addresses; in which iteration each loop is that a piece follows, or
#: whether that is an odd one.
Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A copy, or a launch, or a library's call, that is ready but for the words whose places follow
    a loop."""

    node: PlannedLaunch | PlannedCopy | LibraryCall
    launch: Prepared | None = None
    moving: tuple[tuple[int, Place], ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """`count` iterations of a loop. begins: from the first one on, else from where the loop is."""

    loop: Operation
    count: int
    body: tuple[Still, ...]
    begins: bool


Still = Ask | Counted


@dataclass(slots=True)
class Piece:
    """size: launches and copies of all iterations. follows: the loops around it, or before it, that
    move its places, and whether by every iteration (else every second is the same)."""

    stills: list[Still] = field(default_factory=list)
    size: int = 0
    follows: tuple[tuple[Operation, bool], ...] = ()
    seen: set[Key] = field(default_factory=set)
    again: dict[Key, Callable[[], None]] = field(default_factory=dict)

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


Part = Piece | Loop | Branch | CheckFaults | DevicePush | DevicePop | Sums


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


class Cutter:
    """From nodes to parts. prepared: makes a launch ready; chosen: makes what does a product."""

    def __init__(
        self,
        plan: DevicePlan,
        prepared: Callable[[PlannedLaunch], Ask],
        chosen: Callable[[PlannedProduct], Sequence[Ask]],
    ) -> None:
        self._plan, self._prepared, self._chosen = plan, prepared, chosen
        self.pieces: list[Piece] = []

    def parts(self, nodes: Sequence[DeviceNode]) -> list[Part]:
        """The parts, whose pieces are in `pieces`, too."""
        parts = self._cut(nodes)
        self.pieces = list(_pieces(parts))
        for piece in self.pieces:
            piece.follows = self._follows(piece)
        return parts

    def _cut(self, nodes: Sequence[DeviceNode]) -> list[Part]:
        parts: list[Part] = []
        for node in nodes:
            match node:
                case PlannedLaunch():
                    _join(parts, [self._prepared(node)], 1)
                case PlannedProduct():
                    asks = self._chosen(node)
                    _join(parts, asks, len(asks))
                case PlannedCopy():
                    _join(parts, [Ask(node)], 1)
                case DeviceLoop():
                    self._loop(parts, node)
                case DeviceBranch():
                    parts.append(Branch(node, self._cut(node.then), self._cut(node.orelse)))
                case DeviceAdd():
                    parts.append(Sums(node, tuple(map(self._prepared, node.launches))))
                case CheckFaults() | DevicePush() | DevicePop():
                    parts.append(node)
        return parts

    def _loop(self, parts: list[Part], node: DeviceLoop) -> None:
        test, body = self._cut(node.test), self._cut(node.body)
        only = body[0] if len(body) == 1 else None
        if node.decision is not None or not isinstance(only, Piece):
            parts.append(Loop(node, test, body))
            return
        inner, op = tuple(only.stills), node.op
        if node.limit * only.size <= MOST_NODES:
            _join(parts, [Counted(op, node.limit, inner, True)], node.limit * only.size)
            return
        step = MOST_NODES // only.size // 2 * 2  # from an even iteration on, each time
        if step < 2:
            parts.append(Loop(node, [], body))
            return

        def some(count: int) -> list[Part]:
            return [Piece([Counted(op, count, inner, False)], count * only.size)] if count else []

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


def _join(parts: list[Part], stills: Sequence[Still], size: int) -> None:
    """Put more at the end of the last piece, if it has room."""
    last = parts[-1] if parts else None
    if not isinstance(last, Piece) or last.size + size > MOST_NODES:
        last = Piece()
        parts.append(last)
    last.stills += stills
    last.size += size


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
