"""A kernel's edited file beside the generated code: are the results equal, and which is faster.

Both run on memory of their own, on one thread: on the operands that the op has in the dumped step
(the interpreter computes them from the step's first inputs, `runtime/native/kernels.py`), and on
random ones. An op that several kernels carry out (a product with what follows it) is compared as a
whole. Times are of interleaved runs."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.call import (
    Address,
    Arg,
    Code,
    KernelCall,
    Numbers,
    Pool,
    Scratch,
    Stacks,
    Status,
    WorkerScratch,
    worker_stride,
)
from weft.codegen.engines import using_engine
from weft.codegen.faults import STOPPED, FaultWords
from weft.codegen.llvm.jit import Kernels, hold_kernels
from weft.codegen.numba.replacements import key_of, replacements, with_replacements
from weft.codegen.stacks import WORDS
from weft.codegen.steps.plan import calls_of
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    WeftError,
)
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import Cells, DictState
from weft.ir.ops.control_flow import CONTROL
from weft.ir.program import Program
from weft.ir.text.parser import parse_program
from weft.ir.types import TensorType
from weft.passes.differential import random_array, tolerance, unequal
from weft.runtime.native.activation import StackArena
from weft.runtime.native.check_stacks import (
    native_elements,
    native_handle,
    random_stack,
    stack_kinds,
)
from weft.runtime.native.kernels import GRAPH, INPUTS, printed_kernels, read_table

Array = np.ndarray[Any, Any]
#: So many interleaved runs of each, and at most so many seconds.
RUNS, SECONDS = 200, 2.0
#: Seconds after which a loop is stopped, and bytes that it may keep on stacks.
LONGEST, STACK_BYTES = 10.0, 1 << 30
SEEDS = 3


@dataclass(frozen=True)
class KernelCheck:
    """What came of a check. differences: by what the arguments were ("the step's", "random 0"),
    "" where the results agree; generated, edited: nanoseconds of each run on the step's arguments,
    or else on random ones; skipped: arguments that could not be tried, and why."""

    key: str
    name: str
    differences: dict[str, str]
    generated: list[int]
    edited: list[int]
    skipped: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether the results agree on all arguments."""
        return bool(self.differences) and not any(self.differences.values())

    def lines(self) -> list[str]:
        """For people."""
        rows = [f"{self.name}  {self.key}"]
        for what, wrong in self.differences.items():
            rows.append(f"  on {what} arguments: {wrong or 'the same, within the tolerance'}")
        rows += [f"  not tried: {why}" for why in self.skipped]
        if self.edited:
            a, b = ([min(t), statistics.median(t)] for t in (self.generated, self.edited))
            rows.append(
                f"  {'':10}{'min':>12}{'median':>12}   of {len(self.edited)} runs, one thread"
            )
            rows += [
                f"  {n:10}{_time(t[0])}{_time(t[1])}" for n, t in (("generated", a), ("file", b))
            ]
            rows.append(f"  the file takes {b[0] / a[0]:.2f} of the generated kernel's time (min), "
                        f"{b[1] / a[1]:.2f} (median)")  # fmt: skip
        return rows


def _time(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:>9.2f} us"


