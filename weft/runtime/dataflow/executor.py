"""`DataflowStep`: a step that the dataflow executor runs, how it is made from a step's graph, and
its nodes, regions and ops of the host as text.

`Stepping` is a run that gives its thread back where it would wait, and goes on in the thread that
brings what it waited for: for small steps, which take less than another thread takes to begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from weft.codegen.loops.in_registers import in_registers
from weft.ir.analysis.deadness import check_dataflow
from weft.ir.analysis.effects import is_string
from weft.ir.cost.thresholds import SMALL_STEP_NS, SMALL_STEP_OPS
from weft.ir.cost.work import nanoseconds
from weft.ir.graph import Graph, Operation
from weft.ir.ops.control_flow import DATAFLOW
from weft.ir.process import collector_paused
from weft.ir.types import TensorType, Type
from weft.passes.control.lower_control_flow import executor_only, lower_control_flow, unroll
from weft.passes.control.program_order import program_order
from weft.passes.manager import BoundPass, Pass, PassOptions, PassReport, run_passes
from weft.passes.pipelines import STANDARD
from weft.passes.sizes import is_symbolic, tie_sizes
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Array, Built, build
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.dataflow.host_ops import HOST_OPS
from weft.runtime.dataflow.nodes import Tables
from weft.runtime.dataflow.regions import RegionDevice
from weft.runtime.dataflow.run import HostLog, Running
from weft.runtime.native.executable import MOST_IDLE_ACTIVATIONS
from weft.runtime.native.planning import REGION, for_machine
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import HostKey, RunLog, goes_outside, host_keys
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary


class DataflowStep(Step):
    """A lowered graph, ready to run; each run has a state of its own.

    An error in one node ends the step and cancels the host nodes that wait; what other nodes wrote
    to variables before stays written. passes: for the regions that are compiled. elsewhere: the
    device that they run on if it is not this processor; a call ends when all is done there.
    donated: inputs whose memory results may take; `taken` are those of which some do. `graph` stays
    for people; reports: on the passes that made it.
    """

    kind: Literal["dataflow"] = "dataflow"

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState] | None = None,
        resources: Resources | None = None,
        *,
        threads: int | None = None,
        deterministic: bool = False,
        passes: Sequence[Pass] = STANDARD,
        elsewhere: RegionDevice | None = None,
        options: PassOptions | None = None,
        donated: Sequence[int] = (),
        reports: Callable[[], Sequence[PassReport]] = tuple,
    ) -> None:
        self.name, self.graph, self._reports = graph.name, graph, reports
        with collector_paused():
            self.built = build(
                graph,
                variables or {},
                resources or {},
                passes,
                threads,
                deterministic,
                elsewhere,
                options,
                donated,
            )
            self.tables = Tables(self.built.nodes, self.built.frames)
        there = elsewhere is None or elsewhere.results_stay
        self.taken = frozenset(self.built.taken if there else ())
        self._inputs, self._names = len(graph.args), graph.arg_names
        self._idle: list[Running] = []
        self._keys: Mapping[Operation, HostKey] | None = None  # of its ops, once a log asked

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Array | None]:
        """As of `Step`. A DeadlineExceededError names the host nodes that wait.
        InvalidArgumentError if a result is dead, or a loop never ended.
        """
        running, there, trace = self.take(), self.built.elsewhere, context.recorder
        donation = context.donation
        if there is not None:
            given = inputs
            rows = zip(given, self.built.brought, self._names, strict=True)
            inputs = [there.bring(a, f"'{n}'") if far else a for a, far, n in rows]
            if donation is not None:
                pairs = enumerate(zip(given, inputs, strict=True))
                donation = donation.part([i if a is b else None for i, (a, b) in pairs])
        noted = None
        if trace is not None:
            # who takes no traces does not wait for this module
            from weft.runtime.dataflow.node_trace import Labels, NodeTrace

            noted = NodeTrace(trace, Labels(self.built, self.tables), running.state)
        try:
            results = running.run(
                inputs, context.timeout, context.token(), noted, self._logged(context.log),
                donation,
            )  # fmt: skip
            if there is not None:
                there.settle()
        finally:
            if noted is not None:
                noted.close()
        self.give_back(running)
        return results

    def _logged(self, log: RunLog | None) -> HostLog | None:
        if log is None:
            return None
        if self._keys is None:
            self._keys = host_keys(self.graph, goes_outside)
        return HostLog(log, self._keys)

    def passes(self) -> Sequence[PassReport]:
        return self._reports()

    def summary(self) -> StepSummary:
        built = self.built
        hosts = len(built.hosts) - sum(n.kind == at.HOST for n in built.region_of)
        own = StepSummary(nodes=len(built.nodes), regions=len(built.region_of), host_ops=hosts)
        return sum((made.summary() for made in built.compiled), own)

    def explain(self) -> Iterator[str]:

        return describe_nodes(self.built)

    def warm(self) -> None:
        """Compile the executor's own code now, not in the first run."""
        self.give_back(self.take())

    def take(self) -> Running:
        """A state for one run."""
        try:
            return self._idle.pop()
        except IndexError:
            return Running(self.built, self.tables, self._inputs)

    def give_back(self, running: Running) -> None:
        """A run has ended without an error."""
        if len(self._idle) < MOST_IDLE_ACTIVATIONS:
            self._idle.append(running)

    def executed(self) -> int:
        """How many nodes all idle states have run so far."""
        return sum(r.state.word(at.S_EXECUTED) for r in self._idle)


