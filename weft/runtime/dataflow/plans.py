"""The plans of a step as the native loop calls them, and plans on threads of their own."""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

from weft.ir.errors import InternalError
from weft.ir.types import TensorType
from weft.passes.control.dataflow_regions import Region
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.host_calls import end_if_over
from weft.runtime.dataflow.nodes import words
from weft.runtime.dataflow.state import State
from weft.runtime.executable import Executable
from weft.runtime.resources.cancel import CancelToken


class Look:
    """What loops of plans call now and then, on whichever thread: it raises what is to end them."""

    def __init__(self) -> None:
        self.token = CancelToken()  # of the step that runs

    def __call__(self) -> None:
        end_if_over(self.token)


class PlanWords:
    """The row of a plan, and the frame that it runs on. look: raises what is to end its loops;
    alone: it never uses other threads."""

    def __init__(
        self,
        made: Executable,
        region: Region,
        state: State,
        look: Look,
        *,
        alone: bool = False,
    ) -> None:
        self.frame, walker, slots = made.own_frame(one_thread=alone)
        self.frame.status.hook = id(look)
        self._made, self._look = made, look
        self._rows = _result_rows(made, region, slots, state)
        self.words = [
            walker, self.frame.header, ctypes.addressof(self.frame.slots),
            ctypes.addressof(self.frame.status), ctypes.addressof(self._rows), len(slots),
        ]  # fmt: skip

    def raise_failed(self) -> NoReturn:
        """The plan stopped: which op, and why."""
        frame = self.frame
        self._made.raise_failed(frame.failed.value, frame.status.value, frame.status.index)


def _result_rows(made: Executable, region: Region, slots: list[int], state: State) -> Any:
    width = at.PLAN_RESULT_BYTES // 8
    rows = words(width * len(slots))
    for i, (result, slot) in enumerate(zip(region.results, slots, strict=True)):
        given = made.plan.donated.get(i, at.NOT_GIVEN)
        row = [slot if given == at.NOT_GIVEN else given, at.NO_CELL, given, 0]
        if isinstance(result.type, TensorType):
            if row[0] < 0:
                raise InternalError(f"result {i} of a region's plan has no slot")
            row[1], row[3] = state.class_of(result.type.nbytes), result.type.nbytes
        rows[width * i : width * (i + 1)] = row
    return rows


_walk = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Job:
    """A plan that runs beside others, on one thread; again and again, once at a time. op: to name
    in errors."""

    def __init__(
        self,
        number: int,
        made: Executable,
        region: Region,
        state: State,
        look: Look,
    ) -> None:
        self.number, self.op = number, region.ops[-1]
        self.plan = PlanWords(made, region, state, look, alone=True)
        given = self.plan.words
        self._row = words(at.PLAN_WORDS)
        self._row[:] = given
        self._outs = words(len(made.plan.results))
        self.row, self.outs = ctypes.addressof(self._row), ctypes.addressof(self._outs)
        self._walker, self._header = _walk(given[0]), given[1]

    def run(self) -> None:
        """Run it on what `State.prepare` has given it; without the GIL."""
        self._walker(self._header, 0, 0, 0)

    def check(self) -> None:
        """Raise what stopped it."""
        if self.plan.frame.status.value:
            self.plan.raise_failed()
