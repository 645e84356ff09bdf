"""Plan of a step for a GPU: launches and copies in order, on buffers that have places.

The plan is data: it names no device and no address, so it is made, read and tested without a GPU.
Order is that of one stream: a launch begins when those before it have ended. With it: the layout of
a step's block of memory, in which every small buffer has its place; where the host checks for
indices out of bounds (before a variable is written, and at the end); and the plan as text, for
people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from weft.codegen.cuda.source.kernel import CudaKernel, Launch
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest, describe_rows
from weft.ir.cost.thresholds import DEVICE_SMALL_INPUT_BYTES, DEVICE_SMALL_RESULT_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Operation
from weft.ir.spec import Attrs
from weft.ir.types import TensorType
from weft.passes.memory.block import Moving
from weft.runtime.device.gemm_conv import Conv, Gemm

#: Bytes between the words in which one launch and the next tell of an index out of bounds.
FAULT_BYTES = 32

PlaceKind = Literal[
    "input", "result", "variable", "constant", "arena", "scratch", "fault", "moving", "cell"
]


@dataclass(frozen=True, slots=True)
class Place:
    """`nbytes` bytes, from `offset` bytes after the start of a buffer on: of an input, result,
    constant or `Moving` by its number, of a variable by its name. arena, scratch (shared by all
    ops) and faults are one buffer each, `which` is 0. cell: of a `DeviceAdd`, both elements and
    their sum.
    """

    kind: PlaceKind
    which: int | str
    offset: int
    nbytes: int

    def __str__(self) -> str:
        text = self.kind if self.kind in ("arena", "scratch", "fault") else f"{self.kind} "
        text += "" if self.kind in ("arena", "scratch", "fault") else str(self.which)
        return f"{text}+{self.offset}" if self.offset or self.kind == "arena" else text


PlanArg = Place | int
ProductKind = Literal["products", "convolutions"]


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch with its arguments in places. fault: the number of its fault words, -1 if the kernel
    checks nothing. writes: the variables that it writes. nest: what a loop nest does, for people.
    """

    launch: Launch
    args: tuple[PlanArg, ...]
    op: Operation | None
    fault: int = -1
    writes: tuple[str, ...] = ()
    nest: Nest | RowNest | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A library's way to do a product, as of `libraries.ways.Way`: launches for what the library
    cannot do, before and after its part."""

    call: Gemm | Conv
    args: tuple[Place, ...]
    after: tuple[PlannedLaunch, ...] = ()
    before: tuple[PlannedLaunch, ...] = ()
    given: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedProduct:
    """A product or convolution, with what follows it, by weft's `own` launches or by a route: the
    device's libraries choose (`device/libraries`)."""

    op: Operation
    own: tuple[PlannedLaunch, ...]
    routes: tuple[Route, ...]
    kind: ProductKind = "products"


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """A copy from one place to another of as many bytes, neither of which overlaps the other."""

    source: Place
    target: Place
    why: str


@dataclass(frozen=True, slots=True)
class CheckFaults:
    """The host waits and looks whether an op has failed: what comes next writes variables."""


@dataclass(frozen=True, slots=True)
class DeviceLoop:
    """A loop: `body` at most `limit` times (-1: no bound), as long as `decision` holds after
    `test`; the host reads it."""

    op: Operation
    limit: int
    test: tuple[DeviceNode, ...]
    decision: Place | None
    body: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DeviceBranch:
    """A branch: `then` if `decision`, which the host reads, holds, else `orelse`."""

    op: Operation
    decision: Place
    then: tuple[DeviceNode, ...]
    orelse: tuple[DeviceNode, ...]


@dataclass(frozen=True, slots=True)
class DevicePush:
    """A push: `result` becomes a stack with `value` on top of `stack`; an error where a loop has
    kept more than `limit` bytes so (-1: no limit)."""

    op: Operation
    stack: Place
    value: Place
    result: Place
    limit: int


@dataclass(frozen=True, slots=True)
class DevicePop:
    """A pop: `rest` becomes what is below the top of `stack`, `top` the top: zeros if there is
    none."""

    op: Operation
    stack: Place
    rest: Place
    top: Place


@dataclass(frozen=True, slots=True)
class DeviceAdd:
    """A sum of stacks: `result` becomes the stack of the sums of the elements of `a` and `b`, from
    the tops on. The elements are stacks themselves, `depth` deep; `launches` add up two of the
    innermost, of `nbytes` each, at the places "cell" 0 and 1, to that at 2."""

    op: Operation
    a: Place
    b: Place
    result: Place
    depth: int
    nbytes: int
    launches: tuple[PlannedLaunch, ...]


