"""One run of a plan for a device with the time of each launch and copy.

Each is waited for, so it takes as long as it does by itself: by the device's own clock, or by the
host's where the device is emulated. Nothing is recorded, nothing overlaps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.ir.graph import Operation
from weft.runtime.dataflow.helpers import clock
from weft.runtime.dataflow.trace import TraceEvent, TraceRecorder
from weft.runtime.device.planning.plan import PlannedCopy, PlannedLaunch
from weft.runtime.traced_run import moved_bytes, traced_names

if TYPE_CHECKING:
    from weft.runtime.device.protocol import Device, LibraryCall

#: Of so many loops around a launch, the innermost, the iteration is told.
MOST_LOOPS = 4


class Watch:
    """Notes what a plan asks a device for in one run."""

    def __init__(self, device: Device, recorder: TraceRecorder) -> None:
        self._device, self._step = device, recorder.next_step()
        self.rows: list[TraceEvent] = []

    def events(self) -> list[TraceEvent]:
        """What was noted."""
        return self.rows

    def __call__(
        self,
        node: PlannedLaunch | PlannedCopy | LibraryCall,
        loops: list[tuple[Operation, int]],
        work: Callable[[], None],
    ) -> None:
        """Do the work of a node, in iterations of loops, outermost first, and wait for it."""
        begin = clock()
        if self._device.emulated:
            work()
            end = clock()
        else:
            took = self._device.timed(work)
            end = clock()
            begin = max(begin, end - round(took * 1e9))
        op = None if isinstance(node, PlannedCopy) else node.op
        self.rows.append(
            TraceEvent(
                name=_name(node),
                kind="kernel",
                ops=() if op is None else traced_names(op),
                locations=() if op is None else op.locations,
                frame="/".join(loop.name for loop, _ in loops),
                iteration=tuple([i for _, i in loops])[-MOST_LOOPS:],
                begin_ns=begin,
                end_ns=end,
                thread=threading.get_ident(),
                dead=False,
                waits=False,
                step=self._step,
                nbytes=2 * node.source.nbytes if isinstance(node, PlannedCopy) else _bytes(op),
            )
        )


def _name(node: PlannedLaunch | PlannedCopy | LibraryCall) -> str:
    if isinstance(node, PlannedLaunch):
        return node.launch.kernel.name
    return "copy" if isinstance(node, PlannedCopy) else f"{node.op.name} by a library"


def _bytes(op: Operation | None) -> int:
    return 0 if op is None else moved_bytes(op)
