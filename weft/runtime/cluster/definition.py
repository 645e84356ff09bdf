"""`ClusterStep`: a step in parts, on the tasks of a cluster or on the devices of this process.

It has all parts begin, joins their ends, errors, deadlines and cancellations, and says of a step
that stalls who waits for whom. On a cluster (`TaskStep`) parts are registered once with their
tasks; a run is then one message to each part and one answer from each (the paper, section 3.3)."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft.comm.errors import CommError, PeerLostError
from weft.ir.cost.thresholds import SMALL_MESSAGE_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import remapped
from weft.ir.ops.io import PYTHON_CALLS, is_registered
from weft.ir.program import Part as PartGraph
from weft.ir.spec import ConstArray
from weft.ir.text.printer import print_graph
from weft.ir.types import HandleType, RefType, TensorType
from weft.passes.manager import PassReport
from weft.runtime.cluster import messages as m
from weft.runtime.cluster.exchange import Array, sendable, task_of
from weft.runtime.cluster.master import (
    NOTHING,
    Failure,
    Master,
    Pending,
    Who,
    arrays_in,
    ask_kernels,
    ask_logs,
)
from weft.runtime.cluster.messages import Derived, from_wire, to_wire
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.store import Key
from weft.runtime.run_log import RunLog
from weft.runtime.step import PLAIN, RunContext, Step, StepSummary
from weft.runtime.trace.task_trace import StepTrace

if TYPE_CHECKING:
    from weft.runtime.cluster.native_fan import FanOut
    from weft.runtime.step_kernels import StepKernels

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """What one task is told of a step definition. constants: further inputs, the same in every run.
    state: container and name of each variable and resource, by its name in the text. peers: the
    tasks that it sends to or receives from. device: of the task, by its full name."""

    task: str
    device: str
    text: str
    constants: tuple[_Array, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    state: Mapping[str, Key]
    peers: tuple[str, ...]


def parts_of(parts: Sequence[PartGraph], keys: Mapping[str, Key]) -> list[Part]:
    """The parts as text. UnsupportedError for a Python function that is not registered by name."""
    made = []
    for part in parts:
        for op in part.graph.walk():
            calls = op.name in PYTHON_CALLS and "function" in op.attrs
            if calls and not is_registered(op):
                raise UnsupportedError(
                    f"the Python function '{op.attrs['function']}' cannot run on {part.device}: "
                    "functions are not sent to tasks",
                    hint="give it a name with wf.register_function, here and in the task (`weft "
                    "worker --import MODULE`); or compute it before the step and feed the result",
                    location=op.locations,
                )
        task = task_of(part.device)
        graph, constants = lift_constants(part.graph)
        ends = [
            task_of(str(op.attrs["dst" if op.name == "send" else "src"]))
            for op in graph.walk()
            if op.name in ("send", "recv")
        ]
        peers = tuple(dict.fromkeys(end for end in ends if end != task))
        state = {name: keys[name] for name in _handles(graph) if name in keys}
        text = print_graph(graph)
        made.append(
            Part(task, part.device, text, constants, part.feeds, part.fetches, state, peers)
        )
    return made


def lift_constants(
    graph: Graph, most: int = SMALL_MESSAGE_BYTES
) -> tuple[Graph, tuple[_Array, ...]]:
    """Constants of more than `most` bytes as further inputs: they travel as bytes, not as text.
    Those in branches and loops stay."""
    large = {op: op.attrs["value"] for op in graph.ops if op.name == "constant"}
    held = {
        op: value.array
        for op, value in large.items()
        if isinstance(value, ConstArray) and value.array.nbytes > most
    }
    if not held:
        return graph, ()
    args, mapping = list(graph.args), {a: a for a in graph.args}
    ops: list[Operation] = []
    for op in graph.ops:
        if op in held:
            args.append(Value(op.result.type, index=len(args)))
            mapping[op.result] = args[-1]
        else:
            ops.append(remapped(op, mapping))
            mapping.update(zip(op.results, ops[-1].results, strict=True))
    results = tuple([mapping[v] for v in graph.results])
    names = (*graph.arg_names, *(f"constant_{i}" for i in range(len(held))))
    block = Block(tuple(args), tuple(ops), results)
    return Graph(graph.name, block, names, graph.stage), tuple(held.values())


def _handles(graph: Graph) -> list[str]:
    """The names of the variables and resources in a graph."""
    made = [op for op in graph.walk() if op.results and "name" in op.attrs]
    return [str(o.attrs["name"]) for o in made if isinstance(o.result.type, (RefType, HandleType))]


def result_types(graph: Graph) -> tuple[TensorType | None, ...]:
    """Of each result, None for a token."""
    return tuple(v.type if isinstance(v.type, TensorType) else None for v in graph.results)


#: How long the tasks have to say what they wait for, and how many lines each may have.
ANSWER_SECONDS, MOST_LINES = 0.5, 12


def stall_report(master: Master, step: int, owing: Sequence[Who], tasks: Sequence[str]) -> str:
    """One line for each message that is waited for, and for each task that waits for none."""
    asked = list(dict.fromkeys(task for task, _ in owing))
    number, waits = master.begin([(task, 0) for task in asked])
    try:
        for task in asked:
            try:
                master.send(task, m.STATUS, step, {"n": number})
            except CommError:
                continue
        waits.stop.wait(ANSWER_SECONDS)
    finally:
        master.end(number)
    lines = []
    for task in tasks:
        if task not in asked:
            lines.append(f"  {task} is done with its part")
        elif (task, 0) not in waits.answers:
            lines.append(f"  {task} does not answer")
        else:
            lines += _lines(task, m.from_array(waits.answers[task, 0][1][0]))
    return "\n".join(lines)


def _lines(task: str, runs: list[Any]) -> list[str]:
    rows = [row for _, waits, _ in runs for row in waits]
    hosts = [host for _, _, hosts in runs for host in hosts]
    if not runs:
        return [f"  {task} does not run the step"]
    made = [f"  {task} waits in its own op {host}" for host in hosts[:MOST_LINES]]
    if not rows and not hosts:
        return [f"  {task} waits for nothing: it computes"]
    for label, iterations, source, seconds, where in rows[:MOST_LINES]:
        turn = f" in iteration {iterations}" if iterations else ""
        at = f", at {where}" if where else ""
        made.append(f"  {task} waits for {label}{turn} from {source} since {seconds:.1f} s{at}")
    if len(rows) > MOST_LINES:
        made.append(f"  {task} waits for {len(rows) - MOST_LINES} more")
    return made


_LOG = logging.getLogger("weft.cluster")
#: How long compiling may take on the tasks, and how long a step that failed waits for what still
#: runs. After so many seconds without an end a step says in the log who waits for whom.
REGISTER_SECONDS, GRACE_SECONDS, STALL_SECONDS = 600.0, 5.0, 30.0
#: Steps that send their RUNs one by one before native code does.
RUNS_BEFORE = 3
#: How long a definition that failed on one task waits for what the others say.
BRIEF_SECONDS = 0.3


class PartsRun(ABC):
    """One run of the parts of a step. waits: what the parts owe."""

    waits: Pending

    @abstractmethod
    def start(self, inputs: Sequence[Array], timeout: float | None) -> None:
        """Have all parts run, some of them perhaps on this thread."""

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Something went wrong outside of the parts."""

    @abstractmethod
    def report(self) -> str:
        """A line for each message that is waited for, and for each part that waits for none."""

    @abstractmethod
    def stop(self, error: BaseException) -> None:
        """Have all parts that still run end: the step has failed."""

    @abstractmethod
    def owing(self) -> list[str]:
        """Where parts still run."""

    @abstractmethod
    def close(self) -> None:
        """All parts have ended, or nobody waits for them any more."""

    @abstractmethod
    def results(self) -> list[Array | None]:
        """What the parts gave, in the order of the whole."""