def check_kernel(file: Path, dump: Path | None = None, seconds: float = SECONDS) -> KernelCheck:
    """Run an edited kernel beside the generated one. dump: the folder `kernels` of the dump, if the
    file does not lie there.

    NotFoundError if there is no such file; InvalidArgumentError for one that is no kernel of the
    dump; TypeRuleError, with what Numba says, if it does not compile.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {file}") from None
    key = key_of(text, str(file))
    folder = file.parent if dump is None else dump
    row = read_table(folder / file.name, key)
    graph = parse_program((folder / GRAPH).read_text(encoding="utf-8"), str(folder / GRAPH)).graph
    op = list(graph.walk())[row["op"]]
    in_place = tuple((a, b) for a, b in row["in_place"])
    made = printed_kernels(op, in_place)
    if made[row["kernel"]].key != key:
        raise InvalidArgumentError(
            f"the kernel '{key}' of {folder} is not what weft makes of it now",
            hint="write the dump again",
        )
    runs = []
    for held in ({}, {**replacements(), key: (text, str(file))}):
        with using_engine("llvm"), with_replacements(held):
            runs.append(_Run(op, calls_of(op, graph.stage, in_place), in_place))
    rtol = tolerance(Program.of(_alone(op, graph)))
    found: dict[str, str] = {}
    times: list[list[int]] = [[], []]
    given, skipped = _arguments(op, graph, folder, runs[0])
    for what, arguments in given:
        outcomes = [run.once(arguments) for run in runs]
        found[what] = next(
            (f"result {k} {why}" for k, (a, b) in enumerate(zip(*outcomes, strict=True))
             if (why := _differ(a, b, rtol))), "",
        )  # fmt: skip
        if not times[0]:
            times = _interleaved(runs, arguments, seconds)
    return KernelCheck(key, made[row["kernel"]].name, found, times[0], times[1], skipped)


def _alone(op: Operation, graph: Graph) -> Graph:
    """The op as a graph, to know its types."""
    return Graph(op.name, Block(op.operands, (op,), op.results),
                 tuple(f"x{k}" for k in range(len(op.operands))), graph.stage)  # fmt: skip


def _differ(a: Sequence[Array], b: Sequence[Array], rtol: float) -> str:
    """Why two results, arrays or the elements of stacks, count as different; "" if they do not."""
    if len(a) != len(b):
        return f"is a stack of {len(b)} elements instead of {len(a)}"
    return next((why for x, y in zip(a, b, strict=True) if (why := unequal(x, y, rtol))), "")


# ---------------------------------------------------------------------------------------- arguments
@dataclass(frozen=True)
class _Arguments:
    """Operands; of those that are stacks handles, which `cells` knows."""

    arrays: list[Array]
    cells: Cells


def _arguments(
    op: Operation, graph: Graph, folder: Path, generated: _Run
) -> tuple[list[tuple[str, _Arguments]], list[str]]:
    """The operands to try, with what they are; what cannot be tried, and why."""
    found: list[tuple[str, _Arguments]] = []
    skipped: list[str] = []
    real: list[Array] | None = None
    if not (folder / INPUTS).exists():
        skipped.append("the step's arguments: it has not run since the dump was written")
    elif op not in graph.ops:
        skipped.append("the step's arguments: the kernel is inside a loop or branch")
    else:
        try:
            held = _in_step(op, graph, folder)
            real = held.arrays
            found.append(("the step's", held))
        except WeftError as error:  # it calls a Python function of another process, say
            skipped.append(f"the step's arguments: {error.what}")
    for seed in range(SEEDS):
        made = _random(op, seed, real)
        why = _fails(op, graph, made, generated)
        if why:
            skipped.append(f"random arguments {seed}: {why}")
        else:
            found.append((f"random ({seed})", made))
    return found, skipped


def _in_step(op: Operation, graph: Graph, folder: Path) -> _Arguments:
    """The op's operands on the first inputs of the step."""
    with np.load(folder / INPUTS) as held:
        kept = {name: held[name] for name in held.files}
    inputs = []
    for k, arg in enumerate(graph.args):
        assert isinstance(arg.type, TensorType)
        inputs.append(kept[f"x{k}"].view(arg.type.dtype.numpy))
    values: dict[str, Array] = {}
    for other in graph.ops:
        name = f"variable {other.attrs.get('name')}"
        if other.name == "variable" and name in kept:
            dtype: Any = other.attrs["dtype"]
            values[str(other.attrs["name"])] = kept[name].view(dtype.numpy)
    before = graph.ops[: graph.ops.index(op)]
    part = Graph(graph.name, Block(graph.args, tuple(before), tuple(op.operands)), graph.arg_names,
                 graph.stage)  # fmt: skip
    cells = Cells()
    made = interpret(part, inputs, DictState(values), cells=cells)
    return _Arguments([np.asarray(x, order="C") for x in made], cells)


def _random(op: Operation, seed: int, real: Sequence[Array] | None) -> _Arguments:
    """Random operands; integers are drawn from those of the step, as they may be indices."""
    random, cells, kinds = np.random.default_rng(seed), Cells(), stack_kinds(op)
    made = []
    for k, value in enumerate(op.operands):
        assert isinstance(value.type, TensorType)
        if value in kinds:
            made.append(random_stack(value, kinds[value], random, cells))
            continue
        array = random_array(value.type, random, 0)
        if real is not None and value.type.dtype.is_integer and real[k].size:
            array = random.choice(real[k].reshape(-1), array.shape)
        made.append(np.asarray(array, order="C"))
    return _Arguments(made, cells)


def _fails(op: Operation, graph: Graph, given: _Arguments, generated: _Run) -> str:
    """Why operands are none for an op; "" if they are."""
    try:
        if op.name in CONTROL:  # to the interpreter a loop of many iterations takes too long
            generated.once(given)
        else:
            interpret(_alone(op, graph), given.arrays, cells=given.cells)
    except DeadlineExceededError:
        return f"the loop has not ended in {LONGEST:g} s"
    except WeftError:
        return "the op refuses them"
    return ""


