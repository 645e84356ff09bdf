"""Replay: the run of a recorded step once more, in one process, on any engine.

Ops that took something from outside give what they gave then (`HostReplay`); files, queues and
other tasks are not touched. Prints print, assertions are checked, callbacks are not called. On the
engine and the machine that the step was recorded on, the results have the same bits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from weft.codegen.engines import using_engine
from weft.codegen.llvm.target import NATIVE, host_isas, using
from weft.ir.analysis.effects import written_in
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_TASK, DeviceSpec
from weft.ir.errors import (
    FailedPreconditionError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph, Operation
from weft.ir.interpreter.evaluate import RunHost, Watch, interpret
from weft.ir.interpreter.state import DictState
from weft.ir.program import Program
from weft.ir.types import RefType
from weft.passes.differential import tolerance, unequal
from weft.passes.manager import Pass, PassOptions
from weft.passes.partition.partition import partition
from weft.passes.pipelines import PASSES, PIPELINES
from weft.passes.sizes import is_symbolic, specialize_inputs
from weft.runtime.cluster.multi_device import DevicesStep
from weft.runtime.compile_step import CompileOptions, compile_step
from weft.runtime.dataflow.host_dispatch import HostObjects
from weft.runtime.device.backends.local import with_devices, without_devices
from weft.runtime.device.execution.regions import on_gpu
from weft.runtime.native.planning import gpu_passes
from weft.runtime.record.known_part import (
    UnknownPart,
    known_part,
    missing_logs,
    nothing_given,
)
from weft.runtime.record.step_record import StepRecord, same_bits
from weft.runtime.record.traced_step import Way
from weft.runtime.resources.variables import VariableState
from weft.runtime.run_log import (
    HostGroup,
    HostKey,
    HostResults,
    HostRow,
    RunLog,
    host_keys,
    on_host,
    values_of,
)
from weft.runtime.step import RunContext, Step

Array = np.ndarray[Any, Any]
#: The ways to run a record: "recorded" as it ran, in one process; by the reference interpreter; as
#: one native plan, or on the dataflow executor where it needs that; by Numba's code; always on the
#: dataflow executor; on the first GPU.
ENGINES = ("recorded", "interpreter", "native", "numba", "dataflow", "gpu")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a run gave: results and the variables after it, or the error."""

    results: tuple[Any, ...] = ()
    variables: Mapping[str, Array] = field(default_factory=dict)
    error: WeftError | None = None

    def of(self, what: str) -> Any:
        """The value that a `Difference` calls `what`; None if there is none."""
        kind, _, name = what.partition(" ")
        if kind == "result":
            return self.results[int(name)]
        return self.variables.get(name.strip("'"))


class HostReplay(RunLog):
    """The log of a recorded run, for another run of its program: its host ops give what they gave
    then. graph: the program."""

    def __init__(self, graph: Graph, groups: Sequence[HostGroup]) -> None:
        super().__init__()
        self._keys, ops = host_keys(graph), list(graph.walk())
        self._turn = threading.Lock()
        self._left: dict[HostKey, list[HostRow]] = {}
        self._several: dict[str, list[list[HostRow]]] = {}  # of the ops that share a line
        for group in groups:
            rows = list(group.rows)
            for number in group.ops:
                self._left[self._keys[ops[number]]] = rows
            if group.ops:
                self._several.setdefault(self._keys[ops[group.ops[0]]].what, []).append(rows)

    def host(self, graph: Graph) -> RunHost:
        """What `interpret(graph, ..., host=)` takes. graph: the program, or what passes made of
        it."""
        keys = host_keys(graph)

        def run(op: Operation, operands: Sequence[Any]) -> list[Any]:
            if op not in keys:
                return HostObjects({})(op, operands)
            made = self.given(keys[op], ())
            if isinstance(made, WeftError):
                raise made
            return list(made)

        return run

    def given(self, key: HostKey, iterations: tuple[int, ...]) -> HostResults:
        with self._turn:
            rows = self._rows(key)
            place = 0
            if iterations and rows and rows[0].iterations:
                found = (k for k, row in enumerate(rows) if row.iterations == iterations)
                place = next(found, len(rows))
            if place < len(rows):
                return rows.pop(place).made
        return nothing_given(key.what.split()[0])

    def _rows(self, key: HostKey) -> list[HostRow]:
        if key.number >= 0:
            return self._left.get(key, [])
        several = self._several.get(key.what, [])
        if len(several) > 1:
            if any(len(rows) > 1 for rows in several):
                raise UnsupportedError(
                    f"the record does not say in which order the calls of '{key.what}' come in a "
                    "native step: it is of a step on the dataflow executor, where several ops of "
                    "this name run in loops",
                    hint="replay it on the interpreter or on the dataflow executor",
                )
            several[:] = [[rows[0] for rows in several if rows]]
        return several[0] if several else []

    def note(self, key: HostKey, iterations: tuple[int, ...], made: HostResults) -> None:
        """Nothing: it is what the log has given."""

    def part(self, device: str) -> RunLog:
        """The same for the part of a placed program on a device."""
        return _PartReplay(self, (key for op, key in self._keys.items() if op.device == device))