class ClusterStep(Step):
    """A step whose parts run on several tasks or devices at once and exchange messages.

    A part that fails ends the others; the step ends when all have, and what went wrong first is
    raised. What carries parts to where they run is up to the heirs: `TaskStep`, and
    `multi_device.DevicesStep`. reports: on the passes that made the parts.
    """

    def __init__(self, name: str, reports: Callable[[], Sequence[PassReport]]) -> None:
        self.name, self._reports = name, reports

    @abstractmethod
    def begin(self, context: RunContext) -> PartsRun:
        """A run, of which nothing is done yet."""

    def let_go(self, error: BaseException) -> None:
        """Called with the error of a run, which its caller may hold."""
        return

    def passes(self) -> Sequence[PassReport]:
        return self._reports()

    def run(self, inputs: list[Array], context: RunContext = PLAIN) -> list[Array | None]:
        """As of `Step`. A DeadlineExceededError says who waits for whom. What goes wrong in a part
        is raised here; UnavailableError names a task that was lost.
        """
        until = None if context.timeout is None else time.monotonic() + context.timeout
        run = self.begin(context)
        try:
            return self._joined(run, inputs, context, until)
        except BaseException as error:
            del run
            self.let_go(error)
            raise

    def _joined(
        self, run: PartsRun, inputs: Sequence[Array], context: RunContext, until: float | None
    ) -> list[Array | None]:
        """The results of all parts, after the end of all parts."""
        forget, cancel = None, context.cancel
        if cancel is not None:
            token = cancel
            forget = token.register(lambda: run.fail(_cancelled(token)))
        try:
            try:
                run.start(inputs, context.timeout)
                self._wait(run, until)
            except BaseException as error:  # Ctrl-C
                run.fail(Failure(CancelledError(f"interrupted: {error!r}"), Derived.ROOT))
                self._end(run)
                raise
            if run.waits.error is not None:
                raise self._end(run)
        finally:
            if forget is not None:
                forget()
            run.close()
        return run.results()

    def _wait(self, run: PartsRun, until: float | None) -> None:
        """Wait for all parts, or for the first failure; the time being up is one."""
        silence, waits = STALL_SECONDS, run.waits
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if waits.stop.wait(silence if left is None else min(left, silence)):
                return
            report = run.report()
            if waits.stop.is_set():
                return  # it ended meanwhile: what it took from a queue is not to be lost
            if until is not None and time.monotonic() >= until:
                run.fail(Failure(too_late(self.name, report), Derived.ROOT))
                return
            _LOG.warning("the step of '%s' has not ended; who waits:\n%s", self.name, report)
            silence = min(2 * silence, 3600.0)

    def _end(self, run: PartsRun) -> BaseException:
        """End all parts, and wait a little for them: what went wrong first."""
        first = run.waits.error
        assert first is not None
        run.stop(first)
        if not run.waits.over.wait(GRACE_SECONDS):
            owing = ", ".join(run.owing())
            _LOG.warning("%s still runs its part of a step of '%s', which failed", owing, self.name)
        return run.waits.error or first


