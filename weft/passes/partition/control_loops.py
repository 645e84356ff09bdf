"""Control loops: a device that sends or receives in a frame counts its iterations itself.

Each device that sends or receives in a frame has a counter of its iterations there. Where the
loop's predicate is computed elsewhere, it is received in each iteration, and the counter goes round
as long as it is true; so each device learns by itself that the loop is over (Yu et al. 2018,
section 4.4). The counter is the iteration number by which messages are told apart, and starts if
and only if the loop does.

A message in a frame is sent in every iteration, the last one too, in which only the test runs; one
that belongs to the body (it is live if and only if the predicate is true) is not sent in that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.ir.analysis.deadness import TRUE
from weft.ir.analysis.frames import Frame
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.spec import AttrValue, ConstArray

if TYPE_CHECKING:
    from weft.passes.partition.partition import Cut, PartBuilder

_ZERO, _ONE = (ConstArray(np.array(n, np.int64)) for n in (0, 1))


@dataclass(eq=False)
class ControlLoop:
    """One device's part in a frame. outer: the counters of the frames around, in it; count: its own
    counter; inside: the same where the loop goes on (None: the predicate is not there yet)."""

    outer: list[Value]
    count: Value
    inside: Value | None = None


class Loops:
    """The control loops of all parts."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._made: dict[tuple[PartBuilder, Frame], ControlLoop] = {}
        self._decided: set[Frame] = set()

    def counters(self, part: PartBuilder, frame: Frame, condition: int) -> tuple[list[Value], bool]:
        """The iteration numbers of a message in `frame`, and whether it is alive whenever all of
        them are. condition: when it is alive."""
        if frame.parent is None:
            return [], condition == TRUE
        loop = self._loop(part, frame)
        own = self._own(loop, frame, condition)
        return [*loop.outer, own or loop.count], own is not None

    def _own(self, loop: ControlLoop, frame: Frame, condition: int) -> Value | None:
        """Which of a loop's counters is alive under a condition; None if neither is."""
        base, goes_on = self._conditions(frame)
        if condition == base:
            return loop.count
        if condition == goes_on and frame in self._decided:
            assert loop.inside is not None
            return loop.inside
        return None

    def _conditions(self, frame: Frame) -> tuple[int, int]:
        """When an iteration runs at all, and when it runs the body."""
        deadness = self.cut.deadness
        base = deadness.of_value[frame.merges[0].results[0]]
        predicate = deadness.predicate(frame.conds[0].result)
        assert predicate is not None
        return base, deadness.conditions.both(base, predicate)

    def decided(self, cond: Operation) -> None:
        """The predicate of a frame has been emitted."""
        frame = self.cut.frames.of_op[cond]
        self._decided.add(frame)
        for (part, known), loop in list(self._made.items()):
            if known is frame:
                self._close(part, frame, loop)

    def _loop(self, part: PartBuilder, frame: Frame) -> ControlLoop:
        found = self._made.get((part, frame))
        if found is not None:
            return found
        self._check(frame)
        cut, around = self.cut, frame.parent
        start = frame.merges[0].operands[0].op
        assert around is not None
        assert start is not None
        where = start.locations
        after = self._start(part, around, start)
        (zero,) = cut.emit(part, "constant", (), {"value": _ZERO}, around, where, after)
        outer: list[Value] = []
        if around.parent is not None:
            surrounding = self._loop(part, around)
            outer = [
                self._enter(part, frame, v, constant=True)
                for v in (*surrounding.outer, surrounding.count)
            ]
        entered = self._enter(part, frame, zero, constant=False)
        count, _ = cut.emit(part, "merge", [entered], {"loop": True}, frame, where)
        made = self._made[part, frame] = ControlLoop(outer, count)
        if frame in self._decided:
            self._close(part, frame, made)
        return made

    def _start(self, part: PartBuilder, around: Frame, start: Operation) -> list[Value]:
        """What the counter's zero comes after: alive if and only if the loop begins."""
        cut, condition = self.cut, self.cut.deadness.of_op[start]
        if around.parent is not None:
            own = self._own(self._loop(part, around), around, condition)
            if own is not None:
                return [own]
        elif condition == TRUE:
            return []
        home = cut.homes[start]
        assert home is not None
        if home == part.device:
            return cut.inputs(part, start)
        return [cut.entered(cut.part(home), part, start)]

    def _enter(self, part: PartBuilder, frame: Frame, value: Value, *, constant: bool) -> Value:
        attrs: dict[str, AttrValue] = {
            "frame": frame.name,
            "constant": constant,
            "parallel_iterations": frame.parallel_iterations,
        }
        where = frame.enters[0].locations
        return self.cut.emit(part, "enter", [value], attrs, frame, where)[0]

    def _close(self, part: PartBuilder, frame: Frame, loop: ControlLoop) -> None:
        """Count on as long as the predicate is true."""
        cond = frame.conds[0]
        going, where = self.cut.value(part, cond.result), cond.locations
        emit = self.cut.emit
        _, loop.inside = emit(part, "switch", [loop.count, going], {}, frame, where)
        (one,) = emit(part, "constant", (), {"value": _ONE}, frame, where, [loop.inside])
        (following,) = emit(part, "add", [loop.inside, one], {}, frame, where)
        emit(part, "next_iteration", [following, loop.count], {}, frame, where)

    def _check(self, frame: Frame) -> None:
        """Refuse loops that were written by hand and whose iterations are not one predicate's."""
        deadness = self.cut.deadness
        why = None
        if len(frame.conds) != 1 or not frame.merges:
            why = "it has no loop_cond that says whether it goes on"
        elif deadness.predicate(frame.conds[0].result) is None:
            why = "nothing is switched by its loop_cond"
        else:
            base, goes_on = self._conditions(frame)
            if not deadness.is_regular(frame) or deadness.of_op[frame.conds[0]] != base:
                why = "not all that enters it or goes round in it is alive together"
            elif any(deadness.of_op[n] != goes_on for n in frame.nexts.values()):
                why = "it goes on by something else than its loop_cond"
        if why is not None:
            raise UnsupportedError(
                f"{frame} is a loop over several devices, but {why}",
                hint="use wf.while_loop, or put all of the loop on one device",
                location=frame.enters[0].locations,
            )