def executor_op(graph: Graph) -> Operation | None:
    """The first op that no native plan holds: one of the host or on strings, Switch or Merge, state
    in a branch or loop; None if there is none."""
    switches = (op for op in graph.ops if op.name in DATAFLOW)
    return next(switches, None) or executor_only(graph.ops)


def holds_strings(graph: Graph) -> bool:
    """Whether strings go through the graph, which native plans do not take."""
    return any(is_string(v.type) for v in (*graph.args, *graph.results))


def _unroll_in_registers(graph: Graph) -> Graph:
    return unroll(graph, lambda op: in_registers(op) > 1)


def dataflow_step(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources,
    control_flow: str = "dataflow",
    *,
    deterministic: bool = False,
    passes: Sequence[Pass] = STANDARD,
    elsewhere: RegionDevice | None = None,
    options: PassOptions | None = None,
    in_order: bool = False,
    donated: Sequence[int] = (),
) -> DataflowStep:
    """`graph`, with inputs of static shapes, for the dataflow executor: branches and loops as
    Switch and Merge, all or (control_flow="auto") those that native code cannot hold. passes: of
    what is compiled; STANDARD and REPRODUCIBLE give the bits of a native plan. elsewhere: the
    device that regions are compiled for, if it is not this processor. options: of the passes, the
    environment's if None. in_order: effects are done in the order in which they stand. donated:
    as of `DataflowStep`.
    InvalidArgumentError if a result is never live, or frames do not match."""
    check_dataflow(tie_sizes(graph))
    pipeline: list[Pass] = [program_order, tie_sizes] if in_order else [tie_sizes]
    whole = executor_op(graph) is None and not holds_strings(graph) and elsewhere is None
    if passes is STANDARD and whole and not is_symbolic(graph.block):
        # as in a native plan, and what sums add up in which order depends on what is fused
        pipeline += [*for_machine(STANDARD), BoundPass("unroll", _unroll_in_registers)]
        passes = REGION
    lower = partial(lower_control_flow, mode=control_flow, whole_updates=True)
    pipeline.append(BoundPass("lower_control_flow", lower))
    options = PassOptions.of_step(options, graph.name)
    lowered, _ = run_passes(graph, pipeline, options=options)
    made = DataflowStep(
        lowered, variables, resources,
        deterministic=deterministic, passes=passes, elsewhere=elsewhere, options=options,
        donated=donated,
        reports=lambda: run_passes(graph, pipeline, options=PassOptions())[1],
    )  # fmt: skip # kept, the reports would hold every graph
    options.write_plan(lambda: "\n".join(made.explain()))
    return made


#: Called once: with the results, or with what went wrong.
Finished = Callable[[list[Array] | BaseException], None]


def is_small(graph: Graph) -> bool:
    """Whether no thread is held up by a run of the graph: little to compute, no loop, nothing of
    the host that takes time, nothing of unknown size."""
    if len(graph.ops) > SMALL_STEP_OPS or any(op.regions for op in graph.ops):
        return False
    for op in graph.ops:
        row = HOST_OPS.get(op.name)
        if (row is not None and not row.brief) or op.name == "enter":
            return False
        types = [v.type for v in (*op.operands, *op.results)]
        if not all(_is_static(t) for t in types):
            return False
    sent = {v for op in graph.ops if op.name == "send" for v in op.operands} | {*graph.results}
    # a variable is read where it lies, but for what is sent
    inside = [op for op in graph.ops if op.name != "read" or op.result in sent]
    return nanoseconds(op for op in inside if op.name not in HOST_OPS) <= SMALL_STEP_NS