def too_late(name: str, report: str) -> DeadlineExceededError:
    """The error of a step whose time is up. report: who waits for whom."""
    return DeadlineExceededError(
        f"the step of '{name}' did not end in time; who waits for whom:\n{report}",
        hint="give a longer timeout, or see why nothing arrives there",
    )


# ------------------------------------------------------------------------------- parts on tasks
class _Route:
    """Who gets the RUNs of a step: the parts in order, and with those in this process last, as they
    may run at once. changes: `Master.changes` when it was made."""

    __slots__ = ("_fan", "_runs", "changes", "handles", "order", "who")

    def __init__(
        self, handles: tuple[int, ...], changes: int, parts: Sequence[Part], master: Master
    ) -> None:
        self.handles, self.changes = handles, changes
        self.who = tuple([(part.task, one) for part, one in zip(parts, handles, strict=True)])
        pairs = zip(self.who, parts, strict=True)
        self.order = tuple(sorted(pairs, key=lambda pair: master.is_here(pair[0][0])))
        self._runs = 0
        self._fan: FanOut | None = None

    def send(self, master: Master, step: int, low: int, inputs: Sequence[Array]) -> int:
        """Send RUNs that are signals by native code: so many of the first ones."""
        if self._fan is None:
            self._runs += 1
            if self._runs % RUNS_BEFORE or not hasattr(master.wire, "words_of"):
                return 0
            self._fan = self._made(master, inputs)
            if self._fan is None:
                return 0
        return self._fan.send(step, low, inputs)

    def _made(self, master: Master, inputs: Sequence[Array]) -> FanOut | None:
        # whoever runs a step twice does not wait for this module
        from weft.runtime.cluster.native_fan import fan_out

        wire: Any = master.wire
        there = [(w, part) for w, part in self.order if not master.is_here(w[0])]
        parts = [(task, handle, part.feeds) for (task, handle), part in there]
        return fan_out(wire, parts, inputs) if parts else None