@dataclass(frozen=True, slots=True)
class DevicePython:
    """A call of Python, which the host makes: the values at `operands` come from the device, what
    it gives goes to `results`. types: of both, in that order; attrs: of the op."""

    op: Operation
    attrs: Attrs
    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    types: tuple[TensorType, ...]


DeviceNode = (
    PlannedLaunch
    | PlannedProduct
    | PlannedCopy
    | CheckFaults
    | DeviceLoop
    | DeviceBranch
    | DevicePush
    | DevicePop
    | DeviceAdd
    | DevicePython
)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The plan of a step for a GPU. nodes: what runs. inputs, results: their types (None: a token).
    constants: arrays that stay on the device. variables: name -> (type, whether it is read).
    faults: of each launch that checks indices, by the number of its words, the ops that do.
    arena_bytes, scratch_bytes: of one step. moving: what follows the iterations of loops. math: how
    libraries may multiply f32. donated: the results that are in an input's memory, and which.
    written: the variables that a step writes.
    """

    nodes: tuple[DeviceNode, ...]
    inputs: tuple[TensorType, ...]
    results: tuple[TensorType | None, ...]
    constants: tuple[np.ndarray[Any, Any], ...]
    variables: Mapping[str, tuple[TensorType, bool]]
    faults: tuple[tuple[Operation, ...], ...]
    arena_bytes: int
    scratch_bytes: int
    moving: tuple[tuple[Moving, Place, Place], ...] = ()
    math: MathMode = "ieee"
    donated: Mapping[int, int] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    def launches(self) -> list[PlannedLaunch]:
        """The launches in order, those in loops and branches once; of products weft's own."""
        return [
            launch
            for leaf in _leaves(self.nodes)
            for launch in (leaf.own if isinstance(leaf, PlannedProduct) else (leaf,))
        ]

    def products(self) -> list[PlannedProduct]:
        """The products that a library may do, in order."""
        return [leaf for leaf in _leaves(self.nodes) if isinstance(leaf, PlannedProduct)]

    def kernels(self) -> list[CudaKernel]:
        """The kernels of `launches`, each once."""
        return _kernels(self.launches())

    def kernels_after(self) -> list[CudaKernel]:
        """Those that run only where a library does a product, each once."""
        return _kernels(
            [x for p in self.products() for r in p.routes for x in (*r.before, *r.after)]
        )


def _kernels(launches: Sequence[PlannedLaunch]) -> list[CudaKernel]:
    return list({n.launch.kernel.key: n.launch.kernel for n in launches}.values())


def inner(node: DeviceNode) -> Sequence[DeviceNode]:
    """What a node is made of: a loop, a branch, a product by weft's own kernels, a sum; of others
    nothing."""
    match node:
        case DeviceLoop():
            return (*node.test, *node.body)
        case DeviceBranch():
            return (*node.then, *node.orelse)
        case DeviceAdd():
            return node.launches
        case PlannedProduct():
            return node.own
        case _:
            return ()


def _leaves(nodes: Sequence[DeviceNode]) -> Iterator[PlannedLaunch | PlannedProduct]:
    for node in nodes:
        if isinstance(node, PlannedLaunch | PlannedProduct):
            yield node
        else:
            yield from _leaves(inner(node))


ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets in the block. inputs, results: of the small ones by number. What comes from the
    host lies at the front, up to `input_end`; what goes back follows, up to `result_end`: the
    results, then the fault words, at `faults`."""

    inputs: Mapping[int, int]
    input_end: int
    results: Mapping[int, int]
    faults: int
    result_end: int
    arena: int
    scratch: int
    nbytes: int


def layout_of(plan: DevicePlan) -> Layout:
    """Where everything is. An input whose memory is donated, and the result there, are not small:
    the memory is used as it is."""
    end = 0
    inputs, results = {}, {}
    donated = set(plan.donated.values())
    for i, held in enumerate(plan.inputs):
        if held.nbytes <= DEVICE_SMALL_INPUT_BYTES and i not in donated:
            inputs[i] = end
            end = _after(end, held.nbytes)
    input_end = end
    for i, result in enumerate(plan.results):
        if (
            result is not None
            and result.nbytes <= DEVICE_SMALL_RESULT_BYTES
            and i not in plan.donated
        ):
            results[i] = end
            end = _after(end, result.nbytes)
    faults = end
    result_end = faults + FAULT_BYTES * len(plan.faults)
    arena = _after(faults, FAULT_BYTES * len(plan.faults))
    scratch = _after(arena, plan.arena_bytes)
    nbytes = _after(scratch, plan.scratch_bytes)
    return Layout(inputs, input_end, results, faults, result_end, arena, scratch, nbytes)


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where buffers of so many bytes lie, one after another, and where they end."""
    offsets, end = [], 0
    for nbytes in sizes:
        offsets.append(end)
        end = _after(end, nbytes)
    return offsets, end


