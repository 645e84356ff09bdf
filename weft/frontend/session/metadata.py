"""`RunMetadata`: what one `Session.run` did, as a report and as a trace for Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING

from weft.frontend.session.chrome_trace import chrome_events
from weft.frontend.session.compiling import Step
from weft.frontend.session.graph import Graph
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.ir.locations import caller_location
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.layout import HOST
from weft.runtime.dataflow.regions import RegionElsewhere
from weft.runtime.dataflow.trace import TraceEvent, TraceRecorder
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices
from weft.runtime.native.executable import Executable
from weft.runtime.native.size_plan import Filled

if TYPE_CHECKING:  # what only sessions on clusters load
    from weft.runtime.trace.task_trace import StepTrace
    from weft.runtime.trace.timeline import Timeline


@dataclass(slots=True)
class RunMetadata:
    """Filled in by `Session.run(run_metadata=)`, anew each time.

    graph_ops, graph_variables: the size of the whole graph. step_ops: the ops that the fetches
    need. executor: "native" (one plan), "gpu" (one plan), "dataflow", "devices" (a part on each of
    `devices`; copies: how many tensors go between them, in loops in each iteration; copied_bytes:
    of one of each, where the size is known before the step) or "cluster" (`nodes`: its parts).
    kernels: native kernel calls (those of regions with sizes that depend on values are not
    counted), or launches on the GPU; regions, nodes, host_ops: of the dataflow executor (0 for a
    native plan). cached: whether the step was compiled before; compile_seconds: how long that
    took. arena_bytes, result_bytes: memory that the plans need for values in between, and for
    results. seconds: this run. traced: whether `RunOptions.trace_level` asked for events: one for
    each kernel of a native plan, each node of the dataflow executor, by the time that they began;
    dropped: how many of the first were not kept. timeline: of a traced run on a cluster, the
    events of all tasks by one clock, and the tensors between them.
    """

    graph: str = ""
    graph_ops: int = 0
    graph_variables: int = 0
    step_ops: int = 0
    executor: str = ""
    kernels: int = 0
    regions: int = 0
    nodes: int = 0
    host_ops: int = 0
    cached: bool = False
    compile_seconds: float = 0.0
    arena_bytes: int = 0
    result_bytes: int = 0
    seconds: float = 0.0
    traced: bool = False
    events: Sequence[TraceEvent] = field(default=(), repr=False)
    dropped: int = 0
    timeline: Timeline | None = field(default=None, repr=False)
    devices: tuple[str, ...] = ()
    copies: int = 0
    copied_bytes: int = 0

    def __str__(self) -> str:
        """The report for people."""
        self._check_filled()
        step = f"{self.step_ops} of {self.graph_ops} ops"
        if self.executor == "native":
            plan = f"one native plan of {self.kernels} kernels"
        elif self.executor == "gpu":
            plan = f"one plan of a GPU of {self.kernels} launches"
        elif self.executor == "cluster":
            plan = f"{self.nodes} parts on the tasks of a cluster"
        else:
            plan = (
                f"dataflow executor: {self.nodes} nodes, of these {self.regions} compiled regions "
                f"({self.kernels} kernels) and {self.host_ops} ops of the host"
            )
        if self.executor == "devices":
            plan = (
                f"{len(self.devices)} parts, on {', '.join(self.devices)}, with {self.copies} "
                f"copies ({self.copied_bytes:,} bytes) between them; {plan}"
            )
        made = "cached" if self.cached else f"compiled in {self.compile_seconds * 1e3:.1f} ms"
        return "\n".join(
            [
                f"step of '{self.graph}' ({self.graph_ops} ops, {self.graph_variables} variables)",
                f"  needs     {step}",
                f"  runs as   {plan}",
                f"  step      {made}",
                f"  memory    {self.arena_bytes:,} bytes in between, {self.result_bytes:,} results",
                f"  took      {self.seconds * 1e6:,.0f} us; {len(self.events)} events traced",
            ]
        )

    def chrome_trace(self) -> str:
        """The events as JSON in Chrome's trace format, for https://ui.perfetto.dev; for several
        runs see `wf.chrome_trace`.

        FailedPreconditionError before a run, or where it was not traced.
        """
        return chrome_trace([self])

    def cluster_report(self) -> str:
        """A traced run on a cluster as text: the critical path and the straggler, who waited for
        whom, bytes per edge, and how well the clocks are known.

        FailedPreconditionError where there was no such run.
        """
        self._check_filled()
        if self.timeline is None:
            raise FailedPreconditionError(
                "this run was not on a cluster, was not traced, or failed",
                hint="run on wf.Session(target) with "
                "options=wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)",
                location=caller_location(),
            )
        from weft.runtime.trace.analysis import report

        return report(self.timeline)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace` to a file."""
        text = self.chrome_trace()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _check_filled(self) -> None:
        if not self.executor:
            raise FailedPreconditionError(
                "this wf.RunMetadata is empty",
                hint="pass it to Session.run(run_metadata=...)",
                location=caller_location(),
            )

    def _fill_nodes(self, steps: Sequence[object]) -> list[Executable]:
        """Note the nodes of executors; their native plans, and steps that are native plans."""
        built = [step.built for step in steps if isinstance(step, DataflowStep)]
        self.nodes = sum(len(b.nodes) for b in built)
        self.regions = sum(len(b.region_of) for b in built)
        hosts = sum(n.kind == HOST for b in built for n in b.region_of)
        self.host_ops = sum(len(b.hosts) for b in built) - hosts
        inside = [made for b in built for made in b.compiled]
        return [made for made in (*steps, *inside) if isinstance(made, Executable)]

    def clear(self) -> None:
        """Forget the run before."""
        for part in fields(self):
            setattr(self, part.name, part.default)

    def fill(
        self,
        graph: Graph,
        step: Step,
        cached: bool,
        seconds: float,
        recorder: TraceRecorder | StepTrace | None,
    ) -> None:
        """Set all fields after a run."""
        self.graph, self.step_ops = graph.name, step.ops
        self.graph_ops = len(graph._trace.builder.ops)
        self.graph_variables = len(graph._trace.variables)
        self.cached, self.seconds = cached, seconds
        self.compile_seconds = 0.0 if cached else step.seconds
        self.devices, self.copies, self.copied_bytes = (), 0, 0
        plans: list[Executable]
        far: list[RegionElsewhere] = []
        if isinstance(step.executable, DataflowStep):
            self.executor = "dataflow"
            plans = self._fill_nodes([step.executable])
        elif isinstance(step.executable, StepOnDevices):
            self.executor, parts = "devices", step.executable.parts
            self.devices = tuple(part.name for part in parts)
            self.copies = len(step.executable.edges)
            self.copied_bytes = sum(edge.nbytes or 0 for edge in step.executable.edges)
            plans = self._fill_nodes([part.step for part in parts])
            steps = [p.step.built for p in parts if isinstance(p.step, DataflowStep)]
            far = [r for b in steps for r in b.compiled if isinstance(r, RegionElsewhere)]
        elif isinstance(step.executable, Executable):
            self.executor, plans = "native", [step.executable]
            self.nodes = self.regions = self.host_ops = 0
        elif isinstance(step.executable, DeviceStep):
            self.executor, plans = "gpu", []
            self.nodes = self.regions = self.host_ops = 0
        else:
            assert not isinstance(step.executable, Filled)  # this step has a plan of its own
            self.executor, plans = "cluster", []
            self.nodes = len(step.executable.parts)
            self.regions = self.host_ops = 0
        self.kernels = sum(n >= 0 for p in plans for n in p.plan.table.owner)
        self.kernels += sum(region.launches for region in far)
        self.arena_bytes = sum(p.plan.arena_bytes for p in plans)
        self.result_bytes = sum(p.plan.result_bytes for p in plans)
        if isinstance(step.executable, DeviceStep):
            self.kernels = len(step.executable.plan.launches())
            self.arena_bytes = step.executable.report.memory.arena_bytes
            self.result_bytes = step.executable.report.memory.result_bytes
        self.traced = recorder is not None
        self.events, self.dropped, self.timeline = (), 0, None
        if isinstance(recorder, TraceRecorder):
            self.events, self.dropped = recorder.events(), recorder.dropped
        elif recorder is not None and recorder.parts:
            from weft.runtime.trace.timeline import merge

            self.timeline = merge(recorder.parts, recorder.begin_ns, recorder.end_ns)
            self.events = tuple(span.event for span in self.timeline.spans)
            self.dropped = self.timeline.dropped