class TaskStep(ClusterStep):
    """A step whose parts run on the tasks of a cluster, each registered there once.

    results: the types of the results of the whole, None for a token. pipeline: the passes that the
    parts go through, by name. recv_timeout: after how long a part that waits for another one's
    tensor gives up.
    """

    kind: Literal["cluster"] = "cluster"

    def __init__(
        self,
        master: Master,
        name: str,
        parts: Sequence[Part],
        results: Sequence[TensorType | None],
        *,
        control_flow: str = "auto",
        pipeline: str = "standard",
        recv_timeout: float | None = None,
        reports: Callable[[], Sequence[PassReport]] = tuple,
    ) -> None:
        super().__init__(name, reports)
        self.parts, self.master = tuple(parts), master
        self.count = len(results)
        self.wanted = tuple([i for i, kind in enumerate(results) if kind is not None])
        self._control_flow, self._pipeline = control_flow, pipeline
        self.recv_timeout = recv_timeout
        self.tasks = tuple(dict.fromkeys(part.task for part in parts))
        self._needed = tuple(dict.fromkeys(t for p in parts for t in (p.task, *p.peers)))
        self._lock = threading.Lock()
        self._known: Mapping[str, tuple[str, int]] | None = None  # the tasks that have it
        self._handles: tuple[int, ...] = ()
        self._route: _Route | None = None
        self._seen = -1  # `Master.changes` when these were the handles
        self._given: list[list[Who]] = []  # the parts that tasks hold, by when they were given
        weakref.finalize(self, _drop, master, self._given).atexit = False

    def begin(self, context: RunContext) -> TaskRun:
        route = self._found_route(self._registered())
        step, waits = self.master.begin(route.who)
        waits.trace = context.recorder
        return TaskRun(self, route, step, waits, context.log)

    def new_recorder(self, *, kernels: bool = False) -> StepTrace:
        return StepTrace(kernels=kernels)

    def summary(self) -> StepSummary:
        # what each part consists of is known where it is compiled
        devices = tuple(part.device for part in self.parts)
        return StepSummary(nodes=len(devices), devices=devices)

    def explain(self) -> Iterator[str]:
        for part in self.parts:
            yield f"part of {part.task} on {part.device}"

    def kernels(self) -> list[StepKernels]:
        """The kernels of each part, as its task says them. Errors as `prepare`."""
        return ask_kernels(self.master, self._found_route(self._registered()).who)

    def _registered(self) -> tuple[int, ...]:
        """The handles of the parts, which all tasks know."""
        changes = self.master.changes  # before the look
        if changes == self._seen and self._known is not None:
            return self._handles
        known = self.master.require(self._needed)
        if known == self._known:
            self._seen = changes
            return self._handles
        with self._lock:
            if known != self._known:
                self._handles = self._register(known)
                self._known = known
            return self._handles

    def _found_route(self, handles: tuple[int, ...]) -> _Route:
        """As the parts have these handles."""
        found, changes = self._route, self.master.changes
        if found is None or found.changes != changes or found.handles is not handles:
            found = self._route = _Route(handles, changes, self.parts, self.master)
        return found

    def prepare(self) -> None:
        """Have the tasks compile their parts now. What they say against them is raised here."""
        self._registered()

    def forget(self) -> None:
        """Register it anew before the next run."""
        self._known, self._seen = None, -1

    def _register(self, known: Mapping[str, tuple[str, int]]) -> tuple[int, ...]:
        _drop(self.master, self._given[:-1])  # a run of another thread may use the last one
        del self._given[:-1]
        self.master.tell_dropped()
        handles = tuple(self.master.next_handle() for _ in self.parts)
        who = [(part.task, handle) for part, handle in zip(self.parts, handles, strict=True)]
        number, waits = self.master.begin(who)
        self._given.append(who)
        try:
            for (task, handle), part in zip(who, self.parts, strict=True):
                text = np.frombuffer(part.text.encode(), np.uint8)
                meta: dict[str, Any] = {
                    "h": handle,
                    "control_flow": self._control_flow,
                    "pipeline": self._pipeline,
                    "timeout": REGISTER_SECONDS,
                }
                named = {
                    "peers": {peer: list(known[peer]) for peer in part.peers},
                    "state": {name: list(key) for name, key in part.state.items()},
                    "device": part.device,
                }
                arrays = [text, m.to_array(named), *part.constants]
                self.to(waits, task, m.REGISTER, number, m.CONSTANT, meta, arrays)
            if not waits.stop.wait(REGISTER_SECONDS):
                owing = ", ".join(dict.fromkeys(task for task, _ in waits.owing()))
                raise DeadlineExceededError(f"{owing} did not compile its part of '{self.name}'")
            if waits.error is not None:
                waits.over.wait(BRIEF_SECONDS)  # another one may know better why
                raise waits.error
        finally:
            self.master.end(number)
        return handles

    def to(
        self,
        waits: Pending,
        task: str,
        kind: int,
        step: int,
        base: int,
        meta: dict[str, Any],
        arrays: Sequence[Array],
    ) -> None:
        """Send a message with arrays, the large ones by themselves."""
        if self.master.is_here(task):
            self.master.send(task, kind, step, meta, arrays)
            return
        small, large = m.split(arrays)
        if large:
            meta["g"] = list(large)
        wire, first = self.master.wire, m.keys_of(base, int(meta["h"]))
        try:
            wire.send(task, kind, step, meta, small)
            for place, array in large.items():
                wire.send_tensor(task, step, first + place, (), array, lend=kind == m.RUN)
        except CommError as error:
            self.unsent(waits, task, error)

    def unsent(self, waits: Pending, task: str, error: CommError) -> None:
        """A task cannot be told something."""
        if isinstance(error, PeerLostError):
            self.master.lost(task, error)
        waits.lost(task, _unreachable(task, error))


