"""`DevicesStep`: a step over several devices of this process, with a part for each device.

They exchange messages as the tasks of a cluster do, without leaving the process: nothing is
written as bytes, and a tensor goes as the array that it is. Each part runs on the dataflow executor
in a thread of its own; regions of a GPU's part are plans for that GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np

from weft.comm.rendezvous import Rendezvous
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_TASK, DeviceSpec, short
from weft.ir.errors import DeadlineExceededError, InternalError
from weft.ir.graph import Graph, Operation
from weft.ir.process import in_child
from weft.ir.program import Edge, Program
from weft.passes.manager import PassOptions, PassReport
from weft.passes.placement import Placement
from weft.runtime.cluster.definition import ClusterStep, PartsRun
from weft.runtime.cluster.exchange import StepExchange
from weft.runtime.cluster.master import Failure, Pending, Who
from weft.runtime.cluster.messages import Derived
from weft.runtime.cluster.part import part_step, receivers_of
from weft.runtime.compile_step import CompileOptions, OneDeviceStep
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.dataflow.regions import RegionDevice
from weft.runtime.dataflow.threads import StepThreads
from weft.runtime.device.execution.out_of_memory import let_go
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext, StepSummary

Array = np.ndarray[Any, Any]
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
    step: OneDeviceStep
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    receivers: Mapping[int, Operation]

    @property
    def name(self) -> str:
        """`/gpu:0`."""
        return short(self.device)

    @property
    def who(self) -> Who:
        """Who owes what it gives."""
        return self.name, 0


class DevicesStep(ClusterStep):
    """A step whose parts run on several devices of this process. edges: what goes from one part to
    another; placement: why each op is where it is.

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
        how: CompileOptions,
        *,
        placement: Placement | None = None,
        reports: Callable[[], Sequence[PassReport]] = tuple,
    ) -> None:
        super().__init__(name, reports)
        self.count, self.edges, self.placement = results, made.edges, placement
        options = how.passing or PassOptions.from_environment()
        parts = []
        readers = Counter(number for part in made.parts for number in part.feeds)
        for part in made.parts:
            passing = options.for_part(short(part.device).lstrip("/"))
            # what several parts read, none of them may write to
            free = {n for n in how.donated if readers[n] == 1}
            given = [i for i, number in enumerate(part.feeds) if number in free]
            own = replace(how, passing=passing, donated=given)
            there = where(part.device, part.graph.name)
            step = part_step(part.graph, variables, resources, own, there)
            receivers = receivers_of(part.graph)
            parts.append(
                DevicePart(part.device, part.graph, step, part.feeds, part.fetches, receivers)
            )
        # the part of the thread that runs the step comes first: the processor's, as ops of the
        # host wait
        self.parts = tuple(sorted(parts, key=lambda p: DeviceSpec.parse(p.device).kind != "cpu"))
        self.taken = frozenset(part.feeds[i] for part in parts for i in part.step.taken)

    def begin(self, context: RunContext) -> LocalRun:
        return LocalRun(self, context)

    def let_go(self, error: BaseException) -> None:
        let_go(error)

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
            from weft.passes.placement.report import explain_placement  # only such steps need it

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


class LocalRun(PartsRun):
    """A step under way on the devices of this process. An error of one part ends the others at
    once, on its own thread: the one that waits for them may run a part itself."""

    def __init__(self, whole: DevicesStep, context: RunContext) -> None:
        self._whole, self._context = whole, context
        self.waits = Pending(part.who for part in whole.parts)
        wire = _Wire()
        self._table = wire.rendezvous
        self._exchanges = [StepExchange(wire, LOCAL_TASK, _STEP, p.receivers) for p in whole.parts]
        self._tokens = [CancelToken(exchange) for exchange in self._exchanges]

    def start(self, inputs: Sequence[Array], timeout: float | None) -> None:
        """The first part runs on this thread."""
        parts, begun = self._whole.parts, 1
        try:
            for number in range(1, len(parts)):
                _threads[0].submit(partial(self._part, number, inputs, None))
                begun += 1
        except BaseException:  # no thread to be had, Ctrl-C: nobody need wait for the others
            for part in (parts[0], *parts[begun:]):
                self.waits.part(part.who)
            raise
        self._part(0, inputs, timeout)

    def _part(self, number: int, inputs: Sequence[Array], timeout: float | None) -> None:
        """One part, on this thread; its error is the step's."""
        part = self._whole.parts[number]
        if self.waits.stop.is_set():  # nobody waits for what has not begun
            self.waits.part(part.who)
            return
        given: list[Array] = []
        whole = self._context
        try:
            given += [inputs[i] for i in part.feeds]
            log = None if whole.log is None else whole.log.part(part.device)
            trace = None if whole.recorder is None else whole.recorder.within(part.device)
            donation = None if whole.donation is None else whole.donation.part(part.feeds)
            context = RunContext(timeout, self._tokens[number], trace, log=log, donation=donation)
            self.waits.answer(part.who, part.step.run(given, context))
        except BaseException as error:  # whatever it is, the others wait for this part
            derived = Derived.ROOT if self.waits.error is None else Derived.ABORTED
            why = error
            if isinstance(error, DeadlineExceededError):
                why = _with_report(error, self.report())
            self.waits.failed(part.who, Failure(why, derived))
            self.stop(error)
            let_go(error)  # of a later error nobody but its own part knows
            if number == 0 and not isinstance(error, Exception):
                raise
        finally:
            given.clear()  # whoever holds the error holds this list

    def fail(self, failure: Failure) -> None:
        self.waits.fail(failure)
        self.stop(failure.error)

    def stop(self, error: BaseException) -> None:
        for token in self._tokens:
            token.cancel("another part of its step has failed")

    def owing(self) -> list[str]:
        return sorted(name for name, _ in self.waits.owing())

    def close(self) -> None:
        for exchange in self._exchanges:
            exchange.runs(list)  # else it and the part's state hold each other

    def results(self) -> list[Array | None]:
        made: list[Array | None] = [None] * self._whole.count
        for part in self._whole.parts:
            for place, array in zip(part.fetches, self.waits.answers[part.who], strict=True):
                made[place] = array
        return made

    def report(self) -> str:
        waited = {wait.key[0] for wait in self._table.waiting(_STEP)}
        owing, lines = self.owing(), []
        for part, exchange in zip(self._whole.parts, self._exchanges, strict=True):
            found = [f"in its op {host}" for host in exchange.hosts()]
            for op in (op for key, op in part.receivers.items() if key in waited):
                found.append(f"for {op.attrs['tensor']!r} from {short(str(op.attrs['src']))}")
            what = f"waits {', '.join(found)}" if found else "computes"
            over = part.name not in owing and not found
            lines.append(f"  {part.name} {'is done' if over else what}")
        return "\n".join(lines)


def _with_report(error: DeadlineExceededError, report: str) -> DeadlineExceededError:
    """The error of the part that looks at the clock, as that of its step."""
    what = f"{error.what}; who waits for whom:\n{report}"
    return DeadlineExceededError(what, hint=error.hint, location=error.locations)
