"""What is recorded of a step's pieces, each for the sets of addresses that were used last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.graph import Operation
from weft.runtime.device.planning.plan import PlannedCopy
from weft.runtime.device.protocol import Device
from weft.runtime.device.running.pieces import (
    MOST_KEPT,
    MOST_SETS,
    Ask,
    Kept,
    Key,
    Node,
    Piece,
    Places,
    Still,
)


class Recorded:
    """The recordings of `pieces`.

    A set of addresses - of variables, large inputs and results - has a number, and `MOST_SETS` of
    them have recordings: memory that is given back and asked for again comes back in turn. One more
    takes over the number of the set that was used longest ago, and its recordings, in which it
    changes what differs: that is a call of the driver for each such launch, and no recording.
    """

    def __init__(self, device: Device, places: Places) -> None:
        self._device, self._places = device, places
        self.pieces: list[Piece] = []
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
            for piece in self.pieces:
                if piece.fixed:
                    self._drop(piece, number)
        self._addresses, self._number = addresses, number
        self._sets[addresses] = number, addresses
        return True

    def _drop(self, piece: Piece, number: int) -> None:
        piece.seen = {key for key in piece.seen if key[0] != number}
        for key in [key for key in piece.kept if key[0] == number]:
            self._forget(piece, key)

    def _forget(self, piece: Piece, key: Key) -> None:
        del piece.kept[key]
        self._size -= piece.size

    def replay(self, piece: Piece, ask: Callable[[Sequence[Still]], None]) -> bool:
        """Do a piece as it is recorded; False: it is not, and is to be asked for. ask: asks for it
        launch by launch, and tells `note` of each."""
        if piece.size < 2:
            return False
        key = (self._number, *piece.key(self._places.iteration))
        kept = piece.kept.get(key)
        if kept is not None and kept.addresses is not self._addresses and not self._moved(kept):
            piece.fixed = True  # the driver does not do it
            self._forget(piece, key)
            kept = None
        if kept is None:
            kept = self._recorded(piece, key, ask)
        if kept is not None:
            kept.again()
        return kept is not None

    # -- making one -------------------------------------------------------------------------------

    def _recorded(
        self, piece: Piece, key: Key, ask: Callable[[Sequence[Still]], None]
    ) -> Kept | None:
        """The piece as a recording, if that is worth it: the first time may be the only one."""
        if key not in piece.seen:
            piece.seen.add(key)
            return None
        if self._size + piece.size > MOST_KEPT:
            return None
        nodes: list[Node] = []
        self._nodes = None if piece.fixed else nodes
        iteration = dict(self._places.iteration)
        try:
            again = self._device.capture(lambda: ask(piece.stills))
        finally:
            self._nodes = None
        if again is None:
            self._restore(iteration)  # it is asked for from there
            return None
        kept = piece.kept[key] = Kept(again, self._addresses, nodes)
        self._size += piece.size
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


__all__ = ["Recorded"]