class TaskRun(PartsRun):
    """A step under way on tasks: a RUN to each part, a DONE from each."""

    def __init__(
        self, whole: TaskStep, route: _Route, step: int, waits: Pending, log: RunLog | None
    ) -> None:
        self._whole, self._route, self._step, self.waits = whole, route, step, waits
        self._log = log
        self._error: BaseException | None = None  # for which the step was ended

    def start(self, inputs: Sequence[Array], timeout: float | None) -> None:
        whole, waits, step = self._whole, self.waits, self._step
        low, master = whole.master.low_water(), whole.master
        plain = timeout is None and whole.recv_timeout is None
        plain = plain and waits.trace is None and self._log is None
        sent = self._route.send(whole.master, step, low, inputs) if plain else 0
        for (task, handle), part in self._route.order[sent:]:
            feeds = [sendable(inputs[place]) for place in part.feeds]
            if plain and (not feeds or _are_small(feeds)):
                try:
                    master.signal(task, m.RUN, step, handle, low, feeds)
                except CommError as error:
                    whole.unsent(waits, task, error)
                continue
            meta: dict[str, Any] = {"h": handle, "l": low}
            if timeout is not None:  # the master's own comes first, and says more
                meta["t"] = timeout + GRACE_SECONDS
            if whole.recv_timeout is not None:
                meta["r"] = whole.recv_timeout
            if self._log is not None:
                meta["log"] = self._log.operands is not None
            if waits.trace is not None:
                meta["trace"] = {"kernels": waits.trace.kernels}
                waits.trace.run_sent(task, handle)
            whole.to(waits, task, m.RUN, step, m.FEED, meta, feeds)

    def fail(self, failure: Failure) -> None:
        self.waits.fail(failure)

    def report(self) -> str:
        whole = self._whole
        return stall_report(whole.master, self._step, self.waits.owing(), whole.tasks)

    def stop(self, error: BaseException) -> None:
        whole, waits, self._error = self._whole, self.waits, error
        if waits.link_lost:  # registering makes links anew
            whole.forget()
        why: dict[str, Any] = {"e": to_wire(error)}
        if waits.lost_task is not None:
            why["lost"], why["cause"] = waits.lost_task
        for task in self.owing():
            try:
                whole.master.send(task, m.ABORT, self._step, why)
            except CommError as unsent:
                whole.unsent(waits, task, unsent)

    def owing(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self.waits.owing()))

    def close(self) -> None:
        master, error = self._whole.master, self._error
        if error is not None:
            # the rendezvous keeps what ended a step for a while: not the caller's error, whose
            # traceback holds what the run held
            master.wire.abort(self._step, from_wire(to_wire(error))[0])
            if self.waits.trace is not None:
                _add_cut(self.waits)
        master.end(self._step)
        if self._log is not None:
            found = ask_logs(master, self._step, self._route.who)
            self._log.parts += [log for log in found.values() if log is not None]
            silent = [task for (task, _), log in found.items() if log is None]
            self._log.silent = list(dict.fromkeys(silent))

    def results(self) -> list[Array | None]:
        whole, waits = self._whole, self.waits
        out: list[Array | None] = [None] * whole.count
        for one, part in zip(self._route.who, whole.parts, strict=True):
            found = waits.answers[one]
            if found is NOTHING and not part.fetches:
                continue
            arrays = arrays_in(*found[1:])
            if waits.trace is not None:
                waits.trace.add(*one, arrays.pop())
            if len(arrays) != len(part.fetches):
                raise InternalError(f"{one[0]} gave {len(arrays)} results of {len(part.fetches)}")
            for place, made in zip(part.fetches, arrays, strict=True):
                out[place] = np.array(made) if made.base is not None else made
        for i in whole.wanted:
            if out[i] is None:
                raise InternalError(f"no task gave result {i} of '{whole.name}'")
        return out