def _after(offset: int, nbytes: int) -> int:
    return (offset + nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def looked_first(nodes: Sequence[DeviceNode]) -> tuple[tuple[DeviceNode, ...], bool]:
    """`nodes` with a look before what first writes a variable, where none comes before that; and
    whether there is one now. For bodies of loops, where the iteration before may have failed."""
    for k, node in enumerate(nodes):
        if isinstance(node, CheckFaults):
            return tuple(nodes), True
        if _writes(node):
            return (*nodes[:k], CheckFaults(), *nodes[k:]), True
    return tuple(nodes), False


def marks(nodes: Sequence[DeviceNode], last: bool) -> frozenset[int]:
    """After which of `nodes` a point in the device's work is noted for the next look: it waits for
    that alone, so the last before it that checks, unless it is the very last. last: whether there
    is a look behind them all. None where there is no look: what is noted is not recorded."""
    if not last and not _looks(nodes):
        return frozenset()
    found: set[int] = set()
    told = -1
    for k, node in enumerate(nodes):
        if isinstance(node, CheckFaults):
            if 0 <= told < k - 1:
                found.add(told)
            told = -1
        elif checks(node):
            told = k
    return frozenset(found if told < 0 else {*found, told})


def _looks(nodes: Sequence[DeviceNode]) -> bool:
    """Whether the host may look somewhere in there."""
    return any(isinstance(node, CheckFaults) or _looks(inner(node)) for node in nodes)


def checks(node: DeviceNode) -> bool:
    """Whether indices may be checked."""
    if isinstance(node, PlannedLaunch):
        return node.fault >= 0
    return any(map(checks, inner(node)))


def _writes(node: DeviceNode) -> bool:
    """Whether a variable may be written, or Python is called: after an op that has failed neither
    happens."""
    match node:
        case DevicePython():
            return True
        case PlannedLaunch():
            return bool(node.writes)
        case PlannedCopy():
            return node.target.kind == "variable"
        case _:
            return any(map(_writes, inner(node)))


def describe_plan(plan: DevicePlan) -> str:
    """The launches numbered in order; loops and branches with their bodies indented."""
    return "\n".join(_lines(plan.nodes, "", iter(range(1, 1 << 62))))


def _lines(nodes: Sequence[DeviceNode], pad: str, number: Iterator[int]) -> Iterator[str]:
    inner, told = pad + "  ", None
    for node in nodes:
        match node:
            case PlannedLaunch():
                yield f"{pad}{next(number)}. {_launch(node)}"
                if node.nest is not None and node.nest is not told:
                    told = node.nest
                    text = describe_rows(told) if isinstance(told, RowNest) else told.describe()
                    yield from (f"{pad}   {line}" for line in text.rstrip().splitlines())
            case PlannedProduct():
                yield from _lines(node.own, pad, number)
            case PlannedCopy():
                yield (f"{pad}copy {node.source.nbytes} bytes {node.source} -> {node.target}"
                       f"  # {node.why}")  # fmt: skip
            case CheckFaults():
                yield f"{pad}the host looks for indices out of bounds: variables are written next"
            case DeviceLoop():
                times = "" if node.limit < 0 else f" {node.limit} times"
                yield f"{pad}{node.op.name}: loop{' at most' if node.test else ''}{times}"
                yield from _lines(node.test, inner, number)
                if node.decision is not None:
                    yield f"{inner}the host leaves unless {node.decision} holds"
                yield from _lines(node.body, inner, number)
            case DevicePush():
                yield f"{pad}the host keeps {node.value} for the gradient  # {node.op.name}"
            case DevicePop():
                yield f"{pad}the host gives back what was kept to {node.top}  # {node.op.name}"
            case DevicePython():
                where = f" ({node.op.locations[0]})" if node.op.locations else ""
                yield f"{pad}the host calls Python  # {node.op.name}{where}"
            case DeviceAdd():
                yield f"{pad}the host adds up what was kept, element by element  # {node.op.name}"
                yield from _lines(node.launches, inner, number)
            case DeviceBranch():
                yield f"{pad}cond: if {node.decision}, which the host reads"
                yield from _lines(node.then, inner, number)
                yield f"{pad}else"
                yield from _lines(node.orelse, inner, number)


def _launch(node: PlannedLaunch) -> str:
    launch, op = node.launch, node.op
    where = f" ({op.locations[0]})" if op is not None and op.locations else ""
    what = f"  # {op.name}{where}" if op is not None else ""
    return f"{launch.kernel.name}<<<{launch.blocks}, {launch.block_threads}>>>{what}"
