"""One `Session.run`: its `RunOptions`, how a step is carried out, whichever way it runs, and
`RunMetadata`, the report on it, with a trace for Perfetto.

Copies between the host and GPUs: which feeds stay where they are, and what `wf.transfer_guard` may
disallow (`placed`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import field, fields
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weft.frontend.core.device_array import (
    DeviceArray,
    check_copies,
    guarded,
    made_at,
    transfer,
)
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition
from weft.frontend.session.fetches import is_tensor
from weft.frontend.session.graph import Graph
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, TypeRuleError
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.runtime.recorder import TraceEvent
from weft.runtime.step import RunContext
from weft.runtime.trace.analysis import Json, event_rows, name_row

if TYPE_CHECKING:
    from weft.ir.drawing.notebook import Frame
    from weft.runtime.trace.timeline import Timeline


@dataclass(frozen=True, slots=True, init=False)
class RunOptions:
    """Options of `Session.run`. timeout: after so many seconds a step that waits (for a queue) or
    goes round a loop, a native one or one that the host leads on a GPU (docs/guide/gpu.md), ends
    with DeadlineExceededError; None: no limit. A kernel is not interrupted. trace_level: from
    SOFTWARE_TRACE on `run_metadata` gets an event for each kernel of a native plan and each node;
    from HARDWARE_TRACE on, which FULL_TRACE includes, also for each kernel of the regions that are
    nodes, which makes those slower. timeout_in_ms: TensorFlow 1's name and unit of `timeout`, for
    programs that pass it; 0: no limit.

    Raises TypeRuleError for what is no number, InvalidArgumentError for a number that is no time or
    no level.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     element = wf.tf1.FIFOQueue(1, wf.float32, shapes=[[]]).dequeue()
    ...     session.run(element, options=wf.RunOptions(timeout=0.1))  # nobody enqueues
    Traceback (most recent call last):
    weft.ir.errors.DeadlineExceededError: the step did not end in time; it waits for dequeue
    ...
    """

    NO_TRACE: ClassVar[int] = 0
    SOFTWARE_TRACE: ClassVar[int] = 1
    HARDWARE_TRACE: ClassVar[int] = 2
    FULL_TRACE: ClassVar[int] = 3

    timeout: float | None
    trace_level: int

    def __init__(
        self,
        *,
        timeout: float | None = None,
        trace_level: int = 0,
        timeout_in_ms: float | None = None,
    ) -> None:
        # not a generated one: errors name the user's line, and generated code looks like a user's
        if timeout is not None and timeout_in_ms is not None:
            raise InvalidArgumentError(
                "wf.RunOptions: timeout and timeout_in_ms are one limit, and both are given",
                hint="give timeout, in seconds",
                location=caller_location(),
            )
        if timeout is not None:
            _check_time("timeout", timeout, timeout != 0, "give seconds; None is no limit")
        if timeout_in_ms is not None:
            _check_time("timeout_in_ms", timeout_in_ms, True, "give milliseconds; 0 is no limit")
            timeout = timeout_in_ms / 1e3 if timeout_in_ms else None
        if isinstance(trace_level, bool) or trace_level not in (0, 1, 2, 3):
            raise InvalidArgumentError(
                f"wf.RunOptions: trace_level={trace_level!r:.60} is no level",
                hint="it is RunOptions.NO_TRACE or RunOptions.FULL_TRACE",
                location=caller_location(),
            )
        object.__setattr__(self, "timeout", None if timeout is None else float(timeout))
        object.__setattr__(self, "trace_level", trace_level)

    @property
    def traces(self) -> bool:
        """Whether events are wanted."""
        return self.trace_level > 0


def _check_time(name: str, given: object, allowed: bool, hint: str) -> None:
    """TypeRuleError for what is no number, InvalidArgumentError for a number that is no time."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeRuleError(
            f"wf.RunOptions: {name} must be a number, got {given!r:.60}",
            hint=hint,
            location=caller_location(),
        )
    if not (allowed and float(given) >= 0):
        raise InvalidArgumentError(
            f"wf.RunOptions: {name}={given!r} is no time", hint=hint, location=caller_location()
        )


def check_options(options: object) -> None:
    """TypeRuleError for what is neither None nor a `RunOptions`."""
    if options is not None and not isinstance(options, RunOptions):
        raise TypeRuleError(
            f"Session.run: options must be wf.RunOptions, got a {type(options).__name__}",
            location=caller_location(),
        )