def _add_cut(waits: Pending) -> None:
    """What the parts of a step that failed have done until then, as far as they have said it."""
    assert waits.trace is not None
    owing = set(waits.owing())
    found = {who: arrays_in(*a[1:])[-1] for who, a in waits.answers.items() if who not in owing}
    for who, packed in {**found, **waits.cut_traces}.items():
        try:
            waits.trace.add(*who, packed)
        except InvalidArgumentError as error:  # what has failed first matters more
            _LOG.warning("%s", error)


def _are_small(feeds: Sequence[Array]) -> bool:
    """Whether they go in one frame."""
    most = m.MOST_ARRAYS
    return len(feeds) <= most and sum([x.nbytes for x in feeds]) <= SMALL_MESSAGE_BYTES


def _drop(master: Master, given: Sequence[Sequence[Who]]) -> None:
    """The tasks need not hold these parts any more."""
    for parts in given:
        master.drop(parts)


def _unreachable(task: str, cause: CommError) -> Failure:
    error = UnavailableError(f"{task} cannot be reached: {cause}")
    return Failure(error, Derived.LOST, (task, str(cause)))


def _cancelled(cancel: CancelToken) -> Failure:
    why = cancel.reason or "no reason given"
    return Failure(CancelledError(f"the step was cancelled: {why}"), Derived.ROOT)
