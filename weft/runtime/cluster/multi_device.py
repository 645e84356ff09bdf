"""`PartedStep`: a step over several devices of this process, with a part for each device.

The parts exchange messages as the tasks of a cluster do, without leaving the process. Each part
runs on the dataflow executor in a thread of its own; regions of a GPU's part are plans for that
GPU. What goes wrong in one part ends all of them before it is raised."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np

from weft.comm.rendezvous import Rendezvous
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_TASK, DeviceSpec, short
from weft.ir.errors import CancelledError, DeadlineExceededError, InternalError
from weft.ir.graph import Graph, Operation
from weft.ir.process import in_child
from weft.ir.program import Edge, Program
from weft.ir.type_rules import int_attr
from weft.passes.manager import Pass, PassReport
from weft.passes.pipelines import STANDARD
from weft.passes.placement import Placement
from weft.runtime.cluster.exchange import StepExchange
from weft.runtime.cluster.part import PartStep, part_step
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.dataflow.regions import RegionDevice
from weft.runtime.dataflow.threads import StepThreads
from weft.runtime.device.execution.out_of_memory import let_go
from weft.runtime.recorder import TraceRecorder
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary

Array = np.ndarray[Any, Any]
_LOG = logging.getLogger("weft.run")
#: How long a step that failed waits for parts that do not end at once (a Python function, say).
GRACE_SECONDS = 5.0
#: The one step of each rendezvous.
_STEP = 1
_threads = [StepThreads("weft part")]


def _in_child() -> None:
    """A forked child has none of the threads."""
    _threads[:] = [StepThreads("weft part")]


in_child(_in_child)


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What one device does of a step. receivers: its ops `recv`, by their keys."""

    device: str
    graph: Graph
    step: PartStep
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    receivers: Mapping[int, Operation]

    @property
    def name(self) -> str:
        """`/gpu:0`."""
        return short(self.device)


class PartedStep(Step):
    """A step over several devices of this process. edges: what goes from one part to another;
    placement: why each op is where it is; reports: on the passes that made the parts.

    made: the parts. results: how many the whole has. where: for the names of a device and of a part
    what runs the part there, None for the processor. Errors as compiling has.
    """

    kind: Literal["devices"] = "devices"

    def __init__(
        self,
        name: str,
        made: Program,
        results: int,
        variables: Mapping[str, VariableState],
        resources: Resources,
        where: Callable[[str, str], RegionDevice | None],
        control_flow: str = "auto",
        *,
        deterministic: bool = False,
        passes: Sequence[Pass] = STANDARD,
        placement: Placement | None = None,
        reports: Callable[[], Sequence[PassReport]] = tuple,
    ) -> None:
        self.name, self._results = name, results
        self.edges, self.placement, self._reports = made.edges, placement, reports
        parts = []
        for part in made.parts:
            step = part_step(
                part.graph, variables, resources, control_flow,
                deterministic=deterministic, passes=passes,
                elsewhere=where(part.device, part.graph.name),
            )  # fmt: skip
            received = (op for op in part.graph.walk() if op.name == "recv")
            receivers = {int_attr(op.attrs, "key"): op for op in received}
            parts.append(
                DevicePart(part.device, part.graph, step, part.feeds, part.fetches, receivers)
            )
        # this thread's own part comes first: the processor's, as ops of the host wait
        self.parts = tuple(sorted(parts, key=lambda p: DeviceSpec.parse(p.device).kind != "cpu"))

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Array | None]:
        """As of `Step`. A DeadlineExceededError says which part waits for what. What goes wrong in
        a part is raised here, after the others have ended.
        """
        run = _Run(self.parts, context.token(), context.recorder)
        try:
            return run.results(inputs, context.timeout, self._results)
        except BaseException as error:
            del run
            let_go(error)  # or whoever holds the error would hold what the parts have made
            raise

    def passes(self) -> Sequence[PassReport]:
        return self._reports()

    def summary(self) -> StepSummary:
        own = StepSummary(
            devices=tuple(part.name for part in self.parts),
            copies=len(self.edges),
            copied_bytes=sum(edge.nbytes or 0 for edge in self.edges),
        )
        return sum((part.step.summary() for part in self.parts), own)

    def explain(self) -> Iterator[str]:
        """What runs on each device, and what is copied between them."""
        if self.placement is not None:
            from weft.passes.placement.placer import explain_placement  # only such steps need it

            yield from (explain_placement(self.placement), "")
        for part in self.parts:
            yield f"part of {part.name}: {len(part.graph.ops)} ops"
            if part.step.kind == "dataflow":
                yield from (f"  {line}" for line in part.step.explain())
            else:
                yield "  one native plan"
            yield ""
        yield f"{len(self.edges)} copies between devices"
        for edge in self.edges:
            size = "known when it runs" if edge.nbytes is None else f"{edge.nbytes:,} bytes"
            where = f" at {edge.locations[0]}" if edge.locations else ""
            ends = f"{short(edge.src)} -> {short(edge.dst)}"
            yield f"  {edge.tensor}: {edge.type}, {size}, {ends}{where}"

    def feeds_on_gpus(self, count: int) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in range(count)]
        on_host: set[int] = set()
        for part in self.parts:
            brought = part.step.built.brought if part.step.kind == "dataflow" else ()
            for k, number in enumerate(part.feeds):
                if k < len(brought) and brought[k]:
                    found[number].append(part.name)
                else:
                    on_host.add(number)
        return [[] if i in on_host else names for i, names in enumerate(found)]

    def results_on_gpus(self) -> Sequence[tuple[int, str]]:
        far = (p for p in self.parts if DeviceSpec.parse(p.device).kind == "gpu")
        return [(i, part.name) for part in far for i in part.fetches]

    def copies(self) -> Sequence[Edge]:
        return self.edges


