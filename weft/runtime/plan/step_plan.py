"""Step plans: what a step needs in order to run, apart from its graph; as bytes, and on disk.

A plan means the same in every process: kernels are named by content key, constants of the traced
graph by number, other constants by their bytes. As bytes it is JSON and int64 words, checked by
the cache that keeps them (`codegen/llvm/cache.py`). A graph that was compiled before, by any
process, is found there by its key and runs no pass again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.codegen.llvm.cache import PLAN_SUFFIX, CachedRecord, file_name, plan_cache
from weft.codegen.llvm.cache_key import describe_kernel, describe_plan
from weft.codegen.llvm.jit import Kernel, Kernels, do_later, load_kernels
from weft.codegen.stacks import leaves_stacks
from weft.codegen.steps.walker import SlotKey, Table
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import DType, as_dtype
from weft.ir.graph import Graph, Operation
from weft.ir.ops import REGISTERED
from weft.ir.spec import ConstArray
from weft.ir.text.digest import digest_graph
from weft.ir.types import TensorType
from weft.passes.manager import NamedPipeline, PassOptions, pass_name

if TYPE_CHECKING:
    from weft.codegen.loops.program import Node, PlannedCall
    from weft.passes.manager import PassReport
    from weft.passes.memory.block import MemoryPlan
    from weft.runtime.plan.planning import StepProgram


Array = np.ndarray[Any, Any]
#: Plans whose constants, those of the traced graph not counted, are larger are not kept on disk.
MOST_CONSTANT_BYTES = 16 << 20


def pack_arrays(
    arrays: Sequence[Array], traced: Sequence[ConstArray]
) -> tuple[list[Any], bytes] | None:
    """A row for each array, as JSON has it, and bytes; None if these are too many. traced: the
    constants of the traced graph, which whoever reads the plan has."""
    known = {id(held.array): k for k, held in enumerate(traced)}
    rows: list[Any] = []
    stored: list[bytes] = []
    for array in arrays:
        if id(array) in known:
            rows.append(known[id(array)])
        else:
            rows.append([as_dtype(array.dtype).name, list(array.shape)])
            stored.append(array.tobytes())
    if sum(map(len, stored)) > MOST_CONSTANT_BYTES:
        return None
    return rows, b"".join(stored)


def unpack_arrays(
    rows: Sequence[Any], payload: bytes, first: int, traced: Sequence[ConstArray]
) -> list[Array]:
    """The opposite of `pack_arrays`, whose bytes begin at `first`."""
    arrays: list[Array] = []
    for row in rows:
        if isinstance(row, int):
            arrays.append(traced[row].array)
            continue
        dtype, shape = as_dtype(row[0]).numpy, tuple(row[1])
        count = int(np.prod(shape, dtype=np.int64))
        # a copy: kernels want it aligned
        held = np.frombuffer(payload, dtype, count, first).reshape(shape).copy()
        held.setflags(write=False)
        arrays.append(held)
        first += held.nbytes
    return arrays


#: Steps that take less keep the GIL: giving it away and taking it back costs 0.1 us and more.
SHORT_NS = 5_000
NS_PER_BYTE_IN_CACHE = 0.25  # of a nest that does some arithmetic too

Result = tuple[tuple[int, ...], DType]
_FLAT = ("words", "calls", "owner", "moves", "patches", "workers", "status", "stacks")
_PAIRS = {"arena": 2, "rows": 2, "codes": 2, "constants": 3}
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
    """Loop nests and copies alone, estimated at less than SHORT_NS."""
    if len(calls) != len(nodes):
        return False  # loops
    if any(c.nest is None and c.op is not None for c in calls):
        return False
    moved = last.bytes
    return moved is not None and 20 * len(calls) + moved * NS_PER_BYTE_IN_CACHE < SHORT_NS


# ------------------------------------------------------------------------------------------- bytes


def pack_plan(
    plan: StepPlan, files: Mapping[str, str], traced: Sequence[ConstArray]
) -> tuple[dict[str, Any], bytes] | None:
    """Fields that JSON can hold, and the bytes that go with them; None if the constants are too
    large.

    files: the name of each kernel's file by its key. traced: the constants of the traced graph,
    which whoever reads the plan has.
    """
    table = plan.table
    if table.own:  # sizes that may become others: such plans are made while a step runs
        return None
    packed = pack_arrays(table.arrays, traced)
    if packed is None:
        return None
    arrays, stored = packed
    columns = [np.array(getattr(table, n), np.int64).reshape(-1) for n in (*_FLAT, *_PAIRS)]
    fields = {
        "sizes": [len(c) for c in columns],
        "kernels": [[key, files[key]] for key in table.kernels],
        "arrays": arrays,
        "routines": table.routines,
        "scratch": [table.scratch_bytes, table.worker_bytes],
        "slots": [list(key) for key in plan.slots],
        "results": [None if r is None else [list(r[0]), r[1].name] for r in plan.results],
        "donated": [list(row) for row in plan.donated.items()],
        "read": sorted(plan.read),
        "written": sorted(plan.written),
        **{name: getattr(plan, name) for name in _NUMBERS},
    }
    return fields, b"".join([*(c.tobytes() for c in columns), stored])


def kernel_files(fields: Mapping[str, Any]) -> dict[str, str]:
    """The name of each kernel's file by its key."""
    return dict(fields["kernels"])