def place_feeds(step: StepDefinition, arrays: list[Any]) -> list[Any]:
    """The feeds as the step takes them: `wf.DeviceArray`s as they are where it reads them on a GPU,
    else as arrays of the host. FailedPreconditionError, before anything has run, for a copy that
    `wf.transfer_guard` disallows."""
    where = step.executable.feeds_on_gpus(len(arrays))  # of each feed the GPUs that read it
    if guarded():
        _check_feeds(step, arrays, where)
        _check_fetches(step)
        check_copies(step.executable)
    return [
        (a._held if there else a._data) if isinstance(a, DeviceArray) else a
        for a, there in zip(arrays, where, strict=True)
    ]


# ------------------------------------------------------------------------------------ the guard


def _check_feeds(
    step: StepDefinition, arrays: Sequence[Any], where: Sequence[Sequence[str]]
) -> None:
    for i, (a, there) in enumerate(zip(arrays, where, strict=True)):
        for gpu in there:
            if isinstance(a, np.ndarray):
                what = "a host array or number"
            elif a._held.device.name != gpu:
                what = f"an array of {a.device}"
            else:
                continue
            name = gpu.lstrip("/")
            transfer(
                f"feed {_name(step, i)}, is {what} that is copied to {name}",
                f'feed wf.to_device(x, "{name}"), which may be called where transfers are '
                "disallowed",
            )


def _check_fetches(step: StepDefinition) -> None:
    for value, gpu in _fetched_from(step):
        transfer(
            f"fetch {_described(step.graph, value)}, is copied from {gpu.lstrip('/')} to the host",
            'run it in `with wf.transfer_guard("allow"):`; a run that fetches effects alone copies '
            "nothing back",
        )


def _fetched_from(step: StepDefinition) -> Iterator[tuple[Value, str]]:
    """What is fetched from a GPU, and from which."""
    results = [v for v in step.values if v is not None and is_tensor(v)]
    for number, gpu in step.executable.results_on_gpus():
        if number < len(results):  # others are effects
            yield results[number], gpu


def _name(step: StepDefinition, i: int) -> str:
    """Feed i, with its type."""
    return _described(step.graph, step.feeds[i])


def _described(graph: Graph | None, value: Value) -> str:
    """The name of a value, if it has one, and its type: "x of 'graph', f32[3]"."""
    if graph is None:
        return str(value.type)
    name = next((n for n, t in graph._named.copy().items() if t._value is value), None)
    if name is not None:
        return f"{name} of '{graph.name}', {value.type}"
    op = f"op '{value.op.name}'" if value.op is not None else "a value"
    made = made_at(value.op.locations if value.op is not None else ())
    return f"{op} of '{graph.name}', {value.type}{made}"


def execute(step: StepDefinition, arrays: list[Array], context: RunContext) -> list[Any]:
    """One run: its results, None for a token."""
    executable = step.executable
    if DeviceArray in map(type, arrays) or (executable.kind != "native" and guarded()):
        arrays = place_feeds(step, arrays)
    return executable.run(arrays, context)


def new_recorder(step: StepDefinition, options: RunOptions | None) -> Any:
    """What records a run of the step; None if the options do not ask for that."""
    if options is None or not options.traces:
        return None
    kernels = options.trace_level >= RunOptions.HARDWARE_TRACE
    return step.executable.new_recorder(kernels=kernels)


_PID = 1


def chrome_events(events: Sequence[TraceEvent], process: str) -> list[Json]:
    """Names of process and threads, then the events. Times are us from the first event on."""
    if not events:
        return []
    start = min(e.begin_ns for e in events)
    threads = {ident: k for k, ident in enumerate(dict.fromkeys(e.thread for e in events), 1)}
    named = [name_row("process_name", _PID, 0, f"weft: {process}")]
    named += [name_row("thread_name", _PID, k, f"thread {ident}") for ident, k in threads.items()]
    made = [
        row
        for i, e in enumerate(events)
        for row in event_rows(e, i, start, _PID, threads[e.thread])
    ]
    return named + sorted(made, key=lambda row: float(row["ts"]))