class _Wire:
    """What moves messages within a process."""

    def __init__(self) -> None:
        self.rendezvous = Rendezvous()

    def send_tensor(self, *_: Any, **__: Any) -> NoReturn:
        raise InternalError("a part of a step in one process sends to another task")

    def room(self, *_: Any) -> None:
        """No other task reads it."""


class _Run:
    """One step under way."""

    def __init__(
        self, parts: Sequence[DevicePart], cancel: CancelToken, trace: TraceRecorder | None
    ) -> None:
        self.parts, self._trace = parts, trace
        wire = _Wire()
        self._table = wire.rendezvous
        self._exchanges = [StepExchange(wire, LOCAL_TASK, _STEP, p.receivers) for p in parts]
        self._tokens = [CancelToken(exchange) for exchange in self._exchanges]
        self._cancel = cancel
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._made: dict[int, Array | None] = {}
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._error: BaseException | None = None

    def results(
        self, inputs: Sequence[Array], timeout: float | None, count: int
    ) -> list[Array | None]:
        """Run all parts, the first one on this thread."""
        until = None if timeout is None else time.monotonic() + timeout
        forget = self._cancel.register(self._cancelled)
        try:
            for number in range(1, len(self.parts)):
                _threads[0].submit(partial(self._part, number, inputs, None))
            self._part(0, inputs, timeout)
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if self._error is None and not self._over.wait(left):
                self._fail(DeadlineExceededError("the step did not end in time"))
        except BaseException as error:  # Ctrl-C
            self._fail(error)
            raise
        finally:
            forget()
            self._end()
            for exchange in self._exchanges:
                exchange.runs(list)  # else it and the part's state hold each other
        if self._error is not None:
            raise self._error
        return [self._made[i] for i in range(count)]

    def _part(self, number: int, inputs: Sequence[Array], timeout: float | None) -> None:
        """One part, on this thread; its error is the step's."""
        part = self.parts[number]
        try:
            with self._lock:
                if self._error is not None:
                    return  # nobody waits for what has not begun
                self._running.add(part.name)
            given = [inputs[i] for i in part.feeds]
            context = RunContext(timeout, self._tokens[number], self._trace)
            made = part.step.run(given, context)
            with self._lock:
                self._made.update(zip(part.fetches, made, strict=True))
        except BaseException as error:  # whatever it is, the others wait for this part
            self._fail(error)
            let_go(error)  # of a later error nobody but its own part knows
            if number == 0 and not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._running.discard(part.name)
                self._ended.add(part.name)
                all_ended = len(self._ended) == len(self.parts)
                over = all_ended or (self._error is not None and not self._running)
            if over:
                self._over.set()

    def _cancelled(self) -> None:
        why = self._cancel.reason or "no reason given"
        self._fail(CancelledError(f"the step was cancelled: {why}"))

    def _fail(self, error: BaseException) -> None:
        """The first error ends all parts."""
        if isinstance(error, DeadlineExceededError):
            error = DeadlineExceededError(
                f"{error.what}; who waits for what:\n{self._report()}",
                hint=error.hint, location=error.locations,
            )  # fmt: skip
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        for token in self._tokens:
            token.cancel("another part of its step has failed")

    def _end(self) -> None:
        """No part runs any more, or one that cannot be ended is told of."""
        if self._error is None:
            self._over.wait()
            return
        with self._lock:
            self._running.discard(self.parts[0].name)  # which this thread ran
            running = sorted(self._running)
        if running and not self._over.wait(GRACE_SECONDS):
            with self._lock:
                running = sorted(self._running)
            _LOG.warning("%s still runs its part of a step that failed", ", ".join(running))

    def _report(self) -> str:
        """A line for each part and what it waits for."""
        waited = {wait.key[0] for wait in self._table.waiting(_STEP)}
        lines = []
        for part, exchange in zip(self.parts, self._exchanges, strict=True):
            ops = [op for key, op in part.receivers.items() if key in waited]
            found = [f"in its op {host}" for host in exchange.hosts()]
            for op in ops:
                found.append(f"for {op.attrs['tensor']!r} from {short(str(op.attrs['src']))}")
            with self._lock:
                over = part.name in self._ended and not found
            what = f"waits {', '.join(found)}" if found else "computes"
            lines.append(f"  {part.name} {'is done' if over else what}")
        return "\n".join(lines)