def unpack_plan(
    fields: Mapping[str, Any], payload: bytes, traced: Sequence[ConstArray]
) -> StepPlan:
    """The opposite of `pack_plan`."""
    scratch_bytes, worker_bytes = fields["scratch"]
    table = Table(
        kernels=[key for key, _ in fields["kernels"]],
        routines=[(word, name) for word, name in fields["routines"]],
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


T = TypeVar("T")
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True)
class PlanKey:
    """The key of a traced graph's plan: all that it depends on. target: as of `describe_plan`."""

    graph: Graph
    passes: tuple[str, ...]
    donated: tuple[int, ...]
    target: str = ""

    @cached_property
    def content(self) -> tuple[str | None, list[ConstArray]]:
        """The description, None if it cannot be known, and the graph's constants."""
        digest, constants = digest_graph(self.graph)
        return describe_plan(digest, self.passes, self.donated, self.target), constants

    def load(self, read: Callable[[CachedRecord, list[ConstArray]], T]) -> T | None:
        """What `read` makes of what is kept of the plan and of the graph's constants; None if it is
        not there, or damaged."""
        cache = plan_cache()
        if cache is None or not cache.exists():
            return None
        description, constants = self.content
        if description is None:
            return None
        return cache.load_record(description, PLAN_SUFFIX, lambda found: read(found, constants))

    def store(self, name: str, packed: tuple[dict[str, Any], bytes] | None) -> None:
        """Keep a plan, if it can be packed."""
        cache, (description, _) = plan_cache(), self.content
        if cache is not None and description is not None and packed is not None:
            cache.store_record(description, PLAN_SUFFIX, CachedRecord(name, *packed))


def plan_key(
    graph: Graph,
    passes: Sequence[Any],
    options: PassOptions,
    donated: Sequence[int],
    target: str = "",
) -> PlanKey | None:
    """None if the plan is not kept: no cache, passes that are not weft's own, who compiles wants
    to see the passes at work, or the graph has ops whose meaning is the user's."""
    watched = options.verify or options.dump is not None or "passes" in options.log
    if watched or plan_cache() is None:
        return None
    if REGISTERED and any(op.name in REGISTERED for op in graph.walk()):
        return None
    names = _names(passes)
    return None if names is None else PlanKey(graph, names, tuple(donated), target)


def _names(passes: Sequence[Any]) -> tuple[str, ...] | None:
    """What plans say of their passes: those of weft by name, a pipeline by its own, as the sources
    of the passes are in the key. None if one of them is the user's."""
    if isinstance(passes, NamedPipeline):
        return (f"pipeline {passes.name}",)
    # who names no passes does not wait for these modules, unless a step has to be planned
    from weft.passes.pipelines import PASSES, PIPELINES

    for name, pipeline in PIPELINES.items():
        if pipeline == tuple(passes):
            return (f"pipeline {name}",)
    names = tuple([pass_name(run) for run in passes])
    if any(PASSES.get(name) is not run for name, run in zip(names, passes, strict=True)):
        return None
    return names


def load_plan(key: PlanKey) -> tuple[StepPlan, Kernels] | None:
    """The plan and its kernels' addresses; None if the plan or one of the kernels is not there."""
    kept = key.load(_read_plan)
    if kept is None:
        return None
    name, files, plan = kept
    addresses = load_kernels(files)
    if addresses is None:
        _log.info("cache: a kernel of the plan of %s is gone, it is planned again", name)
        return None
    return plan, addresses


def _read_plan(
    found: CachedRecord, constants: list[ConstArray]
) -> tuple[str, dict[str, str], StepPlan]:
    plan = unpack_plan(found.fields, found.payload, constants)
    return found.name, kernel_files(found.fields), plan


def store_plan(key: PlanKey, name: str, plan: StepPlan, kernels: Sequence[Kernel]) -> None:
    """Keep a plan, if its kernels are kept and its constants are not too large; in another thread,
    when the kernels are there."""
    do_later(partial(_store, key, name, plan, kernels))


def _store(key: PlanKey, name: str, plan: StepPlan, kernels: Sequence[Kernel]) -> None:
    files = {}
    for kernel in kernels:
        description = describe_kernel(kernel)
        if description is None:
            return
        files[kernel.key] = file_name(description)
    key.store(name, pack_plan(plan, files, key.content[1]))