def chrome_trace(runs: Sequence[RunMetadata]) -> str:
    """Several traced runs of this process as one trace: JSON in Chrome's format, for
    https://ui.perfetto.dev. On a cluster with a critical path for each of them.

    FailedPreconditionError for one that is empty or was not traced, InvalidArgumentError for none,
    or for runs on a cluster and others together.
    """
    for run in runs:
        run._check_filled()
        if not run.traced:
            raise FailedPreconditionError(
                "this run was not traced",
                hint="run with options=wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)",
                location=caller_location(),
            )
    lines = [run.timeline for run in runs if run.timeline is not None]
    if not runs or 0 < len(lines) < len(runs):
        raise InvalidArgumentError(
            "wf.chrome_trace takes traced runs that were all on a cluster or all were not",
            location=caller_location(),
        )
    graphs = ", ".join(dict.fromkeys(run.graph for run in runs))
    about = {
        "graph": graphs, "step_ops": runs[0].step_ops, "dropped": sum(r.dropped for r in runs)
    }  # fmt: skip
    if lines:
        from weft.runtime.trace.perfetto import perfetto

        return perfetto(lines, about)
    events = [event for run in runs for event in run.events]
    return json.dumps({"traceEvents": chrome_events(events, graphs), "displayTimeUnit": "ns",
                       "otherData": about})  # fmt: skip
