"""Runs a lowered graph: native code walks the nodes, Python carries out the host nodes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import Any

from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    WeftError,
)
from weft.ir.graph import Graph
from weft.ir.types import TensorType
from weft.runtime.collector import collector_paused
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Array, Built, HostOp, build
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.dataflow.nodes import Node, Tables
from weft.runtime.dataflow.state import ExternalCell, State
from weft.runtime.executable import MOST_IDLE_FRAMES
from weft.runtime.frame import Frame
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.variables import VariableState

#: Signals (Ctrl-C), deadlines and host nodes that are done are looked at after so many seconds, or
#: so many nodes at first.
SLICE_SECONDS, FIRST_SLICE, LONGEST_SLICE = 0.02, 1 << 12, 1 << 40


class DataflowStep:
    """A lowered graph, ready to run; called as an `Executable` is.

    Any number of threads may call it at once, each with a state of its own. An error in one node
    ends the step and cancels the host nodes that wait; what other nodes wrote to variables before
    stays written.
    """

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState] | None = None,
        resources: Resources | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.name = graph.name
        with collector_paused():
            self.built = build(graph, variables or {}, resources or {}, threads)
            self.tables = Tables(self.built.nodes, self.built.frames)
        self._inputs = len(graph.args)
        self._idle: list[_Running] = []

    def __call__(
        self,
        inputs: list[Array],
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Array | None]:
        """The graph's results: None for a token.

        timeout: seconds after which DeadlineExceededError names the host nodes that wait. cancel:
        ends the step with CancelledError. InvalidArgumentError if a result is dead.
        """
        try:
            running = self._idle.pop()
        except IndexError:
            running = _Running(self.built, self.tables, self._inputs)
        results, clean = running.run(inputs, timeout, cancel or CancelToken())
        if clean and len(self._idle) < MOST_IDLE_FRAMES:
            self._idle.append(running)
        return results

    def executed(self) -> int:
        """How many nodes all idle states have run so far."""
        return sum(r.state.word(at.S_EXECUTED) for r in self._idle)


class _Running:
    """The state of one step at a time."""

    def __init__(self, built: Built, tables: Tables, inputs: int) -> None:
        self.built, self.tables = built, tables
        self.state = State(tables, inputs, len(built.fetches))
        self._cells = [ExternalCell() for _ in range(inputs)]
        for i, cell in enumerate(self._cells):
            self.state.feeds[i] = cell.address
        self._plans = [_plan_words(p.own_frame(), self.state) for p in built.plans]
        rows = (ctypes.c_int64 * max(at.PLAN_WORDS * len(built.plans), 1))()
        for i, plan in enumerate(self._plans):
            for k, word in enumerate(plan.words):
                rows[at.PLAN_WORDS * i + k] = word
        self._rows = rows
        self.state.set(at.S_PLANS, ctypes.addressof(rows))
        self._done: SimpleQueue[tuple[int, int, Any]] = SimpleQueue()
        self._waiting: dict[tuple[int, int], HostOp] = {}

    def run(
        self, inputs: list[Array], timeout: float | None, cancel: CancelToken
    ) -> tuple[list[Array | None], bool]:
        """The results, and whether the next step may use the state; it may not after an error."""
        until = None if timeout is None else time.monotonic() + timeout
        for cell, array in zip(self._cells, inputs, strict=True):
            cell.hold(array)
        own = CancelToken()  # of this step: its end cancels what it waits for, and nothing else
        forget = cancel.register(lambda: own.cancel(cancel.reason))
        try:
            root = self.state.start()
            self._run(until, own)
        except BaseException:
            own.cancel("its step has failed")
            raise
        finally:
            forget()
        results = [self._result(i, t) for i, t in enumerate(self.built.fetches)]
        for cell in self._cells:
            cell.hold(None)
        return results, self.state.end(root)

    def _run(self, until: float | None, cancel: CancelToken) -> None:
        state, budget = self.state, FIRST_SLICE
        while True:
            begun = time.perf_counter()
            left = state.run(budget)
            if left:
                spent = time.perf_counter() - begun
                slower = max(budget // 2, 1)
                budget = slower if spent > SLICE_SECONDS else min(2 * budget, LONGEST_SLICE)
            if state.word(at.S_FAILED):
                self._raise_failed()
            started = state.take_host()
            if not (left or started or self._waiting):
                return
            if cancel.is_cancelled:
                raise CancelledError(
                    f"the step was cancelled: {cancel.reason or 'no reason given'}"
                )
            if until is not None and time.monotonic() > until:
                raise self._too_late()
            for address, iteration in started:
                self._start_host(address, iteration, cancel)
            self._take_done(until, wait=not left)

    def _start_host(self, address: int, iteration: int, cancel: CancelToken) -> None:
        node: Node = self.tables.node_at(address)
        host = self.built.hosts[node.number]
        self._waiting[address, iteration] = host
        given = self.state.inputs(node, iteration, host.types)
        put = self._done.put
        host.start(given, lambda made: put((address, iteration, made)), cancel)

    def _take_done(self, until: float | None, *, wait: bool) -> None:
        """Complete the host nodes that are done; if `wait`, at least one, should any be started."""
        block = wait and bool(self._waiting)
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if left is not None and left > TIMEOUT_MAX:  # more than a lock can wait for
                left = None
            try:
                address, iteration, made = self._done.get(block, left if block else None)
            except Empty:
                if block:
                    raise self._too_late() from None
                return
            block = False
            host = self._waiting.pop((address, iteration))
            if isinstance(made, WeftError):
                raise made.at(host.op.locations)
            _check_fits(made, host)
            self.state.complete(address, iteration, made)

    def _too_late(self) -> DeadlineExceededError:
        waits = sorted({h.op.name for h in self._waiting.values()})
        where = next((h.op.locations for h in self._waiting.values()), ())
        return DeadlineExceededError(
            f"the step did not end in time; it waits for {', '.join(waits) or 'computation'}",
            hint="give a longer timeout, or see why nothing arrives there",
            location=where,
        )

    def _result(self, number: int, t: TensorType | None) -> Array | None:
        if t is None:
            return None
        cell = self.state.fetches[number]
        if not cell:
            raise InvalidArgumentError(
                f"result {number} is dead: the branch that computes it was not taken",
                hint="fetch the output of wf.merge or wf.cond instead",
            )
        self.state.fetches[number] = 0
        array = self.state.array(cell, t)
        self.state.release(cell)
        return array

    def _raise_failed(self) -> None:
        node = self.tables.node_at(self.state.word(at.S_FAILED_NODE))
        if self.state.word(at.S_FAILED) == at.TWO_VALUES:
            op = self.built.op_of[node]
            raise InvalidArgumentError(
                f"op '{op.name}' got two live values in one iteration",
                hint="at most one operand of a merge may be live, and an exit gives one value",
                location=op.locations,
            )
        made, plan = self.built.plans[node.number], self._plans[node.number]
        frame: Frame = plan.frame
        made.raise_failed(frame.failed.value, frame.status.value, frame.status.index)


def _check_fits(made: list[Array | None], host: HostOp) -> None:
    """Whoever reads a result trusts its type, and would read past the end of a smaller one."""
    for array, t in zip(made, host.results, strict=True):
        if isinstance(t, TensorType) and (
            array is None or array.shape != t.static_shape or array.dtype != t.dtype.numpy
        ):
            got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise InternalError(
                f"op '{host.op.name}' was to give {t}, and gave {got}", location=host.op.locations
            )


class _PlanWords:
    """The row of a plan, and the frame that it runs on."""

    def __init__(self, frame: Frame, words: list[int], keep: Any) -> None:
        self.frame, self.words, self._keep = frame, words, keep


def _plan_words(given: tuple[Frame, int, list[int]], state: State) -> _PlanWords:
    frame, walker, slots = given
    results = frame.linked.plan.results
    rows = (ctypes.c_int64 * max(2 * len(slots), 1))()
    for i, (result, slot) in enumerate(zip(results, slots, strict=True)):
        if result is None:
            rows[2 * i + 1] = at.NO_CELL
            continue
        if slot < 0:
            raise InternalError(f"result {i} of a region's plan has no slot")
        shape, dtype = result
        rows[2 * i : 2 * i + 2] = [slot, state.class_of(TensorType(dtype, shape).nbytes)]
    words = [
        walker, frame.header, ctypes.addressof(frame.slots), ctypes.addressof(frame.status),
        ctypes.addressof(rows), len(slots),
    ]  # fmt: skip
    return _PlanWords(frame, words, rows)
