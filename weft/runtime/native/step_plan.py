"""Step plans: what a step needs in order to run, apart from its graph; also as bytes; and the
report of compiling one: the fused graph, the passes, the memory plan and the program.

A plan means the same in every process: kernels are named by content key, constants of the traced
graph by number, other constants by their bytes. As bytes it is JSON and int64 words; `store.py`
keeps them on disk.

The report is kept from the compilation; for a plan from disk the passes run again when somebody
asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from weft.codegen.engines import using_engine
from weft.codegen.llvm.cache import describe_kernel, file_name
from weft.codegen.llvm.jit import Kernel, Kernels, load_kernels
from weft.codegen.llvm.target import isa_line, using
from weft.codegen.numba.replacements import Replacements, with_replacements
from weft.codegen.stacks import leaves_stacks
from weft.codegen.steps.walker import SlotKey, Table
from weft.ir.cost.rates import CALL_NS, NS_PER_BYTE_IN_NEST
from weft.ir.cost.thresholds import SHORT_STEP_NS
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, as_dtype
from weft.ir.graph import Graph, Operation
from weft.ir.process import ForkLock, collector_paused, load
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType
from weft.passes.manager import PassOptions, PassReport
from weft.runtime.native.python_calls import pack_calls, unpack_calls
from weft.runtime.plan_store import (
    Fields,
    NotKeptError,
    PlanKey,
    changed,
    pack_arrays,
    unpack_arrays,
)

if TYPE_CHECKING:
    from weft.codegen.loops.program import Node, PlannedCall
    from weft.passes.memory.block import MemoryPlan
    from weft.runtime.native.planning import StepProgram


Result = tuple[tuple[int, ...], DType]
_FLAT = ("words", "calls", "owner", "moves", "patches", "workers", "status", "stacks")
_PAIRS = {"arena": 2, "rows": 2, "codes": 2, "callees": 2, "constants": 3}
_NUMBERS = ("inputs", "arena_bytes", "result_bytes", "cut", "short", "leaves_stacks")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of a step. table: what runs. slots: the kind and number of each buffer that comes
    anew with every call.

    results: shape and dtype, None for one that is a token or is computed in the memory of an input
    (donated: number of the result -> of the input). read, written: the variables whose value before
    the step is used, and those that it writes. cut: whether a call is worth several threads.
    short: whether the step is over before another Python thread could use the GIL. leaves_stacks:
    whether results are handles of stacks in the activation's arena.
    """

    table: Table
    slots: tuple[SlotKey, ...]
    inputs: int
    results: tuple[Result | None, ...]
    donated: Mapping[int, int]
    read: frozenset[str]
    written: frozenset[str]
    arena_bytes: int
    result_bytes: int
    cut: bool
    short: bool
    leaves_stacks: bool


def step_plan(graph: Graph, memory: MemoryPlan, program: StepProgram, last: PassReport) -> StepPlan:
    """The plan of a fused graph; `last`: what its last pass did."""
    read, written = _state_use(graph)
    results = [
        (v.type.static_shape, v.type.dtype)
        if isinstance(v.type, TensorType) and i not in memory.donated
        else None
        for i, v in enumerate(graph.results)
    ]
    return StepPlan(
        program.table, tuple(program.slot_number), len(graph.args), tuple(results), memory.donated,
        frozenset(read), frozenset(written), memory.arena_bytes, memory.result_bytes,
        any(c.call.chunk for c in program.calls), _is_short(program.nodes, program.calls, last),
        leaves_stacks(graph.block),
    )  # fmt: skip


def _state_use(graph: Graph) -> tuple[set[str], set[str]]:
    """The variables whose value before the step is read, and those that the step writes."""
    read: set[str] = set()
    written: set[str] = set()
    for op in graph.ops:  # in the order in which they run
        if op.name == "read" and variable_name(op) not in written:
            read.add(variable_name(op))
        elif op.name == "assign":
            written.add(variable_name(op))
    return read, written


def variable_name(op: Operation) -> str:
    """The name of the variable that an op reads or writes."""
    ref = op.operands[0].op
    assert ref is not None
    return str(ref.attrs["name"])


def _is_short(nodes: Sequence[Node], calls: Sequence[PlannedCall], last: PassReport) -> bool:
    """Loop nests and copies alone, estimated at less than SHORT_STEP_NS."""
    if len(calls) != len(nodes):
        return False  # loops
    if any(c.nest is None and c.op is not None for c in calls):
        return False
    moved = last.bytes
    if moved is None:
        return False
    return CALL_NS * len(calls) + moved * NS_PER_BYTE_IN_NEST < SHORT_STEP_NS


# ------------------------------------------------------------------------------------------- bytes
_log = logging.getLogger("weft.compile")