def _is_static(kind: Type) -> bool:
    if isinstance(kind, TensorType):
        return kind.is_static and not kind.dtype.numpy.hasobject
    return True


class Stepping:
    """One run of a `DataflowStep`. finished: called in whichever thread ends it."""

    def __init__(self, step: DataflowStep, finished: Finished) -> None:
        self._step, self._finished = step, finished
        self._running: Running = step.take()
        self._turn = threading.Lock()  # held by the thread that carries it out
        self._over = False
        #: since: when ops of the host were left to themselves, which is work, too
        self._begun, self._worked, self._since = time.monotonic(), 0.0, 0.0
        self._exchange: Any = None
        self._forget: Callable[[], None] = lambda: None

    def begin(self, inputs: list[Array], cancel: CancelToken) -> None:
        """Run until it would wait, or to its end."""
        put = self._running._done.put

        def came(item: Any) -> None:
            put(item)
            self._go_on()

        self._running.put, self._exchange = came, cancel.exchange
        with self._turn:
            self._forget = self._running.begin(inputs, cancel)
        self._go_on()

    def _go_on(self) -> None:
        """Carry it out, unless another thread does: that one sees what has come meanwhile."""
        while self._turn.acquire(blocking=False):
            outcome: list[Array] | BaseException | None = None
            begun = self._since or time.monotonic()
            try:
                if self._over:
                    return
                try:
                    if self._running.go_on(None, wait=False):
                        outcome = [a for a in self._running.end() if a is not None]
                except BaseException as error:
                    outcome = error
                self._over = outcome is not None
            finally:
                now = time.monotonic()
                self._worked += now - begun
                self._since = 0.0 if self._over or self._running.awaits_messages else now
                self._turn.release()
            if outcome is not None:
                self._end(outcome)
                return
            if self._running.idle:
                return

    def _end(self, outcome: list[Array] | BaseException) -> None:
        self._forget()
        if self._exchange is not None:
            self._exchange.waited(max(0.0, time.monotonic() - self._begun - self._worked))
        if not isinstance(outcome, BaseException):
            self._running.put = self._running._done.put
            self._step.give_back(self._running)
        self._finished(outcome)


_MOST_LINES = 40


def describe_nodes(built: Built) -> Iterator[str]:
    """The nodes of the executor: regions with their kernels, ops of the host, control flow."""
    regions = list(zip(built.region_of.items(), built.notes, strict=True))
    yield f"{len(built.nodes)} nodes"
    yield f"  {len(regions)} compiled regions"
    for (node, region), note in regions[:_MOST_LINES]:
        python = node.kind == at.HOST and note.python
        how = f", run by Python, since {note.python}" if python else ""
        inside = f", in loop {built.frame_names[node.frame]}" if node.frame else ""
        yield f"    {_names(region.ops)}{inside}: {note.text}{how}"
    if len(regions) > _MOST_LINES:
        yield f"    and {len(regions) - _MOST_LINES} more"
    alone = {node: op for node, op in built.op_of.items() if node not in built.region_of}
    hosts = [op for node, op in alone.items() if node.kind == at.HOST]
    yield f"  {len(hosts)} ops of the host"
    yield from (f"    {op.name}{_at(op)}" for op in hosts[:_MOST_LINES])
    if len(hosts) > _MOST_LINES:
        yield f"    and {len(hosts) - _MOST_LINES} more"
    counts: dict[str, int] = {}
    for node, op in alone.items():
        if node.kind != at.HOST:
            counts[op.name] = counts.get(op.name, 0) + 1
    listed = ", ".join(f"{n} {name}" for name, n in counts.items())
    yield f"  control flow: {listed or 'none'}"


def _names(ops: Sequence[Operation]) -> str:
    names = list(dict.fromkeys(op.name for op in ops if op.name not in ("constant", "variable")))
    where = next((_at(op) for op in ops if op.locations), "")
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") + where


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""