class _PartReplay(RunLog):
    """A replay of a part, whose ops are numbered by themselves. keys: of its ops in the whole."""

    def __init__(self, whole: HostReplay, keys: Iterable[HostKey]) -> None:
        super().__init__()
        self._whole = whole
        self._of: dict[str, list[HostKey]] = {}
        for key in keys:
            self._of.setdefault(key.what, []).append(key)

    def given(self, key: HostKey, iterations: tuple[int, ...]) -> HostResults:
        if key.number >= 0:
            key = self._of[key.what][key.number]
        return self._whole.given(key, iterations)

    def note(self, key: HostKey, iterations: tuple[int, ...], made: HostResults) -> None:
        """Nothing, as of the whole."""


class _Anything(Mapping[str, Any]):
    """Objects for all handles of a program, on which no op works."""

    def __getitem__(self, name: str) -> object:
        return self

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


def run_again(record: StepRecord, engine: str = "recorded", watch: Watch | None = None) -> Replayed:
    """Run a record. engine: one of `ENGINES`; watch: is told of each op, of the interpreter.

    What the step raises is in the result. UnsupportedError for what the engine does not run, and
    as compiling has.
    """
    record, unknown = known_part(record)
    if engine == "interpreter":
        return _ended_early(_checked(record, interpreted(record, watch)), unknown)
    way = way_of(record, engine)
    variables = states_of(record)
    with on_isa(way), using_engine(way.engine):
        graph = on_devices_here(record.graph) if way.parts else record.graph
        step = compiled_again(graph, record.inputs, variables, way)
        log = HostReplay(graph, record.host)
        made = run_step(step, list(record.inputs), variables, log)
        return _ended_early(_checked(record, made), unknown)


def _checked(record: StepRecord, made: Replayed) -> Replayed:
    """`made`. Raises what says that the engine, or this process, cannot run the program."""
    outcome = record.outcome
    known = None if outcome is None else outcome.error
    refusals = (FailedPreconditionError, UnsupportedError)
    if isinstance(made.error, refusals) and not isinstance(known, type(made.error)):
        raise made.error
    return made


def _ended_early(made: Replayed, unknown: UnknownPart | None) -> Replayed:
    """`made`, of a program without a part that is not known."""
    if unknown is None or made.error is not None:
        return made
    return replace(made, results=(), error=unknown.error())


def run_step(
    step: Step, inputs: list[Array], variables: Mapping[str, VariableState], log: RunLog
) -> Replayed:
    """What a run of a step gives on copies of the inputs."""
    try:
        given = [np.array(x, order="C") for x in inputs]
        results = step.run(given, RunContext(log=log))
    except WeftError as error:
        return Replayed(variables=values_of(variables), error=error)
    made = tuple([None if r is None else on_host(r) for r in results])
    return Replayed(made, values_of(variables))


def interpreted(
    record: StepRecord, watch: Watch | None = None, graph: Graph | None = None
) -> Replayed:
    """A run of a record by the reference interpreter. graph: what a pass made of its program."""
    graph = record.graph if graph is None else graph
    state = DictState(record.variables)
    host = HostReplay(record.graph, record.host).host(graph)
    try:
        results = interpret(graph, record.inputs, state, host=host, watch=watch)
    except WeftError as error:
        return Replayed(variables=state.values, error=error)
    return Replayed(tuple(results), state.values)


def way_of(record: StepRecord, engine: str) -> Way:
    """The way to run a record on an engine of `ENGINES`. UnsupportedError for "recorded" where the
    step ran with passes that have no name."""
    way, pipeline = record.way, record.way.pipeline
    if engine == "recorded":
        if not pipeline:
            raise UnsupportedError(
                f"'{record.name}' ran with passes of its own, which a record does not hold",
                hint="replay it with --engine native, which takes the standard passes",
            )
        return way
    pipeline, flow = pipeline or "standard", "dataflow" if engine == "dataflow" else "auto"
    made = "numba" if engine == "numba" else "llvm"
    gpu = 0 if engine == "gpu" else None
    return Way(engine, made, way.isa, pipeline, flow, gpu, way.math_mode, way.threads)


@contextmanager
def on_isa(way: Way) -> Iterator[None]:
    """What is compiled within is for the instruction set of a way; this machine's own, if it does
    not have that."""
    with using(way.isa if way.isa in host_isas() else NATIVE):
        yield


def states_of(record: StepRecord) -> dict[str, VariableState]:
    """Variables with the values before the run."""
    made: dict[str, VariableState] = {}
    for op in record.graph.walk():
        held = op.result.type if op.name == "variable" else None
        if isinstance(held, RefType):
            name, kind = str(op.attrs["name"]), held.tensor
            value = record.variables.get(name)
            made[name] = VariableState(name, kind.dtype, kind.shape, value)
    return made