@dataclass(slots=True)
class RunMetadata:
    """The report on a run, filled in by `Session.run(run_metadata=)`, anew each time.

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
    dropped: how many of the first were not kept. kernel_events: one for each kernel in a compiled
    region of the dataflow executor, if the level asked for them. timeline: of a traced run on a
    cluster, the events of all tasks by one clock, and the tensors between them.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     y = wf.exp(wf.asarray([0.0, 1.0])) + 1
    ...     report = wf.RunMetadata()
    ...     _ = session.run(y, run_metadata=report)
    >>> report.executor, report.cached, report.result_bytes
    ('native', False, 8)
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
    kernel_events: Sequence[TraceEvent] = field(default=(), repr=False)
    timeline: Timeline | None = field(default=None, repr=False)
    devices: tuple[str, ...] = ()
    copies: int = 0
    copied_bytes: int = 0
    _with_kernels: bool = field(default=False, init=False, repr=False, compare=False)
    _of: tuple[object, ...] = field(  # what was fetched and fed
        default=(), init=False, repr=False, compare=False
    )

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

    def _repr_html_(self) -> str:
        """The report and, of a traced run, its timeline as a drawing, for a notebook; no script."""
        # who shows nothing does not wait for these modules
        from weft.frontend.viewer.facts import events_of, events_of_tasks
        from weft.frontend.viewer.static import draw_timeline

        if not self.executor:
            return f"<pre>{escape(repr(self))}</pre>"
        found = self.timeline
        events = events_of(self.events) if found is None else events_of_tasks(found)
        drawing = draw_timeline(events) if events else ""
        return f"<pre>{escape(str(self))}</pre>{drawing}"

    def show(self, height: int = 400) -> Frame:
        """The report and the timeline in a frame of a notebook's cell, `height` pixels high."""
        from weft.ir.drawing.notebook import Frame

        return Frame(self._repr_html_(), height)

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

    def clear(self) -> None:
        """Forget the run before."""
        for part in fields(self):
            setattr(self, part.name, part.default)

    @property
    def has_every_kernel(self) -> bool:
        """Whether the trace has the kernels of regions, too, if any ran."""
        return self._with_kernels

    def is_of(self, step: StepDefinition) -> bool:
        """Whether this is on a run of these fetches and feeds, whatever their sizes."""
        return self._of == (step.values, frozenset(step.feeds))

    def fill(
        self,
        graph: Graph,
        step: StepDefinition,
        cached: bool,
        seconds: float,
        recorder: Any,
    ) -> None:
        """Set all fields after a run. recorder: as `new_recorder` gave it."""
        self.graph, self.step_ops = graph.name, step.ops
        self._of = (step.values, frozenset(step.feeds))
        self.graph_ops = len(graph._trace.builder.ops)
        self.graph_variables = len(graph._trace.variables)
        self.cached, self.seconds = cached, seconds
        self.compile_seconds = 0.0 if cached else step.seconds
        self.executor = step.executable.kind
        made = step.executable.summary()
        for part in fields(made):
            setattr(self, part.name, getattr(made, part.name))
        self.traced = recorder is not None
        self._with_kernels = self.traced and bool(recorder.kernels)
        self.events, self.dropped, self.timeline, self.kernel_events = (), 0, None, ()
        if recorder is not None:
            noted = recorder.recorded()
            self.events, self.dropped = noted.events, noted.dropped
            self.timeline, self.kernel_events = noted.timeline, noted.kernels


def chrome_trace(runs: Sequence[RunMetadata]) -> str:
    """Several traced runs of this process as one trace: JSON in Chrome's format, for
    https://ui.perfetto.dev. On a cluster with a critical path for each of them.

    FailedPreconditionError for one that is empty or was not traced, InvalidArgumentError for none,
    or for runs on a cluster and others together.

    >>> import json
    >>> options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    >>> runs = [wf.RunMetadata(), wf.RunMetadata()]
    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     y = wf.sum(wf.placeholder(wf.float32, [4], name="x"))
    ...     for run in runs:
    ...         _ = session.run(y, {"x": np.ones(4)}, options, run)
    >>> sorted(json.loads(wf.chrome_trace(runs)))  # for a file that Perfetto opens
    ['displayTimeUnit', 'otherData', 'traceEvents']
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
        from weft.runtime.trace.analysis import perfetto

        return perfetto(lines, about)
    events = [event for run in runs for event in run.events]
    return json.dumps({"traceEvents": chrome_events(events, graphs), "displayTimeUnit": "ns",
                       "otherData": about})  # fmt: skip