# --------------------------------------------------------------------------------------------- runs
class _Run:
    """Calls of one op on buffers of their own."""

    def __init__(
        self, op: Operation, calls: Sequence[KernelCall], in_place: Sequence[tuple[int, int]]
    ) -> None:
        self.op, self.kinds, self.stacks = op, stack_kinds(op), StackArena()
        self.stacks.words[WORDS["most"]] = STACK_BYTES
        self.buffers: dict[Value, Array] = {}
        shared = {b: a for a, b in in_place}
        for k, value in enumerate((*op.operands, *op.results)):
            assert isinstance(value.type, TensorType)
            self.buffers.setdefault(value, _aligned(value.type))
            number = k - len(op.operands)
            if number in shared:
                self.buffers[value] = self.buffers[op.operands[shared[number]]]
        self.status = FaultWords()
        self.kept: list[Array] = []
        nested = [a.kernel for c in calls for a in c.args if isinstance(a, Code)]
        self.kernels: Kernels = hold_kernels([*(c.kernel for c in calls), *nested])
        sizes = [a.nbytes for c in calls for a in c.args if isinstance(a, Scratch)]
        self.scratch = _bytes(max(sizes, default=0))
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, *[ctypes.c_int64] * 3])
        self.calls = [
            (kind(self.kernels[c.kernel.key]), self._words(c.args), c.units) for c in calls
        ]

    def _words(self, args: Sequence[Arg]) -> Array:
        words = np.array([self._word(a) for a in args], np.int64)
        self.kept.append(words)
        return words

    def _word(self, arg: Arg) -> int:
        match arg:
            case Address(value, offset):
                return int(self.buffers[value].ctypes.data) + offset
            case Pool(array):
                return self._held(np.ascontiguousarray(array.array))
            case Numbers(values):
                return self._held(np.array(values, np.int64))
            case Scratch():
                return int(self.scratch.ctypes.data)
            case WorkerScratch(nbytes):
                return self._held(_bytes(worker_stride(nbytes)))
            case Status():
                return ctypes.addressof(self.status)
            case Stacks():
                return self.stacks.address
            case Code(kernel):
                return self.kernels[kernel.key]
            case int():
                return int(arg)
        raise InternalError(f"a kernel of op '{self.op.name}' takes {arg}")

    def _held(self, array: Array) -> int:
        self.kept.append(array)
        return int(array.ctypes.data)

    def fill(self, given: _Arguments) -> None:
        """Put the operands into their buffers."""
        self.stacks.clear()
        self.elements: list[Array] = []
        for value, array in zip(self.op.operands, given.arrays, strict=True):
            if value in self.kinds:
                held = self.kinds[value]
                array = np.array(native_handle(array, held, given.cells, self.elements))
            self.buffers[value][...] = array

    def __call__(self) -> None:
        for function, words, units in self.calls:
            function(words.ctypes.data, 0, units, 0)

    def once(self, given: _Arguments) -> list[list[Array]]:
        """The results: an array, or the elements of a stack. InvalidArgumentError if a kernel
        reports a fault, DeadlineExceededError for a loop that has to be stopped."""
        self.fill(given)
        self.status.value = 0
        timer = threading.Timer(LONGEST, self._stop)
        timer.daemon = True
        if self.op.name in CONTROL:
            timer.start()
        try:
            self()
        finally:
            timer.cancel()
        if self.status.value == STOPPED:
            raise DeadlineExceededError(f"the kernel was stopped after {LONGEST:g} s",
                                        location=self.op.locations)  # fmt: skip
        if self.status.value:
            raise InvalidArgumentError(
                f"a kernel of op '{self.op.name}' reports a fault, or raised an error",
                hint="an index that is out of bounds, or an exception in the file's function",
                location=self.op.locations,
            )
        return [
            native_elements(int(self.buffers[v]), self.kinds[v]) if v in self.kinds
            else [self.buffers[v].copy()]
            for v in self.op.results
        ]  # fmt: skip

    def _stop(self) -> None:
        self.status.value = STOPPED


def _bytes(count: int) -> Array:
    """Memory that begins where a cache line does."""
    whole = np.zeros(count + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + count]


def _aligned(kind: TensorType) -> Array:
    made: Array = _bytes(kind.nbytes).view(kind.dtype.numpy).reshape(kind.static_shape)
    return made


def _interleaved(runs: Sequence[_Run], given: _Arguments, seconds: float) -> list[list[int]]:
    """The nanoseconds of each run, one after the other in turn."""
    times: list[list[int]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    clock: Callable[[], int] = time.perf_counter_ns
    for _ in range(RUNS):
        for run, held in zip(runs, times, strict=True):
            run.fill(given)
            begin = clock()
            run()
            held.append(clock() - begin)
        if time.perf_counter() > end:
            break
    return times