def compiled_again(
    graph: Graph, inputs: Sequence[Array], variables: Mapping[str, VariableState], way: Way
) -> Step:
    """A program, compiled for inputs like these, for one device of this process. Errors as
    `compile_step`."""
    made = partition(graph, bfloat16=way.bfloat16) if way.parts else None
    if made is not None and made.parts:  # without any it does nothing
        return _in_parts(graph, made, variables, way)
    graph = without_devices(graph)
    if is_symbolic(graph.block):
        graph = specialize_inputs(graph, [x.shape for x in inputs])
    return compile_step(graph, variables, _Anything(), _options(way), gpu=way.gpu)


def _in_parts(
    graph: Graph, made: Program, variables: Mapping[str, VariableState], way: Way
) -> Step:
    passes = gpu_passes(_passes(way))
    return DevicesStep(
        graph.name, made, len(graph.results), variables, _Anything(),
        partial(on_gpu, passes=passes, math_mode=way.math_mode), _options(way),
    )  # fmt: skip


def on_devices_here(graph: Graph) -> Graph:
    """A placed program, with a device of this process for each device that it names."""
    names = list(dict.fromkeys(op.device for op in graph.walk() if op.device))
    return with_devices(graph, {name: _local(name, k) for k, name in enumerate(names)})


def _local(name: str, number: int) -> str:
    """The device of this process that stands for a device: GPUs keep their numbers."""
    spec = DeviceSpec.parse(name)
    kind, index = ("gpu", spec.index) if spec.kind == "gpu" else ("cpu", number)
    return f"{LOCAL_TASK}/{kind}:{index}"


def _options(way: Way) -> CompileOptions:
    return CompileOptions(
        _passes(way), way.control_flow, way.deterministic, way.threads,
        math_mode=way.math_mode, passing=PassOptions(),
    )  # fmt: skip


def _passes(way: Way) -> Sequence[Pass]:
    """The passes of a way."""
    named = PIPELINES.get(way.pipeline)
    passes = [PASSES[n] for n in way.pipeline.split(",")] if named is None else named
    return passes if way.gpu is None else gpu_passes(passes)


# -------------------------------------------------------------------------------------- comparing
@dataclass(frozen=True, slots=True)
class Difference:
    """A result, a variable or the error, which is another one in one of two runs. close: it differs
    by no more than rounding."""

    what: str
    why: str
    close: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.why}"


def differences(
    graph: Graph, first: Replayed, second: Replayed, written: Sequence[str] | None = None
) -> list[Difference]:
    """How two runs of a program differ, bit by bit; those that are more than rounding first.
    written: the variables that count, by default all that the program writes."""
    error = _errors(first.error, second.error)
    if error is not None:
        return [error]
    rtol = tolerance(Program.of(graph))
    names = sorted(written_in(graph)) if written is None else written
    pairs = [(f"result {i}", a, b) for i, (a, b) in
             enumerate(zip(first.results, second.results, strict=True))]  # fmt: skip
    if first.error is None:  # what a failed step has written depends on the way it ran
        pairs += [(f"variable '{n}'", first.variables.get(n), second.variables.get(n))
                  for n in names]  # fmt: skip
    found = [d for what, a, b in pairs if (d := difference_between(what, a, b, rtol)) is not None]
    return sorted(found, key=lambda d: d.close)


def _errors(first: WeftError | None, second: WeftError | None) -> Difference | None:
    if first is None and second is None:
        return None
    if first is None:
        return Difference("the step", f"raises {_short(second)}")
    if second is None:
        return Difference("the step", f"does not raise {_short(first)}")
    if type(first) is type(second):
        return None
    return Difference("the error", f"is {_short(second)}, not {_short(first)}")


def _short(error: WeftError | None) -> str:
    return f"{type(error).__name__}: {error.what.splitlines()[0][:200]}" if error else "no error"


def difference_between(what: str, a: Any, b: Any, rtol: float) -> Difference | None:
    """How a value, called `what`, differs in two runs; None if it has the same bits. rtol: as
    `tolerance` has it."""
    if a is None or b is None:
        return None if a is b else Difference(what, "is missing")
    if same_bits(a, b):
        return None
    far = unequal(a, b, rtol)
    if far:
        return Difference(what, far)
    apart = [str(x) for x in (np.count_nonzero(a != b), a.size)]
    return Difference(what, f"has other bits in {' of '.join(apart)} elements, by rounding", True)


def against_record(record: StepRecord, again: Replayed) -> list[Difference]:
    """How a run differs from the recorded one, as `differences`. UnsupportedError for a record
    without an end, or without the logs of some tasks."""
    outcome = record.outcome
    if outcome is None:
        raise UnsupportedError("the recorded step had not ended: there is nothing to compare with")
    if record.silent:
        raise UnsupportedError(
            f"{missing_logs(record.silent)}: how the recorded step ended cannot be compared with",
            hint="two engines can, on the part that is known",
        )
    first = Replayed(outcome.results, outcome.written, outcome.error)
    return differences(record.graph, first, again, tuple(outcome.written))
