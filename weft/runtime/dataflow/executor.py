"""Runs a lowered graph: native code walks the nodes, Python carries out the host nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.graph import Graph
from weft.ir.process import collector_paused
from weft.passes.manager import Pass
from weft.passes.pipelines import STANDARD
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Array, build
from weft.runtime.dataflow.elsewhere import Elsewhere
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.dataflow.nodes import Tables
from weft.runtime.dataflow.running import Running
from weft.runtime.dataflow.trace import Labels, NodeTrace, TraceRecorder
from weft.runtime.executable import MOST_IDLE_FRAMES
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.variables import VariableState


class DataflowStep:
    """A lowered graph, ready to run; called as an `Executable` is.

    Any number of threads may call it at once, each with a state of its own. An error in one node
    ends the step and cancels the host nodes that wait; what other nodes wrote to variables before
    stays written. passes: for the regions that are compiled. elsewhere: the device that they run on
    if it is not this processor; a call ends when all is done there. `graph` stays for people.
    """

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState] | None = None,
        resources: Resources | None = None,
        *,
        threads: int | None = None,
        deterministic: bool = False,
        passes: Sequence[Pass] = STANDARD,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.name, self.graph = graph.name, graph
        with collector_paused():
            self.built = build(
                graph, variables or {}, resources or {}, passes, threads, deterministic, elsewhere
            )
            self.tables = Tables(self.built.nodes, self.built.frames)
        self._inputs, self._names = len(graph.args), graph.arg_names
        self._idle: list[Running] = []

    def __call__(
        self,
        inputs: list[Array],
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        trace: TraceRecorder | None = None,
    ) -> list[Array | None]:
        """The graph's results: None for a token.

        timeout: seconds after which DeadlineExceededError names the host nodes that wait. cancel:
        ends the step with CancelledError. trace: gets an event for each node that ran.
        InvalidArgumentError if a result is dead, or a loop never ended.
        """
        running, there = self.take(), self.built.elsewhere
        if there is not None:
            rows = zip(inputs, self.built.brought, self._names, strict=True)
            inputs = [there.bring(a, f"'{n}'") if far else a for a, far, n in rows]
        noted = None
        if trace is not None:
            noted = NodeTrace(trace, Labels(self.built, self.tables), running.state)
        try:
            results = running.run(inputs, timeout, cancel or CancelToken(), noted)
            if there is not None:
                there.settle()
        finally:
            if noted is not None:
                noted.close()
        self.give_back(running)
        return results

    def take(self) -> Running:
        """A state for one run."""
        try:
            return self._idle.pop()
        except IndexError:
            return Running(self.built, self.tables, self._inputs)

    def give_back(self, running: Running) -> None:
        """A run has ended without an error."""
        if len(self._idle) < MOST_IDLE_FRAMES:
            self._idle.append(running)

    def executed(self) -> int:
        """How many nodes all idle states have run so far."""
        return sum(r.state.word(at.S_EXECUTED) for r in self._idle)