def pack_plan(
    plan: StepPlan, kernels: Sequence[Kernel], traced: Sequence[ConstArray]
) -> tuple[Fields, bytes]:
    """Fields that JSON can hold, and the bytes that go with them. kernels: all that it calls.
    traced: the constants of the traced graph, which whoever reads the plan has. NotKeptError."""
    table = plan.table
    if table.own:  # such plans are made while a step runs
        raise NotKeptError("sizes that may become others")
    files = {}
    for kernel in kernels:
        description = describe_kernel(kernel)
        if description is None:
            raise NotKeptError(f"kernel '{kernel.name}', which is not")
        files[kernel.key] = file_name(description)
    arrays, stored = pack_arrays(table.arrays, traced)
    columns = [np.array(getattr(table, n), np.int64).reshape(-1) for n in (*_FLAT, *_PAIRS)]
    fields = {
        "sizes": [len(c) for c in columns],
        "kernels": [[key, files[key]] for key in table.kernels],
        "arrays": arrays,
        "routines": table.routines,
        "python": pack_calls(table.python),
        "scratch": [table.scratch_bytes, table.worker_bytes],
        "slots": [list(key) for key in plan.slots],
        "results": [None if r is None else [list(r[0]), r[1].name] for r in plan.results],
        "donated": [list(row) for row in plan.donated.items()],
        "read": sorted(plan.read),
        "written": sorted(plan.written),
        **{name: getattr(plan, name) for name in _NUMBERS},
    }
    return fields, b"".join([*(c.tobytes() for c in columns), stored])


def unpack_plan(
    fields: Mapping[str, Any], payload: bytes, traced: Sequence[ConstArray]
) -> StepPlan:
    """The opposite of `pack_plan`."""
    scratch_bytes, worker_bytes = fields["scratch"]
    table = Table(
        kernels=[key for key, _ in fields["kernels"]],
        routines=[(word, name) for word, name in fields["routines"]],
        python=unpack_calls(fields["python"]),
        scratch_bytes=scratch_bytes, worker_bytes=worker_bytes,
    )  # fmt: skip
    total = sum(fields["sizes"])
    words = np.frombuffer(payload, np.int64, total).tolist()
    first = 0
    for name, size in zip((*_FLAT, *_PAIRS), fields["sizes"], strict=True):
        column = words[first : first + size]
        first += size
        if name in _PAIRS:
            step = _PAIRS[name]
            column = list(zip(*(column[k::step] for k in range(step)), strict=True))
        setattr(table, name, column)
    table.arrays = unpack_arrays(fields["arrays"], payload, 8 * total, traced)
    results = [None if r is None else (tuple(r[0]), as_dtype(r[1])) for r in fields["results"]]
    return StepPlan(
        table=table, slots=tuple([(kind, which) for kind, which in fields["slots"]]),
        results=tuple(results), donated=dict(fields["donated"]), read=frozenset(fields["read"]),
        written=frozenset(fields["written"]), **{name: fields[name] for name in _NUMBERS},
    )  # fmt: skip


def load_plan(key: PlanKey) -> tuple[StepPlan, Kernels] | None:
    """The plan and its kernels' addresses; None if the plan or one of the kernels is not there."""

    def read(
        fields: Mapping[str, Any], payload: bytes, traced: Sequence[ConstArray]
    ) -> tuple[StepPlan, dict[str, str]]:
        return unpack_plan(fields, payload, traced), dict(fields["kernels"])

    kept = key.load(read)
    if kept is None:
        return None
    plan, files = kept
    addresses = load_kernels(files)
    if addresses is None:
        _log.info("cache: a kernel of the plan of %s is gone, it is planned again", key.graph.name)
        return None
    return plan, addresses


@dataclass(frozen=True, slots=True)
class CompileReport:
    """The report on compiling a step: the passes, the memory plan, the program, its kernel calls,
    how many kernels were new, whether the plan came from disk (then the passes ran for this
    report), and the instruction set."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    program: tuple[Node, ...]
    calls: tuple[PlannedCall, ...]
    kernels_compiled: int
    seconds: float
    kernels_loaded: int = 0
    plan_loaded: bool = False
    isa: str = field(default_factory=isa_line)

    def describe_program(self) -> list[str]:
        """The kernel calls, numbered as in `calls`, and loops and branches, as lines for people."""
        describe: Any = load("weft.codegen.loops.program", "describe_program")
        lines: list[str] = describe(self.program).splitlines()
        return lines


#: The fused graph of a step, and how it came about.
Details = tuple[Graph, CompileReport]


def planned(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    options: PassOptions,
) -> tuple[Graph, list[PassReport], MemoryPlan, StepProgram]:
    """Passes, memory plan and program of a traced graph; errors as
    `runtime.native.executable.compile_graph`. The modules for it are loaded with the first graph
    that has no plan on disk."""
    plan: Any = load("weft.runtime.native.planning", "planned")
    made: tuple[Graph, list[PassReport], MemoryPlan, StepProgram]
    made = plan(graph, passes, donated, options)
    return made


def details_again(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    plan: StepPlan,
    effort: tuple[int, float, int],
    plan_loaded: bool,
    isa: str,
    by: tuple[str, Replacements],
) -> Details:
    """What a plan does not say: run the passes again, on this program's own graph. by: the code
    generator, and the kernels that were replaced."""
    with collector_paused(), using(isa), using_engine(by[0]), with_replacements(by[1]):
        fused, reports, memory, program = planned(graph, passes, donated, PassOptions())
        report = CompileReport(
            tuple(reports), memory, program.nodes, program.calls, *effort, plan_loaded
        )
    if program.table.kernels != plan.table.kernels or program.table.calls != plan.table.calls:
        raise changed(graph)
    return fused, report


T = TypeVar("T")


class Once(Generic[T]):
    """A function of no arguments that is called once, whichever thread asks first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = ForkLock()

    def __call__(self) -> T:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
