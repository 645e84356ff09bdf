"""`FileWriter`: the event file of a run, for TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace, graph_around
from weft.frontend.ops.promotion import TensorLike, check_int
from weft.frontend.queues.host_ops import located
from weft.frontend.session.graph import Graph
from weft.frontend.summary.ops import BUCKETS, MAX_OUTPUTS, call_in_trace, check_name, defaults
from weft.ir.device import DeviceSpec, named_device
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.graph import Graph as IRGraph
from weft.ir.locations import caller_location
from weft.ir.ops.io import summary_type
from weft.ir.process import ForkLock, in_child
from weft.runtime.files import events, summaries
from weft.runtime.files.wire import integer, message, text
from weft.runtime.trace.graph_def import (
    NamedGraph,
    NodeTime,
    by_kernel,
    graph_def,
    node_times,
    step_stats,
)

if TYPE_CHECKING:
    from weft.frontend.session.run import RunMetadata
    from weft.runtime.recorder import TraceEvent

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]


class FileWriter:
    """The event file of one run, which TensorBoard shows (`tensorboard --logdir ...`).

    logdir: the folder of the run, which is made; older files in it are shown as the same run's.
    graph: as of `add_graph`. A context manager, which closes it at the end.

    `scalar`, `histogram`, `image` and `text` write at once; in a compiled function, its loops and
    branches too, each time the program comes there, in its order. In a wf.Graph they give an Effect
    to fetch, or to be among wf.control_dependencies; what has a value already is written at once.

    A thread encodes and writes, in the order of the calls, within a fifth of a second (`flush`: at
    once); what is written stays if the process is killed. To a URL (fsspec) the file is put as a
    whole by `flush`, `close` and every 30 seconds. FailedPreconditionError for a folder in which
    another writer is open, in any process (of a URL, in this one); from any method if the writer is
    closed, or an earlier event could not be written; in a forked child.

    >>> with wf.summary.FileWriter("runs/first") as writer:
    ...     writer.hparams({"rate": 0.1, "optimizer": "SGD"})
    ...     for step in range(10):
    ...         writer.scalar("loss", 1 / (step + 1), step)
    ...     writer.histogram("weights", np.zeros(100), step)
    """

    def __init__(
        self, logdir: PathLike, graph: Graph | IRGraph | None = None, *, filename_suffix: str = ""
    ) -> None:
        try:
            self._file: events.EventFile = events.event_file(logdir, filename_suffix)
        except (FailedPreconditionError, InvalidArgumentError, UnsupportedError) as error:
            raise error.at(caller_location()) from error.__cause__
        self._logdir = os.fspath(logdir)
        self._graph: NamedGraph | None = None
        self._tags: set[str] = set()
        self._steps: list[list[Any]] = []
        self._has_hparams = False
        if graph is not None:
            try:
                self.add_graph(graph)
            except BaseException:
                self._file.close()
                raise

    def __repr__(self) -> str:
        return f"<FileWriter {self._logdir!r}{', closed' if self._file.closed else ''}>"

    @property
    def has_graph(self) -> bool:
        """Whether `add_graph` was called."""
        return self._graph is not None

    def get_logdir(self) -> str:
        """The folder of the run."""
        return self._logdir

    # -------------------------------------------------------------------------------------- values
    @located
    def scalar(self, name: str, value: TensorLike, step: Any = None) -> Effect | None:
        """Write one number, a point of the curve `name`. step: an integer or an integer variable,
        by default that of `as_default`. Types and errors as `wf.summary.scalar`."""
        return self._write("scalar", name, value, step, 1)

    @located
    def histogram(
        self, name: str, values: TensorLike, step: Any = None, *, buckets: int = BUCKETS
    ) -> Effect | None:
        """Write how values are distributed. Types and errors as `wf.summary.histogram`, step as of
        `scalar`."""
        count = check_int("histogram", buckets, "buckets")
        return self._write("histogram", name, values, step, count)

    @located
    def image(
        self, name: str, images: TensorLike, step: Any = None, *, max_outputs: int = MAX_OUTPUTS
    ) -> Effect | None:
        """Write images. Types and errors as `wf.summary.image`, step as of `scalar`."""
        count = check_int("image", max_outputs, "max_outputs")
        return self._write("image", name, images, step, count)

    @located
    def text(self, name: str, data: Any, step: Any = None) -> Effect | None:
        """Write text, Markdown. Types and errors as `wf.summary.text`, step as of `scalar`."""
        return self._write("text", name, data, step, 1)

    @located
    def hparams(self, values: Mapping[str, bool | int | float | str]) -> None:
        """Write the hyperparameters of the run, by name; TensorBoard compares runs by them, and by
        their scalars. Once in a run: FailedPreconditionError the second time. TypeRuleError for a
        value that is no bool, number or string."""
        if self._has_hparams:
            raise FailedPreconditionError(f"{self!r} has hyperparameters already")
        made = summaries.hparams(values, time.time())
        self._has_hparams = True
        self._file.add(events.SUMMARY, lambda: made)

    @contextmanager
    def as_default(self, step: Any) -> Iterator[Self]:
        """In the block `step`, an integer or an integer variable, is the step of this writer's
        values that are written without one, and what `wf.summary.scalar` and the like give outside
        of graphs is written to it, in every thread.

        >>> with wf.summary.FileWriter("run") as writer, writer.as_default(step=3):
        ...     writer.scalar("loss", 0.5)
        """
        entry = [step]  # found again by identity: other threads may have added theirs
        self._steps.append(entry)
        defaults.append(self)
        try:
            yield self
        finally:
            del self._steps[next(i for i, s in enumerate(self._steps) if s is entry)]
            # the last one of this writer: other threads may have added theirs
            del defaults[len(defaults) - 1 - defaults[::-1].index(self)]

    # ------------------------------------------------------------------------- TensorFlow 1's names
    @located
    def add_summary(self, summary: Any, global_step: Any = None) -> None:
        """Write a serialized summary: bytes, or what an op of `wf.summary`, as `merge_all`, gave in
        a session. TypeRuleError for anything else."""
        value = summary._data if isinstance(summary, Tensor) else summary
        held = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
        if not isinstance(held, bytes):
            raise TypeRuleError(
                f"add_summary takes a serialized summary, bytes, got {summary!r:.80}",
                hint="run the op in a session: writer.add_summary(session.run(merged), step)",
            )
        step = None if global_step is None else _step_number(global_step)
        self._file.add(events.SUMMARY, lambda: held, step)

    @located
    def add_graph(self, graph: Graph | IRGraph, global_step: Any = None) -> None:
        """Write a graph for TensorBoard's graph tab: a `wf.Graph`, or that of a compiled function
        (`f.trace(x)`). Nodes have the names of tensors, variables and effects, else their name
        scope and kind; bodies of loops and branches are groups of nodes.

        One graph per run: FailedPreconditionError for a second one.

        >>> with wf.Graph().as_default() as graph:
        ...     with wf.name_scope("layer1"):
        ...         y = wf.tanh(wf.placeholder(wf.float32, [None, 3], name="x"))
        >>> with wf.summary.FileWriter("run", graph) as writer:
        ...     pass
        """
        if self._graph is not None:
            raise FailedPreconditionError(
                f"{self!r} has a graph already, and TensorBoard shows one for each run",
                hint="write it with a FileWriter of its own, to another folder",
            )
        named = named_graph(graph)
        step = None if global_step is None else _step_number(global_step)
        self._file.add(events.GRAPH_DEF, lambda: named.data, step)
        self._graph = named

    @located
    def add_run_metadata(
        self, run_metadata: RunMetadata, tag: str, global_step: Any = None
    ) -> None:
        """Write what each node of the graph took in a traced run: the graph tab offers it as `tag`,
        to colour nodes by compute time and by memory.

        Kernels carry out several ops, which have equal shares of the time; of a node that ran
        several times it is the sum. Memory is what was taken for a node's results.
        FailedPreconditionError without `add_graph` before, and for a run that was not traced
        (`wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)`);
        InvalidArgumentError for a tag that is used.

        >>> with wf.Graph().as_default() as graph, wf.Session() as session:
        ...     y = wf.exp(wf.placeholder(wf.float32, [None], name="x"))
        ...     options, report = wf.RunOptions(trace_level=3), wf.RunMetadata()
        ...     _ = session.run(y, {"x:0": np.ones(5)}, options=options, run_metadata=report)
        ...     with wf.summary.FileWriter("run", graph) as writer:
        ...         writer.add_run_metadata(report, "step 0", 0)
        """
        graph = self._graph
        if graph is None:
            raise FailedPreconditionError(
                "add_run_metadata: the writer has no graph whose nodes the times are of",
                hint="writer.add_graph(session.graph)",
            )
        if not run_metadata.traced:
            raise FailedPreconditionError(
                "add_run_metadata: the run was not traced",
                hint="session.run(..., options=wf.RunOptions("
                "trace_level=wf.RunOptions.FULL_TRACE), run_metadata=report)",
            )
        if tag in self._tags:
            raise InvalidArgumentError(f"add_run_metadata: the tag '{tag}' is used already")
        times = times_by_device(graph, run_metadata)
        tagged = text(1, check_name(tag)) + message(2, step_stats(times))
        step = None if global_step is None else _step_number(global_step)
        self._file.add(events.TAGGED_RUN_METADATA, lambda: tagged, step)
        self._tags.add(tag)

    @located
    def add_restart(self, global_step: Any) -> None:
        """Say that the run goes on from `global_step`, as from a checkpoint: of what an earlier
        file of the folder has from that step on, TensorBoard shows nothing."""
        start = integer(1, 1)  # SessionLog.START
        self._file.add(events.SESSION_LOG, lambda: start, _step_number(global_step))

    # ------------------------------------------------------------------------------------ the file
    @located
    def flush(self) -> None:
        """Return when all that was written is with the system."""
        self._file.flush()

    @located
    def close(self) -> None:
        """Write what waits and end the file. A second time is allowed."""
        self._close(failed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._close(failed=kind is not None)

    def _close(self, failed: bool) -> None:
        try:
            if self._has_hparams and self._file.usable:
                made = summaries.hparams_end(time.time(), failed)
                self._file.add(events.SUMMARY, lambda: made)
        finally:
            self._file.close()

    def _write(self, kind: str, name: object, value: Any, step: Any, limit: int) -> Effect | None:
        """Write at once, or add a call that does when it runs to the program that is traced."""
        tag, given, trace = check_name(name), as_tensor(value), current_trace()
        summary_type([given._type], {"kind": kind, "tag": tag, "limit": limit}, ())
        if trace is None or (given._data is not None and graph_around(trace) is not None):
            data = given._concrete(f"FileWriter.{kind}", "pass a value")
            self._put(kind, tag, data, self._step(kind, tag, step), limit)
            return None

        if step is None:
            return call_in_trace(
                f"FileWriter.{kind}", lambda x: self.write_default(kind, tag, x, limit), [given]
            )
        return call_in_trace(
            f"FileWriter.{kind}",
            lambda x, at: self._put(kind, tag, x, int(at), limit),
            [given, _step_tensor(step)],
        )

    def write_default(self, kind: str, tag: str, data: Array, limit: int) -> None:
        """Write a value at the step of `as_default`."""
        self._put(kind, tag, data, self._step(kind, tag, None), limit)

    def _step(self, kind: str, tag: str, given: Any) -> int:
        """The step given, or that of `as_default`. InvalidArgumentError without either."""
        steps = [[given]] if given is not None else self._steps[-1:]
        if not steps:
            raise InvalidArgumentError(
                f"FileWriter.{kind}('{tag}') needs a step",
                hint="give step=, or write in `with writer.as_default(step):`",
            )
        return _step_number(steps[0][0])

    def _put(self, kind: str, tag: str, data: Array, step: int, limit: int) -> None:
        make: Callable[[], bytes]
        if kind == "scalar":
            make = partial(summaries.scalar, tag, float(data))
        else:  # a copy: the caller may go on to write to it
            make = partial(summaries.encode, kind, tag, np.array(data), limit)
        self._file.add(events.SUMMARY, make, step)


def _step_number(step: Any) -> int:
    """A step as an integer. TypeRuleError for what is none, InvalidArgumentError for one of more
    than 64 bits."""
    if isinstance(step, int | np.integer) and not isinstance(step, bool):
        if not -(2**63) <= step < 2**63:
            raise InvalidArgumentError(f"the step {step} is beyond the 64 bits of an event's")
        return int(step)
    given = _step_tensor(step)
    if given._data is None:
        raise TypeRuleError(
            f"a step is an integer or an integer variable, got {step!r:.60}",
            hint="in a session: step, _ = session.run([global_step, train])",
        )
    return int(given._data)


def _step_tensor(step: Any) -> Tensor:
    given = as_tensor(step)
    if given.ndim or not given.dtype.is_integer:
        raise TypeRuleError(f"a step is an integer or an integer variable, got {step!r:.60}")
    return given


_shared: dict[str, tuple[FileWriter, int]] = {}
_sharing = ForkLock()
in_child(_shared.clear)  # they are the parent's


def shared_writer(folder: str) -> FileWriter:
    """The writer that hooks of a session share: made by the first that asks for this folder, closed
    by the last that gives it back with `release_writer`."""
    with _sharing:
        writer, users = _shared.get(folder) or (FileWriter(folder), 0)
        _shared[folder] = writer, users + 1
    return writer


def release_writer(writer: FileWriter) -> None:
    """Give a `shared_writer` back."""
    with _sharing:
        folder = writer.get_logdir()
        users = _shared[folder][1] - 1
        if users:
            _shared[folder] = writer, users
            return
        del _shared[folder]
    writer.close()


def named_graph(graph: Graph | IRGraph) -> NamedGraph:
    """The nodes of a graph. TypeRuleError for what is none."""
    if isinstance(graph, IRGraph):
        return graph_def(graph)
    given: object = graph
    if not isinstance(given, Graph):
        raise TypeRuleError(
            f"a graph for TensorBoard is a wf.Graph, or f.trace(...) of a compiled function, got a "
            f"{type(given).__name__}"
        )
    ir, names = given.ir(), given.operation_names()
    known = [*ir.args, *(op.results[0] for op in ir.ops if op.results)]
    return graph_def(ir, {value: names.of_value(value) for value in known})


def times_by_device(graph: NamedGraph, report: RunMetadata) -> dict[str, dict[str, NodeTime]]:
    """The times and the memory of nodes in a traced run, by device: that which a node names, else
    that of the run; on a cluster by task."""
    if report.timeline is None:
        whole = "/job:localhost/task:0/" + ("gpu:0" if report.executor == "gpu" else "cpu:0")
        named = {n: op.device for op, n in graph.nodes.items() if op.device}
        made: dict[str, dict[str, NodeTime]] = {}
        events = by_kernel(report.events, report.kernel_events)
        for name, at in node_times(graph.nodes, events).items():
            made.setdefault(named.get(name, whole), {})[name] = at
        return made
    spans: dict[str, list[TraceEvent]] = {}
    for span in report.timeline.spans:
        spans.setdefault(span.task, []).append(span.event)
    kernels: dict[str, list[TraceEvent]] = {}
    for event in report.kernel_events:
        kernels.setdefault(DeviceSpec.parse(event.device).task_name, []).append(event)
    return {
        f"{task}/cpu:0": node_times(
            {op: n for op, n in graph.nodes.items() if may_be_on(op.device, task)},
            by_kernel(spans[task], kernels.get(task, ())),
        )
        for task in sorted(spans)
    }


def may_be_on(device: str, task: str) -> bool:
    """Whether an op with this device may have run on a task."""
    asked, there = named_device(device), named_device(task)
    return asked.job in (None, there.job) and asked.task in (None, there.task)
